#!/usr/bin/env bash
# Can one model serve many compute budgets? A masker whose depth is chosen at inference time, against a fixed depth.
#
#   ./run.sh --speech DIR [--conf conf/cpu.yaml] [--stage N] [--stop-stage N]
#
# --conf FILE          what all models share
# --methods "..."      fixed: continuous depth, eight steps in training; separate: eight blocks with weights of their own
# --seeds "..."        of the weights and the order of the data
# --steps "..."        numbers of steps that models of continuous depth are measured at
#
# Stages: 1 prepare, 2 train all, 3 evaluate all at each number of steps, 4 table and figure, 5 report. The same command
# again continues. Time with conf/cpu.yaml: about six minutes of CPU time per model; see RESULTS.md.
# Citation: R. M. Th. Høegh, "On learning useful variational autoencoder representations: applications in audio modelling and
# hearing loss treatment", PhD thesis, Technical University of Denmark, 2022, appendix C (images; separation is ours).
. "$(dirname "$0")/../utils/options.sh" speech run

conf=conf/cpu.yaml
methods="fixed separate"
seeds="0 1"
steps="2 4 8 16 32"
. ../utils/recipe.sh

conf=$(resolve "$conf")
exp=${exp:-exp/$(basename "$conf" .yaml)}

prepare() { prepare_folder; }

train_all() {
  local run
  for run in $(list_runs); do
    # shellcheck disable=SC2086  # $extra and $train_cmd are lists of words
    $train_cmd sepkit train --config "$conf" --config "conf/${run%_seed*}.yaml" --seed "${run##*_seed}" \
      --data.train "$(manifest train)" --data.dev "$(manifest dev)" $extra --out "$exp/$run"
  done
}

evaluate_all() {
  local run
  for run in $(list_runs); do
    # shellcheck disable=SC2046,SC2086  # lists of words; one process, so that the time is that of the model
    $decode_cmd sepkit evaluate --model "$exp/$run/model" --manifest "$(manifest test)" --metrics si_sdr --processes 0 \
      $([[ $run == separate_* ]] || echo --depth-steps $steps) --out "$exp/$run/evaluation/test"
  done
}

run_stage 1 "prepare $data" prepare
run_stage 2 "train $(list_runs | wc -l) models below $exp" train_all
run_stage 3 "evaluate them with $steps steps" evaluate_all
run_stage 4 "write $exp/table.md" summarize_depth
run_stage 5 "write $exp/report.html" write_comparison
