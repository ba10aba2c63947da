"""A fault case: a command line, what is wrong with it, and the sentence that a user should read."""

import json
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Any

import pytest

SAMPLED = 18
"""Continuous integration runs one case in so many."""

TINY: Mapping[str, object] = {
    "model": "folder",
    "model.path": "{model}",
    "task": "sst2",
    "data": "tsv",
    "data.root": "{data}",
    "data.eval_batch_size": 8,
    "task.training.batch_size": 8,
    "task.training.max_length": 32,
    "measure": "[entropy]",
    "trainer.accelerator": "cpu",
    "logger": "none",
    "progress": "false",
}
"""Settings of a run of seconds: a tiny random model on a few sentences, one measure, no callbacks."""

_OF_RUN = {"model", "model.path", "task", "data", "data.root", "task.training.batch_size"}
"""Settings that an analysis takes from the run that it analyses."""


CLAIMED = ("begun.json", ".lock")
"""``leaves`` of a run that is refused once its folder is claimed."""

LATE = (*CLAIMED, "config.yaml")
"""``leaves`` of a run that is refused after it has begun."""


@dataclass(frozen=True)
class Outcome:
    """What a command did.

    Args:
        status: Exit status; negative for a signal's number.
        stdout, stderr: What it printed.
        seconds: How long it took.
        peak_bytes: The most memory that it used.
        timed_out: Whether it was killed because it took too long.
    """

    status: int
    stdout: str
    stderr: str
    seconds: float
    peak_bytes: int
    timed_out: bool


@dataclass(frozen=True)
class Case:
    """A command line with its expected outcome.

    In ``words``, ``sentence`` and ``environment``, ``{folder}`` stands for the case's working directory, ``{model}``
    for a folder with a tiny model, ``{data}`` for one with its sentences, and ``{run}`` and ``{analysis}`` for the
    folders of a finished training and of a finished analysis that disables its heads; a case must not change any of
    them.

    Args:
        id: A name, unique in its file.
        words: A command, ``train.py`` or ``analyze.py``, and its arguments.
        sentence: Regular expression that the last line of stderr matches; for ``status=0``, stdout and stderr together.
        status: Expected exit status.
        arrange: Puts files into the working directory.
        copies: Folders to copy into the working directory before ``arrange``: the copy's name -> ``run``, ``analysis``
            or another of the runner's finished runs.
        leaves: Glob patterns of the files that a refused run may leave besides those of ``arrange`` and Hydra's own.
        environment: Environment variables to set.
        check: Further assertions about the working directory and the outcome.
        seconds: The most that it may take.
    """

    id: str
    words: tuple[str, ...]
    sentence: str
    status: int = 1
    arrange: Callable[[Path], None] | None = None
    copies: Mapping[str, str] = field(default_factory=dict)
    leaves: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    check: Callable[[Path, Outcome], None] | None = None
    seconds: float = 60.0


def train(**settings: object) -> tuple[str, ...]:
    """The words of a training of seconds; ``__`` stands for a dot, and None leaves a default setting out."""
    return ("train.py", *_words({**TINY, "trainer.max_epochs": 1, "callbacks": "none"}, settings))


def analyze(**settings: object) -> tuple[str, ...]:
    """The words of an analysis of seconds, of the finished run unless ``checkpoint`` says otherwise.

    Task, data and model are those of the run if it is a run that is analysed.
    """
    own = {"checkpoint": "{run}", "analysis": "scores", "ablation.resamples": 100, "ablation.permutations": 100}
    return ("analyze.py", *_words({key: value for key, value in TINY.items() if key not in _OF_RUN} | own, settings))


def view(text: str, **settings: object) -> tuple[str, ...]:
    """The words that show a text's attention in the tiny model, on a page in ``out``."""
    own = {"model": "folder", "model.path": "{model}", "hydra.run.dir": "{folder}/out"}
    return ("view", *_words(own, settings), f"text={text}")


def _words(defaults: Mapping[str, object], settings: Mapping[str, object]) -> list[str]:
    merged = {**defaults, **{key.replace("__", "."): value for key, value in settings.items()}}
    return [f"{key}={value}" for key, value in merged.items() if value is not None]


def bounded(folder: Path, outcome: Outcome) -> None:
    """The message is short, and nothing in it can change a terminal or the order of its letters."""
    assert len(outcome.stderr) < 5000
    assert outcome.stderr.rstrip("\n").split("\n")[-1].isprintable()
    assert not set("\x1b\x07\u202e\u2066") & set(outcome.stderr + outcome.stdout)


def pages_say(*sentences: str) -> Callable[[Path, Outcome], None]:
    """All pages of the case hold these sentences and no NaN; scores hold no NaN, which is not JSON."""

    def check(folder: Path, outcome: Outcome) -> None:
        texts = [path.read_text("utf-8") for path in (folder / "outputs").rglob("*.html")]
        assert texts
        visible = [re.sub(r"<(script|style).*?</\1>", "", text, flags=re.DOTALL) for text in texts]
        text = " ".join(unescape(re.sub(r"<[^>]+>", " ", " ".join(visible))).split())
        for sentence in sentences:
            assert sentence in text, sentence
        assert not re.search(r"\bnan\b", text, re.IGNORECASE)
        for path in (folder / "outputs").rglob("scores.json"):
            json.loads(path.read_text(), parse_constant=lambda name: exec(f"raise AssertionError({name!r})"))

    return check


def parametrized(cases: Iterable[Case]) -> pytest.MarkDecorator:
    """Parametrise a test over cases, under the marker ``faults``, and ``slow`` outside of the fixed sample."""
    listed = list(cases)
    names = [case.id for case in listed]
    assert len(set(names)) == len(names), sorted(name for name in set(names) if names.count(name) > 1)
    return pytest.mark.parametrize("case", [pytest.param(case, id=case.id, marks=_marks(case.id)) for case in listed])


def _marks(name: str) -> list[Any]:
    # A digest of the name: the sample stays the same when cases are added.
    sampled = zlib.crc32(name.encode()) % SAMPLED == 0
    return [pytest.mark.faults] if sampled else [pytest.mark.faults, pytest.mark.slow]
