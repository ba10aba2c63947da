"""Product of the gradient norms of a head's query, key and value weights (Guo and Sheridan 2026, Greedy-Gnorm)."""

import torch
from torch import Tensor

from bertsecrets.grid import Column, HeadGrid, Shown
from bertsecrets.measures.base import Measure, Need, Passed

_UNIT = "mean norm of ∂loss/∂weights"
_MAPS = ("query", "key", "value")


class WeightGradient(Measure):
    """Gradient norms of the loss with respect to a head's query, key and value weights.

    Columns:
        ``query``, ``key``, ``value``: mean over examples of the Frobenius norm of the gradient of the example's loss
            with respect to the head's weights in that map, without biases.
        ``product``: the product of the three means, the score of Greedy-Gnorm (abstract). The authors' code uses the
            norm of the logits as the loss, and slices the weights by the encoder's inputs instead of the heads. Its
            standard error is an upper bound: relative errors are added.

    To remove heads one by one in its order, set ``prune.scores=[weight_gradient/product] prune.iterative=true``.
    """

    name = "weight_gradient"
    title = "Gradient norms of heads' weights"
    shown = Shown(
        about="The norm of the loss's gradient with respect to a head's query, key and value weights, and the product "
        "of the three (Guo and Sheridan 2026). Layers differ in scale. An important head can have small "
        "gradients if the loss is flat.",
        reads_task=True,
    )
    columns = (
        *(Column(name, f"{name} weights", _UNIT) for name in _MAPS),
        Column("product", "product of the three", "product of norms", keep="high"),
    )
    needs = frozenset({Need.WEIGHTS})
    tracked = ("product",)

    def values(self, passed: Passed) -> Tensor:
        # The product is of means, so it is computed in ``compute``.
        return torch.cat((passed.norms_BH3, torch.full_like(passed.norms_BH3[..., :1], torch.nan)), -1)

    def compute(self) -> HeadGrid:
        """Mean, standard error and count, reduced over all processes."""
        grid = super().compute()
        value_LHC, stderr_LHC, count_LHC = grid.value_LHC, grid.stderr_LHC, grid.count_LHC
        value_LHC[..., -1] = value_LHC[..., :-1].prod(-1)
        # For a head without gradients, the error is zero, not undefined.
        others_LHC = torch.stack([value_LHC[..., [b for b in range(3) if b != a]].prod(-1) for a in range(3)], -1)
        stderr_LHC[..., -1] = (stderr_LHC[..., :-1] * others_LHC).sum(-1)
        count_LHC[..., -1] = count_LHC[..., 0]
        return HeadGrid(self.name, grid.described, value_LHC, stderr_LHC, count_LHC)
