#!/usr/bin/env bash
# Does annealed matching help beyond three speakers? PIT, MCL, relaxed WTA, annealed MCL, Sinkhorn and growth with two to five speakers,
# from random weights, and with three speakers also more hypotheses than speakers (Figure 7 of the aMCL paper).
#
#   ./more.sh --speech DIR [--counts "4"] [--methods "pit mcl amcl"]
#
# --counts "..."       numbers of speakers
# --methods "..."      among pit mcl relaxed_wta amcl amcl_exponential (from 5 dB) sinkhorn grown
# --seeds "..."        seeds of every experiment; all experiments of one seed are trained before the next seed
# --hypotheses "..."   numbers of hypotheses for three speakers, for MCL and aMCL; "" leaves them out
# --runs DIR           a JSON for each finished run, which is not trained again; default: EXP/runs. Those of RESULTS.md: runs
# --conf "FILE ..."    configurations of sepkit train, later ones win
#
# The same command again continues. Two commands with different --seeds may run beside each other. Time: 1,000 steps of
# 8 mixtures of 3 s a run, 4 minutes of one idle core in bf16; 140 runs with the defaults. Finally, it writes RUNS.md
# beside --runs, with the runs that have finished. Results: RESULTS.md.
. "$(dirname "$0")/../utils/options.sh" speech run

counts="2 3 4 5"
methods="mcl amcl pit relaxed_wta sinkhorn grown"
seeds="0 1 2 3 4"
hypotheses="5 10"
runs=
conf="conf/masker.yaml conf/from_scratch.yaml"
exp=exp/more
prepare_options="--dev-mixtures 100 --test-mixtures 300"
. ../utils/recipe.sh

runs=${runs:-$exp/runs}
[ -n "$speech" ] || stop "--speech: nothing given, expected a folder of recordings"
speech=$(resolve "$speech")
for method in $methods; do
  [ -e "conf/$method.yaml" ] || stop "--methods $method: expected pit, mcl, relaxed_wta, amcl, amcl_exponential, sinkhorn or grown"
done
configs=
for name in $conf; do configs="$configs --config $(resolve "$name")"; done
mkdir -p "$runs"

# one SPEAKERS HYPOTHESES METHOD SEED
one() {
  local speakers=$1 count=$2 method=$3 seed=$4 start=$2 growth=""
  local record=$runs/m$1_n$2_$3_seed$4.json manifests=$data/$1speakers folder=$exp/m$1_n$2
  if [ -e "$record" ]; then echo "$record is there, not trained again"; return; fi
  if [ "$method" = grown ]; then
    # The last two hypotheses (of two: the last) come by splits, a third and 60 % into the training, as in conf/grown.yaml.
    start=$((count > 2 ? count - 2 : 1))
    growth="--trainer.monitor mcl"
    [ "$count" -gt 2 ] || growth="$growth --trainer.growth.epochs [60]"
  fi
  # shellcheck disable=SC2086  # $prepare_options is a list of words
  [ -e "$manifests/test.jsonl" ] || sepkit prepare folder --speech "$speech" --speaker-from "$speaker_from" --speakers "$speakers" \
    $prepare_options --out "$manifests"
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
