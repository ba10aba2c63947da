"""Tagged words from columns, treebanks, tables and the demo corpus, bad ones, and windows of long sentences."""

import json
from pathlib import Path
from typing import Any

import datasets
import pytest
from data.tasks import task_of
from data.toy import wordpiece

from bertsecrets.data.example import Example
from bertsecrets.data.module import TaskData
from bertsecrets.data.sources import SourceConfig
from bertsecrets.data.sources.base import HELD_OUT
from bertsecrets.data.sources.demo import PARTS_OF_SPEECH
from bertsecrets.data.tags import annotated_words, note_on_tags, tag_numbers, tagged_windows
from bertsecrets.data.task import Task
from bertsecrets.errors import UserError
from bertsecrets.task_heads.labels import IGNORED

BIO = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
CONLL = """\
-DOCSTART- -X- O O

Alice NNP B-NP B-PER
lives VBZ B-VP O
in IN B-PP O
New NNP B-NP B-LOC
York NNP I-NP I-LOC

# NN B-NP O
it PRP B-NP O

-DOCSTART- -X- O O

Bob NNP B-NP B-PER
"""
CONLLU = """\
# newdoc id = first
# text = Don't go
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tDo\tdo\tAUX\tVB\t_\t3\taux\t_\t_
2\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t_\t_
3\tgo\tgo\tVERB\tVB\t_\t0\troot\t_\t_
3.1\tgone\t_\tVERB\tVBN\t_\t_\t_\t_\t_

# newdoc id = second
# text = It # works
1\tIt\tit\tPRON\t_\t_\t3\tnsubj\t_\t_
2\t#\t#\tSYM\t_\t_\t3\tdep\t_\t_
3\tworks\twork\tVERB\tVBZ\t_\t0\troot\t_\t_

"""


def data_of(tmp_path: Path, name: str, content: str, length: int = 32, **settings: Any) -> TaskData:
    """The data of a file, whose task is what it tells."""
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    kind = "jsonl" if path.suffix == ".jsonl" else "columns"
    given = {"text": "0", "label": "-1"} if kind == "columns" else {"text": "tokens", "label": "ner_tags"}
    config = SourceConfig.read("data", {"source": kind, "path": str(path), **given, **settings})
    task = task_of(config, "all")
    return TaskData(task, config, wordpiece(), max_length=length)


def rows(*pairs: tuple[Any, Any]) -> str:
    return "".join(json.dumps({"tokens": words, "ner_tags": tags}) + "\n" for words, tags in pairs)


def shown(data: TaskData, split: str = "all") -> list[list[tuple[str, str]]]:
    """Each example's words and their tags."""
    return [
        [
            (word.form, "-" if tag == IGNORED else data.task.labels[tag])
            for word, tag in zip(one.annotations[0].words, one.label, strict=True)
        ]
        for one in data.examples(split)
    ]


def test_a_file_as_in_conll_2003(tmp_path: Path) -> None:
    data = data_of(tmp_path, "train.txt", CONLL, group="document")
    assert data.task.labels == ("O", "B-LOC", "I-LOC", "B-PER")
    assert data.task.metrics == ("entity_f1", "token_accuracy")
    assert shown(data)[0][2:] == [("in", "O"), ("New", "B-LOC"), ("York", "I-LOC")]
    assert shown(data)[1] == [("#", "O"), ("it", "O")]
    first, second, third = data.examples("all")
    assert first.texts == ("Alice lives in New York",)
    assert first.group == second.group != third.group


def test_a_treebank_by_names_of_columns(tmp_path: Path) -> None:
    data = data_of(tmp_path, "toy.conllu", CONLLU, text="form", label="xpos", group="document")
    assert shown(data) == [[("Do", "VB"), ("n't", "RB"), ("go", "VB")], [("It", "-"), ("#", "-"), ("works", "VBZ")]]
    assert len({one.group for one in data.examples("all")}) == 2


def test_a_treebank_as_source_keeps_its_text_and_syntax(tmp_path: Path) -> None:
    (tmp_path / "dev.conllu").write_text(CONLLU, encoding="utf-8")
    labels = ["AUX", "PART", "PRON", "SYM", "VERB"]
    task = Task.read(
        "task",
        {"name": "pos", "kind": "tokens", "metrics": ["token_accuracy"], "texts": 1, "labels": labels}
        | {"conllu": {"folder": "."}},
    )
    data = TaskData(task, SourceConfig.read("data", {"source": "conllu", "root": str(tmp_path)}), wordpiece())
    first = data.examples("validation")[0]
    assert first.texts == ("Don't go",)
    assert first.label == (0, 1, 4)
    assert first.annotations[0].words[1].relation == "advmod"


