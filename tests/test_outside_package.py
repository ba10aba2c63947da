"""The package of CONTRIBUTING.md, built from the page itself: what it brings is listed, runs, and is on pages, with no
edit here.
"""

import copy
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from zipfile import ZipFile

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from cli.runs import ROOT, door, small
from families import SHAPE, tiny_batch, tiny_model
from omegaconf import OmegaConf
from packages import installed, write_package
from scipy import stats
from transformers import AutoModelForSequenceClassification, PreTrainedModel, RoFormerConfig

import bertsecrets as bs
from bertsecrets.data.example import Example
from bertsecrets.data.sources import SourceConfig, check_controls, has_gold_words, make_source
from bertsecrets.data.task import Task, task_from_config
from bertsecrets.errors import UserError
from bertsecrets.measures.shipped import shipped_measures, shipped_names
from bertsecrets.models.encoder import describe
from bertsecrets.models.families import FAMILIES
from bertsecrets.papers.names import page_files
from bertsecrets.papers.statements.statement import read_statements
from bertsecrets.pruning.scores import MeasuredScore, find_score, measured_scores, removal_sets
from bertsecrets.pruning.sets import Situation
from bertsecrets.results.table import HeadTable
from bertsecrets.settings import configurations

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_FILE = re.compile(r"^`([\w./]+)`:\n\n```\w+\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PREFIX = "bertsecrets."


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the package, on ``sys.path`` of this process and of those that it starts."""
    files = dict(_FILE.findall((ROOT / "CONTRIBUTING.md").read_text("utf-8")))
    project = tomllib.loads(files.pop("pyproject.toml"))["project"]
    points = {group.removeprefix(_PREFIX): names for group, names in project["entry-points"].items()}
    folder = write_package(tmp_path_factory.mktemp("packages") / project["name"], files, points)
    with installed(folder), pytest.MonkeyPatch.context() as patch:
        patch.setattr("cli.runs.environment", lambda: environment(folder))
        yield folder


@pytest.mark.slow
def test_the_wheel_of_the_package_has_every_file(tmp_path: Path) -> None:
    files = dict(_FILE.findall((ROOT / "CONTRIBUTING.md").read_text("utf-8")))
    for name, content in files.items():
        (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "source" / name).write_text(content, "utf-8")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "./source"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("my_heads-1.0-*.whl")
    assert files.keys() - {"pyproject.toml"} <= set(ZipFile(wheel).namelist())


def environment(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)]),
        "PYTHONWARNINGS": "ignore",
    }


@pytest.fixture(scope="module")
def trained(package: Path, tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with what the package brings."""
    folder = tmp_path_factory.mktemp("trained")
    rows = moods(folder / "rows")
    settings = small(tiny_bert, folder / "run", measure="[sharpness]", compare_with="[initial]", data__root=rows)
    done = door("train", "model=tiny", "task=moods", *settings[1:])
    assert done.returncode == 0, done.stderr
    return folder / "run"


def moods(folder: Path) -> Path:
    """A folder with the rows of the package's task."""
    (folder / "moods").mkdir(parents=True)
    for split, count in (("train", 40), ("validation", 20)):
        rows = [f"{('bad', 'good')[i % 2]}\tThe {('dull', 'fine')[i % 2]} day number {i}." for i in range(count)]
        (folder / "moods" / f"{split}.txt").write_text("\n".join(rows), "utf-8")
    return folder


def test_help_lists_what_the_package_brings_without_importing_it(package: Path) -> None:
    program = (
        "import sys; sys.argv = ['train.py', '--help']; import runpy; runpy.run_path('train.py', run_name='__main__'); "
    )
    program += "print(sorted({'torch', 'my_heads', 'my_heads.sharpness'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment(package), capture_output=True, text=True, check=True
    )
    text, imported = done.stdout.rsplit("\n", 2)[:2]
    assert imported == "[]"
    assert re.search(r"^  measure .*(\n   .*)*\bsharpness\b", text, re.MULTILINE)
    assert re.search(r"^  model .*(\n   .*)*\btiny\b", text, re.MULTILINE)
    assert re.search(r"^  logit_shift +How far the logits move without each head$", text, re.MULTILINE)
    assert re.search(r"^  task .*(\n   .*)*\bmoods\b", text, re.MULTILINE)
    assert re.search(r"^  data .*(\n   .*)*\blines\b", text, re.MULTILINE)
    assert re.search(r"^  families +roformer \(my_heads\)$", text, re.MULTILINE)
    assert re.search(r"^  task heads +rare_tags \(my_heads\)$", text, re.MULTILINE)
    assert re.search(r"^  scores +output_weight \(my_heads\)$", text, re.MULTILINE)
    assert re.search(r"^  statements +my_heads$", text, re.MULTILINE)
    assert re.search(r"^  pages +my_heads$", text, re.MULTILINE)
    assert re.search(r"^  override modes +strongest \(my_heads\)$", text, re.MULTILINE)
    assert re.search(r"^  measures +sharpness \(my_heads\)$", text, re.MULTILINE)


