"""A screened sweep: evaluates only the pairs of a variant and an example whose prediction may change.

With bf16 there are three tiers: pairs that are estimated to first order, pairs evaluated in bf16, and pairs evaluated
in fp32.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import nbinom
from torch import Tensor, nn

from bertsecrets.ablation.arithmetic import in_bf16
from bertsecrets.ablation.engine import Engine, continues
from bertsecrets.ablation.outcomes import Collected, Outcomes, check_finite, margins
from bertsecrets.ablation.pairs import Pairs, first_order_changes
from bertsecrets.ablation.partial_passes import CleanLayer, parts_within
from bertsecrets.ablation.plan import Plan
from bertsecrets.ablation.predictions import Unseen
from bertsecrets.ablation.replacements import Replacements
from bertsecrets.ablation.rows import Screened
from bertsecrets.ablation.settings import BF16, FP32, Precision
from bertsecrets.attention.modes import PER_TOKEN, ModeNeed, find_mode
from bertsecrets.data.batch import Batch, gathered, over_processes
from bertsecrets.data.task import Task
from bertsecrets.errors import UserError
from bertsecrets.float64 import float64_device, to_float64
from bertsecrets.models.encoder import Autocast, Encoder
from bertsecrets.results.store import NOTHING_KEPT, Store

REACH = 30.0
"""A pair is active if its estimated margin is below this many times its expected error; errors have heavy tails."""

PILOT = 16
"""Number of examples on which every variant is evaluated first."""

_LEAST_SENSITIVITY = 1e-4
"""Lower limit, for examples without slopes."""

_LEAST_CHANGE = 1e-3
"""A variant's usual change is set to at least this share of the root mean square over variants."""

BF16_REACH = 20.0
"""A pair evaluated in bf16 is evaluated again in fp32 if its margin is below this many times the expected error of
bf16.
"""

_BORROWED_ERRORS = 16
"""A variant's mean square error is shrunk towards that of variants of its kind in the same layer, as if by this many
additional pairs.
"""

_BOTH = 0.25
"""Share of the pilot's pairs that are evaluated in both bf16 and fp32 to measure the errors of bf16."""

_FEWEST_BOTH = 8
"""The smallest number of such pairs per example, if it has that many."""

_AT_ONCE = 0.9
"""Share of a batch's estimated pairs that are reported as finished with the batch; a few more become active later."""

_KEPT_BYTES = 2**28
"""Limit on the layers of unedited passes that a process keeps; without it, memory would grow with the number of
examples.
"""

_BORROWED = 8
"""A layer's mean square error of bf16 is shrunk towards that of all layers, as if by this many additional pairs."""

LEVEL = 0.95
"""Confidence of the bound on missed changes."""


@dataclass(frozen=True)
class Screening:
    """How a screened sweep chooses pairs.

    Args:
        audit: Share of the inactive pairs that are evaluated as well, chosen at random.
        seed: Seed of the audit and of the pilot.
        reach: See :data:`REACH`.
        pilot: See :data:`PILOT`.
        precision: ``bf16-mixed``: pairs are evaluated in bf16, and again in fp32 if they are near a change of
            prediction. ``32-true``: all passes are in the trainer's precision.
        bf16_reach: See :data:`BF16_REACH`.
    """

    audit: float = 0.1
    seed: int = 0
    reach: float = REACH
    pilot: int = PILOT
    precision: Precision = FP32
    bf16_reach: float = BF16_REACH


def why_not(task: Task, plan: Plan, encoder: Encoder) -> str | None:
    """Why a sweep cannot be screened, as a clause; None if it can."""
    if task.is_regression:
        return f"{task.name} is scored by predicted numbers, all of which change"
    if task.head.statistics:
        return f"the predictions of task {task.name} (kind {task.head.kind}) are not the logits of a single class"
    if task.head.in_parts:
        return f"an example of task {task.name} (kind {task.head.kind}) is read in several passes"
    if find_mode(plan.mode).needs & (PER_TOKEN | {ModeNeed.DONORS}):
        return f"mode '{plan.mode}' takes several passes per pair"
    if not continues(encoder):
        return f"passes of model type '{encoder.base.config.model_type}' cannot start at a given layer"
    if any(variant.parts for variant in plan.variants):
        return "the effect of a sublayer or block cannot be estimated to first order"
    if any(len(variant.layers) > 1 for variant in plan.variants):
        return "the plan disables heads of several layers together"
    return None


