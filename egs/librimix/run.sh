#!/usr/bin/env bash
# How well do models trained on LibriMix separate? Mixtures of LibriSpeech readers, with or without WHAM's noise. Everything can be downloaded.
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
# --task clean|noisy   noisy adds WHAM's noise to the mixtures; the targets are clean speech either way
# --speakers N         speakers in a mixture: 2 or 3
# --parts "PART ..."   parts of LibriSpeech; "train-clean-100 train-clean-360 dev-clean test-clean" for the 360 h set
# --librispeech DIR    LibriSpeech, if you have it: then it is not downloaded
# --wham-noise DIR     the noise of WHAM, if you have it
# --metadata DIR       the tables libri2mix_train-clean-100.csv ..., if you have them
#
# Stages: 0 download, 1 prepare, 2 train, 3 separate examples, 4 evaluate, 5 report. The same command again continues.
# Size, licenses, limits, pitfalls and citation: README.md.
. "$(dirname "$0")/../utils/options.sh" model published run

stage=0
conf="conv_tasnet paper"
task=clean
speakers=2
parts="train-clean-100 dev-clean test-clean"
librispeech=
wham_noise=
metadata=
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
corpus=libri${speakers}mix_$((sample_rate / 1000))k_$mode
data=${data:-data/$corpus}
name_experiment "${corpus}_${task}_"
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
    [ -e "$table.csv" ] || stop "$table.csv: no such table, but --parts names $part"
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

run_stages
