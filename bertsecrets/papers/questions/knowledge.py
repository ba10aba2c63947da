"""Questions about patterns and linguistic knowledge, before and after fine-tuning."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bertsecrets.measures.linguistic.columns import SPECIAL, above_zero, feature_label, pair_label
from bertsecrets.measures.linguistic.features import OVER_RANDOM, RANDOM, UNIFORM
from bertsecrets.measures.linguistic.token_to_token import BEYOND, MEAN
from bertsecrets.papers.models import Group, Studied
from bertsecrets.papers.questions.answer import (
    UNTOLD,
    Answer,
    Array,
    Estimate,
    Told,
    changes_since,
    estimate,
    lacking,
    widest_error,
)
from bertsecrets.patterns.measure import NAMED, Patterns, over_seeds
from bertsecrets.results.figures.intervals import IntervalRow, interval_rows
from bertsecrets.results.figures.panels import HeadPanel, head_panels
from bertsecrets.results.figures.patterns import ShareBar, pattern_bars
from bertsecrets.results.figures.style import sample_size, seeds_in_words
from bertsecrets.results.formatting import head_label, number
from bertsecrets.results.report.content import FigureBlock, Table
from bertsecrets.results.run import INITIAL
from bertsecrets.results.sections import compared_section, highest
from bertsecrets.results.views import Change, MeasureView

_NAMES = tuple(column.name for column in Patterns.columns)
_COULD_MEAN = ("heterogeneous", "block")
_COMPARED = " compare_with=[initial]"
_NAMED_WRONGLY = "The classifier names about one map in five wrongly (docs/patterns.md)."
_NO_PATTERNS = "no run named the patterns of maps, before and after fine-tuning."


def before_and_after(runs: Studied) -> Answer:
    """How many heads attend more, or less, to each kind of token than before fine-tuning."""
    told = []
    for one in runs.tuned:
        views = one.views("features", ready=lambda view: bool(_features(view)))
        if not views:
            continue
        changes = _features(views[0])
        up, down = (
            float(
                np.mean(
                    [
                        sum(
                            int((change.differs_LH & (sign * change.delta_LH > 0)).sum())
                            for change in _features(view).values()
                        )
                        for view in views
                    ]
                )
            )
            for sign in (1, -1)
        )
        total = sum(change.delta_LH.size for change in changes.values())
        moved = {column: _mean_change(views, column) for column in changes}
        most = max(moved, key=lambda column: abs(moved[column].value))
        change = changes[most]
        certain = sum(estimated.sign != 0 for estimated in moved.values())
        sentence = (
            f"Of {total:,} numbers ({change.delta_LH.size} heads, {len(changes)} kinds of tokens), {number(up, 0)} rise and "
            f"{number(down, 0)} fall significantly{', mean over seeds' if len(views) > 1 else ''}. Averaged over heads, attention to "
            f"{feature_label(most)} moves most: {number(float(np.nanmean(change.other_LH)))} before and "
            f"{number(float(np.nanmean(change.own_LH)))} after, {moved[most].text()}."
        )
        short = f"{certain} of {len(moved)} kinds of tokens change on average" if certain else UNTOLD
        section = compared_section(views[0])
        figures = [] if section is None else section.figures[:1]
        blocks = [
            FigureBlock(f"features_{one.name}", block.figure, f"{block.caption} {one.name}.", block.alt)
            for block in figures
        ]
        told.append(Told(one.name, short, sentence, [_change_table(changes, moved)], blocks))
    missing = lacking(
        runs,
        told,
        "no run compared attention to words and special tokens with the model before fine-tuning.",
        lambda one: f"analysis=features{_COMPARED}{one.annotated}",
    )
    return Answer(told, missing)


def _features(view: MeasureView) -> dict[str, Change]:
    """Changes since before fine-tuning, by kind of token, without random words."""
    return {
        column: change
        for column, change in view.compared.get(INITIAL, {}).items()
        if not column.endswith((RANDOM, OVER_RANDOM, UNIFORM)) and np.isfinite(change.delta_LH).any()
    }


def _mean_change(views: Sequence[MeasureView], column: str) -> Estimate:
    """Mean over heads of the change of a column since before fine-tuning."""
    changes = [found for view in views if (found := changes_since(view, column)) is not None]
    return estimate([float(np.nanmean(delta_LH)) for delta_LH, _ in changes], widest_error(changes[0][1]))


def _change_table(changes: dict[str, Change], moved: dict[str, Estimate]) -> Table:
    rows = [
        [
            feature_label(column),
            number(float(np.nanmean(change.other_LH))),
            number(float(np.nanmean(change.own_LH))),
            number(moved[column].value, signed=True),
            f"{number(moved[column].low, signed=True)} to {number(moved[column].high, signed=True)}",
            str(int((change.differs_LH & (change.delta_LH > 0)).sum())),
            str(int((change.differs_LH & (change.delta_LH < 0)).sum())),
        ]
        for column, change in changes.items()
    ]
    header = ["attention to", "before", "after", "change", "95 % interval", "heads up", "heads down"]
    return Table(header, rows, "Mean over heads, and heads that changed significantly (first seed)")


def side_by_side(runs: Studied) -> Answer:
    """Patterns, linguistic knowledge and importance in one place."""
    told = []
    missing = []
    for one in runs.tuned:
        views = one.views("patterns", *_NAMES)
        words = one.views("features", ready=lambda view: bool(_over_random(view)))
        effect = one.effects("head")
        parts = []
        shorts = []
        if views:
            share_C, reach_C = _shares(views)
            most = int(np.argmax(share_C))
            low, high = (100 * (share_C[most] + sign * reach_C[most]) for sign in (-1, 1))
            parts.append(
                f"Patterns: the most frequent is {_label(_NAMES[most])}, {number(100 * share_C[most], 0)} % of the maps (95 % interval "
                f"{number(low, 0)} to {number(min(high, 100.0), 0)})."
            )
            shorts.append(f"{_label(_NAMES[most])} maps most frequent")
        else:
            missing += lacking(_only(runs, one), [], _NO_PATTERNS, f"analysis=patterns{_COMPARED}")
        if words:
            own, before = _attending(words[0]), _attending(words[0].at(INITIAL))
            parts.append(
                f"Linguistic knowledge: {own} of {_size(words[0])} heads attend to some kind of word more than to as many random "
                f"words{f'; before fine-tuning {before} did' if before is not None else ''}."
            )
            shorts.append(f"{own} of {_size(words[0])} heads attend to some kind of word")
        else:
            missing += lacking(
                _only(runs, one),
                [],
                "no run compared attention to words with random words.",
                f"analysis=features{_COMPARED}{one.annotated}",
            )
        figures = []
        if effect is not None:
            delta_LH = effect.delta_RLH.mean(axis=0)
            needed, spare = (mask.mean(axis=0).sum() for mask in (effect.needed_RLH, effect.dispensable_RLH))
            parts.append(
                f"Importance: disabling one head changes {effect.metric} by {number(100 * float(np.nanmin(delta_LH)), 1, signed=True)} "
                f"to {number(100 * float(np.nanmax(delta_LH)), 1, signed=True)} points; {number(float(needed), 0)} heads are needed, "
                f"{number(float(spare), 0)} can be spared, and for the rest there are not enough examples to tell ({effect.count:,} examples)."
            )
            shorts.append(f"{number(float(needed), 0)} heads needed")
            figure = head_panels(
                [HeadPanel(one.name, 100 * delta_LH)],
                title="Change of score when a head is disabled",
                unit="change of score (points)",
                note=f"{seeds_in_words(len(effect.delta_RLH))}; {sample_size(effect.count)}; colours show chance as well",
                signed=True,
            )
            figures = [FigureBlock(f"importance_{one.name}", figure, f"Single heads disabled, {one.name}.", "Heatmap.")]
        else:
            missing += lacking(_only(runs, one), [], "no run disabled every head in turn.", "analysis=disable")
        if parts:
            told.append(Told(one.name, "; ".join(shorts), " ".join(parts), [], figures))
    return Answer(told, missing)


def _only(runs: Studied, one: Group) -> Studied:
    return replace(runs, groups=(one,))


def _over_random(view: MeasureView) -> list[str]:
    """The columns of words over as many random words, without special tokens."""
    return [
        column.name
        for column in view.columns
        if column.name.endswith(OVER_RANDOM)
        and column.name.removesuffix(OVER_RANDOM) not in SPECIAL
        and view.has(column.name)
        and view.count(column.name) > 1
    ]


def _attending(view: MeasureView | None) -> int | None:
    """Number of heads that attend to some kind of word more than to random words; None without such numbers."""
    names = [] if view is None else _over_random(view)
    if view is None or not names:
        return None
    return int(np.any(above_zero(view, names), axis=0).sum())


def _size(view: MeasureView) -> int:
    return view.value(_over_random(view)[0]).size


def meaningful_or_vertical(runs: Studied) -> Answer:
    """Whether the share of vertical maps, or of maps that could be informative, grew in fine-tuning."""
    told = []
    for one in runs.tuned:
        views = one.views("patterns", *_NAMES, ready=lambda view: changes_since(view, _NAMES[0]) is not None)
        if not views:
            continue
        vertical = _mean_change(views, "vertical")
        could = _sum_of_changes(views, _COULD_MEAN)
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
            _NAMES,
            title=f"Patterns before and after fine-tuning: {one.name}",
            note=f"{NAMED}; {sample_size(views[0].count(_NAMES[0]))}; bars at the end of a share: 95 % intervals",
            unit="share of attention maps",
        )
        block = FigureBlock(f"patterns_{one.name}", figure, f"Patterns before and after, {one.name}.", "Stacked bars.")
        told.append(Told(one.name, short, f"{sentence} {_NAMED_WRONGLY}", [], [block]))
    return Answer(told, lacking(runs, told, _NO_PATTERNS, f"analysis=patterns{_COMPARED}"))


def _shares(views: Sequence[MeasureView]) -> tuple[Array, Array]:
    """Share of each pattern and the half-width of its interval, over seeds or examples."""
    share_RLHC = np.stack([np.stack([view.value(name) for name in _NAMES], axis=-1) for view in views])
    error_RLHC = np.stack([np.stack([view.stderr(name) for name in _NAMES], axis=-1) for view in views])
    return over_seeds(share_RLHC, error_RLHC)


def _sum_of_changes(views: Sequence[MeasureView], columns: Sequence[str]) -> Estimate:
    """Change of several shares together: the errors are added, which is the most that they can amount to."""
    parts = [[changes_since(view, column) for column in columns] for view in views]
    sums = [sum(float(np.nanmean(part[0])) for part in seed if part is not None) for seed in parts]
    return estimate(sums, sum(widest_error(part[1]) for part in parts[0] if part is not None))


def shares_of_patterns(runs: Studied) -> Answer:
    """The share of each pattern."""
    told = []
    for one in runs.tuned:
        views = one.views("patterns", *_NAMES)
        if not views:
            continue
        share_C, reach_C = _shares(views)
        over = "seeds" if len(views) > 1 else "examples"
        shares = {
            name: Estimate(float(share), max(0.0, float(share - reach)), min(1.0, float(share + reach)), over)
            for name, share, reach in zip(_NAMES, share_C, reach_C, strict=True)
        }
        sentence = "; ".join(
            f"{_label(name)} {share.text(1, 100, signed=False, unit=' %')}" for name, share in shares.items()
        )
        figure = interval_rows(
            [
                IntervalRow(_label(name), 100 * share.value, 100 * share.low, 100 * share.high)
                for name, share in shares.items()
            ],
            title=f"Share of each pattern: {one.name}",
            unit="share of attention maps (%)",
            note=f"lines: 95 % intervals over {over}; {sample_size(views[0].count(_NAMES[0]))}; {NAMED}",
            reference=None,
        )
        block = FigureBlock(
            f"shares_{one.name}", figure, f"Shares of the patterns, {one.name}.", "Dots with intervals."
        )
        told.append(Told(one.name, "", f"Shares of the maps: {sentence}. {_NAMED_WRONGLY}", [], [block]))
    missing = lacking(runs, told, "no run named the patterns of maps.", f"analysis=patterns{_COMPARED}")
    return Answer(told, missing)


def _label(pattern: str) -> str:
    return pattern.replace("_", " + ")


def linked_words(runs: Studied) -> Answer:
    """Whether heads attend to linked words beyond what the distance between them explains."""
    told = []
    for one in runs.tuned:
        views = one.views("token_to_token", ready=lambda view: bool(_pairs(view)))
        if not views:
            continue
        view = views[0]
        pairs = _pairs(view)
        beyond = dict(zip(pairs, above_zero(view, [pair + BEYOND for pair in pairs]), strict=True))
        linking = [pair for pair in pairs if beyond[pair].any()]
        rows = {}
        for pair in pairs:
            value_LH, stderr_LH, _ = view.grid(pair + BEYOND)
            place = highest(value_LH)
            rows[pair] = (place, estimate([float(value_LH[place])], float(stderr_LH[place])))
        best = max(pairs, key=lambda pair: rows[pair][1].value)
        place, gain = rows[best]
        sentence = (
            f"For {len(linking)} of {len(pairs)} kinds of linked words, some head attends to them significantly more than to other "
            f"words at the same distance. The largest such difference is for {pair_label(best)} in {head_label(*place)}: "
            f"{gain.text()} of a mean attention of {number(float(view.value(best + MEAN)[place]))} to them. The interval is not "
            "corrected for choosing the highest head."
        )
        if len(views) > 1:
            sentence += " This is the first seed."
        short = f"beyond position for {len(linking)} of {len(pairs)} kinds" if linking else UNTOLD
        figure = interval_rows(
            [
                IntervalRow(f"{pair_label(pair)} (layer {at[0]} · head {at[1]})", each.value, each.low, each.high)
                for pair, (at, each) in rows.items()
            ],
            title="Attention to linked words beyond that to words at the same distance",
            unit="mean attention beyond position, highest head",
            note=f"lines: 95 % intervals over examples; {sample_size([view.count(pair + BEYOND) for pair in pairs])}",
        )
        block = FigureBlock(f"linked_{one.name}", figure, f"Linked words, {one.name}.", "Dots with intervals.")
        told.append(Told(one.name, short, sentence, [], [block]))
    missing = lacking(
        runs,
        told,
        "no run measured attention between linked words beside other words at the same distance.",
        lambda one: f"analysis=token_to_token{one.annotated}",
    )
    return Answer(told, missing)


def _pairs(view: MeasureView) -> list[str]:
    """Kinds of linked words with enough examples to test what is beyond position."""
    return [
        column.name.removesuffix(BEYOND)
        for column in view.columns
        if column.name.endswith(BEYOND)
        and view.has(column.name)
        and view.count(column.name) > 1
        and view.has(column.name.removesuffix(BEYOND) + MEAN)
        and np.isfinite(view.value(column.name)).any()
    ]
