"""Does the planner keep its promise? Pilots of known populations, planned, and grown to as many examples as it says.

    python train.py hydra.run.dir=<folder>
    python -m benchmarks.planner <folder> [--simulations 200]
    python -m benchmarks.planner --stored [--simulations 40]  # the populations are the examples of six stored runs

Each simulation draws the true rates at which 72 heads lose and win examples, a pilot of 400 examples, and further ones
up to the number with which the plan promises a verdict for 80 % of the heads that have none, and to both ends of its
range; and as many new ones. *default* is like that run: the rates that are left open by its counts, in 30 % of the
examples alone. In *even* no head has an effect and each flips 1 % of the answers. With ``--stored``, a pilot as large
as the run is drawn, with replacement, from the examples of each of :data:`STORED` in ``tests/golden.tar.xz``, which
assumes no model of flips.
"""

import argparse
import json
import math
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from bertsecrets.ablation.planner import Pilot, plan_power
from bertsecrets.ablation.predictions import PairedPredictions
from bertsecrets.ablation.seeds import RunSweep, read_sweep
from bertsecrets.ablation.settings import AblationSettings
from bertsecrets.ablation.verdicts import Judging, judge
from bertsecrets.reporting.runs import read_run
from bertsecrets.results.verdicts import INCONCLUSIVE
from bertsecrets.statistics.power import POWER
from bertsecrets.task_heads import METRICS
from bertsecrets.task_heads.metric import Metric

RESULTS = Path(__file__).parent / "results" / "planner.json"
ARCHIVE = Path(__file__).parent.parent / "tests" / "golden.tar.xz"
STORED = (
    "train",
    "regression",
    "three_layers",
    "resampled",
    "sweep/demo_sentiment-minilm-pretrained-s1",
    "sweep/demo_sentiment-minilm-pretrained-s2",
)
HEADS, PER_LAYER, COUNT = 72, 12, 400
"""Heads, of each layer, and evaluation examples of a default run."""
_RIGHT = 0.8
_TIMES, _REPEATS = (1, 1.5, 2, 3, 4, 8, 16), 40

JUDGING = AblationSettings.read("ablation", {"resamples": 100}).judging()

Array = np.ndarray
Draw = Callable[[int], tuple[Array, ...]]


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


def grown(data: tuple[Array, ...], more: tuple[Array, ...]) -> tuple[Array, ...]:
    return tuple(np.concatenate(parts, axis=-1) for parts in zip(data, more, strict=True))


def simulate(run: tuple[Array, Array] | None, simulations: int) -> dict[str, float | list[float]]:
    """How often the promise is kept by pilots of drawn rates, over simulations and heads without a verdict."""
    generator = np.random.default_rng(1)

    def population() -> Draw:
        truth = rates(run, generator)
        return lambda count: sample(truth, count, generator)

    layers = [head // PER_LAYER for head in range(HEADS)]
    return kept(METRICS["accuracy"], population, COUNT, layers, JUDGING, simulations)


def stored(name: str, folder: Path, simulations: int) -> dict[str, float | list[float]]:
    """The same of pilots drawn with replacement from the examples of a stored run."""
    sweep = read_sweep(read_run(folder / name).experiments["ablation"][1], "head")
    assert sweep is not None
    generator = np.random.default_rng(1)

    def draw(count: int) -> tuple[Array, ...]:
        index_N = generator.integers(len(sweep.label_N), size=count)
        return sweep.label_N[index_N], sweep.clean_N[index_N], sweep.prediction_VN[:, index_N]

    layers = [row["layer"] for row in sweep.rows]
    judging = replace(Judging.of(sweep.rows[0]), resamples=JUDGING.resamples, permutations=JUDGING.permutations)
    return kept(sweep.metric, lambda: draw, len(sweep.label_N), layers, judging, simulations)


def kept(
    metric: Metric,
    population: Callable[[], Draw],
    count: int,
    layers: Sequence[int],
    judging: Judging,
    simulations: int,
) -> dict[str, float | list[float]]:
    """How often the promise is kept, over simulations and heads without a verdict.

    Args:
        metric: The metric that judges.
        population: Gives for each simulation what draws examples: labels, clean predictions and those of each head.
        count: Examples of a pilot.
        layers: Layer of each head.
        judging: How heads are judged.
        simulations: Number of pilots.
    """
    shares, within, examples, promised = [], [], [], 0
    settings = {name: getattr(judging, name) for name in ("margin", "level", "correction", "false_discovery_rate")}
    for simulation in range(simulations):
        draw = population()
        data = draw(count)
        codes = judge(metric, PairedPredictions(*data), judging).verdict
        open_V = np.array([code == INCONCLUSIVE for code in codes])
        if not open_V.any():
            continue
        rows = [
            {**settings, "metric": metric.name, "verdict": code, "sweep": "exact", "layer": layer}
            for layer, code in zip(layers, codes, strict=True)
        ]
        planned = plan_power(
            Pilot.of([RunSweep(*data, name="pilot", rows=rows, index_N=np.arange(count))]),
            repeats=_REPEATS,
            times=_TIMES,
            seed=simulation,
        )
        sizes = [planned.examples(planned.settled[1]), *planned.examples_range()]
        if math.isinf(max(sizes)):
            continue
        promised += sizes[0] > count
        # The three sizes share their examples, as a sweep that grows does.
        further = draw(math.ceil(max(sizes)) - count)
        sweeps = [grown(data, tuple(part[..., : math.ceil(size) - count] for part in further)) for size in sizes]
        sweeps.append(draw(math.ceil(sizes[0])))
        settled, low, high, anew = (
            float((np.array(judge(metric, PairedPredictions(*sweep), judging).verdict)[open_V] != INCONCLUSIVE).mean())
            for sweep in sweeps
        )
        shares.append((settled, anew))
        within.append((low >= POWER, high >= POWER))
        examples.append(sizes[0])
    return {
        "simulations": len(shares),
        "more_than_the_pilot": promised,
        "settled": float(np.mean(shares, axis=0)[0]),
        "standard_error": float(np.std(shares, axis=0, ddof=1)[0] / math.sqrt(len(shares))),
        "settled_anew": float(np.mean(shares, axis=0)[1]),
        "kept_at_low_and_high": [float(share) for share in np.mean(within, axis=0)],
        "examples": [float(size) for size in np.quantile(examples, [0.1, 0.5, 0.9])],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("--stored", action="store_true")
    parser.add_argument("--simulations", type=int, default=200)
    chosen = parser.parse_args()
    results = json.loads(RESULTS.read_text("utf-8")) if RESULTS.is_file() else {}
    if chosen.run is not None:
        for population, run in {"default": counts(chosen.run), "even": None}.items():
            results[population] = simulate(run, chosen.simulations)
    if chosen.stored:
        with TemporaryDirectory() as folder, tarfile.open(ARCHIVE) as packed:
            packed.extractall(folder, filter="data")
            results["stored"] = {name: stored(name, Path(folder), chosen.simulations) for name in STORED}
        settled = [result["settled"] for result in results["stored"].values()]
        results["over_stored"] = {"least": min(settled), "mean": float(np.mean(settled)), "most": max(settled)}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
