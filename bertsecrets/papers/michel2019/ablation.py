"""Section 3: removing one head, all heads of a layer but one, and the same heads on other data."""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsecrets.ablation.comparison import Effects
from bertsecrets.papers.chapter import (
    MODEL,
    Answers,
    Chapter,
    Claim,
    PaperRuns,
    claims_tables,
    not_learned,
    without_unlearned,
)
from bertsecrets.papers.michel2019 import published
from bertsecrets.reporting.conditions import Condition
from bertsecrets.results.figures.panels import HeadPanel, head_panels
from bertsecrets.results.figures.style import sample_size, seeds_in_words
from bertsecrets.results.formatting import MISSING, number
from bertsecrets.results.report.content import FigureBlock, Section, Table
from bertsecrets.results.run import CHECKPOINT
from bertsecrets.results.verdicts import DISPENSABLE, NEEDED
from bertsecrets.statistics.ranks import rank_correlation


def one_head(runs: PaperRuns) -> Chapter | None:
    """Section 3.2: removing one head; None if no run disabled every head."""
    by_name = runs.effects("head")
    if not by_name:
        return None
    few = Answers()
    rows = []
    for name, (_, effect) in by_name.items():
        share_R = effect.certain_RLH.mean(axis=(1, 2))
        few[name] = _most_seeds(
            effect.dispensable_RLH.mean(axis=(1, 2)) > 0.5, effect.needed_RLH.mean(axis=(1, 2)) > 0.5
        )
        size = effect.certain_RLH[0].size
        rows.append(
            [
                name,
                effect.what,
                f"{effect.count:,}",
                str(len(share_R)),
                f"{number(size * share_R.mean(), 1)} of {size}",
                number(size * effect.dispensable_RLH.mean(axis=(1, 2)).mean(), 1),
                number(size * (effect.certain_RLH & (effect.delta_RLH > 0)).mean(axis=(1, 2)).mean(), 1),
                f"{number(100 * np.nanmin(effect.delta_RLH), 1)} to {number(100 * np.nanmax(effect.delta_RLH), 1)}",
            ]
        )
    conditions = [condition for condition, _ in by_name.values()]
    few = without_unlearned(runs, conditions, few)
    claims = [
        Claim(
            "Removing one head changes the score significantly for few heads (8 of 96 of a translation model, half of them "
            "for the better).",
            "For more than half of the heads, a loss that matters is ruled out (true) or a significant loss is shown (false), "
            f"corrected over heads, in most seeds: {few}. A small loss may be significant and still not matter.",
            few.everywhere,
        )
    ]
    figure = head_panels(
        [
            HeadPanel(name, 100 * effect.delta_RLH.mean(axis=0), effect.certain_RLH.mean(axis=0) > 0.5)
            for name, (_, effect) in by_name.items()
        ],
        title="Change of score when one head is removed",
        unit="change of score (points)",
        note=f"{seeds_in_words([len(effect.delta_RLH) for _, effect in by_name.values()], pale=True)}; "
        f"{sample_size([effect.count for _, effect in by_name.values()])}",
        effects=True,
    )
    header = [
        "task",
        "metric (mode)",
        "examples",
        "seeds",
        "significant heads",
        "dispensable",
        "gains",
        "changes, points",
    ]
    section = Section(
        "Section 3.2: ablating one head",
        paragraphs=[
            *not_learned(runs, conditions),
            *_other_modes([effect for _, effect in by_name.values()]),
        ],
        tables=[*claims_tables(claims), Table(header, rows, "Single heads; numbers of heads are means over seeds")],
        figures=[FigureBlock("michel_one_head", figure, "Single heads, by task.", "Heatmaps by layer and head.")],
    )
    return Chapter(section, claims)