def missed_bound(missed: int, audit: float, left: int) -> int:
    """Upper bound on the number of changed predictions outside an audit, at a confidence of :data:`LEVEL`.

    Each change is in the audit with probability ``audit``, so the number outside before one more than ``missed`` are
    inside is negative binomial. With no miss and a small audit this is about 3 / ``audit``.

    Args:
        missed: Changes that the audit found.
        audit: Share of the pairs that are audited.
        left: Number of pairs outside the audit.
    """
    return min(left, int(nbinom.ppf(LEVEL, missed + 1, audit)))


def usual_changes(square_V: Tensor) -> Tensor:
    """The usual size of each variant's estimated changes, from their mean square in the pilot."""
    # A variant without effect shows only rounding errors, which must not make examples look sensitive.
    return square_V.clamp(min=float(_LEAST_CHANGE**2 * square_V.nanmean())).sqrt()


def bf16_errors(squares_V: Tensor, count_V: Tensor, layer_V: Sequence[int]) -> Tensor:
    """The root mean square of the errors of bf16 by variant: that of its layer, as edits of lower layers leave more
    layers to bf16.

    Args:
        squares_V, count_V: Sum of the squared errors of each variant's pairs, and their number.
        layer_V: The layer that each variant edits.
    """
    of_V = torch.tensor(layer_V, device=squares_V.device)
    zero_L = squares_V.new_zeros(max(layer_V) + 1)
    squares_L, count_L = (zero_L.index_add(0, of_V, total_V) for total_V in (squares_V, count_V))
    square = squares_V.sum() / count_V.sum()
    return ((squares_L + _BORROWED * square) / (count_L + _BORROWED)).sqrt()[of_V]


def expected_errors(squares_V: Tensor, count_V: Tensor, group_V: Sequence[int]) -> Tensor:
    """The root mean square of each variant's errors, shrunk towards that of its group, as a few pairs may lack the rare
    large errors.

    Args:
        squares_V, count_V: Sum of the squared errors of each variant's pairs, and their number.
        group_V: From :func:`error_groups`.
    """
    of_V = torch.tensor(group_V, device=squares_V.device)
    zero_G = squares_V.new_zeros(max(group_V) + 1)
    # An error that is not a number carries no information about other variants.
    finite_V = squares_V.isfinite()
    squares_G, count_G = (
        zero_G.index_add(0, of_V, torch.where(finite_V, total_V, 0.0)) for total_V in (squares_V, count_V)
    )
    return ((squares_V + _BORROWED_ERRORS * (squares_G / count_G)[of_V]) / (count_V + _BORROWED_ERRORS)).sqrt()


def error_groups(plan: Plan, layer_V: Sequence[int]) -> list[int]:
    """A number for each variant, the same for those that edit the same number of heads in the same layer."""
    keys = [(layer, len(variant.heads)) for layer, variant in zip(layer_V, plan.variants, strict=True)]
    order = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return [order[key] for key in keys]


def error_scales(change_BV: Tensor, usual_V: Tensor) -> Tensor:
    """The size of an example's errors relative to those of others, ``[B, 1]``: the square root of its sensitivity.

    Args:
        change_BV: Estimated changes of the margins; float64.
        usual_V: From :func:`usual_changes`.
    """
    square_BV = (change_BV / usual_V).square()
    # A slope that is not a number carries no information about the example's other pairs.
    finite_BV = square_BV.isfinite()
    number_B1 = finite_BV.sum(1, keepdim=True).clamp(min=1)
    sensitivity_B1 = (torch.where(finite_BV, square_BV, 0.0).sum(1, keepdim=True) / number_B1).sqrt()
    return sensitivity_B1.clamp(min=_LEAST_SENSITIVITY).sqrt()


