"""Does a head that seems to hurt on one half of the set still hurt on the other half?"""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from bertsecrets.ablation.scoring import Array, weighted_scores
from bertsecrets.errors import UserError


@dataclass(frozen=True)
class SelectionCheck:
    """What becomes of the best variant when it is scored on examples that did not choose it.

    Args:
        best: Index of the variant that was chosen most often.
        chosen: How often each variant was chosen, ``[V]``, shares.
        claimed: Mean improvement of the chosen variant on the half that chose it.
        kept: The same on the other half.
        low, high: 95 % limits of ``kept``.
        positive: Share of the splits in which the other half improved at all.
        survives: Whether ``low`` is above 0: only then "disabling this head improves the model" may be said.
    """

    best: int
    chosen: Array
    claimed: float
    kept: float
    low: float
    high: float
    positive: float
    survives: bool


def selection_check(
    metric: str, label_N: Array, clean_N: Array, prediction_VN: Array, *, repeats: int = 200, seed: int = 0
) -> SelectionCheck:
    """Splits the examples in two halves, again and again; one half chooses the best variant, the other one scores it.

    The limits use the variance of repeated splits that share examples, s^2 (1 / repeats + 1), both halves being equal
    (Nadeau and Bengio 2003, equation 11).

    Raises:
        UserError: If there are fewer than four examples or two splits.
    """
    label_N, clean_N, prediction_VN = (np.asarray(each, dtype=np.float64) for each in (label_N, clean_N, prediction_VN))
    count = len(label_N)
    if count < 4 or repeats < 2:
        raise UserError(f"{count} examples and {repeats} splits are too few for a selection check; give four and two.")
    generator = np.random.default_rng([seed, 2])
    half_RN = np.zeros((repeats, count))
    for row_N in half_RN:
        row_N[generator.permutation(count)[: count // 2]] = 1
    both_VN = np.concatenate([clean_N[None], prediction_VN])
    change = []
    for weight_RN in (half_RN, 1 - half_RN):
        score_RV = weighted_scores(metric, label_N, both_VN, weight_RN)
        change.append(np.nan_to_num(score_RV[:, 1:] - score_RV[:, :1], nan=-np.inf))
    best_R = change[0].argmax(-1)
    claimed_R, kept_R = (each[np.arange(repeats), best_R] for each in change)
    kept_R = np.where(np.isfinite(kept_R), kept_R, 0)
    chosen_V = np.bincount(best_R, minlength=len(prediction_VN)) / repeats
    kept = float(kept_R.mean())
    error = math.sqrt(float(kept_R.var(ddof=1)) * (1 / repeats + 1)) * NormalDist().inv_cdf(0.975)
    return SelectionCheck(
        best=int(chosen_V.argmax()),
        chosen=chosen_V,
        claimed=float(claimed_R.mean()),
        kept=kept,
        low=kept - error,
        high=kept + error,
        positive=float((kept_R > 0).mean()),
        survives=kept - error > 0,
    )
