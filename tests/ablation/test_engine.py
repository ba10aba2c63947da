"""The engine against one forward pass for each variant, and against physically removed heads."""

import logging
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from families import FAMILIES, HEADS, MORE_FAMILIES, tiny_batch, tiny_model
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForSequenceClassification
from transformers.pytorch_utils import prune_linear_layer

import bertsecrets.ablation.engine as engine_module
from bertsecrets.ablation.engine import Engine, parts_by_length
from bertsecrets.ablation.plan import Plan, every, every_head, every_layer, groups
from bertsecrets.attention.modes import PER_TOKEN, find_mode, mode_names
from bertsecrets.attention.override import HeadEdit, mean_head_outputs, override
from bertsecrets.errors import UserError
from bertsecrets.results.components import ALL_BUT_ONE

MODES = [name for name in mode_names(sweeps=True) if not find_mode(name).needs & PER_TOKEN]
"""The modes whose variants share passes."""


def whole_plan(mode: str, layers: int, heads: int = HEADS) -> Plan:
    """Variants of every kind: those that part late, early, several times, and not at all."""
    diagonal = [[layer, head] for head in range(heads) for layer in range(layers)]
    generator = random.Random(0)
    random_heads = [generator.sample(diagonal, 3) for _ in range(5)]
    variants = [
        *every_head(layers, heads),
        *every_layer(layers, heads),
        *every(ALL_BUT_ONE, layers, heads),
        *groups([*(diagonal[: size + 1] for size in range(len(diagonal))), *random_heads]),
    ]
    return Plan(mode, layers, heads, tuple(variants))


def other_batches(rows: int = 3) -> list[dict[str, torch.Tensor]]:
    """Two draws of donors, shorter and longer than the examples of ``tiny_batch``."""
    lengths = ((5, 9, 3), (12, 3, 8))
    draws = [tiny_batch(tuple(draw[row % 3] for row in range(rows))) for draw in lengths]
    draws[1]["input_ids"] = torch.where(draws[1]["attention_mask"] == 1, 96 - draws[1]["input_ids"] % 80, 0)
    return draws


@torch.no_grad()
def one_by_one(
    model: Any,
    plan: Plan,
    batch: dict[str, torch.Tensor],
    means_LHd: torch.Tensor,
    draws: Sequence[dict[str, torch.Tensor] | None] = (None,),
) -> torch.Tensor:
    logits = []
    for variant in plan.variants:
        edits = [HeadEdit(layer, head, plan.mode) for layer, head in variant.heads]
        drawn = []
        for donors in draws:
            with override(model, edits, means_LHd, donors=donors):
                drawn.append(model(**batch).logits)
        logits.append(torch.stack(drawn).mean(0))
    return torch.stack(logits, 1)


def donors_of(mode: str, rows: int = 3) -> dict[str, Any]:
    return {"donors": other_batches(rows)} if mode == "resample" else {}


def cases() -> list[Any]:
    """Families, modes and limits; of limits, and of the modes that take most time or share the code of ``mean``, a few
    by default.
    """
    slow = {"resample": ("bert", "albert-groups"), "optimal": ("bert",), "peak": ("bert",)}
    return [
        pytest.param(
            family,
            mode,
            limit,
            marks=[pytest.mark.slow]
            if limit == 11 or (limit and mode != "uniform") or family not in slow.get(mode, FAMILIES)
            else [],
        )
        for family in FAMILIES
        for mode in MODES
        for limit in (None, 11, 40)
    ] + [pytest.param(family, mode, None) for family in MORE_FAMILIES for mode in ("uniform", "zero")]


