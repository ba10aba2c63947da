"""Scores of heads against naive loops, finite differences and each other."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from families import HEADS, LAYERS, tiny_batch, tiny_model
from importance.toy import PARTS, model_of_tokens, split
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from bertsecrets.attention.gates import gated
from bertsecrets.attention.gradients import output_gradients
from bertsecrets.attention.override import HeadEdit, mean_head_outputs, override
from bertsecrets.data.batch import Batch
from bertsecrets.importance.confidence import Confidence
from bertsecrets.importance.first_order import FirstOrder
from bertsecrets.importance.head_gradient import HeadGradient
from bertsecrets.importance.integrated_gradients import IntegratedGradients
from bertsecrets.importance.value_norm import ValueNorm
from bertsecrets.measures.base import Measure
from bertsecrets.measures.entropy import Entropy
from bertsecrets.measures.one_pass import measure_pass

STEP = 1e-4


def loss_of(model: PreTrainedModel, batch: Batch) -> float:
    with torch.no_grad():
        return float(functional.cross_entropy(model(**batch.inputs()).logits, batch.label_B, reduction="sum"))


def by_gates(change: Callable[[Tensor], float], at: float = 1.0, step: float = STEP) -> np.ndarray:
    """Derivatives ``[L, H]`` with respect to every gate, by central differences."""
    slopes = np.zeros((LAYERS, HEADS))
    for index in np.ndindex(slopes.shape):
        ends = []
        for sign in (1, -1):
            gate_LH = torch.full((LAYERS, HEADS), at, dtype=torch.float64)
            gate_LH[index] += sign * step
            ends.append(change(gate_LH))
        slopes[index] = (ends[0] - ends[1]) / (2 * step)
    return slopes


@pytest.mark.parametrize(
    ("family", "step", "tolerance"),
    # The last two compute parts of attention in float32, whose rounding a small step would magnify.
    [("bert", STEP, 1e-6), ("albert", STEP, 1e-6), ("deberta", 1e-2, 2e-3), ("modernbert", 1e-2, 2e-3)],
)
@pytest.mark.parametrize("gate", [1.0, 0.4])
def test_gradients_of_outputs_equal_finite_differences_of_gates(
    family: str, step: float, tolerance: float, gate: float
) -> None:
    model = tiny_model(family).double()
    inputs = tiny_batch((9, 6), pad=1)
    label_B = torch.tensor([0, 2])
    slopes, layers = np.zeros((LAYERS, HEADS)), []

    def summed(logits_BC: Tensor) -> Tensor:
        return functional.cross_entropy(logits_BC, label_B, reduction="sum")

    def observe(layer: int, output_BSHd: Tensor, gradient_BSHd: Tensor, value_BSHd: Tensor) -> None:
        layers.append(layer)
        assert value_BSHd.shape == output_BSHd.shape
        assert (gradient_BSHd[1, 6:] == 0).all()
        slopes[layer] = (output_BSHd * gradient_BSHd).sum((0, 1, 3)).numpy()

    def at_gates(gate_LH: Tensor) -> float:
        with torch.no_grad(), gated(model, lambda: gate_LH):
            return float(summed(model(**inputs).logits))

    logits_BC = output_gradients(model, inputs, summed, observe, gate=gate)
    assert layers == list(range(LAYERS))[::-1]
    whole_LH = torch.full((LAYERS, HEADS), gate, dtype=torch.float64)
    assert float(summed(logits_BC)) == pytest.approx(at_gates(whole_LH), rel=1e-5)
    assert np.allclose(slopes, by_gates(at_gates, gate, step), rtol=tolerance, atol=tolerance)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_frozen_model_has_gradients_too() -> None:
    model = model_of_tokens()
    (grid,) = measure_pass(model, [prepared(HeadGradient(LAYERS, HEADS))], [split()[[0, 1]]])
    model.requires_grad_(False)
    (frozen,) = measure_pass(model, [prepared(HeadGradient(LAYERS, HEADS))], [split()[[0, 1]]])
    assert torch.equal(grid.column("token"), frozen.column("token"))
    assert (grid.column("token") > 0).all()


def prepared(measure: Measure) -> Any:
    measure.prepare(split())
    return measure


def maps_of(example: int) -> np.ndarray:
    """``[L, H, Q, K]`` of one text by the library's eager attention."""
    with torch.no_grad():
        output = model_of_tokens("eager")(**split()[[example]].inputs(), output_attentions=True)
    return torch.cat(output.attentions).numpy()


