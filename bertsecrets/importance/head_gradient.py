"""Gradient importance of heads: the derivative of the loss with respect to their gates (Michel et al. 2019; methods
M1).
"""

import torch
from torch import Tensor

from bertsecrets.grid import Column, HeadGrid, Shown
from bertsecrets.measures.base import Measure, Need, Passed

TOKEN, EXAMPLE, SIGNED = "token", "example", "signed"
NORMALISED = "_normalised"

_UNIT = "mean |∂loss/∂gate|"
_SHARE = "share of the layer's l2 norm"
_LABELS = {TOKEN: "per token", EXAMPLE: "per example"}


class HeadGradient(Measure):
    """Derivative of the loss with respect to a head's gate, which multiplies its output, at gate 1.

    With o the head's output at a token and g the gradient of the example's loss with respect to it, the gate's
    derivative is the sum over tokens of g . o.

    Columns:
        ``token``: mean over examples of the sum over tokens of |g . o|, as in the authors' code (which also divides all
            layers except the last by the number of tokens).
        ``example``: mean over examples of |sum over tokens of g . o|, the formula of the paper.
        ``token_normalised``, ``example_normalised``: the same, divided by the l2 norm over the heads of the layer.
        ``signed``: mean over examples of the sum of g . o. Positive: opening the gate further raises the loss.

    By the triangle inequality token >= example >= |signed|.
    """

    name = "head_gradient"
    title = "Gradient importance of heads"
    shown = Shown(
        about="The derivative of the loss with respect to a factor of the head's output, at factor 1 (Michel et al. "
        "2019), in absolute value per token (as in the paper's code) or per example (as in the paper) before "
        "averaging. Layers differ in scale; the normalised columns compare heads within a layer only. "
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

    def values(self, passed: Passed) -> Tensor:
        slope_RSH = (passed.output_BSHd * passed.slope_BSHd).sum(-1)
        signed_BH = passed.batch.summed(slope_RSH.sum(1))
        # Numbers of a whole layer are derived from the means in ``compute``.
        later_BH = torch.full_like(signed_BH, torch.nan)
        numbers = {TOKEN: passed.batch.summed(slope_RSH.abs().sum(1)), EXAMPLE: signed_BH.abs(), SIGNED: signed_BH}
        return torch.stack([numbers.get(column.name, later_BH) for column in self.columns], -1)

    def compute(self) -> HeadGrid:
        """Mean, standard error and count, reduced over all processes."""
        grid = super().compute()
        value_LHC, stderr_LHC, count_LHC = grid.value_LHC, grid.stderr_LHC, grid.count_LHC
        column_of = {name: column for column, name in enumerate(grid.columns)}
        for name in _LABELS:
            norm_L1 = value_LHC[..., column_of[name]].square().sum(1, keepdim=True).sqrt()
            # A layer without any gradient does not rank its heads.
            norm_L1 = norm_L1.masked_fill(norm_L1 == 0, torch.nan)
            value_LHC[..., column_of[name + NORMALISED]] = value_LHC[..., column_of[name]] / norm_L1
            stderr_LHC[..., column_of[name + NORMALISED]] = stderr_LHC[..., column_of[name]] / norm_L1
            count_LHC[..., column_of[name + NORMALISED]] = count_LHC[..., column_of[name]]
        return HeadGrid(self.name, grid.described, value_LHC, stderr_LHC, count_LHC)
