#!/usr/bin/env bash
# How well speakers are kept apart over long recordings: the tables of RESULTS.md.
#
#   local/long_recordings.sh SPEECH MODEL OUT [continuity | whole]
#
# SPEECH    folder of recordings whose test split holds two speakers or more
# MODEL     what `sepkit models` lists
# OUT       folder for recordings, estimates and scores; about 1 GB for each setting of an hour
#
# continuity    conversations of $minutes (60), from $seeds (0 1 2), in each of $settings (chunk:overlap, seconds):
#               changes of speaker, and what they cost
# whole         conversations of 60 s, as many as $count (30): SI-SDRi in chunks against as a whole, with its difference
#               and interval
#
# The same command again continues.
set -euo pipefail
[ $# -ge 3 ] || { sed -n '2,/^set/p' "$0" | grep '^#' >&2; exit 2; }
. "$(dirname "$0")/../../utils/path.sh"
speech=$1 model=$2 out=$3 what=${4:-continuity}
minutes=${minutes:-60} seeds=${seeds:-0 1 2} settings=${settings:-10:5 4:2 4:1}
count=${count:-30}

if [ "$what" = continuity ]; then
  for seed in $seeds; do
    sepkit prepare conversation --speech "$speech" --minutes "$minutes" --seed "$seed" --out "$out/conversation_$seed"
    for setting in $settings; do
      estimates=$out/estimates_$seed/${setting/:/_}
      sepkit separate "$out/conversation_$seed/mixture.flac" --model "$model" --out "$estimates" --no-predict \
        --chunk-seconds "${setting%:*}" --overlap-seconds "${setting#*:}"
      echo "seed $seed, chunks $setting s:"
      sepkit evaluate --estimates "$estimates" --manifest "$out/conversation_$seed/conversation.jsonl" \
        --metrics continuity --out "$estimates/continuity"
    done
  done
else
  manifest=$out/minutes/test.jsonl
  mkdir -p "$out/minutes"
  for seed in $(seq 100 $((99 + count))); do
    sepkit prepare conversation --speech "$speech" --minutes 1 --seed $seed --out "$out/minutes/$seed"
    # One manifest of all of them.
    sed -e "s|\"id\": \"mixture\"|\"id\": \"$seed/mixture\"|; s|\"mixture\": \"mixture.flac\"|\"mixture\": null|" \
      -e "s|\"path\": \"|&$seed/|g" "$out/minutes/$seed/conversation.jsonl"
  done >"$manifest.new"
  grep '^{' "$manifest.new" >"$manifest" && rm "$manifest.new"
  for way in whole chunks; do
    seconds=30
    [ $way = chunks ] || seconds=inf
    sepkit separate "$out"/minutes/*/mixture.flac --model "$model" --out "$out/$way" --whole-seconds $seconds --no-predict
    compare=()
    [ $way = whole ] || compare=(--compare "$out/scores_whole")
    sepkit evaluate --estimates "$out/$way" --manifest "$manifest" --metrics si_sdr --out "$out/scores_$way" "${compare[@]}"
  done
fi
