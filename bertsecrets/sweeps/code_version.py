"""The version of the code that makes numbers: runs of the same settings and version are the same run.

Code that only presents numbers (figures, reports, documentation, messages) does not count, so that rewording a title
leaves finished runs finished.
"""

import ast
import functools
import hashlib
from collections import Counter
from pathlib import Path

import bertsecrets

_PRESENTING = ("cli", "conf", "papers", "reporting", "results", "sweeps")
"""Sub-packages without influence on numbers. Any other sub-package counts, also one that is added later."""

_PATTERNS = ("*.py", "*.safetensors", "*.jsonl.gz", "*.conll")

_MODULES = ("grid.py",)
"""Top-level modules that count. ``settings.py`` does not: it rejects values or passes them on unchanged."""

_DESCRIBING_METHODS = frozenset({"describe", "compare", "scalars", "highlights"})
_DESCRIBING_ATTRIBUTES = frozenset({"title"})

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
    return not name.startswith(tuple(f"{folder}/" for folder in _PRESENTING))


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
