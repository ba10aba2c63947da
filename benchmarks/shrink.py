"""Smaller models side by side: ours, and what else one would do, with the same data and the same steps of training.

    python -m benchmarks.shrink <run folder> ... --speedup 2 --rows 3000 --seeds 1 2 3
    python -m benchmarks.shrink --analysis <folder of analysis=shrink>         # ours, from a search that is finished
    python -m benchmarks.shrink --smaller <run folder> <run folder of a smaller model>

Each run folder holds a fine-tuned model. Methods, each made at least as fast as asked by measured time (batch 32; whole
layers within 5 %), but for the last two:

- ours: heads and neurons by Fisher information and the latency table, refitted by least squares, distilled
- ours, no training: the same without the distillation
- ours, int8: the first with 8-bit weights
- layers: the upper layers go, distilled (Sajjad et al. 2023)
- magnitude: heads and neurons with the smallest weights go, the same share of each layer, distilled (Han et al. 2015)
- first order: those with the smallest mean absolute product of output and gradient go, as above (Michel et al. 2019;
Molchanov et al. 2017)
- Torch-Pruning: the same share of heads and neurons of each layer by the magnitude of all weights that depend on one
another (Fang et al.
  2023), distilled; models of BERT, where the package torch-pruning is installed
- int8: the whole model with 8-bit weights (ONNX Runtime, dynamic, a scale for each channel), no training
- smaller model: another model, fine-tuned directly

Every method is distilled on the same rows with the same learning rate. Scores are those of the development set, which
no method sees. Limits are one-sided at 95 %, over seeds and examples; those of a finished ``analysis=shrink`` at the
level that its search was tested at (:mod:`bertsecrets.pruning.guarantee`).
"""

import argparse
import copy
import importlib.util
import json
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hydra import compose, initialize_config_dir
from matplotlib.figure import Figure
from torch import Tensor, nn

from benchmarks.jobs import ROOT, store
from bertsecrets.cli.analyze import load_models
from bertsecrets.cli.build import begin
from bertsecrets.cli.run_settings import with_run_settings
from bertsecrets.cli.settings import read_analyze
from bertsecrets.data.module import TaskData
from bertsecrets.data.sources import TRAIN
from bertsecrets.models.encoder import describe
from bertsecrets.models.metrics import Answers, answers
from bertsecrets.present.figures.style import (
    ACCENTS,
    PAGE_WIDTH,
    QUIET,
    footnote,
    house_style,
    new_figure,
    score_change,
)
from bertsecrets.pruning.export import OnnxClassifier, export_int8
from bertsecrets.pruning.guarantee import search_level
from bertsecrets.pruning.latency import compare_latency
from bertsecrets.pruning.removal import Kept, keep_only
from bertsecrets.pruning.rows import MetricTest, Shrinking, Shrunk
from bertsecrets.pruning.settings import ShrinkSettings
from bertsecrets.results.formatting import number, rounded_up, with_limits
from bertsecrets.results.run import Run, plain
from bertsecrets.results.views import MeasureView
from bertsecrets.shrinking.analysis import make_smaller, metric_tests
from bertsecrets.shrinking.distillation import distill
from bertsecrets.shrinking.latency import LatencyTable, measure_latency
from bertsecrets.shrinking.plan import ComponentScores, fisher_information, plan
from bertsecrets.statistics.non_inferiority import paired_loss, smallest_ruled_out
from bertsecrets.statistics.replicates import Interval, interval_over_seeds
from bertsecrets.sweeps.hydra_arguments import BASE

RESULTS = ROOT / "benchmarks" / "results" / "shrink.json"
BATCH, EXAMPLES, ROUNDS = 32, 1024, 8
_LOWEST = -12.0
"""Changes below, in points, stand at the lower edge of the figure."""

_CONFIDENCE = 0.95
"""Of the limits, each one-sided."""

_SLACK = 0.05
"""How much slower than asked a model of whole layers may be: without another layer it would be far faster."""

OURS, OURS_INT8, UNTRAINED, INT8, TORCH_PRUNING, SMALLER = (
    "ours",
    "ours, int8",
    "ours, no training",
    "int8",
    "Torch-Pruning",
    "smaller model",
)
METHODS = (OURS, UNTRAINED, OURS_INT8, "layers", "magnitude", "first order", TORCH_PRUNING, INT8, SMALLER)


