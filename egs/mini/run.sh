#!/usr/bin/env bash
# Does every part of sepkit work? Synthetic speech, a small model, separated wavs and scores in minutes, without downloads.
#
#   ./run.sh [--conf conf/cpu.yaml] [--speakers 2] [--stage N] [--stop-stage N]
#
# --conf FILE          conf/cpu.yaml trains 2,800 steps in about six minutes; conf/causal.yaml is a model that streams
# --speakers N         speakers in a mixture
#
# Stages: 1 synthesize and prepare, 2 train, 3 separate examples, 4 evaluate, 5 report. The same command again continues.
# One thread, unless OMP_NUM_THREADS says otherwise: two are 1.3 times as fast on a quiet machine, and slow on a busy one.
# Size: about 150 MB of synthetic speech. Limits: each synthetic voice has one fixed vocal tract. The scores show that the
# commands work, not how well a model separates real speech.
. "$(dirname "$0")/../utils/options.sh" model run

export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
speakers=2
conf=conf/cpu.yaml
. ../utils/recipe.sh

name_experiment
hypotheses=${hypotheses:-$speakers}
test_sets=test

prepare() {
  # shellcheck disable=SC2086  # a list of words
  sepkit prepare mini --speakers "$speakers" $prepare_options --out "$data"
}

run_stages
