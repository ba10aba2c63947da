"""How many examples and seeds a verdict takes, estimated by simulating sweeps from those of finished runs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from bertsecrets.ablation.predictions import largest_moves, typical_harm
from bertsecrets.ablation.redundancy import is_redundant
from bertsecrets.ablation.seeds import RunSweep, judge_over_seeds, p_of_flips, verdicts_over_seeds
from bertsecrets.ablation.verdicts import FEW_MOVED, Judging, judge, p_of_losses, verdicts_together
from bertsecrets.errors import UserError
from bertsecrets.results.components import GROUP, LAYER
from bertsecrets.results.verdicts import DISPENSABLE, INCONCLUSIVE, NEEDED
from bertsecrets.statistics.corrections import error_correlation, joint_draws
from bertsecrets.statistics.non_inferiority import paired_loss, weighted_loss
from bertsecrets.statistics.power import POWER
from bertsecrets.statistics.replicates import effects_over_seeds
from bertsecrets.task_heads.metric import Array, Metric

Counts = NDArray[np.int64]

FEWEST = 30
"""With fewer examples, a pilot does not show how often heads change a prediction."""

TIMES = (1, 1.5, 2, 3, 4, 8, 16, 32, 64)
"""Sizes of simulated sweeps, as multiples of the pilot's size; denser where most recommended sizes lie."""

_RANGE = (0.1, 0.9)
"""Quantiles of the simulated sweeps that limit the range of a recommended number of examples."""

SEEDS = (1, 2, 3, 5, 10)
"""Simulated numbers of seeds, if the pilots show how much seeds differ."""

CORRELATION = 0.5
"""The correlation over heads whose power is simulated."""

GROUP_LOSS = 5
"""A redundant pair loses this many times the margin together."""

_GROUPS = 10
"""Number of groups among which a redundant pair is tested, if the pilot has none."""

_DRAWS = 1000

_GRID = 48
"""Points, on each axis, of the grid of distributions from which heads may come."""


