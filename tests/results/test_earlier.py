"""Run folders of version 0.1: JSON beside the ablation table is read as rows."""

import json
from pathlib import Path

import pytest

from bertsecrets.ablation.rows import (
    BESIDE_TABLE,
    OverExamples,
    Power,
    Screened,
    Selection,
    Spared,
    SparedAt,
    Sublayers,
    Swept,
    Together,
    beside_table,
    found,
)
from bertsecrets.results.estimate import Estimate
from bertsecrets.results.rows import RecordError
from bertsecrets.results.run import Run

SCREENED = {"pairs": 100, "evaluated": 40, "inactive": 60, "audited": 6, "missed": 0, "whole": 0, "bound": 29}
SPARED = {"margin": 0.01, "level": 0.95, "false_discovery_rate": 0.05, "heads": 72, "of_each": 30, "excluded": None}
POWER = {"margin": 0.01, "undecided": 10, "heads": 72, "count": 400, "most": 6400, "share": 0.9, "spared": 490.4}
CHECKS = {
    "macro_f1_own_mode": {
        "best": "l00h01", "chosen": 0.2, "claimed": 0.02, "kept": 0.0, "low": -0.1, "high": 0.1, "positive": 0.3,
        "survives": False,
    },
    "spared_macro_f1_own_mode": {
        "metric": "macro_f1", "mode": "own_mode", "margins": [0.005, 0.01], "each": [3, 40], "at_least": [2, 30], **SPARED
    },
    "sublayers_macro_f1_own_mode": {
        "layers": 6, "attention": -0.1, "ffn": -0.2, "difference": 0.1, "low": 0.0, "high": 0.2, "level": 0.95
    },
    "over_examples_own_mode": {"share": 0.9, "low": 0.8, "high": 1.0, "level": 0.95, "heads": 72, "examples": 400},
    "sweep_own_mode": {**SCREENED, "fragile": 7},
    "mode_own_mode": {"words": "half of its output"},
    "sample_own_mode": {"examples": 400, "of": 1000, "budget": "1min"},
    "time_own_mode": {"seconds": 8.5},
    "looks_own_mode": {},
    "power_own_mode": {"metric": "macro_f1", "examples": None, "needed": None, **POWER},
    "together_own_mode": {
        "heads": [[0, 1], [2, 3]], "seconds": 2.0,
        "metrics": {"macro_f1": {"baseline": 0.8, "score": 0.7, "delta": -0.1, "low": -0.2, "high": 0.0}},
    },
}  # fmt: skip
ROWS = [
    Swept("own_mode", "half of its output", 400, 1000, "1min", 8.5),
    Screened("own_mode", **SCREENED),
    Selection("macro_f1", "own_mode", "l00h01", 0.2, 0.02, Estimate(0.0, -0.1, 0.1), 0.3, None, False),
    Spared("macro_f1", "own_mode", each=40, at_least=30, **SPARED),  # type: ignore[arg-type]
    SparedAt("macro_f1", "own_mode", 0.005, 3, 2),
    SparedAt("macro_f1", "own_mode", 0.01, 40, 30),
    Sublayers("macro_f1", "own_mode", 6, -0.1, -0.2, Estimate(0.1, 0.0, 0.2), 0.95),
    OverExamples("own_mode", Estimate(0.9, 0.8, 1.0), 0.95, 72, 400),
    Power("own_mode", "macro_f1", examples=None, needed=None, **POWER),  # type: ignore[arg-type]
    Together("macro_f1", "own_mode", "0-1 2-3", 2.0, 0.8, 0.7, Estimate(-0.1, -0.2, 0.0)),
]


def a_run(folder: Path, checks: object) -> Run:
    path = folder / "ablation" / "selection.json"
    path.parent.mkdir()
    path.write_text(checks if isinstance(checks, str) else json.dumps(checks), "utf-8")
    return Run(folder, "run", "m", "t", "pretrained")


def test_json_beside_the_ablation_table_is_read_as_rows(tmp_path: Path) -> None:
    rows = beside_table(a_run(tmp_path, CHECKS))
    assert {type(row) for row in rows} == set(BESIDE_TABLE)
    # Undefined numbers of an estimate are equal as text alone.
    assert list(map(repr, rows)) == list(map(repr, ROWS))


def test_empty_records_are_no_rows(tmp_path: Path) -> None:
    assert beside_table(a_run(tmp_path, {name: {} for name in CHECKS})) == []


@pytest.mark.parametrize("content", ["{", '{"sweep_zero": {"pairs": 3}}', '{"sweep_zero": 3}', "[1]"])
def test_a_damaged_file_is_one_sentence(tmp_path: Path, content: str) -> None:
    with pytest.raises(RecordError, match="repeat the analysis"):
        found(a_run(tmp_path, content), Screened)
