"""The errors that users see, what led to them, and suggestions for misspelt names."""

import difflib
from collections.abc import Iterable, Iterator


class UserError(Exception):
    """A mistake in the user's input, described in one sentence.

    The sentence names the value, what was expected and what to do. The commands print it without a traceback and
    exit with status 1; ``debug=true`` shows the traceback.
    """


class BusyError(UserError):
    """Another process is already doing what the user asked for."""


_LONGEST_NAME = 100


def choices(name: str, valid: Iterable[str]) -> str:
    """The tail of an "unknown name" sentence: the nearest valid name, then all of them.

    >>> choices("mrcp", ["mrpc", "rte"]), choices("sst", ["mrpc", "rte"])
    ("did you mean 'mrpc'? Valid names: mrpc, rte", 'valid names: mrpc, rte')
    """
    names = sorted(valid)
    if not names:
        return "there are no valid names"
    listing = f"alid names: {', '.join(names)}"
    # Comparing takes time in proportion to the length.
    nearest = difflib.get_close_matches(name[:_LONGEST_NAME], names, n=1, cutoff=0.5)
    return f"did you mean '{nearest[0]}'? V{listing}" if nearest else f"v{listing}"


def causes(error: BaseException) -> Iterator[BaseException]:
    """An error, then those that led to it, the latest first."""
    one: BaseException | None = error
    while one is not None:
        yield one
        one = one.__cause__ or one.__context__
