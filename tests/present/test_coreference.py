"""The section on coreference heads, against rows put together by hand."""

from pathlib import Path

import pytest
import torch
from measures.toy import view_of

from bertsecrets.grid import HeadGrid
from bertsecrets.measures.coreference.measure import Coreference
from bertsecrets.measures.coreference.questions import BASELINES
from bertsecrets.measures.coreference.rows import Baseline, Documents, Mentions
from bertsecrets.present.coreference import PRESENTER
from bertsecrets.results.estimate import Estimate
from bertsecrets.results.views import Comparison, MeasureView, Replicates

DOCUMENTS = Documents("news", 24, 30, 2, 1, 0, 50, "earlier", "all")


def share(value: float, reach: float = 0.05) -> Estimate:
    return Estimate(value, value - reach, value + reach, n=60)


def kind(mention: str, head: int, random: float = 0.2) -> list[object]:
    """A kind of mention whose head finds 60 %, significantly more than three of the baselines."""
    shares = dict(zip(BASELINES, (0.3, 0.4, 0.58, random), strict=True))
    return [
        Mentions(mention, 60, 20, 1, head, 0.8, share(0.6), share(0.5), 0.58, 0.62, 0, 2),
        *(
            Baseline(mention, name, 1, head, share(found), share(0.6 - found), 0.5 if name == "rule_based" else 0.01)
            for name, found in shares.items()
        ),
    ]


def view(folder: Path, found: list[object]) -> MeasureView:
    measure = Coreference(2, 3)
    value = torch.full((2, 3, 4), 0.5, dtype=torch.float64)
    grid = HeadGrid("coreference", measure.columns, value, value / 10, torch.full(value.shape, 60))
    return view_of(folder, measure, grid, found=found)


def test_the_section_has_the_papers_numbers(tmp_path: Path) -> None:
    section = PRESENTER.section(view(tmp_path, [DOCUMENTS, *kind("all", 2), *kind("pronoun", 0)]))
    assert section is not None
    heads, baselines = section.tables
    assert heads.rows[0] == [
        "all mentions (n = 60)",
        "layer 1 · head 2 (80%)",
        "60.0 (55.0 to 65.0)",
        "50.0 (45.0 to 55.0)",
        "62.0 layer 0 · head 2",
    ]
    assert baselines.rows[1] == ["all mentions", "head match", "40.0 (35.0 to 45.0)", "+20.0 (+15.0 to +25.0)", "0.010"]
    assert section.findings == [
        "On documents of news that did not choose it, layer 1 · head 2 attends most to an antecedent for 60.0 (55.0 to "
        "65.0) % of 60 mentions: significantly more often than the nearest mention, head match and a random mention; "
        "not significantly more or less often than the rules."
    ]
    assert section.paragraphs[0].endswith(
        "24 documents were read in 30 windows. 2 mentions with all antecedents outside of their window, not counted. "
        "1 mention without a token of their own or of an antecedent, not counted."
    )
    assert [block.name for block in section.figures] == ["coreference", "coreference_heads"]
    assert all(block.figure.axes for block in section.figures)
    assert section.head == (1, 2)


@pytest.mark.parametrize(
    ("found", "finding"),
    [
        # As in WinoBias: every candidate is an antecedent, so that no head is praised.
        (kind("all", 2, random=1.0), ["The mentions of news have no choice"]),
        # One document cannot be halved.
        ([], []),
    ],
)
def test_without_a_choice_no_head_is_named(tmp_path: Path, found: list[object], finding: list[str]) -> None:
    section = PRESENTER.section(view(tmp_path, [DOCUMENTS, *found]))
    assert section is not None
    assert ([text.partition(":")[0] for text in section.findings], section.head) == (finding, None)
    assert ("too few to choose" in section.paragraphs[0]) == (not found)


def test_conditions_are_compared_by_their_best_heads(tmp_path: Path) -> None:
    found = view(tmp_path, [DOCUMENTS, *kind("all", 2)])
    section = PRESENTER.comparison(Comparison({"a": Replicates([found]), "b": Replicates([found, found])}))
    assert section is not None
    assert section.tables[0].rows == [["all mentions", *["60.0 layer 1 · head 2 (58.0)"] * 2]]
