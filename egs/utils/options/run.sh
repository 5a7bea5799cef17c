# --prepare-options "..."  further options of stage 1, see `sepkit prepare CORPUS --help`
# --data DIR           folder of the manifests
# --exp DIR            folder of the model, or of one folder for each model
# --extra "..."        further options of sepkit train, such as "--devices 2 --trainer.learning_rate 0.0005"
# --stage N            first stage to run
# --stop-stage N       last stage to run
# shellcheck shell=bash disable=SC2034
prepare_options=
data=data
exp=
extra=
stage=1
stop_stage=5
