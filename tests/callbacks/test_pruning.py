"""Pruning and gates, as callbacks in trainings of seconds."""

import logging
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from data.tasks import task
from data.toy import wordpiece
from families import HEADS, LAYERS, tiny_model
from trainings import quiet_trainer, tiny_classifier

import bertsecrets as bs
import bertsecrets.present.gates as gates_presented
import bertsecrets.present.pruning as presented
from bertsecrets.ablation.sweep import DisableAnalysis
from bertsecrets.analysis import Analysis
from bertsecrets.attention.gates import gated
from bertsecrets.attention.override import HeadEdit, override
from bertsecrets.callbacks.gates import PruneFirst, TrainGates
from bertsecrets.callbacks.run_analysis import RunAnalysis
from bertsecrets.data.module import TaskData
from bertsecrets.data.sources import SourceConfig
from bertsecrets.errors import UserError
from bertsecrets.measures.analysis import MeasureAnalysis, Watched
from bertsecrets.measures.offsets import Offsets
from bertsecrets.models.checkpoint import _apply_gates
from bertsecrets.models.classifier import GATES, RECORD, SequenceClassifier
from bertsecrets.models.settings import OptimizerConfig
from bertsecrets.pruning.fit_gates import FitGates
from bertsecrets.pruning.gates import fit_gates
from bertsecrets.pruning.prune import PruneHeads, PruningSearch
from bertsecrets.pruning.rows import PathGate, PathPoint, Pruned, Pruning
from bertsecrets.pruning.scores import SCORES, removal_sets
from bertsecrets.pruning.sets import Situation
from bertsecrets.pruning.settings import PruneSettings
from bertsecrets.results.run import CHECKPOINT, Run
from bertsecrets.results.store import Store
from bertsecrets.results.views import MeasureView

TASK = task("demo_paraphrase")


def a_run(folder: Path) -> Run:
    return Run(folder, "run", "tiny", TASK.name, "pretrained")


def some_data() -> TaskData:
    source = SourceConfig(source="demo", limit_train=32, limit_eval=24)
    data = TaskData(TASK, source, wordpiece(), batch_size=16, max_length=32)
    data.prepare_data()
    data.setup("fit")
    return data


def a_module(data: TaskData, learning_rate: float = 1e-3) -> SequenceClassifier:
    return SequenceClassifier(
        tiny_classifier(), TASK, OptimizerConfig(learning_rate=learning_rate), data.evaluation_names
    )


def validate(folder: Path, *analyses: pl.Callback | Analysis) -> SequenceClassifier:
    data, run = some_data(), a_run(folder)
    callbacks = [RunAnalysis(one, run) if isinstance(one, Analysis) else one for one in analyses]
    module = a_module(data)
    quiet_trainer(folder, callbacks, epochs=1).validate(module, datamodule=data, verbose=False)
    return module


def view_of(run: Run) -> MeasureView:
    (declaration,) = run.declarations()
    return MeasureView(run, declaration)


def pruned_of(run: Run) -> Pruned:
    return Pruned.of(view_of(run))


