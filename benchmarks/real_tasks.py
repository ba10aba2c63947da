"""The runs and the tables of ``docs/results.md``: MiniLM on GLUE tasks, fine-tuned with several seeds, heads disabled.

    pip install -e '.[demo]'
    python benchmarks/real_tasks.py --glue <GLUE folder> --out <folder>

Each seed of a task is a training run of three epochs, ``<out>/<task>-<seed>``, and two analyses of it (``-disable``,
``-drift``); the first seed of the first task has a third, ``-redundancy``, which takes as long as the training. A run that is finished is not run again, so that an interrupted call goes on.
Tables are printed in Markdown. ``--tables`` prints those of the runs that there are.
"""

import argparse
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertsecrets.ablation.seeds import judge_over_seeds, read_sweep
from bertsecrets.ablation.verdicts import VERDICTS
from bertsecrets.reporting.runs import FinishedRun, read_run
from bertsecrets.results.ablation_table import AblationTable
from bertsecrets.results.formatting import head_label, number, p_value
from bertsecrets.results.scores import RunScores

ROOT = Path(__file__).resolve().parent.parent
EXTRA = {"sst2": ["data.limit_train=8000"]}
COMMON = ["logger=none", "progress=false"]
ANALYSES = ("disable", "drift")
Row = dict[str, Any]


def run(command: Sequence[str]) -> None:
    print("$", " ".join(command[1:]), flush=True)
    subprocess.run(command, cwd=ROOT, check=True)


def make(glue: Path, out: Path, task: str, seed: int, analyses: Sequence[str]) -> None:
    """Train a model and analyse it, unless that is done."""
    folder = out / f"{task}-{seed}"
    if not (folder / "finished.json").is_file():
        arguments = [f"task={task}", f"seed={seed}", "data=tsv", f"data.root={glue}", "model=minilm", "callbacks=none"]
        schedule = ["trainer.max_epochs=3", "trainer.val_check_interval=1.0", *EXTRA.get(task, [])]
        run([sys.executable, "train.py", *arguments, *schedule, *COMMON, f"hydra.run.dir={folder}"])
    for analysis in analyses:
        analysed = out / f"{folder.name}-{analysis}"
        if not (analysed / "finished.json").is_file():
            arguments = [f"checkpoint={folder}", f"analysis={analysis}", *COMMON, f"hydra.run.dir={analysed}"]
            run([sys.executable, "analyze.py", *arguments])


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def main_rows(folder: Path, *kinds: str) -> list[Row]:
    """The rows of a sweep for the task's first metric."""
    rows = AblationTable.read(folder / "ablation.parquet").rows()
    return [row for row in rows if row["metric"] == rows[0]["metric"] and (not kinds or row["kind"] in kinds)]


def old_verdict(row: Row) -> str:
    """The verdict of a head or layer before the margin: a significant change, or none."""
    if not row["significant"]:
        return "no significant change"
    return "significant loss" if row["delta"] < 0 else "significant gain"


def old_group_verdict(group: Row, rows: Sequence[Row]) -> str:
    """The verdict of a group before the margin and the interaction: what is not significant was called unnecessary."""
    members = set(group["heads"].split())
    alone = [row for row in rows if row["kind"] == "head" and row["heads"] in members]
    if any(row["significant"] and row["delta"] < 0 for row in alone):
        return "necessary"
    if not (group["significant"] and group["delta"] < 0):
        return "unnecessary"
    suspect = any(row["p_value"] <= 0.05 and row["delta"] < 0 for row in alone)
    return "uncertain" if suspect else "redundant"


def counted(counts: Counter[tuple[str, str]]) -> list[list[str]]:
    return [[old, new, str(count)] for (old, new), count in sorted(counts.items())]


def scores_table(runs: dict[str, list[FinishedRun]]) -> str:
    rows = []
    for task, several in runs.items():
        scores = [RunScores.read(one.folder / "scores.json") for one in several]
        lines = [of_run.lines()[0] for of_run in scores]
        first_sets = [next(iter(of_run.sets.values())) for of_run in scores]
        values = [line.value for line in lines]
        mean = f"{number(statistics.mean(values))} ({', '.join(number(value) for value in values)})"
        worst = p_value(max(of_set.p_constant for of_set in first_sets))
        rows.append([task, lines[0].name, f"{first_sets[0].count:,}", mean, number(lines[0].baseline), worst])
    header = ["task", "metric", "examples", "mean (each seed)", "constant answer", "largest p against it"]
    return markdown(header, rows)


