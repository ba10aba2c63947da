"""Watch attention: every map of a forward pass, layer by layer, alone or with the values that it mixes."""

import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from bertsecrets.attention.hooks import AttentionCall, at_inputs, follow, keeping_values, listening
from bertsecrets.errors import UserError
from bertsecrets.models.encoder import Autocast, Encoder, check_adapter, describe, evaluating, unwrap
from bertsecrets.models.families.base import AttentionSite, weight_of

Observer = Callable[[int, Tensor], None]


@contextmanager
def watch(model: nn.Module, observer: Observer) -> Iterator[None]:
    """Call ``observer(layer, attention_BHQK)`` for each layer of every forward pass, in order, while open.

    The maps are attention weights before dropout, float32 (float64 in a float64 model), without gradient; rows of real
    tokens sum to one, padding receives exactly 0. Only one layer's maps are in memory at a time, unless the observer
    keeps them. For families that use the library's attention interface, the model's output is bit-identical to SDPA's.
    Several observers may watch one model.

    Args:
        model: Any module that contains a transformers encoder, compiled or not; a compiled model runs eagerly inside.
        observer: Called outside autograd.

    Raises:
        UserError: If the model's family has no adapter and bypasses the attention interface, another thread uses the
            model, or the observer cannot be called.
    """
    if not callable(observer):
        raise UserError(
            f"observer is {observer!r}; give a function of a layer and its maps [batch, heads, queries, keys]."
        )
    with _observing(
        describe(model),
        lambda layer, call: observer(layer, call.attention_BHQK()),
        lambda layer, _, map_BHQK: observer(layer, map_BHQK),
    ):
        yield


@contextmanager
def _observing(
    encoder: Encoder,
    of_call: Callable[[int, AttentionCall], None],
    of_map: Callable[[int, AttentionSite, Tensor], None],
) -> Iterator[None]:
    """Call a function for each layer of the encoder's forward passes, outside autograd, while open.

    Args:
        encoder: The encoder.
        of_call: For families that use the library's attention interface; receives the layer and its call.
        of_map: For families that compute attention themselves; receives the layer, its site, and its maps in float32 or
            wider, the input of the dropout that follows their softmax.
    """
    with follow(encoder) as forward_pass:

        def listen(call: AttentionCall) -> Tensor:
            layer = forward_pass.finish_call(call.module)
            if layer is not None:
                with torch.no_grad():
                    of_call(layer, call)
            return call.output_BSHd

        def receive(site: AttentionSite, map_BHQK: Tensor) -> None:
            layer = forward_pass.finish_call(site.module)
            if layer is not None:
                with torch.no_grad():
                    map_BHQK = map_BHQK.detach()
                    of_map(layer, site, map_BHQK.to(torch.promote_types(map_BHQK.dtype, torch.float32)))

        sites = encoder.distinct_sites
        with listening(encoder, listen) if encoder.uses_interface else at_inputs(sites, "probabilities", receive):
            yield


@contextmanager
def watch_values(model: nn.Module, observer: Callable[[int, Tensor, Tensor], None]) -> Iterator[None]:
    """Call ``observer(layer, attention_BHQK, value_BHKd)`` for each layer of every forward pass, in order, while open.

    A head's output, the input of the output projection, is ``attention @ value``. Both are float32 or wider and without
    gradient; otherwise like :func:`~bertsecrets.attention.watch.watch`.

    Args:
        model: Any module that contains a transformers encoder, compiled or not; a compiled model runs eagerly inside.
        observer: Called outside autograd.

    Raises:
        UserError: If the model's family has no adapter and bypasses the attention interface.
    """
    encoder = describe(model)

    def of_call(layer: int, call: AttentionCall) -> None:
        map_BHQK = call.attention_BHQK()
        observer(layer, map_BHQK, call.value_BHKd.detach().to(map_BHQK.dtype))

    def of_map(layer: int, site: AttentionSite, map_BHQK: Tensor) -> None:
        assert encoder.family is not None
        values_BSHd = encoder.family.values(site, projected.pop(id(site.module)).detach(), encoder.num_heads)
        observer(layer, map_BHQK, values_BSHd.transpose(1, 2).to(map_BHQK.dtype))

    with (
        keeping_values(() if encoder.uses_interface else encoder.distinct_sites) as projected,
        _observing(encoder, of_call, of_map),
    ):
        yield


