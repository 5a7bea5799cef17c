# --assignment NAME    matching of hypotheses to speakers: pit | mcl | relaxed_wta | amcl | sinkhorn; default: set by --conf (pit)
# --hypotheses N       number of estimates that the model makes; default: the number of speakers, or set by --conf
# --seed N             seed of the data order and the weights
# --evaluate-options "..."  further options of sepkit evaluate, such as "--metrics si_sdr"
# shellcheck shell=bash disable=SC2034
assignment=
hypotheses=
seed=0
evaluate_options=
