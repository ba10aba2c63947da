"""Tables: GLUE's original files, local copies of data sets, and a hub that cannot be reached."""

import logging
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub
import pytest
from data.tasks import task

from bertsecrets.data.sources import SourceConfig, make_source
from bertsecrets.data.sources.table import HubSource, TsvSource
from bertsecrets.data.task import HubLayout, Task
from bertsecrets.errors import UserError

HEADER = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
QQP = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
MNLI = "index\tgenre\tsentence1\tsentence2\tlabel1\tgold_label\n0\tfiction\tA man .\tA woman .\tneutral\t"
TEXT = datasets.Value("string")
CLASSES = datasets.ClassLabel(names=["not_equivalent", "equivalent"])


def tsv(root: Path, name: str, files: dict[str, str | bytes], split: str = "validation", **settings: bool) -> list[Any]:
    """The texts and labels of a split of a task, of which some files were written."""
    for path, content in files.items():
        (root / path).parent.mkdir(exist_ok=True)
        (root / path).write_bytes(content if isinstance(content, bytes) else content.encode())
    examples = TsvSource(task(name), root, **settings).examples(split)
    assert [example.index for example in examples] == list(range(len(examples)))
    return [(*example.texts, example.label) for example in examples]


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("mrpc", {"train": 3668, "validation": 408, "test": 1725}),
        ("rte", {"train": 2490, "validation": 277, "test": 3000}),
        ("cola", {"train": 8551, "validation": 1043, "test": 1063}),
        ("sst2", {"train": 67349, "validation": 872, "test": 1821}),
        ("stsb", {"train": 5749, "validation": 1500, "test": 1379}),
        ("mnli", {"train": 8999, "validation_matched": 9815}),
        ("qqp", {"train": 8999, "validation": 1000}),
    ],
)
def test_real_files_have_all_their_rows(glue: Path, name: str, counts: dict[str, int]) -> None:
    for split, count in counts.items():
        examples = TsvSource(task(name), glue).examples(split)
        assert len(examples) == count
        assert {len(example.texts) for example in examples} == {task(name).texts}
        assert all((example.label is None) == (split == "test") for example in examples)


def test_real_labels_are_those_of_the_files(glue: Path) -> None:
    for name, counts in {"mrpc": {0: 129, 1: 279}, "rte": {0: 146, 1: 131}, "sst2": {0: 428, 1: 444}}.items():
        assert Counter(one.label for one in TsvSource(task(name), glue).examples("validation")) == counts
    scores = [float(one.label or 0) for one in TsvSource(task("stsb"), glue).examples("validation")]
    assert sum(scores) / len(scores) == pytest.approx(2.36, abs=0.005)


@pytest.mark.parametrize(
    ("name", "path", "content", "expected"),
    [
        # Quotes are not special.
        ("mrpc", "MRPC/dev.tsv", HEADER + '1\t1\t2\t" He left .\tHe said " no .\n0\t1\t2\ta "" b\t"c"\n',
         [('" He left .', 'He said " no .', 1), ('a "" b', '"c"', 0)]),
        ("mrpc", "MRPC/dev.tsv", ("\ufeff" + HEADER + "1\t1\t2\ta\tb\n").replace("\n", "\r\n"), [("a", "b", 1)]),
        # Only a line feed ends a line.
        *(
            ("mrpc", "MRPC/dev.tsv", HEADER + f"1\t1\t2\tone{mark}two\tb\n0\t1\t2\tc\td\n",
             [(f"one{mark}two", "b", 1), ("c", "d", 0)])
            for mark in ("\u0085", "\u2028", "\x0b", "\x0c", "\x1e", "\r")
        ),
        # Columns by position, and texts that would be numbers or nothing.
        ("cola", "CoLA/dev.tsv", "gj04\t1\t\tSailors rode .\ngj04\t0\t*\tNA\n", [("Sailors rode .", 1), ("NA", 0)]),
        ("mnli", "MNLI/dev_matched.tsv", MNLI + "contradiction\n", [("A man .", "A woman .", 2)]),
        ("qnli", "QNLI/dev.tsv", "index\tquestion\tsentence\tlabel\n0\t01\tA\tnot_entailment\n", [("01", "A", 1)]),
        ("wnli", "WNLI/dev.tsv", "index\tsentence1\tsentence2\tlabel\n0\ta\tb\t1\n", [("a", "b", 1)]),
    ],
)  # fmt: skip
def test_rows_of_glue_are_read_as_they_are(
    tmp_path: Path, name: str, path: str, content: str, expected: list[Any]
) -> None:
    split = "validation_matched" if name == "mnli" else "validation"
    assert tsv(tmp_path, name, {path: content}, split) == expected


