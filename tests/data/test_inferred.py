"""Data of the user's own: CSV files and data sets without a task, what is inferred from them, and what is held out."""

import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import pytest
from data.tasks import task as task_named
from data.tasks import task_of
from hypothesis import given
from hypothesis import strategies as st

from bertsecrets.data.example import Example
from bertsecrets.data.inferred import inferred_task
from bertsecrets.data.sources import SourceConfig, make_source
from bertsecrets.data.sources.held_out import held_out, held_out_by_text
from bertsecrets.data.sources.table import read_csv
from bertsecrets.errors import UserError

REVIEWS = "id,review,stars\n" + "".join(f'{i},"Row {i}, quoted",{1 + i % 5}\n' for i in range(50))


def csv_data(folder: Path, content: str | bytes = REVIEWS, name: str = "reviews.csv", **settings: Any) -> SourceConfig:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return SourceConfig.read(
        "data", {"source": "csv", "path": str(path), "text": "review", "label": "stars", **settings}
    )


def test_columns_classes_and_name_come_from_the_file(tmp_path: Path) -> None:
    config = csv_data(tmp_path)
    task = task_of(config)
    assert (task.name, task.texts, task.labels, task.metrics) == (
        "reviews", 1, ("1", "2", "3", "4", "5"), ("accuracy", "matthews"),
    )  # fmt: skip
    source = make_source(config, task)
    train, evaluated = (source.examples(split) for split in ("train", task.evaluation["val"]))
    rows = {one.index: one for one in (*train, *evaluated)}
    assert (len(train), len(evaluated), len(rows)) == (40, 10, 50)
    for index, one in rows.items():
        assert (one.texts, one.label) == ((f"Row {index}, quoted",), index % 5)
    assert Counter(one.label for one in evaluated) == dict.fromkeys(range(5), 2)
    assert source.notes[0].startswith("The data have no evaluation rows, so 10 of the 50 training rows are held out")


def test_an_evaluation_file_is_evaluated_on(tmp_path: Path) -> None:
    (tmp_path / "later.csv").write_text("stars,review\n6,new\n", "utf-8")
    config = csv_data(tmp_path, eval_path=str(tmp_path / "later.csv"))
    task = task_of(config)
    source = make_source(config, task)
    assert len(source.examples("train")) == 50
    assert [(one.texts, task.labels[int(one.label or 0)]) for one in source.examples(task.evaluation["val"])] == [
        (("new",), "6")
    ]


@pytest.mark.parametrize(
    ("labels", "target", "labels_or_range"),
    [
        (["no", "yes", "no"], "auto", ("no", "yes")),
        (["10", "9", "10"], "auto", ("9", "10")),
        (["0.5", "2", "1"], "auto", (0.5, 2.0)),
        (["3", "1", "2"], "scores", (1.0, 3.0)),
        (["0.5", "1.0", "0.5"], "classes", ("0.5", "1.0")),
        (list(map(str, range(20))), "auto", tuple(map(str, range(20)))),
        ([*map(str, range(21)), "3"], "auto", (0.0, 20.0)),
        (list(map(str, range(21))), "scores", (0.0, 20.0)),
        ([str(i / 4) for i in range(30)], "auto", (0.0, 7.25)),
        (["a|b", "a", "b"], "classes", ("a", "a|b", "b")),
        (["art | law", "trade"], "auto", ("art | law", "trade")),
        (["nan", "inf", "1"], "auto", ("inf", "nan", "1")),
        (["1", "2", "NA", "3"], "classes", ("NA", "1", "2", "3")),
        (["1", "1.0", "0"], "classes", ("0", "1", "1.0")),
        (["1", "1.0", "0.5"], "auto", (0.5, 1.0)),
    ],
)
def test_labels_are_classes_or_scores(
    tmp_path: Path, labels: list[str], target: str, labels_or_range: tuple[Any, ...]
) -> None:
    content = "review,stars\n" + "".join(f"t{i},{label}\n" for i, label in enumerate(labels))
    task = task_of(csv_data(tmp_path, content, target=target))
    assert (task.label_range if task.is_regression else task.labels) == labels_or_range
    assert task.metrics[0] == ("pearson" if task.is_regression else "accuracy")