def drift_table(runs: dict[str, list[FinishedRun]], out: Path) -> str:
    rows = []
    for task, several in runs.items():
        grids = []
        for one in several:
            _, view = read_run(out / f"{one.folder.name}-drift").experiments["drift"]
            grids.append(view.value("cosine"))
        layers = sum(grids).mean(1) / len(grids)
        most = Counter(head_label(*divmod(int(grid.argmin()), grid.shape[1])) for grid in grids)
        named = ", ".join(f"{name} ({count})" if count > 1 else name for name, count in most.most_common())
        rows.append([task, *(number(float(layer), 2) for layer in layers), named])
    header = ["task", *(f"layer {layer}" for layer in range(len(rows[0]) - 2)), "most changed head (seeds)"]
    return markdown(header, rows)


def verdict_table(runs: dict[str, list[FinishedRun]], out: Path) -> str:
    rows = []
    for task, several in runs.items():
        for one in several:
            judged = main_rows(out / f"{one.folder.name}-disable", "head", "layer")
            cells = [task, str(one.seed)]
            for kind in ("head", "layer"):
                of_kind = [row for row in judged if row["kind"] == kind]
                cells.append(" / ".join(str(sum(row["verdict"] == verdict for row in of_kind)) for verdict in VERDICTS))
                worst = min(of_kind, key=lambda row: row["delta"])
                name = f"layer {worst['layer']}" if kind == "layer" else head_label(worst["layer"], worst["head"])
                interval = " to ".join(number(100 * worst[end], 1, signed=True) for end in ("low", "high"))
                cells.append(f"{name}: {number(100 * worst['delta'], 1, signed=True)} ({interval}), {worst['verdict']}")
            rows.append(cells)
    words = " / ".join(VERDICTS)
    return markdown(["task", "seed", f"heads: {words}", "worst head", f"layers: {words}", "worst layer"], rows)


def seeds_table(runs: dict[str, list[FinishedRun]], out: Path) -> str:
    rows = []
    for task, several in runs.items():
        for kind in ("head", "layer"):
            views = [read_run(out / f"{one.folder.name}-disable").experiments["ablation"][1] for one in several]
            sweeps = [sweep for view in views if (sweep := read_sweep(view, kind)) is not None]
            if len(sweeps) < 2:
                continue
            over = judge_over_seeds(sweeps)
            verdicts = " / ".join(str(sum(verdict == name for verdict in over.verdict)) for name in VERDICTS)
            somewhere, replicated, everywhere = over.needed_somewhere, over.replicated, over.in_every_seed
            rows.append([task, kind, verdicts, str(len(somewhere)), str(len(everywhere)), str(len(replicated))])
    header = ["task", "kind", f"over seeds: {' / '.join(VERDICTS)}", "needed in some seed", "in every seed"]
    return markdown([*header, "needed over seeds"], rows)


def changes_table(runs: dict[str, list[FinishedRun]], out: Path) -> str:
    rows = []
    for task, several in runs.items():
        singles: dict[str, Counter[tuple[str, str]]] = {"head": Counter(), "layer": Counter(), "group": Counter()}
        for one in several:
            for row in main_rows(out / f"{one.folder.name}-disable", "head", "layer"):
                singles[row["kind"]][old_verdict(row), row["verdict"]] += 1
            groups = out / f"{one.folder.name}-redundancy"
            together = main_rows(groups) if (groups / "finished.json").is_file() else []
            for row in together:
                if row["kind"] == "group":
                    new = "redundant" if row["redundant"] else row["verdict"]
                    singles["group"][old_group_verdict(row, together), new] += 1
        rows += [[task, kind, *line] for kind, counts in singles.items() for line in counted(counts)]
    return markdown(["task", "kind", "verdict before", "verdict now", "number"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--glue", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", default=["mrpc", "rte", "cola", "stsb"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--tables", action="store_true", help="print the tables of the finished runs only")
    options = parser.parse_args()
    if not options.tables:
        if options.glue is None:
            parser.error("--glue=<folder of the GLUE files> is needed to train; --tables prints what there is")
        for seed in options.seeds:
            for task in options.tasks:
                first = (task, seed) == (options.tasks[0], options.seeds[0])
                analyses = [*ANALYSES, *(["redundancy"] if first else [])]
                make(options.glue.resolve(), options.out.resolve(), task, seed, analyses)
    runs: dict[str, list[FinishedRun]] = {}
    for task in options.tasks:
        for seed in options.seeds:
            folder = options.out / f"{task}-{seed}"
            parts = [folder, *(options.out / f"{folder.name}-{analysis}" for analysis in ANALYSES)]
            if all((part / "finished.json").is_file() for part in parts):
                runs.setdefault(task, []).append(read_run(folder))
    if not runs:
        parser.error(f"--out '{options.out}' holds no finished runs yet; leave out --tables to make them")
    for title, table in (
        ("Scores", scores_table(runs)),
        ("Drift", drift_table(runs, options.out)),
        ("Verdicts", verdict_table(runs, options.out)),
        ("Over seeds", seeds_table(runs, options.out)),
        ("What changed", changes_table(runs, options.out)),
    ):
        print(f"\n## {title}\n\n{table}")


if __name__ == "__main__":
    main()
