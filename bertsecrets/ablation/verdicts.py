"""Which of many small changes of score are more than noise, and which are shown to be smaller than the margin."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bertsecrets.ablation.predictions import PairedPredictions, largest_flip, largest_moves, scores, typical_harm
from bertsecrets.ablation.significance import bootstrap_changes, mcnemar_exact, swap_test
from bertsecrets.errors import UserError
from bertsecrets.results.verdicts import DISPENSABLE, INCONCLUSIVE, NEEDED
from bertsecrets.statistics.clusters import cluster_sums, few_p, few_tail, signed_sums
from bertsecrets.statistics.corrections import corrected, error_correlation, joint_draws, simultaneous_tail, step_down
from bertsecrets.statistics.intervals import (
    Limits,
    Tail,
    at_many_tails,
    influenced_change,
    paired_proportions,
    with_unseen,
)
from bertsecrets.statistics.non_inferiority import (
    LossTest,
    influenced_loss,
    paired_loss,
    smallest_ruled_out,
    with_unseen_losses,
)
from bertsecrets.statistics.power import detectable_change, detectable_loss
from bertsecrets.statistics.student import mean_limits, mean_rises
from bertsecrets.task_heads.metric import Array, Metric

VERDICTS = (NEEDED, DISPENSABLE, INCONCLUSIVE)
"""A loss is shown; a loss of the margin is ruled out; neither. If both hold, the variant is dispensable."""

Correction = Literal["family_wise", "false_discovery"]
"""The error rate that *needed* controls: the probability of any falsely needed variant, or their share of the needed.
"""

FAMILY_WISE: Correction = "family_wise"
FALSE_DISCOVERY: Correction = "false_discovery"

FEW_MOVED = 30
"""With fewer changed predictions, the largest effect of one on a correlation cannot be estimated."""


@dataclass(frozen=True)
class Judging:
    """How effects are tested.

    Args:
        margin: The largest acceptable loss, as a difference of scores: 0.01 is one point. None: no variant is
            dispensable.
        level: Level of the intervals, between 0 and 1.
        correction: ``family_wise``: the probability of any falsely needed variant is at most 1 - ``level`` (step-down
            max-t; Romano and Wolf 2005). ``false_discovery``: the expected share of falsely needed variants among the
            needed is at most ``false_discovery_rate`` (Benjamini and Hochberg 1995). Both use one-sided tests, so that
            gains of other variants do not make a loss more likely to be shown.
        false_discovery_rate: Largest significant ``p_bh``, and largest ``p_margin`` of a dispensable variant.
        resamples, permutations: Number of bootstrap resamples, and of random swaps.
        seed: Seed of both.
    """

    margin: float | None = 0.01
    level: float = 0.95
    correction: Correction = FAMILY_WISE
    false_discovery_rate: float = 0.05
    resamples: int = 2000
    permutations: int = 9999
    seed: int = 0

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "Judging":
        """The settings with which an ablation table's row was tested; older rows lack a correction."""
        settings = {name: row[name] for name in ("margin", "level", "correction", "false_discovery_rate")}
        return cls(**{name: value for name, value in settings.items() if name == "margin" or value is not None})

    @property
    def alpha(self) -> float:
        """The largest ``p_needed`` of a variant that is needed."""
        return 1 - self.level if self.correction == FAMILY_WISE else self.false_discovery_rate


@dataclass(frozen=True)
class Effects:
    """Separate effects of V variants on the same examples.

    Args:
        baseline: Score of the unedited model, the same for all.
        score, delta: Score of each variant, and its difference from the baseline.
        stderr: Bootstrap standard error of ``delta``.
        low, high: Confidence limits of ``delta``, valid even if few predictions change.
        flips: Share of examples whose predicted class changes; for scores, mean absolute change of the prediction.
        p_value: P-values of the paired test of no change.
        p_loss: One-sided p-values of a loss of the margin or more; NaN without a margin.
        p_unchanged: The value of ``p_loss`` without any changed prediction.
        smallest_effect: The smallest loss that the test detects with 80 % power at the level corrected for the number
            of tests, given the number of predictions that the variant changes; NaN where it cannot be estimated, or
            where no loss is large enough.
    """

    baseline: Array
    score: Array
    delta: Array
    stderr: Array
    low: Array
    high: Array
    flips: Array
    p_value: Array
    p_loss: Array
    p_unchanged: Array
    smallest_effect: Array


