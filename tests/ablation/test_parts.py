"""Sublayers and blocks that are left out, against models without them: zeroed weights, and layers that pass their input
on.
"""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from families import FAMILIES, HEADS, MORE_FAMILIES, tiny_batch, tiny_model
from scipy import stats
from torch import nn
from transformers import AutoModelForSequenceClassification, XLMConfig

from bertsecrets.ablation.engine import Engine
from bertsecrets.ablation.judging import sublayer_differences
from bertsecrets.ablation.outcomes import Outcomes
from bertsecrets.ablation.plan import Plan, Variant, every, every_head
from bertsecrets.ablation.screening import why_not
from bertsecrets.attention.parts import without_parts
from bertsecrets.data.task import Task
from bertsecrets.errors import UserError
from bertsecrets.models.encoder import describe
from bertsecrets.models.families import FAMILIES as ADAPTERS
from bertsecrets.results.components import ATTENTION, BLOCK, FEED_FORWARD, NEURONS, PARTS

LAYERS = 3
BERT = ("encoder.layer", "attention.output.dense", "output.dense")
PATHS = {
    "albert": ("encoder.albert_layer_groups.0.albert_layers", "attention.dense", "ffn_output"),
    "distilbert": ("transformer.layer", "attention.out_lin", "ffn.lin2"),
    "mpnet": ("encoder.layer", "attention.attn.o", "output.dense"),
    "modernbert": ("layers", "attn.Wo", "mlp.Wo"),
    "jina_embeddings_v3": ("layers", "self_attn.o_proj", "mlp.fc2"),
    **dict.fromkeys(
        ("nomic_bert", "gte", "eurobert", "eurobert-grouped"), ("layers", "self_attn.o_proj", "mlp.down_proj")
    ),
}
"""Layers, and the last linear map of each sublayer."""

TASK = Task(name="toy", metrics=("accuracy",), texts=1, labels=("a", "b", "c"))
ALONE = [
    *(variant for kind in PARTS for variant in every(kind, LAYERS, HEADS)),
    *every(NEURONS, LAYERS, HEADS, [0, LAYERS - 1]),
]
MIXED = [
    Variant("several", "group", ((0, 1), (2, 3)), parts=((0, "ffn"), (2, "ffn"))),
    Variant("last", "group", ((2, 0),), parts=((0, "block"), (2, "ffn"))),
    Variant("both", "group", (), parts=((1, "attention"), (1, "ffn"))),
    Variant("neurons", "group", ((1, 2),), parts=((1, "neurons-0"), (1, "neurons-3"), (2, "attention"))),
    Variant("blocks", "group", ((1, 2),), parts=((0, "block"), (2, "block"))),
]


class Passed(nn.Module):
    """A layer that passes its input on."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer
        # ModernBERT asks its layers for it.
        self.attention_type = getattr(layer, "attention_type", None)

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        output = self.layer(hidden_states, *args, **kwargs)
        return (hidden_states, *output[1:]) if isinstance(output, tuple) else hidden_states


def reduced(model: Any, family: str, variant: Variant) -> Any:
    """A copy of a model that lacks the variant's heads (mode ``zero``) and parts by its weights and layers."""
    layers_path, attention, feed_forward = PATHS.get(family, BERT)
    model = copy.deepcopy(model)
    layers: Any = model.base_model.get_submodule(layers_path)
    with torch.no_grad():
        for layer, head in variant.heads:
            weight = layers[layer].get_submodule(attention).weight
            width = weight.shape[1] // HEADS
            weight[:, head * width : (head + 1) * width] = 0
        for layer, name in variant.parts:
            if name == "block":
                layers[layer] = Passed(layers[layer])
                continue
            if name.startswith("neurons-"):
                weight = layers[layer].get_submodule(feed_forward).weight
                width = weight.shape[1] // HEADS
                weight[:, int(name[8:]) * width : (int(name[8:]) + 1) * width] = 0
                continue
            for parameter in (
                layers[layer].get_submodule(attention if name == "attention" else feed_forward).parameters()
            ):
                parameter.zero_()
    return model


