"""The findings of a run's page as JSON: sentences and the numbers behind them."""

import math
from collections.abc import Mapping
from typing import Any

from bertsecrets.present.report.content import Report
from bertsecrets.reporting.long_table import EFFECTS, numbers_of
from bertsecrets.results.rows import RecordError
from bertsecrets.results.run import CHECKPOINT, Run
from bertsecrets.results.scores import RunScores

FILE = "findings.json"

_FIELDS = ("experiment", "quantity", "key", "layer", "head", "value", "low", "high", "stderr", "n", "verdict")


def findings_content(run: Run, report: Report, scores: RunScores) -> dict[str, Any]:
    """The content of :data:`FILE`.

    ``numbers`` are lines of the long table of :func:`bertsecrets.numbers` at the last step: effects of disabling, and
    findings that have an interval or belong to no head. Measures of single heads are in ``heads.parquet``.
    """
    notes = list(report.notes)
    try:
        lines = _last(list(numbers_of(run, heads=False)))
    except RecordError as error:
        # The page leaves out an experiment whose rows are damaged, too.
        lines = []
        notes.append(str(error))
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


def _last(lines: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those of the last step of each experiment, of the finished checkpoint if there are any."""
    moments: dict[str, tuple[bool, int]] = {}
    for line in lines:
        moment = line["stage"] == CHECKPOINT, line["step"]
        moments[line["experiment"]] = max(moments.get(line["experiment"], moment), moment)
    return [
        line
        for line in lines
        if (line["stage"] == CHECKPOINT, line["step"]) == moments[line["experiment"]]
        # A finding has an interval, or is of no head.
        and (
            line["quantity"] in EFFECTS
            or ("/" in line["quantity"] and (line.get("low") is not None or line["layer"] is None))
        )
    ]


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
