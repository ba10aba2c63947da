"""Verdicts on disabled heads: their codes in tables, words on pages, and colours."""

from collections import ChainMap, Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertsecrets.results.formatting import are, counted, have, number, rounded_up

NEEDED, DISPENSABLE, INCONCLUSIVE, BETTER = "needed", "dispensable", "inconclusive", "better"
"""Codes: significant loss; loss smaller than the margin; neither; significant gain."""

CAN_BE_SPARED = (DISPENSABLE, BETTER)
"""Codes of heads that the model can do without."""

WORDS = {
    NEEDED: "needed",
    DISPENSABLE: "can be spared",
    INCONCLUSIVE: "not enough examples to tell",
    BETTER: "better without",
}
"""The words for each code, in their order on pages."""

OVER_SEEDS = ChainMap({INCONCLUSIVE: "not enough seeds or examples to tell"}, WORDS)
"""The words for a verdict over seeds, for which more examples alone may not be enough."""

COLOURS = {
    NEEDED: ("#b2182b", "#c9414f"),
    DISPENSABLE: ("#d3e3f1", "#2b4257"),
    INCONCLUSIVE: ("#e3e6ea", "#33383f"),
    BETTER: ("#2166ac", "#3f8ac9"),
}
"""Fill of a cell on light and on dark pages; for inconclusive cells, the colour of the hatching."""


MARKS = {NEEDED: "#b2182b", DISPENSABLE: "#7ba6cf", INCONCLUSIVE: "#b4b4b4", BETTER: "#2166ac"}
"""Colours of lines, bars and dots in figures: the same hues, dark enough for a white background."""


def shown_verdict(row: Mapping[str, Any]) -> str:
    """The code of a row of an ablation table, in which a significant gain has a separate column."""
    return BETTER if row["significant"] and row["delta"] > 0 else str(row["verdict"])


class Tally(NamedTuple):
    """How many heads or layers are needed, can be spared (some of them better without), and have no verdict."""

    needed: int
    spared: int
    unknown: int


def tally(codes: Iterable[str]) -> Tally:
    """Count the codes of each of the three.

    >>> tally([NEEDED, DISPENSABLE, BETTER])
    Tally(needed=1, spared=2, unknown=0)
    """
    count = Counter(codes)
    return Tally(count[NEEDED], count[DISPENSABLE] + count[BETTER], count[INCONCLUSIVE])


def needed_in_words(needed: int, subject: str, name: str = "") -> str:
    """How many of some heads or layers are needed, or that the one with a name is.

    >>> needed_in_words(1, "6 heads"), needed_in_words(1, "6 heads", "layer 0 · head 2")
    ('1 of 6 heads is needed', 'layer 0 · head 2 is needed')
    """
    return f"{name or f'{needed:,} of {subject}'} {are(needed)} needed"


def bound_in_words(subject: str, most: str) -> str:
    """The most that any of some heads or layers can cost.

    >>> bound_in_words("each of 6 heads", "1.7 points of accuracy")
    'each of 6 heads costs at most 1.7 points of accuracy'
    """
    return f"{subject} costs at most {most}"


def unknown_in_words(unknown: int, noun: str = "") -> str:
    """How many heads or layers have no verdict.

    >>> unknown_in_words(1), unknown_in_words(1200, "head")
    ('1 has no verdict', '1,200 heads have no verdict')
    """
    return f"{counted(unknown, noun) if noun else f'{unknown:,}'} {have(unknown)} no verdict"


def most_lost(lows: Iterable[float]) -> str | None:
    """Upper bound on every loss, in points, from the lower limits of changes of score; None if one is undefined.

    >>> most_lost([-0.0134, 0.002]), most_lost([float("nan")])
    ('1.4', None)
    """
    losses = [-low for low in lows]
    return number(max(0.0, rounded_up(max(losses))), 1) if losses and np.isfinite(losses).all() else None


def joint_verdicts(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The verdict on each variant across all metrics, from rows of one set and mode: name -> code."""
    codes: dict[str, list[str]] = {}
    for row in rows:
        codes.setdefault(row["variant"], []).append(shown_verdict(row))
    return {variant: over_metrics(each) for variant, each in codes.items()}


def joint_limits(row: Mapping[str, Any]) -> tuple[float, float]:
    """The simultaneous limits of a row's change of score over all variants of its kind; in older tables, pointwise
    limits.

    A page shows the variants with the largest changes, a selection for which pointwise intervals are too narrow.
    """
    names = ("low", "high") if row["low_simultaneous"] is None else ("low_simultaneous", "high_simultaneous")
    low, high = (float(row[name]) for name in names)
    return low, high


def over_metrics(codes: Sequence[str]) -> str:
    """One code for the verdicts by several metrics.

    Needed if any metric has a significant loss; dispensable if every metric excludes a loss; better without if a metric
    has a significant gain and every other excludes a loss.

    >>> over_metrics([NEEDED, DISPENSABLE]), over_metrics([DISPENSABLE, INCONCLUSIVE])
    ('needed', 'inconclusive')
    >>> over_metrics([BETTER, DISPENSABLE])
    'better'
    """
    for code, rest in ((NEEDED, None), (DISPENSABLE, ()), (BETTER, (DISPENSABLE,))):
        if code in codes and (rest is None or all(other == code or other in rest for other in codes)):
            return code
    return INCONCLUSIVE
