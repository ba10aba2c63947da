"""Names of the pages, found without importing their code."""

import logging
from functools import cache
from pathlib import Path
from typing import Literal

from bertsecrets.doors import offered_folders
from bertsecrets.errors import UserError
from bertsecrets.settings import CONF

_log = logging.getLogger(__name__)

LEDGER = "statements"
"""Name of the page of all statements."""

DEFAULT = "kovaleva2019"
"""The page for ``paper=true``."""


def files_of(kind: Literal["statement", "page"]) -> dict[str, Path]:
    """The files of statements or pages of the package and of installed packages, by name; in a conflict, ours is used,
    with a warning.
    """
    paths = {path.stem: path for path in sorted((CONF / kind).glob("*.yaml"))}
    for package, folder in offered_folders(f"{kind}s").items():
        for path in sorted(folder.glob("*.yaml")):
            if paths.setdefault(path.stem, path) != path:
                _log.warning(f"The {kind} '{path.stem}' of {package} is skipped: '{paths[path.stem]}' has this name.")
    return paths


@cache
def page_files() -> dict[str, Path]:
    """The files of the pages by name, as :func:`files_of`."""
    return files_of("page")


def is_path(name: str) -> bool:
    """Whether a name of a page or a statement is the path of a file."""
    return name.endswith((".yaml", ".yml"))


def page_name(paper: bool | str, key: str = "paper") -> str:
    """Name or path of the requested page; empty for none.

    Args:
        paper: The setting's value.
        key: Its name, for messages.

    Raises:
        UserError: If there is no page of that name, or no file at the path.
    """
    if isinstance(paper, bool):
        return DEFAULT if paper else ""
    if is_path(paper):
        if not Path(paper).is_file():
            raise UserError(f"{key} is '{paper}', which is not a file; give the path of a page's YAML file.")
    elif paper not in page_files():
        names = ", ".join(page_files())
        raise UserError(
            f"{key} is '{paper}'; expected true ({DEFAULT}), false, {names}, or the path of a page's YAML file."
        )
    return paper
