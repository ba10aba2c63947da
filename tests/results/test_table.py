import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertsecrets.errors import UserError
from bertsecrets.grid import HeadGrid
from bertsecrets.results.table import SCHEMA, HeadTable

EXPERIMENT = {"run": "r1", "model": "bert", "task": "mrpc", "init": "pretrained"}


def grid(seed: int = 0) -> HeadGrid:
    value_LHC, stderr_LHC = torch.rand(2, 3, 4, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return HeadGrid("drift", ("cosine", "jensen_shannon"), value_LHC, stderr_LHC, torch.arange(24).reshape(3, 4, 2))


def table(seed: int = 0, stage: str = "train", step: int = 63, **other: str) -> HeadTable:
    return HeadTable.from_grid(grid(seed), **{**EXPERIMENT, **other}, stage=stage, step=step)


def test_schema_is_the_documented_one() -> None:
    texts = dict.fromkeys(("run", "model", "task", "init", "stage", "measure", "column"), "string")
    numbers = {
        "step": "int64",
        "layer": "int32",
        "head": "int32",
        "value": "double",
        "stderr": "double",
        "count": "int64",
    }
    assert {field.name: str(field.type) for field in SCHEMA} == texts | numbers
    assert [field.name for field in SCHEMA if field.nullable] == ["head"]


def test_a_grid_survives_the_file(tmp_path: Path) -> None:
    path = tmp_path / "task=rte" / "heads.parquet"
    source = grid()
    source.value_LHC[1, 2, 0] = math.nan
    source.count_LHC[1, 2, 0] = 0
    HeadTable.from_grid(source, **EXPERIMENT, stage="test", step=7).write(path)
    back = HeadTable.read(path)
    assert back.table.schema.equals(SCHEMA)
    for c, column in enumerate(source.columns):
        value_LH, stderr_LH, count_LH = back.grid("drift", column, "test", 7)
        np.testing.assert_array_equal(value_LH, source.value_LHC[:, :, c].numpy())
        np.testing.assert_array_equal(stderr_LH, source.stderr_LHC[:, :, c].numpy())
        np.testing.assert_array_equal(count_LH, source.count_LHC[:, :, c].numpy())
    assert set(back.table["task"].to_pylist()) == {"mrpc"}


@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(0, 2), st.integers(0, 2), st.sampled_from([None, 0, 1]), st.floats()), max_size=12
        ),
        max_size=4,
    )
)
def test_joined_tables_agree_with_a_dictionary(batches: list[list[tuple[int, int, int | None, float]]]) -> None:
    joined = HeadTable.empty()
    expected: dict[tuple[int, int, int | None], float] = {}
    for batch in batches:
        rows = [
            {**EXPERIMENT, "stage": "s", "step": step, "measure": "m", "column": "c", "layer": layer, "head": head}
            | {"value": value, "stderr": 0.0, "count": 1}
            for step, layer, head, value in batch
        ]
        joined = HeadTable.concat([joined, HeadTable(pa.Table.from_pylist(rows, schema=SCHEMA))])
        expected.update({(step, layer, head): value for step, layer, head, value in batch})
    found = {(row["step"], row["layer"], row["head"]): row["value"] for row in joined.table.to_pylist()}
    assert len(joined) == len(expected)
    assert found.keys() == expected.keys()
    np.testing.assert_array_equal([found[key] for key in expected], list(expected.values()))


def test_concat_keeps_runs_apart() -> None:
    joined = HeadTable.concat([table(run="a"), table(run="b", seed=1)])
    assert len(joined) == 2 * len(table())
    assert len(joined.select(run="b", layer=2, head=3, column="cosine")) == 1
    with pytest.raises(ValueError, match="'run'"):
        joined.grid("drift", "cosine", "train", 63)
    np.testing.assert_array_equal(
        joined.select(run="b").grid("drift", "cosine", "train", 63)[0], grid(1).column("cosine").numpy()
    )


def test_grid_marks_what_is_absent() -> None:
    full = HeadTable.concat([table(step=63), table(step=126)])
    rows = [row for row in full.table.to_pylist() if (row["layer"], row["step"]) != (0, 126)]
    partial = HeadTable(pa.Table.from_pylist(rows, schema=SCHEMA))
    value_LH, stderr_LH, count_LH = partial.grid("drift", "cosine", "train", 126)
    assert value_LH.shape == (3, 4)
    assert np.isnan(value_LH[0]).all()
    assert np.isnan(stderr_LH[0]).all()
    assert (count_LH[0] == 0).all()
    assert np.isfinite(value_LH[1:]).all()
    with pytest.raises(ValueError, match="no drift/cosine"):
        partial.grid("drift", "cosine", "train", 999)


def test_steps_are_sorted_and_of_their_stage() -> None:
    joined = HeadTable.concat([table(step=100), table(step=5), table(step=7, stage="test")])
    assert joined.steps("drift", "cosine", "train") == [5, 100]
    assert joined.steps("drift", "nothing", "train") == []


def test_select_refuses_unknown_columns() -> None:
    with pytest.raises(ValueError, match="'heads'"):
        table().select(heads=3)


def test_read_explains_missing_foreign_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"gone\.parquet cannot be read as a head table"):
        HeadTable.read(tmp_path / "gone.parquet")
    (tmp_path / "text.parquet").write_text("not parquet at all")
    with pytest.raises(UserError, match=r"text\.parquet cannot be read"):
        HeadTable.read(tmp_path / "text.parquet")
    table().write(tmp_path / "cut.parquet")
    table().write(tmp_path / "run" / "heads.parquet")
    with pytest.raises(UserError, match="run cannot be read"):
        HeadTable.read(tmp_path / "run")
    whole = (tmp_path / "cut.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"cut\.parquet cannot be read"):
        HeadTable.read(tmp_path / "cut.parquet")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.drop_columns(["count"]), "is not a head table: it has the columns run, .*, stderr;"),
        (lambda t: t.rename_columns(["name", *t.column_names[1:]]), "is not a head table: it has the columns name, "),
        (lambda t: t.append_column("extra", t["value"]), "is not a head table: .*, extra;"),
        (lambda t: t.set_column(5, "step", t["run"]), "cannot be read as a head table"),
    ],
)
def test_other_columns_are_refused(tmp_path: Path, change: object, message: str) -> None:
    path = tmp_path / "odd.parquet"
    pq.write_table(change(table().table), path)
    with pytest.raises(UserError, match=f"odd.parquet {message}"):
        HeadTable.read(path)
