#!/usr/bin/env bash
# Check bertsecrets on a machine with a CUDA device, without network, in at most eight minutes: the tests marked gpu, then
# the engine and a sweep on two processes, whose times go to benchmarks/results/gpu.json (or the file given).
# Install before: pip install -e '.[demo,dev]'
set -euo pipefail
cd "$(dirname "$0")/.."
export HF_HUB_OFFLINE=1 WANDB_MODE=offline
timeout 300 pytest -m gpu -n 0 tests/gpu
timeout 180 python -m benchmarks.gpu --out "${1:-benchmarks/results/gpu.json}"
