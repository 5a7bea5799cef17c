# Every recipe sources this first, with the groups of options that it shares with others (files in options/):
#
#   . "$(dirname "$0")/../utils/options.sh" speech model run
#
# It goes to the recipe's folder and sets the defaults of those options. The recipe then sets its own options, and other
# defaults where it wants them, and sources recipe.sh, which reads the command line. The comments of these files are,
# with the recipe's own, its --help; `# --some-option` is the variable some_option.
# shellcheck shell=bash
set -euo pipefail
caller=$PWD
cd "$(dirname "$0")"

option_files=("$(basename "$0")")
for group in "$@"; do
  # shellcheck source=/dev/null
  . "../utils/options/$group.sh"
  option_files+=("../utils/options/$group.sh")
done