def test_a_test_split_may_have_a_header_where_others_have_none(tmp_path: Path) -> None:
    assert tsv(tmp_path, "cola", {"CoLA/test.tsv": "index\tsentence\n0\tBill left .\n"}, "test") == [
        ("Bill left .", None)
    ]


def test_rows_with_too_few_or_too_many_fields_are_left_out_and_counted(tmp_path: Path) -> None:
    content = QQP + "1\t2\t3\ta ?\tb ?\t0\n4\t5\t6\tbroken\n7\t8\t9\tc ?\td ?\t1\n7\t8\t9\tc ?\td ?\t1\tmore\tfields\n"
    with pytest.warns(UserWarning, match=r"dev.tsv: 2 rows with an empty cell or too many fields were skipped"):
        found = tsv(tmp_path, "qqp", {"QQP/dev.tsv": content}, skip_bad_rows=True)
    assert found == [("a ?", "b ?", 0), ("c ?", "d ?", 1)]


@pytest.mark.parametrize(
    ("name", "path", "content", "message"),
    [
        ("mrpc", "MRPC/dev.tsv", HEADER, "dev.tsv' has no usable rows"),
        ("mrpc", "MRPC/dev.tsv", "", "dev.tsv' has no header; expected the names"),
        ("mrpc", "MRPC/dev.tsv", "Quality\tID\t#1 Strin\t#2 String\n", "no column '#1 String'; did you mean"),
        ("mrpc", "MRPC/dev.tsv", HEADER + "1\t1\t2\ta\tb\n2\t1\t2\ta\tb\n", "dev.tsv:3: label '2' of task 'mrpc'; "
                                                                            "expected one of 0, 1"),
        ("mrpc", "MRPC/dev.tsv", (HEADER + "1\t1\t2\tcafé\tb\n").encode("latin-1"), "dev.tsv' is not UTF-8"),
        ("qqp", "QQP/dev.tsv", QQP + "1\t2\t3\ta\tb\t0\n4\tbroken\n", "dev.tsv:3: column 'is_duplicate' is empty; fix"),
        ("stsb", "STS-B/dev.tsv", "sentence1\tsentence2\tscore\na\tb\t5.1\n", "dev.tsv:2: score '5.1' of task 'stsb'; "
                                                                              "expected a number from 0 to 5"),
        ("stsb", "STS-B/dev.tsv", "sentence1\tsentence2\tscore\na\tb\tnan\n", "dev.tsv:2: score 'nan' of task 'stsb'"),
        ("rte", "MRPC/dev.tsv", HEADER, "dev.tsv' is missing; data.root must contain RTE/dev.tsv"),
    ],
)  # fmt: skip
def test_a_wrong_file_of_glue_is_reported_with_its_place(
    tmp_path: Path, name: str, path: str, content: str | bytes, message: str
) -> None:
    with pytest.raises(UserError) as error:
        tsv(tmp_path, name, {path: content})
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_auto_takes_the_files_of_a_task_that_has_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "MINE").mkdir()
    (tmp_path / "MINE" / "train.tsv").write_text("text\tlabel\nA cat.\tno\nA dog.\tyes\n", "utf-8")
    layout = {"folder": "MINE", "files": {"train": "train.tsv"}, "texts": ["text"], "label": "label"}
    mine = Task.read("task", {"name": "m", "metrics": ["accuracy"], "texts": 1, "labels": ["no", "yes"], "tsv": layout})
    examples = make_source(SourceConfig(root=str(tmp_path)), mine).examples("train")
    assert [(example.texts, example.label) for example in examples] == [(("A cat.",), 0), (("A dog.",), 1)]


def rows(label: list[Any], **columns: list[Any]) -> datasets.Dataset:
    count = len(label)
    given = {"sentence1": [f"a {i}" for i in range(count)], "sentence2": [f"b {i}" for i in range(count)]} | columns
    return datasets.Dataset.from_dict({**given, "label": label})


