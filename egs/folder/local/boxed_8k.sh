#!/usr/bin/env bash
# How boxed_8k and boxed_8k_causal were made: runs of `sepkit train`, each from the weights of one before.
#
#   local/boxed_8k.sh RECORDINGS OUT [OPTION ...]
#
# RECORDINGS  folder that holds speech_mini and noise_mini (docs/reproduce.md makes them), speech_more, speech_voices and
#             speech_synthesized (the card of boxed_8k names their sources), each with wav8k/train/SPEAKER/...
# OUT         folder for manifests and runs
# OPTION      of `sepkit train`, for every run: --trainer.max_minutes 0.1 tries them all
#
# Minutes are those of one core of an AMD EPYC (bfloat16), for channels_5 to channels_7 of an Intel Xeon with AMX, and for the
# first two causal runs of two of an Intel Xeon. What shipped after each part of the work was kept in half precision, and the
# next part began from that.
# The same command again continues.
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,/^set/p' "$0" | grep '^#' >&2; exit 2; }
conf=$(cd "$(dirname "$0")/../conf" && pwd)
. "$(dirname "$0")/../../utils/path.sh"
recordings=$(realpath "$1") out=$(realpath -m "$2")
shift 2
for corpus in speech_mini noise_mini speech_more speech_voices speech_synthesized; do
  [ -d "$recordings/$corpus/wav8k" ] || { echo "$recordings/$corpus/wav8k: no such folder; see RECORDINGS in $0" >&2; exit 2; }
done
groups=('librispeech=\d{1,4}' 'speechocean762=9\d{4}')
mkdir -p "$out"

# manifests NAME CORPUS...: of the training speakers of all, and of dev and test speakers of speech_mini
manifests() {
  if [ -f "$out/$1/train.jsonl" ]; then return; fi
  mkdir -p "$out/speech_$1"
  for corpus in "${@:2}"; do cp -r "$recordings/$corpus/wav8k/." "$out/speech_$1"; done
  sepkit prepare folder --speech "$out/speech_$1" --groups "${groups[@]}" --out "$out/$1"
}
manifests mini speech_mini
manifests more speech_mini speech_more
manifests all speech_mini speech_more speech_voices
manifests synthesized speech_mini speech_more speech_voices speech_synthesized

# run NAME FROM MANIFESTS SEED OPTION...
run() {
  local name=$1 from=$2 train=$3 seed=$4
  shift 4
  sepkit train ${from:+--init-from "$out/$from/last_model"} --data.train "$out/$train/train.jsonl" --data.dev "$out/mini/dev.jsonl" \
    --seed "$seed" --out "$out/$name" "$@" "${options[@]}"
}
options=("$@")
default=(--config "$conf/default.yaml")
clean=(--config "$conf/clean.yaml")
noise=(--data.dynamic_mixing.noise "$recordings/noise_mini/wav8k/train")
# Clean pairs first, then noise, single speakers and silence.
whole=("${clean[@]}" --config "$conf/whole.yaml" "${noise[@]}")
often_one=(--data.dynamic_mixing.one_speaker_share 0.2)
eight=(--model.masker.num_layers 8)
causal=(--config "$conf/causal.yaml")
# Telephones, rooms, noise and codecs at last.
channels=("${clean[@]}" --config "$conf/channels.yaml" "${noise[@]}")
cleaner=(--data.dynamic_mixing.channel_probability 0.45 --data.dynamic_mixing.noise_probability 0.4)

run default_0 '' more 0 "${default[@]}" "${noise[@]}"
run default_second_3 default_0 more 3 "${default[@]}" --config "$conf/default_second.yaml" "${noise[@]}"
run clean_0 default_second_3 all 0 "${clean[@]}"
run whole_1 clean_0 all 1 "${whole[@]}"
run clean_2 whole_1 all 2 "${clean[@]}" "${eight[@]}" --trainer.max_minutes 85
run whole_3 clean_2 all 3 "${whole[@]}" "${eight[@]}" --trainer.max_minutes 18
run whole_4 whole_3 all 4 "${whole[@]}" "${eight[@]}" "${often_one[@]}" --trainer.max_minutes 11
run clean_5 whole_4 synthesized 5 "${clean[@]}" "${eight[@]}" --trainer.max_minutes 50
run whole_6 clean_5 synthesized 6 "${whole[@]}" "${eight[@]}" "${often_one[@]}" --trainer.max_minutes 14
run channels_0 whole_6 all 0 "${channels[@]}" "${eight[@]}" --trainer.max_minutes 34 --trainer.decay_share 0.15
run channels_1 channels_0 synthesized 1 "${channels[@]}" "${eight[@]}" "${cleaner[@]}" --trainer.max_minutes 48 --trainer.decay_share 0.6

# average NAME BEFORE RUN SHARE: a share of the weights from before keeps what was learned then.
average() {
  mkdir -p "$out/$1"
  cp "$out/$3/config.yaml" "$out/$1"
  ln -sfn model "$out/$1/last_model"
  (cd "$repository" && python - "$out/$2/last_model" "$out/$3/last_model" "$out/$1/model" "$4") <<'END'
import sys

from sepkit.models import load_pretrained, save_model

before, model = (load_pretrained(folder) for folder in sys.argv[1:3])
weights, share = dict(before.named_parameters()), float(sys.argv[4])
for name, parameter in model.named_parameters():
    parameter.data = share * weights[name].data + (1 - share) * parameter.data
save_model(model, sys.argv[3], dict(model.info))
END
}
average averaged whole_6 channels_1 0.15

