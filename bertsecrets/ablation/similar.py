"""Groups of heads with similar maps, and what has to be disabled to tell redundant heads from unnecessary ones."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from bertsecrets.ablation.plan import Head, Variant, head_name, random_groups
from bertsecrets.ablation.redundancy import group_by_distance


def similar_groups(distance_HH: Tensor, num_heads: int, largest: int) -> list[tuple[Head, ...]]:
    """Groups of at least two heads with similar maps, closest first.

    Two heads count as similar where their distance is among the smallest tenth of all distances.

    Args:
        distance_HH: Distances between all heads in order of layer and head.
        num_heads: Heads of a layer.
        largest: The most heads of a group.
    """
    distances = distance_HH.double().numpy()
    above = distances[np.triu_indices(len(distances), 1)]
    found = group_by_distance(distances, threshold=float(np.quantile(above, 0.1)), max_size=largest)
    spread = [float(distances[np.ix_(group, group)].sum() / (len(group) * (len(group) - 1))) for group in found]
    order = sorted(range(len(found)), key=spread.__getitem__)
    return [tuple(divmod(int(index), num_heads) for index in sorted(found[i])) for i in order]


def with_controls(
    groups: Sequence[Sequence[Head]], num_layers: int, num_heads: int, controls: int, seed: int
) -> list[Variant]:
    """Each head of a group alone, each group whole, each group but one head, and random groups of the same sizes."""
    variants: dict[str, Variant] = {}
    for index, group in enumerate(groups):
        whole = Variant(f"group-{index:03d}", "group", tuple(group))
        variants[whole.name] = whole
        for layer, head in group:
            alone = Variant(head_name(layer, head), "head", ((layer, head),), layer, head)
            rest = tuple(place for place in group if place != (layer, head))
            variants[alone.name] = alone
            if len(group) > 2:
                # Of a pair, all but one is the other one alone.
                but_one = Variant(f"{whole.name}-but-{alone.name}", "group_but_one", rest, layer, head)
                variants[but_one.name] = but_one
    for size in sorted({len(group) for group in groups}):
        for control in random_groups(num_layers, num_heads, size, controls, seed):
            variants[control.name] = control
    return list(variants.values())
