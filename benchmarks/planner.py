"""Does the planner keep its promise? Pilots of known populations, planned, and grown to as many examples as it says.

    python train.py hydra.run.dir=<folder>
    python -m benchmarks.planner <folder> [--simulations 200]

Each simulation draws the true rates at which 72 heads lose and win examples, a pilot of 400 examples, and further ones
up to the number with which the plan promises a verdict for 80 % of the heads that have none, and to both ends of its
range; and as many new ones. *default* is like that run: the rates that are left open by its counts, in 30 % of the
examples alone. In *even* no head has an effect and each flips 1 % of the answers.
"""

import argparse
import json
import math
from pathlib import Path

import numpy as np

from bertsecrets.ablation.planner import Pilot, plan_power
from bertsecrets.ablation.predictions import PairedPredictions
from bertsecrets.ablation.seeds import RunSweep, read_sweep
from bertsecrets.ablation.settings import AblationSettings
from bertsecrets.ablation.verdicts import Verdicts, judge
from bertsecrets.reporting.runs import read_run
from bertsecrets.results.verdicts import INCONCLUSIVE
from bertsecrets.statistics.power import POWER
from bertsecrets.task_heads import METRICS

RESULTS = Path(__file__).parent / "results" / "planner.json"
HEADS, PER_LAYER, COUNT = 72, 12, 400
"""Heads, of each layer, and evaluation examples of a default run."""
_RIGHT = 0.8
_TIMES, _REPEATS = (1, 1.5, 2, 3, 4, 8, 16), 40

JUDGING = AblationSettings.read("ablation", {"resamples": 100}).judging()

Array = np.ndarray


def counts(run: Path) -> tuple[Array, Array]:
    """How many examples are lost and won without each head of a default run."""
    sweep = read_sweep(read_run(run).experiments["ablation"][1], "head")
    if sweep is None or sweep.prediction_VN.shape != (HEADS, COUNT):
        raise SystemExit(
            f"{run} is not a run of `python train.py`, whose sweep has {HEADS} heads and {COUNT} examples."
        )
    right_VN, right_N = sweep.prediction_VN == sweep.label_N, sweep.clean_N == sweep.label_N
    return (right_N & ~right_VN).sum(-1), (~right_N & right_VN).sum(-1)


def rates(run: tuple[Array, Array] | None, generator: np.random.Generator) -> tuple[Array, Array, float]:
    """The rates at which each head loses and wins examples, and the share of the examples that can be; without counts
    *even*.
    """
    if run is None:
        return np.full(HEADS, 0.005), np.full(HEADS, 0.005), 1.0
    lost_V, won_V = run
    flips_V = generator.beta(0.5 + lost_V + won_V, 150 + COUNT - lost_V - won_V)
    share_V = generator.beta(1 + lost_V, 1.5 + won_V)
    return flips_V * share_V, flips_V * (1 - share_V), 0.3


def sample(rates_: tuple[Array, Array, float], count: int, generator: np.random.Generator) -> tuple[Array, ...]:
    """Labels, clean predictions and those of each head."""
    lost_V, won_V, fragile = rates_
    wrong_N, fragile_N = generator.random(count) >= _RIGHT, generator.random(count) < fragile
    chance_VN = generator.random((len(lost_V), count))
    rate_VN = np.where(wrong_N, won_V[:, None] / (1 - _RIGHT), lost_V[:, None] / _RIGHT) / fragile
    clean_N = wrong_N.astype(np.float64)
    return np.zeros(count), clean_N, np.where(fragile_N & (chance_VN < rate_VN), 1 - clean_N, clean_N)


def judged(data: tuple[Array, ...]) -> Verdicts:
    return judge(METRICS["accuracy"], PairedPredictions(*data), JUDGING)


def grown(data: tuple[Array, ...], more: tuple[Array, ...]) -> tuple[Array, ...]:
    return tuple(np.concatenate(parts, axis=-1) for parts in zip(data, more, strict=True))


def simulate(run: tuple[Array, Array] | None, simulations: int) -> dict[str, float | list[float]]:
    """How often the promise is kept, over simulations and heads without a verdict."""
    generator = np.random.default_rng(1)
    shares, within, examples = [], [], []
    for simulation in range(simulations):
        truth = rates(run, generator)
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
        sizes = [planned.examples(planned.settled[1]), *planned.examples_range()]
        if math.isinf(max(sizes)):
            continue
        # The three sizes share their examples, as a sweep that grows does.
        further = sample(truth, math.ceil(max(sizes)) - COUNT, generator)
        sweeps = [grown(data, tuple(part[..., : math.ceil(size) - COUNT] for part in further)) for size in sizes]
        sweeps.append(sample(truth, math.ceil(sizes[0]), generator))
        settled, low, high, anew = (
            float((np.array(judged(sweep).verdict)[open_V] != INCONCLUSIVE).mean()) for sweep in sweeps
        )
        shares.append((settled, anew))
        within.append((low >= POWER, high >= POWER))
        examples.append(sizes[0])
    return {
        "simulations": len(shares),
        "settled": float(np.mean(shares, axis=0)[0]),
        "standard_error": float(np.std(shares, axis=0, ddof=1)[0] / math.sqrt(len(shares))),
        "settled_anew": float(np.mean(shares, axis=0)[1]),
        "kept_at_low_and_high": [float(share) for share in np.mean(within, axis=0)],
        "examples": [float(size) for size in np.quantile(examples, [0.1, 0.5, 0.9])],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--simulations", type=int, default=200)
    chosen = parser.parse_args()
    populations = {"default": counts(chosen.run), "even": None}
    results = {population: simulate(run, chosen.simulations) for population, run in populations.items()}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
