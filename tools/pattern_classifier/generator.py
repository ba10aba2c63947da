"""Generator of attention maps of the five patterns, for pre-training the classifier.

A map is a mixture of parts (columns, a band along the diagonal, two blocks, and a background of one of nine kinds),
each with its share of every row, under noise in the logits: A = softmax(ln(mixture) + noise). Rows of special tokens
and single bright cells may depart from it. A map that does not show its pattern clearly is drawn again; only annotated
maps are doubtful.
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
    """Share of each row's attention for each part; the rest goes to the background, even (True), uneven or any (None).

    A spotty band is followed by few rows.
    """

    columns: float = 0.0
    band: float = 0.0
    blocks: float = 0.0
    even: bool | None = None
    spotty: bool = False


@dataclass(frozen=True)
class MapStrengths:
    """How strongly a map shows each part; ink is the weight divided by the map's largest.

    The rest of the map is more than two tokens from the main diagonal and outside the six strongest columns, or in
    short maps the strongest third.

    Args:
        column: Mean ink of the strongest column, over the rows more than two tokens away.
        diagonal: Median ink of the strongest diagonal at most two tokens from the main one, outside the two strongest
            columns: single bright cells make no line.
        beside: Mean ink of the rest, three to five tokens from the main diagonal.
        inside: Mean ink within the segments, outside the main diagonal and the two strongest columns; 0 for one
            segment.
        rest: Mean ink of the rest.
        by_column: Share of the variance of the weights between the columns, 0..1.
        near: Share of a row's attention near the diagonal, minus that of uniform attention.
        hugging: Share of rows with the largest weight near the diagonal, scaled from 0 for chance to 1.
        blocks: Attention of rows within their own of two segments, scaled from 0 for uniform attention to 1.
        contrast: Mean ink of the rest within the segments over that between them; 1 for one segment.
    """

    column: float
    diagonal: float
    beside: float
    inside: float
    rest: float
    by_column: float
    near: float
    hugging: float
    blocks: float
    contrast: float


def generate(generator: Generator) -> Iterator[GeneratedMap]:
    """Endless maps, alternating between the five patterns, with log-uniform lengths from 8 to 128 tokens.

    Two thirds of the maps have two segments, as have all ``block`` maps.

    Args:
        generator: Source of randomness; the same state gives the same maps.
    """
    for number in count():
        yield generate_one(PATTERNS[number % len(PATTERNS)], generator)


def generate_one(pattern: str, generator: Generator) -> GeneratedMap:
    """Draw one map of a pattern."""
    length = int(np.exp(generator.uniform(np.log(SHORTEST), np.log(LONGEST + 1))))
    separator = None
    if pattern == "block" or generator.random() < 0.65:
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
        columns = uniform(0.2, 0.98)
        return _Shares(columns=columns, band=min(columns * uniform(0, 0.3), 1 - columns), spotty=True)
    if pattern == "diagonal":
        band = uniform(0.25, 0.98)
        return _Shares(band=band, columns=min(band * uniform(0, 0.25), 1 - band))
    if pattern == "vertical_diagonal":
        total, part = uniform(0.3, 0.98), uniform(0.12, 0.83)
        return _Shares(columns=total * part, band=total * (1 - part))
    if pattern == "block":
        blocks = uniform(0.15, 0.95)
        rest = 1 - blocks
        return _Shares(blocks=blocks, columns=rest * uniform(0.2, 1), band=rest * uniform(0, 0.3), spotty=True)
    columns = uniform(0, 0.45)
    return _Shares(columns=columns, band=uniform(0, 0.2), even=False if columns > 0.1 else None, spotty=True)


def _shows(pattern: str, strengths: MapStrengths) -> bool:
    """Whether a map still shows its pattern after the noise.

    The thresholds leave a gap around the strengths where the annotators of the project's maps change their answer.
    """
    column, diagonal, rest = strengths.column, strengths.diagonal, strengths.rest + _FAINT
    if pattern == "vertical":
        # Before a dark background, even a faint diagonal is seen.
        hidden = max(3.5 * rest, min(0.09 * column, max(12 * rest, 0.03)))
        return (
            column > max(0.15, 4 * rest)
            and strengths.by_column > 0.54
            and diagonal < hidden
            and strengths.contrast < 1.9
        )
    if pattern == "diagonal":
        return column - rest < 0.1 and diagonal > max(4.5 * rest, 1.1 * column) and strengths.hugging > 0.5
    if pattern == "vertical_diagonal":
        seen = diagonal > max(5 * rest, 0.04) and (diagonal > 0.13 * column or diagonal > 20 * rest)
        return column - rest > 0.125 and column > 6 * rest and seen and diagonal > 2.4 * strengths.beside
    if pattern == "block":
        # The edge of a triangle is no line: the cells beside it are bright too.
        line = diagonal > max(4.5 * rest, 2.2 * strengths.beside, 2.2 * strengths.inside)
        return strengths.contrast > 2.2 and strengths.blocks > 0.18 and strengths.near < 0.36 and not line
    return strengths.by_column < 0.46 and diagonal < 3.3 * rest and strengths.contrast < 1.9


def _draw(length: int, separator: int | None, shares: _Shares, generator: Generator) -> Array:
    special = [0, length - 1]
    if separator is not None:
        # Some families put two separators between the segments.
        special += [separator, separator + 1] if generator.random() < 0.3 else [separator]
    columns_QK, band_QK = _columns(length, separator, special, generator), _band(length, generator)
    mixture_QK = _background(length, separator, shares.even, generator)
    if generator.random() < 0.25:
        mixture_QK = _damped(mixture_QK, _one_side(length, generator), generator)
    if separator is not None:
        first_K = np.arange(length) <= separator
        across_QK = first_K[:, None] != first_K
        if generator.random() < 0.2:
            mixture_QK = _damped(mixture_QK, across_QK, generator)
        if shares.blocks and generator.random() < 0.5:
            columns_QK = _damped(columns_QK, across_QK, generator)
    if generator.random() < 0.25:
        # Heads that avoid the token itself.
        itself_QK = np.eye(length, dtype=bool)
        mixture_QK, columns_QK = (_damped(part_QK, itself_QK, generator) for part_QK in (mixture_QK, columns_QK))
    parts = [(shares.columns, columns_QK), (shares.band, band_QK)]
    if shares.blocks and separator is not None:
        parts.append((shares.blocks, _blocks(length, separator, generator)))
    # Shares vary from row to row; some rows hardly follow a part.
    steady = np.exp(generator.uniform(np.log(1.5), np.log(80)))
    weight_QP = np.stack([_row_shares(share, length, steady, generator) for share, _ in parts], axis=1)
    if shares.spotty and generator.random() < 0.5:
        weight_QP[:, 1] *= np.where(generator.random(length) < 0.3, 3.0, 0.0)
    weight_QP /= np.maximum(1.0, weight_QP.sum(1, keepdims=True) / 0.99)
    mixture_QK = mixture_QK * (1 - weight_QP.sum(1, keepdims=True))
    for place, (_, part_QK) in enumerate(parts):
        mixture_QK = mixture_QK + weight_QP[:, place, None] * part_QK
    logit_QK = np.log(mixture_QK + _TINY)
    logit_QK += generator.normal(0, generator.uniform(0, 0.8), (length, length))
    logit_QK += generator.normal(0, generator.uniform(0, 0.25), length)
    if generator.random() < 0.4:
        # The rows of special tokens often differ from the others.
        for query in special:
            if query == 0 or generator.random() < 0.6:
                logit_QK[query] = generator.normal(0, 1, length)
                logit_QK[query, generator.choice([query, *special])] += generator.uniform(0, 7)
    if generator.random() < 0.3:
        # The largest weight may be that of a single cell.
        queries = generator.choice(length, int(generator.integers(1, 5)), replace=False)
        keys = generator.integers(0, length, len(queries))
        logit_QK[queries, keys] = np.log(np.exp(logit_QK[queries]).sum(1)) + generator.uniform(-1, 2, len(queries))
    return _softmax(logit_QK)


def _one_side(length: int, generator: Generator) -> NDArray[np.bool_]:
    """The cells before the diagonal, or those behind it."""
    before_QK = np.tri(length, k=-1, dtype=bool)
    return before_QK if generator.random() < 0.5 else before_QK.T


def _damped(part_QK: Array, where_QK: NDArray[np.bool_], generator: Generator) -> Array:
    """The part with less weight in some cells; rows sum to 1."""
    damped_QK: Array = np.where(where_QK, part_QK * np.exp(-generator.uniform(1, 6)), part_QK)
    damped_QK /= damped_QK.sum(1, keepdims=True)
    return damped_QK


def measure_strengths(attention_QK: Array, separator: int | None) -> MapStrengths:
    """Measure the parts of a map. Near the diagonal means within two tokens or, in long maps, an eighth of the
    length.
    """
    length = len(attention_QK)
    ink_QK = attention_QK / attention_QK.max()
    place_K = np.arange(length)
    distance_QK = abs(place_K[:, None] - place_K)
    far_QK = distance_QK > _REACH
    column_K = (ink_QK * far_QK).sum(0) / np.maximum(far_QK.sum(0), 1)
    strongest_K = column_K.argsort()[::-1]
    weak_K = ~np.isin(place_K, strongest_K[:2])
    rest_QK = far_QK & ~np.isin(place_K, strongest_K[: min(6, length // 3)])
    beside_QK = rest_QK & (distance_QK <= _REACH + 3)
    near_QK = distance_QK <= max(_REACH, length // 8)
    chance = near_QK.mean()
    hugging = near_QK[place_K, attention_QK.argmax(1)].mean()
    inside, blocks, contrast = 0.0, 0.0, 1.0
    if separator is not None:
        within_QK = (place_K <= separator)[:, None] == (place_K <= separator)
        blocks = ((attention_QK * within_QK).sum(1).mean() - within_QK.mean()) / (1 - within_QK.mean())
        inside = float(ink_QK[within_QK & weak_K & (distance_QK > 0)].mean())
        within, between = rest_QK & within_QK, rest_QK & ~within_QK
        if within.any() and between.any():
            contrast = (ink_QK[within].mean() + _FAINT) / (ink_QK[between].mean() + _FAINT)
    return MapStrengths(
        column=float(column_K.max()),
        diagonal=max(
            float(np.median(np.diagonal(ink_QK, offset)[np.diagonal(np.tile(weak_K, (length, 1)), offset)]))
            for offset in range(-_REACH, _REACH + 1)
        ),
        beside=float(ink_QK[beside_QK].mean()) if beside_QK.any() else 0.0,
        inside=inside,
        rest=float(ink_QK[rest_QK].mean()) if rest_QK.any() else 0.0,
        by_column=float(attention_QK.mean(0).var() / max(attention_QK.var(), _TINY**2)),
        near=float((attention_QK * near_QK).sum(1).mean() - chance),
        hugging=float((hugging - chance) / (1 - chance)),
        blocks=float(blocks),
        contrast=float(contrast),
    )


def _row_shares(share: float, length: int, steady: float, generator: Generator) -> Array:
    if share <= 0:
        return np.zeros(length)
    share = min(share, 0.99)
    share_Q = generator.beta(share * steady, (1 - share) * steady, length)
    skipped_Q = generator.random(length) < generator.choice([0.0, 0.0, 0.08, 0.25])
    return np.where(skipped_Q, share_Q * 0.2, share_Q)


def _columns(length: int, separator: int | None, special: list[int], generator: Generator) -> Array:
    """One to ten columns, some two tokens wide: special tokens or any others, such as punctuation."""
    number = min(int(generator.choice([1, 2, 3, 4, 5, 6, 10], p=[0.35, 0.2, 0.15, 0.1, 0.07, 0.06, 0.07])), length // 4)
    likely_K = np.full(length, 0.35 / length)
    likely_K[special] += 0.65 / len(special)
    chosen_C = generator.choice(length, size=number, replace=False, p=likely_K / likely_K.sum())
    weight_C = generator.dirichlet(np.full(number, generator.choice([1.0, 3.0])))
    part_QK = np.full((length, length), _TINY)
    shape_C = np.exp(generator.uniform(0, np.log(30), number))
    part_QK[:, chosen_C] += weight_C * generator.gamma(shape_C, size=(length, number)) / shape_C
    place_K = np.arange(length)
    for column in chosen_C:
        if generator.random() < 0.2:
            # Rows far from the column, or on one side of it, follow it less.
            near_Q = np.exp(-abs(place_K - column) / (length * generator.uniform(0.2, 1)))
            side_Q = np.where(place_K > column, 1.0, generator.uniform(0, 0.5))
            part_QK[:, column] *= (
                near_Q if generator.random() < 0.5 else generator.permutation([side_Q, 1.5 - side_Q])[0]
            )
        pair = column == separator and column + 1 in special
        if column + 1 < length and generator.random() < (0.9 if pair else 0.1):
            part_QK[:, column + 1] += (
                part_QK[:, column] * generator.uniform(0.3, 1) * generator.uniform(0.7, 1.3, length)
            )
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
    if width > 1 and generator.random() < 0.3:
        part_QK = part_QK * np.where(_one_side(length, generator), generator.uniform(0, 0.3), 1.0)
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
    if generator.random() < 0.45:
        # Triangles: each token attends to the tokens before or behind it in its segment.
        part_QK = _damped(part_QK, _one_side(length, generator), generator)
        place_K = np.arange(length)
        part_QK = part_QK * np.exp(-abs(place_K[:, None] - place_K) / (length * generator.uniform(0.1, 1)))
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
