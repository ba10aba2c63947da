"""What a sweep will cost and can show, and how long other work takes, predicted before it runs."""

import logging
import math
import time
from collections import Counter
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from bertsecrets.ablation.arithmetic import prefers_bf16, why_not_bf16
from bertsecrets.ablation.engine import shares_passes
from bertsecrets.ablation.plan import Plan, Variant
from bertsecrets.ablation.replacements import FIT_BATCH
from bertsecrets.ablation.screening import why_not
from bertsecrets.ablation.settings import BF16, FP32, MEASURED, AblationSettings, Precision
from bertsecrets.analysis import Context
from bertsecrets.attention.hooks import eager_execution
from bertsecrets.attention.modes import ModeNeed, find_mode
from bertsecrets.data.batch import over_processes
from bertsecrets.data.module import example_count
from bertsecrets.errors import UserError
from bertsecrets.float64 import float64_device
from bertsecrets.models.encoder import Autocast, Encoder, evaluating
from bertsecrets.results.components import HEAD
from bertsecrets.results.formatting import number
from bertsecrets.statistics.power import detectable_loss
from bertsecrets.task_heads import METRICS

_log = logging.getLogger(__name__)

NOMINAL = {"cpu": 2e11, "cuda": 2e13}
"""Nominal operations per second, by type of device.

Two cores of an AMD EPYC reach about the first; the second is a rough figure, not a measurement.
"""

EXACT_UP_TO = 10.0
"""By default, a sweep that takes at most this many seconds at the nominal speed of the device is exact."""

FEWEST_SCREENED = 4000
"""By default, a sweep over fewer examples is exact: for a single head, an audit of a tenth of them leaves most of a
margin of 1 point open.
"""

FEWEST = 32
"""The smallest sample to which a budget may reduce a sweep."""

FLIPS = 0.01
"""Share of predictions assumed to change at random when the smallest detectable loss is reported."""

_PROBE = 8
"""Smallest number of examples in the timed passes."""
_PROBE_TOKENS = 512
"""Number of tokens in the timed passes, if the first batch has that many: smaller products are slower."""

_SECONDS = 0.2
"""Seconds for which passes are timed (at least two passes): short passes are easily disturbed."""

_ACTIVE = 0.3
"""Approximate share of the pairs that a screened sweep evaluates in addition to the audit."""

_ACTIVE_BF16 = 0.2
"""Equivalent share of fp32 pairs if clear-cut pairs run in bf16: each takes half the time, and .05 of the pairs (near a
change of prediction, or in the pilot) run again in fp32.
"""

_PASSES = 5.5
"""Evaluations that a screened sweep with two classes needs in addition to its pairs: slopes, and the unedited passes of
all rounds.
"""


@dataclass(frozen=True)
class Decision:
    """How a sweep runs.

    Args:
        kind: ``exact`` or ``screened``.
        examples: Number of examples.
        precision: ``bf16-mixed`` for a screened sweep's clear-cut pairs, or ``32-true``: all passes are in the
            trainer's precision.
        reason: Why passes cannot run in bf16, as a clause; None if they can.
    """

    kind: str
    examples: int
    precision: Precision = FP32
    reason: str | None = None


@dataclass(frozen=True)
class Times:
    """Seconds of the exact sweep, of the screened one (None if it cannot be screened), and of a fit before either."""

    exact: float
    screened: float | None
    fit: float = 0.0

    def of(self, kind: str) -> float:
        """Seconds of a sweep of this kind; of the exact one if it cannot be screened."""
        return self.exact if kind == "exact" or self.screened is None else self.screened

    def choice(self, limit: float) -> str:
        """``screened`` if the exact sweep takes longer than ``limit`` seconds and the screened one is faster, else
        ``exact``.
        """
        return "screened" if self.of("screened") < self.exact and self.exact > limit else "exact"


