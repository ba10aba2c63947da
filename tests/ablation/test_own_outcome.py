"""Outcomes of anybody's batches: what the default finds, and what is refused."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bertsecrets.ablation.own_outcome import checked_outcome, logits_and_labels, task_of
from bertsecrets.errors import UserError

LOGITS = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 2.0]])
LABELS = torch.tensor([0, 1])


class Takes(nn.Module):
    """Returns what it was made with, and takes two inputs by name."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        return self.output


@pytest.mark.parametrize(
    "output",
    [LOGITS, (LOGITS,), (torch.tensor(0.3), LOGITS), {"logits": LOGITS}, SimpleNamespace(logits=LOGITS, loss=None)],
)
@pytest.mark.parametrize(
    "batch",
    [
        {"input_ids": LABELS, "labels": LABELS, "index": LABELS, "text": ["a", "b"]},
        {"input_ids": LABELS, "attention_mask": LABELS, "label": LABELS},
        ({"input_ids": LABELS}, LABELS),
        [LABELS, LABELS],
    ],
)
def test_the_default_finds_logits_and_labels(output: Any, batch: Any) -> None:
    answers, labels = logits_and_labels(Takes(output), batch)
    assert torch.equal(answers, LOGITS)
    assert torch.equal(labels, LABELS)


@pytest.mark.parametrize(
    ("output", "batch", "words"),
    [
        (LOGITS, {"input_ids": LABELS}, r"no 'labels' but 'input_ids'; pass outcome="),
        (LOGITS, (LABELS, LABELS, LABELS), r"is a tuple, in which the labels cannot be found; pass outcome="),
        ("text", {"input_ids": LABELS, "labels": LABELS}, r"Takes returns str without logits; pass outcome="),
    ],
)
def test_what_the_default_cannot_score(output: Any, batch: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        logits_and_labels(Takes(output), batch)


def returning(*parts: Any) -> Any:
    def mine(module: Any, batch: Any) -> Any:
        return parts if len(parts) > 1 else parts[0]

    return mine


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ((LOGITS[:1], LABELS), r"mine returns predictions of shape \[1, 3\] and labels of shape \[2\]; expected one"),
        ((LOGITS[:1], LABELS[:1]), r"labels of shape \[1\] for 2 examples"),
        ((LOGITS.expand(2, 2, 3), LABELS), r"predictions of shape \[2, 2, 3\]"),
        ((LOGITS, LABELS.expand(2, 2)), r"labels of shape \[2, 2\]"),
        ((torch.tensor(1), torch.tensor(1)), r"predictions of shape \[\]"),
        ((LOGITS,), r"mine returns Tensor; expected a pair"),
        ((LOGITS[:, 0], LABELS), r"one number for each example and labels that are classes"),
    ],
)
def test_an_outcome_that_is_not_one_prediction_and_one_label_for_each_example(returned: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        checked_outcome(returning(*returned), nn.Module(), None, 2 if "for 2" in words else None)


@pytest.mark.parametrize(
    ("answers", "labels", "metric", "classes"),
    [
        (LOGITS, LABELS, None, 3),
        (torch.tensor([0, 1]), torch.tensor([4, 1]), "macro_f1", 5),
        (torch.tensor([True, False]), torch.tensor([False, False]), "f1", 2),
        (LOGITS[:, :1], torch.tensor([[0.5], [1.0]]), None, 0),
    ],
)
def test_the_task_of_an_outcome(answers: Tensor, labels: Tensor, metric: str | None, classes: int) -> None:
    checked, label_B = checked_outcome(returning(answers, labels), nn.Module(), None, 2)
    assert checked.shape == (2, answers.shape[1] if answers.dim() == 2 else 1)
    task = task_of("mine", checked, label_B, metric)
    assert len(task.labels) == classes
    assert task.is_regression == (classes == 0)
    assert task.metrics == (metric or ("pearson" if classes == 0 else "accuracy"),)


@pytest.mark.parametrize(
    ("labels", "metric", "words"),
    [
        (torch.tensor([0, 3]), None, "Labels range from 0 to 3, but the model has classes 0 to 2"),
        (torch.tensor([-100, 1]), None, "Labels range from -100 to 1"),
        (LABELS, "pearson", "metric is pearson, but the labels are classes; choose accuracy or f1"),
        (torch.tensor([0.5, 1.0]), "f1", "metric is f1, but the labels are scores; choose pearson or spearman"),
        (LABELS, "acuracy", "Unknown metric 'acuracy'"),
    ],
)
def test_labels_and_metrics_that_do_not_fit(labels: Tensor, metric: str | None, words: str) -> None:
    with pytest.raises(UserError, match=words):
        task_of("mine", LOGITS, labels, metric)
