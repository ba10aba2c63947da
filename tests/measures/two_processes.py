"""The share that one of several processes takes of a pass over the toy batches."""

from pathlib import Path

import torch
import torch.distributed as dist
from families import HEADS, LAYERS, tiny_model
from measures.toy import Focus, batches

from bertsecrets.grid import HeadGrid
from bertsecrets.measures.drift import Drift
from bertsecrets.measures.one_pass import measure_pass
from bertsecrets.measures.paired import Paired


def grids(rank: int, processes: int) -> list[HeadGrid]:
    """The grids of a measure, of drift and of a pair, of every ``processes``-th batch."""
    model, initial = (tiny_model("bert", seed=seed).double() for seed in (0, 1))
    focus = Focus(LAYERS, HEADS)
    paired = Paired(focus, "initial")
    taken = measure_pass(model, [focus, Drift(LAYERS, HEADS), paired], batches()[rank::processes], {"initial": initial})
    return [*taken, *paired.grids()]


def run(rank: int, processes: int, folder: Path) -> None:
    """Take the grids in one process of a group, and write what it has after the reduction."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=processes)
    try:
        parts = {}
        for place, grid in enumerate(grids(rank, processes)):
            for name in ("value_LHC", "stderr_LHC", "count_LHC"):
                parts[f"{place}/{name}"] = getattr(grid, name)
        torch.save(parts, folder / f"{rank}.pt")
    finally:
        dist.destroy_process_group()
