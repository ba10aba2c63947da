"""Screened sweeps against the exact one."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data.tasks import task
from data.toy import wordpiece
from families import HEADS, batch_of, tiny_batch, tiny_model
from safetensors import safe_open
from scipy.stats import binom, hypergeom

import bertsecrets.ablation.arithmetic as arithmetic_module
import bertsecrets.ablation.forecast as forecast_module
import bertsecrets.ablation.screening as screening_module
from bertsecrets.ablation.arithmetic import OneDnnLinear, by_onednn, prefers_bf16, why_not_bf16, within
from bertsecrets.ablation.engine import Engine
from bertsecrets.ablation.exact import exact_sweep
from bertsecrets.ablation.outcomes import Outcomes, margins
from bertsecrets.ablation.pairs import first_order_changes
from bertsecrets.ablation.plan import Plan, Variant, every_head, every_layer, groups
from bertsecrets.ablation.screening import (
    Screening,
    missed_bound,
    screened_sweep,
    why_not,
)
from bertsecrets.ablation.settings import BF16, FP32, AblationSettings, Precision
from bertsecrets.analysis import Context
from bertsecrets.attention.override import HeadEdit, override
from bertsecrets.data.batch import Batch
from bertsecrets.data.example import Example
from bertsecrets.data.task import Task
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.models.encoder import describe

CLASSES = Task(name="toy", metrics=("accuracy",), texts=1, labels=("a", "b", "c"))


def scaled_model(size: float = 0.1, name: str = "bert") -> Any:
    """A tiny model whose heads matter to it."""
    model = tiny_model(name)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(size * torch.randn(parameter.shape, generator=generator))
    return model


def batches(count: int = 12, rows: int = 4) -> list[Batch]:
    generator = torch.Generator().manual_seed(5)
    built = []
    for index in range(count):
        lengths = torch.randint(3, 10, (rows,), generator=generator).tolist()
        inputs = tiny_batch(tuple(lengths))
        real_BS = inputs["attention_mask"].bool()
        inputs["input_ids"] = torch.randint(5, 90, real_BS.shape, generator=generator).where(real_BS, 0)
        built.append(batch_of(inputs, torch.randint(0, 3, (rows,), generator=generator), index * rows))
    return built


def plan_of(model: Any, mode: str = "uniform", variants: Sequence[Variant] | None = None) -> Plan:
    layers = model.config.num_hidden_layers
    return Plan(mode, layers, HEADS, tuple(variants or [*every_head(layers, HEADS), *every_layer(layers, HEADS)]))


@pytest.mark.parametrize("mode", ["uniform", "zero", "mean"])
@pytest.mark.parametrize("name", ["bert", "mpnet", "distilbert"])
def test_first_order_changes_are_slopes_of_the_exact_ones(name: str, mode: str) -> None:
    """The derivative at t = 0 of the logits with the output at o + t (r - o), by central differences."""
    model = scaled_model(0.05, name).double()
    layers, batch = model.config.num_hidden_layers, tiny_batch((5, 9, 3))
    width = model.config.hidden_size // HEADS
    constants_LHd = torch.randn(layers, HEADS, width, dtype=torch.float64) if mode == "mean" else None
    engine = Engine(model, plan_of(model, mode), constants_LHd=constants_LHd)
    change_BVC = first_order_changes(engine, batch).double()
    for index in (1, HEADS + 2, len(engine.plan.variants) - 1):
        heads = engine.plan.variants[index].heads
        projection: Any = describe(model).sites[heads[0][0]].projection
        outputs: list[torch.Tensor] = []
        for edits in ([], [HeadEdit(layer, head, mode) for layer, head in heads]):
            # The hook sees the heads as the override leaves them.
            with (
                torch.no_grad(),
                override(model, edits, constants_LHd),
                projection.register_forward_pre_hook(lambda _, args, seen=outputs: seen.append(args[0])),
            ):
                model(**batch)
        own_BSD, other_BSD = outputs
        slopes = []
        for step in (1e-5, -1e-5):
            moved_BSD = own_BSD + step * (other_BSD - own_BSD)
            with (
                torch.no_grad(),
                projection.register_forward_pre_hook(lambda _, args, moved=moved_BSD: (moved, *args[1:])),
            ):
                slopes.append(model(**batch).logits / 2e-5)
        slope_BC = slopes[0] - slopes[1]
        torch.testing.assert_close(change_BVC[:, index, 1], slope_BC[:, 1] - slope_BC[:, 0], atol=1e-6, rtol=1e-5)


def test_everything_is_exact_where_the_audit_takes_all() -> None:
    model = scaled_model()
    exact = exact_sweep(model, plan_of(model), batches())
    screened, record = screened_sweep(model, plan_of(model), batches(), Screening(audit=1.0))
    torch.testing.assert_close(screened.logits_NVC, exact.logits_NVC, atol=1e-6, rtol=1e-5)
    assert record.evaluated == record.pairs == exact.logits_NVC.shape[0] * exact.logits_NVC.shape[1]
    assert record.bound == 0
    assert (screened.weight_NV == 1).all()


def scales_by_hand(first_NVC: torch.Tensor, clean_NC: torch.Tensor, pilot: list[int]) -> torch.Tensor:
    """The square root of each example's sensitivity, in loops."""
    changes = []
    for logits_VC, clean_C in zip(first_NVC.tolist(), clean_NC.tolist(), strict=True):
        best = max(range(len(clean_C)), key=clean_C.__getitem__)
        clean, *estimates = (
            row[best] - max(value for index, value in enumerate(row) if index != best) for row in (clean_C, *logits_VC)
        )
        changes.append([estimate - clean for estimate in estimates])
    change_NV = np.array(changes)
    usual_V = np.sqrt((change_NV[pilot] ** 2).mean(0))
    return torch.from_numpy(np.sqrt(np.sqrt(((change_NV / usual_V) ** 2).mean(1))))


