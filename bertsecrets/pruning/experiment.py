"""The experiment of pruning: how it is declared and described."""

from collections.abc import Mapping, Sequence
from typing import Any

from bertsecrets.grid import Column, Shown
from bertsecrets.present.figures.style import sample_size
from bertsecrets.present.report.content import FigureBlock, Section, Table
from bertsecrets.pruning.columns import KEPT, kept_classes
from bertsecrets.pruning.figures import pruning_costs, pruning_curves
from bertsecrets.pruning.scores import CONTROLS, RANDOM, from_table, score_label
from bertsecrets.pruning.searches import search_in_words
from bertsecrets.pruning.seeds import compare_pruning
from bertsecrets.results.experiment import Experiment
from bertsecrets.results.formatting import MISSING, number, p_value, rounded_up, with_limits
from bertsecrets.results.views import Comparison, MeasureView

REMOVED_AT = "removed_at"

KEPT_AXIS, CHANGE_OF = "pruning/heads_kept", "pruning/change_of_"
"""The x axis of the curves in W&B, and what their names begin with."""

_OUT_OF_REACH = 100_000
"""More examples than these are not worth a number."""


_TOGETHER = "Heads chosen on training examples go together here; on a run's page each is disabled alone."
"""How this test differs from that of single heads."""


class Pruning(Experiment):
    """Heads removed in the order of a score: the curve, its controls, and the smallest model with a guarantee."""

    name = "pruning"
    title = "Pruned heads"
    columns = (
        Column(REMOVED_AT, "heads removed before or with it", "heads removed"),
        Column(KEPT, "kept in the returned model", "1: kept", (0, 1)),
    )
    shown = Shown(reads_task=True)

    @classmethod
    def describe(cls, view: MeasureView) -> Section | None:
        """The guarantee in words, the curves and their table."""
        content = view.extras
        if not content:
            return None
        selected = content["chosen"]
        figure = pruning_curves(
            content["curves"],
            margin=content["margin"],
            marked=selected["kept"] if selected["holds"] else None,
            title=f"Change of {content['metric']} by heads kept",
            count=content["examples"],
            level=content["confidence"],
            controls=CONTROLS,
        )
        return Section(
            cls.title,
            [f"{guarantee_in_words(content)} {_TOGETHER}", knee_in_words(content)],
            [_how(content), *_source_in_words(content)],
            [_costs_table(content), _scores_table(content)],
            [
                FigureBlock(
                    cls.name,
                    figure,
                    "Heads are removed from left to right, in the order of each score; random and reversed are controls.",
                    f"Line chart: change of {content['metric']} by number of heads kept.",
                ),
                _costs_figure(cls.name, content),
            ],
            summary=answer_in_words(content),
        )

    @classmethod
    def compare(cls, comparison: Comparison) -> Section | None:
        """Curves over seeds, and how many heads can go in each seed."""
        return compare_pruning(comparison)

    @classmethod
    def classes(cls, view: MeasureView) -> Mapping[str, Sequence[Sequence[str]]]:
        """Whether each head is kept in the returned model."""
        return kept_classes(view, "pruning")

    @classmethod
    def scalars(cls, view: MeasureView) -> Mapping[str, float]:
        """Heads of the smallest model with the guarantee; of all if none has it."""
        content = view.extras
        if not content:
            return {}
        return {"heads_kept": float(content["chosen"]["kept"] if content["chosen"]["holds"] else content["total"])}

    @classmethod
    def curves(cls, view: MeasureView) -> Mapping[str, Sequence[Mapping[str, float]]]:
        """The change of score of each score's order by the number of heads kept; of random orders, the mean."""
        content = view.extras
        if not content:
            return {}
        changes: dict[int, dict[str, list[float]]] = {}
        for row in content["curves"]:
            if row["change"] is not None:
                changes.setdefault(row["kept"], {}).setdefault(row["score"], []).append(row["change"])
        points = [
            {
                KEPT_AXIS: float(kept),
                **{
                    f"{CHANGE_OF}{content['metric']}/{score}": sum(changes_of_orders) / len(changes_of_orders)
                    for score, changes_of_orders in by_score.items()
                },
            }
            for kept, by_score in sorted(changes.items())
        ]
        return {KEPT_AXIS: points}


