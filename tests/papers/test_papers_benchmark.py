"""What the benchmark of the papers' pages stores, and what the documentation shows of it."""

import json
import math
import re
import shutil
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reporting.finished_runs import make_run
from scipy import stats

from benchmarks import papers
from bertsecrets.papers.kovaleva2019 import Scores, score_table
from bertsecrets.papers.shows import by_layer, published
from bertsecrets.results.verdicts import DISPENSABLE


def test_the_tables_of_the_pages_are_the_stored_ones(tmp_path: Path) -> None:
    stored = json.loads(papers.RESULTS.read_text("utf-8"))
    for document in papers.DOCUMENTS:
        shutil.copy(papers.DOCS / document, tmp_path)

    def differing() -> list[str]:
        papers.update(stored, tmp_path)
        return [
            document
            for document in papers.DOCUMENTS
            if (tmp_path / document).read_text("utf-8") != (papers.DOCS / document).read_text("utf-8")
        ]

    assert differing() == []
    # A mark without a table gets it, and the text after it stays.
    page = tmp_path / "sixteen_heads.md"
    page.write_text(re.sub(r"(?m)^(<!-- .+ -->\n)\*.+\*\n\n(\|.*\n)+\n?", r"\1", page.read_text("utf-8")), "utf-8")
    assert "\n|" not in page.read_text("utf-8")
    assert differing() == []
    # A number that is not the stored one is found, and a table that is not stored.
    table = next(table for table in stored["tables"] if table["caption"].startswith("Table 1"))
    table["rows"][0][2] = "another number"
    assert differing() == ["dark_secrets.md"]
    (tmp_path / "dark_secrets.md").write_text("<!-- No such table -->\n| |\n\n", "utf-8")
    with pytest.raises(ValueError, match="asks for the table 'No such table', of which 0 are stored"):
        papers.update(stored, tmp_path)
    # Patterns choose rows.
    (tmp_path / "dark_secrets.md").write_text("<!-- kovaleva2019: Table 1 | mr*, qqp -->\n", "utf-8")
    papers.update(stored, tmp_path)
    rows = re.findall(r"(?m)^\| (\w+) \|", (tmp_path / "dark_secrets.md").read_text("utf-8"))
    assert set(rows) == {"task", "mrpc", "qqp"}
    (tmp_path / "dark_secrets.md").write_text("<!-- kovaleva2019: Table 1 | mr*, no_task -->\n", "utf-8")
    with pytest.raises(ValueError, match="No row of 'Table 1' fits 'no_task'"):
        papers.update(stored, tmp_path)


def test_table_1_is_that_of_the_stored_scores() -> None:
    stored = json.loads(papers.RESULTS.read_text("utf-8"))
    scores = stored["scores"]
    theirs = published("kovaleva2019")

    def of(runs: list[Any], metric: str) -> list[float]:
        return [run["model"][metric] for run in runs]

    tasks = []
    for task in sorted(papers.GLUE):
        runs = [scores[name] for name in scores if re.fullmatch(rf"minilm-{task}-\d", name)]
        random = [scores[name] for name in scores if name == f"minilm-{task}-random"]
        tasks.append(
            [
                Scores(
                    *(task, metric, of(runs, metric), of(random, metric), of([scores[f"untrained-{task}"]], metric)),
                    math.nan if constant is None else constant,
                    theirs["scores"][task].get(metric, ()),
                    runs[0]["count"],
                    theirs["development"][task],
                )
                for metric, constant in runs[0]["constant"].items()
            ]
        )
    computed = score_table(tasks)
    table = next(table for table in stored["tables"] if table["caption"] == "Table 1")
    assert (table["header"], table["rows"]) == (list(computed.header), [list(row) for row in computed.rows])


