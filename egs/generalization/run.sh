#!/usr/bin/env bash
# Do variational encoder-masker-decoders generalize better? Train deterministic and variational models on noisy mixtures of
# one corpus; test them, noisy and clean, on unseen speakers of that corpus and on another corpus (thesis, tables 1 and 4).
# Or train and test clean: priors and likelihoods side by side (table 3, figure 3), or weights of the rates (table 2, figure 2).
#
#   ./run.sh --speech DIR --noise DIR [--conf conf/cpu.yaml] [--stage N] [--stop-stage N]
#   ./run.sh --librimix DIR --vctk DIR --conf conf/gpu.yaml [--stage N] [--stop-stage N]
#   ./run.sh --task clean --speech DIR --conf conf/small_table2.yaml [--stage N] [--stop-stage N]
#
# --noise DIR          recordings of noise, divided like the speech
# --groups "A=RE B=RE" corpora by speaker identifier: training and dev use only the first, the others are unseen
# --task noisy|clean   mixtures of training; with clean, tests have no noise either, and --noise is not needed
# --librimix DIR       in place of --speech: manifests that egs/librimix prepared (data/libri2mix_8k_min); needs --vctk
# --vctk DIR           manifests that egs/vctk prepared (data/vctk2mix_8k_min); needs --librimix
# --conf FILE          settings that all methods share:
#                        conf/cpu.yaml     both, about 8 minutes per run on one core
#                        conf/gpu.yaml     tables 1 and 4 as in the thesis
#                        conf/table3.yaml  table 3 as in the thesis
#                        conf/table2.yaml  table 2 as in the thesis; conf/small_table2.yaml: 3 minutes per run on one
#                                          core from a model that separates (--extra "--init-from MODEL")
# --methods "..."      a method has its own file beside --conf (conf/cpu_variational.yaml) or is a name under conf/vi_emd;
#                      default: all of
#                        conf/cpu.yaml     deterministic deterministic_blr variational
#                        conf/gpu.yaml     deterministic_tasnet vi_tasnet deterministic_sudormrf vi_sudormrf
#                        conf/table3.yaml  tasnet tasnet_blr gaussian gamma flow adaptive cauchy
#                        conf/table2.yaml  free0_beta1 ... free128_beta128_8: freeN_betaZ_M has N free nats per frame in the
#                                          encodings and in each mask, and weighs the rates by 1/Z and 1/M
# --seeds "0 1 2"      seeds of the data order and the weights
# --jobs N             trainings and evaluations in parallel; if more than 1, give each one core (OMP_NUM_THREADS=1)
# --calibrate-options "..."  further options of sepkit calibrate
# --evaluate-options "..."  further options of sepkit evaluate, such as "--device cuda"
#
# Stages: 1 prepare, 2 train all, 3 fit the predictors of their SI-SDR on dev, 4 evaluate all, 5 tables of scores and of the
# drops from the first corpus to the others, for table 3 also EXP/evidence.md (figure 3), for table 2 also
# EXP/rate_distortion.md (figure 2, bottom), for conf/cpu.yaml EXP/latents.md (figures 4 and 5), 6 report.
# The same command again continues. The output of each run is in EXP/METHOD_seedN.log.
# Time: the configurations fix the number of steps, so that results do not depend on the machine. With conf/cpu.yaml, 9
# runs of 4000 steps take about 40 minutes on two idle cores with --jobs 2, and then the evaluation. The thesis's 200 epochs of
# LibriMix take days per run; --extra "--trainer.max_minutes 10" stops them early.
# Limits: with less than an hour of training speech, overfitting matters more than in the thesis (100 hours).
# Citation: R. M. Th. Høegh, "On learning useful variational autoencoder representations: applications in audio modelling and
# hearing loss treatment", PhD thesis, Technical University of Denmark, 2022, appendix B.
. "$(dirname "$0")/../utils/options.sh" speech run

stop_stage=6
noise=
task=noisy
groups='librispeech=\d{1,4} speechocean762=9\d{4}'
librimix=
vctk=
prepare_options="--dev-mixtures 100 --test-mixtures 300"
conf=conf/cpu.yaml
methods=
seeds="0 1 2"
jobs=2
calibrate_options=
evaluate_options=
. ../utils/recipe.sh

# As benchmarks do; by default mixtures above 30 s are separated in chunks.
[ -z "$librimix" ] || evaluate_options="--whole-seconds inf $evaluate_options"
conf=$(resolve "$conf")
setting=$(basename "$conf" .yaml)
case $task in noisy) ;; clean) if [ "$data" = data ]; then data=data/clean; fi ;; *) stop "--task $task: expected noisy or clean" ;; esac
exp=${exp:-exp/$setting${librimix:+_librimix}}
first_seed=${seeds%% *}

