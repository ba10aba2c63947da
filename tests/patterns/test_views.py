"""The classifier's views against a naive loop over cells; padding does not count."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from patterns.made import cropped, random_maps, real_tokens

from bertsecrets.patterns.views import (
    BINS,
    COLUMNS,
    OFFSETS,
    PICTURES,
    RANKS,
    STRIPS,
    SUMMARY,
    bin_weights,
    log_ratio,
    make_views,
)


def pooled(values: list[float]) -> list[float]:
    """Means over BINS equal stretches of a row of values, by adding up a fine grid of slices."""
    length, fine = len(values), math.lcm(len(values), BINS)
    slices = [values[place * length // fine] for place in range(fine)]
    width = fine // BINS
    return [sum(slices[b * width : (b + 1) * width]) / width for b in range(BINS)]


def naive_strips(weight: np.ndarray) -> np.ndarray:
    """The strips of one map, before either scale."""
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


@given(st.integers(2, 40), st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_views_equal_a_naive_loop(length: int, seed: int) -> None:
    attention = random_maps((length,), 2, seed).double()
    views = make_views(attention, real_tokens((length,), length))
    for head in range(2):
        weight = attention[0, head].numpy()
        picture = np.array([pooled(list(column)) for column in np.array([pooled(list(row)) for row in weight]).T]).T
        strips, found_strips = naive_strips(weight), views.strips_NGP[head].unflatten(0, (PICTURES + 1, STRIPS))
        assert np.allclose(found_strips[0].numpy(), strips, atol=1e-4)
        for found, expected in ((views.picture_NGPP[head], picture), (found_strips[1:], strips)):
            assert np.allclose(found[0].numpy(), expected / weight.max(), atol=1e-4)
            assert np.allclose(found[1].numpy(), np.sqrt(expected / weight.max()), atol=1e-3)
            assert np.allclose(found[2].numpy(), np.log(length * expected + 0.05), atol=1e-3)


@pytest.mark.parametrize("left", [False, True])
def test_padding_and_neighbours_in_the_batch_change_nothing(left: bool) -> None:
    lengths = (9, 31, 14)
    attention = random_maps(lengths, 3, 0, left, extra=5)
    real = real_tokens(lengths, 36, left)
    views = make_views(attention, real)
    for row, length in enumerate(lengths):
        for head in range(3):
            alone = make_views(cropped(attention, real, row, head)[None, None], real_tokens((length,), length))
            for whole, single in zip(views, alone, strict=True):
                assert torch.allclose(whole[row * 3 + head], single[0], atol=1e-4)


def test_every_bin_is_a_mean() -> None:
    weights = bin_weights(real_tokens((8, 16, 61), 61))
    assert torch.allclose(weights.sum(-1), torch.ones(3, BINS), atol=1e-5)
    assert (weights[0, :, 8:] == 0).all()
    assert torch.allclose(weights[1, :, :16], torch.eye(BINS), atol=1e-6)


def test_uniform_attention_has_the_same_log_ratio_at_any_length() -> None:
    for length in (8, 50, 512):
        assert log_ratio(torch.tensor(1 / length), torch.tensor(length)).item() == pytest.approx(math.log(1.05))


def naive_summary(weight: np.ndarray) -> np.ndarray:
    """The numbers of one map, in their order, but for the last (what two squares hold)."""
    length = len(weight)
    received = sorted((weight[:, k].mean() for k in range(length)), reverse=True)
    columns, ranked = ([*received, *[0.0] * count][:count] for count in (COLUMNS, RANKS))
    diagonal = {offset: sum(np.diag(weight, offset)) / length for offset in OFFSETS}
    best = [int(row.argmax()) for row in weight]
    common = [count for _, count in Counter(best).most_common()]
    strips = naive_strips(weight)
    # The upper of the two middle values of sixteen.
    steady = [sorted(strip)[BINS // 2] for strip in strips]
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
            *steady[-COLUMNS:],
            *steady[: len(OFFSETS)],
        ]
    )


@given(st.integers(2, 40), st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_the_summary_equals_a_naive_loop(length: int, seed: int) -> None:
    attention = random_maps((length,), 2, seed, extra=3).double()
    summary_NM = make_views(attention, real_tokens((length,), length + 3)).summary_NM
    for head in range(2):
        expected = naive_summary(attention[0, head, :length, :length].numpy())
        assert len(expected) == SUMMARY - 1
        assert np.allclose(summary_NM[head, :-1].numpy(), expected, atol=1e-4)


def test_two_squares_are_found_wherever_the_boundary_is() -> None:
    for first in (4, 8, 11):
        halves = torch.block_diag(
            torch.full((first, first), 1 / first), torch.full((16 - first,) * 2, 1 / (16 - first))
        )
        found = make_views(halves[None, None], real_tokens((16,), 16)).summary_NM[0, -1].item()
        # All of the weight, less what uniform attention has in the squares.
        assert found == pytest.approx(1 - (first**2 + (16 - first) ** 2) / 256, abs=1e-5)
    uniform = torch.full((16, 16), 1 / 16)
    assert make_views(uniform[None, None], real_tokens((16,), 16)).summary_NM[0, -1].item() == pytest.approx(
        0, abs=1e-5
    )
