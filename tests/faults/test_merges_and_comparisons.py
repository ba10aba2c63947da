"""Merges, comparisons, reports, resuming, and odd combinations of them."""

import re
from collections.abc import Callable
from html import unescape
from pathlib import Path

import torch
import yaml
from faults.cases import LATE, Case, Outcome, analyze, parametrized, train
from faults.places import Arrange, json_keys, write
from faults.runner import Warm
from safetensors import safe_open
from safetensors.torch import save_file

MERGE = ("merge", "runs={folder}")
TWO = {"a": "layer0", "b": "layer1"}
RUNS = {"a": "run", "b": "second"}


def removed(*patterns: str) -> Arrange:
    def arrange(folder: Path) -> None:
        for pattern in patterns:
            paths = list(folder.glob(pattern))
            assert paths, pattern
            for path in paths:
                path.unlink()

    return arrange


def truncated(pattern: str) -> Arrange:
    def arrange(folder: Path) -> None:
        (path,) = folder.glob(pattern)
        path.write_bytes(path.read_bytes()[:200])

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


def tensors(name: str, change: Callable[[dict[str, torch.Tensor]], object], **metadata: str) -> Arrange:
    """Changes the outcomes of a part."""

    def arrange(folder: Path) -> None:
        (path,) = (folder / name / "ablation").glob("checkpoint-*.safetensors")
        with safe_open(path, "pt") as file:
            content = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            described = {**file.metadata(), **metadata}
        change(content)
        save_file(content, path, metadata=described)

    return arrange


def renamed(name: str, target: str) -> Arrange:
    def arrange(folder: Path) -> None:
        (path,) = (folder / name / "ablation").glob("checkpoint-*.safetensors")
        path.rename(path.with_name(target))

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


def merge(name: str, sentence: str, arrange: Arrange | None = None, copies: dict[str, str] | None = None) -> Case:
    return Case(f"merge-{name}", MERGE, sentence, arrange=arrange, copies=TWO if copies is None else copies)


def compare(name: str, words: str, sentence: str, arrange: Arrange | None = None, **settings: object) -> Case:
    return Case(
        f"compare-{name}",
        ("compare", f"runs={words}", *(f"{key}={value}" for key, value in settings.items())),
        sentence,
        arrange=arrange,
        copies=RUNS,
    )


MERGES = [
    Case(
        "merge-two-of-three",
        MERGE,
        r"Missing: No part disables heads of layer 2\.[\s\S]*Merged the sweeps of 2 runs",
        status=0,
        copies=TWO,
        check=says("No part disables heads of layer 2."),
    ),
    Case("merge-whole", MERGE, r"Merged the sweeps of 1 run\.", status=0, copies={"a": "analysis"}),
    merge("of-nothing", r"'{folder}' has no finished disabling sweep; give", copies={}),
    merge("of-a-training", r"'{folder}' has no finished disabling sweep; give", copies={"a": "run"}),
    merge(
        "unfinished",
        r"Not finished: '{folder}/b'; finish it with python -m bertsecrets resume folder=",
        removed("b/finished.json"),
    ),
    merge("begun", r"Not finished: '{folder}/c'; finish it", write("c/.hydra/config.yaml", "")),
    merge("no-outcomes", r"'{folder}/b' has no outcomes \(ablation/checkpoint-", removed("b/ablation/*.safetensors")),
    merge(
        "table-truncated", r"b/ablation.parquet cannot be read as an ablation table", truncated("b/ablation.parquet")
    ),
    merge(
        "plan-empty",
        r"cannot be read as the outcomes",
        tensors("b", lambda content: None, plan='{"mode":"uniform","num_layers":3,"num_heads":4,"variants":[]}'),
    ),
    merge("shapes", r"which do not match", tensors("b", lambda content: content.update(label=torch.zeros(3)))),
    merge("other-labels", r"differ in their labels", tensors("b", lambda content: content["label"].add_(1))),
    merge(
        "other-code", r"'{folder}/a' and '{folder}/b' differ in their code", json_keys("b/finished.json", code="0" * 12)
    ),
    merge("marker-damaged", r"b/finished.json' cannot be read", write("b/finished.json", "{")),
    merge("other-level", r"differ in their ablation.level \(0.95 and 0.9\)", configured("b", ablation__level=0.9)),
    merge("other-sample", r"differ in their ablation.max_examples", configured("b", ablation__max_examples=3)),
    merge("other-run", r"differ in their run", configured("b", trained__name="another")),
    merge("other-checkpoint", r"differ in their checkpoint", configured("b", checkpoint="/elsewhere/run7")),
    merge("config-lost", r"has no section 'ablation'", configured("b", ablation=None)),
    merge("config-wrong", r"Unknown key 'ablation.depth'", configured("b", ablation__depth=2)),
    merge("config-junk", r"b/config.yaml' cannot be read", write("b/config.yaml", b"\xff\xfe\x00")),
    Case("merge-missing", ("merge", "runs={folder}/gone"), r"'{folder}/gone' is not a directory"),
]

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


@parametrized([*MERGES, *COMPARISONS, *COMBINATIONS])
def test_merges_and_comparisons(case: Case, warm: Warm, tmp_path: Path) -> None:
    warm.check(case, tmp_path)