def copy(folder: Path, kind: str = "parquet", **splits: datasets.Dataset) -> Path:
    """A local copy of a data set, as files that ``load_dataset`` reads or as ``save_to_disk`` writes it."""
    if kind == "saved":
        datasets.DatasetDict(splits).save_to_disk(str(folder))
    for name, split in splits.items() if kind != "saved" else ():
        folder.mkdir(exist_ok=True)
        {"parquet": split.to_parquet, "csv": split.to_csv}[kind](str(folder / f"{name}.{kind}"))
    return folder


def hub(path: Path, chosen: str | Task = "mrpc") -> HubSource:
    config = SourceConfig(source="hub", path=str(path), cache_dir=str(path.parent / "cache"))
    return make_source(config, task(chosen) if isinstance(chosen, str) else chosen).source


@pytest.mark.parametrize("kind", ["parquet", "csv", "saved"])
def test_a_local_copy_is_read(tmp_path: Path, kind: str) -> None:
    source = hub(copy(tmp_path / "set", kind, train=rows([1, 0], sentence1=["NA", "null"]), test=rows([-1, -1])))
    train = source.examples("train")
    assert [(one.index, one.texts, one.label) for one in train] == [(0, ("NA", "b 0"), 1), (1, ("null", "b 1"), 0)]
    assert [one.label for one in source.examples("test")] == [None, None]
    with pytest.raises(UserError, match=r"plit 'validation' of data set '.*set' could not be loaded .*data\.path"):
        source.examples("validation")


@pytest.mark.parametrize("beside", ["dataset_infos.json", "notes/extra.json", "notes.jsonl"])
def test_a_text_of_a_csv_file_that_says_na_is_a_text_whatever_is_beside_it(tmp_path: Path, beside: str) -> None:
    folder = copy(tmp_path / "set", "csv", train=rows([1, 0], sentence1=["NA", "null"]))
    (folder / beside).parent.mkdir(exist_ok=True)
    (folder / beside).write_text("{}", "utf-8")
    assert [one.texts[0] for one in hub(folder).examples("train")] == ["NA", "null"]


@pytest.mark.parametrize("name", ["csv", "json", "text"])
def test_a_relative_folder_named_like_a_format_is_read_and_not_its_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    copy(tmp_path / name, "csv", train=rows([1, 0]))
    for suffix in ("csv", "json", "txt"):
        (tmp_path / f"train-other.{suffix}").write_text("sentence1,sentence2,label\nc,d,1\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    assert [one.texts for one in hub(Path(name)).examples("train")] == [("a 0", "b 0"), ("a 1", "b 1")]
    layout = HubLayout(path=name, texts=("sentence1",))
    named = make_source(SourceConfig(), task("mrpc").model_copy(update={"hub": layout}))
    with pytest.raises(UserError, match=f"'{name}' is also the name of a folder here or of a file format"):
        named.examples("train")


@pytest.mark.parametrize(
    ("split", "labels"),
    [
        (rows(["equivalent", "not_equivalent"]), [1, 0]),
        (rows([1, 0]).cast_column("label", CLASSES), [1, 0]),
        (rows([0, 1]).cast_column("label", datasets.ClassLabel(names=["equivalent", "not_equivalent"])), [1, 0]),
        (rows([0, 1]).cast_column("label", datasets.ClassLabel(names=["Equivalent", "NOT_EQUIVALENT"])), [1, 0]),
    ],
)
def test_labels_are_numbers_or_names(tmp_path: Path, split: datasets.Dataset, labels: list[int]) -> None:
    assert [one.label for one in hub(copy(tmp_path / "set", "saved", train=split)).examples("train")] == labels


def test_scores_and_a_single_split(tmp_path: Path) -> None:
    rows([0.0, 5.0, 2.5]).save_to_disk(str(tmp_path / "saved"))
    assert [one.label for one in hub(tmp_path / "saved", "stsb").examples("train")] == [0.0, 5.0, 2.5]


@pytest.mark.parametrize(
    ("name", "split", "message"),
    [
        ("mrpc", rows([1]).rename_column("sentence2", "sentence_2"), "no column 'sentence2'; did you mean"),
        ("mrpc", rows([0, 2]), "train row 1 of data set"),
        ("mrpc", rows([0, 2]), "label 2 of task 'mrpc'; expected 0 to 1 or not_equivalent, equivalent"),
        ("mrpc", rows([0], sentence1=[None]).cast_column("sentence1", TEXT), "'sentence1' contains null"),
        ("stsb", rows([5.5]), "': score 5.5 of task 'stsb'"),
    ],
)  # fmt: skip
def test_wrong_data_is_reported(tmp_path: Path, name: str, split: datasets.Dataset, message: str) -> None:
    with pytest.raises(UserError) as error:
        hub(copy(tmp_path / "set", train=split), name).examples("train")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_numbers_of_classes_that_task_labels_reorders_are_refused(tmp_path: Path) -> None:
    reordered = task("mrpc").model_copy(update={"labels": ("equivalent", "not_equivalent")})
    with pytest.raises(UserError, match=r"in the order not_equivalent, equivalent; remove task\.labels"):
        hub(copy(tmp_path / "set", train=rows([1, 0, 1])), reordered).examples("train")


@pytest.mark.parametrize("error", [ConnectionError("no route\nto host"), TimeoutError(), RuntimeError("client closed")])
def test_an_unreachable_hub_points_to_a_local_folder(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    asked = []

    def fail(*args: object, **kwargs: object) -> None:
        asked.append((args, kwargs))
        raise error

    monkeypatch.setattr(datasets, "load_dataset", fail)
    source = make_source(SourceConfig(revision="abc"), task("mrpc"))
    with pytest.raises(UserError, match=r"data=tsv data\.root=<GLUE folder>\.$") as raised:
        source.prepare()
    assert "\n" not in str(raised.value)
    assert asked == [(("nyu-mll/glue", "mrpc"), {"split": "train", "revision": "abc", "cache_dir": None})]
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: rows([0]).select([]))
    with pytest.raises(UserError, match=r"Split 'train' of data set 'nyu-mll/glue' is empty; expected at least one"):
        source.examples("train")


def test_the_librarys_offline_mode_is_reported_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What HF_HUB_OFFLINE=1 in the environment sets when the libraries are imported.
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=r"(?i)offline ?mode ?is ?enabled.*data=tsv data\.root=<GLUE folder>"):
        make_source(SourceConfig(cache_dir=str(tmp_path)), task("mrpc")).prepare()


