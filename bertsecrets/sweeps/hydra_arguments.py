"""Hydra's command line: its arguments, the grammar of its overrides, and what a sweep varies.

This is the only module that uses ``hydra._internal``.
"""

from argparse import ArgumentError
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import hydra
import omegaconf
from hydra import compose, initialize_config_dir
from hydra._internal.callbacks import Callbacks
from hydra._internal.utils import get_args_parser
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.core.utils import run_job
from hydra.errors import HydraException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf, read_write

from bertsecrets.doors import dotted, offered_folders, offers
from bertsecrets.errors import UserError
from bertsecrets.settings import CONF, unconfigured

BASE: dict[str, Any] = {"version_base": None} if hydra.__version__.startswith("1.3.") else {}
"""Argument of Hydra's entry points: Hydra 1.3 must be asked for its own behaviour; 1.4 has no other."""

register_resolver = getattr(
    OmegaConf, "register_new_resolver" if omegaconf.__version__.startswith("2.3.") else "register_resolver"
)
"""OmegaConf's function, renamed in 2.4."""

PATHS = ("data.path", "data.eval_path", "data.root")
"""Settings that name files or folders of data."""


class _OfferedConfigurations(SearchPathPlugin):
    """Hydra's search path: the project's configurations, those of installed packages, then the user's."""

    config_dir: ClassVar[Path | None] = None

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for name, folder in offered_folders("conf").items():
            search_path.append(name, f"file://{folder}")
        if self.config_dir is not None:
            search_path.append("command-line", f"file://{self.config_dir}")


def offer_to_hydra() -> None:
    """Offer Hydra the configurations, measures and sources of installed packages."""
    Plugins.instance().register(_OfferedConfigurations)
    for name in unconfigured("measures", "measure"):
        ConfigStore.instance().store(name, {name: {"_target_": dotted(offers("measures")[name])}}, group="measure")
    for name in unconfigured("sources", "data"):
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
        help: Whether the command's help is asked for.
        options: Hydra's options with their values, as the user gave them.
        unknown: Words with dashes that Hydra does not have, such as ``--seed`` for ``seed=``.
    """

    overrides: list[str]
    multirun: bool
    config_dir: Path
    config_name: str
    search: Path | None
    shows: bool = False
    help: bool = False
    options: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        """The command line in the order that Hydra accepts: options before settings."""
        return [*self.options, *self.overrides]

    @cached_property
    def settings(self) -> dict[str, Override]:
        """The parsed settings by key; the last one if a key is repeated.

        Raises:
            UserError: If one cannot be parsed.
        """
        return {override.key_or_group: override for override in parse_overrides(self.overrides)}

    @contextmanager
    def hydra(self) -> Iterator[None]:
        """Initialise Hydra for the block."""
        Plugins.instance().register(_OfferedConfigurations)
        _OfferedConfigurations.config_dir = self.search
        try:
            with initialize_config_dir(str(self.config_dir.resolve()), job_name=self.config_name, **BASE):
                yield
        finally:
            _OfferedConfigurations.config_dir = None

    def compose(self, overrides: list[str]) -> DictConfig:
        """Compose the configuration, including Hydra's own part."""
        return compose(self.config_name, overrides=overrides, return_hydra_config=True)

    def run(self, job: Callable[[DictConfig], object], config: DictConfig) -> None:
        """Run a function on a configuration of :meth:`compose`, as Hydra runs a single job, but with its exceptions."""
        with read_write(config.hydra):
            config.hydra.mode = RunMode.RUN
        with self.hydra():
            callbacks = Callbacks(config)
            context = HydraContext(config_loader=GlobalHydra.instance().config_loader(), callbacks=callbacks)
            callbacks.on_run_start(config=config, config_name=self.config_name)
            ended = run_job(job, config, job_dir_key="hydra.run.dir", job_subdir_key=None, hydra_context=context)
            callbacks.on_run_end(config=config, config_name=self.config_name, job_return=ended)
        # Its property would print a line about the exception.
        if isinstance(error := ended._return_value, Exception):
            raise error


def parse_arguments(arguments: Sequence[str], config_dir: Path, config_name: str) -> Invocation | None:
    """Parse a command line; None if Hydra answers it: ``--hydra-help`` and shell completion.

    Raises:
        UserError: If ``--config-path`` is relative, ``--config-dir`` is not a folder, an option of Hydra's lacks its
            value, or ``--experimental-rerun`` is given.
    """
    parser = get_args_parser()
    parser.exit_on_error = False
    try:
        parsed, remaining = parser.parse_known_intermixed_args(arguments)
    except ArgumentError as error:
        raise UserError(f"{str(error).rstrip('.')}; --hydra-help lists the options.") from error
    if parsed.experimental_rerun:
        raise UserError(
            "--experimental-rerun reads a pickle, which can run code; repeat the command, or give resume=<run folder>."
        )
    if parsed.hydra_help or parsed.shell_completion:
        return None
    if parsed.config_path and not Path(parsed.config_path).is_absolute():
        raise UserError(
            f"--config-path is '{parsed.config_path}'; expected an absolute path, such as "
            f"'{Path(parsed.config_path).resolve()}'."
        )
    if parsed.config_dir and not Path(parsed.config_dir).is_dir():
        raise UserError(
            f"--config-dir is '{parsed.config_dir}', which is not a folder; give a folder of configurations."
        )
    options = list(arguments)
    for setting in parsed.overrides:
        options.remove(setting)
    return Invocation(
        overrides=list(parsed.overrides),
        multirun=parsed.multirun,
        config_dir=Path(parsed.config_path) if parsed.config_path else config_dir,
        config_name=parsed.config_name or config_name,
        search=Path(parsed.config_dir).resolve() if parsed.config_dir else None,
        shows=bool(parsed.cfg or parsed.info),
        help=parsed.help,
        options=tuple(options),
        unknown=tuple(word for word in remaining if word.startswith("-")),
    )


def key_of(argument: str) -> str:
    """The key of a setting, without the signs that add or delete one.

    >>> key_of("++trainer.max_steps=5"), key_of("~callbacks.disable")
    ('trainer.max_steps', 'callbacks.disable')
    """
    return argument.partition("=")[0].lstrip("+~")


def without_hydra(config: DictConfig) -> DictConfig:
    """A configuration without Hydra's own part."""
    return OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])


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
    """Whether Hydra will run a sweep, because of ``-m`` or the configuration."""
    return invocation.multirun or config.hydra.mode == RunMode.MULTIRUN


def sweeper_params(config: DictConfig) -> dict[str, str]:
    """The sweep defined in the configuration, as ``key: values``."""
    params = config.hydra.sweeper.get("params")
    return {} if params is None else {str(key): str(value) for key, value in params.items()}


def unquoted(text: str) -> str:
    """Undo :func:`~bertsecrets.results.files.quoted`; any other text is returned as it is.

    >>> from bertsecrets.results.files import quoted
    >>> unquoted(quoted("it's ${here}")), unquoted("plain"), unquoted("'a','b'")
    ("it's ${here}", 'plain', "'a','b'")
    """
    if len(text) < 2 or text[0] not in "'\"" or text[-1] != text[0]:
        return text
    override = OverridesParser.create().parse_override(f"key={text}")
    # Quoted texts joined by commas are the values of a sweep.
    return text if override.is_sweep_override() else str(OmegaConf.create({"key": override.value()}).key)
