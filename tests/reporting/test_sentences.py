"""Every sentence of the pages of edge cases: untrained, five examples, one head, undefined, without any change."""

import math
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike
from reporting.test_run_report import trained

from bertsecrets.reporting.run_report import RunReport, report_run

COSINE = np.array([[0.9, 0.8, 0.7], [0.6, 0.5, 0.4]])
DELTA = np.array([[0.01, 0.0, -0.01], [-0.02, -0.03, -0.05]])
NAN = np.full((2, 3), math.nan)


def features(shape: tuple[int, int], value: float = 0.1) -> tuple[str, str, dict[str, ArrayLike]]:
    """Attention to nouns and special tokens, the same in all heads, a little above as many random words."""
    columns: dict[str, ArrayLike] = {}
    for name in ("nouns", "cls", "sep"):
        numbers = {"": value, "_uniform": 0.05, "_random": 0.08, "_over_random": value - 0.08}
        columns |= {name + end: np.full(shape, number) for end, number in numbers.items()}
    return "checkpoint", "features", columns


def pairs(shape: tuple[int, int], beyond: float) -> tuple[str, str, dict[str, ArrayLike]]:
    """Attention between linked words and from [CLS], the same in all heads."""
    numbers = {"cls_to_nouns": 0.3, "cls_to_nouns_random": 0.2, "subject_to_verb": 0.4, "subject_to_verb_mean": 0.3}
    numbers |= {f"subject_to_verb_beyond_{what}": beyond for what in ("position", "received")}
    numbers |= {"subject_to_verb_far": 0.2, "uniform": 0.05}
    return "checkpoint", "token_to_token", {name: np.full(shape, number) for name, number in numbers.items()}


def unchanged(value_LH: ArrayLike) -> list[tuple[str, str, dict[str, ArrayLike]]]:
    """A measure that no head changed in, compared with the model before fine-tuning."""
    value_LH = np.asarray(value_LH)
    return [
        ("checkpoint", "offsets", {"previous": value_LH}),
        ("initial", "offsets", {"previous": value_LH}),
        ("checkpoint-initial", "offsets", {"previous": value_LH - value_LH}),
    ]


PAGES: dict[str, dict[str, Any]] = {
    "ordinary": {"cosine_LH": COSINE, "delta_LH": DELTA, "p_constant": 1e-4, "measured": [features((2, 3))]},
    "untrained": {
        "cosine_LH": COSINE,
        "delta_LH": DELTA,
        "significant_LH": DELTA < -0.02,
        "accuracy": 0.68,
        "p_constant": 1.0,
        "measured": [features((2, 3))],
    },
    "five examples": {"cosine_LH": COSINE, "delta_LH": DELTA, "p_constant": 0.19, "count": 5, "stderr": 0.2},
    "one example": {
        "cosine_LH": COSINE,
        "accuracy": 1.0,
        "constant": 1.0,
        "p_constant": 1.0,
        "count": 1,
        "stderr": math.nan,
        "measured": [features((2, 3)), pairs((2, 3), 0.1)],
    },
    "one head": {
        "cosine_LH": [[0.5]],
        "delta_LH": [[0.031]],
        "p_constant": 1e-4,
        "measured": [features((1, 1)), pairs((1, 1), 0.1), *unchanged([[0.2]])],
    },
    "undefined reference": {
        "cosine_LH": NAN,
        "accuracy": None,
        "constant": None,
        "measured": [("checkpoint", "offsets", {"previous": NAN}), *unchanged(NAN)[1:]],
    },
    "no drift": {"cosine_LH": np.ones((2, 3)), "p_constant": 1e-4, "measured": unchanged(np.full((2, 3), 0.2))},
    "drift within rounding": {"cosine_LH": np.full((2, 3), 1 - 2e-7), "p_constant": 1e-4},
    "all variants identical": {"delta_LH": np.zeros((2, 3)), "p_constant": 1e-4, "measured": [pairs((2, 3), -0.1)]},
}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], RunReport]:
    """The report of an edge case, made once: figures take most of the time."""

    @cache
    def made(name: str) -> RunReport:
        return report_run(trained(tmp_path_factory.mktemp("page") / "run", **PAGES[name]), heads=2)

    return made


def sentences(report: RunReport) -> Iterator[str]:
    """All running text of a page."""
    yield from report.report.lead
    for section in report.report.sections:
        yield from (*section.findings, *section.paragraphs)
        for block in section.figures:
            yield block.caption
            yield from (text.get_text() for text in block.figure.texts if text.get_text().endswith("."))


def cells(report: RunReport) -> Iterator[str]:
    for section in report.report.sections:
        for table in section.tables:
            for row in table.rows:
                yield from row


NEVER = {
    "an undefined number": r"\bnan\b|\binf\b|\bNaN\b(?! for|\))",
    "a plural of one": r"(?<![.\d])\b1 (examples|heads|sentences|links|layers|groups|conditions|kinds|points)\b",
    "an empty bracket or a double stop": r"\(\s*\)|\.\.|\s\.|\s,|  ",
    "a null hypothesis affirmed": r"is noise|attended to from everywhere|goes by position|no relation exists",
    "a choice of one": r"\b1 of 1\b",
}


@pytest.mark.parametrize("name", PAGES)
def test_every_sentence_of_a_page_can_be_quoted(page: Callable[[str], RunReport], name: str) -> None:
    report = page(name)
    texts = list(sentences(report))
    assert len(texts) > 4
    for text in texts:
        for what, pattern in NEVER.items():
            assert not re.search(pattern, text), f"{what}: {text}"
        assert re.search(r"[.?:”)]$", text), text
    for cell in cells(report):
        assert not re.search(r"\bnan\b|\binf\b|None", cell), cell


@pytest.mark.parametrize("name", PAGES)
def test_what_was_not_learned_comes_first_and_nothing_is_read_into_its_heads(
    page: Callable[[str], RunReport], name: str
) -> None:
    report = page(name)
    learned = (PAGES[name].get("p_constant") or 0.0) <= 0.05
    assert report.report.lead[0].startswith("The model learned nothing measurable") != learned
    assert (
        report.report.title.endswith(
            "does not significantly beat the majority baseline on mrpc; its heads are not interpreted."
        )
        != learned
    )
    if not learned:
        lead = " ".join(report.report.lead)
        assert not re.search(r"changed most|disabled in turn|rank correlation of drift", lead)
        assert report.highlights is None
        assert "Changed and needed" not in [section.title for section in report.report.sections]
