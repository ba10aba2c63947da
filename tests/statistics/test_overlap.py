"""Overlap of two sets of heads against Fisher's exact test and every way to draw one of them."""

from itertools import combinations, product

import numpy as np
import pytest
from scipy import stats

from bertsecrets.statistics.overlap import overlap_by_layer


def test_one_layer_is_fishers_exact_test() -> None:
    first_H, second_H = np.arange(12) < 7, np.isin(np.arange(12), [0, 1, 2, 3, 4, 9])
    both, expected, p = overlap_by_layer(first_H[None], second_H[None])
    table = [[(first_H == left).astype(int) @ (second_H == right) for left in (1, 0)] for right in (1, 0)]
    assert (both, expected) == (5, pytest.approx(7 * 6 / 12))
    assert p == pytest.approx(stats.fisher_exact(table).pvalue)


def test_two_layers_are_every_way_to_draw_the_second_set() -> None:
    first_LH = np.array([[1, 1, 1, 0, 0], [1, 0, 0, 0, 0]], bool)
    second_LH = np.array([[1, 1, 0, 0, 0], [1, 1, 0, 0, 0]], bool)
    draws = product(*(combinations(range(5), size) for size in second_LH.sum(1)))
    overlaps = np.array([sum(first_LH[layer, list(drawn)].sum() for layer, drawn in enumerate(rows)) for rows in draws])
    chance = np.bincount(overlaps) / len(overlaps)
    both, expected, p = overlap_by_layer(first_LH, second_LH)
    assert (both, expected) == (3, pytest.approx(overlaps.mean()))
    assert p == pytest.approx(chance[chance <= chance[3] + 1e-12].sum())


def test_layers_kept_whole_or_not_at_all_show_nothing() -> None:
    first_LH = np.array([[1, 1, 0], [1, 0, 0]], bool)
    assert overlap_by_layer(first_LH, [[True] * 3, [False] * 3]) == (2, pytest.approx(2.0), pytest.approx(1.0))
