"""Hold every score of heads against the exact effect of disabling them, and against planted truth.

    python -m tools.planted planted --out planted.json               # a minute on one core
    python -m tools.planted runs outputs/mrpc outputs/rte --out scores.json
    python -m tools.planted tables planted.json scores.json          # Markdown of docs/importance.md

``runs`` takes folders of finished trainings. The exact effects are those of analysis=disable in <folder>-disable.
Scores are the columns that rank heads in the head tables of analyses in <folder>-*, such as analysis=importance, and
those of the shipped measures that are not there, taken here on a sample of the evaluation set.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertsecrets.ablation.outcomes import Outcomes
from bertsecrets.attention.override import HeadEdit, mean_head_outputs, override
from bertsecrets.cli.build import make_data
from bertsecrets.cli.settings import read_settings
from bertsecrets.data.task import Task
from bertsecrets.measures.one_pass import measure_pass
from bertsecrets.models.checkpoint import load_checkpoint
from bertsecrets.models.loading import load_tokenizer
from bertsecrets.models.spec import find_checkpoint
from bertsecrets.pruning.scores import ranking_measures
from bertsecrets.results.run import Run, plain, read_config
from bertsecrets.statistics.replicates import mean_interval
from bertsecrets.task_heads import METRICS
from tools.planted.classifiers import PLANTS, Planted, plant
from tools.planted.scores import Score, agreement, scores_of_grid, scores_of_run, separation

EFFECTS = {
    "loss": "rise of the loss",
    "size": "size of its change",
    "margin": "fall of the margin",
    "metric": "fall of the score",
}
FOUND = 0.95


def planted_separations(models: int) -> dict[str, Any]:
    """The separation of planted from ordinary heads: kind -> score -> a number for each model."""
    results: dict[str, dict[str, list[float]]] = {kind: {} for kind in PLANTS}
    for seed in range(models):
        for kind in PLANTS:
            planted = plant(kind, seed)  # type: ignore[arg-type]
            for score in [*planted_scores(planted), exact_score(planted)]:
                area = separation(score, planted.heads, dead=kind == "dead")
                results[kind].setdefault(score.name, []).append(area)
    return {"models": models, "separation": results}


def planted_scores(planted: Planted) -> list[Score]:
    layers, heads = size_of(planted.model)
    batch = planted.split[list(range(len(planted.split)))]
    measures = [make(layers, heads) for make in ranking_measures().values()]
    for measure in measures:
        measure.prepare(planted.split)
    means_LHd = mean_head_outputs(planted.model, [batch.inputs()])
    grids = measure_pass(planted.model, measures, [batch], means_LHd=means_LHd)
    return [score for grid in grids for score in scores_of_grid(grid)]


@torch.no_grad()
def exact_score(planted: Planted) -> Score:
    """The rise of the loss with one head disabled (mode zero)."""
    batch = planted.split[list(range(len(planted.split)))]
    assert batch.label_B is not None
    value_LH = np.zeros(size_of(planted.model))
    whole = batch.losses(planted.model(**batch.inputs()).logits).mean()
    for layer, head in np.ndindex(value_LH.shape):
        with override(planted.model, [HeadEdit(layer, head, "zero")]):
            loss = batch.losses(planted.model(**batch.inputs()).logits).mean()
        value_LH[layer, head] = float(loss - whole)
    return Score("exact: loss, one head disabled", value_LH, signed=True)


def size_of(model: Any) -> tuple[int, int]:
    return model.config.num_hidden_layers, model.config.num_attention_heads


def exact_effects(folder: Path, task: Task) -> dict[str, np.ndarray]:
    """Exact effects ``[L, H]`` of disabling each head, from the outcomes of a sweep; higher is worse to lose."""
    (path,) = (folder / "ablation").glob("checkpoint-*.safetensors")
    outcomes = Outcomes.read(path)
    places = {variant.heads[0]: index for index, variant in enumerate(outcomes.plan.variants) if variant.kind == "head"}
    clean_loss_N, loss_NV = outcomes.losses(task)
    rise_V = (loss_NV.double() - clean_loss_N.double()[:, None]).mean(0).numpy()
    clean_N, margin_NV = margins(outcomes, task)
    fall_V = (clean_N.double()[:, None] - margin_NV.double()).mean(0).numpy()
    metric_V = -outcomes.predictions(task).changes(METRICS[task.metrics[0]])
    effects = {"loss": rise_V, "size": np.abs(rise_V), "margin": fall_V, "metric": metric_V}
    shape = (outcomes.plan.num_layers, outcomes.plan.num_heads)
    return {
        name: np.array([[value_V[places[layer, head]] for head in range(shape[1])] for layer in range(shape[0])])
        for name, value_V in effects.items()
    }


def margins(outcomes: Outcomes, task: Task) -> tuple[torch.Tensor, torch.Tensor]:
    """Logit of the right class minus the highest other, ``[N]`` and ``[N, V]``; for scores minus the distance from the
    label.
    """
    if not task.is_regression:
        return outcomes.logit_margins()
    label_N = outcomes.label_N
    return -(outcomes.clean_NC[:, 0] - label_N).abs(), -(outcomes.logits_NVC[..., 0] - label_N[:, None]).abs()


def compare_run(folder: Path, examples: int) -> dict[str, Any]:
    """All scores of a run against its exact effects, with their cost."""
    settings = read_settings(plain(read_config(folder)))
    tokenizer = load_tokenizer(settings.model)
    data = make_data(settings, tokenizer)
    model = load_checkpoint(find_checkpoint(folder), settings.task, settings.model).model.eval()
    split = data.evaluation_dataset(data.evaluation_names[0])
    batches = list(data.evaluation_loader(data.evaluation_names[0], max_examples=examples))
    layers, heads = size_of(model)
    scores: list[Score] = []
    for path in sorted(folder.parent.glob(f"{folder.name}-*/experiments.json")):
        present = {score.name for score in scores}
        scores += [score for score in scores_of_run(Run.open(path.parent)) if score.name not in present]
    taken = {score.name.split("/")[0] for score in scores}
    costs: dict[str, Any] = {}
    for name, make in ranking_measures().items():
        if name in taken:
            continue
        measure = make(layers, heads)
        measure.prepare(split)
        started = time.perf_counter()
        means_LHd = None
        if measure.reference_examples:
            sample = data.training_sample(min(examples, measure.reference_examples))
            means_LHd = mean_head_outputs(model, (batch.inputs() for batch in sample))
        (grid,) = measure_pass(model, [measure], batches, means_LHd=means_LHd)
        costs[name] = {"passes": measure.passes, "seconds": time.perf_counter() - started}
        scores += scores_of_grid(grid)
        print(folder.name, name, f"{costs[name]['seconds']:.0f} s", flush=True)
    started = time.perf_counter()
    with torch.no_grad():
        for batch in batches:
            model(**batch.inputs())
    forward = time.perf_counter() - started
    effects = exact_effects(folder.with_name(f"{folder.name}-disable"), settings.task)
    random = Score("random", np.random.default_rng(settings.keys.seed).normal(size=(layers, heads)), signed=False)
    rows = []
    for score in [*scores, random]:
        for effect, value_LH in effects.items():
            result = agreement(score.value_LH, value_LH)
            rows.append(
                {
                    "score": score.name,
                    "effect": effect,
                    "rho": result.correlation.rho,
                    "low": result.correlation.low,
                    "high": result.correlation.high,
                    "precision": result.precision,
                }
            )
    return {
        "run": folder.name,
        "task": settings.task.name,
        "examples": examples,
        "costs": costs,
        "forward_seconds": forward,
        "values": {score.name: score.value_LH.tolist() for score in scores},
        "rows": rows,
    }


def planted_table(content: dict[str, Any]) -> str:
    results = content["separation"]
    lines = [
        f"| score | {' | '.join(PLANTS)} |",
        "|---|" + "---:|" * len(PLANTS),
    ]
    for name in results[PLANTS[0]]:
        cells = []
        for kind in PLANTS:
            areas = np.array(results[kind][name])
            verdict = "found" if areas.mean() >= FOUND else "missed"
            cells.append(f"{areas.mean():.2f} ({areas.min():.2f}), {verdict}")
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def runs_table(content: list[dict[str, Any]]) -> str:
    """Mean over runs of correlation and precision; the interval is over runs, or over heads with a single run."""
    names = list(dict.fromkeys(row["score"] for run in content for row in run["rows"]))
    lines = [
        f"| score | {' | '.join(EFFECTS.values())} | precision at 10 (loss) |",
        "|---|" + "---:|" * (len(EFFECTS) + 1),
    ]
    order = {}
    for name in names:
        cells, precisions = [], []
        for effect in EFFECTS:
            rows = [row for run in content for row in run["rows"] if row["score"] == name and row["effect"] == effect]
            # Fisher's transform keeps an interval of few runs within -1 to 1.
            interval = mean_interval(np.arctanh([row["rho"] for row in rows]))
            mean, low, high = np.tanh([interval.mean, interval.low, interval.high])
            if len(rows) == 1:
                low, high = rows[0]["low"], rows[0]["high"]
            cells.append(f"{mean:.2f} ({low:.2f} to {high:.2f})")
            if effect == "loss":
                order[name] = -mean
                precisions = [row["precision"] for row in rows]
        lines.append(f"| `{name}` | {' | '.join(cells)} | {np.mean(precisions):.2f} |")
    head, body = lines[:2], lines[2:]
    return "\n".join([*head, *(line for _, line in sorted(zip([order[name] for name in names], body, strict=True)))])


def cost_table(content: list[dict[str, Any]]) -> str:
    lines = ["| measure | forward passes | backward passes | time, in forward passes |", "|---|---:|---:|---:|"]
    passes = {name: cost["passes"] for run in content for name, cost in run["costs"].items()}
    for name, (forward, backward) in passes.items():
        ratios = [run["costs"][name]["seconds"] / run["forward_seconds"] for run in content if name in run["costs"]]
        lines.append(f"| `{name}` | {forward} | {backward} | {np.median(ratios):.1f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    planted = commands.add_parser("planted")
    planted.add_argument("--models", type=int, default=10)
    runs = commands.add_parser("runs")
    runs.add_argument("folders", type=Path, nargs="+")
    runs.add_argument("--examples", type=int, default=128)
    tables = commands.add_parser("tables")
    tables.add_argument("files", type=Path, nargs="+")
    for command in (planted, runs):
        command.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if args.command == "planted":
        args.out.write_text(json.dumps(planted_separations(args.models), indent=1))
    elif args.command == "runs":
        content = json.loads(args.out.read_text()) if args.out.is_file() else []
        finished = {run["run"] for run in content}
        for folder in args.folders:
            if folder.name not in finished:
                content.append(compare_run(folder, args.examples))
                args.out.write_text(json.dumps(content))
    else:
        read = [json.loads(path.read_text()) for path in args.files]
        for content in read:
            if isinstance(content, dict):
                print(planted_table(content), end="\n\n")
        runs_found = [run for content in read if isinstance(content, list) for run in content]
        if runs_found:
            print(runs_table(runs_found), end="\n\n")
            print(cost_table(runs_found))


if __name__ == "__main__":
    main()
