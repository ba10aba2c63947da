"""Overriding: chosen heads are replaced, at the input of the attention output projection.

There each head still is a slice of its own. After the projection the heads are mixed, and no slice is a head.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

from torch import Tensor, nn

from bertsecrets.attention.interface import listening
from bertsecrets.attention.passage import Passage
from bertsecrets.attention.uncompiled import uncompiled
from bertsecrets.errors import UserError, choices
from bertsecrets.models.encoder import AttentionSite, Encoder, describe

Mode = Literal["uniform", "zero", "mean", "identity"]
MODES: tuple[str, ...] = get_args(Mode)
_MODES_OF_VALUES = ("uniform", "identity")


@dataclass(frozen=True)
class HeadEdit:
    """What to do to one head, layer and head counted from 0.

    Modes:
        ``uniform``: every real token receives the weight 1/L from every token, L the number of real tokens; padding
            receives 0 (Kovaleva et al. 2019, section 4.6).
        ``zero``: the head's output is zero (Michel et al. 2019, section 3).
        ``mean``: the head's output is its mean over the real tokens of a reference set.
        ``identity``: every token attends to itself alone.
    """

    layer: int
    head: int
    mode: Mode = "zero"


@contextmanager
def override(model: nn.Module, edits: Iterable[HeadEdit], means_LHd: Tensor | None = None) -> Iterator[None]:
    """While open, the heads named by ``edits`` are replaced in every forward pass.

    Contexts nest; where two edit the same head, the inner one counts. Gradients flow through the replacement. Works
    under autocast, in DistributedDataParallel and on compiled models (compiled code runs plainly meanwhile).

    Args:
        model: Any module that holds a transformers encoder.
        edits: At most one for each head.
        means_LHd: Mean output of every head, from :func:`mean_head_outputs`; needed by mode ``mean``.

    Raises:
        UserError: If a layer, head or mode does not exist, a head is named twice, ``means_LHd`` is missing or of
            another shape, or a model with shared layers would compute them again in gradient checkpointing.
    """
    encoder = describe(model)
    by_layer = _checked(encoder, list(edits), means_LHd)
    if not by_layer:
        yield
        return
    with ExitStack() as stack:
        stack.enter_context(uncompiled())
        passage = Passage(encoder)
        stack.callback(passage.close)
        if encoder.family is None:
            stack.enter_context(_inside_attention(encoder, passage, by_layer, means_LHd))
        else:
            stack.enter_context(_before_projection(encoder, passage, by_layer, means_LHd))
        yield


def _checked(encoder: Encoder, edits: Sequence[HeadEdit], means_LHd: Tensor | None) -> dict[int, list[HeadEdit]]:
    by_layer: dict[int, list[HeadEdit]] = {}
    seen: set[tuple[int, int]] = set()
    for edit in edits:
        if edit.mode not in MODES:
            raise UserError(f"Unknown override mode '{edit.mode}'; {choices(str(edit.mode), MODES)}.")
        if not 0 <= edit.layer < encoder.num_layers:
            raise UserError(f"Layer {edit.layer} does not exist: the model has layers 0 to {encoder.num_layers - 1}.")
        if not 0 <= edit.head < encoder.num_heads:
            raise UserError(f"Head {edit.head} does not exist: the model has heads 0 to {encoder.num_heads - 1}.")
        if (edit.layer, edit.head) in seen:
            raise UserError(f"Head {edit.head} of layer {edit.layer} is named twice; give one edit for each head.")
        seen.add((edit.layer, edit.head))
        by_layer.setdefault(edit.layer, []).append(edit)
    if any(edit.mode == "mean" for edit in edits):
        expected = [encoder.num_layers, encoder.num_heads, encoder.head_dim]
        if means_LHd is None:
            raise UserError("Mode 'mean' needs the heads' mean outputs; make them with mean_head_outputs.")
        if list(means_LHd.shape) != expected:
            raise UserError(f"The heads' mean outputs have shape {list(means_LHd.shape)}; this model needs {expected}.")
    if encoder.shares_layers and any(
        getattr(module, "gradient_checkpointing", False) for module in encoder.base.modules()
    ):
        raise UserError(
            "A model that shares its layers cannot be overridden under gradient checkpointing, which computes them "
            "again out of order; call model.gradient_checkpointing_disable() first."
        )
    return by_layer


def _replaced(
    output_BSHd: Tensor,
    values_BSHd: Tensor | None,
    real_BS: Tensor,
    edits: Sequence[HeadEdit],
    means_LHd: Tensor | None,
) -> Tensor:
    """The heads' outputs with the edited heads replaced; the input is left as it is."""
    result_BSHd = output_BSHd.clone()
    for edit in edits:
        if edit.mode == "zero":
            result_BSHd[:, :, edit.head] = 0
        elif edit.mode == "mean":
            assert means_LHd is not None
            result_BSHd[:, :, edit.head] = means_LHd[edit.layer, edit.head].to(output_BSHd)
        elif edit.mode == "identity":
            assert values_BSHd is not None
            result_BSHd[:, :, edit.head] = values_BSHd[:, :, edit.head].to(output_BSHd.dtype)
        else:
            assert values_BSHd is not None
            values_BSd = values_BSHd[:, :, edit.head]
            weight_BS1 = real_BS.to(values_BSd.dtype).unsqueeze(-1)
            mean_B1d = (values_BSd * weight_BS1).sum(1, keepdim=True) / weight_BS1.sum(1, keepdim=True)
            result_BSHd[:, :, edit.head] = mean_B1d.to(output_BSHd.dtype)
    return result_BSHd


