"""Override attention: replace chosen heads at the input of the attention output projection.

There each head is still one slice; the projection then mixes the heads.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from bertsecrets.attention.hooks import (
    AttentionCall,
    ForwardPass,
    at_inputs,
    follow,
    keeping_values,
    listening,
    mean_over_real,
)
from bertsecrets.attention.modes import OF_CONSTANTS, Heads, ModeNeed, OverrideMode, find_mode
from bertsecrets.errors import UserError
from bertsecrets.float64 import float64_device, to_float64
from bertsecrets.models.encoder import Encoder, check_adapter, describe
from bertsecrets.models.families.base import AttentionSite

_OF_VALUES = frozenset({ModeNeed.VALUES, ModeNeed.MEAN_VALUE})


@dataclass(frozen=True)
class HeadEdit:
    """How to replace one head; layer and head count from 0.

    Modes are the classes of :mod:`bertsecrets.attention.modes` and of installed packages, by name: ``uniform``,
    ``zero``, ``mean``, ``peak``, ``optimal``, ``resample``, ``identity``, ``redirect``, ``cut``, ``isolate``, ...
    """

    layer: int
    head: int
    mode: str = "zero"


class DonatedOutputs:
    """Each head's outputs on a batch of donors, one donor per row of the receiving batch.

    A receiver's first and last token get the outputs at the donor's first and last token ([CLS] and a closing [SEP]
    keep their roles). The i-th token between them, from 0, gets the output at the donor's (i mod n)-th of n such
    tokens; a donor without any uses its last token.

    Args:
        encoder: The encoder, in evaluation mode.
        donors: Keyword arguments of the model, on its device.

    Raises:
        UserError: If the family has no adapter.
    """

    def __init__(self, encoder: Encoder, donors: Mapping[str, Tensor]) -> None:
        check_adapter(encoder, "Mode 'resample' needs")
        self.real_BS = donors["attention_mask"].bool()
        self.num_heads = encoder.num_heads
        self._outputs_LBSD: dict[int, Tensor] = {}
        with follow(encoder) as forward_pass, torch.no_grad():

            def keep(site: AttentionSite, output_BSD: Tensor) -> None:
                layer = forward_pass.finish_call(site.module)
                if layer is not None:
                    self._outputs_LBSD[layer] = output_BSD.detach()

            inputs: dict[str, Any] = dict(donors)
            # Donors run once per batch, independent of the number of edits; their outputs of all layers are kept in
            # memory.
            with at_inputs(encoder.distinct_sites, "projection", keep):
                encoder.model(**inputs)

    def at(self, layer: int, real_BS: Tensor) -> Tensor:
        """The outputs of a layer's heads, ``[B, S, H * d]``, for receivers with these real tokens.

        Raises:
            UserError: If there is not one donor for each receiver.
        """
        output_BTD = self._outputs_LBSD[layer]
        check_donors(len(output_BTD), len(real_BS))
        position_BS = donor_positions(real_BS.to(self.real_BS.device), self.real_BS)
        return output_BTD.gather(1, position_BS.unsqueeze(-1).expand(-1, -1, output_BTD.shape[-1]))


def check_donors(donors: int, examples: int) -> None:
    """Refuse a number of donors that is not that of the examples, with a UserError."""
    if donors != examples:
        raise UserError(f"There are {donors} donors for a batch of {examples} examples; give one per example.")


def donor_positions(real_BS: Tensor, donor_real_BT: Tensor) -> Tensor:
    """For each token of a receiver, the position of its donor's token, ``[B, S]`` int64; arbitrary at padding.

    Args:
        real_BS, donor_real_BT: Which tokens are real, bool; at least one per donor.
    """
    # Ranks among real tokens: 0 for [CLS]; padding gets the last rank, which is unused.
    rank_BS = real_BS.long().cumsum(1) - 1
    last_B1 = real_BS.sum(1, keepdim=True) - 1
    donor_last_B1 = donor_real_BT.sum(1, keepdim=True) - 1
    inner_BS = 1 + (rank_BS - 1).clamp(min=0) % (donor_last_B1 - 1).clamp(min=1)
    donor_rank_BS = torch.where(rank_BS >= last_B1, donor_last_B1, torch.minimum(inner_BS, donor_last_B1))
    donor_rank_BS = donor_rank_BS.masked_fill(rank_BS <= 0, 0)
    # With left padding, a token's rank is not its position.
    order_BT = donor_real_BT.long().argsort(dim=1, descending=True, stable=True)
    return order_BT.gather(1, donor_rank_BS)


@dataclass(frozen=True)
class Source:
    """Sources of replacements for some modes, see :func:`override`."""

    constants_LHd: Tensor | None
    away_from: tuple[int, ...]
    donated: DonatedOutputs | None


@contextmanager
def override(
    model: nn.Module,
    edits: Iterable[HeadEdit],
    constants_LHd: Tensor | None = None,
    away_from: Sequence[int] = (),
    donors: Mapping[str, Tensor] | None = None,
) -> Iterator[None]:
    """Replace the heads in ``edits`` in every forward pass while open.

    Contexts nest; the inner edit of a head wins. Gradients flow through the replacement. Works under autocast, in
    DistributedDataParallel and on compiled models (which run eagerly inside).

    Args:
        model: Any module that contains a transformers encoder.
        edits: At most one per head.
        constants_LHd: A vector for every head, from :func:`mean_head_outputs`, :func:`peak_head_outputs` or
            :func:`~bertsecrets.ablation.replacements.optimal_head_outputs`; needed by modes ``mean``, ``peak`` and
            ``optimal``.
        away_from: Ids of tokens, such as ``[tokenizer.sep_token_id]``; needed by modes ``redirect``, ``cut`` and
            ``isolate``.
        donors: Keyword arguments of the model with one other example for each example of the following batches; needed
            by mode ``resample``, and run once when the context opens.

    Raises:
        UserError: If a layer, head or mode does not exist, a head is listed twice, ``constants_LHd`` is missing or has
            the wrong shape, ``away_from`` or ``donors`` is missing, gradient checkpointing would recompute shared
            layers, or another thread uses the model.
    """
    if isinstance(edits, HeadEdit) or not isinstance(edits, Iterable):
        example = edits if isinstance(edits, HeadEdit) else "HeadEdit(layer, head)"
        raise UserError(f"edits is {edits!r}; give a list of HeadEdit, e.g. [{example}].")
    encoder = describe(model)
    edits_of = _by_layer(encoder, list(edits), constants_LHd, away_from, donors)
    # Without edits, avoid hooks and keep compiled models compiled.
    if not edits_of:
        yield
        return
    needs_donors = any(ModeNeed.DONORS in find_mode(edit.mode).needs for edits in edits_of.values() for edit in edits)
    donated = DonatedOutputs(encoder, donors) if needs_donors and donors is not None else None
    source = Source(constants_LHd, tuple(away_from), donated)
    replacing = _inside_attention if encoder.family is None else _before_projection
    with follow(encoder) as forward_pass, replacing(encoder, forward_pass, edits_of, source):
        yield


def mean_head_outputs(model: nn.Module, batches: Iterable[Mapping[str, Tensor]]) -> Tensor:
    """Mean over all real tokens of each head's output, ``[layers, heads, head width]`` float64, for mode ``mean``.

    Args and errors as :func:`mean_and_spread`.
    """
    return mean_and_spread(model, batches)[0]


@torch.no_grad()
def mean_and_spread(model: nn.Module, batches: Iterable[Mapping[str, Tensor]]) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation over all real tokens of each head's output, ``[layers, heads, head width]`` float64.

    Args:
        model: Any module that contains a transformers encoder, in evaluation mode.
        batches: Keyword arguments of the model, on its device.

    Raises:
        UserError: If there is no batch, the model is in training mode, or its family has no adapter.
    """
    encoder = describe(model)
    device = float64_device(next(encoder.base.parameters()).device)
    # float64, because float32 sums over a million tokens lose digits and the variance is a difference of large numbers.
    total_LHd = torch.zeros(encoder.num_layers, encoder.num_heads, encoder.head_dim, dtype=torch.float64, device=device)
    squares_LHd = torch.zeros_like(total_LHd)

    def add(layer: int, output_NHd: Tensor) -> None:
        total_LHd[layer] += output_NHd.sum(0)
        squares_LHd[layer] += output_NHd.square().sum(0)

    count = _visit_outputs(encoder, batches, add)
    mean_LHd = total_LHd / count
    return mean_LHd, (squares_LHd / count - mean_LHd.square()).clamp(min=0).sqrt()


