"""Relation-specific heads: attention between a frame's target and its elements (Kovaleva et al. 2019, section 4.2)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

import torch
from pytorch_lightning.utilities import rank_zero_warn
from torch import Tensor

from bertsecrets.data.batch import Batch
from bertsecrets.data.example import Matching
from bertsecrets.errors import UserError, choices
from bertsecrets.grid import HeadGrid
from bertsecrets.measures.base import Feed, Measure, Need
from bertsecrets.measures.drawings import drawings
from bertsecrets.measures.links import Direction, Link, Moved, Pairs, Places, links_of
from bertsecrets.statistics.corrections import holm

NAME = "frame_relations"
BASELINES: dict[str, Moved] = {"position": "together", "received": "attending"}
"""What a head's weight may be due to, and what is moved to find out."""

LEVEL = 0.05
"""Of the tests, after Holm's correction."""

_LEAST_DRAWINGS, _DRAWINGS_A_HEAD = 5_000, 40
_TOLERANCE = 1e-9


@dataclass(frozen=True)
class _Links:
    """What is known of a batch before its first map: its links, and their places by baseline."""

    batch: Batch
    links: list[Link]
    places: dict[str, Places]

    def weights(self, attention_BHQK: Tensor) -> dict[str, Tensor]:
        """The weight of every place, ``[M, H]`` float64, by baseline."""
        return {name: places.weights(attention_BHQK) for name, places in self.places.items()}

    def per_example(self, weights: Mapping[str, Tensor]) -> Tensor:
        """The columns for each example from the weights of all places, ``[B, H, C]``."""
        elsewhere = [places.mean_elsewhere(weights[name]) for name, places in self.places.items()]
        # A link's own place is the same whatever is moved.
        name, places = next(iter(self.places.items()))
        weight_NH = weights[name][places.first_N]
        length_N1 = self.batch.lengths_B.to(weight_NH.device)[places.row_N, None]
        uniform_NH = (1 / length_N1.double()).expand_as(weight_NH)
        over = [weight_NH - mean_NH for mean_NH in elsewhere]
        number_NHC = torch.stack((weight_NH, *elsewhere, *over, uniform_NH), -1)
        total_BHC = number_NHC.new_zeros((self.batch.size, *number_NHC.shape[1:]))
        count_BHC = total_BHC.index_add(0, places.row_N, (~number_NHC.isnan()).to(number_NHC))
        # 0 / 0: examples without a link do not count.
        return total_BHC.index_add(0, places.row_N, number_NHC.nan_to_num(0.0)) / count_BHC


