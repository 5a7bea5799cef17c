#!/usr/bin/env bash
# Which threshold of an audiogram to measure next, and when to stop (VAEquisition thesis, part A)?
# Research software, not a medical device.
#
#   ./run.sh [--conf conf/cpu.yaml] [--csv FILE] [--stage N] [--stop-stage N]
#
# --conf FILE          the configuration of the models
# --csv FILE           your own audiograms in place of synthetic ones, see docs/audiograms.md
# --draws "..."        draws of archetypes, a data set each
# --seeds "..."        of the models of each data set, trained together
# --strategy-sessions N  data of each file that sessions are played with
#
# Stages: 1 prepare; 2 train a stack of models for each data set; 3 simulate sessions; 4 tables of strategies and stopping.
# The same command again continues. Time: see RESULTS.md.
# Citation: R. M. Th. Høegh, "On learning useful variational autoencoder representations: applications in audio modelling and
# hearing loss treatment", PhD thesis, Technical University of Denmark, 2022, appendix A.
. "$(dirname "$0")/../utils/options.sh" run

stop_stage=4
conf=conf/cpu.yaml
csv=
draws="0 1 2 3 4"
seeds="0 1 2 3 4 5 6 7 8 9"
strategy_sessions=256
data=
. ../utils/recipe.sh

conf=$(resolve "$conf")
setting=$(basename "$conf" .yaml)
if [ -n "$csv" ]; then
  csv=$(resolve "$csv")
  setting=own_$setting
  draws=own
fi
data=${data:-data/$setting}
exp=${exp:-exp/$setting}

prepare() {
  local draw
  if [ -n "$csv" ]; then
    sepkit prepare audiograms --csv "$csv" --out "$data/own"
    return
  fi
  # shellcheck disable=SC2086  # $prepare_options is a list of words
  for draw in $draws; do
    [ -s "$data/$draw/test.csv" ] || sepkit prepare audiograms --seed "$draw" $prepare_options --out "$data/$draw"
  done
}

# list_of WORDS: [0, 1, 2]
list_of() {
  local words
  # shellcheck disable=SC2086,SC2116  # splits at blanks and line ends
  words=$(echo $1)
  echo "[${words// /, }]"
}

# shellcheck disable=SC2086  # $extra and $train_cmd are lists of words
train_all() {
  local draw
  for draw in $draws; do
    $train_cmd sepkit train --config "$conf" --data.train "$data/$draw/train.csv" --data.dev "$data/$draw/dev.csv" \
      --stack.seeds "$(list_of "$seeds")" $extra --out "$exp/$draw"
  done
}

# shellcheck disable=SC2086  # $decode_cmd is a list of words
simulate_strategies() {
  local draw
  for draw in $draws; do
    $decode_cmd sepkit audiogram simulate --model "$exp/$draw" --manifest "$data/$draw/test.csv" --dev "$data/$draw/dev.csv" \
      --stop-at-db 5 6 7 --first "$strategy_sessions" --samples 32 --out "$exp/simulations/$draw"
  done
}

write_strategy_tables() {
  local draw folders=()
  for draw in $draws; do folders+=("$exp/simulations/$draw"); done
  sepkit audiogram tables "${folders[@]}" --out "$exp/tables/strategies.md" >/dev/null
  echo "$exp/tables/strategies.md"
}

run_stage 1 "prepare $data" prepare
run_stage 2 "train models for each of $(wc -w <<<"$draws") data sets" train_all
run_stage 3 "play sessions" simulate_strategies
run_stage 4 "write tables of strategies and stopping" write_strategy_tables
