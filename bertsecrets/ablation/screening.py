"""A screened sweep: only the pairs of a variant and an example whose prediction may change are evaluated exactly."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.stats import nbinom
from torch import Tensor, nn
from torchmetrics import Metric

from bertsecrets.ablation.engine import Engine, continues
from bertsecrets.ablation.first_order import first_order_changes
from bertsecrets.ablation.outcomes import Collected, Outcomes, Parts
from bertsecrets.ablation.pairs import MODES_OF_PAIRS, Pairs, can_run_pairs
from bertsecrets.ablation.partial_passes import CleanLayer
from bertsecrets.ablation.plan import Plan
from bertsecrets.ablation.replacements import Replacements
from bertsecrets.data.batch import Batch
from bertsecrets.data.task import Task
from bertsecrets.errors import UserError
from bertsecrets.models.encoder import Encoder
from bertsecrets.results.formatting import number

SWEEP = "sweep"
"""``<SWEEP>_<mode>`` is the key of a record among a run's checks."""

REACH = 10.0
"""A pair is active if its estimated margin is below so many root mean squares of its variant's errors."""

PILOT = 16
"""Examples on which every variant is evaluated first."""

LEVEL = 0.95
"""Confidence of the bound on missed changes."""


@dataclass(frozen=True)
class Screening:
    """How a screened sweep chooses pairs.

    Args:
        audit: Share of the inactive pairs that are evaluated as well, at random.
        seed: Seed of the audit and of the pilot.
        reach: See :data:`REACH`.
        pilot: See :data:`PILOT`.

    Raises:
        UserError: If ``audit`` is not between 0 and 1.
    """

    audit: float = 0.02
    seed: int = 0
    reach: float = REACH
    pilot: int = PILOT

    def __post_init__(self) -> None:
        if not 0 < self.audit <= 1:
            raise UserError(f"ablation.audit is {self.audit}; expected a share above 0 and at most 1, e.g. 0.02.")


@dataclass(frozen=True)
class ScreeningRecord:
    """What a screened sweep evaluated and what it may have missed.

    Args:
        pairs: Pairs of a variant and an example.
        evaluated: Pairs evaluated exactly.
        inactive: Pairs outside of the rule's reach, before variants with a miss were evaluated whole.
        audited: Those of them that the audit evaluated.
        missed: Audited pairs whose prediction changed, against the rule.
        whole: Variants evaluated whole, because the audit found a miss.
        bound: At most so many changed predictions are missed, at a confidence of :data:`LEVEL` (see :func:`missed_bound`).
    """

    pairs: int
    evaluated: int
    inactive: int
    audited: int
    missed: int
    whole: int
    bound: int


def why_not(task: Task, plan: Plan, encoder: Encoder) -> str | None:
    """Why a sweep cannot be screened, as a part of a sentence; None if it can."""
    if task.is_regression:
        return f"{task.name} is scored by predicted numbers, every one of which changes"
    if plan.mode not in MODES_OF_PAIRS:
        return f"mode '{plan.mode}' takes several passes for a pair"
    if not continues(encoder):
        return f"model type '{encoder.base.config.model_type}' cannot be started in the middle of a pass"
    if not can_run_pairs(encoder, plan):
        return "the plan disables heads of several layers together"
    return None


def missed_bound(missed: int, audit: float, left: int) -> int:
    """The largest number of changed predictions outside of an audit that is not unlikely, at a confidence of :data:`LEVEL`.

    Each change is in the audit with probability ``audit``: the number outside until one more than ``missed`` are inside is
    negative binomial. With no miss and a small audit this is about 3 / ``audit``.

    Args:
        missed: Changes that the audit found.
        audit: Share of the pairs that are audited.
        left: Pairs outside of the audit.
    """
    return min(left, int(nbinom.ppf(LEVEL, missed + 1, audit)))


def screened_in_words(record: Mapping[str, Any]) -> str:
    """What a screened sweep evaluated and what it may have missed, from a record as a mapping; two sentences."""
    share = 100 * record["evaluated"] / record["pairs"]
    audit = (
        f"none of {record['audited']:,} audited ones had changed"
        if not record["missed"]
        else f"{record['missed']:,} of {record['audited']:,} audited ones had changed, so that {record['whole']} "
        f"variant{'s were' if record['whole'] > 1 else ' was'} evaluated on all examples"
    )
    return (
        f"The sweep is screened: {number(share, 1)} % of the {record['pairs']:,} pairs of a variant and an example were evaluated "
        "exactly, those whose prediction may change by the slopes of the logits, and a random audit of the others. Predictions of "
        f"pairs that were not evaluated are taken to be unchanged; {audit}. At a confidence of {LEVEL:.0%} at most {record['bound']:,} changed "
        f"prediction{'s are' if record['bound'] != 1 else ' is'} missed."
    )


