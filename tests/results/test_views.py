"""What a section sees of an experiment, against tables made by hand."""

from pathlib import Path

import numpy as np
import pytest
from reporting.finished_runs import table_of, view_of

from bertsecrets.grid import Column
from bertsecrets.results.run import Declaration, Run
from bertsecrets.results.table import HeadTable, MissingColumnError
from bertsecrets.results.views import MeasureView, Replicates

COLUMNS = (Column("a", "first", "unit", (0.0, 1.0)), Column("b", "second", role="baseline"))


def rows(
    stage: str, step: int, first: float, names: tuple[str, ...] = ("a", "b"), whole_layers: bool = False
) -> HeadTable:
    """A grid of two layers and three heads (or whole layers) that counts up from a number; column ``b`` is 100 more."""
    value_LH = first + np.arange(2.0 if whole_layers else 6.0).reshape(2, -1)
    columns = {name: value_LH + 100 * place for place, name in enumerate(names)}
    error_LHC = np.stack([*columns.values()], -1) / 10
    count_LHC = np.full(error_LHC.shape, 7)
    count_LHC[0, 0] = 5
    return table_of("focus", columns, stage, step, stderr=error_LHC, count=count_LHC, whole_layers=whole_layers)


def view(*tables: HeadTable) -> MeasureView:
    other = table_of("other", {"a": np.ones((2, 3))}, step=99)
    return view_of(Declaration("focus", "Focus", "", COLUMNS), *tables, other)


def start(values_LH: np.ndarray) -> float:
    """The number that a grid counts up from."""
    assert np.array_equal(values_LH, values_LH[0, 0] + np.arange(values_LH.size).reshape(values_LH.shape))
    return float(values_LH[0, 0])


def test_the_last_step_of_training_counts() -> None:
    seen = view(rows("training", 12, 3), rows("training", 4, 1), rows("initial", 0, 9))
    assert (seen.name, seen.title, seen.stage, seen.step) == ("focus", "Focus", "training", 12)
    assert start(seen.value("a")) == 3
    assert start(seen.value("b")) == 103
    assert np.allclose(seen.stderr("a"), seen.value("a") / 10)
    assert seen.count("a") == 7
    value_LH, stderr_LH, count_LH = seen.grid("a")
    assert count_LH.tolist() == [[5, 7, 7], [7, 7, 7]]
    assert np.array_equal(value_LH, seen.value("a"))
    assert np.array_equal(stderr_LH, seen.stderr("a"))


def test_a_checkpoints_numbers_come_before_those_of_training() -> None:
    seen = view(rows("training", 12, 3), rows("checkpoint", 6, 5), rows("training", 4, 1))
    assert (seen.stage, seen.step) == ("checkpoint", 6)
    assert start(seen.value("a")) == 5
    # The history stays that of training.
    assert [(step, start(value_LH)) for step, value_LH in seen.history("a")] == [(4, 1), (12, 3)]


def test_columns_are_as_declared_or_labelled_by_their_names() -> None:
    seen = view(rows("training", 4, 1, ("b", "new_one", "a")))
    assert seen.columns == (COLUMNS[1], Column("new_one", "new one"), COLUMNS[0])
    assert seen.column("a") is COLUMNS[0]
    with pytest.raises(KeyError):
        seen.column("none")


def test_a_column_that_the_last_step_does_not_hold_is_missing() -> None:
    seen = view(rows("training", 4, 1), rows("training", 12, 3, ("a",)))
    assert seen.has("a")
    assert not seen.has("b")
    assert [column.name for column in seen.columns] == ["a", "b"]
    with pytest.raises(MissingColumnError, match="no focus/b at stage 'training', step 12"):
        seen.value("b")
    assert [step for step, _ in seen.history("b")] == [4]


def test_another_stage_or_step() -> None:
    seen = view(rows("training", 4, 1), rows("training", 12, 3), rows("checkpoint", 8, 5), rows("initial", 0, 9))
    before = seen.at("initial")
    assert (before.stage, before.step, start(before.value("a"))) == ("initial", 0, 9)
    training = seen.at("training")
    assert (training.step, start(training.value("a"))) == (12, 3)
    earlier = seen.at("training", 4)
    assert (earlier.step, start(earlier.value("a"))) == (4, 1)
    assert seen.at("random") is None
    assert seen.at("training", 5) is None
    # The view itself is as it was.
    assert (seen.stage, seen.step, start(seen.value("a"))) == ("checkpoint", 8, 5)


def test_an_experiment_without_rows_has_nothing() -> None:
    seen = view()
    assert seen.step is None
    assert seen.columns == ()
    assert not seen.has("a")
    assert seen.history("a") == []
    assert seen.compared == {}
    with pytest.raises(MissingColumnError):
        seen.grid("a")


def test_whole_layers_apart_from_heads() -> None:
    seen = view(rows("training", 4, 1, whole_layers=True), rows("training", 4, 1))
    layers = seen.whole_layers()
    assert layers.value("a").tolist() == [[1.0], [2.0]]
    assert [value_LH.shape for _, value_LH in layers.history("a")] == [(2, 1)]
    assert layers.title == "Focus"


def test_a_view_reads_the_runs_own_table(tmp_path: Path) -> None:
    run = Run(tmp_path, "r", "m", "t", "pretrained")
    run.add(rows("training", 4, 1))
    run.add(rows("training", 12, 3))
    assert start(MeasureView(run, Declaration("focus", "Focus", "")).value("a")) == 3


def test_changes_are_of_the_checkpoint_before_those_of_training() -> None:
    parts = [rows("training", 12, 3), rows("initial", 0, 9), rows("training-initial", 12, -6)]
    change = view(*parts).compared["initial"]["a"]
    assert (start(change.model_LH), start(change.other_LH), start(change.delta_LH)) == (3, 9, -6)
    assert change.count == 7
    assert change.moves
    later = view(*parts, rows("checkpoint", 8, 5), rows("checkpoint-initial", 8, -4)).compared["initial"]
    # Column b is a baseline.
    assert list(later) == ["a"]
    assert (start(later["a"].model_LH), start(later["a"].delta_LH)) == (5, -4)


def test_replicates_are_stacked_where_they_hold_a_column() -> None:
    views = [
        view(rows("training", 4, 1)),
        view(rows("training", 4, 2, ("a",))),
        view(rows("checkpoint", 4, 7), rows("training", 9, 3)),
    ]
    replicates = Replicates(views)
    assert replicates.title == "Focus"
    assert replicates.columns == COLUMNS
    grids = replicates.grids("a")
    assert [start(value_LH) for value_LH in grids.value_RLH] == [1, 2, 7]
    assert np.allclose(grids.stderr_RLH, grids.value_RLH / 10)
    assert grids.count == 7
    fewer = replicates.grids("b")
    assert [start(value_LH) for value_LH in fewer.value_RLH] == [101, 107]
    assert replicates.grids("c") is None
