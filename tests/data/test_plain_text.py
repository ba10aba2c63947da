"""Plain text, whose words are predicted: files, folders, documents, and what is refused."""

from pathlib import Path

import datasets
import pytest
from data.tasks import task_of

from bertsecrets.data.inferred import inferred_task
from bertsecrets.data.sources import SourceConfig, make_source
from bertsecrets.errors import UserError


def config(path: Path, **settings: object) -> SourceConfig:
    defaults = {"source": "text", "path": str(path), "text": "text", "label": "label"}
    return SourceConfig.read("data", defaults | settings)


def test_each_line_is_a_text_and_blank_lines_end_documents(tmp_path: Path) -> None:
    path = tmp_path / "novel.txt"
    path.write_text('\n"It was, well;\tnight."\r\nThe end.\n\n\n  \nAgain. \n', "utf-8")
    own = config(path, group="document")
    task = task_of(own, "all")
    assert (task.name, task.kind, task.texts, task.labels) == ("novel", "masked", 1, ())
    assert task.metrics == ("masked_accuracy", "pseudo_log_likelihood")
    rows = make_source(own, task).examples("all")
    assert [row.texts for row in rows] == [('"It was, well;\tnight."',), ("The end.",), ("Again.",)]
    first, second, third = (row.group for row in rows)
    assert first == second != third


def test_the_files_of_a_folder_are_documents(tmp_path: Path) -> None:
    for name, text in (("b.txt", "three\n"), ("a.txt", "one\ntwo\n"), ("c.md", "not read\n")):
        (tmp_path / name).write_text(text, "utf-8")
    own = config(tmp_path, group="document")
    rows = make_source(own, task_of(own, "all", "each_masked")).examples("all")
    assert [row.texts[0] for row in rows] == ["one", "two", "three"]
    assert [row.group == rows[0].group for row in rows] == [True, True, False]


@pytest.mark.parametrize("source", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("evaluated", [False, True])
def test_a_table_of_texts_alone_has_masked_words(source: str, evaluated: bool, tmp_path: Path) -> None:
    rows = datasets.Dataset.from_dict({"said": ["a cat sat", "a dog"]})
    path, other = tmp_path / f"train.{source}", tmp_path / f"other.{source}"
    for file, part in ((path, rows), (other, datasets.Dataset.from_dict({"said": ["it ran"]}))):
        {"csv": part.to_csv, "jsonl": part.to_json, "parquet": part.to_parquet}[source](file)
    own = config(path, source=source, text="said", eval_path=str(other) if evaluated else None)
    with pytest.raises(UserError, match="has no column 'label'"):
        inferred_task(own)
    task = task_of(own, "all", "masked")
    assert (task.kind, task.evaluation) == ("masked", {"val": "validation" if evaluated else "all"})
    found = [(row.texts, row.label) for row in make_source(own, task).examples(task.evaluation["val"])]
    assert found == [((text,), None) for text in (["it ran"] if evaluated else ["a cat sat", "a dog"])]


def test_what_has_no_text_or_needs_labels_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.txt"
    path.write_text("\n \n", "utf-8")
    with pytest.raises(UserError, match=r"empty.txt' has no text; expected a text in each line"):
        make_source(config(path), task_of(config(path), "all")).examples("all")
    none = tmp_path / "none"
    none.mkdir()
    with pytest.raises(UserError, match=r"expected a text in each line, in .txt files"):
        make_source(config(none), task_of(config(none), "all")).examples("all")
    path.write_text("a cat\na dog\n", "utf-8")
    changes = {"kind": "sequence", "labels": ("bad", "good"), "metrics": ("accuracy",)}
    classes = task_of(config(path), "all").model_copy(update=changes)
    with pytest.raises(UserError, match=r"texts without labels, which kind 'sequence' needs; set task.kind=masked"):
        make_source(config(path), classes).examples("all")


@pytest.mark.parametrize(
    ("source", "train", "evaluated", "columns"),
    [
        ("columns", "a O\nb B-A\n\nc O\n", "d O\ne B-A\n", {"text": "0", "label": "-1"}),
        ("csv", "text,label\ngood,yes\nbad,no\n", "text,label\nfine,yes\n", {}),
    ],
)
def test_evaluation_files_named_txt_have_the_format_of_the_training_rows(
    source: str, train: str, evaluated: str, columns: dict[str, str], tmp_path: Path
) -> None:
    path, other = tmp_path / "train.txt", tmp_path / "valid.txt"
    path.write_text(train, "utf-8")
    other.write_text(evaluated, "utf-8")
    own = config(path, source=source, eval_path=str(other), **columns)
    (row,) = make_source(own, task_of(own, "all")).examples("validation")
    assert row.texts[0] == {"columns": "d e", "csv": "fine"}[source]
