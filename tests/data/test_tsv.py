"""The original GLUE layout: real files, and every way in which a file can be wrong."""

from collections import Counter
from pathlib import Path

import pytest
from data.tasks import task

from bertsecrets.data.sources import SourceConfig, make_source
from bertsecrets.data.sources.table import TsvSource
from bertsecrets.data.task import Task
from bertsecrets.errors import UserError

HEADER = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"


def write(root: Path, content: str, folder: str = "MRPC", name: str = "dev.tsv", encoding: str = "utf-8") -> Path:
    path = root / folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode(encoding))
    return path


def read(root: Path, name: str = "mrpc", split: str = "validation", **settings: bool) -> list[tuple[object, ...]]:
    examples = TsvSource(task(name), root, **settings).examples(split)
    assert [example.index for example in examples] == list(range(len(examples)))
    return [(*example.texts, example.label) for example in examples]


@pytest.mark.parametrize(
    ("name", "split", "rows"),
    [
        ("mrpc", "train", 3668),
        ("mrpc", "validation", 408),
        ("mrpc", "test", 1725),
        ("rte", "train", 2490),
        ("rte", "validation", 277),
        ("rte", "test", 3000),
        ("cola", "train", 8551),
        ("cola", "validation", 1043),
        ("cola", "test", 1063),
        ("sst2", "train", 67349),
        ("sst2", "validation", 872),
        ("sst2", "test", 1821),
        ("stsb", "train", 5749),
        ("stsb", "validation", 1500),
        ("stsb", "test", 1379),
        ("mnli", "train", 8999),
        ("mnli", "validation_matched", 9815),
        ("qqp", "train", 8999),
        ("qqp", "validation", 1000),
    ],
)
def test_real_files_have_all_their_rows(glue: Path, name: str, split: str, rows: int) -> None:
    examples = TsvSource(task(name), glue).examples(split)
    assert len(examples) == rows
    assert {len(example.texts) for example in examples} == {task(name).texts}
    assert all((example.label is None) == (split == "test") for example in examples)


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("mrpc", {"equivalent": 279, "not_equivalent": 129}),
        ("rte", {"entailment": 146, "not_entailment": 131}),
        ("sst2", {"positive": 444, "negative": 428}),
    ],
)
def test_real_labels_are_those_of_the_files(glue: Path, name: str, counts: dict[str, int]) -> None:
    found = TsvSource(task(name), glue).examples("validation")
    assert Counter(task(name).labels[int(example.label or 0)] for example in found) == counts


def test_real_scores_have_the_known_means(glue: Path) -> None:
    for split, mean in (("train", 2.70), ("validation", 2.36)):
        scores = [example.label for example in TsvSource(task("stsb"), glue).examples(split)]
        assert sum(float(score or 0) for score in scores) / len(scores) == pytest.approx(mean, abs=0.005)


def test_quotes_are_not_special(tmp_path: Path) -> None:
    write(tmp_path, HEADER + '1\t1\t2\t" He left .\tHe said " no .\n0\t1\t2\ta "" b\t"c"\n')
    assert read(tmp_path) == [('" He left .', 'He said " no .', 1), ('a "" b', '"c"', 0)]


def test_byte_order_mark_and_carriage_returns_are_not_part_of_the_text(tmp_path: Path) -> None:
    content = (HEADER + "1\t1\t2\ta\tb\n").replace("\n", "\r\n")
    write(tmp_path, content, encoding="utf-8-sig")
    assert read(tmp_path) == [("a", "b", 1)]


@pytest.mark.parametrize("separator", ["\u0085", "\u2028", "\x0b", "\x0c", "\x1e", "\r"])
def test_only_a_line_feed_ends_a_line(tmp_path: Path, separator: str) -> None:
    write(tmp_path, HEADER + f"1\t1\t2\tone{separator}two\tb\n0\t1\t2\tc\td\n")
    assert read(tmp_path) == [(f"one{separator}two", "b", 1), ("c", "d", 0)]


def test_cola_has_four_columns_and_no_header_but_its_test_split_has_one(tmp_path: Path) -> None:
    write(tmp_path, "gj04\t1\t\tThe sailors rode .\ngj04\t0\t*\tSailors the rode .\n", "CoLA")
    write(tmp_path, "index\tsentence\n0\tBill left .\n", "CoLA", "test.tsv")
    assert read(tmp_path, "cola") == [("The sailors rode .", 1), ("Sailors the rode .", 0)]
    assert read(tmp_path, "cola", "test") == [("Bill left .", None)]


def test_mnli_in_its_original_sixteen_columns(tmp_path: Path) -> None:
    header = (
        "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\t"
        "sentence2_parse\tsentence1\tsentence2\tlabel1\tlabel2\tlabel3\tlabel4\tlabel5\tgold_label\n"
    )
    row = "\t".join(["0", "1", "2", "fiction", *"pqrs", "A man .", "A woman .", *"nnccc", "contradiction"])
    for name in ("dev_matched.tsv", "dev_mismatched.tsv"):
        write(tmp_path, header + row + "\n", "MNLI", name)
    for split in ("validation_matched", "validation_mismatched"):
        assert read(tmp_path, "mnli", split) == [("A man .", "A woman .", 2)]


