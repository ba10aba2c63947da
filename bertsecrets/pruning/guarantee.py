"""Non-inferiority tests of smaller models on unseen examples, and the error rate shared by several searches."""

import hashlib
import json
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from bertsecrets.ablation.predictions import PairedPredictions
from bertsecrets.ablation.verdicts import change_limits, losses_ruled_out, p_against_margin
from bertsecrets.data.task import Task
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.errors import UserError
from bertsecrets.pruning.rows import Group
from bertsecrets.results.estimate import Estimate
from bertsecrets.results.run import Run
from bertsecrets.results.store import Store
from bertsecrets.statistics.power import POWER, examples_to_rule_out
from bertsecrets.task_heads.metric import Array, Metric
from bertsecrets.task_heads.sequence import ACCURACY

_log = logging.getLogger(__name__)

_SPENT = 2 / 3
"""Share of the remaining error rate that a search spends, so that the first search loses little power."""

_NUMBER = "number of the search"
"""Key in the store."""

_RECORDS = "searches"
"""Folder in the model's run folder with one file per search."""


@dataclass(frozen=True)
class Guarantee:
    """The outcome of testing models from largest to smallest.

    Args:
        passed: Number of leading models whose loss is significantly below the margin.
        p_V: One-sided p-value per model of a loss of at least the margin, or of the class margin in any class.
        bound_V: Upper confidence bound on the loss of score per model; negative is a gain.
        examples: Number of test examples.
        needed: Test examples that the first failed model needs to pass with 80 % power, if loss and variance stay as
            observed; None if every model passed or it failed only for a class, infinite if its observed loss is at
            least the margin.
    """

    passed: int
    p_V: Array
    bound_V: Array
    examples: int
    needed: float | None


def guarantee(
    results: PairedPredictions, metric: Metric, margin: float, confidence: float, class_margin: float | None = None
) -> Guarantee:
    """Test nested models in a fixed order until the first whose loss may be at least the margin.

    Each test has level 1 - confidence; stopping at the first failure keeps the probability of wrongly passing any model
    at that level (fixed-sequence testing: Maurer, Hothorn and Lehmacher 1995). The order must not depend on the tested
    examples.

    Args:
        results: Predictions of the models on examples that were not used to choose the models or their order.
        metric: The metric.
        margin: The non-inferiority margin of the score, above 0; 0.01 is one point.
        confidence: Between 0 and 1.
        class_margin: The margin of accuracy within each class, for additional tests of every class; as all must pass,
            no correction is needed (Berger 1982). None for no such tests.

    Raises:
        UserError: If there are fewer than two examples.
    """
    if results.count < 2:
        raise UserError(f"{results.count} examples are too few for a test; give at least two.")
    # An undefined change never passes.
    of_score_V = np.nan_to_num(p_against_margin(metric, results, margin), nan=1.0)
    p_V = of_score_V if class_margin is None else np.maximum(of_score_V, p_of_classes(results, class_margin))
    failed = np.flatnonzero(p_V > 1 - confidence)
    passed = int(failed[0]) if failed.size else len(p_V)
    needed = None
    if passed < len(p_V) and of_score_V[passed] > 1 - confidence:
        needed = examples_needed(results, passed, metric, margin, confidence)
    return Guarantee(passed, p_V, losses_ruled_out(metric, results, 1 - confidence), results.count, needed)


def classes_of(paired: PairedPredictions) -> list[PairedPredictions]:
    """The predictions on the examples of each class that occurs."""
    return [paired.on(paired.label_N == label) for label in np.unique(paired.label_N)]


def p_of_classes(paired: PairedPredictions, margin: float) -> Array:
    """One-sided p-values of any class losing at least the margin of accuracy, ``[V]``: the largest over classes."""
    p_CV = [p_against_margin(ACCURACY, of_class, margin) for of_class in classes_of(paired)]
    return np.asarray(np.max(p_CV, axis=0))


def loss_of_classes(paired: PairedPredictions) -> Array:
    """The largest observed loss of accuracy within a class, ``[V]``."""
    return np.asarray(np.max([-of_class.changes(ACCURACY) for of_class in classes_of(paired)], axis=0))


def group_changes(
    paired: PairedPredictions,
    by: str,
    member_GN: Mapping[str, NDArray[np.bool_]],
    confidence: float,
    attempt: int,
    metric: Metric = ACCURACY,
) -> list[Group]:
    """Accuracy, or another score, of the original and the first smaller model, within each group with examples.

    The limits of their differences are simultaneous over all groups (Bonferroni).
    """
    parts = {name: paired.on(member_N) for name, member_N in member_GN.items() if member_N.any()}
    rows = []
    for name, part in parts.items():
        whole, (smaller, *_) = part.scores(metric)
        limits = change_limits(metric, part.of([0]))(np.array([(1 - confidence) / (2 * len(parts))]))
        low, high = (float(limit[0]) for limit in limits)
        change = Estimate(smaller - whole, low, high, n=part.count)
        rows.append(Group(attempt, by, name, part.count, whole, smaller, change))
    return rows


