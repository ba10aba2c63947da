"""The engine: exact logits for every variant of a plan, sharing computation between variants."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from bertsecrets.ablation.partial_passes import (
    OwnForwardError,
    check_forward,
    clean_pass,
    first_of,
    is_out_of_memory,
    mean_values,
    pick_rows,
    read_output,
    repeat_rows,
)
from bertsecrets.ablation.plan import Plan
from bertsecrets.attention.hooks import at_inputs, keeping_values, mean_over_real
from bertsecrets.attention.modes import OF_CONSTANTS, PER_TOKEN, Heads, ModeNeed, check_sweep_mode, find_mode
from bertsecrets.attention.override import DonatedOutputs, HeadEdit, check_constants, check_donors, override
from bertsecrets.attention.parts import Rows, check_parts, left_out, skip, without_parts
from bertsecrets.errors import UserError
from bertsecrets.models.encoder import Encoder, describe, evaluating
from bertsecrets.models.families.base import AttentionSite
from bertsecrets.task_heads.base import TaskHead, taken, wide
from bertsecrets.task_heads.sequence import SEQUENCE

_log = logging.getLogger(__name__)

TOKENS_ON_CPU = 1024
"""Tokens per pass through a layer: few enough for the feed-forward activations to fit into the cache."""

TOKENS_ON_ACCELERATOR = 32768


@dataclass(frozen=True)
class LayerEdit:
    """What a variant changes in a layer: the heads that it disables, and the names of the parts that it leaves out."""

    heads: tuple[int, ...] = ()
    parts: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.heads or self.parts)


class Engine:
    """Run every variant of a plan over batches, one batch at a time.

    Variants that are identical up to a layer share one pass up to it: the layers below the first that a variant changes
    are those of the clean pass, a layer's head variants share one attention computation, and the last layer is computed
    only for the tokens that the task head reads. Families without an adapter, families whose
    passes cannot start at a given layer, and models whose own forward gives logits that differ from those of their
    family's layers and head (:func:`~bertsecrets.ablation.partial_passes.check_forward`, at each batch) run one whole
    pass for each variant instead (see ``shares``).

    Args:
        model: Any module that holds a transformers encoder with a task head.
        plan: A plan for a model of this size.
        constants_LHd: A vector for each head, for modes that need one, see
            :func:`bertsecrets.attention.override.override`.
        max_tokens: Limit on the number of tokens (rows times length) in one pass through a layer; None for the device's
            default. Halved, with a warning, if memory runs out.
        outcome: For modules whose pass may do more than its encoder's: maps the arguments of a pass to its answers
            ``[B, C]``, logits or one number per example, with one whole pass for each variant. None for the model's.

    Raises:
        UserError: If the plan is for a model of another size, the model has pruned heads or no classification head,
            ``constants_LHd`` is missing or of another shape, or the plan leaves out parts of layers whose location the
            model's family does not define.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        *,
        constants_LHd: Tensor | None = None,
        max_tokens: int | None = None,
        outcome: Callable[[Mapping[str, Any]], Tensor] | None = None,
    ) -> None:
        self.encoder = describe(model)
        self.head: TaskHead = SEQUENCE
        self.plan = plan
        check_sweep_mode(plan.mode)
        self.mode = find_mode(plan.mode)
        self.pass_type: type[EnginePass] = EnginePass
        self.constants_LHd = constants_LHd
        layers, heads = self.encoder.num_layers, self.encoder.num_heads
        if (plan.num_layers, plan.num_heads) != (layers, heads):
            raise UserError(
                f"The plan is for {plan.num_layers} layers of {plan.num_heads} heads, but the model has {layers} "
                f"layers of {heads}; make the plan for this model."
            )
        width = heads * self.encoder.head_dim
        for layer, site in enumerate(self.encoder.sites):
            if site.projection is not None and site.projection.in_features != width:
                raise UserError(
                    f"The heads of layer {layer} have {site.projection.in_features} outputs in total instead of "
                    f"{width}, so heads were pruned or merged; disable heads of the model before pruning."
                )
        if any(variant.parts for variant in plan.variants):
            check_parts(self.encoder)
        if self.mode.needs & OF_CONSTANTS:
            check_constants(self.encoder, self.mode, constants_LHd)
        self.device = next(self.encoder.base.parameters()).device
        if max_tokens is None:
            max_tokens = TOKENS_ON_CPU if self.device.type == "cpu" else TOKENS_ON_ACCELERATOR
        self.max_tokens = max_tokens
        self.outcome = outcome
        self.shares = outcome is None and shares_passes(self.encoder, plan)
        if not continues(self.encoder):
            _log.warning(
                f"Passes of model type '{self.encoder.base.config.model_type}' cannot start at a given layer, so "
                "every variant needs a whole forward pass."
            )
        self.edits_VL: list[list[LayerEdit]] = [
            [
                LayerEdit(
                    tuple(head for at, head in variant.heads if at == layer),
                    tuple(name for at, name in variant.parts if at == layer),
                )
                for layer in range(plan.num_layers)
            ]
            for variant in plan.variants
        ]
        self.edited_VLH = torch.zeros(len(plan.variants), plan.num_layers, plan.num_heads, dtype=torch.bool)
        for index, variant in enumerate(plan.variants):
            for layer, place in variant.heads:
                self.edited_VLH[index, layer, place] = True

    def run(
        self,
        inputs: Mapping[str, Tensor],
        progress: Callable[[int], object] | None = None,
        donors: Sequence[Mapping[str, Tensor]] = (),
        gradients: bool = False,
        head: TaskHead = SEQUENCE,
        label_B: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Logits of the unedited model, ``[B, C]``, and of every variant, ``[B, V, C]``; float32 or wider.

        For heads other than sequence heads, answers (:class:`~bertsecrets.task_heads.base.TaskHead`) instead of logits.

        The model runs in evaluation mode and then returns to its previous mode; no random numbers are drawn. With
        donors, a variant's logits are the mean over the draws.

        Args:
            inputs: Keyword arguments of the model with ``attention_mask``, on its device.
            progress: Called with the number of variants newly completed for the whole batch.
            donors: For modes that need donors: for each draw, the keyword arguments of the model for one other example
                per example of the batch.
            gradients: Whether gradients flow from the logits to ``constants_LHd``; activations are kept for them.
            head: What the model's head predicts.
            label_B: The labels, for heads whose answers are counts of correct predictions.

        Raises:
            UserError: If the mode needs donors and there are none, or memory runs out for a single variant.
        """
        self.head = head
        takes_donors = ModeNeed.DONORS in self.mode.needs
        if takes_donors and not donors:
            raise UserError(
                f"Mode '{self.mode.name}' takes the heads' outputs from other examples; pass these as donors."
            )
        if len(donors) > 1 and head.statistics and any(metric.events for metric in head.metrics.values()):
            raise UserError(
                f"Mode '{self.mode.name}' averages the answers of {len(donors)} draws, but an answer of kind "
                f"'{head.kind}' is either right or wrong; allow one draw (ablation.draws=1, in Python draws=1)."
            )
        with evaluating(self.encoder.model), torch.set_grad_enabled(gradients):
            if takes_donors:
                # Mean logits, not mean losses, because a variant has one prediction per example. A variant is complete
                # in the last draw.
                draws = [self._draw(inputs, donor, None, label_B) for donor in donors[:-1]]
                draws.append(self._draw(inputs, donors[-1], progress, label_B))
                clean_RC, logits_RVC = draws[0][0], torch.stack([logits_RVC for _, logits_RVC in draws]).mean(0)
            else:
                clean_RC, logits_RVC = self._draw(inputs, None, progress, label_B)
            return head.together(clean_RC), head.together(logits_RVC)

    def _draw(
        self,
        inputs: Mapping[str, Tensor],
        donors: Mapping[str, Tensor] | None,
        progress: Callable[[int], object] | None,
        label_B: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        if not self.shares:
            return self._one_by_one(inputs, donors, progress, label_B)
        # Until the passes fit; the limit that works is kept for the following batches.
        while True:
            try:
                return self._in_parts(inputs, donors, progress, label_B)
            except OwnForwardError:
                # For other kinds of passes, a whole pass would give a different effect.
                if self.pass_type is not EnginePass:
                    raise
                break
            except RuntimeError as error:
                # PyTorch has no exception class for running out of memory on a CPU.
                if not is_out_of_memory(error):
                    raise
                # The pass starts over: the failed one has filled in the logits of only some variants.
                self._halve(inputs, error)
        self.shares = False
        _log.warning(
            f"{type(self.encoder.model).__name__} does not compute its logits from its family's layers and head "
            "alone, so every variant needs a whole forward pass."
        )
        return self._one_by_one(inputs, donors, progress, label_B)

    def _in_parts(
        self,
        inputs: Mapping[str, Tensor],
        donors: Mapping[str, Tensor] | None,
        progress: Callable[[int], object] | None,
        label_B: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        real_BS = inputs["attention_mask"].bool()
        if donors is not None:
            check_donors(len(donors["attention_mask"]), len(real_BS))
        parts = parts_by_length(real_BS, self.max_tokens, self.encoder.num_heads)
        clean, logits, finished = [], [], 0
        for index, (row_P, length) in enumerate(parts):
            donors_P = None if donors is None else _rows_of(donors, row_P)
            # Rows are all first parts of examples, then all second ones; labels are those of examples.
            label_P = None if label_B is None else label_B[row_P % len(label_B)]
            clean_PC, logits_PVC = self.pass_type(self, _rows_of(inputs, row_P, length), donors_P, label_P).run()
            clean.append(clean_PC)
            logits.append(logits_PVC)
            if progress is not None:
                due = len(self.plan.variants) * (index + 1) // len(parts)
                progress(due - finished)
                finished = due
        place_B = torch.cat([row_P for row_P, _ in parts]).argsort()
        return torch.cat(clean)[place_B], torch.cat(logits)[place_B]

    def _halve(self, inputs: Mapping[str, Tensor], error: RuntimeError) -> None:
        rows, length = inputs["attention_mask"].shape
        # Halving a limit larger than what the batch takes would have no effect.
        largest = min(self.max_tokens, rows * length * len(self.plan.variants))
        if largest < 2 * length:
            raise UserError(
                f"Memory ran out for a single variant of a batch of {rows} examples of {length} tokens; lower "
                "task.training.batch_size or task.training.max_length."
            ) from error
        self.max_tokens = largest // 2
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        _log.warning(f"Memory ran out; continuing with at most {self.max_tokens} tokens of variants at once.")

    def _one_by_one(
        self,
        inputs: Mapping[str, Tensor],
        donors: Mapping[str, Tensor] | None,
        progress: Callable[[int], object] | None,
        label_B: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        clean_BC = self.answers(inputs, label_B)
        logits = []
        for variant in self.plan.variants:
            edits = [HeadEdit(layer, head, self.plan.mode) for layer, head in variant.heads]
            with (
                override(self.encoder.model, edits, self.constants_LHd, donors=donors),
                without_parts(self.encoder, variant.parts),
            ):
                logits.append(wide(self.answers(inputs, label_B)))
            if progress is not None:
                progress(1)
        return wide(clean_BC), torch.stack(logits, 1)

    def answers(self, inputs: Mapping[str, Any], label_B: Tensor | None) -> Tensor:
        """Answers ``[B, F]`` from one whole pass."""
        if self.outcome is not None:
            return self.outcome(inputs)
        return self.head.answers(self.head.output(self.encoder.model, inputs, label_B), label_B)

    def replaced(
        self,
        layer: int,
        output_RSD: Tensor,
        value_RHd: Tensor,
        edited_R1H1: Tensor,
        donated_RSHd: Tensor | None = None,
    ) -> Tensor:
        """The heads' outputs ``[R, S, H * d]``, with the edited ones replaced according to the plan's mode.

        Args:
            layer: The layer of the heads.
            output_RSD: Their outputs, concatenated.
            value_RHd: Mean value of each head over the real tokens.
            edited_R1H1: Which heads to replace, bool.
            donated_RSHd: The donors' outputs.
        """
        output_RSHd = output_RSD.unflatten(-1, (self.encoder.num_heads, -1))
        new_RSHd = self.replacement(layer, output_RSHd, lambda: value_RHd, donated_RSHd).to(output_RSD.dtype)
        return torch.where(edited_R1H1, new_RSHd, output_RSHd).flatten(2)

    def replacement(
        self,
        layer: int,
        output_RSHd: Tensor,
        values: Callable[[], Tensor],
        donated_RSHd: Tensor | None = None,
    ) -> Tensor:
        """The replacement for every head's output in the plan's mode; ``values`` computes the heads' mean values."""
        constants_LHd = self.constants_LHd
        constants_Hd = None if constants_LHd is None else constants_LHd[layer].to(output_RSHd)
        heads = Heads(layer, output_RSHd, values, constants_Hd=constants_Hd, donated_BSHd=donated_RSHd)
        return self.mode.replacement(heads)


def continues(encoder: Encoder) -> bool:
    """Whether a forward pass can start at any layer, which lets variants share the layers below their edits."""
    return encoder.family is not None and encoder.family.continues(encoder.model)


def parts_by_length(real_BS: Tensor, max_tokens: int, num_heads: int) -> list[tuple[Tensor, int]]:
    """Rows of similar length that go through the layers together, longest first, and the tokens of the longest.

    No part has more than ``max_tokens`` tokens, unless it is a single row. Padding is left out where that costs no
    speed: a part ends at a row that is shorter by more than an eighth, if the variants of one layer's heads fill a pass
    without it.

    Args:
        real_BS: Which tokens are real, bool.
        max_tokens: Limit on the number of tokens in one pass through a layer.
        num_heads: Heads of a layer.
    """
    place_S = torch.arange(1, real_BS.shape[1] + 1, device=real_BS.device)
    length_B = (real_BS * place_S).amax(1).clamp(min=1)
    order_B = length_B.argsort(descending=True, stable=True)
    lengths, starts = length_B[order_B].tolist(), [0]
    for row, length in enumerate(lengths[1:], 1):
        longest = lengths[starts[-1]]
        tokens = (row - starts[-1]) * longest
        if tokens + longest > max_tokens or (tokens * num_heads >= max_tokens and 8 * length < 7 * longest):
            starts.append(row)
    return [(order_B[start:end], lengths[start]) for start, end in pairwise([*starts, len(lengths)])]


def _rows_of(inputs: Mapping[str, Any], row_P: Tensor, length: int | None = None) -> dict[str, Any]:
    """Arguments of a model for some rows of a batch, whose tokens after ``length`` are padding."""
    batch, tokens = inputs["attention_mask"].shape
    picked = {name: pick_rows(value, batch, row_P) for name, value in inputs.items()}
    return {
        name: value[:, :length] if isinstance(value, Tensor) and value.dim() > 1 and value.shape[1] == tokens else value
        for name, value in picked.items()
    }


def shares_passes(encoder: Encoder, plan: Plan) -> bool:
    """Whether variants of a plan share passes: passes can start at any layer, and the mode needs no values or weights
    of single tokens.
    """
    return continues(encoder) and not find_mode(plan.mode).needs & PER_TOKEN


class EnginePass:
    """One pass of a batch through the layers with all variants.

    A *node* is a set of variants that have been identical so far. The rows of a tensor are the examples of all nodes,
    node by node (R = nodes times examples).
    """

    def __init__(
        self,
        engine: Engine,
        inputs: Mapping[str, Tensor],
        donors: Mapping[str, Tensor] | None = None,
        label_B: Tensor | None = None,
    ) -> None:
        self.engine = engine
        self.encoder = engine.encoder
        family = engine.encoder.family
        assert family is not None
        self.family = family
        self.real_BS = inputs["attention_mask"].bool()
        self.label_B = label_B
        output, self.layers = clean_pass(
            engine.encoder, inputs, lambda: engine.head.output(engine.encoder.model, inputs, label_B)
        )
        self.read_BW = engine.head.reads(engine.encoder, self.real_BS, label_B)
        check_forward(engine.encoder, output, self.layers, self.real_BS, self.finish, label_B, self.read_BW)
        self.clean_BC = engine.head.answers(output, label_B)
        self.donated_LBSD: list[Tensor] = []
        if donors is not None:
            donated = DonatedOutputs(engine.encoder, donors)
            self.donated_LBSD = [donated.at(layer, self.real_BS) for layer in range(engine.encoder.num_layers)]
        self.logits_BVC = torch.empty(
            len(self.real_BS),
            len(engine.plan.variants),
            self.clean_BC.shape[-1],
            dtype=torch.promote_types(self.clean_BC.dtype, torch.float32),
            device=self.clean_BC.device,
        )
        self._repeated: dict[tuple[int, int], Any] = {}

    def run(self) -> tuple[Tensor, Tensor]:
        """Answers of the unedited model, ``[B, F]``, and of every variant, ``[B, V, F]``."""
        remaining = list(range(len(self.engine.plan.variants)))
        for layer, clean in enumerate(self.layers):
            leaving = [variant for variant in remaining if self.engine.edits_VL[variant][layer]]
            if leaving:
                # A variant branches off at its lowest edit; its higher edits are made on the way up.
                remaining = [variant for variant in remaining if variant not in set(leaving)]
                hidden_BSD, output_BSD = (
                    self._needed(layer, value_BSD) for value_BSD in (clean.hidden_BSD, clean.output_BSD)
                )
                self._branch(layer, hidden_BSD, output_BSD, clean.value_BHd, [leaving])
        return wide(self.clean_BC), self.logits_BVC

    def at_read(self, value_RSX: Tensor, copies: int = 1) -> Tensor:
        """The tokens that the head reads, in the rows of ``copies`` nodes."""
        return value_RSX if self.read_BW is None else taken(value_RSX, self.read_BW.repeat(copies, 1))

    def _needed(self, layer: int, value_RSX: Tensor, copies: int = 1) -> Tensor:
        """The tokens of a layer that reach the head: all, but of the last layer those that the head reads."""
        return value_RSX if layer < self.encoder.num_layers - 1 else self.at_read(value_RSX, copies)

    def _branch(
        self, layer: int, hidden_RSD: Tensor, output_RSD: Tensor, value_RHd: Tensor, nodes: Sequence[Sequence[int]]
    ) -> None:
        """Continue with the variants of each node that change this layer, in parts of limited size."""
        children: list[tuple[int, list[int]]] = []
        for parent, node in enumerate(nodes):
            children += [(parent, variants) for edits, variants in self._by_edits(node, layer).items() if edits]
        examples = len(self.real_BS)
        size = max(1, self.engine.max_tokens // (examples * hidden_RSD.shape[1]))
        for start in range(0, len(children), size):
            part = children[start : start + size]
            variants_of_part = [variants for _, variants in part]
            # repeat() copies blocks; indexing would gather row by row.
            if len(nodes) == 1:
                sources = [tensor.repeat(len(part), 1, 1) for tensor in (hidden_RSD, output_RSD, value_RHd)]
            else:
                rows_R = torch.cat([torch.arange(parent * examples, (parent + 1) * examples) for parent, _ in part])
                rows_R = rows_R.to(hidden_RSD.device)
                sources = [tensor[rows_R] for tensor in (hidden_RSD, output_RSD, value_RHd)]
            replaced_RSD = self._replace(layer, sources[1], sources[2], variants_of_part)
            next_RSD = self._after_heads(layer, replaced_RSD, sources[0], variants_of_part)
            self.descend(layer + 1, next_RSD, variants_of_part)

    def descend(self, layer: int, hidden_RSD: Tensor, nodes: Sequence[Sequence[int]]) -> None:
        """Compute the logits of nodes from the input of a layer."""
        last = self.encoder.num_layers - 1
        while layer <= last:
            reads = layer == last and self.read_BW is not None
            linears = self.family.linear_attention_inputs(self.encoder.sites[layer]) if reads else None
            if linears is not None:
                hidden_RSD, nodes = self._read_tokens(layer, hidden_RSD, nodes, linears)
            elif all(len(self._by_edits(node, layer)) == 1 for node in nodes):
                hidden_RSD = self._needed(layer, self._layer(layer, hidden_RSD, nodes), len(nodes))
            else:
                hidden_RSD, nodes = self._fork(layer, hidden_RSD, nodes)
            if not nodes:
                return
            layer += 1
        self.classify(hidden_RSD, nodes)

    def classify(self, hidden_RSD: Tensor, nodes: Sequence[Sequence[int]]) -> None:
        real_BS = self.real_BS if self.read_BW is None else self.real_BS.gather(1, self.read_BW)
        real_RS = real_BS.repeat(len(nodes), 1)
        label_R = None
        if self.label_B is not None:
            label_R = self.label_B.repeat(len(nodes), *[1] * (self.label_B.dim() - 1))
        answers_RF = self.engine.head.answers(self.finish(hidden_RSD, real_RS, label_R), label_R)
        logits_NBC = answers_RF.unflatten(0, (len(nodes), -1))
        for node, logits_BC in zip(nodes, logits_NBC, strict=True):
            for variant in node:
                self.logits_BVC[:, variant] = logits_BC.to(self.logits_BVC.dtype)

    def finish(self, hidden_RSD: Tensor, real_RS: Tensor, label_R: Tensor | None) -> Tensor:
        """The head's output for the output of the last layer, at the tokens that it reads."""
        return self.engine.head.finish(self.encoder, hidden_RSD, real_RS, label_R)

    def _layer(self, layer: int, hidden_RSD: Tensor, nodes: Sequence[Sequence[int]]) -> Tensor:
        """Run a whole layer that all variants of a node change in the same way, or not at all."""
        module = self.encoder.layers[layer]
        arguments = self._arguments(layer, len(nodes))
        if not any(self.engine.edits_VL[node[0]][layer] for node in nodes):
            return first_of(module(hidden_RSD, **arguments))

        def edit(output_RSD: Tensor, value_RHd: Tensor) -> Tensor:
            return self._replace(layer, output_RSD, value_RHd, nodes)

        rows = self._left_out(layer, nodes)
        # Families whose feed-forward parts cannot be left out can still disable heads of several layers together.
        leaving = left_out(self.encoder, layer, lambda: rows) if rows else nullcontext()
        with self._at_projection(layer, len(nodes), edit), leaving:
            return skip(rows, hidden_RSD, first_of(module(hidden_RSD, **arguments)))

    def _fork(self, layer: int, hidden_RSD: Tensor, nodes: Sequence[Sequence[int]]) -> tuple[Tensor, list[list[int]]]:
        """Run a layer in which variants of a node differ: those that change it branch off.

        Returns:
            The layer's output and the nodes of the variants that do not edit it.
        """
        seen: list[tuple[Tensor, Tensor]] = []

        def keep(output_RSD: Tensor, value_RHd: Tensor) -> Tensor:
            seen.append((output_RSD, value_RHd))
            return output_RSD

        with self._at_projection(layer, len(nodes), keep):
            next_RSD = first_of(self.encoder.layers[layer](hidden_RSD, **self._arguments(layer, len(nodes))))
        # One call: the layer ran once, for all nodes.
        (output_RSD, value_RHd), *_ = seen
        hidden_RSD, output_RSD, next_RSD = (
            self._needed(layer, value_RSD, len(nodes)) for value_RSD in (hidden_RSD, output_RSD, next_RSD)
        )
        self._branch(layer, hidden_RSD, output_RSD, value_RHd, nodes)
        return self._unedited(layer, next_RSD, nodes)

    def _read_tokens(
        self,
        layer: int,
        hidden_RSD: Tensor,
        nodes: Sequence[Sequence[int]],
        linears: tuple[nn.Linear, nn.Linear, nn.Linear],
    ) -> tuple[Tensor, Sequence[Sequence[int]]]:
        """Run the last layer for the tokens that the head reads; return its output and the nodes that did not branch
        off.
        """
        assert self.read_BW is not None
        heads = self.encoder.num_heads
        real_RS = self.real_BS.repeat(len(nodes), 1)
        read_RW = self.read_BW.repeat(len(nodes), 1)
        output_RWD = read_output(
            linears, hidden_RSD, read_RW, real_RS, heads, self.family.score_bias(self.layers[layer].arguments)
        )
        read_RWD = self.at_read(hidden_RSD, len(nodes))
        if any(edits for node in nodes for edits in self._by_edits(node, layer)):
            value_RHd = mean_values(linears[2], hidden_RSD, real_RS, heads)
            if all(len(self._by_edits(node, layer)) == 1 for node in nodes):
                output_RWD = self._replace(layer, output_RWD, value_RHd, nodes)
                return self._after_heads(layer, output_RWD, read_RWD, nodes), nodes
            self._branch(layer, read_RWD, output_RWD, value_RHd, nodes)
            next_RWD = self.family.after_heads(self.encoder.layers[layer], output_RWD, read_RWD)
            return self._unedited(layer, next_RWD, nodes)
        return self.family.after_heads(self.encoder.layers[layer], output_RWD, read_RWD), nodes

    def _unedited(self, layer: int, next_RSD: Tensor, nodes: Sequence[Sequence[int]]) -> tuple[Tensor, list[list[int]]]:
        """Rows and nodes of the variants that do not edit a layer."""
        unedited = [self._by_edits(node, layer).get(LayerEdit(), []) for node in nodes]
        going_on = [index for index, node in enumerate(unedited) if node]
        rows_NBSD = next_RSD.unflatten(0, (len(nodes), -1))
        return rows_NBSD[going_on].flatten(0, 1), [unedited[index] for index in going_on]

    def _replace(self, layer: int, output_RSD: Tensor, value_RHd: Tensor, nodes: Sequence[Sequence[int]]) -> Tensor:
        """The heads' outputs, with those of the heads that each node disables in this layer replaced."""
        edited_NH = self.engine.edited_VLH[[node[0] for node in nodes], layer]
        if not edited_NH.any():
            return output_RSD
        examples = len(self.real_BS)
        edited_R1H1 = edited_NH.to(output_RSD.device).repeat_interleave(examples, 0)[:, None, :, None]
        donated_RSHd = None
        if self.donated_LBSD:
            new_BSD = self._needed(layer, self.donated_LBSD[layer])
            donated_RSHd = new_BSD.repeat(len(nodes), 1, 1).unflatten(-1, (self.encoder.num_heads, -1))
        return self.engine.replaced(layer, output_RSD, value_RHd, edited_R1H1, donated_RSHd)

    def _after_heads(
        self, layer: int, output_RSD: Tensor, hidden_RSD: Tensor, nodes: Sequence[Sequence[int]]
    ) -> Tensor:
        """The rest of a layer above its heads, without the parts that each node leaves out."""
        module, rows = self.encoder.layers[layer], self._left_out(layer, nodes)
        if not rows:
            return self.family.after_heads(module, output_RSD, hidden_RSD)
        with left_out(self.encoder, layer, lambda: rows):
            return skip(rows, hidden_RSD, self.family.after_heads(module, output_RSD, hidden_RSD))

    def _left_out(self, layer: int, nodes: Sequence[Sequence[int]]) -> Rows:
        """The rows in which each part of a layer is left out."""
        parts_N = [self.engine.edits_VL[node[0]][layer].parts for node in nodes]
        examples = len(self.real_BS)
        return {
            name: torch.tensor([name in parts for parts in parts_N], device=self.real_BS.device).repeat_interleave(
                examples
            )[:, None, None]
            for name in {name for parts in parts_N for name in parts}
        }

    @contextmanager
    def _at_projection(self, layer: int, copies: int, act: Callable[[Tensor, Tensor], Tensor]) -> Any:
        """While open, replace the input of a layer's output projection by ``act(output, mean values)``."""
        site = self.encoder.sites[layer]
        real_RS = self.real_BS.repeat(copies, 1)
        with keeping_values([site]) as projected:

            def replace(site: AttentionSite, output_RSD: Tensor) -> Tensor:
                projected_RSD = projected.pop(id(site.module))
                value_RSHd = self.family.values(site, projected_RSD, self.encoder.num_heads)
                return act(output_RSD, mean_over_real(value_RSHd, real_RS))

            with at_inputs([site], "projection", replace):
                yield

    def _arguments(self, layer: int, copies: int) -> dict[str, Any]:
        repeated = {}
        for name, value in self.layers[layer].arguments.items():
            if name in self.family.unbatched:
                repeated[name] = value
                continue
            # Most layers get the same mask and positions, which are repeated once for all of them. They are compared by
            # identity; the clean pass holds these tensors, so ids are unique.
            key = (id(value), copies)
            if key not in self._repeated:
                self._repeated[key] = repeat_rows(value, len(self.real_BS), copies)
            repeated[name] = self._repeated[key]
        return repeated

    def _by_edits(self, node: Sequence[int], layer: int) -> dict[LayerEdit, list[int]]:
        """The variants of a node, grouped by what they change in a layer."""
        variants_by_edit: dict[LayerEdit, list[int]] = {}
        for variant in node:
            variants_by_edit.setdefault(self.engine.edits_VL[variant][layer], []).append(variant)
        return variants_by_edit
