"""Locate an encoder's layers, and the places where its heads can be watched and replaced."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_outputs import SequenceClassifierOutput

from bertsecrets.errors import UserError
from bertsecrets.models.families import family_of
from bertsecrets.models.families.base import AttentionSite, Family
from bertsecrets.models.families.generic import generic_layout
from bertsecrets.models.loading import check_encoder_kind
from bertsecrets.models.sentence_embedder import SentenceEmbedder
from bertsecrets.task_heads.choice import score_single_choices

Autocast = Callable[[], AbstractContextManager[Any]]
"""Creates the context manager for every forward pass, such as the trainer's precision."""

REMOVED_HEADS = "bertsecrets_kept_heads"
"""Attribute of a model with physically removed heads."""


@dataclass(frozen=True)
class Encoder:
    """The description of a model's encoder.

    Args:
        model: The whole model, including the task head.
        base: The encoder inside it.
        family: Its adapter; None on the generic path.
        layers: Layer modules in order (repeated where weights are shared).
        sites: The self-attention of each layer, in the same order.
        embeddings: Modules below the first layer.
        num_heads: Heads per layer.
        head_dim: Width of a head.
        uses_interface: Whether attention goes through the library's attention interface.
    """

    model: PreTrainedModel
    base: PreTrainedModel
    family: Family | None
    layers: tuple[nn.Module, ...]
    sites: tuple[AttentionSite, ...]
    embeddings: tuple[nn.Module, ...]
    num_heads: int
    head_dim: int
    uses_interface: bool = True

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def shares_layers(self) -> bool:
        """Whether one module serves several layers, as in ALBERT."""
        return len({id(layer) for layer in self.layers}) < len(self.layers)

    @property
    def first_token_decides(self) -> bool:
        """Whether the task head reads only the first token's vector; for models of a family with an adapter."""
        if isinstance(self.model, SentenceEmbedder):
            return self.model.pooling == "cls"
        assert self.family is not None
        return self.family.first_token_decides(self.model)

    def head(self, hidden_BSD: Tensor, real_BS: Tensor) -> Tensor:
        """Logits ``[B, C]``, or embeddings ``[B, D]``, from the last layer's output; for a family with an adapter."""
        if isinstance(self.model, SentenceEmbedder):
            return self.model.embed(hidden_BSD, real_BS)
        assert self.family is not None
        return self.family.classify(self.model, hidden_BSD, real_BS)

    @property
    def distinct_sites(self) -> tuple[AttentionSite, ...]:
        """The distinct attention sites."""
        return tuple({id(site.module): site for site in self.sites}.values())


def check_adapter(encoder: Encoder, needed_by: str) -> None:
    """Raise UserError if the encoder's family has no adapter; ``needed_by`` starts the sentence, as in "Gates need"."""
    if encoder.family is None:
        raise UserError(
            f"{needed_by} an adapter, and model type '{encoder.base.config.model_type}' has none; add one in "
            "bertsecrets/models/families."
        )


