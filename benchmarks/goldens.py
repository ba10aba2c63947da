"""Compare the numbers of two versions of the code: run the same experiments with each and compare the results.

python -m benchmarks.goldens make <folder> [--code <checkout of another version>]
python -m benchmarks.goldens compare <folder of one version> <folder of the other>

``make`` runs a demo training, an analysis with six measures, ``analysis=disable``, ``analysis=redundancy``, a training
with ``callbacks=dark_secrets`` and a 2x2 sweep with its comparison and the paper's page (about 15 minutes on two
cores). ``compare`` expects equal bits in ``heads.parquet``, ``ablation.parquet``, ``comparison.parquet`` and the
scores, and the same figures, and lists the sentences of the reports that differ. Both versions must run on one machine.
"""

import argparse
import difflib
import html
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq

MEASURES = ("drift", "features", "token_to_token", "patterns", "frame_relations", "offsets")
KEYS = ("model", "task", "init", "stage", "step", "measure", "column", "layer", "head")
VARIANT = ("task", "init", "stage", "step", "evaluation", "metric", "mode", "kind", "variant")
CONDITION = ("condition", "measure", "column", "layer", "head")
SMALL = ["progress=false", "name=golden"]
# Defaults of tasks change between versions: the experiments name what they depend on.
TRAINING = [*SMALL, "task.training.batch_size=16", "optimizer.learning_rate=1e-4"]


def make(folder: Path, code: Path) -> None:
    """Run every experiment with the code of a checkout."""
    train = folder / "train"
    few = ["data.limit_eval=120"]
    run(
        code,
        "train.py",
        [*TRAINING, *few, "task=demo_paraphrase", "data.limit_train=640", "trainer.max_epochs=2"],
        train,
    )
    chosen = [f"checkpoint={train}", *SMALL]
    measures = f"measure=[{','.join(MEASURES)}]"
    run(code, "analyze.py", [*chosen, measures, "compare_with=[initial,random]"], folder / "measures")
    for name in ("disable", "redundancy"):
        run(code, "analyze.py", [*chosen, *few, f"analysis={name}"], folder / name)
    one_epoch = ["trainer.max_epochs=1", "callbacks=dark_secrets"]
    run(
        code,
        "train.py",
        [*TRAINING, *few, *one_epoch, "task=demo_paraphrase", "data.limit_train=320"],
        folder / "dark_secrets",
    )
    sweep = ["-m", *TRAINING, *one_epoch, "data.limit_train=160", "data.limit_eval=60", "sweep.paper=true"]
    varied = ["task=demo_paraphrase,demo_sentiment", "init=pretrained,random_normal"]
    run(code, "train.py", [*sweep, *varied], folder / "sweep", sweep=True)


def run(code: Path, script: str, settings: list[str], folder: Path, sweep: bool = False) -> None:
    """Run one command of a checkout, unless its folder is there."""
    if folder.exists():
        return
    target = f"hydra.sweep.dir={folder}" if sweep else f"hydra.run.dir={folder}"
    command = [sys.executable, script, *settings, target]
    print(" ".join(command), flush=True)
    subprocess.run(command, cwd=code, check=True, env={**os.environ, "WANDB_MODE": "offline"})


def compare(first: Path, second: Path) -> bool:
    """Print what differs; whether every number and every figure is the same."""
    same = True
    for name, keys, values in (
        ("heads.parquet", KEYS, ("value", "stderr", "count")),
        ("ablation.parquet", VARIANT, None),
        ("comparison.parquet", CONDITION, ("mean", "low_pointwise", "high_pointwise", "seeds", "stderr_over_examples")),
    ):
        for place in sorted({group(path, first) for path in first.rglob(name)}):
            same &= equal_tables(first, second, place, name, keys, values)
    for place in sorted({group(path, first) for path in first.rglob("scores.json")}):
        before, after = (scores(folder, place) for folder in (first, second))
        same &= report(f"{place}/scores.json", before == after, f"{len(before)} scores")
    for place in sorted({group(path, first) for path in first.rglob("figures") if "wandb" not in path.parts}):
        one, other = (figures(folder, place) for folder in (first, second))
        lost = ", ".join(sorted(one - other)) or "none"
        gained = ", ".join(sorted(other - one)) or "none"
        same &= report(f"{place}/figures", not one - other, f"{len(one)} figures; lost: {lost}; new: {gained}")
    for path in sorted(first.rglob("*.html")):
        page = second / path.relative_to(first)
        if "wandb" not in path.parts and page.is_file():
            lines = difflib.unified_diff(sentences(path), sentences(page), lineterm="", n=0)
            changed = [line for line in lines if line[:1] in "+-"]
            print(f"{path.relative_to(first)}: {len(changed)} lines differ")
            print("\n".join(f"    {line}" for line in changed))
    return same


