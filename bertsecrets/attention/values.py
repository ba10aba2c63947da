"""Watch maps and values, which determine each head's output, layer by layer."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from bertsecrets.attention.hooks import AttentionCall, ForwardPass, follow, keeping_values
from bertsecrets.attention.watch import observed_calls, observed_probabilities
from bertsecrets.models.encoder import Encoder, check_adapter, describe
from bertsecrets.models.families.base import AttentionSite, weight_of

ValueObserver = Callable[[int, Tensor, Tensor], None]


@contextmanager
def watch_values(model: nn.Module, observer: ValueObserver) -> Iterator[None]:
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
    through = _through_interface if encoder.uses_interface else _through_probabilities
    with follow(encoder) as forward_pass, through(encoder, forward_pass, observer):
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


@contextmanager
def _through_interface(encoder: Encoder, forward_pass: ForwardPass, observer: ValueObserver) -> Iterator[None]:
    def observe(layer: int, call: AttentionCall) -> None:
        map_BHQK = call.attention_BHQK()
        observer(layer, map_BHQK, call.value_BHKd.detach().to(map_BHQK.dtype))

    with observed_calls(encoder, forward_pass, observe):
        yield


@contextmanager
def _through_probabilities(encoder: Encoder, forward_pass: ForwardPass, observer: ValueObserver) -> Iterator[None]:
    family = encoder.family
    assert family is not None
    with keeping_values(encoder.distinct_sites) as projected:

        def observe(layer: int, site: AttentionSite, map_BHQK: Tensor) -> None:
            values_BSHd = family.values(site, projected.pop(id(site.module)).detach(), encoder.num_heads)
            observer(layer, map_BHQK, values_BSHd.transpose(1, 2).to(map_BHQK.dtype))

        with observed_probabilities(encoder, forward_pass, observe):
            yield