@pytest.mark.parametrize(("family", "mode", "max_tokens"), cases())
def test_equals_one_forward_pass_for_each_variant(family: str, mode: str, max_tokens: int | None) -> None:
    model, batch = tiny_model(family), tiny_batch()
    # A limit cuts the variants into other shares, which the narrow tolerance tells.
    dtypes = ((torch.float32, 2e-5), (torch.float64, 1e-10))
    for dtype, tolerance in dtypes if max_tokens is None else dtypes[1:]:
        model = model.to(dtype)
        means_LHd = mean_head_outputs(model, [batch])
        plan = whole_plan(mode, model.config.num_hidden_layers)
        engine = Engine(model, plan, constants_LHd=means_LHd, max_tokens=max_tokens)
        assert engine.shares
        clean_BC, logits_BVC = engine.run(batch, **donors_of(mode))
        # The family's head gives the model's own logits, so that no pass was a whole one.
        assert engine.shares
        torch.testing.assert_close(clean_BC, model(**batch).logits.detach(), atol=tolerance, rtol=0)
        expected_BVC = one_by_one(model, plan, batch, means_LHd, *donors_of(mode).values())
        torch.testing.assert_close(logits_BVC, expected_BVC, atol=tolerance, rtol=0)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_modernbert_pools_either_way(pooling: str) -> None:
    model, batch = tiny_model("modernbert").double(), tiny_batch()
    model.config.classifier_pooling = pooling
    plan = whole_plan("uniform", 3)
    means_LHd = mean_head_outputs(model, [batch])
    _, logits_BVC = Engine(model, plan).run(batch)
    torch.testing.assert_close(logits_BVC, one_by_one(model, plan, batch, means_LHd), atol=1e-10, rtol=0)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30)), min_size=1, max_size=12),
    st.integers(1, 200),
    st.integers(1, 12),
)
def test_parts_have_every_row_and_real_token_once_within_the_limit(
    rows: list[tuple[int, int]], max_tokens: int, num_heads: int
) -> None:
    # Padding before and after the tokens; a row may be empty.
    width = max(1, *(before + tokens for before, tokens in rows)) + 2
    real_BS = torch.zeros(len(rows), width, dtype=torch.bool)
    for row, (before, tokens) in enumerate(rows):
        real_BS[row, before : before + tokens] = True
    parts = parts_by_length(real_BS, max_tokens, num_heads)
    assert sorted(row for row_P, _ in parts for row in row_P.tolist()) == [*range(len(rows))]
    for row_P, length in parts:
        assert len(row_P) == 1 or len(row_P) * length <= max_tokens
        assert not real_BS[row_P, length:].any()
        assert length == 1 or real_BS[row_P, length - 1].any()


def test_rows_of_one_length_stay_together_and_long_ones_are_apart_where_their_heads_fill_a_pass() -> None:
    def sizes(lengths: Sequence[int], max_tokens: int) -> list[tuple[int, int]]:
        real_BS = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        return [(len(row_P), length) for row_P, length in parts_by_length(real_BS, max_tokens, num_heads=12)]

    assert sizes([20] * 16, 1024) == [(16, 20)]
    assert sizes([60, 8, 60, 9], 1024) == [(2, 60), (2, 9)]
    # The heads of 120 tokens do not fill an accelerator.
    assert sizes([60, 8, 60, 9], 32768) == [(4, 60)]
    # Shorter by less than an eighth, and by more.
    assert sizes([60, 60, 53, 52], 1024) == [(3, 60), (1, 52)]


