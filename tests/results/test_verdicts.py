"""One code for the verdicts by several metrics."""

import itertools

import pytest

from bertsecrets.results.verdicts import (
    BETTER,
    COLOURS,
    DISPENSABLE,
    INCONCLUSIVE,
    NEEDED,
    WORDS,
    over_metrics,
    shown_verdict,
)


def test_every_verdict_has_one_word_and_colours_of_its_own() -> None:
    assert set(WORDS) == set(COLOURS) == {NEEDED, DISPENSABLE, INCONCLUSIVE, BETTER}
    assert len(set(WORDS.values())) == len({colour for pair in COLOURS.values() for colour in pair}) / 2 == 4


@pytest.mark.parametrize("codes", [*itertools.product((NEEDED, DISPENSABLE, INCONCLUSIVE, BETTER), repeat=3)])
def test_metrics_together_claim_no_more_than_they_show(codes: tuple[str, ...]) -> None:
    together = over_metrics(codes)
    assert (together == NEEDED) == (NEEDED in codes)
    assert (together == DISPENSABLE) == (set(codes) == {DISPENSABLE})
    # A gain by one metric is no gain while another may hide a loss.
    assert (together == BETTER) == (BETTER in codes and not {NEEDED, INCONCLUSIVE} & set(codes))


def test_a_significant_gain_is_better_without() -> None:
    row = {"significant": True, "delta": 0.02, "verdict": DISPENSABLE}
    assert shown_verdict(row) == BETTER
    assert shown_verdict({**row, "significant": False}) == DISPENSABLE
    assert shown_verdict({**row, "delta": -0.02, "verdict": NEEDED}) == NEEDED
