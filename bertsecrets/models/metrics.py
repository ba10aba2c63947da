"""Metrics of a task, computed once over all predictions of an evaluation set: GLUE's metrics, macro-F1 and AUC."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.stats import binomtest, rankdata
from torch import Tensor

from bertsecrets.data.batch import Batch, whole_set
from bertsecrets.data.task import Task
from bertsecrets.errors import UserError, choices
from bertsecrets.models.encoder import Autocast
from bertsecrets.results.formatting import percentage
from bertsecrets.results.scores import LEVEL, SetScores, beats_constant
from bertsecrets.task_heads.base import TaskHead, output_of
from bertsecrets.task_heads.metric import Array
from bertsecrets.task_heads.sequence import SEQUENCE

_LOSSES = ("log_loss", "neg_log_loss", "cross_entropy", "loss")


def check_metrics(task: Task) -> None:
    """Raise UserError if a metric of the task does not exist or does not fit its labels, or if ``auc`` is first."""
    head, two_classes = task.head, len(task.labels) == 2
    fitting = [name for name in head.metrics if name != "f1" or two_classes]
    fitting += ["auc"] if head.classifies and two_classes else []
    for name in task.metrics:
        if name in _LOSSES:
            raise UserError(
                f"'{name}' is not a selectable metric, because every run records the loss: as <evaluation set>/loss, "
                "and for a disabled head in the columns loss_change, loss_low_pointwise and loss_high_pointwise of "
                "ablation.parquet; remove it."
            )
        if name not in fitting:
            raise UserError(
                f"Metric '{name}' does not fit task '{task.name}' of kind {head.kind}; {choices(name, fitting)}."
            )
    if task.metrics[:1] == ("auc",):
        raise UserError(
            "task.metrics starts with auc, which is not supported for disabled heads; put another metric first, e.g. "
            "task.metrics=[accuracy,auc]."
        )


def scores(answer_NF: Tensor, label_N: Tensor, task: Task) -> dict[str, float]:
    """Every metric of the task; NaN for a correlation with a constant, for an AUC with a single class, and without
    examples.

    Args:
        answer_NF: Answers of the task's head; predictions in a single column score as they are.
        label_N: Gold labels; not read where answers are statistics.
    """
    if not len(answer_NF):
        return dict.fromkeys(task.metrics, math.nan)
    label, prediction_1N = label_N.double().numpy(), task.head.predictions(answer_NF).double().numpy()[None]
    found = {}
    for name in task.metrics:
        if name == "auc":
            # A slow import that few runs need.
            from sklearn.metrics import roc_auc_score

            ranking_N = answer_NF[:, -1] - answer_NF[:, 0]
            found[name] = math.nan if np.ptp(label) == 0 else float(roc_auc_score(label, ranking_N.double().numpy()))
            continue
        metric = task.head.metrics[name]
        pair = (rankdata(label), rankdata(prediction_1N, axis=-1)) if metric.of_ranks else (label, prediction_1N)
        found[name] = float(metric.score(metric.features(*pair).mean(1))[0])
    return found


def better_order(prediction_N: Tensor, label_N: Tensor, classes: int) -> tuple[int, ...] | None:
    """The class that each output seems to stand for, if it differs from the assumed one.

    The permutation of the outputs with the most correct predictions, if it is significantly better than the identity:
    McNemar's exact test, Bonferroni-corrected for the number of permutations.

    Args:
        prediction_N, label_N: Class indices.
        classes: Number of classes.
    """
    count_CC = torch.zeros(classes, classes, dtype=torch.int64)
    count_CC.index_put_(
        (prediction_N.long(), label_N.long()), torch.ones(len(label_N), dtype=torch.int64), accumulate=True
    )
    _, order = linear_sum_assignment(count_CC.numpy(), maximize=True)
    right_N, permuted_N = prediction_N == label_N, torch.from_numpy(order)[prediction_N.long()] == label_N
    gained, lost = int((permuted_N & ~right_N).sum()), int((right_N & ~permuted_N).sum())
    if not gained:
        return None
    p = binomtest(gained, gained + lost, alternative="greater").pvalue
    # For many classes, the number of permutations overflows a float.
    significant = p == 0 or math.log(p) + math.lgamma(classes + 1) <= math.log(LEVEL)
    return tuple(int(place) for place in order) if significant else None


@dataclass(frozen=True)
class OtherClasses:
    """A better assignment of classes to a model's outputs.

    Args:
        outputs: The class of each output.
        sentence: The evidence for it, without full stop.
    """

    outputs: list[str]
    sentence: str


def other_classes(
    prediction_N: Tensor, label_N: Tensor, labels: Sequence[str], outputs: Sequence[str]
) -> OtherClasses | None:
    """The classes of a model's outputs according to :func:`better_order`; None if the assumed ones fit.

    Args:
        prediction_N, label_N: Class indices.
        labels: The classes in the order of these indices.
        outputs: The assumed class of each model output.
    """
    order = better_order(prediction_N, label_N, len(labels))
    if order is None:
        return None
    now, then = (
        float((answer_N == label_N).double().mean()) for answer_N in (prediction_N, torch.tensor(order)[prediction_N])
    )
    # In a third-party model, output names may repeat.
    place_of = {label: place for place, label in enumerate(labels)}
    better = [labels[order[place_of[label]]] for label in outputs]
    return OtherClasses(
        better,
        f"The model's accuracy is {percentage(now)} if its outputs are {', '.join(outputs)}, in this order, and "
        f"{percentage(then)} if they are {', '.join(better)}",
    )


def set_scores_of_statistics(
    answer_NF: Tensor, baseline_NF: Tensor, task: Task, groups: Sequence[int] | None = None
) -> SetScores:
    """Every metric of answers that are statistics, and of those of a majority baseline on the same examples.

    The sign test over examples, or over groups, compares them by the first metric.

    Args:
        answer_NF, baseline_NF: The answers.
        task: The task.
        groups: The group of each example; None if they are independent.
    """
    better_N = task.head.merit(answer_NF, task.metrics[0]) - task.head.merit(baseline_NF, task.metrics[0])
    if groups is not None:
        _, unit_N = torch.tensor(groups).unique(return_inverse=True)
        better_N = torch.zeros(int(unit_N.max()) + 1, dtype=better_N.dtype).index_add_(0, unit_N, better_N)
    won, lost = int((better_N > 0).sum()), int((better_N < 0).sum())
    p = float(binomtest(won, won + lost, alternative="greater").pvalue) if won + lost else 1.0
    of_model, of_baseline = (scores(one_NF, torch.zeros(len(one_NF)), task) for one_NF in (answer_NF, baseline_NF))
    return SetScores(len(answer_NF), of_model, of_baseline, p)


def set_scores(logits_NC: Tensor, label_N: Tensor, task: Task, constant: float) -> SetScores:
    """Every metric of a model and of a constant baseline on the same examples, and whether the model is better.

    Args:
        logits_NC: The model's answers.
        label_N: Gold labels.
        task: The task, with its metrics.
        constant: The constant prediction, a class or a score.
    """
    constant_N1 = torch.full((len(label_N), 1), constant)
    p_constant = beats_constant(
        task.head.predictions(logits_NC).numpy(),
        label_N.numpy(),
        constant,
        correlated=task.is_regression or task.metrics[0] in ("matthews", "macro_f1"),
    )
    return SetScores(len(label_N), scores(logits_NC, label_N, task), scores(constant_N1, label_N, task), p_constant)


Evaluated = tuple[Tensor, Tensor, Tensor]
"""Index ``[N]``, answers ``[N, C]`` and label ``[N]`` of the examples of an evaluation set."""


def collected(parts: Sequence[Evaluated], head: TaskHead = SEQUENCE) -> Evaluated:
    """Collect an evaluation set from all processes: each example once, sorted by index, on the CPU.

    Args:
        parts: This process's batches.
        head: The task head; it merges the answers of the windows of a long text.
    """
    index_N, answer_NC, label_N = whole_set(parts)
    row_M, label_M, answer_M1C = head.merged(label_N, answer_NC[:, None])
    return index_N[row_M], answer_M1C[:, 0], label_M


@dataclass(frozen=True)
class Answers:
    """Predictions of a model on N labelled examples, in order of their index, float64, and the examples' groups."""

    label_N: Array
    prediction_N: Array
    group_N: NDArray[np.int64] | None = None


@torch.no_grad()
def answers(
    model: Callable[..., Any], batches: Iterable[Batch], task: Task, context: Autocast, device: torch.device
) -> Answers:
    """Predictions of a model on labelled examples on this device, in evaluation mode."""
    indices, labels, answers, groups = [], [], [], []
    for batch in batches:
        assert batch.label_B is not None
        with context():
            on_device = batch.to(device)
            answers.append(on_device.answers(output_of(model, on_device.inputs())).float().cpu())
        labels.append(task.head.outcome_labels(batch.label_B))
        indices.append(batch.index_B)
        groups += [] if batch.group_B is None else [batch.group_B]
    order_N = torch.cat(indices).argsort()
    # Windows of a long text have one answer together.
    row_M, label_M, answer_M1F = task.head.merged(torch.cat(labels)[order_N], torch.cat(answers)[order_N][:, None])
    prediction_M = task.head.predictions(answer_M1F[:, 0])
    group_M = torch.cat(groups)[order_N][row_M].numpy() if groups else None
    return Answers(label_M.double().numpy(), prediction_M.double().numpy(), group_M)
