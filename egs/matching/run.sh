#!/usr/bin/env bash
# Can permutation invariant training be replaced by annealed MCL? The comparison of the aMCL paper (Perera et al., 2024, section 5.2 and
# appendix E): PIT, MCL, relaxed WTA and annealed MCL over several seeds, the phase transition and more hypotheses.
#
#   ./run.sh --speech DIR [--conf conf/cpu.yaml] [--stage N] [--stop-stage N]
#
# --conf FILE          conf/cpu.yaml: about ten minutes per run on one core; conf/masker.yaml: three minutes, with
#                      --extra "--init-from MODEL", a trunk that separates (RESULTS.md); conf/gpu.yaml: the paper's network and training
# --speakers N         speakers in a mixture, 2 to 5
# --methods "..."      rows of the table, among pit mcl relaxed_wta amcl sinkhorn
# --seeds "0 1 2"      seeds of every experiment
# --temperatures "..."  initial temperatures in dB of the phase transition plot (Fig. 8); "" leaves it out
# --hypotheses "..."   numbers of hypotheses larger than --speakers, for MCL and aMCL (Fig. 7); "" leaves it out
# --four "..."         ways to four hypotheses for two speakers: those of --methods from the start,
#                      and grown, from two; "" leaves them out
# --jobs N             trainings in parallel; if more than 1, give each one core (OMP_NUM_THREADS=1)
#
# Stages: 1 prepare, 2 train all, 3 evaluate all, 4 table and figures, 5 report. The same command again continues.
# Time: 33 runs with the defaults, about three hours on two cores with --jobs 2 (one hour with conf/masker.yaml).
# Limits: ten minutes of training show which methods collapse and roughly how they compare, not their final scores.
# Citation: D. Perera, V. Letzelter, T. Mariotte, A. Cortes, M. Chen, S. Essid, G. Richard, "Annealed multiple choice
# learning: overcoming limitations of winner-takes-all with annealing", NeurIPS 2024.
. "$(dirname "$0")/../utils/options.sh" speech run

prepare_options="--dev-mixtures 100 --test-mixtures 300"
conf=conf/cpu.yaml
speakers=2
methods="pit mcl relaxed_wta amcl"
seeds="0 1 2"
temperatures="0.1 5 23"
hypotheses="3 5"
four=
jobs=2
data=
. ../utils/recipe.sh

conf=$(resolve "$conf")
data=${data:-data/${speakers}speakers}
exp=${exp:-exp/$(basename "$conf" .yaml)_${speakers}speakers}
first_seed=${seeds%% *}

prepare() { prepare_folder --speakers "$speakers"; }

# Every run as a line: name, then what it trains with.
list_runs() {
  local seed method temperature count
  for seed in $seeds; do
    for method in $methods; do echo "${method}_seed$seed --config conf/$method.yaml --seed $seed"; done
  done
  for seed in $seeds; do
    for temperature in $temperatures; do
      echo "amcl_t${temperature}_seed$seed --config conf/amcl_exponential.yaml --seed $seed" \
        "--objective.assignment.temperature.initial $temperature"
    done
    for method in $four; do
      count=4
      [ "$method" != grown ] || count=2
      echo "${method}_four_seed$seed --config conf/$method.yaml --seed $seed --model.hypotheses $count"
    done
    for count in $hypotheses; do
      for method in mcl amcl; do
        echo "${method}_n${count}_seed$seed --config conf/$method.yaml --seed $seed --model.hypotheses $count"
      done
    done
  done
}

# train_one NAME OPTION...: quiet, with a log of its own; the end of the log is shown if it fails.
train_one() {
  local name=$1
  shift
  mkdir -p "$exp"
  # shellcheck disable=SC2086  # $extra and $train_cmd are lists of words
  $train_cmd sepkit train --config "$conf" --model.hypotheses "$speakers" "$@" --data.train "$data/train.jsonl" \
    --data.dev "$data/dev.jsonl" $extra --out "$exp/$name" >>"$exp/$name.log" 2>&1 ||
    { tail -3 "$exp/$name.log" >&2; echo "$0: $exp/$name: training failed, see $exp/$name.log" >&2; return 1; }
  echo "$exp/$name"
}

train_all() {
  export -f train_one
  export conf data exp speakers extra train_cmd
  list_runs | xargs -P "$jobs" -L 1 bash -c 'train_one "$@"' "$0"
}

evaluate_all() {
  local name rest
  while read -r name rest; do
    $decode_cmd sepkit evaluate --model "$exp/$name/model" --manifest "$data/test.jsonl" --metrics si_sdr \
      --out "$exp/$name/evaluation/test" </dev/null
  done < <(list_runs)
}

# Runs whose name fits a pattern of list_runs' names, as folders.
runs() { run_folders | grep -E "/($1)\$"; }

summarize_all() {
  # shellcheck disable=SC2046  # names of runs hold no blanks
  [ -z "$methods" ] || sepkit summarize $(runs "(${methods// /|})_seed[0-9]+") --out "$exp/table.md"
  # shellcheck disable=SC2046
  [ -z "$four" ] || sepkit summarize $(runs "(${four// /|})_four_seed[0-9]+") --metric mcl_si_sdr_db --out "$exp/four.md"
  # shellcheck disable=SC2046
  [ -z "$temperatures" ] ||
    sepkit summarize $(runs "amcl_t[0-9.]+_seed[0-9]+") --figure temperature --out "$exp/phase_transition.md"
  # shellcheck disable=SC2046
  [ -z "$hypotheses" ] ||
    sepkit summarize $(runs "a?mcl(_n[0-9]+)?_seed[0-9]+") --metric mcl_si_sdr_db --figure boxes --out "$exp/hypotheses.md"
}

write_comparison() {
  local names="(${methods// /|})"
  # Without methods, all other runs of the first seed.
  [ -n "$methods" ] || names=".*"
  # shellcheck disable=SC2046
  sepkit report $(runs "${names}_seed$first_seed") --out "$exp/report.html"
}

run_stage 1 "prepare $data" prepare
run_stage 2 "train $(list_runs | wc -l) models below $exp, $jobs at once" train_all
run_stage 3 "evaluate them on $data/test.jsonl" evaluate_all
run_stage 4 "write $exp/table.md and the figures" summarize_all
run_stage 5 "write $exp/report.html" write_comparison
