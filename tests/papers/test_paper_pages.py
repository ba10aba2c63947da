"""Pages of papers: their statements, and the figures and tables beside them, on numbers put into the runs by hand."""

import json
import re
from collections.abc import Mapping
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from packages import installed, write_package
from papers.paper_runs import (
    BERT,
    TREEBANK,
    by_layer,
    disabled,
    disabled_words,
    gated_run,
    models_in,
    relation,
    statement_of,
    with_rows,
)
from reporting.finished_runs import make_run
from scipy import integrate, optimize, stats

from bertsecrets.ablation.seeds import RunSweep
from bertsecrets.errors import UserError
from bertsecrets.measures.coreference.rows import Baseline, Mentions
from bertsecrets.measures.drift import Drift
from bertsecrets.measures.surface import Surface
from bertsecrets.papers import fewer_heads, shows
from bertsecrets.papers.ledger import STORED
from bertsecrets.papers.models import Studied
from bertsecrets.papers.names import LEDGER, page_files, page_name
from bertsecrets.papers.page import find_page, read_page
from bertsecrets.papers.sources import score_line
from bertsecrets.papers.statements.judge import HOLDS, judge, judged
from bertsecrets.papers.statements.statement import files, read_statements
from bertsecrets.present.presenter import presenter_of
from bertsecrets.present.report.content import Section
from bertsecrets.probes.rows import HiddenState, Probed, ProbeScore, Structural
from bertsecrets.pruning.rows import FirstPruned, LearnedGates
from bertsecrets.reporting.run_report import report_run
from bertsecrets.reporting.runs import find_runs
from bertsecrets.results.ablation_table import AblationTable
from bertsecrets.results.captures import CapturedExample, step_name, write_examples, write_maps
from bertsecrets.results.estimate import Estimate
from bertsecrets.results.formatting import number
from bertsecrets.results.run import Run
from bertsecrets.settings import configurations
from bertsecrets.statistics.splits import choosing_units

OWN = """
file: mine.html
title: Mine
citation: me
sections:
  - title: One
    statements: [kovaleva_cls_early]
    show: [{show: layers, caption: Means, columns: {surface/cls: {label: CLS}}}]
"""


TABLE = {"show": "table", "of": "rows", "caption": "Rows", "columns": {"a": "{a}"}}


def several_runs(folder: Path) -> None:
    """Two seeds with attention, drift and effects; statements hold, do not hold, and cannot be told."""
    for seed in (1, 2):
        more = 0.001 * seed
        columns = {
            "cls": by_layer(0.4 + more, 0.2, 0.02, 0.01),
            "sep_total": by_layer(0.05, 0.6 + more, 0.6, 0.2),
            "punctuation": by_layer(0.5, 0.05, 0.1, 0.1 + more),
            "sep_to_sep": by_layer(0.9, 0.9, 0.9, 0.9),
            "other_to_sep": by_layer(0.05, 0.6, 0.6, 0.2),
        }
        made = make_run(
            folder / f"run{seed}",
            seed=seed,
            model=BERT,
            p_constant=0.001,
            cosine_LH=by_layer(0.97, 0.9, 0.5 + more, 0.4),
            delta_LH=np.full((4, 2), -0.01),
            stderr=0.002,
            measured=[(stage, "surface", columns) for stage in ("initial", "checkpoint")],
        )
        Run.open(made).declare(Surface(1, 1).declaration())


def verdicts_on(page: Path) -> dict[str, str]:
    """Statement -> the verdict beside it, in the tables of a page."""
    verdicts: dict[str, str] = {}
    words = {statement.statement for statement in read_statements()}
    for row in re.findall(r"<tr>(.*?)</tr>", page.read_text("utf-8"), re.DOTALL):
        cells = [
            unescape(re.sub(r"<[^>]+>", "", cell)).strip()
            for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)
        ]
        if len(cells) == 5 and cells[0] in words:
            assert verdicts.setdefault(cells[0], cells[1]) == cells[1], cells[0]
    return verdicts


def test_a_heatmap_shows_heads_before_fine_tuning(tmp_path: Path) -> None:
    """The changes of the metric asked for, before fine-tuning alone."""
    figure_of = {"name": "words", "title": "Words", "unit": "points", "caption": "Words.", "before": True}
    column = "disable/uniform/head/pseudo_log_likelihood"
    delta_LH = np.linspace(-3, 1, 12).reshape(3, 4)
    disabled(delta_LH, 0.1, model=BERT)(tmp_path / "tuned")
    assert shows.heatmaps(models_in(tmp_path), column, **figure_of) is None
    disabled_words(delta_LH)(tmp_path / "words")
    section = shows.heatmaps(models_in(tmp_path), column, **figure_of)
    (block,) = section.figures
    drawn = block.figure.axes[0].collections[0].get_array()
    assert np.ma.getdata(drawn).reshape(3, 4) == pytest.approx(-2 * delta_LH)


