"""What files bring without a package: a family, an override mode and a task, with the rights of ours."""

import copy
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from cli import runs
from cli.runs import ROOT, door, small
from families import SHAPE, tiny_batch, tiny_model
from omegaconf import OmegaConf
from transformers import PreTrainedModel, RoFormerConfig, RoFormerForSequenceClassification

import bertsecrets as bs
from bertsecrets.ablation.rows import Swept, found
from bertsecrets.ablation.settings import AblationSettings
from bertsecrets.attention.modes import find_mode, mode_names
from bertsecrets.attention.self_check import check_attention
from bertsecrets.cli.arguments import with_task_file
from bertsecrets.cli.run_settings import with_run_settings
from bertsecrets.cli.settings import read_train
from bertsecrets.data.task import Task, task_from_config
from bertsecrets.errors import UserError
from bertsecrets.models.encoder import describe
from bertsecrets.models.families import FAMILIES, set_family
from bertsecrets.models.loading import load_folder, load_model
from bertsecrets.models.spec import ModelSpec
from bertsecrets.results.ablation_table import AblationTable
from bertsecrets.results.run import Run
from bertsecrets.settings import CONF
from bertsecrets.sweeps.run_folder import outside_code

MODE = """
from bertsecrets.attention.modes import OverrideMode

class Half(OverrideMode):
    name = "halved"
    words = "half of its output"

    def replacement(self, heads):
        return heads.output_BSHd / 2

class Ours(Half):
    name = "zero"

class Nameless(OverrideMode):
    words = "nothing"

class NotOne:
    name = "none"
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of CONTRIBUTING.md, and one of override modes."""
    folder = tmp_path_factory.mktemp("files")
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    for name, content in re.findall(r"^`my_heads/([\w./]+)`:\n\n```\w+\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        (folder / Path(name).name).write_text(content, "utf-8")
    (folder / "modes.py").write_text(MODE, "utf-8")
    return folder


@pytest.fixture(autouse=True, scope="module")
def without_our_roformer() -> Iterator[None]:
    """As if this package had no adapter for RoFormer, which the tests bring from outside."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(FAMILIES, "roformer")
        yield


@pytest.fixture(scope="module")
def roformer() -> PreTrainedModel:
    torch.manual_seed(0)
    config = RoFormerConfig(**SHAPE, num_labels=2, initializer_range=0.3, attn_implementation="eager")
    return RoFormerForSequenceClassification(config).eval()


@pytest.fixture(scope="module")
def saved(roformer: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("roformer")
    roformer.save_pretrained(folder)
    return folder


def spec(path: Path, family: str | None) -> ModelSpec:
    return ModelSpec.read("model", {"name": "own", "path": str(path), "family": family})


TASK = Task.read("task", {"name": "moods", "texts": 1, "metrics": ["accuracy"], "labels": ["bad", "good"]})


def test_a_family_of_a_file_disables_heads_as_weights_of_zero_do(files: Path, saved: Path) -> None:
    batch, family = tiny_batch(), f"{files}/roformer.py:RoFormer"
    for model in (load_model(spec(saved, family), TASK, "pretrained", 0), load_folder(saved, family=family)):
        model.eval()
        assert check_attention(model)
        for module in (model, model.base_model, copy.deepcopy(model)):
            assert type(describe(module).family).__name__ == "RoFormer"
        edited = copy.deepcopy(model)
        with torch.no_grad():
            edited.roformer.encoder.layer[1].attention.output.dense.weight[:, 16:24] = 0
            with bs.override(model, [bs.HeadEdit(1, 2, "zero")]):
                torch.testing.assert_close(model(**batch).logits, edited(**batch).logits)
    # Another model of the same type in the same process has no such family.
    with pytest.raises(UserError, match="'roformer' has no adapter and does not use"):
        check_attention(load_model(spec(saved, None), TASK, "pretrained", 0).eval())


def test_a_family_by_the_name_of_a_model_type(roformer: PreTrainedModel) -> None:
    model = tiny_model("roberta")
    set_family(model, "bert")
    assert type(describe(model).family).__name__ == "Bert"
    with pytest.raises(UserError, match=r"Unknown model\.family 'brt'; did you mean 'bert'"):
        set_family(model, "brt")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("{files}/none.py:X", "model.family is '{files}/none.py:X', which cannot be imported"),
        ("{files}/roformer.py:Roformer", "has no 'Roformer'; did you mean 'RoFormer'"),
        ("{files}/modes.py:Half", "which is not a subclass of bertsecrets.models.families.base.Family"),
        ("bret", "Unknown model.family 'bret'"),
    ],
)
def test_a_wrong_family_is_refused_when_the_settings_are_read(files: Path, name: str, sentence: str) -> None:
    name = name.format(files=files)
    with pytest.raises(UserError) as caught:
        read_train(composed("model=folder", "model.path=m", f"model.family='{name}'"))
    assert sentence.format(files=files) in str(caught.value)


def composed(*arguments: str, command: str = "train") -> dict[str, Any]:
    """The configuration of a command line that may name a task file."""
    return runs.composed(with_task_file(arguments), command)


def test_a_mode_of_a_file_replaces_heads_under_its_own_name(files: Path) -> None:
    model, batch = tiny_model("bert"), tiny_batch()
    settings = AblationSettings(mode=f"{files}/modes.py:Half")
    assert settings.mode == "halved"
    assert "halved" in mode_names(sweeps=True)
    halved = copy.deepcopy(model)
    with torch.no_grad():
        halved.bert.encoder.layer[1].attention.output.dense.weight[:, 8:16] /= 2
        for name in (settings.mode, f"{files}/modes.py:Half"):
            with bs.override(model, [bs.HeadEdit(1, 1, name)]):
                torch.testing.assert_close(model(**batch).logits, halved(**batch).logits)


def test_a_process_that_gets_the_settings_has_the_mode(files: Path, tmp_path: Path) -> None:
    settings = AblationSettings(mode=f"{files}/modes.py:Half", seed=3)
    (tmp_path / "settings.pickle").write_bytes(pickle.dumps(settings))
    program = (
        "import pickle; from bertsecrets.attention.modes import find_mode; "
        f"settings = pickle.load(open({str(tmp_path / 'settings.pickle')!r}, 'rb')); "
        "print(settings.mode, settings.seed, find_mode(settings.mode).words)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "halved 3 half of its output\n"), done.stderr
    assert pickle.loads(pickle.dumps(AblationSettings(mode="zero"))) == AblationSettings(mode="zero")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("none.py:X", "which cannot be imported (UserError: '{files}/none.py' is not a file"),
        ("modes.py:Ours", "is named 'zero'; give it an unused name"),
        ("modes.py:Nameless", "has no name; set the attribute name of its class"),
        ("modes.py:NotOne", "expected a subclass of bertsecrets.attention.modes.OverrideMode"),
        ("modes.py:Hal", "has no 'Hal'; did you mean 'Half'"),
    ],
)
def test_a_wrong_mode_is_refused(files: Path, name: str, sentence: str) -> None:
    for use in (find_mode, lambda mode: AblationSettings.read("ablation", {"mode": mode})):
        with pytest.raises(UserError) as caught:
            use(f"{files}/{name}")
        assert sentence.format(files=files) in str(caught.value)
        assert "\n" not in str(caught.value)


ANALYSES = """
from bertsecrets import Analysis, Column, Experiment

class Fine(Analysis, Experiment):
    name, title, columns = "fine", "Fine", (Column("x", "x"),)

    def run(self, context):
        return []

class NoRun(Analysis):
    pass

class Nameless(Fine):
    name = None

class Finished(Fine):
    name = "finished"

class Texts(Fine):
    columns = ("x",)

class Raises(Fine):
    def __init__(self):
        raise ValueError("no.")

class Neither:
    pass
"""


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("NoRun", "NoRun does not define run; define it in the class."),
        ("Nameless", "Nameless has no name; set the attribute name of its class, a text. (In callbacks.mine.)"),
        ("Finished", "An experiment is called 'finished', which is a file in the run's folder"),
        ("Texts", "The columns of Texts are ('x',); expected a tuple of bertsecrets.Column, with a comma"),
        ("Raises", "could not be built (ValueError: no); check its section."),
        ("Neither", "which is neither an analysis nor a callback; name a subclass of bertsecrets.Analysis or of"),
        ("Fine,+callbacks.mine.evaluation=tset", "callbacks.mine.evaluation is 'tset', which task"),
        ("Fine,+callbacks.mine.mode=zero", "Unknown key 'callbacks.mine.mode'"),
    ],
)
def test_a_wrong_analysis_is_refused_when_the_settings_are_read(tmp_path: Path, name: str, sentence: str) -> None:
    (tmp_path / "analyses.py").write_text(ANALYSES, "utf-8")
    start = ["model=folder", "model.path=m", "task=demo_paraphrase", "logger=none"]
    target = f"+callbacks.mine._target_='{tmp_path}/analyses.py:"
    assert "mine" in read_train(composed(*start, f"{target}Fine'")).callbacks
    name, _, more = name.partition(",")
    with pytest.raises(UserError) as caught:
        read_train(composed(*start, f"{target}{name}'", *filter(None, [more])))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["cola", "mnli", "stsb", "ud_ewt", "demo_paraphrase", "imdb"])
def test_a_task_of_a_file_is_the_task_of_the_same_name(name: str) -> None:
    by_file, by_name = (composed(f"task={task}")["task"] for task in (f"'{CONF}/task/{name}.yaml'", name))
    assert by_file == by_name
    assert task_from_config(by_file) == task_from_config(by_name)  # type: ignore[arg-type]


def test_settings_of_the_command_line_take_precedence_over_the_file(files: Path) -> None:
    arguments = ["task.training.batch_size=4", f"task={files}/moods.yaml", "task.metrics=[matthews]"]
    task = composed(*arguments)["task"]
    assert isinstance(task, dict)
    assert task["training"] == {"learning_rate": 1e-3, "batch_size": 4, "max_epochs": 2, "max_length": 32}
    assert (task["name"], task["metrics"], task["layout"]) == ("moods", ["matthews"], {"folder": "moods"})
    # A job of a sweep gets the completed command line.
    assert with_task_file(with_task_file(arguments)) == with_task_file(arguments)


WHOLE = (
    "name: x\ntexts: 1\nlabels: [a, b]\nmetrics: [accuracy]\n"
    "training: {learning_rate: 1e-3, batch_size: 8, max_epochs: 1, max_length: 32}\n"
)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "The task file {path} cannot be read"),
        ("- a\n", "The task file {path} does not contain keys and values"),
        ("a: *b\n", "The task file {path} cannot be read (it uses the alias *b"),
        ("tsv_labels: {'0 1': good}\n", "The task file {path} has the key '0 1'; use letters"),
        (f"{WHOLE}metrcs: [accuracy]\n", "Unknown key 'task.metrcs'; did you mean 'metrics'"),
        (WHOLE.replace("texts: 1", "texts: 3"), "task.texts is 3; expected 1 (sentences) or 2 (pairs)"),
    ],
)
def test_a_wrong_task_file_is_refused(tmp_path: Path, content: str | None, sentence: str) -> None:
    path = tmp_path / "odd.yaml"
    if content is not None:
        path.write_text(content, "utf-8")
    with pytest.raises(UserError) as caught:
        read_train(composed(f"task={path}"))
    assert sentence.format(path=path) in str(caught.value)


def test_files_are_part_of_the_key_and_a_run_of_somebody_else_does_not_bring_them(files: Path, tmp_path: Path) -> None:
    family, mode = f"{files}/roformer.py:RoFormer", f"{files}/modes.py:Half"
    assert outside_code({"model": {"family": family}}) != outside_code({"ablation": {"mode": mode}}) != ""
    config = composed("model=folder", "model.path=m", f"model.family={family}")
    OmegaConf.save(OmegaConf.create({**config, "compile": False}), tmp_path / "config.yaml")
    arguments = [f"checkpoint={tmp_path}", "logger=none"]
    analysis = OmegaConf.create(composed(*arguments, command="analyze"))
    with pytest.raises(
        UserError, match=r"names model\.family='.*RoFormer', which is not part of bertsecrets; if you trust it"
    ):
        with_run_settings(analysis, arguments)
    arguments.append(f"model.family={family}")
    analysis = OmegaConf.create(composed(*arguments, command="analyze"))
    assert with_run_settings(analysis, arguments).model.family == family


@pytest.mark.slow
def test_a_run_with_a_family_a_mode_and_a_task_of_files(files: Path, tmp_path: Path, tiny_bert: Path) -> None:
    kin = files / "kin.py"
    kin.write_text("from bertsecrets.models.families.bert import Bert\n\n\nclass Kin(Bert):\n    pass\n", "utf-8")
    (tmp_path / "rows" / "moods").mkdir(parents=True)
    for split in ("train", "validation"):
        rows = [f"{('bad', 'good')[i % 2]}\tThe {('dull', 'fine')[i % 2]} day number {i}." for i in range(20)]
        (tmp_path / "rows" / "moods" / f"{split}.txt").write_text("\n".join(rows), "utf-8")
    settings = small(tiny_bert, tmp_path / "run", data__root=tmp_path / "rows", callbacks="disable")[1:]
    paths = [
        f"task={files}/moods.yaml",
        f"data.source={files}/lines.py:Lines",
        f"model.family={kin}:Kin",
        f"ablation.mode={files}/modes.py:Half",
    ]
    done = door("train", *paths, *settings)
    assert done.returncode == 0, done.stderr
    # Tables have the name of the class, not its path. What a tiny model has not learned is not on its page.
    assert {row["mode"] for row in AblationTable.read(tmp_path / "run" / "ablation.parquet").rows()} == {"halved"}
    (made,) = found(Run.open(tmp_path / "run"), Swept)
    assert (made.mode, made.words) == ("halved", "half of its output")
    analysis = [f"checkpoint={tmp_path / 'run'}", "logger=csv", "progress=false", f"hydra.run.dir={tmp_path / 'again'}"]
    done = door("analyze", *analysis)
    assert done.returncode == 1
    assert "which is not part of bertsecrets" in done.stderr
    done = door("analyze", *analysis, *paths[1:3])
    assert done.returncode == 0, done.stderr