@pytest.mark.slow
def test_a_kind_of_task_head_is_trained_and_judged(package: Path, tiny_bert: Path, tmp_path: Path) -> None:
    # Fewer and smaller steps teach the most common tag alone, which no head can change.
    kind = {
        "task.kind": "rare_tags",
        "task.metrics": "[rare_accuracy]",
        "task.training.learning_rate": 0.01,
        "trainer.max_epochs": 8,
    }
    done = door("train", *small(tiny_bert, tmp_path / "run", task="demo_tags", **kind))
    assert done.returncode == 0, done.stderr
    rows = pq.read_table(tmp_path / "run" / "ablation.parquet").to_pylist()
    assert {row["metric"] for row in rows} == {"rare_accuracy"}
    assert any(row["flips"] > 0 for row in rows)
    assert "rare accuracy" in (tmp_path / "run" / "report.html").read_text("utf-8")


@pytest.mark.slow
def test_a_run_is_analysed_and_its_page_made_again(trained: Path, tmp_path: Path) -> None:
    done = door("analyze", f"checkpoint={trained}", "measure=[sharpness]", f"hydra.run.dir={tmp_path}", "logger=csv")
    assert done.returncode == 0, done.stderr
    assert "Sharpness of attention" in (tmp_path / "report.html").read_text("utf-8")
    shift = tmp_path / "shift"
    common = ["logger=csv", "progress=false", "trainer.accelerator=cpu"]
    assert "is skipped" not in done.stderr
    done = door("analyze", f"checkpoint={trained}", "analysis=logit_shift", f"hydra.run.dir={shift}", *common)
    assert done.returncode == 0, done.stderr
    assert "How far the logits move without a head" in (shift / "report.html").read_text("utf-8")
    finding = re.compile("Mode zero: the logits move most without layer [0-2] · head [0-3]")
    assert finding.search((shift / "report.html").read_text("utf-8"))
    # An entry point offers the presenter, so that the folder alone is enough.
    (shift / "report.html").unlink()
    done = door("report", f"run={shift}", "progress=false")
    assert done.returncode == 0, done.stderr
    assert finding.search((shift / "report.html").read_text("utf-8"))
    lines = bs.numbers(shift).query("quantity == 'largest/shift'")
    assert list(lines.key) == ["mode=zero"]
    assert lines.value.iloc[0] == bs.numbers(shift).query("quantity == 'shift'").value.max()
    table = HeadTable.read(shift / "heads.parquet").select(measure="logit_shift", column="shift")
    assert min(table.table["value"].to_pylist()) > 0
    done = door("report", f"run={trained}", "progress=false")
    assert done.returncode == 0, done.stderr


def test_the_statement_and_the_page_are_found(package: Path) -> None:
    (statement,) = read_statements(["sharp_heads"])
    assert statement.test.columns == ("sharpness/bits",)
    assert page_files()["sharpness_page"] == package / "my_heads" / "pages" / "sharpness_page.yaml"


