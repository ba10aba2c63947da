"""The one error type that users see, and the search for what they may have meant."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake in what the user asked for, told in one sentence.

    The sentence names the value, what was expected and what to do. The doors print it without a traceback and
    exit with status 1; ``debug=true`` shows the traceback.
    """


class BusyError(UserError):
    """What the user asked for is being done by another process already."""


def choices(name: str, valid: Iterable[str]) -> str:
    """The tail of an "unknown name" sentence: the nearest valid name, then all of them.

    >>> choices("mrcp", ["mrpc", "rte"])
    "did you mean 'mrpc'? Valid names: mrpc, rte"
    """
    names = sorted(valid)
    listing = f"Valid names: {', '.join(names)}" if names else "There are no valid names"
    nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean '{nearest[0]}'? {listing}" if nearest else listing
