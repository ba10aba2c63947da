"""The maps of a few chosen examples, all layers and heads, cropped to their real tokens."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from bertsecrets.attention.watch import watch
from bertsecrets.models.encoder import unwrap


@torch.no_grad()
def capture(model: nn.Module, inputs: Mapping[str, Tensor]) -> list[Tensor]:
    """Each example's attention, ``[L, H, Q, K]`` float32 on the CPU, padding cut off.

    The model is in evaluation mode for the pass and put back afterwards.

    Args:
        model: Any module that holds a transformers encoder.
        inputs: Its keyword arguments, ``attention_mask`` among them, on its device.
    """
    network = unwrap(model)
    real_BS = inputs["attention_mask"].bool()
    cropped: list[list[Tensor]] = [[] for _ in range(len(real_BS))]

    def observe(_: int, attention_BHQK: Tensor) -> None:
        for row, real_S in enumerate(real_BS):
            cropped[row].append(attention_BHQK[row][:, real_S][:, :, real_S].float().cpu())

    training = network.training
    network.eval()
    try:
        with watch(network, observe):
            network(**inputs)
    finally:
        network.train(training)
    return [torch.stack(layers) for layers in cropped]
