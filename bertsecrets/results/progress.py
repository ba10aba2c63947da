"""A progress bar with rate for work outside Lightning's loops."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm.auto import tqdm


@contextmanager
def progress_over(total: int, what: str, visible: bool = True, unit: str = "batch") -> Iterator[Callable[..., object]]:
    """Yield a function to call after each unit of work, or with the number of finished units; the bar appears after 5 s."""
    with tqdm(
        total=total, desc=what, unit=unit, unit_scale=unit != "batch", leave=False, disable=not visible, delay=5
    ) as bar:
        yield bar.update