def test_the_papers_rows_are_the_published_numbers() -> None:
    tables = json.loads(papers.RESULTS.read_text("utf-8"))["tables"]

    def of_the_paper(page: str, caption: str) -> list[list[str]]:
        (rows,) = (table["rows"] for table in tables if table["page"] == page and table["caption"].startswith(caption))
        return [row for row in rows if row[0].startswith("paper")]

    michel, voita = published("michel2019"), published("voita2019")
    [row] = of_the_paper("michel2019", "Each layer with its best head")
    assert row[3:] == [by_layer(michel[name], signed=True) for name in ("one_head_elsewhere", "one_head")]
    assert [row[3:5] for row in of_the_paper("michel2019", "One head disabled")] == [["0.836", "0.824 to 0.838"]]
    whole, *gated = [(row[3], row[4]) for row in of_the_paper("voita2019", "Heads kept by gates")]
    assert whole == ("48/48/48 of 48 each", f"{voita['whole']:.2f}")
    assert gated == [
        (f"{kept} of 48 each", f"{scores[place]:.2f}") for place in (0, 1) for kept, scores in voita["pruned"].items()
    ]


def test_every_stored_score_is_of_a_run_that_is_made() -> None:
    stored = json.loads(papers.RESULTS.read_text("utf-8"))
    folder = Path()
    made = chain(
        papers.jobs(folder, folder, folder),
        papers.dark_secrets(folder, folder, "32-true"),
        papers.questions(folder, folder, folder, "32-true"),
    )
    assert {*stored["scores"], *stored["minutes"]} <= {name for name, _ in made}


def test_trainings_that_disable_nothing_have_no_effects(tmp_path: Path) -> None:
    make_run(tmp_path / "mpnet-control-none-1")
    assert papers.head_effects(tmp_path, "mpnet") == {}


def test_a_table_names_the_sets_and_seeds_of_its_tasks() -> None:
    runs = {"sst2-1": 872, "sst2-1-roles": 872, "sst2-gates-0.001": 872, "treebank": 2001, "minilm-sst2-2": 9}
    stored = {"scores": {name: {"count": count} for name, count in runs.items()}}
    table = {"page": "voita2019", "caption": "Heads", "header": ["model"]}
    table["rows"] = [["minilm on sst2"], ["minilm on ud_ewt"], ["rte"]]
    assert papers.captioned(stored, table) == "*Heads. Evaluation sets (seeds): sst2 872 (1), ud_ewt 2,001.*\n\n"
    assert papers.captioned(stored, {**table, "rows": [["–"]]}) == "*Heads.*\n\n"
    # A table that has its seeds in a column need not be told them.
    assert papers.captioned(stored, {**table, "header": ["seed"]}) == "*Heads.*\n\n"
    more = {"scores": stored["scores"] | {f"sst2-gates-0.001-{seed}": {"count": 872} for seed in "12"}}
    assert papers.sample(more, {**table, "rows": [["sst2"]]}) == "sst2 872 (1 to 2 seeds)"
    three = {"scores": {f"minilm-mrpc-{seed}": {"count": 408} for seed in "123"}}
    table = {"page": "kovaleva2019", "caption": "Table 1", "rows": [["mrpc", "0.8"]]}
    assert papers.sample(three, table) == "mrpc 408 (3)"


def test_what_is_stored_beside_tables_is_shown_in_tables() -> None:
    stored = {
        "shared_heads": {"minilm": {"rte, stsb": [0.144, -0.113, 0.36]}},
        "figure_8": {"mrpc": {"seeds": 1, "heads": [0.005, -0.16, 0.17], "layers": [-0.29, -0.75, 0.36]}},
        "blocking": {
            "mpnet-sst2-sep": {
                "examples": 1872,
                "rows": [{"direction": "to", "delta": -0.0023, "low": -0.01, "high": 0.004, "verdict": DISPENSABLE}],
            },
            "another": {"examples": 1, "rows": []},
        },
    }
    tasks, paper, blocked = papers.derived(stored)
    assert blocked["rows"] == [["MPNet on SST-2", "1,872", "to [SEP]", "−0.2 (−1.0 to +0.4)", "can be spared"]]
    assert tasks["rows"] == [["rte", "stsb", "0.14 (−0.11 to 0.36)"]]
    assert paper["rows"] == [["mrpc", "0.01 (−0.16 to 0.17)", "−0.29 (−0.75 to 0.36)"]]


def test_the_papers_gradients_are_the_published_ones() -> None:
    page = (papers.DOCS / "what_does_bert_look_at.md").read_text("utf-8")
    assert f"in layers 0 to 11: {by_layer(published('clark2019')['gradient'])}." in page


