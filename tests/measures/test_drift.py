"""Drift against a naive loop over scipy, on hand-worked cases, and streamed."""

import math
import weakref
from collections import Counter

import numpy as np
import pytest
import torch
from families import HEADS, LAYERS, batch_of, tiny_batch, tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st
from patterns.random_maps import batch_of as lengths_batch
from patterns.random_maps import cropped, random_maps, real_tokens
from scipy import stats
from scipy.spatial import distance
from torch import Tensor

from bertsecrets.data.batch import Batch
from bertsecrets.errors import UserError
from bertsecrets.measures.base import Feed, Passed
from bertsecrets.measures.drift import Drift, cosine, differs_from_first
from bertsecrets.measures.one_pass import measure_pass
from bertsecrets.statistics.corrections import holm


def naive(ours: np.ndarray, theirs: np.ndarray) -> list[float]:
    """The four columns of a pair of maps without padding, by scipy."""
    divergences = [distance.jensenshannon(p, q) ** 2 for p, q in zip(ours, theirs, strict=True)]
    return [
        1 - distance.cosine(ours.ravel(), theirs.ravel()),
        float(np.mean(divergences)),
        1 - distance.cosine(ours[0], theirs[0]),
        divergences[0],
    ]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(2, 9), min_size=1, max_size=4), st.booleans(), st.integers(0, 10_000))
def test_drift_equals_a_naive_loop(lengths: list[int], left: bool, seed: int) -> None:
    sizes = tuple(lengths)
    ours, theirs = (random_maps(sizes, 2, seed + model, left, extra=2).double() for model in range(2))
    real = real_tokens(sizes, max(sizes) + 2, left)
    measure = Drift(1, 2)
    measure.update(Passed(0, lengths_batch(real), ours, theirs))
    grid = measure.compute()
    expected = np.array(
        [
            [naive(*(cropped(maps, real, row, head).numpy() for maps in (ours, theirs))) for head in range(2)]
            for row in range(len(sizes))
        ]
    )
    # scipy normalises the rows, whose sums are 1 in fp32.
    assert np.allclose(grid.value_LHC[0, :, :4].numpy(), expected.mean(0), atol=1e-7)
    if len(sizes) > 1:
        errors = expected.std(0, ddof=1) / math.sqrt(len(sizes))
        assert np.allclose(grid.stderr_LHC[0, :, :4].numpy(), errors, atol=1e-7)
    else:
        assert bool(grid.stderr_LHC.isnan().all())
    assert (grid.count_LHC == len(sizes)).all()


def test_kovaleva_padding_flattens_the_padded_map_with_its_rows() -> None:
    ours, theirs = random_maps((6, 3), 2, 0).double(), random_maps((6, 3), 2, 1).double()
    batch = batch_of(tiny_batch((6, 3)))
    result = Drift(1, 2, padding="kovaleva").per_example(ours, batch, theirs)
    for i in range(2):
        for h in range(2):
            expected = 1 - distance.cosine(ours[i, h].numpy().ravel(), theirs[i, h].numpy().ravel())
            assert result[i, h, 0].item() == pytest.approx(expected, abs=1e-12)
    strict = Drift(1, 2).per_example(ours, batch, theirs)
    assert (strict[0] - result[0]).abs()[:, 0].max() < 1e-12
    assert (strict[1] - result[1]).abs()[:, 0].max() > 1e-3
    assert Drift(1, 2, padding="kovaleva").feed == Feed(max_length=200, pad_to=200)


def test_measures_share_one_pass_of_each_model_that_they_need_and_modes_come_back() -> None:
    model, reference, idle = (tiny_model("bert", seed=seed) for seed in range(3))
    model.train()
    calls: Counter[str] = Counter()
    for name, network in (("model", model), ("initial", reference), ("random", idle)):
        # A stream of maps ends before its forward pass does.
        network.register_forward_pre_hook(lambda *_, name=name: calls.update([name]))
    grids = measure_pass(
        model,
        [Drift(LAYERS, HEADS), Drift(LAYERS, HEADS, padding="kovaleva")],
        [batch_of(tiny_batch())] * 3,
        references={"initial": reference, "random": idle},
    )
    assert calls == {"model": 3, "initial": 3}
    assert model.training
    assert not reference.training
    assert torch.allclose(grids[0].value_LHC[:, :, 2], grids[1].value_LHC[:, :, 2], atol=1e-6)