@dataclass(frozen=True)
class Forecast:
    """The size and predicted cost of a sweep.

    Args:
        examples, variants: What is evaluated.
        measured: Predicted from the measured speed.
        nominal: Predicted from the nominal speed of the device, in fp32; a choice by these does not depend on the load.
        unscreened: Why the sweep cannot be screened, as a clause.
        metric: The task's first metric.
        needed: Level of *needed* over all variants (``alpha`` of :class:`bertsecrets.ablation.verdicts.Judging`).
        family: The largest number of variants of one kind, which are corrected together.
        precision, reason: Those of the :class:`Decision`; for screened sweeps only.
    """

    examples: int
    variants: int
    measured: Times
    nominal: Times
    unscreened: str | None
    metric: str
    needed: float
    family: int
    precision: Precision = FP32
    reason: str | None = None

    def decide(self, requested: str | None, budget: float | None = None, limit: float | None = None) -> Decision:
        """Choose how to sweep: as requested, else by size and nominal time; take a random sample if a budget requires
        one.

        Args:
            requested: ``exact``, ``screened``, ``measured`` to choose by measured time, or None.
            budget: Measured seconds; None for no limit.
            limit: Nominal seconds beyond which the sweep is skipped.

        Raises:
            UserError: If the budget is too small for :data:`FEWEST` examples.
        """
        times = self.measured if requested == MEASURED or budget is not None else self.nominal
        if self.measured.screened is None:
            kind = "exact"
        elif requested is None or requested == MEASURED:
            patience = EXACT_UP_TO if requested == MEASURED else self._patience(limit)
            kind = times.choice(patience if budget is None else budget - times.fit)
            if budget is not None and self._within(budget, "screened") < FEWEST_SCREENED:
                kind = "exact"
        else:
            kind = requested
        sample = self.examples if budget is None else self._within(budget, kind)
        fewest = min(FEWEST, self.examples)
        if budget is not None and sample < fewest:
            least = self.measured.fit + self.measured.of(kind) * fewest / self.examples
            raise UserError(
                f"ablation.budget is {duration(budget)}, but {fewest} examples take about {duration(least)}; give more "
                "time, or disable fewer heads (ablation.layer=...)."
            )
        return Decision(kind, sample, self.precision, self.reason)

    def _within(self, budget: float, kind: str) -> int:
        """How many examples fit into a budget of measured seconds, nearly all of which is spent on passes over
        variants.
        """
        return min(self.examples, int(self.examples * (budget - self.measured.fit) / self.measured.of(kind)))

    def _patience(self, limit: float | None) -> float:
        """The number of seconds up to which a sweep is exact by default."""
        if self.examples >= FEWEST_SCREENED:
            return EXACT_UP_TO
        return math.inf if limit is None else limit - self.nominal.fit

    def in_words(
        self, decision: Decision, requested: str | None, budget: float | None, limit: float | None = None
    ) -> str:
        """One line: what will be done, how long each kind of sweep takes, and what can be detected."""
        kind = decision.kind
        costs = f"exact sweep about {duration(self.measured.exact)}"
        if self.measured.screened is not None:
            costs += f", screened sweep about {duration(self.measured.screened)}"
            if decision.precision == BF16:
                costs += " (bf16; fp32 near a change of prediction)"
            elif decision.reason is not None:
                costs += f" (without bf16 because {decision.reason})"
        if self.measured.fit:
            costs += f", after a fit of about {duration(self.measured.fit)}"
        metric, smallest = METRICS.get(self.metric), math.nan
        # Of statistics, an example counts as many events as it has.
        if metric is not None and metric.of_classes and not metric.of_statistics:
            smallest = detectable_loss(FLIPS, decision.examples, 2 * self.needed / self.family)
        shown = (
            f"; an accuracy loss of {number(100 * smallest, 1)} points or more is detected with 80 % power if 1 % of "
            "the predictions also change at random"
            if math.isfinite(smallest)
            else ""
        )
        how = f"{'Exact' if kind == 'exact' else 'Screened'} sweep"
        if self.unscreened is not None and (
            requested == "screened" or (requested is None and self.nominal.exact > self._patience(limit))
        ):
            how += f", as {self.unscreened}"
        elif requested is None and self.measured.screened is not None:
            other = "screened" if kind == "exact" else "exact"
            by_nominal = budget is None and self.measured.choice(self._patience(limit)) != kind
            why = "chosen by nominal speed, regardless of the load; " if by_nominal else ""
            how += f" ({why}ablation.sweep={other} for the other)"
        if decision.examples < self.examples:
            how += f" of {decision.examples:,} random examples, which fit into the budget; this widens the intervals"
        return f"Disabling {self.variants:,} variants on {self.examples:,} examples: {costs}{shown}. {how}."


