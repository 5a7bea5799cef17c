#!/usr/bin/env bash
# What separating in chunks costs: SI-SDRi of conversations of 60 s, in chunks against as a whole, with its difference and
# interval.
#
#   local/long_recordings.sh SPEECH MODEL OUT
#
# SPEECH    folder of recordings whose test split holds two speakers or more
# MODEL     what `sepkit models` lists
# OUT       folder for recordings, estimates and scores
#
# $count    number of conversations (30)
#
# The same command again continues.
set -euo pipefail
[ $# -ge 3 ] || { sed -n '2,/^set/p' "$0" | grep '^#' >&2; exit 2; }
. "$(dirname "$0")/../../utils/path.sh"
speech=$1 model=$2 out=$3 count=${count:-30}

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
