"""What a sweep will cost and can show, and how long other work takes, told before it runs."""

import logging
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from bertsecrets.ablation.arithmetic import Arithmetic, by_onednn, in_bf16, preferred, why_not_bf16
from bertsecrets.ablation.engine import shares_passes
from bertsecrets.ablation.onednn import can_use_onednn
from bertsecrets.ablation.plan import Plan, Variant
from bertsecrets.ablation.reduced import Reduced
from bertsecrets.ablation.replacements import FIT_BATCH
from bertsecrets.ablation.screening import why_not
from bertsecrets.ablation.settings import BF16, FP32, MEASURED, AblationSettings, Precision
from bertsecrets.analysis import Context
from bertsecrets.attention.hooks import eager_execution
from bertsecrets.attention.modes import ModeNeed, find_mode
from bertsecrets.data.batch import Batch
from bertsecrets.errors import UserError
from bertsecrets.float64 import float64_device
from bertsecrets.models.encoder import Autocast, Encoder, evaluating
from bertsecrets.results.components import HEAD
from bertsecrets.results.formatting import number
from bertsecrets.statistics.power import detectable_loss
from bertsecrets.task_heads import METRICS

_log = logging.getLogger(__name__)

NOMINAL = {"cpu": 2e11, "cuda": 2e13}
"""Nominal operations per second by type of device.

Two cores of an AMD EPYC reach about the first; the second is a round figure, not a measurement.
"""

EXACT_UP_TO = 10.0
"""Without a choice, a sweep of up to so many seconds at the nominal speed of the device is exact."""

FEWEST_SCREENED = 4000
"""Without a choice, fewer examples are swept exactly: of a head, an audit of a tenth leaves most of a margin of 1 point
open.
"""

FEWEST = 32
"""The smallest sample that a budget may leave."""

FLIPS = 0.01
"""Share of predictions that change without an effect, for which the smallest loss is told."""

_PROBE = 8
"""Fewest examples of the passes that are timed."""
_PROBE_TOKENS = 512
"""Tokens of the passes that are timed, if the first batch has so many: smaller products are slower."""

_SECONDS = 0.1
"""Each way is timed for so long in a turn, and twice at least: of a small model, a pass is soon disturbed."""

_ACTIVE = 0.3
"""A screened sweep evaluates about so large a share of the pairs beside the audit."""

_AGAIN = 0.05
"""With bf16 about so large a share of the pairs is evaluated in fp32 beside the audit: near a change, and of the
pilot.
"""

_PASSES = 5.5
"""Evaluations that a screened sweep of two classes takes beside its pairs: slopes, and the unedited passes of all
rounds.
"""


@dataclass(frozen=True)
class Decision:
    """``exact`` or ``screened``, the number of examples, and the arithmetic of a screened sweep."""

    kind: str
    examples: int
    arithmetic: Arithmetic


@dataclass(frozen=True)
class Times:
    """Seconds of the exact sweep, of the screened one (None where a sweep cannot be screened), and of a fit before
    either.
    """

    exact: float
    screened: float | None
    fit: float = 0.0

    def of(self, kind: str) -> float:
        """Seconds of a sweep of this kind; of the exact one where it cannot be screened."""
        return self.exact if kind == "exact" or self.screened is None else self.screened

    def choice(self, limit: float) -> str:
        """``screened`` if the exact sweep takes longer than ``limit`` seconds and the screened one is faster, else
        ``exact``.
        """
        return "screened" if self.of("screened") < self.exact and self.exact > limit else "exact"


