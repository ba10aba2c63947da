"""Generated maps against definitions of their patterns, computed cell by cell."""

from itertools import islice

import numpy as np
import pytest

from bertsecrets.patterns.classes import PATTERNS
from bertsecrets.patterns.training.generator import (
    LONGEST,
    SHORTEST,
    GeneratedMap,
    generate,
    generate_one,
    measure_strengths,
)


@pytest.fixture(scope="module")
def generated() -> list[GeneratedMap]:
    return list(islice(generate(np.random.default_rng(5)), 400))


def near(weight: np.ndarray, row: int, column: int) -> bool:
    """Whether a cell is near the diagonal: within two tokens, or an eighth of a long map."""
    return abs(row - column) <= max(2, len(weight) // 8)


def column_ink(weight: np.ndarray, column: int) -> float:
    """Mean ink of a column in the rows more than two tokens away."""
    cells = [weight[i, column] for i in range(len(weight)) if abs(i - column) > 2]
    return sum(cells) / len(cells) / weight.max()


def strongest_columns(weight: np.ndarray) -> list[int]:
    return sorted(range(len(weight)), key=lambda k: -column_ink(weight, k))


def diagonal_ink(weight: np.ndarray) -> float:
    """Mean ink of the strongest diagonal at most two tokens from the main one, without the two strongest columns."""
    length, left_out = len(weight), strongest_columns(weight)[:2]
    means = []
    for offset in range(-2, 3):
        cells = [
            weight[i, i + offset] for i in range(length) if 0 <= i + offset < length and i + offset not in left_out
        ]
        means.append(sum(cells) / len(cells))
    return max(means) / weight.max()


def rest_ink(weight: np.ndarray) -> float:
    """Mean ink outside the six strongest columns and more than two tokens from the diagonal."""
    length, left_out = len(weight), strongest_columns(weight)[:6]
    cells = [weight[i, j] for i in range(length) for j in range(length) if abs(i - j) > 2 and j not in left_out]
    return sum(cells) / len(cells) / weight.max() if cells else 0.0


def diagonal_mass(weight: np.ndarray) -> float:
    """Share of a row's attention near the diagonal, minus that of uniform attention."""
    length = len(weight)
    cells = [(i, j) for i in range(length) for j in range(length) if near(weight, i, j)]
    return sum(weight[cell] for cell in cells) / length - len(cells) / length**2


def block_mass(weight: np.ndarray, separator: int) -> float:
    """Attention within the row's own segment, scaled from 0 for uniform attention to 1."""
    length = len(weight)
    cells = [(i, j) for i in range(length) for j in range(length) if (i <= separator) == (j <= separator)]
    chance = len(cells) / length**2
    return (sum(weight[cell] for cell in cells) / length - chance) / (1 - chance)


def test_rows_are_distributions_and_maps_repeat_under_a_seed(generated: list[GeneratedMap]) -> None:
    again = list(islice(generate(np.random.default_rng(5)), 20))
    for one, other in zip(generated, again, strict=False):
        assert np.array_equal(one.attention_QK, other.attention_QK)
    for sample in generated:
        assert np.allclose(sample.attention_QK.sum(1), 1)
        assert (sample.attention_QK >= 0).all()
        assert SHORTEST <= len(sample.attention_QK) <= LONGEST


def test_each_pattern_has_what_defines_it_and_lacks_what_defines_the_others(generated: list[GeneratedMap]) -> None:
    for sample in generated[:200]:
        weight = sample.attention_QK
        column, diagonal = column_ink(weight, strongest_columns(weight)[0]), diagonal_ink(weight)
        rest = rest_ink(weight)
        if sample.pattern == "vertical":
            assert column > 0.2
            assert column > 8 * rest
            assert diagonal < max(7 * rest, 0.16 * column)
        elif sample.pattern == "diagonal":
            assert diagonal > max(column, 7 * rest)
            assert column < 0.1 + rest
        elif sample.pattern == "vertical_diagonal":
            assert column > 0.125
            assert diagonal > 0.17 * column
        elif sample.pattern == "block":
            assert sample.separator is not None
            assert block_mass(weight, sample.separator) > 0.3
            assert diagonal_mass(weight) < 0.25
            assert diagonal < 7.6 * rest
        else:
            assert column < max(0.1, 8 * rest)
            assert diagonal < 5.1 * rest


def test_strengths_equal_a_count_over_cells(generated: list[GeneratedMap]) -> None:
    for sample in generated[:60]:
        weight = sample.attention_QK
        strengths = measure_strengths(weight, sample.separator)
        assert strengths.column == pytest.approx(column_ink(weight, strongest_columns(weight)[0]))
        assert strengths.diagonal == pytest.approx(diagonal_ink(weight))
        assert strengths.rest == pytest.approx(rest_ink(weight))
        assert strengths.near == pytest.approx(diagonal_mass(weight))
        assert strengths.blocks == pytest.approx(
            0 if sample.separator is None else block_mass(weight, sample.separator)
        )


def test_strengths_of_constructed_maps() -> None:
    length = 16
    column, halves = np.zeros((length, length)), np.zeros((length, length))
    column[:, 0] = 1
    halves[:6, :6], halves[6:, 6:] = 1 / 6, 1 / 10
    near_share = (length + 2 * (length - 1) + 2 * (length - 2)) / length**2
    first, second = measure_strengths(column, None), measure_strengths(np.eye(length), None)
    assert (first.column, first.diagonal, first.rest, first.blocks) == (1, 0, 0, 0)
    # Three rows have the column within two tokens.
    assert first.near == pytest.approx(3 / length - near_share)
    assert (second.column, second.diagonal, second.rest) == (0, 1, 0)
    assert (second.near, second.hugging) == pytest.approx((1 - near_share, 1))
    assert measure_strengths(halves, 5).blocks == pytest.approx(1)
    assert measure_strengths(np.full((length, length), 1 / length), 5).blocks == pytest.approx(0)


def test_length_and_segments_do_not_reveal_the_pattern(generated: list[GeneratedMap]) -> None:
    lengths = {name: np.log([len(m.attention_QK) for m in generated if m.pattern == name]) for name in PATTERNS}
    means = [values.mean() for values in lengths.values()]
    error = max(values.std() / np.sqrt(len(values)) for values in lengths.values())
    assert max(means) - min(means) < 5 * error
    for name in PATTERNS:
        paired = [sample.separator is not None for sample in generated if sample.pattern == name]
        assert any(paired)
        assert name == "block" or not all(paired)


def test_one_map_of_a_pattern() -> None:
    generator = np.random.default_rng(0)
    assert {name: generate_one(name, generator).pattern for name in PATTERNS} == {name: name for name in PATTERNS}
