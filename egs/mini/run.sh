#!/usr/bin/env bash
# The whole house in a few minutes: speech synthesised here, a small model, separated wavs, scores. Nothing is downloaded.
#
#   ./run.sh [--conf conf/cpu.yaml] [--speakers 2] [--stage N] [--stop-stage N]
#
# --conf FILE          conf/cpu.yaml trains in about five minutes on two cores; conf/causal.yaml is a model that streams
# --speakers N         speakers in a mixture
# --assignment NAME    of hypotheses to speakers: pit | mcl | relaxed_wta | amcl | sinkhorn, by default what --conf says (pit)
# --hypotheses N       estimates the model makes, by default as many as speakers
# --prepare-options "..."  further options of sepkit prepare mini, such as "--train-sentences 10"
# --data DIR           where manifests and recordings go
# --exp DIR            where the model goes
# --seed N             of the data order and the weights
# --extra "..."        further options of sepkit train
# --ngpu N             GPUs of this machine to train on; by default what --conf says (Slurm: docs/gpus.md)
#
# Stages: 1 synthesise and prepare, 2 train, 3 separate examples, 4 evaluate, 5 report. The same command again continues.
# Size: about 150 MB of synthetic speech. Limits: formant synthesis has a fixed voice a speaker; scores here show that
# the pipeline works, not how a model does on people.
set -euo pipefail
caller=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")"

stage=1
stop_stage=5
speakers=2
assignment=
hypotheses=
prepare_options=
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
hypotheses=${hypotheses:-$speakers}
test_sets=test

prepare() {
  # shellcheck disable=SC2086  # a list of words
  sepkit prepare mini --speakers "$speakers" $prepare_options --out "$data"
}

run_stage 1 "synthesise $data" prepare
run_stage 2 "train $exp" train_model
run_stage 3 "separate examples" separate_examples
run_stage 4 "evaluate" evaluate_model
run_stage 5 "write $exp/report.html" write_report
