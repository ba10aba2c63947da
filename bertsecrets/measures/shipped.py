"""The measures of ``conf/measure`` with their default settings."""

import importlib
from functools import partial

from omegaconf import DictConfig, OmegaConf

from bertsecrets.measures.base import Measure
from bertsecrets.settings import CONF


def shipped_names() -> list[str]:
    """The names of all measures of ``conf/measure``."""
    return sorted(path.stem for path in (CONF / "measure").glob("*.yaml"))


def shipped_measure(name: str) -> partial[Measure]:
    """A measure's class with the arguments that ``train.py`` gives it; called with the numbers of layers and heads.

    Hydra composes for one thread of a program that does not use Hydra itself; this reads the same files in any.

    Args:
        name: One of :func:`shipped_names`.
    """
    section = DictConfig(OmegaConf.load(CONF / "measure" / f"{name}.yaml"))
    for default in section.pop("defaults", []):
        ((key, option),) = default.items()
        group, _, place = key.lstrip("/").partition("@")
        OmegaConf.update(section, place, OmegaConf.load(CONF / group / f"{option}.yaml"))
    section["every_n_validations"] = 1
    section["framenet"] = OmegaConf.load(CONF / "framenet" / "default.yaml")
    content = OmegaConf.to_container(section, resolve=True)
    assert isinstance(content, dict)
    # How often a run takes a measure, and what W&B tracks of it, are not arguments of its class.
    arguments = {key: value for key, value in content[name].items() if key not in ("every_n_validations", "tracked")}
    module, _, kind = arguments.pop("_target_").rpartition(".")
    return partial(getattr(importlib.import_module(module), kind), **arguments)
