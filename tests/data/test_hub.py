"""Data sets of the `datasets` library: local copies of every kind, and a hub that cannot be reached."""

import logging
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub
import pytest
from data.tasks import task

from bertsecrets.data.sources import SourceConfig, make_source
from bertsecrets.data.sources.table import HubSource
from bertsecrets.data.task import HubLayout, Task
from bertsecrets.errors import UserError


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def rows(label: list[Any], **columns: list[Any]) -> datasets.Dataset:
    count = len(label)
    given = {"sentence1": [f"a {i}" for i in range(count)], "sentence2": [f"b {i}" for i in range(count)]} | columns
    return datasets.Dataset.from_dict({**given, "label": label, "idx": list(range(count))})


def parquet(folder: Path, **splits: datasets.Dataset) -> HubSource:
    for name, split in splits.items():
        (folder / "set").mkdir(exist_ok=True)
        split.to_parquet(folder / "set" / f"{name}.parquet")
    return source(task("mrpc"), folder / "set", folder)


def source(chosen: Task, folder: Path, cache: Path) -> HubSource:
    made = make_source(SourceConfig(source="hub", path=str(folder), cache_dir=str(cache / "cache")), chosen)
    assert isinstance(made, HubSource)
    return made


def test_a_folder_that_load_dataset_reads(tmp_path: Path) -> None:
    hub = parquet(tmp_path, train=rows([1, 0, 1]), validation=rows([0]), test=rows([-1, -1]))
    train = hub.examples("train")
    assert [(example.index, example.texts, example.label) for example in train] == [
        (0, ("a 0", "b 0"), 1), (1, ("a 1", "b 1"), 0), (2, ("a 2", "b 2"), 1),
    ]  # fmt: skip
    assert [example.label for example in hub.examples("validation")] == [0]
    assert [example.label for example in hub.examples("test")] == [None, None]


@pytest.mark.parametrize("name", ["csv", "json", "text"])
def test_a_relative_folder_named_like_a_format_is_read_and_not_its_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / name).mkdir()
    rows([1, 0]).to_csv(str(tmp_path / name / "train.csv"))
    for suffix in ("csv", "json", "txt"):
        (tmp_path / f"train-other.{suffix}").write_text("sentence1,sentence2,label\nc,d,1\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    assert [one.texts for one in source(task("mrpc"), Path(name), tmp_path).examples("train")] == [
        ("a 0", "b 0"), ("a 1", "b 1"),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["csv", "parquet", "mine"])
def test_a_name_on_the_hub_reads_nothing_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "mine").mkdir()
    rows([1, 0]).to_csv(str(tmp_path / "mine" / "train.csv"))
    rows([1, 0]).to_csv(str(tmp_path / "train.csv"))
    monkeypatch.chdir(tmp_path)
    hub = make_source(
        SourceConfig(), task("mrpc").model_copy(update={"hub": HubLayout(path=name, texts=("sentence1",))})
    )
    with pytest.raises(UserError, match=f"'{name}' is also the name of a folder here or of a file format"):
        hub.examples("train")


@pytest.mark.parametrize("beside", ["dataset_infos.json", "notes/extra.json", "notes.jsonl"])
def test_a_text_of_a_csv_file_that_says_na_is_a_text(tmp_path: Path, beside: str) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    rows([1, 0], sentence1=["NA", "null"]).to_csv(str(folder / "train.csv"))
    (folder / beside).parent.mkdir(exist_ok=True)
    (folder / beside).write_text("{}", "utf-8")
    assert [one.texts[0] for one in source(task("mrpc"), folder, tmp_path).examples("train")] == ["NA", "null"]


def test_labels_may_be_names(tmp_path: Path) -> None:
    hub = parquet(tmp_path, train=rows(["equivalent", "not_equivalent"]))
    assert [example.label for example in hub.examples("train")] == [1, 0]


def test_a_saved_dataset_dict_with_class_labels(tmp_path: Path) -> None:
    named = datasets.ClassLabel(names=["not_equivalent", "equivalent"])
    splits = {"train": rows([1, 0]).cast_column("label", named), "test": rows([-1])}
    datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "saved"))
    hub = source(task("mrpc"), tmp_path / "saved", tmp_path)
    assert [example.label for example in hub.examples("train")] == [1, 0]
    with pytest.raises(UserError, match=r"Split 'validation' of data set '.*saved' could not be loaded .*data\.path"):
        hub.examples("validation")


@pytest.mark.parametrize("names", [["equivalent", "not_equivalent"], ["Equivalent", "NOT_EQUIVALENT"]])
def test_a_column_that_names_the_classes_in_another_order_is_read_by_name(tmp_path: Path, names: list[str]) -> None:
    split = rows([0, 1, 1]).cast_column("label", datasets.ClassLabel(names=names))
    datasets.DatasetDict(train=split).save_to_disk(str(tmp_path / "saved"))
    examples = source(task("mrpc"), tmp_path / "saved", tmp_path).examples("train")
    # The task's are not_equivalent, equivalent.
    assert [example.label for example in examples] == [1, 0, 0]


def test_numbers_of_classes_that_task_labels_reorders_are_refused(tmp_path: Path) -> None:
    parquet(tmp_path, train=rows([1, 0, 1]))
    reordered = task("mrpc").model_copy(update={"labels": ("equivalent", "not_equivalent")})
    with pytest.raises(
        UserError, match=r"number their classes in the order not_equivalent, equivalent; leave task\.labels out"
    ):
        source(reordered, tmp_path / "set", tmp_path).examples("train")


def test_an_empty_split_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: rows([0]).select([]))
    with pytest.raises(
        UserError, match=r"Split 'train' of data set 'nyu-mll/glue' is empty; expected at least one row"
    ):
        make_source(SourceConfig(), task("mrpc")).examples("train")


