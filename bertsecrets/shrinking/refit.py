"""Refit a smaller model's output maps, from the first layer on, to match their original contributions."""

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from bertsecrets.ablation.partial_passes import clean_pass, first_of, recorded_calls
from bertsecrets.data.batch import Batch
from bertsecrets.models.encoder import Autocast, Encoder, describe, evaluating
from bertsecrets.pruning.removal import Kept
from bertsecrets.task_heads.base import wide

_RIDGE = 0.01
"""Penalty on changes of the map, as a share of the mean variance of its inputs."""


@dataclass
class _Rows:
    """One batch passing through the layers of both models.

    Args:
        whole_BSD, smaller_BSD: Inputs of the present layer.
        real_BS: Tokens that are not padding.
        arguments: The other arguments of each layer's call.
    """

    whole_BSD: Tensor
    smaller_BSD: Tensor
    real_BS: Tensor
    arguments: list[dict[str, Any]]


@torch.no_grad()
def refitted(model: nn.Module, kept: Kept, batches: Iterable[Batch], *, context: Autocast) -> PreTrainedModel:
    """A copy of a model of the same shape, with weight 0 for removed heads and neurons and refitted weights for all
    others.

    Layer by layer, the maps that read the heads and the neurons are fitted by ridge regression to their outputs in the
    original model, from their inputs in the smaller one, so that later layers compensate for earlier ones (Kwon et al.
    2022, section 4.3, who fit one factor for each head and neuron; ZipLM, Kurtic et al. 2023, section 3, who fit all
    weights).

    Args:
        batches: Examples to fit on; labels are not used.
    """
    whole = describe(model)
    smaller = describe(copy.deepcopy(whole.model))
    device = next(whole.model.parameters()).device
    with evaluating(whole.model), evaluating(smaller.model), context():
        rows = []
        for batch in batches:
            inputs = batch.to(device).inputs()
            _, layers = clean_pass(whole, inputs)
            hidden_BSD, real_BS = layers[0].hidden_BSD, inputs["attention_mask"].bool()
            rows.append(_Rows(hidden_BSD, hidden_BSD, real_BS, [layer.arguments for layer in layers]))
        for layer in range(whole.num_layers):
            _refit_layer(whole, smaller, layer, kept, rows)
    return smaller.model


def _refit_layer(whole: Encoder, smaller: Encoder, layer: int, kept: Kept, rows: list[_Rows]) -> None:
    """Refit the two maps of a layer, and pass all rows through it in both models."""
    family = whole.family
    assert family is not None
    before, after = whole.layers[layer], smaller.layers[layer]
    heads = torch.arange(whole.num_heads * whole.head_dim).view(whole.num_heads, -1)
    before_projection, projection = whole.sites[layer].projection, smaller.sites[layer].projection
    assert before_projection is not None
    assert projection is not None
    maps = [(before_projection, projection, heads[list(kept.layers[layer])].flatten())]
    if kept.neurons is not None:
        outputs = [family.feed_forward(module).output for module in (before, after)]
        maps.append((outputs[0], outputs[1], torch.tensor(kept.neurons[layer], dtype=torch.int64)))
    # In the last layer, a task head that only reads the first token needs nothing else.
    first_only = layer == whole.num_layers - 1 and whole.first_token_decides
    targets: list[list[Tensor]] = []
    for batch in rows:
        with recorded_calls([linear for linear, _, _ in maps]) as calls:
            output_BSD = first_of(before(batch.whole_BSD, **batch.arguments[layer]))
        targets.append([target_BSD for _, target_BSD in calls])
        batch.whole_BSD = output_BSD
    for number, (_, linear, index) in enumerate(maps):
        sums = _Sums(len(index), linear.out_features)
        for batch, targets_of_batch in zip(rows, targets, strict=True):
            # Recomputed for each map, because the map that reads the neurons depends on the refitted projection.
            with recorded_calls([linear]) as calls:
                after(batch.smaller_BSD, **batch.arguments[layer])
            used_BS = batch.real_BS.clone()
            if first_only:
                used_BS[:, 1:] = False
            input_NK = calls[0][0][0][used_BS][:, index]
            present_ND = nn.functional.linear(input_NK, linear.weight[:, index], linear.bias)
            sums.add(input_NK, targets_of_batch[number][used_BS] - present_ND)
        change_DK, shift_D = sums.solve(linear.bias is not None)
        weight = torch.zeros_like(linear.weight)
        weight[:, index] = linear.weight[:, index] + change_DK.to(weight)
        linear.weight.copy_(weight)
        if linear.bias is not None:
            linear.bias.add_(shift_D.to(linear.bias))
    for batch in rows:
        batch.smaller_BSD = first_of(after(batch.smaller_BSD, **batch.arguments[layer]))


class _Sums:
    """Sums of products of inputs and residuals for a ridge regression.

    Args:
        inputs, outputs: Their dimensions.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        self.count = 0
        self.input_K = torch.zeros(inputs, dtype=torch.float64)
        self.residual_D = torch.zeros(outputs, dtype=torch.float64)
        self.product_KK = torch.zeros(inputs, inputs, dtype=torch.float64)
        self.product_KD = torch.zeros(inputs, outputs, dtype=torch.float64)

    def add(self, input_NK: Tensor, residual_ND: Tensor) -> None:
        """Count N tokens."""
        input_NK, residual_ND = wide(input_NK), wide(residual_ND)
        self.count += len(input_NK)
        self.input_K += input_NK.sum(0).cpu().double()
        self.residual_D += residual_ND.sum(0).cpu().double()
        self.product_KK += (input_NK.T @ input_NK).cpu().double()
        self.product_KD += (input_NK.T @ residual_ND).cpu().double()

    def solve(self, with_shift: bool) -> tuple[Tensor, Tensor]:
        """The changes of the weights ``[D, K]`` and the bias ``[D]`` that minimise the residuals."""
        mean_K, mean_D = self.input_K / self.count, self.residual_D / self.count
        # A map without a bias cannot absorb a shift, so it is fitted through the origin.
        if not with_shift:
            mean_K, mean_D = torch.zeros_like(mean_K), torch.zeros_like(mean_D)
        if not len(mean_K):
            return torch.zeros(len(mean_D), 0), mean_D
        covariance_KK = self.product_KK / self.count - mean_K[:, None] * mean_K
        covariance_KD = self.product_KD / self.count - mean_K[:, None] * mean_D
        # Constant inputs would give a singular system without a minimal penalty.
        ridge = _RIDGE * covariance_KK.diagonal().mean().clamp(min=1e-12)
        change_KD = torch.linalg.solve(
            covariance_KK + ridge * torch.eye(len(mean_K), dtype=torch.float64), covariance_KD
        )
        return change_KD.T, mean_D - change_KD.T @ mean_K
