"""Distances between all pairs of heads, of the model and of the model before fine-tuning (methods C8)."""

import math
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from bertsecrets.data.batch import Batch
from bertsecrets.errors import UserError
from bertsecrets.grid import Column, HeadGrid
from bertsecrets.measures.base import MaxExamples, Measure, Need, Passed
from bertsecrets.measures.clusters.divergence import PairwiseDivergence
from bertsecrets.measures.clusters.geometry import groups_of, in_the_plane, same_label_is_close, stability
from bertsecrets.present.figures.scatters import head_space, moved_heads
from bertsecrets.present.report.content import FigureBlock, Section, Table
from bertsecrets.results.formatting import head_label, heads_label, number, p_value
from bertsecrets.results.views import LEVEL, ExtrasRecord, MeasureView
from bertsecrets.settings import typed
from bertsecrets.statistics.ranks import spearman


@dataclass(frozen=True)
class ClusterRecord(ExtrasRecord):
    """Distances, points and groups of N heads, in order of layers.

    Args:
        rows: Number of rows (real tokens) that distances are averaged over.
        distances: Mean divergence in nats, ``[N, N]``; ``[2N, 2N]``, own heads first, if the model differs from the model
            before fine-tuning.
        points: The N heads in the plane; ``stress``: Kruskal's stress-1.
        points_of_both, stress_of_both: The same for 2N heads; empty if the models are the same.
        groups: Group of each head, from 0.
        stability: Mean of the highest Jaccard index of each group over the bootstrap samples.
        replicates: Number of these samples.
        within, between, p: Mean distance within layers and between layers, and the p-value of a permutation test.
        before: The record of the model before fine-tuning; None if the models are the same.
    """

    rows: int
    distances: list[list[float]]
    points: list[list[float]]
    stress: float
    points_of_both: list[list[float]]
    stress_of_both: float
    groups: list[int]
    stability: list[float]
    replicates: int
    within: float
    between: float
    p: float
    before: "ClusterRecord | None" = None


_STABLE = 0.75
"""Least stability of a group that can be relied on (Hennig 2007)."""

_NAMED = 12
_PAIRS = 5

Array = NDArray[np.float64]


def _layers(record: ClusterRecord) -> list[str]:
    if not np.isfinite(record.p):
        return []
    closer = record.p < LEVEL
    return [
        f"Heads of one layer are {'' if closer else 'not significantly '}closer to each other than to heads of other layers: "
        f"{number(record.within)} nats within layers, {number(record.between)} between them (permutation test, p "
        f"{_comparison(record.p)})."
    ]


def _comparison(p: float) -> str:
    text = p_value(p)
    return text if text.startswith("<") else f"= {text}"


def _groups(record: ClusterRecord) -> str:
    count = max(record.groups) + 1
    if not record.replicates:
        return f"The heads form {count} groups."
    stable = sum(value >= _STABLE for value in record.stability)
    return f"Of {count} groups of heads, {stable} {'is' if stable == 1 else 'are'} stable over samples of the texts."


def _moved(distance_NN: Array, heads: int) -> tuple[str, tuple[int, int]]:
    """A sentence on how far heads moved in fine-tuning, and the head that moved farthest."""
    size = len(distance_NN) // 2
    now_NN, before_NN, cross_NN = distance_NN[:size, :size], distance_NN[size:, size:], distance_NN[:size, size:]
    upper = np.triu_indices(size, 1)
    rho = spearman(now_NN[upper], before_NN[upper])
    nearest_to_self = int((cross_NN.argmin(axis=1) == np.arange(size)).sum())
    farthest = int(cross_NN.diagonal().argmax())
    head = divmod(farthest, heads)
    return (
        f"The distances between heads before and after fine-tuning have a rank correlation of {number(rho, 2)}; for {nearest_to_self} of "
        f"{size} heads the nearest head of the model before fine-tuning is the same head. "
        f"{head_label(*head).capitalize()} moved farthest ({number(cross_NN[farthest, farthest])} nats)."
    ), head


