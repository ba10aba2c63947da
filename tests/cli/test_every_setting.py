"""Values of every key of the configuration: accepted, or refused in one sentence that names the key."""

import copy
import importlib
import math
import re
from collections.abc import Iterator
from functools import cache
from pkgutil import walk_packages
from typing import Any

import pytest
import yaml
from cli import runs

import bertsecrets
import bertsecrets.cli.run_settings
from bertsecrets.ablation.settings import AblationSettings
from bertsecrets.cli.settings import read_settings
from bertsecrets.data.annotation import AnnotationConfig
from bertsecrets.data.framenet.source import FrameNetSource
from bertsecrets.data.sources import SourceConfig
from bertsecrets.errors import UserError
from bertsecrets.keys import COMMANDS, CheckpointSettings, ReportSettings, SweepSettings, TrainerSettings
from bertsecrets.models.settings import OptimizerConfig
from bertsecrets.pruning.settings import PruneSettings, ShrinkSettings
from bertsecrets.settings import CONF, Settings

VALUES = (None, "abc", "", -1, 0, 1.5, [1, 2], [], {}, {"a": 1}, math.inf, math.nan, True, 10**30)
"""What is tried for every key; ``1e400`` is read as infinity."""

_NEEDED = {
    "train": [],
    "analyze": ["checkpoint=x"],
}
_EXTRA = {
    "disable_groups": ["ablation.heads=[[0,1]]"],
    "file": [
        "task.name=mine",
        "task.texts=1",
        "+task.labels=[no,yes]",
        "task.metrics=[accuracy]",
        "task.training={learning_rate:1e-5,batch_size:8,max_epochs:1,max_length:64}",
    ],
    "folder": ["model.path=x"],
    "spacy": ["annotation.pipeline=null"],
}
_NOT_HERE = ("masked_lm_gradient", "ray")
"""Options that need a model with a head for masked words, or a package that is not installed."""
_GROUPS = {
    "train": (
        "task",
        "data",
        "model",
        "trainer",
        "logger",
        "callbacks",
        "measure",
        "experiment",
        "launcher",
    ),
    "analyze": ("analysis", "annotation", "measure"),
}


@cache
def composed(command: str, *arguments: str) -> dict[str, Any]:
    return runs.composed([*_NEEDED[command], *arguments], command)


