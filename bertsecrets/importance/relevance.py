"""Relevance of heads by layer-wise relevance propagation through the whole encoder (Voita et al. 2019, section 4;
methods V2).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from transformers.activations import ACT2CLS

from bertsecrets.ablation.settings import AblationSettings
from bertsecrets.analysis import Analysis, Context, Findings
from bertsecrets.attention.hooks import ForwardPass, at_inputs, follow
from bertsecrets.data.batch import Batch
from bertsecrets.errors import UserError
from bertsecrets.float64 import float64_device
from bertsecrets.grid import Column, HeadGrid, Shown
from bertsecrets.importance.rows import Propagation
from bertsecrets.measures.base import MaxExamples, Measure, Passed
from bertsecrets.models.encoder import Encoder, check_adapter, describe, requiring_gradients
from bertsecrets.models.families.base import AttentionSite
from bertsecrets.results.progress import progress_over, reported

RELEVANCE, SIGNED = "relevance", "signed"
TOLERANCE = 1e-3
"""Largest relative error of the sum of relevances that can be due to rounding."""

_ACTIVATIONS: tuple[Any, ...] = tuple(
    kind[0] if isinstance(kind, tuple) else kind for kind in ACT2CLS.values() if kind is not None
)
"""Modules that compute one non-linear function, possibly in several steps."""

_POINTWISE = (functional.gelu, functional.relu, functional.silu, torch.tanh, torch.relu, Tensor.tanh, Tensor.relu)
_PRODUCTS = (torch.matmul, torch.bmm, Tensor.matmul, Tensor.bmm, Tensor.__matmul__)
_MULTIPLICATIONS = (torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__)
_SOFTMAX: tuple[Any, ...] = (functional.softmax, torch.softmax, Tensor.softmax)


class Relevance(Measure):
    """The share of the prediction's logit that passes through each head, by layer-wise relevance propagation.

    An output's relevance is passed down to its inputs in proportion to their contributions: w_uv u / sum_u' w_u'v u'
    for a linear map (Voita et al. 2019, appendix A: the z-rule, that is the epsilon rule with epsilon 0).
    Non-linearities pass it down unchanged; a layer normalisation is treated as linear, with its standard deviation held
    fixed. A bias keeps its share. A head's relevance is the sum over its outputs at all tokens, starting from the logit
    of the predicted class (or the score), divided by the sum of absolute values over the layer's heads.

    Columns:
        ``relevance``: the share in absolute value; the heads of a layer add up to 1.
        ``signed``: with its sign: negative if the head counts against the prediction.
    """

    name = "relevance"
    title = "Relevance of heads"
    shown = Shown(reads_task=True)
    presenter = "bertsecrets.present.importance:RELEVANCE"
    columns = (
        Column(RELEVANCE, "relevance", "share of the layer", (0.0, 1.0), keep="high"),
        Column(SIGNED, "relevance, signed", "share of the layer", (-1.0, 1.0), keep="high"),
    )

    def take(self, batch: Batch, relevance_BLH: Tensor) -> None:
        """Add the relevances of one batch from :func:`head_relevance`."""
        whole_BL1 = relevance_BLH.abs().sum(-1, keepdim=True)
        signed_BLH = torch.where(whole_BL1 > 0, relevance_BLH / whole_BL1, torch.nan)
        for layer, signed_BH in enumerate(signed_BLH.unbind(1)):
            self.update(Passed(layer, batch, values_BHC=torch.stack((signed_BH.abs(), signed_BH), -1)))


def take_relevance(model: nn.Module, batches: Iterable[Batch], consider_attention: bool = False) -> HeadGrid:
    """Relevances of all heads over this process's batches, reduced over all processes.

    Args and errors as :func:`head_relevance`; batches are moved to the model's device.
    """
    encoder = describe(model)
    device = next(encoder.model.parameters()).device
    measure = Relevance(encoder.num_layers, encoder.num_heads)
    measure = measure.to(float64_device(device))
    for on_host in batches:
        batch = on_host.to(device)
        measure.take(batch, head_relevance(model, batch.inputs(), consider_attention))
    return measure.compute()


def head_relevance(model: nn.Module, inputs: Mapping[str, Tensor], consider_attention: bool = False) -> Tensor:
    """Relevance of each head to the logit of the predicted class (or to the score), ``[B, layers, heads]``.

    One forward and one backward pass: with non-linear parts replaced by linear maps with the same values at these
    inputs, an input's relevance is input times gradient.

    Args:
        model: Any module that contains a transformers encoder with a sequence classification head, in evaluation mode.
        inputs: Its keyword arguments, on its device.
        consider_attention: Whether relevance also passes through attention weights: each factor of a product gets half
            of its relevance, and a weight passes its part on to its score. Otherwise weights are constants.

    Raises:
        UserError: If the family has no adapter, or an example's relevances (with those of biases) do not add up to its
            logit.
    """
    encoder = describe(model)
    check_adapter(encoder, "Relevance needs")
    outputs: dict[int, Tensor] = {}
    entered: list[Tensor] = []
    kept: list[Tensor] = []
    # Terms added to the scores get a share of the relevance.
    positions = [value for name, value in encoder.model.named_parameters() if "relative_attention_bias" in name]
    # Lightning validates in inference mode, whose tensors cannot take part in a backward pass.
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        requiring_gradients(encoder.model, positions),
        ExitStack() as stack,
    ):
        forward_pass = stack.enter_context(follow(encoder))
        stack.enter_context(_recorded(encoder, forward_pass, outputs, entered))
        for module in encoder.model.modules():
            if isinstance(module, _ACTIVATIONS):
                stack.callback(module.register_forward_hook(lambda _, args, value: _ratio(args[0], value)).remove)
        # Copied, because tensors from inference mode cannot take part in a backward pass.
        arguments: dict[str, Any] = {name: tensor.clone() for name, tensor in inputs.items()}
        with _LocallyLinear(consider_attention, kept):
            logits_BC = encoder.model(**arguments).logits
        answer_B = logits_BC.max(-1).values
        heads = [outputs[layer] for layer in sorted(outputs)]
        wanted = [*heads, *entered]
        # With attention weights held fixed, positions have no gradient.
        gradients = torch.autograd.grad(answer_B.sum(), wanted, allow_unused=True)
    shares = [
        torch.zeros_like(tensor) if gradient is None else (tensor * gradient).detach()
        for tensor, gradient in zip(wanted, gradients, strict=True)
    ]
    # Embeddings and positions keep the relevance that reaches them, like biases.
    kept += [share.flatten(1).sum(1) for share in shares[len(heads) :]]
    _check_conserved(encoder, answer_B.detach(), torch.stack(kept, 1))
    return torch.stack(
        [share_BSD.unflatten(-1, (encoder.num_heads, -1)).sum((1, 3)) for share_BSD in shares[: len(heads)]], 1
    )


def _check_conserved(encoder: Encoder, answer_B: Tensor, share_BP: Tensor) -> None:
    """Raise UserError unless the relevances of each example's P parts, including biases, add up to its logit."""
    answer_B, share_BP = answer_B.cpu().double(), share_BP.cpu().double()
    error = float(((share_BP.sum(-1) - answer_B).abs() / answer_B.abs().clamp(min=1.0)).max())
    if not error <= TOLERANCE:
        raise UserError(
            f"Relevances of model type '{encoder.base.config.model_type}' add up to the logit only within "
            f"{error:.1e}: it has a part that relevance propagation does not support; choose another score, such as "
            "analysis=shapley."
        )