# own_file METHOD: its configuration.
own_file() {
  local file
  file=${conf%.yaml}_$1.yaml
  if [ -e "$file" ]; then echo "$file"; elif [ -e "../../conf/vi_emd/$1.yaml" ]; then echo "vi_emd/$1"; fi
}

methods_of_setting() {
  local file
  case $setting in
    gpu) echo deterministic_tasnet vi_tasnet deterministic_sudormrf vi_sudormrf ;;
    table3) echo tasnet tasnet_blr gaussian gamma flow adaptive cauchy ;;
    table2) echo free0_beta1 free8_beta1 free64_beta1 free128_beta{1,8,64,128,8_128,128_8} ;;
    small_table2) echo free0_beta{1,10,100,1000,10000} ;;
    *) for file in "${conf%.yaml}"_*.yaml; do file=$(basename "$file" .yaml); echo "${file#"${setting}_"}"; done ;;
  esac
}

methods=${methods:-$(methods_of_setting | xargs)}
weighted='^free([0-9]+)_beta([0-9]+)(_([0-9]+))?$'
for method in $methods; do
  [[ $setting == *table2 && $method =~ $weighted ]] || [ -n "$(own_file "$method")" ] ||
    stop "--methods $method: ${conf%.yaml}_$method.yaml: no such file"
done

# Test sets: unseen speakers of the corpus trained on first, each corpus noisy and clean.
if [ -n "$librimix$vctk" ]; then
  [ -n "$librimix" ] && [ -n "$vctk" ] || stop "--librimix and --vctk: expected both or none"
  [ -z "$speech" ] || stop "--speech and --librimix: expected one of them"
  librimix=$(resolve "$librimix")
  vctk=$(resolve "$vctk")
  corpora="libri2mix vctk2mix"
else
  corpora=
  for group in $groups; do corpora="$corpora ${group%%=*}"; done
fi
test_sets=
drops=
read -r seen _ <<<"$corpora"
for corpus in $corpora; do
  for kind in noisy clean; do
    if [ "$task" = clean ] && [ "$kind" = noisy ]; then continue; fi
    test_sets="$test_sets test_${corpus}_$kind"
    [ "$corpus" = "$seen" ] || drops="$drops test_${seen}_$kind=test_${corpus}_$kind"
  done
done

# manifest NAME: train, dev, or a test set.
manifest() {
  local folder=$librimix
  # Prepared without noise, a test set has only one kind.
  if [ -z "$librimix" ] && [ "$task" = clean ]; then echo "$data/${1%_clean}.jsonl"; return; fi
  if [ -z "$librimix" ]; then echo "$data/$1.jsonl"; return; fi
  case $1 in test_vctk2mix_*) folder=$vctk ;; esac
  case $1 in
    *_clean) echo "$folder/test.jsonl" ;;
    *_noisy) echo "$folder/test_noisy.jsonl" ;;
    *) if [ "$task" = clean ]; then echo "$folder/$1.jsonl"; else echo "$folder/$1_noisy.jsonl"; fi ;;
  esac
}

prepare() {
  local name
  if [ -z "$librimix" ]; then
    [ -n "$speech" ] || stop "--speech: nothing given, expected a folder of recordings (or --librimix and --vctk)"
    local with_noise=()
    if [ "$task" = noisy ]; then
      [ -n "$noise" ] || stop "--noise: nothing given, expected a folder of noise: training is noisy (or --task clean)"
      # Not within the command: there a path that is absent would not end the recipe.
      noise=$(resolve "$noise")
      with_noise=(--noise "$noise" --noisy-and-clean)
    fi
    # shellcheck disable=SC2086  # "A=RE B=RE" is a list of words
    prepare_folder "${with_noise[@]}" --groups $groups --train-group "${groups%%=*}"
    return
  fi
  for name in train dev $test_sets; do
    [ -e "$(manifest "$name")" ] || stop "$(manifest "$name"): no such manifest; stage 1 of egs/librimix and egs/vctk writes it"
  done
}

# configurations METHOD: what is like the thesis, what all share, its own.
configurations() {
  case $setting in gpu | table2 | table3) echo vi_emd_paper ;; esac
  echo "$conf"
  own_file "$1"
}

