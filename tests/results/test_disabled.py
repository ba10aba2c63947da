"""What a run is asked to disable, and the score that a sweep compares."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from results.test_ablation_table import row

from bertsecrets.results.ablation_table import AblationTable
from bertsecrets.results.disabled import named, named_rows, objective
from bertsecrets.results.run import Run

ROWS = [
    row(kind=kind, variant=variant, evaluation="val", metric=metric, mode="uniform", stage="checkpoint", score=score,
        layer=3, head=head, heads="3-0", loss_baseline=0.5, loss_change=0.25)
    for kind, variant, head, scores in (("head", "l03h00", 0, (0.8, 0.7)), ("head", "l03h01", 1, (0.81, 0.71)), ("layer", "l03", None, (0.6, 0.5)))
    for metric, score in zip(("accuracy", "f1"), scores, strict=True)
]  # fmt: skip


def run_of(folder: Path, rows: list[dict[str, Any]], **ablation: Any) -> Run:
    run = Run(folder, "", "", "", "")
    config = {"analysis": {"disable": {}}, "ablation": ablation}
    run.config_path.write_text(yaml.safe_dump(config))
    sets = {"val": {"count": 9, "model": {"accuracy": 0.9, "f1": 0.85, "loss": 0.5}, "constant": {"accuracy": 0.5, "f1": 0.6}, "p_constant": 0.01}}  # fmt: skip
    content = {"sets": sets, "constant_answer": "x", "step": 9, "seconds": 1.0, "notes": []}
    run.scores_path.write_text(json.dumps(content))
    if rows:
        AblationTable.from_rows(rows).write(run.ablation_path)
    return run


@pytest.mark.parametrize(
    ("rows", "ablation", "expected"),
    [
        (ROWS[:2], {"head": "3.0"}, {None: 0.8, "val/f1": 0.7, "val/loss": 0.75}),
        # The heads of one layer, and the layer as a whole.
        (ROWS, {"layer": 3}, {None: 0.6, "val/f1": 0.5}),
        (ROWS[:4], {"layer": 3}, {None: 0.9, "val/f1": 0.85, "val/loss": 0.5}),
        (ROWS[:2], {}, {None: 0.9}),
        ([], {"head": "3.0"}, {None: 0.9, "val/other": None}),
    ],
)
def test_the_score_is_that_of_the_model_without_what_was_asked_for(
    rows: list[dict[str, Any]], ablation: dict[str, Any], expected: dict[str | None, float | None], tmp_path: Path
) -> None:
    run = run_of(tmp_path, rows, **ablation)
    assert {name: objective(run, name) for name in expected} == expected
    assert bool(named_rows(run)) == (expected[None] != 0.9)


@pytest.mark.parametrize(
    ("ablation", "expected"),
    [
        ({"head": ["5.1", "3.10"]}, {"what": "layer 3 · head 10; layer 5 · head 1"}),
        ({"heads": [[[3, 1]], [[5, 9]]]}, {"what": "layer 3 · head 1 | layer 5 · head 9"}),
        ({"heads": [[3, 1]]}, {"what": "layer 3 · head 1", "layer": 3, "head": 1}),
        ({"layer": 4}, {"what": "layer 4", "layer": 4}),
        ({"layers": [0, 11]}, {"what": "layers 0 and 11"}),
        ({"mode": "zero"}, {}),
    ],
)
def test_what_is_disabled_has_a_name(ablation: dict[str, Any], expected: dict[str, Any]) -> None:
    assert named({"analysis": {}, "ablation": ablation}) == expected
    assert named({"ablation": ablation}) == {}
