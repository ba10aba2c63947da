"""Metrics of an evaluation set, and the order of a model's outputs."""

import math
from functools import partial
from itertools import permutations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics

from bertsecrets.ablation.predictions import weighted_scores
from bertsecrets.cli.finish import _misnamed
from bertsecrets.data.task import Task
from bertsecrets.errors import UserError
from bertsecrets.models.checkpoint import OUTPUTS
from bertsecrets.models.metrics import better_order, check_metrics, collected, scores

BINARY = Task(name="b", metrics=("accuracy", "f1", "macro_f1", "matthews"), texts=1, labels=("no", "yes"))
THREE = Task(name="t", metrics=("accuracy", "macro_f1", "matthews"), texts=1, labels=("a", "b", "c"))
RANKED = Task(name="r", metrics=("accuracy", "auc"), texts=1, labels=("no", "yes"))
SCORES = Task(name="s", metrics=("pearson", "spearman"), texts=1, label_range=(0, 5))
REFERENCE: dict[str, Any] = {
    "accuracy": metrics.accuracy_score,
    "f1": partial(metrics.f1_score, zero_division=0),
    "macro_f1": partial(metrics.f1_score, average="macro", zero_division=0),
    "matthews": metrics.matthews_corrcoef,
    "pearson": lambda gold, said: stats.pearsonr(gold, said).statistic,
    "spearman": lambda gold, said: stats.spearmanr(gold, said).statistic,
}


@settings(max_examples=60)
@given(st.data(), st.sampled_from([(BINARY, 2), (THREE, 3), (SCORES, 30)]))
def test_scores_equal_those_of_scikit_learn_and_of_effects(data: st.DataObject, case: tuple[Task, int]) -> None:
    task, values = case
    pairs = data.draw(st.lists(st.tuples(*[st.integers(0, values - 1)] * 2), min_size=2, max_size=60))
    said, gold = (np.array(column, float) for column in zip(*pairs, strict=True))
    found = scores(torch.tensor(said)[:, None], torch.tensor(gold), task)
    undefined = not task.labels and 1 in (len({*said}), len({*gold}))
    reference = {name: math.nan if undefined else float(REFERENCE[name](gold, said)) for name in found}
    assert found == pytest.approx(reference, abs=1e-9, nan_ok=True)
    ones = np.ones((1, len(gold)))
    weighted = {name: weighted_scores(task.head.metrics[name], gold, said[None], ones)[0, 0] for name in found}
    assert found == pytest.approx(weighted, abs=1e-9, nan_ok=True)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3), st.integers(0, 1)), min_size=2, max_size=30))
def test_auc_is_the_share_of_pairs_in_the_right_order(rows: list[tuple[int, int, int]]) -> None:
    no, yes, gold = (np.array(column) for column in zip(*rows, strict=True))
    result = scores(torch.tensor(np.stack([no, yes], 1)).float(), torch.tensor(gold), RANKED)
    assert result["accuracy"] == pytest.approx(np.mean((yes > no) == gold))
    above = [(a > b) + (a == b) / 2 for a in (yes - no)[gold == 1] for b in (yes - no)[gold == 0]]
    assert result["auc"] == pytest.approx(np.mean(above) if above else math.nan, nan_ok=True)
    if above:
        assert scores(torch.zeros(len(gold), 1), torch.tensor(gold), RANKED)["auc"] == 0.5


def test_examples_come_back_in_order_and_never_twice() -> None:
    parts = [(torch.tensor([3, 0]), torch.tensor([[3.0, 0], [0, 1]]), torch.tensor([1, 0]))]
    parts.append((torch.tensor([1]), torch.tensor([[5.0, 6]]), torch.tensor([1])))
    index, logits, labels = collected(parts)
    assert index.tolist() == [0, 1, 3]
    assert BINARY.head.predictions(logits).tolist() == [1, 1, 0]
    assert labels.tolist() == [0, 1, 1]
    parts.append((torch.tensor([1]), torch.zeros(1, 2), torch.tensor([0])))
    with pytest.raises(RuntimeError, match="more than once"):
        collected(parts)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (Task(name="x", metrics=("acuracy",), texts=1, labels=("a", "b")), "did you mean 'accuracy'"),
        (Task(name="x", metrics=("f1",), texts=1, labels=("a", "b", "c")), "does not fit"),
        (Task(name="x", metrics=("pearson",), texts=1, labels=("a", "b")), "does not fit"),
        (Task(name="x", metrics=("accuracy",), texts=1, label_range=(0, 1)), "does not fit"),
        (Task(name="x", metrics=("accuracy", "auc"), texts=1, labels=("a", "b", "c")), "does not fit"),
        (
            Task(name="x", metrics=("auc",), texts=1, labels=("a", "b")),
            r"put another metric first, e\.g\. task\.metrics=",
        ),
        (
            Task(name="x", metrics=("accuracy", "log_loss"), texts=1, labels=("a", "b")),
            "every run records the loss: as",
        ),
    ],
)
def test_unfit_metrics_are_reported(task: Task, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_metrics(task)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=60))
def test_a_better_order_of_the_outputs_equals_trying_all_of_them(pairs: list[tuple[int, int]]) -> None:
    said_N, gold_N = (np.array(column) for column in zip(*pairs, strict=True))
    right_N = said_N == gold_N
    found = better_order(torch.tensor(said_N), torch.tensor(gold_N), 3)
    permuted = {order: np.array(order)[said_N] == gold_N for order in permutations(range(3))}
    most = max(right.sum() for right in permuted.values())

    def p_value(right: np.ndarray) -> float:
        gained, lost = (right & ~right_N).sum(), (right_N & ~right).sum()
        return float(stats.binom.sf(gained - 1, gained + lost, 0.5)) * 6

    best = {order for order, right in permuted.items() if right.sum() == most}
    significant = {order for order in best if p_value(permuted[order]) <= 0.05}
    # Any of several best ones may be tested.
    assert found in significant or (found is None and significant != best)


def test_the_order_of_many_outputs() -> None:
    gold_N = torch.arange(200).repeat(40)
    # 8,000 examples gained, none lost, outweigh 200! permutations (10 ** 375); 4 of 200 outputs exchanged do not.
    assert better_order((gold_N + 1) % 200, gold_N, 200) == tuple((output - 1) % 200 for output in range(200))
    assert better_order((gold_N[:200] + 1) % 200, gold_N[:200], 200) is None


def test_outputs_of_somebody_elses_model_in_another_order_are_warned_of() -> None:
    def warnings(record: dict[str, list[str]], said_N: torch.Tensor) -> list[str]:
        module: Any = SimpleNamespace(record=record)
        return _misnamed(module, THREE, said_N, gold_N)

    gold_N = torch.arange(30) % 3
    outputs = {OUTPUTS: ["b", "a", "c"]}
    (note,) = warnings(outputs, (gold_N + 1) % 3)
    assert "accuracy is 0 % if its outputs are b, a, c, in this order" in note
    # The output of "b" says "b" where the class is "a", and so on.
    assert "and 100 % if they are a, c, b; if these are its classes, set model.labels='[a,c,b]'" in note
    assert warnings(outputs, gold_N) == warnings({}, (gold_N + 1) % 3) == []
    # Four of six examples are no evidence.
    assert better_order(torch.tensor([1, 1, 0, 0, 0, 0]), torch.tensor([0, 0, 1, 1, 0, 1]), 2) is None
