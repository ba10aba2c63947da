"""The command line, checked before anything else happens: one sentence for a mistake, and no traceback."""

import errno
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bertsecrets.errors import UserError, choices

CONFIG_COPY = "config.yaml"
"""Name of a run's own copy of its resolved configuration."""


def run_door(main: Callable[[], object], config_dir: Path, config_name: str) -> None:
    """Checks the command line, runs ``main`` (a ``@hydra.main`` function) and turns errors into exit status 1.

    A :class:`UserError` prints its one sentence; ``debug=true`` shows the traceback as well. Any other exception is a
    defect and always shows its traceback.
    """
    # Hydra would print a traceback of its own and hide the exception's type.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        sys.argv[1:] = with_resume(sys.argv[1:])
        check(sys.argv[1:], config_dir, config_name)
        main()
    except UserError as error:
        _stop(str(error))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        _stop(
            f"No space is left for '{error.filename or 'the results'}'; nothing half-written was left: make room and go "
            "on with resume=<run folder>."
        )


def _stop(sentence: str) -> NoReturn:
    if "debug=true" in (argument.lower() for argument in sys.argv):
        traceback.print_exc()
    print(f"error: {sentence}", file=sys.stderr)  # noqa: T201
    sys.exit(1)


def with_resume(arguments: list[str]) -> list[str]:
    """The arguments, with Hydra sent to the folder of the run that ``resume=<folder>`` goes on with.

    Raises:
        UserError: If the folder is not that of a run, or other settings are given that would change the run.
    """
    resumed = [argument.removeprefix("resume=") for argument in arguments if argument.startswith("resume=")]
    if not resumed or resumed[-1] in ("null", ""):
        return arguments
    folder = Path(resumed[-1])
    if not (folder / CONFIG_COPY).is_file():
        raise UserError(f"Run folder '{folder}' has no {CONFIG_COPY}; resume= takes the folder of an interrupted run.")
    for argument in arguments:
        key = argument.split("=")[0].lstrip("+~")
        if not argument.startswith("-") and key not in ("resume", "debug", "progress") and not key.startswith("hydra."):
            raise UserError(
                f"'{argument}' cannot be given together with resume=, which goes on with the run's own configuration; "
                "leave it out, or start a new run."
            )
    return [*arguments, f"hydra.run.dir={folder}", "hydra.output_subdir=null"]


def check(arguments: Iterable[str], config_dir: Path, config_name: str) -> None:
    """Composes the configuration once for every value of a sweep, so that mistakes show before the first job.

    Raises:
        UserError: If a key or a choice does not exist (with the nearest one that does), or cannot be parsed.
    """
    arguments = list(arguments)
    if any(argument.startswith("-") and argument not in ("-m", "--multirun") for argument in arguments):
        # Help, another configuration folder and the like are Hydra's own business.
        return
    overrides = [argument for argument in arguments if not argument.startswith("-")]
    overrides = [argument for argument in overrides if not argument.lstrip("+~").startswith("hydra")]
    try:
        parsed = OverridesParser.create().parse_overrides(overrides)
    except HydraException as error:
        raise UserError(f"{_first_line(error)}; write key=value, and quote special characters.") from error
    with initialize_config_dir(config_dir=str(config_dir.resolve()), version_base="1.3"):
        for combination in _combinations(parsed):
            try:
                config = compose(config_name, overrides=combination)
                OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
            except (HydraException, OmegaConfBaseException) as error:
                raise UserError(_explain(error, combination, config_name)) from error


def _combinations(overrides: list[Override]) -> list[list[str]]:
    """Every value of every swept override once, beside the first values of the others."""
    values: list[list[str]] = []
    for override in overrides:
        line = str(override.input_line)
        if override.is_sweep_override():
            key = line.split("=")[0]
            values.append([f"{key}={value}" for value in override.sweep_string_iterator()])
        else:
            values.append([line])
    first = [options[0] for options in values]
    return [first] + [
        [*first[:i], option, *first[i + 1 :]] for i, options in enumerate(values) for option in options[1:]
    ]


def _explain(error: Exception, overrides: list[str], config_name: str) -> str:
    text = str(error)
    if found := re.search(r"Could not find '([^']+)/([^'/]+)'", text):
        group, name = found.groups()
        loader = GlobalHydra.instance().config_loader()
        return f"Unknown {group} '{name}'; {choices(name, loader.get_group_options(group))}."
    if found := re.search(r"Could not (?:override|append to|delete from|find) (?:config )?'?([\w./@]+)'?", text):
        key = found.group(1)
        valid = _keys(compose(config_name, overrides=[]))
        return f"Unknown config key '{key}'; {_near(key, valid)}."
    if found := re.search(r"Missing mandatory value: (\S+)", text):
        key = getattr(error, "full_key", None) or found.group(1)
        return f"Config key '{key}' has no value; give it on the command line as {key}=<value>."
    return f"{_first_line(error)} (in {' '.join(overrides) or config_name})."


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
            value = config[key]
            if isinstance(value, DictConfig):
                keys += _keys(value, f"{name}.")
    return keys


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0].rstrip(".")
