# What every recipe shares, sourced by its run.sh after the options: paths, stages, and the stages after preparation.
#
# The recipe has set: data (folder of manifests), exp (folder of the experiment), conf (YAML), test_sets (names of
# manifests to evaluate on), extra (further options of sepkit train), stage, stop_stage.

# shellcheck shell=bash
set -euo pipefail

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

# run_stage N "what it does" function: runs the function if N lies between --stage and --stop-stage.
run_stage() {
  if [ "$stage" -le "$1" ] && [ "$stop_stage" -ge "$1" ]; then
    echo "stage $1: $2"
    "$3"
  fi
}

train_model() {
  # shellcheck disable=SC2086  # $extra and $train_cmd are lists of words
  $train_cmd sepkit train --config "$conf" --data.train "$data/train.jsonl" --data.dev "$data/dev.jsonl" --seed "$seed" $extra --out "$exp"
}

# The first mixtures of each test set as wav files, and what the model makes of them: something to listen to.
separate_examples() {
  local name
  for name in $test_sets; do
    sepkit prepare wavs --manifest "$data/$name.jsonl" --first 5 --out "$exp/examples/$name"
    $decode_cmd sepkit separate "$exp/examples/$name/mix" --model "$exp/model" --out "$exp/examples/$name/estimates"
  done
}

evaluate_model() {
  local name
  for name in $test_sets; do
    $decode_cmd sepkit evaluate --model "$exp/model" --manifest "$data/$name.jsonl" --out "$exp/evaluation/$name"
  done
}

# One page with the scores, what the model makes of the worst, median and best mixtures, and the training curves.
write_report() {
  $decode_cmd sepkit report "$exp" --out "$exp/report.html"
}
