"""Sets of removed heads: the inputs of scores, and predictions, parameters and FLOPs of the model without each set."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from bertsecrets.ablation.exact import exact_sweep
from bertsecrets.ablation.plan import Head, Plan, Variant
from bertsecrets.ablation.predictions import PairedPredictions
from bertsecrets.ablation.verdicts import change_limits
from bertsecrets.data.batch import Batch
from bertsecrets.data.task import Task
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.models.encoder import Autocast, describe
from bertsecrets.results.components import GROUP
from bertsecrets.results.estimate import Estimate
from bertsecrets.results.store import NOTHING_KEPT, Store
from bertsecrets.task_heads.metric import Array, Metric

HeadSet = frozenset[Head]


@dataclass(frozen=True)
class Situation:
    """The inputs of a score.

    Args:
        model: The model, in evaluation mode, with all its heads.
        task: The task.
        batches: The selection examples, the same on every process; each call restarts them.
        share: This process's share of them; None for all.
        split: The same examples as a tokenised split; None if there are only batches, which measures do not support.
        removed: Heads that are already removed.
        seed: Seed of a random score.
        context: Entered around every batch, e.g. the trainer's autocast.
        computed: Cache of scores by experiment and removed heads: column -> ``[layers, heads]``, reused for the
            opposite and for other columns of the experiment.
        store: Where finished batches of exact sweeps are kept.
        progress: Called with the number of newly finished passes of an example.
    """

    model: nn.Module
    task: Task
    batches: Callable[[], Iterable[Batch]]
    share: Callable[[], Iterable[Batch]] | None = None
    split: Callable[[], EncodedSplit] | None = None
    removed: HeadSet = frozenset()
    seed: int = 0
    context: Autocast = nullcontext
    computed: dict[tuple[str, HeadSet], Mapping[str, Tensor]] = field(default_factory=dict)
    store: Store = NOTHING_KEPT
    progress: Callable[[int], object] | None = None

    def share_batches(self) -> Iterable[Batch]:
        """This process's share of the examples."""
        return (self.share or self.batches)()


Score = Callable[[Situation], Tensor]
"""A score, ``[layers, heads]``: higher is better to keep. Numbers of removed heads are ignored."""


@dataclass(frozen=True, kw_only=True)
class SetResults(PairedPredictions):
    """Predictions and losses of a model with each of V sets of heads disabled (mode ``zero``).

    Args:
        clean_loss: Mean loss of the intact model.
        loss_V: Mean loss with each set disabled.
    """

    clean_loss: float
    loss_V: Array

    def of(self, variants: Sequence[int]) -> "SetResults":
        """The results of some of the sets."""
        index = list(variants)
        return replace(self, prediction_VN=self.prediction_VN[index], loss_V=self.loss_V[index])

    def estimates(self, metric: Metric, level: float) -> list[Estimate]:
        """Every set's change of score with pointwise limits, paired over examples."""
        baseline, score_V = self.scores(metric)
        low_V, high_V = change_limits(metric, self)(np.full(len(score_V), (1 - level) / 2))
        columns = zip((score_V - baseline).tolist(), low_V.tolist(), high_V.tolist(), strict=True)
        return [Estimate(change, low, high, n=self.count) for change, low, high in columns]


def evaluate_sets(
    model: nn.Module,
    sets: Sequence[HeadSet],
    batches: Iterable[Batch],
    task: Task,
    *,
    context: Autocast = nullcontext,
    store: Store = NOTHING_KEPT,
    progress: Callable[[int], object] | None = None,
) -> SetResults:
    """Disable every set of heads in one exact sweep over a data set, on all processes.

    Args:
        model: Any module that contains a transformers encoder with a sequence classification head.
        sets: The sets; an empty set is the intact model, and equal sets are computed once.
        batches: This process's share of the labelled examples.
        task: Defines predictions and losses.
        context: Entered around every batch, e.g. the trainer's autocast.
        store: Where finished batches are kept, to resume an interrupted search.
        progress: Called with the number of newly finished pairs of a set and an example.
    """
    encoder = describe(model)
    distinct = list(dict.fromkeys(heads for heads in sets if heads))
    # The engine needs a variant to run the intact model.
    computed = distinct or [frozenset({(0, 0)})]
    variants = tuple(
        Variant(f"set-{index:04d}", GROUP.name, tuple(sorted(heads))) for index, heads in enumerate(computed)
    )
    plan = Plan("zero", encoder.num_layers, encoder.num_heads, variants)
    outcomes = exact_sweep(model, plan, batches, context=context, store=store, progress=progress)
    paired = outcomes.predictions(task)
    clean_loss_N, loss_NV = outcomes.losses(task)
    index_of = {heads: index for index, heads in enumerate(distinct)}
    clean_loss = float(clean_loss_N.double().mean())
    loss_V = loss_NV.double().mean(0).numpy()
    return SetResults(
        paired.label_N,
        paired.clean_N,
        np.stack([paired.prediction_VN[index_of[heads]] if heads else paired.clean_N for heads in sets]),
        group_N=paired.group_N,
        clean_loss=clean_loss,
        loss_V=np.array([loss_V[index_of[heads]] if heads else clean_loss for heads in sets]),
    )


@dataclass(frozen=True)
class Cost:
    """The cost of a model, and the saving per removed head.

    Args:
        parameters, flops: Cost of the intact model; multiplications and additions for one example of ``length`` tokens.
        head_parameters, head_flops: Cost of one head.
        length: Tokens of the example.
    """

    parameters: int
    flops: int
    head_parameters: int
    head_flops: int
    length: int

    def without(self, removed: int) -> tuple[int, int]:
        """Parameters and FLOPs after removing some heads."""
        return self.parameters - removed * self.head_parameters, self.flops - removed * self.head_flops


def cost(model: nn.Module, length: int) -> Cost:
    """The cost of a model for one example of ``length`` tokens.

    A head of width d in a model of width D has 4 D d weights, 3 d biases, and 8 S D d + 4 S^2 d FLOPs for S tokens;
    position terms (DeBERTa) are not counted. If layers share their weights, a removed head saves no parameters.
    """
    encoder = describe(model)
    # Fused attention is not counted on every device.
    network = copy.deepcopy(encoder.model).eval()
    network.set_attn_implementation("eager")
    device = next(network.parameters()).device
    inputs: dict[str, Tensor] = {
        "input_ids": torch.full((1, length), 5, device=device),
        "attention_mask": torch.ones(1, length, dtype=torch.long, device=device),
    }
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network(**inputs)
    head_parameters = 0
    # A head's weights are shared with other layers.
    if not encoder.shares_layers:
        assert encoder.family is not None
        site, heads = encoder.sites[0], encoder.num_heads
        weights = sum(parameter.numel() for parameter, _, _ in encoder.family.head_weights(site, heads))
        rows = encoder.family.head_rows(site, heads) or ()
        biases = sum(linear.bias.numel() for linear, _, _ in rows if linear.bias is not None)
        head_parameters = (weights + biases) // heads
    width: int = encoder.base.config.hidden_size
    return Cost(
        sum(parameter.numel() for parameter in encoder.model.parameters()),
        int(counter.get_total_flops()),
        head_parameters,
        8 * length * width * encoder.head_dim + 4 * length**2 * encoder.head_dim,
        length,
    )