@dataclass(frozen=True)
class Pilot:
    """What finished sweeps of V single heads show about future sweeps.

    Args:
        metric: The metric of the tests.
        count: Number of examples N.
        change_SV: Change of the score without each head, in each of S runs that differ by seed.
        variance_SV: Its variance over examples.
        lost_SV, won_SV: Numbers of examples that each head loses and wins; empty for a correlation, whose errors are
            taken to be normal.
        verdict_SV: The verdicts in each run.
        over_seeds: The verdicts over seeds; empty for one run.
        shared: Share of the examples' noise that seeds have in common, 0 to 1.
        moves_VN: Contribution of each example of the first run to each head's change: for classes 1 if it is won, -1 if
            it is lost, else 0.
        moved_V: Share of examples whose prediction each head changes, in the first run.
        extreme: The largest loss that one example can cause in a correlation, times the number of examples; 0 for
            classes.
        layers: Layer of each head.
        judging: How effects are tested.
        margin: The largest acceptable loss, as a difference of scores; it replaces that of ``judging``.
        weight: Weight of an example in the metric, relative to accuracy.
        set_flips: Share of predictions that change without a set of heads that one may want to remove; for a
            correlation, the variance of its change.
        groups: Number of groups among which a redundant one is tested.
        screened: Whether the pilot is a screened sweep, which may miss flips.
    """

    metric: Metric
    count: int
    change_SV: Array
    variance_SV: Array
    lost_SV: Counts
    won_SV: Counts
    verdict_SV: tuple[tuple[str, ...], ...]
    over_seeds: tuple[str, ...]
    shared: float
    moves_VN: Array
    moved_V: Array
    extreme: float
    layers: tuple[int, ...]
    judging: Judging
    margin: float
    weight: float
    set_flips: float
    groups: int
    screened: bool

    @classmethod
    def of(
        cls, sweeps: Sequence[RunSweep], others: Sequence[Mapping[str, Any]] = (), margin: float | None = None
    ) -> "Pilot":
        """The pilot of sweeps of single heads that differ by seed.

        Args:
            sweeps: One or several.
            others: Tested rows of other variants of the first run, such as whole layers.
            margin: A margin that replaces that of the sweeps, as a difference of scores.

        Raises:
            UserError: If there are fewer than :data:`FEWEST` examples, the sweeps use different examples, or there is
                no margin.
        """
        first, *_ = sweeps
        metric, count, judging = first.metric, first.count, Judging.of(first.rows[0])
        if count < FEWEST:
            raise UserError(
                f"'{first.name}' disabled heads on {count} examples; at least {FEWEST} are needed to show how often a "
                "head changes a prediction, so disable heads on more examples first."
            )
        if first.group_N is not None:
            raise UserError(
                f"'{first.name}' has examples in groups (data.group), but a plan counts independent examples; plan "
                "with a run without groups, and use as many groups as the plan requires examples."
            )
        margin = margin or judging.margin
        if margin is None:
            raise UserError(
                f"'{first.name}' was judged without a margin (ablation.margin=null); plan with one, such as margin=1."
            )
        if margin != judging.margin:
            # Heads that have a verdict at this margin are not open.
            judging = replace(judging, margin=margin)
            verdicts = [judge(sweep.metric, sweep, judging).verdict for sweep in sweeps]
            sweeps = [
                replace(
                    sweep,
                    rows=[
                        {**row, "margin": margin, "verdict": verdict}
                        for row, verdict in zip(sweep.rows, of_sweep, strict=True)
                    ],
                )
                for sweep, of_sweep in zip(sweeps, verdicts, strict=True)
            ]
        over = judge_over_seeds(sweeps).verdict if len(sweeps) > 1 else ()
        if metric.flips:
            pairs = np.stack([sweep.discordant(metric) for sweep in sweeps], 1)
            moves_SVN = np.stack([sweep.net_wins(metric).astype(np.float64) for sweep in sweeps])
            harm = typical_harm(metric, first.label_N, first.clean_N)
            weight = 1.0 if metric.events or harm <= 0 else harm * count
            change_SV, variance_SV = moves_SVN.mean(-1), moves_SVN.var(-1) / count
            of_set, alone = "flips", pairs.sum(0)[0] / count
        else:
            pairs, weight = np.zeros((2, 0, len(first.rows)), np.int64), 1.0
            moves_SVN = np.stack([sweep.influences(metric) for sweep in sweeps])
            change_SV, variance_SV = np.stack([sweep.change_V for sweep in sweeps]), moves_SVN.var(-1) / count
            of_set, alone = "stderr", variance_SV[0]
        # The covariance of two seeds over examples, relative to their variance.
        shared, seeds = 0.0, len(moves_SVN)
        centred_SVN = moves_SVN - moves_SVN.mean(-1, keepdims=True)
        if seeds > 1 and (of_one := float((centred_SVN**2).sum()) / seeds):
            of_two = (float((centred_SVN.sum(0) ** 2).sum()) - seeds * of_one) / (seeds * (seeds - 1))
            shared = min(max(of_two / of_one, 0.0), 1.0)
        of_layers = [other[of_set] for other in LAYER.of(others)]
        # The value of the median layer, or of all heads together.
        set_flips = float(np.median(of_layers)) ** (1 if metric.flips else 2) if of_layers else alone.sum()
        return cls(
            metric=metric,
            count=count,
            change_SV=change_SV,
            variance_SV=variance_SV,
            lost_SV=pairs[0],
            won_SV=pairs[1],
            verdict_SV=tuple(tuple(row["verdict"] for row in sweep.rows) for sweep in sweeps),
            over_seeds=over,
            shared=shared,
            moves_VN=moves_SVN[0],
            moved_V=first.moved(metric).mean(-1),
            extreme=0.0 if metric.flips else count * largest_moves(metric, first.label_N, first.clean_N)[0],
            layers=tuple(row["layer"] for row in first.rows),
            judging=judging,
            margin=margin,
            weight=weight,
            set_flips=min(0.5, float(set_flips)),
            groups=len(GROUP.of(others)) or _GROUPS,
            screened=first.rows[0]["sweep"] == "screened",
        )

    @property
    def undecided_SV(self) -> NDArray[np.bool_]:
        """Heads for which a run has too few examples for a verdict."""
        return np.array([[verdict == INCONCLUSIVE for verdict in verdicts] for verdicts in self.verdict_SV])


