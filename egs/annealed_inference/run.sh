#!/usr/bin/env bash
# How does annealing keep variational inference from losing a mode, and can it be planned? Figures 1 to 7 of the annealed VI
# paper on Gaussian mixtures and a RealNVP, and KL warm-up for a variational separation model.
#
#   ./run.sh [--conf conf/cpu.yaml] [--stage N] [--stop-stage N]
#   ./run.sh --stage 5 --stop-stage 5 --speech DIR --noise DIR
#
# --conf FILE          conf/cpu.yaml: minutes; conf/paper.yaml: the paper's sizes, for the flows an accelerator
# --device NAME        where the flows are trained: cpu, cuda ...
# --noise DIR          recordings of noise for stage 5, as in egs/generalization
# --separation FILE    what the settings of stage 5 share; each has its own file beside it (conf/separation_warmup.yaml)
# --methods "..."      settings of stage 5: plain, warmup
# --seeds "0 1 2"      seeds of stage 5
# --jobs N             trainings of stage 5 in parallel
#
# Stages: 1 closed forms against the flow of the order parameters, 2 phase diagram (figures 2, 5, 7), 3 single runs
# (figures 1, 3, 6), 4 RealNVP (figure 4); with --speech and --noise also 5 separation: no warm-up, KL warm-up. Every cell is kept: the same command again continues.
# Time with conf/cpu.yaml, CPU time of one core: stage 1 one minute, 2 thirteen, 3 half a minute, 4 two and a
# half. Limits: stage 5 trains for 200 steps; its models are far from converged.
# Citation: L. Fogliani, B. Loureiro and M. Gabrié, "Annealing in variational inference mitigates mode collapse: a theoretical
# study on Gaussian mixtures".
. "$(dirname "$0")/../utils/options.sh" speech run

stop_stage=4
conf=conf/cpu.yaml
device=cpu
noise=
separation=conf/separation.yaml
methods="plain warmup"
seeds="0 1 2"
prepare_options="--dev-mixtures 40 --test-mixtures 80"
jobs=1
. ../utils/recipe.sh

conf=$(resolve "$conf")
exp=${exp:-exp/$(basename "$conf" .yaml)}

simulate() {
  # shellcheck disable=SC2086  # $train_cmd is a list of words
  $train_cmd sepkit annealed-inference "$1" --config "$conf" --out "$exp" --device "$device"
}

formulas() { simulate formulas; }
phase_diagram() { simulate phase-diagram; }
runs() { simulate runs; }
flows() { simulate flows; }

separate() {
  [ -n "$speech" ] && [ -n "$noise" ] || stop "--speech, --noise: nothing given, expected two folders of recordings"
  ../generalization/run.sh --speech "$(resolve "$speech")" --noise "$(resolve "$noise")" --conf "$(resolve "$separation")" \
    --speaker-from "$speaker_from" --methods "$methods" --seeds "$seeds" --prepare-options "$prepare_options" \
    --extra "$extra" --jobs "$jobs" --data "$(absolute "$data")" --exp "$(absolute "$exp/separation")"
  local method seed runs=()
  for method in $methods; do
    for seed in $seeds; do runs+=("$exp/separation/${method}_seed$seed"); done
  done
  $decode_cmd sepkit summarize "${runs[@]}" --metric encoding_rate_nats_per_frame mask_rate_nats_per_frame encoding_alive_share \
    mask_alive_share --out "$exp/separation/latents.md" >/dev/null
  echo "$exp/separation/latents.md"
}

run_stage 1 "closed forms against the flow: $exp/formulas.json" formulas
run_stage 2 "phase diagram: $exp/phase-diagram.json" phase_diagram
run_stage 3 "single runs: $exp/runs.json" runs
run_stage 4 "RealNVP: $exp/flows.json" flows
if [ -n "$speech$noise" ] && [ "$stop_stage" -eq 4 ]; then stop_stage=5; fi
run_stage 5 "separation with three ways of warming up: $exp/separation" separate