def test_zero_equals_a_removed_head() -> None:
    """The library's own pruning of linear maps takes a head away physically."""
    batch = tiny_batch()
    for layer in range(3):
        for head in range(HEADS):
            model = tiny_model("bert").double()
            _, logits_BVC = Engine(model, Plan("zero", 3, HEADS, tuple(every_head(3, HEADS, [layer])))).run(batch)
            attention: Any = model.bert.encoder.layer[layer].attention
            width = attention.self.attention_head_size
            kept = torch.tensor([i for i in range(HEADS * width) if i // width != head])
            for name in ("query", "key", "value"):
                setattr(attention.self, name, prune_linear_layer(getattr(attention.self, name), kept).double())
            attention.output.dense = prune_linear_layer(attention.output.dense, kept, dim=1).double()
            with torch.no_grad():
                pruned_BC = model(**batch).logits
            torch.testing.assert_close(logits_BVC[:, head], pruned_BC, atol=1e-10, rtol=0)


def test_a_family_that_cannot_continue_runs_variant_by_variant_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    from families import CONFIGS

    torch.manual_seed(0)
    config = CONFIGS["deberta-v2"]()
    config.conv_kernel_size, config.num_labels = 3, 3
    config.conv_act = "gelu"
    model = AutoModelForSequenceClassification.from_config(config).eval().double()
    plan = whole_plan("uniform", 3)
    with caplog.at_level(logging.WARNING):
        engine = Engine(model, plan)
    assert not engine.shares
    resampled = Plan("resample", 3, HEADS, tuple(every_head(3, HEADS)))
    _, resampled_BVC = Engine(model, resampled).run(tiny_batch(), donors=other_batches())
    expected_BVC = one_by_one(model, resampled, tiny_batch(), torch.empty(0), other_batches())
    torch.testing.assert_close(resampled_BVC, expected_BVC, atol=1e-12, rtol=0)
    assert "every variant needs a whole forward pass" in caplog.text
    seen: list[int] = []
    _, logits_BVC = engine.run(tiny_batch(), seen.append)
    assert sum(seen) == len(plan.variants)
    torch.testing.assert_close(logits_BVC, one_by_one(model, plan, tiny_batch(), torch.empty(0)), atol=1e-12, rtol=0)


def test_mode_and_random_state_stay_as_they_were() -> None:
    model = tiny_model("bert").train()
    state = torch.get_rng_state()
    Engine(model, whole_plan("uniform", 3)).run(tiny_batch())
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)


def test_progress_counts_every_variant_once() -> None:
    seen: list[int] = []
    for mode in ("uniform", "resample"):
        plan = whole_plan(mode, 3)
        seen.clear()
        Engine(tiny_model("bert"), plan, max_tokens=11).run(tiny_batch(), seen.append, **donors_of(mode))
        assert sum(seen) == len(plan.variants)


def test_halves_when_memory_runs_out(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    model, batch, plan = tiny_model("bert").double(), tiny_batch(), whole_plan("uniform", 3)
    _, expected_BVC = Engine(model, plan).run(batch)
    family: Any = Engine(model, plan).encoder.family
    usual = type(family).after_heads

    def limited(self: Any, layer: Any, output_BSD: torch.Tensor, hidden_BSD: torch.Tensor) -> torch.Tensor:
        if output_BSD.shape[:2].numel() > 66:
            raise torch.OutOfMemoryError("out of memory")
        return usual(self, layer, output_BSD, hidden_BSD)

    monkeypatch.setattr(type(family), "after_heads", limited)
    engine = Engine(model, plan)
    with caplog.at_level(logging.WARNING):
        _, logits_BVC = engine.run(batch)
    assert engine.max_tokens < 1024
    assert "Memory ran out" in caplog.text
    torch.testing.assert_close(logits_BVC, expected_BVC, atol=1e-12, rtol=0)


def test_memory_that_suffices_for_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> None:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(engine_module, "clean_pass", never)
    with pytest.raises(UserError, match="Memory ran out for a single variant of a batch of 3 examples of 11 tokens"):
        Engine(tiny_model("bert"), whole_plan("zero", 3)).run(tiny_batch())


def test_other_errors_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr(engine_module, "clean_pass", broken)
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        Engine(tiny_model("bert"), whole_plan("zero", 3)).run(tiny_batch())


def test_what_does_not_fit_is_refused() -> None:
    model = tiny_model("bert")
    with pytest.raises(UserError, match="plan is for 4 layers of 4 heads, but the model has 3"):
        Engine(model, whole_plan("zero", 4))
    with pytest.raises(UserError, match="needs the heads' mean outputs"):
        Engine(model, whole_plan("mean", 3))
    with pytest.raises(UserError, match=r"shape \[2, 4, 8\]; this model needs \[3, 4, 8\]"):
        Engine(model, whole_plan("mean", 3), constants_LHd=torch.zeros(2, 4, 8))
    with pytest.raises(UserError, match="'optimal' needs the heads' optimal outputs"):
        Engine(model, whole_plan("optimal", 3))
    with pytest.raises(UserError, match="takes the heads' outputs from other examples"):
        Engine(model, whole_plan("resample", 3)).run(tiny_batch())
    with pytest.raises(UserError, match="There are 2 donors for a batch of 3 examples"):
        Engine(model, whole_plan("resample", 3)).run(tiny_batch(), donors=[tiny_batch((4, 5))])
    with pytest.raises(UserError, match="BertModel has no prediction per text"):
        Engine(model.bert, whole_plan("zero", 3)).run(tiny_batch())
    attention: Any = model.bert.encoder.layer[1].attention
    attention.output.dense = prune_linear_layer(attention.output.dense, torch.arange(24), dim=1)
    with pytest.raises(UserError, match="The heads of layer 1 have 24 outputs in total instead of 32"):
        Engine(model, whole_plan("zero", 3))