def answer_in_words(content: Mapping[str, Any]) -> str:
    """The outcome in a few words, the title of the page: what is ruled out, or else the largest loss that is not.

    Args:
        content: From :func:`bertsecrets.pruning.search.as_extras`.
    """
    selected, total, metric = content["chosen"], content["total"], content["metric"]
    margin, bound = in_points(content["margin"]), selected["bound"]
    verdict = (
        f"a loss of {metric} of {margin} or more {_verdict(content)}{lost_most_in_words(selected.get('classes', ()))}."
    )
    removed = f"{total - selected['kept']} of {total} heads"
    if selected["holds"] and not selected["asked"]:
        how = "with fine-tuning" if content["recovery_epochs"] else "without training"
        return f"{removed} can go together, {how}: {verdict}"
    at_most = ""
    if bound is not None and bound >= content["margin"]:
        at_most = f"{metric} loses at most {number(rounded_up(bound), 1)} points; "
    start = f"With {selected['kept']} of {total} heads"
    if not selected["asked"]:
        training = "fine-tuning" if content["recovery_epochs"] else "no training"
        start = f"With {removed} removed together and {training}"
    return f"{start}, {at_most}{verdict}"


def _verdict(content: Mapping[str, Any]) -> str:
    """Whether the loss of the shown model is ruled out, and that within classes if it was tested."""
    selected, margin = content["chosen"], content.get("class_margin")
    of_class = "" if margin is None else f" one of {in_points(margin)} of accuracy within a class"
    if selected["holds"]:
        return f"is ruled out, as is{of_class}" if of_class else "is ruled out"
    # A class may fail where the score does not.
    if of_class and selected["bound"] is not None and selected["bound"] < content["margin"]:
        return f"is ruled out,{of_class} is not"
    return "is not ruled out"


def guarantee_in_words(content: Mapping[str, Any]) -> str:
    """The outcome as a sentence.

    Args:
        content: From :func:`bertsecrets.pruning.search.as_extras`.
    """
    selected, total, metric = content["chosen"], content["total"], content["metric"]
    examples = f"{content['examples']:,} examples"
    chosen_elsewhere = from_table(content, selected["score"])
    examples += (
        " (if the head table is of others)" if chosen_elsewhere else " that chose neither the heads nor their order"
    )
    bound = MISSING if selected["bound"] is None else number(rounded_up(selected["bound"]), 1)
    facts = f"observed change {_points(selected['change'])}, a loss above {bound} ruled out"
    removed = f"{total - selected['kept']} of {total} heads can go together: with the other {selected['kept']}"
    start = removed if selected["holds"] and not selected["asked"] else f"With {selected['kept']} of {total} heads"
    needed = "" if selected["holds"] else _needed(selected)
    return (
        f"{start}, a loss of {metric} of {in_points(content['margin'])} or more {_verdict(content)}, at {content['confidence']:.0%} confidence "
        f"on {examples} ({facts}){needed}{lost_most_in_words(selected.get('classes', ()))}."
    )


def lost_most_in_words(groups: Sequence[Mapping[str, Any]]) -> str:
    """The group of examples that loses most, with the limits of its loss, as the end of a sentence; empty if none loses.

    Args:
        groups: From :func:`bertsecrets.pruning.guarantee.group_changes`.

    >>> lost_most_in_words([{"group": "class no", "whole": 0.9, "smaller": 0.86, "low": -0.1, "high": 0.02}])
    '; class no loses most, 0.900 → 0.860, −4.0 points (−10.0 to 2.0)'
    """
    worst = min(groups, key=lambda group: group["smaller"] - group["whole"], default=None)
    if worst is None or worst["smaller"] >= worst["whole"]:
        return ""
    accuracies = f"{number(worst['whole'], 3)} → {number(worst['smaller'], 3)}"
    return f"; {worst['group']} loses most, {accuracies}, {change_of_group(worst).replace(' (', ' points (', 1)}"