@dataclass(frozen=True)
class Forecast:
    """The plan of a sweep in numbers.

    Args:
        examples, variants: What is evaluated.
        measured: Predicted from the measured speed, the screened sweep in this arithmetic.
        nominal: Predicted from the nominal speed of the device, in fp32; a choice by these does not depend on the load.
        reason: Why it cannot, as a part of a sentence.
        metric: The task's first metric.
        needed: Level of *needed* over all variants (``alpha`` of :class:`bertsecrets.ablation.verdicts.Judging`).
        family: Most variants of one kind: they are corrected together.
        arithmetic: Of the sweep; bf16 of a screened one alone.
    """

    examples: int
    variants: int
    measured: Times
    nominal: Times
    reason: str | None
    metric: str
    needed: float
    family: int
    arithmetic: Arithmetic

    def decide(self, wish: str | None, budget: float | None = None, limit: float | None = None) -> Decision:
        """Choose how to sweep: as wished, else by size and nominal time; take a random sample if a budget requires one.

        Args:
            wish: ``exact``, ``screened``, ``measured`` to choose by measured time, or None.
            budget: Measured seconds; None for as long as it takes.
            limit: Nominal seconds beyond which the sweep is left out.

        Raises:
            UserError: If the budget is too small for :data:`FEWEST` examples.
        """
        times = self.measured if wish == MEASURED or budget is not None else self.nominal
        if self.measured.screened is None:
            kind = "exact"
        elif wish is None or wish == MEASURED:
            patience = EXACT_UP_TO if wish == MEASURED else self._patience(limit)
            kind = times.choice(patience if budget is None else budget - times.fit)
            if budget is not None and self._within(budget, "screened") < FEWEST_SCREENED:
                kind = "exact"
        else:
            kind = wish
        sample = self.examples if budget is None else self._within(budget, kind)
        fewest = min(FEWEST, self.examples)
        if budget is not None and sample < fewest:
            least = self.measured.fit + self.measured.of(kind) * fewest / self.examples
            raise UserError(
                f"ablation.budget is {duration(budget)}, but {fewest} examples take about {duration(least)}; give more "
                "time, or disable fewer heads (ablation.layer=...)."
            )
        return Decision(kind, sample, self.arithmetic)

    def _within(self, budget: float, kind: str) -> int:
        """How many examples fit into a budget of measured seconds: passes over variants are nearly all of it."""
        return min(self.examples, int(self.examples * (budget - self.measured.fit) / self.measured.of(kind)))

    def _patience(self, limit: float | None) -> float:
        """For how many seconds a sweep is exact without a choice."""
        if self.examples >= FEWEST_SCREENED:
            return EXACT_UP_TO
        return math.inf if limit is None else limit - self.nominal.fit

    def smallest(self, examples: int) -> float:
        """The loss of accuracy that is found with 80 % power where ``FLIPS`` of the predictions change without it; NaN
        if none.
        """
        metric = METRICS.get(self.metric)
        # Of statistics, an example counts as many events as it has.
        if metric is None or not metric.of_classes or metric.of_statistics:
            return math.nan
        return detectable_loss(FLIPS, examples, 2 * self.needed / self.family)

    def in_words(self, decision: Decision, wish: str | None, budget: float | None, limit: float | None = None) -> str:
        """One line: what is to be done, how long each way takes, and what can be shown."""
        kind = decision.kind
        costs = f"about {duration(self.measured.exact)} exactly"
        if self.measured.screened is not None:
            costs += f", {duration(self.measured.screened)} screened{_in_words(decision.arithmetic)}"
        if self.measured.fit:
            costs += f", after a fit of about {duration(self.measured.fit)}"
        smallest = self.smallest(decision.examples)
        shown = (
            f"; a loss of {number(100 * smallest, 1)} points of accuracy or more is found with 80 % power if 1 % of "
            "the predictions also change at random"
            if math.isfinite(smallest)
            else ""
        )
        how = f"{'Exact' if kind == 'exact' else 'Screened'} sweep"
        if self.reason is not None and (
            wish == "screened" or (wish is None and self.nominal.exact > self._patience(limit))
        ):
            how += f", as {self.reason}"
        elif wish is None and self.measured.screened is not None:
            other = "screened" if kind == "exact" else "exact"
            by_nominal = budget is None and self.measured.choice(self._patience(limit)) != kind
            why = "chosen by nominal speed, whatever the load; " if by_nominal else ""
            how += f" ({why}ablation.sweep={other} for the other)"
        if decision.examples < self.examples:
            how += f" of {decision.examples:,} random examples, which fit into the budget; intervals are wider for it"
        return f"Disabling {self.variants:,} variants on {self.examples:,} examples: {costs}{shown}. {how}."


