"""Compose configurations as Hydra does, to report mistakes before the first job starts."""

import re
from collections import Counter
from itertools import islice
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from bertsecrets.cli.run_settings import with_run_settings
from bertsecrets.cli.settings import check_settings
from bertsecrets.cli.targets import SET_BY_THE_PROGRAM, trainer_arguments
from bertsecrets.errors import UserError, choices
from bertsecrets.keys import COMMANDS
from bertsecrets.results.run import plain
from bertsecrets.settings import shown
from bertsecrets.sweeps.hydra_arguments import (
    Invocation,
    is_multirun,
    key_of,
    parse_overrides,
    sweeper_params,
    without_hydra,
)

_EXTRAS = {
    "joblib": ("joblib", "sweeps"),
    "submitit_slurm": ("slurm", "sweeps"),
    "submitit_local": ("local_cluster", "sweeps"),
    "ray": ("ray", "ray"),
}
"""Hydra's plugins, the choices of ``launcher`` that need them, and the extras that install them."""

_EXPECTED = {"Integer": "a whole number", "Float": "a number", "Boolean": "true or false"}
"""Names of OmegaConf's types in messages."""

_MOST_VALUES = 1000
"""Values of one key in a sweep; each is checked before the first job starts."""


def check(invocation: Invocation) -> DictConfig:
    """Compose and validate the configuration of a single run, or those of a sweep, covering each swept value once.

    Returns:
        The configuration of the single run (an analysis inherits from its run) or of the sweep's first job, including
            Hydra's section.

    Raises:
        UserError: If a key, choice or value is invalid; the message names the nearest valid one and the job.
    """
    with invocation.hydra():
        parsed = parse_overrides(invocation.overrides)
        fixed = [_line(override) for override in parsed if not override.is_sweep_override()]
        swept = next((_line(override) for override in parsed if override.is_sweep_override()), "")
        several, _, values = swept.partition("=")
        # A function of Hydra's grammar, such as choice(a,b), is not a list.
        listed = f"{several}=[{values}]" if "(" not in values else f"{several}=[<value>,<value>]"
        if several == "runs":
            raise UserError(f"'{swept}' lists several values; write {listed}.")
        if several == "run" and not invocation.multirun:
            raise UserError(f"'{swept}' lists several values; give run one folder.")
        # A key without a default, such as run of report, gets its value only in a job.
        first_job = _combinations(parsed)[0] if invocation.multirun else fixed
        first = _composed(invocation, first_job)
        sweeping = is_multirun(invocation, first)
        for key in ("run.dir", "sweep.dir", "sweep.subdir"):
            folder = output_folder(first, key)
            if not isinstance(folder, str) or not folder.strip():
                raise UserError(f"hydra.{key} is {shown(folder)}; expected the path of a folder.")
        if first.hydra.job.chdir:
            raise UserError(
                "hydra.job.chdir is true; expected false, because relative paths of data, models and runs start at "
                "the current folder."
            )
        if OmegaConf.select(first.hydra, "launcher.n_jobs") == 0:
            raise UserError(
                "hydra.launcher.n_jobs is 0; expected a whole number from 1, or -1 for one job on each core."
            )
        if first.resume is True and not sweeping:
            raise UserError("resume=true is for sweeps (-m); resume a single run with resume=<its folder>.")
        if swept and not sweeping:
            one_run = f"write {listed} to use all in one run, or " if several == "measure" else ""
            raise UserError(f"'{swept}' lists several values; {one_run}add -m to run one job for each.")
        keys = {override.key_or_group for override in parsed}
        params = sweeper_params(first) if sweeping else {}
        defaults = parse_overrides([f"{key}={value}" for key, value in params.items() if key not in keys])
        combinations = _combinations([*defaults, *parsed])
        saved: dict[str, list[str]] = {}
        for combination in combinations:
            composed = first if combination == first_job else _composed(invocation, combination)
            try:
                # A run is resumed with its own configuration, which is checked when it is read.
                if not isinstance(composed.resume, str):
                    if isinstance(composed.get("checkpoint"), str):
                        composed = with_run_settings(composed, combination)
                    check_settings(plain(without_hydra(composed)))
                if sweeping and (nodes := OmegaConf.select(composed, "trainer.num_nodes", default=1)) > 1:
                    # It would wait for processes on other nodes, which no launcher starts.
                    raise UserError(
                        f"trainer.num_nodes is {nodes}, but a job of a sweep runs on one node; remove it, or start "
                        f"each run separately, on Slurm with srun --nodes={nodes} --ntasks-per-node=<trainer.devices>."
                    )
            except UserError as error:
                if len(combinations) == 1:
                    raise
                raise UserError(f"{error} (In the job {_job(combination)}.)") from error
            target = composed.get("save") or composed.get("folder")
            if target is not None and target in saved:
                raise UserError(
                    f"The jobs {_job(saved[target])} and {_job(combination)} would both write to the folder "
                    f"'{target}'; include the job's name, e.g. save='models/${{name}}'."
                )
            saved[str(target)] = combination
        return first if sweeping else composed