class _Share:
    """The pairs of one batch: what is estimated, and what has been evaluated."""

    def __init__(self, batch: Batch, plan: Plan, screening: Screening, clean_BC: Tensor, change_BVC: Tensor) -> None:
        self.batch = batch
        self.clean_BC = clean_BC
        self.estimate_BVC = clean_BC[:, None] + change_BVC
        self.logits_BVC = self.estimate_BVC.clone()
        self.class_B = clean_BC.argmax(-1)
        self.margin_BV = margins(self.estimate_BVC, self.class_B)
        variants = len(plan.variants)
        # Drawn for each example by itself: any batches and any number of processes give the same audit.
        draws_BV = np.stack(
            [np.random.default_rng([screening.seed, index]).random(variants) for index in batch.index_B.tolist()]
        )
        self.drawn_BV = torch.from_numpy(draws_BV < screening.audit).to(clean_BC.device)
        self.done_BV = torch.zeros_like(self.drawn_BV)
        self.counted_BV = torch.zeros_like(self.drawn_BV)

    def errors_BV(self) -> Tensor:
        """Exact margin minus estimated margin, of evaluated pairs; float64."""
        return (margins(self.logits_BVC, self.class_B) - self.margin_BV).to(torch.float64)

    def changed_BV(self) -> Tensor:
        """Which pairs have another predicted class than the unedited model, as far as evaluated."""
        return self.logits_BVC.argmax(-1) != self.class_B[:, None]

    def fill(self, wanted_BV: Tensor, logits_PC: Tensor) -> None:
        """Put exact logits in place of estimates."""
        self.logits_BVC[wanted_BV] = logits_PC.to(self.logits_BVC)
        self.done_BV |= wanted_BV

    def tensors(self) -> dict[str, Tensor]:
        """What a file keeps of it."""
        return {
            "clean": self.clean_BC,
            "change": self.estimate_BVC - self.clean_BC[:, None],
            "logits": self.logits_BVC,
            "done": self.done_BV,
        }


