"""How much of what one fine-tuning shows is found again with another seed: the section "Ten seeds" of ``docs/results.md``.

    python benchmarks/dark_secrets.py ... --only minilm --tasks mrpc rte --seeds 1 2 3 4 5 6 7 8 9 10 --inits pretrained
    python benchmarks/seed_study.py <out>/minilm-{mrpc,rte}-pretrained-* [--page docs/results.md]

Reads finished runs that differ by their seed, four or more of each task, with heads and layers disabled, drift and patterns, in
the run itself or in analyses of it, which are given too. Without folders it prints the tables of the results that there are.

A finding is a verdict of one seed, *needed* or *dispensable*, corrected over its heads or layers. It survives if the other seeds
together, in which it has no part, give the same verdict, corrected in the same way: on the same examples (Student's t over the
seeds), or on other examples too (over seeds and examples). Limits are of 95 %: of mean changes of the score
over seeds and examples, of other means over seeds by Student's t, of all else by Student's t over the jackknife's pseudo-values
(Tukey 1958), with one for each seed.
"""

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy import stats
from sklearn.metrics import cohen_kappa_score

from bertsecrets.ablation.outcomes import Outcomes
from bertsecrets.ablation.scoring import weighted_scores
from bertsecrets.ablation.seeds import Sweep, judge_over_seeds, outcomes_path, read_sweep
from bertsecrets.ablation.verdicts import VERDICTS, p_of_losses, verdicts_of
from bertsecrets.data.task import Task, task_from_config
from bertsecrets.errors import UserError
from bertsecrets.patterns.classes import PATTERNS
from bertsecrets.reporting.runs import FinishedRun, find_runs
from bertsecrets.results.figures.saving import save_figure
from bertsecrets.results.figures.style import ACCENTS, PAGE_WIDTH, QUIET, footnote, house_style, new_figure
from bertsecrets.results.formatting import MISSING, head_label, number
from bertsecrets.results.run import INITIAL
from bertsecrets.results.scores import RunScores
from bertsecrets.results.verdicts import DISPENSABLE, NEEDED, WORDS
from bertsecrets.results.views import MeasureView
from bertsecrets.statistics.corrections import corrected, holm
from bertsecrets.statistics.replicates import intraclass_correlation, mean_interval

Array = np.ndarray
Limits = tuple[float, float, float]
"""A number with its 95 % limits."""
RESULTS = Path(__file__).parent / "results" / "seed_study.json"
TITLES = {"mrpc": "MRPC", "rte": "RTE"}
TOP = 10
HALVES = 100
FEWEST_SEEDS = 4
NAMED = 3
KINDS = ("head", "layer")
FINDINGS = (NEEDED, DISPENSABLE)


def by_task(runs: Sequence[FinishedRun]) -> dict[str, dict[int, dict[str, MeasureView]]]:
    """The experiments of each task's seeds, by name; an analysis goes before the run that it is of.

    Raises:
        UserError: If a task has fewer than four seeds, two trainings with one seed, or runs that differ in their model, its
            initialisation, or the precision, epochs and examples of their training.
    """
    tasks: dict[str, dict[int, dict[str, MeasureView]]] = {}
    models: dict[str, set[tuple[str, str]]] = {}
    trained: dict[str, set[tuple[Any, ...]]] = {}
    for run in sorted(runs, key=lambda run: (run.source is not None, run.seed)):
        task = run.config["task"]["name"]
        models.setdefault(task, set()).add((run.config["model"]["name"], run.init))
        if run.source is None:
            trainer, data = (run.config.get(group, {}) for group in ("trainer", "data"))
            trained.setdefault(task, set()).add(
                (trainer.get("precision"), trainer.get("max_epochs"), data.get("limit_train"))
            )
            if run.seed in tasks.get(task, {}):
                raise UserError(f"Two trainings on {task} have seed {run.seed}, one in '{run.folder}'; give one.")
        views = {name: view for name, (_, view) in run.experiments.items()}
        tasks.setdefault(task, {}).setdefault(run.seed, {}).update(views)
    for task, seeds in tasks.items():
        if len(models[task]) > 1:
            raise UserError(f"The runs of {task} are of different models, {sorted(models[task])}; give those of one.")
        if len(trained.get(task, ())) > 1:
            raise UserError(
                f"The runs of {task} differ in precision, epochs or training examples, {sorted(trained[task], key=str)}; "
                "give runs that differ by their seed alone."
            )
        if len(seeds) < FEWEST_SEEDS:
            raise UserError(f"{task} has runs of {len(seeds)} seeds, but {FEWEST_SEEDS} or more are needed; give more.")
    return {task: dict(sorted(seeds.items())) for task, seeds in tasks.items()}


