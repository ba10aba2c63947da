"""The version of the code that makes numbers: runs of the same settings and version are the same run.

Code that only presents numbers (figures, reports, documentation, messages) does not count, so that rewording a title
leaves finished runs finished.
"""

import ast
import functools
import hashlib
import importlib.util
import sysconfig
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import bertsecrets
from bertsecrets.doors import KINDS, offers
from bertsecrets.sweeps.trust import code_in

_PRESENTING = ("cli", "conf", "papers", "reporting", "results", "sweeps")
"""Sub-packages without influence on numbers. Any other sub-package counts, also one that is added later."""

_DRAWINGS = "figures.py"
"""Drawings of a single room, in any sub-package."""

_PATTERNS = ("*.py", "*.safetensors", "*.jsonl.gz", "*.conll")

_MODULES = ("grid.py",)
"""Top-level modules that count. ``settings.py`` does not: it rejects values or passes them on unchanged."""

_STDLIB = Path(sysconfig.get_path("stdlib")).resolve()

_DESCRIBING_METHODS = frozenset({"describe", "compare", "scalars", "highlights"})
_DESCRIBING_ATTRIBUTES = frozenset({"title", "about"})

_KEPT_ARGUMENTS = {"Column": (1, {"name", "role"}), "UserError": (0, set())}
"""Calls of which only the first positional and the named keyword arguments count."""

_DROPPED_KEYWORDS = {"Field": {"description"}}


@functools.cache
def code_version() -> str:
    """The package's version and a digest of the code that makes numbers: ``0.1.0+3f2a9c04``."""
    return f"{bertsecrets.__version__}+{package_digest(Path(bertsecrets.__file__).parent)[:8]}"


