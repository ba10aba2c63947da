"""Heads with similar maps: their distances, and their groups."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor, nn

from bertsecrets.ablation.plan import Head, Variant, random_groups_like, single_head
from bertsecrets.attention.watch import watch
from bertsecrets.data.batch import Batch, over_processes
from bertsecrets.float64 import float64_device
from bertsecrets.measures.clusters.geometry import pairwise_divergence
from bertsecrets.models.encoder import Autocast, describe, evaluating, unwrap
from bertsecrets.results.components import GROUP, GROUP_BUT_ONE
from bertsecrets.task_heads.metric import Array


@torch.no_grad()
def head_distances(
    model: nn.Module,
    batches: Iterable[Batch],
    context: Autocast = nullcontext,
    progress: Callable[[], object] | None = None,
) -> Tensor:
    """Jensen-Shannon distances between all heads of a model, ``[L * H, L * H]`` in 0..sqrt(ln 2), over all processes:
    the square root of the divergence, averaged over tokens and then over examples.

    Clark et al. 2019 (section 6) sum over tokens. All maps of a batch are in memory at once, so use small batches.
    """
    network, encoder = unwrap(model), describe(model)
    device = next(network.parameters()).device
    heads, host = encoder.num_layers * encoder.num_heads, float64_device(device)
    total_HH = torch.zeros(heads, heads, dtype=torch.float64, device=host)
    count = torch.zeros((), dtype=torch.float64, device=host)
    with evaluating(network):
        for on_host in batches:
            batch = on_host.to(device)
            maps: list[Tensor] = []

            def observe(_: int, attention_BHQK: Tensor, maps: list[Tensor] = maps) -> None:
                maps.append(attention_BHQK)

            with context(), watch(network, observe):
                network(**batch.inputs())
            for row, length in enumerate(batch.lengths_B.tolist()):
                map_HQK = torch.cat([map_BHQK[row, :, :length, :length] for map_BHQK in maps])
                total_HH += (pairwise_divergence(map_HQK.flatten(1)) / length).to(total_HH)
                count += 1
            if progress is not None:
                progress()
    total_HH, count = (over_processes(value) for value in (total_HH, count))
    return (total_HH / count).sqrt().cpu()


def group_by_distance(distance_HH: Array, threshold: float, max_size: int) -> list[list[int]]:
    """Groups of two or more heads by average linkage: the two closest groups merge while they are within ``threshold``.

    Args:
        distance_HH: Symmetric distances.
        threshold: Largest mean distance between the members of two groups that merge.
        max_size: Largest number of members of a group.
    """
    groups = [[index] for index in range(len(distance_HH))]
    # Not scipy's linkage, which cannot limit the size of a group.
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


def similar_groups(distance_HH: Tensor, num_heads: int, largest: int) -> list[tuple[Head, ...]]:
    """Groups of at least two heads with similar maps, closest first.

    Two heads are similar if their distance is among the smallest tenth of all distances.

    Args:
        distance_HH: Distances between all heads in order of layer and head.
        num_heads: Heads of a layer.
        largest: Largest number of heads of a group.
    """
    distances = distance_HH.double().numpy()
    above = distances[np.triu_indices(len(distances), 1)]
    groups = group_by_distance(distances, threshold=float(np.quantile(above, 0.1)), max_size=largest)
    spread = [float(distances[np.ix_(group, group)].sum() / (len(group) * (len(group) - 1))) for group in groups]
    order = sorted(range(len(groups)), key=spread.__getitem__)
    return [tuple(divmod(int(index), num_heads) for index in sorted(groups[i])) for i in order]


def with_controls(groups: Sequence[Sequence[Head]], num_heads: int, controls: int, seed: int) -> list[Variant]:
    """Variants: each head of a group alone, whole groups, groups without one head, and random groups from the same
    layers.
    """
    variants: dict[str, Variant] = {}
    for index, group in enumerate(groups):
        whole = Variant(f"group-{index:03d}", GROUP.name, tuple(group))
        variants[whole.name] = whole
        for layer, head in group:
            alone = single_head(layer, head)
            rest = tuple(member for member in group if member != (layer, head))
            variants[alone.name] = alone
            if len(group) > 2:
                # For a pair, the group without one head is the other head alone.
                but_one = Variant(f"{whole.name}-but-{alone.name}", GROUP_BUT_ONE.name, rest, layer, head)
                variants[but_one.name] = but_one
    for group in groups:
        for control in random_groups_like(group, num_heads, controls, seed):
            variants[control.name] = control
    return list(variants.values())
