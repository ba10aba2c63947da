"""The watcher of all measures, in trainings of seconds: what it takes, when, and that training does not notice."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from data.tasks import task
from data.toy import pairs, wordpiece
from families import HEADS, LAYERS
from measures.toy import Focus
from torch import nn
from trainings import quiet_trainer, tiny_classifier
from transformers import PreTrainedModel

from bertsecrets.attention.override import mean_head_outputs
from bertsecrets.callbacks.run_analysis import RunAnalysis
from bertsecrets.data.module import TaskData
from bertsecrets.data.sources import SourceConfig
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.errors import UserError
from bertsecrets.grid import HeadGrid
from bertsecrets.importance.first_order import FirstOrder
from bertsecrets.measures.analysis import MeasureAnalysis, Watched
from bertsecrets.measures.base import Feed, Measure
from bertsecrets.measures.clusters.measure import Clusters
from bertsecrets.measures.drift import Drift
from bertsecrets.measures.one_pass import measure_pass
from bertsecrets.models.classifier import SequenceClassifier
from bertsecrets.models.settings import OptimizerConfig
from bertsecrets.results.run import Run
from bertsecrets.results.views import MeasureView

EXAMPLES = 20


@dataclass(frozen=True)
class Sums:
    total: float
    parameter: float


class Kept(Focus):
    """Finds the sum of its first column."""

    name = "kept"

    def findings(self, grid: HeadGrid, model: nn.Module) -> list[Sums]:
        assert not model.training
        return [Sums(grid.column("all").sum().item(), next(model.parameters()).sum().item())]


class Own(Focus):
    """Has nine examples of its own."""

    name = "own"

    def dataset(self, data: TaskData, progress: bool = False) -> EncodedSplit | None:
        if not hasattr(self, "split"):
            self.split = EncodedSplit(pairs(9), data.tokenizer, data.max_length)
        return self.split


class Sampled(Focus):
    """Takes a sample of the examples."""

    name = "sampled"
    feed = Feed(max_examples=7)


class Inapplicable(Focus):
    name = "inapplicable"

    def inapplicable(self, data: TaskData) -> str | None:
        return f"Not for {data.task.name}."


def prepared(model: PreTrainedModel, record: dict[str, Any] | None = None) -> tuple[SequenceClassifier, TaskData]:
    source = SourceConfig(source="demo", limit_train=16, limit_eval=EXAMPLES, eval_batch_size=8)
    demo = task("demo_paraphrase")
    data = TaskData(demo, source, wordpiece(), batch_size=8, max_length=24, seed=0)
    module = SequenceClassifier(
        model, demo, OptimizerConfig(learning_rate=1e-3), data.evaluation_names, record=record, seed=0
    )
    return module, data


def watched(*kinds: Callable[[int, int], Measure], every: int | None = 1) -> list[Watched]:
    return [Watched(kind, every) for kind in kinds]


def a_run(folder: Path, init: str = "pretrained") -> Run:
    return Run(folder / "run", "r", "tiny", "demo_paraphrase", init)


def measuring(
    measures: Sequence[Watched],
    run: Run,
    reference: PreTrainedModel | None = None,
    sample: int | None = None,
    **settings: Any,
) -> RunAnalysis:
    return RunAnalysis(MeasureAnalysis(measures, **settings), run, reference=reference, sample=sample)


@pytest.mark.filterwarnings("ignore")
def test_measures_are_taken_when_they_are_due_and_training_does_not_notice(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    model, before = tiny_classifier(), tiny_classifier()
    measures = [*watched(Drift), *watched(Kept, every=None), *watched(Own, Sampled, every=2)]
    watcher = measuring(
        [*measures, *watched(Inapplicable)], run, compare_with=["initial", "random"], random=lambda: tiny_classifier(9)
    )
    module, data = prepared(model)
    quiet_trainer(tmp_path, [watcher], epochs=3).fit(module, datamodule=data)
    # Two steps an epoch.
    steps = {"drift": [2, 4, 6], "kept": [6], "own": [4, 6], "sampled": [4, 6]}
    table = run.table()
    first = {name: "cosine" if name == "drift" else "all" for name in steps}
    assert {name: table.steps(name, first[name], "training") for name in steps} == steps
    assert not len(table.select(measure="inapplicable"))
    assert [each.name for each in run.declarations()] == list(steps)

    # The numbers are those of passes of one's own.
    loaders = {
        "kept": data.evaluation_loader("val"),
        "sampled": data.evaluation_loader("val", max_examples=7),
        "own": data.loader_of(EncodedSplit(pairs(9), data.tokenizer, data.max_length), list(range(9))),
    }
    models = {"training": model, "initial": before, "random": tiny_classifier(9)}
    counts = {"kept": EXAMPLES, "own": 9, "sampled": 7}
    for name, loader in loaders.items():
        values = {}
        for stage, network in models.items():
            (alone,) = measure_pass(network, [Focus(LAYERS, HEADS)], loader)
            value_LH, stderr_LH, count_LH = table.grid(name, "all", stage, 6 if stage == "training" else 0)
            np.testing.assert_array_equal(value_LH, alone.column("all").numpy())
            np.testing.assert_array_equal(stderr_LH, alone.stderr_LHC[:, :, 0].numpy())
            assert (count_LH == counts[name]).all()
            values[stage] = value_LH
        for other in ("initial", "random"):
            difference_LH = table.grid(name, "all", f"training-{other}", 6)[0]
            np.testing.assert_allclose(difference_LH, values["training"] - values[other], atol=1e-12)
    # A measure of two models is not paired, and comparisons are of the last validation alone.
    stages = set(table.select(measure="drift").table["stage"].to_pylist())
    assert stages == {"training"}
    assert table.steps("own", "all", "training-initial") == [6]
    (drift,) = measure_pass(model, [Drift(LAYERS, HEADS)], loaders["kept"], {"initial": before})
    np.testing.assert_array_equal(table.grid("drift", "cosine", "training", 6)[0], drift.column("cosine").numpy())

    view = MeasureView(run, Kept(LAYERS, HEADS).declaration())
    for seen, measured, (stage, step) in (
        (view, model, ("training", 6)),
        (view.at("initial"), before, ("initial", 0)),
    ):
        sums = seen.fact(Sums)
        assert sums.parameter == pytest.approx(next(measured.parameters()).sum().item(), abs=1e-4)
        assert sums.total == pytest.approx(table.grid("kept", "all", stage, step)[0].sum())

    module, data = prepared(tiny_classifier())
    quiet_trainer(tmp_path, [], epochs=3).fit(module, datamodule=data)
    for own, other in zip(model.parameters(), module.model.parameters(), strict=True):
        assert torch.equal(own, other)


@pytest.mark.filterwarnings("ignore")
def test_a_finished_checkpoint_is_compared_with_one_pass_of_each_model(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    model, initial, random = tiny_classifier(0), tiny_classifier(1), tiny_classifier(2)
    calls: dict[str, int] = {"model": 0, "initial": 0, "random": 0}

    def count(name: str) -> None:
        calls[name] += 1

    for name, network in (("model", model), ("initial", initial), ("random", random)):
        network.base_model.register_forward_pre_hook(lambda *_, name=name: count(name))
    watcher = measuring(
        watched(Drift, Focus, Kept, every=None),
        run,
        reference=initial,
        compare_with=["initial", "random"],
        random=lambda: random,
    )
    module, data = prepared(model, record={"step": 77})
    quiet_trainer(tmp_path, [watcher], epochs=2).validate(module, datamodule=data, verbose=False)
    table = run.table()
    assert table.steps("focus", "all", "checkpoint") == [77]
    assert table.steps("kept", "long", "checkpoint-random") == [77]
    assert table.steps("drift", "cosine", "checkpoint") == [77]
    # One pass for all measures and comparisons; the model also scores the set.
    batches = len(data.evaluation_loader("val"))
    assert batches > 1
    assert calls == {"model": 2 * batches, "initial": batches, "random": batches}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compare_with", [(), ("initial",)])
def test_a_validation_of_the_weights_of_the_last_one_computes_nothing_again(
    compare_with: tuple[str, ...], tmp_path: Path
) -> None:
    run, model, initial = a_run(tmp_path), tiny_classifier(), tiny_classifier(1)
    calls: list[nn.Module] = []
    for network in (model, initial):
        network.base_model.register_forward_pre_hook(lambda module, _: calls.append(module))
    watcher = measuring(watched(Drift, Kept), run, reference=initial, compare_with=compare_with)
    module, data = prepared(model, record={"step": 4})
    module.validated_after_training = True
    trainer = quiet_trainer(tmp_path, [watcher], epochs=2)
    trainer.fit(module, datamodule=data)
    batches = len(data.evaluation_loader("val"))
    assert calls.count(initial.base_model) == 2 * batches
    calls.clear()
    scores = module.scores
    assert module.scored_step == 4
    module.is_scored = True
    trainer.validate(module, datamodule=data, verbose=False)
    assert module.scores == scores
    # What is compared with another model is measured with it in one pass.
    assert calls.count(model.base_model) == (batches if compare_with else 0)
    table = run.table()
    for name, column in (("drift", "cosine"), ("kept", "all")):
        assert table.steps(name, column, "training") == [2, 4]
        again, during = (table.grid(name, column, stage, 4)[0] for stage in ("checkpoint", "training"))
        np.testing.assert_array_equal(again, during)
    (alone,) = measure_pass(model, [Drift(LAYERS, HEADS)], data.evaluation_loader("val"), {"initial": initial})
    np.testing.assert_array_equal(table.grid("drift", "cosine", "checkpoint", 4)[0], alone.column("cosine").numpy())
    sums = MeasureView(run, Kept(LAYERS, HEADS).declaration()).fact(Sums)
    assert sums.parameter == pytest.approx(next(model.parameters()).sum().item())
    # Other weights are scored and measured.
    with torch.no_grad():
        model.base_model.encoder.layer[0].attention.self.query.weight.mul_(3.0)
    module.is_scored = False
    trainer.validate(module, datamodule=data, verbose=False)
    assert module.scores != scores
    assert not np.array_equal(run.table().grid("drift", "cosine", "checkpoint", 4)[0], again)


class Stopping(pl.Callback):
    """Ends a training after its second epoch."""

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        trainer.should_stop = trainer.current_epoch == 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("stopped", [False, True])
def test_before_the_end_of_training_a_sample_is_measured(stopped: bool, tmp_path: Path) -> None:
    run = a_run(tmp_path)
    watcher = measuring(watched(Kept, Sampled, Own), run, sample=8)
    module, data = prepared(tiny_classifier())
    module.validated_after_training = True
    trainer = quiet_trainer(tmp_path, [watcher, Stopping()], epochs=3 if stopped else 2)
    trainer.fit(module, datamodule=data)
    module.record["step"], module.is_scored = 4, True
    trainer.validate(module, datamodule=data, verbose=False)

    def counted(name: str, stage: str, step: int) -> int:
        (count,) = set(run.table().grid(name, "all", stage, step)[2].ravel().tolist())
        return int(count)

    # The numbers of the end are those of all examples, also where nobody knew that the training would end.
    sizes = {"kept": EXAMPLES, "sampled": 7, "own": 9}
    assert {name: counted(name, "training", 2) for name in sizes} == {"kept": 8, "sampled": 7, "own": 8}
    assert {name: counted(name, "training", 4) == size for name, size in sizes.items()} == {
        "kept": not stopped, "sampled": True, "own": not stopped,
    }  # fmt: skip
    assert {name: counted(name, "checkpoint", 4) for name in sizes} == sizes
    (alone,) = measure_pass(module.model, [Focus(LAYERS, HEADS)], data.evaluation_loader("val"))
    value_LH = run.table().grid("kept", "all", "checkpoint", 4)[0]
    np.testing.assert_array_equal(value_LH, alone.column("all").numpy())


@pytest.mark.filterwarnings("ignore")
def test_a_model_that_began_with_random_weights_is_compared_with_its_beginning_alone(tmp_path: Path) -> None:
    run = a_run(tmp_path, init="random_normal")
    watcher = measuring(
        watched(Focus),
        run,
        reference=tiny_classifier(1),
        compare_with=["initial", "random"],
        random=lambda: tiny_classifier(2),
    )
    module, data = prepared(tiny_classifier())
    quiet_trainer(tmp_path, [watcher], epochs=2).validate(module, datamodule=data, verbose=False)
    assert set(run.table().table["stage"].to_pylist()) == {"checkpoint", "initial", "checkpoint-initial"}


def test_the_reference_is_kept_where_something_is_compared_with_it(tmp_path: Path) -> None:
    for measures, compare_with, kept in (
        (watched(Focus), [], False),
        (watched(Focus), ["initial"], True),
        (watched(Drift), [], True),
    ):
        model = tiny_classifier()
        module, data = prepared(model)
        data.setup("fit")
        watcher = measuring(measures, a_run(tmp_path), compare_with=compare_with)
        trainer = quiet_trainer(tmp_path, [watcher], epochs=2)
        trainer.datamodule = data
        watcher.setup(trainer, module, "fit")
        assert (watcher.reference is not None) == kept
        if watcher.reference is not None:
            assert watcher.reference is not model
            pristine = deepcopy(watcher.reference.state_dict())
            assert not any(parameter.requires_grad for parameter in watcher.reference.parameters())
            assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in pristine.items())


@pytest.mark.parametrize(
    ("measures", "settings", "message"),
    [
        ((Focus,), {"compare_with": ["intial"]}, "compare_with lists the model 'intial'; did you mean 'initial'"),
        ((Focus,), {"compare_with": ["random"]}, "compare_with lists the model 'random', which cannot be built here"),
        ((Focus, Focus), {}, "Two measures are called 'focus'; rename or remove one of them"),
        ((Focus,), {"evaluation": "vall"}, "vall.*did you mean 'val'"),
        (
            (Clusters,),
            {"reference_name": "two"},
            "Measure 'clusters' only compares with the model before fine-tuning, but reference is 'two'; remove one",
        ),
    ],
)
def test_mistakes_are_errors_before_the_first_step(
    tmp_path: Path, measures: Sequence[Any], settings: dict[str, Any], message: str
) -> None:
    module, data = prepared(tiny_classifier())
    data.setup("fit")
    trainer = quiet_trainer(tmp_path, [], epochs=2)
    trainer.datamodule = data

    def watch() -> None:
        measuring(watched(*measures), a_run(tmp_path), **settings).setup(trainer, module, "fit")

    with pytest.raises(UserError, match=message):
        watch()


def test_a_named_reference_is_not_compared_with_as_the_initial_model() -> None:
    with pytest.warns(
        UserWarning, match="reference is 'two', so nothing is compared with the model before fine-tuning"
    ):
        analysis = MeasureAnalysis(watched(Focus), compare_with=["initial"], reference_name="two")
    assert analysis.compare_with == ()


@pytest.mark.filterwarnings("ignore")
def test_means_over_training_examples_reach_the_measures_that_need_them(tmp_path: Path) -> None:
    run, model = a_run(tmp_path), tiny_classifier()
    module, data = prepared(model, record={"step": 7})
    watcher = measuring([Watched(lambda layers, heads: FirstOrder(layers, heads, reference_examples=9), None)], run)
    quiet_trainer(tmp_path, [watcher], epochs=1).validate(module, datamodule=data, verbose=False)
    means_LHd = mean_head_outputs(model.eval(), (batch.inputs() for batch in data.training_sample(9)))
    (alone,) = measure_pass(model, [FirstOrder(LAYERS, HEADS)], data.evaluation_loader("val"), means_LHd=means_LHd)
    value_LH = run.table().grid("first_order", "mean", "checkpoint", 7)[0]
    np.testing.assert_allclose(value_LH, alone.column("mean").numpy(), rtol=1e-5)