@pytest.mark.parametrize(("max_tokens", "bytes_of_layers"), [(None, None), (20, None), (None, 0)])
def test_predictions_are_those_of_the_exact_sweep_and_the_rest_are_estimates(
    max_tokens: int | None, bytes_of_layers: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if bytes_of_layers is not None:
        # Pairs that become active late then get an unedited pass of their own.
        monkeypatch.setattr(screening_module, "_KEPT_BYTES", bytes_of_layers)
    model = scaled_model()
    plan = plan_of(model)
    exact = exact_sweep(model, plan, batches())
    result, record = screened_sweep(model, plan, batches(), Screening(pilot=6, audit=0.1), max_tokens=max_tokens)
    assert 0 < record.evaluated < record.pairs
    assert torch.equal(result.logits_NVC.argmax(-1), exact.logits_NVC.argmax(-1))
    evaluated_NV = result.weight_NV > 0
    torch.testing.assert_close(result.logits_NVC[evaluated_NV], exact.logits_NVC[evaluated_NV], atol=1e-6, rtol=1e-5)
    assert torch.equal(result.logits_NVC[~evaluated_NV], result.estimate_NVC[~evaluated_NV])
    assert set(result.weight_NV.unique().tolist()) <= {0.0, 1.0, 10.0}
    assert record.missed == record.whole == 0
    assert record.evaluated == int(evaluated_NV.sum())
    assert record.inactive == int((result.weight_NV != 1).sum())
    assert record.audited == int((result.weight_NV > 1).sum())
    assert record.bound == missed_bound(0, 0.1, record.inactive - record.audited)
    # Of one variant: the most changes that an audit of its own all misses in one of twenty cases or more.
    each = 0
    for weight_N in result.weight_NV.T:
        left, audited = int((weight_N == 0).sum()), int((weight_N > 1).sum())
        each = max([each, *(k for k in range(left + 1) if hypergeom.pmf(0, left + audited, k, audited) > 0.05)])
    assert record.each == each > 0


def test_no_pair_within_reach_is_left_out() -> None:
    """By hand: pilot and active pairs have weight 1, and no other pair's margin is within reach."""
    model = scaled_model()
    plan = plan_of(model)
    exact = exact_sweep(model, plan, batches())
    result, record = screened_sweep(model, plan, batches(), Screening(pilot=6, audit=0.1))
    assert record.whole == 0
    class_N = result.clean_NC.argmax(-1)
    margin_NV = margins(result.estimate_NVC, class_N)
    counted_NV = result.weight_NV == 1
    pilot = sorted(range(48), key=lambda index: np.random.default_rng([0, index, 1]).random())[:6]
    assert counted_NV[pilot].all()
    scale_N = scales_by_hand(result.estimate_NVC, result.clean_NC, pilot)
    square_NV = ((margins(exact.logits_NVC, class_N) - margin_NV) / scale_N[:, None]).double() ** 2
    for variant, rows in enumerate(counted_NV.T):
        if rows.all():
            continue
        # Errors count beside 16 like the mean of the layer's heads, or of the layer.
        same_layer = [
            position
            for position, other in enumerate(plan.variants)
            if other.heads[0][0] == plan.variants[variant].heads[0][0]
            and len(other.heads) == len(plan.variants[variant].heads)
        ]
        borrowed = torch.cat([square_NV[counted_NV[:, position], position] for position in same_layer]).mean()
        mean = (square_NV[rows, variant].sum() + 16 * borrowed) / (rows.sum() + 16)
        assert (margin_NV[~rows, variant] >= 30 * scale_N[~rows] * mean.sqrt() * (1 - 1e-5)).all()


def test_the_bound_holds_for_any_number_of_changes() -> None:
    """The chance that the changes outside of the audit are within the bound, by enumeration."""
    for audit in (0.02, 0.1, 0.5, 0.9):
        for changes in (0, 1, 2, 5, 20, 100, 400):
            missed = np.arange(changes + 1)
            bound = np.array([missed_bound(int(result), audit, 10_000) for result in missed])
            within = binom.pmf(missed, changes, audit)[changes - missed <= bound].sum()
            assert within >= 0.95 - 1e-9
    assert missed_bound(0, 0.02, 10_000) == 148
    assert missed_bound(0, 0.02, 40) == 40
    assert missed_bound(3, 1.0, 0) == 0


def test_a_variant_with_a_miss_is_evaluated_whole() -> None:
    model = scaled_model()
    plan = plan_of(model)
    exact = exact_sweep(model, plan, batches())
    # A rule without reach misses every change that the estimate does not show.
    blind = Screening(pilot=1, reach=0.0, audit=0.5)
    result, record = screened_sweep(model, plan, batches(), blind)
    assert record.missed > 0
    changed_NV = exact.logits_NVC.argmax(-1) != exact.clean_NC.argmax(-1)[:, None]
    whole_V = (result.weight_NV == 1).all(0)
    assert int(whole_V.sum()) >= record.whole > 0
    torch.testing.assert_close(result.logits_NVC[:, whole_V], exact.logits_NVC[:, whole_V], atol=1e-6, rtol=1e-5)
    missed = int(
        (changed_NV & (result.weight_NV == 0) & (result.logits_NVC.argmax(-1) != exact.logits_NVC.argmax(-1))).sum()
    )
    assert missed <= record.bound


def test_slopes_of_passes_in_parts_are_those_of_one_pass() -> None:
    model = scaled_model()
    batch = batches(1)[0]
    one, parts = (
        first_order_changes(
            Engine(model, plan_of(model), max_tokens=4 * rows * batch.input_ids_BS.shape[1]), batch.inputs()
        )
        for rows in (100, 1)
    )
    torch.testing.assert_close(parts, one, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(("name", "mode"), [("bert", "uniform"), ("mpnet", "zero")])
def test_bf16_leaves_every_prediction_as_the_exact_sweep_has_it(name: str, mode: str) -> None:
    model = scaled_model(name=name)
    plan, data = plan_of(model, mode), batches()
    exact_NVC = exact_sweep(model, plan, data).logits_NVC
    screening = Screening(pilot=8, audit=0.1, precision=BF16)
    result, record = screened_sweep(model, plan, data, screening)
    assert torch.equal(result.logits_NVC.argmax(-1), exact_NVC.argmax(-1))
    in_fp32_NV = result.weight_NV > 0
    torch.testing.assert_close(result.logits_NVC[in_fp32_NV], exact_NVC[in_fp32_NV], atol=1e-5, rtol=1e-5)
    assert torch.equal(result.logits_NVC[~in_fp32_NV], result.estimate_NVC[~in_fp32_NV])

    # The rule, by hand. Active pairs have logits in bf16 as their estimate, the others those of the slopes.
    rough = partial(torch.autocast, "cpu", torch.bfloat16)
    change_NVC = torch.cat([first_order_changes(Engine(model, plan), batch.inputs(), rough) for batch in data])
    first_NVC = result.clean_NC[:, None] + change_NVC
    active_NV = ~torch.isclose(result.estimate_NVC, first_NVC, atol=1e-6, rtol=0).all(-1)
    both_NV = torch.zeros_like(active_NV)
    order = sorted(range(len(first_NVC)), key=lambda index: np.random.default_rng([0, index, 1]).random())
    scale_N = scales_by_hand(first_NVC, result.clean_NC, order[:8])
    for index in order[:8]:
        both_NV[index, np.random.default_rng([0, index, 2]).permutation(len(plan.variants))[:8].tolist()] = True
    error_NV = torch.zeros_like(both_NV, dtype=torch.float64)
    for row, variant in both_NV.nonzero().tolist():
        best = int(result.estimate_NVC[row, variant].argmax())
        errors = []
        for logits_C in (exact_NVC[row, variant], result.estimate_NVC[row, variant]):
            others = [float(value) for position, value in enumerate(logits_C) if position != best]
            errors.append(float(logits_C[best]) - max(others))
        error_NV[row, variant] = (errors[0] - errors[1]) / scale_N[row]
    layer_V = [variant.heads[0][0] for variant in plan.variants]
    usual = float(error_NV[both_NV].square().mean())
    reach_V = []
    for layer in layer_V:
        of_layer_V = torch.tensor([other == layer for other in layer_V])
        squares = error_NV[both_NV & of_layer_V].square()
        reach_V.append(20 * ((float(squares.sum()) + 8 * usual) / (len(squares) + 8)) ** 0.5)
    assert max(reach_V) > 1.05 * min(reach_V)
    reach_NV = torch.tensor(reach_V)[None] * scale_N[:, None]
    sorted_NVC = result.estimate_NVC.sort(dim=-1).values
    gap_NV = sorted_NVC[..., -1] - sorted_NVC[..., -2]
    clear_NV = (gap_NV - reach_NV).abs() > 0.01 * reach_NV
    expected_NV = both_NV | (active_NV & (gap_NV < reach_NV))
    assert torch.equal((result.weight_NV == 1)[clear_NV], expected_NV[clear_NV])
    rough_NV = active_NV & ~expected_NV & ~in_fp32_NV
    assert 0 < record.bf16 == int(rough_NV.sum())
    assert not torch.equal(result.logits_NVC[rough_NV], exact_NVC[rough_NV])
    assert record.again >= int(both_NV.sum())
    assert record.evaluated == int(in_fp32_NV.sum())
    assert record.missed_bf16 == 0
    assert record.bound == missed_bound(0, 0.1, record.pairs - int((result.weight_NV > 0).sum()))


def test_a_miss_in_bf16_is_found_by_the_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    """An arithmetic whose logits are shifted, and a rule that evaluates none of them again."""
    model = scaled_model()
    plan, data = plan_of(model), batches()
    exact_NVC = exact_sweep(model, plan, data).logits_NVC
    classifier: Any = model.classifier

    @contextmanager
    def shifted() -> Iterator[None]:
        shift_C = torch.tensor([0.0, 1.0, 0.0])
        classifier.bias.data.add_(shift_C)
        yield
        classifier.bias.data.sub_(shift_C)

    monkeypatch.setattr(screening_module, "in_bf16", lambda *_: shifted)
    blind = Screening(pilot=8, audit=0.2, precision=BF16, bf16_reach=0.0)
    result, record = screened_sweep(model, plan, data, blind)
    assert record.missed_bf16 > 0
    whole_V = (result.weight_NV == 1).all(0)
    assert int(whole_V.sum()) >= record.whole > 0
    torch.testing.assert_close(result.logits_NVC[:, whole_V], exact_NVC[:, whole_V], atol=1e-5, rtol=1e-5)
    wrong = int((result.logits_NVC.argmax(-1) != exact_NVC.argmax(-1)).sum())
    assert wrong <= record.bound
    # With the rule's own reach the shift counts as an error of this arithmetic, and nothing is missed.
    result, record = screened_sweep(model, plan, data, replace(blind, bf16_reach=20.0))
    assert torch.equal(result.logits_NVC.argmax(-1), exact_NVC.argmax(-1))


@pytest.mark.slow
@pytest.mark.parametrize("precision", [FP32, BF16])
def test_mean_losses_are_unbiased_over_audits(precision: Precision) -> None:
    model = scaled_model()
    plan, data = plan_of(model), batches()
    _, exact_NV = exact_sweep(model, plan, data).losses(CLASSES)
    means = []
    for seed in range(60):
        screening = Screening(pilot=len(data), audit=0.3, seed=seed, precision=precision)
        result, record = screened_sweep(model, plan, data, screening)
        if not record.missed + record.missed_bf16:
            means.append(result.losses(CLASSES)[1].mean(0))
    mean_RV = torch.stack(means)
    error_V = mean_RV.std(0) / len(means) ** 0.5
    z_V = (mean_RV.mean(0) - exact_NV.mean(0)) / error_V.clamp(min=1e-6)
    assert len(means) > 40
    assert z_V.abs().max() < 4.5


def test_an_estimate_that_is_not_a_number_makes_its_own_pair_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    model = scaled_model()
    plan = plan_of(model)
    screening = Screening(pilot=6, audit=0.1)
    _, record = screened_sweep(model, plan, batches(), screening)

    def one_unknown(engine: Engine, inputs: Any, context: Any) -> torch.Tensor:
        change_BVC = first_order_changes(engine, inputs, context)
        for row, ids_S in enumerate(inputs["input_ids"]):
            if torch.equal(ids_S, batches()[3].input_ids_BS[1]):
                change_BVC[row, 2] = torch.nan
        return change_BVC

    monkeypatch.setattr(screening_module, "first_order_changes", one_unknown)
    result, other = screened_sweep(model, plan, batches(), screening)
    exact = exact_sweep(model, plan, batches())
    assert result.weight_NV[13, 2] == 1
    assert torch.equal(result.logits_NVC.argmax(-1), exact.logits_NVC.argmax(-1))
    # Its error is unknown, so that its variant is evaluated whole, and no other.
    assert (result.weight_NV[:, 2] == 1).all()
    assert record.evaluated < other.evaluated <= record.evaluated + 48


def test_outcomes_keep_weights_and_estimates(tmp_path: Path) -> None:
    model = scaled_model()
    result, _ = screened_sweep(model, plan_of(model), batches(), Screening(pilot=6))
    result.write(tmp_path / "x.safetensors", CLASSES)
    with safe_open(tmp_path / "x.safetensors", "pt") as file:
        stored = {name: file.get_tensor(name) for name in ("loss", "loss_estimate", "weight")}
    evaluated_NV = stored["weight"] > 0
    assert torch.equal(stored["loss"].isnan(), ~evaluated_NV)
    assert stored["loss"][evaluated_NV].min() >= 0
    corrected_NV = stored["loss_estimate"] + torch.where(
        evaluated_NV, stored["weight"] * (stored["loss"] - stored["loss_estimate"]), 0.0
    )
    torch.testing.assert_close(corrected_NV, result.losses(CLASSES)[1])
    read = Outcomes.read(tmp_path / "x.safetensors")
    for name in ("weight_NV", "estimate_NVC", "logits_NVC"):
        assert torch.equal(getattr(read, name), getattr(result, name))


def test_reasons_against_screening() -> None:
    model = scaled_model()
    layers = model.config.num_hidden_layers
    encoder = describe(model)
    assert why_not(CLASSES, plan_of(model), encoder) is None
    assert "predicted numbers" in str(why_not(task("stsb"), plan_of(model), encoder))
    both = plan_of(model, variants=groups([[[0, 1], [1, 0]]]))
    assert "several layers" in str(why_not(CLASSES, both, encoder))
    drawn = plan_of(model, "resample", every_head(layers, HEADS))
    assert "resample" in str(why_not(CLASSES, drawn, encoder))
    assert "cannot start at a given layer" in str(why_not(CLASSES, plan_of(model), replace(encoder, family=None)))


def test_reasons_against_bf16() -> None:
    model = tiny_model("bert")
    assert why_not_bf16(describe(model), nullcontext) is None
    trainer = partial(torch.autocast, "cpu", torch.bfloat16)
    assert why_not_bf16(describe(model), trainer) == "the trainer's passes are bfloat16 already"
    assert why_not_bf16(describe(model.double()), nullcontext) == "the model's weights are float64"


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, ...]]]:
    """The shapes of the inputs that oneDNN gets meanwhile."""
    shapes: list[tuple[int, ...]] = []
    onednn = torch.ops.mkldnn._linear_pointwise
    with monkeypatch.context() as patch:
        patch.setattr(
            torch.ops.mkldnn, "_linear_pointwise", lambda *args: shapes.append(tuple(args[0].shape)) or onednn(*args)
        )
        yield shapes


