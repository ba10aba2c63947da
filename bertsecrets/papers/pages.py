"""The papers that have a page, by name."""

from collections.abc import Callable
from pathlib import Path

import bertsecrets.papers.clark2019.page as clark2019
import bertsecrets.papers.kovaleva2019.page as kovaleva2019

PAGES: dict[str, tuple[str, Callable[..., Path]]] = {
    "kovaleva2019": (kovaleva2019.PAGE, kovaleva2019.write_paper),
    "clark2019": (clark2019.PAGE, clark2019.write_paper),
}
"""Name of each paper -> the file name of its page, and the function that writes it."""