def load(run: Path) -> tuple[TaskData, nn.Module]:
    """Data and model of a run's folder."""
    overrides = [f"checkpoint={run}", "progress=false", f"data.eval_batch_size={BATCH}"]
    with initialize_config_dir(str(ROOT / "conf"), **BASE):
        config = with_run_settings(compose("analyze", overrides=overrides), overrides)
    settings = read_analyze(plain(config))
    _, data = begin(settings)
    return data, load_models(settings, data.tokenizer)[0].model.eval()


def magnitudes(model: nn.Module) -> ComponentScores:
    """Norms of the weights that read each head and each neuron."""
    encoder = describe(model)
    assert encoder.family is not None
    heads = [site.projection.weight.unflatten(1, (encoder.num_heads, -1)).norm(dim=(0, 2)) for site in encoder.sites]  # type: ignore[union-attr]
    neurons = [encoder.family.feed_forward(layer).output.weight.norm(dim=0) for layer in encoder.layers]
    return ComponentScores(torch.stack(heads).detach().double(), torch.stack(neurons).detach().double())


def first_order(model: nn.Module, data: TaskData) -> ComponentScores:
    """Mean absolute derivative of the loss with respect to the gate of each head and each neuron."""
    encoder = describe(model)
    assert encoder.family is not None
    outputs = [encoder.family.feed_forward(layer).output for layer in encoder.layers]
    linears: list[Any] = [
        linear for site, output in zip(encoder.sites, outputs, strict=True) for linear in (site.projection, output)
    ]
    totals = [
        torch.zeros(count, dtype=torch.float64)
        for output in outputs
        for count in (encoder.num_heads, output.in_features)
    ]
    for batch in data.training_sample(EXAMPLES):
        values: list[Tensor] = []
        handles = [linear.register_forward_pre_hook(partial(_keep, values)) for linear in linears]
        logits_BC = encoder.model(**batch.inputs()).logits
        for handle in handles:
            handle.remove()
        loss = nn.functional.cross_entropy(logits_BC, batch.label_B, reduction="sum")
        for total, value_BSG, gradient_BSG in zip(totals, values, torch.autograd.grad(loss, values), strict=True):
            product_BSG = (value_BSG * gradient_BSG).detach().double()
            total += product_BSG.unflatten(-1, (len(total), -1)).sum((1, -1)).abs().sum(0)
    return ComponentScores(torch.stack(totals[::2]), torch.stack(totals[1::2]))


def _keep(values: list[Tensor], _: nn.Module, args: tuple[Any, ...]) -> None:
    values.append(args[0])


def same_share(scores: ComponentScores, table: LatencyTable, speedup: float) -> Kept:
    """The best heads and neurons, the same share of each layer, as large a share as is fast enough."""
    heads, neurons = scores.head_LH.shape[1], scores.neuron_LF.shape[1]
    for share in (step / 96 for step in range(96, 0, -1)):
        counts = max(1, round(share * heads)), max(1, round(share * neurons))
        kept = [
            tuple(tuple(sorted(row.argsort(descending=True)[:count].tolist())) for row in score_LG)
            for score_LG, count in zip((scores.head_LH, scores.neuron_LF), counts, strict=True)
        ]
        smaller = Kept(heads, kept[0], kept[1])
        if table.predict(smaller) <= table.whole / speedup:
            return smaller
    raise SystemExit(f"{speedup} is out of reach")


def without_upper_layers(model: nn.Module, layers: int) -> Any:
    """A copy that keeps the lowest layers."""
    encoder = describe(model)
    assert encoder.family is not None
    smaller = copy.deepcopy(encoder.model)
    *parents, name = encoder.family.layer_list.split(".")
    parent: Any = smaller.base_model
    for step in parents:
        parent = getattr(parent, step)
    setattr(parent, name, nn.ModuleList(list(getattr(parent, name))[:layers]))
    smaller.config.num_hidden_layers = layers
    return smaller


