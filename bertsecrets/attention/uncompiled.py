"""Keeps compiled models out of the way while somebody watches or overrides."""

import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

_lock = threading.Lock()
_open = 0
_stance = ExitStack()


@contextmanager
def uncompiled() -> Iterator[None]:
    """While open, ``torch.compile``d code runs as plain Python, in the whole process.

    A compiled graph does not notice hooks that were registered after its compilation, so that an override would
    silently have no effect. Counted, so that threads may overlap.
    """
    global _open
    with _lock:
        # Where nothing was compiled the compiler is not even imported, which would take seconds.
        if _open == 0 and "torch._dynamo" in sys.modules:
            _stance.enter_context(torch.compiler.set_stance("force_eager"))
        _open += 1
    try:
        yield
    finally:
        with _lock:
            _open -= 1
            if _open == 0:
                _stance.close()
