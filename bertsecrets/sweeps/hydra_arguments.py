"""Hydra's command line: its arguments, the grammar of its overrides, and what a sweep varies.

This is the only module that uses ``hydra._internal``.
"""

import re
from argparse import ArgumentError
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra._internal.utils import get_args_parser
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from bertsecrets.doors import dotted, free_names, offered_folders, offers
from bertsecrets.errors import UserError
from bertsecrets.settings import CONF, configurations


class _OfferedConfigurations(SearchPathPlugin):
    """Hydra's search path with the folders that installed packages offer, after the project's own."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for name, folder in offered_folders("conf").items():
            search_path.append(name, f"file://{folder}")


def offer_to_hydra() -> None:
    """Let Hydra choose among what installed packages offer: their folders of configurations, measures, and sources."""
    Plugins.instance().register(_OfferedConfigurations)
    for name in free_names("measures", tuple(configurations("measure"))):
        ConfigStore.instance().store(name, {name: {"_target_": dotted(offers("measures")[name])}}, group="measure")
    for name in free_names("sources", tuple(configurations("data"))):
        ConfigStore.instance().store(
            name, {**OmegaConf.load(CONF / "data" / "auto.yaml"), "source": name}, group="data"
        )


@dataclass(frozen=True)
class Invocation:
    """A parsed command line.

    Args:
        overrides: Settings as the user gave them, including those of Hydra.
        multirun: Whether ``-m`` was given.
        config_dir: Folder of the primary configuration.
        config_name: Name of the primary configuration.
        search: A folder of additional configurations, or None.
        shows: Whether Hydra only shows the configuration: ``--cfg`` or ``--info``.
    """

    overrides: list[str]
    multirun: bool
    config_dir: Path
    config_name: str
    search: str | None
    shows: bool = False

    @contextmanager
    def hydra(self) -> Iterator[None]:
        """Initialise Hydra for the block."""
        with initialize_config_dir(str(self.config_dir.resolve()), job_name=self.config_name, version_base="1.3"):
            yield

    def compose(self, overrides: list[str]) -> DictConfig:
        """Compose the configuration, including Hydra's own part."""
        search = [] if self.search is None else [f"hydra.searchpath=[{quoted('file://' + self.search)}]"]
        return compose(self.config_name, overrides=[*search, *overrides], return_hydra_config=True)


def unknown_options(arguments: list[str]) -> list[str]:
    """The arguments with dashes that Hydra does not have, such as ``--seed`` for ``seed=``.

    Raises:
        UserError: If an option of Hydra's lacks its value, or is ambiguous.
    """
    parser = get_args_parser()
    parser.exit_on_error = False
    try:
        _, unknown = parser.parse_known_intermixed_args(arguments)
    except ArgumentError as error:
        raise UserError(f"{str(error).rstrip('.')}; --hydra-help lists the options.") from error
    return [argument for argument in unknown if argument.startswith("-")]


def config_dir_of(arguments: list[str]) -> Path | None:
    """The folder of additional configurations, ``--config-dir``; None without one.

    Raises:
        UserError: If it is not a folder.
    """
    folder = get_args_parser().parse_known_intermixed_args(arguments)[0].config_dir
    if not folder:
        return None
    if not Path(folder).is_dir():
        raise UserError(f"--config-dir is '{folder}', which is not a folder; give a folder of configurations.")
    return Path(folder).resolve()


def parse_arguments(arguments: list[str], config_dir: Path, config_name: str) -> Invocation | None:
    """Parse a command line; None if it asks Hydra for help or shell completion.

    Raises:
        UserError: If ``--config-path`` is relative, ``--config-dir`` is not a folder, or ``--experimental-rerun`` is given.
    """
    parsed = get_args_parser().parse_intermixed_args(arguments)
    if parsed.experimental_rerun:
        raise UserError(
            "--experimental-rerun reads a pickle, which can run code; repeat the command, or give resume=<run folder>."
        )
    if parsed.help or parsed.hydra_help or parsed.shell_completion:
        return None
    if parsed.config_path and not Path(parsed.config_path).is_absolute():
        raise UserError(
            f"--config-path is '{parsed.config_path}'; expected an absolute path, such as "
            f"'{Path(parsed.config_path).resolve()}'."
        )
    search = config_dir_of(arguments)
    return Invocation(
        overrides=list(parsed.overrides),
        multirun=parsed.multirun,
        config_dir=Path(parsed.config_path) if parsed.config_path else config_dir,
        config_name=parsed.config_name or config_name,
        search=None if search is None else str(search),
        shows=bool(parsed.cfg or parsed.info),
    )


def parse_overrides(overrides: list[str]) -> list[Override]:
    """Parse settings with Hydra's grammar.

    Raises:
        UserError: If one cannot be parsed.
    """
    try:
        # glob(*) can be expanded to the choices of a group only while Hydra is initialised.
        loader = GlobalHydra.instance().config_loader() if GlobalHydra.instance().is_initialized() else None
        return OverridesParser.create(loader).parse_overrides(overrides)
    except HydraException as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise UserError(f"{reason}; write key=value, and quote special characters.") from error


def is_multirun(invocation: Invocation, config: DictConfig) -> bool:
    """Whether Hydra will run a sweep: because of ``-m``, or because the configuration says so."""
    return invocation.multirun or config.hydra.mode == RunMode.MULTIRUN


def sweeper_params(config: DictConfig) -> dict[str, str]:
    """What the configuration itself sweeps over, as ``key: values``."""
    params = config.hydra.sweeper.get("params")
    return {} if params is None else {str(key): str(value) for key, value in params.items()}


def quoted(text: str) -> str:
    """Quote a text so that Hydra's grammar reads it back unchanged, and no interpolation in it is resolved.

    >>> print(quoted("it's ${here}"))
    'it\\'s \\${here}'
    """
    text = re.sub(r"(\\*)\$\{", r"\1\1\\${", text)
    escaped = re.sub(r"(\\+)(?='|$)", r"\1\1", text).replace("'", "\\'")
    return f"'{escaped}'"


def as_argument(value: Any) -> str:
    """A plain value in Hydra's grammar, which reads it back unchanged; keys are names.

    >>> as_argument({"texts": ["a, b"], "range": [0.5, 2.0]})
    "{texts: ['a, b'], range: [0.5, 2.0]}"
    """
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {as_argument(content)}" for key, content in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(as_argument, value)) + "]"
    return "null" if value is None else str(value)


def unquoted(text: str) -> str:
    """Undo :func:`quoted`; any other text is returned as it is.

    >>> unquoted(quoted("it's ${here}")), unquoted("plain")
    ("it's ${here}", 'plain')
    """
    if len(text) < 2 or text[0] != "'" or text[-1] != "'":
        return text
    value = OverridesParser.create().parse_override(f"key={text}").value()
    return str(OmegaConf.create({"key": value}).key)
