#!/usr/bin/env bash
# Can scores count one to five speakers in noise? Six scored hypotheses against models that are told the number of speakers.
#
#   ./run.sh --speech DIR --noise DIR [--methods "mcl told3"] [--seeds "0"]
#
# --noise DIR          recordings of noise, divided like the speech
# --groups "A=RE B=RE" one test set for each: it mixes only speakers whose identifier matches the pattern
# --methods "..."      among mcl, amcl (annealed from 5 dB) and pit, with a score for each hypothesis; mcl_shares (scores are
#                      shares of the sources); told1 ... told5: as many hypotheses as speakers, PIT, only such mixtures
# --seeds "..."        seeds of every method
# --runs DIR           a JSON for each finished run, which is not trained again; default: EXP/runs. Those of RESULTS.md: runs
# --conf FILE          configuration of sepkit train
# --init-from MODEL    weights to start from
#
# The same command again continues. Time: 360 steps of 8 mixtures of 3 s a run, 4 minutes of one core. Finally, it prints the
# shares counted correctly, and SI-SDRi in dB; sources without an estimate and estimates without a source count as 0 dB.
. "$(dirname "$0")/../utils/options.sh" speech run

noise=
groups='librispeech=\d{1,4} speechocean762=9\d{4}'
methods="mcl amcl mcl_shares pit told1 told2 told3 told4 told5"
seeds="0"
runs=
conf=conf/cpu.yaml
init_from=boxed_8k
exp=exp
prepare_options="--speakers 1 2 3 4 5 --dev-mixtures 100 --test-mixtures 200"
. ../utils/recipe.sh

root=$exp all=$data more=$extra
conf=$(resolve "$conf")
runs=${runs:-$root/runs}
[ -n "$noise" ] || stop "--noise: nothing given, expected a folder of recordings"
for method in $methods; do
  case $method in mcl | amcl | mcl_shares | pit | told[1-5]) ;; *) stop "--methods $method: expected mcl, amcl, mcl_shares, pit or told1 to told5" ;; esac
done
test_sets=
for group in $groups; do test_sets="$test_sets test_${group%%=*}"; done

prepare() {
  local folder
  folder=$(resolve "$noise")
  # shellcheck disable=SC2086  # "A=RE B=RE" is a list of words
  prepare_folder --noise "$folder" --groups $groups
  python3 local/count.py divide "$all"
}

train_and_count() {
  mkdir -p "$runs"
  for seed in $seeds; do
    for method in $methods; do
      record=$runs/count_${method}_seed$seed.json
      if [ -e "$record" ]; then echo "$record is there, not trained again"; continue; fi
      exp=$root/${method}_seed$seed data=$all configs=("$conf") evaluate_options="--metrics si_sdr --count-speakers"
      case $method in
        told*)
          data=$all/${method#told} configs+=(conf/told.yaml) evaluate_options="--metrics si_sdr"
          extra="--model.hypotheses ${method#told} --objective.assignment.name pit" ;;
        amcl) configs+=(conf/annealed.yaml) extra= ;;
        mcl_shares) extra="--model.scoring.loss cross_entropy" ;;
        *) extra="--objective.assignment.name $method" ;;
      esac
      extra="--init-from $init_from $extra $more"
      train_model
      evaluate_model
      python3 local/count.py record "$exp" --out "$record"
    done
  done
  python3 local/count.py table "$runs"
}

run_stage 1 "prepare $all" prepare
run_stage 2 "train, evaluate and count below $root" train_and_count