@pytest.mark.parametrize("labels", [range(30), range(150)], ids=str)
def test_whole_numbers_are_classes_of_a_model_of_several_outputs(tmp_path: Path, labels: range) -> None:
    rows = [f"t{i},{label}\n" for i, label in enumerate([*labels, *labels])]
    config = csv_data(tmp_path, "review,stars\n" + "".join(rows))
    assert inferred_task(config, outputs=len(labels))["labels"] == [str(label) for label in labels]


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_evaluation_rows_may_come_in_another_format(tmp_path: Path, kind: str) -> None:
    later, rows = tmp_path / f"later.{kind}", datasets.Dataset.from_dict({"review": ["new, one"], "stars": ["3"]})
    rows.to_parquet(later) if kind == "parquet" else rows.to_json(later)
    config = csv_data(tmp_path, eval_path=str(later))
    source = make_source(config, task_of(config))
    assert [(one.texts, one.label) for one in source.examples("validation")] == [(("new, one",), 2)]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_pairs_separators_byte_order_marks_and_lines_in_quotes(tmp_path: Path, separator: str) -> None:
    rows = [["a", "b", "same"], ['"one\r\nline ""two"""', "b", "1"], ["x", "y", "0"], ["v", "w", "0"], ["t", "u", "1"]]
    content = "\ufeff" + "\r\n".join(separator.join(row) for row in rows)
    config = csv_data(tmp_path, content, text=["a", "b"], label="same", name="pairs of mine.tsv")
    task = task_of(config)
    assert (task.name, task.texts) == ("pairs_of_mine", 2)
    source = make_source(config, task)
    everything = [*source.examples("train"), *source.examples("held_out")]
    assert ('one\r\nline "two"', "b") in {one.texts for one in everything}