_BINS, _REACH = 40, 2.0
"""Number of histogram bins, and its range in standard deviations on either side of the mean."""


@torch.no_grad()
def peak_head_outputs(model: nn.Module, batches: Iterable[Mapping[str, Tensor]]) -> Tensor:
    """The peak of each dimension of each head's output, ``[layers, heads, head width]`` float64, for mode ``peak``.

    Each dimension has a histogram over all real tokens, with bins of a tenth of its standard deviation; its peak is the
    centre of the fullest bin, or the lowest one in a tie (Pochinkov et al. 2024). Bins cover two standard deviations on
    either side of the mean: the mode of a unimodal distribution is within 1.74 (Johnson and Rogers 1951).

    Args and errors as :func:`mean_and_spread`; the batches are read twice, so an iterator is not enough.
    """
    encoder = describe(model)
    mean_LHd, spread_LHd = mean_and_spread(model, batches)
    width_LHd = 2 * _REACH * spread_LHd / _BINS
    count_LHdb = torch.zeros(*mean_LHd.shape, _BINS, dtype=torch.int64, device=mean_LHd.device)

    def add(layer: int, output_NHd: Tensor) -> None:
        # A constant dimension falls into the bin of its mean, of width 0.
        lowest_Hd = mean_LHd[layer] - _REACH * spread_LHd[layer]
        bin_NHd = ((output_NHd - lowest_Hd) / width_LHd[layer]).nan_to_num(nan=0.0, posinf=-1.0, neginf=-1.0).floor()
        inside_NHd = (bin_NHd >= 0) & (bin_NHd < _BINS)
        bin_HdN = bin_NHd.clamp(0, _BINS - 1).long().permute(1, 2, 0)
        count_LHdb[layer].scatter_add_(2, bin_HdN, inside_NHd.permute(1, 2, 0).long())

    _visit_outputs(encoder, batches, add)
    fullest_LHd = count_LHdb.argmax(-1).to(mean_LHd.dtype)
    return mean_LHd + (fullest_LHd + 0.5) * width_LHd - _REACH * spread_LHd


