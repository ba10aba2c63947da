"""A measure on two models: against the other model measured alone, and differences against scipy's paired test."""

import numpy as np
import pytest
import torch
from families import HEADS, LAYERS, tiny_model
from measures.toy import Focus, batches
from scipy import stats
from torch import Tensor

from bertsecrets.data.batch import Batch
from bertsecrets.data.example import Annotation, Frame, FrameElement, Word
from bertsecrets.grid import HeadGrid
from bertsecrets.measures.analysis import Paired
from bertsecrets.measures.base import Measure
from bertsecrets.measures.drift import Drift
from bertsecrets.measures.frame_relations.measure import FrameRelations
from bertsecrets.measures.one_pass import measure_pass


class CountedFocus(Focus):
    """Records the layer and the maps of every call."""

    def __init__(self, num_layers: int, num_heads: int) -> None:
        super().__init__(num_layers, num_heads)
        self.calls: list[Tensor] = []

    def per_example(self, attention_BHQK: Tensor, batch: Batch, reference_BHQK: Tensor | None) -> Tensor:
        self.calls.append(attention_BHQK)
        return super().per_example(attention_BHQK, batch, reference_BHQK)


def two_models() -> tuple[torch.nn.Module, torch.nn.Module]:
    model, other = (tiny_model("bert", seed=seed, attention="eager").double() for seed in (0, 1))
    return model, other


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


def assert_bit_equal(first: HeadGrid, second: HeadGrid) -> None:
    assert first.measure == second.measure
    assert first.described == second.described
    for name in ("value_LHC", "stderr_LHC", "count_LHC"):
        torch.testing.assert_close(getattr(first, name), getattr(second, name), rtol=0, atol=0, equal_nan=True)


def test_both_models_and_their_differences_on_the_same_examples() -> None:
    model, other = two_models()
    a_NLH, b_NLH = by_hand(model), by_hand(other)
    long_N = np.array([11, 7, 4, 9, 9, 3, 6]) >= 5
    paired = Paired(Focus(LAYERS, HEADS), "initial")
    measure_pass(model, [paired], batches(), {"initial": other})
    theirs, difference = paired.grids()
    assert theirs.columns == difference.columns == ("all", "long")
    for keep_N, column in ((np.ones(7, bool), "all"), (long_N, "long")):
        a, b = a_NLH[keep_N], b_NLH[keep_N]
        position = difference.columns.index(column)
        assert np.allclose(theirs.column(column), b.mean(0), atol=1e-12)
        assert np.allclose(difference.column(column), (a - b).mean(0), atol=1e-12)
        assert (difference.count_LHC[:, :, position] == keep_N.sum()).all()
        t_LH = difference.column(column) / difference.stderr_LHC[:, :, position]
        assert np.allclose(t_LH, stats.ttest_rel(a, b, axis=0).statistic, atol=1e-8)


def framed() -> list[Batch]:
    """Batches whose sentences hold one frame each; the last batch has no frame."""
    built = [*batches(), batches()[0]]
    for index, batch in enumerate(built):
        size = batch.input_ids_BS.shape[1]
        words = tuple(Word("w", 2 * word, 2 * word + 1, "X", -1, "root") for word in range(size))
        frames = (Frame("F", 2, (FrameElement("A", 0, 0),)),) if index < 2 else ()
        batch.word_BS = torch.arange(size).expand_as(batch.word_BS).masked_fill(~batch.attention_mask_BS.bool(), -1)
        batch.index_B = torch.arange(10 * index, 10 * index + batch.size)
        batch.annotations = ((Annotation(words, frames),),) * batch.size
    return built