def test_a_saved_single_split_is_the_training_rows(tmp_path: Path) -> None:
    rows([1, 0]).save_to_disk(str(tmp_path / "saved"))
    assert [one.label for one in source(task("mrpc"), tmp_path / "saved", tmp_path).examples("train")] == [1, 0]
    with pytest.raises(UserError, match=r"Split 'validation' of data set '.*saved' could not be loaded"):
        source(task("mrpc"), tmp_path / "saved", tmp_path).examples("validation")


def test_scores_of_a_regression_task(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    rows([0.0, 5.0, 2.5]).to_csv(str(folder / "train.csv"))
    rows([5.5]).to_csv(str(folder / "test.csv"))
    hub = source(task("stsb"), folder, tmp_path)
    assert [example.label for example in hub.examples("train")] == [0.0, 5.0, 2.5]
    with pytest.raises(UserError, match=r"test row 0 of data set '.*': score 5\.5 of task 'stsb'"):
        hub.examples("test")


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (rows([1]).rename_column("sentence2", "sentence_2"), "no column 'sentence2'; did you mean 'sentence_2'?"),
        (rows([0, 2]), "train row 1 of data set"),
        (rows([0, 2]), "label 2 of task 'mrpc'; expected 0 to 1 or not_equivalent, equivalent"),
        (rows([0], sentence1=[None]).cast_column("sentence1", datasets.Value("string")), "'sentence1' holds null"),
    ],
)
def test_wrong_data_is_reported(tmp_path: Path, split: datasets.Dataset, message: str) -> None:
    with pytest.raises(UserError) as error:
        parquet(tmp_path, train=split).examples("train")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_folder_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere' is not a directory; give a local copy of data set 'nyu-mll/glue'"):
        source(task("mrpc"), tmp_path / "nowhere", tmp_path)


@pytest.mark.parametrize("error", [ConnectionError("no route\nto host"), TimeoutError(), RuntimeError("client closed")])
def test_an_unreachable_hub_points_to_a_local_folder(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    asked = []

    def fail(*args: object, **kwargs: object) -> None:
        asked.append((args, kwargs))
        raise error

    monkeypatch.setattr(datasets, "load_dataset", fail)
    hub = make_source(SourceConfig(revision="abc"), task("mrpc"))
    with pytest.raises(UserError, match=r"data=tsv data\.root=<GLUE folder>\.$") as raised:
        hub.prepare()
    assert "\n" not in str(raised.value)
    assert asked == [(("nyu-mll/glue", "mrpc"), {"split": "train", "revision": "abc", "cache_dir": None})]


def test_the_librarys_offline_mode_is_reported_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What HF_HUB_OFFLINE=1 in the environment sets when the libraries are imported.
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=r"(?i)offline ?mode ?is ?enabled.*data=tsv data\.root=<GLUE folder>"):
        make_source(SourceConfig(cache_dir=str(tmp_path)), task("mrpc")).prepare()


def test_what_a_file_lacks_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.jsonl").write_text('{"sentence1": "\\ud800", "sentence2": "b", "label": 1}\n', "utf-8")
    with pytest.raises(
        UserError, match=r"could not be loaded \(.*surrogate.*\); check the folder that data.path names"
    ):
        source(task("mrpc"), tmp_path / "set", tmp_path).examples("train")
    assert "Failed" not in capfd.readouterr().err


def test_the_attempts_of_the_hub_client_are_not_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client = huggingface_hub.utils.logging.get_logger("huggingface_hub.utils._http")

    def fail(*args: object, **kwargs: object) -> None:
        client.warning("Retrying in 1s [Retry 1/5].")
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    monkeypatch.setattr(logging.getLogger("huggingface_hub"), "propagate", True)
    with pytest.raises(UserError, match="could not be loaded"):
        make_source(SourceConfig(), task("mrpc")).prepare()
    assert not caplog.records
    client.warning("later")
    assert [record.message for record in caplog.records] == ["later"]


@pytest.mark.parametrize(
    ("settings", "name", "message"),
    [
        ({"source": "demo"}, "mrpc", "data=demo does not fit task 'mrpc', which is not generated: use data=hub or "
                                     "data=tsv"),
        ({"source": "tsv"}, "demo_nli", "data=tsv does not fit task 'demo_nli', which is generated by the project: use "
                                        "data=demo"),
        ({"source": "hub"}, "demo_nli", "data=hub does not fit task 'demo_nli'"),
        ({"source": "htb"}, "mrpc", "Unknown data.source 'htb'; did you mean 'hub'?"),
        ({"limit_trian": 3}, "mrpc", "Unknown key 'data.limit_trian'; did you mean 'limit_train'?"),
        ({"limit_train": 0}, "mrpc", "data.limit_train is 0; expected a whole number from 1"),
        ({"limit_eval": "few"}, "mrpc", "data.limit_eval is 'few'"),
        ({"eval_batch_size": None}, "mrpc", "data.eval_batch_size is null"),
        ({"skip_bad_rows": "no"}, "mrpc", "data.skip_bad_rows is 'no'; expected true or false"),
        ({"root": 3}, "mrpc", "data.root is 3; expected the path of a folder, or null"),
        ({"num_workers": -1}, "mrpc", "data.num_workers is -1; expected a whole number from 0"),
    ],
)  # fmt: skip
def test_a_wrong_data_section_is_reported(settings: dict[str, Any], name: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        make_source(SourceConfig.read("data", settings), task(name))
    assert message in str(error.value)


def test_auto_chooses_by_task() -> None:
    assert isinstance(make_source(SourceConfig(), task("mrpc")), HubSource)
    assert type(make_source(SourceConfig(), task("demo_nli"))).__name__ == "DemoSource"
