"""What every analysis promises: it leaves the model alone, gives the same findings again, and they can be read back."""

import re
import shutil
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from data.tasks import task
from data.toy import wordpiece
from families import HEADS, LAYERS
from trainings import tiny_classifier

import bertsecrets.pruning.latency as prune_latency
import bertsecrets.shrinking.latency as shrink_latency
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
from bertsecrets.importance.sink_heads import InterveneOnSinks
from bertsecrets.measures.analysis import MeasureAnalysis, Watched
from bertsecrets.measures.capture import CaptureAnalysis
from bertsecrets.measures.drift import Drift
from bertsecrets.measures.entropy import Entropy
from bertsecrets.probes.analysis import TrainProbes
from bertsecrets.pruning.fit_gates import FitGates
from bertsecrets.pruning.prune import PruneHeads
from bertsecrets.pruning.settings import PruneSettings, ShrinkSettings
from bertsecrets.results.run import CHECKPOINT, INITIAL, Run
from bertsecrets.results.store import Store
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
RESUMED: dict[str, Callable[[], Analysis]] = {
    **{name: ANALYSES[name] for name in ("disable", "shapley", "gates", "shrink")},
    "screened": lambda: DisableAnalysis(ablation=SETTINGS.model_copy(update={"sweep": "screened"})),
    "optimal": lambda: DisableAnalysis(ablation=SETTINGS.model_copy(update={"mode": "optimal", "optimal_steps": 2})),
    "prune": lambda: PruneHeads(PRUNE),
}
"""Analyses that keep finished steps."""

BY_TIME = ("prune", "shrink")
"""Analyses whose findings have times, which differ."""


@pytest.fixture(autouse=True)
def _times_are_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass takes as long as its layers have weights, as a tiny model may get no faster on a busy machine."""

    def in_turns(calls: Sequence[Any], rounds: int, *_: Any) -> list[list[float]]:
        weights = [
            sum(weight.numel() for name, weight in call.func.named_parameters() if "embeddings" not in name)
            for call in calls
        ]
        return [[1e-3 * number] * rounds for number in weights]

    for module in (shrink_latency, prune_latency):
        monkeypatch.setattr(module, "in_turns", in_turns)


@pytest.fixture(scope="module")
def data() -> TaskData:
    source = SourceConfig(source="demo", limit_train=16, limit_eval=12)
    return TaskData(task("demo_paraphrase"), source, wordpiece(), 8, max_length=96)


def run_in(folder: Path) -> Run:
    return Run(folder, "run", "tiny", "demo_paraphrase", "pretrained")


def context_of(data: TaskData, folder: Path) -> Context:
    before = tiny_classifier(1).eval()
    return Context.of_data(tiny_classifier(), data, progress=False, output=run_in(folder), references={INITIAL: before})


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


class _Killed(BaseException):
    pass


class _Steps:
    """Counts what is kept in a store, and kills the analysis when it keeps one step too many."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self.limit: int | None = None
        put = Store.put

        def counted(store: Store, value: object, *key: object) -> None:
            if len(self.names) == self.limit:
                raise _Killed
            put(store, value, *key)
            self.names.append(store._hash((store.key, *key)))

        monkeypatch.setattr(Store, "put", counted)

    def of(self, analysis: Analysis, context: Context, limit: int | None = None) -> tuple[list[str], list[Findings]]:
        """The steps that an analysis computed, and what it found; nothing if it was killed."""
        self.names, self.limit = [], limit
        try:
            return self.names, taken(analysis, context)
        except _Killed:
            return self.names, []


def without_times(found: list[Findings]) -> str:
    """All rows; a resumed sweep does not know how long it took."""
    return re.sub("seconds=[^,)]+", "", str([part.rows for part in found]))


@pytest.mark.parametrize("name", RESUMED)
def test_an_interrupted_analysis_is_resumed(
    data: TaskData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    make, steps = RESUMED[name], _Steps(monkeypatch)
    whole, expected = steps.of(make(), context_of(data, tmp_path / "whole"))
    first, found = steps.of(make(), context_of(data, tmp_path / "run"), limit=1 + len(whole) // 2)
    assert found == []
    again = context_of(data, tmp_path / "run")
    # Other weights or another precision begin anew.
    for number, changed in enumerate((replace(again, model=tiny_classifier(3)), replace(again, key=("bf16-mixed",)))):
        shutil.copytree(tmp_path / "run", tmp_path / f"{number}")
        other, _ = steps.of(make(), replace(changed, output=run_in(tmp_path / f"{number}")))
        assert not {*first} & {*other}
    second, found = steps.of(make(), again)
    assert again.store.loaded
    # A screened sweep improves what it kept.
    assert name == "screened" or not {*first} & {*second}
    # Which models a search makes depends on times.
    if name != "shrink":
        assert {*first, *second} == {*whole}
        assert without_times(found) == without_times(expected)
        for one, other in zip(found, expected, strict=True):
            for grid, same in zip(one.grids, other.grids, strict=True):
                torch.testing.assert_close(grid.value_LHC, same.value_LHC, rtol=0, atol=0, equal_nan=True)
    record(again.run, found, CHECKPOINT, 5)
    again.store.clear()
    assert not [*(tmp_path / "run").glob("unfinished-*")]