needs_onednn = pytest.mark.skipif(
    not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")),
    reason="needs oneDNN's operator",
)


@needs_onednn
@pytest.mark.parametrize("name", ["bert", "mpnet", "modernbert"])
def test_linear_layers_by_onednn_change_no_more_than_rounding(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = scaled_model(name=name)
    exact = exact_sweep(model, plan_of(model), batches())
    with counted(monkeypatch) as shapes:
        result, _ = screened_sweep(model, plan_of(model), batches(), Screening(audit=1.0), context=OneDnnLinear)
    assert shapes
    assert all(rows % 64 == 0 for rows, _ in shapes)
    torch.testing.assert_close(result.logits_NVC, exact.logits_NVC, atol=1e-5, rtol=1e-5)


@needs_onednn
def test_slopes_by_onednn_are_those_of_pytorch() -> None:
    model = scaled_model()
    engine, batch = Engine(model, plan_of(model)), tiny_batch((5, 9, 3))
    torch.testing.assert_close(first_order_changes(engine, batch, OneDnnLinear), first_order_changes(engine, batch))


@needs_onednn
def test_only_plain_fp32_layers_go_to_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator reads plain arrays, whatever it is given."""
    generator = torch.Generator().manual_seed(0)
    input_BSD, weight_ED = (torch.randn(*shape, generator=generator) for shape in ((3, 7, 48), (80, 48)))
    bias_E = torch.randn(80, generator=generator)
    strided_E = torch.randn(80, 2, generator=generator)[:, 0]
    by_hand = partial(np.testing.assert_allclose, atol=1e-5)

    def expected(bias: torch.Tensor | float) -> np.ndarray:
        return input_BSD.double().numpy() @ weight_ED.double().numpy().T + np.asarray(bias, dtype=float)

    linear = torch.nn.functional.linear
    with counted(monkeypatch) as shapes, OneDnnLinear(), torch.no_grad():
        by_hand(linear(input_BSD, weight_ED, bias_E).numpy(), expected(bias_E))
        by_hand(linear(input_BSD, weight_ED).numpy(), expected(0.0))
        turned_SBD = linear(input_BSD.transpose(0, 1), weight_ED, bias_E)
        by_hand(turned_SBD.numpy(), expected(bias_E).swapaxes(0, 1))
        assert shapes == [(64, 48)] * 3
        by_hand(linear(input_BSD, weight_ED, strided_E).numpy(), expected(strided_E))
        by_hand(linear(input_BSD, weight_ED, bias_E[:1].expand(80)).numpy(), expected(bias_E[0]))
        by_hand(linear(input_BSD, weight_ED, bias_E[:1]).numpy(), expected(bias_E[0]))
        by_hand(linear(input_BSD, weight_ED[0]).numpy(), expected(0.0)[..., 0])
        assert linear(input_BSD[:0], weight_ED, bias_E).shape == (0, 7, 80)
        assert linear(input_BSD.double(), weight_ED.double()).dtype == torch.float64
        with torch.autocast("cpu", torch.bfloat16):
            assert linear(input_BSD, weight_ED, bias_E).dtype == torch.bfloat16
    assert len(shapes) == 3


def one_text(model: Any) -> Context:
    split = EncodedSplit([Example(0, ("the cat",), 0)], wordpiece(), 16)
    return Context.of_split(model, task("demo_sentiment"), split, 4)


@pytest.mark.parametrize(("precision", "expected"), [(None, BF16), (FP32, FP32), (BF16, BF16)])
def test_precision_follows_the_processor_or_the_settings(
    monkeypatch: pytest.MonkeyPatch, precision: Precision | None, expected: Precision
) -> None:
    model = scaled_model()
    monkeypatch.setattr(forecast_module, "prefers_bf16", lambda _: True)
    built = forecast_module.forecast(one_text(model), plan_of(model), AblationSettings(), precision, nullcontext)
    assert (built.precision, built.reason) == (expected, None)


def test_a_forecast_corrects_for_the_variants_of_one_kind() -> None:
    """The loss that is found is said of heads, which are corrected for one another and not for layers."""
    model = scaled_model()
    built = forecast_module.forecast(one_text(model), plan_of(model, "zero"), AblationSettings(), FP32, nullcontext)
    layers = model.config.num_hidden_layers
    assert (built.variants, built.family) == (layers * HEADS + layers, layers * HEADS)


@pytest.mark.parametrize(
    ("capability", "instructions", "maker", "bf16", "onednn"),
    [
        ("AVX512", True, "GenuineIntel", True, False),
        ("AVX512", False, "AuthenticAMD", False, True),
        ("AVX2", False, "AuthenticAMD", False, False),
    ],
)
def test_what_processors_prefer(
    monkeypatch: pytest.MonkeyPatch, capability: str, instructions: bool, maker: str, bf16: bool, onednn: bool
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: instructions)
    monkeypatch.setattr(Path, "read_text", lambda *_: f"vendor_id: {maker}")
    encoder = describe(scaled_model())
    assert not prefers_bf16(encoder)
    assert by_onednn(encoder, nullcontext) is None
    monkeypatch.setattr(arithmetic_module, "WIDE", 1)
    assert prefers_bf16(encoder) == bf16
    if hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        assert (by_onednn(encoder, nullcontext) is not None) == onednn
        assert by_onednn(encoder, within(nullcontext, lambda: torch.autocast("cpu", torch.bfloat16))) is None
    encoder.model.double()
    assert by_onednn(encoder, nullcontext) is None
