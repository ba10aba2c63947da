"""Cells and tables of lines."""

import math
from collections.abc import Mapping
from typing import Any

import pytest

from bertsecrets.errors import UserError
from bertsecrets.papers.lines import cell, check_fields, tables
from bertsecrets.results.estimate import Estimate


@pytest.mark.parametrize(
    ("form", "values", "text"),
    [
        ("{gain:+%}", {"gain": {"value": 0.1, "low": 0.05, "high": 0.15}}, "+10.0 (+5.0 to +15.0)"),
        ("{gain:.2}", {"gain": Estimate(-0.5)}, "−0.50"),
        ("{words:,}", {"words": 12345}, "12,345"),
        ("{offset:+}", {"offset": -1}, "−1"),
        ("{p:p}", {"p": 0.0001}, "< 0.001"),
        ("{back:from|to} the head", {"back": True}, "from the head"),
        ("{at:head}", {"at": (3, 4)}, "layer 3 · head 4"),
        ("{paper:at}", {"paper": [[0, 1, 0.5], [2, 3, 0.25]]}, "layer 0 · head 1: 0.500; layer 2 · head 3: 0.250"),
        ("{mean:+layers}", {"mean": [0.5, -0.25]}, "+.50 −.25"),
        ("{state:state}", {"state": 2}, "layer 1"),
        ("{kept} of {heads}", {"kept": [3, 4], "heads": 12}, "3, 4 of 12"),
        ("{by_kind}", {"by_kind": {"nouns": 0.5}}, "nouns 0.500"),
        ("{paper[1]}", {"paper": [1, 2]}, "2"),
        # Fields without a value.
        ("{paper[2]}", {"paper": [1, 2]}, "–"),
        ("{low} to {high}", {"low": math.nan, "high": 1.0}, "–"),
        ("{paper}", {"paper": None}, "–"),
    ],
)
def test_a_cell_is_written_as_its_format_says(form: str, values: Mapping[str, Any], text: str) -> None:
    assert cell(form, values) == text
    assert cell([form, "{other}"], {**values, "other": "besides"}) == ("besides" if text == "–" else text)


def test_models_are_a_column_or_named_in_the_caption() -> None:
    lines = [{"model": name, "score": 0.5, "none": None, "examples": 9} for name in ("one", "two")]
    columns = {"model": "{model}", "score": "{score}", "nothing": "{none}"}
    [together] = tables(lines, columns, "Scores, {n}")
    assert (together.header, together.caption) == (["model", "score"], "Scores, n = 9 examples")
    apart = tables(lines, columns, "Scores", apart=True)
    assert [(table.header, table.caption) for table in apart] == [(["score"], f"Scores ({n})") for n in ("one", "two")]


def test_an_unknown_field_or_format_is_named() -> None:
    with pytest.raises(UserError, match=r"Invalid cell format '\{score:x\}' of a page: an estimate has no format 'x'"):
        cell("{score:x}", {"score": 0.5})
    with pytest.raises(UserError, match="'score' of a page shows 'scroe'; did you mean 'score'"):
        check_fields([{"score": 0.5}], {"score": "{scroe}"})
