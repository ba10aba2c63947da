"""Questions about patterns and linguistic knowledge, before and after fine-tuning."""

from collections.abc import Iterator, Sequence

import numpy as np

from bertsecrets.measures.linguistic.columns import feature_label
from bertsecrets.papers.models import Group, Studied
from bertsecrets.papers.questions.answer import Array, Estimate, GroupAnswer, Missing, Part, estimate, widest_error
from bertsecrets.papers.statements.judge import UNTOLD
from bertsecrets.patterns.classes import NAMES, over_seeds
from bertsecrets.present.figures.patterns import ShareBar, pattern_bars
from bertsecrets.present.figures.style import sample_size
from bertsecrets.present.grid import compared_section
from bertsecrets.present.patterns import NAMED
from bertsecrets.present.report.content import FigureBlock, Table
from bertsecrets.results.formatting import number
from bertsecrets.results.run import INITIAL
from bertsecrets.results.views import Change, MeasureView

_COULD_MEAN = ("heterogeneous", "block")
_COMPARED = " 'compare_with=[initial]'"
_NAMED_WRONGLY = "The classifier names about one map in five wrongly (docs/patterns.md)."


def before_and_after(models: Studied, group: Group) -> Iterator[Part]:
    """How many heads attend more, or less, to each kind of token than before fine-tuning."""
    views = group.views("features", ready=lambda view: bool(_features(view)))
    if not views:
        why = "no run compared attention to words and special tokens with the model before fine-tuning."
        yield Missing(group.name, why, group.command(f"analysis=features{_COMPARED}{group.annotated}"))
        return
    changes = _features(views[0])
    of_seeds = [_features(view).values() for view in views]
    up = float(np.mean([sum(change.risen for change in of_seed) for of_seed in of_seeds]))
    down = float(np.mean([sum(change.fallen for change in of_seed) for of_seed in of_seeds]))
    total = sum(change.delta_LH.size for change in changes.values())
    moved = {column: _mean_change(views, column) for column in changes}
    most = max(moved, key=lambda column: abs(moved[column].value))
    change = changes[most]
    certain = sum(estimated.sign != 0 for estimated in moved.values())
    sentence = (
        f"Of {total:,} numbers ({change.delta_LH.size} heads, {len(changes)} kinds of tokens), {number(up, 0)} rise and "
        f"{number(down, 0)} fall significantly{', mean over seeds' if len(views) > 1 else ''}. Averaged over heads, attention to "
        f"{feature_label(most)} moves most: {number(float(np.nanmean(change.other_LH)))} before and "
        f"{number(float(np.nanmean(change.model_LH)))} after, {moved[most].text()}."
    )
    short = f"{certain} of {len(moved)} kinds of tokens change on average" if certain else UNTOLD
    section = compared_section(views[0])
    figures = [] if section is None else section.figures[:1]
    blocks = [
        FigureBlock(f"features_{group.name}", block.figure, f"{block.caption} {group.name}.", block.alt)
        for block in figures
    ]
    yield GroupAnswer(group.name, short, sentence, [_change_table(changes, moved)], blocks)


def _features(view: MeasureView) -> dict[str, Change]:
    """Changes since before fine-tuning, by kind of token."""
    return {
        column: change
        for column, change in view.compared.get(INITIAL, {}).items()
        if np.isfinite(change.delta_LH).any()
    }


def _mean_change(views: Sequence[MeasureView], *columns: str) -> Estimate:
    """Mean over heads of the summed change of columns since before fine-tuning; the error is an upper bound, the sum of theirs."""
    seeds = [[change for column in columns if (change := view.difference(column)) is not None] for view in views]
    means = [sum(float(np.nanmean(delta_LH)) for delta_LH, _, _ in changes) for changes in seeds if changes]
    return estimate(means, sum(widest_error(stderr_LH) for _, stderr_LH, _ in next(filter(None, seeds))))


def _change_table(changes: dict[str, Change], moved: dict[str, Estimate]) -> Table:
    rows = [
        [
            feature_label(column),
            number(float(np.nanmean(change.other_LH))),
            number(float(np.nanmean(change.model_LH))),
            *moved[column].cells(),
            str(change.risen),
            str(change.fallen),
        ]
        for column, change in changes.items()
    ]
    header = ["attention to", "before", "after", "change", "95 % interval", "heads up", "heads down"]
    return Table(header, rows, "Mean over heads, and heads that changed significantly (first seed)")


def meaningful_or_vertical(models: Studied, group: Group) -> Iterator[Part]:
    """Whether the share of vertical maps, or of maps that could be informative, grew in fine-tuning."""
    views = group.views("patterns", *NAMES, ready=lambda view: view.difference(NAMES[0]) is not None)
    if not views:
        why = "no run named the patterns of maps, before and after fine-tuning."
        yield Missing(group.name, why, group.command(f"analysis=patterns{_COMPARED}"))
        return
    vertical, could = _mean_change(views, "vertical"), _mean_change(views, *_COULD_MEAN)
    short = {
        (1, 0): "vertical",
        (1, -1): "vertical",
        (0, 1): "patterns that could be meaningful",
        (-1, 1): "patterns that could be meaningful",
        (-1, 0): "fewer vertical maps",
        (0, -1): "fewer maps that could be meaningful",
        (1, 1): "both grow",
        (-1, -1): "both shrink",
    }.get((vertical.sign, could.sign), UNTOLD)
    sentence = (
        f"The share of vertical maps changes by {vertical.text(1, 100, unit=' points')}, that of heterogeneous and block maps, "
        f"which could be meaningful, by {could.text(1, 100, unit=' points')}."
    )
    initial = [before for view in views if (before := view.at(INITIAL)) is not None]
    bars = [ShareBar("before fine-tuning", *_shares(initial)), ShareBar("fine-tuned", *_shares(views))]
    figure = pattern_bars(
        bars,
        title=f"Patterns before and after fine-tuning: {group.name}",
        note=f"{NAMED}; {sample_size(views[0].count(NAMES[0]))}; bars at the end of a share: 95 % intervals",
    )
    block = FigureBlock(f"patterns_{group.name}", figure, f"Patterns before and after, {group.name}.", "Stacked bars.")
    yield GroupAnswer(group.name, short, f"{sentence} {_NAMED_WRONGLY}", [], [block])


def _shares(views: Sequence[MeasureView]) -> tuple[Array, Array]:
    """Share of each pattern and the half-width of its interval, over seeds or examples."""
    share_RLHC = np.stack([np.stack([view.value(name) for name in NAMES], axis=-1) for view in views])
    error_RLHC = np.stack([np.stack([view.stderr(name) for name in NAMES], axis=-1) for view in views])
    return over_seeds(share_RLHC, error_RLHC)
