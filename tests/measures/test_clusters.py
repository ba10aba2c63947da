"""Distances between heads against a double loop, their groups against known ones, and the section."""

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from data.toy import pairs, wordpiece
from families import tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st
from measures import toy
from measures.naive import maps
from numpy.typing import NDArray
from patterns.random_maps import batch_of, random_maps, real_tokens
from scipy.spatial.distance import jensenshannon
from scipy.stats import spearmanr

from bertsecrets.attention.watch import capture
from bertsecrets.data.batch import Batch
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.measures.base import Passed
from bertsecrets.measures.clusters.geometry import (
    groups_of,
    in_the_plane,
    pairwise_divergence,
    same_label_is_close,
    stability,
)
from bertsecrets.measures.clusters.measure import Clusters
from bertsecrets.measures.clusters.rows import Distance, Group, Moved, Place, Space, Tuned
from bertsecrets.measures.one_pass import measure_pass

Array = NDArray[np.float64]


def double_loop(texts: list[Array], smoothing: float = 0.0) -> Array:
    """Mean divergence in nats of the rows of each pair of heads, by scipy; ``texts`` are maps ``[N, T, T]``."""
    count = len(texts[0])
    total, rows = np.zeros((count, count)), 0
    for map_NTT in texts:
        mixed = map_NTT * (1 - smoothing) + smoothing / map_NTT.shape[-1]
        rows += map_NTT.shape[-1]
        for first in range(count):
            for second in range(first + 1, count):
                total[first, second] += (jensenshannon(mixed[first], mixed[second], axis=-1) ** 2).sum()
    return (total + total.T) / rows


@given(st.lists(st.integers(1, 9), min_size=1, max_size=3), st.booleans(), st.booleans(), st.sampled_from([0.0, 0.001]))
@settings(max_examples=15, deadline=None)
def test_distances_equal_a_double_loop(lengths: list[int], left: bool, wide: bool, smoothing: float) -> None:
    sizes = tuple(lengths)
    layers = [random_maps(sizes, 2, seed, left, extra=2) for seed in range(4)]
    if wide:
        layers = [layer.double() for layer in layers]
    real = real_tokens(sizes, max(sizes) + 2, left)
    measure = Clusters(2, 2, smoothing=smoothing, replicates=0)
    for layer in range(2):
        measure.update(Passed(layer, batch_of(real), layers[layer], layers[2 + layer]))
    texts = []
    for row in range(len(sizes)):
        keep = real[row].nonzero()[:, 0]
        cropped = [layer[row][:, keep][:, :, keep].double().numpy() for layer in layers]
        texts.append(np.concatenate(cropped))
    expected = double_loop(texts, smoothing)
    mean_RNN, moved = measure.distances()
    assert mean_RNN[0] == pytest.approx(np.nan_to_num(expected), abs=1e-6)
    assert moved == (max(sizes) > 1)
    grid = measure.compute()
    own = np.stack([np.nan_to_num(double_loop([text], smoothing))[:4, :4] for text in texts]).mean(0)
    assert grid.value_LHC[0, 1].tolist() == pytest.approx([own[1, 0], own[1, 2:].mean()], abs=1e-6)


def test_divergence_is_a_symmetric_number_from_0_to_ln_2_with_many_columns() -> None:
    generator = torch.Generator().manual_seed(0)
    map_NTT = (8 * torch.randn(3, 70, 70, generator=generator)).softmax(-1)
    one_hot = torch.zeros(2, 70, 70)
    one_hot[0, :, 3] = one_hot[1, :, 5] = 1.0
    everything = torch.cat((map_NTT, one_hot, map_NTT[:1]))
    sum_NN = pairwise_divergence(everything.flatten(1))
    assert torch.equal(sum_NN, sum_NN.T)
    assert (sum_NN.diagonal() == 0).all()
    assert sum_NN[3, 4].item() == pytest.approx(70 * np.log(2), abs=1e-4)
    assert sum_NN[0, 5].item() == pytest.approx(0, abs=1e-4)
    assert sum_NN.max() <= 70 * np.log(2) + 1e-4
    expected = (jensenshannon(map_NTT[0].double(), map_NTT[1].double(), axis=-1) ** 2).sum()
    assert sum_NN[0, 1].item() / 70 == pytest.approx(expected / 70, abs=1e-6)


def test_numbers_do_not_depend_on_batches_and_an_unchanged_model_needs_no_second_space() -> None:
    split = EncodedSplit(pairs(6, seed=2), wordpiece(), 24)
    at_once = measured([split[range(6)]], seed=5)
    in_parts = measured([split[[4, 1]], split[[0, 2, 3]], split[[5]]], seed=5)
    assert torch.allclose(at_once.distance_RNN, in_parts.distance_RNN, atol=1e-4)
    assert torch.equal(at_once.rows_R, in_parts.rows_R)
    assert at_once.rows_R[1:].unique().numel() > 1
    assert not at_once.distances()[1]
    size = 4
    blocks = at_once.distance_RNN[0].reshape(2, size, 2, size)
    assert torch.equal(blocks[0, :, 0], blocks[1, :, 1])
    assert torch.equal(blocks[0, :, 0], blocks[0, :, 1])


