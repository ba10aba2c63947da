"""Smaller models side by side: ours, and what else one would do, with the same data and the same steps of training.

    python benchmarks/shrink.py <run folder> ... --speedup 2 --rows 6000 --seeds 1 2 3
    python benchmarks/shrink.py          # the table of docs/pruning.md again, from the stored results

Each run folder holds a fine-tuned model. Methods, each made at least as fast as asked by measured time (batch 32):

- ours: heads and neurons by Fisher information and the latency table, refitted by least squares, distilled
- ours, no training: the same without the distillation
- magnitude: heads and neurons with the smallest weights go, the same share of each layer, distilled (Han et al. 2015)
- first order: those with the smallest mean absolute product of output and gradient go, as above (Michel et al. 2019; Molchanov et al. 2017)
- layers: the upper layers go, distilled (Sajjad et al. 2023)

Every method is distilled on the same rows with the same learning rate. Scores are those of the development set, which no method sees.
"""

import argparse
import copy
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from torch import Tensor, nn

from bertsecrets.cli.analyze import load_models
from bertsecrets.cli.build import begin
from bertsecrets.cli.run_settings import with_run_settings
from bertsecrets.cli.settings import read_analyze
from bertsecrets.data.module import TaskData
from bertsecrets.models.encoder import describe
from bertsecrets.pruning.component_scores import ComponentScores, fisher_information
from bertsecrets.pruning.latency import compare_latency
from bertsecrets.pruning.latency_table import LatencyTable, measure_latency
from bertsecrets.pruning.recovery import distill
from bertsecrets.pruning.removal import Kept, keep_only
from bertsecrets.pruning.settings import ShrinkSettings
from bertsecrets.pruning.shrink import answers, make_smaller, plan, tests_of
from bertsecrets.results.config_copy import plain

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "shrink.json"
BATCH, EXAMPLES, ROUNDS = 32, 1024, 10
METHODS = ("ours", "ours, no training", "magnitude", "first order", "layers")


def load(run: Path) -> tuple[TaskData, nn.Module]:
    """Data and model of a run's folder."""
    overrides = [f"checkpoint={run}", "progress=false"]
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
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


def as_fast(model: Any, make: Callable[[float], Any], speedup: float, length: int) -> Any:
    """What ``make`` gives for the smallest demand with which it is measured to be as fast as asked."""
    demand = speedup
    for _ in range(5):
        smaller = make(demand).eval()
        latency = compare_latency(model, smaller, length, [BATCH], ROUNDS)[BATCH]
        if latency.whole / latency.smaller >= speedup:
            break
        demand *= 1.02 * speedup / (latency.whole / latency.smaller)
    return smaller


def rows_of(run: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each method and seed on one model."""
    data, model = load(run)
    network: Any = model
    evaluation, task = data.evaluation_names[0], data.task
    lengths = data.evaluation_dataset(evaluation).lengths
    length, device = round(sum(lengths) / len(lengths)), torch.device("cpu")
    table = measure_latency(model, batch_size=BATCH, length=length, rounds=ROUNDS)
    whole = answers(network, data.evaluation_loader(evaluation), task, nullcontext, device)
    scores = {
        "ours": fisher_information(model, data.training_sample(EXAMPLES), context=nullcontext),
        "magnitude": magnitudes(model),
        "first order": first_order(model, data),
    }

    def teaching() -> Any:
        return data.training_sample(options.rows)

    def choosing() -> Any:
        return data.training_sample(EXAMPLES)

    for method in options.methods:
        for seed in options.seeds if method != "ours, no training" else options.seeds[:1]:
            settings = ShrinkSettings.read(
                "shrink",
                {"epochs": 0 if "no training" in method else 1, "seed": seed, "learning_rate": options.learning_rate},
            )
            how = {
                "epochs": settings.epochs,
                "learning_rate": settings.learning_rate,
                "seed": seed,
                "context": nullcontext,
            }
            if method.startswith("ours"):
                plans: dict[int, Kept] = {}

                def cut(demand: float, plans: dict[int, Kept] = plans) -> Any:
                    plans[0] = plan(scores["ours"], table, demand)
                    return keep_only(model, plans[0])

                as_fast(network, cut, options.speedup, length)
                smaller = make_smaller(model, plans[0], choosing, teaching, settings, context=nullcontext)
            elif method == "layers":
                total = describe(model).num_layers
                sizes = iter(range(total - 1, 0, -1))
                smaller = as_fast(
                    network, lambda _, sizes=sizes: without_upper_layers(model, next(sizes)), options.speedup, length
                )  # type: ignore[misc]
                distill(model, smaller, teaching, matched=range(smaller.config.num_hidden_layers), **how)
            else:
                own = scores[method]
                smaller = as_fast(
                    network,
                    lambda demand, own=own: keep_only(model, same_share(own, table, demand)),
                    options.speedup,
                    length,
                )  # type: ignore[misc]
                distill(model, smaller, teaching, **how)
            smaller.eval()
            latencies = compare_latency(network, smaller, length, [1, BATCH], 3 * ROUNDS)
            after = answers(smaller, data.evaluation_loader(evaluation), task, nullcontext, device)
            (test, *_) = tests_of(whole, after, task, 0.01, 0.95)
            yield {
                "run": run.name,
                "method": method,
                "seed": seed,
                "metric": test.metric,
                "examples": len(lengths),
                "whole": test.whole,
                "smaller": test.smaller,
                "bound": float(test.outcome.bound_V[0]),
                "speedup": {str(size): latency.whole / latency.smaller for size, latency in latencies.items()},
                "rows": options.rows if settings.epochs else 0,
                "threads": torch.get_num_threads(),
                "length": length,
            }


def table_of(rows: Sequence[dict[str, Any]]) -> str:
    """The table of docs/pruning.md: means over seeds."""
    lines = [
        "| model | method | seeds | times as fast (batch 32; 1) | score | change (points) | not ruled out |",
        "|---|---|---|---|---|---|---|",
    ]
    for run in dict.fromkeys(row["run"] for row in rows):
        for method in METHODS:
            own = [row for row in rows if (row["run"], row["method"]) == (run, method)]
            if not own:
                continue
            speed = [statistics.mean(row["speedup"][size] for row in own) for size in (str(BATCH), "1")]
            score, whole, bound = (statistics.mean(row[name] for row in own) for name in ("smaller", "whole", "bound"))
            lines.append(
                f"| {run} | {method} | {len(own)} | {speed[0]:.2f}; {speed[1]:.2f} | {score:.3f} | {100 * (score - whole):+.1f} | {100 * bound:.1f} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--speedup", type=float, default=2.0)
    parser.add_argument("--rows", type=int, default=6000)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = json.loads(RESULTS.read_text()) if RESULTS.is_file() else []
    for run in options.runs:
        for row in rows_of(run, options):
            rows = [old for old in rows if any(old[name] != row[name] for name in ("run", "method", "seed"))] + [row]
            RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
            print(json.dumps(row), flush=True)
    print(table_of(rows))


if __name__ == "__main__":
    main()
