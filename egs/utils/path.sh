# Sourced by the recipes: the repository's own virtual environment, where there is one, comes first on PATH.
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
if [ -x "$repository/.venv/bin/sepkit" ]; then PATH="$repository/.venv/bin:$PATH"; fi
command -v sepkit >/dev/null || { echo "sepkit is not installed: run \`make demo\` or \`pip install -e .\` in $repository" >&2; exit 2; }