def measured(parts: list[Batch], seed: int) -> Clusters:
    """Two layers of two heads; a text's maps depend on its index alone, and are those before fine-tuning."""
    measure = Clusters(2, 2, replicates=20, seed=seed)
    for batch in parts:
        for layer in range(2):
            size = batch.input_ids_BS.shape[1]
            attention = torch.zeros(batch.size, 2, size, size)
            for row, length in enumerate(batch.lengths_B.tolist()):
                own = maps(batch_of(torch.ones(1, length).bool()), 2, seed=10 * int(batch.index_B[row]) + layer)
                attention[row, :, :length, :length] = own[0].float()
            measure.update(Passed(layer, batch, attention, attention.clone()))
    return measure


def test_every_layer_of_a_model_is_compared_with_every_other() -> None:
    model, other = tiny_model("bert"), tiny_model("bert", seed=1)
    measure = Clusters(3, 4, replicates=3)
    [grid] = measure_pass(model, [measure], toy.batches(), {"initial": other})
    texts = []
    for batch in toy.batches():
        both = zip(*(capture(network, batch.inputs()) for network in (model, other)), strict=True)
        texts += [torch.cat(maps_LHQK).flatten(0, 1).double().numpy() for maps_LHQK in both]
    mean_RNN, moved = measure.distances()
    assert moved
    assert mean_RNN[0] == pytest.approx(double_loop(texts), abs=1e-6)
    assert grid.count_LHC.unique().tolist() == [7]
    found = measure.findings(grid, model)
    for before in (False, True):
        part = slice(12, None) if before else slice(12)
        rows = [row for row in found if not isinstance(row, Moved | Tuned) and row.before == before]
        [space] = [row for row in rows if isinstance(row, Space)]
        assert (space.replicates, space.rows) == (3, sum(len(text[0]) for text in texts))
        distance_NN = mean_RNN[0, part, part]
        distances = [row for row in rows if isinstance(row, Distance)]
        assert len(distances) == 12 * 11 / 2
        for row in distances:
            assert row.nats == distance_NN[4 * row.layer + row.head, 4 * row.other_layer + row.other_head]
        places = [row for row in rows if isinstance(row, Place)]
        assert [(row.layer, row.head) for row in places] == [divmod(number, 4) for number in range(12)]
        for group in (row for row in rows if isinstance(row, Group)):
            members = [number for number, row in enumerate(places) if row.group == group.group]
            pairs = [distance_NN[one, other] for one, other in combinations(members, 2)]
            assert group.distance == pytest.approx(np.mean(pairs) if pairs else math.nan, nan_ok=True)
    moved_rows = [row for row in found if isinstance(row, Moved)]
    assert [(row.layer, row.head) for row in moved_rows] == [divmod(number, 4) for number in range(12)]
    assert [row.distance for row in moved_rows] == mean_RNN[0, :12, 12:].diagonal().tolist()
    [tuned] = [row for row in found if isinstance(row, Tuned)]
    nearest = sum(min(range(12), key=lambda head: mean_RNN[0, number, 12 + head]) == number for number in range(12))
    assert tuned.nearest_to_self == nearest
    upper = np.triu_indices(12, 1)
    rho = spearmanr(mean_RNN[0, :12, :12][upper], mean_RNN[0, 12:, 12:][upper]).statistic
    assert tuned.correlation == pytest.approx(rho)


def test_groups_and_points_of_known_distances() -> None:
    points = np.array([[0, 0], [0, 1], [1, 0], [10, 10], [10, 11], [30, 0.0]])
    distance_NN = np.linalg.norm(points[:, None] - points, axis=-1)
    # Divergences are squares of distances.
    assert groups_of(distance_NN**2).tolist() == [0, 0, 0, 1, 1, 2]
    assert groups_of(distance_NN**2, 2).tolist() == [0, 0, 0, 0, 0, 1]
    assert groups_of(np.zeros((5, 5))).tolist() == [0] * 5
    drawn, stress = in_the_plane(distance_NN, seed=0)
    assert np.linalg.norm(drawn[:, None] - drawn, axis=-1) == pytest.approx(distance_NN, abs=1e-2)
    assert stress == pytest.approx(0, abs=1e-3)


def test_a_group_is_as_stable_as_it_is_found_again() -> None:
    points = np.array([0.0, 0.1, 5.0, 5.1, 5.2])
    same = (points[:, None] - points) ** 2
    moved = np.array([0.0, 0.1, 0.2, 5.1, 5.2])
    other = (moved[:, None] - moved) ** 2
    group_N = groups_of(same, 2)
    assert group_N.tolist() == [1, 1, 0, 0, 0]
    # The larger group keeps two of its three heads, the smaller is two of three.
    assert stability(group_N, [same, other]) == pytest.approx([(1 + 2 / 3) / 2, (1 + 2 / 3) / 2])


def test_heads_of_one_class_are_close_or_not() -> None:
    label_N = np.array([0, 1, 0, 1, 0, 1, 0, 1, 0, 1])
    apart_NN = (label_N[:, None] != label_N) + 0.1 * ~np.eye(10, dtype=bool)
    within, between, p = same_label_is_close(apart_NN, label_N, 200, seed=0)
    assert (within, between) == (pytest.approx(0.1), pytest.approx(1.1))
    # Of the 252 ways to split ten heads into halves, two are as close.
    assert p == pytest.approx(2 / 252, abs=0.02)
    assert same_label_is_close(apart_NN, np.repeat([0, 1], 5), 200, seed=0)[2] > 0.2
    assert np.isnan(same_label_is_close(apart_NN, np.arange(10), 10, seed=0)[2])
