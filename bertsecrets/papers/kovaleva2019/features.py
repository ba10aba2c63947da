"""Section 4.4, figure 6: attention to special tokens and to linguistic features."""

from collections.abc import Mapping, Sequence

import numpy as np

from bertsecrets.measures.linguistic.columns import SPECIAL, feature_label
from bertsecrets.measures.linguistic.features import OVER_RANDOM, RANDOM, UNIFORM
from bertsecrets.papers.chapter import (
    Answers,
    Chapter,
    Claim,
    PaperRuns,
    beside_the_paper,
    by_layer,
    claims_tables,
    highest_in_half,
    layer_means,
    not_learned,
    published_for,
    without_unlearned,
)
from bertsecrets.papers.kovaleva2019 import published
from bertsecrets.reporting.conditions import Condition
from bertsecrets.results.figures.panels import HeadPanel, head_panels
from bertsecrets.results.figures.style import sample_size, seeds_in_words
from bertsecrets.results.formatting import MISSING, head_label, number
from bertsecrets.results.report.content import FigureBlock, Section, Table
from bertsecrets.results.run import INITIAL
from bertsecrets.results.sections import highest
from bertsecrets.results.views import Change

_MEASURE = "features"
_PUBLISHED: dict[str, Mapping[str, tuple[float, ...]]] = {"cls": published.FIRST, "sep": published.SEPARATOR}
"""The special tokens of figure 6, with the paper's means by layer."""


_NO_WORDS = (*SPECIAL, "punctuation")


def features(runs: PaperRuns) -> Chapter | None:
    """Attention to [CLS] and [SEP] by task, and to words before and after; None if no run measured it."""
    measured = [condition for condition in runs.pretrained if condition.replicates(_MEASURE) is not None]
    if not measured:
        return None
    missing = [
        feature_label(column)
        for column in _PUBLISHED
        if not any(condition.grids(_MEASURE, column) for condition in measured)
    ]
    claims = [
        *_place_claim(runs, measured, "cls", "[CLS] is attended to in the earlier layers.", late=False),
        *_place_claim(runs, measured, "sep", "[SEP] is attended to in the later layers.", late=True),
        *_words_claim(runs, measured),
    ]
    section = Section(
        "Section 4.4, figure 6: attention to special tokens and linguistic features",
        paragraphs=[
            "The paper has no numbers of the model before fine-tuning; here both models saw the same examples.",
            *not_learned(runs, measured),
            *(
                f"No run measured attention to {token}: the paper's statement about it is left out."
                for token in missing
            ),
        ],
        tables=[
            *claims_tables(claims),
            *_special_table(runs, measured),
            *_before_and_after_table(runs, measured),
        ],
        figures=[block for column in _PUBLISHED for block in _figure(runs, measured, column)],
    )
    return Chapter(section, claims)


def _place_claim(
    runs: PaperRuns, measured: Sequence[Condition], column: str, statement: str, *, late: bool
) -> list[Claim]:
    """Whether the layer that attends most to a special token lies in one half, among the runs that measured the token."""
    answers = Answers()
    for condition in measured:
        grids = condition.grids(_MEASURE, column)
        mean_L = layer_means(condition, _MEASURE, column)
        if grids is not None and mean_L is not None:
            answers[runs.name(condition)] = highest_in_half(grids, mean_L, late=late)
    if not answers:
        return []
    answers = without_unlearned(runs, measured, answers)
    here = f"Its highest layer lies in the {'upper' if late else 'lower'} half, significantly above the other half: {answers}."
    return [Claim(statement, here, answers.everywhere)]


def _figure(runs: PaperRuns, measured: Sequence[Condition], column: str) -> list[FigureBlock]:
    by_name = {
        runs.title(condition): grids
        for condition in measured
        if (grids := condition.grids(_MEASURE, column)) is not None
    }
    if not by_name:
        return []
    panels = [HeadPanel(name, grids.value_RLH.mean(axis=0)) for name, grids in by_name.items()]
    seeds = seeds_in_words([len(grids.value_RLH) for grids in by_name.values()])
    token = feature_label(column)
    figure = head_panels(
        panels,
        title=f"Attention to {token}",
        unit="mean attention received",
        note=f"{seeds}, {sample_size([grids.count for grids in by_name.values()])} for each",
        limits=(0.0, max(float(np.nanmax(panel.value_LH)) for panel in panels)),
    )
    caption = f"Figure 6: attention to {token}, by task."
    return [FigureBlock(f"paper_figure6_{column}", figure, caption, "Heatmaps by layer and head.")]


