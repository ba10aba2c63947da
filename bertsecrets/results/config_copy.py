"""A run's copy of its configuration, and configurations as plain values."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from bertsecrets.errors import UserError
from bertsecrets.results.files import atomic_write

CONFIG_COPY = "config.yaml"
"""Name of the copy in the run's folder."""


def plain(config: DictConfig) -> dict[str, Any]:
    """A section of the configuration as plain values, interpolations resolved."""
    content = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    assert isinstance(content, dict)
    return {str(key): value for key, value in content.items()}


def write_config(config: DictConfig, folder: Path) -> None:
    """Write a run's copy of its configuration, interpolations resolved."""
    with atomic_write(folder / CONFIG_COPY) as temporary:
        OmegaConf.save(config, temporary, resolve=True)


def read_config(folder: Path) -> DictConfig:
    """Read a run's copy of its configuration.

    Raises:
        UserError: If it cannot be read, or is empty.
    """
    path = folder / CONFIG_COPY
    try:
        config = OmegaConf.load(path)
    except (OSError, ValueError, YAMLError, RecursionError, OmegaConfBaseException) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"'{path}' cannot be read ({reason}); run it again in another folder.") from error
    if not isinstance(config, DictConfig) or not config:
        raise UserError(f"'{path}' holds no configuration; run it again in another folder.")
    return config
