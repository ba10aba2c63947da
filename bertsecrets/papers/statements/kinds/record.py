"""A number with its interval that an experiment keeps beside the table."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from bertsecrets.papers.statements.sheet import LackingError, Sheet
from bertsecrets.papers.statements.test import REACH, Reading, Test
from bertsecrets.results.formatting import head_label


class Record(Test):
    """A number of an experiment's record; its standard error is that of its 95 % interval.

    Args:
        experiment: The experiment.
        at: The way to the entry: keys, and of a list the entry with some values.
        value, low, high: Keys of the number and of its limits in the entry.
    """

    experiment: str = Field(description="the name of an experiment")
    at: list[str | dict[str, str]] = Field(description="a list of keys, and of values that an entry of a list has")
    value: str = Field(default="value", description="a key")
    low: str = Field(default="low", description="a key")
    high: str = Field(default="high", description="a key")

    @property
    def columns(self) -> Sequence[str]:
        return ()

    @property
    def number(self) -> str:
        steps = [step if isinstance(step, str) else ", ".join(step.values()) for step in self.at]
        return f"{self.value} of {self.experiment} ({'; '.join(steps)})"

    def reading(self, sheet: Sheet) -> Reading:
        for content in sheet.records(self.experiment):
            entry, count, detail = content, 0, ""
            for step in self.at:
                entry = _step(entry, step)
                if isinstance(entry, Mapping):
                    count = int(entry.get("count", count))
                    detail = head_label(entry["layer"], entry["head"]) if {"layer", "head"} <= set(entry) else detail
            if isinstance(entry, Mapping) and {self.value, self.low, self.high} <= set(entry):
                reach = float(entry[self.high]) - float(entry[self.low])
                stderr = reach / (2 * REACH) if math.isfinite(reach) else math.nan
                return Reading(float(entry[self.value]), stderr, count, detail)
        raise LackingError(f"{self.number} (too few, or not measured)", sheet.settings_of(self.experiment))


def _step(entry: Any, step: str | Mapping[str, str]) -> Any:
    if isinstance(step, str):
        return entry.get(step) if isinstance(entry, Mapping) else None
    entries = entry if isinstance(entry, Sequence) else ()
    return next((one for one in entries if all(one.get(key) == value for key, value in step.items())), None)
