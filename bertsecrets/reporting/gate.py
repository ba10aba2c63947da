"""``fail_if``: reject models whose loss of score may be too large, for use in pipelines."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertsecrets.errors import UserError, choices
from bertsecrets.results.files import read_parquet
from bertsecrets.results.formatting import counted, listed, metric_label, number, rounded_up
from bertsecrets.results.run import PREDICTIONS, Run
from bertsecrets.results.scores import RunScores
from bertsecrets.task_heads import unit_of

REFUSED = 3
"""Exit status of a command that rejects a model."""

_LOSS = "_loss"
_CONDITION = re.compile(r"\s*(\w+)\s*(>=?)\s*(\d+(?:\.\d*)?|\.\d+)\s*", re.ASCII)
Array = NDArray[np.float64]

_LEVEL = 0.05
"""Two models are compared at 95 % confidence, one-sided."""


@dataclass(frozen=True)
class Condition:
    """A condition for rejecting a model: a loss above, or of at least, a number of points."""

    metric: str
    operator: str
    points: float

    def refuses(self, loss: float) -> bool:
        """Whether a loss of score meets the condition; an undefined loss does."""
        points = 100 * loss
        return not (points < self.points if self.operator == ">=" else points <= self.points)

    def __str__(self) -> str:
        return f"{self.metric}{_LOSS} {self.operator} {self.points:g}"


@dataclass(frozen=True)
class Loss:
    """An upper bound on a loss of score.

    Args:
        model: The model, as a noun phrase.
        metric: The metric.
        bound: The bound; NaN if undefined, negative if a gain is significant.
    """

    model: str
    metric: str
    bound: float


def conditions(text: str) -> list[Condition]:
    """Parse ``fail_if``: conditions, any of which rejects a model.

    >>> [str(condition) for condition in conditions("accuracy_loss > 1 or f1_loss >= 2.5")]
    ['accuracy_loss > 1', 'f1_loss >= 2.5']

    Raises:
        UserError: If the text cannot be parsed.
    """
    found = []
    for part in re.split(r"\bor\b", text):
        match = _CONDITION.fullmatch(part)
        if match is None or not match[1].endswith(_LOSS) or match[1] == _LOSS:
            raise UserError(
                f"fail_if is {text!r}; expected <metric>_loss, > or >=, and a number of points, such as "
                "'accuracy_loss > 1', several joined by or."
            )
        found.append(Condition(match[1].removesuffix(_LOSS), match[2], float(match[3])))
    return found


def check_metrics(text: str, metrics: Iterable[str]) -> None:
    """Raise UserError if ``fail_if`` uses a metric other than these."""
    names = [f"{metric}{_LOSS}" for metric in metrics]
    for condition in conditions(text):
        name = f"{condition.metric}{_LOSS}"
        if name not in names:
            raise UserError(f"fail_if names '{name}'; {choices(name, names)}.")


def refusals(text: str, losses: Sequence[Loss]) -> list[str]:
    """One sentence per condition that rejects a model, on the model that may lose most.

    Raises:
        UserError: If no loss is known for a condition's metric.
    """
    sentences = []
    for condition in conditions(text):
        of_metric = [loss for loss in losses if loss.metric == condition.metric]
        if not of_metric:
            known = [f"{metric}{_LOSS}" for metric in dict.fromkeys(loss.metric for loss in losses)]
            raise UserError(
                f"fail_if is '{condition}', but this run tests {listed(known) or 'no loss of score'}; "
                "name what it tests, or run an analysis that tests it."
            )
        if refused := [loss for loss in of_metric if condition.refuses(loss.bound)]:
            worst = max(refused, key=lambda loss: np.inf if np.isnan(loss.bound) else loss.bound)
            label = metric_label(condition.metric)
            points = f"{number(rounded_up(worst.bound), 1)} {unit_of(condition.metric)} of {label}"
            lost = f"the {label} is undefined" if np.isnan(worst.bound) else f"a loss of {points} is not ruled out"
            others = f" ({len(refused)} of {len(of_metric)} models are rejected)" if len(of_metric) > 1 else ""
            sentences.append(f"{condition}: for {worst.model} {lost}{others}.")
    return sentences


def losses_of_run(run: Run) -> list[Loss]:
    """The losses that an analysis tests: those of the model written by ``shrink`` or ``prune``; else those without the
    heads and layers named in the command, or without each single head.
    """
    # Slow imports: conditions are checked before any of them is needed.
    from bertsecrets.pruning.rows import Pruned, Shrunk
    from bertsecrets.reporting.overview import DisabledHeads
    from bertsecrets.reporting.run_report import views_of
    from bertsecrets.results.components import HEAD, KINDS
    from bertsecrets.results.disabled import main_rows, named, named_rows
    from bertsecrets.results.verdicts import joint_limits

    smaller: list[Loss] = []
    for _, view in views_of(run).values():
        if (shrunk := Shrunk.of(view)) is not None:
            smaller += [Loss("the smaller model", test.metric, test.bound) for test in shrunk.written.tests]
        if (pruned := Pruned.of(view)) is not None:
            kept = f"the model with {counted(pruned.chosen.kept, 'head')}"
            smaller.append(Loss(kept, pruned.search.metric, pruned.chosen.bound))
    if smaller or not run.ablation_path.is_file():
        return smaller
    if rows := named_rows(run):
        without = f"the model without {named(run.config())['what']}"
        return [Loss(without, row["metric"], -joint_limits(row)[0]) for row in rows]
    rows = main_rows(run.ablation_table())
    single = HEAD.of(rows) or rows
    disabled = DisabledHeads.of(run)
    # As on the page: one bound for every single head.
    excluded = None if disabled is None else disabled.excluded
    first = single[0]["metric"] if single else ""
    joint = [] if excluded is None else [Loss("the model without any one head", first, excluded)]
    return joint + [
        Loss(f"the model without {KINDS[row['kind']].label_of(row)}", row["metric"], -joint_limits(row)[0])
        for row in single
        if not joint or row["metric"] != first
    ]


def losses_of_later(folders: Sequence[Path]) -> list[Loss]:
    """The losses of each later run's model against the first run's, on the first run's first evaluation set.

    Raises:
        UserError: If predictions are missing or cover different examples.
    """
    from bertsecrets.ablation.predictions import PairedPredictions
    from bertsecrets.ablation.verdicts import losses_ruled_out
    from bertsecrets.task_heads import METRICS

    first, *later = map(Run.open, folders)
    name, scores = next(iter(RunScores.read(first.scores_path).sets.items()))
    index_N, label_N, clean_N = _answers(first, name)
    losses = []
    for run in later:
        index, label, answer_N = _answers(run, name)
        if not (np.array_equal(index, index_N) and np.array_equal(label, label_N, equal_nan=True)):
            raise UserError(
                f"fail_if compares predictions one by one, but '{run.folder}' and '{first.folder}' were scored on "
                f"different examples of '{name}'; give runs with the same data.limit_eval, data and labels."
            )
        paired = PairedPredictions(label_N, clean_N, answer_N[None])
        for metric in METRICS.keys() & scores.constant.keys():
            bound = float(losses_ruled_out(METRICS[metric], paired, _LEVEL)[0])
            losses.append(Loss(f"the model of '{run.folder.name}'", metric, bound))
    return losses


def _answers(run: Run, name: str) -> tuple[Array, Array, Array]:
    """Index and label of each example of an evaluation set, by index, and the model's answer: a class, a number, or a
    row of the statistics of its task head.
    """
    path = run.folder / PREDICTIONS / f"{name}.parquet"
    if not path.is_file():
        raise UserError(
            f"fail_if compares predictions, but '{run.folder}' has no {PREDICTIONS}/{name}.parquet; run it again."
        )
    table = read_parquet(path).sort_by("index")
    columns = [column for column in table.column_names if column not in ("index", "label")]
    answer_NF = np.stack([table[column].to_numpy().astype(np.float64) for column in columns], -1)
    if columns[0].startswith("logit_"):
        answer_NF = answer_NF[:, 0] if len(columns) == 1 else answer_NF.argmax(-1).astype(np.float64)
    return table["index"].to_numpy(), table["label"].to_numpy(), answer_NF
