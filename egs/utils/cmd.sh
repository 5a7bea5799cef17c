# How recipes run their commands. By default: on this machine; several GPUs of it: --ngpu N. On a Slurm cluster,
# egs/utils/slurm.sbatch sets these two (docs/gpus.md), or set them in the environment.
# shellcheck shell=bash
train_cmd=${train_cmd:-}
decode_cmd=${decode_cmd:-}
