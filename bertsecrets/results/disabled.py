"""Select the rows of an ablation table that pages show."""

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

from bertsecrets.results.ablation_table import AblationTable
from bertsecrets.results.components import LAYER, Kind, Row
from bertsecrets.results.formatting import head_label, heads_label, listed
from bertsecrets.results.run import CHECKPOINT, Run
from bertsecrets.results.scores import RunScores


def latest_rows(rows: Sequence[Row]) -> list[Row]:
    """The rows of the last step; rows of a finished checkpoint take precedence over rows from training."""
    rows = [row for row in rows if row["stage"] == CHECKPOINT] or list(rows)
    last = max((row["step"] for row in rows), default=0)
    return with_values(rows, step=last)


def main_rows(table: AblationTable) -> list[Row]:
    """The rows of the table's last step in its first set and mode, for every kind and metric, as shown on a first
    screen.
    """
    rows = latest_rows(table.rows())
    return with_values(rows, **{name: rows[0][name] for name in ("evaluation", "mode")}) if rows else []


def named(config: Mapping[str, Any]) -> dict[str, Any]:
    """What the configuration asks to disable: ``what``, and for a single head or layer ``layer`` and ``head``; empty if
    it asks for nothing in particular.

    >>> named({"analysis": {}, "ablation": {"head": "5.1"}})
    {'what': 'layer 5 · head 1', 'layer': 5, 'head': 1}
    >>> named({"analysis": {}, "ablation": {"heads": [[3, 1], [3, 2]]}})
    {'what': 'layer 3 · heads 1, 2'}
    """
    settings = config.get("ablation") or {}
    head, heads, layer = (settings.get(name) for name in ("head", "heads", "layer"))
    layers = layer if layer is not None else settings.get("layers")
    if "analysis" not in config:
        return {}
    if head is not None:
        texts = [head] if isinstance(head, str) else head
        heads = [tuple(map(int, text.split("."))) for text in texts]
    if heads is not None:
        if isinstance(heads[0][0], Sequence):
            return {"what": " | ".join(heads_label(group) for group in heads)}
        single = dict(zip(("layer", "head"), heads[0], strict=True)) if len(heads) == 1 else {}
        return {"what": heads_label(heads), **single}
    if isinstance(layers, Sequence):
        return {"what": f"layers {listed([str(number) for number in layers])}"}
    return {} if layers is None else {"what": head_label(layers, None), "layer": layers}


def named_rows(run: Run) -> list[Row]:
    """The rows, one per metric, of the only variant or only whole layer that an analysis was asked to disable; empty if
    it was asked for none or several.
    """
    if not run.ablation_path.is_file() or not named(run.config()):
        return []
    rows = main_rows(run.ablation_table())
    candidates = (rows, LAYER.of(rows))
    return next((some for some in candidates if len({row["variant"] for row in some}) == 1), [])


def objective(run: Run, name: str | None) -> float | None:
    """The objective of a sweep: a score of a finished run, computed *without* the heads that the run was asked to
    disable.

    Args:
        run: The run.
        name: ``<set>/<metric>``; None for the first metric of the first set.

    Returns:
        None if the run has no such score, or it is undefined.
    """
    if rows := named_rows(run):
        scores = {f"{row['evaluation']}/{row['metric']}": row["score"] for row in rows}
        first = rows[0]
        if first["loss_baseline"] is not None:
            scores[f"{first['evaluation']}/loss"] = first["loss_baseline"] + first["loss_change"]
    elif run.scores_path.is_file():
        sets = RunScores.read(run.scores_path).sets
        # Use the task's first metric; the model's scores also include its loss.
        scores = {
            f"{each}/{metric}": sets[each].model[metric]
            for each in sets
            for metric in (*sets[each].constant, *sets[each].model)
        }
    else:
        return None
    value = scores.get(name) if name is not None else next(iter(scores.values()), None)
    return None if value is None or not isfinite(value) else float(value)


def rows_of(kind: Kind, table: AblationTable, mode: str | None = None, metric: str | None = None) -> list[Row]:
    """The rows of a kind at its last step, of the first set, and of the given, or the first, mode and metric."""
    asked = {name: value for name, value in (("mode", mode), ("metric", metric)) if value is not None}
    rows = latest_rows(with_values(kind.of(table.rows()), **asked))
    return (
        with_values(rows, **{name: rows[0][name] for name in ("stage", "evaluation", "metric", "mode")}) if rows else []
    )


def with_values(rows: Iterable[Row], **equal: Any) -> list[Row]:
    """The rows whose columns have these values."""
    return [row for row in rows if all(row[name] == value for name, value in equal.items())]
