#!/usr/bin/env bash
# How well do models and matchings separate WSJ0-mix? The settings of the papers. WSJ0 is licensed (LDC93S6A); mixing lists are downloaded.
#
#   ./run.sh --wsj0 DIR [--conf "dual_path_rnn amcl_paper"] [--assignment mcl] [--stage N] [--stop-stage N]
#
# --wsj0 DIR           the folder wsj0 with si_tr_s, si_dt_05 and si_et_05, or the one above it (README.md)
# --conf "NAME ..."    configurations, files or names under conf/, later ones win:
#                        "dual_path_rnn amcl_paper"     DPRNN of the aMCL paper's Table 6, batches of 22, segments of 5 s
#                        "sudormrf amcl_paper"          SuDoRM-RF with the same settings
#                        "conv_tasnet paper"            Conv-TasNet as asteroid trains it
#                        "dual_path_rnn_2 dprnn_paper"  DPRNN of its own paper, with filters of 2 samples
#                        "sepformer sepformer_paper"    SepFormer; sepformer_paper_dynamic after it: new mixtures in every epoch
# --speakers N         speakers in a mixture: 2 to 5
# --lists DIR          mix_2_spk_tr.txt ... and activlev/, if you have them: then they are not downloaded
#
# Stages: 0 download, 1 prepare, 2 train, 3 separate examples, 4 evaluate, 5 report. The same command again continues.
# Size, licenses, limits, pitfalls and citation: README.md.
. "$(dirname "$0")/../utils/options.sh" model published run

wsj0=
stage=0
conf="dual_path_rnn amcl_paper"
speakers=2
lists=
data=
. ../utils/recipe.sh

# As benchmarks do; by default mixtures above 30 s are separated in chunks.
evaluate_options="--whole-seconds inf $evaluate_options"

if [ -n "$checksums" ]; then checksums=$(resolve "$checksums"); fi
corpus=wsj0-${speakers}mix_$((sample_rate / 1000))k_$mode
data=${data:-data/$corpus}
name_experiment "${corpus}_"
hypotheses=${hypotheses:-$speakers}
extra="--model.sample_rate $sample_rate $extra"
test_sets=test

# WSJ0 cannot be downloaded: without it the recipe stops here and says what to get.
need_wsj0() {
  if [ -n "$wsj0" ]; then resolve "$wsj0" >/dev/null; return; fi
  stop "--wsj0: nothing given. WSJ0 is licensed: get LDC93S6A (CSR-I WSJ0 Complete) from catalog.ldc.upenn.edu and give the" \
    "folder that holds si_tr_s, si_dt_05 and si_et_05, with the recordings of wv1 as wav, flac or sphere"
}

download() {
  [ -n "$lists" ] || fetch wsj0-mix-lists
  need_wsj0
}

prepare() {
  local speech tables
  need_wsj0
  speech=$(resolve "$wsj0")
  tables=$(resolve "${lists:-$cache/pywsj0-mix/metadata}")
  # shellcheck disable=SC2086  # $prepare_options is a list of words
  sepkit prepare wsj0-mix --wsj0 "$speech" --lists "$tables" --speakers "$speakers" --sample-rate "$sample_rate" \
    --mode "$mode" $prepare_options --out "$data"
}

run_stages
