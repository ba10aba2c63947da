"""Run folders made by hand."""

import json
from collections.abc import Mapping, Sequence
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
    accuracy: float | None = 0.8,
    cosine_LH: ArrayLike | None = None,
    delta_LH: ArrayLike | None = None,
    significant_LH: ArrayLike | None = None,
    measured: Sequence[tuple[str, str, Mapping[str, ArrayLike]]] = (),
    constant: float | None = 0.68,
    **settings: Any,
) -> Path:
    """A finished run's folder with the numbers given, and no others.

    Each of ``measured`` is a stage, a measure, and its columns, 408 examples and a standard error of 0.01 for each.
    """
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
    sets = {"val": {"count": 408, "model": {"accuracy": accuracy, "loss": 0.5}, "constant": {"accuracy": constant}}}
    (folder / "scores.json").write_text(json.dumps({"sets": sets, "constant_answer": "x", "step": 9, "seconds": 3.5}))
    identity = {"run": folder.name, "model": "minilm", "task": task, "init": init}
    tables = [
        _table(identity, measure, columns, stage, 0 if stage in ("initial", "random") else 9)
        for stage, measure, columns in measured
    ]
    if cosine_LH is not None:
        tables += [_table(identity, "drift", {"cosine": cosine_LH}, "training", step) for step in (4, 9)]
    if tables:
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


def _table(
    identity: dict[str, str], measure: str, columns: Mapping[str, ArrayLike], stage: str, step: int
) -> HeadTable:
    value_LHC = torch.tensor(np.stack([np.asarray(value_LH, float) for value_LH in columns.values()], -1))
    count_LHC = torch.full(value_LHC.shape, 408)
    grid = HeadGrid(measure, tuple(columns), value_LHC, torch.full_like(value_LHC, 0.01), count_LHC)
    return HeadTable.from_grid(grid, **identity, stage=stage, step=step)


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
