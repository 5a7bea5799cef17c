# --speech DIR         recordings; folders named train, dev and test are the splits, the folder below them is the speaker
# --speaker-from HOW   first | parent | regex:PATTERN | csv:FILE (sepkit prepare folder --help)
# shellcheck shell=bash disable=SC2034
speech=
speaker_from=first
