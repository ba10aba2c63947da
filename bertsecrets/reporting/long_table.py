"""All numbers of a run as rows of one long table, and the findings of its page with theirs as JSON."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from bertsecrets.present.report.content import Report
from bertsecrets.results.ablation_table import UNCORRECTED
from bertsecrets.results.rows import FINDINGS, RecordError, key_fields, read_lines
from bertsecrets.results.run import CHECKPOINT, Run
from bertsecrets.results.scores import RunScores

FILE = "findings.json"

_FIELDS = ("experiment", "quantity", "key", "layer", "head", "value", "low", "high", "stderr", "n", "verdict")

LONG = pa.schema(
    [
        ("folder", pa.string()),
        *((name, pa.string()) for name in ("run", "model", "task", "init")),
        ("seed", pa.int64()),
        ("stage", pa.string()),
        ("step", pa.int64()),
        *((name, pa.string()) for name in ("experiment", "quantity", "key")),
        *((name, pa.int32()) for name in ("layer", "head")),
        *((name, pa.float64()) for name in ("value", "low", "high", "stderr")),
        ("n", pa.int64()),
        ("verdict", pa.string()),
    ]
)
"""The columns of the long table.

folder: The run folder; a training run and its analyses share one model.
run, model, task, init, seed, stage, step: The model and the point in training.
experiment, quantity: The source, such as ``drift`` and ``cosine``, ``ablation`` and ``delta``, ``dependency`` and
``relation/accuracy``. key: What distinguishes numbers of the same quantity, such as ``metric=accuracy mode=uniform
kind=head variant=l03h11``; empty for a grid. layer, head: Counted from 0; null if the number belongs to none.
value, low, high, stderr, n: The number, its 95 % interval, its standard error, and the number of examples.
verdict: The verdict of its row; null without one.
"""

EFFECTS = {
    "delta": ("low_simultaneous", "high_simultaneous", "stderr"),
    "loss_change": ("loss_low_simultaneous", "loss_high_simultaneous", ""),
    "logit_margin_change": ("logit_margin_low", "logit_margin_high", ""),
    "interaction": ("interaction_low", "interaction_high", ""),
}
"""Numbers of the ablation table with the columns of their limits (simultaneous if possible) and standard errors."""


def numbers_of(run: Run, heads: bool = True) -> Iterator[Mapping[str, Any]]:
    """Every number of a run with the columns of :data:`LONG`, with or without its head table."""
    if heads:
        for row in run.table().table.to_pylist():
            names = {"experiment": row["measure"], "quantity": row["column"], "key": ""}
            yield {**row, **names, "seed": run.seed, "n": row["count"]}
    if run.ablation_path.is_file():
        yield from _of_ablation(run)
    for path in sorted((run.folder / FINDINGS).glob("*.parquet")):
        experiment, _, kind = path.stem.partition(".")
        keys = key_fields(path)
        for identity, line in read_lines(run.folder, experiment, kind, run.name):
            place = {name: line.get(name) for name in ("layer", "head", "verdict")}
            key = _key(line, [name for name in keys if name not in place])
            fixed = {**vars(identity), **place, "experiment": experiment, "key": key}
            for name, value in line.items():
                if isinstance(value, Mapping):
                    yield {**fixed, "quantity": f"{kind}/{name}", **value}
                elif isinstance(value, int | float) and not isinstance(value, bool) and name not in (*keys, *place):
                    yield {**fixed, "quantity": f"{kind}/{name}", "value": float(value)}


def _of_ablation(run: Run) -> Iterator[Mapping[str, Any]]:
    limits = {name for names in EFFECTS.values() for name in names} | {"low", "high", "loss_low", "loss_high"}
    for row in run.ablation_table().table.to_pylist():
        names = ("evaluation", "metric", "mode", "kind", "variant", "heads")
        fixed = {**row, "experiment": "ablation", "key": _key(row, names), "n": row["count"]}
        for name, value in row.items():
            if isinstance(value, float) and name not in limits:
                low, high, stderr = (row.get(limit) for limit in EFFECTS.get(name, ("", "", "")))
                yield {
                    **fixed,
                    "quantity": UNCORRECTED.get(name, name),
                    "value": value,
                    "low": low,
                    "high": high,
                    "stderr": stderr,
                }


def _key(line: Mapping[str, Any], names: Sequence[str]) -> str:
    return " ".join(f"{name}={line[name]}" for name in names if line[name] not in ("", None))


def findings_content(run: Run, report: Report, scores: RunScores) -> dict[str, Any]:
    """The content of :data:`FILE`.

    ``numbers`` are lines of the long table of :func:`bertsecrets.numbers` at the last step: effects of disabling, and
    findings that have an interval or belong to no head. Measures of single heads are in ``heads.parquet``.
    """
    notes = list(report.notes)
    try:
        lines = list(numbers_of(run, heads=False))
    except RecordError as error:
        # The page leaves out an experiment whose rows are damaged, too.
        lines = []
        notes.append(str(error))
    # Those of the last step of each experiment, of the finished checkpoint if there are any.
    moments: dict[str, tuple[bool, int]] = {}
    for line in lines:
        moment = line["stage"] == CHECKPOINT, line["step"]
        moments[line["experiment"]] = max(moments.get(line["experiment"], moment), moment)
    lines = [
        line
        for line in lines
        if (line["stage"] == CHECKPOINT, line["step"]) == moments[line["experiment"]]
        # A finding has an interval, or is of no head.
        and (
            line["quantity"] in EFFECTS
            or ("/" in line["quantity"] and (line.get("low") is not None or line["layer"] is None))
        )
    ]
    return {
        "run": run.name,
        "model": run.model,
        "task": run.task,
        "seed": run.seed,
        "title": report.title,
        "notes": notes,
        "scores": scores.as_dict(),
        "findings": [
            {"section": section.title, "sentences": list(section.findings)}
            for section in report.sections
            if section.findings
        ],
        "numbers": [{name: _plain(line.get(name)) for name in _FIELDS} for line in lines],
    }


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