@dataclass(frozen=True)
class Verdicts(Effects):
    """The tested effects of V variants.

    Args:
        low_simultaneous, high_simultaneous: Limits of ``delta`` that hold for all V variants simultaneously, and so
            also for a variant selected by its ``delta``.
        p_bh: The p-values of the paired test, adjusted for V variants (false discovery rate).
        p_needed: One-sided p-values of no loss, adjusted for V variants according to ``correction``.
        significant: Whether ``p_bh`` is at most the false discovery rate.
        p_margin: One-sided p-values of a loss of the margin or more, adjusted for V variants
            (:func:`corrected_against_margin`).
        verdict: ``needed``, ``dispensable`` or ``inconclusive``.
    """

    low_simultaneous: Array
    high_simultaneous: Array
    p_bh: Array
    p_needed: Array
    significant: NDArray[np.bool_]
    p_margin: Array
    verdict: tuple[str, ...]


def judge(metric: Metric, paired: PairedPredictions, judging: Judging) -> Verdicts:
    """Test the change of score from the clean predictions to those of each variant.

    P-values come from McNemar's exact test for accuracy and from random swaps of predictions for every other metric;
    intervals from :mod:`bertsecrets.statistics.intervals`. If examples have groups, all of these are over groups
    (:mod:`bertsecrets.statistics.clusters`). A variant is *dispensable* if a loss of the margin or more is ruled out,
    corrected for V variants (:mod:`bertsecrets.statistics.non_inferiority`: the one against loss of the two one-sided
    tests of equivalence; unlike the intervals, it is not mid-p); else *needed* if a loss is shown (one-sided); else
    *inconclusive*. A variant's results do not depend on the other variants, except for the adjusted p-values, the
    smallest effect and the verdict.

    Args:
        metric: The metric.
        paired: The predictions.
        judging: Margin, level and so on.

    Raises:
        UserError: If shapes do not match, or there is nothing to test.
    """
    _check(paired)
    variants = len(paired.prediction_VN)
    baseline, score_V = paired.scores(metric)
    if not metric.events:
        p_V = swap_test(metric, paired, judging.permutations, np.random.default_rng([judging.seed, 1]))
    elif paired.group_N is None:
        p_V = mcnemar_exact(*paired.discordant(metric))
    else:
        p_V = signed_sums(paired.net_wins(metric))
    loss_V = p_against_margin(metric, paired, judging.margin)
    change_RV = bootstrap_changes(metric, paired, judging.resamples, np.random.default_rng([judging.seed, 0]))
    # A resample with an undefined score is left out; a variant with fewer than two others has no standard error.
    several_V = np.isfinite(change_RV).sum(0) > 1
    stderr_V = np.full(variants, np.nan)
    stderr_V[several_V] = np.nanstd(change_RV[:, several_V], axis=0, ddof=1)
    limits = change_limits(metric, paired)
    low_V, high_V = limits(np.full(variants, (1 - judging.level) / 2))
    influence_VN = paired.influences(metric)
    # In either direction: errors are symmetric here, unlike the limits above.
    largest_V = np.maximum(*_largest(metric, paired, influence_VN))
    moves_VN = np.abs(paired.prediction_VN - paired.clean_N) if metric.correlates else paired.moved(metric)
    effects = Effects(
        baseline=np.full_like(score_V, baseline),
        score=score_V,
        delta=score_V - baseline,
        stderr=stderr_V,
        low=low_V,
        high=high_V,
        flips=np.asarray(moves_VN.mean(-1)),
        # Only evaluated pairs can show a loss, so this does not depend on those that a screened sweep left out.
        p_value=p_V,
        p_loss=loss_V,
        p_unchanged=loss_V if judging.margin is None else p_if_unchanged(metric, paired, np.array([judging.margin]))[0],
        smallest_effect=smallest_effects(metric, paired, 2 * judging.alpha / variants, judging.permutations),
    )
    return judge_together(effects, error_correlation(influence_VN, largest_V), limits, judging)