def output_folder(config: DictConfig, key: str) -> Any:
    """Resolve ``hydra.run.dir``, ``sweep.dir`` or ``sweep.subdir`` before Hydra starts a job.

    Raises:
        UserError: If it refers to something that a job does not have.
    """
    config = config.copy()
    for name, value in (("num", 0), ("id", "0")):
        # Hydra and its launchers number a job when it starts.
        if OmegaConf.is_missing(config.hydra.job, name):
            with open_dict(config.hydra.job):
                config.hydra.job[name] = value
    # The resolver of ${hydra:...} reads this object alone.
    instance = HydraConfig.instance()
    before = instance.cfg
    instance.set_config(config)
    try:
        return OmegaConf.select(config.hydra, key)
    except (OmegaConfBaseException, ValueError) as error:
        raise UserError(
            f"hydra.{key} cannot be resolved ({str(error).splitlines()[0].rstrip('.')}); correct it."
        ) from error
    finally:
        instance.cfg = before


def _composed(invocation: Invocation, overrides: list[str]) -> DictConfig:
    try:
        config = invocation.compose(overrides)
        OmegaConf.to_container(without_hydra(config), resolve=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException, ValueError, OSError) as error:
        job = f" (In the job {_job(overrides)}.)" if invocation.multirun else ""
        raise UserError(_explain(error, overrides, invocation) + job) from error
    return config


def _job(overrides: list[str]) -> str:
    return " ".join(line for line in overrides if not line.lstrip("+~").startswith("hydra")) or "with default settings"


def _line(override: Override) -> str:
    return str(override.input_line)


def _combinations(overrides: list[Override]) -> list[list[str]]:
    """Yield each value of each swept override once, combined with the first values of the others."""
    values: list[list[str]] = []
    for override in overrides:
        if override.is_discrete_sweep():
            key = _line(override).split("=")[0]
            values.append([f"{key}={value}" for value in islice(override.sweep_string_iterator(), _MOST_VALUES + 1)])
            if not values[-1]:
                raise UserError(f"'{_line(override)}' has no value; give at least one.")
            if len(values[-1]) > _MOST_VALUES:
                raise UserError(f"'{_line(override)}' lists more than {_MOST_VALUES:,} values; give fewer.")
            # Both jobs would use the same folder.
            if twice := next((value for value, count in Counter(values[-1]).items() if count > 1), None):
                raise UserError(f"'{_line(override)}' lists '{twice}' twice; list each value once.")
        elif not override.is_sweep_override():
            values.append([_line(override)])
    # Not every combination: a sweep of five seeds, eight tasks and ten modes would be composed 400 times before its
    # first job.
    first = [options[0] for options in values]
    return [first] + [
        [*first[:i], option, *first[i + 1 :]] for i, options in enumerate(values) for option in options[1:]
    ]