@pytest.mark.parametrize("rows", ["all", "words"])
@pytest.mark.parametrize("mean_over", ["tokens", "examples"])
def test_confidence_equals_a_naive_loop(rows: Any, mean_over: Any) -> None:
    measure = Confidence(LAYERS, HEADS, mean_over=mean_over, rows=rows)
    (grid,) = measure_pass(model_of_tokens(), [measure], [split()[part] for part in PARTS])
    largest = []
    for example in range(4):
        special = split()[[example]].special_BS[0].tolist()
        maps, last = maps_of(example), len(special)
        queries = [i for i in range(last) if rows == "all" or not special[i]]
        keys = (
            [j for j in range(last) if j == 0 or not special[j]],
            [j for j in range(last) if not special[j]],
            range(last),
        )
        largest.append(
            np.array([[[[max(maps[layer, head, i, j] for j in kept) for kept in keys] for i in queries]
                       for head in range(HEADS)] for layer in range(LAYERS)])
        )  # fmt: skip
    means = np.stack([text.mean(2) for text in largest])
    weights = np.array([text.shape[2] for text in largest]) if mean_over == "tokens" else np.ones(4)
    expected = (weights[:, None, None, None] * means).sum(0) / weights.sum()
    assert np.allclose(grid.value_LHC.numpy(), expected, rtol=1e-6)
    rests = weights[:, None, None, None] * (means - expected)
    errors = np.sqrt((rests**2).sum(0) * 4 / 3) / weights.sum()
    assert np.allclose(grid.stderr_LHC.numpy(), errors, rtol=1e-4)
    assert (grid.count_LHC == 4).all()


def outputs_of(model: PreTrainedModel, example: int) -> tuple[np.ndarray, np.ndarray]:
    """Outputs of heads and gradients with respect to them ``[L, S, H, d]`` of one text alone, by plain autograd."""
    batch, kept = split()[[example]], []

    def keep(_: Any, args: Any) -> None:
        args[0].retain_grad()
        kept.append(args[0])

    handles = [layer.attention.output.dense.register_forward_pre_hook(keep) for layer in model.bert.encoder.layer]
    functional.cross_entropy(model(**batch.inputs()).logits, batch.label_B).backward()
    for handle in handles:
        handle.remove()
    model.zero_grad(set_to_none=True)
    outputs = np.stack([tensor.detach()[0].unflatten(-1, (HEADS, -1)).numpy() for tensor in kept])
    return outputs, np.stack([tensor.grad[0].unflatten(-1, (HEADS, -1)).numpy() for tensor in kept])


def test_head_gradient_equals_a_naive_loop() -> None:
    model = model_of_tokens()
    measure = HeadGradient(LAYERS, HEADS)
    grid, entropy = measure_pass(model, [measure, Entropy(LAYERS, HEADS)], [split()[part] for part in PARTS])
    slopes = []
    for example in range(4):
        output_LSHd, gradient_LSHd = outputs_of(model, example)
        slopes.append((output_LSHd * gradient_LSHd).sum(-1))
    expected = {
        "token": np.mean([np.abs(slope).sum(1) for slope in slopes], 0),
        "example": np.mean([np.abs(slope.sum(1)) for slope in slopes], 0),
        "signed": np.mean([slope.sum(1) for slope in slopes], 0),
    }
    for name, value_LH in expected.items():
        assert np.allclose(grid.column(name).numpy(), value_LH, rtol=1e-6, atol=1e-12), name
    for name in ("token", "example"):
        norm_L = np.linalg.norm(expected[name], axis=1, keepdims=True)
        assert np.allclose(grid.column(f"{name}_normalised").numpy(), expected[name] / norm_L, rtol=1e-6), name
    assert (entropy.count_LHC == 4).any()


def moved(model: PreTrainedModel, layer: int, head: int, mixed: Callable[[Tensor], Tensor]) -> Any:
    """A context in which one head's output ``[B, S, d]`` is another."""

    def replace(_: Any, args: Any) -> Any:
        output_BSHd = args[0].unflatten(-1, (HEADS, -1)).clone()
        output_BSHd[:, :, head] = mixed(output_BSHd[:, :, head])
        return (output_BSHd.flatten(2),)

    return model.bert.encoder.layer[layer].attention.output.dense.register_forward_pre_hook(replace)


