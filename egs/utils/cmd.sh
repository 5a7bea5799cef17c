# How recipes run their commands. By default: on this machine. On a Slurm cluster, set for example
#   train_cmd="srun --nodes=1 --ntasks-per-node=4 --gres=gpu:4 --cpus-per-task=8"   (with --extra "--devices 4")
#   decode_cmd="srun --gres=gpu:1 --cpus-per-task=4"
# in the environment, or edit these lines. Several GPUs of one machine need only --extra "--devices 4".
# shellcheck shell=bash
train_cmd=${train_cmd:-}
decode_cmd=${decode_cmd:-}