def forecast(
    context: Context, plan: Plan, settings: AblationSettings, precision: Precision | None, fp32: Autocast
) -> Forecast:
    """Predict the duration of a sweep from that of a few forward passes; the same on all processes.

    Args:
        context: The model and its examples; part of this process's first batch is timed.
        plan: What is disabled.
        settings: Those of the sweep.
        precision: Precision of a screened sweep; None to choose by processor.
        fp32: Context of a pass in fp32.

    Raises:
        UserError: If ``precision`` is ``bf16-mixed`` but bf16 is not possible.
    """
    encoder, most = context.encoder, settings.max_examples
    # An exact sweep takes a pass for each draw of other examples.
    draws = settings.draws if ModeNeed.DONORS in find_mode(plan.mode).needs else 1
    unscreened = why_not(context.task, plan, encoder)
    reason = None if precision == FP32 else why_not_bf16(encoder, context.autocast, unscreened)
    tokens, kind = _tokens(context, most), next(encoder.base.parameters()).device.type
    weights = sum(weight.numel() for layer in encoder.layers for weight in layer.parameters())
    # Two operations per layer weight and token.
    nominal_here = 2.0 * weights * tokens / NOMINAL.get(kind, NOMINAL["cpu"])
    # The fit of outputs to labels, in forward passes over this process's examples.
    fit, examples = 0.0, sum(len(spec.positions) for spec in context.batches(most).sampler)
    if ModeNeed.FITTED_OUTPUTS in find_mode(plan.mode).needs and examples:
        heads = sorted({head for variant in plan.variants for head in variant.heads})
        alone = replace(plan, variants=tuple(Variant(str(head), HEAD.name, (head,)) for head in heads))
        # Each process fits all heads. Without gradients of weights, a backward pass takes as long as a forward pass.
        fit = 2 * settings.optimal_steps * FIT_BATCH / examples * pair_evaluations(encoder, alone)
    # All processes must make the same decision: that of the slowest, in bf16 only if it suits every processor.
    seconds, nominal, fit_seconds, nominal_fit, without_bf16 = _largest(
        context,
        _seconds(context, most, fp32),
        nominal_here,
        # Passes with gradients are the trainer's.
        fit * _seconds(context, most, context.autocast) if fit else 0.0,
        fit * nominal_here,
        float(not prefers_bf16(encoder)),
    )
    if precision == BF16:
        check_bf16(reason)
    if precision is None:
        precision = FP32 if without_bf16 or reason is not None else BF16
    pairs = pair_evaluations(encoder, plan)
    # Slopes take a forward and a backward pass for each logit except one.
    passes = _PASSES + 2.2 * (int(encoder.model.config.num_labels or 2) - 2)

    def times(seconds: float, active: float, fit: float) -> Times:
        screened = None if unscreened is not None else seconds * (passes + (active + settings.audit) * pairs)
        return Times(seconds * draws * (1 + pairs), screened, fit)

    return Forecast(
        examples=example_count(context.split, context.positions(most)),
        variants=len(plan.variants),
        measured=times(seconds, _ACTIVE_BF16 if precision == BF16 else _ACTIVE, fit_seconds),
        nominal=times(nominal, _ACTIVE, nominal_fit),
        unscreened=unscreened,
        metric=context.task.metrics[0],
        needed=settings.judging().alpha,
        family=max(Counter(variant.kind for variant in plan.variants).values()),
        precision=precision,
        reason=reason,
    )


