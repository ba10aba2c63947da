"""A measure on two models: against the other taken by itself, and differences against scipy's paired test."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from families import HEADS, LAYERS, tiny_batch, tiny_model
from scipy import stats
from torch import Tensor

from bertsecrets.data.batch import Batch
from bertsecrets.data.example import Annotation, Frame, FrameElement, Word
from bertsecrets.measures.base import Measure
from bertsecrets.measures.drift import Drift
from bertsecrets.measures.frame_relations import FrameRelations
from bertsecrets.measures.paired import Paired
from bertsecrets.measures.runner import measure_pass


class Focus(Measure):
    """The mean over queries of the largest weight; examples of fewer than five tokens do not count in the second column."""

    name = "focus"
    columns = ("all", "long")

    def per_example(self, attention_BHQK: Tensor, batch: Batch, reference_BHQK: Tensor | None) -> Tensor:
        real_BQ = batch.attention_mask_BS.to(attention_BHQK)
        mean_BH = (attention_BHQK.amax(-1) * real_BQ[:, None]).sum(-1) / real_BQ.sum(-1)[:, None]
        long_BH = mean_BH.masked_fill((batch.lengths_B < 5)[:, None], torch.nan)
        return torch.stack([mean_BH, long_BH], -1)


def batches() -> list[Batch]:
    found = []
    for start, lengths in ((0, (11, 7, 4)), (3, (9, 9, 3, 6))):
        inputs = tiny_batch(lengths)
        ids_BS = (inputs["input_ids"] + start) % 90
        found.append(
            Batch(
                input_ids_BS=ids_BS,
                attention_mask_BS=inputs["attention_mask"],
                token_type_ids_BS=None,
                special_BS=torch.zeros_like(ids_BS).bool(),
                word_BS=torch.zeros_like(ids_BS),
                index_B=torch.arange(start, start + len(ids_BS)),
                label_B=None,
            )
        )
    return found


def by_hand(model: torch.nn.Module) -> np.ndarray:
    """``[examples, layers, heads]``, one unpadded example at a time, from the library's own maps."""
    rows = []
    for batch in batches():
        for row in range(batch.size):
            length = int(batch.lengths_B[row])
            with torch.no_grad():
                maps = model(input_ids=batch.input_ids_BS[row : row + 1, :length], output_attentions=True).attentions
            rows.append(torch.stack([each[0].amax(-1).mean(-1) for each in maps]).numpy())
    return np.stack(rows)


def test_both_models_and_their_differences_on_the_same_examples() -> None:
    model, other = (tiny_model("bert", seed=seed, attention="eager").double() for seed in (0, 1))
    a_NLH, b_NLH = by_hand(model), by_hand(other)
    long_N = np.array([11, 7, 4, 9, 9, 3, 6]) >= 5
    paired = Paired(Focus(LAYERS, HEADS))
    (grid,) = measure_pass(model, [paired], batches(), other)
    theirs, difference = paired.apart(grid)
    assert theirs.columns == difference.columns == ("all", "long")
    for keep_N, column in ((np.ones(7, bool), "all"), (long_N, "long")):
        a, b = a_NLH[keep_N], b_NLH[keep_N]
        place = difference.columns.index(column)
        assert np.allclose(theirs.column(column), b.mean(0), atol=1e-12)
        assert np.allclose(difference.column(column), (a - b).mean(0), atol=1e-12)
        assert (difference.count_LHC[:, :, place] == keep_N.sum()).all()
        t_LH = difference.column(column) / difference.stderr_LHC[:, :, place]
        assert np.allclose(t_LH, stats.ttest_rel(a, b, axis=0).statistic, atol=1e-8)


def test_a_model_does_not_differ_from_itself() -> None:
    model = tiny_model("bert").double()
    paired = Paired(Focus(LAYERS, HEADS))
    (grid,) = measure_pass(model, [paired], batches(), deepcopy(model))
    _, difference = paired.apart(grid)
    assert (difference.value_LHC == 0).all()
    assert (difference.stderr_LHC == 0).all()


