"""First-order estimate of the effect of disabling heads (attribution patching, Nanda 2023; Syed et al. 2023)."""

import torch
from torch import Tensor

from bertsecrets.attention.gradients import replacement_slopes
from bertsecrets.attention.hooks import mean_over_real
from bertsecrets.grid import Column, Shown
from bertsecrets.measures.base import Count, MaxExamples, Measure, Need, Passed
from bertsecrets.settings import typed

_UNIT = "estimated change of the loss"


class FirstOrder(Measure):
    """First-order estimate of the change of the loss when a head's output is replaced.

    With o the head's output at a token, r its replacement in a mode of disabling, and g the gradient of the example's
    loss with respect to o: the sum over tokens of g . (r - o). This is the derivative at t = 0 of the loss with the
    head's output at o + t (r - o); disabling is t = 1. Positive: the loss rises, so the head is useful.

    Columns:
        ``uniform``, ``zero``, ``mean``: for the mode of disabling with that name. The mean is over the training set.

    Args:
        reference_examples: Training examples for the means of ``mean``.

    Raises:
        UserError: If ``reference_examples`` is below 1.
    """

    name = "first_order"
    title = "First-order effect of disabling"
    shown = Shown(
        about="The slope of the loss in the direction of the replacement, at the intact model: one forward and one "
        "backward pass estimate the effect of disabling every head. The estimate is unreliable if the loss is "
        "not linear along the way: if the model is so confident that the loss is flat, for heads with backups, "
        "and before a layer norm that rescales the rest. analysis=disable is exact.",
        reads_task=True,
    )
    presenter = "bertsecrets.present.importance:FIRST_ORDER"
    needs = frozenset({Need.OUTPUTS})
    columns = tuple(Column(mode, f"mode {mode}", _UNIT, keep="high") for mode in ("uniform", "zero", "mean"))

    @typed
    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        reference_examples: Count = 512,
        max_examples: MaxExamples = None,
    ) -> None:
        super().__init__(num_layers, num_heads, max_examples)
        self.reference_examples = reference_examples

    def values(self, passed: Passed) -> Tensor:
        uniform_B1Hd = mean_over_real(passed.value_BHKd.transpose(1, 2), passed.batch.attention_mask_BS)[:, None]
        # NaN means no example: no means over a reference set are available during training.
        mean_B1Hd = torch.full_like(uniform_B1Hd, torch.nan) if passed.mean_Hd is None else passed.mean_Hd[None, None]
        replacements = (uniform_B1Hd, None, mean_B1Hd)
        effects = [replacement_slopes(passed.output_BSHd, passed.slope_BSHd, new_BSHd) for new_BSHd in replacements]
        return torch.stack(effects, -1)
