# How commands are run. Here: on this machine. Several GPUs of one machine: --ngpu N. On a Slurm cluster, see docs/gpus.md:
# egs/utils/slurm.sbatch sets these two, or set them in the environment.
train_cmd=${train_cmd:-}
decode_cmd=${decode_cmd:-}
