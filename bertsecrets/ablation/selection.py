"""Does a head that seems harmful on one half of the set also prove harmful on the other half?"""

import math
from statistics import NormalDist
from typing import Any

import numpy as np

from bertsecrets.ablation.predictions import PairedPredictions
from bertsecrets.errors import UserError
from bertsecrets.task_heads.metric import Array, Metric

_LEVEL = 0.05
_SPLITS = 200


def selection_check(metric: Metric, paired: PairedPredictions, p_V: Array, *, seed: int) -> dict[str, Any]:
    """Repeatedly split examples (or groups) into two halves, choose the best variant on one, and score it on the other.

    The limits use the variance of R repeated splits that share examples, s^2 (1 / R + 1) for halves of equal size
    (Nadeau and Bengio 2003, equation 11).

    Args:
        metric: The metric.
        paired: The predictions.
        p_V: P-values of each variant's change of score on all examples, corrected for the number of variants.
        seed: Seed of the splits.

    Returns:
        ``best``: index of the variant chosen most often. ``chosen``: share of the splits in which it was chosen.
            ``claimed``, ``kept``: mean improvement of the chosen variant on the half that chose it, and on the other
            half; ``low``, ``high``: 95 % limits of the latter.
        ``positive``: share of the splits in which the score on the other half improved. ``p_value``: of ``best`` on all
            examples (McNemar's exact test, or random swaps), corrected for the number of variants. ``survives``:
            whether ``low`` is above 0 and ``p_value`` at most 0.05, which the claim "disabling this head improves the
            model" requires: the halves share their examples with all other splits, but the test does not.

    Raises:
        UserError: If there are fewer than four examples.
    """
    units = paired.units
    if units < 4:
        what = "examples" if paired.group_N is None else "groups of examples"
        raise UserError(f"{units} {what} are too few for a selection check; at least four are needed.")
    generator = np.random.default_rng([seed, 2])
    # Halves as weights, so that one call scores all splits.
    half_RU = np.zeros((_SPLITS, units), np.int8)
    for row_U in half_RU:
        row_U[generator.permutation(units)[: units // 2]] = 1
    half_RN = half_RU if paired.cluster_N is None else half_RU[:, paired.cluster_N]
    # -inf: an undefined score is never the best one.
    change_RV, other_RV = (
        np.nan_to_num(paired.weighted_changes(metric, weight_RN), nan=-np.inf) for weight_RN in (half_RN, 1 - half_RN)
    )
    best_R = change_RV.argmax(-1)
    claimed_R, kept_R = (array_RV[np.arange(_SPLITS), best_R] for array_RV in (change_RV, other_RV))
    kept_R = np.where(np.isfinite(kept_R), kept_R, 0)
    share_V = np.bincount(best_R, minlength=len(paired.prediction_VN)) / _SPLITS
    kept = float(kept_R.mean())
    error = math.sqrt(float(kept_R.var(ddof=1)) * (1 / _SPLITS + 1)) * NormalDist().inv_cdf(0.975)
    best = int(share_V.argmax())
    return {
        "best": best,
        "chosen": float(share_V[best]),
        "claimed": float(claimed_R.mean()),
        "kept": kept,
        "low": kept - error,
        "high": kept + error,
        "positive": float((kept_R > 0).mean()),
        "p_value": float(p_V[best]),
        "survives": bool(kept - error > 0 and p_V[best] <= _LEVEL),
    }
