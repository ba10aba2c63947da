"""The tables and numbers of the documentation are made of stored results, and what is misspelled is refused."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from benchmarks import screened
from bertsecrets.papers.lines import tables
from bertsecrets.papers.names import page_files
from bertsecrets.papers.page import read_page
from bertsecrets.papers.sources import mean_gain, score_line
from bertsecrets.papers.statements.judge import FAILS, HOLDS, UNTOLD, VERDICTS
from bertsecrets.papers.statements.statement import read_statements
from docs import fills
from tools.versions import SHOWN, STORED

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
LEDGER = fills.stored("statements")["statements"]


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stored results by name, to be changed."""
    own = {name: json.loads(json.dumps(fills.stored(name))) for name in ("papers", "tables", "statements", "pruned")}
    monkeypatch.setattr(fills, "stored", own.__getitem__)
    return own


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_name_on_a_page_is_known(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fills, "FIGURES", tmp_path)
    text = fills.filled(page.read_text("utf-8"))
    assert "<!-- fill" not in text
    assert "{{" not in text


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("<!-- fill: tabels | kovaleva2019 -->", "Nothing fills 'tabels'"),
        ("<!-- fill: tables | kovaleva2020 | Section 3 -->", "'kovaleva2020' is no page with stored tables"),
        ("<!-- fill: tables | kovaleva2019 | Section 9 -->", "'kovaleva2019' has no section 'Section 9'"),
        ("<!-- fill: ledger | all -->", "The ledger has no part 'all'"),
        ("<!-- fill: figure | speed | alt -->", "There is no figure 'speed'"),
        ("{{ stored ~ prund ~ tokens ~ d }}", "There are no stored results 'prund'"),
        ("{{ stored ~ pruned ~ parameters.halved ~ d }}", "'parameters.halved' gives None"),
        ("{{ stored ~ pruned ~ parameters ~ d }}", "expected a number"),
        ("{{ statement ~ clark_sep_third ~ mrpc }}", "no statement 'clark_sep_third'"),
        ("{{ statement ~ clark_sep_half ~ rte }}", "has 0 numbers of a model 'rte'"),
        ("{{ page ~ kovaleva2020 ~ Table 1 ~ task=mrpc ~ metric }}", "'kovaleva2020' is no page with stored tables"),
        ("{{ page ~ kovaleva2019 ~ Share ~ task=m ~ block }}", "'task=m' fits 2 rows of 'Share'"),
    ],
)
def test_a_misspelled_name_is_refused_in_a_sentence(text: str, match: str) -> None:
    with pytest.raises(ValueError, match=re.escape(match)):
        fills.filled(text)


def test_what_is_known_but_not_stored_is_said(results: dict[str, Any]) -> None:
    results["papers"] = {"tables": []}
    for page, section in (("kovaleva2019", "Section 4.3"), ("clark2019 mpnet", "Section 3.2, figure 2")):
        assert fills.tables(page, section).startswith(f"*Not stored: {page}, {section}.")
    assert fills.table_cell("kovaleva2019", "Table 1", "task=mrpc", "metric") == fills.NOT_STORED


def test_numbers_and_cells_are_the_stored_ones(results: dict[str, Any]) -> None:
    rows = [["mrpc", "0.7"], ["rte", "–"]]
    table = {"page": "clark2019", "section": "Section 4", "caption": "Table 1 (x)", "header": ["task", "score"]}
    results["papers"] = {"tables": [{**table, "rows": rows}]}
    results["pruned"] = {"runs": [{"a": 0.25}, {"a": -0.75}]}
    results["statements"] = {"statements": {"s": {"subjects": {"rte · x": {"value": -1.0, "low": -2.0, "high": 0.5}}}}}
    text = (
        "{{ stored ~ pruned ~ runs[].a ~ points }}, {{ statement ~ s ~ rte }}, {{ page ~ clark2019 ~ Table 1 ~ "
        "task=mrpc ~ score }}"
    )
    assert fills.filled(text) == "25.0, −75.0, −1.00 (−2.00 to 0.50), 0.7"
    assert fills.filled("<!-- fill: tables | clark2019 | Section 4 -->") == (
        "*Table 1 (x).*\n\n| task | score |\n| --- | --- |\n| mrpc | 0.7 |\n| rte | – |"
    )
    table["header"] = ["a|b", "empty"]
    results["papers"] = {"tables": [{**table, "rows": [[str(row), "–"] for row in range(20)]}]}
    shown = fills.tables("clark2019", "Section 4")
    assert shown.startswith("<details><summary>Table 1 (x). (20 rows)</summary>\n\n| a\\|b |\n| --- |\n| 0 |\n")


