"""Gradient importance of heads: the derivative of the loss with respect to their gates (Michel et al. 2019; methods
M1).
"""

import torch
from torch import Tensor

from bertsecrets.data.batch import Batch
from bertsecrets.data.module import sample_positions
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.grid import Column, HeadGrid, Shown
from bertsecrets.measures.base import Count, MaxExamples, Measure, Need, Passed
from bertsecrets.settings import typed

TOKEN, EXAMPLE, BATCH, SIGNED = "token", "example", "batch", "signed"
NORMALISED = "_normalised"

_UNIT = "mean |∂loss/∂gate|"
_SHARE = "share of the layer's l2 norm"
_LABELS = {TOKEN: "per token", EXAMPLE: "per example", BATCH: "per batch"}


class HeadGradient(Measure):
    """Derivative of the loss with respect to a head's gate, which multiplies its output, at gate 1.

    With o the head's output at a token and g the gradient of the example's loss with respect to it, the gate's
    derivative is the sum over tokens of g . o.

    Columns:
        ``token``: mean over examples of the sum over tokens of |g . o|, as in the authors' code (which also divides all
            layers except the last by the number of tokens).
        ``example``: mean over examples of |sum over tokens of g . o|, the formula of the paper.
        ``batch``: mean over batches, weighted by their size, of |mean over examples of the sum of g . o|, as with the
            gradient of a batch's mean loss. Batches are ``batch_size`` consecutive examples of the evaluation set or
            its sample, independent of the number of processes. The standard error is over batches.
        ``token_normalised``, ``example_normalised``, ``batch_normalised``: the same, divided by the l2 norm over the
            heads of the layer.
        ``signed``: mean over examples of the sum of g . o. Positive: opening the gate further raises the loss.

    By the triangle inequality token >= example >= batch >= |signed|.

    Args:
        batch_size: Examples in a batch of the column ``batch``.

    Raises:
        UserError: If ``batch_size`` is below 1.
    """

    name = "head_gradient"
    title = "Gradient importance of heads"
    shown = Shown(
        about="The derivative of the loss with respect to a factor of the head's output, at factor 1 (Michel et al. "
        "2019), in absolute value per token (as in the paper's code), per example (as in the paper) or per batch "
        "before averaging. Layers differ in scale; the normalised columns compare heads within a layer only. "
        "Their standard errors treat the layer's norm as known.",
        reads_task=True,
    )
    columns = (
        *(Column(name, label, _UNIT, keep="high") for name, label in _LABELS.items()),
        *(
            Column(name + NORMALISED, f"{label}, normalised by layer", _SHARE, (0.0, 1.0), keep="high")
            for name, label in _LABELS.items()
        ),
        Column(SIGNED, "mean derivative", "mean ∂loss/∂gate"),
    )
    needs = frozenset({Need.OUTPUTS})
    tracked = (EXAMPLE,)

    sums_LHG: Tensor
    members_G: Tensor

    @typed
    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        batch_size: Count = 32,
        max_examples: MaxExamples = None,
    ) -> None:
        super().__init__(num_layers, num_heads, max_examples)
        self.batch_size = batch_size
        self._rank_of: dict[int, int] | None = None

    def prepare(self, split: EncodedSplit) -> None:
        positions = sample_positions(len(split), self.feed.max_examples, self.feed.seed)
        # Examples outside the sample are numbered after it, as a caller may feed the whole split.
        order = dict.fromkeys([*positions, *range(len(split))])
        self._rank_of = {split.examples[position].index: rank for rank, position in enumerate(order)}
        layers, heads, _ = self.total_LHC.shape
        # One column per batch, so that processes that share a batch add up.
        groups = -(-len(split) // self.batch_size)
        zeros_LHG = torch.zeros(layers, heads, groups, dtype=torch.float64, device=self.total_LHC.device)
        self.add_state("sums_LHG", zeros_LHG, dist_reduce_fx="sum")
        self.add_state("members_G", zeros_LHG[0, 0].clone(), dist_reduce_fx="sum")

    def values(self, passed: Passed) -> Tensor:
        slope_RSH = (passed.output_BSHd * passed.slope_BSHd).sum(-1)
        signed_BH = passed.batch.summed(slope_RSH.sum(1))
        # Numbers of several examples or a whole layer are derived from the sums in ``compute``.
        later_BH = torch.full_like(signed_BH, torch.nan)
        numbers = {TOKEN: passed.batch.summed(slope_RSH.abs().sum(1)), EXAMPLE: signed_BH.abs(), SIGNED: signed_BH}
        return torch.stack([numbers.get(column.name, later_BH) for column in self.columns], -1)

    def add(self, layer: int, batch: Batch, values_BHC: Tensor | None) -> None:
        super().add(layer, batch, values_BHC)
        if self._rank_of is None:
            raise ValueError("batches are formed by the examples' ranks: call prepare(split) before the first batch")
        assert values_BHC is not None
        device = self.sums_LHG.device
        group_numbers = [self._rank_of[index] // self.batch_size for index in batch.index_B.tolist()]
        group_B = torch.tensor(group_numbers, device=device)
        signed_HB = values_BHC[..., -1].to(device).to(torch.float64).T
        self.sums_LHG[layer].index_add_(1, group_B, signed_HB)
        # Once per example, not once per layer.
        if layer == 0:
            self.members_G.index_add_(0, group_B, torch.ones_like(group_B, dtype=torch.float64))

    def compute(self) -> HeadGrid:
        """Mean, standard error and count, reduced over all processes."""
        grid = super().compute()
        value_LHC, stderr_LHC, count_LHC = grid.value_LHC, grid.stderr_LHC, grid.count_LHC
        column_of = {name: column for column, name in enumerate(grid.columns)}
        if self._rank_of is not None:
            members_G = self.members_G.cpu()
            used_G = members_G > 0
            # The last batch may be smaller than the others.
            weight_G = members_G[used_G] / members_G.sum()
            mean_LHG = self.sums_LHG.cpu()[..., used_G].abs() / members_G[used_G]
            batch_LH = (mean_LHG * weight_G).sum(-1)
            groups = len(weight_G)
            spread_LH = (weight_G * (mean_LHG - batch_LH[..., None])).square().sum(-1)
            value_LHC[..., column_of[BATCH]] = batch_LH
            stderr_LHC[..., column_of[BATCH]] = (
                (spread_LH * groups / (groups - 1)).sqrt() if groups > 1 else torch.full_like(spread_LH, torch.nan)
            )
            count_LHC[..., column_of[BATCH]] = count_LHC[..., column_of[SIGNED]]
        for name in _LABELS:
            norm_L1 = value_LHC[..., column_of[name]].square().sum(1, keepdim=True).sqrt()
            # A layer without any gradient does not rank its heads.
            norm_L1 = norm_L1.masked_fill(norm_L1 == 0, torch.nan)
            value_LHC[..., column_of[name + NORMALISED]] = value_LHC[..., column_of[name]] / norm_L1
            stderr_LHC[..., column_of[name + NORMALISED]] = stderr_LHC[..., column_of[name]] / norm_L1
            count_LHC[..., column_of[name + NORMALISED]] = count_LHC[..., column_of[name]]
        return HeadGrid(self.name, grid.described, value_LHC, stderr_LHC, count_LHC)
