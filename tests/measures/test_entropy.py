"""Entropy against scipy's, on random maps with padding on either side, and on maps whose entropy is known."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from patterns.random_maps import batch_of, random_maps, real_tokens
from scipy.stats import entropy

from bertsecrets.measures.base import Passed
from bertsecrets.measures.entropy import Entropy


@given(st.lists(st.integers(2, 9), min_size=1, max_size=4), st.booleans(), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_entropy_equals_scipys(lengths: list[int], left: bool, seed: int) -> None:
    attention = random_maps(tuple(lengths), 2, seed, left, extra=2).double()
    # Rows of float32 sum to 1 but for rounding, which scipy divides out.
    attention /= attention.sum(-1, keepdim=True)
    real = real_tokens(tuple(lengths), max(lengths) + 2, left)
    bits_BHC = Entropy(1, 2).per_example(attention, batch_of(real), None)
    for row, length in enumerate(lengths):
        tokens = real[row].nonzero()[:, 0].tolist()
        for head in range(2):
            rows = [entropy(attention[row, head, token].numpy(), base=2) for token in tokens]
            uniform = np.log2(length)
            shares = [np.mean(rows) / uniform, rows[0] / uniform]
            assert bits_BHC[row, head].tolist() == pytest.approx([np.mean(rows), rows[0], uniform, *shares], abs=1e-9)


def test_a_text_of_one_token_has_no_relative_entropy() -> None:
    measure = Entropy(1, 1)
    measure.update(Passed(0, batch_of(real_tokens((1,), 1)), torch.ones(1, 1, 1, 1)))
    assert measure.compute().count_LHC[0, 0].tolist() == [1, 1, 1, 0, 0]