def p_against_margin(metric: Metric, paired: PairedPredictions, margin: float | None) -> Array:
    """One-sided p-values of a loss of the margin or more, ``[V]``; NaN without a margin."""
    if margin is None:
        return np.full(len(paired.prediction_VN), np.nan)
    return np.asarray(p_against_margins(metric, paired, np.array([margin]))[0])


def p_of_mean_against_margin(metric: Metric, models: Sequence[PairedPredictions], margin: float) -> Array:
    """One-sided p-values of a mean loss of the margin or more over several models on the same examples, ``[V]``.

    Given only the examples' noise, allowing for one more example lost by all models.
    """
    influence_SVN = [paired.influences(metric) for paired in models]
    harm_SV = [_largest(metric, *pair)[0] for pair in zip(models, influence_SVN, strict=True)]
    delta_SV = [_defined_changes(metric, paired) for paired in models]
    test = influenced_loss(*(np.mean(part, axis=0) for part in (delta_SV, influence_SVN, harm_SV)))
    return _of_clusters(test, models[0])(np.array(margin))


def p_against_margins(metric: Metric, paired: PairedPredictions, margin_M: Array) -> Array:
    """The p-values of :func:`p_against_margin` for several margins, ``[M, V]``."""
    test, which_V = _loss_test(metric, paired)
    return np.asarray(np.stack([test(np.array(margin)) for margin in margin_M])[:, which_V])


def p_if_unchanged(metric: Metric, paired: PairedPredictions, margin_M: Array) -> Array:
    """The values of these p-values if the variants changed no prediction, ``[M, V]``."""
    variants = len(paired.prediction_VN)
    # If everything was evaluated, one value holds for all variants.
    some = paired if paired.unseen is not None else paired.of([0])
    clean_VN = np.broadcast_to(some.clean_N, some.prediction_VN.shape)
    p_MV = p_against_margins(metric, replace(some, prediction_VN=clean_VN), margin_M)
    return np.broadcast_to(p_MV, (len(margin_M), variants))


def losses_ruled_out(metric: Metric, paired: PairedPredictions, alpha: float) -> Array:
    """The smallest loss whose p-value by :func:`p_against_margin` is at most ``alpha``, ``[V]``; negative if a gain is
    shown.
    """
    test, which_V = _loss_test(metric, paired)
    return smallest_ruled_out(test, alpha, metric.reach)[which_V]


def _loss_test(metric: Metric, paired: PairedPredictions) -> tuple[LossTest, NDArray[np.int64]]:
    """The test against a loss for distinct variants, and the index of the one that each variant equals.

    Unlike the limits of :func:`change_limits`, which are mid-p, these p-values must never be anti-conservative: they
    are enumerated for accuracy, and simulated for other metrics.
    """
    unseen = paired.unseen if paired.unseen is not None and paired.unseen.left_V.any() else None
    if _counts(metric, paired):
        # Many variants have the same counts, and so the same p-values.
        counts = np.stack([*paired.discordant(metric), *(() if unseen is None else (unseen.left_V, unseen.audited_V))])
        (lost_U, won_U, *_), first_U, which_V = np.unique(counts, axis=1, return_index=True, return_inverse=True)
        test = paired_loss(lost_U, won_U, paired.count)
    else:
        first_U = which_V = np.arange(len(paired.prediction_VN))
        influence_VN = paired.influences(metric)
        harm_V, _ = _largest(metric, paired, influence_VN)
        test = _of_clusters(influenced_loss(_defined_changes(metric, paired), influence_VN, harm_V), paired)
    if unseen is not None:
        step = largest_flip(metric, paired.label_N, paired.clean_N)
        chance_VK, changes_K = unseen.chances_VK()
        test = with_unseen_losses(test, step, chance_VK[first_U], changes_K)
    return test, which_V.ravel()


