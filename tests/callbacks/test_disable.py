"""Plans of the disabling callback, and every mistake in one sentence, without a training."""

import logging
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data.tasks import task
from data.toy import wordpiece
from families import HEADS, LAYERS, tiny_model
from trainings import quiet_trainer, tiny_classifier
from transformers import BertConfig, BertForSequenceClassification, PreTrainedModel

import bertsecrets.ablation.forecast as forecast_module
import bertsecrets.ablation.sweep as sweep_module
from bertsecrets.ablation.arithmetic import OneDnnLinear, within
from bertsecrets.ablation.predictions import PairedPredictions
from bertsecrets.ablation.rows import Screened, Swept, beside_table, found
from bertsecrets.ablation.settings import AblationSettings
from bertsecrets.ablation.sweep import DisableAnalysis
from bertsecrets.ablation.verdicts import smallest_effects
from bertsecrets.analysis import Context
from bertsecrets.callbacks.run_analysis import RunAnalysis
from bertsecrets.data.module import TaskData
from bertsecrets.data.sources import SourceConfig
from bertsecrets.data.task import Task
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.errors import UserError
from bertsecrets.models.classifier import SequenceClassifier
from bertsecrets.models.encoder import describe
from bertsecrets.models.settings import OptimizerConfig
from bertsecrets.present.disabling import ablation_sections
from bertsecrets.results.run import Run
from bertsecrets.task_heads import METRICS

DEMO = task("demo_paraphrase")
TASK = Task(name="toy", metrics=("accuracy",), texts=1, labels=("a", "b", "c"))


def checked(
    plans: Sequence[str] = ("heads", "layers"), model: PreTrainedModel | None = None, **settings: Any
) -> DisableAnalysis:
    made = DisableAnalysis(plans, AblationSettings.read("ablation", settings))
    made.check(Context.of_split(model or tiny_model("bert"), TASK, EncodedSplit([], wordpiece(), 8), 4))
    return made


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {"plans": ["layers", "heads", "groups"], "layer": 2, "heads": [[0, 1], [2, 3]]},
            ["l02", "l02h00", "l02h01", "l02h02", "l02h03", "group-000"],
        ),
        # Components replace the plans.
        (
            {"components": ["layers", "ffn", "heads", "attention"], "layer": [2]},
            ["l02h00", "l02h01", "l02h02", "l02h03", "l02-attention", "l02-ffn", "l02-block"],
        ),
    ],
)
def test_plans_and_components_can_be_combined(settings: dict[str, Any], expected: list[str]) -> None:
    variants = checked(**settings).variants(describe(tiny_model("bert")))
    assert [variant.name for variant in variants] == expected


