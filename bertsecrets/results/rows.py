"""Rows of findings in Parquet: any frozen dataclass of texts, numbers, flags and estimates."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import TypeAdapter, ValidationError

from bertsecrets.errors import UserError
from bertsecrets.results.estimate import Estimate
from bertsecrets.results.files import DamagedFileError, read_parquet, write_parquet

Row = TypeVar("Row")

FINDINGS = "findings"
"""Name of the folder of row files in a run's folder."""

KEYS = "KEYS"
"""Class variable that lists the numeric key fields of a row, such as the number of heads that a smaller model keeps."""

_ARROW: dict[Any, pa.DataType] = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
_ARROW[Estimate] = pa.struct([(name, _ARROW[hint]) for name, hint in get_type_hints(Estimate).items()])


class RecordError(UserError):
    """An experiment's stored rows are damaged, or from another version."""


@dataclass(frozen=True)
class Identity:
    """The identity of a row's numbers: the first columns of every file of rows."""

    run: str
    model: str
    task: str
    init: str
    seed: int
    stage: str
    step: int


_IDENTITY = [field.name for field in fields(Identity)]


def arrow_schema(kind: type) -> pa.Schema:
    """The columns of a file of rows: those of :class:`Identity`, then one per field; a field ``X | None`` may be empty.

    Raises:
        TypeError: If a field is not a text, number, flag or estimate, or has the name of a field of :class:`Identity`.
    """
    hints = get_type_hints(kind)
    if taken := [field.name for field in fields(kind) if field.name in _IDENTITY]:
        raise TypeError(f"{kind.__name__}.{taken[0]} is a field of every file of rows; give it another name")
    columns = []
    for name, hint in {**get_type_hints(Identity), **{field.name: hints[field.name] for field in fields(kind)}}.items():
        parts = [part for part in get_args(hint) if part is not NoneType] if isinstance(hint, UnionType) else [hint]
        if len(parts) != 1 or parts[0] not in _ARROW:
            raise TypeError(f"{kind.__name__}.{name} is {hint}; a row can only have str, int, float, bool and Estimate")
        columns.append(pa.field(name, _ARROW[parts[0]], nullable=parts != [hint]))
    return pa.schema(columns, {KEYS: json.dumps(list(getattr(kind, KEYS, ())))})


def key_fields(path: Path) -> list[str]:
    """The key fields of a file's rows besides head and layer: texts, flags, and the numbers in ``KEYS`` of their class.

    Other numbers, such as counts, are results, as estimates are.
    """
    schema = pq.read_schema(path)
    named = json.loads((schema.metadata or {}).get(KEYS.encode(), b"[]"))
    plain = (field.name for field in schema if pa.types.is_string(field.type) or pa.types.is_boolean(field.type))
    return [name for name in (*plain, *named) if name not in (*_IDENTITY, "verdict")]


def rows_path(folder: Path, experiment: str, kind: str) -> Path:
    """The file of an experiment's rows of one kind, such as ``findings/dependency.relation.parquet``."""
    return folder / FINDINGS / f"{experiment}.{kind}.parquet"


def kind_name(kind: type) -> str:
    """The name of a kind of rows in files and statements: its class name in lower case."""
    return kind.__name__.lower()