def _of_clusters(test: LossTest, paired: PairedPredictions) -> LossTest:
    """The test, with the degrees of freedom of few groups if there are groups."""
    cluster_N = paired.cluster_N
    return test if cluster_N is None else lambda size: few_p(test(size), cluster_N)


def judge_together(effects: Effects, correlation_VV: Array, limits: Tail, judging: Judging) -> Verdicts:
    """Correct the effects of all variants for their number, and give verdicts.

    Args:
        effects: The effects before any correction.
        correlation_VV: Correlation of their errors.
        limits: Their limits as a function of the tail.
        judging: Level, correction and false discovery rate.
    """
    # A fixed seed, so that the same effects get the same verdicts regardless of the seed of the resamples.
    generator = np.random.default_rng([0, 3])
    draw_VR = joint_draws(correlation_VV, generator)
    tail = simultaneous_tail(draw_VR, 1 - judging.level)
    low_V, high_V = limits(np.full(len(effects.delta), tail))
    p_bh_V = corrected(effects.p_value)
    p_loss_V = p_of_losses(effects.delta, effects.p_value)
    p_needed_V, p_margin_V, verdict = verdicts_together(p_loss_V, effects.p_loss, effects.p_unchanged, draw_VR, judging)
    return Verdicts(
        **vars(effects),
        p_bh=p_bh_V,
        p_needed=p_needed_V,
        low_simultaneous=low_V,
        high_simultaneous=high_V,
        significant=p_bh_V <= judging.false_discovery_rate,
        p_margin=p_margin_V,
        verdict=verdict,
    )


def verdicts_together(
    p_loss_V: Array, p_margin_V: Array, p_unchanged_V: Array, draw_VR: Array, judging: Judging
) -> tuple[Array, Array, tuple[str, ...]]:
    """Correct the tests of V variants for their number: the p-values of no loss and of the margin, and the verdicts.

    Args:
        p_loss_V: One-sided p-values of no loss.
        p_margin_V: One-sided p-values of a loss of the margin or more.
        p_unchanged_V: Those of a variant without any changed prediction.
        draw_VR: Draws from the joint distribution of the variants' errors.
        judging: Level, correction and false discovery rate.
    """
    p_needed_V = _over_variants(p_loss_V, draw_VR, judging)
    p_margin_V = corrected_against_margin(p_margin_V, p_unchanged_V)
    return p_needed_V, p_margin_V, verdicts_of(p_needed_V, p_margin_V, judging)


def corrected_against_margin(p_V: Array, p_unchanged_V: Array) -> Array:
    """P-values of a loss of the margin or more, corrected for their number: the smallest rate at which each variant is
    spared.

    Adjusted to the false discovery rate; but a variant that changes no prediction, or whose p-value is as small as that
    of such a variant, keeps the p-value of no changed prediction: its verdict must not depend on the number of other
    variants.

    Args:
        p_V: The p-values.
        p_unchanged_V: Those of a variant without any changed prediction.
    """
    alone_V = p_V <= p_unchanged_V * (1 + 1e-9)
    return np.where(alone_V, np.minimum(corrected(p_V), p_unchanged_V), corrected(p_V))


def _over_variants(p_V: Array, draw_VR: Array, judging: Judging) -> Array:
    """One-sided p-values of no harm, adjusted for the number of variants according to ``correction``."""
    return step_down(p_V, draw_VR) if judging.correction == FAMILY_WISE else corrected(p_V)


def judge_rises(change_UV: Array, judging: Judging) -> tuple[Array, Array, Array]:
    """Test the increase of a mean over examples, such as the loss, for each variant, with the max-t of
    :func:`judge_together`.

    Uses :func:`bertsecrets.statistics.student.mean_rises` over paired examples; limits are Student's.

    Args:
        change_UV: Changes of each example, or group (:meth:`PairedPredictions.by_unit`).
        judging: Level and correction.

    Returns:
        One-sided p-values of no increase, adjusted for V variants according to ``correction``, and limits of the change
        that hold for all V variants simultaneously, ``[V]`` each.
    """
    generator = np.random.default_rng([0, 4])
    # A mean has no unseen events: every example shows its spread.
    draw_VR = joint_draws(error_correlation((change_UV - change_UV.mean(0)).T, 0.0), generator)
    _, low_V, high_V = mean_limits(change_UV, 2 * simultaneous_tail(draw_VR, 1 - judging.level))
    return _over_variants(mean_rises(change_UV), draw_VR, judging), low_V, high_V