def test_groups_come_from_two_places() -> None:
    made = checked(plans=["groups"], heads=[[0, 1], [2, 3]], layers=[0, 1])
    found = made.variants(describe(tiny_model("bert")))
    assert [len(variant.heads) for variant in found] == [2, 8]
    several = checked(plans=["groups"], heads=[[[0, 1]], [[2, 3], [1, 1]]])
    assert [len(variant.heads) for variant in several.variants(describe(tiny_model("bert")))] == [1, 2]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"plans": ["head"]}, r"Unknown disabling plan 'head'; did you mean 'heads'"),
        ({"plans": []}, r"No disabling plan is given"),
        ({"mode": "zeros"}, r"Unknown ablation\.mode 'zeros'; did you mean 'zero'"),
        ({"layer": 7}, r"^ablation\.layer contains layer 7, but the model has layers 0 to 2"),
        (
            {"plans": ["groups"], "layers": [0, 99]},
            r"^ablation\.layers contains layer 99, but the model has layers 0 to 2",
        ),
        (
            {"plans": ["groups"], "heads": [[0, 9]]},
            r"^ablation\.heads contains head 9 of layer 0, but the model has heads 0 to 3",
        ),
        ({"plans": ["groups"], "heads": [[0, 1], [0, 1]]}, r"^ablation\.heads contains head 1 of layer 0 twice"),
        ({"plans": ["groups"]}, r"No group of heads is given; set ablation\.heads"),
        ({"max_examples": 0}, r"ablation\.max_examples is 0; expected a whole number from 1"),
        ({"level": 1.0}, r"ablation\.level is 1\.0; expected a number between 0 and 1"),
        ({"seeds": 1}, r"Unknown key 'ablation\.seeds'; did you mean 'seed'"),
        (
            {"precision": "bf16-mixed", "sweep": "exact"},
            r"precision is bf16-mixed, but ablation\.sweep is exact; bf16 is for",
        ),
        ({"precision": "bf16"}, r"ablation\.precision is 'bf16'; expected bf16-mixed, 32-true, or null"),
        (
            {"plans": ["groups"], "components": ["ffn"], "heads": [[0, 1]]},
            r"ablation\.components lists what to disable one at a time, but the plan is groups",
        ),
        (
            {"components": ["mlp"]},
            r"ablation\.components is \['mlp'\]; expected a list of heads, attention, ffn, neurons, layers",
        ),
    ],
)
def test_mistakes_are_errors(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        checked(**settings)


@pytest.mark.parametrize(("heads", "layers"), [(1, 1), (1, 2), (2, 1)])
def test_similar_heads_need_two(heads: int, layers: int) -> None:
    shape = {"vocab_size": 30, "hidden_size": 8, "intermediate_size": 8, "num_labels": 3}
    config = BertConfig(**shape, num_hidden_layers=layers, num_attention_heads=heads)
    model = BertForSequenceClassification(config)
    if heads * layers > 1:
        assert checked(plans=["similar_groups"], model=model).plans == ("similar_groups",)
        return
    with pytest.raises(
        UserError, match=r"The model has one attention head, so there are no groups of heads with similar"
    ):
        checked(plans=["similar_groups"], model=model)
    assert [v.name for v in checked(plans=["heads"], model=model).variants(describe(model))] == ["l00h00"]


def swept(
    folder: Path,
    examples: int = 24,
    limit: float | None = None,
    trainer_precision: str = "32-true",
    epochs: int = 0,
    **settings: Any,
) -> tuple[Run, list[str]]:
    """A sweep of an untrained model, or one at each validation of a training of some epochs, and the lines that were
    logged.
    """
    run = Run(folder, "run", "tiny", DEMO.name, "pretrained")
    ablation = AblationSettings.read("ablation", {"resamples": 100, "permutations": 100, **settings})
    made = RunAnalysis(DisableAnalysis(ablation=ablation, every_n_validations=1, limit=limit), run)
    source = SourceConfig(source="demo", limit_train=32, limit_eval=examples)
    data = TaskData(DEMO, source, wordpiece(), batch_size=16, max_length=32)
    module = SequenceClassifier(
        tiny_classifier(), DEMO, OptimizerConfig(learning_rate=0.01), tuple(data.evaluation), {}, seed=0
    )
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = logging.getLogger("bertsecrets.ablation.sweep")
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.INFO)
    try:
        trainer = quiet_trainer(folder, [made], epochs=max(epochs, 1), precision=trainer_precision)
        if epochs:
            trainer.fit(module, datamodule=data)
        else:
            trainer.validate(module, datamodule=data, verbose=False)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    return run, lines


def test_a_screened_sweep_gives_the_rows_of_the_exact_one(tmp_path: Path) -> None:
    exact, lines = swept(tmp_path / "exact")
    assert len(lines) == 1
    assert re.match(
        r"Disabling 15 variants on 24 examples: exact sweep about \d+ s, screened sweep about \d+ s", lines[0]
    )
    assert lines[0].endswith("Exact sweep (ablation.sweep=screened for the other).")
    screened, _ = swept(tmp_path / "screened", sweep="screened", audit=0.1)
    same = ("metric", "variant", "baseline", "score", "delta", "p_value", "flips")
    pairs = list(zip(screened.ablation_table().rows(), exact.ablation_table().rows(), strict=True))
    assert [[row[name] for name in same] for row, _ in pairs] == [[row[name] for name in same] for _, row in pairs]
    # Limits allow for what was not evaluated.
    left_out = [(row, other) for row, other in pairs if row["evaluated"] < 1 and row["metric"] == "accuracy"]
    assert left_out
    assert all(row["low"] < other["low"] and row["high"] > other["high"] for row, other in left_out)
    assert {row["sweep"] for row in exact.ablation_table().rows()} == {"exact"}
    assert {row["evaluated"] for row in exact.ablation_table().rows()} == {1.0}
    assert {row["sweep"] for row in screened.ablation_table().rows()} == {"screened"}
    (record,) = found(screened, Screened)
    assert record.pairs == 24 * 15