def test_the_other_model_has_the_tests_that_the_measure_gives_it_alone() -> None:
    model, other = two_models()
    measure = FrameRelations(LAYERS, HEADS, permutations=50)
    # During training, a measure has been taken before it is paired.
    (own,) = measure_pass(model, [measure], framed())
    paired = Paired(measure, "initial")
    measure_pass(model, [paired], framed(), {"initial": other})
    theirs, difference = paired.grids()
    (alone,) = measure_pass(other, [FrameRelations(LAYERS, HEADS, permutations=50)], framed())
    assert theirs.columns == alone.columns
    assert {"p_position_corrected", "p_received_corrected"} <= set(theirs.columns)
    assert torch.allclose(theirs.value_LHC, alone.value_LHC, equal_nan=True, atol=1e-12)
    assert torch.equal(theirs.count_LHC, alone.count_LHC)
    assert theirs.column("p_position").unique().numel() > 1
    # P-values are not averaged, so that the differences have none.
    assert difference.described == tuple(column for column in FrameRelations.columns if column.role != "p_value")
    expected_LH = own.column("weight") - alone.column("weight")
    assert torch.allclose(difference.column("weight"), expected_LH, atol=1e-12)
    assert (difference.count_LHC[:, :, 0] == 7).all()


def test_one_pass_feeds_measures_and_pairs_as_separate_passes_do() -> None:
    model, initial = two_models()
    random = tiny_model("bert", seed=2, attention="eager").double()
    references = {"initial": initial, "random": random}

    def measures() -> list[Measure]:
        return [Focus(LAYERS, HEADS), Drift(LAYERS, HEADS), FrameRelations(LAYERS, HEADS, permutations=20)]

    focus, drift, relations = measures()
    pairs = [Paired(measure, other) for other in references for measure in (focus, relations)]
    together = measure_pass(model, [focus, drift, relations, *pairs], framed(), references)
    for grid, measure in zip(together, measures(), strict=False):
        (alone,) = measure_pass(model, [measure], framed(), references)
        assert_bit_equal(grid, alone)
    for pair in pairs:
        fresh = next(measure for measure in measures() if measure.name == pair.name)
        recomputed = Paired(fresh, pair.reference)
        # Without its partner in the pass, the pair computes the model's numbers itself.
        measure_pass(model, [recomputed], framed(), {pair.reference: references[pair.reference]})
        assert_bit_equal(pair.grids().other, recomputed.grids().other)
        assert_bit_equal(pair.grids().difference, recomputed.grids().difference)
        (theirs,) = measure_pass(references[pair.reference], [fresh], framed())
        assert_bit_equal(pair.grids().other, theirs)


def test_a_models_numbers_are_computed_once_for_all_its_pairs() -> None:
    model, initial = two_models()
    random = tiny_model("bert", seed=2, attention="eager").double()
    partner = CountedFocus(LAYERS, HEADS)
    pairs = [Paired(partner, "initial"), Paired(partner, "random")]
    measure_pass(model, [partner, *pairs], batches(), {"initial": initial, "random": random})
    copies = [pair.measure for pair in pairs]
    assert all(isinstance(copy, CountedFocus) for copy in copies)
    assert len(partner.calls) == len(batches()) * LAYERS
    for copy in copies:
        # The other model's maps alone.
        assert len(copy.calls) == len(batches()) * LAYERS
        assert not any(theirs is own for theirs in copy.calls for own in partner.calls)


def test_a_partners_numbers_of_another_batch_are_not_reused() -> None:
    model, other = two_models()
    partner = Focus(LAYERS, HEADS)
    # The partner keeps the numbers of another pass.
    measure_pass(other, [partner], batches())
    assert partner.added is not None
    paired = Paired(partner, "initial")
    measure_pass(model, [paired], batches(), {"initial": other})
    fresh = Paired(Focus(LAYERS, HEADS), "initial")
    measure_pass(model, [fresh], batches(), {"initial": other})
    assert_bit_equal(paired.grids().difference, fresh.grids().difference)


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
    real_BS = batch.attention_mask_BS.double()
    for layer, maps_BHQK in enumerate(seen):
        sum_H = torch.einsum("bhqk,bk,bq->h", maps_BHQK.double().sqrt(), real_BS, real_BS)
        assert torch.allclose(grid.column("all")[layer], sum_H / batch.size, rtol=1e-5)


def test_a_measure_of_two_models_cannot_be_paired() -> None:
    with pytest.raises(ValueError, match="'drift' compares two models itself"):
        Paired(Drift(LAYERS, HEADS), "initial")
