"""Generated maps against definitions of their patterns, computed cell by cell."""

from itertools import islice

import numpy as np
import pytest

from bertsecrets.patterns.classes import PATTERNS
from tools.pattern_classifier.generator import (
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
    """Median ink of the strongest diagonal at most two tokens from the main one, without the two strongest columns."""
    length, left_out = len(weight), strongest_columns(weight)[:2]
    medians = []
    for offset in range(-2, 3):
        cells = [
            weight[i, i + offset] for i in range(length) if 0 <= i + offset < length and i + offset not in left_out
        ]
        medians.append(float(np.median(cells)))
    return max(medians) / weight.max()


def rest_cells(weight: np.ndarray) -> list[tuple[int, int]]:
    """The cells outside the six strongest columns (a third in short maps) and more than two tokens from the
    diagonal.
    """
    length, left_out = len(weight), strongest_columns(weight)[: min(6, len(weight) // 3)]
    return [(i, j) for i in range(length) for j in range(length) if abs(i - j) > 2 and j not in left_out]


def rest_ink(weight: np.ndarray) -> float:
    """Mean ink of the rest."""
    cells = rest_cells(weight)
    return sum(weight[cell] for cell in cells) / len(cells) / weight.max() if cells else 0.0


def beside_ink(weight: np.ndarray) -> float:
    """Mean ink of the rest three to five tokens from the diagonal."""
    cells = [weight[i, j] for i, j in rest_cells(weight) if abs(i - j) <= 5]
    return sum(cells) / len(cells) / weight.max() if cells else 0.0


def inside_ink(weight: np.ndarray, separator: int) -> float:
    """Mean ink within the segments, without the main diagonal and the two strongest columns."""
    length, left_out = len(weight), strongest_columns(weight)[:2]
    cells = [
        weight[i, j]
        for i in range(length)
        for j in range(length)
        if i != j and j not in left_out and (i <= separator) == (j <= separator)
    ]
    return sum(cells) / len(cells) / weight.max()


def variance_by_column(weight: np.ndarray) -> float:
    """Share of the sum of squares between the columns, as in an analysis of variance with a group per column."""
    mean = weight.mean()
    between = sum(len(weight) * (column.mean() - mean) ** 2 for column in weight.T)
    return float(between / sum((cell - mean) ** 2 for cell in weight.flat))


def segment_contrast(weight: np.ndarray, separator: int) -> float:
    """Mean ink of the rest within the segments over that between them, both plus 1e-4."""
    ink: dict[bool, list[float]] = {True: [], False: []}
    for i, j in rest_cells(weight):
        ink[(i <= separator) == (j <= separator)].append(weight[i, j] / weight.max())
    if not ink[True] or not ink[False]:
        return 1.0
    return float((np.mean(ink[True]) + 1e-4) / (np.mean(ink[False]) + 1e-4))


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
        rest, by_column = rest_ink(weight) + 1e-4, variance_by_column(weight)
        contrast = 1.0 if sample.separator is None else segment_contrast(weight, sample.separator)
        if sample.pattern == "vertical":
            assert column > max(0.15, 4 * rest)
            assert by_column > 0.54
            assert diagonal < max(3.5 * rest, 0.09 * column)
            assert contrast < 1.9
        elif sample.pattern == "diagonal":
            assert diagonal > max(column, 4.5 * rest)
            assert column < 0.1 + rest
        elif sample.pattern == "vertical_diagonal":
            assert column > 0.125
            assert diagonal > max(0.04, 5 * rest, 2.4 * beside_ink(weight))
        elif sample.pattern == "block":
            assert sample.separator is not None
            assert block_mass(weight, sample.separator) > 0.18
            assert diagonal_mass(weight) < 0.36
            line = max(4.5 * rest, 2.2 * beside_ink(weight), 2.2 * inside_ink(weight, sample.separator))
            assert diagonal < line + 1e-9
            assert contrast > 2.2
        else:
            assert by_column < 0.46
            assert diagonal < 3.3 * rest
            assert contrast < 1.9


def test_vertical_maps_are_as_noisy_as_real_ones() -> None:
    generator = np.random.default_rng(8)
    outside, wide = [], []
    for _ in range(300):
        weight = generate_one("vertical", generator).attention_QK
        strongest = strongest_columns(weight)
        outside.append(weight.argmax() % len(weight) not in strongest[:2])
        wide.append(abs(strongest[0] - strongest[1]) == 1)
    # The largest weight may be a single cell's, and two neighbours stand side by side, such as doubled separators.
    assert np.mean(outside) > 0.07
    assert np.mean(wide) > 0.09


def test_strengths_equal_a_count_over_cells(generated: list[GeneratedMap]) -> None:
    for sample in generated[:60]:
        weight = sample.attention_QK
        strengths = measure_strengths(weight, sample.separator)
        assert strengths.column == pytest.approx(column_ink(weight, strongest_columns(weight)[0]))
        assert strengths.diagonal == pytest.approx(diagonal_ink(weight))
        assert strengths.rest == pytest.approx(rest_ink(weight))
        assert strengths.beside == pytest.approx(beside_ink(weight))
        assert strengths.inside == pytest.approx(
            0 if sample.separator is None else inside_ink(weight, sample.separator)
        )
        assert strengths.by_column == pytest.approx(variance_by_column(weight))
        assert strengths.near == pytest.approx(diagonal_mass(weight))
        assert strengths.blocks == pytest.approx(
            0 if sample.separator is None else block_mass(weight, sample.separator)
        )
        assert strengths.contrast == pytest.approx(
            1 if sample.separator is None else segment_contrast(weight, sample.separator)
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
    assert measure_strengths(halves, 5).contrast > 100
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
