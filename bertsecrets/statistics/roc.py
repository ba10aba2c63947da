"""Area under the ROC curve with an interval suited to small samples."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, stats

_LEVEL = 0.95
_NEAR = 1e-9


@dataclass(frozen=True)
class Area:
    """An area under the ROC curve.

    Args:
        value: The probability that a positive case scores higher than a negative one, with ties counting half; NaN if
            all cases are in one class.
        low, high: Ends of the 95 % interval.
        positive, negative: Numbers of cases.
    """

    value: float
    low: float
    high: float
    positive: int
    negative: int


def area_under_curve(score_N: ArrayLike, positive_N: ArrayLike) -> Area:
    """The area, with the interval of Newcombe 2006 (method 5), which has positive width even if the classes do not
    overlap.

    >>> area = area_under_curve([0.1, 0.4, 0.35, 0.8], [False, False, True, True])
    >>> area.value, round(area.low, 3), round(area.high, 3)
    (0.75, 0.227, 0.967)
    """
    # Imported late: scikit-learn takes a second, and few runs need it.
    from sklearn.metrics import roc_auc_score

    score, positive = np.asarray(score_N, np.float64), np.asarray(positive_N, bool)
    m, n = int(positive.sum()), int((~positive).sum())
    if not m or not n:
        return Area(math.nan, math.nan, math.nan, m, n)
    value = float(roc_auc_score(positive, score))
    z = stats.norm.ppf((1 + _LEVEL) / 2)
    # Newcombe's variance, with both sizes replaced by their mean in the factor.
    extra = (m + n) / 2 - 1

    def beyond(theta: float) -> float:
        variance = theta * (1 - theta) * (1 + extra * ((1 - theta) / (2 - theta) + theta / (1 + theta))) / (m * n)
        return float(abs(theta - value) - z * math.sqrt(variance))

    # At 0 and 1 the variance is also 0, and the value would be its own limit.
    inside = min(max(value, _NEAR), 1 - _NEAR)
    low = optimize.brentq(beyond, 0.0, inside) if value > 0 else 0.0
    high = optimize.brentq(beyond, inside, 1.0) if value < 1 else 1.0
    return Area(value, float(low), float(high), m, n)
