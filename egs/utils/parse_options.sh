# Kaldi's habit, sourced by recipe.sh: `--some-option value` sets the variable some_option. Only options of the help exist.
# shellcheck shell=bash

# The comment blocks at the top of the recipe and of the groups of options that it takes.
recipe_help() {
  local file
  for file in "${option_files[@]}"; do
    [ "$file" = "${option_files[0]}" ] || [ "$file" != "${option_files[1]}" ] || printf '\nOptions that recipes share:\n'
    sed -n '/^#!/d; /^# shellcheck/d; /^[^#]/q; s/^# \{0,1\}//p' "$file"
  done
}

recipe_options=$(recipe_help | sed -n 's/^\(--[a-z0-9-]*\).*/\1/p')
while [ $# -gt 0 ]; do
  case "$1" in
    -h | --help)
      recipe_help
      exit 0
      ;;
    --*=*) echo "$0: $1: write the value after a space" >&2; exit 2 ;;
    --*)
      if ! grep -qx -- "$1" <<<"$recipe_options"; then
        echo "$0: $1: unknown option ($0 --help lists them)" >&2
        exit 2
      fi
      if [ $# -lt 2 ]; then
        echo "$0: $1: expected a value after it" >&2
        exit 2
      fi
      option=${1#--}
      printf -v "${option//-/_}" %s "$2"
      shift 2
      ;;
    *) echo "$0: $1: expected --option value" >&2; exit 2 ;;
  esac
done
