"""Agreement between two passes over the same maps."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from bertsecrets.patterns.classes import PATTERNS

Interval = tuple[float, float]
_UNDEFINED = (float("nan"), float("nan"))


@dataclass(frozen=True)
class Agreement:
    """Two passes, compared on the maps that both labelled.

    Args:
        confusion_PP: Number of maps with the row's pattern in the first pass and the column's in the second, int64, in
            the order of :data:`~bertsecrets.patterns.classes.PATTERNS`.
        level: Level of the intervals, 0..1.
    """

    confusion_PP: NDArray[np.int64]
    level: float = 0.95

    @classmethod
    def between(cls, first: Mapping[str, str], second: Mapping[str, str]) -> "Agreement":
        """Compare two passes, each map id -> pattern."""
        confusion_PP = np.zeros((len(PATTERNS), len(PATTERNS)), np.int64)
        for name in first.keys() & second.keys():
            confusion_PP[PATTERNS.index(first[name]), PATTERNS.index(second[name])] += 1
        return cls(confusion_PP)

    @property
    def count(self) -> int:
        """Number of maps that both passes labelled."""
        return int(self.confusion_PP.sum())

    @property
    def raw(self) -> float:
        """Share of the maps with the same pattern in both passes, 0..1; NaN without maps."""
        return float(self.confusion_PP.trace() / self.count) if self.count else float("nan")

    @property
    def raw_interval(self) -> Interval:
        """Wilson score interval of ``raw``."""
        if not self.count:
            return _UNDEFINED
        same = stats.binomtest(int(self.confusion_PP.trace()), self.count)
        interval = same.proportion_ci(self.level, method="wilson")
        return float(interval.low), float(interval.high)

    @property
    def kappa(self) -> float:
        """Cohen's kappa (Cohen 1960), at most 1; NaN if chance alone would give full agreement."""
        share_PP, by_chance = self._shares()
        return float((share_PP.trace() - by_chance) / (1 - by_chance)) if by_chance < 1 else float("nan")

    @property
    def kappa_interval(self) -> Interval:
        """Normal interval with the large-sample standard error of Fleiss, Cohen and Everitt 1969, equation 13."""
        share_PP, by_chance = self._shares()
        if not by_chance < 1:
            return _UNDEFINED
        first_P, second_P = share_PP.sum(1), share_PP.sum(0)
        lack = 1 - self.kappa
        diagonal_P = np.diag(share_PP)
        same = (diagonal_P * (1 - (first_P + second_P) * lack) ** 2).sum()
        pairs_PP = share_PP * (second_P[:, None] + first_P[None, :]) ** 2
        different = lack**2 * (pairs_PP.sum() - np.diag(pairs_PP).sum())
        variance = (same + different - (self.kappa - by_chance * lack) ** 2) / (self.count * (1 - by_chance) ** 2)
        half_width = NormalDist().inv_cdf((1 + self.level) / 2) * float(np.sqrt(max(variance, 0.0)))
        return self.kappa - half_width, self.kappa + half_width

    def of_pattern(self, pattern: str) -> float:
        """Specific agreement 2 n12 / (n1 + n2): share of the labels with this pattern that the other pass repeats."""
        index = PATTERNS.index(pattern)
        labels = int(self.confusion_PP[index].sum() + self.confusion_PP[:, index].sum())
        return 2 * int(self.confusion_PP[index, index]) / labels if labels else float("nan")

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; None for undefined values."""
        return {
            "maps": self.count,
            "raw": _finite(self.raw),
            "raw_interval": [_finite(limit) for limit in self.raw_interval],
            "kappa": _finite(self.kappa),
            "kappa_interval": [_finite(limit) for limit in self.kappa_interval],
            "level": self.level,
            "patterns": {pattern: _finite(self.of_pattern(pattern)) for pattern in PATTERNS},
            "confusion": {
                pattern: dict(zip(PATTERNS, row, strict=True))
                for pattern, row in zip(PATTERNS, self.confusion_PP.tolist(), strict=True)
            },
        }

    def _shares(self) -> tuple[NDArray[np.float64], float]:
        """The confusion table as shares, and the agreement by chance; 1 without maps."""
        if not self.count:
            return self.confusion_PP.astype(np.float64), 1.0
        share_PP = self.confusion_PP / self.count
        return share_PP, float(share_PP.sum(1) @ share_PP.sum(0))


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
