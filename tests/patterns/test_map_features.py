"""Map features against naive loops over cells; padding has no influence."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from patterns.random_maps import cropped, random_maps, real_tokens

from bertsecrets.patterns.map_features import (
    BINS,
    COLUMNS,
    CONTRASTS_SIZE,
    OFFSETS,
    PICTURE_CHANNELS,
    RANKS,
    SCALES,
    SEGMENT_CONTRASTS_SIZE,
    STRIPS,
    SUMMARY_SIZE,
    TOTALS_SIZE,
    UNKNOWN,
    first_segments,
    map_features,
)


def pooled(values: list[float]) -> list[float]:
    """Means over BINS equal stretches of a row of values, from a fine grid of slices."""
    length, fine = len(values), math.lcm(len(values), BINS)
    slices = [values[index * length // fine] for index in range(fine)]
    width = fine // BINS
    return [sum(slices[b * width : (b + 1) * width]) / width for b in range(BINS)]


def naive_strips(weight: np.ndarray) -> np.ndarray:
    """The strips of one map as weights."""
    length = len(weight)
    rows = []
    for offset in OFFSETS:
        rows.append([weight[i, i + offset] if 0 <= i + offset < length else 0.0 for i in range(length)])
    rows.append([max(row) for row in weight])
    rows.append([math.sqrt(sum(cell**2 for cell in row)) for row in weight])
    received = [sum(weight[:, k]) for k in range(length)]
    for column in sorted(range(length), key=lambda k: -received[k])[:COLUMNS]:
        rows.append(list(weight[:, column]))
    while len(rows) < STRIPS:
        rows.append([0.0] * length)
    return np.array([pooled(list(map(float, row))) for row in rows])


@pytest.mark.parametrize("left", [False, True])
def test_padding_and_neighbours_in_the_batch_change_nothing(left: bool) -> None:
    lengths = (9, 31, 14)
    attention = random_maps(lengths, 3, 0, left, extra=5)
    real = real_tokens(lengths, 36, left)
    first_B = torch.tensor([4, 0, UNKNOWN])
    features = map_features(attention, real, first_B)
    for row, length in enumerate(lengths):
        for head in range(3):
            single = cropped(attention, real, row, head)[None, None]
            alone = map_features(single, real_tokens((length,), length), first_B[[row]])
            for whole, part in zip(features, alone, strict=True):
                # Deviations are roots of differences.
                assert torch.allclose(whole[row * 3 + head], part[0], atol=2e-3)


def naive_totals(weight: np.ndarray) -> np.ndarray:
    """The totals of one map without the last one (two squares)."""
    length = len(weight)
    received = sorted((weight[:, k].mean() for k in range(length)), reverse=True)
    columns, ranked = ([*received, *[0.0] * count][:count] for count in (COLUMNS, RANKS))
    diagonal = {offset: sum(np.diag(weight, offset)) / length for offset in OFFSETS}
    best = [int(row.argmax()) for row in weight]
    common = [count for _, count in Counter(best).most_common()]
    return np.array(
        [
            *np.cumsum(columns),
            *diagonal.values(),
            sum(diagonal[offset] for offset in (-1, 0, 1)),
            sum(diagonal[offset] for offset in (-2, -1, 0, 1, 2)),
            *np.array(columns) / weight.max(),
            weight.mean() / weight.max(),
            *(share / weight.max() for share in diagonal.values()),
            np.mean([row.max() for row in weight]),
            np.mean([math.sqrt((row**2).sum()) for row in weight]),
            *(sum(common[:count]) / length for count in (1, 3, 6)),
            *(math.log(length * share + 0.05) for share in ranked),
            max(sum(k - i == offset for i, k in enumerate(best)) for offset in range(-2, 3)) / length,
        ]
    )


def test_equal_rows_differ_by_column_alone_and_even_maps_not_at_all() -> None:
    rows = torch.arange(1.0, 11).softmax(-1).expand(10, 10)
    cases = ((rows, 1.0), (torch.eye(10), 0.0), (torch.full((10, 10), 0.1), 0.0))
    for map_LL, expected in cases:
        summary_NM = map_features(map_LL[None, None], real_tokens((10,), 10)).summary_NM
        assert summary_NM[0, TOTALS_SIZE + CONTRASTS_SIZE].item() == pytest.approx(expected, abs=1e-3)


@given(st.integers(3, 12), st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_diagonal_and_background_equal_a_naive_loop(first: int, seed: int) -> None:
    """A map of 16 tokens has one token in each bin."""
    attention = random_maps((16,), 1, seed).double()
    weight, features = attention[0, 0].numpy(), map_features(attention, real_tokens((16,), 16), torch.tensor([first]))
    diagonals = [
        np.median([weight[i, i + offset] if 0 <= i + offset < 16 else 0.0 for i in range(16)]) for offset in OFFSETS
    ]
    left_out = sorted(range(16), key=lambda k: -weight[:, k].sum())[:COLUMNS]
    background = np.array([[0.0 if j in left_out else weight[i, j] for j in range(16)] for i in range(16)])
    cells = [(i, j) for i in range(16) for j in range(16) if abs(i - j) > 1 and j not in left_out]
    within, between = (
        [weight[i, j] for i, j in cells if ((i < first) == (j < first)) == same] for same in (True, False)
    )
    *steady, contrast = features.summary_NM[0, TOTALS_SIZE + CONTRASTS_SIZE + 1 :][: len(OFFSETS) + 1].tolist()
    assert steady == pytest.approx(np.log(np.array(diagonals) / weight.max() + 1e-3).tolist(), abs=1e-3)
    means = [np.mean(part) if part else 0.0 for part in (within, between)]
    assert contrast == pytest.approx(math.log((16 * means[0] + 0.05) / (16 * means[1] + 0.05)), abs=1e-3)
    assert np.allclose(features.picture_NGPP[0, SCALES].numpy(), np.sqrt(background / background.max()), atol=1e-3)


def test_two_squares_are_measured_wherever_the_boundary_is() -> None:
    for first in (4, 8, 11):
        halves = torch.block_diag(
            torch.full((first, first), 1 / first), torch.full((16 - first,) * 2, 1 / (16 - first))
        )
        squares = map_features(halves[None, None], real_tokens((16,), 16)).summary_NM[0, TOTALS_SIZE - 1].item()
        # All of the weight, minus the area of the squares.
        assert squares == pytest.approx(1 - (first**2 + (16 - first) ** 2) / 256, abs=1e-5)
    uniform = torch.full((16, 16), 1 / 16)
    assert map_features(uniform[None, None], real_tokens((16,), 16)).summary_NM[
        0, TOTALS_SIZE - 1
    ].item() == pytest.approx(0, abs=1e-5)


def naive_contrasts(weight: np.ndarray) -> np.ndarray:
    """The contrasts of one map, cell by cell."""
    length = len(weight)
    ink = weight / weight.max()

    def column(k: int) -> float:
        cells = [ink[i, k] for i in range(length) if abs(i - k) > 2]
        return sum(cells) / max(len(cells), 1)

    strongest = sorted(range(length), key=lambda k: -column(k))
    columns = [column(k) for k in strongest[:3]]
    on = [
        [ink[i, i + offset] for i in range(length) if 0 <= i + offset < length and i + offset not in strongest[:2]]
        for offset in range(-2, 3)
    ]
    rest = [ink[i, k] for i in range(length) for k in strongest[6:] if abs(i - k) > 2]
    numbers = [
        *columns,
        np.mean(rest),
        max(sum(cells) / max(len(cells), 1) for cells in on),
        sum(map(sum, on)) / max(sum(map(len, on)), 1),
        np.std(rest),
        np.std(ink[:, strongest[0]]),
    ]
    return np.log(np.array(numbers) + 1e-3)


@given(st.integers(2, 40), st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_features_equal_naive_loops(length: int, seed: int) -> None:
    attention = random_maps((length,), 2, seed, extra=3).double()
    features = map_features(attention, real_tokens((length,), length + 3))
    for head in range(2):
        weight = attention[0, head, :length, :length].numpy()
        picture = np.array([pooled(list(column)) for column in np.array([pooled(list(row)) for row in weight]).T]).T
        strips, map_strips = naive_strips(weight), features.strips_NGP[head].unflatten(0, (SCALES + 1, STRIPS))
        assert np.allclose(map_strips[0].numpy(), strips, atol=1e-4)
        for scales, expected in ((features.picture_NGPP[head], picture), (map_strips[1:], strips)):
            assert np.allclose(scales[0].numpy(), expected / weight.max(), atol=1e-4)
            assert np.allclose(scales[1].numpy(), np.sqrt(expected / weight.max()), atol=1e-3)
            assert np.allclose(scales[2].numpy(), np.log(length * expected + 0.05), atol=1e-3)
        summary = features.summary_NM[head].numpy()
        assert np.allclose(summary[: TOTALS_SIZE - 1], naive_totals(weight), atol=1e-4)
        if length >= 8:
            contrasts = summary[TOTALS_SIZE : TOTALS_SIZE + CONTRASTS_SIZE]
            assert np.allclose(np.exp(contrasts), np.exp(naive_contrasts(weight)), atol=2e-3)
        # The share of the variance that is between columns.
        between = sum(length * (column.mean() - weight.mean()) ** 2 for column in weight.T)
        whole = ((weight - weight.mean()) ** 2).sum()
        assert summary[TOTALS_SIZE + CONTRASTS_SIZE] == pytest.approx(between / whole, abs=1e-3)


def naive_segment_contrasts(picture: np.ndarray, side: np.ndarray) -> np.ndarray:
    """The segment contrasts of a pooled map with a boundary between two bins, cell by cell."""
    numbers = []
    for sign in (1, -1):
        own = [p for p in range(BINS) if side[p] == sign]
        other = [p for p in range(BINS) if side[p] == -sign]

        def mean(rows: list[int], k: int) -> float:
            cells = [picture[p, k] for p in rows if abs(p - k) > 1]
            return sum(cells) / len(cells) if cells else 0.0

        seen = [k for k in own if all(any(abs(p - k) > 1 for p in rows) for rows in (own, other))]
        pairs = [(mean(own, k), mean(other, k)) for k in seen]
        mine, theirs = (sum(pair[index] for pair in pairs) for index in (0, 1))
        numbers += [
            mine - theirs,
            math.log(max(mine, 1e-3) / max(theirs, 1e-3)),
            sum(one > 1.2 * two for one, two in pairs) / max(len(seen), 1),
        ]
    return np.array([*numbers, 1, 0])


@given(st.integers(1, 4), st.integers(0, 10_000), st.sampled_from((1, 2, 6, 14)))
@settings(max_examples=20, deadline=None)
def test_segment_contrasts_equal_a_naive_loop(tokens: int, seed: int, bins: int) -> None:
    length = BINS * tokens
    attention, real = random_maps((length,), 1, seed, extra=2), real_tokens((length,), length + 2)
    features = map_features(attention, real, torch.tensor([bins * tokens]))
    weight = attention[0, 0, :length, :length].double().numpy()
    picture = np.array([pooled(list(column)) for column in np.array([pooled(list(row)) for row in weight]).T]).T
    side = np.array([1] * bins + [-1] * (BINS - bins))
    assert np.allclose(
        features.summary_NM[0, -SEGMENT_CONTRASTS_SIZE:].numpy(),
        naive_segment_contrasts(picture * tokens, side),
        atol=1e-3,
    )
    assert np.allclose(features.picture_NGPP[0, -1].numpy(), np.outer(side, side), atol=1e-5)
    assert features.summary_NM.shape == (1, SUMMARY_SIZE)
    assert features.picture_NGPP.shape[1] == PICTURE_CHANNELS


def test_one_segment_and_unknown_segments_have_no_contrasts() -> None:
    attention = random_maps((20,), 1, 0)
    for first, last in ((0, [0, 1]), (UNKNOWN, [0, 0])):
        features = map_features(attention, real_tokens((20,), 20), torch.tensor([first]))
        assert features.summary_NM[0, -SEGMENT_CONTRASTS_SIZE:].tolist() == [0.0] * (SEGMENT_CONTRASTS_SIZE - 2) + last
        assert features.summary_NM[0, -SEGMENT_CONTRASTS_SIZE - 1] == 0
        assert (features.picture_NGPP[0, -1] == 0).all()
    without = map_features(attention, real_tokens((20,), 20))
    assert torch.equal(without.summary_NM, features.summary_NM)


def test_the_first_segment_ends_with_its_separator() -> None:
    # [CLS] a b [SEP] c [SEP]; [CLS] a [SEP]; padded at the left; <s> a </s> </s> b </s>; no separators.
    rows = ["SwwSwS..", "SwS.....", "..SwSwwS", "SwSSwS..", "wwwww...", "Swwwww.."]
    special = torch.tensor([[token == "S" for token in row] for row in rows])
    real = torch.tensor([[token != "." for token in row] for row in rows])
    assert first_segments(special, real).tolist() == [4, 0, 3, 3, UNKNOWN, UNKNOWN]


@pytest.mark.parametrize("length", [8, 12, 30])
def test_padding_is_never_a_strongest_column(length: int) -> None:
    band = torch.zeros(length, length)
    for offset in (-1, 0, 1):
        band += torch.diag(torch.ones(length - abs(offset)), offset)
    band /= band.sum(-1, keepdim=True)
    padded = torch.zeros(1, 1, length + 7, length + 7)
    padded[0, 0, :length, :length] = band
    alone = map_features(band[None, None], real_tokens((length,), length))
    with_padding = map_features(padded, real_tokens((length,), length + 7))
    shown = slice(TOTALS_SIZE, TOTALS_SIZE + CONTRASTS_SIZE)
    # As ink: deviations are roots of differences.
    assert torch.allclose(alone.summary_NM[:, shown].exp(), with_padding.summary_NM[:, shown].exp(), atol=1e-3)


def test_the_deviation_along_an_even_column_is_zero_at_any_length() -> None:
    for length in (16, 512):
        column = torch.full((length, length), 0.001 / (length - 1))
        column[:, 3] = 0.999
        deviation = map_features(column[None, None], real_tokens((length,), length)).summary_NM[
            0, TOTALS_SIZE + CONTRASTS_SIZE - 1
        ]
        assert deviation.item() == pytest.approx(math.log(1e-3), abs=1e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_another_default_type_changes_nothing(dtype: torch.dtype) -> None:
    attention, real, first_B = random_maps((20, 12), 2, 0), real_tokens((20, 12), 20), torch.tensor([6, 0])
    expected = map_features(attention, real, first_B)
    torch.set_default_dtype(dtype)
    try:
        features = map_features(attention, real, first_B)
    finally:
        torch.set_default_dtype(torch.float32)
    for one, other in zip(expected, features, strict=True):
        assert torch.allclose(one, other, atol=1e-5)