def group(path: Path, root: Path) -> str:
    """The experiment that a file belongs to."""
    # The folders of a sweep's jobs end with a digest of their settings, which differs between versions.
    return "/".join(re.sub(r"-[0-9a-f]{8}$", "", part) for part in path.relative_to(root).parts[:-1]) or "."


def files(root: Path, place: str, name: str) -> Iterator[Path]:
    """The files of a name in an experiment."""
    found = (path for path in sorted(root.rglob(name)) if "wandb" not in path.parts)
    yield from (path for path in found if group(path, root) == place)


def equal_tables(
    first: Path, second: Path, place: str, name: str, keys: tuple[str, ...], values: tuple[str, ...] | None
) -> bool:
    """Whether two experiments hold the same rows."""
    one, other = (rows(folder, place, name, keys, values) for folder in (first, second))
    differing = [key for key in one if repr(one[key]) != repr(other.get(key))]
    detail = f"{len(one)} rows, {len(differing)} differ, {len(other.keys() - one.keys())} new"
    if differing:
        key = differing[0]
        detail += f"; first: {key}: {one[key]} and {other.get(key)}"
    return report(f"{place}/{name}", not differing, detail)


def rows(
    root: Path, place: str, name: str, keys: tuple[str, ...], values: tuple[str, ...] | None
) -> dict[tuple[object, ...], list[object]]:
    """The rows of all tables of an experiment: key -> numbers."""
    content: dict[tuple[object, ...], list[object]] = {}
    for path in files(root, place, name):
        with pq.ParquetFile(path) as table:
            entries = table.read().to_pylist()
        for row in entries:
            chosen = values or tuple(column for column in row if column not in (*keys, "run"))
            content[tuple(row[key] for key in keys)] = [row[column] for column in chosen]
    return content


def scores(root: Path, place: str) -> dict[str, object]:
    """The scores of an experiment; the time that it took is left out."""
    content: dict[str, object] = {}
    for path in files(root, place, "scores.json"):
        content |= json.loads(path.read_text("utf-8"))["sets"]
    return content


def figures(root: Path, place: str) -> set[str]:
    """The names of an experiment's figures."""
    return {path.name for folder in files(root, place, "figures") for path in folder.iterdir()}


def sentences(page: Path) -> list[str]:
    """The words of a page, a line for each paragraph, cell or caption."""
    body = re.sub(r"(?s)<(script|style|svg).*?</\1>", "", page.read_text("utf-8"))
    lines = (
        html.unescape(re.sub(r"<[^>]*>", " ", line)) for line in re.split(r"</(?:p|li|td|th|h1|h2|caption)>", body)
    )
    return [text for line in lines if (text := " ".join(line.split()))]


def report(what: str, same: bool, detail: str) -> bool:
    """Print one line of the comparison."""
    print(f"{'same     ' if same else 'DIFFERENT'} {what}: {detail}")
    return same


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("make")
    making.add_argument("folder", type=Path)
    making.add_argument("--code", type=Path, default=Path(__file__).resolve().parent.parent)
    comparing = commands.add_parser("compare")
    comparing.add_argument("first", type=Path)
    comparing.add_argument("second", type=Path)
    args = parser.parse_args()
    if args.command == "make":
        make(args.folder.resolve(), args.code.resolve())
    elif not compare(args.first, args.second):
        sys.exit(1)


if __name__ == "__main__":
    main()
