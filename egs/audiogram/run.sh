#!/usr/bin/env bash
# Fewer tones: which threshold of an audiogram to measure next, and when to stop (VAEquisition thesis, part A).
# Research software, not a medical device.
#
#   ./run.sh [--conf conf/cpu.yaml] [--csv FILE] [--stage N] [--stop-stage N]
#
# --conf FILE          one model's configuration, for strategies and stopping (stages 2 to 4)
# --rates-conf FILE    the same for models that are steered to rates (stages 5 to 8)
# --csv FILE           your own audiograms in place of synthetic ones, see docs/audiograms.md
# --draws "..."        draws of archetypes, a data set each
# --seeds "..."        of the models of each data set, trained together
# --rates "..."        targets, nats, of the models of the rate-distortion curves, on the first data set
# --rate-seeds "..."   a model for each rate and each of these
# --missingness "..."  dynamic, static or both: what training hides, drawn every epoch or once
# --corruptions "..."  test sets of the rate-distortion curves whose archetypes are shifted, share of the deviation
# --gap-epochs "..."   lengths of further trainings, to see when static missingness overfits
# --gap-rates "..."    targets of those, nats
# --gap-seeds "..."    seeds of those
# --strategy-sessions N  data of each file that sessions of stage 3 are played with
# --sessions N         the same, of stages 6 and 8 (the thesis: 128)
#
# Stages: 1 prepare; 2 train a stack of models for each data set; 3 simulate sessions; 4 tables of strategies and stopping;
# 5 train towards rates; 6 simulate those; 7 their tables; 8 overfitting; 9 figures.
# The same command again continues. Time: see RESULTS.md.
# Citation: R. M. Th. Høegh, "On learning useful variational autoencoder representations: applications in audio modelling and
# hearing loss treatment", PhD thesis, Technical University of Denmark, 2022, appendix A.
. "$(dirname "$0")/../utils/options.sh" run

stop_stage=9
conf=conf/cpu.yaml
rates_conf=conf/rates.yaml
csv=
draws="0 1 2 3 4"
seeds="0 1 2 3 4 5 6 7 8 9"
rates="0.125 0.25 0.375 0.5 0.625 0.75 0.875 1 1.125 1.25 1.375 1.5 1.75 2 2.25 2.5 2.75 3 3.25 3.5 3.75 4 4.25 4.5 4.75
  5 5.25 5.5 5.75 6 6.25 6.5 6.75 7 7.25 7.5 7.75 8 9 10 11 12 13 14 15"
rate_seeds="0 1 2 3 4 5 6 7 8 9"
missingness="dynamic static"
corruptions="0.05 0.5"
gap_epochs="30 120 360"
gap_rates="2 8 15"
gap_seeds="0 1 2"
strategy_sessions=256
sessions=128
data=
. ../utils/recipe.sh

conf=$(resolve "$conf")
rates_conf=$(resolve "$rates_conf")
setting=$(basename "$conf" .yaml)
if [ -n "$csv" ]; then
  csv=$(resolve "$csv")
  setting=own_$setting
  draws=own
  corruptions=
fi
data=${data:-data/$setting}
exp=${exp:-exp/$setting}
# The error that is good enough is harder to reach with real people.
thresholds="5 6 7"
first_set=$data/${draws%% *}

prepare() {
  local draw corruption
  if [ -n "$csv" ]; then
    sepkit prepare audiograms --csv "$csv" --out "$data/own"
    return
  fi
  # shellcheck disable=SC2086  # $prepare_options is a list of words
  for draw in $draws; do
    [ -s "$data/$draw/test.csv" ] || sepkit prepare audiograms --seed "$draw" $prepare_options --out "$data/$draw"
  done
  for corruption in $corruptions; do
    sepkit prepare audiograms --seed "${draws%% *}" --corruption "$corruption" $prepare_options --out "${first_set}_corruption_$corruption"
  done
}

# train_on SET CONF OUT OPTIONS...
train_on() {
  local set=$1 configuration=$2 out=$3
  shift 3
  # shellcheck disable=SC2086  # $extra and $train_cmd are lists of words
  $train_cmd sepkit train --config "$configuration" --data.train "$set/train.csv" --data.dev "$set/dev.csv" "$@" $extra --out "$out"
}

# list_of WORDS: [0, 1, 2]
list_of() {
  local words
  # shellcheck disable=SC2086,SC2116  # splits at blanks and line ends
  words=$(echo $1)
  echo "[${words// /, }]"
}

train_all() {
  local draw
  for draw in $draws; do train_on "$data/$draw" "$conf" "$exp/$draw" --stack.seeds "$(list_of "$seeds")"; done
}

