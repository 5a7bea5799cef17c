#!/usr/bin/env bash
# Can scores count one to five speakers in noise? Six scored hypotheses against models that are told the number of speakers.
#
#   egs/folder/count.sh --speech DIR --noise DIR [--methods "mcl told3"] [--seeds "0"]
#
# --speech DIR         recordings of speech, as in run.sh
# --noise DIR          recordings of noise, divided like the speech
# --methods "..."      among mcl, amcl (annealed from 5 dB) and pit, with a score for each hypothesis; mcl_shares (scores are shares of
#                      the sources); told1 ... told5: as many hypotheses as speakers, PIT, only mixtures with that number
# --seeds "..."        seeds of every method
# --groups "A=RE B=RE" one test set for each: it mixes only speakers whose identifier matches the pattern
# --runs DIR           a JSON for each finished run; runs that have one are not trained again (default: runs, the project's own)
# --data DIR           folder of the manifests, seen from egs/folder like the two others
# --exp DIR            folder of the runs
# --extra "..."        further options of sepkit train
# --prepare-options "..."  further options of sepkit prepare folder
#
# The same command again continues. Time: 360 steps of 8 mixtures of 3 s a run, 4 minutes of one core. Finally, it prints the shares
# counted correctly, and SI-SDRi in dB where sources without an estimate and estimates without a source count as 0. Results: RESULTS.md.
set -euo pipefail
caller=$PWD
cd "$(dirname "$0")"
speech=
noise=
methods="mcl amcl mcl_shares pit told1 told2 told3 told4 told5"
seeds="0"
groups='librispeech=\d{1,4} speechocean762=9\d{4}'
runs=runs
data=data/count
exp=exp/count
extra=
prepare_options="--speakers 1 2 3 4 5 --dev-mixtures 100 --test-mixtures 200"
option_files=("count.sh")
. ../utils/parse_options.sh
. ../utils/path.sh
from_caller() { case $1 in /*) echo "$1" ;; *) echo "$caller/$1" ;; esac }
for name in speech noise; do [ -n "${!name}" ] || { echo "$0: --$name: nothing given, expected a folder of recordings" >&2; exit 2; }; done
mkdir -p "$runs"

# shellcheck disable=SC2086  # lists of words
[ -e "$data/.prepared" ] || sepkit prepare folder --speech "$(from_caller "$speech")" --noise "$(from_caller "$noise")" --groups $groups \
  $prepare_options --out "$data"
touch "$data/.prepared"

for seed in $seeds; do
  for method in $methods; do
    record=$runs/count_${method}_seed$seed.json folder=$exp/${method}_seed$seed manifests=$data options=() counts=
    if [ -e "$record" ]; then echo "$record is there, not trained again"; continue; fi
    case $method in
      told[1-5])
        manifests=$data/${method#told}
        options=(--config conf/told.yaml --model.hypotheses "${method#told}" --objective.assignment.name pit)
        python3 local/count.py divide "$data" ;;
      amcl)
        temperature=--objective.assignment.temperature
        options=(--objective.assignment.name amcl $temperature.name truncated_exponential $temperature.initial 5 $temperature.decay 0.5
          $temperature.end 6)
        counts=--count-speakers ;;
      mcl_shares) options=(--model.scoring.loss cross_entropy) counts=--count-speakers ;;
      *) options=(--objective.assignment.name "$method") counts=--count-speakers ;;
    esac
    # shellcheck disable=SC2086
    sepkit train --init-from boxed_8k --config conf/count_five.yaml "${options[@]}" --seed "$seed" --data.train "$manifests/train.jsonl" \
      --data.dev "$manifests/dev.jsonl" $extra --out "$folder"
    sepkit evaluate --model "$folder/model" --manifest "$manifests"/test_*.jsonl --metrics si_sdr --separate-reports $counts \
      --out "$folder/evaluation"
    python3 local/count.py record "$folder" --out "$record"
  done
done
python3 local/count.py table "$runs"
