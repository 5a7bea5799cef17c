#!/usr/bin/env bash
# Train and measure a two-speaker separator on your own recordings: any tree of files with one speaker each.
#
#   ./run.sh --speech DIR [--noise DIR] [--conf conf/cpu.yaml] [--stage N] [--stop-stage N]
#
# --speech DIR         recordings; folders named train, dev and test are the splits, the next folder is the speaker
# --noise DIR          recordings of noise to add, none by default
# --speaker-from HOW   first | parent | regex:PATTERN | csv:FILE (sepkit prepare folder --help)
# --groups "A=RE B=RE" test sets apart by speaker identifier: each mixes only speakers that match its pattern
# --conf FILE          conf/cpu.yaml trains within an hour on two cores, conf/gpu.yaml is a DPRNN for an accelerator
# --assignment NAME    of hypotheses to speakers: pit | mcl | relaxed_wta | amcl | sinkhorn, by default what --conf says (pit)
# --hypotheses N       estimates the model makes, by default what --conf says (2)
# --prepare-options "..."  further options of sepkit prepare folder, such as "--test-mixtures 100"
# --evaluate-options "..."  further options of sepkit evaluate, such as "--metrics si_sdr"
# --data DIR           where manifests go
# --exp DIR            where the model goes
# --seed N             of the data order and the weights
# --extra "..."        further options of sepkit train, such as "--devices 2 --trainer.learning_rate 0.0005"
# --ngpu N             GPUs of this machine to train on; by default what --conf says (Slurm: docs/gpus.md)
#
# Stages: 1 prepare, 2 train, 3 separate examples, 4 evaluate, 5 report. The same command again continues.
set -euo pipefail
caller=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")"

stage=1
stop_stage=5
speech=
noise=
speaker_from=first
groups=
assignment=
hypotheses=
prepare_options=
evaluate_options=
conf=conf/cpu.yaml
data=data
exp=
seed=0
extra=
ngpu=
. ../utils/parse_options.sh
. ./path.sh
. ./cmd.sh
. ../utils/recipe.sh

conf=$(resolve "$conf")
exp=${exp:-exp/$(basename "$conf" .yaml)${assignment:+_$assignment}${hypotheses:+_n$hypotheses}_seed$seed}
test_sets=test
if [ -n "$groups" ]; then
  test_sets=
  for group in $groups; do test_sets="$test_sets test_${group%%=*}"; done
fi

prepare() {
  [ -n "$speech" ] || { echo "$0: --speech: nothing given, expected a folder of recordings" >&2; exit 2; }
  local group options=()
  for group in $groups; do options+=("$group"); done  # "A=RE B=RE" is a list of words
  # shellcheck disable=SC2086  # $prepare_options is a list of words
  sepkit prepare folder --speech "$(resolve "$speech")" ${noise:+--noise "$(resolve "$noise")"} \
    --speaker-from "$speaker_from" $prepare_options ${groups:+--groups "${options[@]}"} --out "$data"
}

run_stage 1 "prepare $data" prepare
run_stage 2 "train $exp" train_model
run_stage 3 "separate examples of $test_sets" separate_examples
run_stage 4 "evaluate on $test_sets" evaluate_model
run_stage 5 "write $exp/report.html" write_report
