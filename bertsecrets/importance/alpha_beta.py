"""The alpha-beta rule of relevance propagation, as in the published code of Voita et al. 2019 (methods V2).

An output z_j = sum_i z_ji passes its relevance down through positive and negative contributions separately: R_i = sum_j
R_j (alpha max(z_ji, 0) / sum_i max(z_ji, 0) + beta min(z_ji, 0) / sum_i min(z_ji, 0)), with alpha = beta = 0.5 and 1e-5
added to the size of either sum. A bias is spread evenly over the inputs. After each step, the relevances of an example
are rescaled to their previous sum of absolute values.

The functions here compute the usual values, but in the backward pass return relevance divided by the input instead of a
gradient: input times gradient is then the relevance, also through views, slices and factors.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

ALPHA = BETA = 0.5
EPSILON = 1e-5

# 8 MB in float32; a whole batch would take tens of gigabytes.
_CELLS = 1 << 21
"""Number of contributions in memory at once."""


def linear(argument: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A linear map, weight ``[outputs, inputs]``; the bias is spread evenly over the inputs."""
    result: Tensor = _Linear.apply(argument, weight.detach(), _detached(bias), None)  # type: ignore[no-untyped-call]
    return result


def layer_norm(
    argument: Tensor, shape: Any, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """A layer normalisation over the last dimension, linear because its standard deviation is held fixed."""
    size = argument.shape[-1]
    centre_DD = torch.eye(size, dtype=argument.dtype, device=argument.device) - 1 / size
    weight_DD = centre_DD if weight is None else weight.detach()[:, None] * centre_DD
    factor = (argument.detach().var(-1, unbiased=False, keepdim=True) + eps).rsqrt()
    result: Tensor = _Linear.apply(argument, weight_DD, _detached(bias), factor)  # type: ignore[no-untyped-call]
    return result


def add(first: Tensor, second: Tensor) -> Tensor:
    """A sum of two tensors of equal shape."""
    result: Tensor = _Sum.apply(first, second)  # type: ignore[no-untyped-call]
    return result


def matmul(first: Tensor, second: Tensor) -> Tensor:
    """A product of matrices; a factor that needs no gradient is a constant."""
    result: Tensor = _Product.apply(first, second)  # type: ignore[no-untyped-call]
    return result


def _detached(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach()


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, argument: Tensor, weight_OI: Tensor, bias_O: Tensor | None, factor: Tensor | None) -> Tensor:
        result = functional.linear(argument, weight_OI)
        result = result if factor is None else result * factor
        result = result if bias_O is None else result + bias_O
        ctx.save_for_backward(argument, weight_OI, bias_O, factor, result)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        argument, weight_OI, bias_O, factor, result = ctx.saved_tensors
        relevance = result * gradients[0]
        argument_TI, relevance_TO, result_TO = (tensor.flatten(0, -2) for tensor in (argument, relevance, result))
        scaled_TI = argument_TI if factor is None else argument_TI * factor.flatten(0, -2)
        spread_O1 = weight_OI.new_zeros(()) if bias_O is None else bias_O[:, None] / argument.shape[-1]
        handed_TI = torch.zeros_like(argument_TI)
        # Tokens without relevance, such as padding, pass none down.
        active_T = relevance_TO.any(-1).nonzero()[:, 0]
        for some_T in active_T.split(max(1, _CELLS // weight_OI.numel())):
            scaled_tI = scaled_TI[some_T]
            positive_tOI = torch.addcmul(spread_O1, weight_OI, scaled_tI[:, None]).clamp_(min=0)
            positive_tO = positive_tOI.sum(-1)
            up_tO, down_tO = _ratios(relevance_TO[some_T], positive_tO, result_TO[some_T] - positive_tO)
            # The negative contributions are all contributions minus the positive ones.
            whole_tI = (down_tO @ weight_OI) * scaled_tI + (down_tO[:, None] @ spread_O1.expand(weight_OI.shape[0], 1))[
                :, 0
            ]
            handed_TI[some_T] = ((up_tO - down_tO)[:, None] @ positive_tOI)[:, 0] + whole_tI
        return *_gradients(relevance, [handed_TI.view_as(argument)], [argument]), None, None, None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, first: Tensor, second: Tensor) -> Tensor:
        ctx.save_for_backward(first, second)
        return first + second

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        terms: tuple[Tensor, ...] = ctx.saved_tensors
        relevance = (terms[0] + terms[1]) * gradients[0]
        positive, negative = ([term.clamp(**limit) for term in terms] for limit in ({"min": 0}, {"max": 0}))
        up, down = _ratios(relevance, positive[0] + positive[1], negative[0] + negative[1])
        handed = [up * above + down * below for above, below in zip(positive, negative, strict=True)]
        return tuple(_gradients(relevance, handed, terms))


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, first: Tensor, second: Tensor) -> Tensor:
        result = first @ second
        ctx.save_for_backward(first, second, result)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        first, second, result = ctx.saved_tensors
        relevance = result * gradients[0]
        (up_first, down_first), (up_second, down_second) = (
            (factor.clamp(min=0), factor.clamp(max=0)) for factor in (first, second)
        )
        # If both factors are inputs, each contribution counts once for each.
        times = sum(ctx.needs_input_grad)
        up, down = _ratios(
            relevance,
            times * (up_first @ up_second + down_first @ down_second),
            times * (up_first @ down_second + down_first @ up_second),
        )
        turned = [factor.transpose(-1, -2) for factor in (up_first, down_first, up_second, down_second)]
        handed = [
            up_first * (up @ turned[2] + down @ turned[3]) + down_first * (up @ turned[3] + down @ turned[2]),
            up_second * (turned[0] @ up + turned[1] @ down) + down_second * (turned[1] @ up + turned[0] @ down),
        ]
        inputs = [index for index, needed in enumerate(ctx.needs_input_grad) if needed]
        shares = _gradients(
            relevance, [handed[index] for index in inputs], [(first, second)[index] for index in inputs]
        )
        by_index = dict(zip(inputs, shares, strict=True))
        return by_index.get(0), by_index.get(1)


def _ratios(relevance: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
    """Relevance for each unit of positive and of negative contribution to an output."""
    return ALPHA * relevance / (positive + EPSILON), BETA * relevance / (negative - EPSILON)


def _gradients(before: Tensor, after: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Relevances over the inputs, rescaled to each example's previous sum of absolute values."""

    def sizes(tensor: Tensor) -> Tensor:
        return tensor.flatten(1).abs().sum(-1)

    # An input of 0 cannot carry relevance, so others get its part of the bias.
    carried = [tensor.where(argument != 0, 0) for tensor, argument in zip(after, inputs, strict=True)]
    total_B = torch.stack([sizes(tensor) for tensor in carried]).sum(0)
    factor_B = torch.where(total_B > 0, sizes(before) / total_B.where(total_B > 0, 1), 0)
    return [
        tensor * factor_B.view(-1, *[1] * (tensor.dim() - 1)) / argument.where(argument != 0, 1)
        for tensor, argument in zip(carried, inputs, strict=True)
    ]
