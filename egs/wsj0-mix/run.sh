#!/usr/bin/env bash
# WSJ0-mix: the benchmark of the field, with the settings of the papers. WSJ0 is licensed (LDC93S6A); the mixing lists are fetched.
#
#   ./run.sh --wsj0 DIR [--conf "dual_path_rnn amcl_paper"] [--assignment mcl] [--stage N] [--stop-stage N]
#
# --wsj0 DIR           the folder wsj0 with si_tr_s, si_dt_05 and si_et_05, or the one above it (README.md)
# --conf "NAME ..."    configurations, files or names under conf/, later ones win:
#                        "dual_path_rnn amcl_paper"     DPRNN of the aMCL paper's Table 6, batches of 22, segments of 5 s
#                        "sudormrf amcl_paper"          SuDoRM-RF with the same settings
#                        "conv_tasnet paper"            Conv-TasNet as asteroid trains it
#                        "sepformer sepformer_paper dynamic_mixing"  SepFormer, batches of 1, new mixtures in every epoch
# --assignment NAME    of hypotheses to speakers: pit | mcl | relaxed_wta | amcl | sinkhorn, by default what --conf says (pit);
#                      "amcl_linear" among --conf anneals as the aMCL paper does
# --hypotheses N       estimates the model makes, by default as many as speakers
# --speakers N         2 to 5
# --sample-rate HZ     8000 or 16000
# --mode min|max       cut to the shortest source, or padded to the longest
# --cache DIR          where downloads go; all recipes may share it
# --mirror URL         folder that holds the archives, in place of their publishers
# --checksums FILE     of a mirror whose archives are not the published ones, as md5sum writes it
# --lists DIR          mix_2_spk_tr.txt ... and activlev/, where they are here already: then they are not fetched
# --prepare-options "..."  further options of sepkit prepare wsj0-mix, such as "--write"
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
wsj0=
conf="dual_path_rnn amcl_paper"
assignment=
hypotheses=
speakers=2
sample_rate=8000
mode=min
cache=../downloads
mirror=
checksums=
lists=
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

if [ -n "$checksums" ]; then checksums=$(resolve "$checksums"); fi
set_configs "$conf"
corpus=wsj0-${speakers}mix_$((sample_rate / 1000))k_$mode
data=${data:-data/$corpus}
exp=${exp:-exp/${corpus}_$(experiment_name)${assignment:+_$assignment}${hypotheses:+_n$hypotheses}_seed$seed}
hypotheses=${hypotheses:-$speakers}
extra="--model.sample_rate $sample_rate $extra"
test_sets=test

# WSJ0 cannot be fetched: without it the recipe ends here, with what to put where.
need_wsj0() {
  if [ -n "$wsj0" ]; then resolve "$wsj0" >/dev/null; return; fi
  echo "$0: --wsj0: nothing given. WSJ0 is licensed: get LDC93S6A (CSR-I WSJ0 Complete) from catalog.ldc.upenn.edu and give the" \
    "folder that holds si_tr_s, si_dt_05 and si_et_05, with the recordings of wv1 as wav, flac or sphere" >&2
  exit 2
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

run_stage 0 "download to $cache" download
run_stage 1 "prepare $data" prepare
run_stage 2 "train $exp" train_model
run_stage 3 "separate examples of $test_sets" separate_examples
run_stage 4 "evaluate on $test_sets" evaluate_model
run_stage 5 "write $exp/report.html" write_report