def framed() -> list[Batch]:
    """Batches whose sentences hold one frame each; none in the last of them."""
    found = []
    for place, batch in enumerate([*batches(), batches()[0]]):
        size = batch.input_ids_BS.shape[1]
        words = tuple(Word("w", 2 * word, 2 * word + 1, "X", -1, "root") for word in range(size))
        frames = (Frame("F", 2, (FrameElement("A", 0, 0),)),) if place < 2 else ()
        found.append(
            Batch(
                input_ids_BS=batch.input_ids_BS,
                attention_mask_BS=batch.attention_mask_BS,
                token_type_ids_BS=None,
                special_BS=batch.special_BS,
                word_BS=torch.arange(size).expand_as(batch.word_BS).masked_fill(~batch.attention_mask_BS.bool(), -1),
                index_B=torch.arange(10 * place, 10 * place + batch.size),
                label_B=None,
                annotations=((Annotation(words, frames),),) * batch.size,
            )
        )
    return found


def test_the_other_model_has_the_tests_that_the_measure_gives_it_by_itself() -> None:
    model, other = (tiny_model("bert", seed=seed, attention="eager").double() for seed in (0, 1))
    paired = Paired(FrameRelations(LAYERS, HEADS, permutations=50))
    theirs, difference = paired.apart(measure_pass(model, [paired], framed(), other)[0])
    (alone,) = measure_pass(other, [FrameRelations(LAYERS, HEADS, permutations=50)], framed())
    assert theirs.columns == alone.columns
    assert {"p_position_holm", "p_received_holm"} <= set(theirs.columns)
    assert torch.allclose(theirs.value_LHC, alone.value_LHC, equal_nan=True, atol=1e-12)
    assert torch.equal(theirs.count_LHC, alone.count_LHC)
    assert theirs.column("p_position").unique().numel() > 1
    # A p-value of a difference of two weights is none of the difference's numbers.
    assert difference.columns == FrameRelations.columns
    (own,) = measure_pass(model, [FrameRelations(LAYERS, HEADS, permutations=50)], framed())
    expected_LH = own.column("weight") - alone.column("weight")
    assert torch.allclose(difference.column("weight"), expected_LH, atol=1e-12)
    assert (difference.count_LHC[:, :, 0] == 7).all()


def test_a_models_autocast_does_not_round_its_measures() -> None:
    class Products(Focus):
        """A mean by a matrix product, which autocast would do in half precision."""

        def per_example(self, attention_BHQK: Tensor, batch: Batch, reference_BHQK: Tensor | None) -> Tensor:
            seen.append(attention_BHQK)
            real_BQ = batch.attention_mask_BS.to(attention_BHQK)
            mean_BH = torch.einsum("bhqk,bk,bq->bh", attention_BHQK.sqrt(), real_BQ, real_BQ)
            return torch.stack([mean_BH, mean_BH], -1)

    seen: list[Tensor] = []
    (batch, _), model = batches(), tiny_model("bert")
    (grid,) = measure_pass(
        model, [Products(LAYERS, HEADS)], [batch], context=lambda: torch.autocast("cpu", torch.bfloat16)
    )
    assert len(seen) == LAYERS
    for layer, maps_BHQK in enumerate(seen):
        expected_H = maps_BHQK.double().sqrt().sum((0, 2, 3)) / batch.size
        extra_H = torch.zeros(HEADS, dtype=torch.float64)
        for row in range(batch.size):
            length = int(batch.lengths_B[row])
            extra_H += maps_BHQK[row, :, length:].double().sqrt().sum((1, 2)) / batch.size
        assert torch.allclose(grid.column("all")[layer], expected_H - extra_H, rtol=1e-5)


def test_a_measure_of_two_models_cannot_be_paired() -> None:
    with pytest.raises(ValueError, match="'drift' compares two models itself"):
        Paired(Drift(LAYERS, HEADS))
