"""What the rule of a screened sweep makes of pairs that are all known: shares evaluated and predictions missed, in fp32 and bf16.

    python benchmarks/screening_rule.py <run folder>... [--mode uniform] [--examples 96] [--out <file>]

Every pair of an example and a head or whole layer is evaluated in fp32 and in bf16, from the same unedited pass in fp32. The rule
is then simulated with several random pilots: with the errors of examples taken to be of one size, with scales, and with fragile examples
evaluated for every variant, too. Predictions that it misses may change verdicts on heads (accuracy), which are counted. The error in
bf16 of a pair is its margin in fp32 minus that in bf16, of the class predicted in bf16, divided by its example's scale.
"""

import argparse
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from screened import Subject
from torch import Tensor

from bertsecrets.ablation.arithmetic import in_bf16
from bertsecrets.ablation.engine import Engine
from bertsecrets.ablation.first_order import first_order_changes
from bertsecrets.ablation.outcomes import margins
from bertsecrets.ablation.pairs import Pairs
from bertsecrets.ablation.screening import FRAGILE, PILOT, REACH, bf16_errors, error_scales, usual_changes
from bertsecrets.ablation.settings import AblationSettings
from bertsecrets.ablation.verdicts import judge

FACTORS = (3, 5, 10, 20)
PILOTS = 10


def both(subject: Subject) -> tuple[Tensor, Tensor, Tensor, Tensor, list[int]]:
    """Logits of all pairs to first order, in fp32 and in bf16, those of the unedited model, and the variants' layers."""
    engine = Engine(subject.model, subject.plan, constants_LHd=subject.replacements.constants_LHd)
    pairs = Pairs(engine)
    logits = []
    for batch in subject.batches:
        change_BVC = first_order_changes(engine, batch.inputs())
        clean_BC, layers = pairs.begin(batch.inputs())
        real_BS = batch.attention_mask_BS.bool()
        every_BV = torch.ones(change_BVC.shape[:2], dtype=torch.bool)
        exact_PC = pairs.run_above(clean_BC, layers, real_BS, every_BV)
        with in_bf16(nullcontext, "cpu")():
            half_PC = pairs.run_above(clean_BC, layers, real_BS, every_BV)
        shaped = [logits_PC.unflatten(0, every_BV.shape) for logits_PC in (exact_PC, half_PC)]
        logits.append((clean_BC[:, None] + change_BVC, *shaped, clean_BC))
    first_NVC, exact_NVC, half_NVC, clean_NC = (torch.cat(tensors) for tensors in zip(*logits, strict=True))
    return first_NVC, exact_NVC, half_NVC, clean_NC, pairs.layer_V


def active(margin_NV: Tensor, error_NV: Tensor, scale_N1: Tensor, pilot: Tensor) -> Tensor:
    """The pairs that a screened sweep without audit evaluates."""
    counted_NV = torch.zeros_like(margin_NV, dtype=torch.bool)
    counted_NV[pilot] = True
    while True:
        square_NV = torch.where(counted_NV, (error_NV / scale_N1).square(), 0.0)
        reach_V = REACH * (square_NV.sum(0) / counted_NV.sum(0)).sqrt()
        more_NV = counted_NV | (margin_NV < reach_V * scale_N1)
        if torch.equal(more_NV, counted_NV):
            return counted_NV
        counted_NV = more_NV


def verdicts(heads: int, label_N: Tensor, clean_N: Tensor, class_NV: Tensor) -> tuple[str, ...]:
    """Verdicts on the heads, which come first, and apart from them on the layers, by accuracy."""
    settings = {**AblationSettings().judging(), "resamples": 100}
    data = [tensor.double().numpy() for tensor in (label_N, clean_N)]
    parts = [part_NV.T.double().numpy() for part_NV in class_NV.split([heads, class_NV.shape[1] - heads], 1)]
    return tuple(
        code for part_VN in parts if len(part_VN) for code in judge("accuracy", *data, part_VN, **settings).verdict
    )


