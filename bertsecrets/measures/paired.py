"""Any measure on two models at once: what the other has, and how they differ on the same examples."""

import torch
from torch import Tensor

from bertsecrets.data.batch import Batch
from bertsecrets.grid import HeadGrid
from bertsecrets.measures.base import Measure, Need


class Paired(Measure):
    """A measure on the model's reference, and the mean of the two models' differences example by example.

    The two see the same examples, so that the standard error of the difference is that of a paired comparison: it is
    small where the two numbers go up and down together. The reference has all that the measure gives, tests as well; the
    grid has the columns of both, and :meth:`apart` takes it apart.

    Args:
        measure: Computes numbers from one model's maps; it must not need a reference itself. It is reset, and what it
            holds afterwards is the reference's.
    """

    def __init__(self, measure: Measure) -> None:
        if Need.REFERENCE in measure.needs:
            raise ValueError(f"measure '{measure.name}' compares two models itself and cannot be paired")
        self.name = measure.name  # type: ignore[misc]
        self.columns = measure.columns
        num_layers, num_heads, _ = measure.total_LHC.shape
        super().__init__(num_layers, num_heads)
        self.measure = measure
        self.needs = measure.needs | {Need.REFERENCE}
        self.feed = measure.feed

    def per_example(self, attention_BHQK: Tensor, batch: Batch, reference_BHQK: Tensor | None) -> Tensor:
        """The model's numbers less the reference's."""
        assert reference_BHQK is not None
        other_BHC = self.measure.per_example(reference_BHQK, batch, None)
        return self.measure.per_example(attention_BHQK, batch, None) - other_BHC

    def update(self, layer: int, attention_BHQK: Tensor, batch: Batch, reference_BHQK: Tensor | None = None) -> None:
        """Adds one layer's maps of both models."""
        assert reference_BHQK is not None
        other_BHC = self._update_other(layer, reference_BHQK, batch)
        # Without anything to add there is no example that counts.
        if other_BHC is not None:
            self._add(layer, self.measure.per_example(attention_BHQK, batch, None) - other_BHC)

    def _update_other(self, layer: int, reference_BHQK: Tensor, batch: Batch) -> Tensor | None:
        """Adds the reference's maps; the numbers that they gave."""
        self.measure.added_BHC = None
        self.measure.update(layer, reference_BHQK, batch)
        return self.measure.added_BHC

    def compute(self) -> HeadGrid:
        """The reference's grid with that of the differences beside it, reduced over all processes."""
        other, difference = self.measure.compute(), super().compute()
        return HeadGrid(
            self.name,
            other.columns + difference.columns,
            torch.cat((other.value_LHC, difference.value_LHC), -1),
            torch.cat((other.stderr_LHC, difference.stderr_LHC), -1),
            torch.cat((other.count_LHC, difference.count_LHC), -1),
        )

    def reset(self) -> None:
        """Back to no examples."""
        super().reset()
        self.measure.reset()

    def apart(self, grid: HeadGrid) -> tuple[HeadGrid, HeadGrid]:
        """The grids of the reference and of the difference from the one computed."""
        width = len(grid.columns) - len(self.columns)
        other, difference = (
            HeadGrid(
                grid.measure,
                grid.columns[cut],
                grid.value_LHC[:, :, cut],
                grid.stderr_LHC[:, :, cut],
                grid.count_LHC[:, :, cut],
            )
            for cut in (slice(width), slice(width, None))
        )
        return other, difference