@pytest.mark.parametrize(
    ("content", "settings", "message"),
    [
        (REVIEWS, {"text": "reviews"}, "has no column 'reviews'; did you mean 'review'? Valid names: id, review, stars "
                                       "(set data.text)."),
        ("review,review,stars\na,b,1\n", {}, "has 2 columns 'review'; rename all but one."),
        ("review,stars\na,1\n ,2\n", {}, "reviews.csv:3: column 'review' is empty; fix the row, or skip such rows"),
        ("review,stars\na,\n", {}, "reviews.csv:2: column 'stars' is empty"),
        ("review,stars\na, b,1\n", {}, "reviews.csv:2: more fields than in the header (texts that contain"),
        ('review,stars\n"a,1\nb,2\n', {}, "reviews.csv:2: the row cannot be read (a quote is not closed); fix the row"),
        ("review,stars\na,1\nb,1\n", {}, "has only one class ('1'); expected at least two."),
        ("review,stars\na,1\nb,1\n", {"target": "scores"}, "contains only '1'; expected at least two different"),
        ("review,stars\na,1\nb,good\n", {"target": "scores"}, "contains 'good'; data.target=scores expects numbers."),
        (
            "review,stars\n" + "".join(f"a,{i / 4}\n" for i in range(30)) + "b,NA\nc,nan\n", {},
            "contains numbers, but also 'NA', 'nan'; remove these rows, or set data.target=classes",
        ),
        (
            "review,stars\n" + "".join(f"a,{i}\n" for i in range(9)) + "a,w\na,x\na,y\na,z\n", {},
            "but also 'w', 'x', 'y' and 1 more; remove these rows",
        ),
        ("review,stars\na,1\nb,1.0\nc,0\n", {}, "contains '1' and '1.0', which are the same number; use one spelling"),
        (REVIEWS, {"text": ["review", "stars"]}, "data.text and data.label are both 'stars'"),
        ("review,stars\na,${x}\nb,1\n", {}, "contains '${x}', which cannot be a class name; rename it"),
        (
            "review,stars\n" + "".join(f"a,c{i % 101}\n" for i in range(102)),
            {},
            "has 101 distinct values, such as 'c0'",
        ),
        (
            REVIEWS,
            {"label": "id"},
            "each of the 50 rows, so it looks like an identifier, not a label; choose a column whose values repeat: "
            "data.label=stars.",
        ),
        (
            "review,stars\n" + "".join(f"a,c{i}\n" for i in range(30)),
            {},
            "identifier, not a label; no other column looks like classes",
        ),
        ("review,stars\na,x|y\nb,x\nc,y\n", {}, "has several labels in one row, such as 'x|y'; tasks with several"),
        ("café,stars\na,1\n".encode("latin-1"), {}, "is not UTF-8 (invalid continuation byte); convert it to UTF-8."),
        ("", {}, "has no header; expected the names of the columns in its first line."),
        ("review,stars\n\n", {}, "has no usable rows"),
        ("review,stars\na,1\n\nb,c,2\n", {}, "reviews.csv:4: more fields than in the header (texts that contain"),
        (REVIEWS, {"group": "book"}, "has no column 'book'; valid names: id, review, stars (set data.group)"),
        ("review,stars\n" + "a" * 1_000_001 + ",1\n", {}, "reviews.csv:2: the row is longer than 1,000,000"),
        ("review," * 200_000 + "stars\na,1\n", {}, "reviews.csv:1: the row is longer than 1,000,000 characters"),
        ("review,stars\ra,1\rb,2\r", {}, "ends its lines with carriage returns; save it with line feeds."),
    ],
)  # fmt: skip
def test_a_wrong_file_is_reported_in_one_sentence(
    tmp_path: Path, content: str | bytes, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError) as error:
        inferred_task(csv_data(tmp_path, content, **settings))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_an_empty_text_with_label_0_is_no_blank_line(tmp_path: Path) -> None:
    rows = '{"review": "a", "stars": 1}\n{"review": "", "stars": 0}\n{"review": "b", "stars": 0}\n'
    with pytest.raises(UserError, match=r"rows.jsonl, row 2: column 'review' is empty"):
        inferred_task(csv_data(tmp_path, rows, name="rows.jsonl", source="jsonl"))


@pytest.mark.timeout(20)
def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    config = csv_data(tmp_path, path=str(tmp_path / "pipe.csv"))
    with pytest.raises(
        UserError, match=r"pipe.csv' is a pipe or a device; write its content to a file and give that\.$"
    ):
        inferred_task(config)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("more", [",2", ",2,3"])
def test_rows_left_out_are_counted(tmp_path: Path, first: bool, more: str) -> None:
    header, rows_ = REVIEWS.split("\n", 1)
    bad = f"51,Row,1{more}\n50,,1\n\n"
    content = f"{header}\n{bad}{rows_}" if first else f"{REVIEWS}{bad}"
    config = csv_data(tmp_path, content, skip_bad_rows=True)
    source = make_source(config, task_of(config))
    found = [one for split in ("train", "held_out") for one in source.examples(split)]
    assert {one.texts[0] for one in found} == {f"Row {i}, quoted" for i in range(50)}
    assert source.notes[0] == "reviews.csv: 2 rows with an empty cell or too many fields were skipped."


