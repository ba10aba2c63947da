"""Shapley values: exact enumeration on three heads, efficiency in every order, and resuming."""

import math
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ablation.analyses import CLASSES, analysed
from ablation.test_replacements import split_of
from data.toy import wordpiece
from references import metric_value
from torch.nn import functional
from trainings import model_of_tokens
from transformers import BertConfig, BertForSequenceClassification

from bertsecrets.ablation.outcomes import Outcomes
from bertsecrets.ablation.rows import Worth
from bertsecrets.ablation.settings import AblationSettings
from bertsecrets.ablation.shapley import ShapleyHeads, orders, plan_of, take_worths, value_grid, worths
from bertsecrets.attention.override import HeadEdit, override
from bertsecrets.data.batch import Batch
from bertsecrets.data.task import Task


def three_heads() -> BertForSequenceClassification:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(wordpiece()),
        hidden_size=24,
        num_hidden_layers=1,
        num_attention_heads=3,
        intermediate_size=16,
        num_labels=3,
    )
    model = BertForSequenceClassification(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.4)
    return model


@torch.no_grad()
def worth_by_override(model: Any, batch: Batch, disabled: tuple[int, ...]) -> tuple[float, float]:
    with override(model, [HeadEdit(0, head, "uniform") for head in disabled]):
        logits = model(**batch.inputs()).logits
    loss = functional.cross_entropy(logits, batch.label_B).item()
    return -loss, metric_value("accuracy", batch.label_B.numpy(), logits.argmax(-1).numpy())


def test_all_orders_give_the_values_of_the_formula_over_all_sets() -> None:
    model, split = three_heads(), split_of([3, 9, 4, 4, 12, 7])
    batch = split[[0, 1, 2, 3, 4, 5]]
    sets = [tuple(h for h in range(3) if mask >> h & 1) for mask in range(8)]
    worth = {active: worth_by_override(model, batch, tuple(set(range(3)) - set(active))) for active in sets}
    expected = np.zeros((1, 3, 2))
    for head in range(3):
        for active in sets:
            if head not in active:
                weight = math.factorial(len(active)) * math.factorial(2 - len(active)) / 6
                both = tuple(sorted((*active, head)))
                expected[0, head] += weight * (np.array(worth[both]) - np.array(worth[active]))
    drawn = list(permutations([(0, head) for head in range(3)]))
    plans = [plan_of(order, "uniform", 1, 3) for order in drawn]
    worth_PKC = take_worths(model, plans, lambda: [split[[0, 3]], split[[1, 2, 4, 5]]], CLASSES)
    whole_and_none = np.array(worth[0, 1, 2]) - np.array(worth[()])
    np.testing.assert_allclose(worth_PKC[:, 0] - worth_PKC[:, -1], np.tile(whole_and_none, (6, 1)), atol=1e-6)
    grid = value_grid("accuracy", drawn, worth_PKC)
    np.testing.assert_allclose(grid.value_LHC.numpy(), expected, atol=1e-6)
    falls = [
        [worth_KC[order.index((0, head))] - worth_KC[order.index((0, head)) + 1] for head in range(3)]
        for order, worth_KC in zip(drawn, worth_PKC, strict=True)
    ]
    np.testing.assert_allclose(grid.stderr_LHC[0].numpy(), np.std(falls, axis=0, ddof=1) / math.sqrt(6), atol=1e-9)
    assert np.abs(expected).min(axis=(0, 1))[0] > 1e-4


def test_orders_are_seeded_and_extend_each_other() -> None:
    few, many = orders(3, 4, 5, seed=1), orders(3, 4, 9, seed=1)
    assert many[:5] == few
    assert all(sorted(order) == [(layer, head) for layer in range(3) for head in range(4)] for order in many)
    assert len(set(many)) == 9
    assert orders(3, 4, 5, seed=2) != few


def test_an_undefined_correlation_counts_as_zero() -> None:
    task = Task(name="score", metrics=("pearson",), texts=1, label_range=(0.0, 5.0))
    plan = plan_of([(0, 0), (0, 1)], "zero", 1, 2)
    logits_NV1 = torch.stack([torch.tensor([1.0, 2.0, 2.5]), torch.ones(3)], 1)[..., None]
    clean_N1 = torch.tensor([[1.0], [2.0], [4.0]])
    outcomes = Outcomes(plan, torch.arange(3), torch.tensor([1.0, 2.0, 4.0]), clean_N1, logits_NV1)
    worth_KC = worths(outcomes, task)
    correlation = metric_value("pearson", np.array([1.0, 2.0, 4.0]), np.array([1.0, 2.0, 2.5]))
    np.testing.assert_allclose(worth_KC[:, 1], [1.0, correlation, 0.0], atol=1e-6)
    np.testing.assert_allclose(worth_KC[:, 0], [0.0, -0.75, -10 / 3], atol=1e-6)


def test_the_values_of_heads_add_up_to_the_worth_of_the_model(tmp_path: Path) -> None:
    analysis = ShapleyHeads(AblationSettings(mode="zero"), permutations=4, max_examples=None)
    view = analysed(analysis, model_of_tokens(), split_of([3, 9, 4, 4, 12, 7]), tmp_path)
    worths_found = view.found(Worth)
    assert [(worth.quantity, worth.mode, worth.examples) for worth in worths_found] == [
        ("loss", "zero", 6),
        ("accuracy", "zero", 6),
    ]
    for worth in worths_found:
        assert view.value(worth.quantity).sum() == pytest.approx(worth.whole - worth.none, abs=1e-6)
