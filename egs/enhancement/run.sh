#!/usr/bin/env bash
# How well does a separator with one output enhance speech? Speech enhancement by configuration only.
#
#   ./run.sh --speech DIR --noise DIR [--conf conf/cpu.yaml] [--stage N] [--stop-stage N]
#
# --noise DIR          recordings of noise; folders named train, dev and test are the splits, as in --speech
# --noise-snr-db "LOW HIGH"  range of the ratio of speech to noise
# --conf FILE          conf/cpu.yaml trains within 15 minutes on two cores
#
# Stages: 1 prepare, 2 train, 3 enhance examples, 4 evaluate, 5 report. The same command again continues.
# Enhance your own recordings with the trained model: sepkit separate FILE --model EXP/model --out enhanced
# Limits: the model learns the noise in --noise; give noise like that of your recordings. It does not remove reverberation.
. "$(dirname "$0")/../utils/options.sh" speech model run

noise=
noise_snr_db="-5 15"
conf=conf/cpu.yaml
. ../utils/recipe.sh

name_experiment
test_sets=test

prepare() {
  [ -n "$noise" ] || stop "--noise: nothing given, expected a folder of recordings of noise"
  noise=$(resolve "$noise")
  # shellcheck disable=SC2086  # "LOW HIGH" is a list of words
  prepare_folder --speakers 1 --noise "$noise" --noise-snr-db $noise_snr_db
}

run_stages
