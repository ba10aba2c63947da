#!/usr/bin/env bash
# Install the lowest versions that pyproject.toml promises in a fresh environment, and run a quick set of tests there.
#
#     tools/lowest.sh                                  # a few minutes after the installation
#     tools/lowest.sh tests/measures -x                # other tests
#     PYTHON=3.12 TORCH=2.9.0 tools/lowest.sh          # another interpreter; another PyTorch where the lowest cannot be had
#     UV_TORCH_BACKEND=cpu tools/lowest.sh             # PyTorch without CUDA, from its own index
set -euo pipefail
cd "$(dirname "$0")/.."
environment="$(mktemp -d)"
trap 'rm -rf "$environment"' EXIT
python3 -m venv "$environment/uv"
"$environment/uv/bin/pip" install --quiet uv
uv() { "$environment/uv/bin/uv" --quiet "$@"; }
uv venv --python "${PYTHON:-python3}" "$environment/venv"
export VIRTUAL_ENV="$environment/venv" PATH="$environment/venv/bin:$PATH"
echo "torch==${TORCH:-$(sed -n 's/.*"torch>=\([0-9.]*\).*/\1/p' pyproject.toml)}" > "$environment/torch.txt"
# Direct dependencies at their lowest, what these need at its newest.
uv pip compile --no-header --no-annotate --resolution lowest-direct --extra test \
  --constraint "$environment/torch.txt" --output-file "$environment/lowest.txt" pyproject.toml
uv pip install --constraint "$environment/lowest.txt" -e '.[test]'
uv pip check
grep -E '^(torch|transformers|pytorch-lightning|datasets|numpy|wandb)==' "$environment/lowest.txt"
quick=(tests/attention tests/models tests/data tests/statistics tests/results tests/test_notebook.py)
HF_HUB_OFFLINE=1 WANDB_MODE=offline python -m pytest "${@:-${quick[@]}}"
