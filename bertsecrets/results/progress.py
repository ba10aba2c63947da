"""Progress of work that takes long: one line that stays on a terminal, elsewhere at most a line a minute."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from tqdm.asyncio import tqdm_asyncio
from tqdm.auto import tqdm

T = TypeVar("T")

_DELAY = 5.0
"""Seconds before a line is shown on a terminal."""
_BETWEEN = 60.0
"""Seconds between lines elsewhere."""


class _Tenths:
    """Print a line for a tenth, at most one a minute, where a redrawn line would fill a file."""

    def __init__(self, total: int, label: str) -> None:
        self.total, self.label = total, label
        self.done, self.printed = 0, 0
        self.started = self.last = time.monotonic()

    def update(self, count: int = 1) -> None:
        """Count finished units."""
        self.done += count
        tenth, now = 10 * self.done // max(self.total, 1), time.monotonic()
        # What comes next tells that the work has ended.
        if self.printed < tenth < 10 and now - self.last >= _BETWEEN:
            self.printed, self.last = tenth, now
            tqdm.write(f"{self.label}: {10 * tenth} % after {now - self.started:.0f} s", file=sys.stderr)

    def set_description(self, label: str) -> None:
        """Rename the work."""
        self.label = label

    def close(self) -> None:
        """Do nothing."""


def redraws() -> bool:
    """Whether a line can be redrawn: on a terminal and in a notebook."""
    return tqdm is not tqdm_asyncio or sys.stderr.isatty()


def progress_bar(total: int, label: str, unit: str = "batch") -> Any:
    """Something with ``update(count)``, ``set_description(text)`` and ``close()``, shown after 5 s, or a minute where
    no line can be redrawn.

    Args:
        total: Units of work.
        label: Name of the work.
        unit: Name of a unit; large numbers of units other than batches are abbreviated.
    """
    if redraws():
        return tqdm(total=total, desc=label, unit=unit, unit_scale=unit != "batch", delay=_DELAY)
    return _Tenths(total, label)


def reported(batches: Iterable[T], advance: Callable[..., object]) -> Iterator[T]:
    """Yield the batches and count each one after use."""
    for batch in batches:
        yield batch
        advance()


@contextmanager
def progress_over(total: int, label: str, visible: bool = True, unit: str = "batch") -> Iterator[Callable[..., object]]:
    """Yield a function to call after each unit of work, or with the number of finished units."""
    if not visible:
        yield lambda count=1: None
        return
    bar = progress_bar(total, label, unit)
    try:
        yield bar.update
    finally:
        bar.close()