def test_first_order_is_the_slope_of_the_exact_loss_along_the_override() -> None:
    model, batch = model_of_tokens(), split()[[0, 1, 2, 3]]
    means_LHd = mean_head_outputs(model, [split()[[2, 3]].inputs()])
    measure = FirstOrder(LAYERS, HEADS)
    (grid,) = measure_pass(model, [measure], [batch], means_LHd=means_LHd)
    for mode in ("zero", "uniform", "mean"):
        for layer, head in ((0, 1), (1, 0), (2, 3)):
            seen: list[Tensor] = []

            def keep(output_BSd: Tensor, seen: list[Tensor] = seen) -> Tensor:
                seen.append(output_BSd.clone())
                return output_BSd

            for edits in ([], [HeadEdit(layer, head, mode)]):
                # The hook sees the head as the override leaves it.
                with override(model, edits, means_LHd), moved(model, layer, head, keep):
                    loss_of(model, batch)
            own_BSd, other_BSd = seen
            ends = []
            for t in (STEP, -STEP):
                with moved(model, layer, head, lambda _, t=t: own_BSd + t * (other_BSd - own_BSd)):  # noqa: B023
                    ends.append(loss_of(model, batch))
            slope = (ends[0] - ends[1]) / (2 * STEP) / 4
            assert float(grid.column(mode)[layer, head]) == pytest.approx(slope, rel=1e-4, abs=1e-7), mode


def test_without_means_the_column_mean_is_empty() -> None:
    (grid,) = measure_pass(model_of_tokens(), [FirstOrder(LAYERS, HEADS)], [split()[[0, 1]]])
    assert grid.column("mean").isnan().all()
    assert grid.column("zero").isfinite().all()


def test_norms_equal_a_naive_loop() -> None:
    model = model_of_tokens()
    (grid,) = measure_pass(model, [ValueNorm(LAYERS, HEADS)], [split()[part] for part in PARTS])
    numbers = np.zeros((4, LAYERS, HEADS, 4))
    for example in range(4):
        maps, batch = maps_of(example), split()[[example]]
        with torch.no_grad():
            states = model(**batch.inputs(), output_hidden_states=True).hidden_states
        for layer in range(LAYERS):
            attention = model.bert.encoder.layer[layer].attention
            width = attention.self.value.out_features // HEADS
            values = attention.self.value(states[layer])[0].detach().numpy()
            weight = attention.output.dense.weight.detach().numpy()
            for head in range(HEADS):
                part = slice(head * width, (head + 1) * width)
                added = [weight[:, part] @ value[part] for value in values]
                weighted = [[a * f for a, f in zip(row, added, strict=True)] for row in maps[layer, head]]
                singular = np.linalg.svd([np.sum(row, 0) for row in weighted], compute_uv=False)
                numbers[example, layer, head] = (
                    np.mean([np.linalg.norm(np.sum(row, 0)) for row in weighted]),
                    np.mean([np.sum([np.linalg.norm(term) for term in row]) for row in weighted]),
                    np.mean([np.linalg.norm(f) for f in added]),
                    (singular**2).sum() ** 2 / (singular**4).sum(),
                )
    assert np.allclose(grid.value_LHC.numpy(), numbers.mean(0), rtol=1e-6)
    assert (grid.column("weighted") >= grid.column("output")).all()


def test_shares_sum_to_the_joint_effect_of_all_heads() -> None:
    model, batches = model_of_tokens(), [split()[[0, 1]], split()[[2, 3]]]
    measure = IntegratedGradients(LAYERS, HEADS, steps=40)
    (grid,) = measure_pass(model, [measure], batches)
    every = [HeadEdit(layer, head, "zero") for layer in range(LAYERS) for head in range(HEADS)]
    with override(model, every):
        disabled = sum(loss_of(model, batch) for batch in batches) / 4
    whole = sum(loss_of(model, batch) for batch in batches) / 4
    assert float(grid.column("share").sum()) == pytest.approx(disabled - whole, rel=1e-4)
    (sums,) = measure.found(grid, model)
    assert (sums.loss, sums.loss_disabled) == pytest.approx((whole, disabled))
    assert sums.total == pytest.approx(float(grid.column("share").sum()))


def test_one_step_is_the_slope_of_half_open_gates() -> None:
    model, batch = model_of_tokens(), split()[[0, 1, 2, 3]]
    (grid,) = measure_pass(model, [IntegratedGradients(LAYERS, HEADS, steps=1)], [batch])

    def at_gates(gate_LH: Tensor) -> float:
        with gated(model, lambda: gate_LH):
            return loss_of(model, batch) / 4

    assert np.allclose(grid.column("share").numpy(), -by_gates(at_gates, 0.5), rtol=1e-4, atol=1e-8)


def test_all_scores_share_a_pass_and_do_not_disturb_each_other() -> None:
    model, batch = model_of_tokens(), split()[[0, 1, 2, 3]]
    kinds = (Confidence, HeadGradient, FirstOrder, ValueNorm, IntegratedGradients)
    together = measure_pass(model, [prepared(kind(LAYERS, HEADS)) for kind in kinds], [batch])
    for kind, grid in zip(kinds, together, strict=True):
        (alone,) = measure_pass(model, [prepared(kind(LAYERS, HEADS))], [batch], context=nullcontext)
        assert torch.allclose(alone.value_LHC, grid.value_LHC, equal_nan=True), kind
