"""First-order estimate of the effect of disabling heads (attribution patching, Nanda 2023; Syed et al. 2023)."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from bertsecrets.attention.head_outputs import mean_over_real, replacement_slopes
from bertsecrets.grid import Column, Shown
from bertsecrets.measures.base import Count, MaxExamples, Measure, Need, Passed
from bertsecrets.present.grid import grid_section, highest
from bertsecrets.present.ranking import like_the_extreme, picked
from bertsecrets.present.report.content import Section
from bertsecrets.results.formatting import head_label
from bertsecrets.results.views import LEVEL, MeasureView
from bertsecrets.settings import typed

_UNIT = "estimated change of the loss"


class FirstOrder(Measure):
    """The change of the loss if a head were replaced, by the slope of the loss at the whole model.

    With o the head's output at a token, r what a mode of disabling puts in its place and g the gradient of the example's loss
    with respect to o: the sum over tokens of g . (r - o). It is the derivative at t = 0 of the loss with the head's
    output at o + t (r - o); disabling is t = 1. Positive: the loss rises, the head is of use.

    Columns:
        ``uniform``, ``zero``, ``mean``: for the modes of disabling of that name. The mean is over the training set.

    Args:
        reference_examples: Training examples for the means of ``mean``.

    Raises:
        UserError: If ``reference_examples`` is below 1.
    """

    name = "first_order"
    title = "First-order effect of disabling"
    shown = Shown(
        about="The slope of the loss in the direction of the replacement, at the whole model: one forward and one backward pass "
        "estimate the effect of disabling every head. The estimate misleads where the loss is not straight along the way: "
        "where the model is so sure of its answers that the loss is flat, for heads that others stand in for, and after a "
        "layer norm that rescales what is left. analysis=disable is exact.",
        reads_task=True,
    )
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
        # NaN counts as no example: during training no means over a reference set are at hand.
        mean_B1Hd = torch.full_like(uniform_B1Hd, torch.nan) if passed.mean_Hd is None else passed.mean_Hd[None, None]
        replacements = (uniform_B1Hd, None, mean_B1Hd)
        effects = [replacement_slopes(passed.output_BSHd, passed.slope_BSHd, new_BSHd) for new_BSHd in replacements]
        return torch.stack(effects, -1)

    @classmethod
    def describe(cls, view: MeasureView) -> Section | None:
        """Which heads have estimates significantly above 0 in the run's mode of disabling, and every mode by head."""
        section = grid_section(view)
        mode = _mode(view)
        if section is None or mode is None:
            return section
        sentence, head = _answer(view, mode)
        return replace(section, findings=[sentence], head=head, descriptive=False)


def _mode(view: MeasureView) -> str | None:
    """The run's mode of disabling if the measure has it, else its first mode; None without a number."""
    asked = (view.run.config().get("ablation") or {}).get("mode")
    modes = [column.name for column in view.columns if view.has(column.name)]
    defined = [mode for mode in modes if np.isfinite(view.value(mode)).any()]
    return asked if asked in defined else next(iter(defined), None)


def _answer(view: MeasureView, mode: str) -> tuple[str, tuple[int, int]]:
    """A sentence on the heads whose estimates are significantly above 0, and the first of them."""
    value_LH, stderr_LH, count_LH = view.grid(mode)
    matters_LH = view.beyond({mode: 0.0})[mode]
    matter, heads = int(matters_LH.sum()), int(np.isfinite(value_LH).sum())
    top = highest(np.where(matters_LH, value_LH, np.nan) if matter else value_LH)
    rise = picked(top, value_LH, stderr_LH, count_LH)
    how = f"one-sided t tests over {count_LH.max():,} examples, false discovery rate {LEVEL:.0%}".replace("%", " %")
    above = "first-order estimate significantly above 0"
    if not matter:
        largest = f"the largest, {rise} without {head_label(*top)}, may be chance"
        return (
            f"None of {heads} heads has a {above} in mode {mode} ({how}); "
            f"{largest if value_LH[top] > 0 else 'no estimate is above 0'}."
        ), top
    which = f"has a {above}: {head_label(*top)}," if matter == 1 else f"have a {above}, most of all {head_label(*top)}:"
    alike = like_the_extreme(value_LH, stderr_LH, count_LH) if top == highest(value_LH) else ""
    return (
        f"{matter} of {heads} heads {which} the loss is estimated to rise by {rise} without it in mode {mode} ({how}). {alike}"
    ).strip(), top
