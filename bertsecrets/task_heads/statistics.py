"""Statistics of the user's own, and a score that is a function of their means."""

from collections.abc import Callable, Mapping
from typing import ClassVar

import torch
from torch import Tensor

from bertsecrets.errors import UserError
from bertsecrets.task_heads.base import TaskHead
from bertsecrets.task_heads.metric import Array, Metric


class StatisticsHead(TaskHead):
    """What a function of the user's says about an example: numbers that are added up over examples."""

    kind = "statistics"
    auto = ""
    statistics = ("statistics",)
    has_classes = False
    metrics: ClassVar[Mapping[str, Metric]] = {}

    @classmethod
    def of(cls, metric: Metric) -> "StatisticsHead":
        """The head of statistics that one metric scores."""
        head = cls()
        head.metrics = {metric.name: metric}  # type: ignore[misc]
        return head

    def answers(self, output: Tensor, label_B: Tensor) -> Tensor:
        return output

    def has_losses(self, answer_NF: Tensor) -> bool:
        return False

    def losses(self, output: Tensor, label_B: Tensor) -> Tensor:
        raise UserError("Statistics of your own have no loss; choose an analysis that needs none, such as disabling.")


def metric_of(score: Callable[[Array], Array], width: int) -> Metric:
    """The metric that a function makes of the means of all statistics.

    Args:
        score: From means over examples ``[..., F]`` to scores ``[...]``.
        width: The number of statistics, F.

    Raises:
        UserError: If it does not return one finite number for means of its shape.
    """
    name = getattr(score, "__name__", type(score).__name__).strip("<>")
    try:
        value = torch.as_tensor(score(torch.full((2, width), 0.5, dtype=torch.float64).numpy()))
    except Exception as error:
        raise UserError(
            f"metric {name} fails on means of {width} statistics ({error}); give a function of an array [..., {width}]."
        ) from error
    if value.shape != (2,):
        raise UserError(
            f"metric {name} returns shape {list(value.shape)} for means of shape [2, {width}]; expected [2], one score "
            "for each row."
        )
    return Metric.of_columns(name, range(width), score)
