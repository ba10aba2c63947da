"""Tests of statements: a number per model with its uncertainty, compared with a threshold."""

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field
from scipy import stats

from bertsecrets.papers.statements.sheet import SEEDS, UNLIMITED, Array, Grid, Sheet
from bertsecrets.results.formatting import MISSING, low_to_high, number
from bertsecrets.settings import Settings
from bertsecrets.statistics.replicates import effects_over_seeds, noise_of_errors

REACH = NormalDist().inv_cdf(0.975)
"""Half-width of a 95 % interval in standard errors."""


Threshold = Annotated[float | int | None, Field(description="a number, or null")]


@dataclass(frozen=True)
class Reading:
    """The number of one model.

    Args:
        value: The number; NaN where it is undefined.
        stderr: Its standard error over examples, or over heads for some tests; NaN where unknown.
        count: Number of examples behind it.
        detail: A detail of the number, e.g. its head; empty for none.
        reliability: For a rank correlation, the largest observable value given noise if the true one is 1; NaN where
            unknown.
        p_value: Two-sided p-value of the number being equal to the threshold, if the test computes its own; None to use
            the standard error.
        limits: The smallest and the largest possible number, if the columns declare them.
    """

    value: float
    stderr: float
    count: int
    detail: str = ""
    reliability: float = 1.0
    p_value: float | None = None
    limits: tuple[float, float] = UNLIMITED


@dataclass(frozen=True)
class Finding:
    """A statement's number for one subject.

    Args:
        value: Mean over the models that differ only in their seed.
        low, high: Limits of its 95 % interval, not corrected for other statements; NaN where unknown.
        p_value: Two-sided p-value of the number being equal to the threshold; NaN where unknown.
        readings: The models' numbers.
    """

    value: float
    low: float
    high: float
    p_value: float
    readings: tuple[Reading, ...]


