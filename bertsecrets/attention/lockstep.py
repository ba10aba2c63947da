"""Two models side by side: the same layer's maps of both, one layer at a time."""

import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from bertsecrets.attention.watch import watch


class _StoppedError(Exception):
    """Ends the forward pass of a stream whose reader has gone."""


def map_stream(
    model: nn.Module,
    forward: Callable[[], Any],
    context: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Generator[Tensor, None, None]:
    """The maps of one forward pass, layer by layer; the pass waits while its reader works on a layer.

    The pass runs in a thread of its own that never runs at the same time as the reader's, so that one layer's maps
    of it are alive at a time and the results are the same as those of a plain call. Close the generator to abandon
    the pass.

    Args:
        model: The model to watch.
        forward: Calls the model; an exception in it is raised in the reader.
        context: Made and entered in the pass's thread, where thread-local settings such as autocast start afresh.
    """
    turn = threading.Semaphore(0)
    ready = threading.Semaphore(0)
    slot: list[Tensor] = []
    failure: list[BaseException] = []
    stopped = False

    def observe(_: int, attention_BHQK: Tensor) -> None:
        slot.append(attention_BHQK)
        ready.release()
        turn.acquire()
        if stopped:
            raise _StoppedError

    def work() -> None:
        turn.acquire()
        try:
            if not stopped:
                with torch.no_grad(), context(), watch(model, observe):
                    forward()
        except _StoppedError:
            pass
        except BaseException as error:
            failure.append(error)
        finally:
            ready.release()

    thread = threading.Thread(target=work, name="bertsecrets-reference", daemon=True)
    thread.start()
    try:
        while True:
            turn.release()
            ready.acquire()
            if failure:
                raise failure[0]
            if not slot:
                return
            yield slot.pop()
    finally:
        stopped = True
        turn.release()
        thread.join()
