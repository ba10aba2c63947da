"""A sweep that looks at growing numbers of examples and stops variants whose verdict is settled."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from bertsecrets.ablation.outcomes import Outcomes
from bertsecrets.ablation.plan import Plan
from bertsecrets.ablation.predictions import PairedPredictions
from bertsecrets.ablation.scoring import CLASS_METRICS, Array, judged_metrics, typical_harm
from bertsecrets.ablation.verdicts import FAMILY_WISE, Judging, p_of_losses, paired_tests
from bertsecrets.data.batch import Batch
from bertsecrets.data.task import Task
from bertsecrets.results.formatting import number
from bertsecrets.results.verdicts import DISPENSABLE, NEEDED
from bertsecrets.statistics.sequential import Look, chance_of_a_verdict

LOOKS = "looks"
"""``<LOOKS>_<mode>`` is the key of a record among a run's checks."""

FUTILE = 0.05
"""A variant whose probability of another verdict than inconclusive is below this stops."""

FEWEST = 16
"""The fewest examples that a look adds."""

_FUTILE = "futile"


@dataclass(frozen=True)
class LooksRecord:
    """When a sweep stopped.

    Args:
        sizes: Number of examples at each look.
        needed, dispensable, futile: Numbers of variants that stopped before the last look, for each reason.
        pairs, evaluated: Pairs of a variant and an example, and those of them that were evaluated.
    """

    sizes: tuple[int, ...]
    needed: int
    dispensable: int
    futile: int
    pairs: int
    evaluated: int

    def by_count(self) -> dict[int, Look]:
        """The looks by their numbers of examples."""
        return dict(zip(self.sizes, looks_of(self.sizes), strict=True))


def looks_of(sizes: Sequence[int]) -> list[Look]:
    """Looks at these numbers of examples."""
    shares = tuple(size / sizes[-1] for size in sizes)
    return [Look(index, shares) for index in range(len(sizes))]


