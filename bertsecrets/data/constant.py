"""The predictor that has learned nothing but the labels' distribution."""

import torch
from torch import Tensor

from bertsecrets.data.task import Task


def constant_predictions(train_label_N: Tensor, task: Task, count: int) -> Tensor:
    """The same prediction for each of ``count`` examples.

    It is the training split's most frequent class (the first of equals), int64, or its mean score, float32.

    >>> task = Task("toy", ("accuracy",), 1, labels=("no", "yes"))
    >>> constant_predictions(torch.tensor([1, 0, 1]), task, 2)
    tensor([1, 1])
    """
    if task.is_regression:
        return torch.full((count,), train_label_N.double().mean().item(), dtype=torch.float32)
    return torch.bincount(train_label_N, minlength=len(task.labels)).argmax().repeat(count)