def _visit_outputs(
    encoder: Encoder, batches: Iterable[Mapping[str, Tensor]], visit: Callable[[int, Tensor], None]
) -> int:
    """Call ``visit(layer, output_NHd)`` with every head's outputs at the real tokens of each batch, in float64.

    Returns:
        The number of tokens.
    """
    if encoder.base.training:
        raise UserError("Mean head outputs of a model in training mode would include dropout; call model.eval() first.")
    check_adapter(encoder, "Modes 'mean', 'peak' and 'optimal' need")
    count = 0
    with follow(encoder) as forward_pass:

        def receive(site: AttentionSite, output_BSD: Tensor) -> None:
            layer = forward_pass.finish_call(site.module)
            if layer is not None:
                output_BSHd = output_BSD.unflatten(-1, (encoder.num_heads, -1))
                visit(layer, to_float64(output_BSHd[forward_pass.real_BS(output_BSD)]))

        with at_inputs(encoder.distinct_sites, "projection", receive):
            for batch in batches:
                inputs: dict[str, Any] = dict(batch)
                encoder.model(**inputs)
                count += int(inputs["attention_mask"].sum())
    if count == 0:
        raise UserError("The reference set is empty; modes 'mean', 'peak' and 'optimal' need at least one example.")
    return count


def _by_layer(
    encoder: Encoder,
    edits: Sequence[HeadEdit],
    constants_LHd: Tensor | None,
    away_from: Sequence[int],
    donors: Mapping[str, Tensor] | None,
) -> dict[int, list[HeadEdit]]:
    """The edits of each layer; raises UserError for an edit that is not valid."""
    edits_of: dict[int, list[HeadEdit]] = {}
    seen: set[tuple[int, int]] = set()
    for edit in edits:
        if not isinstance(edit, HeadEdit):
            raise UserError(f"Edit {edit!r} is not a HeadEdit; give e.g. HeadEdit(layer=0, head=1, mode='zero').")
        numbers: dict[str, Any] = {"layer": edit.layer, "head": edit.head}
        for name, value in numbers.items():
            # Python treats True and False as whole numbers, which is rarely intended.
            if isinstance(value, bool) or not isinstance(value, Integral):
                raise UserError(f"{name} is {value!r}; expected a whole number from 0.")
        if not 0 <= edit.layer < encoder.num_layers:
            raise UserError(f"Layer {edit.layer} does not exist: the model has layers 0 to {encoder.num_layers - 1}.")
        if not 0 <= edit.head < encoder.num_heads:
            raise UserError(f"Head {edit.head} does not exist: the model has heads 0 to {encoder.num_heads - 1}.")
        if (edit.layer, edit.head) in seen:
            raise UserError(f"Head {edit.head} of layer {edit.layer} is listed twice; give one edit per head.")
        seen.add((edit.layer, edit.head))
        edits_of.setdefault(edit.layer, []).append(edit)
    # Check each mode once, as thousands of edits use few modes.
    for mode in {edit.mode: find_mode(edit.mode) for edit in edits}.values():
        if mode.needs & OF_CONSTANTS:
            check_constants(encoder, mode, constants_LHd)
        if ModeNeed.DONORS in mode.needs and donors is None:
            raise UserError(f"Mode '{mode.name}' needs the heads' outputs on other examples; pass these as donors.")
        if ModeNeed.TOKENS in mode.needs and not away_from:
            raise UserError(
                f"Mode '{mode.name}' needs the tokens whose attention it changes; pass their ids as away_from, "
                "e.g. [tokenizer.sep_token_id]."
            )
    if encoder.shares_layers and any(
        getattr(module, "gradient_checkpointing", False) for module in encoder.base.modules()
    ):
        raise UserError(
            "A model with shared layers cannot be overridden under gradient checkpointing, which recomputes them out "
            "of order; call model.gradient_checkpointing_disable() first."
        )
    return edits_of


