"""Scores computed on the examples that choose heads, on a model without the heads that are already removed."""

from collections.abc import Iterable
from functools import cache

import numpy as np
import pytest
import torch
from data.tasks import task
from data.toy import wordpiece
from families import HEADS, LAYERS, tiny_model
from torch import Tensor
from torch.nn import functional
from trainings import tiny_classifier

from bertsecrets.attention.gates import gated
from bertsecrets.attention.override import HeadEdit, override
from bertsecrets.attention.watch import watch
from bertsecrets.data.module import TaskData
from bertsecrets.data.sources import SourceConfig
from bertsecrets.errors import UserError
from bertsecrets.pruning.scores import find_score, measured_scores, passes_of, ranking_measures, removal_sets
from bertsecrets.pruning.sets import Situation

TASK = task("demo_paraphrase")
REMOVED = frozenset({(0, 1), (1, 3), (2, 0)})


@cache
def some_data() -> TaskData:
    data = TaskData(TASK, SourceConfig(source="demo", limit_train=40, limit_eval=8), wordpiece(), 4, max_length=32)
    data.prepare_data()
    data.setup("fit")
    return data


def situation(removed: frozenset[tuple[int, int]] = REMOVED) -> Situation:
    data = some_data()
    return Situation(
        tiny_classifier().double().eval(),
        TASK,
        lambda: data.training_sample(10),
        split=lambda: data.training_split(10),
        removed=removed,
    )


def derivatives(here: Situation) -> Tensor:
    """Each example's derivative of its loss with respect to gates on the heads, ``[N, layers, heads]``, one by one."""
    data, rows = some_data(), []
    for position in range(10):
        batch = data.training_split(10)[[position]]
        gate_LH = torch.ones(LAYERS, HEADS, dtype=torch.float64)
        for place in here.removed:
            gate_LH[place] = 0
        gate_LH.requires_grad_()
        with gated(here.model, lambda gate_LH=gate_LH: gate_LH):
            loss = functional.cross_entropy(here.model(**batch.inputs()).logits, batch.label_B)
        rows.append(torch.autograd.grad(loss, gate_LH)[0])
    return torch.stack(rows)


def kept(score_LH: Tensor) -> Tensor:
    return torch.tensor([float(score_LH[index]) for index in np.ndindex(LAYERS, HEADS) if index not in REMOVED])


def test_gradient_scores_are_derivatives_without_the_removed_heads() -> None:
    here = situation()
    slope_NLH = derivatives(here)
    example_LH = slope_NLH.abs().mean(0)
    for place in REMOVED:
        example_LH[place] = 0
    expected = {
        "head_gradient/example": example_LH,
        "head_gradient/example_normalised": example_LH / example_LH.norm(dim=1, keepdim=True),
        "first_order/zero": -slope_NLH.mean(0),
    }
    for name, score_LH in expected.items():
        torch.testing.assert_close(kept(find_score(name, {})(here)), kept(score_LH), atol=1e-6, rtol=1e-4)
    assert set(here.computed) == {("head_gradient", REMOVED), ("first_order", REMOVED)}


def test_low_entropy_is_worth_keeping() -> None:
    here = situation()
    total_LH, count = torch.zeros(LAYERS, HEADS, dtype=torch.float64), 0
    for batch in here.batches():
        for row in range(batch.size):

            def add(layer: int, attention_BHQK: Tensor, row: int = row, batch: object = batch) -> None:
                real = batch.attention_mask_BS[row].bool()
                own_HQK = attention_BHQK[row][:, real][:, :, real].double()
                total_LH[layer] += -(own_HQK * own_HQK.log2()).sum(-1).mean(-1)

            edits = [HeadEdit(*place, "zero") for place in REMOVED]
            with torch.no_grad(), override(here.model, edits), watch(here.model, add):
                here.model(**batch.inputs())
            count += 1
    torch.testing.assert_close(kept(find_score("bits", {})(here)), kept(-total_LH / count), atol=1e-5, rtol=1e-5)


def test_shapley_values_share_out_what_the_remaining_heads_are_worth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertsecrets.pruning.scores.PERMUTATIONS", 2)
    here = situation()

    def loss(heads: Iterable[tuple[int, int]]) -> float:
        batch = some_data().training_split(10)[range(10)]
        with torch.no_grad(), override(here.model, [HeadEdit(*place, "zero") for place in heads]):
            return functional.cross_entropy(here.model(**batch.inputs()).logits, batch.label_B).item()

    every = set(np.ndindex(LAYERS, HEADS))
    score_LH = find_score("shapley", {})(here)
    assert score_LH.sum().item() == pytest.approx(loss(every) - loss(REMOVED), abs=1e-6)
    assert [score_LH[place].item() for place in REMOVED] == pytest.approx([0.0] * 3, abs=1e-6)
    direct_LH = find_score("direct_effect/direct", {})(here)
    # In the last layer the direct effect is the whole one.
    for head in (1, 3):
        assert direct_LH[2, head].item() == pytest.approx(loss({*REMOVED, (2, head)}) - loss(REMOVED), abs=1e-6)


def test_every_measured_score_orders_heads_anew_after_each_step() -> None:
    by_experiment = {score.experiment: name for name, score in measured_scores().items()}
    assert {"confidence", "integrated_gradients", "value_norm", "relevance", "direct_effect"} <= by_experiment.keys()
    del by_experiment["shapley"]
    finished: list[int] = []
    here = situation(frozenset())
    here = Situation(here.model, TASK, here.batches, split=here.split, progress=finished.append)
    for name in by_experiment.values():
        finished.clear()
        first, second = removal_sets(find_score(name, {}), here, [2, 5], iterative=True)
        assert first < second
        assert (len(first), len(second)) == (2, 5)
        removal_sets(find_score(f"-{name}", {}), here, [2], iterative=False)
        assert sum(finished) == 2 * 10 * passes_of([name, f"-{name}", "reversed"], {}, LAYERS * HEADS)
    names = ["exact", "shapley", "relevance", "head_gradient/token", "head_gradient/example"]
    assert passes_of([*names, "random"], {}, 12) == 12 + 20 * 12 + 2 + 2


def test_names_of_measured_scores() -> None:
    assert find_score("relevance", {}) is measured_scores()["relevance/relevance"]
    assert find_score("weighted", {}) is measured_scores()["value_norm/weighted"]
    with pytest.raises(
        UserError, match=r"'first_order' fits several columns; choose one of first_order/uniform, first_order/zero"
    ):
        find_score("first_order", {})
    with pytest.raises(UserError, match=r"'head_gradient/signed'.*other columns are read from prune\.tables"):
        find_score("head_gradient/signed", {})
    here = Situation(tiny_model("albert"), TASK, list, removed=REMOVED)
    with pytest.raises(
        UserError, match=r"'confidence' cannot be recomputed after each step, because the layers of model type 'albert'"
    ):
        find_score("confidence", {})(here)


def test_every_shipped_measure_that_ranks_heads_is_known_without_a_list() -> None:
    makers = ranking_measures()
    assert {"confidence", "entropy", "head_gradient", "integrated_gradients"} <= set(makers)
    assert "drift" not in makers
    measure = makers["integrated_gradients"](2, 3)
    assert measure.total_LHC.shape[:2] == (2, 3)
    assert measure.passes == (12, 12)
    assert makers["confidence"](2, 3).passes == (1, 0)
