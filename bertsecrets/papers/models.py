"""The models behind runs: each with its training run and its analyses, grouped over seeds."""

import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsecrets.ablation.seeds import Effects, effects
from bertsecrets.data.sources import SourceConfig
from bertsecrets.models.spec import INITIAL as BEFORE_TRAINING
from bertsecrets.models.spec import RANDOM_INIT
from bertsecrets.reporting.conditions import TRAIN_OTHERWISE, Condition, find_conditions
from bertsecrets.reporting.runs import FinishedRun
from bertsecrets.results.components import KINDS
from bertsecrets.results.files import copied, typed
from bertsecrets.results.run import CONFIG_COPY, INITIAL, ONLY, PERMUTED, Declaration, Run, controls_in_words
from bertsecrets.results.views import MeasureView, Replicates
from bertsecrets.settings import CONF

_OF_TRAINING = ("task", "model", "init", "seed", "data", "optimizer", "trainer", "trained")
"""Configuration sections that define a model; the others define measurements."""
_CALLBACKS, _AS_USUAL = "callbacks", "none"
"""The factor that lists them, and its value for models trained without."""
_STRENGTH = "penalty"
ANY_MODEL = f"checkpoint={BEFORE_TRAINING}"
"""The setting of an analysis that needs no run of the task."""

_NO_CONTROL = " · no control"
_SUBJECT = ("task", "model")
"""The factors that are shown wherever they vary."""

Ready = Callable[[MeasureView], bool]


@dataclass(frozen=True)
class Model(FinishedRun):
    """One model, as a run with the experiments of its training run and of all its analyses.

    Args:
        parts: Its training run, if available, then its analyses; at least one.
        compared: Analyses that compare it with another model (``reference``) instead of itself before fine-tuning.
    """

    parts: tuple[FinishedRun, ...] = ()
    compared: tuple[FinishedRun, ...] = ()

    @cached_property
    def experiments(self) -> dict[str, tuple[Declaration, MeasureView]]:
        """Each experiment, from the first part that has it."""
        return {name: found for part in reversed(self.parts) for name, found in part.experiments.items()}

    @property
    def training(self) -> FinishedRun | None:
        """Its training run; None if only analyses are available."""
        return next((part for part in self.parts if part.source is None), None)

    @property
    def checkpoint(self) -> str:
        """The checkpoint for commands on a page."""
        if self.training is not None:
            return os.path.abspath(self.training.folder)
        trained = self.parts[0].config.get("trained") or {}
        return str(trained.get("folder") or self.parts[0].source)

    def view(self, experiment: str, *columns: str, ready: Ready = lambda view: True) -> MeasureView | None:
        """The first view of an experiment with given columns for which ``ready`` is true."""
        views = (part.experiments[experiment][1] for part in self.parts if experiment in part.experiments)
        return next((view for view in views if all(map(view.has, columns)) and ready(view)), None)


def analysis_command(checkpoint: str, settings: str) -> str:
    """The command that runs an analysis of a checkpoint; empty without settings, which may include the model."""
    named = "" if settings.startswith(ANY_MODEL) else f"checkpoint={copied(checkpoint)} "
    return settings and f"python -m bertsecrets analyze {named}{settings}"