def check_constants(encoder: Encoder, mode: OverrideMode, constants_LHd: Tensor | None) -> None:
    """Raise UserError if a mode needs constants that are missing or have the wrong shape."""
    expected = [encoder.num_layers, encoder.num_heads, encoder.head_dim]
    kinds = {ModeNeed.MEAN_OUTPUTS: "mean", ModeNeed.PEAK_OUTPUTS: "peak", ModeNeed.FITTED_OUTPUTS: "optimal"}
    kind = next(name for need, name in kinds.items() if need in mode.needs)
    if constants_LHd is None:
        raise UserError(
            f"Mode '{mode.name}' needs the heads' {kind} outputs, one vector per head; compute them with "
            f"{kind}_head_outputs."
        )
    if list(constants_LHd.shape) != expected:
        raise UserError(
            f"The heads' {kind} outputs have shape {list(constants_LHd.shape)}; this model needs {expected}: compute "
            "them with this model on this task."
        )


def _replaced(
    output_BSHd: Tensor,
    values_BSHd: Tensor | None,
    real_BS: Tensor,
    edits: Sequence[HeadEdit],
    source: Source,
    map_of: Callable[[int], Tensor] | None = None,
    barred_BS: Tensor | None = None,
) -> Tensor:
    """A copy of the heads' outputs with the edited heads replaced.

    Args:
        output_BSHd, values_BSHd: The heads' outputs and values; values only for modes that need them.
        real_BS: Which tokens are not padding.
        edits: Edits of one layer.
        source: The source of the replacements.
        map_of: Maps a head to its attention map, ``[B, 1, Q, K]``, for modes that need maps.
        barred_BS: Mask of the tokens of ``away_from``.
    """
    # Not in place, because autograd and other hooks also read the outputs.
    result_BSHd = output_BSHd.clone()
    donated_BSHd = None
    for edit in edits:
        mode, head = find_mode(edit.mode), slice(edit.head, edit.head + 1)
        if ModeNeed.DONORS in mode.needs and donated_BSHd is None:
            assert source.donated is not None
            donated_BSHd = source.donated.at(edit.layer, real_BS).unflatten(-1, output_BSHd.shape[2:])
        value_BS1d = None if values_BSHd is None else values_BSHd[:, :, head]
        constants_LHd = source.constants_LHd
        heads = Heads(
            edit.layer,
            output_BSHd[:, :, head],
            None if value_BS1d is None else partial(mean_over_real, value_BS1d, real_BS),
            real_BS,
            value_BS1d,
            None if map_of is None else partial(map_of, edit.head),
            barred_BS,
            None
            if constants_LHd is None or not mode.needs & OF_CONSTANTS
            else constants_LHd[edit.layer, head].to(output_BSHd),
            None if donated_BSHd is None else donated_BSHd[:, :, head],
        )
        # Maps and constants are float32 even under autocast, but the projection expects its own precision.
        result_BSHd[:, :, head] = mode.replacement(heads).to(output_BSHd.dtype)
    return result_BSHd


