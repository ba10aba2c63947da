"""The fine-tuned models behind some runs: each with its training and its analyses, grouped over seeds."""

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsecrets.data.sources import SourceConfig
from bertsecrets.models.spec import INITIAL as BEFORE_TRAINING
from bertsecrets.models.spec import RANDOM_INIT
from bertsecrets.reporting.controls import ONLY, PERMUTED, controls, controls_in_words
from bertsecrets.reporting.runs import FinishedRun
from bertsecrets.results.config_copy import CONFIG_COPY
from bertsecrets.results.run import INITIAL, Run
from bertsecrets.results.scores import LEVEL
from bertsecrets.results.views import MeasureView
from bertsecrets.settings import CONF

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
    def learned(self) -> bool | None:
        """Whether it is shown to beat the constant answer; None where that was not tested."""
        p = next(iter(self.runs[0].scores["sets"].values())).get("p_constant")
        return None if p is None else float(p) <= LEVEL

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
        words = [] if _own_data(config) else [f"task={self.task}"]
        words.append(f"model={chosen}")
        words += [f"model.{key}={_argument(model[key])}" for key in ("path", "name")] if chosen == "folder" else []
        words += [f"data={data['source']}"] if data.get("source", "auto") not in ("auto", "demo") else []
        words += [
            f"data.{key}={_argument(data[key])}"
            for key, field in SourceConfig.model_fields.items()
            if key != "source"
            and f"data.{key}" not in (ONLY, PERMUTED)
            and data.get(key, field.default) != field.default
        ]
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
        known = [model.learned for model in self.models if model.learned is not None]
        return sum(known) > len(known) / 2 if known else None

    def views(self, experiment: str, *columns: str, ready: Ready = lambda view: True) -> list[MeasureView]:
        """An experiment's views that have some columns, one for each seed that has them."""

        def complete(view: MeasureView) -> bool:
            return all(view.has(column) for column in columns) and ready(view)

        views = (model.view(experiment, complete) for model in self.models)
        return [view for view in views if view is not None]


def _own_data(config: Mapping[str, Any]) -> bool:
    """Whether the task was made from the columns of data of the user's own, so that no option of ``conf/task`` names it."""
    task, data = config["task"], config.get("data") or {}
    given = [data[key] for key in ("dataset", "path") if data.get(key) is not None]
    return task.get("csv") is not None or (task.get("hub") or {}).get("path") in given


def _argument(value: Any) -> str:
    """A setting's value in Hydra's grammar."""
    plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z_/][\w./:@+-]*", value)
    return value if plain else json.dumps(value, ensure_ascii=False)


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
        """The controls that differ from fine-tuned models in nothing but the control."""
        return [control for control, different in self._controls_by_difference(tuned) if not different]

    def not_comparable(self, tuned: Tuned) -> list[tuple[Tuned, list[str]]]:
        """Other controls of the same task and model, with the settings in which they differ."""
        return [(control, different) for control, different in self._controls_by_difference(tuned) if different]

    def _controls_by_difference(self, tuned: Tuned) -> list[tuple[Tuned, list[str]]]:
        """The controls with the same task and model, and the factors other than controls in which they differ."""
        factor = _factors(tuned.models[0].runs[0])
        names = [name for name in factor if name not in controls(tuned.config)]
        found = []
        for control in self.controls:
            other = _factors(control.models[0].runs[0])
            different = [name for name in names if other[name] != factor[name]]
            if not {"task", "model"} & set(different):
                found.append((control, different))
        return found

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
    several_models = len({factor["model"] for factor in factors}) > 1
    configs = [group[0].runs[0].config for group in groups.values()]
    names = _names(factors, several_models, configs)
    tuned = [
        Tuned(name, tuple(group), config) for name, group, config in zip(names, groups.values(), configs, strict=True)
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


def _training_config(run: FinishedRun) -> Mapping[str, Any]:
    """The configuration of the training: of an analysis, that of the analysed run; empty if its folder is gone."""
    if run.source is None:
        return run.config
    origin = Path(_origin(run))
    return Run.open(origin).config() if (origin / CONFIG_COPY).is_file() else {}


def _factors(run: FinishedRun) -> dict[str, str]:
    """What distinguishes groups of models; an analysis itself does not record all of the training's settings."""
    config, training = run.config, _training_config(run)
    optimizer, trainer = training.get("optimizer") or {}, training.get("trainer") or {}
    of_task = (training.get("task") or {}).get("training") or {}
    return {
        "task": str(config["task"]["name"]),
        "model": str(config["model"]["name"]),
        "init": run.init,
        **controls(config),
        "learning rate": str(optimizer.get("learning_rate", of_task.get("learning_rate", ""))),
        "epochs": str(trainer.get("max_epochs", "")),
        "training examples": str((config.get("data") or {}).get("limit_train") or "all"),
    }


_PLAIN = ("learning rate", "epochs", "training examples")


def _names(
    factors: Sequence[Mapping[str, str]], several_models: bool, configs: Sequence[Mapping[str, Any]]
) -> list[str]:
    """A name for each group of models, no two the same."""
    named = []
    for factor, config in zip(factors, configs, strict=True):
        parts = [factor["task"]]
        parts += [factor["model"]] if several_models else []
        parts += [factor["init"].replace("_", " ")] if factor["init"] == RANDOM_INIT else []
        named.append(" · ".join([*parts, *controls_in_words(config)]))
    names = []
    for name, factor in zip(named, factors, strict=True):
        # Settings are named only where they separate groups that would otherwise have the same name.
        alike = [other for other_name, other in zip(named, factors, strict=True) if other_name == name]
        varying = [each for each in _PLAIN if len({other[each] for other in alike}) > 1]
        names.append(" · ".join([name, *(f"{each} {factor[each] or 'not recorded'}" for each in varying)]))
    return names