@pytest.mark.slow
def test_the_page_shows_the_statement(trained: Path, tmp_path: Path) -> None:
    done = door("compare", f"runs=[{trained}]", "paper=sharpness_page", f"hydra.run.dir={tmp_path}")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "sharpness.html").read_text("utf-8")
    assert "Sharp means more than half a bit below uniform attention." in page
    assert "Most heads attend sharply before fine-tuning." in page


def test_a_notebook_takes_the_measure_by_its_name(package: Path, tiny_bert: Path) -> None:
    from transformers import AutoModel, AutoTokenizer

    model = AutoModel.from_pretrained(tiny_bert, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny_bert)
    assert "sharpness" in shipped_names()
    grid = bs.measure(model, tokenizer, ["The cat sat."], "sharpness")
    with torch.no_grad():
        maps = model(**tokenizer(["The cat sat."], return_tensors="pt"), output_attentions=True).attentions
    rows_LHQK = torch.cat(maps).double().numpy()
    bits_LHQ = np.log2(rows_LHQK.shape[-1]) - stats.entropy(rows_LHQK, base=2, axis=-1)
    np.testing.assert_allclose(grid.value_LHC[..., 0], bits_LHQ.mean(-1), atol=1e-5)


def test_scores_of_the_package_choose_heads(package: Path) -> None:
    model = tiny_model("bert")
    situation = Situation(model, the_task(), list)
    expected_LH = torch.tensor(
        [
            [layer.attention.output.dense.weight[:, 8 * head : 8 * head + 8].norm().item() for head in range(4)]
            for layer in model.bert.encoder.layer
        ]
    )
    order = [divmod(place, 4) for place in expected_LH.flatten().argsort().tolist()]
    for name in ("output_weight", f"{package}/my_heads/scores.py:output_weight", "my_heads.scores:output_weight"):
        torch.testing.assert_close(find_score(name, {})(situation).float(), expected_LH)
        assert removal_sets(find_score(name, {}), situation, [3], iterative=False) == [frozenset(order[:3])]
    # The measure ranks heads, too, and is measured on the examples that choose them.
    shipped_measures.cache_clear()
    measured_scores.cache_clear()
    assert isinstance(find_score("sharpness", {}), MeasuredScore)
    with pytest.raises(UserError, match=r"Unknown pruning score 'output_wieght'; did you mean 'output_weight'\?"):
        find_score("output_wieght", {})


def the_task() -> Task:
    return task_from_config(OmegaConf.to_container(OmegaConf.load(configurations("task")["moods"])))


def test_a_task_names_its_source(package: Path, tmp_path: Path) -> None:
    config = SourceConfig.read("data", {"root": str(moods(tmp_path))})
    check_controls(config, the_task())
    source = make_source(config, the_task())
    assert [len(source.examples(split)) for split in ("train", "validation")] == [40, 20]
    assert source.examples("train")[1] == Example(1, ("The fine day number 1.",), 1)
    assert not has_gold_words(config, the_task())
    with pytest.raises(UserError, match=r"give data\.root=<folder with train\.txt>"):
        make_source(SourceConfig(), the_task())
    with pytest.raises(UserError, match=r"Unknown data\.source 'line'; did you mean 'lines'"):
        check_controls(SourceConfig(source="line"), the_task())


def test_a_source_of_a_file(package: Path, tmp_path: Path) -> None:
    root = str(moods(tmp_path))
    for name in ("my_heads.lines:Lines", f"{package}/my_heads/lines.py:Lines"):
        source = make_source(SourceConfig(source=name, root=root), the_task())
        assert len(source.examples("validation")) == 20
    (tmp_path / "half.py").write_text("class Half:\n    def __init__(self, task, config):\n        pass\n", "utf-8")
    (tmp_path / "bad.py").write_text("def bad(task, config):\n    raise ValueError('no rows.')\n", "utf-8")
    for name, sentence in (
        (f"{tmp_path}/half.py:Half", "lacks notes and examples and has and prepare"),
        (f"{tmp_path}/bad.py:bad", r"could not be built \(ValueError: no rows\); correct its class"),
        (f"{tmp_path}/none.py:none", "which cannot be imported"),
    ):
        with pytest.raises(UserError, match=sentence) as caught:
            make_source(SourceConfig(source=name), the_task())
        assert "\n" not in str(caught.value)


