"""``sweeper=optuna``: a sweep that chooses its jobs one by one to find the settings with the best objective."""

import importlib.util
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig
from pydantic import Field

from bertsecrets.errors import UserError
from bertsecrets.results.files import write_text
from bertsecrets.settings import Settings
from bertsecrets.sweeps.hydra_arguments import parse_overrides

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.distributions import BaseDistribution

_PACKAGE = "hydra_plugins.bertsecrets"
PLUGIN = f"{_PACKAGE}.Search"
"""The ``_target_`` of this sweeper."""

STUDIES = "optuna.db"
"""Optuna's database in the sweep's folder. Each command adds a study that starts with the previous study's trials."""

BEST = "optimization_results.yaml"
"""Name of the file with the best settings and their objective."""


class SearchSettings(Settings):
    """The ``hydra.sweeper`` section of ``sweeper=optuna``."""

    direction: Literal["maximize", "minimize"] = Field(description="maximize or minimize")
    n_trials: int = Field(ge=1, description="a whole number from 1")
    n_jobs: int = Field(ge=1, description="a whole number from 1")
    sampler: Literal["tpe", "gp", "random"] = Field(description="tpe, gp or random")
    seed: int = Field(ge=0, description="a whole number from 0")
    params: dict[str, Any] = Field(description="a section of keys and values")


def offer_search() -> None:
    """Let Hydra find this sweeper."""
    Plugins.instance().register(Search)
    # Hydra 1.4 imports what it builds.
    sys.modules[_PACKAGE] = sys.modules[__name__]


def check_search(section: Mapping[str, Any], overrides: Sequence[Override]) -> None:
    """Check the ``hydra.sweeper`` section and the search space on the command line.

    Args:
        section: As plain values.
        overrides: The section's ``params`` and the command line's settings.

    Raises:
        UserError: If a value does not fit, the search space is empty, or Optuna is not installed.
    """
    SearchSettings.read("hydra.sweeper", {key: value for key, value in section.items() if key != "_target_"})
    if importlib.util.find_spec("optuna") is None:
        raise UserError("sweeper=optuna needs Optuna; run pip install 'bertsecrets[sweeps]'.")
    if not [searched(override) for override in overrides if override.is_sweep_override()]:
        raise UserError(
            "sweeper=optuna has an empty search space; give a setting several values or an interval, for example "
            "'optimizer.learning_rate=tag(log, interval(1e-5, 1e-3))'."
        )


def searched(override: Override) -> "BaseDistribution":
    """The values of a setting that a sweep varies: the numbers of an interval or of a range of whole numbers, or texts.

    A range ends before its stop, as in every sweep of Hydra; ``tag(log, interval(...))`` is searched on a logarithmic
    scale.

    Raises:
        UserError: If an interval is empty, or its tag does not fit.
    """
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    value = override.value()
    line = override.input_line
    tags: set[str] = getattr(value, "tags", set())
    if tags - {"log"} or (tags and not isinstance(value, IntervalSweep)):
        raise UserError(f"'{line}' has the tag '{min(tags)}'; expected tag(log, interval(<from>, <to>)), or no tag.")
    if isinstance(value, IntervalSweep):
        low, high = value.start, value.end
        if low is None or high is None or not low < high or (tags and low <= 0):
            raise UserError(
                f"'{line}' is not an interval; expected two numbers, the smaller one first, above 0 with tag(log)."
            )
        # Hydra reads the bounds of interval(1, 8) as floats, and keeps whole numbers in int(interval(1, 8)).
        if isinstance(low, int) and isinstance(high, int):
            return IntDistribution(low, high, log=bool(tags))
        return FloatDistribution(low, high, log=bool(tags))
    if isinstance(value, RangeSweep) and not value.shuffle:
        numbers = list(value.range())
        # Adding up fractional steps would give numbers that differ from Hydra's, and so other jobs.
        if numbers and all(isinstance(number, int) for number in numbers):
            return IntDistribution(int(min(numbers)), int(max(numbers)), step=abs(int(value.step)))
    return CategoricalDistribution(list(override.sweep_string_iterator()))


