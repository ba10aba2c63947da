"""Errors of pairs evaluated in bf16, and how many a factor of their root mean square evaluates again in fp32.

    python benchmarks/bf16_errors.py <run folder>... [--mode uniform] [--examples 96]

Every pair of an example and a head or whole layer is evaluated in fp32 and in bf16, from the same unedited pass in fp32. The error of
a pair is its margin in fp32 minus that in bf16, of the class predicted in bf16.
"""

import argparse
from contextlib import nullcontext
from pathlib import Path

import torch
from screened import Subject
from torch import Tensor

from bertsecrets.ablation.arithmetic import in_bf16
from bertsecrets.ablation.engine import Engine
from bertsecrets.ablation.first_order import first_order_changes
from bertsecrets.ablation.outcomes import margins
from bertsecrets.ablation.pairs import Pairs

FACTORS = (3, 5, 10, 20)


def both(subject: Subject) -> tuple[Tensor, Tensor, Tensor, Tensor, list[int]]:
    """Logits of all pairs to first order, in fp32 and in bf16, those of the unedited model, and the variants' layers."""
    engine = Engine(subject.model, subject.plan, constants_LHd=subject.replacements.constants_LHd)
    pairs = Pairs(engine)
    logits = []
    for batch in subject.batches:
        clean_BC, change_BVC, layers = first_order_changes(engine, batch.inputs())
        real_BS = batch.attention_mask_BS.bool()
        every_BV = torch.ones(change_BVC.shape[:2], dtype=torch.bool)
        exact_PC = pairs.run_above(clean_BC, layers, real_BS, every_BV)
        with in_bf16(nullcontext, "cpu")():
            half_PC = pairs.run_above(clean_BC, layers, real_BS, every_BV)
        shaped = [logits_PC.unflatten(0, every_BV.shape) for logits_PC in (exact_PC, half_PC)]
        logits.append((clean_BC[:, None] + change_BVC, *shaped, clean_BC))
    first_NVC, exact_NVC, half_NVC, clean_NC = (torch.cat(tensors) for tensors in zip(*logits, strict=True))
    return first_NVC, exact_NVC, half_NVC, clean_NC, pairs.layer_V


def report(subject: Subject) -> None:
    first_NVC, exact_NVC, half_NVC, clean_NC, layer_V = both(subject)
    class_X = half_NVC.argmax(-1).flatten()
    exact_X, half_X = (
        margins(logits.flatten(0, 1)[:, None], class_X)[:, 0].double() for logits in (exact_NVC, half_NVC)
    )
    error_NV = (exact_X - half_X).unflatten(0, half_NVC.shape[:2])
    rms = error_NV.square().mean().sqrt()
    by_layer = [
        float(error_NV[:, [at == layer for at in layer_V]].square().mean().sqrt() / rms)
        for layer in sorted(set(layer_V))
    ]
    print(
        f"{subject.name}: {error_NV.numel():,} errors, root mean square {rms:.4f}; largest {error_NV.abs().max() / rms:.1f} times"
    )
    print(f"  by layer of the edit, relative: {', '.join(f'{ratio:.2f}' for ratio in by_layer)}")
    class_N = clean_NC.argmax(-1)
    estimate_NV = margins(first_NVC, class_N)
    reach_V = 10 * (margins(exact_NVC, class_N) - estimate_NV).square().mean(0).sqrt()
    active_NV = estimate_NV < reach_V
    other_NV = exact_NVC.argmax(-1) != half_NVC.argmax(-1)
    print(f"  active {active_NV.double().mean():.1%}; predictions that bf16 changes: {int(other_NV.sum())}")
    for factor in FACTORS:
        near_NV = active_NV & (half_X.unflatten(0, active_NV.shape) < factor * rms)
        kept = int((active_NV & ~near_NV & other_NV).sum())
        print(
            f"  factor {factor}: {near_NV.sum() / active_NV.sum():.1%} of the active pairs again; changed predictions left: {kept}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--mode", default="uniform")
    parser.add_argument("--examples", type=int, default=96, help="a random sample of the development set")
    chosen = parser.parse_args()
    for folder in chosen.runs:
        report(Subject.read(folder, chosen.mode, chosen.examples))


if __name__ == "__main__":
    main()
