"""Sweeps over statistics are told apart by the labels that they were counted against."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from bertsecrets.task_heads.base import fingerprints
from bertsecrets.task_heads.labels import IGNORED

labels = st.lists(st.sampled_from([IGNORED, 0, 1, 2, 30_521]), min_size=2, max_size=12)


@given(labels, labels)
def test_labels_that_differ_have_other_numbers(one: list[int], other: list[int]) -> None:
    width = max(len(one), len(other))
    label_BS = torch.tensor([[*row, *[IGNORED] * (width - len(row))] for row in (one, other)])
    first, second = fingerprints(label_BS).tolist()
    assert (first == second) == (label_BS[0].tolist() == label_BS[1].tolist())


@given(labels, st.integers(0, 20))
def test_padding_changes_nothing(row: list[int], padding: int) -> None:
    [short] = fingerprints(torch.tensor([row])).tolist()
    [padded] = fingerprints(torch.tensor([[*row, *[IGNORED] * padding]])).tolist()
    assert short == padded
    assert torch.tensor(short, dtype=torch.float32).long().item() == short
