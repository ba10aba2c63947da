"""Generated maps against definitions of their patterns that are computed cell by cell."""

from itertools import islice

import numpy as np
import pytest

from bertsecrets.patterns.classes import PATTERNS
from bertsecrets.patterns.generator import LONGEST, SHORTEST, GeneratedMap, generate, generate_one


@pytest.fixture(scope="module")
def made() -> list[GeneratedMap]:
    return list(islice(generate(np.random.default_rng(5)), 400))


def column_mass(weight: np.ndarray) -> float:
    """Mean weight of the four columns that receive most, beyond uniform attention."""
    length = len(weight)
    return sum(sorted((sum(weight[:, k]) / length for k in range(length)), reverse=True)[:4]) - 4 / length


def diagonal_mass(weight: np.ndarray) -> float:
    """Mean weight within one token of the best offset in -2..2, beyond uniform attention."""
    length = len(weight)
    best = 0.0
    for centre in range(-2, 3):
        cells = [
            (i, i + offset)
            for i in range(length)
            for offset in range(centre - 1, centre + 2)
            if 0 <= i + offset < length
        ]
        best = max(best, sum(weight[cell] for cell in cells) / length - len(cells) / length**2)
    return best


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
        blocks = 0.0 if each.separator is None else block_mass(weight, each.separator)
        if each.pattern == "vertical":
            assert columns > 0.3
            assert diagonal < 0.25
            assert blocks < 0.4
        elif each.pattern == "diagonal":
            assert diagonal > 0.15
            assert columns < 0.35
        elif each.pattern == "vertical_diagonal":
            assert columns > 0.15
            assert diagonal > 0.1
        elif each.pattern == "block":
            assert blocks > 0.2
            assert max(columns, diagonal) < 0.4
        else:
            assert columns < 0.45
            assert diagonal < 0.25
            assert blocks < 0.4


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
