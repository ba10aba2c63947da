"""Simulate what a sweep's procedures promise over all its heads and seeds, before and after they were judged together.

python -m benchmarks.procedures                    # table of docs/ablation.md, to benchmarks/results/procedures.json
python -m benchmarks.procedures --only "of_*_seeds" # the same, with the other functions' stored rows
python -m benchmarks.procedures --show             # the table of the stored results
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from scipy.optimize import brentq

from bertsecrets.ablation.judging import judged_rows, spared_heads
from bertsecrets.ablation.outcomes import Outcomes
from bertsecrets.ablation.plan import Plan, every_head
from bertsecrets.ablation.predictions import PairedPredictions, Unseen
from bertsecrets.ablation.screening import Screening
from bertsecrets.ablation.seeds import FEW_FLIPS, p_of_flips
from bertsecrets.ablation.settings import AblationSettings
from bertsecrets.ablation.significance import mcnemar_exact
from bertsecrets.ablation.verdicts import (
    Effects,
    Judging,
    Verdicts,
    corrected_against_margin,
    judge,
    judge_rises,
    judge_together,
    p_against_margin,
    p_if_unchanged,
    p_of_losses,
)
from bertsecrets.data.task import Task
from bertsecrets.pruning.guarantee import search_level
from bertsecrets.statistics.clusters import cluster_sums
from bertsecrets.statistics.corrections import corrected, error_correlation, holm, joint_draws, least_false, step_down
from bertsecrets.statistics.intervals import paired_proportions, stderr_of_width
from bertsecrets.statistics.non_inferiority import paired_loss, with_unseen_losses
from bertsecrets.statistics.ranks import rank_correlation
from bertsecrets.statistics.replicates import effects_over_seeds, partial_conjunction, seeds_shown
from bertsecrets.statistics.student import limits_of_all, mean_exceeds_zero
from bertsecrets.task_heads import METRICS

Array = np.ndarray
RESULTS = Path(__file__).parent / "results" / "procedures.json"
COUNTS = (80, 400, 5000)
SEEDS = (2, 3, 5, 10)
HEADS = 72
EFFECT, MARGIN = 0.04, 0.01
_RIGHT = 0.85
_FRAGILE = 0.2
_SPREAD = 0.01
"""Standard deviation of an effect between seeds."""

TAGGED_HEADS, LOSSLESS = 24, 8
FEW, OF_KINDS = 37, 40
"""Units of a small demo, and the largest number of simulations of kinds of task head, which take longest."""
ENTITIES, FOUND, INVENTED = 2.0, 0.8, 0.3
"""Entities of a sentence, share of them that a tagger finds, and entities that it invents, on average."""

FLIPS = {"no effect": 0.04, "correlated heads": 0.04, "rare flips": 0.002}
"""Share of the examples that a head flips at random, by scenario; 4 % in all others."""


def losses(scenario: str, baseline: float = 0.0) -> Array:
    """What each head loses, ``[V]``, where those that a scenario does not name lose ``baseline``."""
    loss_V = np.full(HEADS, baseline)
    if scenario == "one effect":
        loss_V[0] = EFFECT - baseline if baseline == 0 else 0.0
    elif scenario == "dense small effects":
        loss_V[: HEADS // 2] = MARGIN - baseline
    elif scenario == "heads that gain":
        loss_V[:40], loss_V[40:50] = -EFFECT, EFFECT
    return loss_V


def changes(loss_SV: Array, count: int, scenario: str, generator: np.random.Generator) -> Array:
    """Change of each answer: -1 lost, 1 won, ``[S, V, N]``. Seeds and heads share fragile examples where heads are
    correlated.
    """
    flips = FLIPS.get(scenario, 0.04)
    right, share_N = _RIGHT, np.ones(count)
    if scenario == "correlated heads":
        right, share_N = 0.5, (generator.random(count) < _FRAGILE) / _FRAGILE
    right_SN = generator.random((len(loss_SV), count)) < right
    to_wrong_SV, to_right_SV = flips / 2 + np.maximum(loss_SV, 0), flips / 2 + np.maximum(-loss_SV, 0)
    drawn_SVN = generator.random((*loss_SV.shape, count), dtype=np.float32)
    rate_SVN = np.where(right_SN[:, None], to_wrong_SV[..., None] / right, to_right_SV[..., None] / (1 - right))
    flipped_SVN = drawn_SVN < rate_SVN * share_N
    change_SVN: Array = np.where(right_SN[:, None], -1, 1).astype(np.int8) * flipped_SVN
    return change_SVN


def judged(change_VN: Array, judging: Judging | None = None) -> tuple[Verdicts, Array]:
    """Verdicts of one sweep from the changes of its answers, without what has no part in them, and p-values of no
    change.
    """
    count = change_VN.shape[1]
    lost_V, won_V = (change_VN < 0).sum(-1), (change_VN > 0).sum(-1)
    delta_V = (won_V - lost_V) / count
    limits = paired_proportions(lost_V, won_V, count)
    p_V = mcnemar_exact(lost_V, won_V)
    influence_VN = change_VN - delta_V[:, None]
    low_V, high_V = limits(np.full(len(delta_V), 0.025))
    unused_V = np.full(len(delta_V), np.nan)
    effects = Effects(
        baseline=unused_V,
        score=unused_V,
        delta=delta_V,
        stderr=unused_V,
        low=low_V,
        high=high_V,
        p_value=p_V,
        p_loss=np.ones(len(delta_V)),
        p_unchanged=np.zeros(len(delta_V)),
        flips=unused_V,
        smallest_effect=unused_V,
    )
    correlation_VV = error_correlation(influence_VN, np.full(len(delta_V), 1 / count))
    verdicts = judge_together(effects, correlation_VV, limits, judging or Judging(margin=MARGIN))
    return verdicts, p_V


def of_sweeps(scenario: str, count: int, simulations: int) -> dict[str, dict[str, float]]:
    """Coverage of intervals, false needed heads, and needed heads found, of sweeps with one seed."""
    loss_V = losses(scenario)
    sums = np.zeros(6)
    for simulation in range(simulations):
        generator = np.random.default_rng([simulation, count, 21])
        verdicts, p_V = judged(changes(loss_V[None], count, scenario, generator)[0])
        picked = int(verdicts.delta.argmin())
        alone = verdicts.low[picked] <= -loss_V[picked] <= verdicts.high[picked]
        together = ((verdicts.low_simultaneous <= -loss_V) & (-loss_V <= verdicts.high_simultaneous)).all()
        before_V = (corrected(p_V) <= 0.05) & (verdicts.delta < 0)
        after_V = verdicts.p_needed <= 0.05
        lose_V = loss_V > 0
        sums += [
            alone,
            together,
            (before_V & ~lose_V).any(),
            (after_V & ~lose_V).any(),
            (before_V & lose_V).sum() / max(1, lose_V.sum()),
            (after_V & lose_V).sum() / max(1, lose_V.sum()),
        ]
    means = (sums / simulations).tolist()
    rates = {
        "coverage: interval of the worst head": {"before": means[0], "after": means[1], "nominal": 0.95},
        "any head falsely needed": {"before": means[2], "after": means[3], "nominal": 0.05},
    }
    if (loss_V > 0).any():
        rates["needed heads found"] = {"before": means[4], "after": means[5]}
    return rates


def of_bounds(scenario: str, count: int, simulations: int) -> dict[str, dict[str, float]]:
    """How often more heads are said to lose less than the margin than do, where all others lose just the margin."""
    loss_V = losses(scenario, MARGIN)
    true = int((loss_V < MARGIN - 1e-9).sum())
    data = []
    for simulation in range(simulations):
        generator = np.random.default_rng([simulation, count, 22])
        change_VN = changes(loss_V[None], count, scenario, generator)[0]
        data.append(((change_VN < 0).sum(-1), (change_VN > 0).sum(-1)))
    lost_RV, won_RV = (np.array(part) for part in zip(*data, strict=True))
    p_RV = p_of_counts(lost_RV.ravel(), won_RV.ravel(), count).reshape(lost_RV.shape)
    before = np.mean([(corrected(p_V) <= 0.05).sum() > true for p_V in p_RV])
    after = np.mean([least_false(p_V, 0.05) > true for p_V in p_RV])
    rates = {
        "the count of heads that can be spared is too high": {
            "before": float(before),
            "after": float(after),
            "nominal": 0.05,
        }
    }
    if true > 1:
        rates["share found of the heads that can be spared"] = {
            "before": float(np.mean([(corrected(p_V) <= 0.05).sum() for p_V in p_RV]) / true),
            "after": float(np.mean([least_false(p_V, 0.05) for p_V in p_RV]) / true),
        }
    return rates


def p_of_counts(lost_V: Array, won_V: Array, count: int) -> Array:
    """P-values of a loss of the margin from numbers of lost and won answers, each pair of numbers once."""
    (lost_U, won_U), which_V = np.unique(np.stack([lost_V, won_V]), axis=1, return_inverse=True)
    return paired_loss(lost_U, won_U, count)(np.array(MARGIN))[which_V.ravel()]


def of_these_seeds(scenario: str, seeds: int, count: int, simulations: int) -> dict[str, dict[str, float]]:
    """In how many of these seeds heads are said to be needed, and to be spared.

    Of 48 heads, 12 are in none, in all but half of the seeds, in all but one, and in all: hardest to tell from more.
    Before, all, most and one seed were three families.
    """
    most = seeds // 2 + 1
    true_V = np.repeat([0, most - 1, seeds - 1, seeds], 12)
    has_SV = np.arange(seeds)[:, None] < true_V
    sums = np.zeros(6)
    for simulation in range(simulations):
        generator = np.random.default_rng([simulation, count, seeds, 23])
        # A head loses 4 points or nothing; for the other claim, nothing or just the margin.
        change_SVN = changes(EFFECT * has_SV, count, scenario, generator)
        p_SV = np.stack([mcnemar_exact((change_VN < 0).sum(-1), (change_VN > 0).sum(-1)) for change_VN in change_SVN])
        p_SV = p_of_losses(change_SVN.mean(-1), p_SV)
        change_SVN = changes(np.where(has_SV, 0.0, MARGIN), count, scenario, generator)
        lost_SV, won_SV = (change_SVN < 0).sum(-1), (change_SVN > 0).sum(-1)
        p_margin_SV = p_of_counts(lost_SV.ravel(), won_SV.ravel(), count).reshape(lost_SV.shape)
        thrice = (1, most, seeds)
        needed = [
            np.stack([u * (holm(partial_conjunction(p_SV, u)) <= 0.05) for u in thrice]).max(0),
            seeds_shown(p_SV, 0.05),
        ]
        spared_UV = np.stack([corrected(partial_conjunction(p_margin_SV, u)) <= 0.05 for u in thrice])
        false = (spared_UV & (np.array(thrice)[:, None] > true_V)).sum() / max(1, spared_UV.sum())
        shown_V = seeds_shown(p_margin_SV, 0.05, family_wise=False)
        sums += [
            *((shown > true_V).any() for shown in needed),
            false,
            (shown_V - true_V).clip(min=0).sum() / max(1, shown_V.sum()),
            *((shown == seeds)[true_V == seeds].mean() for shown in needed),
        ]
    means = (sums / simulations).tolist()
    return {
        "any head called needed in too many of these seeds": {
            "before": means[0],
            "after": means[1],
            "nominal": 0.05,
        },
        "heads spared in fewer of these seeds than reported": {
            "before": means[2],
            "after": means[3],
            "nominal": 0.05,
        },
        "heads found needed in all of these seeds": {"before": means[4], "after": means[5]},
    }


def seed_counts(
    loss_SV: Array, flips_V: Array, count: int, generator: np.random.Generator, together: float = 0.0
) -> tuple[Array, tuple[Array, Array], tuple[Array, Array]]:
    """Changes of accuracy with S seeds, ``[S, V]``; their noise (covariance of two seeds, variance of one); lost and
    won answers, common and own.

    Of the answers that a head flips at random, seeds share three tenths, and a share ``together`` of the mean loss.
    """
    shared, loss_V = 0.3, together * loss_SV.mean(0)
    loss_SV = loss_SV - loss_V
    common_2V = generator.binomial(count, shared * flips_V / 2 + np.stack([loss_V, -loss_V]).clip(min=0))
    of_seed_2SV = (1 - shared) * flips_V / 2 + np.stack([loss_SV, -loss_SV]).clip(min=0)
    own_2SV = generator.binomial(count, of_seed_2SV.clip(max=1))
    lost_SV, won_SV = common_2V[:, None] + own_2SV
    delta_SV = (won_SV - lost_SV) / count
    shared_V = (common_2V.sum(0) - np.diff(common_2V, axis=0)[0] ** 2 / count) / count**2
    noise_V = ((lost_SV + won_SV) / count**2 - delta_SV**2 / count).mean(0)
    # As for a sweep: the width of the seeds' intervals where few answers change.
    few_V = (lost_SV + won_SV).sum(0) < FEW_FLIPS
    if few_V.any():
        tail_V = np.full(few_V.sum() * len(lost_SV), 0.025)
        low, high = paired_proportions(lost_SV[:, few_V].ravel(), won_SV[:, few_V].ravel(), count)(tail_V)
        least = stderr_of_width((high - low).reshape(len(lost_SV), -1).mean(0), 0.95) ** 2
        shared_V[few_V], noise_V[few_V] = np.maximum(shared_V[few_V], least), np.maximum(noise_V[few_V], least)
    return delta_SV, (shared_V, noise_V), (common_2V, own_2SV)


def of_other_seeds(scenario: str, seeds: int, count: int, simulations: int) -> dict[str, dict[str, float]]:
    """Verdicts and limits over seeds of 72 heads: none loses; or 31 lose just the margin, 10 four points and the others
    nothing.

    Before, a mean over seeds had the degrees of freedom of Satterthwaite (1946), from its own variance, and limits were
    each head's own.
    """
    ruled_V = np.repeat([MARGIN, EFFECT, 0.0], [31, 10, 31])
    # First the rule before, then the package's: wrongly needed, a picked head covered, each head covered; wrongly
    # spared, found.
    sums = np.zeros((2, 6))
    for simulation in range(simulations):
        generator = np.random.default_rng([simulation, count, seeds, 24])
        for loss_V in (np.zeros(HEADS), ruled_V):
            flips_V, spread_V = np.full(HEADS, 0.02), np.full(HEADS, _SPREAD)
            if scenario == "rare flips":
                flips_V[:] = FLIPS[scenario]
            elif scenario == "most heads change nothing":
                flips_V[18:] = spread_V[18:] = 0
                spread_V[:4] *= 3
            elif scenario == "unequal spreads":
                flips_V = (0.01 * np.exp(generator.normal(0, 1, HEADS))).clip(max=0.3)
                spread_V = 0.4 * flips_V * np.exp(generator.normal(0, 0.5, HEADS))
            elif scenario == "few heads that differ":
                spread_V = np.where(np.arange(HEADS) % 10, 0.001, 0.02)
            together = 0.7 if scenario == "seeds that move all heads" else 0.0
            draw_SV = math.sqrt(together) * generator.standard_normal((seeds, 1))
            draw_SV = draw_SV + math.sqrt(1 - together) * generator.standard_normal((seeds, HEADS))
            loss_SV = loss_V + spread_V * draw_SV
            if scenario == "normal errors":
                # Hardest before: the noise that seeds share is a sixth of the variance of the mean.
                shared_V = np.full(HEADS, _SPREAD**2 / seeds / 5)
                delta_SV, noise = -loss_SV + np.sqrt(shared_V) * generator.standard_normal(HEADS), (shared_V, shared_V)
                flips = None
            else:
                delta_SV, noise, flips = seed_counts(loss_SV, flips_V, count, generator)
            after = effects_over_seeds(delta_SV, *noise, margin=MARGIN, level=0.95)
            if loss_V is ruled_V and flips is not None:
                after = replace(after, p_examples=p_of_flips(*flips, count, MARGIN))
            p_before_V, p_margin_before_V, limits = satterthwaite(delta_SV, noise[0])
            tests = ((p_before_V, p_margin_before_V), (after.p_value, after.p_margin))
            for sum_6, (p_V, p_margin_V) in zip(sums, tests, strict=True):
                needed_V = holm(p_of_losses(after.delta, p_V)) <= 0.05
                spared_V = corrected(p_margin_V) <= 0.05
                if loss_V is ruled_V:
                    lose_V = loss_V >= MARGIN
                    sum_6[3] += (spared_V & lose_V).sum() / max(1, spared_V.sum())
                    sum_6[4:] += needed_V[loss_V == EFFECT].mean(), spared_V[~lose_V].mean()
                else:
                    sum_6[0] += needed_V.any()
            if loss_V is not ruled_V:
                worst = after.delta.argmin()
                shown = ((limits, limits), (after.limits_simultaneous, after.limits))
                for sum_6, ((low_V, high_V), (own_low_V, own_high_V)) in zip(sums, shown, strict=True):
                    sum_6[1] += low_V[worst] <= 0 <= high_V[worst]
                    sum_6[2] += ((own_low_V <= 0) & (own_high_V >= 0)).mean()
    promises = [
        ("any head falsely needed over seeds", 0.05),
        ("coverage: interval over seeds of the worst head", 0.95),
        ("coverage: pointwise interval over seeds", 0.95),
        ("share of the heads spared over seeds that lose the margin", 0.05),
        ("needed heads found over seeds", None),
        ("lossless heads spared over seeds", None),
    ]
    return {
        promise: dict(before=before, after=after, **({} if nominal is None else {"nominal": nominal}))
        for (promise, nominal), before, after in zip(promises, *(sums / simulations).tolist(), strict=True)
    }


def of_losses_in_all_seeds(scenario: str, seeds: int, count: int, simulations: int) -> dict[str, dict[str, float]]:
    """Whether any of 72 heads is spared over seeds that all lose just the margin, half of it on the same examples, or
    none of it.

    Before, no p-value was bounded by the noise of examples alone.
    """
    any_spared = np.zeros(2)
    for simulation in range(simulations):
        generator = np.random.default_rng([simulation, count, seeds, 26])
        delta_SV, noise, flips = seed_counts(
            np.full((seeds, HEADS), MARGIN), np.full(HEADS, 0.002), count, generator, ALIKE[scenario]
        )
        before = effects_over_seeds(delta_SV, *noise, margin=MARGIN, level=0.95)
        after = replace(before, p_examples=p_of_flips(*flips, count, MARGIN))
        any_spared += [(corrected(effects.p_margin) <= 0.05).any() for effects in (before, after)]
    before, after = (any_spared / simulations).tolist()
    return {"any head spared over seeds if all lose the margin": {"before": before, "after": after, "nominal": 0.05}}


def satterthwaite(delta_SV: Array, shared_V: Array) -> tuple[Array, Array, tuple[Array, Array]]:
    """P-values of no effect and of a loss of the margin, and limits, by degrees of freedom from each head's own
    variance.
    """
    seeds, delta_V = len(delta_SV), delta_SV.mean(0)
    between_V = delta_SV.var(0, ddof=1) / seeds
    stderr_V = np.sqrt(between_V + shared_V)
    with np.errstate(divide="ignore", invalid="ignore"):
        freedom_V = np.where(between_V > 0, stderr_V**4 / (between_V**2 / (seeds - 1)), 1e9)
        p_V = 2 * stats.t.sf(np.abs(delta_V) / stderr_V, freedom_V)
        p_margin_V = stats.t.sf((delta_V + MARGIN) / stderr_V, freedom_V)
    p_V, p_margin_V = np.where(delta_V == 0, 1.0, p_V), np.where(delta_V == -MARGIN, 1.0, p_margin_V)
    reach_V = stats.t.ppf(0.975, freedom_V) * stderr_V
    return p_V, p_margin_V, (delta_V - reach_V, delta_V + reach_V)


def of_correlations(scenario: str, heads: int, simulations: int) -> dict[str, dict[str, float]]:
    """How often two unrelated numbers of so many heads, 12 a layer, are said to go together because both follow depth.

    Before, layers changed places as if their order told nothing.
    """
    layers, sums = heads // 12, np.zeros(2)
    place_L = np.arange(layers)
    smooth_LL = np.linalg.cholesky(np.exp(-((place_L[:, None] - place_L) ** 2) / 8) + 1e-6 * np.eye(layers))
    for simulation in range(simulations):
        generator = np.random.default_rng([simulation, heads, 25])
        normal_GL = generator.standard_normal((2, layers))
        profile_GL = {
            "alike in a layer": normal_GL,
            "smooth over depth": normal_GL @ smooth_LL.T,
            "both rise over depth": np.tile(1.7 * (place_L - place_L.mean()) / place_L.std(), (2, 1)),
        }[scenario]
        x_LH, y_LH = profile_GL[..., None] + generator.standard_normal((2, layers, 12))
        correlation = rank_correlation(x_LH, y_LH)
        x_N, y_N = stats.rankdata(x_LH), stats.rankdata(y_LH)
        layer_RL = generator.permuted(np.tile(place_L, (999, 1)), axis=1)
        head_RLH = generator.permuted(np.tile(np.arange(12), (999, layers, 1)), axis=2)
        order_RN = (12 * layer_RL[..., None] + head_RLH).reshape(999, -1)
        chance_R = np.abs((y_N - y_N.mean())[order_RN] @ (x_N - x_N.mean())) / (heads * x_N.std() * y_N.std())
        before = (1 + (chance_R >= abs(correlation.rho) - 1e-9).sum()) / 1000 <= 0.05
        sums += [before, correlation.significant]
    before_rate, after = (sums / simulations).tolist()
    return {
        "unrelated numbers of heads reported as correlated": {"before": before_rate, "after": after, "nominal": 0.05}
    }


def of_guarantees(scenario: str, count: int, simulations: int) -> dict[str, dict[str, float]]:
    """What is ruled out wrongly of 72 heads of which all, or the first half, lose just the margin and win nothing; the
    others change no answer.

    Before, p-values were mid-p, and heads were spared by the false discovery rate alone.
    """
    lose = HEADS if scenario == "all lose the margin" else HEADS // 2
    generator = np.random.default_rng([count, lose, 26])
    cells = np.array([[MARGIN, 0.0, 1 - MARGIN]] * lose + [[0.0, 0.0, 1.0]] * (HEADS - lose))
    lost_RV, won_RV, _ = np.moveaxis(generator.multinomial(count, cells, size=(simulations, HEADS)), -1, 0)
    (lost_U, won_U), which = np.unique(np.stack([lost_RV.ravel(), won_RV.ravel()]), axis=1, return_inverse=True)
    before_U, after_U = _mid_p(lost_U, won_U, count), paired_loss(lost_U, won_U, count)(np.array(MARGIN))
    before_RV, after_RV = (p_U[which.ravel()].reshape(lost_RV.shape) for p_U in (before_U, after_U))
    unchanged_V = np.full(HEADS, paired_loss([0], [0], count)(np.array(MARGIN))[0])
    spared = [
        np.stack([corrected(p_V) <= 0.05 for p_V in before_RV]),
        np.stack([corrected_against_margin(p_V, unchanged_V) <= 0.05 for p_V in after_RV]),
    ]
    # What pages say of them: a twentieth of what the false discovery rate spares, or as many of 72 as may look
    # unchanged.
    by_rate_R = 0.05 * np.array([(corrected(p_V) <= 0.05).sum() for p_V in after_RV])
    own = unchanged_V[unchanged_V <= 0.05].sum()
    stated = [0.05 * spared[0].sum(1), np.minimum(np.maximum(by_rate_R, own), spared[1].sum(1))]
    pairs = {
        "a head that loses the margin is reported to lose less": [
            (p_RV[:, :lose] <= 0.05).mean() for p_RV in (before_RV, after_RV)
        ],
        "the count by closed testing is too high": [
            np.mean([least_false(p_V, 0.05) > HEADS - lose for p_V in p_RV]) for p_RV in (before_RV, after_RV)
        ],
        "spared heads that lose the margin": [spared_RV[:, :lose].sum(1).mean() for spared_RV in spared],
        "the same, as expected on the page": [stated_R.mean() for stated_R in stated],
        "the same, as a share of the spared heads": [
            (spared_RV[:, :lose].sum(1) / np.maximum(spared_RV.sum(1), 1)).mean() for spared_RV in spared
        ],
    }
    return {
        promise: {"before": float(before), "after": float(after), **({"nominal": 0.05} if place < 2 else {})}
        for place, (promise, (before, after)) in enumerate(pairs.items())
    }


def of_smaller_models(scenario: str, count: int, simulations: int) -> dict[str, dict[str, float]]:
    """Smaller models that should not pass, and the class of three that seems to lose most where none does.

    Before, each of several searches on the same examples was tested as if it were the only one, by mid-p limits;
    classes were not tested, and the class that was named had its own interval.
    """
    generator = np.random.default_rng([count, 27])
    won, searches, class_count, class_margin = FLIPS[scenario] / 2, 4, count // 3, 0.05

    def drawn(lost: float, shape: Sequence[int], examples: int) -> tuple[Array, Array]:
        lost_X, won_X, _ = np.moveaxis(generator.multinomial(examples, [lost, won, 1 - lost - won], size=shape), -1, 0)
        return lost_X, won_X

    spent_S = np.array([1 - search_level(0.95, search) for search in range(1, searches + 1)])
    lost_RS, won_RS = drawn(won + MARGIN, (simulations, searches), count)
    (lost_U, won_U), which = np.unique(np.stack([lost_RS.ravel(), won_RS.ravel()]), axis=1, return_inverse=True)
    before_U, after_U = _mid_p(lost_U, won_U, count), paired_loss(lost_U, won_U, count)(np.array(MARGIN))
    before_RS, after_RS = (p_U[which.ravel()].reshape(lost_RS.shape) for p_U in (before_U, after_U))

    # One class loses its margin and the two others nothing; the model was to lose less than four points.
    lost_RC, won_RC = drawn(won, (simulations, 3), class_count)
    lost_RC[:, 0], won_RC[:, 0] = drawn(won + class_margin, (simulations,), class_count)
    of_score_R = paired_loss(lost_RC.sum(1), won_RC.sum(1), 3 * class_count)(np.array(0.04))
    of_class_RC = paired_loss(lost_RC, won_RC, class_count)(np.array(class_margin))

    lost_RC, won_RC = drawn(won, (simulations, 3), class_count)
    most_R = (lost_RC - won_RC).argmax(1)
    lost_R, won_R = np.stack([lost_RC, won_RC])[:, np.arange(simulations), most_R]
    limits = paired_proportions(lost_R, won_R, class_count)
    covered = [
        ((low <= 0) & (high >= 0)).mean() for low, high in (limits(np.full(simulations, 0.025 / k)) for k in (1, 3))
    ]
    pairs: dict[str, tuple[float, float, float]] = {
        "one of four searches passes a model that loses the margin": (
            (before_RS <= 0.05).any(1).mean(),
            (after_RS <= spent_S).any(1).mean(),
            0.05,
        ),
        "a model passes although a class loses the class margin": (
            (of_score_R <= 0.05).mean(),
            ((of_score_R <= 0.05) & (of_class_RC.max(1) <= 0.05)).mean(),
            0.05,
        ),
        "coverage: interval of the class that loses most": (covered[0], covered[1], 0.95),
    }
    return {
        promise: {"before": float(before), "after": float(after), "nominal": nominal}
        for promise, (before, after, nominal) in pairs.items()
    }


def _mid_p(lost_U: Array, won_U: Array, count: int) -> Array:
    """The tail with which the lower limit of the two-sided interval is the margin."""
    low_U, high_U = np.full(len(lost_U), np.log(1e-9)), np.zeros(len(lost_U))
    limits, fewer_U = paired_proportions(lost_U, won_U, count), (lost_U - won_U) / count < MARGIN
    for _ in range(26):
        centre_U = (low_U + high_U) / 2
        out_U = limits(np.minimum(np.exp(centre_U), 0.5))[0] > -MARGIN
        low_U, high_U = np.where(out_U, low_U, centre_U), np.where(out_U, centre_U, high_U)
    return np.where(fewer_U, np.exp(high_U), 1.0)


def of_missed_losses(_: str, count: int, simulations: int) -> dict[str, dict[str, float]]:
    """How often a screened sweep spares a head that loses one and a half margins, all of it where slopes show nothing.

    Three quarters of each head's examples are out of reach. Before, an audit of 2 % over all heads gave one rate of
    missed changes, by Jeffreys' prior, for each of them. A head with a miss in its audit is evaluated whole, not
    spared.
    """
    inactive, lost = 3 * count // 4, math.ceil(1.5 * MARGIN * count)
    class_N = (np.arange(count) % 2).astype(np.float64)
    class_VN = np.broadcast_to(class_N, (HEADS, count))
    spared = np.zeros(2)
    for simulation in range(simulations):
        generator = np.random.default_rng([simulation, count, 28])
        for way, share in enumerate((0.02, Screening().audit)):
            audited_V = generator.binomial(inactive, share, HEADS)
            if generator.binomial(lost, share):
                continue
            unseen = Unseen(inactive - audited_V, audited_V)
            paired = PairedPredictions(class_N, class_N, class_VN, unseen=unseen)
            if way:
                p_V = p_against_margin(METRICS["accuracy"], paired, MARGIN)
            else:
                chance_VK = stats.betabinom.pmf(np.arange(32), unseen.left_V[:, None], 0.5, audited_V.sum() + 0.5)
                p_V = with_unseen_losses(paired_loss([0], [0], count), 1 / count, chance_VK, range(32))(
                    np.array(MARGIN)
                )
            # No head changes a prediction that was seen.
            spared[way] += corrected_against_margin(p_V, p_V)[0] <= 0.05
    before, after = (spared / simulations).tolist()
    return {"a head is spared whose losses were missed": {"before": before, "after": after, "nominal": 0.05}}


def of_means(scenario: str, count: int, simulations: int) -> dict[str, dict[str, float]]:
    """Named extremes of a measure, and rises of the loss, over heads whose true means are all 0.

    Before, the named head had the interval of one head by itself; a rise was each head's own t test, corrected by
    max-t.
    """
    sums = np.zeros(4)
    for simulation in range(simulations):
        generator = np.random.default_rng([simulation, count, 29])
        normal_NV = generator.standard_normal((count, HEADS))
        if scenario == "correlated heads":
            normal_NV = 0.6 * normal_NV + 0.8 * generator.standard_normal((count, 1))
        skewed_NV = np.exp(normal_NV) - np.exp(0.5)
        value_NV = {"skewed to the right": skewed_NV, "skewed to the left": -skewed_NV}.get(scenario, normal_NV)
        mean_V, stderr_V = value_NV.mean(0), value_NV.std(0, ddof=1) / np.sqrt(count)
        lowest = int(mean_V.argmin())
        low_V, high_V = limits_of_all(mean_V, stderr_V, count)
        own = abs(mean_V[lowest]) <= stats.t.isf(0.025, count - 1) * stderr_V[lowest]
        correlation_VV = error_correlation((value_NV - mean_V).T, 0.0)
        p_V = mean_exceeds_zero(mean_V, stderr_V, count)
        before_V = step_down(p_V, joint_draws(correlation_VV, generator))
        after_V = judge_rises(value_NV, Judging())[0]
        sums += [own, low_V[lowest] <= 0 <= high_V[lowest], (before_V <= 0.05).any(), (after_V <= 0.05).any()]
    means = (sums / simulations).tolist()
    rises = {"any head falsely reported to raise the loss": {"before": means[2], "after": means[3], "nominal": 0.05}}
    # Student's limits are not for means of such skewed numbers: of lognormal ones they cover .50 with 80, .78 with 400.
    if scenario.startswith("skewed"):
        return rises
    covers = {"before": means[0], "after": means[1], "nominal": 0.95}
    return {"coverage: interval of the lowest head of a measure": covers, **rises}


def groups_of(count: int, generator: np.random.Generator) -> Array:
    """The group of each of ``count`` examples: groups of one to eight."""
    return np.repeat(np.arange(count), generator.integers(1, 9, count))[:count]


def grouped(loss: float, group_N: Array, flips: float, generator: np.random.Generator) -> PairedPredictions:
    """Predictions of heads that lose ``loss``, where groups flip together: four in five of their examples, one way."""
    right_N, of_group = generator.random(len(group_N)) < 0.5, 0.8
    shape = (HEADS, int(group_N.max()) + 1)
    lost_VK = generator.random(shape) < (flips / 2 + loss) / of_group * 2
    won_VK = generator.random(shape) < flips / 2 / of_group * 2
    moved_VN = np.where(right_N, lost_VK[:, group_N], won_VK[:, group_N]) & (
        generator.random((HEADS, len(group_N))) < of_group
    )
    label_N = np.arange(len(group_N)) % 2
    clean_N = np.where(right_N, label_N, 1 - label_N)
    data = (label_N, clean_N, np.where(moved_VN, 1 - clean_N, clean_N))
    return PairedPredictions(*(one.astype(np.float64) for one in data), group_N=group_N)


def of_groups(scenario: str, count: int, simulations: int) -> dict[str, dict[str, float]]:
    """What is promised where examples come in groups of one to eight that flip together.

    Before, every example counted as independent.
    """
    judging = Judging(margin=MARGIN, resamples=2)
    sums = np.zeros((5, 2))
    for simulation in range(simulations):
        generator = np.random.default_rng([simulation, count, 30])
        group_N = groups_of(count, generator)
        none, losing = (grouped(loss, group_N, FLIPS[scenario], generator) for loss in (0.0, MARGIN))
        for way in range(2):
            first, second = (one if way else replace(one, group_N=None) for one in (none, losing))
            verdicts = judge(METRICS["accuracy"], first, judging)
            change_VN = first.prediction_VN == first.label_N
            p_rise_V, *_ = judge_rises(first.by_unit(-1.0 * change_VN + (first.clean_N == first.label_N)).T, judging)
            sums[:, way] += [
                ((verdicts.low <= 0) & (verdicts.high >= 0)).mean(),
                ((verdicts.low_simultaneous <= 0) & (verdicts.high_simultaneous >= 0)).all(),
                (verdicts.p_needed <= 0.05).any(),
                (p_against_margin(METRICS["accuracy"], second, MARGIN) <= 0.05).mean(),
                (p_rise_V <= 0.05).any(),
            ]
    names = {
        "coverage: interval of a head, examples in groups": 0.95,
        "coverage: simultaneous intervals, examples in groups": 0.95,
        "any head falsely needed, examples in groups": 0.05,
        "a head that loses the margin is spared, examples in groups": 0.05,
        "any head falsely reported to raise the loss, examples in groups": 0.05,
    }
    return {
        promise: {"before": before, "after": after, "nominal": nominal}
        for (promise, nominal), (before, after) in zip(names.items(), (sums / simulations).tolist(), strict=True)
    }


def entity_rates(lost: float, loss: float) -> tuple[float, float, float]:
    """How often a head loses a found entity, finds a missing one, and removes an invented one, so that entity F1 falls
    by ``loss``, if it would lose a share ``lost`` where F1 does not fall.
    """
    won, removed = lost * FOUND / (1 - FOUND), lost * FOUND / 2 * ENTITIES / INVENTED

    def fall(extra: float) -> float:
        found = ENTITIES * (FOUND * (1 - lost - extra) + (1 - FOUND) * won)
        missing = ENTITIES * FOUND * (lost + extra) / 2
        predicted = ENTITIES * FOUND + INVENTED * (1 - removed) - missing + ENTITIES * (1 - FOUND) * won
        before = 2 * FOUND * ENTITIES / (ENTITIES * FOUND + INVENTED + ENTITIES)
        return before - 2 * found / (predicted + ENTITIES) - loss

    return lost + brentq(fall, 0, 0.5), won, removed


def tagged(rate: float, loss: float, count: int, generator: np.random.Generator) -> PairedPredictions:
    """Statistics of ``count`` sentences with a Poisson number of entities, and of heads that lose ``loss`` of entity
    F1; half of the lost entities leave another one in their place.
    """
    lost, won, removed = entity_rates(rate, loss)
    annotated_N, invented_N = generator.poisson(ENTITIES, count), generator.poisson(INVENTED, count)
    found_N = generator.binomial(annotated_N, FOUND)
    shape = (TAGGED_HEADS, count)
    lost_VN = generator.binomial(np.broadcast_to(found_N, shape), lost)
    won_VN = generator.binomial(np.broadcast_to(annotated_N - found_N, shape), won)
    predicted_VN = found_N + invented_N - generator.binomial(lost_VN, 0.5) + won_VN
    predicted_VN = predicted_VN - generator.binomial(np.broadcast_to(invented_N, shape), removed)

    def statistics(found: Array, predicted: Array) -> Array:
        nothing = np.zeros_like(found)
        counts = (nothing, nothing, nothing, found, predicted, np.broadcast_to(annotated_N, found.shape))
        return np.stack(counts, -1).astype(np.float64)

    clean_NF = statistics(found_N, found_N + invented_N)
    return PairedPredictions(np.zeros(count), clean_NF, statistics(found_N - lost_VN + won_VN, predicted_VN))


def touched(rate: float, together: float, group_N: Array, generator: np.random.Generator) -> Array:
    """Which examples each head changes, ``[V, N]``: a share ``rate`` of all, and ``together`` of those of a group that
    has any.
    """
    touched_VK = generator.random((TAGGED_HEADS, int(group_N.max()) + 1)) < rate / together
    touched_VN: Array = touched_VK[:, group_N] & (generator.random((TAGGED_HEADS, len(group_N))) < together)
    return touched_VN


def statistics_of(clean_NF: Array, other_VNF: Array, group_N: Array | None) -> PairedPredictions:
    """Predictions that are statistics, with a loss that no metric reads before them."""
    first_NF, other_VNF = (np.insert(value.astype(np.float64), 0, 0, axis=-1) for value in (clean_NF, other_VNF))
    return PairedPredictions(np.zeros(len(clean_NF)), first_NF, other_VNF, group_N=group_N)


def tagged_words(rate: float, loss: float, count: int, generator: np.random.Generator) -> PairedPredictions:
    """Sentences of 20 words on average of which heads change a tenth together, where they change any."""
    words_N = 1 + generator.poisson(19, count)
    sentence_M = np.repeat(np.arange(count), words_N)
    right_M = generator.random(len(sentence_M)) < _RIGHT
    lost_VM, won_VM = (
        touched(share, 0.1, sentence_M, generator) & kept_M
        for share, kept_M in ((rate + loss / _RIGHT, right_M), (rate * _RIGHT / (1 - _RIGHT), ~right_M))
    )
    right_VN = cluster_sums(np.stack([right_M, *(right_M & ~lost_VM | won_VM)]), sentence_M)
    clean_NF, *others = np.stack([right_VN, np.broadcast_to(words_N, right_VN.shape)], -1)
    return statistics_of(clean_NF, np.stack(others), None)


def masked_words(rate: float, loss: float, count: int, generator: np.random.Generator) -> PairedPredictions:
    """Texts of 4 to 14 words of one to three pieces, each word a row; a head changes 30 % of a text's words together.

    Half of the words are right. A word that a head changes is lost or found with all its pieces.
    """
    text_N = np.repeat(np.arange(count), generator.integers(4, 15, count))
    pieces_N = 1 + generator.binomial(2, 0.2, len(text_N))
    right_N = generator.random(len(text_N)) < 0.5
    lost_VN, won_VN = (touched(share, 0.3, text_N, generator) for share in (rate + 2 * loss, rate))
    right_VN = np.stack([right_N, *np.where(right_N, ~lost_VN, won_VN)])
    clean_NF, *others = np.stack([right_VN * pieces_N, np.broadcast_to(pieces_N, right_VN.shape)], -1)
    return statistics_of(clean_NF, np.stack(others), text_N)


def masked_likelihoods(rate: float, loss: float, count: int, generator: np.random.Generator) -> PairedPredictions:
    """The same texts, whose log-likelihoods change by Student's t with 4 degrees of freedom, a third of the variance
    by text; or, if ``rate`` is above 0, so many words lose a nat on average, and the others gain a little.
    """
    text_N = np.repeat(np.arange(count), generator.integers(4, 15, count))
    pieces_N = 1 + generator.binomial(2, 0.2, len(text_N))
    shape = (TAGGED_HEADS, len(text_N))
    of_text_VN = generator.normal(0, 0.1, (TAGGED_HEADS, count))[:, text_N]
    hit_VN = touched(rate, 0.3, text_N, generator)
    change_VN = (0.2 if rate else 1.0) * (of_text_VN + 0.1 * generator.standard_t(4, shape))
    change_VN += rate - hit_VN * generator.exponential(1, shape)
    clean_N = -pieces_N * generator.gamma(1, 2, len(text_N))
    sum_VN = np.stack([clean_N, *(clean_N + pieces_N * (change_VN - loss))])
    nothing_VN = np.zeros_like(sum_VN)
    clean_NF, *others = np.stack([nothing_VN, np.broadcast_to(pieces_N, sum_VN.shape), sum_VN], -1)
    return statistics_of(clean_NF, np.stack(others), text_N)


def answered(rate: float, loss: float, count: int, generator: np.random.Generator, partly: bool) -> PairedPredictions:
    """Questions, one to eight of a text, of which a head changes half together; the others of 70 % exact answers, and
    answers that replace these, share a word with the gold one half of the time.

    Args:
        rate, loss, count, generator: As for the other kinds.
        partly: Whether the loss is one of answer F1 and not of exact matches.
    """
    exact, shared = 0.7, 0.25
    text_N = groups_of(count, generator)
    right_N = generator.random(count) < exact
    extra = loss / exact / (1 - shared if partly else 1)
    lost_VN, won_VN = (touched(share, 0.5, text_N, generator) for share in (rate + extra, rate * exact / (1 - exact)))
    right_VN = np.where(right_N, ~lost_VN, won_VN)
    partly_VN = generator.random((1 + TAGGED_HEADS, count)) * (generator.random((1 + TAGGED_HEADS, count)) < 2 * shared)
    other_VN = np.where(right_N, partly_VN[1:], partly_VN[0])
    clean_NF, *others = (
        np.stack([right, np.where(right, 1, part)], -1)
        for right, part in zip((right_N, *right_VN), (partly_VN[0], *other_VN), strict=True)
    )
    return statistics_of(clean_NF, np.stack(others), text_N)


def of_kinds(scenario: str, count: int, simulations: int) -> dict[str, dict[str, float]]:
    """What is promised of scores of sums over sentences, texts and questions.

    Of the heads of the last promise 24 lose the margin and eight nothing. Before, limits and tests were those of a
    normal distribution with the jackknife's standard error, over rows.
    """
    name, draw, rate = KINDS[scenario]
    metric, judging = METRICS[name], Judging(margin=MARGIN, resamples=2, permutations=1999)

    def normal(paired: PairedPredictions, least: float) -> Array:
        stderr_V = replace(paired, group_N=None).influences(metric).std(-1) / math.sqrt(paired.count)
        return np.asarray((paired.changes(metric) - least) / np.maximum(stderr_V, 1e-12))

    sums = np.zeros((5, 2))
    for simulation in range(simulations):
        generator = np.random.default_rng([simulation, count, 31])
        none, losing = (draw(rate, loss, count, generator) for loss in (0.0, MARGIN))
        verdicts, z_V = judge(metric, none, judging), normal(none, 0.0)
        p_V, naive_V = p_against_margin(metric, losing, MARGIN), stats.norm.sf(normal(losing, -MARGIN))
        unchanged_V = np.concatenate(
            [*p_if_unchanged(metric, losing, np.array([MARGIN])), verdicts.p_unchanged[:LOSSLESS]]
        )
        naive_p_V = np.concatenate([naive_V, stats.norm.sf(normal(none, -MARGIN)[:LOSSLESS])])
        ours_p_V = np.concatenate([p_V, verdicts.p_loss[:LOSSLESS]])
        spared = [corrected(naive_p_V) <= 0.05, corrected_against_margin(ours_p_V, unchanged_V) <= 0.05]
        sums += [
            [(np.abs(z_V) <= 1.96).mean(), ((verdicts.low <= 0) & (verdicts.high >= 0)).mean()],
            [
                (np.abs(z_V) <= stats.norm.isf(0.025 / TAGGED_HEADS)).all(),
                ((verdicts.low_simultaneous <= 0) & (verdicts.high_simultaneous >= 0)).all(),
            ],
            [(holm(stats.norm.cdf(z_V)) <= 0.05).any(), (verdicts.p_needed <= 0.05).any()],
            [(naive_V <= 0.05).mean(), (p_V <= 0.05).mean()],
            [spared_V[:TAGGED_HEADS].sum() / max(1, spared_V.sum()) for spared_V in spared],
        ]
    names = {
        "coverage: interval of a head": 0.95,
        "coverage: simultaneous intervals": 0.95,
        "any head falsely needed": 0.05,
        "a head that loses the margin is spared": 0.05,
        "share of the spared heads that lose the margin": 0.05,
    }
    kind = name.replace("_", " ").replace("f1", "F1")
    return {
        f"{promise}, {kind}": {"before": before, "after": after, "nominal": nominal}
        for (promise, nominal), (before, after) in zip(names.items(), (sums / simulations).tolist(), strict=True)
    }


def cost(heads: int = 144, count: int = 400, resamples: int = 10_000) -> dict[str, float]:
    """Seconds that judging a sweep takes, with its lower bounds and its curve."""
    layers = heads // 12
    plan = Plan("uniform", layers, 12, tuple(every_head(layers, 12)))
    generator = np.random.default_rng(0)
    label_N = generator.integers(0, 2, count)
    clean_N = np.where(generator.random(count) < _RIGHT, label_N, 1 - label_N)
    prediction_NV = np.where(generator.random((count, heads)) < 0.03, 1 - clean_N[:, None], clean_N[:, None])
    clean_NC, logits_NVC = (
        torch.nn.functional.one_hot(torch.from_numpy(value), 2).float() for value in (clean_N, prediction_NV)
    )
    outcomes = Outcomes(plan, torch.arange(count), torch.from_numpy(label_N).float(), clean_NC, logits_NVC)
    task = Task(name="simulated", metrics=("accuracy",), texts=1, labels=("a", "b"))
    judging = AblationSettings.read("ablation", {"resamples": resamples}).judging()
    identity = dict.fromkeys(("run", "model", "task", "init", "stage", "evaluation"), "") | {"step": 0}
    started = time.perf_counter()
    judged_rows(outcomes, task, identity, judging)
    verdicts = time.perf_counter() - started
    spared_heads(outcomes, task, judging)
    return {
        "heads": heads,
        "examples": count,
        "resamples": resamples,
        "verdicts": verdicts,
        "spared": time.perf_counter() - started - verdicts,
    }


SWEEPS = ("no effect", "one effect", "dense small effects", "correlated heads", "rare flips", "heads that gain")
BOUNDS = SWEEPS[:5]
MEANS = ("no effect", "correlated heads", "skewed to the right", "skewed to the left")
DEPTHS = ("alike in a layer", "smooth over depth", "both rise over depth")
GUARANTEES = ("all lose the margin", "half lose the margin")
SMALLER = ("no effect", "rare flips")
ALIKE = {"half on the same examples": 0.5, "on examples of their own": 0.0}
"""Share of a loss that all seeds have on the same examples, by scenario."""
KINDS: dict[str, tuple[str, Callable[..., PairedPredictions], float]] = {
    "common entity changes": ("entity_f1", tagged, 0.02),
    "rare entity changes": ("entity_f1", tagged, 0.002),
    "common tag changes": ("token_accuracy", tagged_words, 0.01),
    "rare tag changes": ("token_accuracy", tagged_words, 0.002),
    "common masked words": ("masked_accuracy", masked_words, 0.02),
    "rare masked words": ("masked_accuracy", masked_words, 0.002),
    "all log-likelihoods": ("pseudo_log_likelihood", masked_likelihoods, 0.0),
    "few log-likelihoods": ("pseudo_log_likelihood", masked_likelihoods, 0.05),
    "common exact answers": ("exact_match", partial(answered, partly=False), 0.02),
    "rare exact answers": ("exact_match", partial(answered, partly=False), 0.002),
    "common answers": ("answer_f1", partial(answered, partly=True), 0.02),
    "rare answers": ("answer_f1", partial(answered, partly=True), 0.002),
}
"""The metric of each scenario, how heads are drawn, and the share of right predictions that a head loses at random."""
REPEATED = ("no effect", "correlated heads", "rare flips")
OVER_SEEDS = (
    "common flips",
    "rare flips",
    "normal errors",
    "most heads change nothing",
    "few heads that differ",
    "unequal spreads",
    "seeds that move all heads",
)


def simulated(simulations: int, only: str = "*") -> Iterator[dict[str, Any]]:
    """A row for each procedure, scenario, number of seeds and number of examples, of the functions whose names match a
    glob.
    """
    cells: list[tuple[Callable[..., dict[str, dict[str, float]]], Sequence[Any]]] = []
    for count in COUNTS:
        cells += [(of_sweeps, (scenario, count)) for scenario in SWEEPS]
        cells += [(of_bounds, (scenario, count)) for scenario in BOUNDS]
        cells += [(of_these_seeds, (scenario, seeds, count)) for scenario in REPEATED for seeds in SEEDS]
        cells.append((of_missed_losses, ("one effect", count)))
    for count in (230, 400, 5000):
        cells += [(of_other_seeds, (scenario, seeds, count)) for scenario in OVER_SEEDS for seeds in SEEDS]
        cells += [(of_losses_in_all_seeds, (scenario, seeds, count)) for scenario in ALIKE for seeds in SEEDS]
    cells += [(of_guarantees, (scenario, count)) for scenario in GUARANTEES for count in (230, 400, 655, 1000, 5000)]
    cells += [(of_smaller_models, (scenario, count)) for scenario in SMALLER for count in (300, 400, 1000, 5000)]
    cells += [(of_correlations, (scenario, heads)) for scenario in DEPTHS for heads in (72, 144)]
    cells += [(of_means, (scenario, count)) for scenario in MEANS for count in COUNTS]
    cells += [(of_groups, (scenario, count)) for scenario in SMALLER for count in (80, 400, 2000)]
    cells += [(of_kinds, (scenario, count)) for count in (FEW, 400, 1000) for scenario in KINDS]
    for part, arguments in cells:
        scenario, *several, examples = arguments
        if not fnmatch(part.__name__, only):
            continue
        repeats = min(simulations, OF_KINDS) if part is of_kinds else simulations
        for promise, rates in part(*arguments, repeats).items():
            row = {
                "part": part.__name__,
                "promise": promise,
                "scenario": scenario,
                "seeds": several[0] if several else 1,
                "examples": examples,
                "simulations": repeats,
            }
            yield {**row, **{name: round(value, 4) for name, value in rates.items()}}


def table(results: Mapping[str, Any]) -> list[str]:
    """Each promise, before and now, as Markdown: errors and coverage at their worst over scenarios and numbers of
    examples.

    Other numbers are at 400 examples: of sweeps by scenario, over seeds the lowest. Several numbers are for 2, 3, 5 and
    10 seeds.
    """
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in results["rows"]:
        if "nominal" in row or row["examples"] == 400:
            scenario = row["scenario"] if "nominal" not in row and row["seeds"] == 1 else "all"
            if row["examples"] == FEW:
                scenario = f"{FEW} sentences, texts or questions"
            groups.setdefault((row["promise"], scenario), []).append(row)
    lines = ["| quantity | scenario | nominal | naive procedure | ours |", f"|{'---|' * 5}"]
    # The scenarios of a promise together, in the order of the simulations.
    promises = list(dict.fromkeys(promise for promise, _ in groups))
    for (promise, scenario), rows in sorted(groups.items(), key=lambda group: promises.index(group[0][0])):
        nominal = rows[0].get("nominal")
        worst = max if nominal == 0.05 else min
        cells = []
        for name in ("before", "after"):
            by_seeds: dict[int, list[float]] = {}
            for row in rows:
                by_seeds.setdefault(row["seeds"], []).append(row[name])
            cells.append(", ".join(f"{worst(rates):.2f}" for rates in by_seeds.values()))
        lines.append(
            f"| {promise} | {scenario} | {'' if nominal is None else f'{nominal:.2f}'} | {' | '.join(cells)} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--simulations", type=int, default=200)
    parser.add_argument("--show", action="store_true", help="print the table of the stored results only")
    parser.add_argument(
        "--only", default="*", help="functions to simulate again, as a glob: of_other_seeds, of_*_seeds"
    )
    options = parser.parse_args()
    if not options.show:
        started = time.perf_counter()
        simulated_rows = []
        for row in simulated(options.simulations, options.only):
            print(row, flush=True)
            simulated_rows.append(row)
        rows = simulated_rows
        if options.only != "*":
            parts = {row["part"] for row in simulated_rows}
            kept = [row for row in json.loads(RESULTS.read_text("utf-8"))["rows"] if row["part"] not in parts]
            rows = [*kept, *simulated_rows]
        results = {
            "simulations": options.simulations,
            "seconds": round(time.perf_counter() - started),
            "cost": {name: round(value, 2) for name, value in cost().items()},
            "rows": rows,
        }
        RESULTS.write_text(json.dumps(results, indent=1), "utf-8")
    print("\n".join(table(json.loads(RESULTS.read_text("utf-8")))))


if __name__ == "__main__":
    main()