@contextmanager
def _before_projection(
    encoder: Encoder, passage: Passage, by_layer: dict[int, list[HeadEdit]], means_LHd: Tensor | None
) -> Iterator[None]:
    family = encoder.family
    assert family is not None
    values: dict[int, Tensor] = {}
    with ExitStack() as stack:
        for site in {id(site.module): site for site in encoder.sites}.values():
            layers = [layer for layer, other in enumerate(encoder.sites) if other.module is site.module]
            if not any(layer in by_layer for layer in layers):
                continue
            assert site.projection is not None
            assert site.value is not None

            def keep(_: nn.Module, args: Any, projected_BSD: Tensor, key: int = id(site.module)) -> None:
                values[key] = projected_BSD

            def replace(
                _: nn.Module, args: tuple[Tensor, ...], site: AttentionSite = site, layers: list[int] = layers
            ) -> tuple[Tensor, ...] | None:
                layer = passage.layer(site.module)
                passage.leave(site.module)
                if layer is None and not encoder.shares_layers:
                    # Gradient checkpointing computes a layer again outside the pass: it must be replaced again.
                    layer = layers[0]
                projected_BSD = values.pop(id(site.module), None)
                if layer is None or layer not in by_layer:
                    return None
                output_BSD = args[0]
                result_BSHd = _replaced(
                    output_BSD.unflatten(-1, (encoder.num_heads, -1)),
                    None if projected_BSD is None else family.values(site, projected_BSD, encoder.num_heads),
                    passage.real_BS(output_BSD.shape[0], output_BSD.shape[1], output_BSD.device),
                    by_layer[layer],
                    means_LHd,
                )
                return (result_BSHd.flatten(2), *args[1:])

            if any(edit.mode in _MODES_OF_VALUES for layer in layers for edit in by_layer.get(layer, ())):
                stack.callback(site.value.register_forward_hook(keep).remove)
            stack.callback(site.projection.register_forward_pre_hook(replace).remove)
        yield


@contextmanager
def _inside_attention(
    encoder: Encoder, passage: Passage, by_layer: dict[int, list[HeadEdit]], means_LHd: Tensor | None
) -> Iterator[None]:
    """The generic path: the attention function's own output, which has the heads apart."""

    def listen(
        module: nn.Module,
        query_BHQd: Tensor,
        key_BHKd: Tensor,
        value_BHKd: Tensor,
        mask: Tensor | None,
        scaling: float,
        output_BSHd: Tensor,
    ) -> Tensor:
        layer = passage.layer(module)
        passage.leave(module)
        if layer is None or layer not in by_layer:
            return output_BSHd
        return _replaced(
            output_BSHd,
            value_BHKd.transpose(1, 2),
            passage.real_BS(output_BSHd.shape[0], output_BSHd.shape[1], output_BSHd.device),
            by_layer[layer],
            means_LHd,
        )

    with listening(encoder.base, list({id(site.module): site.module for site in encoder.sites}.values()), listen):
        yield