def package_digest(package: Path) -> str:
    """SHA-256 (64 hexadecimal digits) of the code, the weights and the rows in a package's folder that make numbers."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in _PATTERNS for path in package.rglob(pattern)):
        name = path.relative_to(package).as_posix()
        if _counts(name):
            content = path.read_bytes()
            digest.update(f"{name}\n".encode())
            digest.update(number_making(content.decode()).encode() if path.suffix == ".py" else content)
    return digest.hexdigest()


def outside_code(config: Mapping[str, Any]) -> str:
    """A digest of the code of other packages and files that a configuration uses; empty without any.

    It covers each module that the configuration names (``_target_``, ``module:function``) or that offers what it names (a source,
    a score, an override mode), those that offer families, as the model's is only known once it is loaded, and what these
    modules import from their own package or folder. Installed libraries that offer nothing do not count, as those that this
    package is built on do not. Nothing is imported.

    Args:
        config: Plain values, without settings that have no influence on numbers.
    """
    named = [target for _, target in code_in(config) if isinstance(target, str)]
    texts = set(_texts(config))
    for kind in ("sources", "scores", "override_modes", "families"):
        named += [point.value for name, point in offers(kind).items() if kind == "families" or name in texts]
    tops = {point.value.partition(":")[0].partition(".")[0] for kind in KINDS for point in offers(kind).values()}
    digest = hashlib.sha256()
    files: dict[Path, Path] = {}
    for name in named:
        if not name.startswith(f"{bertsecrets.__name__}."):
            _add_modules(name, tops, files)
    for path in sorted(files):
        # The folder may lie elsewhere on another machine.
        digest.update(f"{path.relative_to(files[path])}\n{number_making(path.read_text('utf-8'))}\n".encode())
    return f" {digest.hexdigest()[:8]}" if files else ""


def _texts(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, Mapping):
        for value in content.values():
            yield from _texts(value)
    elif isinstance(content, (list, tuple)):
        for value in content:
            yield from _texts(value)


def _add_modules(name: str, tops: Collection[str], files: dict[Path, Path]) -> None:
    """Add the file of the module that a name lies in, and those that it imports from beside it, each with its root folder."""
    file, _, _ = name.rpartition(":")
    if file.endswith(".py"):
        path = Path(file).expanduser().resolve()
        _follow(path, path.parent, files)
        return
    parts = name.replace(":", ".").split(".")
    try:
        spec = importlib.util.find_spec(parts[0])
    except (ImportError, ValueError):
        return
    if spec is None or spec.origin is None or not spec.has_location:
        return
    root = Path(spec.origin).resolve().parents[1 if spec.submodule_search_locations else 0]
    is_library = bool({"site-packages", "dist-packages"} & set(root.parts)) or root.is_relative_to(_STDLIB)
    if parts[0] in tops or not is_library:
        for path in _modules_of(parts, root):
            _follow(path, root, files, parts[0] if is_library else None)


def _follow(path: Path, root: Path, files: dict[Path, Path], top: str | None = None) -> None:
    """Add a module and what it imports from the folder ``root``, or only from one top-level package in it."""
    if path in files or not path.is_file():
        return
    files[path] = root
    package = path.relative_to(root).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        names: list[list[str]] = []
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = list(package[: len(package) - node.level + 1]) if node.level else []
            module = [*start, *(node.module.split(".") if node.module else [])]
            names = [[*module, alias.name] for alias in node.names]
        for parts in names:
            # What this package itself computes has its own digest, wherever it lies.
            if parts[0] == top or (top is None and parts[0] != bertsecrets.__name__):
                for imported in _modules_of(parts, root):
                    _follow(imported, root, files, top)


def _modules_of(parts: Sequence[str], root: Path) -> Iterator[Path]:
    """The files of the packages and the module that a dotted name goes through, below a folder."""
    for count in range(1, len(parts) + 1):
        base = root.joinpath(*parts[:count])
        if (path := base.with_suffix(".py")).is_file() or (path := base / "__init__.py").is_file():
            yield path


def number_making(source: str) -> str:
    """A module's source without comments, docstrings and what only describes, in normal form.

    >>> number_making('class Drift(Measure):\\n    title = "Drift"\\n    columns = (Column("cosine", label="cosine"),)')
    "class Drift(Measure):\\n    columns = (Column('cosine'),)"
    """
    tree = ast.parse(source)
    was_read = {name for node in tree.body for name in _reads(node)}
    statements = [(node, _reads(node)) for node in _Strip().visit(tree).body]
    unused: set[str] = set()
    while True:
        readers = Counter(name for _, reads in statements for name in reads)
        more = {
            name
            for node, reads in statements
            for name in _private_names(node)
            if name in was_read and readers[name] == (name in reads)
        }
        if more <= unused:
            return "\n".join(ast.unparse(node) for node, _ in statements)
        unused |= more
        statements = [(left, reads) for node, reads in statements if (left := _without(node, unused)) is not None]


def _counts(name: str) -> bool:
    if "/" not in name:
        return name in _MODULES
    return not name.startswith(tuple(f"{folder}/" for folder in _PRESENTING)) and Path(name).name != _DRAWINGS


class _Strip(ast.NodeTransformer):
    """Removes docstrings, methods and attributes that describe, and the describing arguments of calls."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        is_text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if is_text else self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.body = [member for member in node.body if not _describes(member)]
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        function = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if function in _KEPT_ARGUMENTS:
            count, keywords = _KEPT_ARGUMENTS[function]
            node.args = node.args[:count]
            node.keywords = [keyword for keyword in node.keywords if keyword.arg in keywords]
        dropped = _DROPPED_KEYWORDS.get(function, set())
        node.keywords = [keyword for keyword in node.keywords if keyword.arg not in dropped]
        return self.generic_visit(node)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        node = super().generic_visit(node)
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and not node.body:
            node.body = [ast.Pass()]
        return node


def _describes(member: ast.stmt) -> bool:
    if isinstance(member, ast.FunctionDef):
        return member.name in _DESCRIBING_METHODS
    names = [target.id for target in _targets(member)]
    return bool(names) and _DESCRIBING_ATTRIBUTES.issuperset(names)


def _targets(node: ast.stmt) -> list[ast.Name]:
    """Names that an assignment binds, in a tuple or alone; empty for any other statement."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    names = (name for target in targets for name in ast.walk(target) if isinstance(name, ast.Name))
    return [name for name in names if isinstance(name.ctx, ast.Store)]


def _private_names(node: ast.stmt) -> list[str]:
    """Names bound by a statement that no other module uses: imports, and definitions with a leading underscore."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [_bound(alias) for alias in node.names]
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name] if node.name.startswith("_") else []
    return [target.id for target in _targets(node) if target.id.startswith("_")]


def _bound(alias: ast.alias) -> str:
    return alias.asname or alias.name.split(".")[0]


def _reads(statement: ast.stmt) -> frozenset[str]:
    """Names that a statement reads, inside the functions and classes that it defines too."""
    nodes = (node for node in ast.walk(statement) if isinstance(node, ast.Name))
    return frozenset(node.id for node in nodes if isinstance(node.ctx, ast.Load))


def _without(node: ast.stmt, names: set[str]) -> ast.stmt | None:
    """A statement of a module without what it binds to some names; None if nothing is left."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        node.names = [alias for alias in node.names if _bound(alias) not in names]
        return node if node.names else None
    if getattr(node, "name", None) in names:
        return None
    return None if (bound := {target.id for target in _targets(node)}) and bound <= names else node
