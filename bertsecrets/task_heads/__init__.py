"""Kinds of task head: what a model's head predicts, and how that is scored. A kind is one file."""

from collections.abc import Mapping

from bertsecrets.task_heads.answers import AnswerHead
from bertsecrets.task_heads.base import Metric, TaskHead
from bertsecrets.task_heads.masked import EachWordHead, MaskedHead
from bertsecrets.task_heads.regression import RegressionHead
from bertsecrets.task_heads.sequence import SequenceHead
from bertsecrets.task_heads.statistics import StatisticsHead
from bertsecrets.task_heads.tokens import TokenHead

TASK_HEADS: Mapping[str, type[TaskHead]] = {
    head.kind: head
    for head in (SequenceHead, RegressionHead, TokenHead, AnswerHead, MaskedHead, EachWordHead, StatisticsHead)
}
"""Kinds of task head by name."""


def kind_of(architecture: str) -> type[TaskHead] | None:
    """The kind of a class of models, such as ``BertForTokenClassification``; None for another one."""
    suffixes = ((head, head.auto.removeprefix("AutoModel")) for head in TASK_HEADS.values() if head.auto)
    return next((head for head, suffix in suffixes if architecture.endswith(suffix)), None)


METRICS: Mapping[str, Metric] = {name: metric for head in TASK_HEADS.values() for name, metric in head.metrics.items()}
"""The metrics of all kinds by name."""


def of_classes(metric: str) -> bool:
    """Whether a metric of this name is of predictions that flip; of one of the user's own that is not known."""
    return metric in METRICS and METRICS[metric].of_classes
