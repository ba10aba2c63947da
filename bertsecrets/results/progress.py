"""A progress bar with rate for work outside Lightning's own loops."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm.auto import tqdm


@contextmanager
def progress_over(total: int, what: str, visible: bool = True) -> Iterator[Callable[[], object]]:
    """Yields a function to call after each of ``total`` batches; the bar appears after five seconds of work."""
    with tqdm(total=total, desc=what, unit="batch", leave=False, disable=not visible, delay=5) as bar:
        yield bar.update
