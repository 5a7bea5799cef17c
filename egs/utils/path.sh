# Sourced by the recipes: where PATH has no sepkit, the repository's own virtual environment comes first.
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
if ! command -v sepkit >/dev/null; then PATH="$repository/.venv/bin:$PATH"; fi
command -v sepkit >/dev/null || { echo "sepkit is not installed: run \`make demo\` or \`pip install -e .\` in $repository" >&2; exit 2; }