@torch.no_grad()
def scale_heads(encoder: Encoder, gate_LH: Tensor) -> None:
    """Multiply each head's columns of the output projection by its gate, ``[layers, heads]``: the logits of the gated
    model.

    For families with an adapter whose layers share no weights.
    """
    for site, gate_H in zip(encoder.sites, gate_LH, strict=True):
        assert site.projection is not None
        weight = site.projection.weight
        weight.copy_((weight.unflatten(1, (encoder.num_heads, -1)) * gate_H.to(weight)[:, None]).flatten(1))


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode and afterwards restore the mode of each of its parts, also after an error.

    A library model returns its logits by name in the meantime, and one of multiple choice scores single rows.
    """
    # For each part: some may be in evaluation mode on purpose, and train(True) would switch all.
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with naming_logits(module):
            yield
    finally:
        for part, training in modes:
            part.training = training


@contextmanager
def naming_logits(module: nn.Module) -> Iterator[None]:
    """Let a library model with ``config.return_dict`` false return its logits by name, as this package expects, and one
    of multiple choice score single rows.
    """

    def name(_: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        # An encoder, or a question-answering head, returns several tensors.
        alone = isinstance(output, tuple) and sum(isinstance(part, Tensor) for part in output) == 1
        return SequenceClassifierOutput(logits=output[0]) if alone and isinstance(output[0], Tensor) else output

    handles = [score_single_choices(module)]
    if isinstance(module, PreTrainedModel) and not module.config.return_dict:
        # Not the argument return_dict: a user's own forward may not accept it, or may unpack the inner encoder's tuple.
        handles.append(module.register_forward_hook(name))
    try:
        yield
    finally:
        for handle in filter(None, handles):
            handle.remove()


@contextmanager
def requiring_gradients(module: nn.Module, parameters: Iterable[nn.Parameter] = ()) -> Iterator[None]:
    """Let only these parameters of a module require gradients; restore all afterwards, also after an error."""
    before = [(parameter, parameter.requires_grad) for parameter in module.parameters()]
    chosen = {id(parameter) for parameter in parameters}
    try:
        for parameter, _ in before:
            parameter.requires_grad_(id(parameter) in chosen)
        yield
    finally:
        for parameter, required in before:
            parameter.requires_grad_(required)


def unwrap(module: nn.Module) -> PreTrainedModel:
    """The library model inside a wrapper (LightningModule, DistributedDataParallel, compiled module).

    Raises:
        UserError: If there is none, or more than one.
    """
    if isinstance(module, PreTrainedModel):
        return module
    if not isinstance(module, nn.Module):
        raise UserError(f"model is {module!r}; give a Hugging Face encoder, e.g. from AutoModel.from_pretrained.")
    models = models_in(module)
    if not models:
        raise UserError(
            f"{type(module).__name__} contains no transformers model; pass a PreTrainedModel or a module that wraps "
            "one."
        )
    _check_single(module, models)
    return next(iter(models.values()))


def models_in(module: nn.Module) -> dict[str, PreTrainedModel]:
    """The outermost library models inside a module, by path."""
    found: dict[str, PreTrainedModel] = {}
    for name, child in module.named_children():
        if isinstance(child, PreTrainedModel):
            found[name] = child
        else:
            found |= {f"{name}.{path}": model for path, model in models_in(child).items()}
    return found


def _check_single(module: nn.Module, models: Mapping[str, PreTrainedModel]) -> None:
    if len({id(model) for model in models.values()}) > 1:
        (first, one), (second, other), *_ = models.items()
        raise UserError(
            f"{type(module).__name__} contains several encoders, among them '{first}' ({type(one).__name__}) and "
            f"'{second}' ({type(other).__name__}); give one of them, e.g. <model>.{first}."
        )


def same_logits(logits_BC: Tensor, other_BC: Tensor) -> bool:
    """Whether two tensors of logits agree in half of the digits of their precision."""
    if logits_BC.shape != other_BC.shape:
        return False
    known_BC = logits_BC.nan_to_num()
    tolerance = torch.finfo(logits_BC.dtype).eps ** 0.5 * float(known_BC.abs().max()) if known_BC.numel() else 0.0
    return torch.allclose(logits_BC, other_BC.to(logits_BC), rtol=0.0, atol=tolerance, equal_nan=True)


def check_encoder(module: nn.Module, tokenizer: object) -> PreTrainedModel:
    """The encoder's library model, after a check that the tokenizer is its own, fast one.

    Raises:
        UserError: If the model is not an encoder (:func:`check_kind`) or has no weights, or the tokenizer is not a fast
            one or has more entries than the model.
    """
    network = check_kind(module)
    if any(parameter.is_meta for parameter in network.parameters()):
        raise UserError(
            "The model is on the device meta, where it has no numbers; load its weights, e.g. with from_pretrained."
        )
    if not isinstance(tokenizer, PreTrainedTokenizerBase) or not tokenizer.is_fast:
        raise UserError(
            f"tokenizer is {type(tokenizer).__name__}; give the model's fast tokenizer, from AutoTokenizer."
        )
    if len(tokenizer) > network.config.vocab_size:
        raise UserError(
            f"The tokenizer has {len(tokenizer)} entries and the model {network.config.vocab_size}; give the model's "
            "own tokenizer."
        )
    return network


def check_kind(module: nn.Module) -> PreTrainedModel:
    """The one library model inside a module.

    Raises:
        UserError: If it is a decoder or has one, there are several models or none, or FSDP 1 shards its weights.
    """
    network = unwrap(module)
    # By name: torch may be built without torch.distributed.
    if any(type(part).__name__ == "FullyShardedDataParallel" for part in module.modules()):
        raise UserError(
            f"The weights of {type(network).__name__} are sharded by FullyShardedDataParallel, so its heads cannot be "
            "read; load its saved weights in one process, or shard it with torch.distributed.fsdp.fully_shard."
        )
    check_encoder_kind(network.config, type(network).__name__)
    _check_single(network, models_in(network))
    return network


def describe(module: nn.Module) -> Encoder:
    """The encoder inside a model, through its family's adapter or, without one, the generic path.

    Raises:
        UserError: If the model has no attention heads, its family has no adapter and bypasses the library's attention
            interface, or heads of the model were physically removed.
    """
    model = unwrap(module)
    if hasattr(model, REMOVED_HEADS):
        raise UserError(
            "Heads of this model were removed, so its layers differ in their heads; watch, disable or remove heads of "
            "the whole model, whose logits under override mode 'zero' are the same."
        )
    base: Any = model.base_model
    inner = models_in(model)
    if base is model and len(inner) == 1:
        # A class of the user's own may call its encoder otherwise than the library does.
        (base,) = inner.values()
    num_heads = getattr(model.config, "num_attention_heads", None)
    if num_heads is None:
        raise UserError(
            f"Model type '{model.config.model_type}' has no attention heads to watch; give an encoder such as BERT or "
            "RoBERTa."
        )
    family = family_of(model)
    if family is None:
        layout = generic_layout(base)
        # What has no parameter in a layer lies below or above them all; above is the task head, outside of the base.
        in_layers = {id(parameter) for layer in layout.layers for parameter in layer.parameters()}
        embeddings = tuple(
            child
            for child in base.children()
            if not any(id(parameter) in in_layers for parameter in child.parameters())
        )
        return Encoder(model, base, None, layout.layers, layout.sites, embeddings, layout.num_heads, layout.head_dim)
    layers = tuple(family.layers(base))
    sites = tuple(family.site(layer) for layer in layers)
    projection = sites[0].projection
    assert projection is not None
    width = projection.in_features
    if width % num_heads:
        raise UserError(
            f"The output projection of {type(family).__name__} takes {width} numbers, which {num_heads} heads cannot "
            "share evenly; correct the family's path of the projection."
        )
    return Encoder(
        model,
        base,
        family,
        layers,
        sites,
        tuple(family.embeddings(base)),
        num_heads,
        width // num_heads,
        uses_interface=all(site.probabilities is None for site in sites),
    )