# simulate_on SET DEV MODEL NAME OPTIONS...
simulate_on() {
  local set=$1 dev=$2 model=$3 name=$4
  shift 4
  # shellcheck disable=SC2086  # $thresholds and $decode_cmd are lists of words
  $decode_cmd sepkit audiogram simulate --model "$model" --manifest "$set/test.csv" --dev "$dev/dev.csv" --stop-at-db $thresholds \
    "$@" --out "$exp/simulations/$name"
}

simulate_strategies() {
  local draw
  for draw in $draws; do
    simulate_on "$data/$draw" "$data/$draw" "$exp/$draw" "$draw" --first "$strategy_sessions" --samples 32
  done
}

write_strategy_tables() {
  local draw folders=()
  for draw in $draws; do folders+=("$exp/simulations/$draw"); done
  sepkit audiogram tables "${folders[@]}" --kind strategies --out "$exp/tables/strategies.md" >/dev/null
  echo "$exp/tables/strategies.md"
}

# A stack of all rates for each seed.
train_rates() {
  local kind seed
  for kind in $missingness; do
    for seed in $rate_seeds; do
      train_on "$first_set" "$rates_conf" "$exp/rates/$kind/$seed" --data.missingness.kind "$kind" --trainer.seed "$seed" \
        --stack.target_rates "$(list_of "$rates")"
    done
  done
}

# simulate_rates_on SET NAME KIND OPTIONS...
simulate_rates_on() {
  local set=$1 name=$2 kind=$3 seed
  shift 3
  for seed in $rate_seeds; do
    simulate_on "$set" "$first_set" "$exp/rates/$kind/$seed" "$name/$seed" --strategies largest_variance --first "$sessions" \
      --samples 16 "$@"
  done
}

simulate_rates() {
  local kind corruption
  for kind in $missingness; do simulate_rates_on "$first_set" "rates_$kind" "$kind" --training "$first_set/train.csv"; done
  for corruption in $corruptions; do
    simulate_rates_on "${first_set}_corruption_$corruption" "rates_corruption_$corruption" "${missingness%% *}"
  done
}

write_rate_tables() {
  local kind corruption folders=()
  for kind in $missingness; do folders+=("$exp/simulations/rates_$kind"); done
  sepkit audiogram tables "${folders[@]}" --kind rates --out "$exp/tables/rates.md" >/dev/null
  echo "$exp/tables/rates.md"
  [ -n "${corruptions// /}" ] || return 0
  folders=("$exp/simulations/rates_${missingness%% *}")
  for corruption in $corruptions; do folders+=("$exp/simulations/rates_corruption_$corruption"); done
  sepkit audiogram tables "${folders[@]}" --kind rates --out "$exp/tables/corruption.md" >/dev/null
  echo "$exp/tables/corruption.md"
}

# What models that train for longer and longer make of their own masks and of others.
measure_gap() {
  local kind epochs name folders=()
  for kind in $missingness; do
    for epochs in $gap_epochs; do
      name=gap_${kind}_$epochs
      train_on "$first_set" "$rates_conf" "$exp/gap/${kind}_$epochs" --data.missingness.kind "$kind" --trainer.max_epochs "$epochs" \
        --trainer.decay_epochs "[$(((epochs * 3 + 4) / 5))]" --trainer.validate_every_epochs "$epochs" --stack.target_rates "$(list_of "$gap_rates")" --stack.seeds "$(list_of "$gap_seeds")"
      simulate_on "$first_set" "$first_set" "$exp/gap/${kind}_$epochs" "$name" --training "$first_set/train.csv" \
        --strategies largest_variance --first "$sessions" --samples 16
      folders+=("$exp/simulations/$name")
    done
  done
  sepkit audiogram tables "${folders[@]}" --kind gap --out "$exp/tables/gap.md" >/dev/null
  echo "$exp/tables/gap.md"
}

draw_figures() {
  train_on "$first_set" "$conf" "$exp/latent_2" --model.latent 2
  $decode_cmd sepkit audiogram figures --model "$exp/latent_2" --manifest "$first_set/test.csv" --first "$sessions" \
    --out "$exp/figures"
}

run_stage 1 "prepare $data" prepare
run_stage 2 "train models for each of $(wc -w <<<"$draws") data sets" train_all
run_stage 3 "play sessions" simulate_strategies
run_stage 4 "write tables of strategies and stopping" write_strategy_tables
run_stage 5 "train towards $(wc -w <<<"$rates") rates, missingness $missingness" train_rates
run_stage 6 "play sessions with them" simulate_rates
run_stage 7 "write their tables" write_rate_tables
run_stage 8 "train for longer" measure_gap
run_stage 9 "draw figures" draw_figures
