"""Simulate the coverage of one head's interval and the power of its test, as docs/ablation.md reports them.

python -m benchmarks.verdicts coverage --simulations 4000
python -m benchmarks.verdicts power --simulations 1600
"""

import argparse
from collections.abc import Iterator

import numpy as np
from scipy import stats

from bertsecrets.ablation.predictions import PairedPredictions, weighted_scores
from bertsecrets.ablation.significance import mcnemar_exact, swap_test
from bertsecrets.ablation.verdicts import (
    change_limits,
    smallest_effects,
)
from bertsecrets.statistics.intervals import paired_proportions
from bertsecrets.task_heads import METRICS

Array = np.ndarray
FLIPS = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1)
COUNTS = (100, 277, 500, 2000)
_RIGHT, _POSITIVE, _NOISE = 0.85, 0.6, 0.6
_VARIANTS = 20
"""Variants drawn for each simulated set of examples: simulations are counted in variants."""
_SCATTERED = 4
"""The same for scores whose clean predictions scatter, too: what variants share makes them alike."""
_ENOUGH = 0.93


def class_cells(flips: float, harmful: float) -> dict[tuple[int, int, int], float]:
    """Probabilities of (gold, clean, variant) for a model that is right in 85 %, ``harmful`` of whose flips are to
    wrong.
    """
    cells = {}
    for gold, share in ((1, _POSITIVE), (0, 1 - _POSITIVE)):
        for clean, right, rate in (
            (gold, _RIGHT, flips * harmful / _RIGHT),
            (1 - gold, 1 - _RIGHT, flips * (1 - harmful) / (1 - _RIGHT)),
        ):
            cells[gold, clean, clean] = share * right * (1 - rate)
            cells[gold, clean, 1 - clean] = share * right * rate
    return cells


def draw(metric: str, flips: float, harmful: float, count: int, generator: np.random.Generator) -> tuple[Array, ...]:
    """Gold labels, clean predictions and those of variants, of which a share moves; scores move to another
    example's.
    """
    size = (_VARIANTS, count)
    if METRICS[metric].of_classes:
        label_N = (generator.random(count) < _POSITIVE).astype(float)
        clean_N = np.where(generator.random(count) < _RIGHT, label_N, 1 - label_N)
        rate_N = np.where(clean_N == label_N, flips * harmful / _RIGHT, flips * (1 - harmful) / (1 - _RIGHT))
        return label_N, clean_N, np.where(generator.random(size) < rate_N, 1 - clean_N, clean_N)
    label_N = generator.normal(size=count)
    clean_N = label_N + _NOISE * generator.normal(size=count)
    other_VN = np.sqrt(1 + _NOISE**2) * generator.normal(size=size)
    return label_N, clean_N, np.where(generator.random(size) < flips, other_VN, clean_N)


def truth(metric: str, flips: float, harmful: float) -> float:
    """The change of score in the population."""
    if METRICS[metric].of_classes:
        cells = class_cells(flips, harmful)
        cell_V3, weight_1V = np.array(list(cells), float), np.array(list(cells.values()))[None]
        clean, variant = weighted_scores(METRICS[metric], cell_V3[:, 0], cell_V3[:, 1:].T, weight_1V)[0]
        return float(variant - clean)
    rho = 1 / np.sqrt(1 + _NOISE**2)
    return float(-flips * (rho if metric == "pearson" else 6 / np.pi * np.arcsin(rho / 2)))


