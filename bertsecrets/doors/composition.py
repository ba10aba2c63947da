"""Composes configurations as Hydra will, so that mistakes show before the first job."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bertsecrets.doors.plain import plain
from bertsecrets.doors.validation import validate
from bertsecrets.errors import UserError, choices
from bertsecrets.sweeps.identity import config_digest

_EXTRAS = {"joblib": "joblib", "submitit_slurm": "slurm", "submitit_local": "local_cluster", "optuna": "optuna"}


@dataclass(frozen=True)
class Invocation:
    """A command line, taken apart.

    Args:
        overrides: Settings as given, Hydra's own among them.
        multirun: Whether ``-m`` stands there.
        config_dir: The folder of the primary configuration.
        config_name: Its name.
        search: A folder of more configurations, or None.
    """

    overrides: list[str]
    multirun: bool
    config_dir: Path
    config_name: str
    search: str | None

    @contextmanager
    def hydra(self) -> Iterator[None]:
        """Hydra, ready to compose."""
        with initialize_config_dir(config_dir=str(self.config_dir.resolve()), version_base="1.3"):
            yield

    def compose(self, overrides: list[str]) -> DictConfig:
        """The configuration, Hydra's own part included."""
        more = [] if self.search is None else [f"hydra.searchpath=[{quoted('file://' + self.search)}]"]
        return compose(self.config_name, overrides=[*more, *overrides], return_hydra_config=True)


def quoted(text: str) -> str:
    """A text as a value that Hydra's grammar reads back unchanged.

    >>> quoted("it's [here]")
    "'it\\\\'s [here]'"
    """
    escaped = re.sub(r"(\\+)(?='|$)", r"\1\1", text).replace("'", "\\'")
    return f"'{escaped}'"


def unquoted(text: str) -> str:
    """What :func:`quoted` made a value of; any other text as it is.

    >>> unquoted(quoted("it's [here]")), unquoted("plain")
    ("it's [here]", 'plain')
    """
    if len(text) < 2 or text[0] != "'" or text[-1] != "'":
        return text
    return str(OverridesParser.create().parse_override(f"key={text}").value())


def parse(arguments: list[str], config_dir: Path, config_name: str) -> Invocation | None:
    """Takes a command line apart; None if it asks Hydra for help, information or the like.

    Raises:
        UserError: If a setting cannot be parsed.
    """
    given = get_args_parser().parse_intermixed_args(arguments)
    if given.help or given.hydra_help or given.cfg or given.info or given.shell_completion or given.experimental_rerun:
        return None
    return Invocation(
        overrides=list(given.overrides),
        multirun=given.multirun,
        config_dir=config_dir.parent / given.config_path if given.config_path else config_dir,
        config_name=given.config_name or config_name,
        search=str(Path(given.config_dir).resolve()) if given.config_dir else None,
    )


def parse_overrides(overrides: list[str]) -> list[Override]:
    """Settings as Hydra reads them.

    Raises:
        UserError: If one cannot be parsed.
    """
    try:
        # Only with Hydra at hand can glob(*) name the choices of a group.
        loader = GlobalHydra.instance().config_loader() if GlobalHydra.instance().is_initialized() else None
        return OverridesParser.create(loader).parse_overrides(overrides)
    except HydraException as error:
        raise UserError(f"{_first_line(error)}; write key=value, and quote special characters.") from error


def check(invocation: Invocation) -> DictConfig:
    """Composes and validates the configuration for every value of a sweep; returns the first one.

    Raises:
        UserError: If a key, a choice or a value does not exist; names the nearest one that does, and the job.
    """
    with invocation.hydra():
        parsed = parse_overrides(invocation.overrides)
        first = _composed(invocation, [_line(override) for override in parsed if not override.is_sweep_override()])
        sweeping = is_multirun(invocation, first)
        if first.resume is True and not sweeping:
            raise UserError("resume=true is for sweeps (-m); a single run goes on with resume=<its folder>.")
        several = [_line(override) for override in parsed if override.is_sweep_override()]
        if several and not sweeping:
            raise UserError(f"'{several[0]}' names several values; add -m to run one job for each.")
        given = {override.key_or_group for override in parsed}
        params = sweeper_params(first) if sweeping else {}
        more = parse_overrides([f"{key}={value}" for key, value in params.items() if key not in given])
        combinations = _combinations([*more, *parsed])
        for combination in combinations:
            composed = _composed(invocation, combination)
            try:
                validate(composed)
            except UserError as error:
                if len(combinations) == 1:
                    raise
                raise UserError(f"{error} (In the job {_job(combination)}.)") from error
        return first


