"""Attention to neighbouring tokens against a naive loop."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from patterns.random_maps import batch_of, random_maps, real_tokens

from bertsecrets.measures.offsets import MeanOver, Offsets

OFFSETS = (-1, 0, 1, 3, -12)


@given(
    st.lists(st.integers(2, 9), min_size=1, max_size=4),
    st.booleans(),
    st.integers(0, 1000),
    st.sampled_from(["pairs", "tokens"]),
)
@settings(max_examples=30, deadline=None)
def test_offsets_equal_a_naive_loop(lengths: list[int], left: bool, seed: int, mean_over: MeanOver) -> None:
    attention = random_maps(tuple(lengths), 2, seed, left, extra=2).double()
    real = real_tokens(tuple(lengths), max(lengths) + 2, left)
    result = Offsets(1, 2, OFFSETS, mean_over).per_example(attention, batch_of(real), None)
    for row in range(len(lengths)):
        tokens = real[row].nonzero()[:, 0].tolist()
        for head in range(2):
            for index, offset in enumerate(OFFSETS):
                cells = [attention[row, head, i, i + offset].item() for i in tokens if i + offset in tokens]
                count = len(tokens) if mean_over == "tokens" else len(cells)
                expected = sum(cells) / count if count else np.nan
                assert result[row, head, index].item() == pytest.approx(expected, abs=1e-12, nan_ok=True)