def p_of_losses(delta_V: Array, p_V: Array) -> Array:
    """One-sided p-values of no loss from two-sided p-values of tests that are symmetric under no change, ``[V]``; 1
    without a loss.
    """
    return np.where(delta_V < 0, p_V / 2, 1.0)


def verdicts_of(p_needed_V: Array, p_margin_V: Array, judging: Judging) -> tuple[str, ...]:
    """The verdict of each variant, from its corrected one-sided p-values of no loss, and of a loss of the margin or
    more.
    """
    return tuple(
        DISPENSABLE
        if p_margin <= judging.false_discovery_rate
        else NEEDED
        if p_needed <= judging.alpha
        else INCONCLUSIVE
        for p_needed, p_margin in zip(p_needed_V, p_margin_V, strict=True)
    )


def change_limits(metric: Metric, paired: PairedPredictions) -> Tail:
    """Limits of each variant's change of score as a function of the tail (see :func:`judge`); NaN if all predictions
    score 0.

    They are at most as far apart as the range of the metric, and allow for pairs that a screened sweep left out.
    """
    most, unseen = metric.reach, paired.unseen
    if _counts(metric, paired):
        limits = paired_proportions(*paired.discordant(metric), paired.count)
    else:
        influence_VN, cluster_N = paired.influences(metric), paired.cluster_N
        largest = _largest(metric, paired, influence_VN)
        independent = influenced_change(_defined_changes(metric, paired), influence_VN, *largest)
        limits = independent if cluster_N is None else lambda tail: independent(few_tail(tail, cluster_N))
    if unseen is not None and unseen.left_V.any():
        if _counts(metric, paired):
            # Many variants have the same counts, and limits at many tails take long to compute.
            (lost_U, won_U), which_V = np.unique(np.stack(paired.discordant(metric)), axis=1, return_inverse=True)
            of_U = at_many_tails(paired_proportions(lost_U, won_U, paired.count), len(lost_U))
            low_TV, high_TV = (of_TU[:, which_V.ravel()] for of_TU in of_U)
        else:
            low_TV, high_TV = at_many_tails(limits, len(paired.prediction_VN))
        step = largest_flip(metric, paired.label_N, paired.clean_N)
        limits = with_unseen((low_TV, high_TV), step, *unseen.chances_VK(), most)

    def within(tail: Array) -> Limits:
        low_V, high_V = limits(tail)
        return low_V.clip(-most, most), high_V.clip(-most, most)

    return within


def _defined_changes(metric: Metric, paired: PairedPredictions) -> Array:
    """The changes of a metric, NaN if all predictions score 0."""
    return np.where(paired.is_defined(metric), paired.changes(metric), np.nan)


def _counts(metric: Metric, paired: PairedPredictions) -> bool:
    """Whether a change is a difference between two counts of independent examples, for which exact tests exist."""
    return metric.events and paired.group_N is None