@pytest.mark.parametrize("max_tokens", [None, pytest.param(11, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "family", [family for family in (*FAMILIES, *MORE_FAMILIES) if not family.startswith(("albert", "mobilebert"))]
)
@torch.no_grad()
def test_the_engine_equals_a_model_without_the_part(family: str, max_tokens: int | None) -> None:
    model, batch = tiny_model(family).double(), tiny_batch()
    variants = (*ALONE, *every_head(LAYERS, HEADS, [0, LAYERS - 1]), *MIXED)
    engine = Engine(model, Plan("zero", LAYERS, HEADS, variants), max_tokens=max_tokens)
    assert engine.shares
    clean_BC, logits_BVC = engine.run(batch)
    # In parts, sums run over fewer rows.
    torch.testing.assert_close(clean_BC, model(**batch).logits, atol=0 if max_tokens is None else 1e-12, rtol=0)
    for index, variant in enumerate(variants):
        expected_BC = reduced(model, family, variant)(**batch).logits
        torch.testing.assert_close(logits_BVC[:, index], expected_BC, atol=1e-10, rtol=0, msg=variant.name)
        if variant.parts:
            assert (expected_BC - clean_BC).abs().max() > 1e-3


@pytest.mark.parametrize("mode", ["uniform", "identity"])
@torch.no_grad()
def test_shared_weights_lack_the_part_in_one_layer_only(mode: str) -> None:
    """In ALBERT one module serves all layers: hooks that count its calls. Mode ``identity`` takes a pass for each
    variant.
    """
    model, batch = tiny_model("albert").double(), tiny_batch()
    layers_path, attention, feed_forward = PATHS["albert"]
    shared: Any = model.base_model.get_submodule(layers_path)[0]
    _, logits_BVC = Engine(model, Plan(mode, LAYERS, HEADS, (*ALONE, *every_head(LAYERS, HEADS)))).run(batch)
    for index, variant in enumerate(ALONE):
        ((wanted, name),) = variant.parts
        calls = 0

        def change(_: nn.Module, args: Any, output: Any, wanted: int = wanted, name: str = name) -> Any:
            nonlocal calls
            calls += 1
            if calls - 1 != wanted:
                return output
            return args[0] if name == "block" else torch.zeros_like(output)

        def silence(_: nn.Module, args: Any, wanted: int = wanted, name: str = name) -> Any:
            nonlocal calls
            calls += 1
            width = args[0].shape[-1] // HEADS
            group_RSF = args[0].unflatten(-1, (HEADS, width)).clone()
            if calls - 1 == wanted:
                group_RSF[..., int(name[8:]), :] = 0
            return (group_RSF.flatten(-2),)

        paths = {"attention": attention, "ffn": feed_forward}
        if name.startswith("neurons-"):
            handle = shared.get_submodule(feed_forward).register_forward_pre_hook(silence)
        else:
            handle = (shared.get_submodule(paths[name]) if name in paths else shared).register_forward_hook(change)
        expected_BC = model(**batch).logits
        handle.remove()
        assert calls == LAYERS
        torch.testing.assert_close(logits_BVC[:, index], expected_BC, atol=1e-10, rtol=0, msg=variant.name)


@pytest.mark.parametrize("family", ["bert", "deberta-v3", "modernbert"])
@torch.no_grad()
def test_a_whole_pass_without_parts_equals_a_model_without_them(family: str) -> None:
    model, batch = tiny_model(family).double(), tiny_batch()
    before_BC = model(**batch).logits
    for variant in (*ALONE, MIXED[2]):
        with without_parts(model_encoder := describe(model), variant.parts):
            logits_BC = model_encoder.model(**batch).logits
        torch.testing.assert_close(logits_BC, reduced(model, family, variant)(**batch).logits, atol=1e-10, rtol=0)
    torch.testing.assert_close(model(**batch).logits, before_BC, atol=0, rtol=0)


def test_a_family_without_an_adapter_says_so() -> None:
    config = XLMConfig(vocab_size=97, emb_dim=32, n_layers=2, n_heads=4, num_labels=3)
    model = AutoModelForSequenceClassification.from_config(config)
    with pytest.raises(UserError, match="adapter"):
        Engine(model, Plan("zero", 2, 4, tuple(every(ATTENTION, 2, 4))))


def test_a_family_that_does_not_name_its_feed_forward_sublayer_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("bert")
    monkeypatch.setattr(type(ADAPTERS["bert"]), "feed_forward_output", "mlp.down")
    with pytest.raises(UserError, match=r"The family Bert names 'mlp\.down' in BertLayer"):
        Engine(model, Plan("zero", LAYERS, HEADS, tuple(every(FEED_FORWARD, LAYERS, HEADS))))
    # Heads need no such path.
    Engine(model, Plan("zero", LAYERS, HEADS, tuple(every_head(LAYERS, HEADS))))


def test_parts_are_not_screened() -> None:
    encoder = describe(tiny_model("bert"))
    plan = Plan("zero", LAYERS, HEADS, (*every_head(LAYERS, HEADS), *every(BLOCK, LAYERS, HEADS)))
    assert why_not(TASK, plan, encoder) == "the effect of a sublayer or block cannot be estimated to first order"


def sublayer_outcomes(logits_NVC: torch.Tensor) -> Outcomes:
    """Three layers' attention and feed-forward sublayers; the clean model is right in three of four examples."""
    count = len(logits_NVC)
    variants = (*every(FEED_FORWARD, 3, 2), *every(ATTENTION, 3, 2))
    label_N = torch.arange(count) % 3
    clean_NC = nn.functional.one_hot((label_N + (torch.arange(count) % 4 == 0)) % 3, 3).float()
    return Outcomes(Plan("zero", 3, 2, variants), torch.arange(count), label_N.float(), clean_NC, logits_NVC)


def test_the_kinds_of_sublayers_are_compared_by_a_t_interval_over_examples() -> None:
    """Of accuracy: scipy's t interval of each example's mean difference in right answers over layers."""
    outcomes = sublayer_outcomes(torch.randn(80, 6, 3, generator=torch.Generator().manual_seed(0)))
    (row,) = sublayer_differences(outcomes, TASK, 0.9)
    assert (row.metric, row.mode, row.layers) == ("accuracy", "zero", 3)
    right_NV = outcomes.logits_NVC.argmax(-1).eq(outcomes.label_N[:, None]).double().numpy()
    clean_N = outcomes.clean_NC.argmax(-1).eq(outcomes.label_N).double().numpy()
    value_N = right_NV[:, 3:].mean(1) - right_NV[:, :3].mean(1)
    interval = stats.ttest_1samp(value_N, 0).confidence_interval(0.9)
    np.testing.assert_allclose(
        [row.difference.value, row.difference.low, row.difference.high], [value_N.mean(), *interval], atol=1e-12
    )
    assert row.attention == pytest.approx(right_NV[:, 3:].mean() - clean_N.mean())
    assert row.feed_forward == pytest.approx(right_NV[:, :3].mean() - clean_N.mean())


def test_kinds_that_were_left_out_of_different_layers_are_not_compared() -> None:
    outcomes = sublayer_outcomes(torch.randn(20, 6, 3))
    fewer = Plan("zero", 3, 2, outcomes.plan.variants[:5])
    assert not sublayer_differences(
        Outcomes(fewer, outcomes.index_N, outcomes.label_N, outcomes.clean_NC, outcomes.logits_NVC[:, :5]),
        TASK,
        0.95,
    )


def test_outcomes_with_parts_are_read_as_they_were_written(tmp_path: Any) -> None:
    outcomes = sublayer_outcomes(torch.randn(20, 6, 3))
    outcomes.write(tmp_path / "outcomes.safetensors", TASK)
    assert Outcomes.read(tmp_path / "outcomes.safetensors").plan == outcomes.plan