def jackknife(statistic: Callable[[list[int]], float], seeds: int) -> Limits:
    """A statistic of all seeds with its limits, from those that leave out one seed each; NaN where one is undefined."""
    everyone = list(range(seeds))
    whole = statistic(everyone)
    pseudo = [seeds * whole - (seeds - 1) * statistic([seed for seed in everyone if seed != left]) for left in everyone]
    if not np.isfinite(pseudo).all():
        return whole, float("nan"), float("nan")
    reach = mean_interval(pseudo).high - float(np.mean(pseudo))
    return whole, whole - reach, whole + reach


def over_pairs(pair_SS: Array) -> Limits:
    """Mean over all pairs of two seeds of a number of each pair, ``[S, S]``."""

    def mean(chosen: list[int]) -> float:
        part_SS = pair_SS[np.ix_(chosen, chosen)]
        return float(part_SS[~np.eye(len(chosen), dtype=bool)].mean())

    return jackknife(mean, len(pair_SS))


def over_each(value_S: Array) -> Limits:
    """Mean over seeds of a number of each seed."""
    interval = mean_interval(value_S)
    return interval.mean, interval.low, interval.high


def rank_correlations(one_SV: Array, other_SV: Array) -> Array:
    """Spearman's rank correlation over V heads of each seed of one with each of the other, ``[S, S]``."""
    rank_SV, others_SV = (stats.zscore(stats.rankdata(value_SV, axis=1), axis=1) for value_SV in (one_SV, other_SV))
    return np.asarray(rank_SV @ others_SV.T / rank_SV.shape[1])


def heads_agree(value_SV: Array) -> Limits:
    """Share of the variance of a number of V heads that lies between heads, ICC(2,1)."""
    return jackknife(lambda chosen: intraclass_correlation(value_SV[chosen].T), len(value_SV))


