#!/usr/bin/env bash
# How much information should latents carry? Rate-distortion curves of variational encoder-masker-decoders on mixtures of Gaussian pulses,
# in the condition of training and in others (VI-EMD thesis, appendices K and M, figures 2 (top) and 10).
#
#   ./run.sh [--conf conf/cpu.yaml] [--jobs 2] [--stage N] [--stop-stage N]
#
# --conf FILE          conf/cpu.yaml: about five minutes a target rate on one core; conf/paper.yaml: the thesis's own setting
# --rates "1 3 ..."    targets of the sum of both rates, nats per frame of the encoding: one model each
# --levels "..."       conditions drawn in one figure with that of training
# --conditions "..."   conditions drawn by kind, the part of the name before the first _; "" leaves them out
#                      (`conditions` in sepkit/corpora/pulses.py defines them)
# --seed N             seed of the data order and the weights
# --jobs N             trainings and evaluations in parallel; if more than 1, give each one core (OMP_NUM_THREADS=1)
#
# Stages: 1 prepare, 2 train all, 3 evaluate all, 4 tables and figures, 5 report. The same command again continues.
# Without --prepare-options, stage 1 makes 512 mixtures of 1 s for training, 64 for validation and 200 for each test; with
# conf/paper.yaml it makes 2048, 128 and 1024 of 3 s. The model of the last epoch is evaluated, as in the thesis: the best one
# on validation may be from before the rate reached its target. Tables and figures: EXP/curves/levels, and EXP/curves/KIND
# for the further conditions. Time with conf/cpu.yaml: 30 minutes for nine models on two cores with --jobs 2, and 15 minutes
# for all conditions. Limits: two fixed synthetic "speakers", so the curves say nothing about speech.
# Citation: R. M. Th. Høegh, "On learning useful variational autoencoder representations: applications in audio modelling and
# hearing loss treatment", PhD thesis, Technical University of Denmark, 2022, appendix B.
. "$(dirname "$0")/../utils/options.sh" run

conf=conf/cpu.yaml
prepare_options="by conf"
rates="6 10 16 25 40 65 100 160 320"
levels="noise_low noise_high"
conditions="noise_none noise_0_25 noise_0_75 noise_modulated noise_band pulses_2 pulses_4 overtones_none overtones_one_more
  overtones_twice widths_any widths_short widths_long frequencies_expanded frequencies_near frequencies_overlapping"
seed=0
jobs=2
data=
. ../utils/recipe.sh

conf=$(resolve "$conf")
setting=$(basename "$conf" .yaml)
data=${data:-data/$setting}
exp=${exp:-exp/$setting}
if [ "$prepare_options" = "by conf" ]; then
  case $setting in
    paper) prepare_options= ;;
    *) prepare_options="--train-mixtures 512 --dev-mixtures 64 --test-mixtures 200 --seconds 1" ;;
  esac
fi
for rate in $rates; do
  [[ $rate =~ ^[0-9]*\.?[0-9]+$ ]] || stop "--rates $rate: expected numbers, nats a frame"
done
[ -n "${rates// /}" ] || stop "--rates: none given, expected numbers, nats a frame"

# The folders of the runs: rate_40 for 40.0 too.
run_names() {
  # shellcheck disable=SC2086  # $rates is a list of words
  LC_ALL=C printf 'rate_%g\n' $rates
}

# The kinds of conditions that are drawn together.
list_kinds() {
  local condition
  echo levels
  for condition in $conditions; do echo "${condition%%_*}"; done | sort -u
}

# sets_of KIND: its test sets, that of training first.
sets_of() {
  local condition
  echo test
  if [ "$1" = levels ]; then
    for condition in $levels; do echo "test_$condition"; done
    return
  fi
  for condition in $conditions; do
    [ "${condition%%_*}" != "$1" ] || echo "test_$condition"
  done
}

list_sets() {
  local kind
  for kind in $(list_kinds); do sets_of "$kind"; done | sort -u
}

prepare() {
  local condition words=()
  for condition in $levels $conditions; do words+=("$condition"); done
  # shellcheck disable=SC2086  # $prepare_options is a list of words; without conditions all are made
  sepkit prepare pulses $prepare_options ${words:+--conditions "${words[@]}"} --out "$data"
}

# train_one RATE: quiet, with a log; the end of the log is shown if it fails.
train_one() {
  local run
  run=$exp/$(LC_ALL=C printf 'rate_%g' "$1")
  mkdir -p "$exp"
  # shellcheck disable=SC2086  # $extra and $train_cmd are lists of words
  $train_cmd sepkit train --config "$conf" --seed "$seed" --data.train "$data/train.jsonl" --data.dev "$data/dev.jsonl" \
    --objective.rates.steering.total "$1" $extra --out "$run" >>"$run.log" 2>&1 ||
    { tail -3 "$run.log" >&2; echo "$0: $run: training failed, see $run.log" >&2; return 1; }
  echo "$run"
}

train_all() {
  export -f train_one
  export conf data exp seed extra train_cmd
  # shellcheck disable=SC2086  # $rates is a list of words
  printf '%s\n' $rates | xargs -P "$jobs" -I RATE bash -c 'train_one "$@"' "$0" RATE
}

# evaluate_one RUN MANIFEST...: quiet, with a log; the end of the log is shown if it fails.
evaluate_one() {
  local run=$exp/$1
  shift
  # shellcheck disable=SC2086
  $decode_cmd sepkit evaluate --model "$run/last_model" --manifest "$@" --separate-reports --metrics si_sdr blr --processes 0 \
    --out "$run/evaluation" >>"$run.evaluation.log" 2>&1 ||
    { tail -3 "$run.evaluation.log" >&2; echo "$0: $run: evaluation failed, see $run.evaluation.log" >&2; return 1; }
  echo "$run"
}

evaluate_all() {
  local manifests
  manifests=$(list_sets | sed "s|.*|$data/&.jsonl|")
  export -f evaluate_one
  export exp decode_cmd
  # shellcheck disable=SC2086  # $manifests is a list of words
  run_names | xargs -P "$jobs" -I RUN bash -c 'evaluate_one "$@"' "$0" RUN $manifests
}

# A table and a figure for each kind: one curve a test set, and all would be too many in a figure.
summarize_all() {
  local kind
  for kind in $(list_kinds); do
    # shellcheck disable=SC2046  # names of runs and sets hold no blanks
    sepkit summarize $(run_names | sed "s|^|$exp/|") --figure rate-distortion --test-set $(sets_of "$kind") \
      --out "$exp/curves/$kind/table.md" >/dev/null
    echo "$exp/curves/$kind/table.md"
  done
}

write_comparison() {
  # shellcheck disable=SC2046  # names of kinds and runs hold no blanks
  sepkit report $(list_kinds | sed "s|^|$exp/curves/|") $(run_names | sed "s|^|$exp/|") --out "$exp/report.html"
}

run_stage 1 "prepare $data" prepare
run_stage 2 "train $(run_names | wc -l) models below $exp, $jobs at once" train_all
run_stage 3 "evaluate them on $(list_sets | wc -l) test sets" evaluate_all
run_stage 4 "write tables and figures of rate and distortion below $exp/curves" summarize_all
run_stage 5 "write $exp/report.html" write_comparison
