"""Generated maps against definitions of their patterns that are computed cell by cell."""

from itertools import islice

import numpy as np
import pytest

from bertsecrets.patterns.classes import PATTERNS
from bertsecrets.patterns.generator import LONGEST, SHORTEST, GeneratedMap, find, generate, generate_one


@pytest.fixture(scope="module")
def made() -> list[GeneratedMap]:
    return list(islice(generate(np.random.default_rng(5)), 400))


def near(weight: np.ndarray, row: int, column: int) -> bool:
    """Whether a cell is near the diagonal, as annotators are told: two tokens, or an eighth of a long map."""
    return abs(row - column) <= max(2, len(weight) // 8)


def column_mass(weight: np.ndarray) -> float:
    """Mean weight of the six columns that receive most, fewer in short maps, beyond uniform attention."""
    length = len(weight)
    most = sorted((sum(weight[:, k]) / length for k in range(length)), reverse=True)[: min(6, length // 4)]
    return sum(most) - len(most) / length


def diagonal_mass(weight: np.ndarray) -> float:
    """Mean weight near the diagonal, beyond uniform attention."""
    length = len(weight)
    cells = [(i, j) for i in range(length) for j in range(length) if near(weight, i, j)]
    return sum(weight[cell] for cell in cells) / length - len(cells) / length**2


def rows_that_follow_columns(weight: np.ndarray) -> float:
    """Share of rows whose largest weight away from the diagonal, or in the commonest columns, is in one of these."""
    length = len(weight)
    received = [sum(weight[:, k]) for k in range(length)]
    columns = sorted(range(length), key=lambda k: -received[k])[: min(6, length // 4)]
    count = 0
    for i in range(length):
        apart = [j for j in range(length) if j in columns or not near(weight, i, j)]
        count += max(apart, key=lambda j: weight[i, j]) in columns
    return count / length


def block_mass(weight: np.ndarray, separator: int) -> float:
    """Mean weight that stays in the row's own segment, beyond uniform attention."""
    length = len(weight)
    cells = [(i, j) for i in range(length) for j in range(length) if (i <= separator) == (j <= separator)]
    return sum(weight[cell] for cell in cells) / length - len(cells) / length**2


def test_rows_are_distributions_and_maps_repeat_under_a_seed(made: list[GeneratedMap]) -> None:
    again = list(islice(generate(np.random.default_rng(5)), 20))
    for one, other in zip(made, again, strict=False):
        assert np.array_equal(one.attention_QK, other.attention_QK)
    for each in made:
        assert np.allclose(each.attention_QK.sum(1), 1)
        assert (each.attention_QK >= 0).all()
        assert SHORTEST <= len(each.attention_QK) <= LONGEST


def test_each_pattern_has_what_defines_it_and_lacks_what_defines_the_others(made: list[GeneratedMap]) -> None:
    for each in made:
        weight = each.attention_QK
        columns, diagonal = column_mass(weight), diagonal_mass(weight)
        if each.pattern == "vertical":
            assert columns > 0.1
            assert diagonal < columns / 2
            assert rows_that_follow_columns(weight) > 0.4
        elif each.pattern == "diagonal":
            assert diagonal > 0.18
        elif each.pattern == "vertical_diagonal":
            assert min(columns, diagonal) > 0.06
            assert columns > diagonal / 4
        elif each.pattern == "block":
            assert each.separator is not None
            assert block_mass(weight, each.separator) > 0.17
            assert diagonal < 0.2
        else:
            assert diagonal < 0.17


def test_what_a_map_shows_is_what_one_counts_in_it() -> None:
    length = 16
    column, band, halves = np.full((length, length), 0.0), np.eye(length), np.zeros((length, length))
    column[:, 0] = 1
    halves[:6, :6], halves[6:, 6:] = 1 / 6, 1 / 10
    near_share = (length + 2 * (length - 1) + 2 * (length - 2)) / length**2
    first = find(column, np.array([0]), None)
    assert (first.columns, first.standing) == pytest.approx((1 - 1 / length, 1))
    # Three rows have the column within two tokens.
    assert first.band == pytest.approx(3 / length - near_share)
    second = find(band, np.array([0]), None)
    assert (second.band, second.hugging) == pytest.approx((1 - near_share, 1))
    assert second.columns == pytest.approx(0)
    third = find(halves, np.array([3]), 5)
    assert third.blocks == pytest.approx(1 - (6**2 + 10**2) / length**2)
    # A column that holds more than those asked about counts in their place.
    assert find(column, np.array([3, 9]), None).columns == pytest.approx(1 - 1 / length)


def test_length_and_segments_do_not_tell_the_pattern(made: list[GeneratedMap]) -> None:
    lengths = {name: np.log([len(m.attention_QK) for m in made if m.pattern == name]) for name in PATTERNS}
    means = [values.mean() for values in lengths.values()]
    error = max(values.std() / np.sqrt(len(values)) for values in lengths.values())
    assert max(means) - min(means) < 5 * error
    for name in PATTERNS:
        paired = [each.separator is not None for each in made if each.pattern == name]
        assert any(paired)
        assert name == "block" or not all(paired)


def test_a_pattern_can_be_asked_for() -> None:
    generator = np.random.default_rng(0)
    assert {name: generate_one(name, generator).pattern for name in PATTERNS} == {name: name for name in PATTERNS}