def test_parts_of_layers_are_judged_and_described_like_heads(tmp_path: Path) -> None:
    run, _ = swept(tmp_path, components=["heads", "attention", "ffn", "layers"])
    counts = Counter(row["kind"] for row in run.ablation_table().rows() if row["metric"] == "accuracy")
    assert counts == {"head": LAYERS * HEADS, "attention": LAYERS, "ffn": LAYERS, "block": LAYERS}


def test_a_sweep_of_parts_alone_has_no_mode_of_heads(tmp_path: Path) -> None:
    run, _ = swept(tmp_path, components=["ffn"], mode="resample")
    assert {row["mode"] for row in run.ablation_table().rows()} == {"zero"}
    (section,) = [one for one in ablation_sections(run.ablation_table(), beside_table(run)) if one.findings]
    assert not any("disabled head" in paragraph for paragraph in section.paragraphs)


def test_bf16_that_was_asked_for_screens(tmp_path: Path) -> None:
    """An exact sweep of so few examples takes a second, and would be chosen otherwise."""
    run, lines = swept(tmp_path, precision="bf16-mixed")
    assert lines[0].endswith("Screened sweep.")
    assert {row["sweep"] for row in run.ablation_table().rows()} == {"screened"}
    assert found(run, Screened)[0].precision == "bf16-mixed"


@pytest.mark.parametrize("epochs", [0, 1])
@pytest.mark.parametrize(
    ("trainer_precision", "settings", "reason"),
    [
        ("bf16-mixed", {}, "the trainer's passes are bfloat16 already"),
        (
            "32-true",
            {"mode": "resample"},
            "the sweep cannot be screened: mode 'resample' takes several passes per pair",
        ),
    ],
)
def test_bf16_that_cannot_be_is_refused_before_the_first_pass(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    epochs: int,
    trainer_precision: str,
    settings: dict[str, Any],
    reason: str,
) -> None:
    for name in ("training_step", "validation_step"):
        monkeypatch.setattr(SequenceClassifier, name, lambda *_: pytest.fail("a pass was made"))
    with pytest.raises(
        UserError, match=rf"^Passes in bf16-mixed are not possible because {reason}; set ablation\.prec"
    ):
        swept(tmp_path, epochs=epochs, trainer_precision=trainer_precision, precision="bf16-mixed", **settings)