# From what shipped then: a constant rate first, then long segments, in which speakers take turns more often.
wider=(--data.dynamic_mixing.channel_probability 0.5 --data.dynamic_mixing.noise_probability 0.35)
run channels_2 averaged all 7 "${channels[@]}" "${eight[@]}" "${wider[@]}" --data.dynamic_mixing.turns_probability 0.12 \
  --trainer.max_epochs 20 --trainer.decay_share 0
run channels_3 channels_2 all 8 "${channels[@]}" "${eight[@]}" "${wider[@]}" --data.dynamic_mixing.turns_probability 0.3 \
  --data.segment_seconds 6 --data.batch_size 4 --trainer.max_minutes 57 --trainer.decay_share 0.8 --trainer.learning_rate 0.0008
average averaged_2 averaged channels_3 0.2
# Longer, with more telephones and rooms.
run channels_4 averaged_2 all 9 "${channels[@]}" "${eight[@]}" --data.dynamic_mixing.channel_probability 0.6 \
  --data.dynamic_mixing.noise_probability 0.35 --data.dynamic_mixing.reverberation_probability 0.35 \
  --data.dynamic_mixing.turns_probability 0.25 --data.segment_seconds 6 --data.batch_size 4 --trainer.max_minutes 94 \
  --trainer.decay_share 0.8
average averaged_3 averaged_2 channels_4 0.2
# Longer again, with a cost that is limited to 20 dB.
run channels_5 averaged_3 all 10 "${channels[@]}" "${eight[@]}" --data.dynamic_mixing.channel_probability 0.6 \
  --data.dynamic_mixing.noise_probability 0.35 --data.dynamic_mixing.reverberation_probability 0.35 \
  --data.dynamic_mixing.turns_probability 0.25 --data.segment_seconds 6 --data.batch_size 4 --trainer.max_minutes 104 \
  --trainer.decay_share 0.8 --objective.cost.max_db 20
average averaged_4 averaged_3 channels_5 0.3
# Once more, with more telephones and rooms and less noise.
run channels_6 averaged_4 all 11 "${channels[@]}" "${eight[@]}" --data.dynamic_mixing.channel_probability 0.65 \
  --data.dynamic_mixing.noise_probability 0.3 --data.dynamic_mixing.reverberation_probability 0.42 \
  --data.dynamic_mixing.turns_probability 0.2 --data.segment_seconds 6 --data.batch_size 4 --trainer.max_minutes 84 \
  --trainer.decay_share 0.8 --objective.cost.max_db 20
average averaged_5 averaged_4 channels_6 0.3
# Again, with talkers nearer to the microphone (`RoomBank`), and a little more turn-taking.
run channels_7 averaged_5 all 12 "${channels[@]}" "${eight[@]}" --data.dynamic_mixing.channel_probability 0.65 \
  --data.dynamic_mixing.noise_probability 0.3 --data.dynamic_mixing.reverberation_probability 0.45 \
  --data.dynamic_mixing.turns_probability 0.22 --data.segment_seconds 6 --data.batch_size 4 --trainer.max_minutes 75 \
  --trainer.decay_share 0.8 --objective.cost.max_db 20
average averaged_6 averaged_5 channels_7 0.5

export OMP_NUM_THREADS=2
run causal_0 whole_6 all 0 "${clean[@]}" "${causal[@]}" --trainer.max_minutes 68
run causal_whole_1 causal_0 all 1 "${whole[@]}" "${causal[@]}" "${often_one[@]}" --trainer.max_minutes 18
export OMP_NUM_THREADS=1
run causal_channels_0 causal_whole_1 synthesized 0 "${channels[@]}" "${causal[@]}" "${cleaner[@]}" --trainer.max_minutes 29 --trainer.decay_share 0.75
run causal_channels_1 causal_channels_0 synthesized 1 "${channels[@]}" "${causal[@]}" "${cleaner[@]}" --trainer.max_minutes 11 \
  --trainer.decay_share 1 --trainer.learning_rate 0.0008
run causal_channels_2 causal_channels_1 all 2 "${channels[@]}" "${causal[@]}" "${wider[@]}" --data.dynamic_mixing.turns_probability 0.35 \
  --data.segment_seconds 8 --data.batch_size 3 --trainer.max_minutes 75 --trainer.decay_share 0.8 --trainer.learning_rate 0.0008
# The last weights, because those of the last validation are six epochs older.
average causal_last causal_channels_1 causal_channels_2 0

# What ships: weights in half precision, a predictor fitted on dev speakers under all conditions, and a card.
if ! [ -f "$out/conditions/dev.jsonl" ]; then
  (cd "$repository" && python -m tools.conditions manifest --speech "$recordings/speech_mini/wav8k/dev" \
    --noise "$recordings/noise_mini/wav8k/dev" --count 70 --seed 1 --out "$out/conditions")
fi
# ship NAME RUN OPTION...
ship() {
  (cd "$repository" && python -m tools.default_model "$out/$2" --dev "$out/conditions/dev.jsonl" \
    --tests "$out/mini/test_librispeech.jsonl" "$out/mini/test_speechocean762.jsonl" \
    --more speech_more speech_voices speech_synthesized --out "$out/$1" "${@:3}")
}
ship boxed_8k averaged_6 --views 3
ship boxed_8k_causal causal_last --views 1