@dataclass(frozen=True)
class Planned:
    """The power of sweeps of M sizes.

    Args:
        pilot: What they were simulated from.
        sizes: Numbers of examples.
        settled: Number of seeds -> share of the heads without a verdict so far that get one, at each size. The examples
            of one seed include the pilot's, which settle none of these heads.
        single_RM: The same for one seed in each simulated sweep; NaN if its pilot leaves no head without a verdict.
        undecided: Number of seeds -> number of heads without a verdict so far (the mean over the runs for one seed).
        goals: Goal -> its power at each size, with one seed.
    """

    pilot: Pilot
    sizes: tuple[int, ...]
    settled: Mapping[int, Array]
    single_RM: Array
    undecided: Mapping[int, float]
    goals: Mapping[str, Array]

    def examples(self, power_M: Array) -> float:
        """Number of examples at which a power reaches :data:`bertsecrets.statistics.power.POWER`; infinite if no size
        does.
        """
        # Simulated powers may decrease slightly where they are flat.
        rising_M = np.maximum.accumulate(np.nan_to_num(power_M))
        reached = np.flatnonzero(rising_M >= POWER)
        if not len(reached):
            return math.inf
        at = int(reached[0])
        if at == 0:
            return float(self.sizes[0])
        low, high = rising_M[at - 1], rising_M[at]
        return float(
            self.sizes[at - 1] * 2 ** ((POWER - low) / (high - low) * math.log2(self.sizes[at] / self.sizes[at - 1]))
        )

    def examples_range(self) -> tuple[float, float]:
        """The range of numbers of examples at which 80 % of the simulated sweeps of one seed settle their share;
        infinite as in :meth:`examples`.
        """
        reached = sorted(self.examples(share_M) for share_M in self.single_RM if not np.isnan(share_M).any())
        low, high = (reached[round(share * (len(reached) - 1))] if reached else math.inf for share in _RANGE)
        return low, high

    def record(self) -> dict[str, Any]:
        """The numbers that a run saves, used in sentences."""
        low, high = self.examples_range()
        return {
            "metric": self.pilot.metric.name,
            "undecided": round(self.undecided[1]),
            "heads": len(self.pilot.layers),
            "count": self.pilot.count,
            "margin": self.pilot.margin,
            "examples": finite(self.examples(self.settled[1])),
            "examples_low": finite(low),
            "examples_high": finite(high),
            "most": self.sizes[-1],
            "share": float(np.max(self.settled[1])) if self.undecided[1] else None,
            "spared": finite(self.examples(self.goals[SPARED])),
            "needed": finite(self.examples(self.goals[NEEDED])),
        }


SPARED, REDUNDANT, RANKS, SET = "spared", "redundant", "ranks", "set"
"""Keys of :attr:`Planned.goals` other than ``needed``."""