def is_multirun(invocation: Invocation, config: DictConfig) -> bool:
    """Whether Hydra will run a sweep: by ``-m``, or because the configuration says so."""
    return invocation.multirun or config.hydra.mode == RunMode.MULTIRUN


def sweeper_params(config: DictConfig) -> dict[str, str]:
    """What the configuration itself sweeps over, as ``key: values``."""
    params = config.hydra.sweeper.get("params")
    return {} if params is None else {str(key): str(value) for key, value in params.items()}


def _composed(invocation: Invocation, overrides: list[str]) -> DictConfig:
    try:
        config = invocation.compose(overrides)
        own = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
        OmegaConf.to_container(own, resolve=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException) as error:
        where = f" (In the job {_job(overrides)}.)" if invocation.multirun else ""
        raise UserError(_explain(error, overrides, invocation) + where) from error
    return config


def _job(overrides: list[str]) -> str:
    return " ".join(each for each in overrides if not each.lstrip("+~").startswith("hydra")) or "without settings"


def _line(override: Override) -> str:
    return str(override.input_line)


def _combinations(overrides: list[Override]) -> list[list[str]]:
    """Every value of every swept override once, beside the first values of the others."""
    values: list[list[str]] = []
    for override in overrides:
        if override.is_discrete_sweep():
            key = _line(override).split("=")[0]
            values.append([f"{key}={value}" for value in override.sweep_string_iterator()])
            if not values[-1]:
                raise UserError(f"'{_line(override)}' names no value; give at least one.")
        elif not override.is_sweep_override():
            values.append([_line(override)])
    first = [options[0] for options in values]
    return [first] + [
        [*first[:i], option, *first[i + 1 :]] for i, options in enumerate(values) for option in options[1:]
    ]


def _explain(error: Exception, overrides: list[str], invocation: Invocation) -> str:
    text = str(error)
    if found := re.search(r"Could not find '([^']+)/([^'/]+)'", text):
        group, name = found.groups()
        if group in ("hydra/launcher", "hydra/sweeper") and name in _EXTRAS:
            return f"'{_EXTRAS[name]}' needs a plugin of Hydra; run pip install 'bertsecrets[sweeps]'."
        loader = GlobalHydra.instance().config_loader()
        return f"Unknown {group} '{name}'; {choices(name, loader.get_group_options(group))}."
    if found := re.search(r"Could not (?:override|append to|delete from|find) (?:config )?'?([\w./@]+)'?", text):
        key = found.group(1)
        # The sections that were chosen bring keys of their own.
        loader = GlobalHydra.instance().config_loader()
        chosen = [each for each in overrides if loader.get_group_options(each.split("=")[0])]
        valid = _keys(compose(invocation.config_name, overrides=chosen))
        return f"Unknown config key '{key}'; {_near(key, valid)}."
    if found := re.search(r"Missing mandatory value: (\S+)", text):
        key = getattr(error, "full_key", None) or found.group(1)
        return f"Config key '{key}' has no value; give it on the command line as {key}=<value>."
    return f"{_first_line(error)} (in {' '.join(overrides) or invocation.config_name})."


def _near(key: str, valid: list[str]) -> str:
    """The nearest key, and the keys beside it."""
    section = key.rpartition(".")[0]
    beside = [name for name in valid if name.rpartition(".")[0] == section]
    return choices(key, beside or [name for name in valid if "." not in name])


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


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0].rstrip(".")


def _settings_digest(*, _root_: DictConfig) -> str:
    """Eight digits that tell a job's settings from another's, for the name of its folder."""
    own = OmegaConf.masked_copy(_root_, [str(key) for key in _root_ if key != "hydra"])
    return config_digest(plain(own))[:8]


OmegaConf.register_new_resolver("settings_digest", _settings_digest, replace=True)
