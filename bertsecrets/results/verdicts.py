"""Verdicts on disabled heads: their codes in tables, their words on pages, and their colours, the same everywhere."""

from collections import ChainMap, Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

NEEDED, DISPENSABLE, INCONCLUSIVE, BETTER = "needed", "dispensable", "inconclusive", "better"
"""Codes: a loss is shown; a loss of the margin is ruled out; neither; a gain is significant."""

WORDS = {
    NEEDED: "needed",
    DISPENSABLE: "can be spared",
    INCONCLUSIVE: "not enough examples to tell",
    BETTER: "better without",
}
"""The words for each code, in the order in which pages list them."""

OVER_SEEDS = ChainMap({INCONCLUSIVE: "not enough seeds or examples to tell"}, WORDS)
"""The words for a verdict over seeds, which more examples alone may not settle."""

COLOURS = {
    NEEDED: ("#b2182b", "#c9414f"),
    DISPENSABLE: ("#d3e3f1", "#2b4257"),
    INCONCLUSIVE: ("#e3e6ea", "#33383f"),
    BETTER: ("#2166ac", "#3f8ac9"),
}
"""Fill of a cell on light and on dark paper; where there are not enough examples to tell, the colour of its
hatching.
"""


MARKS = {NEEDED: "#b2182b", DISPENSABLE: "#7ba6cf", INCONCLUSIVE: "#b4b4b4", BETTER: "#2166ac"}
"""Lines, bars and dots in figures: the same hues, dark enough for white paper."""


def shown_verdict(row: Mapping[str, Any]) -> str:
    """The code of a row of an ablation table, which holds a significant gain in a column of its own."""
    return BETTER if row["significant"] and row["delta"] > 0 else str(row["verdict"])


class Tally(NamedTuple):
    """How many heads or layers are needed, can be spared (some of them better without), and have no verdict."""

    needed: int
    spared: int
    unknown: int


def tally(codes: Iterable[str]) -> Tally:
    """How many of the codes mean each of the three.

    >>> tally([NEEDED, DISPENSABLE, BETTER])
    Tally(needed=1, spared=2, unknown=0)
    """
    count = Counter(codes)
    return Tally(count[NEEDED], count[DISPENSABLE] + count[BETTER], count[INCONCLUSIVE])


def joint_verdicts(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The verdict on each variant over all metrics, from rows of one set and mode: name -> code."""
    codes: dict[str, list[str]] = {}
    for row in rows:
        codes.setdefault(row["variant"], []).append(shown_verdict(row))
    return {variant: over_metrics(each) for variant, each in codes.items()}


def joint_limits(row: Mapping[str, Any]) -> tuple[float, float]:
    """The limits of a row's change of score that hold for all variants of its kind; in older tables those of the row
    alone.

    A page shows the variants that changed the score most, which the interval of one by itself does not allow for.
    """
    names = ("low", "high") if row["low_simultaneous"] is None else ("low_simultaneous", "high_simultaneous")
    low, high = (float(row[name]) for name in names)
    return low, high


def over_metrics(codes: Sequence[str]) -> str:
    """One code for the verdicts by several metrics.

    Needed if any metric shows a loss, can be spared if every metric rules one out; better without if a metric shows a
    gain and none may hide a loss.

    >>> over_metrics([NEEDED, DISPENSABLE]), over_metrics([DISPENSABLE, INCONCLUSIVE])
    ('needed', 'inconclusive')
    >>> over_metrics([BETTER, DISPENSABLE])
    'better'
    """
    for code, rest in ((NEEDED, None), (DISPENSABLE, ()), (BETTER, (DISPENSABLE,))):
        if code in codes and (rest is None or all(other == code or other in rest for other in codes)):
            return code
    return INCONCLUSIVE