@contextmanager
def _before_projection(
    encoder: Encoder,
    forward_pass: ForwardPass,
    edits_of: dict[int, list[HeadEdit]],
    source: Source,
) -> Iterator[None]:
    family = encoder.family
    assert family is not None
    # Functions, not maps, because often only one head of a layer is needed.
    maps: dict[int, Callable[[int], Tensor]] = {}
    edited = {id(encoder.sites[layer].module): encoder.sites[layer] for layer in edits_of}.values()
    needs = frozenset[ModeNeed]().union(*(find_mode(edit.mode).needs for edits in edits_of.values() for edit in edits))
    with ExitStack() as stack:
        if ModeNeed.ATTENTION in needs:
            stack.enter_context(_keeping_maps(encoder, maps))
        values = stack.enter_context(keeping_values(edited if needs & _OF_VALUES else ()))

        def replace(site: AttentionSite, output_BSD: Tensor) -> Tensor | None:
            layer = forward_pass.finish_call(site.module)
            if layer is None and not encoder.shares_layers:
                # Gradient checkpointing recomputes a layer outside the pass, so its heads are replaced again.
                layer = encoder.sites.index(site)
            projected_BSD = values.pop(id(site.module), None)
            map_of = maps.pop(id(site.module), None)
            if layer is None or layer not in edits_of:
                return None
            return _replaced(
                output_BSD.unflatten(-1, (encoder.num_heads, -1)),
                None if projected_BSD is None else family.values(site, projected_BSD, encoder.num_heads),
                forward_pass.real_BS(output_BSD),
                edits_of[layer],
                source,
                map_of,
                forward_pass.is_token_BS(source.away_from, output_BSD.device) if source.away_from else None,
            ).flatten(2)

        stack.enter_context(at_inputs(edited, "projection", replace))
        yield


@contextmanager
def _keeping_maps(encoder: Encoder, maps: dict[int, Callable[[int], Tensor]]) -> Iterator[None]:
    """Keep, for each attention module by id, a function from a head to its map in the current call."""

    def listen(call: AttentionCall) -> Tensor:
        maps[id(call.module)] = partial(_map_of_head, call)
        return call.output_BSHd

    def keep(site: AttentionSite, map_BHQK: Tensor) -> None:
        map_BHQK = map_BHQK.to(torch.promote_types(map_BHQK.dtype, torch.float32))
        maps[id(site.module)] = lambda head: map_BHQK[:, head : head + 1]

    with (
        listening(encoder, listen)
        if encoder.uses_interface
        else at_inputs(encoder.distinct_sites, "probabilities", keep)
    ):
        yield


def _map_of_head(call: AttentionCall, head: int) -> Tensor:
    return call.attention_BHQK(slice(head, head + 1))


@contextmanager
def _inside_attention(
    encoder: Encoder,
    forward_pass: ForwardPass,
    edits_of: dict[int, list[HeadEdit]],
    source: Source,
) -> Iterator[None]:
    """The generic path: replace heads in the output of the attention function, where heads are separate."""

    def listen(call: AttentionCall) -> Tensor:
        layer = forward_pass.finish_call(call.module)
        output_BSHd = call.output_BSHd
        if layer is None or layer not in edits_of:
            return output_BSHd
        return _replaced(
            output_BSHd,
            call.value_BHKd.transpose(1, 2),
            forward_pass.real_BS(output_BSHd),
            edits_of[layer],
            source,
            partial(_map_of_head, call),
            forward_pass.is_token_BS(source.away_from, output_BSHd.device) if source.away_from else None,
        )

    with listening(encoder, listen):
        yield