@pytest.mark.parametrize(
    ("content", "texts", "notes"),
    [
        # A quote at the beginning of two texts of a tab-separated file joins no rows.
        (
            'review\tstars\n"a\t1\nb\t2\n"c\t1\nd\t2\n',
            ['"a', "b", '"c', "d"],
            ["an unclosed quote was read as part of the text, in 2 rows."],
        ),
        ('review\tstars\n"a ""b"""\t1\n"two\nlines"\t2\n', ['a "b"', "two\nlines"], []),
        ('stars\treview\n1\t"two\nlines"\n2\tb\n', ["two\nlines", "b"], []),
        (
            'review,stars\na,1\n"b,1\nc,2\nd",2\n',
            ["a", "b,1\nc,2\nd"],
            ["1 line that looks like a row is inside quotes and was read as part of a text;"],
        ),
        ('review,stars\na,1\n"b,\nc, d\ne",2\n', ["a", "b,\nc, d\ne"], []),
        # A separator within quotes separates nothing.
        *(
            (mark.join(['"a,b;c\td"', "review", "stars"]) + f"\nx{mark}a{mark}1\ny{mark}b{mark}2\n", ["a", "b"], [])
            for mark in ",;\t"
        ),
        ('"my\r\nreview","stars"\r\na,1\r\nb,2\r\n', ["a", "b"], []),
    ],
)
def test_quotes_are_read_as_they_are_meant(tmp_path: Path, content: str, texts: list[str], notes: list[str]) -> None:
    path = tmp_path / "reviews.csv"
    path.write_bytes(content.encode())
    name = "my review" if "my" in content else "review"
    read = read_csv(path, dict.fromkeys([name, "stars"], ""), filled={name, "stars"})
    assert list(read.rows[name]) == texts
    assert len(read.notes) == len(notes)
    assert all(expected in note for expected, note in zip(notes, read.notes, strict=True))


def test_a_file_that_is_too_small_to_hold_rows_out_is_reported(tmp_path: Path) -> None:
    config = csv_data(tmp_path, "review,stars\na,1\nb,2\n")
    source = make_source(config, task_of(config))
    with pytest.raises(UserError, match=r"The 2 training rows of task 'reviews' are too few .*data\.eval_path=<file>"):
        source.examples("train")


@pytest.mark.parametrize(
    ("texts", "how_many"), [(1, "all have the same text, so none"), (2, "have 2 distinct texts, too few")]
)
def test_rows_that_repeat_a_text_are_not_called_too_few(tmp_path: Path, texts: int, how_many: str) -> None:
    config = csv_data(tmp_path, "review,stars\n" + "".join(f"t{i % texts},{i % 2}\n" for i in range(40)))
    source = make_source(config, task_of(config))
    with pytest.raises(UserError, match=rf"The 40 training rows of task 'reviews' {how_many}"):
        source.examples("train")


def test_a_held_out_text_is_in_no_training_row() -> None:
    chance = random.Random(1)
    examples = [Example(i, (f"text {chance.randrange(120)}",), chance.randrange(3)) for i in range(400)]
    chosen = held_out(examples, 0.25, by_class=True)
    assert chosen == held_out(examples, 0.25, by_class=True)
    share = sum(one.texts in chosen for one in examples) / len(examples)
    assert share == pytest.approx(0.25, abs=0.02)
    # Every class is left in training, and a class of a single text is not held out.
    assert held_out([Example(0, ("a",), 0), Example(1, ("b",), 1), Example(2, ("c",), 1)], 0.5, by_class=True) in (
        {("b",)},
        {("c",)},
    )


@given(
    st.lists(st.tuples(st.text(max_size=3), st.integers(0, 1)), min_size=30, max_size=90, unique_by=lambda row: row[0]),
    st.integers(10, 30),
)
def test_rows_that_are_added_move_no_other_row(rows_: list[tuple[str, int]], count: int) -> None:
    examples = [Example(i, (text,), label) for i, (text, label) in enumerate(rows_)]
    before, after = (held_out_by_text(part, 0.5, by_class=False) for part in (examples[:count], examples))
    known = {one.texts for one in examples[:count]}
    # With ten texts or more, all of them are on one side once in 500 times; then one of them changes sides.
    assert len(before ^ (after & known)) <= (len(before) in (1, count - 1))


