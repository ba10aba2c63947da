"""Conditions: groups of runs that differ only in their seed, and the factors that vary between groups."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from bertsecrets.ablation.settings import AblationSettings
from bertsecrets.ablation.sweep import DisableAnalysis
from bertsecrets.callbacks.gates import PruneFirst, TrainGates
from bertsecrets.errors import UserError
from bertsecrets.keys import TrainerSettings, top_level
from bertsecrets.models.spec import RANDOM_INIT
from bertsecrets.reporting.runs import FinishedRun, joined
from bertsecrets.results.run import controls, controls_in_words, words_of_controls
from bertsecrets.results.views import Contrast, Grids, Replicates
from bertsecrets.settings import meanings

_IDENTITY = ("task", "model", "init")
_APART = top_level(lambda meaning: not meaning.tells_apart)
"""Top-level settings that never distinguish conditions."""

_ALONE = {
    section: {name for name, meaning in meanings(declared).items() if meaning.conditions == "alone"}
    for section, declared in (
        ("ablation", AblationSettings),
        ("callbacks", DisableAnalysis),
        ("analysis", DisableAnalysis),
    )
}
"""Settings of how, or on how much data, something is computed, by section: factors only of otherwise equal runs."""

_TRAINING_ONLY = {f"trainer.{name}" for name, meaning in meanings(TrainerSettings).items() if not meaning.analyses}
"""Trainer settings that analyses record but do not use."""

_UNSET = "unset"
_MEASURED = frozenset({"measure", "analysis", "annotation", "framenet"})
"""Groups of settings that training does not depend on."""
TRAIN_OTHERWISE = {f"{callback.__module__}.{callback.__qualname__}": callback for callback in (PruneFirst, TrainGates)}
"""Our callbacks that change the model, by their full names; the others only measure."""

_CONTROLS = frozenset(controls({}))
_NO_CONTROL = "no control"


@dataclass(frozen=True)
class Condition:
    """Runs that differ only in their seed.

    Args:
        factors: Task, model, init and every varying setting, by name.
        runs: Its replicates, each with its analyses.
    """

    factors: dict[str, str]
    runs: tuple[FinishedRun, ...]

    @property
    def task(self) -> str:
        return self.factors["task"]

    @property
    def controlled(self) -> bool:
        """Whether its runs were fine-tuned under a control."""
        return bool(controls_in_words(self.runs[0].config))

    @property
    def unlearned(self) -> tuple[FinishedRun, ...]:
        """The runs that do not significantly beat the majority baseline, whose heads are not interpreted.

        None under a control and from random weights: such runs are compared because they learn less.
        """
        kept = self.controlled or self.factors["init"] == RANDOM_INIT
        return () if kept else tuple(run for run in self.runs if run.scores.learned is False)

    def label(self, varying: Sequence[str]) -> str:
        """The values of the varying factors, as a label for axes and tables."""
        used = {name: self.factors[name] for name in varying if name in _CONTROLS}
        values = [_value(name, self.factors[name]) for name in varying if name not in used]
        if used:
            values += words_of_controls(used) or [_NO_CONTROL]
        return " · ".join(values) or self.factors["model"]

    def replicates(self, measure: str, *, of_task: bool = False) -> Replicates | None:
        """An experiment in all runs that have it, for one that reads the task without the unlearned; None if no run is
        left.
        """
        runs = [run for run in self.runs if not (of_task and run in self.unlearned)]
        views = [run.experiments[measure][1] for run in runs if measure in run.experiments]
        return Replicates(views) if views else None

    def grids(self, measure: str, column: str, *, of_task: bool = False) -> Grids | None:
        """A column of a measure at the last step of each of :meth:`replicates`; None if no run has it."""
        replicates = self.replicates(measure, of_task=of_task)
        return None if replicates is None else replicates.grids(column)


def find_conditions(runs: Sequence[FinishedRun]) -> tuple[list[Condition], list[str]]:
    """The conditions, in order of task, and the names of the factors that vary.

    Runs about the same weights, such as a training and its analysis, that differ in no setting are one replicate.

    Raises:
        UserError: If runs about different weights are equal in everything including their seed.
    """
    flat = _flat(runs)
    for key in sorted({key for settings in flat for key in settings if key.split(".")[-1] == "seed"}):
        # A setting that follows the run's seed tells replicates apart, not conditions.
        if all(settings.get(key) in (None, str(run.seed)) for settings, run in zip(flat, runs, strict=True)):
            for settings in flat:
                settings.pop(key, None)
    keys = {key for settings in flat for key in settings}
    identities = _identities(runs, flat, {key for key in keys if _tells_apart(key, flat)})
    # How something is computed tells runs apart only where nothing else does.
    if any(_repeated(group) for group in _grouped(identities, runs).values()):
        identities = _identities(runs, flat, keys)
    groups = _grouped(identities, runs)
    # Several checkpoints of one training may have been analysed.
    if any(_repeated(group) for group in groups.values()) and len({run.source for run in runs}) > 1:
        for identity, run in zip(identities, runs, strict=True):
            identity["checkpoint"] = str(run.source)
        groups = _grouped(identities, runs)
    for group in groups.values():
        if twice := _repeated(group):
            raise UserError(
                f"Runs '{twice[0].folder}' and '{twice[1].folder}' have the same settings and the same seed "
                f"({twice[0].seed}), so they are not two replicates; leave one of them out."
            )
    conditions = [Condition(dict(factors), tuple(group)) for factors, group in groups.items()]
    varying = [name for name in conditions[0].factors if len({condition.factors[name] for condition in conditions}) > 1]
    return sorted(conditions, key=lambda condition: list(condition.factors.values())), varying


def _identities(
    runs: Sequence[FinishedRun], flat: Sequence[dict[str, str]], keys: Iterable[str]
) -> list[dict[str, str]]:
    """What distinguishes each run from others, but for its seed.

    Args:
        runs: All runs.
        flat: Their settings.
        keys: Those that may distinguish conditions.
    """
    identities = [
        {"task": run.config["task"]["name"], "model": run.config["model"]["name"], "init": run.init} for run in runs
    ]
    patterns: set[tuple[str, ...]] = set()
    # Controls come first: a callback that only they leave out does not distinguish conditions then. The kind of task
    # head is next, as metrics and models follow from it.
    for key in sorted(keys, key=lambda key: (key not in _CONTROLS, key != "task.kind", key)):
        pattern = tuple(settings.get(key, _UNSET) for settings in flat)
        # A setting determined by earlier factors does not distinguish conditions, unless it varies together with the
        # initialisation: its effect must not be mistaken for that of the initialisation.
        seen: dict[tuple[str, ...], set[str]] = {}
        for identity, value in zip(identities, pattern, strict=True):
            other_factors = tuple(factor for name, factor in identity.items() if name != "init")
            seen.setdefault(other_factors, set()).add(value)
        if pattern not in patterns and any(len(values) > 1 for values in seen.values()):
            patterns.add(pattern)
            for identity, value in zip(identities, pattern, strict=True):
                identity[key] = value
    return identities


def _tells_apart(key: str, flat: Sequence[dict[str, str]]) -> bool:
    """Whether a setting distinguishes conditions by itself."""
    section, _, rest = key.partition(".")
    if section in _MEASURED or (section == "callbacks" and _only_measures(rest.partition(".")[0], flat)):
        # A run without a measure, a callback or annotation has no results of it.
        return len({settings[key] for settings in flat if key in settings}) > 1
    return rest.rpartition(".")[2] not in _ALONE.get(section, ())


def _only_measures(callback: str, flat: Sequence[dict[str, str]]) -> bool:
    """Whether a callback, given by its key, leaves the model as it is in every run that has it."""
    key = f"callbacks.{callback}"
    names = {settings[key] for settings in flat if key in settings}
    # Only our classes have no module in their names. A foreign one may change the model.
    return all("." not in name for name in names) and names.isdisjoint(
        kind.__name__ for kind in TRAIN_OTHERWISE.values()
    )


def _grouped(
    identities: Sequence[dict[str, str]], runs: Sequence[FinishedRun]
) -> dict[tuple[tuple[str, str], ...], list[FinishedRun]]:
    """The runs by what distinguishes them; those about the same weights as one run."""
    groups: dict[tuple[tuple[str, str], ...], dict[Any, list[FinishedRun]]] = {}
    for identity, run in zip(identities, runs, strict=True):
        groups.setdefault(tuple(identity.items()), {}).setdefault(run.weights, []).append(run)
    return {factors: [joined(same) for same in group.values()] for factors, group in groups.items()}


def _repeated(runs: Sequence[FinishedRun]) -> tuple[FinishedRun, FinishedRun] | None:
    """Two runs with the same seed; None if there are none."""
    return next(((first, second) for first, second in combinations(runs, 2) if first.seed == second.seed), None)


def contrasts(conditions: Sequence[Condition], varying: Sequence[str]) -> list[Contrast]:
    """Pairs of conditions that differ in exactly one factor; differences of task come last."""
    pairs = []
    for first, second in combinations(conditions, 2):
        differing = [name for name in varying if first.factors[name] != second.factors[name]]
        if len(differing) == 1:
            pairs.append((first, second, differing[0]))
    pairs.sort(key=lambda pair: (pair[2] == "task", varying.index(pair[2])))
    found = []
    for first, second, factor in pairs:
        shared = [name for name in varying if name != factor]
        common = f"{first.label(shared)}: " if shared else ""
        name = f"{common}{first.label([factor])} − {second.label([factor])}"
        found.append(Contrast(name, first.label(varying), second.label(varying)))
    return found


def _flat(runs: Sequence[FinishedRun]) -> list[dict[str, str]]:
    """Every setting of each run that may distinguish conditions, by its key.

    An analysis has the settings of its training that it does not use itself, if the training is among the runs.
    What all runs that have a setting agree on says nothing about runs of a command that does not have it.
    """
    trainings = {run.weights: run.config for run in runs if run.source is None}
    flat = []
    for run in runs:
        settings = _flatten(run.config)
        if run.source is not None:
            used = {key: value for key, value in settings.items() if key not in _TRAINING_ONLY}
            training = _flatten(trainings.get(run.weights, {}))
            settings = used | {
                key: value
                for key, value in training.items()
                if key in _TRAINING_ONLY or key.partition(".")[0] not in run.config
            }
        flat.append(settings | controls(run.config))
    for key in {key for settings in flat for key in settings} - _CONTROLS:
        section = key.partition(".")[0]
        having = [
            settings
            for settings, run in zip(flat, runs, strict=True)
            if key in settings or (section in run.config and not (run.source is not None and key in _TRAINING_ONLY))
        ]
        if len(having) < len(runs) and len({settings.get(key, _UNSET) for settings in having}) == 1:
            for settings in having:
                settings.pop(key, None)
    return flat


def _flatten(config: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Settings by dotted key. The key of a section with a ``_target_`` holds the class: ours without its module."""
    flat: dict[str, str] = {}
    for key, value in config.items():
        if not prefix and key in _APART:
            continue
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{key}.")
        elif key == "_target_":
            module, _, name = value.rpartition(".")
            flat[prefix.removesuffix(".")] = name if module.partition(".")[0] == "bertsecrets" else value
        # A setting that is null says as much as one that an earlier version did not have.
        elif value is not None:
            flat[f"{prefix}{key}"] = str(value)
    return flat


def _value(name: str, value: str) -> str:
    if name in _IDENTITY:
        return value.replace("_", " ") if name == "init" else value
    return f"{name}={value}"


def check_sizes(runs: Sequence[FinishedRun]) -> None:
    """Raise UserError if two runs have different numbers of layers or heads."""
    sized = [(run, run.size) for run in runs if run.size is not None]
    for run, size in sized[1:]:
        first, expected = sized[0]
        if size != expected:
            a, b = (f"{layers} by {heads}" for layers, heads in (expected, size) if expected and size)
            raise UserError(
                f"Runs '{first.name}' ({a} heads) and '{run.name}' ({b} heads) cannot be compared head by head; give "
                "runs of one size, or add heads=false to compare their scores alone."
            )