def test_agreement_of_tasks_is_that_of_mean_effects() -> None:
    draw = np.random.default_rng(0)
    effects = {"rte": draw.normal(size=(3, 72)), "stsb": draw.normal(size=(2, 72))}
    expected = stats.spearmanr(effects["rte"].mean(0), effects["stsb"].mean(0)).statistic
    assert papers.shared_heads(effects, 6)["rte, stsb"][0] == pytest.approx(expected)


def test_agreement_with_figure_8_is_that_of_its_grid(tmp_path: Path) -> None:
    theirs_LH = np.arange(144.0).reshape(12, 12)
    (tmp_path / "fig8.json").write_text(json.dumps({"MRPC": theirs_LH.tolist(), "QNLI": theirs_LH.tolist()}))
    agreement = papers.figure_8({"mrpc": -np.arange(144.0)[None], "rte": np.zeros((1, 144))}, tmp_path)
    assert set(agreement) == {"mrpc"}
    assert agreement["mrpc"]["seeds"] == 1
    assert agreement["mrpc"]["heads"][0] == pytest.approx(-1)
    assert agreement["mrpc"]["layers"][0] == pytest.approx(-1)


def test_what_takes_absent_files_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.tsv").touch()
    papers.split_genres(tmp_path, tmp_path / "split")
    assert papers.figure_8({"mrpc": np.zeros((1, 144))}, tmp_path) == {}
    assert not (tmp_path / "split").exists()
    assert capsys.readouterr().out == (
        f"The genres of MNLI: left out; {tmp_path / 'dev_matched.tsv'} not found.\n"
        f"Agreement with figure 8: left out; {tmp_path / 'fig8.json'} not found.\n"
    )


def test_a_page_made_alone_leaves_the_others_as_they_are_stored() -> None:
    stored = json.loads(papers.RESULTS.read_text("utf-8"))
    nothing = {"tables": [], "scores": {}, "minutes": {}, "blocking": {}, "figure_8": {}, "shared_heads": {}}
    assert papers.merged(stored, nothing) == stored
    table = {"page": "michel2019", "section": "s", "caption": "c", "header": ["a"], "rows": [["1"]]}
    merged = papers.merged(stored, {**nothing, "tables": [table], "scores": {"sst2-1": {"count": 1}}})
    assert [row for row in merged["tables"] if row["page"] == "michel2019"] == [table]
    others = [row for row in stored["tables"] if row["page"] != "michel2019"]
    assert [row for row in merged["tables"] if row["page"] != "michel2019"] == others
    assert merged["scores"] == {**stored["scores"], "sst2-1": {"count": 1}}


def test_a_page_without_some_of_its_runs_is_not_made(tmp_path: Path) -> None:
    for name in ("mpnet-sst2", "minilm-mrpc-1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "finished.json").touch()
    assert papers.finished(tmp_path, ["mpnet-sst2", "mpnet-sst2-sinks"]) == []
    assert papers.finished(tmp_path, ["m*", "mpnet-*"]) == [str(tmp_path / n) for n in ("minilm-mrpc-1", "mpnet-sst2")]


def test_telephone_speech_is_told_from_writing_by_its_form(tmp_path: Path) -> None:
    rows = ["i guess so uh", "He left.", "yes. it is", "Texas is big", "\N{LINE SEPARATOR}um"]
    (tmp_path / "train.tsv").write_text("of all genres", "utf-8")
    lines = [
        "index\tsentence1\tsentence2\tgold_label",
        *(f"{i}\t{text}\tIt is.\tneutral" for i, text in enumerate(rows)),
    ]
    (tmp_path / "dev_matched.tsv").write_text("\n".join([*lines, ""]), "utf-8")
    papers.split_genres(tmp_path, tmp_path / "split")
    written = (tmp_path / "split" / "written.tsv").read_text("utf-8")
    telephone = (tmp_path / "split" / "telephone.tsv").read_text("utf-8")
    assert written == "\n".join([lines[0], *lines[2:5], ""])
    assert telephone == "\n".join([lines[0], lines[1], lines[5], ""])
    assert (tmp_path / "split" / "train.tsv").read_text("utf-8") == "of all genres"
