"""Generator of attention maps of the five patterns, for pre-training the classifier.

A map is a mixture of parts (columns, a band along the diagonal, two blocks, and a background of one of nine kinds), each
with its share of every row, under noise in the logits: A = softmax(ln(mixture) + noise). A map that does not show its
pattern clearly is drawn again; only annotated maps are doubtful.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from bertsecrets.patterns.classes import PATTERNS

Array = NDArray[np.float64]

SHORTEST, LONGEST = 8, 128
_TINY = 1e-6
_REACH, _FAINT = 2, 1e-4


@dataclass(frozen=True)
class GeneratedMap:
    """A generated map.

    Args:
        attention_QK: Weights ``[L, L]`` float64; rows sum to 1.
        pattern: One of :data:`~bertsecrets.patterns.classes.PATTERNS`.
        separator: Position of the token that ends the first of two segments; None for one segment.
    """

    attention_QK: Array
    pattern: str
    separator: int | None


@dataclass(frozen=True)
class _Shares:
    """Share of each row's attention for each part; the rest goes to the background, even (True), uneven or any (None)."""

    columns: float = 0.0
    band: float = 0.0
    blocks: float = 0.0
    even: bool | None = None


@dataclass(frozen=True)
class MapStrengths:
    """How strongly a map shows each part; ink is the weight divided by the map's largest.

    Args:
        column: Mean ink of the strongest column, over the rows more than two tokens away.
        diagonal: Mean ink of the strongest diagonal at most two tokens from the main one, outside the two strongest
            columns.
        rest: Mean ink outside the six strongest columns and more than two tokens from the main diagonal.
        near: Share of a row's attention near the diagonal, minus that of uniform attention.
        hugging: Share of rows with the largest weight near the diagonal, scaled from 0 for chance to 1.
        blocks: Attention of rows within their own of two segments, scaled from 0 for uniform attention to 1.
    """

    column: float
    diagonal: float
    rest: float
    near: float
    hugging: float
    blocks: float


def generate(generator: Generator) -> Iterator[GeneratedMap]:
    """Endless maps, alternating between the five patterns, with log-uniform lengths from 8 to 128 tokens.

    Half of the maps have two segments; all ``block`` maps have.

    Args:
        generator: Source of randomness; the same state gives the same maps.
    """
    for number in count():
        yield generate_one(PATTERNS[number % len(PATTERNS)], generator)


def generate_one(pattern: str, generator: Generator) -> GeneratedMap:
    """Draw one map of a pattern."""
    length = int(np.exp(generator.uniform(np.log(SHORTEST), np.log(LONGEST + 1))))
    separator = None
    if pattern == "block" or generator.random() < 0.5:
        # Each segment has at least a word and a separator, and the first one [CLS].
        separator = int(np.clip(round(length * generator.uniform(0.15, 0.85)), 3, length - 4))
    while True:
        shares = _draw_shares(pattern, generator)
        attention_QK = _draw(length, separator, shares, generator)
        if _shows(pattern, measure_strengths(attention_QK, separator)):
            return GeneratedMap(attention_QK, pattern, separator)


def _draw_shares(pattern: str, generator: Generator) -> _Shares:
    uniform = generator.uniform
    if pattern == "vertical":
        columns = uniform(0.18, 0.98)
        # An uneven background would compete with weak columns.
        even = True if columns < 0.4 else None
        return _Shares(columns=columns, band=min(columns * uniform(0, 0.2), 1 - columns), even=even)
    if pattern == "diagonal":
        band = uniform(0.25, 0.98)
        return _Shares(band=band, columns=min(band * uniform(0, 0.25), 1 - band))
    if pattern == "vertical_diagonal":
        total, part = uniform(0.3, 0.98), uniform(0.12, 0.83)
        return _Shares(columns=total * part, band=total * (1 - part))
    if pattern == "block":
        blocks = uniform(0.25, 0.95)
        rest = 1 - blocks
        return _Shares(blocks=blocks, columns=rest * uniform(0.2, 1), band=rest * uniform(0, 0.3))
    columns = uniform(0, 0.25)
    return _Shares(columns=columns, band=uniform(0, 0.15), even=False if columns > 0.1 else None)


