# What every recipe shares, sourced by its run.sh after the options: paths, stages, and the stages after preparation.
#
# The recipe has set: data (folder of manifests), exp (folder of the experiment), conf (YAML), test_sets (names of
# manifests to evaluate on), ngpu (GPUs to train on), extra (further options of sepkit train), stage, stop_stage; and where it likes assignment
# (pit, mcl, relaxed_wta, amcl, sinkhorn), hypotheses (how many estimates the model makes), evaluate_options, configs
# (array of configurations in place of conf), suffix (of the names of the manifests to train on: _noisy for
# train_noisy), model (in place of $exp/model); and for fetch: cache, mirror, checksums.

# shellcheck shell=bash
set -euo pipefail

if [ -n "${ngpu:-}" ]; then
  [[ $ngpu =~ ^[1-9][0-9]*$ ]] || { echo "$0: --ngpu $ngpu: expected a number of GPUs, at least 1" >&2; exit 2; }
  extra="--trainer.accelerator gpu --devices $ngpu ${extra:-}"
fi

# A path the user gave: as seen from where the recipe was called, or else from the recipe's own folder.
resolve() {
  local path
  for path in "$caller/$1" "$1"; do
    case $1 in /*) path=$1 ;; esac
    if [ -e "$path" ]; then realpath "$path"; return; fi
  done
  echo "$0: $1: no such file or folder, looked from $caller and from $PWD" >&2
  exit 2
}

# absolute PATH: of one that need not be there, as seen from the recipe's folder.
absolute() {
  case $1 in /*) echo "$1" ;; *) echo "$PWD/$1" ;; esac
}

# run_stage N "what it does" function: runs the function if N lies between --stage and --stop-stage.
run_stage() {
  if [ "$stage" -le "$1" ] && [ "$stop_stage" -ge "$1" ]; then
    echo "stage $1: $2"
    "$3"
  fi
}

# set_configs "WORD ...": the configurations that a list of words means: files as `resolve` finds them, or names under conf/.
set_configs() {
  local word
  configs=()
  for word in $1; do
    case $word in *.yaml | *.yml) word=$(resolve "$word") ;; esac
    configs+=("$word")
  done
}

# What an experiment with these configurations is called.
experiment_name() {
  local word
  for word in "${configs[@]}"; do basename "$word" .yaml; done | paste -sd_ -
}

# fetch NAME [options]: a corpus into the cache.
fetch() {
  sepkit download "$@" --cache "$cache" ${mirror:+--mirror "$mirror"} ${checksums:+--checksums "$checksums"}
}

# manifest NAME: the file of a set of mixtures.
manifest() {
  echo "$data/$1.jsonl"
}

train_model() {
  local name options=()
  for name in "${configs[@]:-$conf}"; do options+=(--config "$name"); done
  # shellcheck disable=SC2086  # $extra and $train_cmd are lists of words
  $train_cmd sepkit train "${options[@]}" --data.train "$(manifest "train${suffix:-}")" --data.dev "$(manifest "dev${suffix:-}")" \
    --seed "$seed" ${assignment:+--objective.assignment.name "$assignment"} ${hypotheses:+--model.hypotheses "$hypotheses"} $extra --out "$exp"
}

# The first mixtures of each test set as wav files, and what the model makes of them: something to listen to.
separate_examples() {
  local name
  for name in $test_sets; do
    sepkit prepare wavs --manifest "$(manifest "$name")" --first 5 --out "$exp/examples/$name"
    $decode_cmd sepkit separate "$exp/examples/$name/mix" --model "${model:-$exp/model}" --out "$exp/examples/$name/estimates"
  done
}

evaluate_model() {
  local name manifests=()
  for name in $test_sets; do manifests+=("$(manifest "$name")"); done
  # shellcheck disable=SC2086  # $evaluate_options is a list of words
  $decode_cmd sepkit evaluate --model "${model:-$exp/model}" --manifest "${manifests[@]}" --apart ${evaluate_options:-} --out "$exp/evaluation"
}

# One page with the scores, what the model makes of the worst, median and best mixtures, and the training curves.
write_report() {
  $decode_cmd sepkit report "$exp" --out "$exp/report.html"
}
