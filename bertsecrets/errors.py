"""The error type that users see, and suggestions for misspelt names."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake in the user's input, described in one sentence.

    The sentence names the value, what was expected and what to do. The commands print it without a traceback and
    exit with status 1; ``debug=true`` shows the traceback.
    """


class BusyError(UserError):
    """Another process is already doing what the user asked for."""


def choices(name: str, valid: Iterable[str]) -> str:
    """The tail of an "unknown name" sentence: the nearest valid name, then all of them.

    >>> choices("mrcp", ["mrpc", "rte"])
    "did you mean 'mrpc'? Valid names: mrpc, rte"
    """
    names = sorted(valid)
    listing = f"Valid names: {', '.join(names)}" if names else "There are no valid names"
    nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean '{nearest[0]}'? {listing}" if nearest else listing
