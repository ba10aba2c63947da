"""Pruning curves of many scores over tasks and seeds, with the table and the figures of ``docs/pruning.md``.

    python -m benchmarks.pruning_scores <folder of analysis=prune>... [--out benchmarks/results/pruning_scores.json]

Several analyses of one run are put together, and what is there already is kept. Runs of a task are its seeds.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from bertsecrets.present.figures.style import ACCENTS, PAGE_WIDTH, QUIET, footnote, house_style, new_figure
from bertsecrets.pruning.rows import CONTROLS, Pruned, Pruning
from bertsecrets.results.run import Run
from bertsecrets.results.views import MeasureView

RESULTS = Path(__file__).parent / "results" / "pruning_scores.json"
SHOWN = (
    "head_gradient/example_normalised",
    "relevance",
    "value_norm/output",
    "exact",
    "first_order/zero",
    "entropy/bits",
)
"""Scores of the figure of curves; one of each kind."""

COLUMNS = ("score", "seed", "kept", "change", "low", "high")
Model = dict[str, Any]


def collect(folders: Sequence[Path], models: dict[str, Model]) -> None:
    """Add the curves of the analyses to the models, by name of task and seed."""
    for folder in folders:
        run = Run.open(folder)
        (view,) = [MeasureView(run, one) for one in run.declarations() if one.name == Pruning.name]
        pruned = Pruned.of(view)
        assert pruned is not None
        search, config = pruned.search, run.config()
        facts = {"metric": search.metric, "baseline": search.score, "examples": search.examples}
        facts |= {"total": search.heads, "choosing": search.choosing}
        model = models.setdefault(
            f"{run.task} {config.get('trained', config)['seed']}", {"task": run.task, **facts, "curves": []}
        )
        if (model["examples"], model["baseline"]) != (search.examples, search.score):
            raise SystemExit(
                f"{folder} has another score or other examples than the other analyses of its task and seed."
            )
        known = {(row["score"], row["seed"], row["kept"]) for row in model["curves"]}
        for point in pruned.points:
            place = (point.score, point.order, point.kept)
            numbers = (round(value, 5) for value in (point.change.value, point.change.low, point.change.high))
            if place not in known:
                model["curves"].append(dict(zip(COLUMNS, (*place, *numbers), strict=True)))


def by_task(models: Mapping[str, Model]) -> dict[str, list[Model]]:
    """Task -> its models, in order of seeds."""
    tasks: dict[str, list[Model]] = defaultdict(list)
    for name in sorted(models):
        tasks[models[name]["task"]].append(models[name])
    return dict(tasks)


def change(model: Model, score: str, kept: int) -> float:
    """Change of score in points; the mean of the random orders; NaN where the score was not run."""
    values = [row["change"] for row in model["curves"] if (row["score"], row["kept"]) == (score, kept)]
    return 100 * float(np.mean(values)) if values else np.nan


def limits(model: Model, score: str, kept: int) -> tuple[float, float]:
    """The interval over examples, in points; for random orders the lowest and the highest change."""
    rows = [row for row in model["curves"] if (row["score"], row["kept"]) == (score, kept)]
    if score == "random":
        changes = [100 * row["change"] for row in rows]
        return min(changes), max(changes)
    return 100 * rows[0]["low"], 100 * rows[0]["high"]


def ranked(models: Mapping[str, Model], kept: int) -> list[str]:
    """All scores, by the mean over tasks of the mean change over seeds; controls last."""
    tasks = by_task(models)
    names = list(dict.fromkeys(row["score"] for model in models.values() for row in model["curves"]))
    means = {name: np.mean([mean_change(own, name, kept) for own in tasks.values()]) for name in names}
    return sorted(names, key=lambda name: (name in CONTROLS, bool(np.isnan(means[name])), -means[name]))


def mean_change(models: Sequence[Model], score: str, kept: int) -> float:
    """Mean change over the models on which the score was run, in points; NaN if there are none."""
    values = [value for value in (change(model, score, kept) for model in models) if not np.isnan(value)]
    return float(np.mean(values)) if values else np.nan


def signed(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.1f}".replace("-", "−").replace("−0.0", "0.0")


def table(models: Mapping[str, Model], kept: int) -> str:
    """Markdown: a row for each score, for each task the change in each seed, and in how many runs a loss is shown."""
    tasks = by_task(models)
    headers = [f"{task} ({own[0]['examples']} examples)" for task, own in tasks.items()]
    lines = [
        f"| score | {' | '.join(headers)} | mean | significant loss in |",
        "| --- |" + " ---: |" * (len(tasks) + 2),
    ]
    for score in ranked(models, kept):
        cells, means, shown, runs = [], [], 0, 0
        for own in tasks.values():
            values = [change(model, score, kept) for model in own]
            cells.append(", ".join(map(signed, values)))
            means.append(mean_change(own, score, kept))
            had = [model for model, value in zip(own, values, strict=True) if not np.isnan(value)]
            shown += sum(limits(model, score, kept)[1] < 0 for model in had)
            runs += len(had)
        count = "" if score == "random" else f"{shown} of {runs}"
        lines.append(f"| `{score}` | {' | '.join(cells)} | {signed(float(np.mean(means)))} | {count} |")
    return "\n".join(lines)


def curves_figure(models: Mapping[str, Model]) -> Figure:
    """A panel for each task: mean change over seeds of a score of each kind; random orders in grey, all of them."""
    tasks = by_task(models)
    with house_style():
        figure = new_figure(PAGE_WIDTH, 3.2, "Change of accuracy by heads kept, mean over seeds")
        panels = figure.subplots(1, len(tasks), sharey=True, squeeze=False)[0]
        for axes, (task, own) in zip(panels, tasks.items(), strict=True):
            steps = sorted({row["kept"] for model in own for row in model["curves"]}, reverse=True)
            for model in own:
                for seed in {row["seed"] for row in model["curves"] if row["score"] == "random"}:
                    line = {
                        row["kept"]: 100 * row["change"]
                        for row in model["curves"]
                        if (row["score"], row["seed"]) == ("random", seed)
                    }
                    axes.plot(steps, [line[kept] for kept in steps], color=QUIET, linewidth=0.7, alpha=0.6)
            axes.plot([], [], color=QUIET, linewidth=0.7, label="random, every order")
            for place, score in enumerate(SHOWN):
                means = [mean_change(own, score, kept) for kept in steps]
                axes.plot(steps, means, "o-", color=ACCENTS[place % len(ACCENTS)], markersize=3, label=score)
            axes.axhline(0, color="black", linewidth=0.6)
            axes.invert_xaxis()
            axes.set_title(f"{task}, {len(own)} seed{'s' * (len(own) > 1)}")
            axes.set_xlabel("heads kept")
            axes.grid(linewidth=0.4, alpha=0.5)
        panels[0].set_ylabel("change, points")
        panels[-1].legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
        footnote(figure, "intervals of every point: table in the text and benchmarks/results/pruning_scores.json")
    return figure


def scores_figure(models: Mapping[str, Model], kept: int) -> Figure:
    """A panel for each task: the change of every score in every seed, with its interval over examples."""
    tasks = by_task(models)
    scores = ranked(models, kept)[::-1]
    with house_style():
        figure = new_figure(PAGE_WIDTH, 1.2 + 0.24 * len(scores), f"Change of accuracy with {kept} heads kept")
        panels = figure.subplots(1, len(tasks), sharey=True, squeeze=False)[0]
        for axes, (task, own) in zip(panels, tasks.items(), strict=True):
            for row, score in enumerate(scores):
                for place, model in enumerate(own):
                    value = change(model, score, kept)
                    if not np.isnan(value):
                        low, high = limits(model, score, kept)
                        height = row + 0.25 * ((len(own) - 1) / 2 - place)
                        colour = QUIET if score in CONTROLS else ACCENTS[place % len(ACCENTS)]
                        axes.plot([low, high], [height, height], color=colour, linewidth=0.9)
                        axes.plot([value], [height], "o", color=colour, markersize=3)
            axes.axvline(0, color="black", linewidth=0.6)
            axes.set_yticks(range(len(scores)), scores)
            axes.set_xlabel("points")
            axes.set_title(task)
            axes.grid(axis="x", linewidth=0.4, alpha=0.5)
        footnote(
            figure,
            "a dot for each seed with its 95 % interval over examples; random: mean, lowest and highest of its orders",
        )
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    models = json.loads(chosen.out.read_text("utf-8")) if chosen.out.is_file() else {}
    collect(chosen.folders, models)
    lines = ",\n".join(f"{json.dumps(name)}: {one_line_each(model)}" for name, model in sorted(models.items()))
    chosen.out.write_text("{\n" + lines + "\n}\n", "utf-8")


def one_line_each(model: Model) -> str:
    """JSON with a line for each point of a curve, so that changes of it can be read."""
    facts = json.dumps({key: value for key, value in model.items() if key != "curves"})
    return facts[:-1] + ', "curves": [\n ' + ",\n ".join(map(json.dumps, model["curves"])) + "\n]}"


if __name__ == "__main__":
    main()