def smallest_effects(metric: Metric, paired: PairedPredictions, alpha: float, permutations: int) -> Array:
    """The smallest loss of each variant that the test detects with 80 % power, ``[V]``; NaN where it cannot be
    estimated.

    Args:
        metric, paired: As for :func:`judge`.
        alpha: Level of the test, corrected for the number of variants.
        permutations: Number of random swaps.
    """
    # Groups are worth fewer examples, each with a larger weight.
    count, variants = round(paired.count / paired.unit_size), len(paired.prediction_VN)
    if _counts(metric, paired):
        lost_V, won_V = paired.discordant(metric)
        return np.array([detectable_loss(float(flips), count, alpha) for flips in (lost_V + won_V) / count])
    # Random swaps need a p-value slightly below alpha, as the observed order counts as one of them: (b + 1) / (R + 1)
    # is at most alpha for b swaps out of R that are as extreme as observed, and the median of a Poisson count is about
    # a third below its mean.
    alpha = (math.floor(alpha * (permutations + 1) + 1e-9) - 1 / 3) / permutations
    if alpha <= 0:
        return np.full(variants, np.nan)
    variance_V = (paired.influences(metric) ** 2).mean(-1) / paired.units
    if metric.of_classes:
        harm_V = np.full(variants, typical_harm(metric, paired.label_N, paired.clean_N) * paired.unit_size)
    elif metric.of_statistics:
        harm_V = np.full(variants, largest_moves(metric, paired.label_N, paired.clean_N)[0] * paired.unit_size)
    else:
        # A loss changes predictions further: noise that loses as much as the observed changes would doubles their
        # variance.
        agreement_V = scores(metric, paired.clean_N, paired.prediction_VN)
        baseline = abs(float(scores(metric, paired.label_N, paired.clean_N[None])[0]))
        with np.errstate(divide="ignore", invalid="ignore"):
            harm_V = variance_V / (baseline * (1 - agreement_V))
    smallest = []
    for variance, step in zip(variance_V, harm_V, strict=True):
        effect = math.nan
        if metric.of_classes and step > 0:
            # An example weighs ``step`` instead of 1 / N: the same test on the same number of examples, with flips of
            # that weight.
            flips = min(float(variance / (count * step**2)), 1.0)
            effect = count * step * detectable_loss(round(flips, 6), count, alpha)
        elif not metric.of_classes and np.isfinite(step) and variance > 0:
            effect = detectable_change(math.sqrt(variance), float(step), count, alpha)
        smallest.append(effect if effect <= metric.reach else math.nan)
    return np.array(smallest)


def _largest(metric: Metric, paired: PairedPredictions, influence_VN: Array) -> tuple[Array, Array]:
    """The largest loss and gain that one example, or a group of average size, can make, ``[V]`` each.

    Either the unedited model's prediction or the variant's may flip, to any class. Scores change by as much as observed
    if enough of them change, else from the lowest to the highest.
    """
    label_N, clean_N, prediction_VN = paired.label_N, paired.clean_N, paired.prediction_VN
    size = paired.unit_size
    if metric.of_classes:
        clean = largest_flip(metric, label_N, clean_N)
        flip_V = size * np.array([max(clean, largest_flip(metric, label_N, variant_N)) for variant_N in prediction_VN])
        if not metric.flips:
            # Events of one example, such as the words of a sentence, change together: as many as in any one seen.
            flip_V = np.maximum(flip_V, np.abs(influence_VN).max(-1) / paired.units)
        return flip_V, flip_V
    largest_V2 = size * np.tile(largest_moves(metric, label_N, clean_N), (len(prediction_VN), 1))
    observed_V2 = np.stack([-influence_VN.min(-1), influence_VN.max(-1)], -1).clip(min=0) / paired.units
    moved_VN = paired.moved(metric)
    moved_VU = moved_VN if paired.cluster_N is None else cluster_sums(moved_VN, paired.cluster_N) > 0
    many_V = moved_VU.sum(-1) >= FEW_MOVED
    largest_V2 = np.where(many_V[:, None], observed_V2, largest_V2)
    return largest_V2[:, 0], largest_V2[:, 1]


def _check(paired: PairedPredictions) -> None:
    label_N, clean_N, prediction_VN = paired.label_N, paired.clean_N, paired.prediction_VN
    if prediction_VN.ndim != clean_N.ndim + 1 or not len(prediction_VN):
        raise UserError(
            f"Predictions of shape {list(prediction_VN.shape)} cannot be tested; the expected shape is [variants, "
            "examples]."
        )
    if paired.units < 2:
        what = "examples" if paired.group_N is None else "groups of examples"
        raise UserError(f"{paired.units} {what} are too few to test a change; at least two are needed.")
    if len(clean_N) != len(label_N) or prediction_VN.shape[1:] != clean_N.shape:
        raise UserError(
            f"There are {len(label_N)} labels, {len(clean_N)} clean predictions and {prediction_VN.shape[1]} "
            "predictions of each variant; give the same examples for all."
        )
