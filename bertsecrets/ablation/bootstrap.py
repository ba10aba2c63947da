"""The paired bootstrap: how sure a change of score is, given that other examples might have been drawn."""

import numpy as np

from bertsecrets.ablation.scoring import Array, weighted_scores

_AT_ONCE = 250


def bootstrap_changes(
    metric: str,
    label_N: Array,
    clean_N: Array,
    prediction_VN: Array,
    resamples: int,
    generator: np.random.Generator,
) -> Array:
    """Change of the score from the clean predictions to each variant's under R resamples, ``[R, V]``.

    Examples are drawn with replacement, the same ones for the clean predictions and all variants, so that what is
    common to both cancels (Efron and Tibshirani 1993, chapter 8).
    """
    count = len(label_N)
    both_VN = np.concatenate([clean_N[None], prediction_VN])
    changes = []
    for start in range(0, resamples, _AT_ONCE):
        drawn_RN = generator.multinomial(count, np.full(count, 1 / count), size=min(_AT_ONCE, resamples - start))
        score_RV = weighted_scores(metric, label_N, both_VN, drawn_RN.astype(np.float64))
        changes.append(score_RV[:, 1:] - score_RV[:, :1])
    return np.concatenate(changes)


def interval(change_RV: Array, level: float) -> tuple[Array, Array, Array]:
    """Standard error and percentile limits of each change, ``[V]`` each; resamples without a defined score are left out."""
    tail = (1 - level) / 2
    low_V, high_V = np.nanquantile(change_RV, [tail, 1 - tail], axis=0)
    return np.nanstd(change_RV, axis=0, ddof=1), low_V, high_V
