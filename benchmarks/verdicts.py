"""Simulate what docs/ablation.md and docs/screened_sweeps.md promise of verdicts on disabled heads.

python -m benchmarks.verdicts coverage --simulations 500    # of the intervals of one head
python -m benchmarks.verdicts            # power, seeds and screened sweeps, too: about an hour on one core
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product

import numpy as np
import torch
from scipy import stats
from transformers import BertConfig, BertForSequenceClassification

from bertsecrets.ablation.exact import exact_sweep
from bertsecrets.ablation.judging import judged_rows
from bertsecrets.ablation.outcomes import Outcomes
from bertsecrets.ablation.plan import Plan, every_head
from bertsecrets.ablation.predictions import PairedPredictions
from bertsecrets.ablation.scoring import weighted_scores
from bertsecrets.ablation.screening import Screening, screened_sweep
from bertsecrets.ablation.settings import BF16, FP32, AblationSettings, Precision
from bertsecrets.ablation.significance import mcnemar_exact, swap_test
from bertsecrets.ablation.verdicts import (
    change_limits,
    smallest_effects,
)
from bertsecrets.data.batch import Batch
from bertsecrets.data.task import Task
from bertsecrets.statistics.corrections import holm
from bertsecrets.statistics.intervals import paired_proportions
from bertsecrets.statistics.replicates import effects_over_seeds, noise_of_examples
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


def seed_coverage(seeds: int, between: float, within: float, own: float, simulations: int) -> float:
    """Share of effects whose interval over seeds and examples holds the truth.

    Args:
        seeds: Number of seeds.
        between: Standard deviation between seeds.
        within, own: That of the noise of the examples which all seeds share, and which each seed has for itself.
        simulations: Number of effects.
    """
    generator = np.random.default_rng([seeds, int(1e4 * between)])
    shared_V = within * generator.normal(size=simulations)
    noise_SV = shared_V + own * generator.normal(size=(seeds, simulations))
    delta_SV = between * generator.normal(size=(seeds, simulations)) + noise_SV
    resampled_SRV = delta_SV[:, None] + within * generator.normal(size=(400, simulations))
    resampled_SRV += own * generator.normal(size=resampled_SRV.shape)
    effects = effects_over_seeds(delta_SV, *noise_of_examples(resampled_SRV), margin=0.01, level=0.95)
    low_V, high_V = effects.limits
    return float(((low_V <= 0) & (high_V >= 0)).mean())


class Population:
    """Examples of a tiny random model whose outcomes are all known, for sweeps of random samples.

    The gold class is a fair coin where any variant changes the prediction, so that no variant changes the accuracy,
    except that the unedited model is right wherever one variant alone changes it, if ``harm`` is true. Elsewhere the
    model is right with a probability that grows with its margin.

    Args:
        harm: Whether one variant does harm: of all, the one that changes most predictions alone.
        size: Number of examples.
        heads: Number of heads in each of three layers.
    """

    task = Task(name="simulated", metrics=("accuracy",), texts=1, labels=("a", "b"))

    def __init__(self, harm: bool, size: int = 6000, heads: int = 4) -> None:
        torch.manual_seed(1)
        self.model = BertForSequenceClassification(
            BertConfig(
                vocab_size=100,
                hidden_size=16,
                num_hidden_layers=3,
                num_attention_heads=heads,
                intermediate_size=16,
                max_position_embeddings=16,
            )
        ).eval()
        self.ids_NS = torch.randint(5, 100, (size, 10))
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(0.2 * torch.randn(parameter.shape))
            # Margins as wide as those of a fine-tuned model, for both classes alike.
            classifier = self.model.classifier
            classifier.weight.mul_(4 / float(self._differences().std()))
            classifier.bias[0] += float(self._differences().median())
            difference_N = self._differences()
        self.plan = Plan("uniform", 3, heads, tuple(every_head(3, heads)))
        self.label_N = torch.zeros(size, dtype=torch.long)
        self.exact = exact_sweep(self.model, self.plan, self.batches(np.arange(size)))
        changed_NV = self.exact.logits_NVC.argmax(-1) != self.exact.clean_NC.argmax(-1)[:, None]
        second_N = torch.sigmoid(difference_N / 2)
        second_N[changed_NV.any(1)] = 0.5
        if harm:
            alone_NV = changed_NV & (changed_NV.sum(1, keepdim=True) == 1)
            alone_N = alone_NV[:, alone_NV.sum(0).argmax()]
            second_N[alone_N] = (difference_N[alone_N] > 0).float()
        self.second_N = second_N
        # Expectations over the gold class.
        self.truth = dict.fromkeys(("accuracy", "loss", "logit_margin"), 0.0)
        for label, chance_N in ((0, 1 - second_N), (1, second_N)):
            of_label = replace(self.exact, label_N=torch.full((size,), float(label)))
            for name, change_NV in self.changes(of_label).items():
                self.truth[name] = self.truth[name] + (change_NV * chance_N.double().numpy()[:, None]).mean(0)

    def changes(self, outcomes: Outcomes) -> dict[str, Array]:
        """Changes of every example, ``[N, V]`` each."""
        paired = outcomes.predictions(self.task)
        right_VN, right_N = paired.prediction_VN == paired.label_N, paired.clean_N == paired.label_N
        changes = {"accuracy": (right_VN * 1.0 - right_N).T}
        for name, (before_N, after_NV) in (
            ("loss", outcomes.losses(self.task)),
            ("logit_margin", outcomes.logit_margins()),
        ):
            changes[name] = (after_NV.double() - before_N.double()[:, None]).numpy()
        return changes

    def batches(self, index_N: Array) -> list[Batch]:
        parts = torch.from_numpy(index_N).split(128)
        nothing = [torch.zeros_like(self.ids_NS[part]) for part in parts]
        return [
            Batch(self.ids_NS[part], torch.ones_like(zero), None, zero.bool(), zero, part, self.label_N[part])
            for part, zero in zip(parts, nothing, strict=True)
        ]

    def _differences(self) -> torch.Tensor:
        with torch.no_grad():
            logits_NC: torch.Tensor = self.model(input_ids=self.ids_NS).logits
        return logits_NC[:, 1] - logits_NC[:, 0]


@dataclass(frozen=True)
class Audited:
    """What screened sweeps of random samples of a :class:`Population` promise and keep; means over sweeps and variants.

    Args:
        covered: Share of the intervals that hold the population's value, by quantity.
        holds_whole: Share of the intervals of loss and logit margin that hold the exact sweep's value on the same
            sample.
        wider: Standard errors of loss and logit margin, divided by those of the exact sweep.
        families: Share of sweeps with a false change by the family-wise corrected p-values.
        false: Mean share of false ones among significant changes.
        different: Predictions that differ from the exact sweep's.
        evaluated: Share of pairs that were evaluated; in a sweep with bf16, of those evaluated in fp32.
        in_bf16: Share of pairs that were evaluated in bf16 alone.
    """

    covered: dict[str, float]
    holds_whole: dict[str, float]
    wider: dict[str, float]
    families: float
    false: float
    different: int
    evaluated: float
    in_bf16: float


def audited(harm: bool, count: int, audit: float, simulations: int, precision: Precision = FP32) -> Audited:
    """Screened sweeps of random samples of a population; every gold class and audit is drawn anew."""
    population = Population(harm)
    generator = np.random.default_rng([9, count, int(1000 * audit), harm])
    covered: dict[str, list[Array]] = {name: [] for name in population.truth}
    whole: dict[str, list[Array]] = {"loss": [], "logit_margin": []}
    wider: dict[str, list[Array]] = {"loss": [], "logit_margin": []}
    families, false, different, evaluated, in_bf16 = 0, 0.0, 0, 0.0, 0.0
    identity = dict.fromkeys(("run", "model", "task", "init", "stage", "evaluation"), "") | {"step": 0}
    judging = AblationSettings.read("ablation", {"resamples": 100}).judging()
    for simulation in range(simulations):
        index_N = np.sort(generator.choice(len(population.ids_NS), count, replace=False))
        population.label_N = torch.from_numpy(
            generator.random(len(population.ids_NS)) < population.second_N.numpy()
        ).long()
        outcomes, record = screened_sweep(
            population.model,
            population.plan,
            population.batches(index_N),
            Screening(audit=audit, seed=simulation, precision=precision),
        )
        rows = judged_rows(outcomes, population.task, identity, judging)
        exact = Outcomes(
            population.plan,
            outcomes.index_N,
            outcomes.label_N,
            population.exact.clean_NC[index_N],
            population.exact.logits_NVC[index_N],
        )
        change, full = population.changes(outcomes), population.changes(exact)
        for name, prefix in (("accuracy", ""), ("loss", "loss_"), ("logit_margin", "logit_margin_")):
            low_V, high_V = (np.array([row[f"{prefix}{end}"] for row in rows]) for end in ("low", "high"))
            truth_V = np.asarray(population.truth[name])
            covered[name].append((low_V <= truth_V + 1e-12) & (truth_V <= high_V + 1e-12))
            if name in whole:
                mean_V = full[name].mean(0)
                whole[name].append((low_V <= mean_V) & (mean_V <= high_V))
                wider[name].append(change[name].std(0) / full[name].std(0))
        p_V = np.array([row["p_value"] for row in rows])
        null_V = np.abs(population.truth["accuracy"]) < 1e-12
        families += bool((holm(p_V)[null_V] <= 0.05).any())
        significant_V = np.array([row["significant"] for row in rows])
        false += (significant_V & null_V).sum() / max(1, significant_V.sum())
        different += int((change["accuracy"] != full["accuracy"]).sum())
        evaluated += record.evaluated / record.pairs
        in_bf16 += record.bf16 / record.pairs
    covers, holds, widths = (
        {name: float(np.mean(each)) for name, each in found.items()} for found in (covered, whole, wider)
    )
    return Audited(
        covers,
        holds,
        widths,
        families / simulations,
        float(false) / simulations,
        different,
        evaluated / simulations,
        in_bf16 / simulations,
    )


def audited_table(simulations: int, precisions: Sequence[Precision]) -> Iterator[str]:
    yield (
        "| variants with an effect | N | audit | precision | pairs in fp32, in bf16 alone | different predictions | "
        "covered: accuracy | loss | logit margin | exact sweep's loss and logit margin within | standard errors / "
        "exact ones | false family-wise | false among significant (BH) |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|---|---|"
    cells = [(True, 408, 0.1), (False, 408, 0.1), (True, 1043, 0.1), (True, 277, 0.2)]
    for (harm, count, audit), precision in product(cells, precisions):
        found = audited(harm, count, audit, simulations, precision)
        numbers = [
            *(f"{found.covered[name]:.3f}" for name in ("accuracy", "loss", "logit_margin")),
            ", ".join(f"{share:.3f}" for share in found.holds_whole.values()),
            ", ".join(f"{ratio:.2f}" for ratio in found.wider.values()),
            f"{found.families:.3f}",
            f"{found.false:.3f}",
        ]
        yield (
            f"| {int(harm)} of 12 | {count:,} | {audit:.0%} | {precision} | {found.evaluated:.0%}, "
            f"{found.in_bf16:.0%} | {found.different} | {' | '.join(numbers)} |"
        )


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


def seeds_table(simulations: int) -> Iterator[str]:
    yield (
        "| seeds | noise of the examples: shared / own of each seed | spread between seeds / shared noise: 0 | 1 | "
        "2 "
        "| 10 |"
    )
    yield "|---|---|---|---|---|---|"
    for seeds, own in product((2, 3, 5, 10), (0, 1, 2)):
        coverages = (seed_coverage(seeds, 0.01 * ratio, 0.01, 0.01 * own, simulations) for ratio in (0, 1, 2, 10))
        yield f"| {seeds} | 1 / {own} | " + " | ".join(f"{coverage:.3f}" for coverage in coverages) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=["coverage", "power", "seeds", "audited"])
    parser.add_argument("--simulations", type=int, default=4000)
    parser.add_argument("--precisions", nargs="+", choices=[FP32, BF16], default=[FP32], help="of screened sweeps")
    chosen = parser.parse_args()
    tables = {
        "coverage": coverage_table(chosen.simulations),
        "power": power_table(chosen.simulations // 2),
        "seeds": seeds_table(chosen.simulations),
        "audited": audited_table(chosen.simulations // 10, chosen.precisions),
    }
    for line in chain.from_iterable(tables.values()) if chosen.part is None else tables[chosen.part]:
        print(line, flush=True)


if __name__ == "__main__":
    main()
