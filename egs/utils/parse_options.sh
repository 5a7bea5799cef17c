# Kaldi's habit: sourced after the defaults, `--some-option value` sets the variable some_option; unknown options end the recipe.
# shellcheck shell=bash
# The comment block at the top of the recipe is its --help.

while [ $# -gt 0 ]; do
  case "$1" in
    -h | --help)
      # The recipe has changed folder since it was called as $0 from $caller.
      case $0 in /*) sed_input=$0 ;; *) sed_input=$caller/$0 ;; esac
      sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p}' "$sed_input"
      exit 0
      ;;
    --*=*) echo "$0: $1: write the value after a space" >&2; exit 2 ;;
    --*)
      option=${1#--}
      option=${option//-/_}
      if ! declare -p "$option" >/dev/null 2>&1; then
        echo "$0: $1: unknown option ($0 --help lists them)" >&2
        exit 2
      fi
      if [ $# -lt 2 ]; then
        echo "$0: $1: expected a value after it" >&2
        exit 2
      fi
      printf -v "$option" %s "$2"
      shift 2
      ;;
    *) echo "$0: $1: expected --option value" >&2; exit 2 ;;
  esac
done