def plan_power(pilot: Pilot, *, repeats: int = 200, seed: int = 0, times: Sequence[float] = TIMES) -> Planned:
    """Simulate larger versions of the pilot's sweep, test them like real sweeps, and count verdicts.

    The true rates at which each head loses and wins examples are drawn from their posterior given the pilot
    (beta-binomial models of flips, and of the losses among them, integrated over the distributions that the heads may
    come from): the effects that a small pilot observes vary more than the true ones, and a head without a flip may have
    some. The pilot's own examples are kept: without others, its verdicts are the same. With several runs, a head's
    effects vary over seeds around a mean as much as in the pilots, beyond the examples' noise.

    Args:
        pilot: The pilot.
        repeats: Simulated sweeps of each size.
        seed: Seed of the simulation.
        times: Sizes, as multiples of the pilot's, ascending from 1.
    """
    sizes = tuple(round(time * pilot.count) for time in times)
    # Streams of their own for outcomes and tests: what a size draws does not depend on larger sizes.
    outcomes, generator = (np.random.default_rng([seed, stream]) for stream in (4, 5))
    runs_R = np.arange(repeats) % len(pilot.change_SV)
    undecided_RV = pilot.undecided_SV[runs_R]
    draw = _flip_sweeps if pilot.metric.flips else _score_sweeps
    true_RV, *drawn = draw(pilot, runs_R, sizes, outcomes)
    settled_M, powers_M = zip(
        *(
            _one_seed(pilot, size, of_size, true_RV, undecided_RV, generator)
            for size, *of_size in zip(sizes, *drawn, strict=True)
        ),
        strict=True,
    )
    settled_RM = np.stack(settled_M, 1)
    # By definition; tests by random swaps and of correlations are simulated by other tests, which might differ.
    settled_RM[:, 0] = 0
    left_R = undecided_RV.sum(1)
    settled = {1: settled_RM.sum(0) / left_R.sum() if left_R.any() else np.full(len(sizes), math.nan)}
    undecided = {1: float(pilot.undecided_SV.sum(1).mean())}
    if pilot.over_seeds:
        over_V = np.array(pilot.over_seeds) == INCONCLUSIVE
        for seeds in SEEDS[1:]:
            settled[seeds] = np.array(
                [_several_seeds(pilot, size, seeds, repeats, over_V, generator) for size in sizes]
            )
            if seeds <= len(pilot.change_SV) and over_V.any():
                settled[seeds][0] = 0
            undecided[seeds] = float(over_V.sum())
    with np.errstate(invalid="ignore"):
        single_RM = settled_RM / left_R[:, None]
    goals = {name: np.array([of_size[name] for of_size in powers_M]) for name in powers_M[0]}
    return Planned(pilot, sizes, settled, single_RM, undecided, goals)


def _flip_sweeps(
    pilot: Pilot, runs_R: NDArray[np.int64], sizes: Sequence[int], generator: np.random.Generator
) -> tuple[Array, ...]:
    """True effects of the heads, ``[R, V]``, and of M sizes ``[M, R, W]`` changes, variances and p-values
    (:func:`count_tests`).

    In addition to the pilot's V heads: one that loses the margin, two that lose nothing, a redundant pair, and a set to
    remove.
    """
    lost_RV, won_RV = _rates(pilot, runs_R, generator)
    # As a share of the examples.
    margin = pilot.margin / pilot.weight
    half_R1, set_R1 = (np.full((len(runs_R), 1), share / 2) for share in (typical_flips(pilot), pilot.set_flips))
    lost_RW = np.hstack([lost_RV, half_R1 + margin, half_R1, half_R1, half_R1 + GROUP_LOSS * margin, set_R1])
    won_RW = np.hstack([won_RV, half_R1, half_R1, half_R1, half_R1, set_R1])
    added = [size - before for before, size in pairwise((0, *sizes))]
    lost_MRW, won_MRW = np.stack([draw_flips(size, lost_RW, won_RW, generator) for size in added], 1)
    heads = lost_RV.shape[1]
    lost_MRW[0, :, :heads], won_MRW[0, :, :heads] = pilot.lost_SV[runs_R], pilot.won_SV[runs_R]
    lost_MRW, won_MRW = lost_MRW.cumsum(0), won_MRW.cumsum(0)
    size_M11 = np.reshape(sizes, (-1, 1, 1))
    # The variance of a change, with one more flip if there are few.
    variance_MRW = (lost_MRW + won_MRW + 1) / size_M11**2
    tests = count_tests(lost_MRW, won_MRW, sizes, margin)
    return won_RV - lost_RV, (won_MRW - lost_MRW) / size_M11, variance_MRW, *tests


