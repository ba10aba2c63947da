"""The experiment of pruning: how it is declared and described."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bertsecrets.grid import Column
from bertsecrets.pruning.scores import CONTROLS, RANDOM
from bertsecrets.pruning.seeds import compare_pruning
from bertsecrets.results.experiment import Experiment
from bertsecrets.results.figures.pruning import Curve, pruning_costs, pruning_curves
from bertsecrets.results.figures.style import sample_size
from bertsecrets.results.formatting import MISSING, number, p_value
from bertsecrets.results.report.content import FigureBlock, Section, Table
from bertsecrets.results.views import Comparison, MeasureView

KEPT, PLACE = "kept", "removed_at"


class Pruning(Experiment):
    """Heads removed in the order of a score: the curve, its controls, and the smallest model with a guarantee."""

    name = "pruning"
    title = "Pruned heads"
    columns = (
        Column(PLACE, "heads removed before or with it", "heads removed"),
        Column(KEPT, "kept in the returned model", "1: kept", (0, 1)),
    )
    reads_task = True

    @classmethod
    def describe(cls, view: MeasureView) -> Section | None:
        """The guarantee in words, the curves and their table."""
        content = view.extras
        if not content:
            return None
        curves = curves_of(content["curves"])
        chosen = content["chosen"]
        figure = pruning_curves(
            curves,
            margin=content["margin"],
            marked=chosen["kept"] if chosen["holds"] else None,
            title=f"Change of {content['metric']} by heads kept",
            count=content["examples"],
            level=content["confidence"],
        )
        return Section(
            cls.title,
            [guarantee_in_words(content)],
            [_how(content), *_controls_in_words(content)],
            [_table(content)],
            [
                FigureBlock(
                    cls.name,
                    figure,
                    "Heads are removed from left to right, in the order of each score; random and reversed are controls.",
                    f"Line chart: change of {content['metric']} by number of heads kept.",
                ),
                _costs_figure(cls.name, content),
            ],
        )

    @classmethod
    def compare(cls, comparison: Comparison) -> Section | None:
        """Curves over seeds, and how many heads can go in each seed."""
        return compare_pruning(comparison)

    @classmethod
    def classes(cls, view: MeasureView) -> Mapping[str, Sequence[Sequence[str]]]:
        """Whether each head is kept in the returned model."""
        if not view.has(KEPT):
            return {}
        names = {1.0: "kept", 0.0: "removed"}
        return {"pruning": [[names.get(value, MISSING) for value in row] for row in view.value(KEPT).tolist()]}

    @classmethod
    def scalars(cls, view: MeasureView) -> Mapping[str, float]:
        """Heads of the smallest model with the guarantee; of all if none has it."""
        content = view.extras
        if not content:
            return {}
        return {"heads_kept": float(content["chosen"]["kept"] if content["chosen"]["holds"] else content["total"])}


def guarantee_in_words(content: Mapping[str, Any]) -> str:
    """The outcome as a sentence.

    Args:
        content: From :func:`bertsecrets.pruning.search.as_extras`.
    """
    chosen, total, metric = content["chosen"], content["total"], content["metric"]
    margin, level = f"{100 * content['margin']:g} points", f"{content['confidence']:.0%}"
    examples = f"{content['examples']:,} examples that chose neither the heads nor their order"
    facts = f"observed change {_points(chosen['change'])}, at most {_points(chosen['bound'])} lost"
    if chosen["asked"]:
        verdict = "is ruled out" if chosen["holds"] else "is not ruled out"
        text = (
            f"With {chosen['kept']} of {total} heads, a loss of {metric} of {margin} or more {verdict} at {level} confidence on "
            f"{examples} ({facts})"
        )
        return f"{text}{_needed(chosen)}."
    if chosen["holds"]:
        return (
            f"{total - chosen['kept']} of {total} heads can go: on {examples}, a loss of {metric} of {margin} or more is ruled "
            f"out at {level} confidence with {chosen['kept']} heads ({facts})."
        )
    return (
        f"No smaller model is shown to lose less than {margin} of {metric} at {level} confidence on {examples}: with "
        f"{chosen['kept']} of {total} heads, {facts}{_needed(chosen)}."
    )


def _needed(chosen: Mapping[str, Any]) -> str:
    if chosen["hopeless"]:
        return "; the observed loss is the margin or more, so more examples would not help if it stays so"
    if chosen["needed"] is None:
        return ""
    return f"; about {chosen['needed']:,} examples would show it with 80 % power if loss and variance stay as observed"


def _how(content: Mapping[str, Any]) -> str:
    when = "anew after each step" if content["iterative"] else "once, on the whole model"
    recovery = (
        f" After each step the model is fine-tuned for {content['recovery_epochs']} epochs on the examples that choose heads."
        if content["recovery_epochs"]
        else ""
    )
    return (
        f"Scores are computed {when}, on {content['choosing']:,} training examples; the head with the lowest score goes first, "
        f"and a removed head's output is zero.{recovery} Models are tested from the largest to the smallest, up to the first "
        "that fails, so that the stated confidence holds for all that passed."
    )


def _controls_in_words(content: Mapping[str, Any]) -> list[str]:
    """The first score beside the random orders, where half of the heads are kept; nothing without random orders."""
    rows = content["curves"]
    half = min((row["kept"] for row in rows), key=lambda kept: abs(kept - content["total"] / 2))
    here = [row for row in rows if row["kept"] == half and row["change"] is not None]
    own = next((row for row in here if row["score"] not in CONTROLS), None)
    random = [row["change"] for row in here if row["score"] == RANDOM]
    if own is None or not random:
        return []
    return [
        f"With {half} of {content['total']} heads, {own['score']} changes {content['metric']} by {_points(own['change'])}; "
        f"{len(random)} random orders change it by {_points(min(random))} to {_points(max(random))}."
    ]


def curves_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Curve]]:
    """Rows as curves for the figure, by score; the first score that is no control comes first."""
    names = sorted(dict.fromkeys(row["score"] for row in rows), key=lambda name: name in CONTROLS)
    curves: dict[str, list[Curve]] = {}
    for name in names:
        for seed in dict.fromkeys(row["seed"] for row in rows if row["score"] == name):
            own = [row for row in rows if row["score"] == name and row["seed"] == seed]
            kept, change, low, high = (
                [math.nan if row[key] is None else row[key] for row in own] for key in ("kept", "change", "low", "high")
            )
            curves.setdefault(name, []).append((kept, change, low, high))
    return curves


def _table(content: Mapping[str, Any]) -> Table:
    batches = list(next((row["latency"] for row in content["curves"] if row["latency"]), {}))
    rows = []
    for row in content["curves"]:
        if row["seed"] == 0:
            rows.append(
                [
                    row["score"],
                    str(row["kept"]),
                    f"{row['parameters'] / content['parameters']:.1%}",
                    f"{row['flops'] / content['flops']:.1%}",
                    *(_latency(row["latency"].get(batch)) for batch in batches),
                    _points(row["change"]),
                    f"{_points(row['low'])} to {_points(row['high'])}",
                    number(row["loss"]),
                ]
            )
    header = [
        "score",
        "heads kept",
        "parameters",
        "FLOPs",
        *(f"ms at batch {batch}" for batch in batches),
        "change, points",
        f"{content['confidence']:.0%} interval",
        "loss",
    ]
    timed = (
        f"; latency on {content['device']} with {content['threads']} thread{'s' * (content['threads'] > 1)}, in parentheses as "
        "share of the whole model's, which took turns"
        if batches
        else ""
    )
    orders = len({row["seed"] for row in content["curves"] if row["score"] == RANDOM})
    return Table(
        header,
        rows,
        f"Parameters and FLOPs (one example of {content['length']} tokens) as shares of the whole model's "
        f"{content['parameters']:,} and {content['flops']:,}{timed}; {content['metric']} {number(content['baseline'])}, loss "
        f"{number(content['clean_loss'])} with all heads; p-value of the returned model's test "
        f"{p_value(content['chosen']['p_value'])}; random: the first of {orders} order{'s' * (orders > 1)}",
    )


def _latency(row: Mapping[str, float] | None) -> str:
    return MISSING if row is None else f"{number(row['smaller'], 1)} ({row['smaller'] / row['whole']:.0%})"


def _costs_figure(name: str, content: Mapping[str, Any]) -> FigureBlock:
    """The chosen order's change of score against heads, parameters, FLOPs and latency."""
    score = content["chosen"]["score"]
    rows = [row for row in content["curves"] if row["score"] == score]
    shares = {
        "heads": [row["kept"] / content["total"] for row in rows],
        "parameters": [row["parameters"] / content["parameters"] for row in rows],
        "FLOPs": [row["flops"] / content["flops"] for row in rows],
    }
    for batch in rows[0]["latency"]:
        shares[f"ms at batch {batch}"] = [
            row["latency"][batch]["smaller"] / row["latency"][batch]["whole"] for row in rows
        ]
    change_V, low_V, high_V = (
        [math.nan if row[key] is None else row[key] for row in rows] for key in ("change", "low", "high")
    )
    figure = pruning_costs(
        change_V,
        low_V,
        high_V,
        shares,
        margin=content["margin"],
        title=f"Change of {content['metric']} by cost, heads removed by {score}",
        note=f"costs as shares of the whole model's; band: {content['confidence']:.0%} interval over examples; dashed: the loss "
        f"that matters; {sample_size(content['examples'])}",
    )
    return FigureBlock(
        f"{name}_costs",
        figure,
        "Parameters and FLOPs are counted, latencies measured on models whose heads are cut out of the weights.",
        f"Line charts: change of {content['metric']} by share of heads, parameters, FLOPs and latency.",
    )


def _points(change: float | None) -> str:
    return MISSING if change is None else number(100 * change, 1)