def test_pruning_writes_curves_a_verdict_and_a_smaller_model(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    settings = PruneSettings(step=0.4, seeds=2, examples=16, keep=5, scores=["exact", "random"], latency_rounds=2)
    module = validate(tmp_path, PruneHeads(settings))
    pruned = pruned_of(run)
    assert [(point.score, point.order, point.kept) for point in pruned.points] == [
        (score, seed, kept)
        for score, seed in (("exact", 0), ("random", 0), ("random", 1), ("reversed", 0))
        for kept in (7, 5, 2, 1)
    ]
    assert [(timing.attempt, timing.batch) for timing in pruned.timings] == [
        (at, size) for at in range(4) for size in (1, 32)
    ]
    assert not [*tmp_path.glob("unfinished-*")]
    assert all(point.change.low <= point.change.value <= point.change.high for point in pruned.points)
    kept_LH = view_of(run).value("kept")
    assert kept_LH.sum() == pruned.chosen.kept == 5
    removed = [(int(layer), int(head)) for layer, head in np.argwhere(kept_LH == 0)]
    smaller = bs.load_pruned(tmp_path / "pruned")
    inputs = {"input_ids": torch.tensor([[2, 7, 8, 9, 3], [2, 9, 4, 3, 0]])}
    with torch.no_grad(), override(module.model.eval(), [HeadEdit(layer, head) for layer, head in removed]):
        torch.testing.assert_close(smaller(**inputs).logits, module.model(**inputs).logits, atol=1e-5, rtol=0)
    assert [group.group for group in pruned.groups] == [f"class {name}" for name in TASK.labels]
    # The only search on these examples; the next one finds it.
    assert pruned.search.number == 1
    assert len(list((tmp_path / "searches").iterdir())) == 1
    assert presented.PRESENTER.classes(view_of(run))["pruning"][removed[0][0]][removed[0][1]] == "removed"


def test_sizes_lie_around_the_knee_of_the_training_examples(tmp_path: Path) -> None:
    settings = PruneSettings(step=0.5, seeds=1, examples=16, scores=["exact"], latency_rounds=0, save=False)
    run = a_run(tmp_path)
    validate(tmp_path, PruneHeads(settings))
    removed = {
        score: [12 - point.kept for point in pruned_of(run).points if point.score == score]
        for score in ("exact", "random", "reversed")
    }
    # The steps are 6 and 11; three sizes are added below one of them, unless nothing is lost.
    assert removed["exact"] in ([6, 11], [2, 3, 4, 6, 11], [6, 7, 8, 10, 11])
    assert removed["random"] == removed["reversed"] == removed["exact"]


def test_the_time_is_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("bertsecrets.ablation.forecast._seconds", lambda *_: 2.0)
    caplog.set_level(logging.INFO, "bertsecrets.ablation.forecast")
    settings = PruneSettings(step=0.5, seeds=1, examples=16, scores=["exact"], latency_rounds=0, save=False)
    counted: list[float] = []
    evaluations = PruningSearch.evaluations

    def counting(search: PruningSearch, share: float) -> float:
        counted.append(evaluations(search, share))
        return counted[-1]

    monkeypatch.setattr(PruningSearch, "evaluations", counting)
    validate(tmp_path, PruneHeads(settings))
    # By hand, of 3 layers of 4 heads whose last layer costs nothing, on 16 of 24 examples for the score: its sweep
    # takes 4 passes on them; then five sizes in three orders, of which one on these examples, too, each from the first
    # layer's 1.75 / 3 of a pass.
    assert counted == pytest.approx([4 * 16 / 24 + 5 * 1.75 / 3 * (16 / 24 + 3)])
    assert caplog.messages[-1:] == [
        "Removing heads in the order of 3 scores, on 16 training examples and 24 others: about 27 s."
    ]


def test_losses_on_the_training_examples_are_those_of_the_tested_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are computed in two steps, before and after sizes are added around the knee."""
    monkeypatch.setattr("bertsecrets.pruning.prune.around_the_knee", lambda *_: [3, 6, 8, 11])
    data, model = some_data(), tiny_classifier().eval()
    store = SimpleNamespace(of=lambda _: Store())
    context: Any = SimpleNamespace(model=model, data=data, autocast=nullcontext, store=store, progress=False)
    settings = PruneSettings(step=0.5, seeds=1, examples=16, scores=["exact", "confidence/confidence"])
    orders, _ = PruningSearch(context, settings, {}).run()
    choosers = [order for order in orders if order.choosing_results is not None]
    assert len(choosers) == 2
    for order in choosers:
        assert [len(heads) for heads in order.sets] == [3, 6, 8, 11]
        for heads, loss in zip(order.sets, order.choosing_results.loss_V, strict=True):
            total = 0.0
            with torch.no_grad(), override(model, [HeadEdit(layer, head) for layer, head in heads]):
                for batch in data.training_sample(16):
                    logits_BC = model(**batch.inputs()).logits
                    total += float(torch.nn.functional.cross_entropy(logits_BC, batch.label_B, reduction="sum"))
            assert loss == pytest.approx(total / 16, abs=1e-5)
        assert len({round(float(loss), 4) for loss in order.choosing_results.loss_V}) > 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"keep": 12}, r"prune\.keep is 12, but the model has 12 heads; give a number from 1 to 11"),
        ({"keep": 0}, r"prune\.keep is 0; expected a whole number from 1"),
        ({"max_loss": -1.0}, r"prune\.max_loss is -1\.0; expected a positive number of points"),
        ({"confidence": 1.5}, r"prune\.confidence is 1\.5; expected a number between 0\.5 and 1"),
        ({"scores": ["random"]}, r"prune\.scores is \[random\], which are controls"),
    ],
)
def test_pruning_mistakes_are_errors(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        validate(tmp_path, PruneHeads(PruneSettings.read("prune", settings)))


def test_scores_may_be_columns_that_the_same_command_measures(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    measured = MeasureAnalysis([Watched(lambda layers, heads: Offsets(layers, heads, offsets=[-1, 0]))])
    settings = PruneSettings(step=0.4, seeds=1, examples=16, keep=5, scores=["offsets/same"], latency_rounds=0)
    validate(tmp_path, measured, PruneHeads(settings))
    table = run.table()
    same_LH = table.grid("offsets", "same", CHECKPOINT, table.steps("offsets", "same", CHECKPOINT)[-1])[0]
    (kept_LH,) = [MeasureView(run, one).value("kept") for one in run.declarations() if one.name == Pruning.name]
    assert same_LH[kept_LH == 1].min() >= same_LH[kept_LH == 0].max()
    with pytest.raises(UserError, match="Unknown pruning score 'offsets/next'"):
        validate(tmp_path, measured, PruneHeads(settings.model_copy(update={"scores": ["offsets/next"]})))


def test_gates_of_a_frozen_model_have_roles_and_a_path(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    data_before = a_module(some_data()).model.state_dict()
    module = validate(tmp_path, FitGates(penalty=0.3, path=(0.01, 3.0), steps=40, fits=2, examples=32))
    for name, tensor in module.model.state_dict().items():
        assert torch.equal(tensor, data_before[name])
    assert all(parameter.requires_grad for parameter in module.model.parameters())
    view = view_of(run)
    assert view.value("pushed_open").mean() > view.value("pushed_shut").mean() + 0.3
    assert view.count("pushed_shut") == 2
    path = view.found(PathPoint)
    assert path[0].kept > path[1].kept == 0
    assert len(view.found(PathGate)) == 2 * LAYERS * HEADS
    assert {name for row in gates_presented.FROZEN.classes(view)["role"] for name in row} <= {
        "facilitating",
        "interfering",
        "irrelevant",
        "undecided",
    }


def test_a_fit_finds_the_only_head_that_matters() -> None:
    # The classifier reads what one head of the last layer writes, and a penalty shuts all others.
    data = some_data()
    model = tiny_classifier().double().eval()
    batches = list(data.training_sample(32))
    with torch.no_grad():
        for layer in model.bert.encoder.layer:
            weight = layer.attention.output.dense.weight.unflatten(1, (HEADS, -1))
            weight[:, :] *= 0.0
        last = model.bert.encoder.layer[LAYERS - 1].attention.output.dense.weight
        last.unflatten(1, (HEADS, -1))[:, 2] = 3 * torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
        for batch in batches:
            batch.label_B = model(**batch.inputs()).logits.argmax(-1)
        model.classifier.weight *= 20
    gates = fit_gates(
        model,
        lambda: batches,
        TASK,
        penalty=0.02,
        steps=120,
        learning_rate=0.2,
        seed=0,
        context=torch.enable_grad,
    )
    kept = gates.kept()
    assert kept[LAYERS - 1, 2]
    assert kept.sum() == 1


class Checkpoints(pl.Callback):
    """Keeps what the last checkpoint would hold."""

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.content = trainer._checkpoint_connector.dump_checkpoint(weights_only=True)


def fine_tuned(folder: Path, penalty: float) -> tuple[SequenceClassifier, TrainGates, dict[str, Any]]:
    data = some_data()
    module, kept = a_module(data), Checkpoints()
    gates = TrainGates(a_run(folder), penalty=penalty, learning_rate=0.5)
    quiet_trainer(folder, [gates, kept], epochs=6).fit(module, datamodule=data)
    return module, gates, kept.content


def test_gates_learned_with_fine_tuning_are_stored_and_applied(tmp_path: Path) -> None:
    module, _, content = fine_tuned(tmp_path, penalty=1.0)
    gates: Any = module.head_gates
    record = content[RECORD]
    assert torch.tensor(record[GATES]).shape == (LAYERS, HEADS)
    assert gates.expected_open().item() < 0.95 * 12 - 1
    inputs = {"input_ids": torch.tensor([[2, 7, 8, 9, 3], [2, 9, 4, 3, 0]])}
    module.eval()
    with torch.no_grad():
        with gated(module.model, gates.deterministic):
            expected_BC = module.model(**inputs).logits
        _apply_gates(module.model, record[GATES], tmp_path)
        torch.testing.assert_close(module.model(**inputs).logits, expected_BC, atol=1e-5, rtol=0)
    view = view_of(a_run(tmp_path))
    assert view.history("gate")[0][1].shape == (LAYERS, HEADS)


@pytest.mark.slow
def test_a_larger_penalty_leaves_fewer_gates_open(tmp_path: Path) -> None:
    expected = [fine_tuned(tmp_path / str(penalty), penalty)[0].head_gates for penalty in (0.001, 3.0)]
    counts = [gates.expected_open().item() for gates in expected]
    assert counts[0] > counts[1] + 1


@pytest.mark.parametrize(
    ("family", "others", "message"),
    [
        (
            "albert",
            [],
            r"layers of model type 'albert' share one set of weights, so gates of single layers cannot be stored",
        ),
        ("bert", [DisableAnalysis()], r"Heads cannot be disabled while their gates are learned"),
    ],
)
def test_gate_mistakes_are_errors(tmp_path: Path, family: str, others: Sequence[Any], message: str) -> None:
    callbacks = [TrainGates(a_run(tmp_path)), *(RunAnalysis(one, a_run(tmp_path)) for one in others)]
    module = SequenceClassifier(tiny_model(family), TASK, OptimizerConfig(learning_rate=0.1), ("val",))
    with pytest.raises(UserError, match=message):
        callbacks[0].setup(quiet_trainer(tmp_path, callbacks, epochs=1), module, "fit")


def test_gates_of_another_model_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"have shape \[2, 4\], but the model has 3 layers of 4 heads"):
        _apply_gates(tiny_model("bert"), [[1.0] * 4] * 2, tmp_path)
    with pytest.raises(UserError, match=r"The path of penalties is \[0\.3, 0\.1\]; give distinct numbers"):
        FitGates(path=(0.3, 0.1))


def test_heads_removed_before_fine_tuning_stay_removed(tmp_path: Path) -> None:
    data, kept = some_data(), Checkpoints()
    module = a_module(data)
    first = PruneFirst(a_run(tmp_path), keep=5, score="random", seed=3)
    quiet_trainer(tmp_path, [first, kept], 1).fit(module, datamodule=data)
    record = kept.content[RECORD]
    gate_LH = torch.tensor(record[GATES])
    assert gate_LH.sum() == 5
    removed = [(int(layer), int(head)) for layer, head in (gate_LH == 0).nonzero()]
    expected = removal_sets(SCORES["random"], Situation(tiny_classifier(), TASK, list, seed=3), [7], iterative=False)
    assert expected == [frozenset(removed)]
    # Neither these heads' values nor what reads them were trained, but for weight decay.
    before, after = tiny_classifier().state_dict(), module.model.state_dict()
    layer, head = removed[0]
    name = f"bert.encoder.layer.{layer}.attention.output.dense.bias"
    assert not torch.equal(before[name], after[name])
    rows = f"bert.encoder.layer.{layer}.attention.self.value.bias"
    width = before[rows].numel() // HEADS
    assert torch.equal(before[rows].view(HEADS, width)[head], after[rows].view(HEADS, width)[head])
    inputs = {"input_ids": torch.tensor([[2, 7, 8, 9, 3], [2, 9, 4, 3, 0]])}
    module.eval()
    with torch.no_grad():
        with override(module.model, [HeadEdit(*place) for place in removed]):
            expected_BC = module.model(**inputs).logits
        _apply_gates(module.model, record[GATES], tmp_path)
        torch.testing.assert_close(module.model(**inputs).logits, expected_BC, atol=1e-5, rtol=0)
    section = presented.FIRST.section(view_of(a_run(tmp_path)))
    assert section.findings == [
        "The model was fine-tuned with 5 of 12 heads; the 7 removed before were chosen by random."
    ]
    with pytest.raises(UserError, match=r"callbacks\.prune\.keep is 13, but the model has 12 heads"):
        PruneFirst(a_run(tmp_path), keep=13).setup(quiet_trainer(tmp_path, [], 1), a_module(data), "fit")