def _score_sweeps(
    pilot: Pilot, runs_R: NDArray[np.int64], sizes: Sequence[int], generator: np.random.Generator
) -> tuple[Array, ...]:
    """The same for a correlation: changes are normal around true effects."""
    # True changes drawn from their posterior given the pilot; effects are normal over heads.
    observed_RV, noise_RV = pilot.change_SV[runs_R], pilot.variance_SV[runs_R]
    trust_RV, middle_R1 = _shrinkage(observed_RV, noise_RV)
    true_RV = middle_R1 + trust_RV * (observed_RV - middle_R1)
    true_RV += np.sqrt(trust_RV * noise_RV) * generator.standard_normal(true_RV.shape)
    margin, ones_R1 = pilot.margin, np.ones((len(runs_R), 1))
    true_RW = np.hstack([true_RV, ones_R1 * [-margin, 0, 0, -GROUP_LOSS * margin, 0]])
    typical = [_typical(pilot, pilot.variance_SV)] * 4
    of_one_RW = np.hstack([pilot.variance_SV[runs_R], ones_R1 * [*typical, pilot.set_flips]]) * pilot.count
    size_M11, added_M11 = (np.reshape(count, (-1, 1, 1)) for count in (sizes, np.diff(sizes, prepend=0)))
    part_MRW = true_RW + np.sqrt(of_one_RW / added_M11) * generator.standard_normal((len(sizes), *true_RW.shape))
    part_MRW[0, :, : true_RV.shape[1]] = pilot.change_SV[runs_R]
    change_MRW = (added_M11 * part_MRW).cumsum(0) / size_M11
    variance_MRW = of_one_RW / size_M11
    error_MRW = np.sqrt(np.maximum(variance_MRW, np.finfo(float).tiny))
    p_loss_MRW = special.ndtr(change_MRW / error_MRW)
    # One more event of the largest harm, as in the test against the margin.
    largest_V = -pilot.moves_VN.min(1)
    largest_MRW = np.append(largest_V, np.full(5, np.median(largest_V))) / size_M11
    p_margin_MRW = special.ndtr((largest_MRW - change_MRW - margin) / np.hypot(error_MRW, largest_MRW))
    # Where few predictions change, the test allows for an example of the largest possible harm, which is not normal.
    influence_VN = pilot.moves_VN - pilot.moves_VN.mean(1, keepdims=True)
    harm_VN, gain_VN = np.maximum(-influence_VN, 0), np.maximum(influence_VN, 0)
    for p_RW, change_RW, size in zip(p_margin_MRW, change_MRW, sizes, strict=True):
        few = np.flatnonzero(pilot.moved_V * size < FEW_MOVED)
        harm_2V, gain_2V = (
            np.stack([part_VN[few].mean(1), (part_VN[few] ** 2).mean(1) / size]) for part_VN in (harm_VN, gain_VN)
        )
        p_RW[:, few] = weighted_loss(change_RW[:, few], harm_2V, gain_2V, pilot.extreme / size)(np.array(margin))
    # No score stays unchanged.
    return true_RV, change_MRW, variance_MRW, p_loss_MRW, p_margin_MRW, np.zeros_like(p_margin_MRW)


def _one_seed(
    pilot: Pilot,
    size: int,
    drawn: Sequence[Array],
    true_RV: Array,
    undecided_RV: NDArray[np.bool_],
    generator: np.random.Generator,
) -> tuple[Counts, dict[str, float]]:
    """Number of undecided heads that each sweep of this size settles, ``[R]``, and the power for each goal."""
    change_RW, variance_RW, p_loss_RW, p_margin_RW, p_unchanged_RW = drawn
    repeats, heads = true_RV.shape
    family = heads + 3
    influence_VN = pilot.moves_VN - pilot.moves_VN.mean(1, keepdims=True)
    # The errors of the three simulated heads are independent of those of the pilot's heads.
    correlation = np.eye(family)
    correlation[:heads, :heads] = error_correlation(
        influence_VN * math.sqrt(pilot.count / size), np.abs(pilot.moves_VN).max(1) / size
    )
    draw_WR = joint_draws(correlation, generator, _DRAWS)
    settled_R, needed, spared, redundant = np.zeros(repeats, np.int64), 0, 0, 0
    for repeat in range(repeats):
        p_loss_V, p_margin_V, p_unchanged_V = (
            p_RW[repeat, :family] for p_RW in (p_loss_RW, p_margin_RW, p_unchanged_RW)
        )
        verdict = verdicts_together(p_loss_V, p_margin_V, p_unchanged_V, draw_WR, pilot.judging)[2]
        settled_R[repeat] = sum(verdict[v] != INCONCLUSIVE for v in np.flatnonzero(undecided_RV[repeat]))
        needed += verdict[heads] == NEEDED
        spared += sum(code == DISPENSABLE for code in verdict[heads + 1 : family])
        alone, together = slice(heads + 1, family), family
        p_together = pilot.groups * p_loss_RW[repeat, together]
        beyond = change_RW[repeat, together] - change_RW[repeat, alone].sum()
        error = math.sqrt(variance_RW[repeat, together] + variance_RW[repeat, alone].sum())
        # Without any spread, the sign alone decides.
        z = float(beyond / error if error else math.copysign(math.inf, beyond))
        redundant += is_redundant(
            NEEDED if p_together <= 1 - pilot.judging.level else INCONCLUSIVE,
            verdict[alone],
            # Bonferroni over the groups, slightly stricter than the correction of a real sweep.
            pilot.groups * float(stats.norm.cdf(z)),
            0.0,
            pilot.judging.false_discovery_rate,
        )
    powers = {
        NEEDED: needed / repeats,
        SPARED: spared / (2 * repeats),
        REDUNDANT: redundant / repeats,
        SET: float((p_margin_RW[:, -1] <= 1 - pilot.judging.level).mean()),
    }
    powers[RANKS] = _rank_power(pilot, true_RV, change_RW[:, :heads])
    return settled_R, powers