def test_qnli_and_wnli(tmp_path: Path) -> None:
    write(tmp_path, "index\tquestion\tsentence\tlabel\n0\tWho ?\tHe .\tnot_entailment\n", "QNLI")
    write(tmp_path, "index\tsentence1\tsentence2\tlabel\n0\ta\tb\t1\n", "WNLI")
    assert read(tmp_path, "qnli") == [("Who ?", "He .", 1)]
    assert read(tmp_path, "wnli") == [("a", "b", 1)]


def test_qqp_rows_with_too_few_fields_are_reported_or_left_out(tmp_path: Path) -> None:
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    path = write(tmp_path, header + "1\t2\t3\ta ?\tb ?\t0\n4\t5\t6\tbroken\n7\t8\t9\tc ?\td ?\t1\n", "QQP")
    with pytest.raises(UserError, match=r"column 'is_duplicate' is empty; .*data\.skip_bad_rows=true") as error:
        read(tmp_path, "qqp")
    assert f"{path}:3" in str(error.value)
    with pytest.warns(UserWarning, match=r"1 row with an empty cell or too many fields was left out"):
        assert read(tmp_path, "qqp", skip_bad_rows=True) == [("a ?", "b ?", 0), ("c ?", "d ?", 1)]


@pytest.mark.parametrize(
    ("name", "folder", "content", "message"),
    [
        ("mrpc", "MRPC", HEADER, "dev.tsv' has no rows that can be used"),
        ("mrpc", "MRPC", "", "dev.tsv' has no header; expected the names"),
        ("mrpc", "MRPC", "Quality\tID\t#1 Strin\t#2 String\n", "no column '#1 String'; did you mean '#1 Strin'?"),
        ("mrpc", "MRPC", HEADER + "1\t1\t2\ta\tb\n2\t1\t2\ta\tb\n", "dev.tsv:3: label '2' of task 'mrpc'; expected one "
                                                                    "of 0, 1"),
        ("rte", "RTE", "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tmaybe\n", "dev.tsv:2: label 'maybe' of task "
                                                                               "'rte'"),
        ("stsb", "STS-B", "sentence1\tsentence2\tscore\na\tb\thigh\n", "dev.tsv:2: score 'high' of task 'stsb'; "
                                                                       "expected a number"),
        ("stsb", "STS-B", "sentence1\tsentence2\tscore\na\tb\t5.1\n", "dev.tsv:2: score '5.1' of task 'stsb'; expected "
                                                                      "a number from 0 to 5"),
        ("stsb", "STS-B", "sentence1\tsentence2\tscore\na\tb\tnan\n", "dev.tsv:2: score 'nan' of task 'stsb'"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_reported_with_its_place(
    tmp_path: Path, name: str, folder: str, content: str, message: str
) -> None:
    write(tmp_path, content, folder)
    with pytest.raises(UserError) as error:
        read(tmp_path, name)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_utf8_is_reported(tmp_path: Path) -> None:
    write(tmp_path, HEADER + "1\t1\t2\tcafé\tb\n", encoding="latin-1")
    with pytest.raises(UserError, match=r"dev\.tsv' is not UTF-8"):
        read(tmp_path)


def test_missing_folder_file_and_setting_are_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data=tsv needs data\.root"):
        make_source(SourceConfig(source="tsv"), task("mrpc"))
    with pytest.raises(UserError, match=r"nowhere' is not a directory; give the one that holds MRPC"):
        make_source(SourceConfig(source="tsv", root=str(tmp_path / "nowhere")), task("mrpc"))
    with pytest.raises(UserError, match=r"dev\.tsv' is missing; data\.root must hold MRPC/dev\.tsv"):
        read(tmp_path)
    with pytest.raises(UserError, match=r"Unknown split 'tset' of task 'mrpc'; did you mean 'test'\?"):
        read(tmp_path, split="tset")


def test_auto_takes_the_files_of_a_task_that_has_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "MINE").mkdir()
    (tmp_path / "MINE" / "train.tsv").write_text("text\tlabel\nA cat.\tno\nA dog.\tyes\n", "utf-8")
    layout = {"folder": "MINE", "files": {"train": "train.tsv"}, "texts": ["text"], "label": "label"}
    task = Task.read("task", {"name": "m", "metrics": ["accuracy"], "texts": 1, "labels": ["no", "yes"], "tsv": layout})
    examples = make_source(SourceConfig(root=str(tmp_path)), task).examples("train")
    assert [(example.texts, example.label) for example in examples] == [(("A cat.",), 0), (("A dog.",), 1)]