def _shows(pattern: str, strengths: MapStrengths) -> bool:
    """Whether a map still shows its pattern after the noise.

    The thresholds leave a gap around the strengths where the annotators of the project's maps change their answer.
    """
    column, diagonal, rest = strengths.column, strengths.diagonal, strengths.rest + _FAINT
    if pattern == "vertical":
        return column > max(0.2, 8.5 * rest) and diagonal < max(6.5 * rest, 0.15 * column)
    if pattern == "diagonal":
        return column - rest < 0.1 and diagonal > max(8 * rest, 1.2 * column) and strengths.hugging > 0.5
    if pattern == "vertical_diagonal":
        return column - rest > 0.125 and column > 6 * rest and diagonal > max(7.5 * rest, 0.18 * column)
    if pattern == "block":
        return strengths.blocks > 0.3 and strengths.near < 0.25 and diagonal < 7.5 * rest
    return column < max(0.1, 7.5 * rest) and diagonal < 5 * rest


def _draw(length: int, separator: int | None, shares: _Shares, generator: Generator) -> Array:
    columns_QK, band_QK = _columns(length, separator, generator), _band(length, generator)
    mixture_QK = _background(length, separator, shares.even, generator)
    parts = [(shares.columns, columns_QK), (shares.band, band_QK)]
    if shares.blocks and separator is not None:
        parts.append((shares.blocks, _blocks(length, separator, generator)))
    # Shares vary from row to row; some rows hardly follow a part.
    steady = np.exp(generator.uniform(np.log(1.5), np.log(80)))
    weight_QP = np.stack([_row_shares(share, length, steady, generator) for share, _ in parts], axis=1)
    weight_QP /= np.maximum(1.0, weight_QP.sum(1, keepdims=True) / 0.99)
    mixture_QK = mixture_QK * (1 - weight_QP.sum(1, keepdims=True))
    for place, (_, part_QK) in enumerate(parts):
        mixture_QK = mixture_QK + weight_QP[:, place, None] * part_QK
    logit_QK = np.log(mixture_QK + _TINY)
    logit_QK += generator.normal(0, generator.uniform(0, 0.6), (length, length))
    logit_QK += generator.normal(0, generator.uniform(0, 0.25), length)
    if generator.random() < 0.3:
        # The row of the classification token often differs from the others.
        logit_QK[0] = generator.normal(0, 1, length)
        logit_QK[0, generator.choice([0, length - 1])] += generator.uniform(0, 6)
    return _softmax(logit_QK)