@dataclass(frozen=True)
class Group(Condition):
    """Models that differ only in their seed.

    Args:
        name: Label on a page: their task, and everything that varies between groups.
    """

    name: str

    @property
    def models(self) -> tuple[Model, ...]:
        return tuple(run for run in self.runs if isinstance(run, Model))

    @property
    def model(self) -> str:
        """Name of the model that was fine-tuned."""
        return self.factors["model"]

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration of the first part of the first model."""
        return self.models[0].parts[0].config

    @property
    def learners(self) -> tuple[Model, ...]:
        """The models that have learned the task; all models if none has."""
        return tuple(model for model in self.models if model not in self.unlearned) or self.models

    @property
    def title(self) -> str:
        """The name for a panel, with a note if nothing was learned."""
        learned = [model.scores.learned for model in self.models if model.scores.learned is not None]
        return self.name + " (not learned)" * (learned != [] and not any(learned))

    def columns(self, measure: str) -> list[str]:
        """The columns that any seed has at its last step."""
        replicates = self.replicates(measure)
        views = () if replicates is None else replicates.views
        return sorted({column.name for view in views for column in view.columns if view.has(column.name)})

    def mean(self, measure: str, column: str) -> NDArray[np.float64]:
        """Mean over seeds of one of :meth:`columns`, ``[layers, heads]``."""
        grids = self.grids(measure, column)
        assert grids is not None
        return np.asarray(grids.value_RLH.mean(axis=0))

    def views(self, experiment: str, *columns: str, ready: Ready = lambda view: True) -> list[MeasureView]:
        """An experiment's views with given columns, one per learner that has them."""
        views = (model.view(experiment, *columns, ready=ready) for model in self.learners)
        return [view for view in views if view is not None]

    def effects(self, kind: str, mode: str | None = None) -> Effects | None:
        """Effects of disabling every component of a kind; None if no model has them. Arguments as in :meth:`sweeps`."""
        views, mode = self.sweeps(kind, mode)
        return effects(Replicates(views), kind, mode=mode) if views else None

    def sweeps(self, kind: str, mode: str | None = None) -> tuple[list[MeasureView], str | None]:
        """One view per seed in which every component of a kind was disabled, and the mode to read.

        Args:
            kind: The name of one of :data:`bertsecrets.results.components.COMPONENTS`.
            mode: The mode of disabling; if no model has it, the views have any mode, and the mode to read is None, for
                their first.
        """
        for accepted_mode in dict.fromkeys((mode, None)):
            # A default argument binds the mode of this iteration.
            def ready(view: MeasureView, accepted_mode: str | None = accepted_mode) -> bool:
                rows = KINDS[kind].of(view.run.ablation_table().rows())
                size = view.run.size()
                components = {(row["layer"], row["head"]) for row in rows if accepted_mode in (None, row["mode"])}
                return size is not None and len(components) == math.prod(KINDS[kind].size(*size))

            views = self.views("ablation", ready=ready)
            if views:
                return views, accepted_mode
        return [], None


_FOLDER = "folder"
"""The option of ``conf/model`` for a model on disk."""


def model_settings(config: Mapping[str, Any]) -> list[str]:
    """The command settings for a run's model before fine-tuning."""
    model = config["model"]
    if model["name"] != _FOLDER and (CONF / "model" / f"{model['name']}.yaml").is_file():
        return [f"model={model['name']}"]
    keys = ("path", "name", "package", "family", "objective")
    return [f"model={_FOLDER}", *(f"model.{key}={typed(model[key])}" for key in keys if model.get(key) is not None)]


def text_settings(config: Mapping[str, Any]) -> list[str]:
    """The command settings for a run's task, unless it was inferred from the user's own data, and for its data, without
    controls.
    """
    task, data = config["task"], config.get("data") or {}
    sources = [data[key] for key in ("dataset", "path") if data.get(key) is not None]
    own = task.get("table") is not None or (task.get("hub") or {}).get("path") in sources
    source = data.get("source", "auto")
    return [
        *([] if own else [f"task={task['name']}"]),
        *([] if source in ("auto", "demo") else [f"data={source}"]),
        *(
            f"data.{key}={typed(data[key])}"
            for key, default in SourceConfig.defaults().items()
            if key not in ("source", "split_by")
            and f"data.{key}" not in (ONLY, PERMUTED)
            and data.get(key, default) != default
        ),
    ]