def test_the_same_command_makes_the_same_choice_under_any_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact or screened, and in which precision, does not depend on what a probe measures."""
    records: list[Any] = []
    decide = forecast_module.Forecast.decide

    def decided(*args: Any) -> Any:
        records.append(decide(*args))
        return records[-1]

    monkeypatch.setattr(forecast_module.Forecast, "decide", decided)
    # Passes are as fast as could be, ordinary, and slower than could be.
    for seconds in (1e-9, 1.0, 1e6):
        monkeypatch.setattr(forecast_module, "_seconds", lambda *args, seconds=seconds: seconds)
        for sweep in (None, "screened"):
            swept(tmp_path / f"{len(records)}", sweep=sweep, plan_only=True)
    assert records[0] == records[2] == records[4]
    assert records[0].kind == "exact"
    assert records[1] == records[3] == records[5]
    assert records[1].kind == "screened"


@pytest.mark.parametrize(
    ("requested", "budget", "limit", "examples", "nominal", "measured", "kind", "differs"),
    [
        (None, None, None, 4000, 10.0, 1000.0, "exact", True),
        (None, None, None, 4000, 10.1, 1.0, "screened", True),
        ("measured", None, None, 4000, 100.0, 1000.0, "screened", False),
        ("measured", None, None, 4000, 200.0, 1.0, "exact", False),
        ("measured", None, None, 3999, 1.0, 1000.0, "screened", False),
        (None, 600.0, None, 4000, 100.0, 1000.0, "screened", False),
        (None, 499.0, None, 4000, 100.0, 1000.0, "exact", False),
        (None, 600.0, None, 3999, 100.0, 1000.0, "exact", False),
        ("exact", None, None, 4000, 200.0, 1000.0, "exact", False),
        # The audit of fewer examples would leave more open than matters: only a limit speaks against an exact sweep.
        (None, None, None, 3999, 1e6, 1e6, "exact", False),
        (None, None, 600.0, 3999, 600.0, 1.0, "exact", False),
        (None, None, 600.0, 3999, 601.0, 1.0, "screened", True),
    ],
)
def test_size_and_nominal_speed_decide_unless_asked(
    requested: str | None,
    budget: float | None,
    limit: float | None,
    examples: int,
    nominal: float,
    measured: float,
    kind: str,
    differs: bool,
) -> None:
    forecast = forecast_module.Forecast(
        examples=examples,
        variants=10,
        measured=forecast_module.Times(measured, measured / 2),
        nominal=forecast_module.Times(nominal, nominal / 2),
        unscreened=None,
        metric="accuracy",
        needed=0.05,
        family=8,
    )
    decision = forecast.decide(requested, budget, limit)
    assert decision.kind == kind
    # The loss is that of the page's table for a head that changes as many predictions: corrected over its kind.
    label_N, lost = np.zeros(decision.examples, int), np.arange(decision.examples) < decision.examples / 100
    paired = PairedPredictions(label_N, label_N, np.stack([lost.astype(int)] * 8))
    (smallest, *_) = smallest_effects(METRICS["accuracy"], paired, 2 * 0.05 / 8, 99)
    words = forecast.in_words(decision, requested, budget, limit)
    assert f"an accuracy loss of {100 * smallest:.1f} points or more is detected" in words
    # Where the printed times speak for the other way, the line says why.
    by_nominal = "(chosen by nominal speed, regardless of the load; ablation.sweep="
    assert (by_nominal in words) == differs


def test_a_fit_before_the_sweep_counts_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A pass over the 24 examples takes 100 s. A head, or a layer, costs the layers above it: 1.75 and 0.75 of three,
    # and none in the last, of which the first token decides. The fit takes the heads alone, 3 times 8 examples forwards
    # and backwards.
    monkeypatch.setattr(forecast_module, "_seconds", lambda *_: 100.0)
    alone = (1.75 + 0.75) / 3
    sweep = 100 * (1 + 5 * alone)
    fit = 100 * 2 * (3 * 8 / 24) * 4 * alone
    _, (line, *_) = swept(tmp_path, mode="optimal", optimal_steps=3, sweep="exact")
    assert f"exact sweep about {round(sweep / 60)} min, " in line
    assert f", after a fit of about {round(fit / 60)} min;" in line


def test_processes_predict_the_same_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast_module, "_seconds", lambda *_: 100.0)

    def with_another(value_5: torch.Tensor, by: Any) -> torch.Tensor:
        """Beside another process, whose fit takes 36 passes over its own, fewer examples."""
        return torch.maximum(value_5, torch.tensor([0.0, 0.0, 3600.0, 0.0, 0.0], dtype=torch.float64))

    monkeypatch.setattr(forecast_module, "over_processes", with_another)
    _, (line, *_) = swept(tmp_path, mode="optimal", optimal_steps=3, sweep="exact")
    assert ", after a fit of about 60 min;" in line


@pytest.mark.parametrize(("budget", "examples"), [(160.0, 100), (110.0, 50), (92.0, 32)])
def test_a_budget_is_spent_on_the_fit_first(budget: float, examples: int) -> None:
    times = forecast_module.Times(100.0, None, fit=60.0)
    forecast = forecast_module.Forecast(100, 10, times, times, None, "f1", 0.05, 8)
    assert forecast.decide("exact", budget).examples == examples
    with pytest.raises(UserError, match=r"ablation\.budget is 91 s, but 32 examples take about 92 s"):
        forecast.decide("exact", 91.0)


@pytest.mark.parametrize("sweep", ["exact", "screened"])
def test_a_sweep_computes_by_onednn_where_that_is_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sweep: str
) -> None:
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("needs oneDNN's operator")
    calls: list[int] = []
    onednn = torch.ops.mkldnn._linear_pointwise
    monkeypatch.setattr(
        torch.ops.mkldnn, "_linear_pointwise", lambda *args: calls.append(len(args[0])) or onednn(*args)
    )
    swept(tmp_path / "plain", sweep=sweep, precision="32-true")
    assert not calls
    monkeypatch.setattr(sweep_module, "by_onednn", lambda _, autocast: within(autocast, OneDnnLinear))
    run, _ = swept(tmp_path / "fast", sweep=sweep, precision="32-true")
    assert calls
    assert {row["sweep"] for row in run.ablation_table().rows()} == {sweep}
    assert [record.onednn for record in found(run, Screened)] == [True] * (sweep == "screened")


def test_only_the_plan(tmp_path: Path) -> None:
    run, lines = swept(tmp_path, plan_only=True)
    assert lines[0].startswith("Disabling 15 variants on 24 examples: exact sweep about ")
    assert not run.ablation_path.exists()


def test_what_cannot_be_screened_is_exact_and_says_so(tmp_path: Path) -> None:
    run, lines = swept(tmp_path, sweep="screened", mode="resample", draws=1)
    assert lines[0].endswith("Exact sweep, as mode 'resample' takes several passes per pair.")
    assert {row["sweep"] for row in run.ablation_table().rows()} == {"exact"}


def test_a_sweep_beyond_its_limit_is_left_out_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nominal = forecast_module.NOMINAL["cpu"]
    monkeypatch.setitem(forecast_module.NOMINAL, "cpu", 1e4)
    run, lines = swept(tmp_path / "long", limit=600)
    assert re.match(
        r"Heads were not disabled, because 15 variants would take about [\d.]+ (min|h); to disable them later, run "
        "python -m bertsecrets analyze checkpoint=",
        lines[0],
    )
    assert not run.ablation_path.exists()
    monkeypatch.setitem(forecast_module.NOMINAL, "cpu", nominal)
    run, lines = swept(tmp_path / "short", limit=600)
    assert {row["sweep"] for row in run.ablation_table().rows()} == {"exact"}


def test_a_budget_takes_a_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A fixed speed, so that what fits does not depend on the machine.
    monkeypatch.setattr(forecast_module, "_seconds", lambda *_: 600.0)
    monkeypatch.setattr(forecast_module, "FEWEST", 4)
    whole_run, (line, *_) = swept(tmp_path / "whole", budget="1000h")
    assert "random examples" not in line
    (whole,) = found(whole_run, Swept)
    assert (whole.examples, whole.whole, whole.budget) == (None, None, None)
    run, (line, *_) = swept(tmp_path / "part", budget="45min", sweep="exact")
    sizes = {row["count"] for row in run.ablation_table().rows()}
    assert len(sizes) == 1
    assert 4 <= min(sizes) < 24
    assert f"Exact sweep of {min(sizes)} random examples, which fit into the budget" in line
    (part,) = found(run, Swept)
    assert (part.examples, part.whole, part.budget) == (min(sizes), 24, "45min")
    with pytest.raises(UserError, match=r"ablation\.budget is 2 s, but 4 examples take about \d+ min; give more time"):
        swept(tmp_path / "none", budget="2s", sweep="exact")


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("10min", 600), ("1.5h", 5400), (".5h", 1800)])
def test_times(text: str, seconds: float) -> None:
    assert forecast_module.seconds_of(text) == seconds
    with pytest.raises(UserError, match=r"ablation\.budget is .*; expected a time such as 90s, 10min or 1h, or null"):
        AblationSettings.read("ablation", {"budget": f"{text}x"})