class FrameRelations(Measure):
    """Attention along annotated frame relations, and whether position or the attended word alone explains it.

    Columns, averaged over examples (an example's number is the mean over its frames):
        ``weight``: the largest attention weight among the token pairs of the link (METHODS K3).
        ``position``: the same in other places of the sentence: the pairs moved together, so that all signed distances
            stay. A head that looks a fixed number of tokens ahead or back gives these places what it gives the link.
        ``received``: the same from other places of the sentence: the attending tokens moved, the attended ones kept. A
            head that attends to such words from everywhere gives these what it gives the link.
        ``over_position``, ``over_received``: ``weight`` minus each.
        ``uniform``: what uniform attention gives, 1 / number of tokens.
        ``p_position``, ``p_received``: of the hypothesis that a link's own place is no better than the others: the share
            of ``permutations`` drawings of a place for every link, its own among them, whose mean is at least
            ``weight`` (one-sided, the observed mean counted in).
        ``p_position_holm``, ``p_received_holm``: corrected over all heads of the model (Holm 1979).

    Links that fit nowhere else count in ``weight`` and ``uniform`` alone; examples without a link count nowhere.

    Args:
        num_layers, num_heads: Size of the grid.
        pairs, direction, matching: See :func:`bertsecrets.measures.links.links_of`.
        permutations: Drawings of each test, the same for every head; the smallest p-value is 1 / (permutations + 1), before
            Holm's correction multiplies it by the number of heads. None for 40 a head, so that a head can pass, and at
            least 5,000; fewer than can make any head significant are told in a warning.
        max_examples: A random sample of this many examples; None for all.
        seed: Of the drawings; each example draws with its own index, so that batches and processes change nothing.

    Raises:
        UserError: If a choice does not exist, or ``permutations`` is no positive number.
    """

    name = NAME
    columns = ("weight", "position", "received", "over_position", "over_received", "uniform")
    needs = frozenset({Need.ANNOTATION})

    drawn_LTRH: Tensor

    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        pairs: Pairs = "all",
        direction: Direction = "element_to_target",
        matching: Matching = "offsets",
        permutations: int | None = None,
        max_examples: int | None = None,
        seed: int = 0,
    ) -> None:
        for key, value, valid in (
            ("pairs", pairs, get_args(Pairs)),
            ("direction", direction, get_args(Direction)),
            ("matching", matching, get_args(Matching)),
        ):
            if value not in valid:
                raise UserError(
                    f"Unknown {key} '{value}' of the frame_relations measure; {choices(str(value), valid)}."
                )
        heads = num_layers * num_heads
        permutations = max(_LEAST_DRAWINGS, _DRAWINGS_A_HEAD * heads) if permutations is None else permutations
        if type(permutations) is not int or permutations < 1:
            raise UserError(
                f"permutations of the frame_relations measure is {permutations!r}; expected a number from 1."
            )
        if heads > LEVEL * (permutations + 1):
            rank_zero_warn(
                f"{permutations} permutations of the frame_relations measure cannot make any of {heads} heads significant at "
                f"{LEVEL:g} after Holm's correction; leave them to the default."
            )
        super().__init__(num_layers, num_heads)
        self.pairs, self.direction, self.matching = pairs, direction, matching
        self.permutations = permutations
        self.seed = seed
        self.feed = Feed(max_examples=max_examples)
        shape = (num_layers, len(BASELINES), permutations, num_heads)
        self.add_state("drawn_LTRH", torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")
        # The same for every layer of a batch.
        self._found: _Links | None = None
        self._drawn: tuple[Batch, list[Tensor]] | None = None

    def per_example(self, attention_BHQK: Tensor, batch: Batch, reference_BHQK: Tensor | None) -> Tensor:
        found = self._find(batch)
        if not found.links:
            return attention_BHQK.new_full((batch.size, attention_BHQK.shape[1], len(self.columns)), torch.nan)
        return found.per_example(found.weights(attention_BHQK))

    def update(self, layer: int, attention_BHQK: Tensor, batch: Batch, reference_BHQK: Tensor | None = None) -> None:
        """Adds one layer's maps of one batch, and the drawings of its links."""
        found = self._find(batch)
        if not found.links:
            return
        weights = found.weights(attention_BHQK)
        self._add(layer, found.per_example(weights))
        for test, (drawn_RM, weight_MH) in enumerate(zip(self._draw(found), weights.values(), strict=True)):
            # A sparse product for all drawings: many times faster than looking each of them up.
            self.drawn_LTRH[layer, test].addmm_(drawn_RM, weight_MH)

    def compute(self) -> HeadGrid:
        """Means, standard errors and counts, reduced over all processes, with the tests' p-values as further columns."""
        grid = super().compute()
        count_LH = grid.count_LHC[:, :, 0]
        observed_LH = self.total_LHC[:, :, 0].cpu() - _TOLERANCE * count_LH
        reached_LTH = (self.drawn_LTRH.cpu() >= observed_LH[:, None, None]).sum(2)
        p_LTH = (1 + reached_LTH.double()) / (1 + self.permutations)
        columns, values = [], []
        for test, name in enumerate(BASELINES):
            p_LH = p_LTH[:, test]
            columns += [f"p_{name}", f"p_{name}_holm"]
            values += [p_LH, torch.from_numpy(holm(p_LH.flatten().numpy())).reshape(p_LH.shape)]
        p_LHC = torch.stack(values, -1).masked_fill((count_LH == 0)[:, :, None], torch.nan)
        return HeadGrid(
            self.name,
            (*self.columns, *columns),
            torch.cat((grid.value_LHC, p_LHC), -1),
            torch.cat((grid.stderr_LHC, torch.full_like(p_LHC, torch.nan)), -1),
            torch.cat((grid.count_LHC, count_LH[:, :, None].expand_as(p_LHC)), -1),
        )

    def reset(self) -> None:
        """Back to no examples."""
        super().reset()
        self._found = self._drawn = None

    def _find(self, batch: Batch) -> _Links:
        if self._found is None or self._found.batch is not batch:
            links = links_of(batch, self.pairs, self.direction, self.matching)
            # Where the state is: MPS has no float64, and sums of thousands of drawings should not depend on their order.
            device = self.total_LHC.device
            places = {name: Places.of(links, moved, device) for name, moved in BASELINES.items()} if links else {}
            self._found = _Links(batch, links, places)
        return self._found

    def _draw(self, found: _Links) -> list[Tensor]:
        if self._drawn is None or self._drawn[0] is not found.batch:
            self._drawn = (
                found.batch,
                [
                    drawings(found.links, places, found.batch.index_B, self.permutations, self.seed)
                    for places in found.places.values()
                ],
            )
        return self._drawn[1]
