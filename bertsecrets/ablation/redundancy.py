"""Redundant or unnecessary: why does disabling a head do no harm?"""

from collections.abc import Sequence

import numpy as np

from bertsecrets.ablation.scoring import Array

REDUNDANT, UNNECESSARY, NECESSARY, UNCERTAIN = "redundant", "unnecessary", "necessary", "uncertain"
VERDICTS = (NECESSARY, REDUNDANT, UNNECESSARY, UNCERTAIN)


def classify(harm_alone: Sequence[bool], suspect_alone: Sequence[bool], harm_together: bool) -> str:
    """What a group of heads with similar maps is to the model.

    Args:
        harm_alone: Whether each head alone does harm that is significant after correction.
        suspect_alone: Whether each head alone does harm that would be significant without correction.
        harm_together: Whether all together do harm that is significant after correction.

    Returns:
        ``necessary``: some head alone does harm. ``redundant``: none does, none is even suspect, but all together do:
        each can stand in for the others. ``unnecessary``: not even all together do. ``uncertain``: together they do
        harm, and it may be the work of one head that the correction let off.
    """
    if any(harm_alone):
        return NECESSARY
    if not harm_together:
        return UNNECESSARY
    return UNCERTAIN if any(suspect_alone) else REDUNDANT


def group_by_distance(distance_HH: Array, threshold: float, max_size: int) -> list[list[int]]:
    """Groups of two or more by average linkage: the closest two groups join while they are within ``threshold``.

    Args:
        distance_HH: Symmetric distances.
        threshold: The largest mean distance between the members of two groups that join.
        max_size: The most members of a group.
    """
    groups = [[index] for index in range(len(distance_HH))]
    mean_GG = np.asarray(distance_HH, dtype=np.float64).copy()
    np.fill_diagonal(mean_GG, np.inf)
    while len(groups) > 1:
        first, second = divmod(int(mean_GG.argmin()), len(groups))
        if not mean_GG[first, second] <= threshold:
            break
        left, right = len(groups[first]), len(groups[second])
        if left + right > max_size:
            mean_GG[first, second] = mean_GG[second, first] = np.inf
            continue
        joined_G = (left * mean_GG[first] + right * mean_GG[second]) / (left + right)
        joined_G[first] = np.inf
        mean_GG[first], mean_GG[:, first] = joined_G, joined_G
        groups[first] += groups[second]
        mean_GG = np.delete(np.delete(mean_GG, second, 0), second, 1)
        del groups[second]
    return [sorted(group) for group in groups if len(group) > 1]