class _LocallyLinear(TorchFunctionMode):
    """Replace non-linear functions by linear maps with the same values at their inputs.

    Args:
        consider_attention: See :func:`head_relevance`.
        kept: Receives the relevance that each bias keeps, ``[B]``, in the backward pass.
    """

    def __init__(self, consider_attention: bool, kept: list[Tensor]) -> None:
        super().__init__()
        self.consider_attention = consider_attention
        self.kept = kept

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is functional.linear:
            return self._with_bias(functional.linear(*args, **kwargs), *args[2:], **kwargs)
        if func is functional.layer_norm:
            return self._with_bias(_layer_norm(*args, **kwargs), *args[3:], **kwargs)
        if func is functional.scaled_dot_product_attention:
            return self._attention(*args, **kwargs)
        if func in _SOFTMAX:
            return self._weights(args[0], func(*args, **kwargs))
        if func in _POINTWISE:
            return _ratio(args[0], func(*args, **kwargs))
        if func in _PRODUCTS:
            return _halves(torch.matmul, *args)
        if func in _MULTIPLICATIONS:
            return _halves(func, *args)
        return func(*args, **kwargs)

    def _with_bias(self, result: Tensor, bias: Tensor | None = None, *_: Any, **__: Any) -> Tensor:
        """``result``, whose bias keeps its share of the relevance in the backward pass."""
        if bias is not None and result.requires_grad:

            def keep(gradient: Tensor) -> None:
                self.kept.append((gradient.reshape(len(gradient), -1, len(bias)).sum(1) * bias).sum(1))

            result.register_hook(keep)
        return result

    def _weights(self, score: Tensor, weight: Tensor) -> Tensor:
        return _ratio(score, weight) if self.consider_attention else weight.detach()

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        scale = float(query.shape[-1]) ** -0.5 if scale is None else scale
        score = _halves(torch.matmul, query, key.transpose(-1, -2)) * scale
        if attn_mask is not None:
            barred = ~attn_mask if attn_mask.dtype == torch.bool else attn_mask <= torch.finfo(attn_mask.dtype).min / 2
            bias = torch.zeros_like(score) if attn_mask.dtype == torch.bool else attn_mask.masked_fill(barred, 0)
            score = (score + bias).masked_fill(barred, torch.finfo(score.dtype).min)
        return _halves(torch.matmul, self._weights(score, torch.softmax(score, -1)), value)


