"""Examples that belong together: how they are named, refused, held out, and judged."""

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from data.tasks import task as task_named
from data.tasks import task_of
from data.toy import wordpiece
from families import CONFIGS
from transformers import BertForSequenceClassification

import bertsecrets as bs
from bertsecrets.data.example import Example
from bertsecrets.data.groups import note_on, with_groups
from bertsecrets.data.module import TaskData
from bertsecrets.data.sources import SourceConfig, check_controls, make_source
from bertsecrets.errors import UserError

TEXTS = ["the cat saw", "a man eats fish", "dog", "the dog sees a cat", "un happy man", "fish"]


def examples(*texts: tuple[str, ...]) -> list[Example]:
    return [Example(index, one, 0) for index, one in enumerate(texts)]


def test_rows_of_one_name_are_of_one_group_whatever_other_rows_there_are() -> None:
    rows = examples(("a",), ("b",), ("c",))
    grouped = with_groups(rows, ["x", "y", "x"], "group")
    assert grouped[0].group == grouped[2].group != grouped[1].group
    assert with_groups(rows[:2], ["y", "z"], "group")[0].group == grouped[1].group
    assert torch.tensor([one.group for one in grouped]).dtype == torch.int64


@pytest.mark.parametrize(
    ("texts", "names", "message"),
    [
        ([("a",), ("b",)], ["x", "x"], "group contains 'x' in all 2 rows, so no two rows are independent"),
        ([("a",), ("b",)], ["x", None], "group is empty in row 1; give every row a group."),
        ([("a",), ("b",)], [float("nan"), "x"], "group is empty in row 0"),
        ([("a",), ("b",)], pd.array([1, None], dtype="Int64"), "group is empty in row 1"),
        ([("a",), ("b",)], pd.array(["x", None], dtype="string"), "group is empty in row 1"),
        ([("a", "b"), ("c", "d"), ("a", "b")], ["x", "y", "y"], "splits a pair: 'a / b' is in the groups 'x' and 'y'"),
    ],
)  # fmt: skip
def test_wrong_groups_are_refused(texts: list[tuple[str, ...]], names: list[Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        with_groups(examples(*texts), names, "group")
    assert message in str(error.value)


def test_repeated_premises_are_named() -> None:
    rows = examples(*((f"premise {i // 3}", f"hypothesis {i}") for i in range(30)))
    assert note_on(rows, ["premise", "hypothesis"]) == (
        "Intervals may be too narrow: 30 of the 30 rows share their 'premise' with another row; set "
        "data.group=premise to treat such rows as one group."
    )
    assert note_on(with_groups(rows, [i // 3 for i in range(30)], "group"), ["premise", "hypothesis"]) == (
        "The 30 evaluated rows form 10 groups; rows of a group are resampled together."
    )
    assert note_on(examples(*((f"text {max(i, 1)}",) for i in range(100))), ["text"]) is None


@pytest.mark.parametrize("library", ["pandas", "datasets"])
def test_columns_of_a_frame_or_a_data_set_are_judged_by_groups(library: str) -> None:
    torch.manual_seed(0)
    model, tokenizer = BertForSequenceClassification(CONFIGS["bert"]()), wordpiece()
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    columns = {"text": TEXTS * 8, "label": np.arange(48) % 2, "review": np.arange(48) // 6}
    frame = pd.DataFrame(columns) if library == "pandas" else datasets.Dataset.from_dict(columns)
    given = (model.eval(), tokenizer, frame["text"], frame["label"])
    alone, grouped = bs.disable(*given, resamples=200), bs.disable(*given, group=frame["review"], resamples=200)
    assert len(grouped.outcomes.group_N.unique()) == 8
    # The same models, judged by eight groups in place of 48 examples.
    for first, second in zip(alone.rows, grouped.rows, strict=True):
        assert first["delta"] == second["delta"]
        assert second["high"] - second["low"] > first["high"] - first["low"]
    with pytest.raises(UserError, match="group has 3 values for 48 texts; give one per text"):
        bs.disable(*given, group=[1, 2, 3])


ROWS = [{"review": f"text {i}", "stars": f"0{i % 2}", "book": f"book {i // 4}", "title": "NA"} for i in range(80)]


def own(folder: Path, kind: str, rows: list[dict[str, str]] = ROWS, **settings: Any) -> SourceConfig:
    """A file of rows, or a folder that ``save_to_disk`` wrote."""
    path, table = folder / f"rows [1].{kind}", datasets.Dataset.from_list(rows)
    write = {"csv": table.to_csv, "jsonl": table.to_json, "parquet": table.to_parquet, "hub": table.save_to_disk}[kind]
    write(str(path))
    columns = {"text": "review", "label": "stars", "group": "book", "split_by": "text"}
    return SourceConfig.read("data", {"source": kind, "path": str(path), **columns, **settings})


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "hub"])
def test_rows_are_the_same_in_every_format_and_held_out_by_group(tmp_path: Path, kind: str) -> None:
    config = own(tmp_path, kind, cache_dir=str(tmp_path / "cache"))
    task = task_of(config)
    assert task.labels == ("00", "01")
    source = make_source(config, task)
    train, evaluated = (source.examples(split) for split in ("train", "held_out"))
    assert sorted((one.index, one.texts, one.label) for one in (*train, *evaluated)) == [
        (i, (f"text {i}",), i % 2) for i in range(80)
    ]
    assert {one.group for one in train} & {one.group for one in evaluated} == set()
    assert {len([one for one in evaluated if one.group == group]) for group in {one.group for one in evaluated}} == {4}
    assert "chosen by a hash of the group" in source.notes[-1]
    titles = config.model_copy(update={"text": "title", "group": None})
    examples = make_source(titles, task_of(titles, "validation")).examples("train")
    assert {one.texts for one in examples} == {("NA",)}


@pytest.mark.parametrize(
    ("changed", "settings", "message"),
    [
        ({}, {"group": "bok"}, "no column 'bok'; did you mean 'book'?"),
        ({"book": "one"}, {}, "Column 'book' of '{path}' contains 'one' in all 80 rows"),
        ({"review": "the same", "title": "too"}, {"text": ["review", "title"]}, "'{path}' splits a pair"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_wrong_groups_of_a_file_are_refused(
    tmp_path: Path, kind: str, changed: dict[str, str], settings: dict[str, Any], message: str
) -> None:
    config = own(tmp_path, kind, [{**row, **changed} for row in ROWS], **settings)
    with pytest.raises(UserError) as error:
        make_source(config, task_of(config)).examples("train")
    assert message.format(path=config.path) in str(error.value)


def test_groups_need_columns() -> None:
    with pytest.raises(UserError, match=r"data\.group is premise, but task 'demo_nli' is generated by the project"):
        check_controls(SourceConfig(group="premise"), task_named("demo_nli"))


def test_evaluated_rows_of_trained_groups_are_counted(tmp_path: Path) -> None:
    config = own(tmp_path, "csv", eval_path=str(tmp_path / "later.csv"))
    later = [{**ROWS[0], "review": "new", "book": f"book {19 + i}"} for i in range(3)]
    datasets.Dataset.from_list(later).to_csv(str(tmp_path / "later.csv"))
    source = make_source(config, task_of(config))
    assert len(source.examples("validation")) == 3
    assert "1 of the 3 rows of later.csv have the same 'book' as a training row" in source.notes[0]


def test_repeated_texts_are_a_note_of_the_data(tmp_path: Path) -> None:
    rows = [{**row, "review": f"text {i // 2}"} for i, row in enumerate(ROWS)]
    config = own(tmp_path, "csv", rows, group=None, eval_fraction=0.5)
    data = TaskData(task_of(config), config, wordpiece())
    data.setup("fit")
    assert any("share their 'review' with another row; set data.group=review" in note for note in data.notes)
