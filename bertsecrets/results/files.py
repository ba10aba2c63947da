"""Write files atomically, so that a reader sees the old file or the new one, and read tables."""

import json
import os
import re
import secrets
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from bertsecrets.errors import UserError

_LARGEST_YAML = 10_000_000
_DEEPEST_YAML = 50
"""Most levels of nesting in a YAML file; the project's files have fewer than ten."""


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Also reads ``5e-5`` as a number, as Hydra does."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)

_PLAIN = re.compile(
    r"(?!(?:[+-]?(?:inf|nan)|null|true|false)$)(?=[^A-Za-z_]*[A-Za-z_])(?![\d.+-]*[eE_]?[\d_+.-]*$)[\w./+-]+(?: "
    r"[\w./+-]+)*",
    re.ASCII | re.IGNORECASE,
)
"""Texts that Hydra's grammar reads unchanged."""

_LEFTOVER = re.compile(r"\..+\.[0-9a-f]{8}(\.[^.]*)?")


class DamagedFileError(ValueError):
    """A file's content is not valid."""


def read_parquet(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read one Parquet file, with all columns or those of ``columns`` that exist.

    Raises:
        DamagedFileError: If it is not a valid Parquet file.
        OSError: If it cannot be read at present: it is missing, unreadable, or too many files are open.
    """
    # read_table would join all files of a folder. No threads, because Arrow reports a thread that cannot start as a
    # damaged file.
    with path.open("rb") as source:
        try:
            with pq.ParquetFile(source) as file:
                return file.read(columns, use_threads=False)
        except MemoryError:
            raise
        except (pa.ArrowException, OSError) as error:
            # Only operating-system errors have a number.
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise DamagedFileError(str(error).splitlines()[0].rstrip(".")) from error


def read_table(path: Path, schema: pa.Schema, what: str, renamed: Mapping[str, str] | None = None) -> pa.Table:
    """Read a Parquet file with the columns of a schema.

    Args:
        path: The file.
        schema: The columns, in order.
        what: The kind of table, for messages.
        renamed: Column in the file -> column of the schema.

    Raises:
        UserError: If it cannot be read, or has other columns.
    """
    advice = "give the path of a finished run's table"
    try:
        table = read_parquet(path)
        table = table.rename_columns([(renamed or {}).get(name, name) for name in table.schema.names])
        if table.schema.names == schema.names:
            return table.cast(schema)
    except (ValueError, OSError) as error:
        raise UserError(f"{path} cannot be read as {what} ({error}); {advice}.") from error
    raise UserError(f"{path} is not {what}: it has the columns {', '.join(table.schema.names)}; {advice}.")


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to ``path``; rename it to ``path`` if the block succeeds, remove it if it fails.

    The temporary path keeps the suffix of ``path``, because some writers choose the format by it. Missing folders are
    created.

    Raises:
        UserError: If the file cannot be written: the disk or the quota is full, or the folder is not writable.
    """
    temporary = path.with_name(f".{path.stem}.{secrets.token_hex(4)}{path.suffix}")
    try:
        with _refusals_in_words(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            yield temporary
            # Without this, a crash of the machine may leave an empty file under the new name.
            with temporary.open("r+b") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8; raises UserError as :func:`atomic_write`."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, "utf-8")


def write_parquet(path: Path, table: pa.Table) -> None:
    """Write a table as Parquet; raises UserError as :func:`atomic_write`."""
    with atomic_write(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


@contextmanager
def folder_write(folder: Path) -> Iterator[None]:
    """Create a folder and report errors of writing to it in the block like :func:`atomic_write`.

    Raises:
        UserError: If the folder cannot be written.
    """
    with _refusals_in_words(folder):
        folder.mkdir(parents=True, exist_ok=True)
        yield


def check_new_folder(key: str, folder: Path) -> None:
    """Check that a folder can be created, or exists and is empty.

    Args:
        key: The setting with its path, for the message.
        folder: The folder, absolute and without symbolic links.

    Raises:
        UserError: If it is not empty, or cannot be replaced or created.
    """
    nearest = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if not nearest.is_dir():
        raise UserError(f"{key} is '{folder}', but '{nearest}' is a file; choose another folder.")
    if os.path.ismount(folder):
        raise UserError(f"{key} is '{folder}', which is a mount point; choose a new folder in it.")
    # An empty folder is replaced, so its parent has to be writable.
    written = {nearest, folder.parent} if nearest == folder else {nearest}
    if not all(os.access(path, os.R_OK | os.W_OK | os.X_OK) for path in written):
        raise UserError(f"{key} is '{folder}', which cannot be written (permission denied); choose another folder.")
    if nearest == folder and any(folder.iterdir()):
        raise UserError(f"{key} is '{folder}', which is not empty; choose a new folder, or move its files away.")


def resolved_folder(folder: str) -> Path:
    """The folder with symbolic links resolved: a rename would replace the link, not its target."""
    return Path(os.path.realpath(Path(folder).expanduser()))


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder next to ``folder``; rename it to ``folder`` if the block succeeds, remove it if it
    fails.

    Raises:
        UserError: If the folder cannot be written: the disk is full, or it is no longer empty.
    """
    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    try:
        with _refusals_in_words(folder):
            temporary.mkdir(parents=True)
            yield temporary
            os.replace(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files of killed writers; no other process may be writing to the folder."""
    for path in folder.rglob(".*"):
        if _LEFTOVER.fullmatch(path.name) and path.is_file():
            path.unlink()


def describe_os_error(error: OSError) -> str:
    """An operating system's error in words, without its number: ``no space left on device``."""
    reason = error.strerror or str(error) or type(error).__name__
    return reason[:1].lower() + reason[1:]


@contextmanager
def _refusals_in_words(path: Path) -> Iterator[None]:
    """Turn errors of writing to ``path`` in the block into UserError."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError):
            reason = describe_os_error(error)
        elif number := re.search(r"\(os error (\d+)\)", str(error)):
            # safetensors and tokenizers are written in Rust.
            reason = describe_os_error(OSError(int(number[1]), os.strerror(int(number[1]))))
        elif re.search(r"PytorchStreamWriter failed|inline_container", str(error)):
            # PyTorch does not report why a write failed.
            reason = "the disk or a quota may be full"
        else:
            raise
        raise UserError(
            f"'{path}' cannot be written ({reason}); no incomplete file was kept: free some space or allow writing "
            "there, or choose another output folder, and run again."
        ) from error


def read_yaml(path: Path, description: str, advice: str) -> Any:
    """Read a user's small YAML or JSON file as plain values.

    Args:
        path: The file.
        description: What it is, e.g. ``the plan file``.
        advice: What to do if it cannot be read.

    Raises:
        UserError: If it cannot be read or parsed, is larger than 10 MB, or uses aliases (``*name``), with which a few
            lines can expand to any number of values.
    """
    try:
        if path.stat().st_size > _LARGEST_YAML:
            raise ValueError(f"it has more than {_LARGEST_YAML // 1_000_000} MB")
        text = path.read_text("utf-8")
        if path.suffix == ".json":
            return json.loads(text)
        check_yaml(text)
        return yaml.load(text, _Loader)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise UserError(
            f"{description[:1].upper()}{description[1:]} {path} cannot be read ({reason}); {advice}."
        ) from error


def check_yaml(text: str) -> None:
    """Raise ValueError if a YAML text could take very long to read, or grow without bound.

    A few lines of aliases (``*name``) can expand to any number of values, and each level of nesting costs more than the
    previous one.
    """
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError(f"it uses the alias *{event.anchor}; write the values out")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST_YAML:
            raise ValueError(f"it is nested more than {_DEEPEST_YAML} levels deep")


def displayed(path: Path) -> Path:
    """A path for users: relative to the current folder if inside it, else absolute."""
    path = Path(os.path.abspath(path))
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def in_command(path: Path) -> str:
    """A path in a command to copy: as :func:`displayed`, quoted as :func:`copied`."""
    return copied(str(displayed(path)))


def on_page(path: Path | str) -> str:
    """A path in a command on a page, to be run from any folder: absolute, quoted as :func:`copied`."""
    return copied(os.path.abspath(path))


def copied(value: Any) -> str:
    """A setting's value in a command to copy: quoted for Hydra if needed, and for the shell.

    >>> print(*map(copied, ["my run", "runs/a (1)", "1,2", ["a", 3]]))
    'my run' '"runs/a (1)"' '"1,2"' '[a,3]'
    """
    return shlex.quote(typed(value))


def typed(value: Any) -> str:
    """A plain value in Hydra's grammar, which reads it back unchanged; texts are quoted only if needed.

    >>> typed(["a", "b, c", None, 0.5]), typed({"range": [True, 1e-05]})
    ('[a,"b, c",null,0.5]', '{range:[true,1e-05]}')
    """
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) else quoted(value, '"')
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{typed(content)}" for key, content in value.items()) + "}"
    if isinstance(value, Sequence):
        return f"[{','.join(map(typed, value))}]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def quoted(text: str, mark: str = "'") -> str:
    """Quote a text so that Hydra's grammar reads it back unchanged, and no interpolation in it is resolved.

    >>> print(quoted("it's ${here}"))
    'it\\'s \\${here}'
    """
    text = re.sub(r"(\\*)\$\{", r"\1\1\\${", text)
    escaped = re.sub(rf"(\\+)(?={mark}|$)", r"\1\1", text).replace(mark, f"\\{mark}")
    return f"{mark}{escaped}{mark}"


def resume_command(folder: Path) -> str:
    """The command that continues an interrupted run or sweep."""
    return f"python -m bertsecrets resume folder={in_command(folder)}"