def change_of_group(group: Mapping[str, Any]) -> str:
    """Change of a group's accuracy in points, with its limits."""
    change, low, high = (100 * value for value in (group["smaller"] - group["whole"], group["low"], group["high"]))
    return with_limits(change, low, high, 1)


def in_points(margin: float) -> str:
    """A margin in words, e.g. ``1 point``."""
    return f"{100 * margin:g} point{'s' * (round(100 * margin, 6) != 1)}"


def _source_in_words(content: Mapping[str, Any]) -> list[str]:
    tables = dict.fromkeys(row["score"] for row in content["curves"] if from_table(content, row["score"]))
    names = [f"“{score_label(name)}”" for name in tables]
    if not names:
        return []
    return [
        f"The score{'s' * (len(names) > 1)} {' and '.join(names)} {'come' if len(names) > 1 else 'comes'} from a head table and {'are' if len(names) > 1 else 'is'} not "
        "computed anew. Where a table was measured on the examples of the test, they chose the order too, and nothing is "
        "guaranteed."
    ]


def _needed(selected: Mapping[str, Any]) -> str:
    if selected["hopeless"]:
        return "; the observed loss is the margin or more, so more examples would not help if it stays so"
    if selected["needed"] is None:
        return ""
    if selected["needed"] > _OUT_OF_REACH:
        return f"; the observed loss is so close to the margin that it would take more than {_OUT_OF_REACH:,} examples to show it"
    return (
        f"; about {selected['needed']:,} examples would show it with 80 % power if loss and variance stay as observed"
    )


def _how(content: Mapping[str, Any]) -> str:
    when = "anew after each step" if content["iterative"] else "once, on the whole model"
    recovery = (
        f" After each step the model is fine-tuned for {content['recovery_epochs']} epochs on the examples that choose heads."
        if content["recovery_epochs"]
        else ""
    )
    computed = (
        f"Scores are computed {when}, on {content['choosing']:,} training examples; the"
        if not all(from_table(content, row["score"]) for row in content["curves"] if row["score"] not in CONTROLS)
        else "The"
    )
    return (
        f"{computed} head least worth keeping goes first, "
        f"and a removed head's output is zero.{recovery} Models are tested from the largest to the smallest, up to the first "
        f"that fails, so that the stated confidence holds for all that passed. {search_in_words(content)}"
    ).strip()


def knee_in_words(content: Mapping[str, Any]) -> str:
    """Where the loss of the chosen order begins: from there on, the interval of every smaller model lies below 0.

    Args:
        content: From :func:`bertsecrets.pruning.search.as_extras`.
    """
    score, total, metric = content["chosen"]["score"], content["total"], content["metric"]
    order = f"By {score_label(score)},"
    rows = [row for row in content["curves"] if row["score"] == score and row["change"] is not None]
    rows.sort(key=lambda row: -row["kept"])
    start = len(rows)
    while start and rows[start - 1]["high"] is not None and rows[start - 1]["high"] < 0:
        start -= 1
    if start == len(rows):
        return f"{order} no loss of {metric} is shown down to {rows[-1]['kept']} of {total} heads." if rows else ""
    lost = rows[start]
    if start == 0:
        text = f"{order} {metric} falls from the first step on: with {lost['kept']} of {total} heads"
    else:
        last = rows[start - 1]
        text = (
            f"{order} the loss begins between {last['kept']} and {lost['kept']} of {total} heads: with {last['kept']}, "
            f"{metric} changes by {_change_of_order(last)} points, with {lost['kept']}"
        )
    verb = f" it changes by {_change_of_order(lost)} points" if start == 0 else f" by {_change_of_order(lost)}"
    random = [
        row["change"]
        for row in content["curves"]
        if row["score"] == RANDOM and row["kept"] == lost["kept"] and row["change"] is not None
    ]
    orders = f"; {len(random)} random order{'s' * (len(random) > 1)} there: {_range(random)}" if random else ""
    return f"{text}{verb}{orders}."


