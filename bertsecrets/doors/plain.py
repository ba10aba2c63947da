"""Configuration as plain values."""

from typing import Any

from omegaconf import DictConfig, OmegaConf


def plain(config: DictConfig) -> dict[str, Any]:
    """A section of the configuration as plain values, interpolations resolved."""
    content = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    assert isinstance(content, dict)
    return {str(key): value for key, value in content.items()}
