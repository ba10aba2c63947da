"""SIGINT and SIGTERM: a run saves its work, prints one sentence and exits with status 130 or 143."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from bertsecrets.errors import causes

_SIGNALS = (signal.SIGINT, signal.SIGTERM)

_REPEAT_S = 1.0
"""Window in which repeated signals count as one request, as a terminal, a sweep and other processes each pass it on."""


class Interrupted(BaseException):
    """The user or the system asked this process to end.

    Not a KeyboardInterrupt, which Lightning turns into exit status 1.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def interruption(error: BaseException) -> int | None:
    """The number of the signal that caused an error; None if no signal did.

    A library that is interrupted while it restores its own state may raise an error of its own.
    """
    for one in causes(error):
        if isinstance(one, Interrupted):
            return one.number
        if isinstance(one, KeyboardInterrupt):
            return signal.SIGINT
    return None


class _Requests:
    """A request to end, if any, and how to handle it."""

    def __init__(self) -> None:
        self.began = False
        self.reset(None)

    def reset(self, forward_to: int | None) -> None:
        self.handled = False
        self.number: int | None = None
        self.moment = 0.0
        self.deferred = False
        self.hand_on: Callable[[int], object] | None = None
        self.forward_to = forward_to

    def handle(self, number: int, frame: FrameType | None) -> None:
        repeated = self.number is not None
        if repeated and time.monotonic() - self.moment < _REPEAT_S:
            return
        self.number, self.moment = number, time.monotonic()
        if self.forward_to is not None:
            with suppress(ProcessLookupError):
                os.kill(self.forward_to, number)
        elif not self.deferred or repeated:
            if self.hand_on is not None and not repeated:
                self.hand_on(number)
            raise Interrupted(number)


_requests = _Requests()

NOTHING_SAVED = "Interrupted before anything was saved; run the same command again."


def exit_on_signals() -> None:
    """End with one sentence if a signal arrives before :func:`handled`, while a command is still being imported."""

    def end(number: int, frame: FrameType | None) -> None:
        if os.environ.get("LOCAL_RANK", "0") == "0" and not _requests.began:
            # A handler may interrupt a print, in which print cannot be called again.
            os.write(2, f"{NOTHING_SAVED}\n".encode())
        os._exit(128 + number)

    for number in _SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, end)


@contextmanager
def handled(forward_to: int | None = None) -> Iterator[None]:
    """Raise :class:`Interrupted` in the main thread when a signal asks this process to end during the block.

    A signal that the process ignores, as under ``nohup``, stays ignored.

    Args:
        forward_to: A process that receives the signal instead and decides for this one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _requests.reset(forward_to)
    _requests.began = _requests.handled = True
    previous = {number: signal.getsignal(number) for number in _SIGNALS}
    install()
    try:
        yield
    finally:
        _requests.handled = False
        for number, handler in previous.items():
            signal.signal(number, handler)


def install() -> None:
    """Install the handlers of :func:`handled`, again after a library has replaced one; do nothing outside its block."""
    for number in _SIGNALS if _requests.handled else ():
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _requests.handle)


def hand_on(action: Callable[[int], object] | None) -> None:
    """Set a function to call with the signal's number before :class:`Interrupted` is raised."""
    _requests.hand_on = action


def defer(deferred: bool) -> None:
    """Choose between noting a request for :func:`requested`, and raising :class:`Interrupted` at once.

    A second request is raised at once in any case.
    """
    _requests.deferred = deferred


def requested() -> int | None:
    """The number of the signal that asked this process to end; None without one."""
    return _requests.number