class _Share:
    """The pairs of one batch: estimates, and what has been evaluated."""

    def __init__(self, batch: Batch, plan: Plan, screening: Screening, clean_BC: Tensor, change_BVC: Tensor) -> None:
        self.batch = batch
        check_finite(clean_BC, "the model")
        self.clean_BC = clean_BC
        # A straight line from the unedited logits: exact where the model is linear along the edit.
        self.estimate_BVC = clean_BC[:, None] + change_BVC
        self.logits_BVC = self.estimate_BVC.clone()
        self.class_B = clean_BC.argmax(-1)
        self.margin_BV = margins(self.estimate_BVC, self.class_B)
        self.scale_B1 = to_float64(torch.ones_like(self.margin_BV[:, :1]))
        variants = len(plan.variants)
        # Drawn separately for each example, so that the audit does not depend on batches and processes.
        draws_BV = np.stack(
            [np.random.default_rng([screening.seed, index]).random(variants) for index in batch.index_B.tolist()]
        )
        self.drawn_BV = torch.from_numpy(draws_BV < screening.audit).to(clean_BC.device)
        self.done_BV = torch.zeros_like(self.drawn_BV)
        self.counted_BV = torch.zeros_like(self.drawn_BV)
        # The best known logits of a pair without an exact evaluation: at first the estimate.
        self.rough_BVC = self.estimate_BVC
        self.bf16_BV = torch.zeros_like(self.drawn_BV)
        self.forced_BV = torch.zeros_like(self.drawn_BV)
        self.layers: list[CleanLayer] | None = None

    def changes_BV(self) -> Tensor:
        """Estimated margin minus that of the unedited model; float64."""
        clean_B1 = margins(self.clean_BC[:, None], self.class_B)
        return to_float64(self.margin_BV - clean_B1)

    def set_scale(self, usual_V: Tensor) -> None:
        """Set the size of the examples' errors relative to others', from their slopes; see :func:`screened_sweep`.

        Args:
            usual_V: Root mean square of each variant's estimated changes in the pilot.
        """
        self.scale_B1 = error_scales(self.changes_BV(), usual_V)

    def errors_BV(self, sure_BV: Tensor) -> Tensor:
        """Margin minus estimated margin of evaluated pairs, relative to the example's scale; float64.

        For pairs outside ``sure_BV`` this is the margin in bf16 even if they were evaluated again, so that audits do
        not affect the rule.
        """
        logits_BVC = torch.where(sure_BV[..., None], self.logits_BVC, self.rough_BVC)
        return to_float64(margins(logits_BVC, self.class_B) - self.margin_BV) / self.scale_B1

    def missed_BV(self) -> Tensor:
        """Which pairs evaluated exactly have a predicted class that differs from that of their estimate, or in bf16."""
        class_BV = torch.where(self.bf16_BV, self.rough_BVC.argmax(-1), self.class_B[:, None])
        return self.done_BV & (self.logits_BVC.argmax(-1) != class_BV)

    def bf16_errors_BV(self) -> Tensor:
        """Margin in fp32 minus margin in bf16 of the class predicted in bf16, relative to the example's scale; float64.

        For pairs evaluated in both.
        """
        class_X = self.rough_BVC.argmax(-1).flatten()
        exact_XVC, rough_XVC = (logits_BVC.flatten(0, 1)[:, None] for logits_BVC in (self.logits_BVC, self.rough_BVC))
        error_X = (margins(exact_XVC, class_X) - margins(rough_XVC, class_X))[:, 0]
        return to_float64(error_X.unflatten(0, self.done_BV.shape)) / self.scale_B1

    def near_BV(self, reach_V: Tensor) -> Tensor:
        """Which pairs evaluated in bf16 are within ``reach_V`` times their example's scale of another prediction."""
        first_BV, second_BV = self.rough_BVC.topk(2, dim=-1).values.unbind(-1)
        return self.bf16_BV & self.within_BV(first_BV - second_BV, reach_V)

    def within_BV(self, margin_BV: Tensor, reach_V: Tensor) -> Tensor:
        """Which margins are below ``reach_V`` times their example's scale, or are not a number."""
        return (~(to_float64(margin_BV) >= reach_V * self.scale_B1)).to(margin_BV.device)

    def fill(self, wanted_BV: Tensor, logits_PC: Tensor) -> None:
        """Replace estimates by exact logits."""
        self.logits_BVC[wanted_BV] = logits_PC.to(self.logits_BVC)
        self.done_BV |= wanted_BV

    def fill_bf16(self, wanted_BV: Tensor, logits_PC: Tensor) -> None:
        """Replace estimates, but not exact logits, by logits evaluated in bf16."""
        # At first this is the estimate itself, which must not be changed.
        self.rough_BVC = self.rough_BVC.clone()
        self.rough_BVC[wanted_BV] = logits_PC.to(self.rough_BVC)
        self.bf16_BV |= wanted_BV
        self.logits_BVC = torch.where((wanted_BV & ~self.done_BV)[..., None], self.rough_BVC, self.logits_BVC)