def test_a_missing_reference_or_another_shape_is_an_error_before_the_first_batch() -> None:
    with pytest.raises(UserError, match="'drift' compares with the model 'initial', which is missing"):
        measure_pass(tiny_model("bert"), [Drift(LAYERS, HEADS)], [])
    with pytest.raises(UserError, match="layers"):
        measure_pass(
            tiny_model("bert"), [Drift(LAYERS, HEADS)], [], references={"initial": tiny_model("albert-groups")}
        )


def test_one_layer_of_the_reference_is_alive_at_a_time() -> None:
    """Counts the reference's maps that are still referenced whenever a layer is compared."""
    alive: list[weakref.ref[Tensor]] = []
    most = 0

    class Counting(Drift):
        def per_example(self, attention_BHQK: Tensor, batch: Batch, reference_BHQK: Tensor) -> Tensor:
            nonlocal most
            alive.append(weakref.ref(reference_BHQK))
            most = max(most, sum(one() is not None for one in alive))
            return super().per_example(attention_BHQK, batch, reference_BHQK)

    references = {"initial": tiny_model("bert", seed=1)}
    measure_pass(tiny_model("bert"), [Counting(LAYERS, HEADS)], [batch_of(tiny_batch())] * 4, references)
    assert len(alive) == 4 * LAYERS
    assert most <= 2


@given(st.integers(2, 30), st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_p_values_against_the_first_head_are_those_of_scipy(count: int, seed: int) -> None:
    value_SN = np.random.default_rng(seed).normal(size=(count, 5)) * 0.1 + [0.9, 0.88, 0.8, 0.9, 0.3]
    sums = torch.from_numpy(value_SN.sum(0)), torch.from_numpy(value_SN.T @ value_SN)
    first = int(value_SN.mean(0).argmax())
    others = [index for index in range(5) if index != first]
    raw = [stats.ttest_rel(value_SN[:, index], value_SN[:, first]).pvalue for index in others]
    result = differs_from_first(*sums, count)
    assert result[first] == 1
    assert result[others].tolist() == pytest.approx(holm(np.array(raw)).tolist(), rel=1e-6, abs=1e-12)


def test_equal_heads_one_head_and_one_example_are_not_told_apart() -> None:
    same_SN = np.repeat(np.random.default_rng(0).random((50, 1)), 3, axis=1)
    sums = torch.from_numpy(same_SN.sum(0)), torch.from_numpy(same_SN.T @ same_SN)
    assert differs_from_first(*sums, 50).tolist() == [1, 1, 1]
    assert differs_from_first(torch.ones(1).double(), torch.ones(1, 1).double(), 3).tolist() == [1]
    assert differs_from_first(torch.ones(2).double(), torch.ones(2, 2).double(), 1).isnan().all()


def test_heads_of_all_layers_are_paired_over_the_examples_of_all_batches() -> None:
    maps = [torch.rand(2, 3, 2, 4, 4, generator=torch.Generator().manual_seed(n)).double() for n in range(4)]
    measure = Drift(2, 2)
    numbers: list[list[Tensor]] = [[], []]
    for index in range(2):
        batch = lengths_batch(real_tokens((4, 4, 4), 4))
        for layer in range(2):
            current, reference = maps[2 * index][layer], maps[2 * index + 1][layer]
            measure.update(Passed(layer, batch, current, reference))
            numbers[layer].append(cosine(current, reference))
    value_SN = torch.cat([torch.cat(layer) for layer in numbers], dim=1).numpy()
    grid = measure.compute()
    first = int(value_SN.mean(0).argmin())
    others = [index for index in range(4) if index != first]
    raw = np.array([stats.ttest_rel(value_SN[:, index], value_SN[:, first]).pvalue for index in others])
    assert grid.column("p_cosine_first").flatten()[others].tolist() == pytest.approx(holm(raw).tolist(), rel=1e-6)


def test_the_cosine_of_equal_maps_is_not_above_1() -> None:
    attention_BHQK = torch.rand(8, 12, 40, 40, generator=torch.Generator().manual_seed(0)).softmax(-1)
    assert cosine(attention_BHQK, attention_BHQK).max() <= 1
