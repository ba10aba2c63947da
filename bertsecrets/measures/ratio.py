"""Means over tokens, words or pairs of all examples, with standard errors over examples."""

from abc import abstractmethod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsecrets.data.batch import Batch
from bertsecrets.grid import HeadGrid
from bertsecrets.measures.base import MaxExamples, Measure
from bertsecrets.statistics.splits import ratios


class RatioMeasure(Measure):
    """A measure whose mean weights tokens, words or pairs equally, not examples.

    ``per_example`` returns each example's own mean and ``weights`` the number of things in it; the grid has their
    weighted mean. Standard errors come from a ratio estimator, which accounts for correlation within an example. Paired
    comparisons with other models weigh examples equally.
    """

    weighted_LHC: Tensor
    weight_LHC: Tensor
    products_LHC: Tensor
    weight_squares_LHC: Tensor
    weighted_squares_LHC: Tensor

    def __init__(self, num_layers: int, num_heads: int, max_examples: MaxExamples = None) -> None:
        super().__init__(num_layers, num_heads, max_examples)
        for name in ("weighted", "weight", "products", "weight_squares", "weighted_squares"):
            self.add_state(f"{name}_LHC", torch.zeros_like(self.total_LHC), dist_reduce_fx="sum")

    @abstractmethod
    def weights(self, batch: Batch) -> Tensor:
        """The number of things in each example's mean, ``[B, C]`` or ``[B, 1]``."""

    def add(self, layer: int, batch: Batch, values_BHC: Tensor | None) -> None:
        super().add(layer, batch, values_BHC)
        if values_BHC is None:
            return
        value_BHC = values_BHC.to(self.total_LHC.device).to(torch.float64)
        # Moved before the conversion: MPS has no float64.
        weight_BHC = self.weights(batch)[:, None].to(value_BHC.device).to(torch.float64) * value_BHC.isfinite()
        weighted_BHC = weight_BHC * value_BHC.nan_to_num()
        self.weighted_LHC[layer] += weighted_BHC.sum(0)
        self.weight_LHC[layer] += weight_BHC.sum(0)
        self.products_LHC[layer] += (weight_BHC * weighted_BHC).sum(0)
        self.weight_squares_LHC[layer] += weight_BHC.square().sum(0)
        self.weighted_squares_LHC[layer] += weighted_BHC.square().sum(0)

    def compute(self) -> HeadGrid:
        """Mean, standard error and number of examples, reduced over all processes."""
        mean_LHC = self.weighted_LHC / self.weight_LHC
        # The spread of each example's sum about the mean times its number of things.
        spread_LHC = (
            self.weighted_squares_LHC - 2 * mean_LHC * self.products_LHC + mean_LHC.square() * self.weight_squares_LHC
            # Rounding may leave a spread of 0 slightly below it.
        ).clamp(min=0)
        scale_LHC = self.count_LHC / (self.count_LHC - 1).clamp(min=1)
        stderr_LHC = (spread_LHC * scale_LHC).sqrt() / self.weight_LHC
        return HeadGrid(
            self.name,
            self.averaged,
            mean_LHC,
            stderr_LHC.masked_fill(self.count_LHC < 2, torch.nan),
            self.count_LHC,
        )


def ratio_grid(
    measure: Measure,
    part_NLHC: Tensor,
    total_NC: NDArray[np.float64],
    counts_N: NDArray[np.bool_] | None = None,
) -> HeadGrid:
    """Shares of the total over N units, such as documents, with standard errors over the units (ratio estimator).

    Args:
        measure: The measure, for its columns.
        part_NLHC: The hits of each head in each unit, of any type.
        total_NC: The size of each unit; the counts of the grid are its sums.
        counts_N: The units of the sample; None for units with a nonzero size in a column.
    """
    shape = part_NLHC.shape[1:]
    # Column by column: the whole state in float64 may be eight times its size.
    columns = [
        ratios(part_NLHC[..., column].cpu().flatten(1).numpy(), total_N, counts_N)
        for column, total_N in enumerate(total_NC.T)
    ]
    share_LHC, stderr_LHC = (
        torch.from_numpy(np.concatenate(rows).T.reshape(shape))
        for rows in ([column.value_SX for column in columns], [column.stderr_SX for column in columns])
    )
    counts_C = torch.from_numpy(total_NC.sum(0).astype(np.int64))
    return HeadGrid(measure.name, measure.columns, share_LHC, stderr_LHC, counts_C.expand(shape))
