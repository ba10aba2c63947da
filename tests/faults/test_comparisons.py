"""Comparisons, reports, resuming, and odd combinations of them."""

from pathlib import Path

from faults.cases import LATE, Case, analyze, pages_say, parametrized
from faults.places import Arrange, json_keys, remove, replaced, write, yaml_keys
from faults.runner import Warm

RUNS = {"a": "run", "b": "second"}


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
        check=pages_say(),
    ),
    Case(
        "compare-with-unfinished",
        ("compare", "runs={folder}", "paper=true"),
        r"Skipped \(unfinished\): c\.[\s\S]*Comparison: ",
        status=0,
        copies={**RUNS, "c": "random"},
        arrange=remove("c/finished.json"),
        check=pages_say("Skipped (unfinished): c."),
    ),
    compare("one", "{folder}/a", r"runs has only one finished run, '{folder}/a'; give at least two"),
    compare(
        "one-finished",
        "{folder}",
        r"runs has only one finished run.*Skipped \(unfinished\): b\.",
        remove("b/finished.json"),
    ),
    compare("scores-empty", "{folder}", r"'{folder}/b' has no scores", json_keys("b/scores.json", sets={})),
    compare("experiments-junk", "{folder}", r"b/experiments.json' cannot be read", write("b/experiments.json", "{")),
    compare("no-seed", "{folder}", r"b/config.yaml' has no seed", replaced("b/config.yaml", "\nseed: 2\n", "\n")),
    compare(
        "edited-seed",
        "{folder}",
        r"b/config.yaml has changed since the run finished",
        yaml_keys("b/config.yaml", seed=7),
    ),
    compare("lost-table", "{folder}", r"b/heads.parquet is missing, so no page can be made", remove("b/heads.parquet")),
    Case(
        "report-edited-seed",
        ("report", "run={folder}/b"),
        r"b/config.yaml has changed since the run finished, so no page can be made .*resume folder=",
        copies={"b": "run"},
        arrange=yaml_keys("b/config.yaml", seed=7),
    ),
]

COMBINATIONS = [
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
        arrange=remove("a/finished.json"),
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
