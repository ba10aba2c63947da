"""What a unit of work is called: a digest of everything that decides its numbers."""

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import bertsecrets

NO_INFLUENCE = frozenset(
    {"resume", "debug", "progress", "group", "tags", "job_type", "logger", "objective", "sweep", "hydra", "trained"}
)
"""Top-level keys that change how a run is followed, not what it computes, or that only repeat a checkpoint's facts."""

_BLOCK = 1 << 20


def config_digest(config: Mapping[str, Any]) -> str:
    """SHA-256 (64 hexadecimal digits) of a resolved configuration, without what does not decide the numbers.

    >>> config_digest({"seed": 1, "resume": None}) == config_digest({"resume": "folder", "seed": 1})
    True
    """
    deciding = {key: value for key, value in config.items() if key not in NO_INFLUENCE}
    return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()


@functools.cache
def code_version() -> str:
    """The package's version and a digest of its source: ``0.1.0+3f2a9c04``."""
    digest = hashlib.sha256()
    root = Path(bertsecrets.__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return f"{bertsecrets.__version__}+{digest.hexdigest()[:8]}"


def unit_key(config: Mapping[str, Any], inputs: Iterable[Path] = ()) -> str:
    """The key of a unit of work: its configuration, the code and the content of the files it starts from.

    Args:
        config: Resolved configuration (task, model, seed, analysis, ...).
        inputs: Files, or folders whose files count; the checkpoint that is analysed.
    """
    digest = hashlib.sha256(f"{config_digest(config)} {code_version()}".encode())
    for path in inputs:
        for file in sorted(path.iterdir()) if path.is_dir() else [path]:
            if file.is_file():
                digest.update(file_digest(file).encode())
    return digest.hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
