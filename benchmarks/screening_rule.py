"""What the rule of a screened sweep makes of pairs that are all known: shares evaluated and predictions missed, in fp32 and bf16.

    python -m benchmarks.screening_rule <run folder>... [--mode uniform] [--examples 96] [--bf16] [--out <file>]

Every pair of an example and a head or whole layer is evaluated in fp32 and, with --bf16, in bf16, from the same unedited pass in fp32. The
rule is then simulated with many random pilots: with scales of the examples, with errors shrunk to those of a layer, and with fragile examples and
variants evaluated whole, too. Predictions that it misses may change verdicts on heads (accuracy), which are counted. The error in
bf16 of a pair is its margin in fp32 minus that in bf16, of the class predicted in bf16, divided by its example's scale.
"""

import argparse
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.screened import Subject
from bertsecrets.ablation.arithmetic import in_bf16
from bertsecrets.ablation.engine import Engine
from bertsecrets.ablation.first_order import first_order_changes
from bertsecrets.ablation.outcomes import margins
from bertsecrets.ablation.pairs import Pairs
from bertsecrets.ablation.predictions import PairedPredictions, Unseen
from bertsecrets.ablation.screening import (
    PILOT,
    REACH,
    Screening,
    bf16_errors,
    error_groups,
    error_scales,
    expected_errors,
    fragile,
    usual_changes,
)
from bertsecrets.ablation.settings import AblationSettings
from bertsecrets.ablation.verdicts import judge
from bertsecrets.results.verdicts import DISPENSABLE

FACTORS = (3, 5, 10, 20)
PILOTS = 100


def every_pair(subject: Subject, bf16: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, list[int]]:
    """Logits of all pairs to first order, in fp32 and in bf16 (or fp32), those of the unedited model, and the variants' layers."""
    engine = Engine(subject.model, subject.plan, constants_LHd=subject.replacements.constants_LHd)
    pairs = Pairs(engine)
    logits = []
    for batch in subject.batches:
        change_BVC = first_order_changes(engine, batch.inputs())
        clean_BC, layers = pairs.begin(batch.inputs())
        real_BS = batch.attention_mask_BS.bool()
        every_BV = torch.ones(change_BVC.shape[:2], dtype=torch.bool)
        exact_PC = pairs.run_above(clean_BC, layers, real_BS, every_BV)
        with in_bf16(nullcontext, "cpu")() if bf16 else nullcontext():
            half_PC = exact_PC if not bf16 else pairs.run_above(clean_BC, layers, real_BS, every_BV)
        shaped = [logits_PC.unflatten(0, every_BV.shape) for logits_PC in (exact_PC, half_PC)]
        logits.append((clean_BC[:, None] + change_BVC, *shaped, clean_BC))
    first_NVC, exact_NVC, half_NVC, clean_NC = (torch.cat(tensors) for tensors in zip(*logits, strict=True))
    return first_NVC, exact_NVC, half_NVC, clean_NC, pairs.layer_V


def active(
    margin_NV: Tensor, error_NV: Tensor, scale_N1: Tensor, pilot: Tensor, group_V: list[int] | None = None
) -> Tensor:
    """The pairs within reach; without groups, the errors of each variant stand for themselves."""
    counted_NV = torch.zeros_like(margin_NV, dtype=torch.bool)
    counted_NV[pilot] = True
    while True:
        square_NV = torch.where(counted_NV, (error_NV / scale_N1).square(), 0.0)
        squares_V, count_V = square_NV.sum(0), counted_NV.sum(0).double()
        error_V = (squares_V / count_V).sqrt() if group_V is None else expected_errors(squares_V, count_V, group_V)
        reach_V = REACH * error_V
        more_NV = counted_NV | (margin_NV < reach_V * scale_N1)
        if torch.equal(more_NV, counted_NV):
            return counted_NV
        counted_NV = more_NV


def verdicts(
    heads: int, label_N: Tensor, clean_N: Tensor, class_NV: Tensor, unseen: Unseen | None = None
) -> tuple[str, ...]:
    """Verdicts on the heads, which come first, and apart from them on the layers, by accuracy."""
    arrays = (tensor.double().numpy() for tensor in (label_N, clean_N, class_NV.T))
    paired = PairedPredictions(*arrays, unseen=unseen)
    codes: list[str] = []
    for places in (range(heads), range(heads, class_NV.shape[1])):
        if len(places):
            codes += judge(
                "accuracy", paired.of(places), AblationSettings.read("ablation", {"resamples": 100}).judging()
            ).verdict
    return tuple(codes)


