#!/usr/bin/env bash
# Is one speaker told from two? As many recordings of one test speaker alone as mixtures of two.
#
#   local/single_speaker.sh SPEECH MODEL OUT
#
# SPEECH    folder of recordings with a test split
# MODEL     what `sepkit models` lists; `sepkit calibrate` has fitted what tells one speaker from two
# OUT       folder for manifests and scores
#
# Of $count (100) mixtures of $seconds (4.0) each, drawn with $seed (1), the first speaker alone is the recording of one
# speaker. The table has how many were found to speak, and OUT/scores/utterances.csv the attenuation of the other output
# of each recording of one speaker, relative to the recording. $groups ("A=RE B=RE") makes one set of each.
set -euo pipefail
[ $# -ge 3 ] || { sed -n '2,/^set/p' "$0" | grep '^#' >&2; exit 2; }
. "$(dirname "$0")/../../utils/path.sh"
speech=$1 model=$2 out=$3
count=${count:-100} seconds=${seconds:-4.0} seed=${seed:-1} groups=${groups:-}

# shellcheck disable=SC2086  # "A=RE B=RE" is a list of words
sepkit prepare folder --speech "$speech" --test-mixtures "$count" --segment-seconds "$seconds" --seed "$seed" \
  ${groups:+--groups $groups} --out "$out/two"
mkdir -p "$out/one"
manifests=()
for two in "$out"/two/test*.jsonl; do
  if [ -n "$groups" ] && [ "$(basename "$two")" = test.jsonl ]; then continue; fi
  one=$out/one/$(basename "$two")
  # The last source is silent, so the one before it is alone.
  sed -E 's/("gain": )[-0-9.e]+([^{}]*\}\])/\10.0\2/; s|("path": ")([^/])|\1../two/\2|g; s/"id": "/&one_/' "$two" >"$one"
  manifests+=("$one" "$two")
done
# The prediction counts, too.
sepkit evaluate --model "$model" --manifest "${manifests[@]}" --metrics si_sdr --calibration --out "$out/scores"
awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) column[$i] = i; next }
  $column["attenuation_db"] != "" { n++; quiet += $column["attenuation_db"] >= 30 }
  END { if (n) printf "one speaker: the other output is at least 30 dB below the recording in %d of %d\n", quiet, n }' \
  "$out/scores/utterances.csv"
