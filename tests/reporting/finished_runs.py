"""Run folders made by hand."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import yaml
from numpy.typing import ArrayLike

from bertsecrets.ablation.rows import Disabling
from bertsecrets.grid import HeadGrid
from bertsecrets.measures.drift import Drift
from bertsecrets.measures.frame_relations.measure import FrameRelations
from bertsecrets.measures.linguistic.columns import OVER_RANDOM, RANDOM, UNIFORM
from bertsecrets.measures.linguistic.features import Features
from bertsecrets.measures.linguistic.token_to_token import TokenToToken
from bertsecrets.patterns.measure import Patterns
from bertsecrets.results.ablation_table import AblationTable
from bertsecrets.results.experiment import Experiment
from bertsecrets.results.run import FINISHED, TRAINING, Declaration, Run
from bertsecrets.results.table import HeadTable
from bertsecrets.results.views import MeasureView

IDENTITY = {"run": "r", "model": "m", "task": "t", "init": "pretrained"}


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
    dispensable_LH: ArrayLike | None = None,
    measured: Sequence[tuple[str, str, Mapping[str, ArrayLike]]] = (),
    constant: float | None = 0.68,
    p_constant: float | None = None,
    count: int = 408,
    stderr: float = 0.01,
    task_settings: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Path:
    """A finished run's folder with the numbers given and no others, its experiments declared as their measures do.

    Each of ``measured`` is a stage, a measure, and its columns, ``count`` examples and a standard error of ``stderr``
    for each.
    """
    folder.mkdir(parents=True)
    config = {
        "task": {"name": task, "training": {"batch_size": 32}, **(task_settings or {})},
        "model": {"name": "minilm", "path": "model"},
        "init": init,
        "seed": seed,
        "name": folder.name,
        "trainer": {"devices": 1},
        "checkpoint": {"every_n_steps": 200, "report": "last", "choosing": 0.1},
        **settings,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    model = {"accuracy": accuracy, "loss": 0.5}
    sets = {"val": {"count": count, "model": model, "constant": {"accuracy": constant}, "p_constant": p_constant}}
    (folder / "scores.json").write_text(json.dumps({"sets": sets, "constant_answer": "x", "step": 9, "seconds": 3.5}))
    (folder / FINISHED).write_text(json.dumps({"key": "", "config": "", "code": "", "seconds": 3.5, "files": {}}))
    identity = {"run": folder.name, "model": "minilm", "task": task, "init": init}
    run = Run.open(folder)
    for stage, measure, columns in measured:
        step = 0 if stage in ("initial", "random") else 9
        run.add(table_of(measure, columns, stage, step, count=count, stderr=stderr, **identity))
        run.declare(*_declarations(measure, columns))
    if cosine_LH is not None:
        drift = {"cosine": cosine_LH}
        run.add(*(table_of("drift", drift, TRAINING, step, count=count, stderr=stderr, **identity) for step in (4, 9)))
        run.declare(*_declarations("drift", {}))
    if delta_LH is not None:
        deltas = np.asarray(delta_LH, float)
        certain = np.zeros(deltas.shape, bool) if significant_LH is None else np.asarray(significant_LH, bool)
        fine = np.zeros(deltas.shape, bool) if dispensable_LH is None else np.asarray(dispensable_LH, bool)
        rows = []
        for cell, delta in np.ndenumerate(deltas):
            verdict = "dispensable" if fine[cell] else "needed" if certain[cell] and delta < 0 else "inconclusive"
            rows.append(effect_row(float(delta), *cell, **identity, significant=bool(certain[cell]), verdict=verdict))
        AblationTable.from_rows(rows).write(folder / "ablation.parquet")
        run.declare(Disabling().declaration())
    return folder


def _declarations(measure: str, columns: Mapping[str, ArrayLike]) -> list[Declaration]:
    """What a measure declares of itself that has these columns; nothing for a name that no measure has."""
    noun = {"pos": ["NOUN"]}
    features = {re.sub(f"({OVER_RANDOM}|{RANDOM}|{UNIFORM})$", "", name): noun for name in columns}
    of_cls = {name.removeprefix("cls_to_"): noun for name in features if name.startswith("cls_to_")}
    pairs = {name: {"link": "head"} for name in columns if f"{name}_mean" in columns}
    makers: dict[str, Callable[[], Experiment]] = {
        "drift": lambda: Drift(1, 1),
        "frame_relations": lambda: FrameRelations(1, 1),
        "patterns": lambda: Patterns(1, 1),
        "features": lambda: Features(1, 1, features),
        "token_to_token": lambda: TokenToToken(1, 1, of_cls, pairs),
    }
    return [makers[measure]().declaration()] if measure in makers else []


def table_of(
    measure: str,
    columns: Mapping[str, ArrayLike],
    stage: str = "checkpoint",
    step: int = 9,
    *,
    stderr: ArrayLike = 0.01,
    count: ArrayLike = 408,
    whole_layers: bool = False,
    **identity: str,
) -> HeadTable:
    """A table of some columns ``[layers, heads]``, or ``[layers, 1]`` of whole layers, with standard errors and numbers
    of examples that are the same for all or ``[layers, heads, columns]``.
    """
    value_LHC = torch.tensor(np.stack([np.asarray(value_LH, float) for value_LH in columns.values()], -1))
    stderr_LHC, count_LHC = (
        torch.tensor(np.array(np.broadcast_to(of_LHC, value_LHC.shape))) for of_LHC in (stderr, count)
    )
    grid = HeadGrid(measure, tuple(columns), value_LHC, stderr_LHC, count_LHC, whole_layers)
    return HeadTable.from_grid(grid, **{**IDENTITY, **identity}, stage=stage, step=step)


def view_of(declaration: Declaration, *tables: HeadTable) -> MeasureView:
    """A view that reads tables alone: there is no folder."""
    return MeasureView(Run(Path("nowhere"), *IDENTITY.values()), declaration, HeadTable.concat(tables))


def with_predictions(folder: Path, right_N: ArrayLike, first: int = 0) -> Path:
    """A run whose model gives the right class of two where it says so; examples are numbered from ``first``."""
    right_N = np.asarray(right_N, bool)
    label_N = np.arange(len(right_N)) % 2
    answer_N = np.where(right_N, label_N, 1 - label_N)
    columns = {"index": np.arange(first, first + len(right_N)), "label": label_N.astype(float)}
    columns |= {f"logit_{c}": (answer_N == c).astype(float) for c in (0, 1)}
    (folder / "predictions").mkdir()
    pq.write_table(pa.table(columns), folder / "predictions" / "val.parquet")
    return folder


def effect_row(delta: float, layer: int | None = 0, head: int | None = 0, **other: Any) -> dict[str, Any]:
    """A row of an ablation table, of a head without a verdict unless given otherwise."""
    numbers = dict.fromkeys(("stderr", "p_value", "p_bh", "p_needed", "flips", "smallest_effect"), 0.01)
    return {
        "run": "r",
        "model": "minilm",
        "task": "mrpc",
        "init": "pretrained",
        "stage": "training",
        "step": 9,
        "evaluation": "val",
        "metric": "accuracy",
        "mode": "uniform",
        "kind": "head",
        "variant": "" if layer is None else f"l{layer:02d}h{head:02d}",
        "heads": f"{layer}-{head}",
        "num_heads": 1,
        "count": 408,
        "layer": layer,
        "head": head,
        "baseline": 0.8,
        "score": 0.8 + delta,
        "delta": delta,
        "low": delta - 0.02,
        "high": delta + 0.02,
        **numbers,
        "level": 0.95,
        "false_discovery_rate": 0.05,
        "correction": "family_wise",
        "significant": False,
        "verdict": "inconclusive",
        "margin": 0.01,
        "p_margin": 0.5,
        **other,
    }