def by_dependencies(model: nn.Module, share: float) -> Any:
    """A copy of a BERT that keeps a share of the heads and neurons of each layer, chosen by Torch-Pruning; its width
    stays.
    """
    import torch_pruning

    smaller: Any = copy.deepcopy(describe(model).model)
    smaller.set_attn_implementation("eager")
    encoder = describe(smaller)
    assert encoder.family is not None
    attentions: list[Any] = [layer.attention.self for layer in encoder.layers]  # type: ignore[union-attr]
    maps = [linear for attention in attentions for linear in (attention.query, attention.key, attention.value)]
    # What writes to the residual stream, whose width the distillation matches.
    written = [site.projection for site in encoder.sites] + [
        encoder.family.feed_forward(layer).output for layer in encoder.layers
    ]
    ids_BS = torch.full((1, 8), 5)
    pruner = torch_pruning.pruner.BasePruner(
        smaller,
        {"input_ids": ids_BS, "attention_mask": torch.ones_like(ids_BS)},
        importance=torch_pruning.importance.GroupMagnitudeImportance(p=2),
        pruning_ratio=1 - share,
        head_pruning_ratio=1 - share,
        num_heads=dict.fromkeys(maps, encoder.num_heads),
        prune_num_heads=True,
        prune_head_dims=False,
        ignored_layers=[*written, smaller.classifier, smaller.base_model.pooler],
        output_transform=lambda output: output.logits.sum(),
    )
    pruner.step()
    smaller.set_attn_implementation("sdpa")
    return smaller