def test_a_statement_has_one_verdict_on_every_page(tmp_path: Path) -> None:
    several_runs(tmp_path / "runs")
    runs, _ = find_runs([str(tmp_path / "runs")])
    ledger = verdicts_on(find_page(LEDGER).write(runs, tmp_path / "page"))
    assert len(ledger) == len(files())
    shared, pages = 0, {}
    for name in page_files():
        pages[name] = find_page(name).write(runs, tmp_path / "page")
        shown = verdicts_on(pages[name])
        assert shown.items() <= ledger.items()
        shared += len(shown)
    assert shared > 20
    # Some statements have each verdict, so that pages could differ.
    assert {"holds", "does not hold of this model", "holds of this model", "cannot be told"} <= set(ledger.values())
    # A page that differs is found.
    page = pages["kovaleva2019"]
    page.write_text(re.sub(r"\bholds\b", "does not hold", page.read_text("utf-8")), "utf-8")
    assert not verdicts_on(page).items() <= ledger.items()
    # What is stored has the page's verdicts; the page of a run tells none.
    stored = json.loads((tmp_path / "page" / STORED).read_text("utf-8"))
    for statement in read_statements():
        assert ledger[statement.statement].startswith(stored["statements"][statement.name]["verdict"])
    trained = Run.open(runs[0].folder)
    report_run(trained, heads=2).write(trained)
    words = unescape(trained.report_path.read_text("utf-8"))
    assert not any(statement.statement in words for statement in read_statements())
    assert stored["statements"]["kovaleva_last_two_layers"]["verdict"] == HOLDS
    assert stored["statements"]["kovaleva_last_two_layers"]["subjects"]["mrpc"]["seeds"] == 2
    # A part of the statements has the verdicts of all.
    some = find_page(LEDGER, ("kovaleva_last_two_layers", "clark_cls_early")).write(runs, tmp_path / "some")
    assert verdicts_on(some).items() <= ledger.items()


def test_published_numbers_stand_beside_those_of_another_model_and_are_said_to_be_the_papers(tmp_path: Path) -> None:
    columns = {"previous": by_layer(0.9, 0.2), "same": by_layer(0.01, 0.01), "next": by_layer(0.1, 0.1)}
    make_run(tmp_path / "run", measured=[("initial", "offsets", columns)])
    text = unescape(find_page("clark2019").write(find_runs([str(tmp_path)])[0], tmp_path / "page").read_text())
    assert "these runs study minilm. Published numbers and dotted lines are for bert-base-uncased" in text
    assert "layer 1 · head 4; layer 3 · head 5; layer 6 · head 11; layer 7 · head 4" in text
    assert text.count("<p>No run measured this.") == len(read_page(page_files()["clark2019"]).settings.sections) - 1
    assert [*(tmp_path / "page" / "figures").glob("clark_positions.*")]


def test_published_means_are_drawn_over_ours(tmp_path: Path) -> None:
    columns = {name: by_layer(0.4, 0.2, 0.1) for name in ("cls", "sep_total", "punctuation")}
    columns |= {name: by_layer(0.5, 0.5, 0.5) for name in ("sep_to_sep", "other_to_sep")}
    make_run(tmp_path / "run", measured=[("initial", "surface", columns)])
    section = shown("clark2019", "Section 3.2, figure 2", models_in(tmp_path))
    [first, _] = section.figures[0].figure.axes
    dotted = [line for line in first.get_lines() if line.get_linestyle() == ":"]
    theirs = yaml.safe_load(page_files()["clark2019"].read_text())["published"]["attention"]
    assert [list(line.get_ydata()) for line in dotted] == [theirs[name] for name in ("cls", "sep_total", "punctuation")]
    # Twelve layers over the width of three.
    assert np.allclose(dotted[0].get_xdata(), np.linspace(0, 2, 12))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pages": 1}, "Unknown key 'page mine.pages'"),
        ({"file": "../mine.html"}, "expected the name of an HTML file"),
        ({"sections": []}, "needs either sections, or every_statement=true"),
        ({"sections": [{"title": "One", "statement": []}]}, "Unknown key 'page mine: section.statement'"),
        ({"sections": [{"title": "One", "statements": ["kovaleva_cls_erly"]}]}, "did you mean 'kovaleva_cls_early'"),
        ({"sections": [{"title": "One", "show": [{"show": "layer"}]}]}, "shows 'layer', which does not exist"),
        ({"sections": [{"title": "One", "show": [{"show": "os:getcwd"}]}]}, "shows 'os:getcwd', which does not exist"),
        ({"sections": [{"title": "One", "show": [{"show": "layers", "colour": 1}]}]}, "correct the settings"),
        ({"sections": [{"title": "One", "show": [{**TABLE, "of": "raws"}]}]}, "uses 'raws', which yields no lines"),
        ({"sections": [{"title": "One", "show": [{**TABLE, "experiment": 1, "row": 2}]}]}, "correct the settings"),
        (
            {"sections": [{"title": "One", "show": [{"show": "section", "page": "clark2019", "title": "Section 9"}]}]},
            "shows the section 'Section 9' of 'clark2019'",
        ),
    ],
)
def test_a_wrong_page_is_one_sentence(tmp_path: Path, change: Mapping[str, Any], message: str) -> None:
    make_run(tmp_path / "run")
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({**yaml.safe_load(OWN), **change}))
    with pytest.raises(UserError) as error:
        read_page(tmp_path / "mine.yaml").write(find_runs([str(tmp_path)])[0], tmp_path / "page")
    assert message in str(error.value)


