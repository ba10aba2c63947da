"""The kinds of tests, one file each: a file here with a subclass of ``Test`` of any name is a kind called like the file."""

import importlib
import inspect
import pkgutil
from functools import cache

from bertsecrets.papers.statements.test import Test


@cache
def kinds() -> dict[str, type[Test]]:
    """Every kind of test by its name."""
    found = {}
    for name in sorted(module.name for module in pkgutil.iter_modules(__path__)):
        module = importlib.import_module(f"{__name__}.{name}")
        own = (kind for kind in vars(module).values() if inspect.isclass(kind) and kind.__module__ == module.__name__)
        found[name] = next(kind for kind in own if issubclass(kind, Test))
    return found
