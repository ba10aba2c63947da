"""The share that one of several processes takes of a pass over the toy batches."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from families import HEADS, LAYERS, tiny_model
from measures.toy import Focus, batches

from bertsecrets.grid import HeadGrid
from bertsecrets.measures.clusters.measure import Clusters
from bertsecrets.measures.clusters.rows import Space
from bertsecrets.measures.drift import Drift
from bertsecrets.measures.one_pass import measure_pass
from bertsecrets.measures.paired import Paired


def grids(rank: int, processes: int) -> tuple[list[HeadGrid], list[dict[str, Any]]]:
    """The grids of a measure, of drift and of a pair, of every ``processes``-th batch, and the space of clusters."""
    model, initial = (tiny_model("bert", seed=seed).double() for seed in (0, 1))
    focus, clusters = Focus(LAYERS, HEADS), Clusters(LAYERS, HEADS, replicates=3)
    paired = Paired(focus, "initial")
    measures = [focus, Drift(LAYERS, HEADS), clusters, paired]
    taken = measure_pass(model, measures, batches()[rank::processes], {"initial": initial})
    spaces = [asdict(row) for row in clusters.found(taken[2], model) if isinstance(row, Space)]
    return [*taken, *paired.grids()], spaces


def run(rank: int, processes: int, folder: Path) -> None:
    """Take the grids in one process of a group, and write what it has after the reduction."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=processes)
    try:
        parts = {}
        taken, spaces = grids(rank, processes)
        for index, grid in enumerate(taken):
            for name in ("value_LHC", "stderr_LHC", "count_LHC"):
                parts[f"{index}/{name}"] = getattr(grid, name)
        torch.save(parts, folder / f"{rank}.pt")
        (folder / f"{rank}.json").write_text(json.dumps(spaces), "utf-8")
    finally:
        dist.destroy_process_group()