def agreement(value_SV: Array, layers: int, *, high: bool) -> dict[str, Any]:
    """How far seeds agree on a number of each head.

    Args:
        value_SV: The number of V heads with S seeds, in order of layer.
        layers: Number of layers.
        high: Whether the heads with the highest numbers are the top, else those with the lowest.
    """
    seeds, heads = value_SV.shape
    value_SLH = value_SV.reshape(seeds, layers, -1)
    # A layer whose heads all have one number in a seed has no ranks.
    within_SS = np.nanmean([rank_correlations(*2 * [value_SLH[:, layer]]) for layer in range(layers)], axis=0)
    order_SV = np.argsort(-value_SV if high else value_SV, axis=1, kind="stable")
    top_SV = np.zeros((seeds, heads))
    np.put_along_axis(top_SV, order_SV[:, :TOP], 1, axis=1)
    layer_SL = value_SLH.mean(2)
    top_layer_S = layer_SL.argmax(1) if high else layer_SL.argmin(1)
    top_heads = (divmod(head, heads // layers) for head in order_SV[:, 0].tolist())
    pair_SS = rank_correlations(value_SV, value_SV)
    return {
        "spearman": over_pairs(pair_SS),
        "lowest": float(pair_SS.min()),
        "within_layers": over_pairs(within_SS),
        "icc": heads_agree(value_SV),
        "top_shared": over_pairs(top_SV @ top_SV.T),
        "top_by_chance": TOP * TOP / heads,
        "top_heads": Counter(top_heads).most_common(),
        "top_layers": Counter(top_layer_S.tolist()).most_common(),
    }


def over_halves(value_of: Callable[[Array], Array], count: int) -> dict[str, Limits]:
    """Spearman's correlation of heads on random halves of the examples: one seed on two halves, two seeds on two halves or on one.

    Args:
        value_of: A number of every head with every seed, ``[S, V]``, on the examples of which a mask ``[N]`` is true.
        count: Number of examples.
    """
    generator = np.random.default_rng(0)
    halves = [generator.permutation(count) < count // 2 for _ in range(HALVES)]
    one_HSV, other_HSV = (
        np.array([value_of(half_N) for half_N in some]) for some in (halves, [~half_N for half_N in halves])
    )
    pair_SS = np.mean([rank_correlations(*both) for both in zip(one_HSV, other_HSV, strict=True)], axis=0)
    pair_SS = (pair_SS + pair_SS.T) / 2
    same_SS = np.mean([rank_correlations(value_SV, value_SV) for value_SV in (*one_HSV, *other_HSV)], axis=0)
    own_S = pair_SS.diagonal()

    def difference(chosen: list[int]) -> float:
        part_SS = pair_SS[np.ix_(chosen, chosen)]
        return float(own_S[chosen].mean() - part_SS[~np.eye(len(chosen), dtype=bool)].mean())

    return {
        "same_seed": over_each(own_S),
        "other_seed": over_pairs(pair_SS),
        "same_half": over_pairs(same_SS),
        "difference": jackknife(difference, len(pair_SS)),
    }


def judge_on_these(sweeps: Sequence[Sweep]) -> tuple[str, ...]:
    """Verdicts of several seeds on the examples that they share: Student's t over seeds, corrected over variants."""
    row = sweeps[0].rows[0]
    delta_SV, margin = np.stack([sweep.change_V for sweep in sweeps]), row["margin"]
    # A seed's change is known to one prediction: seeds that happen to agree are not free of error.
    rounding = 1 / (np.sqrt(12) * len(sweeps[0].label_N))
    delta_V, spread_V = delta_SV.mean(0), np.maximum(delta_SV.std(0, ddof=1), rounding)
    error_V = spread_V / np.sqrt(len(sweeps))
    p_V = 2 * stats.t.sf(np.abs(delta_V) / error_V, len(sweeps) - 1)
    p_margin_V = stats.t.sf((delta_V + margin) / error_V, len(sweeps) - 1)
    return verdicts_of(
        holm(p_of_losses(delta_V, p_V)), corrected(p_margin_V), 1 - row["level"], row["false_discovery_rate"]
    )


def survival(sweeps: Sequence[Sweep], judge: Callable[[Sequence[Sweep]], tuple[str, ...]]) -> dict[str, Any]:
    """What the other seeds together say of a single seed's verdicts.

    Args:
        sweeps: One for each seed.
        judge: The verdicts of several seeds, in order of variant.

    Returns:
        ``met``: how often a verdict of one seed meets each verdict of the others. By verdict: ``survives``, the share of findings
        that the others confirm; ``without``, the share of all other heads or layers that they give this verdict; ``missed``, the
        share of what the others find that the seed does not.
    """
    single_SV = np.array([[row["verdict"] for row in sweep.rows] for sweep in sweeps])

    @cache
    def of_others(chosen: frozenset[int]) -> tuple[str, ...]:
        return judge([sweeps[seed] for seed in sorted(chosen)])

    def of_rest(chosen: list[int]) -> Array:
        return np.array([of_others(frozenset(chosen) - {seed}) for seed in chosen])

    def survives(verdict: str, chosen: list[int]) -> float:
        own_SV = single_SV[chosen] == verdict
        return float((of_rest(chosen) == verdict)[own_SV].mean()) if own_SV.any() else float("nan")

    everyone = list(range(len(sweeps)))
    rest_SV = of_rest(everyone)
    pairs = Counter(zip(single_SV.ravel().tolist(), rest_SV.ravel().tolist(), strict=True))
    result: dict[str, Any] = {"met": {one: {other: pairs[one, other] for other in VERDICTS} for one in VERDICTS}}
    for verdict in FINDINGS:
        own_SV, others_SV = single_SV == verdict, rest_SV == verdict
        result[verdict] = {
            "survives": jackknife(partial(survives, verdict), len(sweeps)) if own_SV.any() else None,
            "without": float(others_SV[~own_SV].mean()) if not own_SV.all() else None,
            "missed": float((~own_SV)[others_SV].mean()) if others_SV.any() else None,
        }
    return result


def found_again(sweeps: Sequence[Sweep], verdict: str) -> Limits | None:
    """The share of a seed's findings that another single seed makes too; None without findings."""
    is_SV = np.array([[row["verdict"] == verdict for row in sweep.rows] for sweep in sweeps], float)

    def share(chosen: list[int]) -> float:
        often_V, total = is_SV[chosen].sum(0), is_SV[chosen].sum()
        return float((often_V * (often_V - 1)).sum() / ((len(chosen) - 1) * total)) if total else float("nan")

    return jackknife(share, len(sweeps)) if is_SV.any() else None


def needed_in_some(sweeps: Sequence[Sweep]) -> list[dict[str, Any]]:
    """The heads or layers that some seed finds needed, largest mean loss first, with what all seeds together say."""
    over = judge_over_seeds(sweeps)
    here = judge_on_these(sweeps)
    found = [
        {
            "layer": over.components[v][0],
            "head": over.components[v][1],
            "seeds": sum(verdicts[v] == NEEDED for verdicts in over.single),
            "change": [float(value[v]) for value in (over.effects.delta, over.effects.low, over.effects.high)],
            "range": [float(extreme([sweep.change_V[v] for sweep in sweeps])) for extreme in (min, max)],
            "these_examples": here[v],
            "other_examples": over.verdict[v],
        }
        for v in over.needed_somewhere
    ]
    return sorted(found, key=lambda row: row["change"][0])


def sweeps_of(views: Sequence[MeasureView], kind: str) -> list[Sweep]:
    """The sweep over heads or layers of each seed.

    Raises:
        UserError: If a run has none over all examples.
    """
    sweeps = []
    for view in views:
        sweep = read_sweep(view, kind)
        if sweep is None:
            raise UserError(f"'{view.run.folder}' did not disable every {kind} on all examples; disable them again.")
        sweeps.append(sweep)
    return sweeps


def verdicts(sweeps: Sequence[Sweep]) -> dict[str, Any]:
    """The verdicts of each seed and of all together, and how many of the former survive."""
    over, here = judge_over_seeds(sweeps), judge_on_these(sweeps)
    return {
        "places": over.components,
        "changes": [sweep.change_V.tolist() for sweep in sweeps],
        "over_seeds": [value_V.tolist() for value_V in (over.effects.delta, over.effects.low, over.effects.high)],
        "in_each_seed": {verdict: [names.count(verdict) for names in over.single] for verdict in VERDICTS},
        "together": {
            "these_examples": {verdict: here.count(verdict) for verdict in VERDICTS},
            "other_examples": {verdict: over.verdict.count(verdict) for verdict in VERDICTS},
        },
        "these_examples": survival(sweeps, judge_on_these),
        "other_examples": survival(sweeps, lambda some: judge_over_seeds(some).verdict),
        "found_again": {verdict: found_again(sweeps, verdict) for verdict in FINDINGS},
        "needed": needed_in_some(sweeps),
    }


def which_heads(views: Sequence[MeasureView], sweeps: Sequence[Sweep]) -> dict[str, Any]:
    """How far seeds agree on the change of score and on the rise of the loss without each head."""
    outcomes = [Outcomes.read(outcomes_path(view, sweep.rows[0])) for view, sweep in zip(views, sweeps, strict=True)]
    task = task_from_config(views[0].run.config()["task"])
    rise_SNV = np.stack([loss_rises(outcome, task) for outcome in outcomes])
    change_SV = np.stack([sweep.change_V for sweep in sweeps])
    layers, count = outcomes[0].plan.num_layers, rise_SNV.shape[1]
    return {
        "change of score": {
            **agreement(change_SV, layers, high=False),
            "halves": over_halves(partial(changes_of_score, sweeps), count),
        },
        "rise of the loss": {
            **agreement(rise_SNV.mean(1), layers, high=True),
            "halves": over_halves(lambda half_N: rise_SNV[:, half_N].mean(1), count),
        },
    }


def changes_of_score(sweeps: Sequence[Sweep], chosen_N: Array) -> Array:
    """Change of the score without each head with each seed, ``[S, V]``, on the examples of which a mask is true."""
    metric, label_N = sweeps[0].rows[0]["metric"], sweeps[0].label_N
    both_SVN = np.stack([np.concatenate([sweep.clean_N[None], sweep.prediction_VN]) for sweep in sweeps])
    both_XN = both_SVN.reshape(-1, len(label_N))
    score_SV = weighted_scores(metric, label_N, both_XN, chosen_N[None].astype(float)).reshape(both_SVN.shape[:2])
    return score_SV[:, 1:] - score_SV[:, :1]


def loss_rises(outcomes: Outcomes, task: Task) -> Array:
    """Rise of the loss of each example without each head, ``[N, V]``, in order of layer and head."""
    clean_N, loss_NV = outcomes.losses(task)
    rise_NV: Array = (loss_NV - clean_N[:, None]).double().numpy()
    variants = outcomes.plan.variants
    heads = [place for place, variant in enumerate(variants) if variant.kind == "head"]
    return rise_NV[:, sorted(heads, key=lambda place: variants[place].heads)]


def drift(views: Sequence[MeasureView]) -> dict[str, Any]:
    cosine_SLH = np.stack([view.value("cosine") for view in views])
    result = agreement(cosine_SLH.reshape(len(views), -1), cosine_SLH.shape[1], high=False)
    result["by_layer"] = [over_each(value_S) for value_S in cosine_SLH.mean(2).T]
    return result


def shares_of(view: MeasureView) -> Array:
    """Share of each pattern in each head's maps, ``[P, heads]``."""
    return np.stack([view.value(name).ravel() for name in PATTERNS])


def patterns(views: Sequence[MeasureView]) -> dict[str, Any]:
    """How far seeds agree on each head's main pattern, and on the patterns' shares.

    Raises:
        UserError: If no run has the patterns before fine-tuning, which are the same for all seeds.
    """
    before = next((initial for view in views if (initial := view.at(INITIAL)) is not None), None)
    if before is None:
        raise UserError("No run has the patterns before fine-tuning; give one with compare_with=[initial].")
    share_SPH = np.stack([shares_of(view) for view in views])
    main_SH, before_H = share_SPH.argmax(1), shares_of(before).argmax(0)
    seeds = len(views)
    same_SS = (main_SH[:, None] == main_SH[None]).mean(2)
    kappa_SS = np.array([[cohen_kappa_score(one_H, other_H) for other_H in main_SH] for one_H in main_SH])
    new_SH = main_SH != before_H

    def again(chosen: list[int]) -> float:
        """Share of heads with a new main pattern in one seed that have the same in another."""
        new, same = 0, 0
        for one in chosen:
            others = [other for other in chosen if other != one]
            new += len(others) * int(new_SH[one].sum())
            same += int((new_SH[one] & (main_SH[others] == main_SH[one])).sum())
        return same / new if new else float("nan")

    return {
        "same": over_pairs(same_SS),
        "kappa": over_pairs(kappa_SS),
        "same_in_all": float((main_SH == main_SH[0]).all(0).mean()),
        "as_before": over_each(1 - new_SH.mean(1)),
        "new": over_each(new_SH.sum(1)),
        "new_again": jackknife(again, seeds),
        "shares": {
            name: {
                "share": over_each(share_SPH[:, place].mean(1)),
                "range": [float(extreme(share_SPH[:, place].mean(1))) for extreme in (np.min, np.max)],
                "icc": heads_agree(share_SPH[:, place]),
            }
            for place, name in enumerate(PATTERNS)
        },
    }


def of_task(seeds: dict[int, dict[str, MeasureView]]) -> dict[str, Any]:
    """Everything that the tables show of one task.

    Raises:
        UserError: If a run misses an experiment.
    """
    for seed, views in seeds.items():
        for name in ("ablation", "drift", "patterns"):
            if name not in views:
                raise UserError(f"Seed {seed} has no {name}; give a run with it, or an analysis of the run.")
    disabled = [views["ablation"] for views in seeds.values()]
    scores = [RunScores.read(view.run.scores_path) for view in disabled]
    lines = [score.lines()[0] for score in scores]
    learned = [score.learned for score in scores]
    return {
        "seeds": sorted(seeds),
        "examples": next(iter(scores[0].sets.values())).count,
        "metric": lines[0].name.split("/")[-1],
        "score": [line.value for line in lines],
        "constant": lines[0].baseline,
        "learned": [learned.count(is_so) for is_so in (True, False, None)],
        **{kind: verdicts(sweeps_of(disabled, kind)) for kind in KINDS},
        **which_heads(disabled, sweeps_of(disabled, "head")),
        "drift": drift([views["drift"] for views in seeds.values()]),
        "patterns": patterns([views["patterns"] for views in seeds.values()]),
    }


def limits(values: Sequence[float], decimals: int = 2, *, scale: float = 1, signed: bool = False) -> str:
    """A number with its limits, if there are any: a jackknife has none where no seed changes anything."""
    value, low, high = (number(scale * one, decimals, signed=signed) for one in values)
    return f"{value} ({low} to {high})" if values[1] < values[2] else value


def share(value: float | None) -> str:
    """A share in percent, if there is one."""
    return MISSING if value is None else f"{number(100 * value, 0)} %"


def percent(values: Sequence[float] | None) -> str:
    """A share in percent with its limits, which end at 0 and 100."""
    if values is None:
        return MISSING
    value, low, high = (number(100 * min(max(one, 0), 1), 0) for one in values)
    return f"{value} % ({low} to {high})" if values[1] < values[2] else f"{value} %"


def summary(values: Sequence[float], decimals: int) -> str:
    """Mean and range; counts have means with a decimal."""
    ends = " to ".join(number(end, decimals) for end in (min(values), max(values)))
    return f"{number(float(np.mean(values)), decimals or 1)} ({ends})"


def commonest(counts: Sequence[tuple[Any, int]], name: Callable[[Any], str]) -> str:
    """The three most frequent, with how often they are."""
    return ", ".join(f"{name(place)} ({count})" for place, count in counts[:3])


Results = dict[str, dict[str, Any]]
Rows = Iterator[dict[str, str]]
"""Cells by their columns' headers."""


def score_rows(results: Results) -> Rows:
    for task, result in results.items():
        yield {
            "task": task,
            "seeds": str(len(result["seeds"])),
            "metric": result["metric"],
            "mean (lowest to highest)": summary(result["score"], 3),
            "standard deviation": number(float(np.std(result["score"], ddof=1))),
            "constant answer": number(result["constant"]),
            "seeds shown to beat it": str(result["learned"][0]),
        }


def agreement_rows(results: Results) -> Rows:
    for task, result in results.items():
        for name in ("change of score", "rise of the loss", "drift"):
            row = result[name]
            yield {
                "task, number of each head": f"{task}, {name}",
                "Spearman of two seeds": limits(row["spearman"]),
                "within layers": limits(row["within_layers"]),
                "ICC": limits(row["icc"]),
                f"of the top {TOP} shared (by chance {number(row['top_by_chance'], 1)})": limits(row["top_shared"], 1),
                "most frequent top heads (seeds)": commonest(row["top_heads"], lambda place: head_label(*place)),
            }


def half_rows(results: Results) -> Rows:
    for task, result in results.items():
        for name in ("change of score", "rise of the loss"):
            halves = result[name]["halves"]
            yield {
                "task, number of each head": f"{task}, {name}",
                "same seed, other half": limits(halves["same_seed"]),
                "other seed, other half": limits(halves["other_seed"]),
                "first less second": limits(halves["difference"]),
                "other seed, same half": limits(halves["same_half"]),
            }


def verdict_rows(results: Results) -> Rows:
    for task, kind in product(results, KINDS):
        row = results[task][kind]
        yield {
            "task, kind": f"{task}, {kind}",
            **{f"{WORDS[name]}, in each seed": summary(row["in_each_seed"][name], 0) for name in VERDICTS},
            "over seeds": " / ".join(map(str, row["together"]["these_examples"].values())),
        }


def survival_rows(results: Results) -> Rows:
    for task, kind, verdict in product(results, KINDS, FINDINGS):
        row = results[task][kind]
        here = row["these_examples"]
        found = sum(here["met"][verdict].values())
        if not found:
            continue
        opposite = DISPENSABLE if verdict == NEEDED else NEEDED
        yield {
            "task, kind": f"{task}, {kind}",
            "verdict of one seed": WORDS[verdict],
            "times": str(found),
            "another seed": percent(row["found_again"][verdict]),
            "the others": percent(here[verdict]["survives"]),
            "contradicted": f"{here['met'][verdict][opposite]} of {found}",
            "where the seed does not say so": share(here[verdict]["without"]),
        }


def needed_rows(results: Results) -> Rows:
    for task, kind in product(results, KINDS):
        for row in results[task][kind]["needed"]:
            layer, head = row["layer"], row["head"]
            yield {
                "task": task,
                "head or layer": f"layer {layer}" if head is None else head_label(layer, head),
                "seeds that find it needed": f"{row['seeds']} of {len(results[task]['seeds'])}",
                "mean change, points": limits(row["change"], 1, scale=100, signed=True),
                "of one seed": " to ".join(number(100 * end, 1, signed=True) for end in row["range"]),
                "over seeds": WORDS[row["these_examples"]],
            }


def drift_rows(results: Results) -> Rows:
    for task, result in results.items():
        layers = {f"layer {layer}": limits(value, 3) for layer, value in enumerate(result["drift"]["by_layer"])}
        yield {"task": task, **layers}


def pattern_rows(results: Results) -> Rows:
    for task, result in results.items():
        own = result["patterns"]
        yield {
            "task": task,
            "same in two seeds": percent(own["same"]),
            "Cohen's kappa": limits(own["kappa"]),
            "same in all seeds": share(own["same_in_all"]),
            "as before fine-tuning": percent(own["as_before"]),
            "heads with a new one": limits(own["new"], 1),
            "the same in another seed": percent(own["new_again"]),
        }


def share_rows(results: Results) -> Rows:
    for task, result in results.items():
        for name, own in result["patterns"]["shares"].items():
            yield {
                "task, pattern": f"{task}, {name.replace('_', ' + ')}",
                "share of the maps": percent(own["share"]),
                "of one seed": " to ".join(share(end) for end in own["range"]),
                "ICC of the heads": limits(own["icc"]),
            }


TABLES: dict[str, Callable[[Results], Rows]] = {
    "Scores": score_rows,
    "Which heads": agreement_rows,
    "Seeds and examples": half_rows,
    "Verdicts": verdict_rows,
    "Findings that survive": survival_rows,
    "Needed in some seed": needed_rows,
    "Drift by layer": drift_rows,
    "Main patterns": pattern_rows,
    "Shares of patterns": share_rows,
}


def markdown(rows: Rows) -> str:
    cells = list(rows)
    lines = [list(cells[0]), ["---"] * len(cells[0]), *(list(row.values()) for row in cells)] if cells else [["none"]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def figure(results: Results) -> Figure:
    """Change of the score without each head: every seed, and the mean with its limits over seeds and examples."""
    with house_style():
        drawn = new_figure(PAGE_WIDTH, 2.6 * len(results), "Change of the score without each head, by seed")
        for axes, (task, result) in zip(
            np.ravel(drawn.subplots(len(results), sharex=True)), results.items(), strict=True
        ):
            row = result["head"]
            change_SV, (mean_V, low_V, high_V) = 100 * np.array(row["changes"]), 100 * np.array(row["over_seeds"])
            seeds, heads = change_SV.shape
            at_V = np.arange(heads)
            axes.axhline(0, color=QUIET, linewidth=0.6)
            axes.plot(at_V, change_SV.T, ".", color=ACCENTS[1], markersize=4, markeredgewidth=0)
            axes.vlines(at_V, low_V, high_V, color=ACCENTS[0], linewidth=1, alpha=0.4)
            axes.plot(at_V, mean_V, "_", color=ACCENTS[0], markersize=6)
            for found in [found for found in row["needed"] if found["seeds"] > seeds / 2][:NAMED]:
                place = [found["layer"], found["head"]]
                at = row["places"].index(place)
                axes.annotate(
                    f"{head_label(*place)}: needed in {found['seeds']} of {seeds}",
                    (at, min(change_SV[:, at].min(), low_V[at])),
                    (5 if at < heads / 2 else -5, 0),
                    textcoords="offset points",
                    ha="left" if at < heads / 2 else "right",
                    va="center",
                    fontsize=7,
                )
            axes.margins(x=0.01, y=0.12)
            axes.set_title(f"{task}, {result['examples']} examples", loc="left")
            axes.set_ylabel(f"{result['metric']}, points")
            firsts = [at for at, (_, head) in enumerate(row["places"]) if head == 0]
            axes.set_xticks(firsts, [f"layer {row['places'][at][0]}" for at in firsts], ha="left")
            for at in firsts[1:]:
                axes.axvline(at - 0.5, color=QUIET, linewidth=0.3, linestyle=":")
        footnote(
            drawn,
            "orange: one seed; blue: mean with its 95 % interval over seeds and examples; named: needed in most seeds",
        )
    return drawn


def updated(text: str, results: Results) -> str:
    """A page with the tables of the results under the comments with their titles."""
    results = {TITLES.get(task, task): result for task, result in results.items()}
    for title, rows in TABLES.items():
        before, comment, after = text.partition(f"<!-- Ten seeds: {title} -->\n")
        if comment:
            text = f"{before}{comment}{markdown(rows(results))}\n\n{after.partition(chr(10) * 2)[2]}"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", help="run folders, and those of their analyses")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, help="the page whose tables are renewed")
    parser.add_argument("--figure", type=Path, help="draw the change of the score without each head to this file")
    options = parser.parse_args()
    if options.folders:
        runs, unfinished = find_runs(options.folders)
        if unfinished:
            print(f"Left out (not finished): {', '.join(unfinished)}.\n")
        results = {task: of_task(seeds) for task, seeds in by_task(runs).items()}
        options.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    elif not options.out.is_file():
        parser.error(f"there are no results in {options.out} yet; give run folders")
    results = json.loads(options.out.read_text("utf-8"))
    if options.page is not None:
        options.page.write_text(updated(options.page.read_text("utf-8"), results), "utf-8")
    results = {TITLES.get(task, task): result for task, result in results.items()}
    if options.figure is not None:
        save_figure(figure(results), options.figure)
    for title, rows in TABLES.items():
        print(f"## {title}\n\n{markdown(rows(results))}\n")


if __name__ == "__main__":
    main()