def screened_sweep(
    model: nn.Module,
    plan: Plan,
    batches: Iterable[Batch],
    screening: Screening,
    *,
    replacements: Replacements | None = None,
    max_tokens: int | None = None,
    context: Autocast = nullcontext,
    store: Store = NOTHING_KEPT,
    progress: Callable[[int], object] | None = None,
) -> tuple[Outcomes, Screened]:
    """Run a sweep whose logits are exact (or in bf16) for active and audited pairs, and estimated for the others.

    A pair is *active* if its estimated margin, the clean one plus the first-order change, is below ``reach`` times its
    expected error: the example's scale times the root mean square, over the variant's evaluated pairs, of the error
    (exact minus estimated margin) divided by its example's scale, shrunk towards that of its layer
    (:func:`expected_errors`). The sweep evaluates all pairs of ``pilot`` random examples, then the active ones, until
    no more become active. An example's scale is the square root of its sensitivity: the root mean square, over
    variants, of the estimated change of its margin relative to that variant's usual one, its root mean square in the
    pilot. A random share of the inactive pairs is *audited*; a variant with an audited pair whose prediction changed is
    evaluated on all examples. The estimate of an inactive pair predicts the same class as the unedited model.

    With ``precision`` ``bf16-mixed``, the slopes come from passes in bf16, in addition to the unedited pass in fp32.
    Active pairs are evaluated in bf16, from the layers of the unedited pass, and again in fp32 if their margin in bf16,
    that of the class predicted in bf16, is below ``bf16_reach`` times the expected error of bf16: the example's scale
    times the root mean square of the errors of bf16 for edits of the same layer, each divided by its example's scale.
    These are measured on a random part of the pilot's pairs, evaluated in both. Pairs left in bf16 are audited in fp32
    at the same rate; one with a different prediction in fp32 is a miss like any other.

    Args:
        model, plan, replacements, max_tokens, context, store, progress: See
            :func:`bertsecrets.ablation.exact.exact_sweep`.
            The plan is one that :func:`why_not` allows.
        batches: This process's share of the examples.
        screening: How pairs are chosen.

    Raises:
        UserError: If an example has no label, or the plan does not fit the model.
    """
    constants_LHd = replacements.constants_LHd if replacements is not None else None
    engine = Engine(model, plan, constants_LHd=constants_LHd, max_tokens=max_tokens)
    # A list, because batches are iterated over several times and each process's share stays in memory anyway.
    # In parts, as all layers of a part's unedited pass are kept for its pairs.
    smaller = [
        whole.rows(row_R)
        for whole in (batch.to(engine.device) for batch in batches)
        for row_R in parts_within(whole.size, whole.attention_mask_BS.shape[1], engine.max_tokens)
    ]
    sweep = _Sweep(engine, smaller, screening, context, store.of(model, plan, screening), progress)
    sweep.take_pilot()
    sweep.take_batches()
    sweep.take_active()
    record = sweep.take_audit()
    shares = sweep.shares
    sweep.advance(sweep.left)
    collected = Collected(plan)
    for share in shares:
        assert share.batch.label_B is not None
        weight_BV = torch.where(sweep.sure_BV(share), 1.0, share.drawn_BV / screening.audit)
        collected.update(
            share.batch,
            share.batch.label_B,
            share.clean_BC,
            share.logits_BVC,
            weight_BV,
            share.rough_BVC,
        )
    return collected.outcomes(), record


