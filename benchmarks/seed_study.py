"""How much of what one fine-tuning shows is found again with another seed: tables of ``docs/results.md``.

    python benchmarks/real_tasks.py --glue <GLUE folder> --out <folder> --tasks mrpc rte --seeds 1 2 3 4 5 6 7 8 9 10 \\
        --analyses disable drift patterns
    python benchmarks/seed_study.py <folder> --tasks mrpc rte [--out benchmarks/results/seed_study.json]

Reads the finished runs ``<task>-<seed>`` and their analyses. A finding of one seed *survives* if the other seeds together,
which it has no part in, give the same verdict (multi-bootstrap over their seeds and examples).
"""

import argparse
import json
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from bertsecrets.ablation.outcomes import Outcomes
from bertsecrets.ablation.seeds import Sweep, judge_over_seeds, read_sweep
from bertsecrets.ablation.verdicts import DISPENSABLE, INCONCLUSIVE, NEEDED, VERDICTS
from bertsecrets.data.task import task_from_config
from bertsecrets.patterns.classes import PATTERNS
from bertsecrets.reporting.runs import read_run
from bertsecrets.results.formatting import number
from bertsecrets.results.scores import RunScores
from bertsecrets.statistics.ranks import spearman
from bertsecrets.statistics.replicates import intraclass_correlation, mean_interval, rank_agreement

RESULTS = Path(__file__).parent / "results" / "seed_study.json"
TOP = 10


def finished(out: Path, task: str, analysis: str) -> list[Path]:
    """Folders of the finished analyses of a task's seeds, in order of the seed."""
    folders = [folder for folder in out.glob(f"{task}-*-{analysis}") if (folder / "finished.json").is_file()]
    return sorted(folders, key=lambda folder: int(folder.name.split("-")[-2]))


def jackknife(statistic: Callable[[list[int]], float], seeds: int) -> tuple[float, float, float]:
    """A statistic of all seeds with its 95 % limits, from those that leave out one seed each (Tukey 1958)."""
    everyone = list(range(seeds))
    whole = statistic(everyone)
    pseudo = [seeds * whole - (seeds - 1) * statistic([seed for seed in everyone if seed != left]) for left in everyone]
    interval = mean_interval(pseudo)
    return whole, interval.low, interval.high


def agreement(value_SV: np.ndarray, *, high: bool) -> dict[str, Any]:
    """How far seeds agree on a number of each head.

    Args:
        value_SV: The number of V heads with S seeds.
        high: Whether the heads with the highest numbers are the top, else those with the lowest.
    """
    order_SV = np.argsort(-value_SV if high else value_SV, axis=1)[:, :TOP]
    shared = [len(set(a) & set(b)) for a, b in combinations(order_SV.tolist(), 2)]
    seeds = len(value_SV)
    others = [spearman(value_SV[seed], np.delete(value_SV, seed, 0).mean(0)) for seed in range(seeds)]
    return {
        "spearman": jackknife(lambda chosen: rank_agreement(value_SV[chosen].T)[0], seeds),
        "lowest": rank_agreement(value_SV.T)[1],
        "with_mean_of_others": float(np.mean(others)),
        "icc": jackknife(lambda chosen: intraclass_correlation(value_SV[chosen].T), seeds),
        "top_shared": float(np.mean(shared)),
        "top_by_chance": TOP * TOP / value_SV.shape[1],
    }


def survival(sweeps: Sequence[Sweep]) -> dict[str, Any]:
    """For each verdict of a single seed, what the other seeds together say of the same variant."""
    counts: Counter[tuple[str, str]] = Counter()
    for place, sweep in enumerate(sweeps):
        rest = judge_over_seeds([other for at, other in enumerate(sweeps) if at != place])
        counts.update((row["verdict"], verdict) for row, verdict in zip(sweep.rows, rest.verdict, strict=True))
    over = judge_over_seeds(sweeps)
    return {
        "found": {one: {other: counts[one, other] for other in VERDICTS} for one in VERDICTS},
        "over_seeds": {name: over.verdict.count(name) for name in VERDICTS},
        "needed_somewhere": len(over.needed_somewhere),
        "needed_in_every_seed": len(over.in_every_seed),
    }


def loss_rises(folder: Path) -> np.ndarray:
    """Mean rise of the loss of every head, in order of layer and head."""
    (path,) = (folder / "ablation").glob("*.safetensors")
    outcomes = Outcomes.read(path)
    clean_N, loss_NV = outcomes.losses(task_from_config(read_run(folder).config["task"]))
    rise_V: np.ndarray = (loss_NV - clean_N[:, None]).mean(0).numpy()
    return rise_V[[place for place, variant in enumerate(outcomes.plan.variants) if variant.kind == "head"]]