def _explain(error: Exception, overrides: list[str], invocation: Invocation) -> str:
    text = str(error)
    loader = GlobalHydra.instance().config_loader()
    for line in overrides:
        group, _, value = line.partition("=")
        if (
            value.strip() == "null"
            and (names := loader.get_group_options(group))
            and not isinstance(error, HydraException)
        ):
            return f"{group} is null; {choices('null', names)}."
    if match := re.search(r"Could not (?:find|load) '([^']+)/([^'/]*)'", text):
        group, name = match.groups()
        if group == "hydra/launcher" and name in _EXTRAS:
            launcher, extra = _EXTRAS[name]
            return f"'{launcher}' needs a plugin of Hydra; run pip install 'bertsecrets[{extra}]'."
        valid_choices = choices(name, loader.get_group_options(group))
        elsewhere = (
            ""
            if invocation.search or valid_choices.startswith("did")
            else ", or the name of a file in --config-dir=<folder>"
        )
        return f"Unknown {group} '{name}'; {valid_choices}{elsewhere}."
    if match := re.search(r"An item is already at '([^']+)'", text):
        key = match.group(1)
        line = next((line for line in overrides if line.startswith(f"+{key}=")), f"+{key}=<value>")
        return f"'{line}' adds a key that already exists; write {line.removeprefix('+')}"
    if match := re.search(r"Could not delete '(\w+)'\. No match in the defaults list", text):
        # A group with any number of choices.
        group = match.group(1)
        return f"'~{group}' does not name a {group}; write {group}=[] for none, or '~{group}.<name>' to remove one."
    deleted = re.search(r"Could not delete from config\. '([^']+)' does not exist", text)
    if match := deleted or re.search(
        r"Could not (?:override|append to|delete from|find) (?:config )?'?([\w./@]+)'?", text
    ):
        key = match.group(1)
        value = next((line.partition("=")[2] for line in overrides if key_of(line) == key), "")
        # Options chosen in a group add keys.
        groups = [line for line in overrides if loader.get_group_options(line.split("=")[0])]
        # An option of a group that the command does not have cannot be composed.
        group_choices = [line for line in groups if line.split("=")[0] != key]
        composed = invocation.compose(group_choices)
        if key.startswith("hydra."):
            return f"Unknown config key '{key}'; {_near(key, value, _keys(composed.hydra, 'hydra.'))}."
        valid = _keys(without_hydra(composed))
        valid = sorted({*valid, *(f"trainer.{name}" for name in trainer_arguments() if name not in SET_BY_THE_PROGRAM)})
        # Prefer a section of this command that has the key over another command.
        commands = [name for name, keys in COMMANDS.items() if key in keys.model_fields]
        if commands and invocation.config_name not in commands and sum(name.endswith(f".{key}") for name in valid) != 1:
            return f"{invocation.config_name} has no '{key}', which is a setting of {' and '.join(commands)}."
        return f"Unknown config key '{key}'; {_near(key, value, valid)}."
    if match := re.search(r"Missing mandatory value: (\S+)", text):
        key = getattr(error, "full_key", None) or match.group(1)
        value = "<run folder>" if key in ("checkpoint", "run", "runs") else "<value>"
        return f"Config key '{key}' has no value; give it on the command line as {key}={value}."
    if (match := re.search(r"Error merging override ([\w.]+)=(.*)", text)) and (
        expected := re.search(r"could not be converted to (\w+)", str(error.__cause__))
    ):
        key, value = match.groups()
        return f"{key} is '{value}'; expected {_EXPECTED.get(expected.group(1), expected.group(1))}."
    reason = text.strip().splitlines()[0].rstrip(".")
    return f"{reason} (in {' '.join(overrides) or invocation.config_name})."


def _near(key: str, value: str, valid: list[str]) -> str:
    """Suggest the nearest key and list its section, or the only other section that has the key."""
    section, _, last = key.rpartition(".")
    elsewhere = [name for name in valid if name.rpartition(".")[2] == last]
    if not section and len(elsewhere) == 1:
        return f"write {elsewhere[0]}={value or '<value>'}"
    siblings = [name for name in valid if name.rpartition(".")[0] == section]
    return choices(key, siblings or [name for name in valid if "." not in name])


def _keys(config: DictConfig, prefix: str = "") -> list[str]:
    keys: list[str] = []
    for key in map(str, config):
        name = f"{prefix}{key}"
        keys.append(name)
        if not OmegaConf.is_missing(config, key) and not OmegaConf.is_interpolation(config, key):
            value: Any = config[key]
            if isinstance(value, DictConfig):
                keys += _keys(value, f"{name}.")
    return keys