def test_lists_in_tables(tmp_path: Path) -> None:
    data = data_of(tmp_path, "a.jsonl", rows((["Ann", "sleeps"], ["B-PER", "O"]), (["in", "Rome"], ["O", "B-LOC"])))
    assert shown(data) == [[("Ann", "B-PER"), ("sleeps", "O")], [("in", "O"), ("Rome", "B-LOC")]]
    classes = datasets.Features(
        {"tokens": datasets.List(datasets.Value("string")), "ner_tags": datasets.List(datasets.ClassLabel(names=BIO))}
    )
    table = {"tokens": [["Ann", "?"], ["b"]], "ner_tags": [[3, IGNORED], [0]]}
    datasets.Dataset.from_dict(table, classes).save_to_disk(str(tmp_path / "saved"))
    given = {"source": "hub", "path": str(tmp_path / "saved"), "text": "tokens", "label": "ner_tags"}
    config = SourceConfig.read("data", given)
    task = task_of(config, "all")
    assert task.labels == BIO
    assert shown(TaskData(task, config, wordpiece())) == [[("Ann", "B-PER"), ("?", "-")], [("b", "O")]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (rows((["a", "b"], ["O"])), "row 1 has 2 words but 1 tags; give every word one tag"),
        (rows((["a", ""], ["O", "O"])), "has the word ''; expected a text without spaces around it"),
        (rows((["a"], [None]), (["b"], [IGNORED])), "No word of split 'train' of task 'bad' has a tag"),
        (rows(("a b", ["O", "O"])), "column 'tokens' is 'a b'; expected a list of words"),
    ],
)
def test_bad_rows(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(content, encoding="utf-8")
    table = {"texts": ["tokens"], "label": "ner_tags"}
    task = {"name": "bad", "kind": "tokens", "metrics": ["entity_f1"], "texts": 1, "labels": BIO, "table": table}
    config = SourceConfig.read("data", {"source": "jsonl", "path": str(path)})
    data = TaskData(Task.read("task", {**task, "evaluation": {"val": "all"}}), config, wordpiece())
    with pytest.raises(UserError, match=message):
        data.setup("fit")


@pytest.mark.parametrize(
    ("name", "content", "settings", "message"),
    [
        ("a.txt", "word\n", {"label": "1"}, "a.txt:1: there is no column '1' among 1; set data.label to 0 to 0"),
        ("a.conllu", CONLLU, {"label": "ner"}, "there is no column 'ner' among 10; .* or id, form, lemma"),
        ("a.txt", "-DOCSTART- O\n\n", {}, "has no sentences; expected a word and its tag in each line"),
        ("a.txt", "a X\nb X\n", {}, "has only one class"),
        ("a.jsonl", rows(("a b", ["O", "X"])), {}, "column 'tokens' a text; name the column of the words"),
        ("a.jsonl", rows((["a"], [IGNORED])), {}, "has no tags .none, or -100.; give tags"),
    ],
)
def test_bad_files(tmp_path: Path, name: str, content: str, settings: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        data_of(tmp_path, name, content, **settings)


def test_unknown_tags_and_texts_that_are_no_words() -> None:
    assert tag_numbers(["O", 3, None, IGNORED], BIO, 4, "x") == (0, 3, IGNORED, IGNORED)
    with pytest.raises(UserError, match="x, word 2: unknown tag 'B-PRE'; did you mean 'B-PER'"):
        tag_numbers(["O", "B-PRE"], BIO, 2, "x")
    with pytest.raises(UserError, match="x, word 1: unknown tag 5; expected 0 to 4, or a name"):
        tag_numbers([5], BIO, 1, "x")
    with pytest.raises(UserError, match="x is 'a b'; expected a list of words"):
        annotated_words("a b", "x")
    with pytest.raises(UserError, match="x has no words; remove it"):
        annotated_words([], "x")


def tagged(*sentences: str) -> list[Example]:
    """Examples from ``word/TAG`` texts."""
    examples = []
    for index, sentence in enumerate(sentences):
        words, tags = zip(*(pair.split("/") for pair in sentence.split()), strict=True)
        text, annotation = annotated_words(words, "x")
        examples.append(Example(index, (text,), tag_numbers(tags, BIO, len(words), "x"), (annotation,)))
    return examples


def test_entities_without_b_are_counted_once() -> None:
    note = note_on_tags(tagged("a/O b/I-PER c/I-PER", "d/B-PER e/I-PER f/I-LOC"), BIO, "split 'val'")
    assert note.startswith("2 entities of split 'val' begin without B-, e.g. with 'I-PER' at word 2 of sentence 1;")
    assert note_on_tags(tagged("a/O", "b/B-PER c/I-PER"), BIO, "x") is None
    # Tags of inside and outside alone.
    assert note_on_tags([Example(0, ("a",), (1,))], ("O", "I-PER"), "x") is None


@pytest.mark.parametrize("length", [5, 6, 8])
def test_long_sentences_are_cut_outside_of_entities(length: int) -> None:
    sentence = "the/O cat/B-PER man/I-PER saw/O the/B-LOC dog/I-LOC a/B-LOC fish/O man/O"
    short, long = tagged("a/O cat/O", sentence)
    cut = tagged_windows([short, long], BIO, wordpiece(), length)
    assert [one.index for one in cut] == list(range(len(cut)))
    assert cut[0].label == short.label
    windows = cut[1:]
    # Each word is scored once, and no entity is divided.
    assert tuple(tag for one in windows for tag in one.label) == long.label
    assert " ".join(one.texts[0] for one in windows) == long.texts[0]
    assert all(not BIO[one.label[0]].startswith("I-") for one in windows)
    assert len({one.group for one in windows}) == 1 != len({one.group for one in cut})
    assert all(len(wordpiece()(one.texts[0])["input_ids"]) <= length for one in windows)
    assert tagged_windows([short], BIO, wordpiece(), length) == [short]


def test_windows_are_batches_with_a_label_for_each_word(tmp_path: Path) -> None:
    data = data_of(tmp_path, "a.txt", "the O\nunhappy B-X\ncat O\ndogs I-X\n\na O\n", length=5)
    data.setup("validate")
    batches = [*data.evaluation_loader("val")]
    rows = [row for batch in batches for row in batch.label_B.tolist()]
    scored = [data.task.labels[tag] for row in rows for tag in row if tag != IGNORED]
    assert sorted(scored) == ["B-X", "I-X", "O", "O", "O"]
    assert len({group for batch in batches for group in batch.group_B.tolist()}) == 2
    assert "1 sentence is longer than 5 tokens in split 'all' and cut between words" in data.notes[-1]


def test_words_of_the_demo_have_their_parts_of_speech(tmp_path: Path) -> None:
    config = {"name": "demo_tags", "kind": "tokens", "metrics": ["token_accuracy"], "texts": 1, "demo": True}
    labels = [*PARTS_OF_SPEECH]
    data = TaskData(Task.read("task", {**config, "labels": labels}), SourceConfig.read("data", {}), wordpiece())
    for example in data.examples("validation"):
        assert [labels[tag] for tag in example.label] == [word.pos for word in example.annotations[0].words]
    shuffled = TaskData(data.task, SourceConfig.read("data", {"permute_labels": True}), wordpiece())
    before, after = data.examples("train"), shuffled.examples("train")
    assert [len(one.label) for one in before] == [len(one.label) for one in after]
    assert sorted(tag for one in before for tag in one.label) == sorted(tag for one in after for tag in one.label)
    assert [one.label for one in before] != [one.label for one in after]


def test_sentences_are_held_out_whatever_their_tags(tmp_path: Path) -> None:
    lines = "".join(f"w{number} O\nx{number} {'B-A' if number % 3 else 'O'}\n\n" for number in range(100))
    path = tmp_path / "a.txt"
    path.write_text(lines, encoding="utf-8")
    config = SourceConfig.read("data", {"source": "columns", "path": str(path), "text": "0", "label": "-1"})
    data = TaskData(task_of(config), config, wordpiece())
    assert 10 <= len(data.examples(HELD_OUT)) <= 30


def test_other_words_than_the_tagged_ones_are_refused() -> None:
    config = {"name": "demo_tags", "kind": "tokens", "metrics": ["token_accuracy"], "texts": 1, "demo": True}
    task = Task.read("task", {**config, "labels": [*PARTS_OF_SPEECH]})
    with pytest.raises(UserError, match="belong to the words of its data"):
        TaskData(task, SourceConfig.read("data", {}), wordpiece(), annotator=object())
