"""The share that one of several processes takes of a sweep that stops early."""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from ablation.test_screening import CLASSES, batches, plan_of, scaled_model

from bertsecrets.ablation.exact import exact_sweep
from bertsecrets.ablation.looks import LooksRecord, sweep_in_looks
from bertsecrets.ablation.outcomes import Outcomes
from bertsecrets.ablation.plan import Plan
from bertsecrets.ablation.settings import AblationSettings
from bertsecrets.data.batch import Batch


def swept(rank: int, processes: int) -> tuple[Outcomes, LooksRecord]:
    """The outcomes of every ``processes``-th batch of each of three looks, gathered from all processes."""
    model, data = scaled_model(0.3), batches(12, rows=8)

    def evaluate(part: Plan, own: Iterable[Batch]) -> Outcomes:
        return exact_sweep(model, part, own)

    looks: list[Any] = [
        (32, lambda start=start: data[start : start + 4][rank::processes]) for start in range(0, len(data), 4)
    ]
    return sweep_in_looks(plan_of(model), looks, evaluate, CLASSES, AblationSettings(margin=20.0).judging())


def run(rank: int, processes: int, folder: Path) -> None:
    """Sweep in one process of a group, and write the outcomes and the record."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=processes)
    try:
        outcomes, record = swept(rank, processes)
        torch.save((outcomes.index_N, outcomes.logits_NVC, outcomes.taken_NV, asdict(record)), folder / f"{rank}.pt")
    finally:
        dist.destroy_process_group()