class Test(Settings, ABC):
    """The test of a statement: its number and a threshold.

    A subclass reads one model's number. If the errors of heads may be dependent, their joint standard error assumes
    that all errors have the same sign.

    Args:
        kind: Name of the test, as in its file.
        above, below: The statement holds if the number is above, or below, this; exactly one of them is given.
        unit: Words after the number in a sentence, e.g. ``of the attention``, or before it, e.g. ``a cosine``.
        tolerance: Largest error not covered by the standard error, e.g. of a classifier.
        called: Description of the number; empty for the kind of test with its settings.
    """

    __test__ = False

    kind: str = Field(description="the name of a kind of test")
    above: Threshold = None
    below: Threshold = None
    unit: str = Field(default="", description="a text")
    tolerance: float = Field(default=0.0, ge=0, description="a number from 0")
    called: str = Field(default="", description="a text")

    one_of: ClassVar[tuple[tuple[str, str], ...]] = (("above", "below"),)
    """Pairs of arguments of which exactly one must be given."""

    @property
    def threshold(self) -> float:
        """The threshold."""
        return float(self.below if self.above is None else self.above)  # type: ignore[arg-type]

    @property
    def condition(self) -> str:
        """When the statement holds, e.g. ``above 0.5``, ``above 0.5 of the heads``, ``above a cosine of 0.5``."""
        side = "below" if self.above is None else "above"
        value, unit = f"{self.threshold:g}".replace("-", "\N{MINUS SIGN}"), self.unit
        # Avoid "0 of the heads".
        if not unit or (not self.threshold and unit.startswith(("of ", "a "))):
            return f"{side} {value}"
        return f"{side} {unit} of {value}" if unit.startswith("a ") else f"{side} {value} {unit}"

    @property
    def columns(self) -> Sequence[str]:
        """The columns ``measure/column`` that the test reads; none for tests that read other records or tables."""
        return ()

    @property
    def number(self) -> str:
        """Description of the number: ``called``, or else the kind of test with its settings."""
        settings = self.model_dump(exclude_defaults=True, exclude={"kind", "above", "below", "unit", "tolerance"})
        told = {
            key: [f"{name}={wanted}" for name, wanted in value.items()] if isinstance(value, dict) else listed(value)
            for key, value in settings.items()
        }
        words = "; ".join(f"{key}: {', '.join(map(str, values))}" for key, values in told.items())
        return self.called or f"{self.kind.replace('_', ' ')} ({words})"

    def columns_of(self, sheet: Sheet) -> list[Grid]:
        """These columns of one model.

        Raises:
            LackingError: If its runs lack one of them.
        """
        return [sheet.grid(column) for column in self.columns]

    @abstractmethod
    def reading(self, sheet: Sheet) -> Reading:
        """The number of one model.

        Raises:
            LackingError: If its runs lack the data for the test.
        """

    @property
    def joins(self) -> str:
        """What a reading combines: ``seeds`` of a task, ``tasks`` of a model, or nothing (empty) for one model at a
        time.
        """
        return ""

    def joint_reading(self, groups: Sequence[Sequence[Sheet]]) -> Reading:
        """The number of several models, for a test that combines them: one group per seed or task.

        Raises:
            LackingError: If the runs of one lack the data for the test.
        """
        return self.reading(groups[0][0])

    def holds(self, value: float) -> bool:
        """Whether a number is on the claimed side of the threshold."""
        return value > self.threshold if self.below is None else value < self.threshold

    def judge(self, readings: Sequence[Reading]) -> Finding:
        """The mean over models with its interval and p-value, over seeds and examples if there are several.

        The interval is clipped to the possible range, which keeps its coverage; the p-value uses the unclipped one.
        """
        finding = self._over_models(readings)
        delta = finding.value - self.threshold
        if self.tolerance and math.isfinite(finding.low):
            toward = -math.copysign(min(self.tolerance, abs(delta)), delta)
            nearer = self._over_models([replace(reading, value=reading.value + toward) for reading in readings])
            p = 1.0 if abs(delta) <= self.tolerance else nearer.p_value
            finding = replace(finding, low=finding.low - self.tolerance, high=finding.high + self.tolerance, p_value=p)
        least, most = max(reading.limits[0] for reading in readings), min(reading.limits[1] for reading in readings)
        low, high = (min(max(end, least), most) for end in (finding.low, finding.high))
        return replace(finding, low=low, high=high)

    def doubt(self, finding: Finding) -> str:
        """A sentence on why the statement may fail although the number is on the claimed side; empty for no doubt."""
        return ""

    def _over_models(self, readings: Sequence[Reading]) -> Finding:
        defined = [reading for reading in readings if math.isfinite(reading.value)]
        if not defined:
            return Finding(math.nan, math.nan, math.nan, math.nan, tuple(readings))
        if all(reading.p_value is not None for reading in defined):
            # Significant only if significant in every seed.
            p = max(reading.p_value for reading in defined if reading.p_value is not None)
            value = float(np.mean([reading.value for reading in defined]))
            reach = REACH * defined[0].stderr if len(defined) == 1 else math.nan
            return Finding(value, value - reach, value + reach, p, tuple(readings))
        value_S = np.array([reading.value for reading in defined]) - self.threshold
        error_S = np.array([reading.stderr for reading in defined])
        if len(defined) == 1:
            return _of_one(float(value_S[0]), float(error_S[0]), self.threshold, tuple(readings))
        # The same examples for all models, so their errors are treated as perfectly correlated.
        if any(column.startswith(SEEDS) for column in self.columns):
            if len(defined) < 3:
                # Both numbers belong to the same pair.
                value = float(value_S.mean()) + self.threshold
                return Finding(value, math.nan, math.nan, math.nan, tuple(readings))
            value_S = value_S.mean() + (value_S - value_S.mean()) * math.sqrt(spread_of_pairs(len(defined)))
        effect = effects_over_seeds(value_S[:, None], *noise_of_errors(error_S[:, None]), margin=0.0, level=0.95)
        mean, low, high = (float(estimate[0]) + self.threshold for estimate in (effect.delta, *effect.limits))
        return Finding(mean, low, high, float(effect.p_value[0]), tuple(readings))


