"""Rows of findings in files, and what is refused in them."""

from dataclasses import asdict, dataclass, replace
from math import isnan, nan
from pathlib import Path
from typing import ClassVar

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsecrets.results.estimate import Estimate
from bertsecrets.results.rows import (
    Identity,
    RecordError,
    arrow_schema,
    as_rows,
    key_fields,
    moments,
    read_lines,
    rows_path,
    write_rows,
)

IDENTITY = Identity("run", "minilm", "mrpc", "pretrained", 1, "checkpoint", 9)


@dataclass(frozen=True)
class Thing:
    """A row of every type of field."""

    name: str
    layer: int
    share: float
    found: bool
    gain: Estimate
    head: int | None = None


THING = Thing("det", 3, 0.5, True, Estimate(0.1, 0.05, 0.15, 0.02, 40))


def read(folder: Path, stage: str = "checkpoint") -> list[Thing]:
    lines = [line for identity, line in read_lines(folder, "toy", "thing", "run") if identity.stage == stage]
    return as_rows(Thing, lines, "the file")


@settings(deadline=None)
@given(
    st.builds(
        Thing,
        st.text(alphabet=st.characters(exclude_categories=["Cs"])),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False),
        st.booleans(),
        st.builds(Estimate, *[st.floats(allow_nan=False)] * 4, st.integers(0, 2**62)),
        st.none() | st.integers(0, 99),
    )
)
def test_any_row_is_read_as_it_was_written(tmp_path_factory: pytest.TempPathFactory, row: Thing) -> None:
    folder = tmp_path_factory.mktemp("run")
    write_rows(folder, "toy", IDENTITY, [row])
    assert read(folder) == [row]


def test_undefined_numbers_stay_undefined(tmp_path: Path) -> None:
    write_rows(tmp_path, "toy", IDENTITY, [replace(THING, share=nan, gain=Estimate(nan))])
    (row,) = read(tmp_path)
    assert isnan(row.share)
    assert isnan(row.gain.value)


def test_rows_of_the_same_step_replace_earlier_ones(tmp_path: Path) -> None:
    write_rows(tmp_path, "toy", IDENTITY, [THING, replace(THING, name="obj")])
    write_rows(tmp_path, "toy", replace(IDENTITY, stage="initial", step=0), [replace(THING, name="aux")])
    write_rows(tmp_path, "toy", IDENTITY, [replace(THING, name="cc")])
    assert [row.name for row in read(tmp_path)] == ["cc"]
    assert [row.name for row in read(tmp_path, "initial")] == ["aux"]


@dataclass(frozen=True)
class Other:
    """A row of another kind."""

    mode: str
    size: int
    KEYS: ClassVar = ("size",)


def others(folder: Path) -> list[tuple[str, int, str]]:
    return [
        (line["mode"], line["size"], identity.stage) for identity, line in read_lines(folder, "toy", "other", "run")
    ]


def test_rows_of_kinds_that_were_not_found_again_go(tmp_path: Path) -> None:
    initial = replace(IDENTITY, stage="initial", step=0)
    write_rows(tmp_path, "toy", IDENTITY, [THING, Other("zero", 1), Other("mean", 2)])
    write_rows(tmp_path, "toy", initial, [Other("zero", 3)])
    # One mode alone, then one kind alone.
    write_rows(tmp_path, "toy", IDENTITY, [THING], mode="zero")
    assert others(tmp_path) == [("mean", 2, "checkpoint"), ("zero", 3, "initial")]
    write_rows(tmp_path, "toy", IDENTITY, [Other("mean", 4)], [Other], mode="mean")
    assert others(tmp_path) == [("zero", 3, "initial"), ("mean", 4, "checkpoint")]
    assert read(tmp_path) == [THING, THING]
    write_rows(tmp_path, "toy", IDENTITY, [])
    assert read(tmp_path) == []
    assert others(tmp_path) == [("zero", 3, "initial")]
    assert moments(tmp_path, "toy", "run") == {("initial", 0)}


def test_keys_are_texts_and_flags_and_the_numbers_that_a_class_names(tmp_path: Path) -> None:
    write_rows(tmp_path, "toy", IDENTITY, [THING, Other("zero", 1)])
    assert key_fields(rows_path(tmp_path, "toy", "thing")) == ["name", "found"]
    assert key_fields(rows_path(tmp_path, "toy", "other")) == ["mode", "size"]


def test_a_kind_with_a_field_that_no_file_can_hold_is_refused() -> None:
    @dataclass(frozen=True)
    class Nested:
        parts: list[int]

    with pytest.raises(
        TypeError, match=r"Nested.parts is list\[int\]; a row can only have str, int, float, bool and Estimate"
    ):
        arrow_schema(Nested)

    @dataclass(frozen=True)
    class Taken:
        task: str

    with pytest.raises(TypeError, match=r"Taken\.task is a field of every file of rows; give it another name"):
        arrow_schema(Taken)


def test_files_that_do_not_hold_such_rows_are_refused_in_one_sentence(tmp_path: Path) -> None:
    write_rows(tmp_path, "toy", IDENTITY, [THING])
    path = rows_path(tmp_path, "toy", "thing")
    with pytest.raises(RecordError, match=r"thing\.parquet' has rows of the run 'run', not of 'other'; repeat"):
        read_lines(tmp_path, "toy", "thing", "other")
    line = asdict(THING)
    with pytest.raises(RecordError, match="the file has an unknown field 'colour', so it is from another version"):
        as_rows(Thing, [{**line, "colour": "red"}], "the file")
    with pytest.raises(RecordError, match="the file has no valid 'layer', so it is damaged"):
        as_rows(Thing, [{key: value for key, value in line.items() if key != "layer"}], "the file")
    with pytest.raises(RecordError, match="the file has no valid 'gain', so it is damaged"):
        as_rows(Thing, [{**line, "gain": "much"}], "the file")
    pq.write_table(pq.read_table(path).drop_columns("seed"), path)
    with pytest.raises(RecordError, match=r"thing\.parquet' has no field 'seed', so it is from another version"):
        read_lines(tmp_path, "toy", "thing", "run")
    with pytest.raises(RecordError, match="move it away, and repeat the analysis"):
        write_rows(tmp_path, "toy", IDENTITY, [replace(THING, name="obj")], name="obj")
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(RecordError, match=r"thing\.parquet' is damaged .*; move it away"):
        write_rows(tmp_path, "toy", IDENTITY, [THING])
    with pytest.raises(RecordError, match=r"thing\.parquet' is damaged .*, and repeat the analysis"):
        read_lines(tmp_path, "toy", "thing", "run")