def _rank_power(pilot: Pilot, true_RV: Array, change_RV: Array) -> float:
    """The power to detect a rank correlation over heads within layers, for a measure whose correlation with the true
    effects is :data:`CORRELATION`: the errors of the observed effects attenuate it.
    """
    layer_V = np.array(pilot.layers)
    true_rank_RV, rank_RV = np.empty_like(true_RV), np.empty_like(true_RV)
    for layer in np.unique(layer_V):
        at_V = layer_V == layer
        for ranked_RV, effect_RV in ((true_rank_RV, true_RV), (rank_RV, change_RV)):
            ranked_RV[:, at_V] = stats.rankdata(effect_RV[:, at_V], axis=1) - (at_V.sum() + 1) / 2
    scale_R = np.sqrt((true_rank_RV**2).sum(1) * (rank_RV**2).sum(1))
    agreement_R = (true_rank_RV * rank_RV).sum(1) / np.where(scale_R > 0, scale_R, 1.0)
    independent = len(layer_V) - len(np.unique(layer_V))
    return float(special.ndtr(CORRELATION * agreement_R.mean() * math.sqrt(independent) - special.ndtri(0.975)))


def _several_seeds(
    pilot: Pilot, size: int, seeds: int, repeats: int, undecided_V: NDArray[np.bool_], generator: np.random.Generator
) -> float:
    """The share of heads undecided over seeds that sweeps of this size with this many seeds settle together.

    Changes are normal around effects that differ by seed; the test over examples gets the flips to be expected.
    """
    mean_V, error_V, spread_V = seed_model(pilot)
    shape, margin = (repeats, len(mean_V)), pilot.margin / pilot.weight
    if pilot.metric.flips:
        flips_V = most_V = _posterior_flips(pilot)
        variance_V = (flips_V + 1 / size) / size
    else:
        most_V, variance_V = np.full(len(mean_V), np.inf), pilot.variance_SV.mean(0) * pilot.count / size
    shared_RV, own_SRV = mean_V + error_V * generator.standard_normal(shape), generator.standard_normal((seeds, *shape))
    change_SRV = (shared_RV + spread_V * own_SRV).clip(-most_V, most_V)
    change_SRV += np.sqrt(pilot.shared * variance_V) * generator.standard_normal(shape)
    change_SRV += np.sqrt((1 - pilot.shared) * variance_V) * generator.standard_normal(own_SRV.shape)
    settled = 0
    for change_SV in change_SRV.swapaxes(0, 1):
        effects = effects_over_seeds(
            change_SV, pilot.shared * variance_V, variance_V, margin=margin, level=pilot.judging.level
        )
        if pilot.metric.flips:
            expected_2V = np.stack([(flips_V - sign * effects.delta).clip(0) / 2 for sign in (1, -1)]) * size
            own_2SV = np.broadcast_to((1 - pilot.shared) * expected_2V[:, None], (2, seeds, len(mean_V)))
            p_examples_V = p_of_flips(pilot.shared * expected_2V, own_2SV, size, margin)
            effects = replace(effects, p_examples=p_examples_V)
        verdict = verdicts_over_seeds(effects, pilot.judging)[1]
        settled += sum(verdict[v] != INCONCLUSIVE for v in np.flatnonzero(undecided_V))
    return settled / (repeats * int(undecided_V.sum())) if undecided_V.any() else math.nan


