#!/usr/bin/env bash
# Where do hypotheses go, and when do they split? 49 hypotheses on three Gaussians by MCL, relaxed winner-takes-all and annealed
# MCL (figures 1 to 5 of the annealed MCL paper), and free hypotheses against closed forms.
#
#   ./run.sh [--conf conf/cpu.yaml] [--stage N] [--stop-stage N]
#
# --conf FILE          conf/cpu.yaml: minutes; conf/paper.yaml: the paper's batch of 65,536 points
#
# Stages: 1 free hypotheses: rate and distortion of a Gaussian, delay of splits under finite cooling; 2 three Gaussians, fixed
# and moving with the input, three seeds of each method, beside Lloyd's solution. Every training is kept: the same command
# again continues. Time with conf/cpu.yaml, processor time of one core: stage 1 fifteen seconds, stage 2 ten minutes.
# Citation: D. Perera, V. Letzelter et al., "Annealed multiple choice learning: overcoming limitations of winner-takes-all
# with annealing".
. "$(dirname "$0")/../utils/options.sh" run

conf=conf/cpu.yaml
. ../utils/recipe.sh

conf=$(resolve "$conf")
exp=${exp:-exp/$(basename "$conf" .yaml)}

free() { sepkit quantize free --config "$conf" --out "$exp"; }
# shellcheck disable=SC2086  # $train_cmd is a list of words
gaussians() { $train_cmd sepkit quantize gaussians --config "$conf" --out "$exp"; }

run_stage 1 "free hypotheses against theory: $exp/free.json" free
run_stage 2 "three Gaussians: $exp/gaussians.json" gaussians
