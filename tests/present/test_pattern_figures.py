"""Figures of attention patterns: what they draw is what they were given."""

import numpy as np

from bertsecrets.patterns.classes import NAMES, dominant_patterns
from bertsecrets.present.figures.patterns import ShareBar, pattern_bars, pattern_grid


def texts(axes: object) -> list[str]:
    return [each.get_text() for each in axes.texts]  # type: ignore[attr-defined]


def test_bars_stack_to_one_and_name_their_shares() -> None:
    share = np.array([0.5, 0.03, 0.2, 0.07, 0.1, 0.1])
    bars = [ShareBar("mrpc", share, np.full(6, 0.02)), ShareBar("qqp", share[::-1], np.full(6, np.nan))]
    axes = pattern_bars(bars, title="t", note="n = 10 examples").axes[0]
    assert [each.get_text() for each in axes.get_yticklabels()] == ["mrpc", "qqp"]
    widths = np.array([[patch.get_width() for patch in axes.patches[row::2]] for row in range(2)])
    assert np.allclose(widths, [share, share[::-1]])
    # Too small a share has no number.
    assert sorted(texts(axes)) == sorted(["50", "20", "7", "10", "10"] * 2)


def test_a_head_has_the_pattern_of_half_its_maps_or_none() -> None:
    share = np.zeros((1, 4, len(NAMES)))
    share[0, 0, 1] = 0.5
    share[0, 0, 0] = 0.4
    share[0, 1, :3] = 0.33
    share[0, 2, NAMES.index("uncertain")] = 0.9
    share[0, 3] = np.nan
    assert dominant_patterns(share).tolist() == [[1, -1, -1, -1]]
    axes = pattern_grid(share, title="t", note="n").axes[0]
    assert texts(axes) == ["50"]
    legend = axes.get_legend()
    assert legend is not None
    assert [each.get_text() for each in legend.get_texts()] == ["diagonal", "no pattern in half the maps"]
