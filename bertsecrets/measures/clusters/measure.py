"""Distances between all pairs of heads, in the model and in the model before fine-tuning (methods C8)."""

import math
from collections.abc import Sequence
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from bertsecrets.data.batch import Batch
from bertsecrets.errors import UserError
from bertsecrets.grid import Column, HeadGrid
from bertsecrets.measures.base import MaxExamples, Measure, Need, Passed
from bertsecrets.measures.clusters.geometry import (
    groups_of,
    in_the_plane,
    pairwise_divergence,
    same_label_is_close,
    stability,
)
from bertsecrets.measures.clusters.rows import ClusterRow, Distance, Group, Moved, Place, Space, Tuned
from bertsecrets.settings import typed
from bertsecrets.statistics.ranks import spearman

_UNIT = "Jensen-Shannon divergence (nats)"
_PERMUTATIONS = 2000

Array = NDArray[np.float64]


class Clusters(Measure):
    """Jensen-Shannon divergence between the attention of all pairs of heads, and the groups that the heads form.

    The divergence of two heads is the divergence of their rows, averaged over all real tokens of all texts, without
    padding. Heads before fine-tuning are placed in the same space. Maps are kept for one batch only, so memory does not
    depend on the number of texts: 4 bytes per weight of a batch, or twice that with a model before fine-tuning.

    Columns:
        ``within_layer``: mean divergence of a head from the other heads of its layer, in nats; 0..ln 2. Not defined for
            layers of one head.
        ``between_layers``: the same from the heads of other layers.

    Args:
        smoothing: Share of uniform attention to mix into each row; the paper's code uses 0.001.
        groups: Number of groups; None for the number with the highest silhouette.
        replicates: Bootstrap samples of the texts from which the stability of groups is computed.
        max_examples: Size of a random sample of examples; None for all. The paper uses about 1000 texts.
        seed: Seed of the samples, of the points in the plane and of the permutations.

    Raises:
        UserError: If a setting is out of range.
    """

    name = "clusters"
    title = "Distances between heads"
    columns = (
        Column("within_layer", "from the other heads of its layer", _UNIT, (0.0, math.log(2))),
        Column("between_layers", "from the heads of other layers", _UNIT, (0.0, math.log(2))),
    )
    presenter = "bertsecrets.present.clusters:PRESENTER"
    needs = frozenset({Need.REFERENCE})
    tracked = ()

    distance_RNN: Tensor
    rows_R: Tensor

    @typed
    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        smoothing: Annotated[float, Field(ge=0, lt=1, description="a share from 0 to below 1")] = 0.0,
        groups: Annotated[
            int | None, Field(ge=2, description="a whole number from 2 to the number of heads, or null")
        ] = None,
        replicates: Annotated[int, Field(ge=0, description="a whole number from 0")] = 50,
        max_examples: MaxExamples = None,
        seed: int = 0,
    ) -> None:
        super().__init__(num_layers, num_heads, max_examples)
        size = num_layers * num_heads
        if groups is not None and groups > size:
            raise UserError(
                f"Clusters.groups is {groups}; expected a whole number from 2 to the {size} heads, or null."
            )
        self.smoothing, self.groups, self.replicates, self.seed = smoothing, groups, replicates, seed
        # Indexed by all texts, then each bootstrap sample; the model's heads come before those before fine-tuning.
        shape = (1 + replicates, 2 * size, 2 * size)
        self.add_state("distance_RNN", torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("rows_R", torch.zeros(1 + replicates, dtype=torch.float64), dist_reduce_fx="sum")
        self._maps: list[tuple[Tensor, Tensor]] = []

    def update(self, passed: Passed) -> None:
        """Keep one layer's maps; with the last layer's, add the distances between all heads on this batch."""
        layer, batch = passed.layer, passed.batch
        assert passed.reference_BHQK is not None
        num_layers = self.total_LHC.shape[0]
        if layer == 0:
            self._maps = []
        self._maps.append((passed.attention_BHQK, passed.reference_BHQK))
        if layer < num_layers - 1:
            self.add(layer, batch, None)
            return
        current, reference = zip(*self._maps, strict=True)
        self._maps = []
        unchanged = all(torch.equal(here, there) for here, there in zip(current, reference, strict=True))
        values = [
            self._add_text(row, batch, current if unchanged else (*current, *reference), unchanged)
            for row in range(batch.size)
        ]
        values_BLHC = torch.stack(values)
        for index, values_BHC in enumerate(values_BLHC.unbind(1)):
            self.add(index, batch, values_BHC)

    def _add_text(self, row: int, batch: Batch, layers: tuple[Tensor, ...], unchanged: bool) -> Tensor:
        """Add the distances of one text; return its numbers of the model's own heads, ``[L, H, C]``."""
        position_T = batch.attention_mask_BS[row].nonzero()[:, 0]
        tokens = slice(int(position_T[0]), int(position_T[-1]) + 1)
        length = len(position_T)
        map_NM = torch.cat([layer_BHQK[row, :, tokens, tokens].flatten(1) for layer_BHQK in layers])
        if self.smoothing:
            map_NM = map_NM * (1 - self.smoothing) + self.smoothing / length
        distance_NN = pairwise_divergence(map_NM).to(self.distance_RNN.device)
        num_layers, num_heads, _ = self.total_LHC.shape
        size = num_layers * num_heads
        # The divergences within and between both halves are equal: a quarter of the work suffices.
        if unchanged:
            distance_NN = distance_NN.repeat(2, 2)
        generator = torch.Generator().manual_seed((self.seed << 32) + int(batch.index_B[row]))
        # Poisson weights, a bootstrap for streams of unknown length; drawn by index, so that batches do not matter.
        weights = [1.0, *torch.poisson(torch.ones(self.replicates), generator=generator).tolist()]
        self.rows_R += length * torch.tensor(weights).to(self.rows_R)
        for replicate, weight in enumerate(weights):
            if weight:
                self.distance_RNN[replicate].add_(distance_NN, alpha=weight)
        return _layer_means(distance_NN[:size, :size] / length, num_layers, num_heads)

    def distances(self) -> tuple[Array, bool]:
        """Mean distances ``[1 + R, 2N, 2N]``, the model's heads first, over all texts and each sample; and whether any
        head differs from itself before fine-tuning.
        """
        mean_RNN = (self.distance_RNN / self.rows_R.clamp(min=1)[:, None, None]).cpu().numpy()
        size = mean_RNN.shape[1] // 2
        return mean_RNN, bool(mean_RNN[0, :size, size:].diagonal().any())

    def findings(self, grid: HeadGrid, model: nn.Module) -> Sequence[ClusterRow]:
        """Points, groups and distances of the heads, and of those before fine-tuning if any head differs."""
        mean_RNN, differs = self.distances()
        size, heads = mean_RNN.shape[1] // 2, grid.num_heads
        now, before = slice(size), slice(size, None)
        rows = self._space(mean_RNN[:, now, now], heads, before=False)
        if differs:
            distance_NN, cross_NN = mean_RNN[0], mean_RNN[0, now, before]
            points_N2, stress = in_the_plane(distance_NN, self.seed)
            upper = np.triu_indices(size, 1)
            correlation = spearman(distance_NN[now, now][upper], distance_NN[before, before][upper])
            rows += self._space(mean_RNN[:, before, before], heads, before=True)
            rows.append(Tuned(stress, correlation, int((cross_NN.argmin(axis=1) == np.arange(size)).sum())))
            moved = zip(points_N2[now].tolist(), points_N2[before].tolist(), cross_NN.diagonal().tolist(), strict=True)
            rows += [
                Moved(*divmod(number, heads), x, y, x_before, y_before, distance)
                for number, ((x, y), (x_before, y_before), distance) in enumerate(moved)
            ]
        return rows

    def _space(self, mean_RNN: Array, heads: int, before: bool) -> list[ClusterRow]:
        """One model's rows from its distances in all texts and in each sample."""
        distance_NN = mean_RNN[0]
        points_N2, stress = in_the_plane(distance_NN, self.seed)
        group_N = groups_of(distance_NN, self.groups)
        samples = [mean_RNN[r] for r in range(1, len(mean_RNN)) if self.rows_R[r] > 0]
        layer_N = np.arange(len(group_N)) // heads
        tested = same_label_is_close(distance_NN, layer_N, _PERMUTATIONS, self.seed)
        rows: list[ClusterRow] = [Space(before, int(self.rows_R[0]), len(samples), stress, *tested)]
        for group, stable in enumerate(stability(group_N, samples)):
            members = np.flatnonzero(group_N == group)
            pairs = distance_NN[np.ix_(members, members)][np.triu_indices(len(members), 1)]
            rows.append(Group(before, group, float(pairs.mean()) if len(pairs) else math.nan, stable))
        rows += [
            Place(before, *divmod(number, heads), x, y, group)
            for number, ((x, y), group) in enumerate(zip(points_N2.tolist(), group_N.tolist(), strict=True))
        ]
        rows += [
            Distance(before, *divmod(int(one), heads), *divmod(int(other), heads), float(distance_NN[one, other]))
            for one, other in zip(*np.triu_indices(len(distance_NN), 1), strict=True)
        ]
        return rows


def _layer_means(distance_NN: Tensor, num_layers: int, num_heads: int) -> Tensor:
    """Mean distance of each head from the others of its layer and from those of other layers, ``[L, H, 2]``."""
    layer_N = torch.arange(num_layers, device=distance_NN.device).repeat_interleave(num_heads)
    same_NN = layer_N[:, None] == layer_N
    self_NN = torch.eye(len(layer_N), dtype=torch.bool, device=distance_NN.device)
    means = [(distance_NN * mask_NN).sum(-1) / mask_NN.sum(-1) for mask_NN in (same_NN & ~self_NN, ~same_NN)]
    return torch.stack(means, -1).reshape(num_layers, num_heads, 2)
