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
    advance = progress or (lambda _: None)
    shares = [_estimated(engine, batch, screening, context, parts) for batch in batches]
    for share in shares:
        advance(int(share.done_BV.sum()))
    sweep = _Sweep(engine, shares, screening, context, parts, progress)
    sweep.take_pilot()
    sweep.take_active()
    record = sweep.take_audit()
    for share in shares:
        advance(int((~share.done_BV).sum()))
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


def _estimated(
    engine: Engine,
    on_host: Batch,
    screening: Screening,
    context: Callable[[], AbstractContextManager[Any]],
    parts: Parts | None,
) -> _Share:
    batch = on_host.to(engine.device)
    if batch.label_B is None:
        raise UserError("A sweep needs labelled examples to judge the variants by; choose a labelled split.")
    saved = None if parts is None else parts.load(batch)
    if saved is None:
        clean_BC, change_BVC = first_order_changes(engine, batch.inputs(), context)
        return _Share(batch, engine.plan, screening, clean_BC, change_BVC)
    tensors = {name: tensor.to(engine.device) for name, tensor in saved.items()}
    share = _Share(batch, engine.plan, screening, tensors["clean"], tensors["change"])
    share.logits_BVC, share.done_BV = tensors["logits"], tensors["done"]
    return share


class _Sweep:
    """The passes of a screened sweep over the shares of one process."""

    def __init__(
        self,
        engine: Engine,
        shares: Sequence[_Share],
        screening: Screening,
        context: Callable[[], AbstractContextManager[Any]],
        parts: Parts | None,
        progress: Callable[[int], object] | None,
    ) -> None:
        self.engine, self.shares, self.screening = engine, shares, screening
        self.pairs = Pairs(engine)
        self.context, self.parts, self.progress = context, parts, progress

    def take_pilot(self) -> None:
        """Evaluate every variant on a few random examples, the same on any number of processes."""
        indices = _Indices().to(self.engine.device)
        for share in self.shares:
            indices.update(share.batch.index_B)
        everyone = indices.compute()
        order = sorted(
            everyone, key=lambda index: (np.random.default_rng([self.screening.seed, index, 1]).random(), index)
        )
        pilot = torch.tensor(order[: self.screening.pilot], device=self.engine.device)
        for share in self.shares:
            share.counted_BV |= torch.isin(share.batch.index_B, pilot)[:, None]
            self._evaluate(share, share.counted_BV)

    def take_active(self) -> None:
        """Evaluate active pairs until no more become active, and beside them the pairs that the audit drew."""
        squares_V, count_V = self._errors()
        while True:
            # Rounded: sums over other numbers of processes differ in the last bits.
            reach_V = (self.screening.reach * (squares_V / count_V).sqrt()).float()
            for share in self.shares:
                # A margin that is not a number is not shown to be out of reach.
                share.counted_BV |= ~(share.margin_BV >= reach_V)
                self._evaluate(share, share.counted_BV | share.drawn_BV)
            squares_V, now_V = self._errors()
            if torch.equal(now_V, count_V):
                break
            count_V = now_V

    def _errors(self) -> tuple[Tensor, Tensor]:
        """Sum of the squared errors of each variant's counted pairs, and their number."""
        return self._totals(lambda share: (share.errors_BV(), share.counted_BV))

    def take_audit(self) -> ScreeningRecord:
        """Compare the audited pairs with the rule, and evaluate variants with a miss whole."""

        def number(of: Callable[[_Share], Tensor]) -> Tensor:
            return self._totals(lambda share: (share.margin_BV, of(share)))[1]

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

    def _totals(self, of: Callable[[_Share], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        totals = _Totals(len(self.engine.plan.variants)).to(self.engine.device)
        for share in self.shares:
            totals.update(*of(share))
        return totals.compute()

    def _evaluate(self, share: _Share, wanted_BV: Tensor) -> None:
        missing_BV = wanted_BV & ~share.done_BV
        if not missing_BV.any():
            return
        with self.context():
            _, logits_PC = self.pairs.run(share.batch.inputs(), missing_BV, self.progress)
        share.fill(missing_BV, logits_PC)
        if self.parts is not None:
            self.parts.save(share.batch, share.tensors())