def test_a_share_is_held_out_of_each_class_by_text() -> None:
    examples = [Example(i, (f"text {i % 1900}",), i % 1900 % 3) for i in range(2000)]
    chosen = held_out_by_text(examples, 0.2, by_class=True)
    for label in range(3):
        members = {one.texts for one in examples if one.label == label}
        # Four standard errors of a binomial share.
        assert len(chosen & members) / len(members) == pytest.approx(0.2, abs=4 * (0.2 * 0.8 / len(members)) ** 0.5)
    few = [Example(0, ("a",), 0), Example(1, ("b",), 1), Example(2, ("c",), 1)]
    for fraction in (0.01, 0.9):
        assert held_out_by_text(few, fraction, by_class=True) in ({("b",)}, {("c",)})


def test_rows_without_a_label_are_not_held_out(tmp_path: Path) -> None:
    config = saved(tmp_path, train=rows([None if i % 3 == 0 else i % 2 for i in range(60)]))
    source = make_source(config, task_of(config))
    train, evaluated = (source.examples(split) for split in ("train", "held_out"))
    assert sorted(one.index for one in (*train, *evaluated)) == [i for i in range(60) if i % 3]
    assert all(one.label == one.index % 2 for one in (*train, *evaluated))
    assert source.notes[0] == "20 training rows without a label were skipped."
    assert "8 of the 40 training rows are held out" in source.notes[1]


def saved(folder: Path, **splits: datasets.Dataset) -> SourceConfig:
    datasets.DatasetDict(splits).save_to_disk(str(folder / "my_set"))
    return SourceConfig.read("data", {"source": "hub", "path": str(folder / "my_set"), "text": "text"})


def rows(labels: list[Any], feature: Any = None) -> datasets.Dataset:
    columns = datasets.Dataset.from_dict({"text": [f"t{i}" for i in range(len(labels))], "label": labels})
    return columns if feature is None else columns.cast_column("label", feature)


@pytest.mark.parametrize(
    ("splits", "evaluated", "labels"),
    [
        ({"train": [0, 1, 0], "validation": [1], "test": [0]}, "validation", ("0", "1")),
        ({"train": [0, 1, 0], "test": [1, 0]}, "test", ("0", "1")),
        ({"train": [0, 1, 0], "test": [-1, -1]}, "held_out", ("0", "1")),
        ({"train": [1, -1, 0, 1], "test": [-1, 1]}, "test", ("-1", "0", "1")),
        ({"train": ["b", "a"], "dev": ["b"]}, "dev", ("a", "b")),
        ({"train": [1, 3, 2], "test": [5]}, "test", ("1", "2", "3", "5")),
    ],
)
def test_a_data_set_tells_its_classes_and_where_to_evaluate(
    tmp_path: Path, splits: dict[str, list[Any]], evaluated: str, labels: tuple[str, ...]
) -> None:
    config = saved(tmp_path, **{name: rows(values) for name, values in splits.items()})
    task = task_of(config)
    assert (task.name, task.labels, task.evaluation) == ("my_set", labels, {"val": evaluated})
    if evaluated != "held_out":
        source = make_source(config, task)
        for split in ("train", evaluated):
            read = [task.labels[int(one.label or 0)] for one in source.examples(split)]
            assert read == list(map(str, splits[split]))


def test_names_of_classes_are_those_of_the_column(tmp_path: Path) -> None:
    # Names that look like the indices of other classes.
    named = datasets.ClassLabel(names=["2", "1", "0"])
    config = saved(tmp_path, train=rows([0, 1, 2], named), validation=rows([0], named))
    task = task_of(config)
    assert task.labels == ("2", "1", "0")
    assert [one.label for one in make_source(config, task).examples("train")] == [0, 1, 2]


def test_decimals_of_a_data_set_are_scores(tmp_path: Path) -> None:
    config = saved(tmp_path, train=rows([0.25, -1.0, 2.0]), validation=rows([3.5]))
    task = task_of(config)
    assert task.label_range == (-1.0, 3.5)
    assert [one.label for one in make_source(config, task).examples("train")] == [0.25, -1.0, 2.0]


