"""The two ways in which a linear map can hold the heads, shared by the adapters."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

HeadWeight = tuple[nn.Parameter, tuple[int, ...], int]


def split_heads(projected_BSD: Tensor, num_heads: int) -> Tensor:
    """``[B, S, H * d]`` with the heads side by side, as ``[B, S, H, d]``."""
    heads_BSHd: Tensor = projected_BSD.unflatten(-1, (num_heads, -1))
    return heads_BSHd


def separate_projections(inputs: Sequence[Any], projection: Any, num_heads: int) -> list[HeadWeight]:
    """Head weights of one linear map each for query, key and value, and of the output projection."""
    weights: list[HeadWeight] = [(linear.weight, (num_heads, -1), 0) for linear in inputs]
    return [*weights, (projection.weight, (projection.out_features, num_heads, -1), 1)]