@dataclass(frozen=True)
class Studied:
    """The models behind some runs.

    Args:
        groups: Fine-tuned models, grouped over seeds.
        initial: Separately analysed models before fine-tuning, by model and task.
        runs: All runs.
    """

    groups: tuple[Group, ...]
    initial: tuple[Model, ...]
    runs: tuple[FinishedRun, ...]

    @property
    def tuned(self) -> list[Group]:
        """Models fine-tuned as usual, from pre-trained weights."""
        return [group for group in self.groups if not group.controlled and group.factors["init"] != RANDOM_INIT]

    @property
    def random(self) -> list[Group]:
        """Models fine-tuned from random weights, without a control."""
        return [group for group in self.groups if not group.controlled and group.factors["init"] == RANDOM_INIT]

    def counterpart(self, group: Group, **factors: str) -> Group | None:
        """The models that differ from others only in these factors; None without any."""
        wanted = {**group.factors, **factors}
        return next((candidate for candidate in self.groups if candidate.factors == wanted), None)

    def of_random(self, group: Group) -> Group | None:
        """The models that differ from others only in starting from random weights."""
        return self.counterpart(group, init=RANDOM_INIT)

    def as_usual(self, group: Group) -> Group | None:
        """The models that differ from those trained with gates or without some heads in nothing else."""
        return self.counterpart(group, **{_CALLBACKS: _AS_USUAL})

    def initial_of(self, group: Group) -> list[Model]:
        """The separately analysed models before fine-tuning, for a group's model and task."""
        key = group.model, group.task
        return [model for model in self.initial if _model_and_task(model) == key]

    def effects(self, kind: str, mode: str | None = None) -> list[tuple[Group, Effects]]:
        """The fine-tuned models in which every component of a kind was disabled, with :meth:`Group.effects`."""
        return [(group, effect) for group in self.tuned if (effect := group.effects(kind, mode)) is not None]

    def controls_of(self, group: Group) -> list[Group]:
        """The controls that differ from fine-tuned models only in the control."""
        recipe = _recipe(group)
        return [control for control in self.groups if control.controlled and _recipe(control) == recipe]

    def parts_before(self) -> dict[tuple[str, str], list[FinishedRun]]:
        """The runs that may contain numbers of a model before fine-tuning, by model and task."""
        parts: dict[tuple[str, str], list[FinishedRun]] = {}
        for run in self.runs:
            if run.init != RANDOM_INIT and not controls_in_words(run.config):
                parts.setdefault(_model_and_task(run), []).append(run)
        return parts

    def before(self, experiment: str, ready: Ready = lambda view: True) -> dict[tuple[str, str], MeasureView]:
        """An experiment in the models before fine-tuning, by model and task; one view each."""
        views: dict[tuple[str, str], MeasureView] = {}
        for key, parts in self.parts_before().items():
            for run in parts:
                view = view_before(run, experiment)
                if view is not None and ready(view):
                    views.setdefault(key, view)
        return views


def view_before(run: FinishedRun, experiment: str) -> MeasureView | None:
    """An experiment of a run in the model before fine-tuning; None if it was not measured there."""
    view = run.experiments[experiment][1] if experiment in run.experiments else None
    return view if view is None or run.source == BEFORE_TRAINING else view.at(INITIAL)


def _model_and_task(run: FinishedRun) -> tuple[str, str]:
    return str(run.config["model"]["name"]), str(run.config["task"]["name"])


def _recipe(group: Group) -> dict[str, str]:
    """Properties that a control must share with the models it is compared with.

    The factors of conditions are not enough, because they omit what a control determines.
    """
    config = group.models[0].config
    of_task = config["task"].get("training") or {}
    optimizer, trainer = config.get("optimizer") or {}, config.get("trainer") or {}
    return {
        **{name: group.factors[name] for name in ("task", "model", "init")},
        "learning rate": str(optimizer.get("learning_rate", of_task.get("learning_rate", ""))),
        "epochs": str(trainer.get("max_epochs", "")),
        "training examples": str((config.get("data") or {}).get("limit_train") or "all"),
    }


def studied(runs: Sequence[FinishedRun]) -> Studied:
    """The models behind runs: a training run and its analyses form a model, and models that differ only in their seed a
    group.
    """
    by_origin: dict[str, list[FinishedRun]] = {}
    initial: dict[tuple[str, str, str], list[FinishedRun]] = {}
    for run in runs:
        if run.source == BEFORE_TRAINING:
            initial.setdefault((*_model_and_task(run), run.init), []).append(run)
        else:
            by_origin.setdefault(_origin(run), []).append(run)
    models = _joined([_model(parts) for parts in by_origin.values()])
    conditions, varying = find_conditions(models) if models else ([], [])
    names = ["task", *(name for name in varying if name not in ("task", "init"))]
    groups = [Group(c.factors, c.runs, _name(c, names, conditions)) for c in conditions]
    return Studied(
        tuple(sorted(groups, key=lambda group: group.name)),
        tuple(_model(parts) for parts in initial.values()),
        tuple(runs),
    )


