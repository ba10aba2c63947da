"""Scores as functions of sums over examples; without PyTorch, which commands that only check settings do not load."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Features = Callable[[Array, Array], Array]
Score = Callable[[Array], Array]


def mean_of_first(mean_F: Array) -> Array:
    """The score that is the mean of one feature."""
    return np.asarray(mean_F[..., 0])


def ratio(mean_F: Array) -> Array:
    """The score that is one sum over another; 0 where there is nothing to count."""
    over, under = mean_F[..., 0], mean_F[..., 1]
    return np.asarray(np.divide(over, under, out=np.zeros_like(over), where=under > 0))


def f1(mean_F: Array) -> Array:
    """F1 from means of the numbers found, predicted and annotated; 0 where there are none."""
    found, predicted, annotated = np.moveaxis(mean_F, -1, 0)
    return ratio(np.stack([2 * found, predicted + annotated], -1))


@dataclass(frozen=True)
class Metric:
    """A score as a function of sums of features over examples.

    Args:
        name: What it is called in configurations, tables and figures.
        features: From labels ``[N]`` and predictions ``[V, N]``, or statistics ``[V, N, F']``, to features ``[V, N,
            F]``.
        score: From weighted means of the features ``[..., F]`` to scores ``[...]``.
        reach: The largest possible change.
        of_classes: Whether it is of predictions that flip, and not of numbers that move.
        events: Whether each example is right or wrong as a whole and counts alike: exact tests of counts then hold.
        of_ranks: Whether numbers count by their ranks.
        classes: Classes that there are even where they do not occur.
        defined: Whether labels let any prediction score other than 0.
        no_derivative: Where, among means of the features, the score has no derivative; None for nowhere.
        steps: What one event, such as one entity, can change in the sums of the features: the smallest change that a
            score of statistics makes. Empty where predictions are classes or numbers.
        of_statistics: Whether the features are among the statistics of a task head, whose labels are counted already.
        unit: What a hundredth of it is called, in the plural, such as the points of an accuracy.
    """

    name: str
    features: Features
    score: Score
    reach: float = 1.0
    of_classes: bool = True
    events: bool = False
    of_ranks: bool = False
    classes: tuple[float, ...] = ()
    defined: Callable[[Array], bool] = lambda label_N: True
    no_derivative: Callable[[Array], NDArray[np.bool_]] | None = None
    steps: tuple[tuple[float, ...], ...] = ()
    of_statistics: bool = False
    unit: str = "points"

    @classmethod
    def of_columns(
        cls,
        name: str,
        columns: Sequence[int],
        score: Score = mean_of_first,
        steps: Sequence[Sequence[float]] = (),
        **options: Any,
    ) -> "Metric":
        """A score of some of a task head's statistics.

        Args:
            name: Its name.
            columns: Which statistics are its features.
            score: From their means to scores.
            steps: What one event can change in their sums; empty if it is a number that moves.
            options: Further fields. ``events`` asks for a single column of zeros and ones.
        """
        chosen = list(columns)
        return cls(
            name,
            lambda label_N, statistic_VNF: statistic_VNF[..., chosen],
            score,
            of_classes=bool(steps),
            steps=tuple(tuple(step) for step in steps),
            of_statistics=True,
            **options,
        )

    @property
    def correlates(self) -> bool:
        """Whether it is a correlation of numbers, which location and scale do not change."""
        return not self.of_classes and not self.of_statistics

    @property
    def flips(self) -> bool:
        """Whether predictions are right or wrong as a whole, so that a change is of some that are lost and won."""
        return self.of_classes and (self.events or not self.of_statistics)

    def right(self, label_N: Array, prediction_VN: Array) -> NDArray[np.bool_]:
        """Which predictions are right, where predictions flip."""
        if self.of_statistics:
            return np.asarray(self.features(label_N, prediction_VN)[..., 0] == 1)
        return np.asarray(prediction_VN == label_N)


def moments(y_N: Array, x_VN: Array) -> Array:
    """The features of a correlation, ``[V, N, 6]``; for precision, the numbers should be centred."""
    y_VN = np.broadcast_to(y_N, x_VN.shape)
    return np.stack([np.ones_like(x_VN), x_VN, y_VN, x_VN**2, y_VN**2, x_VN * y_VN], -1)
