"""Python files outside of any package as modules: ``bertsecrets.files.<quoted path>``.

The name holds the path, so that any process that has this package can import the module: objects of its classes can be
pickled and sent to processes that are spawned, or started by a scheduler.
"""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from urllib.parse import quote, unquote

from bertsecrets.errors import UserError

# To the import system, a module that has a path is a package and can have modules below it.
__path__: list[str] = []

_PREFIX = f"{__name__}."


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(_PREFIX):
            return None
        return spec_from_file_location(fullname, unquote(fullname.removeprefix(_PREFIX)))


sys.meta_path.append(_Finder())


def load_file(file: Path) -> ModuleType:
    """The module in a Python file, imported once for each path.

    Raises:
        UserError: If there is no such file.
        Exception: Whatever the file raises.
    """
    path = file.expanduser().resolve()
    if not path.is_file():
        raise UserError(f"'{file}' is not a file; give the path of a Python file.")
    # Dots separate packages in the names of modules.
    return importlib.import_module(_PREFIX + quote(str(path)).replace(".", "%2E"))


def is_ours(module: str) -> bool:
    """Whether a module of this name belongs to bertsecrets itself.

    >>> is_ours("bertsecrets.grid"), is_ours("bertsecrets.files.heads%2Epy"), is_ours("my_heads")
    (True, False, False)
    """
    return module.partition(".")[0] == __name__.partition(".")[0] and not module.startswith(_PREFIX)
