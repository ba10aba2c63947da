"""Gradients with respect to attention weights against finite differences, and against the library's own eager maps."""

import pytest
import torch
from families import FAMILIES, HEADS, MORE_FAMILIES, tiny_batch, tiny_model
from torch import Tensor, nn

from bertsecrets.attention.gradients import attention_gradients
from bertsecrets.models.encoder import describe


def summed_loss(logits_BC: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits_BC, torch.arange(len(logits_BC)) % 3, reduction="sum")


def gradients(model: nn.Module, batch: dict[str, Tensor]) -> tuple[list[Tensor], list[Tensor], list[int]]:
    """Maps and gradients by layer, and the layers in the order of the calls."""
    maps: dict[int, Tensor] = {}
    slopes: dict[int, Tensor] = {}
    order: list[int] = []

    def observe(layer: int, attention: Tensor, gradient: Tensor) -> None:
        order.append(layer)
        maps[layer], slopes[layer] = attention, gradient

    attention_gradients(model, batch, summed_loss, observe)
    return [maps[layer] for layer in sorted(maps)], [slopes[layer] for layer in sorted(slopes)], order


@pytest.mark.parametrize("family", [*FAMILIES, *MORE_FAMILIES])
def test_gradients_equal_autograd_through_the_librarys_eager_maps(family: str) -> None:
    model, eager = tiny_model(family).double(), tiny_model(family, attention="eager").double()
    # The gradients of eager ModernBERT are undefined for rows with padding.
    batch = tiny_batch((9, 9) if family == "modernbert" else (11, 7, 4), pad_id=model.config.pad_token_id)
    maps, slopes, order = gradients(model, batch)
    assert order == list(reversed(range(describe(model).num_layers)))
    output = eager(**batch, output_attentions=True)
    expected = torch.autograd.grad(summed_loss(output.logits), output.attentions)
    real_BS = batch["attention_mask"].bool()
    # Eager ModernBERT and EuroBERT take their softmax in float32.
    near = {"modernbert": 1e-3, "eurobert": 1e-5}.get(family.partition("-")[0], 1e-10)
    for attention, theirs, slope, reference in zip(maps, output.attentions, slopes, expected, strict=True):
        real_BHQK = (real_BS[:, None, :, None] & real_BS[:, None, None, :]).expand_as(slope)
        assert (attention - theirs)[real_BHQK].abs().max() < near
        assert (slope - reference)[real_BHQK].abs().max() < near
        assert slope[real_BHQK].abs().max() > 1e-5


def loss_with_more_weight(
    model: nn.Module, batch: dict[str, Tensor], layer: int, place: tuple[int, int, int, int], more: float
) -> float:
    """The loss when one weight is changed by hand, at the input of the output projection."""
    encoder = describe(model)
    site = encoder.sites[layer]
    row, head, query, key = place
    seen: dict[str, Tensor] = {}

    def keep(module: nn.Module, args: object, output: Tensor) -> None:
        seen["values"] = output.unflatten(-1, (HEADS, -1))

    def change(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        heads = args[0].clone().unflatten(-1, (HEADS, -1))
        heads[row, query, head] += more * seen["values"][row, key, head]
        return (heads.flatten(2),)

    with (
        torch.no_grad(),
        site.value.register_forward_hook(keep),
        site.projection.register_forward_pre_hook(change),
    ):
        return summed_loss(model(**batch).logits).item()


@pytest.mark.parametrize("place", [(0, 1, 0, 3), (1, 3, 4, 0), (2, 0, 3, 3)])
def test_gradients_equal_finite_differences_of_single_weights(place: tuple[int, int, int, int]) -> None:
    model, batch = tiny_model("bert").double(), tiny_batch()
    _, slopes, _ = gradients(model, batch)
    for layer, slope in enumerate(slopes):
        step = 1e-5
        above, below = (loss_with_more_weight(model, batch, layer, place, sign * step) for sign in (1, -1))
        assert slope[place].item() == pytest.approx((above - below) / (2 * step), rel=1e-5, abs=1e-9)


def test_frozen_weights_and_inference_mode_do_no_harm_and_nothing_is_left_behind() -> None:
    model, batch = tiny_model("bert"), tiny_batch()
    _, expected, _ = gradients(model, batch)
    model.requires_grad_(False)
    with torch.inference_mode():
        _, slopes, _ = gradients(model, batch)
    for slope, reference in zip(slopes, expected, strict=True):
        assert torch.allclose(slope, reference, atol=1e-6)
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert model.config._attn_implementation == "sdpa"