def measure_strengths(attention_QK: Array, separator: int | None) -> MapStrengths:
    """Measure the parts of a map. Near the diagonal means within two tokens or, in long maps, an eighth of the length."""
    length = len(attention_QK)
    ink_QK = attention_QK / attention_QK.max()
    place_K = np.arange(length)
    distance_QK = abs(place_K[:, None] - place_K)
    far_QK = distance_QK > _REACH
    column_K = (ink_QK * far_QK).sum(0) / np.maximum(far_QK.sum(0), 1)
    strongest_K = column_K.argsort()[::-1]
    weak_K = ~np.isin(place_K, strongest_K[:2])
    rest_QK = far_QK & ~np.isin(place_K, strongest_K[:6])
    near_QK = distance_QK <= max(_REACH, length // 8)
    chance = near_QK.mean()
    hugging = near_QK[place_K, attention_QK.argmax(1)].mean()
    blocks = 0.0
    if separator is not None:
        within_QK = (place_K <= separator)[:, None] == (place_K <= separator)
        blocks = ((attention_QK * within_QK).sum(1).mean() - within_QK.mean()) / (1 - within_QK.mean())
    return MapStrengths(
        column=float(column_K.max()),
        diagonal=max(
            float(np.diagonal(ink_QK, offset)[np.diagonal(np.tile(weak_K, (length, 1)), offset)].mean())
            for offset in range(-_REACH, _REACH + 1)
        ),
        rest=float(ink_QK[rest_QK].mean()) if rest_QK.any() else 0.0,
        near=float((attention_QK * near_QK).sum(1).mean() - chance),
        hugging=float((hugging - chance) / (1 - chance)),
        blocks=float(blocks),
    )


def _row_shares(share: float, length: int, steady: float, generator: Generator) -> Array:
    if share <= 0:
        return np.zeros(length)
    share = min(share, 0.99)
    share_Q = generator.beta(share * steady, (1 - share) * steady, length)
    skipped_Q = generator.random(length) < generator.choice([0.0, 0.0, 0.08])
    return np.where(skipped_Q, share_Q * 0.2, share_Q)


def _columns(length: int, separator: int | None, generator: Generator) -> Array:
    """One to six columns: special tokens or any others, such as punctuation."""
    special = [0, length - 1, *([] if separator is None else [separator])]
    number = min(int(generator.choice([1, 2, 3, 4, 5, 6], p=[0.4, 0.25, 0.15, 0.1, 0.05, 0.05])), length // 4)
    likely_K = np.full(length, 0.35 / length)
    likely_K[special] += 0.65 / len(special)
    chosen_C = generator.choice(length, size=number, replace=False, p=likely_K / likely_K.sum())
    weight_C = generator.dirichlet(np.full(number, 3.0))
    part_QK = np.zeros((length, length))
    jitter_QC = generator.gamma(generator.uniform(3, 30), size=(length, number))
    part_QK[:, chosen_C] = weight_C * jitter_QC
    if separator is not None and {separator, length - 1} <= set(chosen_C.tolist()) and generator.random() < 0.5:
        # Each segment attends to its own separator.
        part_QK[: separator + 1, length - 1] *= 0.1
        part_QK[separator + 1 :, separator] *= 0.1
    part_QK /= part_QK.sum(1, keepdims=True)
    return part_QK


def _band(length: int, generator: Generator) -> Array:
    """A band at a small offset, sharp or soft, straight or wavering, clipped to the map's edge."""
    offset = int(generator.choice([-2, -1, 0, 1, 2], p=[0.08, 0.32, 0.2, 0.32, 0.08]))
    widest = max(1.4, length / 16)
    width = generator.choice(
        [0.25, generator.uniform(0.25, 0.7), generator.uniform(0.7, 1.4), generator.uniform(1, widest)],
        p=[0.15, 0.2, 0.3, 0.35],
    )
    query_Q1, key_K = np.arange(length)[:, None], np.arange(length)
    wobble_Q1 = generator.normal(0, generator.choice([0.0, 0.0, 0.4, 0.8]), (length, 1))
    centre_Q1 = np.clip(query_Q1 + offset + np.rint(wobble_Q1), 0, length - 1)
    part_QK: Array = np.exp(-((key_K - centre_Q1) ** 2) / (2 * width**2))
    if generator.random() < 0.25:
        # Both neighbours.
        part_QK += generator.uniform(0.3, 1) * np.exp(-((key_K - query_Q1 + offset) ** 2) / (2 * width**2))
    if width > 1:
        # Near tokens differ, such as words of the same phrase and others.
        part_QK *= np.exp(generator.normal(0, generator.uniform(0, 1.5), (length, length)))
    part_QK /= part_QK.sum(1, keepdims=True)
    return part_QK


def _blocks(length: int, separator: int, generator: Generator) -> Array:
    first = np.arange(length) <= separator
    liking_K = generator.normal(0, generator.uniform(0, 0.8), length)
    texture_QK = generator.uniform(0, 1.2) * _topics(length, generator)
    part_QK: Array = (first[:, None] == first[None]) * np.exp(liking_K + texture_QK)
    if generator.random() < 0.5:
        part_QK[:, [0, separator, length - 1]] *= generator.uniform(0, 1)
    part_QK /= part_QK.sum(1, keepdims=True)
    return part_QK


def _background(length: int, separator: int | None, even: bool | None, generator: Generator) -> Array:
    """Attention outside the pattern: even (True), uneven (False), or either (None)."""
    kinds: list[Callable[[], Array]] = [
        lambda: generator.normal(0, generator.uniform(0.5, 1.5), (length, length)),
        lambda: _topics(length, generator),
        lambda: _sparse(length, generator),
        lambda: _many_columns(length, generator),
        lambda: _stripes(length, generator),
        lambda: _wide_band(length, generator),
        lambda: _chunks(length, generator),
        lambda: _copies(length, separator, generator),
    ]
    if even or (even is None and generator.random() < 0.15):
        return _softmax(generator.normal(0, generator.uniform(0, 0.5), (length, length)))
    logit_QK = kinds[int(generator.integers(len(kinds)))]()
    if generator.random() < 0.4:
        logit_QK = logit_QK + generator.uniform(0.3, 1) * kinds[int(generator.integers(len(kinds)))]()
    return _softmax(logit_QK)


def _topics(length: int, generator: Generator) -> Array:
    """Tokens of a few kinds that attend to tokens of other kinds."""
    rank = int(generator.integers(1, 6))
    query_QR, key_KR = generator.normal(size=(2, length, rank))
    logit_QK: Array = generator.uniform(0.4, 1.6) * query_QR @ key_KR.T / np.sqrt(rank)
    return logit_QK


def _sparse(length: int, generator: Generator) -> Array:
    """A few tokens per row."""
    logit_QK = generator.normal(0, 0.5, (length, length))
    dots_QK = generator.random((length, length)) < generator.uniform(0.5, 3) / length
    return logit_QK + dots_QK * generator.uniform(2, 6)


def _many_columns(length: int, generator: Generator) -> Array:
    """Many weak columns that only some rows follow."""
    column_K = generator.normal(0, generator.uniform(0.3, 0.9), length)
    return column_K * generator.uniform(0, 1.2, (length, 1)) + generator.normal(0, 0.3, (length, length))


def _stripes(length: int, generator: Generator) -> Array:
    """Many equal columns, as from attention to every content word."""
    number = int(generator.integers(min(8, length // 2), max(9, length // 2)))
    column_K = np.zeros(length)
    column_K[generator.choice(length, number, replace=False)] = generator.uniform(0.7, 2.5)
    return column_K + generator.normal(0, generator.uniform(0.1, 0.7), (length, length))


def _wide_band(length: int, generator: Generator) -> Array:
    """A wide preference for near tokens, without a line."""
    width = generator.uniform(0.08, 0.5) * length + 3
    distance_QK = np.arange(length)[:, None] - np.arange(length) + generator.uniform(-3, 3)
    return -(distance_QK**2) / (2 * width**2) + generator.normal(0, 0.4, (length, length))


def _chunks(length: int, generator: Generator) -> Array:
    """Phrases of two to ten tokens that attend to themselves and to some other phrases."""
    phrase = np.cumsum(generator.random(length) < 1 / generator.uniform(2, 10))
    affinity = generator.normal(0, 1, (phrase[-1] + 1, phrase[-1] + 1)) * generator.uniform(0.5, 1.5)
    logit_QK: Array = affinity[phrase][:, phrase] + generator.normal(0, 0.3, (length, length))
    return logit_QK


def _copies(length: int, separator: int | None, generator: Generator) -> Array:
    """Line segments far from the diagonal, as from words repeated in both segments."""
    logit_QK = generator.normal(0, 0.4, (length, length))
    for _ in range(int(generator.integers(1, 4))):
        shift = separator if separator is not None and generator.random() < 0.6 else int(generator.integers(4, length))
        shift = max(4, shift + int(generator.integers(-2, 3)))
        start, size = int(generator.integers(0, length)), int(generator.integers(2, max(3, length // 2)))
        rows = np.arange(start, min(start + size, length))
        strength = generator.uniform(1, 4)
        for queries, keys in ((rows, rows + shift), (rows, rows - shift)):
            inside = (keys >= 0) & (keys < length)
            logit_QK[queries[inside], keys[inside]] += strength
    return logit_QK


def _softmax(logit_QK: Array) -> Array:
    weight_QK: Array = np.exp(logit_QK - logit_QK.max(1, keepdims=True))
    weight_QK /= weight_QK.sum(1, keepdims=True)
    return weight_QK
