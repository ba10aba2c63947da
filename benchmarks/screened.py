"""Screened sweeps against exact ones: time, share of the pairs, and every prediction, change of score and verdict.

    python benchmarks/screened.py <run folder>... [--modes uniform zero] [--naive 6] [--out benchmarks/results/screened.json]

Each run folder is that of a finished training. Its whole development set is swept three times in one process, on the same
length-bucketed batches: exactly, screened, and by the naive loop, one forward pass for each variant, which runs on ``--naive``
variants of the plan (evenly spread; a pass takes as long for any) and is scaled to all. Times are processor times of the
process. The plan is every head and every whole layer. Cells that are there already are not run again.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch
from omegaconf import OmegaConf
from torch import nn

from bertsecrets.ablation.judging import judged_rows
from bertsecrets.ablation.outcomes import Outcomes
from bertsecrets.ablation.plan import Plan, every_head, every_layer
from bertsecrets.ablation.screening import Screening, screened_sweep
from bertsecrets.ablation.settings import AblationSettings
from bertsecrets.ablation.sweep import sweep
from bertsecrets.attention.override import HeadEdit, override
from bertsecrets.cli.build import make_data
from bertsecrets.cli.settings import read_settings
from bertsecrets.data.batch import Batch
from bertsecrets.data.task import Task
from bertsecrets.models.checkpoint import load_checkpoint
from bertsecrets.models.encoder import describe
from bertsecrets.models.loading import load_tokenizer
from bertsecrets.models.spec import find_checkpoint
from bertsecrets.results.config_copy import plain

RESULTS = Path(__file__).parent / "results" / "screened.json"
_Result = TypeVar("_Result")


def timed(work: Callable[[], _Result]) -> tuple[_Result, float]:
    started = time.process_time()
    return work(), time.process_time() - started


@torch.no_grad()
def naive(model: nn.Module, plan: Plan, batches: list[Batch], variants: int) -> float:
    """Processor seconds of one pass for each variant and one without edits, scaled from some variants."""
    step = max(1, len(plan.variants) // variants)
    chosen = plan.variants[::step][:variants]
    _, whole = timed(lambda: [model(**batch.inputs()) for batch in batches])
    seconds = 0.0
    for variant in chosen:
        with override(model, [HeadEdit(layer, head, plan.mode) for layer, head in variant.heads]):
            seconds += timed(lambda: [model(**batch.inputs()) for batch in batches])[1]
    return whole + seconds / len(chosen) * len(plan.variants)


def verdicts(outcomes: Outcomes, task: Task) -> list[tuple[str, ...]]:
    identity = dict.fromkeys(("run", "model", "task", "init", "stage", "evaluation"), "") | {"step": 0}
    rows = judged_rows(outcomes, task, identity, **AblationSettings().judging())
    return [(row["metric"], row["variant"], repr(row["delta"]), row["verdict"]) for row in rows]


def cell(folder: Path, mode: str, variants: int) -> dict[str, Any]:
    """One run and mode: times, and where the screened sweep differs from the exact one."""
    settings = read_settings(plain(OmegaConf.load(folder / "config.yaml")))
    data = make_data(settings, load_tokenizer(settings.model))
    data.prepare_data()
    data.setup("validate")
    model = load_checkpoint(find_checkpoint(folder), settings.task, settings.model).model.eval()
    encoder = describe(model)
    layers, heads = encoder.num_layers, encoder.num_heads
    plan = Plan(mode, layers, heads, (*every_head(layers, heads), *every_layer(layers, heads)))
    batches = list(data.evaluation_loader(data.evaluation_names[0]))
    loop = naive(model, plan, batches, variants)
    (screened, record), fast = timed(lambda: screened_sweep(model, plan, batches, Screening()))
    exact, slow = timed(lambda: sweep(model, plan, batches))
    changed = int((exact.logits_NVC.argmax(-1) != exact.clean_NC.argmax(-1)[:, None]).sum())
    other = int((exact.logits_NVC.argmax(-1) != screened.logits_NVC.argmax(-1)).sum())
    pairs = list(zip(verdicts(exact, settings.task), verdicts(screened, settings.task), strict=True))
    return {
        "examples": len(exact.label_N),
        "variants": len(plan.variants),
        "seconds": {"naive": loop, "exact": slow, "screened": fast},
        "changed_predictions": changed,
        "different_predictions": other,
        "different_changes": sum(one[2] != two[2] for one, two in pairs),
        "different_verdicts": sum(one[3] != two[3] for one, two in pairs),
        "judged": len(pairs),
        "screening": asdict(record),
    }


def table(results: dict[str, dict[str, Any]]) -> str:
    lines = [
        "| run, mode | pairs evaluated | naive : exact : screened, s | against naive | changed predictions | different predictions / "
        "changes of score / verdicts |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in results.items():
        seconds, screening = row["seconds"], row["screening"]
        lines.append(
            f"| {name} | {screening['evaluated'] / screening['pairs']:.1%} | {seconds['naive']:.0f} : {seconds['exact']:.0f} : "
            f"{seconds['screened']:.0f} | {seconds['naive'] / seconds['exact']:.1f}×, "
            f"**{seconds['naive'] / seconds['screened']:.1f}×** | {row['changed_predictions']:,} of {screening['pairs']:,} | "
            f"{row['different_predictions']} / {row['different_changes']} / {row['different_verdicts']} of {row['judged']} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--modes", nargs="+", default=["uniform", "zero"])
    parser.add_argument("--naive", type=int, default=6)
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    results = json.loads(chosen.out.read_text("utf-8")) if chosen.out.is_file() else {}
    for folder in chosen.runs:
        for mode in chosen.modes:
            name = f"{folder.name}, {mode}"
            if name not in results:
                results[name] = cell(folder, mode, chosen.naive)
                chosen.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    print(table(results))


if __name__ == "__main__":
    main()
