"""Does the planner keep its promise? Pilots of known populations, planned, and swept again with as many examples as it says.

    python benchmarks/planner.py [default even many_flips] [--simulations 200]

Each simulation draws the true rates at which 72 heads lose and win examples, a pilot of 400 examples, and a new sweep of the size with
which the plan promises a verdict for 80 % of the heads that have none. *default* is like ``python train.py``: the rates that are left
open by its counts, in 30 % of the examples alone. In *even* no head has an effect and each flips 1 % of the answers. In *many_flips*
flips (mean 2.5 %) and effects (standard deviation 0.6 points) differ. Populations that are there already are not simulated again.
"""

import argparse
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np

from bertsecrets.ablation.planner import Pilot, plan_power
from bertsecrets.ablation.predictions import PairedPredictions
from bertsecrets.ablation.seeds import RunSweep
from bertsecrets.ablation.settings import AblationSettings
from bertsecrets.ablation.verdicts import Verdicts, judge
from bertsecrets.results.verdicts import INCONCLUSIVE

RESULTS = Path(__file__).parent / "results" / "planner.json"
HEADS, PER_LAYER, COUNT = 72, 12, 400
LOST = {19: 1, 22: 1, 27: 1, 34: 5, 38: 1, 43: 1, 51: 1, 58: 1, 61: 1, 62: 1, 69: 4}
WON = {5: 1, 12: 1, 14: 1, 19: 3, 22: 2, 24: 3, 25: 2, 26: 1, 28: 1, 34: 6}
"""Examples that the heads of a default run lose and win, of 400; by layer and head in one row."""
_RIGHT = 0.8
_TIMES, _REPEATS = (1, 2, 4, 8, 16), 40

JUDGING = replace(AblationSettings().judging(), resamples=100)

Array = np.ndarray


def rates(population: str, generator: np.random.Generator) -> tuple[Array, Array, float]:
    """The rates at which each head loses and wins examples, and the share of the examples that can be."""
    if population == "default":
        lost_V, won_V = (np.array([counts.get(head, 0) for head in range(HEADS)]) for counts in (LOST, WON))
        flips_V = generator.beta(0.5 + lost_V + won_V, 150 + COUNT - lost_V - won_V)
        share_V = generator.beta(1 + lost_V, 1.5 + won_V)
        return flips_V * share_V, flips_V * (1 - share_V), 0.3
    if population == "even":
        return np.full(HEADS, 0.005), np.full(HEADS, 0.005), 1.0
    flips_V = generator.gamma(2, 0.0125, HEADS)
    effect_V = generator.normal(-0.002, 0.006, HEADS).clip(-flips_V, flips_V)
    return (flips_V - effect_V) / 2, (flips_V + effect_V) / 2, 0.3


def sample(rates_: tuple[Array, Array, float], count: int, generator: np.random.Generator) -> tuple[Array, ...]:
    """Labels, clean predictions and those of each head."""
    lost_V, won_V, fragile = rates_
    wrong_N, fragile_N = generator.random(count) >= _RIGHT, generator.random(count) < fragile
    chance_VN = generator.random((len(lost_V), count))
    rate_VN = np.where(wrong_N, won_V[:, None] / (1 - _RIGHT), lost_V[:, None] / _RIGHT) / fragile
    clean_N = wrong_N.astype(np.float64)
    return np.zeros(count), clean_N, np.where(fragile_N & (chance_VN < rate_VN), 1 - clean_N, clean_N)


def judged(data: tuple[Array, ...]) -> Verdicts:
    return judge("accuracy", PairedPredictions(*data), JUDGING)


def simulate(population: str, simulations: int) -> dict[str, float | list[float]]:
    """How often the promise is kept, over simulations and heads without a verdict."""
    generator = np.random.default_rng(1)
    shares, examples = [], []
    for simulation in range(simulations):
        truth = rates(population, generator)
        data = sample(truth, COUNT, generator)
        first = judged(data)
        open_V = np.array([code == INCONCLUSIVE for code in first.verdict])
        if not open_V.any():
            continue
        settings = {name: getattr(JUDGING, name) for name in ("margin", "level", "correction", "false_discovery_rate")}
        rows = [
            {**settings, "metric": "accuracy", "verdict": code, "sweep": "exact", "layer": head // PER_LAYER}
            for head, code in enumerate(first.verdict)
        ]
        planned = plan_power(
            Pilot.of([RunSweep(*data, name="pilot", rows=rows, index_N=np.arange(COUNT))]),
            repeats=_REPEATS,
            times=_TIMES,
            seed=simulation,
        )
        size = planned.examples(planned.settled[1])
        if math.isinf(size):
            continue
        again = np.array(judged(sample(truth, math.ceil(size), generator)).verdict)
        shares.append((again[open_V] != INCONCLUSIVE).mean())
        examples.append(size)
    return {
        "simulations": len(shares),
        "settled": float(np.mean(shares)),
        "standard_error": float(np.std(shares, ddof=1) / math.sqrt(len(shares))),
        "examples": [float(size) for size in np.quantile(examples, [0.1, 0.5, 0.9])],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("populations", nargs="*", default=["default", "even", "many_flips"])
    parser.add_argument("--simulations", type=int, default=200)
    chosen = parser.parse_args()
    results = json.loads(RESULTS.read_text("utf-8")) if RESULTS.is_file() else {}
    for population in chosen.populations:
        if population not in results:
            results[population] = simulate(population, chosen.simulations)
            RESULTS.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
        print(population, results[population], flush=True)


if __name__ == "__main__":
    main()
