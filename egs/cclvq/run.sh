#!/usr/bin/env bash
# Do separate experts find all modes of a distribution? Three sines, where each way of training is asked how often it merges
# modes; mixtures of RealNVPs, where mass lies between the modes; digits with missing pixels, which experts restore; and
# generators under one discriminator (CCLVQ paper, sections 5.1 to 5.4).
#
#   ./run.sh [--conf conf/cpu.yaml] [--mnist FILE] [--stage N] [--stop-stage N]
#
# --conf FILE          conf/cpu.yaml: minutes; conf/paper.yaml: longer trainings, and modes on a grid too; conf/gpu.yaml: stages
#                      3 and 4 at the paper's widths, generators of digits
# --mnist FILE         binarized MNIST, an .npz file or a folder of text files; without it stage 3 is left out
#
# Stages: 1 sines: plain, noisy assignment, grown by splitting, annealed, ten seeds each; 2 mixtures of 1 to 16 flows on a
# ring of modes; 3 digits: 1, 2 and 4 experts and independent networks; 4 generators: 1, 2, 4 and two independent ones. Every
# training is kept: the same command again continues. Time with conf/cpu.yaml, processor time of one
# core of an AMD Zen 5: half a minute, two and a half, thirteen and five minutes; twice to three times that on older ones.
# Limits: the paper's CelebA and CIFAR figures need data and accelerators that are not at hand; MNIST here is black and white.
# Citation: B. Delattre et al., "Conditional distribution quantization in machine learning".
. "$(dirname "$0")/../utils/options.sh" run

conf=conf/cpu.yaml
mnist=
. ../utils/recipe.sh

conf=$(resolve "$conf")
exp=${exp:-exp/$(basename "$conf" .yaml)}
[ -z "$mnist" ] || mnist=$(resolve "$mnist")

# shellcheck disable=SC2086  # $train_cmd is a list of words
sines() { $train_cmd sepkit quantize sines --config "$conf" --out "$exp"; }
# shellcheck disable=SC2086  # $train_cmd is a list of words
flows() { $train_cmd sepkit quantize flows --config "$conf" --out "$exp"; }
digits() {
  if [ -z "$mnist" ]; then echo "left out: --mnist gives no file"; return; fi
  # shellcheck disable=SC2086  # $train_cmd is a list of words
  $train_cmd sepkit quantize digits --images "$mnist" --config "$conf" --out "$exp"
}
# shellcheck disable=SC2086  # $train_cmd is a list of words
generators() { $train_cmd sepkit quantize generators ${mnist:+--images "$mnist"} --config "$conf" --out "$exp"; }

run_stage 1 "three sines: $exp/sines.json" sines
run_stage 2 "mixtures of flows: $exp/flows.json" flows
run_stage 3 "digits: $exp/digits.json" digits
run_stage 4 "generators: $exp/generators.json" generators