def coverage(metric: str, flips: float, harmful: float, count: int, simulations: int) -> float:
    """Share of simulated sets whose 95 % interval holds the truth; exact, by enumeration, for accuracy."""
    expected = truth(metric, flips, harmful)
    if metric == "accuracy":
        lost, won = flips * harmful, flips * (1 - harmful)
        most = min(count, int(count * flips + 8 * np.sqrt(count * flips) + 10))
        lost_K1, won_1K = np.arange(most + 1)[:, None], np.arange(most + 1)[None]
        low, high = paired_proportions(lost_K1, won_1K, count)(np.array(0.025))
        chance = stats.binom.pmf(lost_K1, count, lost) * stats.binom.pmf(won_1K, count - lost_K1, won / (1 - lost))
        return float(chance[(low <= expected + 1e-12) & (expected <= high + 1e-12)].sum())
    generator = np.random.default_rng([count, int(1000 * flips), int(100 * harmful)])
    hits = []
    for _ in range(simulations // _VARIANTS):
        limits = change_limits(METRICS[metric], PairedPredictions(*draw(metric, flips, harmful, count, generator)))
        low_V, high_V = limits(np.full(_VARIANTS, 0.025))
        hits.append((low_V <= expected + 1e-12) & (expected <= high_V + 1e-12))
    return float(np.mean(hits))


def power(metric: str, flips: float, count: int, variants: int, simulations: int) -> tuple[float, float]:
    """The mean smallest detectable loss, and the share of simulated sets in which a variant of that loss is found.

    Without the effect, flips are as often to wrong as to right. The effect adds flips to wrong (for scores: noise).
    """
    generator = np.random.default_rng([count, variants, int(1000 * flips)])
    alpha = 0.05 / variants
    permutations = 1999 if variants < 10 else 9999
    losses = [_smallest(metric, flips, count, alpha, permutations, generator) for _ in range(25)]
    smallest = float(np.nanmean(losses))
    added = _added(metric, flips, smallest)
    p_values = []
    for _ in range(simulations // (_VARIANTS if METRICS[metric].of_classes else _SCATTERED)):
        paired = PairedPredictions(*_with_effect(metric, flips, added, count, generator))
        if metric == "accuracy":
            p_values.append(mcnemar_exact(*paired.discordant(METRICS[metric])))
        else:
            p_values.append(swap_test(METRICS[metric], paired, permutations, generator))
    return smallest, float(np.mean(np.concatenate(p_values) <= alpha))


def _smallest(
    metric: str, flips: float, count: int, alpha: float, permutations: int, generator: np.random.Generator
) -> Array:
    data = _with_effect(metric, flips, 0.0, count, generator)
    return smallest_effects(METRICS[metric], PairedPredictions(*data), alpha, permutations)


def _with_effect(
    metric: str, flips: float, added: float, count: int, generator: np.random.Generator
) -> tuple[Array, ...]:
    if METRICS[metric].of_classes:
        label_N = (generator.random(count) < _POSITIVE).astype(float)
        clean_N = np.where(generator.random(count) < _RIGHT, label_N, 1 - label_N)
        right_N = clean_N == label_N
        rate_N = np.where(right_N, (flips / 2 + added) / _RIGHT, flips / 2 / (1 - _RIGHT))
        return label_N, clean_N, np.where(generator.random((_VARIANTS, count)) < rate_N, 1 - clean_N, clean_N)
    # All predictions scatter about a common one; the effect adds noise to the variants'.
    label_N = generator.normal(size=count)
    common_N = label_N + _NOISE * generator.normal(size=count)
    scattered_VN = common_N + flips * generator.normal(size=(_SCATTERED + 1, count))
    return label_N, scattered_VN[0], scattered_VN[1:] + added * generator.normal(size=(_SCATTERED, count))


def _added(metric: str, flips: float, loss: float) -> float:
    """How much must be added for a change of score of -loss, by bisection on the population."""

    def change(added: float) -> float:
        if METRICS[metric].of_classes:
            total = flips + added
            return truth(metric, total, (flips / 2 + added) / total)
        clean = 1 + _NOISE**2 + flips**2
        rho, worse = 1 / np.sqrt(clean), 1 / np.sqrt(clean + added**2)
        if metric == "spearman":
            rho, worse = (6 / np.pi * np.arcsin(r / 2) for r in (rho, worse))
        return float(worse - rho)

    low, high = 0.0, _RIGHT - flips / 2 if METRICS[metric].of_classes else 10.0
    for _ in range(60):
        centre = (low + high) / 2
        low, high = (centre, high) if change(centre) > -loss else (low, centre)
    return high


def coverage_table(simulations: int) -> Iterator[str]:
    yield "| metric | N | " + " | ".join(f"{flips:.1%}" for flips in FLIPS) + " |"
    yield "|---|---|" + "---|" * len(FLIPS)
    for metric in METRICS:
        for count in COUNTS:
            cells = []
            for flips in FLIPS:
                shares = (1.0, 0.5) if METRICS[metric].of_classes else (1.0,)
                covered = min(coverage(metric, flips, harmful, count, simulations) for harmful in shares)
                cells.append(f"{covered:.3f}" if covered >= _ENOUGH else f"{covered:.3f}, not covered")
            yield f"| {metric} | {count:,} | " + " | ".join(cells) + " |"


def power_table(simulations: int) -> Iterator[str]:
    yield "| metric | N | variants | flips | smallest loss, points | found |"
    yield "|---|---|---|---|---|---|"
    for metric in METRICS:
        for count, flips in ((277, 0.02), (1000, 0.02), (1000, 0.1)):
            for variants in (3, 72):
                # Accuracy takes no swaps: ten times as many cost nothing.
                repeats = 10 * simulations if metric == "accuracy" else simulations
                loss, found = power(metric, flips, count, variants, repeats)
                yield f"| {metric} | {count:,} | {variants} | {flips:.0%} | {100 * loss:.1f} | {found:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["coverage", "power"])
    parser.add_argument("--simulations", type=int, default=4000)
    chosen = parser.parse_args()
    for line in (coverage_table if chosen.part == "coverage" else power_table)(chosen.simulations):
        print(line, flush=True)


if __name__ == "__main__":
    main()
