#!/usr/bin/env bash
# VCTK-2mix: what is lost on a corpus that training has not seen. It is a test set: a model is given, or trained on Libri2Mix.
#
#   ./run.sh [--model MODEL] [--conf "conv_tasnet paper"] [--task clean] [--stage N] [--stop-stage N]
#
# --model MODEL        a model that is there (sepkit models tells which): nothing is trained then, and Libri2Mix is measured
#                      beside VCTK-2mix only if --libri-data has its manifests
# --conf "NAME ..."    configurations to train with, as in egs/librimix
# --assignment NAME    of hypotheses to speakers: pit | mcl | relaxed_wta | amcl | sinkhorn, by default what --conf says (pit)
# --libri-options "..."  further options of egs/librimix/run.sh, such as "--librispeech DIR --hypotheses 4"
# --task clean|noisy   noisy adds WHAM's noise to the mixtures; the targets are clean speech either way
# --sample-rate HZ     8000 or 16000
# --mode min|max       cut to the shortest source, or padded to the longest
# --cache DIR          where downloads go; all recipes may share it
# --mirror URL         folder that holds the archives, in place of their publishers
# --checksums FILE     of a mirror whose archives are not the published ones, as md5sum writes it
# --vctk DIR           VCTK 0.80 (wav48/), where it is here already: then it is not fetched; so too for
# --wham-noise DIR     the noise of WHAM
# --metadata DIR       the table VCTK2mix_VCTK_md.csv
# --prepare-options "..."  further options of sepkit prepare vctk-2mix, such as "--write"
# --libri-data DIR     manifests of Libri2Mix; by default those of egs/librimix
# --data DIR           where manifests of VCTK-2mix go
# --exp DIR            where the model goes
# --seed N             of the data order and the weights
# --extra "..."        further options of sepkit train, such as "--precision bf16-mixed"
# --ngpu N             GPUs of this machine to train on; by default what --conf says (Slurm: docs/gpus.md)
#
# Stages: 0 download, 1 prepare, 2 train, 3 separate examples, 4 evaluate, 5 report. The same command again continues.
# Size, licences, limits, traps and citation: README.md.
set -euo pipefail
caller=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")"

stage=0
stop_stage=5
model=
conf="conv_tasnet paper"
assignment=
libri_options=
task=clean
sample_rate=8000
mode=min
cache=../downloads
mirror=
checksums=
vctk=
wham_noise=
metadata=
prepare_options=
libri_data=
data=
exp=
seed=0
extra=
ngpu=
. ../utils/parse_options.sh
. ./path.sh
. ./cmd.sh
. ../utils/recipe.sh

case $task in
  clean) suffix= ;;
  noisy) suffix=_noisy ;;
  *) echo "$0: --task $task: expected clean or noisy" >&2; exit 2 ;;
esac
if [ -n "$checksums" ]; then checksums=$(resolve "$checksums"); fi
set_configs "$conf"
kind=$((sample_rate / 1000))k_$mode
if [ -n "$model" ]; then
  case $model in *:*) ;; *) if [ -e "$caller/$model" ]; then model=$(resolve "$model"); fi ;; esac
  exp=${exp:-exp/${kind}_${task}_$(basename "${model%/model}")}
fi
exp=$(absolute "${exp:-exp/${kind}_${task}_$(experiment_name)${assignment:+_$assignment}_seed$seed}")
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

# A stage of egs/librimix, where a model is to be trained.
librimix() {
  local options=(--conf "${configs[*]}" --task "$task" --sample-rate "$sample_rate" --mode "$mode" --seed "$seed" --extra "$extra")
  if [ -n "$model" ]; then return; fi
  options+=(--cache "$(absolute "$cache")" --mirror "$mirror" --checksums "$checksums" --wham-noise "$wham_noise")
  options+=(--assignment "$assignment" --data "$libri_data" --exp "$exp")
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

train() {
  if [ -n "$model" ]; then echo "$model is there"; fi
  librimix 2
}

# Both corpora in one evaluation, so that it holds the drop from the first to the other.
evaluate_both() {
  local name manifests=()
  for name in $test_sets; do manifests+=("$(manifest "$name")"); done
  $decode_cmd sepkit evaluate --model "${model:-$exp/model}" --manifest "${manifests[@]}" --out "$exp/evaluation/${test_sets// /_}"
}

run_stage 0 "download to $cache" download
run_stage 1 "prepare $data" prepare
run_stage 2 "train $exp" train
run_stage 3 "separate examples of $test_sets" separate_examples
run_stage 4 "evaluate on $test_sets" evaluate_both
run_stage 5 "write $exp/report.html" write_report
