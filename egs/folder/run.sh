#!/usr/bin/env bash
# How well does a separator trained on your own recordings separate? Any tree of files with one speaker each.
#
#   ./run.sh --speech DIR [--noise DIR] [--conf conf/cpu.yaml] [--stage N] [--stop-stage N]
#
# --noise DIR          recordings of noise to add; default: none
# --groups "A=RE B=RE" one test set for each: it mixes only speakers whose identifier matches the pattern
# --conf FILE          conf/cpu.yaml trains within an hour on two cores, conf/gpu.yaml is a DPRNN for an accelerator
#
# Stages: 1 prepare, 2 train, 3 separate examples, 4 evaluate, 5 report. The same command again continues.
. "$(dirname "$0")/../utils/options.sh" speech model run

noise=
groups=
conf=conf/cpu.yaml
. ../utils/recipe.sh

name_experiment
test_sets=test
if [ -n "$groups" ]; then
  test_sets=
  for group in $groups; do test_sets="$test_sets test_${group%%=*}"; done
fi

prepare() {
  if [ -n "$noise" ]; then noise=$(resolve "$noise"); fi
  # shellcheck disable=SC2086  # "A=RE B=RE" is a list of words
  prepare_folder ${noise:+--noise "$noise"} ${groups:+--groups $groups}
}

run_stages
