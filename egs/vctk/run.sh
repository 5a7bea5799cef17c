#!/usr/bin/env bash
# How much worse is a model on VCTK-2mix, a corpus it was not trained on? Give a model, or train one on Libri2Mix.
#
#   ./run.sh [--model MODEL] [--conf "conv_tasnet paper"] [--task clean] [--stage N] [--stop-stage N]
#
# --model MODEL        a trained model (sepkit models lists names): nothing is trained then, and Libri2Mix is evaluated
#                      too only if --libri-data has its manifests
# --conf "NAME ..."    configurations to train with, as in egs/librimix
# --libri-options "..."  further options of egs/librimix/run.sh, such as "--librispeech DIR --hypotheses 4"
# --task clean|noisy   noisy adds WHAM's noise to the mixtures; the targets are clean speech either way
# --vctk DIR           VCTK 0.80 (wav48/), if you have it: then it is not downloaded
# --wham-noise DIR     the noise of WHAM, if you have it
# --metadata DIR       folder of the table VCTK2mix_VCTK_md.csv, if you have it
# --libri-data DIR     manifests of Libri2Mix; default: those of egs/librimix
#
# Stages: 0 download, 1 prepare, 2 train, 3 separate examples, 4 evaluate, 5 report. The same command again continues.
# Size, licenses, limits, pitfalls and citation: README.md.
. "$(dirname "$0")/../utils/options.sh" model published run

model=
stage=0
conf="conv_tasnet paper"
libri_options=
task=clean
vctk=
wham_noise=
metadata=
libri_data=
data=
. ../utils/recipe.sh

# As benchmarks do; by default mixtures above 30 s are separated in chunks.
evaluate_options="--whole-seconds inf $evaluate_options"

case $task in
  clean) suffix= ;;
  noisy) suffix=_noisy ;;
  *) stop "--task $task: expected clean or noisy" ;;
esac
if [ -n "$checksums" ]; then checksums=$(resolve "$checksums"); fi
kind=$((sample_rate / 1000))k_$mode
if [ -n "$model" ]; then
  case $model in *:*) ;; *) if [ -e "$caller/$model" ]; then model=$(resolve "$model"); fi ;; esac
  exp=${exp:-exp/${kind}_${task}_$(basename "${model%/model}")}
fi
name_experiment "${kind}_${task}_"
exp=$(absolute "$exp")
data=${data:-data/vctk2mix_$kind}
libri_data=$(absolute "${libri_data:-../librimix/data/libri2mix_$kind}")
test_sets=vctk2mix
if [ -z "$model" ] || [ -e "$libri_data/test$suffix.jsonl" ]; then test_sets="libri2mix vctk2mix"; fi

manifest() {
  case $1 in
    libri2mix) echo "$libri_data/test$suffix.jsonl" ;;
    vctk2mix) echo "$data/test$suffix.jsonl" ;;
  esac
}

# librimix STAGE: runs a stage of egs/librimix, unless --model is given.
librimix() {
  local options=(--conf "${configs[*]}" --task "$task" --sample-rate "$sample_rate" --mode "$mode" --seed "$seed" --extra "$extra")
  if [ -n "$model" ]; then return; fi
  options+=(--cache "$(absolute "$cache")" --mirror "$mirror" --checksums "$checksums" --wham-noise "$wham_noise")
  options+=(--assignment "$assignment" --hypotheses "$hypotheses" --data "$libri_data" --exp "$exp")
  # shellcheck disable=SC2086  # $libri_options is a list of words
  (recipe=$PWD && cd "$caller" && "$recipe/../librimix/run.sh" "${options[@]}" $libri_options --stage "$1" --stop-stage "$1")
}

download() {
  [ -n "$vctk" ] || fetch vctk
  [ -n "$wham_noise" ] || fetch wham-noise
  [ -n "$metadata" ] || fetch vctk-2mix-metadata
  librimix 0
}

prepare() {
  local speech noise tables
  speech=$(resolve "${vctk:-$cache/VCTK-Corpus}")
  noise=$(resolve "${wham_noise:-$cache/wham_noise}")
  tables=$(resolve "${metadata:-$cache/VCTK-2Mix/metadata/VCTK-2mix}")
  # shellcheck disable=SC2086  # $prepare_options is a list of words
  sepkit prepare vctk-2mix --vctk "$speech" --wham-noise "$noise" --metadata "$tables" --sample-rate "$sample_rate" \
    --mode "$mode" $prepare_options --out "$data"
  librimix 1
}

train_model() {
  if [ -n "$model" ]; then echo "$model exists"; fi
  librimix 2
}

# Both corpora in one evaluation, so that it holds the drop from the first to the other.
evaluate_model() {
  local name manifests=()
  for name in $test_sets; do manifests+=("$(manifest "$name")"); done
  # shellcheck disable=SC2086  # $evaluate_options is a list of words
  $decode_cmd sepkit evaluate --model "${model:-$exp/model}" --manifest "${manifests[@]}" $evaluate_options \
    --out "$exp/evaluation/${test_sets// /_}"
}

run_stages
