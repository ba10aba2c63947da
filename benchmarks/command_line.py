"""Time the answers to --help and to ten mistakes on the command line, of one or several checkouts.

    python benchmarks/command_line.py --tree before=<checkout> --tree after=. --out benchmarks/results/command_line.json

Every command runs once in a fresh process: clock time, processor time of all its threads, and the last line that it prints.
Results of other trees in the file are kept.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

MISTAKES = (
    "task=mrcp",
    "model=minlm",
    "sed=3",
    "trainer.max_epoch=3",
    "optimizer.learning_rte=1e-4",
    "optimizer.learning_rate=0",
    "data.limit_train=-1",
    "callbacks=drfit",
    "measure=[drft]",
    "--max-steps=5",
)


def timed(folder: Path, argument: str) -> dict[str, Any]:
    """Run ``train.py`` of a checkout with one argument."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "train.py", argument],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    says = (done.stderr or done.stdout).strip().splitlines()[-1]
    return {
        "seconds": round(seconds, 2),
        "processor_seconds": round(processor, 2),
        "status": done.returncode,
        "says": says,
    }


def main() -> None:
    """Measure, print the table, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", action="append", required=True, help="<name>=<checkout>")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    results = json.loads(options.out.read_text("utf-8")) if options.out.is_file() else {}
    for name, folder in (tree.split("=", 1) for tree in options.tree):
        results[name] = {argument: timed(Path(folder).resolve(), argument) for argument in ("--help", *MISTAKES)}
    options.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    for name, answers in results.items():
        mistakes = [answers[argument] for argument in MISTAKES]
        for what, rows in (("--help", [answers["--help"]]), ("ten mistakes, median", mistakes)):
            clock, processor = (median(row[key] for row in rows) for key in ("seconds", "processor_seconds"))
            print(f"{name:<10}{what:<22}{clock:6.1f} s{processor:6.1f} s of processor time")


if __name__ == "__main__":
    main()
