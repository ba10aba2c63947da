"""Comparisons, reports, resuming, and odd combinations of them."""

import re
from collections.abc import Callable
from html import unescape
from pathlib import Path

import yaml
from faults.cases import LATE, Case, Outcome, analyze, parametrized, train
from faults.places import Arrange, json_keys, write
from faults.runner import Warm

RUNS = {"a": "run", "b": "second"}


def removed(*patterns: str) -> Arrange:
    def arrange(folder: Path) -> None:
        for pattern in patterns:
            paths = list(folder.glob(pattern))
            assert paths, pattern
            for path in paths:
                path.unlink()

    return arrange


def configured(name: str, **values: object) -> Arrange:
    """Changes keys of a configuration; ``__`` stands for a dot, and None removes the key."""

    def arrange(folder: Path) -> None:
        path = folder / name / "config.yaml"
        content = yaml.safe_load(path.read_text())
        for key, value in values.items():
            *sections, last = key.split("__")
            section = content
            for part in sections:
                section = section[part]
            if value is None:
                del section[last]
            else:
                section[last] = value
        path.write_text(yaml.safe_dump(content))

    return arrange


def pages(folder: Path) -> str:
    """The text of all pages that a case wrote."""
    texts = [path.read_text("utf-8") for path in (folder / "outputs").rglob("*.html")]
    assert texts
    visible = [re.sub(r"<(script|style).*?</\1>", "", text, flags=re.DOTALL) for text in texts]
    return unescape(re.sub(r"<[^>]+>", " ", " ".join(visible)))


def says(*sentences: str) -> Callable[[Path, Outcome], None]:
    def check(folder: Path, outcome: Outcome) -> None:
        text = pages(folder)
        for sentence in sentences:
            assert sentence in text, sentence
        assert not re.search(r"\bnan\b", text, re.IGNORECASE)

    return check


def compare(name: str, words: str, sentence: str, arrange: Arrange | None = None, **settings: object) -> Case:
    return Case(
        f"compare-{name}",
        ("compare", f"runs={words}", *(f"{key}={value}" for key, value in settings.items())),
        sentence,
        arrange=arrange,
        copies=RUNS,
    )


COMPARISONS = [
    Case(
        "compare-two",
        ("compare", "runs=[{folder}/a,{folder}/b]"),
        r"Comparison: .*comparison.html",
        status=0,
        copies=RUNS,
        check=says(),
    ),
    Case(
        "compare-with-unfinished",
        ("compare", "runs={folder}", "paper=true"),
        r"Skipped \(unfinished\): c\.[\s\S]*Comparison: ",
        status=0,
        copies={**RUNS, "c": "random"},
        arrange=removed("c/finished.json"),
        check=says("Skipped (unfinished): c."),
    ),
    compare("one", "{folder}/a", r"runs has only one finished run, '{folder}/a'; give at least two"),
    compare(
        "one-finished",
        "{folder}",
        r"runs has only one finished run.*Skipped \(unfinished\): b\.",
        removed("b/finished.json"),
    ),
    compare("scores-empty", "{folder}", r"'{folder}/b' has no scores", json_keys("b/scores.json", sets={})),
    compare("experiments-junk", "{folder}", r"b/experiments.json' cannot be read", write("b/experiments.json", "{")),
    compare("no-seed", "{folder}", r"b/config.yaml' has no seed", configured("b", seed=None)),
    compare("edited-seed", "{folder}", r"b/config.yaml has changed since the run finished", configured("b", seed=7)),
    compare(
        "lost-table", "{folder}", r"b/heads.parquet is missing, so no page can be made", removed("b/heads.parquet")
    ),
    Case(
        "report-edited-seed",
        ("report", "run={folder}/b"),
        r"b/config.yaml has changed since the run finished, so no page can be made .*resume folder=",
        copies={"b": "run"},
        arrange=configured("b", seed=7),
    ),
]

COMBINATIONS = [
    Case("train-wandb", train(logger="default"), r"Report: {folder}/outputs/", status=0),
    Case("analysis-fine", analyze(analysis="disable_layers"), r"Report: {folder}/outputs/", status=0),
    Case(
        "report-analysis",
        ("report", "run={folder}/a"),
        r"Report: {folder}/a/report.html",
        status=0,
        copies={"a": "analysis"},
    ),
    Case(
        "report-unfinished",
        ("report", "run={folder}/a"),
        r"no finished run \(unfinished: a\)",
        copies={"a": "run"},
        arrange=removed("a/finished.json"),
    ),
    Case(
        "checkpoint-empty-folder",
        analyze(checkpoint="{folder}/x"),
        r"x' has neither a model \(config.json\) nor a run",
        arrange=lambda folder: (folder / "x").mkdir(),
        leaves=LATE,
    ),
    Case(
        "no-similar-heads",
        analyze(analysis="redundancy", ablation__group_size=1),
        r"No two heads have similar maps",
        # The entropies of the measure are finished work.
        leaves=(*LATE, "heads.parquet", "experiments.json", "rows.json"),
    ),
]


@parametrized([*COMPARISONS, *COMBINATIONS])
def test_comparisons(case: Case, warm: Warm, tmp_path: Path) -> None:
    warm.check(case, tmp_path)