@pytest.fixture(autouse=True, scope="module")
def without_our_roformer() -> Iterator[None]:
    """As if this package had no adapter for RoFormer, which the tests bring from outside."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(FAMILIES, "roformer")
        yield


@pytest.fixture(scope="module")
def roformer() -> PreTrainedModel:
    """A tiny model of random weights that are spread enough for its heads to matter."""
    torch.manual_seed(0)
    config = RoFormerConfig(**SHAPE, num_labels=3, attn_implementation="eager")
    model = AutoModelForSequenceClassification.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval()


def test_the_family_starts_in_the_middle_and_loses_heads(package: Path, roformer: PreTrainedModel) -> None:
    batch = tiny_batch()
    smaller = bs.remove_heads(roformer, [(1, 2), (2, 0)])
    encoder = describe(roformer)
    inputs, outputs = [], []
    with torch.no_grad(), bs.override(roformer, [bs.HeadEdit(1, 2, "zero"), bs.HeadEdit(2, 0, "zero")]):
        # Registered inside, so that the projection's hook sees the heads as they were replaced.
        layer = encoder.layers[2].register_forward_pre_hook(lambda module, args: inputs.append(args[0]))
        projection = encoder.sites[2].projection.register_forward_pre_hook(lambda module, args: outputs.append(args[0]))
        expected_BC = roformer(**batch).logits
    layer.remove()
    projection.remove()
    assert encoder.family is not None
    with torch.no_grad():
        hidden_BSD = encoder.family.after_heads(encoder.layers[2], outputs[0], inputs[0])
        torch.testing.assert_close(encoder.head(hidden_BSD, batch["attention_mask"]), expected_BC)
        torch.testing.assert_close(smaller(**batch).logits, expected_BC)


def test_a_hook_swaps_heads_as_swapped_weights_do() -> None:
    snippet = re.search(r"^```python\n(def swap\(.*?)^```", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.M | re.S)
    assert snippet is not None
    model, batch, order = tiny_model("bert"), tiny_batch(), [0, 3, 2, 1]
    swapped = copy.deepcopy(model)
    subject = SimpleNamespace(encoder=describe(model))
    with torch.no_grad():
        weight_DHd = swapped.bert.encoder.layer[1].attention.output.dense.weight.unflatten(1, (4, -1))
        weight_DHd.copy_(weight_DHd[:, order].clone())
        before_BC = model(**batch).logits
        exec(snippet[1], {"subject": subject, "layer": 1, "heads": 4, "order": order})
        torch.testing.assert_close(model(**batch).logits, swapped(**batch).logits)
        assert (model(**batch).logits - before_BC).abs().max() > 1e-4


@pytest.mark.parametrize(
    ("attribute", "path", "sentence"),
    [
        ("attention", "attention.selfie", "RoFormerAttention has no 'selfie'"),
        ("query", "querry", "RoFormerSelfAttention has no 'querry'"),
        ("projection", "attention.output", "which is RoFormerSelfOutput; expected the path of a linear map"),
        ("layer_list", "encoder.layers", "RoFormerEncoder has no 'layers'"),
        ("embedding_modules", ("embedding",), "RoFormerModel has no 'embedding'"),
    ],
)
def test_wrong_paths_are_refused_in_one_sentence(
    package: Path,
    roformer: PreTrainedModel,
    monkeypatch: pytest.MonkeyPatch,
    attribute: str,
    path: str,
    sentence: str,
) -> None:
    from my_heads.roformer import RoFormer

    monkeypatch.setattr(RoFormer, attribute, path)
    with pytest.raises(UserError, match=sentence) as caught:
        describe(roformer)
    assert "The family RoFormer names" in str(caught.value)
    assert "\n" not in str(caught.value)