def _range(changes: Sequence[float]) -> str:
    low, high = _points(min(changes)), _points(max(changes))
    return low if low == high else f"{low} to {high}"


def _costs_table(content: Mapping[str, Any]) -> Table:
    """The models of the chosen order: what they cost and how they score."""
    score = content["chosen"]["score"]
    rows_of_order = [row for row in content["curves"] if row["score"] == score]
    batches = list(rows_of_order[0]["latency"])
    rows = [
        {
            "heads kept": str(row["kept"]),
            "parameters": f"{row['parameters'] / content['parameters']:.1%}",
            "FLOPs": f"{row['flops'] / content['flops']:.1%}",
            **{f"ms at batch {batch}": _latency(row["latency"][batch]) for batch in batches},
            "change, points": _points(row["change"]),
            f"{content['confidence']:.0%} interval": f"{_points(row['low'])} to {_points(row['high'])}",
            "loss": number(row["loss"]),
        }
        for row in rows_of_order
    ]
    threads = f" with {content['threads']} thread{'s' * (content['threads'] > 1)}" if content["device"] == "cpu" else ""
    timed = (
        f"; latency on {content['device']}{threads}, in parentheses the share of the whole model's" if batches else ""
    )
    return Table.of(
        rows,
        f"Heads removed by {score_label(score)}: parameters and FLOPs (one example of {content['length']} tokens) as shares of "
        f"the whole model's {content['parameters']:,} and {content['flops']:,}{timed}; {content['metric']} {number(content['baseline'])}, "
        f"loss {number(content['clean_loss'])} with all heads; p-value of the test of {content['chosen']['kept']} heads "
        f"{p_value(content['chosen']['p_value'])}",
    )


def _scores_table(content: Mapping[str, Any]) -> Table:
    """Change of score by heads kept, a column for each score."""
    names = sorted(dict.fromkeys(row["score"] for row in content["curves"]), key=lambda name: name in CONTROLS)
    sizes = list(dict.fromkeys(row["kept"] for row in content["curves"]))
    rows = []
    for kept in sizes:
        cells = []
        for name in names:
            rows_of_order = [row for row in content["curves"] if row["kept"] == kept and row["score"] == name]
            cells.append(
                _change_of_orders(rows_of_order) if len(rows_of_order) > 1 else _change_of_order(rows_of_order[0])
            )
        rows.append([str(kept), *cells])
    orders = len({row["seed"] for row in content["curves"] if row["score"] == RANDOM})
    random = f"; of random, the mean of {orders} orders and in brackets their range" if orders > 1 else ""
    return Table(
        ["heads kept", *map(score_label, names)],
        rows,
        f"Change of {content['metric']} in points by score, in parentheses its {content['confidence']:.0%} interval{random}",
    )


def _change_of_order(row: Mapping[str, Any]) -> str:
    return f"{_points(row['change'])} ({_points(row['low'])} to {_points(row['high'])})"


def _change_of_orders(rows: Sequence[Mapping[str, Any]]) -> str:
    changes = [row["change"] for row in rows]
    if None in changes:
        return MISSING
    return f"{_points(sum(changes) / len(changes))} [{_points(min(changes))} to {_points(max(changes))}]"


def _latency(row: Mapping[str, float]) -> str:
    return f"{number(row['smaller'], 1)} ({row['smaller'] / row['whole']:.0%})"


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
    figure = pruning_costs(
        rows,
        shares,
        margin=content["margin"],
        title=f"Change of {content['metric']} by cost, heads removed by {score_label(score)}",
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