class Peers:
    """One fine-tuned model, its data and its answers, beside which smaller models are judged."""

    def __init__(self, run: Path, options: argparse.Namespace) -> None:
        self.data, self.model = load(run)
        self.network: Any = self.model
        self.name, self.options = name_of(run), options
        self.evaluation = self.data.evaluation_names[0]
        lengths = self.data.evaluation_dataset(self.evaluation).lengths
        self.length, self.examples = round(sum(lengths) / len(lengths)), len(lengths)
        self.whole = self.answers(self.network, self.data)

    def answers(self, model: Any, data: TaskData) -> Answers:
        return answers(model, data.evaluation_loader(self.evaluation), data.task, nullcontext, torch.device("cpu"))

    def teaching(self) -> Any:
        return self.data.training_sample(self.options.rows)

    def choosing(self) -> Any:
        return self.data.training_sample(EXAMPLES)

    def row(self, method: str, seed: int, smaller: Any, rows: int, data: TaskData | None = None) -> dict[str, Any]:
        """Times and tests of a smaller model."""
        timings = compare_latency(self.network, smaller, self.length, [1, BATCH], 2 * ROUNDS)
        after = self.answers(smaller, data or self.data)
        return {
            "run": self.name,
            "method": method,
            "seed": seed,
            "examples": self.examples,
            "tests": stored(metric_tests(self.whole, after, self.data.task, 0.01, 0.95)),
            "speedup": {str(timing.batch): timing.speedup for timing in timings},
            "rows": rows,
            "threads": torch.get_num_threads(),
            "length": self.length,
        }

    def quantised(self, method: str, seed: int, model: Any, rows: int) -> dict[str, Any]:
        """The row of a model with 8-bit weights."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            export_int8(model, path, self.data.max_length)
            return self.row(method, seed, OnnxClassifier(path), rows)

    def rows(self) -> Iterator[dict[str, Any]]:
        """A row for each method and seed; all methods of one seed before the next."""
        options, model = self.options, self.model
        taught = options.epochs * min(options.rows, len(self.data.encoded(TRAIN)))
        cut: dict[str, Any] = {}
        table = cache(lambda: measure_latency(model, batch_size=BATCH, length=self.length, rounds=ROUNDS))
        for seed in options.seeds:
            untrained = ShrinkSettings.read("shrink", {"seed": seed, "epochs": 0})
            teach = partial(
                distill,
                model,
                batches=self.teaching,
                epochs=options.epochs,
                learning_rate=options.learning_rate,
                seed=seed,
                context=partial(torch.autocast, "cpu", torch.bfloat16) if options.bf16 else nullcontext,
            )
            for method in options.methods:
                if method == INT8 and seed == options.seeds[0]:
                    yield self.quantised(method, seed, self.network, 0)
                elif method in (OURS, UNTRAINED) and (method == OURS or seed == options.seeds[0]):
                    if OURS not in cut:
                        fisher = fisher_information(model, self.choosing(), context=nullcontext)
                        cut[OURS] = self._as_fast(partial(plan, fisher, table()), partial(keep_only, model))
                    smaller = make_smaller(
                        model, cut[OURS], self.choosing, self.teaching, untrained, context=nullcontext
                    )
                    if method == UNTRAINED:
                        yield self.row(method, seed, smaller, 0)
                        continue
                    teach(smaller)
                    yield self.row(method, seed, smaller.eval(), taught)
                    if OURS_INT8 in options.methods:
                        yield self.quantised(OURS_INT8, seed, smaller, taught)
                elif method in ("layers", "magnitude", "first order", TORCH_PRUNING):
                    if method not in cut:
                        cut[method] = self._cut(method, table)
                    smaller = copy.deepcopy(cut[method])
                    # The classifier reads what the last layer gives.
                    layers = describe(model).num_layers
                    matched = [*range(smaller.config.num_hidden_layers - 1), layers - 1] if method == "layers" else None
                    teach(smaller, matched=matched)
                    yield self.row(method, seed, smaller.eval(), taught)

    def _cut(self, method: str, table: Callable[[], LatencyTable]) -> Any:
        """A model before its distillation."""
        model = self.model
        if method == "layers":
            fewer = describe(model).num_layers - 1
            sizes = iter(range(fewer, 0, -1))
            return self._as_fast(
                lambda _: without_upper_layers(model, next(sizes)), lambda smaller: smaller, fewer, slack=_SLACK
            )
        if method == TORCH_PRUNING:
            heads = describe(model).num_heads
            shares = iter(count / heads for count in range(heads - 1, 0, -1))
            return self._as_fast(lambda _: by_dependencies(model, next(shares)), lambda smaller: smaller, heads)
        scores = magnitudes(model) if method == "magnitude" else first_order(model, self.data)
        kept = self._as_fast(partial(same_share, scores, table()), partial(keep_only, model))
        return keep_only(model, kept)

    def _as_fast(
        self, make: Callable[[float], Any], built: Callable[[Any], Any], trials: int = 6, slack: float = 0.0
    ) -> Any:
        """What ``make`` gives for the smallest demand with which the model built from it is measured to be as fast as
        asked.
        """
        demand = speedup = self.options.speedup
        for _ in range(trials):
            smaller = make(demand)
            latency = compare_latency(self.network, built(smaller).eval(), self.length, [BATCH], ROUNDS)[BATCH]
            measured = latency.whole / latency.smaller
            if measured >= (1 - slack) * speedup:
                break
            demand *= 1.02 * speedup / measured
        return smaller


def name_of(run: Path) -> str:
    """Model and task of a run or of an analysis."""
    opened = Run.open(run)
    return f"{opened.model} on {opened.task}"


def rows_of_analysis(folder: Path) -> Iterator[dict[str, Any]]:
    """The models of a finished ``analysis=shrink``."""
    run = Run.open(folder)
    (view,) = [MeasureView(run, one) for one in run.declarations() if one.name == Shrinking.name]
    shrunk = Shrunk.of(view)
    assert shrunk is not None
    search = shrunk.search
    for smaller in shrunk.attempts:
        yield {
            "run": name_of(folder),
            "method": OURS_INT8 if smaller.attempt.int8 else OURS if search.epochs else UNTRAINED,
            "seed": run.config()["shrink"]["seed"],
            "examples": search.examples,
            "tests": stored(smaller.tests),
            "search": search.number or 1,
            "speedup": {str(timing.batch): timing.speedup for timing in smaller.timings},
            "rows": search.taught_on * search.epochs,
            "threads": search.threads,
            "length": search.length,
        }


def stored(tests: Sequence[MetricTest]) -> list[dict[str, Any]]:
    """Tests as the results keep them; those of other metrics than accuracy have no counts."""
    return [{name: value for name, value in asdict(test).items() if value is not None} for test in tests]


def model_of(row: dict[str, Any]) -> tuple[str, float]:
    """Model and task of a row, and the score of the whole model, which tells two fine-tunings apart."""
    return row["run"], row["tests"][0]["whole"]


def line_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """What tells a row from all others: a new one takes the place of an old one that shares it."""
    return model_of(row), row["method"], row["seed"], row["rows"]


def with_row(row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Stored rows with another."""
    return [*(old for old in rows if line_of(old) != line_of(row)), row]


def mean_of(rows: Sequence[dict[str, Any]], value: Callable[[dict[str, Any]], float]) -> float:
    return statistics.mean(map(value, rows))


def change_of(row: dict[str, Any]) -> float:
    """Change of the task's first score, in points."""
    test = row["tests"][0]
    return 100 * float(test["smaller"] - test["whole"])


