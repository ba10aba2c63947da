"""How verdicts change with the mode of disabling: the table in ``docs/ablation.md``.

    python -m benchmarks.disabling_modes <run folder> --out <folder> --layers 4 5

Every head of the layers (all by default) is disabled in every mode, one analysis each, ``<out>/<mode>``. A finished analysis is
not run again. The table is printed in Markdown; ``--modes`` runs some modes only.
"""

import argparse
from collections import Counter
from pathlib import Path

import numpy as np
from safetensors import safe_open
from scipy.stats import spearmanr

from benchmarks.jobs import run
from bertsecrets.ablation.verdicts import VERDICTS
from bertsecrets.results.ablation_table import AblationTable

MODES = ("uniform", "zero", "mean", "resample", "optimal")


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--layers", type=int, nargs="*", default=[])
    parser.add_argument("--modes", nargs="*", choices=MODES, default=list(MODES))
    parser.add_argument("--examples", type=int, help="a random sample of the development set; all by default")
    options = parser.parse_args()
    command = ["analyze.py", f"checkpoint={options.run.resolve()}", "analysis=disable_heads", "logger=none"]
    command += ["ablation.sweep=exact", *([f"ablation.layer={options.layers}"] if options.layers else [])]
    command += [f"ablation.max_examples={options.examples}"] if options.examples is not None else []
    options.out.mkdir(parents=True, exist_ok=True)
    for mode in options.modes:
        run(mode, [*command, f"ablation.mode={mode}"], options.out.resolve())
    present = [mode for mode in MODES if (options.out / mode / "finished.json").is_file()]
    judged = {mode: verdicts(options.out / mode) for mode in present}
    rises = {mode: loss_rises(options.out / mode, mode) for mode in present}
    first = present[0]
    header = ["mode", *VERDICTS, f"verdict other than {first}", "mean rise of the loss", "largest"]
    header += [f"rank correlation with {mode}" for mode in present]
    print(f"| {' | '.join(header)} |\n|{'---|' * len(header)}")
    for mode in present:
        counts = Counter(judged[mode])
        changed = sum(own != other for own, other in zip(judged[mode], judged[first], strict=True))
        cells = [f"`{mode}`", *(str(counts[verdict]) for verdict in VERDICTS), str(changed)]
        cells += [f"{rises[mode].mean():.4f}", f"{rises[mode].max():.3f}"]
        cells += [f"{spearmanr(rises[mode], rises[other]).statistic:.2f}" for other in present]
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