def class_changes(paired: PairedPredictions, task: Task, confidence: float, attempt: int = 0) -> list[Group]:
    """:func:`group_changes` by class; empty for a task that predicts a score."""
    if not task.head.classifies:
        return []
    member_GN = {f"class {name}": paired.label_N == label for label, name in enumerate(task.labels)}
    return group_changes(paired, "class", member_GN, confidence, attempt)


def examples_needed(results: PairedPredictions, model: int, metric: Metric, margin: float, confidence: float) -> float:
    """Test examples needed to bound a model's loss below the margin with 80 % power, if loss and variance are as
    observed.

    The n with n (margin - loss) = (z_confidence + z_power) s sqrt(n) + w, s^2 the variance of the examples' influences
    on the change of score and w the largest harm of one, which the exact test adds; at least the number needed without
    any changed prediction.

    Returns:
        A whole number, or infinity if the observed loss is at least the margin.
    """
    baseline, score_V = results.scores(metric)
    room = margin + float(score_V[model] - baseline)
    if not room > 0:
        return math.inf
    influence_N = results.of([model]).influences(metric)[0]
    quantiles = NormalDist().inv_cdf(confidence) + NormalDist().inv_cdf(POWER)
    reach, largest = quantiles * math.sqrt(float((influence_N**2).mean())), max(-float(influence_N.min()), 0.0)
    root = (reach + math.sqrt(reach**2 + 4 * room * largest)) / (2 * room)
    return float(math.ceil(max(root**2, examples_to_rule_out(margin, confidence))))


def search_level(confidence: float, search: int) -> float:
    """Confidence of a search's tests, so that all searches on the same examples have the joint confidence
    ``confidence``.

    The k-th search spends alpha 2/3 (1/3)^(k-1) of alpha = 1 - confidence, which sums to alpha (alpha spending).

    Args:
        confidence: Joint confidence of all searches, between 0 and 1.
        search: Number of the search, from 1.

    >>> [round(search_level(0.95, search), 4) for search in (1, 2, 3)]
    [0.9667, 0.9889, 0.9963]
    """
    return 1 - (1 - confidence) * _SPENT * (1 - _SPENT) ** (search - 1)


def digest_of(examples: EncodedSplit) -> str:
    """An identifier of these examples in any order: a hash of their tokens and labels."""
    rows = sorted(f"{row.ids} {example.label}" for row, example in zip(examples.rows, examples.examples, strict=True))
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Searches:
    """The searches with one model on one evaluation set, each a file in the model's run folder.

    Args:
        folder: That folder; None for a model without a run, whose searches are unknown.
        digest: Digest of the evaluation set.
        store: Where an interrupted search finds its number.
        analysis: Folder of the search's results, to be recorded.
    """

    folder: Path | None
    digest: str
    store: Store
    analysis: Path

    @classmethod
    def of(cls, run: Run, examples: EncodedSplit, store: Store) -> "Searches":
        """The searches before one whose results go to this run."""
        # A callback may belong to a run that has not written any.
        trained = run.config().get("trained") if run.config_path.is_file() else None
        folder = run.folder if trained is None else trained.get("folder")
        return cls(None if folder is None else Path(folder), digest_of(examples), store, run.folder)

    def next(self) -> int:
        """The number of the search that is about to start or resume, from 1."""
        return int(self.store.get(_NUMBER, self.digest) or 1 + self._count())

    def begin(self, *, anew: bool = False) -> int:
        """Record that a search starts or resumes; return its number, from 1.

        Args:
            anew: Whether it is a new search rather than the interrupted one.
        """
        if not anew and (begun := self.store.get(_NUMBER, self.digest)) is not None:
            return int(begun)
        search = 1 + self._count()
        try:
            while self.folder is not None:
                (self.folder / _RECORDS).mkdir(exist_ok=True)
                try:
                    # Fails if another search has just taken the number.
                    path = self.folder / _RECORDS / f"{self.digest}-{search}.json"
                    with path.open("x", encoding="utf-8") as file:
                        json.dump({"analysis": str(self.analysis)}, file)
                    break
                except FileExistsError:
                    search += 1
        except OSError as error:
            _log.warning(f"This search is not counted for later searches on the same examples: {error}.")
        self.store.put(search, _NUMBER, self.digest)
        return search

    def _count(self) -> int:
        return 0 if self.folder is None else len(list((self.folder / _RECORDS).glob(f"{self.digest}-*.json")))
