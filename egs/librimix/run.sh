#!/usr/bin/env bash
# LibriMix: train and measure on mixtures of LibriSpeech readers, with or without the noise of WHAM. All of it may be downloaded.
#
#   ./run.sh [--conf "conv_tasnet paper"] [--assignment mcl] [--task clean] [--stage N] [--stop-stage N]
#
# --conf "NAME ..."    configurations, files or names under conf/, later ones win:
#                        "conv_tasnet paper"            Conv-TasNet as asteroid trains it on LibriMix
#                        "dual_path_rnn amcl_paper"     DPRNN of the aMCL paper's Table 6, batches of 22, segments of 5 s
#                        "sudormrf amcl_paper"          SuDoRM-RF with the same settings
#                        "vi_tasnet vi_emd_paper"       VI-TasNet of the VI-EMD thesis; vi_sudormrf: VI-SuDoRM-RF;
#                                                       deterministic_tasnet, deterministic_sudormrf: their baselines
#                        "sepformer sepformer_paper"    SepFormer, batches of 1
# --assignment NAME    of hypotheses to speakers: pit | mcl | relaxed_wta | amcl | sinkhorn, by default what --conf says (pit);
#                      "amcl_linear" among --conf anneals as the aMCL paper does
# --hypotheses N       estimates the model makes, by default as many as speakers
# --task clean|noisy   noisy adds WHAM's noise to the mixtures; the targets are clean speech either way
# --speakers N         2 or 3
# --sample-rate HZ     8000 or 16000
# --mode min|max       cut to the shortest source, or padded to the longest
# --parts "PART ..."   of LibriSpeech: "train-clean-100 train-clean-360 dev-clean test-clean" for the 360 h set
# --cache DIR          where downloads go; all recipes may share it
# --mirror URL         folder that holds the archives, in place of their publishers
# --checksums FILE     of a mirror whose archives are not the published ones, as md5sum writes it
# --librispeech DIR    LibriSpeech, where it is here already: then it is not fetched; so too for
# --wham-noise DIR     the noise of WHAM
# --metadata DIR       the tables libri2mix_train-clean-100.csv ...
# --prepare-options "..."  further options of sepkit prepare librimix, such as "--write"
# --data DIR           where manifests go
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
conf="conv_tasnet paper"
assignment=
hypotheses=
task=clean
speakers=2
sample_rate=8000
mode=min
parts="train-clean-100 dev-clean test-clean"
cache=../downloads
mirror=
checksums=
librispeech=
wham_noise=
metadata=
prepare_options=
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
corpus=libri${speakers}mix_$((sample_rate / 1000))k_$mode
data=${data:-data/$corpus}
exp=${exp:-exp/${corpus}_${task}_$(experiment_name)${assignment:+_$assignment}${hypotheses:+_n$hypotheses}_seed$seed}
hypotheses=${hypotheses:-$speakers}
extra="--model.sample_rate $sample_rate $extra"
test_sets=test$suffix

download() {
  # shellcheck disable=SC2086  # $parts is a list of words
  [ -n "$librispeech" ] || fetch librispeech --parts $parts
  [ -n "$wham_noise" ] || fetch wham-noise
  [ -n "$metadata" ] || fetch librimix-metadata
}

# The tables of --parts alone: the published folder has one of train-clean-360, which need not be here.
choose_tables() {
  local folder part table
  folder=$(resolve "${metadata:-$cache/LibriMix/metadata/Libri${speakers}Mix}")
  rm -rf "$data/tables"
  mkdir -p "$data/tables"
  for part in $parts; do
    table=$folder/libri${speakers}mix_$part
    if [ ! -e "$table.csv" ]; then echo "$0: $table.csv: no such table, but --parts names $part" >&2; exit 2; fi
    ln -s "$table.csv" "$data/tables"
    if [ -e "${table}_info.csv" ]; then ln -s "${table}_info.csv" "$data/tables"; fi
  done
}

prepare() {
  local speech noise
  speech=$(resolve "${librispeech:-$cache/LibriSpeech}")
  noise=$(resolve "${wham_noise:-$cache/wham_noise}")
  choose_tables
  # shellcheck disable=SC2086  # $prepare_options is a list of words
  sepkit prepare librimix --librispeech "$speech" --wham-noise "$noise" --metadata "$data/tables" --speakers "$speakers" \
    --sample-rate "$sample_rate" --mode "$mode" $prepare_options --out "$data"
}

run_stage 0 "download to $cache" download
run_stage 1 "prepare $data" prepare
run_stage 2 "train $exp" train_model
run_stage 3 "separate examples of $test_sets" separate_examples
run_stage 4 "evaluate on $test_sets" evaluate_model
run_stage 5 "write $exp/report.html" write_report