def report(subject: Subject) -> dict[str, Any]:
    first_NVC, exact_NVC, half_NVC, clean_NC, layer_V = both(subject)
    class_N = clean_NC.argmax(-1)
    margin_NV = margins(first_NVC, class_N).double()
    error_NV = margins(exact_NVC, class_N).double() - margin_NV
    change_NV = margin_NV - margins(clean_NC[:, None], class_N).double()
    changed_NV = exact_NVC.argmax(-1) != class_N[:, None]
    print(f"{subject.name}: {margin_NV.numel():,} pairs, {int(changed_NV.sum()):,} change a prediction")
    label_N = torch.cat([batch.label_B for batch in subject.batches if batch.label_B is not None])
    heads = subject.plan.num_layers * subject.plan.num_heads
    exact_verdicts = verdicts(heads, label_N, class_N, exact_NVC.argmax(-1))
    found = {"one size": [], "scales": [], "fragile examples": []}
    for seed in range(PILOTS):
        pilot = torch.randperm(len(class_N), generator=torch.Generator().manual_seed(seed))[:PILOT]
        scale_N1 = error_scales(change_NV, usual_changes(change_NV[pilot].square().mean(0)))
        for name in found:
            active_NV = active(
                margin_NV, error_NV, torch.ones_like(scale_N1) if name == "one size" else scale_N1, pilot
            )
            if name == "fragile examples":
                active_NV |= (active_NV & changed_NV).sum(1, keepdim=True) >= FRAGILE
            screened_NV = torch.where(active_NV, exact_NVC.argmax(-1), class_N[:, None])
            other = sum(
                a != b for a, b in zip(verdicts(heads, label_N, class_N, screened_NV), exact_verdicts, strict=True)
            )
            found[name].append((float(active_NV.double().mean()), int((changed_NV & ~active_NV).sum()), other))
    for name, rows in found.items():
        shares, missed, others = zip(*rows, strict=True)
        print(
            f"  {name}: {sum(shares) / PILOTS:.1%} active, missed with each pilot: {', '.join(map(str, missed))}, "
            f"other verdicts: {', '.join(map(str, others))}"
        )
    class_X = half_NVC.argmax(-1).flatten()
    exact_X, half_X = (
        margins(logits.flatten(0, 1)[:, None], class_X)[:, 0].double() for logits in (exact_NVC, half_NVC)
    )
    error_NV = (exact_X - half_X).unflatten(0, half_NVC.shape[:2]) / scale_N1
    half_NV = half_X.unflatten(0, half_NVC.shape[:2]) / scale_N1
    rms = error_NV.square().mean().sqrt()
    rms_V = bf16_errors(
        error_NV.square().sum(0), torch.full((len(layer_V),), len(error_NV), dtype=torch.float64), layer_V
    )
    by_layer = dict(zip(layer_V, (rms_V / rms).tolist(), strict=True))
    print(f"  bf16: root mean square of the errors {rms:.4f}; largest {error_NV.abs().max() / rms:.1f} times")
    print(f"  by layer of the edit, relative: {', '.join(f'{by_layer[layer]:.2f}' for layer in sorted(by_layer))}")
    print(f"  largest, relative to its layer: {(error_NV.abs() / rms_V).max():.1f} times")
    other_NV = exact_NVC.argmax(-1) != half_NVC.argmax(-1)
    print(f"  predictions that bf16 changes: {int(other_NV.sum())}")
    for factor in FACTORS:
        near_NV = active_NV & (half_NV < factor * rms_V)
        kept = int((active_NV & ~near_NV & other_NV).sum())
        print(
            f"  factor {factor}: {near_NV.sum() / active_NV.sum():.1%} of the active pairs again; changed predictions left: {kept}"
        )
    return {
        "examples": len(class_N),
        "pairs": margin_NV.numel(),
        "changed": int(changed_NV.sum()),
        "rules": {
            name: dict(zip(("active", "missed", "other_verdicts"), map(list, zip(*rows, strict=True)), strict=True))
            for name, rows in found.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--mode", default="uniform")
    parser.add_argument("--examples", type=int, default=96, help="a random sample of the development set")
    parser.add_argument("--out", type=Path, help="JSON file to which the figures are added")
    chosen = parser.parse_args()
    results = json.loads(chosen.out.read_text("utf-8")) if chosen.out is not None and chosen.out.is_file() else {}
    for folder in chosen.runs:
        results[f"{folder.name}, {chosen.mode}"] = report(Subject.read(folder, chosen.mode, chosen.examples))
        if chosen.out is not None:
            chosen.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
