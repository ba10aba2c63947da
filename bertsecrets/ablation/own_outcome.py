"""How the examples of a user's module are scored: a prediction and a gold label for each."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bertsecrets.ablation.predictions import find_metric
from bertsecrets.data.groups import group_of
from bertsecrets.data.task import Task
from bertsecrets.errors import UserError
from bertsecrets.task_heads import METRICS
from bertsecrets.task_heads.metric import Array, Metric
from bertsecrets.task_heads.statistics import StatisticsHead, metric_of

Outcome = Callable[[Any, Any], tuple[Tensor, Tensor]]
"""Maps a module and one of its batches to predictions and gold labels, one for each example.

A prediction is a row of logits, a class index, or a score.
"""

OwnMetric = str | Metric | Callable[[Array], Array] | None
"""A metric by name, or of statistics that an outcome returns: a function of their means over examples."""

_LABELS = ("labels", "label")
GROUP = "group"
"""Key of a batch with what names the group of each example."""

NOT_INPUTS = frozenset({*_LABELS, "index", GROUP})
"""Keys of a batch that no model reads."""

_NO_OUTCOME = "pass outcome=<a function of the module and a batch that returns predictions and labels>"


def logits_and_labels(module: Any, batch: Any) -> tuple[Tensor, Tensor]:
    """The default outcome: the logits of ``module(**inputs)``, and the labels in the batch.

    A batch is either a mapping with ``labels`` (or ``label``), from which the module gets the arguments of its
    ``forward``, or a pair of inputs (a mapping or a tensor) and labels.

    Raises:
        UserError: If the batch has no labels or the output has no logits.
    """
    if isinstance(batch, Mapping):
        name = next((name for name in _LABELS if name in batch), None)
        if name is None:
            raise UserError(f"A validation batch has no 'labels' but {', '.join(map(repr, batch))}; {_NO_OUTCOME}.")
        inputs, labels = batch, batch[name]
    elif isinstance(batch, Sequence) and len(batch) == 2:
        inputs, labels = batch
    else:
        raise UserError(
            f"A validation batch is a {type(batch).__name__}, in which the labels cannot be found; {_NO_OUTCOME}."
        )
    output = run_on(module, inputs)
    logits = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", output)
    if isinstance(logits, tuple | list):
        # A library model that returns a tuple, with or without a loss before the logits.
        logits = next((part for part in logits if isinstance(part, Tensor) and part.dim() > 0), None)
    if not isinstance(logits, Tensor):
        raise UserError(f"{type(module).__name__} returns {type(output).__name__} without logits; {_NO_OUTCOME}.")
    return logits, labels


def run_on(module: nn.Module, inputs: Any) -> Any:
    """The output of a module for inputs: a tensor, or a mapping from which it gets the arguments of its ``forward``.

    A ``forward`` without arguments of these names gets the mapping itself.
    """
    if not isinstance(inputs, Mapping):
        return module(inputs)
    parameters = inspect.signature(module.forward).parameters.values()
    open_ended = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
    names = {*inputs} if open_ended else {parameter.name for parameter in parameters}
    given = {name: value for name, value in inputs.items() if name in names - NOT_INPUTS}
    return module(**given) if given else module(inputs)


def checked_outcome(
    outcome: Outcome, module: nn.Module, batch: Any, examples: int | None, counts_statistics: bool = False
) -> tuple[Tensor, Tensor]:
    """The answers ``[B, C]`` of an outcome, logits or one number per example, and the labels ``[B]``.

    Args:
        outcome: The outcome.
        module, batch: Its arguments.
        examples: The number of examples in the batch; None if unknown.
        counts_statistics: Whether it returns statistics ``[B, F]`` instead, which are returned with labels of 0.

    Raises:
        UserError: If it does not return one prediction and one label for each example.
    """
    name = getattr(outcome, "__name__", type(outcome).__name__)
    returned = outcome(module, batch)
    if counts_statistics:
        statistic_BF = torch.as_tensor(returned).detach().float()
        if statistic_BF.dim() != 2 or len(statistic_BF) != (examples or len(statistic_BF)):
            raise UserError(
                f"outcome {name} returns statistics of shape {list(statistic_BF.shape)}"
                f"{'' if examples is None else f' for {examples} examples'}; expected a row of numbers for each "
                "example."
            )
        return statistic_BF, torch.zeros(len(statistic_BF), dtype=torch.int64)
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise UserError(f"outcome {name} returns {type(returned).__name__}; expected a pair (prediction, label).")
    tensors = [part if isinstance(part, Tensor) else torch.as_tensor(part) for part in returned]
    # NumPy has no bfloat16, and metrics would be inexact in it.
    answers, label_B = (
        tensor.detach().float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor.detach()
        for tensor in tensors
    )
    answers = answers[:, None] if answers.dim() == 1 else answers
    if label_B.dim() == 2 and label_B.shape[1] == 1:
        label_B = label_B[:, 0]
    counts = {len(answers) if answers.dim() else 0, len(label_B) if label_B.dim() else 0}
    if answers.dim() != 2 or label_B.dim() != 1 or len(counts) > 1 or counts - {examples or len(label_B)}:
        raise UserError(
            f"outcome {name} returns predictions of shape {list(tensors[0].shape)} and labels of shape "
            f"{list(tensors[1].shape)}{'' if examples is None else f' for {examples} examples'}; expected one "
            "prediction and one label for each example."
        )
    if answers.shape[1] == 1 and answers.is_floating_point() and not label_B.is_floating_point():
        raise UserError(
            f"outcome {name} returns one number for each example and labels that are classes; return the predicted "
            "class, or scores as labels."
        )
    if answers.shape[1] > 1 and label_B.is_floating_point():
        raise UserError(
            f"outcome {name} returns {answers.shape[1]} numbers for each example and labels that are scores; return "
            "one predicted score for each, or classes as labels."
        )
    return answers, label_B


Group = str | Callable[[Any], Sequence[Any]] | Sequence[Any]
"""What names the group of each example: a key of a batch, a function of a batch, or a value for each index."""


def groups_of(group: Group | None, batch: Any, index_B: Tensor | None, count: int) -> Tensor | None:
    """The number of the group of each example of a batch, ``[B]``; None where examples are independent.

    Args:
        group: What names it; None for the ``group`` in the batch, if there is one.
        batch: The batch.
        index_B: The number of each example; None if unknown.
        count: The number of examples.

    Raises:
        UserError: If the batch has no such key, an example's number is not known, or there is not one for each example.
    """
    if group is None or isinstance(group, str):
        keys = [*batch] if isinstance(batch, Mapping) else []
        if (group or GROUP) not in keys:
            if group is None:
                return None
            held = ", ".join(map(repr, keys)) or f"a {type(batch).__name__}"
            raise UserError(
                f"group is '{group}', but a validation batch has {held}; put the group of each example into the batch, "
                "or give group=<a function of the batch>."
            )
        names = batch[group or GROUP]
    elif callable(group):
        names = group(batch)
    elif index_B is None:
        raise UserError(
            "group has a value for each example, but the order of the examples is not known; put the number of each "
            "example into its batch as 'index'."
        )
    else:
        values = [*group]
        if int(index_B.max()) >= len(values):
            raise UserError(
                f"group has {len(values)} values, and there is an example {int(index_B.max())}; give one for each."
            )
        names = [values[index] for index in index_B.tolist()]
    names = names.tolist() if hasattr(names, "tolist") else [*names]
    if len(names) != count:
        raise UserError(f"group gives {len(names)} values for a batch of {count} examples; give one for each.")
    return torch.tensor([group_of(name) for name in names], dtype=torch.int64)


def task_of(
    name: str, answers_NC: Tensor, label_N: Tensor, metric: OwnMetric, classes: Sequence[str] | None = None
) -> Task:
    """A task with the predictions and labels of an outcome.

    Args:
        name: Name of the task.
        answers_NC, label_N: Those of :func:`checked_outcome` for all examples.
        metric: The metric; None for accuracy of classes and Pearson's correlation of scores; a :class:`Metric`, or a
            function of the means of statistics, where the outcome returns these.
        classes: The names of the classes; None if unknown.

    Raises:
        UserError: If the metric does not exist or does not fit the labels, or a label is not a class of the model.
    """
    if not isinstance(metric, str | None):
        measured = metric if isinstance(metric, Metric) else metric_of(metric, answers_NC.shape[1])
        return Task.scored_by(StatisticsHead.of(measured), name=name, metrics=(measured.name,), texts=1)
    regression = label_N.is_floating_point()
    metric = metric or ("pearson" if regression else "accuracy")
    if find_metric(metric).of_statistics or find_metric(metric).of_classes == regression:
        fitting = [name for name, one in METRICS.items() if not one.of_statistics and one.of_classes != regression]
        raise UserError(
            f"metric is {metric}, but the labels are {'scores' if regression else 'classes'}; choose "
            f"{' or '.join(fitting)}."
        )
    if regression:
        low, high = float(label_N.min()), float(label_N.max())
        # The sanity check of a trainer may see only one score.
        return Task(name=name, metrics=(metric,), texts=1, label_range=(low, high if high > low else low + 1.0))
    count = answers_NC.shape[1]
    if count == 1:
        count = max(2, int(torch.maximum(answers_NC[:, 0].max(), label_N.max())) + 1, len(classes or ()))
    needed = len(METRICS[metric].classes)
    if needed and needed != count:
        raise UserError(f"metric is {metric}, which is for {needed} classes, but there are {count}; choose macro_f1.")
    if int(label_N.min()) < 0 or int(label_N.max()) >= count:
        raise UserError(
            f"Labels range from {int(label_N.min())} to {int(label_N.max())}, but the model has classes 0 to "
            f"{count - 1}; return only labels of these classes in outcome, leaving out examples without a label."
        )
    if classes is not None and len(classes) != count:
        raise UserError(f"classes has {len(classes)} names ({', '.join(classes)}), but there are {count} classes.")
    return Task(name=name, metrics=(metric,), texts=1, labels=tuple(classes or map("class {}".format, range(count))))
