"""Numbers of all processes."""

from typing import Literal

import torch
from torch import Tensor
from torchmetrics import Metric


class Reduced(Metric):
    """The sum or the largest of the tensors of all updates and processes, element by element.

    Args:
        start: What it is before the first update.
        by: How tensors are reduced.
    """

    full_state_update = False
    value: Tensor

    def __init__(self, start: Tensor, by: Literal["sum", "max"]) -> None:
        super().__init__()
        self.reduce = torch.add if by == "sum" else torch.maximum
        self.add_state("value", start, dist_reduce_fx=by)

    def update(self, value: Tensor) -> None:
        """Add a tensor."""
        self.value = self.reduce(self.value, value)

    def compute(self) -> Tensor:
        """The reduced tensor."""
        return self.value
