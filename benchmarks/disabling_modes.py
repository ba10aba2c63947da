"""How verdicts change with the mode of disabling.

    python -m benchmarks.disabling_modes --run <run folder> --out <folder>

Every head is disabled in every mode, one analysis each, ``<out>/<mode>``. A finished analysis is not run again.
"""

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from scipy.stats import spearmanr

from benchmarks.jobs import ROOT, run, store
from bertsecrets.ablation.verdicts import VERDICTS
from bertsecrets.results.ablation_table import AblationTable
from bertsecrets.results.formatting import number
from bertsecrets.results.verdicts import WORDS

MODES = ("uniform", "zero", "mean", "peak", "resample", "optimal")
RESULTS = ROOT / "benchmarks" / "results" / "disabling_modes.json"


def verdicts(folder: Path) -> list[str]:
    """Verdicts of the heads by the first metric, in order of layer and head."""
    rows = AblationTable.read(folder / "ablation.parquet").rows()
    own = [row for row in rows if row["metric"] == rows[0]["metric"]]
    return [row["verdict"] for row in sorted(own, key=lambda row: row["variant"])]


def loss_rises(folder: Path, mode: str) -> np.ndarray:
    """Mean rise of the loss by head, in the same order."""
    (path,) = (folder / "ablation").glob(f"*-{mode}.safetensors")
    with safe_open(path, "np") as file:
        rise_V: np.ndarray = (file.get_tensor("loss") - file.get_tensor("clean_loss")[:, None]).mean(0)
    return rise_V


def measured(out: Path) -> dict[str, Any]:
    """Of each mode the verdicts, how many differ from the first mode's, and the rises of the loss with their
    agreement.
    """
    judged = {mode: verdicts(out / mode) for mode in MODES}
    rises = {mode: loss_rises(out / mode, mode) for mode in MODES}
    return {
        mode: {
            "verdicts": {verdict: Counter(judged[mode])[verdict] for verdict in VERDICTS},
            "other": sum(own != first for own, first in zip(judged[mode], judged[MODES[0]], strict=True)),
            "mean": float(rises[mode].mean()),
            "largest": float(rises[mode].max()),
            "ranks": {other: float(spearmanr(rises[mode], rises[other]).statistic) for other in MODES},
        }
        for mode in MODES
    }


def table(stored: dict[str, Any]) -> str:
    """A row for each mode, in Markdown."""
    shown = [verdict for verdict in VERDICTS if any(of["verdicts"][verdict] for of in stored.values())]
    header = [
        "mode",
        *(WORDS[verdict] for verdict in shown),
        f"verdict other than `{MODES[0]}`",
        "mean rise of the loss",
    ]
    header += ["largest rise", "rank correlation with `uniform`", *(f"`{mode}`" for mode in MODES[1:])]
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    for mode, of in stored.items():
        cells = [f"`{mode}`", *(str(of["verdicts"][verdict]) for verdict in shown), str(of["other"])]
        cells += [number(of["mean"], 4), number(of["largest"], 3), *(number(of["ranks"][other], 2) for other in MODES)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    command = ["analyze.py", f"checkpoint={options.run.resolve()}", "analysis=disable_heads", "logger=none"]
    options.out.mkdir(parents=True, exist_ok=True)
    for mode in MODES:
        run(mode, [*command, "ablation.sweep=exact", f"ablation.mode={mode}"], options.out.resolve())
    print(table(store(RESULTS, lambda _: measured(options.out))))


if __name__ == "__main__":
    main()