def test_a_table_names_the_sets_and_seeds_of_its_tasks(results: dict[str, Any]) -> None:
    runs = {"sst2-1": 872, "sst2-1-roles": 872, "sst2-gates-0.001": 872, "treebank": 2001, "minilm-sst2-2": 9}
    results["papers"]["scores"] = {name: {"count": count} for name, count in runs.items()}
    table = {"page": "voita2019", "caption": "Heads", "rows": [["minilm on sst2"], ["minilm on ud_ewt"], ["rte"]]}
    assert fills.sample(table) == "sst2 872 (1), ud_ewt 2,001"
    results["papers"]["scores"] |= {f"sst2-gates-0.001-{seed}": {"count": 872} for seed in "12"}
    assert fills.sample({**table, "rows": [["sst2"]]}) == "sst2 872 (1 to 2 seeds)"


def test_a_time_is_the_median_of_the_runs_that_fit(results: dict[str, Any]) -> None:
    results["papers"]["minutes"] = {"sst2-1": 1.2, "sst2-2": 9.4, "sst2-3": 2.6, "of no page": 7.0}
    assert fills.minutes().splitlines()[2:] == ["| `sst2-[0-9]` | 3 (3 runs: 1 to 9) |"]


def test_table_1_is_that_of_the_stored_scores() -> None:
    papers = fills.stored("papers")
    page = read_page(page_files()["kovaleva2019"])
    theirs = page.settings.published

    def of(runs: list[Any], metric: str) -> list[float]:
        return [run["model"][metric] for run in runs]

    lines: list[dict[str, Any]] = []
    for task in sorted({name.split("-")[1] for name in papers["scores"] if re.fullmatch(r"minilm-\w+-\d", name)}):
        of_start = {
            start: [score for name, score in papers["scores"].items() if re.fullmatch(pattern, name)]
            for start, pattern in (
                ("pretrained", rf"minilm-{task}-\d"),
                ("random", f"minilm-{task}-random"),
                ("untrained", f"untrained-{task}"),
            )
        }
        first, *_ = of_start["pretrained"]
        for metric, constant in first["constant"].items():
            values = {start: of(runs, metric) for start, runs in of_start.items()}
            published = theirs["scores"][task].get(metric, ())
            line = score_line(metric, values, first["count"], published, theirs["development"][task])
            lines.append({"task": task, "metric": metric, "constant": constant, **line})
    [show] = page.settings.sections[0].show
    [computed] = tables([*lines, *mean_gain(lines)], show["columns"], "Table 1")
    table = next(table for table in papers["tables"] if table["caption"] == "Table 1")
    assert (table["header"], table["rows"]) == (list(computed.header), [list(row) for row in computed.rows])


def test_every_number_page_and_command_of_a_row_of_coverage_exists() -> None:
    options = re.compile(r"\b(experiment|analysis|callbacks|measure|control|paper|task|model)=\[?([\w,]+)")
    folders = {"paper": "page"}
    anchors = {
        page.name: {
            re.sub(r"[^\w\s-]", "", title.strip().lower().replace("`", "")).replace(" ", "-")
            for title in re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
        }
        for page in PAGES
    }
    for _, row in fills.coverage_rows():
        assert row["command"] or row["gap"], row["id"]
        assert fills.NOT_STORED not in fills.filled(row["ours"] + row["gap"]), row["id"]
        if row["page"]:
            page, _, anchor = row["page"].partition("#")
            assert anchor in anchors[page], row["id"]
        for path in re.findall(r"\b(?:benchmarks|tests|train|analyze)[\w/]*(?:\.py)?", row["command"]):
            assert (ROOT / path).exists(), row["id"]
        for group, names in options.findall(row["command"]):
            for name in filter(None, names.split(",")):
                assert (ROOT / "conf" / folders.get(group, group) / f"{name}.yaml").is_file(), (row["id"], name)