def all_but_one(runs: PaperRuns) -> Chapter | None:
    """Section 3.3: keeping one head of a layer; None if no run disabled all heads of layers but one."""
    enough = Answers()
    conditions = []
    rows = []
    for name, (condition, replicates) in runs.replicates("ablation").items():
        best = [best for view in replicates.views if (best := _best(view.run)) is not None]
        if not best:
            continue
        conditions.append(condition)
        layers = sorted(best[0])
        verdicts = [[row[layer]["verdict"] for layer in layers] for row in best]
        enough[name] = _enough(verdicts)
        theirs = published.ONE_HEAD if _is_theirs(condition) else None
        for place, layer in enumerate(layers):
            own = [row[layer] for row in best]
            rows.append(
                [
                    name,
                    str(layer),
                    ", ".join(str(row["head"]) for row in own),
                    ", ".join(number(100 * row["delta"], 1, signed=True) for row in own),
                    ", ".join(row["verdict"] for row in own),
                    MISSING if theirs is None or place >= len(theirs) else number(theirs[place], 2, signed=True),
                ]
            )
    if not enough:
        return None
    enough = without_unlearned(runs, conditions, enough)
    claims = [
        Claim(
            "In most layers one head is enough at test time.",
            "In more than half of the layers, with the layer's best head alone, a loss that matters is ruled out (true) or "
            f"shown (false) in most seeds: {enough}. The best of many heads is chosen on the examples that judge it.",
            enough.everywhere,
        )
    ]
    header = ["task", "layer", "best head, by seed", "change, points, by seed", "verdict, by seed", "paper (MNLI)"]
    section = Section(
        "Section 3.3: ablating all heads but one",
        paragraphs=not_learned(runs, conditions),
        tables=[*claims_tables(claims), Table(header, rows, "Each layer with its best head alone")],
    )
    return Chapter(section, claims)


def other_data(runs: PaperRuns) -> Chapter | None:
    """Section 3.4: whether the same heads matter on other data; None with fewer than two tasks that disabled heads."""
    by_name = runs.effects("head")
    pairs = [
        (first, second)
        for first, second in combinations(by_name, 2)
        if by_name[first][1].delta_RLH.shape[1:] == by_name[second][1].delta_RLH.shape[1:]
    ]
    if not pairs:
        return None
    rows = []
    agree = Answers()
    conditions = [condition for condition, _ in by_name.values()]
    judged = without_unlearned(runs, conditions, Answers(dict.fromkeys(by_name, True)))
    for first, second in pairs:
        means = [np.nanmean(by_name[name][1].delta_RLH, axis=0).ravel() for name in (first, second)]
        correlation = rank_correlation(*means)
        certain = correlation.low > 0 or correlation.high < 0
        certain &= {first, second} <= judged.keys()
        agree[f"{first} and {second}"] = bool(correlation.low > 0) if certain else None
        rows.append(
            [
                first,
                second,
                number(correlation.rho, 2),
                f"{number(correlation.low, 2)} to {number(correlation.high, 2)}",
            ]
        )
    claims = [
        Claim(
            f"Heads that matter on one set matter on another (MNLI matched and mismatched: r = {published.TRANSFER}).",
            f"The mean effects of two tasks' models rank heads alike, with an interval above 0: {agree}. These are different "
            "tasks and fine-tuned models; the paper compares two sets of one task on one model.",
            agree.mostly,
        )
    ]
    section = Section(
        "Section 3.4: are important heads the same across data sets?",
        paragraphs=not_learned(runs, conditions),
        tables=[
            *claims_tables(claims),
            Table(
                ["task", "other task", "Spearman's ρ", "95 % interval"], rows, "Agreement of the heads' mean effects"
            ),
        ],
    )
    return Chapter(section, claims)


def _other_modes(found: list[Effects]) -> list[str]:
    modes = sorted({effect.mode for effect in found} - {"zero"})
    if not modes:
        return []
    return [
        f"The paper sets a removed head's output to zero (ablation.mode=zero); these runs use mode {', '.join(modes)}."
    ]


def _best(run: Any) -> dict[int, dict[str, Any]] | None:
    """Layer -> the row of the head that keeps the most of the score alone; None if not measured."""
    rows = [row for row in run.ablation_table().rows() if row["kind"] == "all_but_one" and row["stage"] == CHECKPOINT]
    if not rows:
        return None
    first = rows[0]
    rows = [row for row in rows if all(row[name] == first[name] for name in ("metric", "mode", "evaluation", "step"))]
    return {
        layer: max((row for row in rows if row["layer"] == layer), key=lambda row: float(row["delta"]))
        for layer in {row["layer"] for row in rows}
    }


def _enough(verdicts: list[list[str]]) -> bool | None:
    """Whether one head is enough in most layers of most seeds; None where the tests leave that open."""
    shown = [sum(verdict == DISPENSABLE for verdict in row) > len(row) / 2 for row in verdicts]
    refuted = [sum(verdict == NEEDED for verdict in row) >= len(row) / 2 for row in verdicts]
    return _most_seeds(shown, refuted)


def _most_seeds(shown: Sequence[bool] | NDArray[np.bool_], refuted: Sequence[bool] | NDArray[np.bool_]) -> bool | None:
    """True or False if it is shown, or refuted, in more than half of the seeds; else None."""
    if sum(shown) > len(shown) / 2:
        return True
    return False if sum(refuted) > len(refuted) / 2 else None


def _is_theirs(condition: Condition) -> bool:
    return condition.task == "mnli" and condition.factors["model"] == MODEL
