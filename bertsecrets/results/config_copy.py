"""A run's copy of its configuration, and configurations as plain values."""

import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bertsecrets.errors import UserError
from bertsecrets.results.files import atomic_write, check_yaml
from bertsecrets.settings import shown

CONFIG_COPY = "config.yaml"
"""Name of the copy in the run's folder."""


def plain(config: DictConfig) -> dict[str, Any]:
    """A section of the configuration as plain values, interpolations resolved."""
    content = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    assert isinstance(content, dict)
    return {str(key): value for key, value in content.items()}


def write_config(config: DictConfig, folder: Path) -> None:
    """Write a run's copy of its configuration, interpolations resolved; for an analysis, also the relative path of its
    run.
    """
    trained = (config.get("trained") or {}).get("folder")
    if trained is not None:
        config = config.copy()
        OmegaConf.update(config, "trained.from_here", os.path.relpath(trained, folder.resolve()), force_add=True)
    with atomic_write(folder / CONFIG_COPY) as temporary:
        OmegaConf.save(config, temporary, resolve=True)


def read_config(folder: Path) -> DictConfig:
    """Read a run's copy of its configuration.

    Raises:
        UserError: If it cannot be read, or is empty.
    """
    path = folder / CONFIG_COPY
    try:
        config = _parsed(path.read_text("utf-8")).copy()
    except (OSError, ValueError, RecursionError, yaml.YAMLError, OmegaConfBaseException) as error:
        reason = (
            error.strerror if isinstance(error, OSError) else (str(error).splitlines() or [type(error).__name__])[0]
        )
        raise UserError(f"'{path}' cannot be read ({reason}); run it again in another folder.") from error
    if not isinstance(config, DictConfig) or not config:
        raise UserError(f"'{path}' has no configuration; run it again in another folder.")
    foreign = _not_plain(OmegaConf.to_container(config, resolve=False))
    if foreign is not None:
        raise UserError(
            f"'{path}' has {foreign}, which a run never writes, so it was edited or made by another program; run it "
            "again in another folder."
        )
    return config


@cache
def _parsed(text: str) -> DictConfig | ListConfig:
    """Cached, because a page reads a run's configuration hundreds of times."""
    check_yaml(text)
    return OmegaConf.create(text)


def _not_plain(content: Any, key: str = "") -> str | None:
    """The first entry that is not a plain value, in words: an interpolation, which may read the environment, or Hydra's
    section.
    """
    if isinstance(content, dict):
        if not key and "hydra" in content:
            return "a section 'hydra'"
        entries: Iterable[tuple[Any, Any]] = content.items()
    elif isinstance(content, list):
        entries = enumerate(content)
    elif isinstance(content, str) and ("${" in content or content == "???"):
        return f"{key}={shown(content)}"
    else:
        return None
    entries_by_key = ((f"{key}.{name}" if key else str(name), value) for name, value in entries)
    return next(
        (foreign for full_key, value in entries_by_key if (foreign := _not_plain(value, full_key)) is not None), None
    )