def _special_table(runs: PaperRuns, measured: Sequence[Condition]) -> list[Table]:
    rows = []
    for column, values in _PUBLISHED.items():
        for condition in measured:
            mean_L = layer_means(condition, _MEASURE, column)
            theirs = published_for(condition, values)
            if mean_L is not None:
                published_L = MISSING if theirs is None else by_layer(theirs)
                rows.append([feature_label(column), runs.name(condition), by_layer(mean_L), published_L])
    header = ["token", "task", "mean by layer", "paper (figure)"]
    return (
        [beside_the_paper(header, rows, "Attention, mean over the heads of each layer, from layer 0")] if rows else []
    )


def _before_and_after(condition: Condition) -> dict[str, list[Change]]:
    """Changes since before fine-tuning, by column, one for each seed in which both models were measured.

    Columns of random words are left out.
    """
    replicates = condition.replicates(_MEASURE)
    by_column: dict[str, list[Change]] = {}
    for view in () if replicates is None else replicates.views:
        for column, change in view.compared.get(INITIAL, {}).items():
            if not column.endswith((RANDOM, OVER_RANDOM)):
                by_column.setdefault(column, []).append(change)
    return by_column


def _words_claim(runs: PaperRuns, measured: Sequence[Condition]) -> list[Claim]:
    rising = Answers()
    risen: dict[str, tuple[float, str]] = {}
    for condition in measured:
        words = [
            (column, change)
            for column, changes in _before_and_after(condition).items()
            for change in changes
            if column not in _NO_WORDS
        ]
        if words:
            name = runs.name(condition)
            largest = max((_largest_rise(column, change) for column, change in words), key=lambda rise: rise[0])
            # That no head is shown to rise does not show that none does.
            rising[name] = True if largest[0] > 0 else None
            risen[name] = (largest[0], f"{largest[1]} on {name}")
    if not rising:
        return []
    rising = without_unlearned(runs, measured, rising)
    shown = [risen[name] for name, answer in rising.items() if answer]
    most = f"; the largest rise is that of {max(shown)[1]}" if shown else ""
    return [
        Claim(
            "Fine-tuning makes some heads attend more to words that matter for the task (shown without the pre-trained model's "
            "numbers; whether the rise is negligible, as the paper says, is not judged).",
            f"Heads that attend significantly more to some kind of word than before fine-tuning exist: {rising}{most}.",
            rising.anywhere,
        )
    ]


def _largest_rise(column: str, change: Change) -> tuple[float, str]:
    """The largest significant rise of a head, 0 or less if there is none, with the head in words."""
    rise_LH = np.where(change.differs_LH, change.delta_LH, -1.0)
    head = highest(rise_LH)
    ends = " → ".join(number(float(value_LH[head])) for value_LH in (change.other_LH, change.own_LH))
    return float(rise_LH[head]), f"{head_label(*head)} ({feature_label(column)}: {ends})"


def _before_and_after_table(runs: PaperRuns, measured: Sequence[Condition]) -> list[Table]:
    rows, seeds = [], []
    for condition in measured:
        theirs = published_for(condition, published.FEATURES) or {}
        for column, changes in _before_and_after(condition).items():
            uniform = condition.grids(_MEASURE, column + UNIFORM)
            seeds.append(len(changes))
            up, down = (
                np.mean([(change.differs_LH & (sign * change.delta_LH > 0)).sum() for change in changes])
                for sign in (1, -1)
            )
            rows.append(
                [
                    runs.name(condition),
                    feature_label(column),
                    number(float(np.nanmean([change.other_LH for change in changes]))),
                    number(float(np.nanmean([change.own_LH for change in changes]))),
                    MISSING if uniform is None else number(float(np.nanmean(uniform.value_RLH))),
                    number(float(up), 0),
                    number(float(down), 0),
                    " → ".join(number(value) for value in theirs[column]) if column in theirs else MISSING,
                ]
            )
    header = ["task", "tokens", "before", "after", "uniform attention", "heads up", "heads down", "paper (notebook)"]
    caption = "Mean over heads before and after fine-tuning, and how many heads changed significantly"
    return [beside_the_paper(header, rows, f"{caption} ({seeds_in_words(seeds)})")] if rows else []