class Search(Sweeper):
    """Ask Optuna for settings, run them with the chosen launcher, and tell their objective, ``n_jobs`` jobs at a time.

    A resumed search repeats the recorded trials in order: finished jobs are skipped and report their objective, others
    run. Each trial has its own sampler, seeded by its number, so later trials equal those of an uninterrupted search.

    Args:
        settings: The keys of :class:`SearchSettings`.
    """

    # Hydra 1.3 builds plugins only from this package.
    __module__ = _PACKAGE

    def __init__(self, **settings: Any) -> None:
        self.settings = SearchSettings.read("hydra.sweeper", {**settings, "params": dict(settings["params"])})

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Make the launcher."""
        self.folder = Path(config.hydra.sweep.dir)
        self.launcher: Launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        """Search, and write the best settings to ``optimization_results.yaml``."""
        params = [f"{key}={value}" for key, value in self.settings.params.items()]
        overrides = {override.get_key_element(): override for override in parse_overrides([*params, *arguments])}
        fixed = [
            f"{key}={override.get_value_element_as_str()}"
            for key, override in overrides.items()
            if not override.is_sweep_override()
        ]
        space = {key: searched(override) for key, override in overrides.items() if override.is_sweep_override()}
        study = open_study(self.folder, self.settings, space)
        for first in range(0, self.settings.n_trials, self.settings.n_jobs):
            numbers = range(first, min(first + self.settings.n_jobs, self.settings.n_trials))
            trials = [ask(study, self.settings, space, number) for number in numbers]
            jobs = [(*fixed, *(f"{key}={value}" for key, value in trial.params.items())) for trial in trials]
            # Jobs with the same settings would use the same folder.
            batch = list(dict.fromkeys(jobs))
            returns = self.launcher.launch(batch, initial_job_idx=first)
            scores = dict(zip(batch, (job.return_value for job in returns), strict=True))
            for trial, job in zip(trials, jobs, strict=True):
                tell(study, trial, scores[job])
        write_best(study, self.folder / BEST)


def open_study(folder: Path, settings: SearchSettings, space: Mapping[str, "BaseDistribution"]) -> "Study":
    """A new study in the folder's database that starts with the trials recorded there.

    Recorded values outside the search space are ignored: the space may have changed, or the folder may be a copy.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = f"sqlite:///{folder.resolve() / STUDIES}"
    names = optuna.get_all_study_names(storage)
    # A command that was interrupted at once may have recorded fewer trials than the one before.
    earlier = max((optuna.load_study(study_name=name, storage=storage).trials for name in names), key=len, default=[])
    study = optuna.create_study(study_name=f"command {len(names) + 1}", storage=storage, direction=settings.direction)
    for trial in earlier:
        fitting = {key: value for key, value in trial.params.items() if key in space and _fits(value, space[key])}
        study.enqueue_trial(fitting)
    return study


def _fits(value: Any, values: "BaseDistribution") -> bool:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    # Optuna warns about an enqueued value outside its range, but uses it.
    if isinstance(values, CategoricalDistribution):
        return value in values.choices
    if isinstance(values, IntDistribution):
        return isinstance(value, int) and value in range(values.low, values.high + 1, values.step)
    assert isinstance(values, FloatDistribution)
    return isinstance(value, (int, float)) and values.low <= value <= values.high


def ask(study: "Study", settings: SearchSettings, space: Mapping[str, "BaseDistribution"], number: int) -> "Trial":
    """The trial with this number, from its own sampler."""
    import numpy as np
    from optuna import samplers

    kinds = {"gp": samplers.GPSampler, "tpe": samplers.TPESampler, "random": samplers.RandomSampler}
    study.sampler = kinds[settings.sampler](
        seed=int(np.random.SeedSequence([settings.seed, number]).generate_state(1)[0])
    )
    return study.ask(dict(space))


def tell(study: "Study", trial: "Trial", score: float | None) -> None:
    """Report a job's objective; a job without one has failed."""
    from optuna.trial import TrialState

    if score is None or math.isnan(score):
        study.tell(trial, state=TrialState.FAIL)
    else:
        study.tell(trial, score)


def write_best(study: "Study", path: Path) -> None:
    """Print and write the settings with the best objective, if a job finished."""
    from optuna.trial import TrialState

    finished = study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])
    if not finished:
        return
    best = study.best_trial
    content = {"name": "optuna", "best_params": best.params, "best_value": best.value}
    write_text(path, yaml.safe_dump(content, sort_keys=False))
    settings = " ".join(f"{key}={value}" for key, value in best.params.items())
    print(f"Best of {len(finished)}: {settings} ({best.value:.4g})", flush=True)  # noqa: T201