def test_a_folder_in_the_layout_of_the_hub_serves_imdb(tmp_path: Path) -> None:
    folder = tmp_path / "imdb"
    folder.mkdir()
    for name, labels in (("train", [0, 1, 1]), ("test", [1, 0]), ("unsupervised", [-1])):
        rows(labels).to_parquet(folder / f"{name}-00000-of-00001.parquet")
    config = SourceConfig.read("data", {"source": "hub", "path": str(folder), "cache_dir": str(tmp_path / "cache")})
    imdb = task_named("imdb")
    source = make_source(config, imdb)
    names = [imdb.labels[int(one.label or 0)] for one in source.examples("train")]
    assert names == ["negative", "positive", "positive"]
    assert [one.label for one in source.examples(imdb.evaluation["val"])] == [1, 0]


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        ({"train": rows([0, 1]).rename_column("text", "texts")}, "has no column 'text'; did you mean 'texts'?"),
        ({"training": rows([0, 1])}, "has no split 'train'; did you mean 'training'?"),
        ({"train": rows([[0], [1]])}, "name the column of the words with data.text"),
        ({"train": rows([f"id{i}" for i in range(30)]).add_column("topic", ["a", "b"] * 15)}, "data.label=topic."),
        ({"train": rows([1, 1])}, "has only one class ('1'); expected at least two."),
    ],
)
def test_a_wrong_data_set_is_reported(tmp_path: Path, splits: dict[str, datasets.Dataset], message: str) -> None:
    with pytest.raises(UserError) as error:
        inferred_task(saved(tmp_path, **splits))
    assert message in str(error.value)


def test_evaluation_rows_that_were_trained_on_are_counted_and_refused_if_all_are(tmp_path: Path) -> None:
    (tmp_path / "later.csv").write_text('stars,review\n1,"Row 0, quoted"\n6,new\n7,newer\n', "utf-8")
    config = csv_data(tmp_path, eval_path=str(tmp_path / "later.csv"))
    source = make_source(config, task_of(config))
    with pytest.warns(UserWarning, match="later.csv"):
        source.examples("validation")
    shared, unseen = source.notes
    assert shared.startswith("1 of the 3 rows of later.csv have the same text as a training row of ")
    assert (
        unseen
        == "later.csv has classes that are missing from the training rows, so the model cannot learn them: '6', '7'."
    )
    (tmp_path / "later.csv").write_text('stars,review\n1,"Row 0, quoted"\n', "utf-8")
    with pytest.raises(UserError, match=r"All 1 rows of '.*later.csv' are among the training rows of"):
        make_source(config, task_of(config)).examples("validation")


def test_a_single_class_is_enough_for_a_model_that_has_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = csv_data(tmp_path, "review,stars\na,good\nb,good\n")
    assert inferred_task(config, outputs=2)["labels"] == ["good"]
    assert "has only class 'good': heads that matter for other classes cannot be found." in caplog.text


def test_odd_classes_are_named_in_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows_of = "".join(f"text {place},{label}\n" for place, label in enumerate(["Yes", "yes", "no", "NA"] * 5))
    (tmp_path / "mixed.csv").write_text(f"text,label\n{rows_of}", "utf-8")
    config = SourceConfig.read("data", {"source": "csv", "path": str(tmp_path / "mixed.csv")})
    assert task_of(config).labels == ("NA", "Yes", "no", "yes")
    (line,) = caplog.messages
    assert (
        "'Yes' and 'yes' differ only in case; 'NA' may stand for a missing label. Each counts as a separate class"
        in line
    )
    caplog.clear()
    task_of(saved(tmp_path, train=rows([0, -1, 1]), validation=rows([1])))
    (line,) = caplog.messages
    assert "'-1' may stand for a missing label" in line
