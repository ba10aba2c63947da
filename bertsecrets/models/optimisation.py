"""AdamW by the book: parameter groups, layer-wise learning rates, frozen layers, linear warm-up and decay."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from torch import nn

from bertsecrets.errors import UserError, choices
from bertsecrets.models.encoder import Encoder, describe


@dataclass(frozen=True)
class OptimizerConfig:
    """How to fine-tune.

    Args:
        learning_rate: Peak rate of the classification head, and of all layers where ``layer_decay`` is 1.
        weight_decay: AdamW's; biases and norms are exempt.
        warmup_fraction: Share of all steps over which the rate rises linearly from 0; it then falls linearly to 0.
        layer_decay: Factor by which the rate falls from each layer to the one below it.
        freeze: What does not learn: ``"embeddings"``, layer numbers from 0, or both.
        betas, eps: AdamW's.
    """

    learning_rate: float
    weight_decay: float = 0.01
    warmup_fraction: float = 0.1
    layer_decay: float = 1.0
    freeze: tuple[str | int, ...] = ()
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "OptimizerConfig":
        """Reads the ``optimizer`` section; raises UserError at an unknown key or a value out of range."""
        known = [field.name for field in fields(cls)]
        for key in config:
            if key not in known:
                raise UserError(f"Unknown key 'optimizer.{key}'; {choices(str(key), known)}.")
        values: dict[str, Any] = {
            str(key): tuple(value) if isinstance(value, (list, tuple)) else value for key, value in config.items()
        }
        made = cls(**values)
        for key, low, high in (
            ("learning_rate", 0.0, 1.0),
            ("weight_decay", 0.0, 1.0),
            ("warmup_fraction", 0.0, 1.0),
            ("layer_decay", 0.0, 1.0),
        ):
            value = getattr(made, key)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
                raise UserError(f"optimizer.{key} is {value!r}; expected a number from {low:g} to {high:g}.")
        return made


def freeze(model: nn.Module, what: Iterable[str | int]) -> None:
    """Stops the embeddings and layers named from learning; raises UserError at a name that does not exist."""
    encoder = describe(model)
    for name in what:
        if name == "embeddings":
            modules: Sequence[nn.Module] = encoder.embeddings
        elif isinstance(name, int) and 0 <= name < encoder.num_layers:
            modules = (encoder.layers[name],)
        else:
            raise UserError(
                f"optimizer.freeze names '{name}'; expected 'embeddings' or a layer from 0 to {encoder.num_layers - 1}."
            )
        for module in modules:
            module.requires_grad_(False)


def parameter_groups(model: nn.Module, config: OptimizerConfig) -> list[dict[str, Any]]:
    """Groups for AdamW, one for each depth and decay; every trainable parameter is in exactly one.

    A parameter shared by several layers learns at the rate of the highest of them.
    """
    encoder = describe(model)
    depths = _depths(encoder)
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
    """Share of the peak rate at a step: up linearly from 0 over the warm-up (a step at least), then down to 0."""
    warmup = max(1, round(steps * warmup_fraction)) if warmup_fraction > 0 else 0
    if step < warmup:
        return step / warmup
    return max(0.0, (steps - step) / max(1, steps - warmup))


def _depths(encoder: Encoder) -> dict[int, int]:
    """Parameter id -> 0 for embeddings, 1 for layer 0 and so on; the head's parameters are absent."""
    depths = {id(parameter): 0 for module in encoder.embeddings for parameter in module.parameters()}
    for layer, module in enumerate(encoder.layers):
        depths.update((id(parameter), layer + 1) for parameter in module.parameters())
    return depths
