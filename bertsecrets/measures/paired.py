"""Any measure on two models at once: what each has, and how they differ on the same examples."""

import torch
from torch import Tensor

from bertsecrets.data.batch import Batch
from bertsecrets.grid import HeadGrid
from bertsecrets.measures.base import Measure, Need


class Paired(Measure):
    """A measure on the model and on its reference, and the mean of their differences example by example.

    The two see the same examples, so that the standard error of the difference is that of a paired comparison: it is
    small where the two numbers go up and down together. The grid has the measure's columns three times over;
    :func:`apart` takes it apart.

    Args:
        measure: Computes numbers from one model's maps; it must not need a reference itself.
    """

    def __init__(self, measure: Measure) -> None:
        if Need.REFERENCE in measure.needs:
            raise ValueError(f"measure '{measure.name}' compares two models itself and cannot be paired")
        self.name = measure.name  # type: ignore[misc]
        self.columns = (*measure.columns, *measure.columns, *measure.columns)
        num_layers, num_heads, _ = measure.total_LHC.shape
        super().__init__(num_layers, num_heads)
        self.measure = measure
        self.needs = measure.needs | {Need.REFERENCE}
        self.feed = measure.feed

    def per_example(self, attention_BHQK: Tensor, batch: Batch, reference_BHQK: Tensor | None) -> Tensor:
        assert reference_BHQK is not None
        own_BHC = self.measure.per_example(attention_BHQK, batch, None)
        other_BHC = self.measure.per_example(reference_BHQK, batch, None)
        return torch.cat([own_BHC, other_BHC, own_BHC - other_BHC], dim=-1)

    def reset(self) -> None:
        """Back to no examples."""
        super().reset()
        self.measure.reset()


def apart(grid: HeadGrid) -> tuple[HeadGrid, HeadGrid, HeadGrid]:
    """The grids of the model, of its reference and of their difference from the grid of a :class:`Paired`."""
    width = len(grid.columns) // 3
    parts = []
    for part in range(3):
        cut = slice(part * width, (part + 1) * width)
        parts.append(
            HeadGrid(
                grid.measure,
                grid.columns[cut],
                grid.value_LHC[:, :, cut],
                grid.stderr_LHC[:, :, cut],
                grid.count_LHC[:, :, cut],
            )
        )
    return parts[0], parts[1], parts[2]
