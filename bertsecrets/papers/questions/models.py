"""The fine-tuned models behind some runs: each with its training and its analyses, grouped over seeds."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsecrets.models.spec import INITIAL as BEFORE_TRAINING
from bertsecrets.models.spec import RANDOM_INIT
from bertsecrets.reporting.controls import controls, controls_in_words
from bertsecrets.reporting.runs import FinishedRun
from bertsecrets.results.run import INITIAL
from bertsecrets.results.scores import LEVEL
from bertsecrets.results.views import MeasureView
from bertsecrets.settings import CONF

_DATA = ("root", "path", "limit_train", "limit_eval")
_TRAINING = (("optimizer", "learning_rate"), ("trainer", "max_epochs"))

Ready = Callable[[MeasureView], bool]


@dataclass(frozen=True)
class TunedModel:
    """One fine-tuned model.

    Args:
        runs: Its training, if that is among the runs, then the analyses of it; at least one.
    """

    runs: tuple[FinishedRun, ...]

    @property
    def training(self) -> FinishedRun | None:
        """The run that trained it; None if only analyses of it were given."""
        return next((run for run in self.runs if run.source is None), None)

    @property
    def folder(self) -> str:
        """What a command names to analyse it."""
        if self.training is not None:
            return str(self.training.folder)
        trained = self.runs[0].config.get("trained") or {}
        return str(trained.get("folder") or self.runs[0].source)

    def view(self, experiment: str, ready: Ready) -> MeasureView | None:
        """The first view of an experiment that has what a question needs."""
        views = (run.experiments[experiment][1] for run in self.runs if experiment in run.experiments)
        return next((view for view in views if ready(view)), None)

    def command(self, settings: str) -> str:
        """The command that takes an analysis of it."""
        return f"python analyze.py checkpoint={shlex.quote(self.folder)} {settings}"


@dataclass(frozen=True)
class Tuned:
    """Fine-tuned models that differ in their seed alone.

    Args:
        name: What distinguishes them on the page.
        models: One for each seed.
        config: The configuration of the first.
    """

    name: str
    models: tuple[TunedModel, ...]
    config: Mapping[str, Any]

    @property
    def task(self) -> str:
        return str(self.config["task"]["name"])

    @property
    def pairs(self) -> bool:
        """Whether an example of the task is a pair of sentences."""
        return bool(self.config["task"].get("texts") == 2)

    @property
    def annotated(self) -> str:
        """The settings that annotate the task's words; empty where they are annotated."""
        section = self.config.get("annotation") or {}
        if self.config["task"].get("demo") or section.get("pipeline"):
            return ""
        return " annotation=spacy annotation.pipeline=en_core_web_md"

    def retrain(self, settings: str) -> str:
        """The command that trains the first model again with other settings, as far as the runs record how it was trained."""
        config = self.models[0].runs[0].config
        model, data = config["model"], config.get("data") or {}
        chosen = model["name"] if (CONF / "model" / f"{model['name']}.yaml").is_file() else "folder"
        words = [f"task={self.task}", f"model={chosen}"]
        words += [f"model.path={model['path']}", f"model.name={model['name']}"] if chosen == "folder" else []
        words += [f"data={data['source']}"] if data.get("source", "auto") not in ("auto", "demo") else []
        words += [f"data.{key}={data[key]}" for key in _DATA if data.get(key) is not None]
        if self.models[0].training is not None:
            values = ((key, (config.get(key[0]) or {}).get(key[1])) for key in _TRAINING)
            words += [f"{section}.{name}={value}" for (section, name), value in values if value is not None]
            size = (config["task"].get("training") or {}).get("batch_size")
            words += [] if size is None else [f"task.training.batch_size={size}"]
        words.append(f"seed={self.models[0].runs[0].seed}")
        return f"python train.py {' '.join([*(shlex.quote(word) for word in words), settings])}".strip()

    @property
    def learned(self) -> bool | None:
        """Whether most seeds are shown to beat the constant answer; None where that was not tested."""
        tests = [next(iter(model.runs[0].scores["sets"].values())).get("p_constant") for model in self.models]
        known = [float(p) for p in tests if p is not None]
        return sum(p <= LEVEL for p in known) > len(known) / 2 if known else None

    def views(self, experiment: str, *columns: str, ready: Ready = lambda view: True) -> list[MeasureView]:
        """An experiment's views that have some columns, one for each seed that has them."""

        def complete(view: MeasureView) -> bool:
            return all(view.has(column) for column in columns) and ready(view)

        views = (model.view(experiment, complete) for model in self.models)
        return [view for view in views if view is not None]