def test_the_ledger_has_every_statement_with_numbers_or_a_reason(results: dict[str, Any]) -> None:
    assert {statement.name for statement in read_statements()} == set(LEDGER)
    assert all(bool(result["subjects"]) != bool(result["reason"]) for result in LEDGER.values())
    cells = [cell for result in LEDGER.values() for cell in result["subjects"].values()]
    assert {cell["verdict"] for cell in cells} <= set(VERDICTS)
    # No verdict on tasks rests on one seed.
    assert all(cell["seeds"] > 1 for cell in cells if cell["verdict"] in (HOLDS, FAILS))
    before = fills.ledger("statements")
    next(iter(results["statements"]["statements"]["clark_sep_half"]["subjects"].values()))["verdict"] = HOLDS
    assert fills.ledger("statements") != before


def test_a_number_that_settles_nothing_has_its_reason(results: dict[str, Any]) -> None:
    """Beyond the threshold on the side that does not refute, or where noise may have taken it; nothing where the
    interval decides.
    """
    for name in ("sandoval_fine_tuning", "kovaleva_heads_differ_by_task"):
        (cell,) = results["statements"]["statements"][name]["subjects"].values()
        cell["p_corrected"] = 0.01
    rows = fills.ledger("statements").splitlines()[2:]
    verdicts = {re.findall(r"`(\w+)`", row)[0]: row.split(" | ")[1] for row in rows}
    reason = next(one.one_sided for one in read_statements() if one.name == "sandoval_fine_tuning")
    assert verdicts["sandoval_fine_tuning"] == (
        f"cannot be told (below the threshold, but t{reason[1:].removesuffix('.')})"
    )
    assert verdicts["kovaleva_heads_differ_by_task"] == (
        "cannot be told (below the threshold, but noise lowers rank correlations)"
    )
    assert verdicts["voita_gates"] == "cannot be told"


def test_stored_numbers_are_corrected_by_family_and_counted_by_side() -> None:
    cells = [cell for result in LEDGER.values() for cell in result["subjects"].values()]
    significant = []
    for family in ([c for c in cells if c["seeds"] > 1], [c for c in cells if c["seeds"] < 2]):
        adjusted = stats.false_discovery_control([cell["p"] for cell in family])
        assert [cell["p_corrected"] for cell in family] == pytest.approx(adjusted, rel=1e-4)
        significant.append(sum(adjusted <= 0.05))
        assert all(cell["p_corrected"] <= 0.05 for cell in family if cell["verdict"] != UNTOLD)
    over, of_one = significant
    tally = fills.ledger("tally")
    numbers = f"up to {0.05 * over:.1f} of {over} significant numbers over seeds and {0.05 * of_one:.1f} of {of_one} of"
    assert numbers in tally
    one_sided = sum(bool(statement.one_sided) for statement in read_statements())
    assert f"Of {len(LEDGER) - one_sided} published statements: " in tally


def test_no_page_tells_verdicts_in_prose() -> None:
    """Verdicts on statements are filled from stored results; those on heads have the words of pages, not codes."""
    # Names in code and quotes are not prose.
    codes = re.compile(r"```.*?```|`[^`\n]*`|“[^”]*”|^\|.*?$", re.DOTALL | re.MULTILINE)
    words = re.compile(r"holds of this model|dispensable|inconclusive")
    assert {page.name for page in PAGES if words.search(codes.sub("", page.read_text("utf-8")))} == set()


def test_no_screened_sweep_spares_a_head_that_an_exact_one_does_not() -> None:
    stored = json.loads(screened.RESULTS.read_text("utf-8"))
    for sizes in stored["replayed"].values():
        assert not any(any(row["sweeps"]["falsely_spared"]) for row in sizes.values())


def test_the_lowest_versions_that_ran_are_those_that_are_promised() -> None:
    (lowest,) = (row["packages"] for row in json.loads(STORED.read_text("utf-8")) if row["set"] == "lowest")
    promised = dict(re.findall(r'"([\w-]+)>=([\d.]+)', (ROOT / "pyproject.toml").read_text("utf-8")))

    def padded(version: str) -> list[int]:
        return [int(part) for part in [*version.split("."), "0", "0"][:3]]

    assert {name: padded(lowest[name]) for name in SHOWN} == {name: padded(promised[name]) for name in SHOWN}


def test_every_stored_figure_is_shown_by_a_page() -> None:
    texts = "".join(page.read_text("utf-8") for page in (ROOT / "README.md", *PAGES))
    figures = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs" / "figures").rglob("*.png")]
    assert [path for path in figures if path.parts[1] != "made" and str(path) not in texts] == []
