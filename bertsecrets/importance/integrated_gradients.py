"""Integrated gradients over the gates of heads (Sundararajan et al. 2017; Hao et al. 2021)."""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from bertsecrets.grid import Column, HeadGrid, Shown
from bertsecrets.importance.rows import Completeness
from bertsecrets.measures.base import MaxExamples, Measure, Need, Passed
from bertsecrets.settings import typed


class IntegratedGradients(Measure):
    """Each head's share of the reduction in loss by all heads.

    All gates, which multiply the heads' outputs, are opened together from 0 to 1; a head's share is the negated
    integral of the loss's derivative with respect to its gate. The shares sum to the loss with all heads disabled (mode
    ``zero``) minus the loss of the intact model, up to the integration error.

    Columns:
        ``share``: the head's share of the loss; positive: opening it lowers the loss.

    Args:
        steps: Points of the Gauss-Legendre rule, each a forward and a backward pass; the ends need two more passes.

    Raises:
        UserError: If ``steps`` is below 1.
    """

    name = "integrated_gradients"
    title = "Integrated gradients over the gates of heads"
    shown = Shown(
        about="All gates of the heads are opened together from 0 to 1. A head's share is the negated integral of the "
        "loss's derivative with respect to its gate: positive if opening the head lowers the loss. Unlike the "
        "derivative at the intact model, it credits heads with backups; but the half-open models on the way "
        "never occurred in training.",
        reads_task=True,
    )
    presenter = "bertsecrets.present.importance:INTEGRATED_GRADIENTS"
    needs = frozenset({Need.OUTPUTS})
    columns = (Column("share", "share of the loss", "decrease of the loss", keep="high"),)

    losses_2: Tensor
    examples: Tensor

    @typed
    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        steps: Annotated[int, Field(ge=1, le=1000, description="a whole number from 1 to 1000")] = 10,
        max_examples: MaxExamples = None,
    ) -> None:
        super().__init__(num_layers, num_heads, max_examples)
        point_N, weight_N = np.polynomial.legendre.leggauss(steps)
        inner = [(float(point + 1) / 2, float(weight) / 2) for point, weight in zip(point_N, weight_N, strict=True)]
        # The ends have weight 0; the shares should sum to the difference of their losses.
        self.gates = ((0.0, 0.0), *inner, (1.0, 0.0))
        self.add_state("losses_2", torch.zeros(2, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("examples", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def values(self, passed: Passed) -> Tensor:
        return -(passed.output_BSHd * passed.slope_BSHd).sum((1, 3))[..., None]

    def add_losses(self, gate: float, loss_B: Tensor) -> None:
        if gate in (0.0, 1.0):
            self.losses_2[int(gate)] += loss_B.to(self.losses_2.device).to(torch.float64).sum()
            # Both ends contribute the examples.
            self.examples += len(loss_B) / 2

    def findings(self, grid: HeadGrid, model: nn.Module) -> Sequence[Completeness]:
        """The mean losses with all heads disabled and of the intact model, and the sum of the shares."""
        closed, whole = (self.losses_2 / self.examples).tolist()
        return [Completeness(loss_disabled=closed, loss=whole, total=float(grid.column("share").sum()))]
