"""Kinds of task head: what a model's head predicts, and how that is scored. A kind is one file."""

from collections.abc import Iterator, Mapping

from bertsecrets.doors import free_names, load_offer, offers
from bertsecrets.errors import UserError
from bertsecrets.task_heads.answers import AnswerHead
from bertsecrets.task_heads.base import Metric, TaskHead
from bertsecrets.task_heads.masked import EachWordHead, MaskedHead
from bertsecrets.task_heads.regression import RegressionHead
from bertsecrets.task_heads.sequence import SequenceHead
from bertsecrets.task_heads.statistics import StatisticsHead
from bertsecrets.task_heads.tokens import TokenHead

_OWN: Mapping[str, type[TaskHead]] = {
    head.kind: head
    for head in (SequenceHead, RegressionHead, TokenHead, AnswerHead, MaskedHead, EachWordHead, StatisticsHead)
}


class _Kinds(Mapping[str, type[TaskHead]]):
    """Kinds of task head by name, those of this package first; an installed package's is imported when it is read."""

    def __getitem__(self, kind: str) -> type[TaskHead]:
        if kind in _OWN:
            return _OWN[kind]
        if kind not in self._offered():
            raise KeyError(kind)
        offered = load_offer("task_heads", kind)
        if not (isinstance(offered, type) and issubclass(offered, TaskHead)):
            value = offers("task_heads")[kind].value
            raise UserError(f"The kind of task head '{kind}' is not a TaskHead ('{value}'); correct its package.")
        return offered

    def __iter__(self) -> Iterator[str]:
        return iter((*_OWN, *self._offered()))

    def __len__(self) -> int:
        return len(_OWN) + len(self._offered())

    @staticmethod
    def _offered() -> tuple[str, ...]:
        return free_names("task_heads", tuple(_OWN))


TASK_HEADS: Mapping[str, type[TaskHead]] = _Kinds()
"""Kinds of task head by name."""


def kind_of(architecture: str) -> type[TaskHead] | None:
    """The kind of a class of models, such as ``BertForTokenClassification``; None for another one."""
    suffixes = ((head, head.auto.removeprefix("AutoModel")) for head in TASK_HEADS.values() if head.auto)
    return next((head for head, suffix in suffixes if architecture.endswith(suffix)), None)


METRICS: Mapping[str, Metric] = {name: metric for head in _OWN.values() for name, metric in head.metrics.items()}
"""The metrics of this package's kinds by name."""


def of_classes(metric: str) -> bool:
    """Whether a metric of this name is of predictions that flip; of one of the user's own that is not known."""
    return metric in METRICS and METRICS[metric].of_classes
