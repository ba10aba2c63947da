"""Every task of conf/task, and messages for bad ones."""

from typing import Any

import pytest
from data.tasks import FOLDER, NAMES, task
from omegaconf import OmegaConf

from bertsecrets.data.sources.demo import DEMO_TASKS
from bertsecrets.data.task import task_from_config
from bertsecrets.errors import UserError

TREEBANKS = {"ud_ewt", "treebank"}
TAGGED_TREEBANKS = {"ud_pos"}
COREFERENCE = {"coreference", "demo_coreference"}
UNLABELLED = TREEBANKS | COREFERENCE
OWN = {"own"}
"""Filled in from the user's data."""
GLUE = {"cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli"}

HUB_LABELS = {
    "cola": ("unacceptable", "acceptable"),
    "sst2": ("negative", "positive"),
    "mrpc": ("not_equivalent", "equivalent"),
    "stsb": (),
    "qqp": ("not_duplicate", "duplicate"),
    "mnli": ("entailment", "neutral", "contradiction"),
    "qnli": ("entailment", "not_entailment"),
    "rte": ("entailment", "not_entailment"),
    "wnli": ("not_entailment", "entailment"),
}


def config(**changes: Any) -> dict[str, Any]:
    """MRPC's configuration with some keys replaced; None leaves a key out."""
    content = OmegaConf.to_container(OmegaConf.load(FOLDER / "mrpc.yaml"))
    for key, value in changes.items():
        *path, last = key.split("__")
        section: Any = content
        for part in path:
            section = section[part]
        section[last] = value
    return {str(key): value for key, value in content.items()}


@pytest.mark.parametrize("name", NAMES)
def test_a_task_is_named_like_its_file_and_has_one_kind_of_source(name: str) -> None:
    found = task(name)
    assert found.name == name
    assert found.demo == (name in {*DEMO_TASKS, "demo_choices", "demo_coreference", "demo_questions", "demo_words"})
    assert (found.conllu is not None) == (name in TREEBANKS | TAGGED_TREEBANKS)
    assert (found.coreference is not None) == (name in COREFERENCE)
    assert (found.hub is None) == (found.demo or name in UNLABELLED | OWN | TAGGED_TREEBANKS)
    assert (found.tsv is None) == (name not in GLUE)
    assert found.is_labelled == (name not in UNLABELLED | OWN)
    assert found.num_outputs == (2 if found.kind == "answers" else len(found.labels) if found.labels else 1)
    assert (found.squad is not None) == (name in ("squad", "squad_v2"))


@pytest.mark.parametrize("name", sorted(GLUE))
def test_labels_have_the_order_of_the_hub(name: str) -> None:
    assert task(name).labels == HUB_LABELS[name]


@pytest.mark.parametrize("name", sorted(GLUE))
def test_training_is_that_of_the_paper(name: str) -> None:
    training = OmegaConf.load(FOLDER / f"{name}.yaml").training
    assert dict(training) == {"learning_rate": 5e-5, "batch_size": 32, "max_epochs": 3, "max_length": 128}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lables": ["a", "b"]}, "Unknown key 'task.lables'; did you mean 'labels'?"),
        ({"name": None}, "task.name has no value"),
        ({"metrics": None}, "task.metrics has no value"),
        ({"metrics": []}, "has no metrics"),
        ({"metrics": "accuracy"}, "task.metrics is 'accuracy'; expected a list"),
        ({"labels": None, "tsv_labels": None}, "needs either labels"),
        ({"label_range": [0, 5]}, "needs either labels"),
        ({"labels": [False, True], "tsv_labels": None}, "quoted where YAML would read something else"),
        ({"labels": ["a", "a"], "tsv_labels": None}, "two or more different names"),
        ({"labels": None, "tsv_labels": None, "label_range": [5, 0]}, "task.label_range is [5, 0]"),
        ({"labels": None, "tsv_labels": None, "label_range": [0, "five"]}, "task.label_range is [0, 'five']"),
        ({"tsv_labels": {"0": "not_equivalent", "1": "equivlent"}}, "did you mean 'equivalent'?"),
        ({"tsv_labels": {0: "not_equivalent"}}, "quoted where YAML would read numbers"),
        (
            {"kind": "answers"},
            "task.labels is ['not_equivalent', 'equivalent'], but tasks of kind answers have no classes",
        ),
        ({"kind": "answers", "labels": None, "texts": 1}, "task.texts is 1; tasks of kind answers have a question"),
        ({"texts": 3}, "task.texts is 3; expected 1 (sentences) or 2 (pairs)"),
        ({"texts": 1}, "task.hub.texts has 2 columns; expected 1"),
        ({"hub__paht": "x"}, "Unknown key 'task.hub.paht'; did you mean 'path'?"),
        ({"hub": "glue"}, "task.hub is 'glue'; expected a section of keys and values"),
        ({"tsv__files": {"train": "train.tsv"}}, "split 'validation', which has no file in task.tsv.files"),
        ({"tsv__positions": {"label": -1}}, "task.tsv.positions.label is -1"),
        ({"tsv__headless": ["train"]}, "task.tsv.positions lacks column '#1 String'"),
        ({"evaluation": {}}, "has no evaluation sets"),
        ({"training": None}, "task.training is null"),
        ({"training__learning_rate": 0}, "task.training.learning_rate is 0; expected a number above 0 and up to 1"),
        ({"metrics": ["accuracy", 1]}, "task.metrics is ['accuracy', 1]; expected a list of names"),
        ({"tsv__files": {"train": 3}}, "task.tsv.files.train is 3; expected names and their values"),
    ],
)
def test_a_wrong_task_is_reported_in_one_sentence(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        task_from_config(config(**changes))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_new_task_is_one_mapping() -> None:
    found = task_from_config(
        {
            "name": "mine",
            "texts": 1,
            "labels": ["no", "yes"],
            "metrics": ["accuracy"],
            "tsv": {"folder": "mine", "files": {"train": "a.tsv", "validation": "b.tsv"}, "texts": ["t"], "label": "l"},
            "training": {"learning_rate": 1e-4, "batch_size": 8, "max_epochs": 1, "max_length": 32},
        }
    )
    assert (found.tsv.texts, found.tsv.label, found.hub, found.evaluation) == (("t",), "l", None, {"val": "validation"})
