"""The ablation table on disk."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertsecrets.errors import UserError
from bertsecrets.results.ablation_table import SCHEMA, AblationTable


def row(**other: Any) -> dict[str, Any]:
    blank: dict[str, Any] = {}
    for field in SCHEMA:
        is_text, is_flag = pa.types.is_string(field.type), pa.types.is_boolean(field.type)
        blank[field.name] = "x" if is_text else False if is_flag else 1
    return {**blank, **other}


def test_a_table_comes_back_from_disk(tmp_path: Path) -> None:
    table = AblationTable.from_rows([row(variant="a", head=None), row(variant="b", delta=-0.25)])
    table.write(tmp_path / "t.parquet")
    assert AblationTable.read(tmp_path / "t.parquet").rows() == table.rows()


def test_files_and_pandas_have_the_words_of_pages(tmp_path: Path) -> None:
    codes = ["needed", "dispensable", "inconclusive"]
    table = AblationTable.from_rows([row(variant=code, verdict=code) for code in codes])
    table.write(tmp_path / "new.parquet")
    words = ["needed", "can be spared", "not enough examples to tell"]
    assert pq.read_table(tmp_path / "new.parquet")["verdict"].to_pylist() == words
    assert table.to_pandas()["verdict"].tolist() == words
    # What is not corrected says so, to whoever reads the file without this package.
    named = {"p_uncorrected", "low_pointwise", "high_pointwise", "loss_low_pointwise", "p_needed", "low_simultaneous"}
    for columns in (pq.read_table(tmp_path / "new.parquet").column_names, table.to_pandas().columns):
        assert named <= set(columns)
        assert not {"p_value", "low", "high", "loss_low", "loss_high"} & set(columns)
    (found,) = AblationTable.read(tmp_path / "new.parquet").select(verdict="dispensable").rows()
    assert found["variant"] == "dispensable"


def test_rows_of_the_same_key_are_replaced() -> None:
    table = AblationTable.from_rows([row(variant="a", delta=0.1), row(variant="b")])
    joined = table.append(AblationTable.from_rows([row(variant="a", delta=0.2), row(variant="a", step=2)]))
    assert len(joined) == 3
    assert joined.select(variant="a", step=1).rows()[0]["delta"] == 0.2


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"nothing")
    pq.write_table(pa.table({"x": [1]}), tmp_path / "b.parquet")
    for name, message in (("a", "cannot be read"), ("b", "is not an ablation table"), ("c", "cannot be read")):
        with pytest.raises(UserError, match=message):
            AblationTable.read(tmp_path / f"{name}.parquet")
    with pytest.raises(ValueError, match="Not an ablation table"):
        AblationTable(pa.table({"x": [1]}))
