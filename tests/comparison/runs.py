"""Run folders made by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from numpy.typing import ArrayLike

from bertsecrets.grid import HeadGrid
from bertsecrets.results.ablation_table import AblationTable
from bertsecrets.results.table import HeadTable


def make_run(
    folder: Path,
    *,
    task: str = "mrpc",
    init: str = "pretrained",
    seed: int = 1,
    accuracy: float = 0.8,
    cosine_LH: ArrayLike | None = None,
    delta_LH: ArrayLike | None = None,
    significant_LH: ArrayLike | None = None,
    **settings: Any,
) -> Path:
    """A finished run's folder with the numbers given, and no others."""
    folder.mkdir(parents=True)
    config = {
        "task": {"name": task, "training": {"batch_size": 32}},
        "model": {"name": "minilm", "path": "model"},
        "init": init,
        "seed": seed,
        "name": folder.name,
        "trainer": {"devices": 1},
        **settings,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    sets = {"val": {"count": 408, "model": {"accuracy": accuracy, "loss": 0.5}, "constant": {"accuracy": 0.68}}}
    (folder / "scores.json").write_text(json.dumps({"sets": sets, "constant_answer": "x", "step": 9, "seconds": 3.5}))
    identity = {"run": folder.name, "model": "minilm", "task": task, "init": init}
    if cosine_LH is not None:
        value = torch.tensor(np.asarray(cosine_LH, float))[..., None]
        grid = HeadGrid("drift", ("cosine",), value, torch.full_like(value, 0.01), torch.full(value.shape, 408))
        tables = [HeadTable.from_grid(grid, **identity, stage="training", step=step) for step in (4, 9)]
        HeadTable.concat(tables).write(folder / "heads.parquet")
    if delta_LH is not None:
        deltas = np.asarray(delta_LH, float)
        certain = np.zeros(deltas.shape, bool) if significant_LH is None else np.asarray(significant_LH, bool)
        rows = [
            _row(identity, layer, head, float(deltas[layer, head]), bool(certain[layer, head]))
            for layer, head in np.ndindex(deltas.shape)
        ]
        AblationTable.from_rows(rows).write(folder / "ablation.parquet")
    return folder


def _row(identity: dict[str, str], layer: int, head: int, delta: float, significant: bool) -> dict[str, Any]:
    numbers = dict.fromkeys(("stderr", "low", "high", "p_value", "p_bh", "p_holm", "flips", "smallest_effect"), 0.01)
    names = {"stage": "training", "evaluation": "val", "metric": "accuracy", "mode": "uniform", "kind": "head"}
    return {
        **identity,
        **names,
        **numbers,
        "step": 9,
        "variant": f"l{layer:02d}h{head:02d}",
        "heads": f"{layer}-{head}",
        "num_heads": 1,
        "count": 408,
        "layer": layer,
        "head": head,
        "baseline": 0.8,
        "score": 0.8 + delta,
        "delta": delta,
        "level": 0.95,
        "false_discovery_rate": 0.05,
        "significant": significant,
    }