class SizeTest(Test):
    """A test of a number or of its size.

    Args:
        absolute: Whether to use the absolute value of the number.
    """

    absolute: bool = Field(default=False, description="true or false")

    def sized(self, reading: Reading) -> Reading:
        """A reading of the number or, for absolute numbers, of its size."""
        low, high = reading.limits
        size = replace(reading, value=abs(reading.value), limits=(max(0.0, low), max(-low, high)))
        return size if self.absolute else reading


class SumTest(Test):
    """A test of a column, or of the sum of several columns.

    Args:
        column: The column, or the columns to sum.
    """

    column: str | list[str] = Field(description="a column, <measure>/<column>, or a list of them")

    @property
    def columns(self) -> Sequence[str]:
        return listed(self.column)

    def total(self, sheet: Sheet) -> Grid:
        """The sum of the columns.

        Raises:
            LackingError: If the model's runs lack one of them.
        """
        first, *others = (sheet.grid(column) for column in listed(self.column))
        return functools.reduce(Grid.plus, others, first)


def reliability(grid: Grid) -> float:
    """Share of the variance over heads that is not noise, 0 to 1; NaN where unknown.

    >>> reliability(Grid(np.array([[1.0, 3.0]]), np.array([[0.5, 0.5]]), 9))
    0.875
    """
    finite_LH = np.isfinite(grid.value_LH)
    value_N, stderr_N = grid.value_LH[finite_LH], grid.stderr_LH[finite_LH]
    spread = float(value_N.var(ddof=1)) if len(value_N) > 1 else 0.0
    return max(0.0, 1 - float(np.mean(stderr_N**2)) / spread) if spread else math.nan


def spread_of_pairs(seeds: int) -> float:
    """Factor by which the variance of S numbers from a ring of seed pairs, divided by S, can understate the variance of
    their mean.

    Pairs that share a seed have a correlation of at most 1/2. With a correlation of c, the mean over a ring has
    variance (1 + 2c) / S, and the numbers themselves have 1 - 2c / (S - 1).

    >>> spread_of_pairs(3), spread_of_pairs(10)
    (4.0, 2.25)
    """
    return 2 * (seeds - 1) / (seeds - 2)


def _of_one(delta: float, stderr: float, threshold: float, readings: tuple[Reading, ...]) -> Finding:
    if not math.isfinite(stderr):
        return Finding(threshold + delta, math.nan, math.nan, math.nan, readings)
    # Without variation, there is only the number.
    p = float(delta == 0) if stderr == 0 else float(2 * stats.norm.sf(abs(delta) / stderr))
    value = threshold + delta
    return Finding(value, value - REACH * stderr, value + REACH * stderr, p, readings)


def interval_in_words(value: float, low: float, high: float) -> str:
    """A number with its 95 % interval, with digits suited to its size.

    >>> interval_in_words(0.412, 0.38, 0.444), interval_in_words(-8.5, -13.78, -4.36)
    ('0.412 (0.380 to 0.444)', '−8.5 (−13.8 to −4.4)')
    """
    sizes = [abs(end) for end in (value, low, high) if math.isfinite(end)]
    digits = 3 if max(sizes, default=0) < 1.5 else 2 if max(sizes) < 5 else 1
    limits = low_to_high(low, high, digits)
    return f"{number(value, digits)} ({'no interval' if limits == MISSING else limits})"


def mean_of(value_N: Array, stderr_N: Array) -> tuple[float, float]:
    """The mean over heads with a value and its standard error, assuming errors of equal sign; NaN without such heads.

    The standard error is NaN if one of these heads has none.

    >>> mean_of(np.array([1.0, 3.0, np.nan]), np.array([0.1, np.nan, np.nan]))
    (2.0, nan)
    """
    finite_N = np.isfinite(value_N)
    if not finite_N.any():
        return math.nan, math.nan
    return float(value_N[finite_N].mean()), float(stderr_N[finite_N].mean())


def listed(columns: Any) -> tuple[Any, ...]:
    """One or several columns, or other values, as a tuple."""
    return tuple(columns) if isinstance(columns, list | tuple) else (columns,)
