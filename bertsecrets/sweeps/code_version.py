"""The version of the code that affects results: equal settings and version mean the same run."""

import functools
import hashlib
import importlib.util
import re
import sysconfig
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import bertsecrets
from bertsecrets.doors import KINDS, offers
from bertsecrets.sweeps.trust import code_in

_WITHOUT_NUMBERS = {"cli", "pages", "papers", "present", "reporting", "results", "sweeps"}
"""Packages whose changes do not invalidate finished runs."""

_PATTERNS = ("*.py", "*.safetensors", "*.jsonl.gz", "*.conll")

_STDLIB = Path(sysconfig.get_path("stdlib")).resolve()


@functools.cache
def code_version() -> str:
    """The package's version and a digest of its code, weights and rows: ``0.1.0+3f2a9c04``.

    A digest of files also covers uncommitted changes, and needs neither git nor a checkout.
    """
    root = Path(bertsecrets.__file__).parent
    files = sorted(path.relative_to(root) for pattern in _PATTERNS for path in root.rglob(pattern))
    counted = (path for path in files if path.parts[0] not in _WITHOUT_NUMBERS)
    return f"{bertsecrets.__version__}+{_digest(root / path for path in counted)}"


def outside_code(config: Mapping[str, Any]) -> str:
    """A digest of the code of other packages and files that a configuration uses; empty without any.

    It covers files, and the whole package of each module, that the configuration names (``_target_``,
    ``module:function``) or that provide a source, a score, an override mode or a kind of task head that it names.
    Packages that provide model families always count, because a model's family is unknown until it is loaded. Nothing
    is imported.

    Args:
        config: Plain values, without settings that have no influence on numbers.
    """
    named = {target for _, target in code_in(config) if isinstance(target, str)}
    texts = set(_texts(config))
    for kind in ("sources", "scores", "override_modes", "task_heads", "families"):
        named |= {point.value for name, point in offers(kind).items() if kind == "families" or name in texts}
    offering = {re.split("[.:]", point.value)[0] for kind in KINDS for point in offers(kind).values()}
    files = sorted({path for name in named for path in _files(name, offering)})
    return f" {_digest(files)}" if files else ""


def _digest(files: Iterable[Path]) -> str:
    """Eight hexadecimal digits of the files' names and contents, independent of where their folder is."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.name}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:8]


def _texts(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, (Mapping, list, tuple)):
        for value in content.values() if isinstance(content, Mapping) else content:
            yield from _texts(value)


def _files(name: str, offering: Collection[str]) -> list[Path]:
    """The file that defines a name, or the modules of its package."""
    file = name.rpartition(":")[0]
    if file.endswith(".py"):
        path = Path(file).expanduser().resolve()
        return [path] if path.is_file() else []
    top = re.split("[.:]", name)[0]
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return []
    if top == bertsecrets.__name__ or spec is None or spec.origin is None or not spec.has_location:
        return []
    path = Path(spec.origin).resolve()
    is_library = bool({"site-packages", "dist-packages"} & set(path.parts)) or path.is_relative_to(_STDLIB)
    if is_library and top not in offering:
        return []
    return list(path.parent.rglob("*.py")) if spec.submodule_search_locations else [path]
