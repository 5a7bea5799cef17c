# --prepare-options "..."  further options of stage 1, see `sepkit prepare CORPUS --help`
# --data DIR           folder of the manifests
# --exp DIR            folder of the model, or of one folder for each model
# --extra "..."        further options of sepkit train, such as "--trainer.learning_rate 0.0005"
# --ngpu N             GPUs of this machine to train on; default: set by --conf (Slurm: docs/gpus.md)
# --stage N            first stage to run
# --stop-stage N       last stage to run
# shellcheck shell=bash disable=SC2034
prepare_options=
data=data
exp=
extra=
ngpu=
stage=1
stop_stage=5