def _group_table(record: ClusterRecord, distance_NN: Array, heads: int) -> Table:
    group_N = np.asarray(record.groups)
    rows = []
    for group in range(int(group_N.max()) + 1):
        members = np.flatnonzero(group_N == group)
        inside = distance_NN[np.ix_(members, members)]
        mean = float(inside.sum() / (inside.size - len(members))) if len(members) > 1 else float("nan")
        layers = sorted({int(member) // heads for member in members})
        named = heads_label(divmod(int(member), heads) for member in members[:_NAMED])
        more = f"; {len(members) - _NAMED} more" if len(members) > _NAMED else ""
        rows.append(
            {
                "group": str(group),
                "heads": str(len(members)),
                "mean distance": number(mean),
                "stability": number(record.stability[group], 2),
                "layers": ", ".join(map(str, layers)),
                "members": named + more,
            }
        )
    return Table.of(rows, "Groups of heads")


def _pair_table(distance_NN: Array, heads: int) -> Table:
    first_P, second_P = np.triu_indices(len(distance_NN), 1)
    order_P = np.argsort(distance_NN[first_P, second_P], kind="stable")[:_PAIRS]
    rows = [
        [
            head_label(*divmod(int(first_P[pair]), heads)),
            head_label(*divmod(int(second_P[pair]), heads)),
            number(distance_NN[first_P[pair], second_P[pair]], 4),
        ]
        for pair in order_P
    ]
    return Table(["head", "head", "distance in nats"], rows, "The heads most alike")


_UNIT = "Jensen-Shannon divergence (nats)"
_PERMUTATIONS = 2000
# As many as maps in float32 support, in half the size of the record.
_DIGITS = 7


class Clusters(Measure):
    """Jensen-Shannon divergence between the attention of all pairs of heads, and the groups that the heads form.

    The divergence of two heads is that of their rows, averaged over all real tokens of all texts; rows and columns of
    padding are left out. Heads before fine-tuning are in the same space. Maps are kept for one batch only, so memory
    does not depend on the number of texts: 4 bytes for each weight of a batch, twice with a model before fine-tuning.

    Columns:
        ``within_layer``: mean divergence of a head from the other heads of its layer, in nats; 0..ln 2. Not defined for
            layers of one head.
        ``between_layers``: the same from the heads of other layers.

    Args:
        smoothing: Share of uniform attention to mix into each row; the paper's code uses 0.001.
        groups: Number of groups; None for the number with the highest silhouette.
        replicates: Bootstrap samples of the texts from which the stability of groups is computed.
        max_examples: A random sample of this many examples; None for all. The paper takes about 1000 texts.
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
        # All texts first, then each bootstrap sample; own heads first, then those before fine-tuning.
        shape = (1 + replicates, 2 * size, 2 * size)
        self.add_state("distance_RNN", torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("rows_R", torch.zeros(1 + replicates, dtype=torch.float64), dist_reduce_fx="sum")
        self._maps: list[tuple[Tensor, Tensor]] = []
        self._divergence = PairwiseDivergence()

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
        distance_NN = self._divergence(map_NM).to(self.distance_RNN.device)
        num_layers, num_heads, _ = self.total_LHC.shape
        size = num_layers * num_heads
        # The divergences of both halves and between them are the same: a quarter of the work.
        if unchanged:
            distance_NN = distance_NN.repeat(2, 2)
        generator = torch.Generator().manual_seed((self.seed << 32) + int(batch.index_B[row]))
        # Poisson weights: the bootstrap of a stream whose length is not known; by index, so that batches do not matter.
        weights = [1.0, *torch.poisson(torch.ones(self.replicates), generator=generator).tolist()]
        self.rows_R += length * torch.tensor(weights).to(self.rows_R)
        for replicate, weight in enumerate(weights):
            if weight:
                self.distance_RNN[replicate].add_(distance_NN, alpha=weight)
        return _layer_means(distance_NN[:size, :size] / length, num_layers, num_heads)

    def distances(self) -> tuple[NDArray[np.float64], bool]:
        """Mean distances ``[1 + R, 2N, 2N]``, own heads first, in all texts and in each sample; whether any head differs
        from itself before fine-tuning."""
        mean_RNN = (self.distance_RNN / self.rows_R.clamp(min=1)[:, None, None]).cpu().numpy()
        size = mean_RNN.shape[1] // 2
        return mean_RNN, bool(mean_RNN[0, :size, size:].diagonal().any())

    def extras(self, grid: HeadGrid, model: nn.Module) -> dict[str, Any]:
        """The record of distances, points and groups, :class:`ClusterRecord`."""
        mean_RNN, moved = self.distances()
        size = mean_RNN.shape[1] // 2
        record = self._record(mean_RNN[:, :size, :size], grid.num_heads)
        if moved:
            points_N2, stress = in_the_plane(mean_RNN[0], self.seed)
            record = replace(
                record,
                distances=_rounded(mean_RNN[0]),
                points_of_both=_rounded(points_N2),
                stress_of_both=stress,
                before=self._record(mean_RNN[:, size:, size:], grid.num_heads),
            )
        return asdict(record)

    def _record(self, mean_RNN: NDArray[np.float64], num_heads: int) -> ClusterRecord:
        """The record of one model from its distances in all texts and in each sample."""
        points_N2, stress = in_the_plane(mean_RNN[0], self.seed)
        group_N = groups_of(mean_RNN[0], self.groups)
        samples = [mean_RNN[r] for r in range(1, len(mean_RNN)) if self.rows_R[r] > 0]
        layer_N = np.arange(len(group_N)) // num_heads
        within, between, p = same_label_is_close(mean_RNN[0], layer_N, _PERMUTATIONS, self.seed)
        return ClusterRecord(
            rows=int(self.rows_R[0]),
            distances=_rounded(mean_RNN[0]),
            points=_rounded(points_N2),
            stress=stress,
            points_of_both=[],
            stress_of_both=0.0,
            groups=group_N.tolist(),
            stability=stability(group_N, samples),
            replicates=len(samples),
            within=within,
            between=between,
            p=p,
        )

    @classmethod
    def describe(cls, view: MeasureView) -> Section | None:
        """Figure 6 of the paper, the groups of heads, and how fine-tuning changed the distances."""
        record = ClusterRecord.read(view.extras)
        if record is None or not view.has("within_layer"):
            return None
        layers, heads = view.value("within_layer").shape
        size = layers * heads
        distance_NN = np.asarray(record.distances)[:size, :size]
        note = f"{record.rows:,} rows of {view.count('between_layers' if layers > 1 else 'within_layer'):,} texts"
        plane = head_space(
            record.points,
            heads,
            record.groups,
            title="Heads near each other attend alike",
            note=f"Jensen-Shannon divergence by multidimensional scaling, stress {number(record.stress, 2)}; {note}; "
            "layers and heads count from 0",
        )
        figures = [
            FigureBlock(
                view.name,
                plane,
                "Figure 6 of Clark et al.: heads by layer and by group.",
                "Heads as points in the plane.",
            )
        ]
        findings, moved = [*_layers(record), _groups(record)], None
        if record.points_of_both:
            sentence, moved = _moved(np.asarray(record.distances), heads)
            findings.append(sentence)
            both = np.asarray(record.points_of_both)
            figure = moved_heads(
                both[size:],
                both[:size],
                heads,
                title="Heads before and after fine-tuning, in one space",
                note=f"multidimensional scaling of both models' heads, stress {number(record.stress_of_both, 2)}; {note}",
            )
            caption = "How far each head moved among the heads of both models; the five that moved farthest are named."
            figures.append(
                FigureBlock(f"{view.name}_moved", figure, caption, "Heads of two models as points in the plane.")
            )
        return Section(
            "Groups of heads",
            findings,
            [
                "The distance of two heads is the Jensen-Shannon divergence of their attention, averaged over all tokens (Clark et "
                "al. 2019, section 6); at most ln 2 = 0.693 nats. Groups are cut from a tree by Ward's linkage. The stability "
                f"of a group is its mean overlap (Jaccard index) with the nearest group in {record.replicates} bootstrap samples "
                f"of the texts; below {_STABLE} a group may be an artefact (Hennig 2007). A plane cannot hold all distances: "
                "a stress of 0.2 or more means that the figure shows them roughly."
            ],
            [_group_table(record, distance_NN, heads), _pair_table(distance_NN, heads)],
            figures,
            head=moved,
        )


def _layer_means(distance_NN: Tensor, num_layers: int, num_heads: int) -> Tensor:
    """Mean distance of each head from the others of its layer and from those of other layers, ``[L, H, 2]``."""
    layer_N = torch.arange(num_layers, device=distance_NN.device).repeat_interleave(num_heads)
    same_NN = layer_N[:, None] == layer_N
    self_NN = torch.eye(len(layer_N), dtype=torch.bool, device=distance_NN.device)
    means = [(distance_NN * mask_NN).sum(-1) / mask_NN.sum(-1) for mask_NN in (same_NN & ~self_NN, ~same_NN)]
    return torch.stack(means, -1).reshape(num_layers, num_heads, 2)


def _rounded(values: NDArray[np.float64]) -> list[list[float]]:
    rows: list[list[float]] = np.round(values, _DIGITS).tolist()
    return rows