class _Totals(Metric):
    """Sums over the pairs of all processes."""

    full_state_update = False
    squares_V: Tensor
    count_V: Tensor

    def __init__(self, variants: int) -> None:
        super().__init__()
        self.add_state("squares_V", torch.zeros(variants, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count_V", torch.zeros(variants, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, value_BV: Tensor, of_BV: Tensor) -> None:
        """Add the squares of the values of some pairs, and their number."""
        self.squares_V += torch.where(of_BV, value_BV.to(torch.float64).square(), 0.0).sum(0)
        self.count_V += of_BV.sum(0)

    def compute(self) -> tuple[Tensor, Tensor]:
        """Sums of squares and numbers, by variant."""
        return self.squares_V, self.count_V


class _Indices(Metric):
    """Indices of the examples of all processes."""

    full_state_update = False
    index: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.add_state("index", [], dist_reduce_fx="cat")

    def update(self, index_B: Tensor) -> None:
        """Add a batch."""
        self.index.append(index_B)

    def compute(self) -> list[int]:
        """All indices."""
        index = torch.cat(self.index) if isinstance(self.index, list) else self.index
        return [int(value) for value in index.flatten().tolist()]


def margins(logits_XVC: Tensor, class_X: Tensor) -> Tensor:
    """Logit of a class minus the largest other one, ``[X, V]``."""
    place_XV1 = class_X[:, None, None].expand(-1, logits_XVC.shape[1], 1)
    own_XV = logits_XVC.gather(-1, place_XV1)[..., 0]
    return own_XV - logits_XVC.scatter(-1, place_XV1, -torch.inf).amax(-1)


def screened_sweep(
    model: nn.Module,
    plan: Plan,
    batches: Iterable[Batch],
    screening: Screening,
    *,
    replacements: Replacements | None = None,
    max_tokens: int | None = None,
    context: Callable[[], AbstractContextManager[Any]] = nullcontext,
    parts: Parts | None = None,
    progress: Callable[[int], object] | None = None,
) -> tuple[Outcomes, ScreeningRecord]:
    """Outcomes whose logits are exact for active and audited pairs, and estimated to first order for the others.

    A pair is *active* if its estimated margin, the clean one plus the first-order change, is below ``reach`` times the root
    mean square of the errors (exact minus estimated margin) of the variant's evaluated pairs. These are all pairs of ``pilot``
    random examples, then the active ones, until no more become active. Of the inactive pairs a random share is *audited*; a
    variant with an audited pair whose prediction changed is evaluated whole. The estimate of an inactive pair predicts the
    class of the unedited model.

    Args:
        model, plan, replacements, max_tokens, context, parts, progress: See :func:`bertsecrets.ablation.sweep.sweep`. The plan
            is one that :func:`why_not` allows.
        batches: This process's share of the examples.
        screening: How pairs are chosen.

    Raises:
        UserError: If an example has no label, or the plan and the model do not fit.
    """
    constants_LHd = replacements.constants_LHd if replacements is not None else None
    engine = Engine(model, plan, constants_LHd=constants_LHd, max_tokens=max_tokens)
    sweep = _Sweep(engine, [batch.to(engine.device) for batch in batches], screening, context, parts, progress)
    sweep.take_pilot()
    sweep.take_batches()
    sweep.take_active()
    record = sweep.take_audit()
    shares = sweep.shares
    if progress is not None:
        for share in shares:
            progress(int((~share.done_BV).sum()))
    collected = Collected(plan, screened=True).to(engine.device)
    for share in shares:
        assert share.batch.label_B is not None
        weight_BV = torch.where(share.counted_BV, 1.0, share.drawn_BV / screening.audit)
        collected.update(
            share.batch.index_B,
            share.batch.label_B,
            share.clean_BC,
            share.logits_BVC,
            weight_BV,
            share.estimate_BVC,
        )
    return collected.outcomes(), record


class _Sweep:
    """The passes of a screened sweep over the batches of one process."""

    def __init__(
        self,
        engine: Engine,
        batches: Sequence[Batch],
        screening: Screening,
        context: Callable[[], AbstractContextManager[Any]],
        parts: Parts | None,
        progress: Callable[[int], object] | None,
    ) -> None:
        if any(batch.label_B is None for batch in batches):
            raise UserError("A sweep needs labelled examples to judge the variants by; choose a labelled split.")
        self.engine, self.batches, self.screening = engine, batches, screening
        self.pairs = Pairs(engine)
        self.context, self.parts, self.progress = context, parts, progress
        self.pilots: list[_Share | None] = []
        self.shares: list[_Share] = []

    def take_pilot(self) -> None:
        """Evaluate every variant on a few random examples, the same on any number of processes."""
        indices = _Indices().to(self.engine.device)
        for batch in self.batches:
            indices.update(batch.index_B)
        everyone = indices.compute()
        order = sorted(
            everyone, key=lambda index: (np.random.default_rng([self.screening.seed, index, 1]).random(), index)
        )
        self.pilot = torch.tensor(order[: self.screening.pilot], device=self.engine.device)
        for batch in self.batches:
            rows = torch.isin(batch.index_B, self.pilot).nonzero()[:, 0]
            if not len(rows):
                self.pilots.append(None)
                continue
            share, layers = self._begin(batch.rows(rows))
            share.counted_BV[:] = True
            if layers is None:
                self._advance(share.done_BV.numel())
            else:
                self._evaluate_above(share, layers, share.counted_BV)
            self.pilots.append(share)
        self.reach_V = self._reach_V([share for share in self.pilots if share is not None])[0]

    def take_batches(self) -> None:
        """Estimate all pairs and evaluate those within the reach of the pilot's errors, on one unedited pass a batch.

        The pairs that the audit drew are evaluated beside them.
        """
        for batch, pilot in zip(self.batches, self.pilots, strict=True):
            share, layers = self._begin(batch)
            pilot_BV = torch.isin(batch.index_B, self.pilot)[:, None].expand_as(share.done_BV)
            share.counted_BV |= pilot_BV
            self._count(share)
            if layers is None:
                self._advance(int((share.done_BV & ~pilot_BV).sum()))
            else:
                if pilot is not None:
                    share.fill(pilot_BV, pilot.logits_BVC.flatten(0, 1))
                self._evaluate_above(share, layers, share.counted_BV | share.drawn_BV)
            self.shares.append(share)

    def take_active(self) -> None:
        """Evaluate the pairs that become active by the errors of those that are, until no more do."""
        self.reach_V, count_V = self._reach_V(self.shares)
        while True:
            for share in self.shares:
                self._count(share)
                self._evaluate(share, share.counted_BV)
            self.reach_V, now_V = self._reach_V(self.shares)
            if torch.equal(now_V, count_V):
                break
            count_V = now_V

    def _reach_V(self, shares: Sequence[_Share]) -> tuple[Tensor, Tensor]:
        """The margin below which each variant's pairs are active, and the number of pairs whose errors it comes from."""
        squares_V, count_V = self._totals(shares, lambda share: (share.errors_BV(), share.counted_BV))
        # Rounded: sums over other numbers of processes differ in the last bits.
        return (self.screening.reach * (squares_V / count_V).sqrt()).float(), count_V

    def _count(self, share: _Share) -> None:
        # A margin that is not a number is not shown to be out of reach.
        share.counted_BV |= ~(share.margin_BV >= self.reach_V)

    def take_audit(self) -> ScreeningRecord:
        """Compare the audited pairs with the rule, and evaluate variants with a miss whole."""

        def number(of: Callable[[_Share], Tensor]) -> Tensor:
            return self._totals(self.shares, lambda share: (share.margin_BV, of(share)))[1]

        inactive_V = number(lambda share: ~share.counted_BV)
        audited_V = number(lambda share: ~share.counted_BV & share.drawn_BV)
        missed_V = number(lambda share: ~share.counted_BV & share.drawn_BV & share.changed_BV())
        whole_V = missed_V > 0
        for share in self.shares:
            share.counted_BV |= whole_V
            self._evaluate(share, share.counted_BV)
        inactive, audited, missed = (int(value.sum()) for value in (inactive_V, audited_V, missed_V))
        left = int((inactive_V - audited_V)[~whole_V].sum())
        everything = number(lambda share: torch.ones_like(share.counted_BV))
        return ScreeningRecord(
            pairs=int(everything.sum()),
            evaluated=int(number(lambda share: share.done_BV).sum()),
            inactive=inactive,
            audited=audited,
            missed=missed,
            whole=int(whole_V.sum()),
            bound=missed_bound(missed, self.screening.audit, left),
        )

    def _totals(self, shares: Sequence[_Share], of: Callable[[_Share], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        totals = _Totals(len(self.engine.plan.variants)).to(self.engine.device)
        for share in shares:
            totals.update(*of(share))
        return totals.compute()

    def _begin(self, batch: Batch) -> tuple[_Share, list[CleanLayer] | None]:
        """The estimates of a batch and the layers of its unedited pass; of a saved batch what is known, without layers."""
        saved = None if self.parts is None else self.parts.load(batch)
        if saved is not None:
            tensors = {name: tensor.to(self.engine.device) for name, tensor in saved.items()}
            share = _Share(batch, self.engine.plan, self.screening, tensors["clean"], tensors["change"])
            share.logits_BVC, share.done_BV = tensors["logits"], tensors["done"]
            return share, None
        clean_BC, change_BVC, layers = first_order_changes(self.engine, batch.inputs(), self.context)
        return _Share(batch, self.engine.plan, self.screening, clean_BC, change_BVC), layers

    def _evaluate_above(self, share: _Share, layers: list[CleanLayer], wanted_BV: Tensor) -> None:
        """Evaluate pairs on the unedited pass that the estimates came from."""
        missing_BV = wanted_BV & ~share.done_BV
        real_BS = share.batch.attention_mask_BS.bool()
        with self.context():
            logits_PC = self.pairs.run_above(share.clean_BC, layers, real_BS, missing_BV, self.progress)
        share.fill(missing_BV, logits_PC)
        self._save(share)

    def _evaluate(self, share: _Share, wanted_BV: Tensor) -> None:
        """Evaluate pairs of the examples that have any, on an unedited pass of their own."""
        missing_BV = wanted_BV & ~share.done_BV
        rows = missing_BV.any(1).nonzero()[:, 0]
        if not len(rows):
            return
        with self.context():
            _, logits_PC = self.pairs.run(share.batch.rows(rows).inputs(), missing_BV[rows], self.progress)
        share.fill(missing_BV, logits_PC)
        self._save(share)

    def _save(self, share: _Share) -> None:
        if self.parts is not None:
            self.parts.save(share.batch, share.tensors())

    def _advance(self, pairs: int) -> None:
        if self.progress is not None and pairs:
            self.progress(pairs)
