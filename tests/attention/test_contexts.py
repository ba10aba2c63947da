"""Nesting, exceptions, threads, training mode, compilation, autocast and bad input."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from families import HEADS, LAYERS, WIDTH, heads_outputs, tiny_batch, tiny_model
from torch import Tensor
from transformers import PreTrainedModel

from bertsecrets.attention.override import HeadEdit, mean_head_outputs, override, peak_head_outputs
from bertsecrets.attention.watch import capture, map_stream, watch
from bertsecrets.errors import UserError


def logits(model: torch.nn.Module, batch: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        return model(**batch).logits


def test_nothing_is_left_behind_after_an_exception() -> None:
    model, batch = tiny_model("bert"), tiny_batch()
    clean = logits(model, batch)

    def fail(layer: int, attention: Tensor) -> None:
        raise RuntimeError("observer")

    with pytest.raises(RuntimeError, match="observer"), watch(model, fail):
        logits(model, batch)
    with pytest.raises(RuntimeError, match="inside"), override(model, [HeadEdit(0, 0)]):
        raise RuntimeError("inside")
    assert torch.equal(logits(model, batch), clean)
    assert model.config._attn_implementation == "sdpa"
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_contexts_nest_and_the_inner_one_counts() -> None:
    model, batch = tiny_model("bert"), tiny_batch()
    with override(model, [HeadEdit(1, 0, "uniform")]):
        uniform = logits(model, batch)
        with override(model, [HeadEdit(1, 0, "zero")]):
            inner = logits(model, batch)
        assert torch.equal(logits(model, batch), uniform)
    with override(model, [HeadEdit(1, 0, "zero")]):
        assert torch.equal(logits(model, batch), inner)
    with override(model, [HeadEdit(0, 1)]), override(model, [HeadEdit(2, 3)]):
        nested = logits(model, batch)
    with override(model, [HeadEdit(0, 1), HeadEdit(2, 3)]):
        assert torch.equal(logits(model, batch), nested)


def test_two_observers_see_the_same_maps() -> None:
    model, batch = tiny_model("bert"), tiny_batch()
    first: list[Tensor] = []
    second: list[Tensor] = []
    with watch(model, lambda _, a: first.append(a)), watch(model, lambda _, a: second.append(a)):
        logits(model, batch)
    assert len(first) == len(second) == LAYERS
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_training_mode_shows_maps_before_dropout_and_changes_no_random_number() -> None:
    model, batch = tiny_model("bert"), tiny_batch()
    model.train()
    rows: list[float] = []
    torch.manual_seed(3)
    plain = model(**batch).logits
    torch.manual_seed(3)
    with watch(model, lambda _, a: rows.append(a[0].sum(-1).sub(1).abs().max().item())):
        watched = model(**batch).logits
    assert torch.equal(plain, watched)
    assert max(rows) < 1e-5


@pytest.mark.parametrize("context", ["watch", "override"])
def test_one_model_has_one_owner(context: str) -> None:
    """While a thread watches or overrides a model, any other thread that uses it is refused."""
    model, batch = tiny_model("bert"), tiny_batch()
    clean = logits(model, batch)

    def overridden() -> None:
        with override(model, [HeadEdit(0, 1)]):
            logits(model, batch)

    opened = watch(model, lambda *_: None) if context == "watch" else override(model, [HeadEdit(1, 0)])
    refusal = "^Thread 'second_0' uses a model whose heads are watched or overridden in thread 'MainThread'"
    with ThreadPoolExecutor(1, "second") as second:
        with opened:
            expected = logits(model, batch)
            for use in (overridden, lambda: logits(model, batch)):
                with pytest.raises(UserError, match=refusal):
                    second.submit(use).result()
            assert torch.equal(logits(model, batch), expected)
            overridden()
        second.submit(overridden).result()
    assert torch.equal(logits(model, batch), clean)


def test_models_in_two_threads_do_not_disturb_each_other() -> None:
    batch = tiny_batch()
    models = [tiny_model("bert", seed=seed) for seed in (0, 1)]
    edits = [HeadEdit(0, 1, "zero"), HeadEdit(2, 2, "uniform")]
    alone = []
    for model, edit in zip(models, edits, strict=True):
        with override(model, [edit]):
            alone.append(logits(model, batch))
    barrier = threading.Barrier(2)

    def work(i: int) -> list[Tensor]:
        barrier.wait()
        found = []
        for _ in range(20):
            with override(models[i], [edits[i]]), watch(models[i], lambda *_: None):
                found.append(logits(models[i], batch))
        return found

    with ThreadPoolExecutor(2) as threads:
        for found, expected in zip(threads.map(work, range(2)), alone, strict=True):
            assert all(torch.equal(one, expected) for one in found)


@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 7), reason="there transformers cannot run a compiled BERT"
)
def test_a_compiled_model_is_watched_and_overridden() -> None:
    """A compiled graph ignores later hooks: without eager execution the override would silently do nothing."""
    model, batch = tiny_model("bert"), tiny_batch()
    with override(model, [HeadEdit(1, 1)]):
        expected = logits(model, batch)
    model.compile(backend="eager")
    clean = logits(model, batch)
    seen: list[int] = []
    with watch(model, lambda layer, _: seen.append(layer)), override(model, [HeadEdit(1, 1)]):
        overridden = logits(model, batch)
    assert seen == [0, 1, 2]
    assert (overridden - expected).abs().max() < 1e-6
    assert (overridden - clean).abs().max() > 1e-4
    assert torch.equal(logits(model, batch), clean)


def test_maps_are_float32_under_autocast_and_double_in_a_double_model() -> None:
    model, batch = tiny_model("bert"), tiny_batch()
    maps: list[Tensor] = []
    with (
        torch.autocast("cpu", torch.bfloat16),
        watch(model, lambda _, a: maps.append(a)),
        override(model, [HeadEdit(0, 0, "uniform")]),
    ):
        logits(model, batch)
    assert all(a.dtype == torch.float32 and (a[0].sum(-1) - 1).abs().max() < 1e-5 for a in maps)
    maps.clear()
    model.double()
    with watch(model, lambda _, a: maps.append(a)):
        logits(model, batch)
    assert all(a.dtype == torch.float64 for a in maps)


def test_gradients_flow_through_an_override() -> None:
    model, batch = tiny_model("bert"), tiny_batch()
    with override(model, [HeadEdit(1, 0, "zero")]):
        model(**batch).logits.sum().backward()
    value = model.bert.encoder.layer[1].attention.self.value.weight.grad.view(HEADS, -1, WIDTH)
    assert value[0].abs().max() == 0
    assert value[1].abs().max() > 0


@pytest.mark.parametrize("family", ["bert", "deberta-v2"])
def test_gradient_checkpointing_shows_each_layer_once_and_overrides_both_passes(family: str) -> None:
    batch = tiny_batch()
    gradients = []
    for checkpointing in (False, True):
        model = tiny_model(family)
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        model.train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        seen: list[int] = []
        with watch(model, lambda layer, _, seen=seen: seen.append(layer)), override(model, [HeadEdit(1, 0, "uniform")]):
            model(**batch).logits.sum().backward()
        assert seen == [0, 1, 2]
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert (gradients[0] - gradients[1]).abs().max() < 1e-4 * gradients[0].abs().max()


def outputs_of_last_layer(model: PreTrainedModel, batches: list[dict[str, Tensor]]) -> Tensor:
    """The outputs of all heads at the real tokens, ``[N, heads, d]`` float64."""
    return torch.cat([heads_outputs(model, batch)[-1][batch["attention_mask"].bool()] for batch in batches]).double()


def test_mean_head_outputs_equal_a_naive_mean() -> None:
    model = tiny_model("roberta")
    batches = [tiny_batch((9, 5), pad_id=1), tiny_batch((4,), pad_id=1)]
    expected = outputs_of_last_layer(model, batches).mean(0)
    assert (mean_head_outputs(model, batches)[2] - expected).abs().max() < 1e-6


def test_peaks_of_head_outputs_equal_those_of_numpy_histograms() -> None:
    model = tiny_model("roberta")
    batches = [tiny_batch((9, 12), pad_id=1), tiny_batch((8,), pad_id=1)]
    output_NHd = outputs_of_last_layer(model, batches).numpy()
    peak_Hd = peak_head_outputs(model, batches)[2].numpy()
    for head, dimension in np.ndindex(peak_Hd.shape):
        values_N = output_NHd[:, head, dimension]
        reach = 2 * values_N.std()
        counts, edges = np.histogram(values_N, 40, (values_N.mean() - reach, values_N.mean() + reach))
        fullest = counts.argmax()
        assert peak_Hd[head, dimension] == pytest.approx((edges[fullest] + edges[fullest + 1]) / 2, abs=1e-6)


def test_capture_crops_to_real_tokens() -> None:
    model = tiny_model("bert")
    batch = tiny_batch((8, 5))
    maps = capture(model, batch)
    assert [tuple(one.shape) for one in maps] == [(LAYERS, HEADS, 8, 8), (LAYERS, HEADS, 5, 5)]
    alone = capture(model, {name: tensor[1:, :5] for name, tensor in batch.items()})
    assert (maps[1] - alone[0]).abs().max() < 1e-6


def test_a_stream_gives_one_layer_at_a_time_and_can_be_abandoned() -> None:
    model, batch = tiny_model("bert"), tiny_batch()
    whole: list[Tensor] = []
    with watch(model, lambda _, a: whole.append(a)):
        logits(model, batch)
    assert all(torch.equal(a, b) for a, b in zip(map_stream(model, lambda: model(**batch)), whole, strict=True))
    before = threading.active_count()
    stream = map_stream(model, lambda: model(**batch))
    next(stream)
    assert threading.active_count() == before + 1
    stream.close()
    assert threading.active_count() == before
    assert model.config._attn_implementation == "sdpa"

    def fail() -> None:
        raise ValueError("in the pass")

    with pytest.raises(ValueError, match="in the pass"):
        next(map_stream(model, fail))


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ([HeadEdit(3, 0)], "Layer 3 does not exist.*0 to 2"),
        ([HeadEdit(-1, 0)], "Layer -1 does not exist"),
        ([HeadEdit(0, 4)], "Head 4 does not exist.*0 to 3"),
        ([HeadEdit(0, 1), HeadEdit(0, 1, "uniform")], "listed twice"),
        ([HeadEdit(0, 1, "unifrom")], "did you mean 'uniform'"),
        ([HeadEdit(0, 1, "mean")], "mean_head_outputs"),
        ([HeadEdit(0, 1, "peak")], "peak_head_outputs"),
        ([HeadEdit(0, 1, "optimal")], "optimal_head_outputs"),
        ([HeadEdit(0, 1, "resample")], "needs the heads' outputs on other examples; pass these as donors"),
    ],
)
def test_bad_edits_are_reported_in_one_sentence(edits: list[HeadEdit], message: str) -> None:
    with pytest.raises(UserError, match=message), override(tiny_model("bert"), edits):
        pass


def test_a_module_without_a_model_is_reported() -> None:
    with (
        pytest.raises(UserError, match="contains no transformers model"),
        watch(torch.nn.Linear(1, 1), lambda *_: None),
    ):
        pass
