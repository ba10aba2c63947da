"""The kinds of tests by name."""

import inspect
import re
from typing import get_origin

from bertsecrets.papers.statements.kinds import columns, experiments
from bertsecrets.papers.statements.test import Test

KINDS: dict[str, type[Test]] = {
    re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower(): kind
    for module in (columns, experiments)
    for name, kind in vars(module).items()
    # In Python 3.10, dict[str, int] counts as a class.
    if get_origin(kind) is None
    and inspect.isclass(kind)
    and issubclass(kind, Test)
    and kind.__module__ == module.__name__
}
"""Every kind of test of the package: ``ExtremeLayers`` is ``extreme_layers``. Statements of installed packages can also
use their own (``package.module.Class``).
"""
