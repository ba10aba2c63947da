"""Columns of head tables, which may serve as pruning scores."""

from pathlib import Path

from bertsecrets.ablation.scoring import Array
from bertsecrets.errors import UserError
from bertsecrets.results.formatting import MISSING
from bertsecrets.results.run import CHECKPOINT, TRAINING, Run
from bertsecrets.results.views import MeasureView

KEPT = "kept"
"""Column of experiments that remove heads: 1 for a head that is kept, 0 for one that is removed."""


def kept_classes(view: MeasureView, name: str) -> dict[str, list[list[str]]]:
    """``kept`` or ``removed`` for each head, ``[layers][heads]``, under a name; empty without the column :data:`KEPT`."""
    words = {1.0: "kept", 0.0: "removed"}
    return (
        {name: [[words.get(value, MISSING) for value in row] for row in view.value(KEPT).tolist()]}
        if view.has(KEPT)
        else {}
    )


def table_of(folder: str) -> Run:
    """The run of a folder that ``prune.tables`` names; raises UserError if it is no run or has no head table."""
    if not (Path(folder) / "config.yaml").is_file():
        raise UserError(
            f"prune.tables names '{folder}', which is no folder of a run; give that of a training or an analysis."
        )
    run = Run.open(Path(folder))
    if not run.heads_path.is_file():
        raise UserError(
            f"'{folder}' has no head table, so it has no scores for prune.tables; give a run that measured heads."
        )
    return run


def columns_of(run: Run) -> dict[str, Array]:
    """The columns of a run's head table at their last step as scores, ``measure/column`` -> ``[layers, heads]``.

    A training's are those of its validations. A column whose low numbers mark heads worth keeping (``Column.keep``) is negated, so that higher is worth keeping.
    """
    table = run.table()
    stage = CHECKPOINT if table.select(stage=CHECKPOINT).table.num_rows else TRAINING
    table = table.select(stage=stage)
    names = set(zip(*(table.table[name].to_pylist() for name in ("measure", "column")), strict=True))
    low = {
        (declaration.name, column.name)
        for declaration in run.declarations()
        for column in declaration.columns
        if column.keep == "low"
    }
    scores = {}
    for measure, column in sorted(names):
        value_LH = table.grid(measure, column, stage, table.steps(measure, column, stage)[-1])[0]
        scores[f"{measure}/{column}"] = -value_LH if (measure, column) in low else value_LH
    return scores