def write_rows(
    folder: Path,
    experiment: str,
    identity: Identity,
    rows: Sequence[Any],
    kinds: Sequence[type] = (),
    **equal: str,
) -> None:
    """Write an experiment's rows, one file per kind, replacing earlier rows of the same stage and step.

    Args:
        folder: The run's folder.
        experiment: The experiment.
        identity: The rows' identity.
        rows: The rows; without any, the earlier ones are only removed.
        kinds: The kinds whose earlier rows are replaced; empty for all kinds of the experiment.
        equal: Field values that restrict which earlier rows are replaced.

    Raises:
        RecordError: If a file with earlier rows cannot be read, or has other fields.
    """
    by_kind: dict[str, list[dict[str, Any]]] = {kind_name(kind): [] for kind in kinds}
    if not kinds:
        by_kind = {path.stem.partition(".")[2]: [] for path in (folder / FINDINGS).glob(f"{experiment}.*.parquet")}
    schemas = {kind_name(type(row)): arrow_schema(type(row)) for row in rows}
    for row in rows:
        by_kind.setdefault(kind_name(type(row)), []).append({**asdict(identity), **asdict(row)})
    gone = {"stage": identity.stage, "step": identity.step, **equal}
    for kind, content in by_kind.items():
        path = rows_path(folder, experiment, kind)
        earlier = _read(path)
        kept = [] if earlier is None else [row for row in earlier.to_pylist() if not gone.items() <= row.items()]
        schema = schemas.get(kind) or (None if earlier is None else earlier.schema)
        if schema is None or (earlier is not None and not content and len(kept) == earlier.num_rows):
            continue
        try:
            write_parquet(path, pa.Table.from_pylist([*kept, *content], schema=schema))
        except pa.ArrowInvalid as error:
            raise RecordError(
                f"'{path}' has rows from another version ({error}); move it away, and repeat the analysis."
            ) from error


def _read(path: Path, columns: Sequence[str] | None = None) -> pa.Table | None:
    if not path.is_file():
        return None
    try:
        return read_parquet(path, columns)
    except DamagedFileError as error:
        raise RecordError(f"'{path}' is damaged ({error}); move it away, and repeat the analysis.") from error


def _of_run(path: Path, run: str, columns: Sequence[str] | None = None) -> pa.Table | None:
    """Columns (or all) of a file with rows of this run; None without rows."""
    table = _read(path, columns)
    if table is None or not table.num_rows:
        return None
    for name in columns or _IDENTITY:
        if name not in table.column_names:
            raise RecordError(f"'{path}' has no field '{name}', so it is from another version; repeat the analysis.")
    for other in table["run"].unique().to_pylist():
        if other != run:
            raise RecordError(f"'{path}' has rows of the run '{other}', not of '{run}'; repeat the analysis.")
    return table


def moments(folder: Path, experiment: str, run: str) -> set[tuple[str, int]]:
    """The stages and steps of an experiment's rows of any kind.

    Raises:
        RecordError: If a file cannot be read, or belongs to another run.
    """
    kinds = sorted(path.stem.partition(".")[2] for path in (folder / FINDINGS).glob(f"{experiment}.*.parquet"))
    # Some kinds have a row per pair of heads, whose numbers are not needed here.
    tables = [_of_run(rows_path(folder, experiment, kind), run, ("run", "stage", "step")) for kind in kinds]
    return {
        (line["stage"], line["step"])
        for table in tables
        if table is not None
        for line in table.group_by(["stage", "step"]).aggregate([]).to_pylist()
    }


def read_lines(folder: Path, experiment: str, kind: str, run: str) -> list[tuple[Identity, dict[str, Any]]]:
    """An experiment's rows of one kind as plain values, for all stages and steps; empty without a file.

    Args:
        folder: The run's folder.
        experiment: The experiment.
        kind: Name of the kind of rows.
        run: Name of the run.

    Raises:
        RecordError: If the file cannot be read, or belongs to another run.
    """
    table = _of_run(rows_path(folder, experiment, kind), run)
    lines = [] if table is None else table.to_pylist()
    return [(Identity(**{name: line.pop(name) for name in _IDENTITY}), line) for line in lines]


def as_rows(kind: type[Row], lines: Sequence[Mapping[str, Any]], source: str) -> list[Row]:
    """Plain values as rows.

    Args:
        kind: The rows' class.
        lines: The fields of each row.
        source: Their origin, to start an error message.

    Raises:
        RecordError: If a field is unknown, missing or of another type.
    """
    adapter = TypeAdapter(kind)
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    rows = []
    for line in lines:
        if unknown := line.keys() - names:
            raise RecordError(
                f"{source} has an unknown field '{min(unknown)}', so it is from another version; repeat the analysis."
            )
        try:
            rows.append(adapter.validate_python(line))
        except ValidationError as error:
            field = ".".join(map(str, error.errors()[0]["loc"]))
            raise RecordError(
                f"{source} has no valid '{field}', so it is damaged or from another version; repeat the analysis."
            ) from error
    return rows
