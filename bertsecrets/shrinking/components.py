"""Dependence of a model's predictions on each head and neuron: Fisher information of their gates."""

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bertsecrets.ablation.partial_passes import return_freed_memory
from bertsecrets.data.batch import Batch
from bertsecrets.float64 import to_float64
from bertsecrets.models.encoder import Autocast, describe, evaluating
from bertsecrets.task_heads.base import output_of, wide


@dataclass(frozen=True)
class ComponentScores:
    """Fisher information of the gates of heads ``[L, H]`` and of neurons ``[L, F]``, float64, at least 0."""

    head_LH: Tensor
    neuron_LF: Tensor


def most_informative(score_G: Tensor, count: int) -> tuple[int, ...]:
    """Numbers of the heads or neurons of one layer with the highest scores, ascending."""
    return tuple(sorted(score_G.argsort(descending=True, stable=True)[:count].tolist()))


def fisher_information(
    model: nn.Module, batches: Iterable[Batch], *, context: Autocast, seed: int = 0
) -> ComponentScores:
    """Mean over examples of the Fisher information of each gate (Kwon et al. 2022, section 4.1, with the true instead
    of the empirical information).

    A gate multiplies the output of a head or a neuron and is 1 in the intact model. Its information is E_y[(d log p(y |
    x) / d gate)²] over the model's own predictive distribution, so that no labels are needed and memorised training
    examples still count; a score has unit variance. The expectation is estimated, without bias, by one random
    combination of classes per example.

    Args:
        seed: Seed of the random combinations.
    """
    encoder = describe(model)
    family = encoder.family
    assert family is not None
    device = next(encoder.model.parameters()).device
    generator = torch.Generator().manual_seed(seed)
    outputs = [family.feed_forward(layer).output for layer in encoder.layers]
    head_LH = torch.zeros(encoder.num_layers, encoder.num_heads, dtype=torch.float64)
    neuron_LF = torch.zeros(encoder.num_layers, outputs[0].in_features, dtype=torch.float64)
    count = 0
    with evaluating(encoder.model), torch.enable_grad():
        for batch in batches:
            # Filled in the order of calls: for each layer, the heads' outputs, then the neurons'.
            values: list[Tensor] = []
            with ExitStack() as stack:
                for site, output in zip(encoder.sites, outputs, strict=True):
                    assert site.projection is not None
                    for linear in (site.projection, output):
                        stack.callback(linear.register_forward_pre_hook(partial(_record, values)).remove)
                with context():
                    on_device = batch.to(device)
                    logits_BC = wide(on_device.predictions(output_of(encoder.model, on_device.inputs())))
            gradients = torch.autograd.grad(_random_log_likelihood(logits_BC, generator), values)
            for call, (value_BSG, gradient_BSG) in enumerate(zip(values, gradients, strict=True)):
                information_LG = (head_LH, neuron_LF)[call % 2]
                slope_BS = (
                    to_float64((value_BSG * gradient_BSG).detach()).unflatten(-1, (information_LG.shape[1], -1)).sum(-1)
                )
                information_LG[call // 2] += (slope_BS.sum(1) ** 2).sum(0).cpu()
            count += batch.size
            return_freed_memory(device)
    return ComponentScores(head_LH / count, neuron_LF / count)


def _record(values: list[Tensor], _: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    # Without trainable weights below it, the first input would have no gradient.
    value_BSG = args[0] if args[0].requires_grad else args[0].detach().requires_grad_()
    values.append(value_BSG)
    return (value_BSG, *args[1:])


def _random_log_likelihood(logits_BC: Tensor, generator: torch.Generator) -> Tensor:
    """A sum over examples whose squared derivatives have the Fisher information as their expectation.

    For classes, sum_c e_c sqrt(p_c) log p_c with random signs e: the squares sum_c p_c (d log p_c)² remain, and
    products of different classes vanish in expectation. A score has a single output and needs no sign.
    """
    if logits_BC.shape[1] == 1:
        return logits_BC.sum()
    sign_BC = torch.randint(0, 2, logits_BC.shape, generator=generator).to(logits_BC) * 2 - 1
    log_BC = torch.log_softmax(logits_BC, -1)
    return (sign_BC * (0.5 * log_BC).exp().detach() * log_BC).sum()
