"""Standard AdamW: parameter groups, layer-wise learning rates, frozen layers, linear warm-up and decay."""

from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn

from bertsecrets.errors import UserError
from bertsecrets.models.encoder import describe
from bertsecrets.models.settings import OptimizerConfig


def freeze(model: nn.Module, names: Iterable[str | int]) -> None:
    """Exclude the named embeddings and layers from training; raises UserError for a name that does not exist."""
    encoder = describe(model)
    for name in names:
        if name == "embeddings":
            modules: Sequence[nn.Module] = encoder.embeddings
        elif isinstance(name, int) and 0 <= name < encoder.num_layers:
            modules = (encoder.layers[name],)
        else:
            raise UserError(
                f"optimizer.freeze has '{name}'; expected 'embeddings' or a layer from 0 to {encoder.num_layers - 1}."
            )
        for module in modules:
            module.requires_grad_(False)


def parameter_groups(model: nn.Module, config: OptimizerConfig) -> list[dict[str, Any]]:
    """Groups for AdamW, one per depth and decay; every trainable parameter is in exactly one.

    A parameter shared by several layers has the rate of the highest of them.
    """
    encoder = describe(model)
    # 0 for embeddings, 1 for layer 0 and so on; the head's parameters are the highest.
    depths = {id(parameter): 0 for module in encoder.embeddings for parameter in module.parameters()}
    for layer, module in enumerate(encoder.layers):
        depths.update((id(parameter), layer + 1) for parameter in module.parameters())
    top = encoder.num_layers + 1
    groups: dict[tuple[int, bool], list[nn.Parameter]] = {}
    for parameter in encoder.model.parameters():
        if parameter.requires_grad:
            # Biases and norms are the parameters with fewer than two dimensions.
            groups.setdefault((depths.get(id(parameter), top), parameter.dim() >= 2), []).append(parameter)
    return [
        {
            "params": parameters,
            "lr": config.learning_rate * config.layer_decay ** (top - depth),
            "weight_decay": config.weight_decay if decays else 0.0,
        }
        for (depth, decays), parameters in sorted(groups.items(), key=lambda item: item[0])
    ]


def linear_rate(step: int, steps: int, warmup_fraction: float) -> float:
    """Share of the peak rate at a step: linear from 0 over the warm-up (at least one step), then linear to 0."""
    warmup = max(1, round(steps * warmup_fraction)) if warmup_fraction > 0 else 0
    if step < warmup:
        return step / warmup
    return max(0.0, (steps - step) / max(1, steps - warmup))