def patterns_of(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Most frequent pattern of every head, ``[heads]``, and the share of each pattern over all maps, ``[patterns]``."""
    _, view = read_run(folder).experiments["patterns"]
    share_PH = np.stack([view.value(name).ravel() for name in PATTERNS])
    return share_PH.argmax(0), share_PH.mean(1)


def of_task(out: Path, task: str) -> dict[str, Any]:
    disabled, drifted, patterned = (finished(out, task, name) for name in ("disable", "drift", "patterns"))
    learned = [RunScores.read(folder / "scores.json").learned for folder in disabled]
    result: dict[str, Any] = {
        "seeds": len(disabled),
        "learned": [learned.count(is_so) for is_so in (True, False, None)],
    }
    for kind in ("head", "layer"):
        views = [read_run(folder).experiments["ablation"][1] for folder in disabled]
        sweeps = [sweep for view in views if (sweep := read_sweep(view, kind)) is not None]
        result[f"survival_{kind}"] = survival(sweeps)
        if kind == "head":
            result["change of score"] = agreement(
                np.array([[row["delta"] for row in one.rows] for one in sweeps]), high=False
            )
    result["rise of the loss"] = agreement(np.stack([loss_rises(folder) for folder in disabled]), high=True)
    if len(drifted) > 1:
        grids = [read_run(folder).experiments["drift"][1].value("cosine").ravel() for folder in drifted]
        result["drift"] = agreement(np.stack(grids), high=False)
    if len(patterned) > 1:
        main, shares = zip(*map(patterns_of, patterned), strict=True)
        main_SH, share_SP = np.stack(main), 100 * np.stack(shares)
        pairs = [float((a == b).mean()) for a, b in combinations(main_SH, 2)]
        result["patterns"] = {
            "seeds": len(patterned),
            "same_in_pairs": float(np.mean(pairs)),
            "same_in_all": float((main_SH == main_SH[0]).all(0).mean()),
            "share": {
                name: [mean.mean, mean.low, mean.high, float(share_SP[:, place].min()), float(share_SP[:, place].max())]
                for place, name in enumerate(PATTERNS)
                for mean in [mean_interval(share_SP[:, place])]
            },
        }
    return result


def interval(values: Sequence[float]) -> str:
    value, low, high = (number(one, 2) for one in values)
    return f"{value} ({low} to {high})"


def tables(results: dict[str, dict[str, Any]]) -> str:
    """The tables in Markdown."""
    lines = []
    for task, result in results.items():
        yes, no, untested = result["learned"]
        unknown = f", {untested} not tested" if untested else ""
        lines += [
            f"{task}: {result['seeds']} seeds, of which {yes} learned (better than the constant answer) and {no} did not{unknown}."
        ]
    lines += [
        "",
        "| task, number | Spearman of two seeds | lowest pair | one seed and the mean of the others | ICC | "
        f"of the {TOP} top heads shared by two seeds (by chance) |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for task, result in results.items():
        for name in ("change of score", "rise of the loss", "drift"):
            if name in result:
                row = result[name]
                cells = [f"{task}, {name}", interval(row["spearman"]), number(row["lowest"], 2)]
                cells += [number(row["with_mean_of_others"], 2), interval(row["icc"])]
                cells.append(f"{number(row['top_shared'], 1)} ({number(row['top_by_chance'], 1)})")
                lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        f"| task, kind | verdict of one seed | times | {' | '.join(f'others: {name}' for name in VERDICTS)} |",
    ]
    lines.append("| --- | --- | ---: | ---: | ---: | ---: |")
    for task, result in results.items():
        for kind in ("head", "layer"):
            found = result[f"survival_{kind}"]["found"]
            for verdict in (NEEDED, DISPENSABLE, INCONCLUSIVE):
                total = sum(found[verdict].values())
                shares = [f"{count} ({count / total:.0%})" if total else "–" for count in found[verdict].values()]
                lines.append(f"| {task}, {kind} | {verdict} | {total} | {' | '.join(shares)} |")
    for task, result in results.items():
        if "patterns" in result:
            own = result["patterns"]
            lines += [
                "",
                f"{task}: two seeds give {own['same_in_pairs']:.1%} of the heads the same main pattern; {own['same_in_all']:.1%} of the heads "
                f"have one pattern in all {own['seeds']} seeds.",
            ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="without it, the tables of the results that there are")
    parser.add_argument("--tasks", nargs="+", default=["mrpc", "rte"])
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.folder is not None:
        results = {task: of_task(options.folder, task) for task in options.tasks}
        options.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    print(tables(json.loads(options.out.read_text("utf-8"))))


if __name__ == "__main__":
    main()