def limits_of(row: dict[str, Any]) -> tuple[float, float, float]:
    """Change of the task's first score with its one-sided limits over examples, in points: exact for accuracy."""
    test, change = row["tests"][0], change_of(row)
    if "lost" not in test:
        return change, -100 * test["bound"], 100 * test["high"]
    alpha = 1 - (search_level(_CONFIDENCE, row["search"]) if "search" in row else _CONFIDENCE)
    counts = np.array([[test["lost"], test["won"]], [test["won"], test["lost"]]])
    loss, gain = smallest_ruled_out(paired_loss(counts[:, 0], counts[:, 1], row["examples"]), alpha, 1.0)
    return change, -100 * float(loss), 100 * float(gain)


def over_seeds(rows: Sequence[dict[str, Any]]) -> Interval:
    """Mean change of the score with its limits, in points: over seeds and examples; of one seed over examples alone."""
    return interval_over_seeds([limits_of(row) for row in rows], 2 * _CONFIDENCE - 1)


def fine_tunings(rows: Sequence[dict[str, Any]]) -> list[tuple[str, float]]:
    """Each fine-tuning by :func:`model_of`; those of one model and task stand together."""
    runs = [row["run"] for row in rows]
    return sorted(dict.fromkeys(map(model_of, rows)), key=lambda model: runs.index(model[0]))