def draw_flips(size: int, lost: Array, won: Array, generator: np.random.Generator) -> tuple[Counts, Counts]:
    """Numbers of examples lost and won out of ``size`` at these rates, which sum to at most 1."""
    lost = lost.clip(0, 1)
    count = generator.binomial(size, lost)
    rest = np.divide(won, 1 - lost, out=np.zeros_like(won), where=lost < 1).clip(0, 1)
    return count, generator.binomial(size - count, rest)


def count_tests(lost_MRW: Counts, won_MRW: Counts, sizes: Sequence[int], margin: float) -> tuple[Array, Array, Array]:
    """One-sided p-values of no loss, and of a loss of the margin or more, in sweeps of M sizes, from numbers of
    examples lost and won.

    Those of :func:`bertsecrets.ablation.verdicts.judge` for accuracy; also the latter without any changed
    prediction.
    """
    discordant_MRW, fewer_MRW = lost_MRW + won_MRW, np.minimum(lost_MRW, won_MRW).astype(np.float64)
    two_sided = np.minimum(2 * special.bdtr(fewer_MRW, np.maximum(discordant_MRW, 1), 0.5), 1.0)
    p_margin_MRW = np.empty(lost_MRW.shape)
    for p_RW, lost_RW, won_RW, size in zip(p_margin_MRW, lost_MRW, won_MRW, sizes, strict=True):
        # Many heads have the same numbers.
        (lost, won), which = np.unique(np.stack([lost_RW.ravel(), won_RW.ravel()]), axis=1, return_inverse=True)
        p_RW[:] = paired_loss(lost, won, size)(np.array(margin))[which.ravel()].reshape(p_RW.shape)
    p_loss_MRW = p_of_losses((won_MRW - lost_MRW).astype(np.float64), two_sided)
    unchanged_M = paired_loss(0, 0, sizes)(np.array(margin))
    return p_loss_MRW, p_margin_MRW, np.broadcast_to(unchanged_M[:, None, None], p_margin_MRW.shape)


def _rates(pilot: Pilot, runs_R: NDArray[np.int64], generator: np.random.Generator) -> tuple[Array, Array]:
    """Rates at which each head loses and wins examples, drawn from their posterior given the pilot, ``[R, V]`` each."""
    lost_RV, won_RV = pilot.lost_SV[runs_R], pilot.won_SV[runs_R]
    first_R1, second_R1 = _drawn(_flip_rates(pilot), len(runs_R), generator)
    flips_RV = generator.beta(first_R1 + lost_RV + won_RV, second_R1 + pilot.count - lost_RV - won_RV)
    # The share of losses among the predictions that change.
    shares = _betas(pilot.lost_SV.ravel(), (pilot.lost_SV + pilot.won_SV).ravel(), 0.01)
    first_R1, second_R1 = _drawn(shares, len(runs_R), generator)
    share_RV = generator.beta(first_R1 + lost_RV, second_R1 + won_RV)
    return flips_RV * share_RV, flips_RV * (1 - share_RV)


class _Betas(NamedTuple):
    """Candidate beta distributions of a share over heads, ``[G]``, and the posterior probability of each."""

    first_G: Array
    second_G: Array
    weight_G: Array


def _betas(hits_X: Counts, trials_X: Counts, least: float) -> _Betas:
    """The posterior of the beta distribution that the heads' shares of hits come from.

    A grid of means and intraclass correlations, under Jeffreys' prior for the mean and a flat one for the logarithm of
    the correlation. Fitting one distribution instead promises too much where few heads have hits.

    Args:
        hits_X, trials_X: Hits of each head, and trials.
        least: The smallest mean.
    """
    logit_A = np.linspace(special.logit(least), -special.logit(least), _GRID)
    mean_G, alike_G = (part.ravel() for part in np.meshgrid(special.expit(logit_A), np.geomspace(0.003, 0.9, _GRID)))
    first_G, second_G = mean_G * (1 / alike_G - 1), (1 - mean_G) * (1 / alike_G - 1)
    # Many heads have the same numbers.
    (hits_U, misses_U), times_U = np.unique(np.stack([hits_X, trials_X - hits_X]), axis=1, return_counts=True)
    chance_GU = special.betaln(first_G[:, None] + hits_U, second_G[:, None] + misses_U)
    chance_GU -= special.betaln(first_G, second_G)[:, None]
    # The density of the mean's logit is that of the mean times m (1 - m).
    log_G = chance_GU @ times_U + 0.5 * np.log(mean_G * (1 - mean_G))
    weight_G = np.exp(log_G - log_G.max())
    return _Betas(first_G, second_G, weight_G / weight_G.sum())