def report_bf16(exact_NVC: Tensor, half_NVC: Tensor, scale_N1: Tensor, active_NV: Tensor, layer_V: list[int]) -> None:
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


def report(subject: Subject, bf16: bool) -> dict[str, Any]:
    first_NVC, exact_NVC, half_NVC, clean_NC, layer_V = every_pair(subject, bf16)
    class_N = clean_NC.argmax(-1)
    margin_NV = margins(first_NVC, class_N).double()
    error_NV = margins(exact_NVC, class_N).double() - margin_NV
    change_NV = margin_NV - margins(clean_NC[:, None], class_N).double()
    changed_NV = exact_NVC.argmax(-1) != class_N[:, None]
    print(f"{subject.name}: {margin_NV.numel():,} pairs, {int(changed_NV.sum()):,} change a prediction")
    label_N = torch.cat([batch.label_B for batch in subject.batches if batch.label_B is not None])
    heads = subject.plan.num_layers * subject.plan.num_heads
    exact_verdicts = verdicts(heads, label_N, class_N, exact_NVC.argmax(-1))
    rules = ("scales", "errors of the layer", "fragile whole")
    found: dict[str, list[tuple[float, int, int]]] = {name: [] for name in rules}
    group_V = error_groups(subject.plan, layer_V)
    for seed in range(PILOTS):
        pilot = torch.randperm(len(class_N), generator=torch.Generator().manual_seed(seed))[:PILOT]
        scale_N1 = error_scales(change_NV, usual_changes(change_NV[pilot].square().mean(0)))
        alone_NV = active(margin_NV, error_NV, scale_N1, pilot)
        within_NV = active(margin_NV, error_NV, scale_N1, pilot, group_V)
        shown_NV = within_NV & changed_NV
        active_NV = within_NV | fragile(shown_NV, shown_NV.sum(0), len(class_N))
        for name, evaluated_NV in zip(rules, (alone_NV, within_NV, active_NV), strict=True):
            missed = int((changed_NV & ~evaluated_NV).sum())
            other = 0
            if missed:
                screened_NV = torch.where(evaluated_NV, exact_NVC.argmax(-1), class_N[:, None])
                own = verdicts(heads, label_N, class_N, screened_NV)
                other = sum(a != b for a, b in zip(own, exact_verdicts, strict=True))
            found[name].append((float(evaluated_NV.double().mean()), missed, other))
    drawn_NV = torch.rand(active_NV.shape, generator=torch.Generator().manual_seed(PILOTS)) < Screening().audit
    checked_NV = drawn_NV & ~active_NV
    seen_NV = active_NV | drawn_NV
    unseen = Unseen((~seen_NV).sum(0).numpy(), int(checked_NV.sum()), int((checked_NV & changed_NV).sum()))
    seen_class_NV = torch.where(seen_NV, exact_NVC.argmax(-1), class_N[:, None])
    allowed = verdicts(heads, label_N, class_N, seen_class_NV, unseen)
    spared = [[code == DISPENSABLE for code in codes[:heads]].count(True) for codes in (exact_verdicts, allowed)]
    print(f"  heads that can be spared: {spared[0]} exactly, {spared[1]} with what an audit leaves open")
    for name, rows in found.items():
        shares, misses, others = zip(*rows, strict=True)
        print(
            f"  {name}: {sum(shares) / PILOTS:.1%} active, {sum(misses)} changes missed, in {sum(map(bool, misses))} of {PILOTS} sweeps; "
            f"another verdict in {sum(map(bool, others))}"
        )
    if bf16:
        report_bf16(exact_NVC, half_NVC, scale_N1, active_NV, layer_V)
    return {
        "examples": len(class_N),
        "pairs": margin_NV.numel(),
        "changed": int(changed_NV.sum()),
        "spared_exactly": spared[0],
        "spared_with_unseen": spared[1],
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
    parser.add_argument("--bf16", action="store_true", help="evaluate all pairs in bf16, too")
    parser.add_argument("--out", type=Path, help="JSON file to which the figures are added")
    chosen = parser.parse_args()
    results = json.loads(chosen.out.read_text("utf-8")) if chosen.out is not None and chosen.out.is_file() else {}
    for folder in chosen.runs:
        results[f"{folder.name}, {chosen.mode}"] = report(
            Subject.read(folder, chosen.mode, chosen.examples), chosen.bf16
        )
        if chosen.out is not None:
            chosen.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
