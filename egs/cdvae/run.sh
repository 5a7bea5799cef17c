#!/usr/bin/env bash
# Do latents of continuous depth model images better? A hierarchy of latent SDEs for images (CD-VAE thesis, part C).
#
#   ./run.sh [--conf conf/cpu.yaml] [--mnist FILE] [--stage N] [--stop-stage N]
#
# --conf FILE          what all models share
# --mnist FILE         binarized MNIST, .npz or a folder of .amat files, in place of solutions of a Poisson equation
# --methods "..."      sde: the model of the thesis; ode_like: its comparison; discrete: blocks with weights of their own, of like
#                      size (discrete_mnist with --mnist); one_level: an ordinary variational autoencoder (with --mnist)
# --seeds "..."        of the weights and the order of the data
# --steps "..."        numbers of steps of a level that models are measured at
# --samples N          samples of the latents that bounds are means over
#
# Stages: 1 prepare, 2 train all, 3 evaluate all by number of steps, with a sheet of images (figures 6 and 8),
# 4 table and figure of the bound by width of the steps (figures 4 and 5), 5 report. The
# same command again continues. Time with conf/cpu.yaml: about two minutes of CPU time per model; see RESULTS.md.
# Citation: R. M. Th. Høegh, "On learning useful variational autoencoder representations: applications in audio modelling and
# hearing loss treatment", PhD thesis, Technical University of Denmark, 2022, appendix C.
. "$(dirname "$0")/../utils/options.sh" run

conf=conf/cpu.yaml
mnist=
methods="sde ode_like discrete"
seeds="0 1 2"
steps="2 3 5 10 20 40"
samples=3
data=
. ../utils/recipe.sh

conf=$(resolve "$conf")
setting=$(basename "$conf" .yaml)
configs=(--config "$conf")
if [ -n "$mnist" ]; then
  mnist=$(resolve "$mnist")
  setting=mnist_$setting
  configs+=(--config conf/mnist.yaml)
fi
data=${data:-data/$setting}
exp=${exp:-exp/$setting}

prepare() {
  if [ -n "$mnist" ]; then
    sepkit prepare images --kind mnist --source "$mnist" --out "$data"
    return
  fi
  # shellcheck disable=SC2086  # a list of words
  sepkit prepare images --kind poisson $prepare_options --out "$data"
}

train_all() {
  local run
  for run in $(list_runs); do
    # shellcheck disable=SC2086  # $extra and $train_cmd are lists of words
    $train_cmd sepkit train "${configs[@]}" --config "conf/${run%_seed*}.yaml" --seed "${run##*_seed}" \
      --data.train "$data/train.npz" --data.dev "$data/dev.npz" $extra --out "$exp/$run"
  done
}

evaluate_all() {
  local run
  for run in $(list_runs); do
    local chosen=
    case $run in discrete* | one_level*) ;; *) chosen="--depth-steps $steps" ;; esac # discrete blocks have a fixed depth
    # shellcheck disable=SC2086  # a list of words
    $decode_cmd sepkit evaluate --model "$exp/$run" --manifest "$data/test.npz" --samples "$samples" \
      $chosen --out "$exp/$run/evaluation/test"
  done
}

run_stage 1 "prepare $data" prepare
run_stage 2 "train $(list_runs | wc -l) models below $exp" train_all
run_stage 3 "evaluate them" evaluate_all
run_stage 4 "write $exp/table.md" summarize_depth
run_stage 5 "write $exp/report.html" write_comparison