class _Sweep:
    """The passes of a screened sweep over the batches of one process."""

    def __init__(
        self,
        engine: Engine,
        batches: Sequence[Batch],
        screening: Screening,
        context: Autocast,
        store: Store,
        progress: Callable[[int], object] | None,
    ) -> None:
        if any(batch.label_B is None for batch in batches):
            raise UserError("A sweep needs labelled examples; choose a labelled split.")
        self.engine, self.batches, self.screening = engine, batches, screening
        self.pairs = Pairs(engine)
        self.context, self.store, self.progress = context, store, progress
        self.bf16 = in_bf16(context, engine.device.type) if screening.precision == BF16 else None
        self.shares: list[_Share] = []
        self.near_V = torch.full((len(engine.plan.variants),), -torch.inf, device=float64_device(engine.device))
        self.left = sum(batch.size for batch in batches) * len(engine.plan.variants)
        self.free_bytes = _KEPT_BYTES

    def take_pilot(self) -> None:
        """Evaluate every variant on a few random examples, which are the same on any number of processes."""
        mine = [index for batch in self.batches for index in batch.index_B.tolist()]
        everyone = [index for indices in gathered(mine) for index in indices]
        order = sorted(
            everyone, key=lambda index: (np.random.default_rng([self.screening.seed, index, 1]).random(), index)
        )
        pilot = torch.tensor(order[: self.screening.pilot], device=self.engine.device)
        rest = []
        for batch in self.batches:
            in_pilot_B = torch.isin(batch.index_B, pilot)
            if not in_pilot_B.all():
                rest.append(batch.rows((~in_pilot_B).nonzero()[:, 0]))
            if in_pilot_B.any():
                share, layers = self._begin(batch.rows(in_pilot_B.nonzero()[:, 0]))
                share.counted_BV[:] = True
                if self.bf16 is not None:
                    # Pairs that are evaluated in both bf16 and fp32.
                    variants = len(self.engine.plan.variants)
                    number = min(variants, max(_FEWEST_BOTH, math.ceil(_BOTH * variants)))
                    for row, index in enumerate(share.batch.index_B.tolist()):
                        order_V = np.random.default_rng([self.screening.seed, index, 2]).permutation(variants)
                        share.forced_BV[row, order_V[:number].tolist()] = True
                self._evaluate_first(share, layers)
        # Later, they are examples like all others.
        self.batches = rest
        squares_V, count_V = self._totals(self.shares, lambda share: (share.changes_BV(), share.counted_BV))
        self.usual_V = usual_changes(squares_V / count_V).float().to(torch.float64)
        for share in self.shares:
            share.set_scale(self.usual_V)
        if self.bf16 is not None:
            squares_V, count_V = self._totals(self.shares, lambda share: (share.bf16_errors_BV(), share.forced_BV))
            error_V = bf16_errors(squares_V, count_V, self.pairs.layer_V)
            self.near_V = (self.screening.bf16_reach * error_V).float()
        self.reach_V = self._reach_V(self.shares)[0]

    def take_batches(self) -> None:
        """Estimate the pairs of all other examples and evaluate those within reach of the pilot's errors, with one
        unedited pass per batch.

        The pairs drawn for the audit are evaluated along with them.
        """
        for batch in self.batches:
            share, layers = self._begin(batch)
            share.set_scale(self.usual_V)
            self._count(share)
            self._evaluate_first(share, layers)
            self.advance(int(_AT_ONCE * (~(share.done_BV | share.bf16_BV)).sum()))

    def _evaluate_first(self, share: _Share, layers: list[CleanLayer] | None) -> None:
        """Evaluate the missing pairs of a batch from its unedited pass; without layers, it is a saved one."""
        if layers is None:
            self.advance(int((share.done_BV | share.bf16_BV).sum()))
        else:
            self._evaluate_above(share, slice(None), share.clean_BC, layers)
            self._save(share)
            # Kept for pairs that become active later, if memory allows.
            size = sum(tensor.nbytes for layer in layers for tensor in (layer.hidden_BSD, layer.output_BSD))
            if size <= self.free_bytes:
                self.free_bytes -= size
                share.layers = layers
        self.shares.append(share)

    def take_active(self) -> None:
        """Evaluate the pairs that become active given the errors of evaluated ones, until no more do."""
        self.reach_V, count_V = self._reach_V(self.shares)
        while True:
            for share in self.shares:
                self._count(share)
                self._evaluate(share)
            self.reach_V, now_V = self._reach_V(self.shares)
            # No pair became active, so the errors and the reach are unchanged.
            if torch.equal(now_V, count_V):
                break
            count_V = now_V

    def sure_BV(self, share: _Share) -> Tensor:
        """Which pairs the rule requires exactly: the active ones, or with bf16 those near a change of prediction."""
        active_BV = share.counted_BV if self.bf16 is None else share.counted_BV & share.near_BV(self.near_V)
        return active_BV | share.forced_BV

    def _reach_V(self, shares: Sequence[_Share]) -> tuple[Tensor, Tensor]:
        """The margin below which pairs of scale 1 are active, by variant, and the number of pairs whose errors
        determine it.
        """
        squares_V, count_V = self._totals(
            shares, lambda share: (share.errors_BV(self.sure_BV(share)), share.counted_BV)
        )
        error_V = expected_errors(squares_V, count_V, error_groups(self.engine.plan, self.pairs.layer_V))
        return (self.screening.reach * error_V).float(), count_V

    def _count(self, share: _Share) -> None:
        share.counted_BV |= share.within_BV(share.margin_BV, self.reach_V)

    def take_audit(self) -> Screened:
        """Compare the audited pairs with the rule, and evaluate variants with a miss on all examples."""

        number = self._number

        def inactive_BV(share: _Share) -> Tensor:
            return ~share.counted_BV

        def rough_BV(share: _Share) -> Tensor:
            return share.counted_BV & ~self.sure_BV(share)

        def audited(of: Callable[[_Share], Tensor]) -> tuple[Tensor, Tensor]:
            """Audited pairs, and those of them whose prediction changed."""
            return number(lambda share: of(share) & share.drawn_BV), number(
                lambda share: of(share) & share.drawn_BV & share.missed_BV()
            )

        inactive_V, rough_V = number(inactive_BV), number(rough_BV)
        (audited_V, missed_V), (audited_bf16_V, missed_bf16_V) = audited(inactive_BV), audited(rough_BV)
        again = int(number(lambda share: share.bf16_BV & self.sure_BV(share)).sum())
        # A miss shows that the slopes are misleading for this variant, so its other pairs may be wrong as well.
        whole_V = missed_V + missed_bf16_V > 0
        for share in self.shares:
            share.forced_BV |= whole_V.to(self.engine.device)
            self._evaluate(share)
        missed, missed_bf16 = int(missed_V.sum()), int(missed_bf16_V.sum())
        left_V = (inactive_V - audited_V + rough_V - audited_bf16_V) * ~whole_V
        unseen = Unseen(left_V.long().cpu().numpy(), (audited_V + audited_bf16_V).long().cpu().numpy())
        everything = number(lambda share: torch.ones_like(share.counted_BV))
        return Screened(
            mode=self.engine.plan.mode,
            pairs=int(everything.sum()),
            evaluated=int(number(lambda share: share.done_BV).sum()),
            inactive=int(inactive_V.sum()),
            audited=int(audited_V.sum()),
            missed=missed,
            whole=int(whole_V.sum()),
            bound=missed_bound(missed + missed_bf16, self.screening.audit, int(left_V.sum())),
            each=unseen.bound(LEVEL),
            precision=self.screening.precision,
            bf16=int(number(lambda share: share.bf16_BV & ~share.done_BV).sum()),
            again=again,
            audited_bf16=int(audited_bf16_V.sum()),
            missed_bf16=missed_bf16,
        )

    def _number(self, of: Callable[[_Share], Tensor]) -> Tensor:
        """Number of such pairs of each variant, over all processes."""
        return self._totals(self.shares, lambda share: (share.margin_BV, of(share)))[1]

    def _totals(self, shares: Sequence[_Share], of: Callable[[_Share], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Sums of squares and numbers of pairs over all processes, by variant; float64.

        Sums over different numbers of processes differ in the last bits, so values that decide on pairs are rounded to
        float32.
        """
        device = float64_device(self.engine.device)
        total_2V = torch.zeros(2, len(self.engine.plan.variants), dtype=torch.float64, device=device)
        for share in shares:
            value_BV, of_BV = (to_float64(part) for part in of(share))
            square_BV = torch.where(of_BV > 0, value_BV.square(), 0.0)
            total_2V += torch.stack([square_BV.sum(0), of_BV.sum(0)])
        squares_V, count_V = over_processes(total_2V)
        return squares_V, count_V

    def _begin(self, batch: Batch) -> tuple[_Share, list[CleanLayer] | None]:
        """The estimates of a batch and the layers of its unedited pass; for a saved batch its saved state, without
        layers.
        """
        saved = self.store.get(batch.index_B, batch.inputs())
        if saved is not None:
            tensors = {name: tensor.to(self.engine.device) for name, tensor in saved.items()}
            share = _Share(batch, self.engine.plan, self.screening, tensors["clean"], tensors["change"])
            share.logits_BVC, share.done_BV = tensors["logits"], tensors["done"]
            share.rough_BVC, share.bf16_BV = tensors["rough"], tensors["bf16"]
            return share, None
        # First, so that the layers of the unedited pass are not in memory together with the activations of backward
        # passes.
        change_BVC = first_order_changes(self.engine, batch.inputs(), self.bf16 or self.context)
        with self.context():
            clean_BC, layers = self.pairs.begin(batch.inputs())
        return _Share(batch, self.engine.plan, self.screening, clean_BC, change_BVC), layers

    def _missing(self, share: _Share) -> tuple[Tensor, Tensor]:
        """The pairs still to be evaluated in bf16, and those still to be evaluated exactly."""
        bf16_BV = torch.zeros_like(share.bf16_BV) if self.bf16 is None else share.counted_BV & ~share.bf16_BV
        return bf16_BV, (self.sure_BV(share) | share.drawn_BV) & ~share.done_BV

    def _evaluate(self, share: _Share) -> None:
        """Evaluate the missing pairs of the examples that have any, with a new unedited pass if none was kept."""
        bf16_BV, exact_BV = self._missing(share)
        rows = (bf16_BV | exact_BV).any(1).nonzero()[:, 0]
        if not len(rows):
            return
        if share.layers is not None:
            self._evaluate_above(share, slice(None), share.clean_BC, share.layers)
        else:
            with self.context():
                clean_BC, layers = self.pairs.begin(share.batch.rows(rows).inputs())
            self._evaluate_above(share, rows, clean_BC, layers)
        self._save(share)

    def _evaluate_above(self, share: _Share, rows: Tensor | slice, clean_BC: Tensor, layers: list[CleanLayer]) -> None:
        """Evaluate the missing pairs of some examples, with an unedited pass over these."""
        real_BS = share.batch.attention_mask_BS[rows].bool()
        if self.bf16 is not None:
            wanted_BV, _ = self._missing(share)
            with self.bf16():
                logits_PC = self.pairs.run_above(clean_BC, layers, real_BS, wanted_BV[rows], self.advance)
            share.fill_bf16(wanted_BV, logits_PC)
        _, wanted_BV = self._missing(share)
        with self.context():
            logits_PC = self.pairs.run_above(
                clean_BC, layers, real_BS, wanted_BV[rows], self.advance if self.bf16 is None else None
            )
        self.advance(0 if self.bf16 is None else int((wanted_BV & ~share.bf16_BV).sum()))
        share.fill(wanted_BV, logits_PC)

    def _save(self, share: _Share) -> None:
        tensors = {
            "clean": share.clean_BC,
            "change": share.estimate_BVC - share.clean_BC[:, None],
            "logits": share.logits_BVC,
            "done": share.done_BV,
            "rough": share.rough_BVC,
            "bf16": share.bf16_BV,
        }
        self.store.put(tensors, share.batch.index_B, share.batch.inputs())

    def advance(self, pairs: int) -> None:
        """Report pairs as finished; pairs evaluated twice count once."""
        pairs = min(pairs, self.left)
        self.left -= pairs
        if self.progress is not None and pairs:
            self.progress(pairs)