def test_what_a_file_lacks_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.jsonl").write_text('{"sentence1": "\\ud800", "sentence2": "b", "label": 1}\n', "utf-8")
    with pytest.raises(UserError, match=r"could not be loaded \(.*surrogate.*\); check the folder data.path"):
        hub(tmp_path / "set").examples("train")
    assert "Failed" not in capfd.readouterr().err


def test_the_attempts_of_the_hub_client_are_not_printed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client = huggingface_hub.utils.logging.get_logger("huggingface_hub.utils._http")

    def fail(*args: object, **kwargs: object) -> None:
        client.warning("Retrying in 1s [Retry 1/5].")
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    monkeypatch.setattr(logging.getLogger("huggingface_hub"), "propagate", True)
    with pytest.raises(UserError, match="could not be loaded"):
        make_source(SourceConfig(), task("mrpc")).prepare()
    client.warning("later")
    assert [record.message for record in caplog.records] == ["later"]


@pytest.mark.parametrize(
    ("settings", "name", "message"),
    [
        ({"source": "demo"}, "mrpc", "data=demo does not fit task 'mrpc', which is not generated: use data=hub or"),
        ({"source": "tsv"}, "demo_nli", "data=tsv does not fit task 'demo_nli', which is generated by the project"),
        ({"source": "tsv"}, "mrpc", "data=tsv needs data.root"),
        ({"eval_path": "new.csv"}, "demo_nli", "data=demo reads no file of evaluation rows; to analyse a run"),
        ({"source": "tsv", "root": "nowhere"}, "mrpc", "'nowhere' is not a directory; give the parent folder of MRPC"),
        ({"source": "hub", "path": "nowhere"}, "mrpc", "'nowhere' is not a directory; give a local copy of data set"),
        ({"source": "parquet"}, "mrpc", "data=parquet needs data.path=<file>"),
        ({"source": "csv", "path": "rows.csv"}, "mrpc", "Task 'mrpc' defines no file columns; remove task=mrpc"),
        ({"source": "htb"}, "mrpc", "Unknown data.source 'htb'; did you mean 'hub'?"),
    ],
)  # fmt: skip
def test_a_wrong_data_section_is_reported(settings: dict[str, Any], name: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        make_source(SourceConfig.read("data", settings), task(name))
    assert message in str(error.value)


def test_auto_chooses_by_task() -> None:
    assert isinstance(make_source(SourceConfig(), task("mrpc")).source, HubSource)
    assert type(make_source(SourceConfig(), task("demo_nli")).source).__name__ == "DemoSource"
