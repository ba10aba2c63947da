"""Kinds of task head: what a model's head predicts, and how that is scored. A kind is one file.

A kind is imported when it is used: commands that only check settings do not load PyTorch.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, cast

from bertsecrets.doors import free_names, load_offer, offers, resolve
from bertsecrets.errors import UserError
from bertsecrets.task_heads.metric import Metric

if TYPE_CHECKING:
    from bertsecrets.task_heads.base import TaskHead

_OWN = {
    "sequence": "sequence:SequenceHead",
    "regression": "regression:RegressionHead",
    "tokens": "tokens:TokenHead",
    "answers": "answers:AnswerHead",
    "choice": "choice:ChoiceHead",
    "masked": "masked:MaskedHead",
    "each_masked": "masked:EachWordHead",
    "statistics": "statistics:StatisticsHead",
}
"""Kinds of this package and their files and classes."""


class _Kinds(Mapping[str, "type[TaskHead]"]):
    """Kinds of task head by name, those of this package before those of installed packages."""

    def __getitem__(self, kind: str) -> "type[TaskHead]":
        if kind in _OWN:
            return cast("type[TaskHead]", resolve(f"{__name__}.{_OWN[kind]}"))
        if kind not in self._offered():
            raise KeyError(kind)
        from bertsecrets.task_heads import base

        offered = load_offer("task_heads", kind)
        if not (isinstance(offered, type) and issubclass(offered, base.TaskHead)):
            value = offers("task_heads")[kind].value
            raise UserError(f"The kind of task head '{kind}' is not a TaskHead ('{value}'); correct its package.")
        return offered

    def __contains__(self, kind: object) -> bool:
        return kind in _OWN or kind in self._offered()

    def __iter__(self) -> Iterator[str]:
        return iter((*_OWN, *self._offered()))

    def __len__(self) -> int:
        return len(_OWN) + len(self._offered())

    @staticmethod
    def _offered() -> tuple[str, ...]:
        return free_names("task_heads", tuple(_OWN))


class _Metrics(Mapping[str, Metric]):
    """The metrics of all kinds by name."""

    def __getitem__(self, name: str) -> Metric:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    @staticmethod
    @cache
    def _all() -> dict[str, Metric]:
        return {name: metric for head in TASK_HEADS.values() for name, metric in head.metrics.items()}


TASK_HEADS: Mapping[str, "type[TaskHead]"] = _Kinds()
"""Kinds of task head by name."""

METRICS: Mapping[str, Metric] = _Metrics()
"""The metrics of all kinds by name."""


def kind_of(architecture: str) -> "type[TaskHead] | None":
    """The kind of a class of models, such as ``BertForTokenClassification``; None for another one."""
    suffixes = ((head, head.auto.removeprefix("AutoModel")) for head in TASK_HEADS.values() if head.auto)
    return next((head for head, suffix in suffixes if architecture.endswith(suffix)), None)


def of_classes(metric: str) -> bool:
    """Whether a metric of this name is of predictions that flip; of one of the user's own that is not known."""
    return metric in METRICS and METRICS[metric].of_classes


def unit_of(metric: str) -> str:
    """What a hundredth of a metric is called, in the plural: points, but for numbers of another unit."""
    # Looking a name up imports all kinds of task head.
    return METRICS[metric].unit if metric and metric in METRICS else "points"
