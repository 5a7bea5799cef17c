#!/usr/bin/env bash
# Fewer tones: which threshold of an audiogram to measure next, and when to stop (VAEquisition thesis, part A).
# Research software, not a medical device.
#
#   ./run.sh [--conf conf/cpu.yaml] [--nhanes DIR] [--stage N] [--stop-stage N]
#
# --conf FILE          one model's configuration, for strategies and stopping (stages 2 to 4)
# --rates-conf FILE    the same for models that are steered to rates (stages 5 to 8)
# --nhanes DIR         audiograms of NHANES in place of synthetic ones: the folder of AUX*.XPT and DEMO*.XPT, which users
#                      download from https://wwwn.cdc.gov/nchs/nhanes
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
# 5 train towards rates; 6 simulate those; 7 their tables; 8 overfitting; 9 figures and report.
# The same command again continues. Time: see RESULTS.md.
# Citation: R. M. Th. Høegh, "On learning useful variational autoencoder representations: applications in audio modelling and
# hearing loss treatment", PhD thesis, Technical University of Denmark, 2022, appendix A.
. "$(dirname "$0")/../utils/options.sh" run

stop_stage=9
conf=conf/cpu.yaml
rates_conf=conf/rates.yaml
nhanes=
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
if [ -n "$nhanes" ]; then
  nhanes=$(resolve "$nhanes")
  setting=nhanes_$setting
  draws=nhanes
  corruptions=
fi
data=${data:-data/$setting}
exp=${exp:-exp/$setting}
# The error that is good enough is harder to reach with real people.
thresholds="5 6 7"
first_set=$data/${draws%% *}

prepare() {
  local draw corruption
  if [ -n "$nhanes" ]; then
    sepkit prepare nhanes --audiometry "$nhanes"/AUX*.[Xx][Pp][Tt] --demographics "$nhanes"/DEMO*.[Xx][Pp][Tt] --out "$data/nhanes"
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

train_all() {
  local draw
  # shellcheck disable=SC2086  # $seeds is a list of words
  for draw in $draws; do train_on "$data/$draw" "$conf" "$exp/$draw" --seeds $seeds; done
}

simulate_strategies() {
  local draw seed models
  for draw in $draws; do
    models=()
    for seed in $seeds; do models+=("$exp/$draw/seed_$seed"); done
    # shellcheck disable=SC2086
    $decode_cmd sepkit audiogram simulate --model "${models[@]}" --manifest "$data/$draw/test.csv" --dev "$data/$draw/dev.csv" \
      --stop-at-db $thresholds --first "$strategy_sessions" --samples 32 --out "$exp/simulations/$draw"
  done
}

write_strategy_tables() {
  local draw folders=()
  for draw in $draws; do folders+=("$exp/simulations/$draw"); done
  sepkit audiogram tables "${folders[@]}" --kind strategies --out "$exp/tables/strategies.md" >/dev/null
  echo "$exp/tables/strategies.md"
}

train_rates() {
  local kind
  # shellcheck disable=SC2086  # $rates and $rate_seeds are lists of words
  for kind in $missingness; do
    train_on "$first_set" "$rates_conf" "$exp/rates/$kind" --data.missingness.kind "$kind" --target-rates $rates --seeds $rate_seeds
  done
}

# The models of a sweep, in no particular order.
models_of() {
  find "$1" -mindepth 1 -maxdepth 1 -name 'rate_*' | sort
}

# simulate_rates_on SET NAME KIND OPTIONS...
simulate_rates_on() {
  local set=$1 name=$2 kind=$3
  shift 3
  # shellcheck disable=SC2046,SC2086  # names hold no blanks
  $decode_cmd sepkit audiogram simulate --model $(models_of "$exp/rates/$kind") --manifest "$set/test.csv" --dev "$first_set/dev.csv" \
    --strategies largest_variance --stop-at-db $thresholds --first "$sessions" --samples 16 "$@" --out "$exp/simulations/$name"
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
  local kind epochs folders=()
  for kind in $missingness; do
    for epochs in $gap_epochs; do
      # shellcheck disable=SC2086
      train_on "$first_set" "$rates_conf" "$exp/gap/${kind}_$epochs" --data.missingness.kind "$kind" --trainer.max_epochs "$epochs" \
        --trainer.validate_every_epochs "$epochs" --target-rates $gap_rates --seeds $gap_seeds
      # shellcheck disable=SC2046,SC2086
      $decode_cmd sepkit audiogram simulate --model $(models_of "$exp/gap/${kind}_$epochs") --manifest "$first_set/test.csv" \
        --dev "$first_set/dev.csv" --training "$first_set/train.csv" --strategies largest_variance --stop-at-db $thresholds \
        --first "$sessions" --samples 16 --out "$exp/simulations/gap_${kind}_$epochs"
      folders+=("$exp/simulations/gap_${kind}_$epochs")
    done
  done
  sepkit audiogram tables "${folders[@]}" --kind gap --out "$exp/tables/gap.md" >/dev/null
  echo "$exp/tables/gap.md"
}

draw_figures() {
  local archetypes=() model
  model=$exp/${draws%% *}/seed_${seeds%% *}
  [ ! -s "$first_set/archetypes.csv" ] || archetypes=(--archetypes "$first_set/archetypes.csv")
  train_on "$first_set" "$conf" "$exp/latent_2" --model.latent 2
  $decode_cmd sepkit audiogram figures --model "$exp/latent_2" --manifest "$first_set/test.csv" --dev "$first_set/dev.csv" \
    "${archetypes[@]}" --first "$sessions" --out "$exp/figures"
  $decode_cmd sepkit calibrate "$model" --manifest "$first_set/dev.csv"
  sepkit report "$model" "$exp/simulations/${draws%% *}/seed_${seeds%% *}" --out "$exp/report.html"
}

run_stage 1 "prepare $data" prepare
run_stage 2 "train models for each of $(wc -w <<<"$draws") data sets" train_all
run_stage 3 "play sessions" simulate_strategies
run_stage 4 "write tables of strategies and stopping" write_strategy_tables
run_stage 5 "train towards $(wc -w <<<"$rates") rates, missingness $missingness" train_rates
run_stage 6 "play sessions with them" simulate_rates
run_stage 7 "write their tables" write_rate_tables
run_stage 8 "train for longer" measure_gap
run_stage 9 "draw figures, write $exp/report.html" draw_figures
