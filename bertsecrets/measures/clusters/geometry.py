"""Distances between heads by their maps; heads as points in the plane, and their groups."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform
from torch import Tensor

from bertsecrets.float64 import float64_device

Array = NDArray[np.float64]

_MOST_GROUPS = 15

_TILE, _DEVICE_TILE = 2048, 65_536
"""Columns per tile: few enough for a CPU cache, enough to keep a GPU busy."""

_TINY = 1e-30
"""Replaces a weight of 0, whose logarithm is infinite; x ln x is then below 1e-28."""


def pairwise_divergence(map_NM: Tensor) -> Tensor:
    """Divergence of N maps in nats, summed over their rows: ``[N, N]`` float64.

    With s = p + q and G(p, q) = sum of s ln s, the divergence H(s / 2) - (H(p) + H(q)) / 2 of two distributions is
    (G(p, p) + G(q, q)) / 4 - G(p, q) / 2: one logarithm per weight and pair.

    Args:
        map_NM: Weights in 0..1, ``[heads, rows * keys]``, float32 or wider, without padding; each row sums to 1.

    Returns:
        Symmetric, 0 on the diagonal, at most ln 2 times the number of rows.
    """
    # Sums of s ln s, upper triangle.
    count, size = map_NM.shape
    tile = min(size, _TILE if map_NM.device.type == "cpu" else _DEVICE_TILE)
    total_NN = torch.zeros((count, count), dtype=torch.float64, device=float64_device(map_NM.device))
    sum_T, log_T = map_NM.new_empty(count * tile), map_NM.new_empty(count * tile)
    for start in range(0, size, tile):
        # Tile by tile, so that both buffers stay in the cache.
        part_NT = map_NM[:, start : start + tile].clamp(min=_TINY)
        width = part_NT.shape[1]
        for head in range(count):
            rest = count - head
            sum_RT, log_RT = (buffer_T[: rest * width].view(rest, width) for buffer_T in (sum_T, log_T))
            torch.add(part_NT[head:], part_NT[head], out=sum_RT)
            torch.log(sum_RT, out=log_RT)
            total_NN[head, head:] += torch.linalg.vecdot(sum_RT, log_RT).to(total_NN.device)
    diagonal_N = total_NN.diagonal()
    upper_NN = ((diagonal_N[:, None] + diagonal_N) / 4 - total_NN / 2).triu(1).clamp(min=0)
    return upper_NN + upper_NN.T


def in_the_plane(distance_NN: Array, seed: int) -> tuple[Array, float]:
    """Points ``[N, 2]`` by metric multidimensional scaling with the paper's settings, and Kruskal's stress-1 (0 is
    perfect).
    """
    # Imported late, as below: scikit-learn takes a second, and few runs need it.
    from sklearn.manifold import smacof

    points_N2, raw = smacof(
        distance_NN, n_components=2, n_init=5, max_iter=1000, eps=1e-10, random_state=seed, normalized_stress=False
    )
    drawn_NN = np.linalg.norm(points_N2[:, None] - points_N2, axis=-1)
    # Count each pair once, as in the raw stress.
    scale = float((drawn_NN**2).sum() / 2)
    return np.asarray(points_N2), float(np.sqrt(raw / scale)) if scale else 0.0


def groups_of(distance_NN: Array, count: int | None = None) -> NDArray[np.int64]:
    """The group of each head, from 0 in descending order of size, by Ward's linkage on the square roots of the
    divergences.

    The square root of the Jensen-Shannon divergence is a Euclidean distance (Fuglede and Topsoe 2004), as Ward's method
    requires.

    Args:
        distance_NN: Symmetric divergences.
        count: Number of groups; None for the number from 2 to 15 with the highest silhouette.
    """
    from sklearn.metrics import silhouette_score

    heads = len(distance_NN)
    # Two heads allow only one cut, which has no silhouette.
    if heads < 3:
        return np.zeros(heads, np.int64)
    root_NN = np.sqrt(distance_NN)
    tree = hierarchy.linkage(squareform(root_NN, checks=False), "ward")
    if count is None:
        cuts = [_cut(tree, number) for number in range(2, min(_MOST_GROUPS, heads - 1) + 1)]
        # Tied distances may not allow for a cut into every number of groups.
        valid = [labels_N for labels_N in cuts if 1 < len(set(labels_N)) < heads]
        if not valid:
            return np.zeros(heads, np.int64)
        labels_N = max(valid, key=lambda labels_N: silhouette_score(root_NN, labels_N, metric="precomputed"))
    else:
        labels_N = _cut(tree, count)
    # Numbered by size: the labels of a tree's cut are arbitrary.
    order = np.argsort(-np.bincount(labels_N), kind="stable")
    return np.argsort(order)[labels_N]


def _cut(tree: Array, count: int) -> NDArray[np.int64]:
    labels_N = hierarchy.fcluster(tree, count, "maxclust")
    return np.unique(labels_N, return_inverse=True)[1].astype(np.int64)


def stability(group_N: NDArray[np.int64], replicates: Sequence[Array]) -> list[float]:
    """How well each group is found again: the mean over replicates of its highest Jaccard index (Hennig 2007); 0..1.

    Args:
        group_N: Group of each head.
        replicates: Distances from samples of the texts, each cut into as many groups.
    """
    count = int(group_N.max()) + 1
    again = [groups_of(distance_NN, count) for distance_NN in replicates]
    stable = []
    for member_N in (group_N == group for group in range(count)):
        overlaps = [
            max((member_N & (other_N == other)).sum() / (member_N | (other_N == other)).sum() for other in {*other_N})
            for other_N in again
        ]
        stable.append(float(np.mean(overlaps)) if overlaps else float("nan"))
    return stable


def same_label_is_close(
    distance_NN: Array, label_N: NDArray[np.int64], permutations: int, seed: int
) -> tuple[float, float, float]:
    """Mean distance between heads with the same label and with different labels, and the p-value for equality.

    The test permutes the labels; it is one-sided, for smaller distances within. NaN without two heads with the same
    label or without two labels.

    Args:
        distance_NN: Distances.
        label_N: Label of each head.
        permutations: Number of permutations.
        seed: Their seed.
    """
    count = len(distance_NN)
    same_NN = (label_N[:, None] == label_N) & ~np.eye(count, dtype=bool)
    apart_NN = label_N[:, None] != label_N
    if not same_NN.any() or not apart_NN.any():
        return float("nan"), float("nan"), float("nan")
    within, between = float(distance_NN[same_NN].mean()), float(distance_NN[apart_NN].mean())
    generator = np.random.default_rng(seed)
    # Permuting the heads keeps the sum over all pairs, so only the mean within labels matters.
    as_close = 0
    for _ in range(permutations):
        order_N = generator.permutation(count)
        # 1e-12: the same distances summed in another order count as equal.
        as_close += distance_NN[np.ix_(order_N, order_N)][same_NN].mean() <= within + 1e-12
    return within, between, (1 + as_close) / (1 + permutations)
