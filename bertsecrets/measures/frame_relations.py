"""Relation-specific heads: attention between a frame's target and its elements (Kovaleva et al. 2019, section 4.2)."""

from typing import get_args

import torch
from torch import Tensor

from bertsecrets.data.batch import Batch
from bertsecrets.errors import UserError, choices
from bertsecrets.grid import HeadGrid
from bertsecrets.measures.base import Feed, Measure, Need
from bertsecrets.measures.links import Direction, Link, Matching, Pairs, link_weights, links_of
from bertsecrets.statistics.corrections import holm

NAME = "frame_relations"
TESTED = ("p_value", "p_holm")
_TOLERANCE = 1e-9


class FrameRelations(Measure):
    """Attention along annotated frame relations, and whether position alone explains it.

    Columns, averaged over examples (an example's number is the mean over its frames):
        ``weight``: the largest attention weight among the token pairs of the link (METHODS K3).
        ``position``: the same where the link does not stand: its pairs, moved together to every other place of the
            sentence. All signed distances stay, so that a head which looks a fixed number of tokens ahead or back gives
            these places what it gives the link.
        ``excess``: ``weight`` minus ``position``.
        ``uniform``: what uniform attention gives, 1 / number of tokens.
        ``p_value``: of the hypothesis that a link's own place is no better than its other places: the share of
            ``permutations`` drawings of a place for every link, its own among them, whose mean is at least ``weight``
            (one-sided, the observed one counted in).
        ``p_holm``: corrected over all heads of the model (Holm 1979).

    Links that fit nowhere else count in ``weight`` alone; examples without a link count nowhere.

    Args:
        num_layers, num_heads: Size of the grid.
        pairs, direction, matching: See :func:`bertsecrets.measures.links.links_of`.
        permutations: Drawings of the test, the same for every head; the smallest p-value is 1 / (permutations + 1).
        max_examples: A random sample of this many examples; None for all.
        seed: Of the drawings; each example draws with its own index, so that batches and processes change nothing.

    Raises:
        UserError: If a choice does not exist, or ``permutations`` is no positive number.
    """

    name = NAME
    columns = ("weight", "position", "excess", "uniform")
    needs = frozenset({Need.ANNOTATION})

    drawn_LHR: Tensor

    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        pairs: Pairs = "all",
        direction: Direction = "element_to_target",
        matching: Matching = "offsets",
        permutations: int = 10_000,
        max_examples: int | None = None,
        seed: int = 0,
    ) -> None:
        for key, value, valid in (
            ("pairs", pairs, get_args(Pairs)),
            ("direction", direction, get_args(Direction)),
            ("matching", matching, get_args(Matching)),
        ):
            if value not in valid:
                raise UserError(f"Unknown {key} '{value}' of the frame_relations measure; {choices(str(value), valid)}.")
        if type(permutations) is not int or permutations < 1:
            raise UserError(f"permutations of the frame_relations measure is {permutations!r}; expected a number from 1.")
        super().__init__(num_layers, num_heads)
        self.pairs, self.direction, self.matching = pairs, direction, matching
        self.permutations = permutations
        self.seed = seed
        self.feed = Feed(max_examples=max_examples)
        shape = (num_layers, num_heads, permutations)
        self.add_state("drawn_LHR", torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")
        self._linked: tuple[Batch, list[Link], Tensor] | None = None

    def per_example(self, attention_BHQK: Tensor, batch: Batch, reference_BHQK: Tensor | None) -> Tensor:
        links, _ = self._links(batch)
        return self._numbers(links, self._weights(attention_BHQK, links), batch)

    def update(self, layer: int, attention_BHQK: Tensor, batch: Batch, reference_BHQK: Tensor | None = None) -> None:
        """Adds one layer's maps of one batch, and the drawings of its links."""
        super().update(layer, attention_BHQK, batch, reference_BHQK)
        links, place_NR = self._links(batch)
        if links:
            weight_NHP = self._weights(attention_BHQK, links)
            place_N1R = place_NR.to(weight_NHP.device)[:, None].expand(-1, weight_NHP.shape[1], -1)
            share_N = self._share(links).to(weight_NHP)
            drawn_HR = torch.einsum("n,nhr->hr", share_N, weight_NHP.gather(2, place_N1R))
            self.drawn_LHR[layer] += drawn_HR.to(self.drawn_LHR.device)

    def compute(self) -> HeadGrid:
        """Means, standard errors and counts, reduced over all processes, with the test's p-values as further columns."""
        grid = super().compute()
        count_LH = grid.count_LHC[:, :, 0]
        total_LH1 = self.total_LHC[:, :, :1].cpu()
        reached_LH = (self.drawn_LHR.cpu() >= total_LH1 - _TOLERANCE * count_LH[:, :, None]).sum(-1)
        p_LH = (1 + reached_LH.double()) / (1 + self.permutations)
        corrected_LH = torch.from_numpy(holm(p_LH.flatten().numpy())).reshape(p_LH.shape)
        p_LHC = torch.stack((p_LH, corrected_LH), -1).masked_fill((count_LH == 0)[:, :, None], torch.nan)
        return HeadGrid(
            self.name,
            (*self.columns, *TESTED),
            torch.cat((grid.value_LHC, p_LHC), -1),
            torch.cat((grid.stderr_LHC, torch.full_like(p_LHC, torch.nan)), -1),
            torch.cat((grid.count_LHC, count_LH[:, :, None].expand(-1, -1, len(TESTED))), -1),
        )

    def reset(self) -> None:
        """Back to no examples."""
        super().reset()
        self._linked = None

    def _links(self, batch: Batch) -> tuple[list[Link], Tensor]:
        """The links of a batch and their drawn places ``[N, R]``; the same for every layer."""
        if self._linked is None or self._linked[0] is not batch:
            links = links_of(batch, self.pairs, self.direction, self.matching)
            self._linked = batch, links, self._drawn(links, batch)
        return self._linked[1], self._linked[2]

    def _drawn(self, links: list[Link], batch: Batch) -> Tensor:
        place_NR = torch.zeros((len(links), self.permutations), dtype=torch.long)
        generators: dict[int, torch.Generator] = {}
        for number, link in enumerate(links):
            index = int(batch.index_B[link.row])
            if link.row not in generators:
                generators[link.row] = torch.Generator().manual_seed((self.seed << 32) + index)
            place_NR[number] = torch.randint(len(link.shifts), (self.permutations,), generator=generators[link.row])
        return place_NR

    @staticmethod
    def _share(links: list[Link]) -> Tensor:
        """What each link counts in its example's mean, ``[N]``."""
        rows = [link.row for link in links]
        return torch.tensor([1 / rows.count(row) for row in rows], dtype=torch.float64)

    @staticmethod
    def _weights(attention_BHQK: Tensor, links: list[Link]) -> Tensor:
        # MPS has no float64; elsewhere sums of thousands of drawings should not depend on their order.
        wide = torch.float32 if attention_BHQK.device.type == "mps" else torch.float64
        return link_weights(attention_BHQK, links).to(wide) if links else attention_BHQK.new_empty(0)

    def _numbers(self, links: list[Link], weight_NHP: Tensor, batch: Batch) -> Tensor:
        """The columns ``[B, H, C]``; NaN for examples without a link."""
        heads = self.total_LHC.shape[1]
        device = batch.input_ids_BS.device
        if not links:
            return torch.full((batch.size, heads, len(self.columns)), torch.nan, device=device)
        own_N = torch.tensor([-link.shifts.start for link in links], device=device)
        weight_NH = weight_NHP.take_along_dim(own_N[:, None, None], 2)[..., 0]
        others_N = torch.tensor([len(link.shifts) - 1 for link in links], device=device)
        # 0 / 0: a link that fits nowhere else has no other place to compare with.
        position_NH = (weight_NHP.nansum(-1) - weight_NH) / others_N[:, None].to(weight_NH)
        row_N = torch.tensor([link.row for link in links], device=device)
        uniform_NH = (1 / batch.lengths_B.to(weight_NH))[row_N, None].expand_as(weight_NH)
        position_NH = position_NH.masked_fill((others_N == 0)[:, None], torch.nan)
        number_NHC = torch.stack((weight_NH, position_NH, weight_NH - position_NH, uniform_NH), -1)
        known_NHC = number_NHC.isnan().logical_not()
        shape = (batch.size, heads, len(self.columns))
        total_BHC = number_NHC.new_zeros(shape).index_add_(0, row_N, number_NHC.nan_to_num(0.0))
        count_BHC = number_NHC.new_zeros(shape).index_add_(0, row_N, known_NHC.to(number_NHC))
        return total_BHC / count_BHC