def test_unknown_pages_are_named(tmp_path: Path) -> None:
    assert (page_name(True), page_name(False), page_name("statements")) == ("kovaleva2019", "", "statements")
    with pytest.raises(UserError, match=r"paper is 'kovaleva'; expected .*kovaleva2019"):
        page_name("kovaleva")
    with pytest.raises(UserError, match="is not a file"):
        page_name(str(tmp_path / "none.yaml"))
    (tmp_path / "bad.yaml").write_text("- one")
    with pytest.raises(UserError, match="expected the keys and values of a page"):
        find_page(str(tmp_path / "bad.yaml"))


def test_an_installed_package_brings_statements_and_a_page(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    statement = yaml.safe_load(files()["kovaleva_cls_early"].read_text())
    own_page = yaml.safe_load(OWN)
    own_page["sections"][0] |= {"statements": ["theirs_early"], "show": [{"show": "their_heads.shows:table"}]}
    package = write_package(
        tmp_path / "their-heads",
        {
            "their_heads/__init__.py": "",
            "their_heads/shows.py": "from bertsecrets.present.report.content import Section, Table\n"
            "def table(models):\n    return Section('', tables=[Table(['a'], [['their cell']])])\n",
            "their_heads/statements/theirs_early.yaml": yaml.safe_dump(statement),
            "their_heads/statements/clark_sep_half.yaml": yaml.safe_dump(statement),
            "their_heads/statements/broken.yaml": yaml.safe_dump({**statement, "sauce": "x"}),
            "their_heads/pages/theirs.yaml": yaml.safe_dump(own_page),
        },
        {"statements": {"theirs": "their_heads.statements"}, "pages": {"theirs": "their_heads.pages"}},
    )
    several_runs(tmp_path / "runs")
    runs, _ = find_runs([str(tmp_path / "runs")])
    page_files.cache_clear()
    with installed(package):
        assert "theirs" in page_files()
        text = find_page(page_name("theirs")).write(runs, tmp_path / "page").read_text("utf-8")
        _, judgement = judged(runs)
        assert "broken" not in judgement
        assert judgement["theirs_early"].verdict == HOLDS
    page_files.cache_clear()
    assert "their cell" in text
    assert "Unknown key 'statement broken.sauce'" in caplog.text
    assert "'clark_sep_half' of theirs is skipped" in caplog.text
    assert "theirs_early" not in files()


def test_published_numbers_without_a_run_are_named(tmp_path: Path) -> None:
    make_run(tmp_path / "run", cosine_LH=by_layer(0.9, 0.5), delta_LH=np.zeros((2, 2)))
    models = models_in(tmp_path)
    for numbers in ({"mrpc": [0.9, 0.8], "rte": [0.7, 0.6], "qqp": [0.5, 0.4]}, {"mrpc": [0.9, 0.8]}):
        section = shows.layers(models, {"drift/cosine": {"label": "cosine", "published": numbers}}, "Means")
        assert section.paragraphs == ["Published, but not measured here: rte, qqp."] * (len(numbers) > 1)
    section = shows.disabled(
        models, "head", "uniform", "name", "Heads", {"mrpc": [0.8, 0.7, 0.9], "sst2": [0.8, 0.7, 0.9]}
    )
    assert section.paragraphs == ["Published, but not measured here: sst2."]
    with pytest.raises(UserError, match="unknown task 'mrcp'; did you mean 'mrpc'"):
        shows.disabled(models, "head", "uniform", "name", "Heads", {"mrcp": [0.8, 0.7, 0.9]})


def test_a_section_without_numbers_says_what_to_run(tmp_path: Path) -> None:
    make_run(tmp_path / "run", accuracy=None, constant=None)
    for name in ("kovaleva2019", "michel2019", "voita2019", "clark2019"):
        page = read_page(page_files()[name])
        report, _ = page.report(find_runs([str(tmp_path)])[0])
        titles = [section.title for section in report.sections[:-1]]
        assert titles == [part.title for part in page.settings.sections]
        for part in page.settings.sections:
            # Whatever a command names exists.
            for group, chosen in re.findall(r"\b(analysis|callbacks|measure)=\[?(\w+(?:,\w+)*)", part.missing):
                assert set(chosen.split(",")) <= configurations(group).keys(), part.missing


def shown(name: str, title: str, models: Studied) -> Section:
    """The figures and tables that a page shows in the section with a title of this beginning, as one section.

    What it shows of the pages of runs needs all of their numbers and is left out.
    """
    page = read_page(page_files()[name])
    [part] = [part for part in page.settings.sections if part.title.startswith(title)]
    own = [settings for settings in part.show if settings["show"] != "presented"]
    sections = page.shown(part.model_copy(update={"show": own}), models)
    return Section(
        paragraphs=[text for section in sections for text in section.paragraphs],
        tables=[table for section in sections for table in section.tables],
        figures=[block for section in sections for block in section.figures],
        summary="; ".join(filter(None, (section.summary for section in sections))),
    )


def rows_of(section: Section | None, table: int = 0) -> list[list[str]]:
    """The rows of a table of a section that must exist."""
    return [list(row) for row in section.tables[table].rows]


def reach_of_sum(spread: float, freedom: int, error: float) -> float:
    """97.5 % point of Student's t times the spread plus a normal error, by quadrature."""

    def above(reach: float) -> float:
        def density(z: float) -> float:
            return float(stats.norm.pdf(z) * stats.t.sf((reach - error * z) / spread, freedom))

        return float(integrate.quad(density, -9, 9, limit=500)[0])

    return float(optimize.brentq(lambda reach: above(reach) - 0.025, 0, 200 * spread + 20 * error))


def test_table_1_has_every_seeds_score_and_their_interval(tmp_path: Path) -> None:
    for init, accuracy in (("pretrained", 0.8), ("random_normal", 0.68)):
        for seed in (1, 2):
            make_run(tmp_path / f"{init}{seed}", init=init, seed=seed, model=BERT, accuracy=accuracy + 0.01 * seed)
    (row,) = rows_of(shown("kovaleva2019", "Section 3, table 1", models_in(tmp_path)))
    # Mean of 0.81 and 0.82: Student's t with one degree of freedom times 0.00707 / √2 over seeds, and a normal error of
    # 408 examples that both share, 0.0206 below and 0.0176 above (Wilson).
    low, high = (81.5 + sign * 100 * reach_of_sum(0.005, 1, error) for sign, error in ((-1, 0.0206), (1, 0.0176)))
    assert row[2] == f"81.5 ({low:.1f} to {high:.1f})"
    # Table 1 of the paper: 82.3 pre-trained, 68.3 random for MRPC's accuracy.
    assert row[5] == "82.3 / 68.3 / 31.6"


@pytest.mark.parametrize(
    ("metric", "pretrained", "untrained", "against"),
    [
        ("accuracy", [0.77], [], None),
        ("accuracy", [0.7], [0.31], "fine-tuned lower"),
        ("accuracy", [0.7, 0.9], [0.45], None),  # two seeds: 0.8 ± 1.3; an untrained classifier is one random draw
        ("f1", [0.5], [], "not tested"),  # no interval over examples
    ],
)
def test_a_score_differs_from_the_papers_where_their_intervals_do_not_meet(
    metric: str, pretrained: list[float], untrained: list[float], against: str | None
) -> None:
    # By Wilson: 0.77 of 1,000 is 0.743 to 0.795, the paper's 0.786 of 9,815 0.778 to 0.794.
    values = {"pretrained": pretrained, "random": [], "untrained": untrained}
    line = score_line(metric, values, 1000, (31.7, 61.0, 78.6), 9815)
    assert line["against"] == against


def with_maps(run: Run, before: torch.Tensor, after: torch.Tensor | None = None) -> None:
    """A text that a run kept, with its maps before fine-tuning, and after it."""
    example = CapturedExample(3, ["[CLS]", "a", "cat", "[SEP]"], ["a cat"], "none", [(1, 2, "det")])
    write_examples(run.captures, [example])
    for step, maps in ((0, before), (9, after)):
        if maps is not None:
            write_maps(run.captures, step_name(step), {3: maps})


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The panels of galleries."""
    panels: list[Any] = []
    monkeypatch.setattr("bertsecrets.papers.shows.gallery", lambda drawn, title: panels.extend(drawn))
    return panels


def head_of(panel: Any, maps: torch.Tensor) -> list[list[int]]:
    return np.argwhere((maps == torch.tensor(panel.attention_QK)).all(-1).all(-1).numpy()).tolist()


def test_a_kept_text_is_shown_in_the_highest_head_of_each_column(tmp_path: Path, drawn: list[Any]) -> None:
    heads = np.array([[0.1, 0.2], [0.9, 0.3]])
    columns = {
        "surface": {"sep_total": heads, "punctuation": heads.T},
        "offsets": {"next": heads},
        "entropy": {"relative": 1 - heads},
        "dependency": {"det": heads.T},
    }
    measured = [("initial", name, of) for name, of in columns.items()]
    maps = torch.rand(2, 2, 4, 4)
    with_maps(Run.open(make_run(tmp_path / "run", model=BERT, measured=measured)), maps)
    section = shown("clark2019", "Section 3, figure 1", models_in(tmp_path))
    assert [head_of(panel, maps) for panel in drawn] == [[[0, 0]], [[1, 0]], [[1, 0]], [[0, 1]]]
    assert "next token, layer 1 · head 0: 90 % of its attention" in section.figures[0].caption
    # A word and its head are framed in the head of their relation.
    drawn.clear()
    of_relation = {"det": ["dependency/det"], "nsubj": ["dependency/nsubj"]}
    assert shows.maps(models_in(tmp_path), of_relation, "name", "title", "caption", any_of=True) is not None
    assert [(panel.column, panel.marked) for panel in drawn] == [("det\nlayer 0 · head 1", [(1, 2)])]
    assert shows.maps(models_in(tmp_path), of_relation, "name", "title", "caption") is None


def test_the_head_that_changed_most_is_shown_before_and_after(tmp_path: Path, drawn: list[Any]) -> None:
    before, after = torch.rand(2, 2, 2, 4, 4)
    for task in ("sst2", "rte"):
        drift = {column.name: np.array([[0.9, 0.8], [0.3, 0.9]]) for column in Drift.columns}
        with_maps(
            Run.open(make_run(tmp_path / task, task=task, measured=[("training", "drift", drift)])), before, after
        )
    section = shown("kovaleva2019", "Section 4.3", models_in(tmp_path))
    assert [head_of(panel, maps) for panel, maps in zip(drawn, (before, after), strict=True)] == [[[1, 0]], [[1, 0]]]
    assert section.figures[-1].caption.endswith(
        "sst2, fine-tuned, one text: “a cat” (none); cosine, layer 1 · head 0: 0.30."
    )


def test_tables_1_to_3_have_the_papers_numbers(tmp_path: Path) -> None:
    scores = [relation(name, 0.9, 0.3) for name in ("all", "obj", "cc")]
    columns = {"all": np.full((2, 2), 0.3)}
    with_rows(tmp_path / "dependency", "dependency", [TREEBANK, *scores], columns)
    section = shown("clark2019", "Section 4.2", models_in(tmp_path / "dependency"))
    rows = {row[0]: row for row in rows_of(section)}
    # Universal Dependencies call dobj obj, and have no prep.
    others = "prep, pobj, det, nn, nsubj, amod, advmod, aux, poss, auxpass, ccomp, mark, prt"
    assert section.paragraphs[-1] == f"Published, but not measured here: {others}."
    assert rows["obj"][-2:] == ["86.8, 40.0", "layer 7 · head 9"]
    assert rows["cc"][-2:] == ["–", "–"]
    half, fifth = Estimate(0.5, 0.45, 0.55), Estimate(0.2, 0.15, 0.25)
    found = [
        Mentions("all", 9, 2, 4, 3, 1.0, half, half, 0.5, 0.5, 4, 3),
        *(Baseline("all", name, 4, 3, half, half, 0.5) for name in ("nearest", "rule_based")),
    ]
    with_rows(tmp_path / "coreference", "coreference", found, columns)
    section = shown("clark2019", "Section 4.3", models_in(tmp_path / "coreference"))
    assert [[row[-1] for row in rows_of(section, table)] for table in (0, 1)] == [["65"], ["27", "69"]]
    probed = Probed("treebank", 100, 100, 900, False, 0, 0, "glove.txt", 30, 50, False, 1, 0.1, 32, 0, 0, 0.0)
    states = [HiddenState(state, half if state == 2 else fifth, state == 2) for state in range(3)]
    scores_3 = [ProbeScore("attention", half, half, None, None, 1, 0.0)]
    structural = Structural(9, 64, 10, half, fifth, 0.0)
    with_rows(tmp_path / "probes", "probes", [probed, *scores_3, structural, *states], columns)
    section = shown("clark2019", "Section 5", models_in(tmp_path / "probes"))
    assert section is not None
    assert [(row[0], row[1], row[-1]) for row in rows_of(section)] == [("attention", "50.0 (45.0 to 55.0)", "61")]
    assert rows_of(section, 1) == [
        ["structural, vectors of the embeddings", "20.0 (15.0 to 25.0)", "–"],
        ["structural, vectors of layer 1", "50.0 (45.0 to 55.0)", "80"],
    ]
    assert (rows_of(section, 2), rows_of(section, 3)) == ([["20.0 (15.0 to 25.0)"]], [["glove.txt", "900", "30"]])


def test_the_page_of_a_run_is_shown_in_part_or_whole(tmp_path: Path) -> None:
    columns = {"cls": by_layer(0.4, 0.2), "sep_total": by_layer(0.2, 0.3)}
    run = Run.open(make_run(tmp_path / "run", measured=[("checkpoint", "surface", columns)], p_constant=0.001))
    run.declare(Surface(1, 1).declaration())
    models = models_in(tmp_path)
    whole, bare = (shows.presented(models, "surface", tables=tables) for tables in (True, False))
    of_run = presenter_of(Surface(1, 1).declaration()).section(models.tuned[0].views("surface")[0])
    assert list(whole.paragraphs) == [*of_run.findings, *of_run.paragraphs]
    assert [table.caption for table in whole.tables] == [f"{t.caption} (mrpc, fine-tuned)" for t in of_run.tables]
    assert (bare.tables, len(bare.figures)) == ([], len(of_run.figures))
    name = of_run.figures[0].name
    one = shows.presented(models, "surface", [name], tuned=True)
    assert [block.name for block in one.figures] == [name]
    assert shows.presented(models, "entropy") is None


def test_single_heads_are_counted_and_compared_between_tasks(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    delta_LH = -np.abs(generator.normal(size=(3, 4))) / 100
    delta_LH[2, 3] = 0.01
    few_LH = np.zeros((3, 4), bool)
    few_LH[[0, 2], [1, 3]] = True
    spared_LH = np.ones((3, 4), bool)
    spared_LH[0, 1] = False
    make_run(tmp_path / "a", task="mrpc", delta_LH=delta_LH, significant_LH=few_LH, dispensable_LH=spared_LH)
    make_run(tmp_path / "b", task="rte", delta_LH=2 * delta_LH, significant_LH=~few_LH)
    models = models_in(tmp_path)
    section = shows.disabled(models, "head", "uniform", "heads", "Heads.", {"mrpc": [0.8, 0.7, 0.9]})
    # Verdicts do not overlap: of 11 heads without a loss that matters, the model is better without one.
    assert [row[6:10] for row in rows_of(section)] == [["2", "1", "10", "1"], ["10", "10", "0", "0"]]
    assert list(section.tables[0].header[7:10]) == ["needed", "can be spared", "better without"]
    significant = "significant at a false discovery rate of 5 %, regardless of size"
    assert section.tables[0].caption == f"One head disabled, one seed; {significant}"
    assert [row[-1] for row in rows_of(section)] == ["0.800: 0.700 to 0.900", "–"]
    # A task of the paper alone has a row where no other has the paper's numbers.
    paper = rows_of(shows.disabled(models, "head", "uniform", "heads", "Heads.", {"mnli": [0.836, 0.824, 0.838]}))[-1]
    assert (paper[0], *paper[3:5]) == ("paper: mnli", "0.836", "0.824 to 0.838")
    assert rows_of(shown("michel2019", "Section 3.4", models))[0][2:4] == ["1.00 (1.00 to 1.00)"] * 2
    make_run(tmp_path / "c", task="mrpc", seed=2, delta_LH=delta_LH)
    section = shows.disabled(models_in(tmp_path), "head", "uniform", "heads", "Heads.")
    assert rows_of(section)[0][6:10] == ["1.0", "0.5", "5.0", "0.5"]
    assert (
        section.tables[0].caption
        == f"One head disabled, mean over 1 to 2 seeds; numbers of heads are means; {significant}"
    )


def test_effects_on_two_sets_of_one_task_are_compared(tmp_path: Path) -> None:
    generator = np.random.default_rng(2)
    first_LH, second_LH = generator.normal(size=(2, 3, 4)) / 100
    made = make_run(tmp_path / "run", delta_LH=first_LH)
    trained = {"name": "run", "init": "pretrained", "seed": 1, "folder": str(made)}
    analysis = make_run(tmp_path / "analysis", checkpoint=str(made), trained=trained, delta_LH=second_LH)
    for folder, name in ((made, "validation"), (analysis, "test")):
        rows = Run.open(folder).ablation_table().rows()
        rows = [{**row, "mode": "zero", "evaluation": name} for row in rows]
        AblationTable.from_rows(rows).write(folder / "ablation.parquet")
    ours, theirs = rows_of(shown("michel2019", "Section 3.4", models_in(tmp_path)))
    ranks = stats.spearmanr(first_LH.ravel(), second_LH.ravel()).statistic
    linear = np.corrcoef(first_LH.ravel(), second_LH.ravel())[0, 1]
    assert ours[:2] == ["mrpc, seed 1: validation (408 examples)", "test (408 examples)"]
    assert ours[2].startswith(f"{number(float(ranks), 2)} (")
    assert ours[4] == number(float(linear), 2)
    assert theirs == ["paper: MNLI, matched", "MNLI, mismatched", "–", "–", "0.68"]


def test_the_head_that_stays_is_chosen_on_other_examples_than_it_is_tested_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = np.random.default_rng(1)
    label_N = generator.integers(0, 2, 90).astype(float)
    clean_N, *rest = (
        np.where(generator.random(90) < right, label_N, 1 - label_N) for right in (0.8, 0.6, 0.6, 0.6, 0.75)
    )
    rows = [{"layer": layer, "head": head, "metric": "accuracy"} for layer in (0, 1) for head in (0, 1)]
    sweep = RunSweep(label_N, clean_N, np.stack(rest), name="run", rows=rows, index_N=np.arange(90))
    folder = make_run(tmp_path / "a", cosine_LH=np.ones((2, 2)), delta_LH=np.zeros((2, 2)))
    disabled = [{**row, "kind": "all_but_one"} for row in Run.open(folder).ablation_table().rows()]
    AblationTable.from_rows(disabled).write(folder / "ablation.parquet")
    monkeypatch.setattr(fewer_heads, "read_sweep", lambda view, kind, mode: sweep)
    section = shown("michel2019", "Section 3.3", models_in(tmp_path))
    *rows, paper = rows_of(section)
    # Table 6 of the paper, then its table 3.
    assert [cells.split(" ")[1] for cells in paper[3:5]] == ["−.02", "+.10"]
    for layer, row in enumerate(rows):
        heads = np.stack(rest)[2 * layer : 2 * layer + 2]
        changes, choices = [], []
        for chooses_N in choosing_units(90, 50, 0):
            right = [int((head_N == label_N)[chooses_N].sum()) for head_N in heads]
            best = right.index(max(right))
            choices.append(best)
            tests = ~chooses_N
            changes.append(np.mean((heads[best] == label_N)[tests]) - np.mean((clean_N == label_N)[tests]))
        on_all = max(np.mean(head_N == label_N) for head_N in heads) - np.mean(clean_N == label_N)
        assert row[1:3] == [str(layer), str(max((0, 1), key=choices.count))]
        assert row[3].startswith(f"{number(100 * float(np.median(changes)), 1, signed=True)} (")
        assert row[4] == number(100 * float(on_all), 1, signed=True)
    assert section.tables[0].caption.endswith("median over 50 splits; n = 90 examples")
    assert "is chosen on a third of the examples and tested on the others" in section.paragraphs[0]


def test_gates_of_the_frozen_model_are_averaged_over_seeds_and_examples(tmp_path: Path) -> None:
    for seed, kept, change in ((1, 9, -0.02), (2, 8, -0.01), (3, 7, 0.0)):
        path = [(kept, change - 0.0196, change + 0.0196), (2, -0.1, 0.0)]
        gated_run(tmp_path, np.eye(3, 4), path[: 1 if seed == 3 else 2], seed=seed)
    section = shown("voita2019", "Section 6:", models_in(tmp_path))
    _, row, of_two, *_ = rows_of(section)
    # One point squared between seeds, over three, and one point squared of the examples that they share.
    reach = reach_of_sum((1 / 3) ** 0.5, 2, 1.0)
    low, high = (f"{-1 + sign * reach:.1f}".replace("-", "−") for sign in (-1, 1))
    assert row[3:] == ["9, 8, 7 of 12", "0.780, 0.790, 0.800", "−1.0", f"{low} to {high}"]
    # Seeds that agree keep the noise of the examples; a penalty need not be of every seed.
    assert of_two[3:] == ["2, 2 of 12", "0.750, 0.750", "−5.0", "−10.0 to 0.0"]
    assert section is not None


GATES = "bertsecrets.callbacks.gates.TrainGates"


def test_models_that_differ_in_seed_and_its_folder_of_scores_are_one_group(tmp_path: Path) -> None:
    prune = {"_target_": "bertsecrets.callbacks.gates.PruneFirst", "keep": 6}
    for name, seed, folder in (("a", 1, "gates-0.1-1"), ("b", 2, "gates-0.1-2"), ("other", 1, "gates-0.2-1")):
        kept = [("checkpoint", FirstPruned.name, {"kept": (np.arange(12).reshape(3, 4) < 6).astype(float)})]
        settings = {**prune, "seed": seed, "tables": [f"there/{folder}"]}
        run = Run.open(make_run(tmp_path / name, seed=seed, measured=kept, callbacks={"prune": settings}))
        run.declare(FirstPruned().declaration())
        found = rows_of(shown("voita2019", "Section 6:", models_in(tmp_path)))
        rows = [row for row in found if not row[0].startswith("paper")]
        if name == "b":
            assert [row[:3] for row in rows] == [["mrpc", "open heads only, from the start", "6, 6 of 12"]]
    # Scores of other runs make another model of the same seed.
    assert len(rows) == 2


def test_no_command_is_given_for_gates_where_the_same_task_has_the_number(tmp_path: Path) -> None:
    column = {"measured": [("checkpoint", "surface", {"cls": by_layer(0.5, 0.1)})], "p_constant": 0.001}
    gates = {"callbacks": {"gates": {"_target_": GATES, "penalty": 0.01}}, "p_constant": 0.001}
    make_run(tmp_path / "usual", **column)
    make_run(tmp_path / "gates", seed=2, **gates)
    statement = statement_of({"kind": "share", "column": "surface/cls", "over": 0.3, "above": 0.4})
    [entry] = judge([statement], models_in(tmp_path))
    assert [bool(cell.command) for cell in entry.cells] == [False, True]
    assert entry.commands == []
    make_run(tmp_path / "other", task="rte", p_constant=0.001)
    [entry] = judge([statement], models_in(tmp_path))
    assert [command.split(" ")[4] for command in entry.commands] == [f"checkpoint={tmp_path / 'other'}"]


def test_gates_are_compared_with_the_models_of_the_same_seeds_that_have_all_heads(tmp_path: Path) -> None:
    scores = {"usual": (0.9, 0.88, 0.86), "gates": (0.88, 0.85, 0.87)}
    for kind, of_kind in scores.items():
        for seed, score in enumerate(of_kind, 1):
            gates = [("checkpoint", "gates", {"gate": np.eye(3, 4)})] if kind == "gates" else []
            callbacks = {"gates": {"_target_": GATES, "penalty": 0.01}} if gates else {}
            folder = make_run(
                tmp_path / f"{kind}{seed}", seed=seed, measured=gates, callbacks=callbacks, accuracy=score
            )
            if gates:
                Run.open(folder).declare(LearnedGates().declaration())
    section = shown("voita2019", "Section 6:", models_in(tmp_path))
    whole, learned, *_ = rows_of(section)
    assert whole == ["mrpc", "none", "–", "12 of 12", "0.900, 0.880, 0.860", "–", "–"]
    changes = np.subtract(scores["gates"], scores["usual"])
    reach = stats.t.ppf(0.975, 2) * changes.std(ddof=1) / np.sqrt(3)
    ends = (f"{100 * end:.1f}".replace("-", "−") for end in (changes.mean() - reach, changes.mean() + reach))
    assert learned[0] == "mrpc"
    assert learned[2:4] == ["0.01", "3, 3, 3 of 12"]
    assert learned[5:] == ["−1.3", " to ".join(ends)]


def test_the_effects_of_a_mode_are_read_from_a_run_with_two(tmp_path: Path) -> None:
    """The table's first mode is ``uniform``; a mode that no run has is answered by the first."""
    run = Run.open(make_run(tmp_path / "run", delta_LH=np.full((3, 4), -0.02), p_constant=0.001))
    zeroed = [{**row, "mode": "zero", "delta": -0.07} for row in run.ablation_table().rows()]
    run.ablation_table().append(AblationTable.from_rows(zeroed)).write(run.ablation_path)
    (group,) = models_in(tmp_path).tuned
    for mode, read, delta in (("uniform", "uniform", -0.02), ("zero", "zero", -0.07), ("mean", "uniform", -0.02)):
        effect = group.effects("head", mode)
        assert (effect.mode, np.unique(effect.delta_RLH).tolist()) == (read, [delta])
    # Figure 2 of Michel et al. has the heads set to zero.
    (zeroed,) = fewer_heads.by_evaluation_set(group.models[0]).values()
    assert np.unique(zeroed.delta_RLH).tolist() == [-0.07]
