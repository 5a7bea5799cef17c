#!/usr/bin/env bash
# Do separate experts find all modes of a distribution? Three sines, where each way of training is asked how often it merges
# modes, and mixtures of RealNVPs, where mass lies between the modes (CCLVQ paper, sections 5.1 and 5.3).
#
#   ./run.sh [--conf conf/cpu.yaml] [--stage N] [--stop-stage N]
#
# --conf FILE          conf/cpu.yaml: minutes; conf/paper.yaml: longer trainings, and modes on a grid too
#
# Stages: 1 sines: plain, noisy assignment, grown by splitting, annealed, ten seeds each; 2 mixtures of 1 to 16 flows on a
# ring of modes. Every training is kept: the same command again continues. Time with conf/cpu.yaml, processor time of one
# core: stage 1 a minute and a half, stage 2 about five minutes. Limits: the paper's CelebA and CIFAR
# figures need data and accelerators that are not at hand.
# Citation: B. Delattre et al., "Conditional distribution quantization in machine learning".
. "$(dirname "$0")/../utils/options.sh" run

conf=conf/cpu.yaml
. ../utils/recipe.sh

conf=$(resolve "$conf")
exp=${exp:-exp/$(basename "$conf" .yaml)}

# shellcheck disable=SC2086  # $train_cmd is a list of words
sines() { $train_cmd sepkit quantize sines --config "$conf" --out "$exp"; }
# shellcheck disable=SC2086  # $train_cmd is a list of words
flows() { $train_cmd sepkit quantize flows --config "$conf" --out "$exp"; }

run_stage 1 "three sines: $exp/sines.json" sines
run_stage 2 "mixtures of flows: $exp/flows.json" flows
