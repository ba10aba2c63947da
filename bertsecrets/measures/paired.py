"""Any measure on two models: the other model's numbers, and the paired differences over examples."""

from copy import deepcopy
from typing import NamedTuple

from bertsecrets.grid import HeadGrid
from bertsecrets.measures.base import Measure, Need, Passed


class PairedGrids(NamedTuple):
    """The grid of the other model, and the grid of the differences: the model minus the other."""

    other: HeadGrid
    difference: HeadGrid


class Paired(Measure):
    """A measure on another model, and the mean difference between the two models, paired by example.

    Both models see the same examples, so the comparison is paired: the standard error is small if the two numbers vary
    together. The other model's grid has all columns of the measure, including tests.

    Args:
        measure: Computes numbers from one model's maps; it must not need a reference itself. If it is fed in the same
            pass, before this one, its numbers are reused.
        other: Name of the other model, e.g. ``initial``.
    """

    def __init__(self, measure: Measure, other: str) -> None:
        if Need.REFERENCE in measure.needs:
            raise ValueError(f"measure '{measure.name}' compares two models itself and cannot be paired")
        self.name, self.title, self.columns = measure.name, measure.title, measure.averaged
        num_layers, num_heads, _ = measure.total_LHC.shape
        super().__init__(num_layers, num_heads)
        # Not registered as a submodule: the partner is moved and reset where it is fed.
        object.__setattr__(self, "partner", measure)
        # A copy has the same settings but separate sums.
        self.measure = deepcopy(measure)
        self.needs = measure.needs | {Need.REFERENCE}
        self.feed = measure.feed
        self.reference = other

    partner: Measure

    def update(self, passed: Passed) -> None:
        """Add one layer's maps of both models."""
        layer, batch = passed.layer, passed.batch
        assert passed.reference_BHQK is not None
        self.measure.update(Passed(layer, batch, passed.reference_BHQK))
        assert self.measure.added is not None
        other_BHC, added = self.measure.added.values_BHC, self.partner.added
        if other_BHC is None:
            return
        if added is not None and added.layer == layer and added.batch is batch and added.values_BHC is not None:
            value_BHC = added.values_BHC
        else:
            value_BHC = self.measure.per_example(passed.attention_BHQK, batch, None)
        self.add(layer, batch, value_BHC - other_BHC)

    def grids(self) -> PairedGrids:
        """The grids of the other model and of the differences, reduced over all processes."""
        return PairedGrids(self.measure.compute(), self.compute())

    def reset(self) -> None:
        """Forget all examples."""
        super().reset()
        self.measure.reset()
