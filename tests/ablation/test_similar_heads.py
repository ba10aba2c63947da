"""Groups against scipy's average linkage, and their controls."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import jensenshannon, pdist, squareform
from torch import Tensor

from bertsecrets.ablation.similar_heads import (
    HeadDistance,
    group_by_distance,
    similar_groups,
    with_controls,
)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), st.integers(3, 25), st.floats(0.1, 1.5))
def test_groups_equal_scipy(seed: int, count: int, threshold: float) -> None:
    points = np.random.default_rng(seed).normal(size=(count, 2))
    distances = pdist(points)
    labels = fcluster(linkage(distances, "average"), threshold, "distance")
    expected = {tuple(np.flatnonzero(labels == label)) for label in set(labels)}
    result = group_by_distance(squareform(distances), threshold, max_size=count)
    assert {tuple(group) for group in result} == {group for group in expected if len(group) > 1}


def test_groups_stay_small() -> None:
    distance_HH = np.full((9, 9), 0.1)
    assert max(map(len, group_by_distance(distance_HH, 1.0, max_size=4))) <= 4


def distances(attention_HQK: Tensor) -> Tensor:
    distance = HeadDistance(len(attention_HQK))
    distance.update(attention_HQK)
    return distance.compute()


def test_divergence_between_heads_equals_scipy() -> None:
    generator = torch.Generator().manual_seed(0)
    attention_HQK = torch.rand(4, 5, 5, generator=generator, dtype=torch.float64).softmax(-1)
    distance_HH = distances(attention_HQK)
    for a in range(4):
        for b in range(4):
            rows = [jensenshannon(attention_HQK[a, q], attention_HQK[b, q]) ** 2 for q in range(5)]
            assert distance_HH[a, b].item() ** 2 == pytest.approx(np.mean(rows), abs=1e-12)


def test_disjoint_heads_are_ln_2_apart() -> None:
    attention_HQK = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    assert distances(attention_HQK)[0, 1].item() ** 2 == pytest.approx(np.log(2))


def test_controls_of_a_group() -> None:
    variants = with_controls([((0, 1), (1, 0), (1, 1)), ((0, 0), (0, 2))], 3, controls=2, seed=0)
    names = [variant.name for variant in variants]
    assert names == [
        "group-000",
        "l00h01",
        "group-000-but-l00h01",
        "l01h00",
        "group-000-but-l01h00",
        "l01h01",
        "group-000-but-l01h01",
        "group-001",
        "l00h00",
        "l00h02",
        "random-00.01.01-000",
        "random-00.01.01-001",
        "random-00.00-000",
        "random-00.00-001",
    ]
    layers = [[layer for layer, _ in variant.heads] for variant in variants[-4:]]
    assert layers == [[0, 1, 1], [0, 1, 1], [0, 0], [0, 0]]
    assert len({variant.heads for variant in variants[-2:]}) == 2
    assert variants[2].heads == ((1, 0), (1, 1))


def test_the_closest_heads_are_grouped() -> None:
    points = np.array([0.0, 10.0, 0.1, 20.0, 30.0, 10.2])
    distance_HH = torch.from_numpy(np.abs(points[:, None] - points))
    assert similar_groups(distance_HH, num_heads=3, largest=4)[0] == ((0, 0), (0, 2))
