"""What pages say is made in one place: changing it there changes the page of a run, of a comparison and of a paper."""

import re
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from bertsecrets.papers.page import find_page
from bertsecrets.present.report.content import Report
from bertsecrets.reporting.comparison import compare_experiments
from bertsecrets.reporting.conditions import find_conditions
from bertsecrets.reporting.run_report import report_run
from bertsecrets.reporting.runs import find_runs
from bertsecrets.results.formatting import head_label, low_to_high, number
from bertsecrets.results.run import Run
from bertsecrets.results.verdicts import bound_in_words, needed_in_words, unknown_in_words

RUNS = [*(f"sweep/demo_sentiment-minilm-pretrained-s{seed}" for seed in (1, 2)), "train"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("stored")
    with tarfile.open(Path(__file__).parents[1] / "golden.tar.xz") as packed:
        packed.extractall(folder, [member for member in packed if member.name.startswith(tuple(RUNS))], filter="data")
    return [str(folder / name) for name in RUNS]


def of_run(folders: list[str]) -> Report:
    return report_run(Run.open(folders[0]), heads=1).report


def of_comparison(folders: list[str]) -> Report:
    conditions, varying = find_conditions(find_runs(folders[:2])[0])
    return Report("", sections=compare_experiments(conditions, varying))


def of_paper(folders: list[str]) -> Report:
    report, _ = find_page("clark2019").report(find_runs(folders[2:])[0])
    return report


def text_of(report: Report) -> str:
    texts = [report.title, *report.lead]
    for section in (part for top in report.sections for part in top.flat()):
        texts += [section.title, section.summary, *section.findings, *section.paragraphs]
        texts += [cell for table in section.tables for row in table.rows for cell in row]
    return "\n".join(texts)


Texts = dict[Callable[..., str], Callable[..., str]]
NUMBERS: Texts = {
    head_label: lambda *_, **__: "ANOTHER NAME",
    low_to_high: lambda *_, **__: "OTHER LIMITS",
    number: lambda *_, **__: "A NUMBER",
}
VERDICTS: Texts = {
    needed_in_words: lambda *_, **__: "A VERDICT",
    unknown_in_words: lambda *_, **__: "NO VERDICT",
    bound_in_words: lambda *_, **__: "A BOUND",
}
NEVER = r"at most [\d.]+ points|no verdict"


@pytest.mark.parametrize(
    ("page", "changed", "expected", "never"),
    [
        *(
            (page, NUMBERS, ["ANOTHER NAME", "OTHER LIMITS", "A NUMBER"], "")
            for page in (of_run, of_comparison, of_paper)
        ),
        (of_run, VERDICTS, ["A BOUND", "NO VERDICT"], rf"\d (is|are) needed|{NEVER}"),
        (of_comparison, VERDICTS, ["A VERDICT", "NO VERDICT"], rf"\d heads (is|are) needed|{NEVER}"),
    ],
)
def test_a_change_in_one_place_changes_every_page(
    page: Callable[[list[str]], Report],
    changed: Texts,
    expected: list[str],
    never: str,
    folders: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As if the functions' text had been edited: every module that has imported one runs the other.
    for words, otherwise in changed.items():
        monkeypatch.setattr(words, "__code__", otherwise.__code__)
    text = text_of(page(folders))
    assert [change for change in expected if change not in text] == []
    assert not never or not re.search(never, text), re.search(never, text)