def forecast(
    context: Context,
    plan: Plan,
    settings: AblationSettings,
    precision: Precision | None,
    onednn: bool | None = None,
) -> Forecast:
    """Predict the time of a sweep from that of a few forward passes; the same on all processes.

    Args:
        context: The model and its examples; a part of this process's first batch is the probe.
        plan: What is disabled.
        settings: Those of the sweep.
        precision: Of a screened sweep; None to choose by processor.
        onednn: Whether oneDNN computes fp32 linear layers, where it can; None to choose by processor.

    Raises:
        UserError: If ``precision`` is ``bf16-mixed`` and bf16 is out of the question.
    """
    encoder, autocast = context.encoder, context.autocast
    # An exact sweep takes a pass for each draw of other examples.
    draws = settings.draws if ModeNeed.DONORS in find_mode(plan.mode).needs else 1
    reason = why_not(context.task, plan, encoder)
    device = next(encoder.base.parameters()).device
    no_bf16 = None if precision == FP32 else why_not_bf16(encoder, autocast, reason)
    by_processor, by_onednn_here = preferred(encoder)
    # All processes must decide alike: by the most tokens, and by what suits every processor.
    # A maximum also serves as "any".
    shared = Reduced(torch.zeros(4, dtype=torch.float64), "max").to(float64_device(device))
    here = [
        _nominal_seconds(encoder, _tokens(context, settings.max_examples)),
        by_processor == FP32,
        not by_onednn_here,
        _fit_evaluations(context, plan, settings),
    ]
    shared.update(torch.tensor(here, dtype=torch.float64, device=float64_device(device)))
    nominal, any_fp32, any_without, fit = shared.compute().tolist()
    if precision == BF16:
        check_bf16(no_bf16)
    if precision is None:
        precision = FP32 if any_fp32 or no_bf16 is not None else BF16
    with autocast():
        can = can_use_onednn(next(encoder.base.parameters()))
    uses_onednn = (not any_without if onednn is None else onednn) and can
    arithmetic = Arithmetic(precision, no_bf16, uses_onednn)
    contexts = {"trainer": autocast}
    if uses_onednn:
        contexts["onednn"] = by_onednn(autocast)
    if precision == BF16:
        contexts["bf16"] = in_bf16(autocast, device.type)
    seconds = dict(zip(contexts, _seconds(context, settings.max_examples, [*contexts.values()]), strict=True))
    fp32 = seconds["onednn" if uses_onednn else "trainer"]
    pairs = pair_evaluations(encoder, plan)
    # Slopes take a forward and a backward pass for each logit but one.
    passes = _PASSES + 2.2 * (int(encoder.model.config.num_labels or 2) - 2)
    active = _ACTIVE + settings.audit
    if precision == BF16:
        active = _ACTIVE * seconds["bf16"] / fp32 + _AGAIN + settings.audit
    return Forecast(
        examples=len(context.positions(settings.max_examples)),
        variants=len(plan.variants),
        measured=Times(
            fp32 * draws * (1 + pairs),
            None if reason is not None else fp32 * (passes + active * pairs),
            seconds["trainer"] * fit,
        ),
        nominal=Times(
            nominal * draws * (1 + pairs),
            None if reason is not None else nominal * (passes + (_ACTIVE + settings.audit) * pairs),
            nominal * fit,
        ),
        reason=reason,
        metric=context.task.metrics[0],
        needed=settings.judging().alpha,
        family=max(Counter(variant.kind for variant in plan.variants).values()),
        arithmetic=arithmetic,
    )


def check_bf16(reason: str | None) -> None:
    """Raise UserError if there is a reason against the passes in bf16 that were asked for."""
    if reason is not None:
        raise UserError(
            f"Passes in {BF16} are out of the question, as {reason}; set ablation.precision={FP32}, with which all "
            "passes are as trainer.precision says."
        )


def _fit_evaluations(context: Context, plan: Plan, settings: AblationSettings) -> float:
    """The cost of fitting outputs to labels, in forward passes over this process's examples; 0 in modes without a
    fit.
    """
    examples = sum(len(spec.positions) for spec in context.batches(settings.max_examples).sampler)
    if ModeNeed.FITTED_OUTPUTS not in find_mode(plan.mode).needs or not examples:
        return 0.0
    heads = sorted({head for variant in plan.variants for head in variant.heads})
    alone = replace(plan, variants=tuple(Variant(str(head), HEAD.name, (head,)) for head in heads))
    # Each process fits all heads. Without gradients of weights, a backward pass takes as long as a forward one.
    return 2 * settings.optimal_steps * FIT_BATCH / examples * pair_evaluations(context.encoder, alone)


