"""The page on what of the papers can be run names only what exists."""

import re

import pytest

from benchmarks import coverage
from benchmarks.coverage import DOCUMENT, LEDGER, ROOT, MissingNumberError, filled, numbers, rendered, rows

CONF = ROOT / "conf"
OPTIONS = re.compile(r"\b(experiment|analysis|callbacks|measure|control|paper|task|model)=\[?([\w,]+)")
FOLDERS = {"callbacks": "callbacks", "paper": "page", "measure": "measure"}


def anchors(page: str) -> set[str]:
    """The headings of a page, as MyST makes addresses of them."""
    text = (DOCUMENT.parent / page).read_text("utf-8")
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", title.strip().lower().replace("`", "")).replace(" ", "-") for title in titles}


def test_the_page_is_that_of_its_rows_and_of_the_stored_numbers() -> None:
    assert DOCUMENT.read_text("utf-8") == rendered()
    ids = [row["id"] for _, row in rows()]
    sizes = {"K": 26, "C": 13, "V": 11, "M": 10}
    assert ids == [f"{paper}{number}" for paper, size in sizes.items() for number in range(1, size + 1)]


def test_every_page_and_command_of_a_row_exists() -> None:
    for _, row in rows():
        if row["page"]:
            page, _, anchor = row["page"].partition("#")
            assert anchor in anchors(page), row["id"]
        for path in re.findall(r"\b(?:benchmarks|tests|train|analyze)[\w/]*(?:\.py)?", row["command"]):
            assert (ROOT / path).exists(), row["id"]
        for group, names in OPTIONS.findall(row["command"]):
            for name in filter(None, names.split(",")):
                assert (CONF / FOLDERS.get(group, group) / f"{name}.yaml").is_file(), (row["id"], group, name)


def test_the_number_of_a_row_occurs_on_the_page_that_it_links_to() -> None:
    for _, row in rows():
        for text in (row["ours"], row["gap"]):
            for kind, value in numbers(text):
                page = LEDGER if kind == "statement" else row["page"]
                assert value in (DOCUMENT.parent / page.partition("#")[0]).read_text("utf-8"), (row["id"], value)


def test_a_row_without_a_number_says_why() -> None:
    for _, row in rows():
        assert row["command"] or row["gap"], row["id"]
        assert row["ours"] or row["gap"], row["id"]


@pytest.mark.parametrize(
    "text",
    [
        "{{ stored ~ pruned ~ parameters.halved ~ d }}",
        "{{ stored ~ pruned ~ parameters ~ d }}",
        "{{ statement ~ clark_sep_half ~ rte }}",
        "{{ statement ~ clark_sep_third ~ mrpc }}",
    ],
)
def test_a_number_that_is_not_stored_is_refused(text: str) -> None:
    with pytest.raises(MissingNumberError):
        filled(text)


def test_numbers_are_the_stored_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {
        "page": "p",
        "caption": "Table 1 (x)",
        "header": ["task", "score"],
        "rows": [["mrpc", "0.7"], ["rte", "–"]],
    }
    contents = {
        "one": {"runs": [{"a": 0.25}, {"a": 0.75}]},
        "statements": {"statements": {"s": {"subjects": {"rte · x": {"value": -1.0, "low": -2.0, "high": 0.5}}}}},
        "papers": {"tables": [table]},
    }
    monkeypatch.setattr(coverage, "stored", contents.__getitem__)
    assert filled("{{ stored ~ one ~ avg(runs[].a) ~ .2f }} and {{ statement ~ s ~ rte }}") == (
        "0.50 and −1.00 (−2.00 to 0.50)"
    )
    assert filled("{{ page ~ p ~ Table 1 ~ task=mrpc ~ score }}") == "0.7"
    assert filled("{{ stored ~ one ~ runs[].a ~ points }}") == "25.0, 75.0"
    assert list(numbers("a {{ statement ~ s ~ rte }} b")) == [("statement", "−1.00 (−2.00 to 0.50)")]
    with pytest.raises(MissingNumberError):
        filled("{{ page ~ p ~ Table 1 ~ task=rte ~ score }}")


def test_a_time_is_the_median_of_the_runs_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    minutes = {"sst2-1": 1.2, "sst2-2": 9.4, "sst2-3": 2.6, "mpnet-control-none-1": 4.0, "of no page": 7.0}
    monkeypatch.setattr(coverage, "stored", lambda _: {"minutes": minutes, "tables": []})
    table = coverage.times()
    assert table[2:] == ["| `sst2-[0-9]` | 3 (3 runs: 1 to 9) |", "| `mpnet-control-*-[0-9]` | 4 |"]
