"""The random baseline of Kovaleva et al. 2019 (section 4.2, Table 1)."""

import torch
from torch import nn


@torch.no_grad()
def random_normal_(model: nn.Module, seed: int, std: float = 0.02) -> None:
    """Draws all weights anew from N(0, std), in place: biases 0, norms 1 and 0, as the original code does."""
    generator = torch.Generator().manual_seed(seed)
    norms = {
        id(parameter)
        for module in model.modules()
        if "norm" in type(module).__name__.lower()
        for name, parameter in module.named_parameters(recurse=False)
        if name == "weight"
    }
    for parameter in model.parameters():
        if id(parameter) in norms:
            parameter.fill_(1.0)
        elif parameter.dim() < 2:
            parameter.zero_()
        else:
            drawn = torch.empty(parameter.shape, dtype=torch.float32).normal_(0.0, std, generator=generator)
            parameter.copy_(drawn)
