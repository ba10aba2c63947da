"""Groups against scipy's average linkage, and their controls."""

import numpy as np
import torch
from families import batch_of, tiny_batch, tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import jensenshannon, pdist, squareform

from bertsecrets.ablation.similar_heads import (
    group_by_distance,
    head_distances,
    similar_groups,
    with_controls,
)
from bertsecrets.attention.watch import capture


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


def test_distances_of_a_models_heads_equal_scipy() -> None:
    """Two sentences of different lengths in one batch, and one in another."""
    model, parts = tiny_model("bert").double(), [tiny_batch((5, 9)), tiny_batch((7,))]
    squares_HH = np.zeros((12, 12))
    for part in parts:
        for map_LHQK in capture(model, part):
            map_HQK = map_LHQK.flatten(0, 1).numpy()
            for a, b in np.ndindex(12, 12):
                squares_HH[a, b] += np.mean(jensenshannon(map_HQK[a], map_HQK[b], axis=1) ** 2) / 3
    batches = [batch_of(part, [0] * len(part["input_ids"]), 2 * index) for index, part in enumerate(parts)]
    np.testing.assert_allclose(head_distances(model, batches) ** 2, squares_HH, atol=1e-6)


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