def _drawn(betas: _Betas, repeats: int, generator: np.random.Generator) -> tuple[Array, Array]:
    """Parameters drawn from a posterior, ``[R, 1]`` each."""
    index_R1 = generator.choice(len(betas.weight_G), size=(repeats, 1), p=betas.weight_G)
    return betas.first_G[index_R1], betas.second_G[index_R1]


def _flip_rates(pilot: Pilot) -> _Betas:
    """Distribution over heads of the share of predictions that change."""
    flips_X = (pilot.lost_SV + pilot.won_SV).ravel()
    # At least half a flip for all heads together.
    return _betas(flips_X, np.full_like(flips_X, pilot.count), 0.5 / (pilot.count * len(flips_X)))


def _posterior_flips(pilot: Pilot) -> Array:
    """Mean share of flips of each head over runs, ``[V]``."""
    first_G, second_G, weight_G = _flip_rates(pilot)
    flips_VS1 = (pilot.lost_SV + pilot.won_SV).T[:, :, None]
    shares_V: Array = (((first_G + flips_VS1) / (first_G + second_G + pilot.count)) @ weight_G).mean(1)
    return shares_V


def typical_flips(pilot: Pilot) -> float:
    """Share of flips of a typical head without a verdict, or of a typical head if all have one."""
    return _typical(pilot, np.broadcast_to(_posterior_flips(pilot), pilot.lost_SV.shape))


def _typical(pilot: Pilot, number_SV: Array) -> float:
    """The median over the heads without a verdict, or over all heads if each has one."""
    undecided_SV = pilot.undecided_SV
    return float(np.median(number_SV[undecided_SV] if undecided_SV.any() else number_SV))


def seed_model(pilot: Pilot) -> tuple[Array, Array, Array]:
    """Each head's mean effect over seeds, the variance of that estimate, and its variance between seeds, ``[V]`` each.

    The variance between seeds beyond the examples' noise is taken to be proportional to that noise; means are shrunk
    towards that of all heads to the extent that their spread over heads is noise.
    """
    seeds = len(pilot.change_SV)
    variance_V = _posterior_flips(pilot) / pilot.count if pilot.metric.flips else pilot.variance_SV.mean(0)
    not_shared_V = (1 - pilot.shared) * variance_V
    excess = float((pilot.change_SV.var(0, ddof=1) - not_shared_V).sum() / max(variance_V.sum(), np.finfo(float).tiny))
    spread_V = np.sqrt(max(excess, 0.0) * variance_V)
    noise_V = (spread_V**2 + not_shared_V) / seeds + pilot.shared * variance_V
    observed_V = pilot.change_SV.mean(0)
    trust_V, middle = _shrinkage(observed_V, noise_V)
    return middle + trust_V * (observed_V - middle), np.sqrt(trust_V * noise_V), spread_V


def _shrinkage(observed_XV: Array, noise_XV: Array) -> tuple[Array, Array]:
    """The reliability of effects, from their spread over heads and their noise, and the value they are shrunk to,
    ``[..., 1]``.
    """
    between_X1 = (observed_XV.var(-1, keepdims=True) - noise_XV.mean(-1, keepdims=True)).clip(1e-12)
    weight_XV = 1 / (between_X1 + noise_XV)
    middle_X1 = (weight_XV * observed_XV).sum(-1, keepdims=True) / weight_XV.sum(-1, keepdims=True)
    return between_X1 * weight_XV, middle_X1


def finite(value: float) -> float | None:
    """None if it is infinite."""
    return value if math.isfinite(value) else None