def look_positions(count: int, looks: int, seed: int) -> list[list[int]]:
    """Positions of the examples that each look adds, in a random order; at least ``FEWEST`` of them where there are as many."""
    # Each use of the seed has a number of its own, so that no two draw the same random numbers.
    order = np.random.default_rng([seed, 3]).permutation(count)
    return [part.tolist() for part in np.array_split(order, max(1, min(looks, count // FEWEST)))]


def sweep_in_looks(
    plan: Plan,
    looks: Sequence[tuple[int, Callable[[], Iterable[Batch]]]],
    evaluate: Callable[[Plan, Iterable[Batch]], Outcomes],
    task: Task,
    judging: Judging,
    progress: Callable[[int], object] | None = None,
) -> tuple[Outcomes, LooksRecord]:
    """Outcomes in which variants have as many of the examples as it took to settle their verdicts.

    After each look but the last a variant stops if, for every metric of the task, it is shown to be needed or dispensable, by
    p-values that allow for all looks (:class:`bertsecrets.statistics.sequential.Look`), corrected by Bonferroni for the
    number of variants of its kind; or if neither is likely to be shown by all examples
    (:func:`bertsecrets.statistics.sequential.chance_of_a_verdict` below ``FUTILE``), which can only lose findings.

    Args:
        plan: Variants of :data:`bertsecrets.results.components.COMPONENTS`: groups are compared with others on the same examples.
        looks: For each look, the number of examples that it adds, and what makes this process's batches of them.
        evaluate: Sweep some variants over some batches, exactly (:func:`bertsecrets.ablation.sweep.sweep`).
        task: The task, with its metrics.
        judging: How effects are judged.
        progress: Called with the number of pairs of a variant and an example that need no evaluation.
    """
    variants = plan.variants
    left = list(range(len(variants)))
    added: list[tuple[list[int], Outcomes]] = []
    stopped: dict[int, str] = {}
    totals = list(accumulate(size for size, _ in looks))
    for look, (_, batches) in enumerate(looks):
        part = replace(plan, variants=tuple(variants[index] for index in left))
        added.append((left, evaluate(part, batches())))
        if look + 1 == len(looks):
            break
        # On all examples so far, not on those of this look alone.
        settled = _settled(_joined(plan, added), task, judging, left, stopped, looks_of(totals)[look], totals[-1])
        stopped |= settled
        left = [index for index in left if index not in settled]
        if progress is not None:
            progress(len(settled) * (totals[-1] - totals[look]))
        if not left:
            break
    outcomes = _joined(plan, added)
    reasons = list(stopped.values())
    whole = outcomes.taken_NV is None or bool(outcomes.taken_NV.all())
    record = LooksRecord(
        sizes=tuple(totals),
        needed=reasons.count(NEEDED),
        dispensable=reasons.count(DISPENSABLE),
        futile=reasons.count(_FUTILE),
        pairs=totals[-1] * len(variants),
        evaluated=sum(len(indices) * len(part.index_N) for indices, part in added),
    )
    return replace(outcomes, taken_NV=None) if whole else outcomes, record


def looks_in_words(record: Mapping[str, Any]) -> str:
    """When a sweep stopped, from a record as a mapping; a few sentences."""
    sizes = [f"{size:,}" for size in record["sizes"]]
    stopped = record["needed"] + record["dispensable"] + record["futile"]
    share = number(100 * record["evaluated"] / record["pairs"], 1)
    return (
        f"The sweep looked at its results {len(sizes)} times, after {', '.join(sizes[:-1])} and {sizes[-1]} examples, and "
        f"{stopped} variants stopped early: {record['needed']} shown to be needed, {record['dispensable']} that can be spared, "
        f"and {record['futile']} for which neither was likely to be shown. {share} % of the {record['pairs']:,} pairs of a variant and "
        "an example were evaluated. A variant's change of score, interval and verdict are those of its own examples. P-values "
        "and limits allow for the number of looks (Lan and DeMets 1983), so that stopping early makes no finding more likely "
        "by chance."
    )


def _settled(
    outcomes: Outcomes,
    task: Task,
    judging: Judging,
    left: Sequence[int],
    stopped: Mapping[int, str],
    look: Look,
    examples: int,
) -> dict[int, str]:
    """Why variants stop, by their index in the plan; the same on all processes.

    Args:
        outcomes: The outcomes so far.
        task, judging: See :func:`sweep_in_looks`.
        left: Variants that have all examples so far.
        stopped: Why others stopped before.
        look: Which look this is.
        examples: Number of all examples.
    """
    indices, together = next((indices, part) for indices, part in outcomes.together() if set(left) <= set(indices))
    paired, rate, alpha = together.predictions(task), judging.false_discovery_rate, judging.alpha
    kinds = [variant.kind for variant in outcomes.plan.variants]
    settled: dict[int, str] = {}
    for kind in dict.fromkeys(kinds[index] for index in left):
        of_kind = [index for index in left if kinds[index] == kind]
        tests = kinds.count(kind)
        before = [reason for index, reason in stopped.items() if kinds[index] == kind]
        of_variants = paired.of([indices.index(index) for index in of_kind])
        by_metric: list[list[str]] = []
        for metric in judged_metrics(task):
            effects = paired_tests(metric, of_variants, judging, look)
            chance_V = chance_of_a_verdict(
                effects.delta,
                _variances(metric, of_variants),
                paired.count,
                examples,
                judging.margin,
                rate=rate,
                alpha=alpha,
                family_wise=judging.correction == FAMILY_WISE,
                tests=tests,
                shown=(before.count(NEEDED), before.count(DISPENSABLE)),
            )
            by_metric.append(
                [
                    DISPENSABLE
                    if p_loss * tests <= rate
                    else NEEDED
                    if p_needed * tests <= alpha
                    else _FUTILE
                    if chance < FUTILE
                    else ""
                    for p_loss, p_needed, chance in zip(
                        effects.p_loss, p_of_losses(effects.delta, effects.p_value), chance_V, strict=True
                    )
                ]
            )
        for index, *reasons in zip(of_kind, *by_metric, strict=True):
            if all(reasons):
                settled[index] = reasons[0]
    return settled


def _variances(metric: str, paired: PairedPredictions) -> Array:
    """Variance of one example's effect, of classes with one changed prediction more than was seen; positive, ``[V]``."""
    variance_V = (paired.influences(metric) ** 2).mean(-1)
    if metric in CLASS_METRICS:
        # Without a changed prediction the variance would be 0, and every verdict certain.
        variance_V = variance_V + paired.count * typical_harm(metric, paired.label_N, paired.clean_N) ** 2
    return np.asarray(np.maximum(variance_V, np.finfo(np.float64).tiny))


def _joined(plan: Plan, added: Sequence[tuple[Sequence[int], Outcomes]]) -> Outcomes:
    """The outcomes of all looks, in order of index."""
    parts = [part for _, part in added]
    index_N = torch.cat([part.index_N for part in parts])
    order_N = index_N.argsort()
    classes = parts[0].clean_NC.shape[1]
    # NaN, so that a pair which was not evaluated cannot be read as a prediction by mistake.
    logits_NVC = torch.full((len(index_N), len(plan.variants), classes), torch.nan)
    taken_NV = torch.zeros(len(index_N), len(plan.variants), dtype=torch.bool)
    first = 0
    for indices, part in added:
        rows = slice(first, first + len(part.index_N))
        logits_NVC[rows, list(indices)] = part.logits_NVC
        taken_NV[rows, list(indices)] = True
        first = rows.stop
    label_N, clean_NC = (
        torch.cat([getattr(part, name) for part in parts])[order_N] for name in ("label_N", "clean_NC")
    )
    return Outcomes(plan, index_N[order_N], label_N, clean_NC, logits_NVC[order_N], taken_NV=taken_NV[order_N])