# rate_options METHOD: of freeN_betaZ_M.
rate_options() {
  if [[ $setting == *table2 && $1 =~ $weighted ]]; then
    local free=${BASH_REMATCH[1]} encoding=${BASH_REMATCH[2]} masks=${BASH_REMATCH[4]:-${BASH_REMATCH[2]}} rates=--objective.rates
    echo "$rates.encoding.free_nats_over frame $rates.encoding.free_nats $free $rates.encoding.weight.value $(reciprocal "$encoding")"
    echo "$rates.masks.free_nats_over frame $rates.masks.free_nats $((2 * free)) $rates.masks.weight.value $(reciprocal "$masks")"
  fi
}

reciprocal() { awk -v number="$1" 'BEGIN { printf "%.10g", 1 / number }'; }

# Every run as a line: name, method, seed.
list_runs() {
  local seed method
  for seed in $seeds; do
    for method in $methods; do echo "${method}_seed$seed $method $seed"; done
  done
}

# logged NAME COMMAND...: quiet, with what the command says in the run's log; the end of it is shown if it fails.
logged() {
  local log=$exp/$1.log
  shift
  "$@" >>"$log" 2>&1 || { tail -3 "$log" >&2; echo "$0: failed, see $log" >&2; return 1; }
}

# for_all FUNCTION: with every line of list_runs, $jobs in parallel; prints the folders of the runs that are done.
for_all() {
  mkdir -p "$exp"
  list_runs | xargs -P "$jobs" -L 1 bash -c '"$@" && echo "$exp/$2"' "$0" "$1"
}

train_one() {
  local name options=()
  for name in $(configurations "$2"); do options+=(--config "$name"); done
  # shellcheck disable=SC2046,SC2086  # $extra, $train_cmd and options of rates are lists of words
  logged "$1" $train_cmd sepkit train "${options[@]}" $(rate_options "$2") --seed "$3" --data.train "$(manifest train)" \
    --data.dev "$(manifest dev)" $extra --out "$exp/$1"
}

calibrate_one() {
  local model=$exp/$1/model
  # A predictor is fitted once; a model that has trained on since needs another.
  if [ "$model/quality.yaml" -nt "$model/model.safetensors" ]; then return; fi
  # shellcheck disable=SC2086
  logged "$1" $decode_cmd sepkit calibrate "$model" --manifest "$(manifest dev)" $calibrate_options
}

evaluate_one() {
  local name
  for name in $test_sets; do
    # shellcheck disable=SC2086
    logged "$1" $decode_cmd sepkit evaluate --model "$exp/$1/model" --manifest "$(manifest "$name")" \
      --metrics si_sdr blr --calibration --processes 0 $evaluate_options --out "$exp/$1/evaluation/$name" || return 1
  done
}

export -f manifest own_file configurations rate_options reciprocal logged train_one calibrate_one evaluate_one
export conf setting task weighted data exp librimix vctk test_sets extra calibrate_options evaluate_options train_cmd decode_cmd

train_all() { for_all train_one; }
calibrate_all() { for_all calibrate_one; }
evaluate_all() { for_all evaluate_one; }

summarize_all() {
  local python
  # The Python beside sepkit, which has it.
  python=$(dirname "$(command -v sepkit)")/python
  [ -x "$python" ] || python=python3
  # shellcheck disable=SC2046,SC2086  # names of runs hold no blanks, $drops is a list of words
  sepkit summarize $(run_folders) --metric si_sdri_db si_sdr_db blr_nats_per_sample \
    ${drops:+--reference-set $drops} --out "$exp/table.md"
  # shellcheck disable=SC2046
  case $setting in
    table3) "$python" local/latents.py evidence "$exp/evidence.md" $(run_folders) ;;
    *table2) sepkit summarize $(run_folders) --figure rate-distortion --out "$exp/rate_distortion.md" ;;
    *) if [[ " $methods " == *" variational "* ]]; then
        "$python" local/latents.py encodings "$exp/latents.md" "$exp/variational_seed$first_seed"
      fi ;;
  esac
}

write_comparison() {
  # shellcheck disable=SC2046,SC2086
  sepkit report $(for method in $methods; do echo "$exp/${method}_seed$first_seed"; done) --out "$exp/report.html"
}

run_stage 1 "prepare $data" prepare
run_stage 2 "train $(list_runs | wc -l) models below $exp, $jobs at once" train_all
run_stage 3 "fit the predictors of their SI-SDR" calibrate_all
run_stage 4 "evaluate them on$test_sets" evaluate_all
run_stage 5 "write $exp/table.md" summarize_all
run_stage 6 "write $exp/report.html" write_comparison