def _name(condition: Condition, varying: Sequence[str], conditions: Sequence[Condition]) -> str:
    """The label that distinguishes models from others on a page.

    A setting is included only if runs of the same model and task differ in it; the usual callbacks are omitted.
    """
    identity = [condition.factors[name] for name in _SUBJECT]
    alike = [other for other in conditions if [other.factors[name] for name in _SUBJECT] == identity]
    told = [name for name in varying if name in _SUBJECT or len({other.factors[name] for other in alike}) > 1]
    label = condition.label([name for name in told if name != _CALLBACKS]).removesuffix(_NO_CONTROL)
    callback, *settings = condition.factors.get(_CALLBACKS, _AS_USUAL).split(" ")
    if _CALLBACKS not in told or callback == _AS_USUAL:
        return label
    others = [words for other in alike if (words := other.factors[_CALLBACKS].split(" "))[0] == callback]
    return " ".join(
        [f"{label} · {callback}", *(word for word in settings if any(word not in words for words in others))]
    )


def _model(parts: Sequence[FinishedRun]) -> Model:
    # The training run comes first, because it defines the model.
    compared = tuple(run for run in parts if run.config.get("reference") is not None)
    ordered = tuple(sorted((run for run in parts if run not in compared), key=lambda run: run.source is not None))
    ordered = ordered or compared
    first = ordered[0]
    training = _training_config(first)
    config = {key: value for key, value in training.items() if key in _OF_TRAINING}
    config[_CALLBACKS] = _trained_with(first)
    return Model(first.folder, config, first.scores, first.heads, parts=ordered, compared=compared)


def callbacks_of_training(run: FinishedRun) -> dict[str, Mapping[str, Any]]:
    """The settings of the callbacks that changed a run's model, by name."""
    callbacks = _training_config(run).get("callbacks") or {}
    return {
        name: settings
        for name, settings in callbacks.items()
        if isinstance(settings, Mapping) and settings.get("_target_") in TRAIN_OTHERWISE
    }


def _trained_with(run: FinishedRun) -> str:
    """These callbacks as text, with the gate penalty and settings other than their defaults: ``gates penalty=0.03``."""
    words = []
    for name, settings in callbacks_of_training(run).items():
        parameters = signature(TRAIN_OTHERWISE[settings["_target_"]]).parameters
        defaults = {key: parameter.default for key, parameter in parameters.items()}
        values = {key: settings.get(key, default) for key, default in defaults.items()}
        shown = {key: value for key, value in values.items() if value != defaults[key] or key == _STRENGTH}
        if shown.get("seed") == run.seed:
            del shown["seed"]
        if "tables" in shown:
            # Scores may come from a separate folder per seed, named after it.
            names = [re.sub(rf"[-_]s?{run.seed}$", "", Path(folder).name) for folder in shown["tables"]]
            shown["tables"] = f"[{','.join(names)}]"
        words += [name, *(f"{key}={value}" for key, value in shown.items())]
    return " ".join(words) or _AS_USUAL


def _joined(models: Sequence[Model]) -> list[Model]:
    """The models, merged if they differ only in what was measured, because they are not separate replicates."""
    by_settings: dict[str, list[Model]] = {}
    for model in sorted(models, key=lambda model: (model.seed, model.training is None)):
        by_settings.setdefault(json.dumps(model.config, sort_keys=True, default=str), []).append(model)
    return [
        replace(
            alike[0],
            parts=tuple(part for model in alike for part in model.parts),
            compared=tuple(run for model in alike for run in model.compared),
        )
        for alike in by_settings.values()
    ]


def _origin(run: FinishedRun) -> str:
    """The folder of the training run, or the model's own folder."""
    if run.source is None:
        return str(run.folder.resolve())
    trained = run.config.get("trained") or {}
    return str(Path(str(trained.get("folder") or run.source)).resolve())


def _training_config(run: FinishedRun) -> Mapping[str, Any]:
    """The training configuration; for an analysis, the analysed run's, or its own if that folder is missing."""
    if run.source is None:
        return run.config
    origin = Path(_origin(run))
    return Run.open(origin).config() if (origin / CONFIG_COPY).is_file() else run.config
