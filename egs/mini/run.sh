#!/usr/bin/env bash
# Does every part of sepkit work? Synthetic speech, a small model, separated wavs and scores in minutes, without downloads.
#
#   ./run.sh [--conf conf/cpu.yaml] [--speakers 2] [--stage N] [--stop-stage N]
#
# --conf FILE          conf/cpu.yaml trains 3,600 steps, eight minutes of one core; conf/causal.yaml is a model that streams
# --speakers N         speakers in a mixture
#
# Stages: 1 synthesize and prepare, 2 train, 3 separate examples, 4 evaluate, 5 report. The same command again continues.
# Size: about 150 MB of synthetic speech. Limits: each synthetic voice has one fixed vocal tract. The scores show that the
# commands work, not how well a model separates real speech.
. "$(dirname "$0")/../utils/options.sh" model run

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
