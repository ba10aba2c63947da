"""Which heads do not differ significantly from the first: paired differences between heads over examples."""

import torch
from scipy import stats
from torch import Tensor

from bertsecrets.statistics.corrections import holm


def differs_from_first(total_N: Tensor, products_NN: Tensor, count: int) -> Tensor:
    """P-values for each head's mean being equal to the first head's, paired over examples, float64 ``[N]``.

    Two-sided paired t tests of the head with the highest mean against every other, adjusted by Holm's method
    over the others. 1 for the first head itself; NaN with fewer than two examples.

    Args:
        total_N: Sum of each head's numbers over the examples.
        products_NN: Sum of the products of two heads' numbers over the examples.
        count: Number of examples.
    """
    p_N = torch.full_like(total_N, torch.nan)
    if count < 2 or not len(total_N):
        return p_N
    first = int(total_N.argmax())
    difference_N = (total_N - total_N[first]) / count
    # The squared difference comes from sums of products, so no numbers of single examples are kept.
    squares_N = products_NN.diagonal() + products_NN[first, first] - 2 * products_NN[first]
    variance_N = (squares_N / count - difference_N.square()).clamp(min=0) * count / (count - 1)
    # Absorb rounding of sums of squares: two heads with the same numbers do not differ.
    rounding = 1e-14 * products_NN.diagonal().abs().max().clamp(min=1) / count
    variance_N = torch.where(variance_N <= rounding, 0.0, variance_N)
    t_N = difference_N.abs() / (variance_N / count).sqrt()
    t_N = torch.where(difference_N.square() <= rounding, 0.0, t_N)
    others = [index for index in range(len(total_N)) if index != first]
    p_N[first] = 1.0
    if others:
        raw = 2 * stats.t.sf(t_N[others].numpy(), count - 1)
        p_N[others] = torch.from_numpy(holm(raw))
    return p_N