def check_bf16(reason: str | None) -> None:
    """Raise UserError if passes in bf16 were requested but are not possible."""
    if reason is not None:
        raise UserError(
            f"Passes in {BF16} are not possible because {reason}; set ablation.precision={FP32} to run all passes "
            "with trainer.precision."
        )


def announce(work: str, context: Context, evaluations: float, max_examples: int | None = None) -> None:
    """Log in one line how long work on all processes takes, predicted as for a sweep.

    Args:
        work: What will be done, as the beginning of a sentence.
        context: The model and the examples.
        evaluations: Cost of the work, in forward passes over the examples.
        max_examples: Size of the random sample of examples; None for all.
    """
    [seconds] = _largest(context, _seconds(context, max_examples, context.autocast))
    _log.info(f"{work}: about {duration(evaluations * seconds)}.")


def _largest(context: Context, *numbers: float) -> list[float]:
    """The largest of each number over all processes."""
    value_X = torch.tensor(numbers, dtype=torch.float64, device=float64_device(context.device))
    return [float(value) for value in over_processes(value_X, ReduceOp.MAX)]


@torch.no_grad()
def _seconds(context: Context, max_examples: int | None, autocast: Autocast) -> float:
    """Seconds of a forward pass over this process's examples, from the shortest of a few passes over one batch."""
    network = context.encoder.model
    for whole in context.batches(max_examples):
        batch = whole.to(context.device)
        rows = max(_PROBE, _PROBE_TOKENS // batch.input_ids_BS.shape[1])
        inputs: dict[str, Tensor] = {
            name: value[:rows] if value.shape[:1] == (batch.size,) else value for name, value in batch.inputs().items()
        }
        spent: list[float] = []
        with evaluating(network), eager_execution(), autocast():
            while len(spent) < 2 or sum(spent) < _SECONDS:
                started = time.perf_counter()
                network(**inputs)
                if inputs["input_ids"].is_cuda:
                    torch.cuda.synchronize()
                spent.append(time.perf_counter() - started)
        # The shortest time, because disturbances only ever make a pass longer.
        return min(spent) * _tokens(context, max_examples) / inputs["input_ids"].numel()
    return 0.0


def _tokens(context: Context, max_examples: int | None) -> int:
    """Number of tokens in this process's batches, including padding."""
    lengths, by_row = context.split.lengths, context.split.by_row
    rows = 1 if by_row is None else len(by_row) // len(lengths)
    batches = context.batches(max_examples)
    return rows * sum(len(spec.positions) * max(lengths[at] for at in spec.positions) for spec in batches.sampler)


def pair_evaluations(encoder: Encoder, plan: Plan) -> float:
    """The cost of all variants of an example, in forward passes: the layers above each variant's lowest edit.

    The part of a layer above its heads is nine twelfths of the layer; if the task head reads only one token, the last
    layer costs next to nothing.
    """
    family = encoder.family
    if family is None or not shares_passes(encoder, plan):
        return float(len(plan.variants))
    layers = encoder.num_layers - encoder.first_token_decides
    lowest = [min(variant.layers) for variant in plan.variants]
    return sum(layers - 1 - layer + 0.75 for layer in lowest if layer < layers) / encoder.num_layers


def seconds_of(duration: str) -> float:
    """A time such as ``90s``, ``10min`` or ``1.5h``, in seconds."""
    unit = duration.lstrip("0123456789.")
    return float(duration.removesuffix(unit)) * {"s": 1, "min": 60, "h": 3600}[unit]


def duration(seconds: float) -> str:
    """Seconds in a readable form: ``8 s``, ``3 min``, ``1.5 h``."""
    if seconds < 100:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 6000 else f"{number(seconds / 3600, 1)} h"