def summary_of(rows: Sequence[dict[str, Any]]) -> str:
    """The short table of docs/shrink.md: a row for each fine-tuning, with the means over seeds of ours and of the best
    of the others, and their limits.

    Ours is taught on the most rows; the best of the others has the highest mean score.
    """
    lines = [
        f"| fine-tuned model | {OURS} | {OURS_INT8} | best other method |",
        "|---|---|---|---|",
    ]
    for model in fine_tunings(rows):
        own = [row for row in rows if model_of(row) == model]
        by_method = {method: [row for row in own if row["method"] == method] for method in METHODS}
        others = [method for method, made in by_method.items() if made and method not in (OURS, UNTRAINED, OURS_INT8)]
        best = max(others, key=lambda method: mean_of(by_method[method], change_of), default=None)
        cells = [_in_brief(by_method[OURS]), _in_brief(by_method[OURS_INT8])]
        cells.append("–" if best is None else f"{best}: {_in_brief(by_method[best])}")
        lines.append(f"| {model[0]}, {own[0]['tests'][0]['metric']} {model[1]:.3f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _in_brief(rows: Sequence[dict[str, Any]]) -> str:
    """Speed and change of score of a method, with its limits; those taught on the most rows."""
    if not rows:
        return "–"
    seeds = [row for row in rows if row["rows"] == max(row["rows"] for row in rows)]
    speed, change = mean_of(seeds, lambda row: row["speedup"][str(BATCH)]), over_seeds(seeds)
    search = {row.get("search", 1) for row in seeds} - {1}
    of_search = f" (search {', '.join(map(str, sorted(search)))})" if search else ""
    return f"{speed:.1f}×, {with_limits(change.mean, change.low, change.high, 1, signed=True)}{of_search}"


def table_of(rows: Sequence[dict[str, Any]]) -> str:
    """The long table of docs/shrink.md, folded: means over seeds with limits over seeds and examples; and where ours
    loses.
    """
    lines = [
        "| method | seeds | training rows | speed-up (batch 32; 1) | score | change, points (range over seeds) "
        "| largest loss not ruled out |",
        "|---|---|---|---|---|---|---|",
    ]
    notes = []
    for model in fine_tunings(rows):
        own = [row for row in rows if model_of(row) == model]
        run, first = own[0]["run"], own[0]["tests"][0]
        lines.append(
            f"| **{run}**: {first['metric']} {first['whole']:.3f} on {own[0]['examples']:,} examples | | | | | | |"
        )
        ours = sorted({row["rows"] for row in own if row["method"] == OURS}, reverse=True)
        means, speed, bounds = {}, {}, {}
        for method, taught in sorted(
            {(row["method"], row["rows"]) for row in own}, key=lambda line: (METHODS.index(line[0]), -line[1])
        ):
            line = method, taught
            seeds = [row for row in own if (row["method"], row["rows"]) == line]
            changes = sorted(map(change_of, seeds))
            means[line] = statistics.mean(changes)
            spread = f" ({changes[0]:+.1f} to {changes[-1]:+.1f})" if len(changes) > 1 else ""
            speeds = [mean_of(seeds, lambda row, size=size: row["speedup"][size]) for size in (str(BATCH), "1")]  # type: ignore[misc]
            speed[line] = speeds[0]
            score = mean_of(seeds, lambda row: row["tests"][0]["smaller"])
            bounds[line] = -over_seeds(seeds).low
            lines.append(
                f"| {method} | {len(changes)} | {taught:,} | {speeds[0]:.2f}; {speeds[1]:.2f} | {score:.3f} | "
                f"{means[line]:+.1f}{spread} | {rounded_up(bounds[line] / 100):.1f} |".replace(
                    "-", "\N{MINUS SIGN}"
                ).replace("Torch\N{MINUS SIGN}", "Torch-")
            )
        # Better is a higher score, or a smaller loss left open at no less speed. A method is compared with ours taught
        # on as many rows.
        for line in means:
            method, taught = line
            if method in (OURS, OURS_INT8) or not ours:
                continue
            best = OURS, taught if taught in ours else ours[0]
            if means[line] > means[best] or (speed[line] >= speed[best] and bounds[line] < bounds[best]):
                notes.append(
                    f"- {run} ({first['whole']:.3f}), to {method}: {number(means[line] - means[best], 1, signed=True)} "
                    f"points, {speed[line]:.2f} in place of {speed[best]:.2f} times as fast, losses above "
                    f"{rounded_up(bounds[line] / 100):.1f} in place of {rounded_up(bounds[best] / 100):.1f} points "
                    "ruled out."
                )
    count = len({(model_of(row), row["method"], row["rows"]) for row in rows})
    folded = [
        f"<details><summary>Every method on every fine-tuned model ({count} rows)</summary>",
        "",
        *lines,
        "",
        "</details>",
    ]
    return "\n".join([*folded, *(["", "Where ours loses:", "", *notes] if notes else [])])


def speed_figure(rows: Sequence[dict[str, Any]]) -> Figure:
    """Change of score by speed, a panel for each model: a point for each fine-tuning and method, the mean over
    seeds.
    """
    lines = dict.fromkeys((model_of(row), row["method"], row["rows"]) for row in rows)
    colours = dict(zip(METHODS, (*ACCENTS, QUIET, "#b0b0b0"), strict=True))
    names, tasks = (list(dict.fromkeys(run.split(" on ")[part] for (run, _), *_ in lines)) for part in (0, 1))
    markers = dict(zip(tasks, "os^DPX<>", strict=False))
    with house_style():
        figure = new_figure(PAGE_WIDTH, 3.4, "Smaller models: change of score by speed")
        panels = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
        for line in lines:
            own = [row for row in rows if (model_of(row), row["method"], row["rows"]) == line]
            (run, _), method, _ = line
            name, task = run.split(" on ")
            speed, change = mean_of(own, lambda row: row["speedup"][str(BATCH)]), mean_of(own, change_of)
            marker = "v" if change < _LOWEST else markers[task]
            panels[names.index(name)].plot(speed, max(change, _LOWEST), marker, color=colours[method], markersize=5)
        for axes, name in zip(panels, names, strict=True):
            axes.axhline(0, color="black", linewidth=0.6)
            axes.set_title(name)
            axes.set_xlabel(f"times as fast (batch {BATCH})")
            axes.grid(linewidth=0.4, alpha=0.5)
        panels[0].set_ylabel(score_change())
        for method, colour in colours.items():
            panels[-1].plot([], [], "o", color=colour, label=method)
        for task, marker in markers.items():
            panels[-1].plot([], [], marker, color="white", markeredgecolor="black", label=task)
        panels[-1].legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
        footnote(figure, f"means over seeds; triangles at the lower edge: a loss of more than {-_LOWEST:g} points")
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--analysis", nargs="*", default=[], type=Path)
    parser.add_argument("--smaller", nargs=2, type=Path)
    parser.add_argument("--speedup", type=float, default=2.0)
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--epochs", type=int, default=1, help="passes over these rows")
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--bf16", action="store_true", help="distil in bfloat16 mixed precision; scores and times are of float32"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if importlib.util.find_spec("torch_pruning") is None:
        options.methods = [method for method in options.methods if method != TORCH_PRUNING]
    sources = [rows_of_analysis(folder) for folder in options.analysis]
    sources += [Peers(run, options).rows() for run in options.runs]
    if options.smaller:
        data, model = load(options.smaller[1])
        taught = len(data.encoded(TRAIN))
        sources.append(iter([Peers(options.smaller[0], options).row(SMALLER, 1, model, taught, data)]))
    for row in (row for source in sources for row in source):
        store(RESULTS, partial(with_row, row))
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