def announce(work: str, context: Context, evaluations: float, max_examples: int | None = None) -> None:
    """Say in one line how long work on all processes takes, predicted as for a sweep.

    Args:
        work: What is done, as the beginning of a sentence.
        context: The model and the examples.
        evaluations: What the work costs, in forward passes over the examples.
        max_examples: Size of the random sample of them; None for all.
    """
    [seconds] = _seconds(context, max_examples, [context.autocast])
    _log.info(f"{work}: about {duration(evaluations * seconds)}.")


def _seconds(context: Context, max_examples: int | None, contexts: Sequence[Autocast]) -> list[float]:
    """Seconds of a forward pass over the examples in each context, on the slowest process, from a few passes of a
    batch.
    """
    device = next(context.encoder.base.parameters()).device
    slowest = Reduced(torch.zeros(len(contexts), dtype=torch.float64), "max").to(float64_device(device))
    for batch in context.batches(max_examples):
        spent = _seconds_per_token(context.encoder.model, batch.to(device), contexts)
        spent_C = torch.tensor(spent, dtype=torch.float64, device=float64_device(device))
        slowest.update(_tokens(context, max_examples) * spent_C)
        break
    return [float(seconds) for seconds in slowest.compute().view(-1)]


def _tokens(context: Context, max_examples: int | None) -> int:
    """Tokens of this process's batches, padding included."""
    lengths = context.split.lengths
    batches = context.batches(max_examples)
    return sum(len(spec.positions) * max(lengths[at] for at in spec.positions) for spec in batches.sampler)


def _nominal_seconds(encoder: Encoder, tokens: int) -> float:
    """Seconds of one evaluation at nominal speed, with two operations per layer weight and token."""
    weights = sum(weight.numel() for layer in encoder.layers for weight in layer.parameters())
    kind = next(encoder.base.parameters()).device.type
    return 2.0 * weights * tokens / NOMINAL.get(kind, NOMINAL["cpu"])


def pair_evaluations(encoder: Encoder, plan: Plan) -> float:
    """The cost of all variants of an example, in forward passes: what lies above each variant's lowest edit.

    A layer's rest above its heads is nine twelfths of it; where the task head reads one token alone, the last layer
    costs nothing to speak of.
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
    """Seconds as a reader says them: ``8 s``, ``3 min``, ``1.5 h``."""
    if seconds < 100:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 6000 else f"{number(seconds / 3600, 1)} h"


def _in_words(arithmetic: Arithmetic) -> str:
    """What follows the time of a screened sweep."""
    if arithmetic.precision == BF16:
        return " (bf16; fp32 where it counts)"
    return "" if arithmetic.reason is None else f" (no bf16 besides, as {arithmetic.reason})"


@torch.no_grad()
def _seconds_per_token(network: nn.Module, batch: Batch, contexts: Sequence[Autocast]) -> list[float]:
    """The shortest time of a pass in each context, for a token; the contexts take turns."""
    rows = max(_PROBE, _PROBE_TOKENS // batch.input_ids_BS.shape[1])
    inputs: dict[str, Tensor] = {
        name: value[:rows] if value.shape[:1] == (batch.size,) else value for name, value in batch.inputs().items()
    }
    best = [math.inf] * len(contexts)
    with evaluating(network), eager_execution():
        for _ in range(2):
            for index, context in enumerate(contexts):
                spent: list[float] = []
                with context():
                    # A first pass may round the weights or compile code, which a sweep does once for many passes.
                    while len(spent) < 2 or sum(spent) < _SECONDS:
                        started = time.perf_counter()
                        network(**inputs)
                        if inputs["input_ids"].is_cuda:
                            torch.cuda.synchronize()
                        spent.append(time.perf_counter() - started)
                        # The shortest time: what disturbs a pass only ever makes it longer.
                        best[index] = min(best[index], spent[-1])
    return [seconds / inputs["input_ids"].numel() for seconds in best]
