# Sourced by a recipe's run.sh after its options: reads the command line, and defines what recipes do.
#
# A recipe of one model then sets test_sets (names of manifests to evaluate on) and where needed suffix (of the manifests
# to train on: _noisy for train_noisy), calls name_experiment, defines prepare (and download, for a stage 0), and calls
# run_stages.

# shellcheck shell=bash
. ../utils/parse_options.sh
. ../utils/path.sh
. ../utils/cmd.sh

# stop LINE...: ends the recipe because of a user's mistake.
stop() {
  echo "$0: $*" >&2
  exit 2
}

if [ -n "${ngpu:-}" ]; then
  [[ $ngpu =~ ^[1-9][0-9]*$ ]] || stop "--ngpu $ngpu: expected a number of GPUs, at least 1"
  extra="--trainer.accelerator gpu --devices $ngpu ${extra:-}"
fi

# resolve PATH: a path the user gave, seen from where the recipe was called, or else from the recipe's own folder.
resolve() {
  local path
  for path in "$caller/$1" "$1"; do
    case $1 in /*) path=$1 ;; esac
    if [ -e "$path" ]; then realpath "$path"; return; fi
  done
  stop "$1: no such file or folder, looked from $caller and from $PWD"
}

# absolute PATH: of a path that need not exist, seen from the recipe's folder.
absolute() {
  case $1 in /*) echo "$1" ;; *) echo "$PWD/$1" ;; esac
}

# name_experiment [PREFIX]: sets configs (the files and names under conf/ in --conf) and, where --exp is absent, exp.
name_experiment() {
  local word names=
  configs=()
  if [ -e "$caller/$conf" ] || [ -e "$conf" ]; then configs=("$(resolve "$conf")"); else
    for word in $conf; do
      case $word in *.yaml | *.yml) word=$(resolve "$word") ;; esac
      configs+=("$word")
    done
  fi
  for word in "${configs[@]}"; do names=${names:+${names}_}$(basename "$word" .yaml); done
  exp=${exp:-exp/${1:-}$names${assignment:+_$assignment}${hypotheses:+_n$hypotheses}_seed$seed}
}

# run_stage N "what it does" function: runs the function if N lies between --stage and --stop-stage.
run_stage() {
  if [ "$stage" -le "$1" ] && [ "$stop_stage" -ge "$1" ]; then
    echo "stage $1: $2"
    "$3"
  fi
}

# run_stages: from preparation (or download) to report, of a recipe that trains one model.
run_stages() {
  if declare -F download >/dev/null; then run_stage 0 "download to $cache" download; fi
  run_stage 1 "prepare $data" prepare
  run_stage 2 "train $exp" train_model
  run_stage 3 "separate examples of $test_sets" separate_examples
  run_stage 4 "evaluate on $test_sets" evaluate_model
  run_stage 5 "write $exp/report.html" write_report
}

# fetch NAME [options]: downloads a corpus into the cache.
fetch() {
  sepkit download "$@" --cache "$cache" ${mirror:+--mirror "$mirror"} ${checksums:+--checksums "$(resolve "$checksums")"}
}

# prepare_folder [options]: manifests of --speech.
prepare_folder() {
  local folder
  [ -n "$speech" ] || stop "--speech: nothing given, expected a folder of recordings"
  folder=$(resolve "$speech")
  # shellcheck disable=SC2086  # $prepare_options is a list of words
  sepkit prepare folder --speech "$folder" --speaker-from "$speaker_from" "$@" $prepare_options --out "$data"
}

# manifest NAME: the file of a set of mixtures.
manifest() {
  echo "$data/$1.jsonl"
}

train_model() {
  local name options=()
  for name in "${configs[@]}"; do options+=(--config "$name"); done
  # shellcheck disable=SC2086  # $extra and $train_cmd are lists of words
  $train_cmd sepkit train "${options[@]}" --data.train "$(manifest "train${suffix:-}")" --data.dev "$(manifest "dev${suffix:-}")" \
    --seed "$seed" ${assignment:+--objective.assignment.name "$assignment"} ${hypotheses:+--model.hypotheses "$hypotheses"} $extra --out "$exp"
}

# Writes the first mixtures of each test set as wav files, and what the model makes of them: something to listen to.
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
  $decode_cmd sepkit evaluate --model "${model:-$exp/model}" --manifest "${manifests[@]}" --separate-reports $evaluate_options --out "$exp/evaluation"
}

# list_runs: the runs of a comparison, a line each: METHOD_seedN. A recipe may define its own, with more words after the name.
list_runs() {
  local seed method
  for seed in $seeds; do
    for method in $methods; do echo "${method}_seed$seed"; done
  done
}

# run_folders: the folders of all runs, whose names hold no blanks.
run_folders() { list_runs | sed "s|^\([^ ]*\).*|$exp/\1|"; }

# Writes one page that compares all runs.
write_comparison() {
  # shellcheck disable=SC2046  # names of runs hold no blanks
  sepkit report $(run_folders) --out "$exp/report.html"
}

# Writes the scores of all runs by the number of steps of a model of continuous depth.
summarize_depth() {
  # shellcheck disable=SC2046  # names of runs hold no blanks
  sepkit summarize $(run_folders) --figure depth --out "$exp/table.md"
}

# Writes one page with the scores, the worst, median and best mixtures with their estimates, and the training curves.
write_report() {
  $decode_cmd sepkit report "$exp" --out "$exp/report.html"
}