@dataclass(frozen=True)
class QuestionRuns:
    """The models that the questions are about.

    Args:
        tuned: Fine-tuned as usual, from pre-trained weights.
        controls: Fine-tuned under a control.
        runs: All runs.
    """

    tuned: tuple[Tuned, ...]
    controls: tuple[Tuned, ...]
    runs: tuple[FinishedRun, ...]

    def controls_of(self, tuned: Tuned) -> list[Tuned]:
        """The controls with the same task and model."""
        return [
            control
            for control in self.controls
            if control.task == tuned.task and control.config["model"]["name"] == tuned.config["model"]["name"]
        ]

    def before(self, experiment: str, ready: Ready = lambda view: True) -> list[tuple[str, MeasureView]]:
        """An experiment in the models before fine-tuning, by model and task; one view of each."""
        views: dict[str, MeasureView] = {}
        for run in self.runs:
            if run.init == RANDOM_INIT or experiment not in run.experiments:
                continue
            view = run.experiments[experiment][1]
            initial = view if run.source == BEFORE_TRAINING else view.at(INITIAL)
            if initial is not None and ready(initial):
                views.setdefault(f"{run.config['model']['name']} on {run.config['task']['name']}", initial)
        return list(views.items())


def question_runs(runs: Sequence[FinishedRun]) -> QuestionRuns:
    """Runs grouped by the model that they trained or analysed, and models by everything but their seed."""
    by_model: dict[tuple[str, ...], list[FinishedRun]] = {}
    for run in runs:
        if run.source != BEFORE_TRAINING:
            by_model.setdefault((_origin(run), *controls(run.config).values()), []).append(run)
    models = [TunedModel(tuple(sorted(group, key=lambda run: run.source is not None))) for group in by_model.values()]
    models.sort(key=lambda model: model.runs[0].seed)
    groups: dict[tuple[tuple[str, str], ...], list[TunedModel]] = {}
    for model in models:
        groups.setdefault(tuple(_factors(model.runs[0]).items()), []).append(model)
    factors = [dict(key) for key in groups]
    varying = [name for name in factors[0] if len({factor.get(name) for factor in factors}) > 1] if factors else []
    tuned = [
        Tuned(_name(factor, varying, group[0].runs[0].config), tuple(group), group[0].runs[0].config)
        for factor, group in zip(factors, groups.values(), strict=True)
    ]
    tuned.sort(key=lambda one: one.name)
    controlled = [one for one in tuned if controls_in_words(one.config)]
    usual = [one for one in tuned if one not in controlled and one.models[0].runs[0].init != RANDOM_INIT]
    return QuestionRuns(tuple(usual), tuple(controlled), tuple(runs))


def _origin(run: FinishedRun) -> str:
    """The folder of the run that trained the model, or the model's own."""
    if run.source is None:
        return str(run.folder.resolve())
    trained = run.config.get("trained") or {}
    return str(Path(str(trained.get("folder") or run.source)).resolve())


def _factors(run: FinishedRun) -> dict[str, str]:
    """What distinguishes groups of models: an analysis does not record all of the training's settings."""
    config = run.config
    training, optimizer = config["task"].get("training") or {}, config.get("optimizer") or {}
    return {
        "task": str(config["task"]["name"]),
        "model": str(config["model"]["name"]),
        "init": run.init,
        **controls(config),
        "learning rate": str(optimizer.get("learning_rate", training.get("learning_rate", ""))),
        "epochs": str((config.get("trainer") or {}).get("max_epochs", "") if run.source is None else ""),
        "training examples": str((config.get("data") or {}).get("limit_train")),
    }


_PLAIN = ("learning rate", "epochs", "training examples")


def _name(factor: Mapping[str, str], varying: Sequence[str], config: Mapping[str, Any]) -> str:
    parts = [factor["task"]]
    parts += [factor["model"]] if "model" in varying else []
    parts += [factor["init"].replace("_", " ")] if factor["init"] == RANDOM_INIT else []
    parts += controls_in_words(config)
    # A setting that follows from the task or from a control needs no name of its own.
    parts += [f"{name} {factor[name]}" for name in _PLAIN if name in varying and name == "epochs" and factor[name]]
    return " · ".join(parts)
