"""Direct and total effects: models where they must agree, a compensating head, and a pass by hand."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from ablation.test_replacements import split_of
from families import CONFIGS, HEADS, tiny_batch, tiny_model
from scipy import stats
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, BertConfig, BertForSequenceClassification

from bertsecrets.ablation.direct import DirectEffects, DirectEngine, take_effects
from bertsecrets.ablation.plan import Plan, every_head
from bertsecrets.ablation.rows import EarlyHeads
from bertsecrets.attention.override import HeadEdit, override
from bertsecrets.errors import UserError


@torch.no_grad()
def compensating(answer: float) -> BertForSequenceClassification:
    """Head 0 of layer 0 writes to a direction that decides the class; head 0 of layer 1 writes ``answer`` times what it
    reads.
    """
    config = BertConfig(
        vocab_size=100,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=8,
        num_labels=3,
    )
    model = BertForSequenceClassification(config).eval().double()
    for name, parameter in model.named_parameters():
        if "LayerNorm.weight" not in name:
            parameter.zero_()
    model.bert.embeddings.word_embeddings.weight[:] = torch.tensor([0, 0, 1, -1, 1, -1, 1, -1.0])
    direction = torch.tensor([1.0, -1, 0, 0, 0, 0, 0, 0])
    first, second = (layer.attention for layer in model.bert.encoder.layer)
    first.self.value.bias[0] = 1
    first.output.dense.weight[:, 0] = direction
    second.self.value.weight[0] = direction
    second.output.dense.weight[:, 0] = answer * direction
    model.bert.pooler.dense.weight.copy_(torch.eye(8))
    model.classifier.weight[0, 0] = 2
    return model


@pytest.mark.parametrize("answer", [-0.4, 0.4])
def test_a_later_head_that_compensates_makes_the_total_effect_smaller(answer: float) -> None:
    split = split_of([3, 5, 4])
    for example in split.examples:
        object.__setattr__(example, "label", 0)
    measure = DirectEffects(2, 2, "zero")
    take_effects(compensating(answer), [split[[0, 1, 2]]], measure, context=nullcontext)
    grid = measure.compute()
    direct, total, undone = (grid.column(name)[0, 0].item() for name in ("direct", "total", "undone"))
    assert direct > 0.05
    assert total > 0.05
    assert undone == pytest.approx(direct - total)
    # With -0.4 less than what head 0 writes is left at the end, and the later head writes nothing if it is disabled.
    assert (undone > 0.05) if answer < 0 else (undone < -0.05)
    assert grid.column("direct")[0, 1].item() == pytest.approx(0, abs=1e-12)


@torch.no_grad()
def by_hand(model: Any, batch: dict[str, Tensor], layer: int, head: int) -> Tensor:
    """BERT's layers above the head with the clean outputs of attention and feed-forward network, from the modules' own
    parts.
    """
    layers = model.bert.encoder.layer
    kept: dict[tuple[int, str], Tensor] = {}
    handles = [
        module.register_forward_hook(lambda m, args, output, key=(index, name): kept.__setitem__(key, output))
        for index, block in enumerate(layers)
        for name, module in (("attention", block.attention.output.dense), ("network", block.output.dense))
    ]
    model(**batch)
    for handle in handles:
        handle.remove()
    outputs: list[Tensor] = []
    handle = layers[layer].register_forward_hook(
        lambda m, args, output: outputs.append(output[0] if isinstance(output, tuple) else output)
    )
    with override(model, [HeadEdit(layer, head, "uniform")]):
        model(**batch)
    handle.remove()
    (stream_BSD,) = outputs
    for index in range(layer + 1, len(layers)):
        middle_BSD = layers[index].attention.output.LayerNorm(stream_BSD + kept[index, "attention"])
        stream_BSD = layers[index].output.LayerNorm(middle_BSD + kept[index, "network"])
    logits: Tensor = model.classifier(model.bert.pooler(stream_BSD))
    return logits


def test_direct_logits_equal_a_pass_by_hand() -> None:
    model, batch = tiny_model("bert").double(), tiny_batch()
    plan = Plan("uniform", 3, HEADS, tuple(every_head(3, HEADS)))
    _, logits_BVC = DirectEngine(model, plan, max_tokens=40).run(batch)
    for index, variant in enumerate(plan.variants):
        expected_BC = by_hand(model, batch, *variant.heads[0])
        torch.testing.assert_close(logits_BVC[:, index], expected_BC, atol=1e-10, rtol=0)


@pytest.mark.parametrize("family", ["albert", "distilbert", "mpnet", "deberta-v3", "modernbert"])
def test_in_every_family_the_last_layers_effect_is_the_whole_and_that_of_a_lower_one_is_not(family: str) -> None:
    model, batch = tiny_model(family).double(), tiny_batch()
    layers = model.config.num_hidden_layers
    plan = Plan("zero", layers, HEADS, tuple(every_head(layers, HEADS)))
    _, logits_BVC = DirectEngine(model, plan).run(batch)
    with torch.no_grad():
        clean_BC = model(**batch).logits
        with override(model, [HeadEdit(layers - 1, 2, "zero")]):
            last_BC = model(**batch).logits
        with override(model, [HeadEdit(0, 2, "zero")]):
            total_BC = model(**batch).logits
    index = (layers - 1) * HEADS + 2
    torch.testing.assert_close(logits_BVC[:, index], last_BC, atol=1e-10, rtol=0)
    assert (logits_BVC[:, 2] - total_BC).abs().max() > 1e-4
    assert (logits_BVC[:, 2] - clean_BC).abs().max() > 1e-4


def test_a_family_that_cannot_continue_is_refused() -> None:
    config = CONFIGS["deberta-v2"]()
    config.conv_kernel_size, config.num_labels, config.conv_act = 3, 3, "gelu"
    model = AutoModelForSequenceClassification.from_config(config).eval()
    with pytest.raises(UserError, match="Direct effects need an adapter that runs single layers"):
        DirectEngine(model, Plan("zero", 3, HEADS, tuple(every_head(3, HEADS))))


def early_of(direct: float, total: float, *, batches: int = 3) -> tuple[EarlyHeads, np.ndarray]:
    """What the measure finds of effects drawn for 3 layers of 2 heads, and direct and total sums ``[examples, 2]``."""
    generator = torch.Generator().manual_seed(0)
    effects_NLHC = torch.randn(30, 3, 2, 3, generator=generator, dtype=torch.float64)
    effects_NLHC[..., 0] += direct
    effects_NLHC[..., 1] += total
    measure = DirectEffects(3, 2)
    for part_BLHC in effects_NLHC.chunk(batches):
        measure.take(SimpleNamespace(size=len(part_BLHC)), part_BLHC)
    (early,) = measure.found(measure.compute(), nn.Identity())
    return early, effects_NLHC[:, :2, :, :2].sum((1, 2)).numpy()


@pytest.mark.parametrize("total", [0.5, -1.0, 2.0])
def test_the_ratio_of_total_to_direct_effect_has_the_limits_of_t_tests(total: float) -> None:
    early, sum_N2 = early_of(1.0, total)
    assert (early.direct.value, early.total.value) == pytest.approx(tuple(sum_N2.mean(0)))
    assert (early.direct.stderr, early.total.stderr) == pytest.approx(tuple(stats.sem(sum_N2)))
    for limit in (early.ratio.low, early.ratio.high):
        assert stats.ttest_1samp(sum_N2[:, 1] - limit * sum_N2[:, 0], 0).pvalue == pytest.approx(0.05, abs=1e-6)
    assert early.ratio.low < early.ratio.value < early.ratio.high
    # The last layer and the split into batches play no part.
    assert early.ratio.value == pytest.approx(sum_N2[:, 1].mean() / sum_N2[:, 0].mean())
    other, _ = early_of(1.0, total, batches=1)
    assert early.ratio.high == pytest.approx(other.ratio.high)


def test_effects_around_zero_have_no_ratio() -> None:
    early, sum_N2 = early_of(0.0, 0.0)
    assert stats.ttest_1samp(sum_N2[:, 0], 0).pvalue > 0.05
    assert early.ratio is None