def _ratio(argument: Tensor, value: Tensor) -> Tensor:
    """``value`` as the argument times a constant, or as a constant where the argument is 0."""
    value, zero = value.detach(), argument == 0
    # A division by 0 would make the gradient of the unused branch NaN.
    return torch.where(zero, value, argument * (value / argument.masked_fill(zero, 1)).detach())


def _halves(func: Callable[..., Tensor], *args: Any) -> Tensor:
    """A product that passes half of its relevance to each of two factors that depend on the input."""
    first, second = args[:2]
    if not all(isinstance(operand, Tensor) and operand.requires_grad for operand in (first, second)):
        return func(*args)
    # The value is the product; its gradient is half of each factor's.
    return (func(first, second.detach()) + func(first.detach(), second)) / 2


def _layer_norm(
    argument: Tensor, shape: Any, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    centred = argument - argument.mean(-1, keepdim=True)
    result = centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt().detach()
    if weight is not None:
        result = result * weight
    return result if bias is None else result + bias


class RelevanceOfHeads(Analysis):
    """Propagate the relevance of the prediction's logit down to the heads, with one forward and one backward pass per
    example.

    Args:
        ablation: Its ``evaluation`` is used.
        consider_attention: Whether relevance also passes through attention weights, see :func:`head_relevance`.
        max_examples: Size of a random sample of examples; None for all.

    Raises:
        UserError: If the model has a part that relevance propagation does not support.
    """

    of_whole_texts = True

    def __init__(
        self,
        ablation: AblationSettings | None = None,
        consider_attention: bool = False,
        max_examples: MaxExamples = None,
    ) -> None:
        super().__init__(None if ablation is None else ablation.evaluation, max_examples)
        self.consider_attention = consider_attention

    def run(self, context: Context) -> Iterator[Findings]:
        encoder, batches = context.encoder, context.batches(self.max_examples)
        with progress_over(len(batches), "relevance", visible=context.progress) as advance:
            grid = take_relevance(context.model, reported(batches, advance), self.consider_attention)
        how = Propagation(self.consider_attention)
        yield Findings(Relevance(encoder.num_layers, encoder.num_heads), [grid], [how])


@contextmanager
def _recorded(
    encoder: Encoder,
    forward_pass: ForwardPass,
    outputs: dict[int, Tensor],
    entered: list[Tensor],
) -> Iterator[None]:
    """Keep the heads' outputs by layer, and the inputs of the first layer from which gradients start: states,
    positions.
    """

    def enter(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        # A module that serves several layers (ALBERT) is called again for each.
        if entered:
            return None
        entered.append((args[0] if args else kwargs["hidden_states"]).detach().requires_grad_())
        others = (*args[1:], *kwargs.values())
        entered.extend(tensor for tensor in others if isinstance(tensor, Tensor) and tensor.requires_grad)
        return ((entered[0], *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": entered[0]})

    def keep(site: AttentionSite, output_BSD: Tensor) -> None:
        layer = forward_pass.finish_call(site.module)
        if layer is not None:
            outputs[layer] = output_BSD

    with ExitStack() as stack:
        stack.callback(encoder.layers[0].register_forward_pre_hook(enter, with_kwargs=True).remove)
        stack.enter_context(at_inputs(encoder.distinct_sites, "projection", keep))
        yield