def places(section: dict[str, Any], prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The keys of all sections, sections included."""
    for key, value in section.items():
        yield (*prefix, key)
        if isinstance(value, dict):
            yield from places(value, (*prefix, key))


def with_value(config: dict[str, Any], place: tuple[str, ...], value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(config)
    section = changed
    for key in place[:-1]:
        section = section[key]
    section[place[-1]] = value
    return changed


def options() -> Iterator[tuple[str, list[str]]]:
    """Every option of every group, as a command line."""
    yield "train", []
    yield "analyze", []
    for command, groups in _GROUPS.items():
        for group in groups:
            for path in (path for path in sorted((CONF / group).glob("*.yaml")) if path.stem not in _NOT_HERE):
                chosen = f"{group}=[{path.stem}]" if group == "measure" else f"{group}={path.stem}"
                extra = _EXTRA.get(path.stem, [])
                if group == "experiment" and "annotation" in path.read_text("utf-8"):
                    # Without its pipeline, which is not installed; the demo has gold annotation.
                    extra = ["annotation.pipeline=null", "task=demo_paraphrase", "data=auto"]
                if "metrics: []" in path.read_text("utf-8") or "override /analysis" in path.read_text("utf-8"):
                    yield "analyze", [chosen, *extra]
                else:
                    yield command, [chosen, *extra]


OPTIONS = list(options())

_MEASURES = "[drift,entropy,features,frame_relations,offsets,patterns,token_to_token]"
SOME_OPTIONS = [
    ("train", ["trainer=ddp_cpu", "callbacks=default", "task=demo_nli", f"measure={_MEASURES}"]),
    ("analyze", ["analysis=probes", "task=ud_ewt"]),
]


def names_the_key(sentence: str, place: tuple[str, ...]) -> bool:
    """Whether a sentence names a key, or the section that it is in."""
    return place[-1] in sentence or ".".join(place[:2]) in sentence


def complaint(config: dict[str, Any], place: tuple[str, ...], value: Any) -> str | None:
    """What is wrong with the answer to a value of a key; None if it is accepted or refused as it should be."""
    name = f"{'.'.join(place)}={value!r}"
    try:
        read_settings(with_value(config, place, value))
    except UserError as error:
        text = str(error)
        if "\n" in text:
            return f"{name}: more than one line: {text}"
        # A constructor that ends in an error of Python's has not checked its arguments.
        if "could not be built" in text:
            return f"{name}: {text}"
        if not names_the_key(text, place):
            return f"{name}: does not name the key: {text}"
        return None if re.fullmatch(r".+[.)]", text) else f"{name}: no sentence: {text}"
    except Exception as error:
        return f"{name}: {type(error).__name__}: {error}"
    return None


@pytest.mark.parametrize(
    ("options", "step"),
    [(SOME_OPTIONS, 8), pytest.param(OPTIONS, 1, marks=pytest.mark.slow)],
    ids=["a sample", "all"],
)
def test_every_value_of_every_key_is_accepted_or_refused_in_one_sentence(
    options: list[tuple[str, list[str]]], step: int
) -> None:
    cases: dict[tuple[tuple[str, ...], str], tuple[dict[str, Any], Any]] = {}
    for command, arguments in options:
        config = composed(command, *arguments)
        read_settings(config)
        for place in places(config):
            for value in VALUES:
                cases.setdefault((place, repr(value)), (config, value))
    assert len(cases) > 3000
    chosen = list(cases.items())[::step]
    wrong = [text for (place, _), (config, value) in chosen if (text := complaint(config, place, value)) is not None]
    assert not wrong, "\n".join(wrong)


SECTIONS: dict[str, type[Settings]] = {
    "ablation": AblationSettings,
    "annotation": AnnotationConfig,
    "checkpoint": CheckpointSettings,
    "data": SourceConfig,
    "framenet": FrameNetSource,
    "optimizer": OptimizerConfig,
    "prune": PruneSettings,
    "report": ReportSettings,
    "shrink": ShrinkSettings,
    "sweep": SweepSettings,
    "trainer": TrainerSettings,
}
NO_SECTIONS = ("papers", "data.task", "models.spec", "measures.linguistic.word_features", "settings")
"""Where settings are declared whose files are each one statement, page, task, model or set of features: what one of them
states is no default.
"""
PARTS = (
    "CommandKeys",
    "CommonKeys",
    "DescribedKeys",
    "Filters",
    "ModelKeys",
    "SearchSettings",
    "_SmallerSettings",
    "StrategySettings",
    "WatchKeys",
)
"""Bases of other settings, and what only some choices of a group state."""


def declared_settings(kind: type[Settings] = Settings) -> Iterator[type[Settings]]:
    """The typed settings of the package."""
    for module in walk_packages(bertsecrets.__path__, "bertsecrets."):
        if "__main__" not in module.name and ".commands." not in module.name:
            importlib.import_module(module.name)
    kinds = [kind]
    while kinds:
        yield (kind := kinds.pop())
        kinds += [sub for sub in kind.__subclasses__() if sub.__module__.startswith("bertsecrets.")]


def stated_keys(section: str) -> set[str]:
    """The keys of a section that the files of ``conf/`` state which a command reads without further choices."""
    keys = set()
    for command in COMMANDS:
        content = yaml.safe_load((CONF / f"{command}.yaml").read_text())
        keys |= {*(content.get(section) or {})}
        for choice in content["defaults"]:
            if isinstance(choice, dict) and isinstance(choice.get(section), str):
                keys |= {*yaml.safe_load((CONF / section / f"{choice[section]}.yaml").read_text())}
    return keys


def test_a_default_stands_either_in_conf_or_on_a_field() -> None:
    for kind in {*declared_settings()} - {Settings}:
        with_default = {name for name, field in kind.model_fields.items() if not field.is_required()}
        if kind in COMMANDS.values():
            (command,) = (name for name, keys in COMMANDS.items() if keys is kind)
            stated = {
                *yaml.safe_load((CONF / f"{command}.yaml").read_text()),
                *yaml.safe_load((CONF / "command.yaml").read_text()),
            }
        elif kind in SECTIONS.values():
            (section,) = (name for name, settings in SECTIONS.items() if settings is kind)
            stated = stated_keys(section)
            assert stated & {*kind.model_fields}, section
        else:
            assert kind.__name__ in PARTS or kind.__module__.removeprefix("bertsecrets.").startswith(NO_SECTIONS), kind
            continue
        assert not with_default & stated, kind


def test_settings_without_values_have_those_of_conf() -> None:
    for section, kind in (("ablation", AblationSettings), ("prune", PruneSettings), ("shrink", ShrinkSettings)):
        stated = yaml.safe_load((CONF / section / "default.yaml").read_text())
        assert kind.read(section, {}).model_dump() == stated
        assert kind.read(section, {"seed": 7}).model_dump() == {**stated, "seed": 7}
    source = SourceConfig.read("data", {"source": "hub"})
    assert (source.eval_batch_size, source.text, source.limit_train, source.path) == (64, "text", None, None)
    with pytest.raises(UserError, match=r"optimizer\.learning_rate has no value"):
        OptimizerConfig.read("optimizer", {})
