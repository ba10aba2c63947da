"""What every analysis promises: it leaves the model alone, gives the same findings again, and they can be read back."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from data.tasks import task
from data.toy import wordpiece
from families import HEADS, LAYERS
from trainings import tiny_classifier

from bertsecrets.ablation.blocking import BlockAttention
from bertsecrets.ablation.direct import EffectsOfHeads
from bertsecrets.ablation.settings import AblationSettings
from bertsecrets.ablation.shapley import ShapleyHeads
from bertsecrets.ablation.sweep import DisableAnalysis
from bertsecrets.analysis import Analysis, Context, Findings, find, record
from bertsecrets.data.module import TaskData
from bertsecrets.data.sources import SourceConfig
from bertsecrets.errors import UserError
from bertsecrets.importance.relevance import RelevanceOfHeads
from bertsecrets.importance.sinks.analysis import InterveneOnSinks
from bertsecrets.measures.analysis import MeasureAnalysis, Watched
from bertsecrets.measures.capture import CaptureAnalysis
from bertsecrets.measures.drift import Drift
from bertsecrets.measures.entropy import Entropy
from bertsecrets.probes.analysis import TrainProbes
from bertsecrets.pruning.fit_gates import FitGates
from bertsecrets.pruning.prune import PruneHeads
from bertsecrets.pruning.settings import PruneSettings, ShrinkSettings
from bertsecrets.results.run import CHECKPOINT, INITIAL, Run
from bertsecrets.results.views import MeasureView
from bertsecrets.shrinking.analysis import ShrinkModel

SETTINGS = AblationSettings(resamples=100, permutations=100)
PRUNE = PruneSettings(step=0.5, seeds=1, examples=8, scores=["exact"], latency_rounds=0)
SHRINK = ShrinkSettings(speedup=1.01, max_loss=90, epochs=0, examples=8, distilled_on=8, latency_rounds=1, batch_size=2)

ANALYSES: dict[str, Callable[[], Analysis]] = {
    "disable": lambda: DisableAnalysis(ablation=SETTINGS),
    "direct_effect": lambda: EffectsOfHeads(SETTINGS),
    "shapley": lambda: ShapleyHeads(SETTINGS, permutations=2, max_examples=4),
    "block_attention": lambda: BlockAttention(SETTINGS, tokens=["sep"]),
    "relevance": RelevanceOfHeads,
    "sinks": lambda: InterveneOnSinks(attention=0.1),
    "capture": lambda: CaptureAnalysis(2),
    "measures": lambda: MeasureAnalysis([Watched(Entropy), Watched(Drift)], compare_with=["initial"]),
    "probes": lambda: TrainProbes(probes=["attention"], epochs=1, control=False, replicates=20),
    "gates": lambda: FitGates(steps=2, fits=1, path=(0.1,), examples=8),
    "prune": lambda: PruneHeads(PRUNE),
    "shrink": lambda: ShrinkModel(SHRINK),
}
BY_TIME = ("prune", "shrink")
"""Analyses whose findings have times, which differ."""


@pytest.fixture(scope="module")
def data() -> TaskData:
    source = SourceConfig(source="demo", limit_train=16, limit_eval=12)
    return TaskData(task("demo_paraphrase"), source, wordpiece(), 8, max_length=96)


def context_of(data: TaskData, folder: Path) -> Context:
    run = Run(folder, "run", "tiny", "demo_paraphrase", "pretrained")
    before = tiny_classifier(1).eval()
    return Context.of_data(tiny_classifier(), data, progress=False, output=run, references={INITIAL: before})


def taken(analysis: Analysis, context: Context) -> list[Findings]:
    analysis.check(context)
    analysis.check_on_device(context)
    return find(analysis, context)


@pytest.mark.parametrize("name", ANALYSES)
def test_an_analysis_leaves_the_model_alone_and_is_read_back(data: TaskData, tmp_path: Path, name: str) -> None:
    context = context_of(data, tmp_path / "run")
    model = context.model.train()
    # Somebody's choices, which are not those of a model as it is loaded.
    next(model.parameters()).requires_grad_(False)
    model.get_submodule("classifier").eval()
    weights, modes = deepcopy(model.state_dict()), [part.training for part in model.modules()]
    trainable = [parameter.requires_grad for parameter in model.parameters()]

    findings = taken(ANALYSES[name](), context)

    assert [part.training for part in model.modules()] == modes
    assert [parameter.requires_grad for parameter in model.parameters()] == trainable
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(tensor, weights[key]) for key, tensor in model.state_dict().items())

    assert findings
    record(context.run, findings, CHECKPOINT, 5)
    declared = {declaration.name: declaration for declaration in context.run.declarations()}
    for part in findings:
        assert part.experiment.name in declared
        stage, step = part.moment or (CHECKPOINT, 5)
        for grid in part.grids:
            assert grid.value_LHC.shape[:2] == (LAYERS, HEADS)
            for column in grid.columns:
                value_LH, _, count_LH = context.run.table().grid(grid.measure, column, stage, step)
                torch.testing.assert_close(torch.from_numpy(value_LH), grid.column(column).double(), equal_nan=True)
                assert count_LH.shape == (LAYERS, HEADS)
        for kind in {type(row) for row in part.rows}:
            view = MeasureView(context.run, declared[part.experiment.name])
            assert len(view.found(kind)) == sum(type(row) is kind for row in part.rows)


@pytest.mark.parametrize("name", [name for name in ANALYSES if name not in BY_TIME])
def test_the_same_findings_again(data: TaskData, tmp_path: Path, name: str) -> None:
    first, second = (taken(ANALYSES[name](), context_of(data, tmp_path / folder)) for folder in ("a", "b"))
    assert [part.experiment.name for part in first] == [part.experiment.name for part in second]
    for one, other in zip(first, second, strict=True):
        for grid, again in zip(one.grids, other.grids, strict=True):
            torch.testing.assert_close(grid.value_LHC, again.value_LHC, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", [name for name, make in ANALYSES.items() if make().without_labels])
def test_a_task_without_labels_is_refused_before_anything_runs(data: TaskData, tmp_path: Path, name: str) -> None:
    unlabelled = data.task.model_copy(update={"labels": (), "metrics": ()})
    context = replace(context_of(data, tmp_path), task=unlabelled)
    with pytest.raises(UserError, match=r"has no labels, so .*; choose a labelled task"):
        ANALYSES[name]().check(context)