def output_weights(model: nn.Module, layer: int) -> Tensor:
    """The columns of a layer's output projection that belong to each head, ``[H, D, d]``.

    Raises:
        UserError: If the model's family has no adapter.
    """
    encoder = describe(model)
    check_adapter(encoder, "Norms of values need")
    projection = encoder.sites[layer].projection
    assert projection is not None
    weights_DHd: Tensor = weight_of(projection).detach().unflatten(1, (encoder.num_heads, -1))
    return weights_DHd.transpose(0, 1)


def projected_norms(vector_BHSd: Tensor, gram_Hdd: Tensor) -> Tensor:
    """Norms of heads' vectors after the output projection, ``[B, H, S]``.

    |W v|^2 = v (W'W) v: products of the head's width instead of the model's.

    Args:
        vector_BHSd: Values, or sums of them.
        gram_Hdd: The products W'W of :func:`output_weights`.
    """
    square_BHS = ((vector_BHSd @ gram_Hdd.to(vector_BHSd.dtype)) * vector_BHSd).sum(-1)
    # Rounding may leave a zero square slightly negative.
    return square_BHS.clamp(min=0).sqrt()


@torch.no_grad()
def capture(model: nn.Module, inputs: Mapping[str, Tensor]) -> list[Tensor]:
    """Each example's attention, ``[L, H, Q, K]`` float32 on the CPU, without padding.

    The pass runs in evaluation mode; the model's mode is restored.

    Args:
        model: Any module that contains a transformers encoder.
        inputs: The model's keyword arguments, including ``attention_mask``, on its device.
    """
    network = unwrap(model)
    real_BS = inputs["attention_mask"].bool()
    maps: list[list[Tensor]] = [[] for _ in range(len(real_BS))]

    def observe(_: int, attention_BHQK: Tensor) -> None:
        for row, real_S in enumerate(real_BS):
            maps[row].append(attention_BHQK[row][:, real_S][:, :, real_S].float().cpu())

    with evaluating(network), watch(network, observe):
        network(**inputs)
    return [torch.stack(layers) for layers in maps]


class _StoppedError(Exception):
    """Ends the forward pass of an abandoned stream."""


def map_stream(
    model: nn.Module,
    forward: Callable[[], Any],
    context: Autocast = nullcontext,
) -> Generator[Tensor, None, None]:
    """The maps of one forward pass, layer by layer; the pass waits while the reader works on a layer.

    With it, two models run in lockstep with only one layer's maps of each in memory. The pass runs in a thread that
    never runs at the same time as the reader's, so results equal those of a plain call. Close the generator to abandon
    the pass.

    Args:
        model: The model to watch.
        forward: Calls the model; its exceptions are raised in the reader.
        context: Entered in the pass's thread, which does not inherit thread-local settings such as autocast.
    """
    # Semaphores, not an event, so that each release lets exactly one side do one step.
    turn = threading.Semaphore(0)
    ready = threading.Semaphore(0)
    slot: list[Tensor] = []
    errors: list[BaseException] = []
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
        # All exceptions, because a KeyboardInterrupt must also end the reader's wait.
        except BaseException as error:
            errors.append(error)
        finally:
            ready.release()

    # A generator cannot wait inside a hook deep in a forward pass, but a thread can.
    thread = threading.Thread(target=work, name="bertsecrets-reference", daemon=True)
    thread.start()
    try:
        while True:
            turn.release()
            ready.acquire()
            if errors:
                raise errors[0]
            if not slot:
                return
            yield slot.pop()
    finally:
        # The reader may stop anywhere, so wake the pass to end its thread and hooks.
        stopped = True
        turn.release()
        thread.join()
