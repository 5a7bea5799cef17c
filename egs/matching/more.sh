#!/usr/bin/env bash
# Does annealed matching help beyond three speakers? PIT, MCL, relaxed WTA, annealed MCL, Sinkhorn and growth with two to five speakers,
# from random weights, and with three speakers also more hypotheses than speakers (Figure 7 of the aMCL paper).
#
#   egs/matching/more.sh --speech DIR [--counts "4"] [--methods "pit mcl amcl"]
#
# --speech DIR         recordings, as in run.sh
# --counts "..."       numbers of speakers
# --methods "..."      among pit mcl relaxed_wta amcl amcl_exponential (from 5 dB) sinkhorn grown
# --seeds "..."        seeds of every experiment; those of one seed are trained together, so that pairs complete first
# --hypotheses "..."   numbers of hypotheses for three speakers, for MCL and aMCL; "" leaves them out
# --runs DIR           a JSON for each finished run; runs that have one are not trained again
# --conf "FILE ..."    configurations of sepkit train, later ones win
# --data DIR           folder of the manifests, a folder for each number of speakers
# --exp DIR            folder of the runs
# --extra "..."        further options of sepkit train
# --prepare-options "..."  further options of sepkit prepare folder
#
# The same command again continues: finished runs stand in --runs, an unfinished one resumes. Two commands with different --seeds
# may run beside each other. Time: 1,000 steps of 8 mixtures of 3 s a run, 4 minutes of one quiet core in bf16; 140 runs
# with the defaults. At last it writes RUNS.md beside --runs, with what has finished. Results: RESULTS.md.
set -euo pipefail
caller=$PWD
cd "$(dirname "$0")"
speech=
counts="2 3 4 5"
methods="mcl amcl pit relaxed_wta sinkhorn grown"
seeds="0 1 2 3 4"
hypotheses="5 10"
runs=runs
conf="conf/masker.yaml conf/from_scratch.yaml"
data=data
exp=exp/more
extra=
prepare_options="--dev-mixtures 100 --test-mixtures 300"
option_files=("more.sh")
. ../utils/parse_options.sh
. ../utils/path.sh
from_caller() { case $1 in /*) echo "$1" ;; *) echo "$caller/$1" ;; esac }
[ -n "$speech" ] || { echo "$0: --speech: nothing given, expected a folder of recordings" >&2; exit 2; }
speech=$(from_caller "$speech")
mkdir -p "$runs"

# one SPEAKERS HYPOTHESES METHOD SEED
one() {
  local speakers=$1 count=$2 method=$3 seed=$4 start=$2 growth="" configs="" name
  local record=$runs/m$1_n$2_$3_seed$4.json manifests=$data/$1speakers folder=$exp/m$1_n$2
  [ ! -e "$record" ] || return 0
  if [ "$method" = grown ]; then
    # The last two hypotheses (of two: the last) come by splits, a third and 60 % into the training, as in conf/grown.yaml.
    start=$((count > 2 ? count - 2 : 1))
    growth="--trainer.monitor mcl"
    [ "$count" -gt 2 ] || growth="$growth --trainer.growth.epochs [60]"
  fi
  for name in $conf; do configs="$configs --config $(realpath "$name")"; done
  [ -e "$manifests/test.jsonl" ] || sepkit prepare folder --speech "$speech" --speakers "$speakers" $prepare_options --out "$manifests"
  ./run.sh --conf "${conf%% *}" --speech "$speech" --speakers "$speakers" --methods "$method" --seeds "$seed" --temperatures "" \
    --hypotheses "" --jobs 1 --data "$manifests" --exp "$folder" --stage 2 --stop-stage 3 \
    --extra "$configs --config $PWD/conf/$method.yaml --model.hypotheses $start $growth $extra"
  python3 local/more.py record "$folder/${method}_seed$seed" --manifest "$manifests/test.jsonl" --out "$record"
}

for seed in $seeds; do
  for speakers in $counts; do
    for method in $methods; do one "$speakers" "$speakers" "$method" "$seed"; done
    [ "$speakers" = 3 ] || continue
    for count in $hypotheses; do
      for method in mcl amcl; do one 3 "$count" "$method" "$seed"; done
    done
  done
done
python3 local/more.py table "$runs" --out "$runs/RUNS.md"
