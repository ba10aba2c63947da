"""``export=``: a run's checkpoint becomes a Hugging Face folder with a card, which plain transformers loads."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from cli.runs import configured, parsed
from huggingface_hub import ModelCard
from omegaconf import OmegaConf
from pyarrow.csv import read_csv
from reporting.finished_runs import make_run
from statsmodels.stats.proportion import proportion_confint
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel

from bertsecrets.cli import export
from bertsecrets.cli.composition import check
from bertsecrets.cli.run_settings import with_run_settings
from bertsecrets.errors import UserError
from bertsecrets.models.classifier import RECORD
from bertsecrets.results.files import check_new_folder

EFFECTS_LH = np.array([[0.0, -0.05, 0, 0], [0, 0, -0.11, 0], [0, 0, 0, 0.01]])
"""Of the tiny model's 3 layers of 4 heads; the two losses are significant."""


def fine_tuned(folder: Path) -> PreTrainedModel:
    """A model that some training could have given."""
    torch.manual_seed(3)
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def write_checkpoint(path: Path, model: PreTrainedModel, step: int) -> None:
    path.parent.mkdir(exist_ok=True)
    record = {
        "task": "demo_paraphrase",
        "labels": ["different", "paraphrase"],
        "num_outputs": 2,
        "model_config": model.config.to_dict(),
        "seed": 1,
        "step": step,
        "name": "run",
        "init": "pretrained",
        "model": {"name": "folder"},
    }
    weights = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    torch.save({RECORD: record, "state_dict": weights}, path)


@pytest.fixture
def run(tiny_bert: Path, tmp_path: Path) -> Path:
    """A run whose best checkpoint, of step 9, was scored and swept, and whose last one was not."""
    composed = configured(["task=demo_paraphrase", "model=folder", f"model.path={tiny_bert}"])
    names = ("model", "data", "annotation", "optimizer", "trainer")
    sections = OmegaConf.to_container(OmegaConf.masked_copy(composed, [*names, "task"]), resolve=True)
    folder = make_run(
        tmp_path / "runs" / "run",
        task="demo_paraphrase",
        cosine_LH=1 + EFFECTS_LH,
        delta_LH=EFFECTS_LH,
        significant_LH=EFFECTS_LH < 0,
        accuracy=0.75,
        constant=0.575,
        p_constant=0.001,
        task_settings=sections["task"],
        **{name: sections[name] for name in names},
    )
    (folder / ".hydra").mkdir()
    overrides = ["task=demo_paraphrase", "model=folder", f"model.path={tiny_bert}", "hydra.run.dir=x", "logger=none"]
    (folder / ".hydra" / "overrides.yaml").write_text("".join(f"- {line}\n" for line in overrides))
    write_checkpoint(folder / "checkpoints" / "best.ckpt", fine_tuned(tiny_bert), step=9)
    write_checkpoint(folder / "checkpoints" / "last.ckpt", fine_tuned(tiny_bert), step=12)
    return folder


def exported(folder: Path, checkpoint: Path, *overrides: str) -> Path:
    given = [f"folder={folder}", f"checkpoint={checkpoint}", *overrides]
    return export.export_model(with_run_settings(configured(given, "export"), given))


def test_plain_transformers_gives_the_logits_of_the_checkpoint(run: Path, tiny_bert: Path, tmp_path: Path) -> None:
    folder = exported(tmp_path / "new" / "model", run)
    loaded = AutoModelForSequenceClassification.from_pretrained(folder)
    tokenizer, own = AutoTokenizer.from_pretrained(folder), AutoTokenizer.from_pretrained(tiny_bert)
    pairs = ["The cat sat.", "It rained all day long."], ["The cat lay.", "No."]
    inputs, expected = (one(*pairs, padding=True, return_tensors="pt") for one in (tokenizer, own))
    assert torch.equal(inputs["input_ids"], expected["input_ids"])
    with torch.no_grad():
        logits = [model(**inputs).logits for model in (loaded, fine_tuned(tiny_bert))]
    assert torch.equal(*logits)
    assert loaded.config.id2label == {0: "different", 1: "paraphrase"}
    # Nothing half-written stays behind.
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_another_model_is_refused_by_the_paths_of_both(run: Path, tiny_bert: Path) -> None:
    with pytest.raises(UserError, match=f"model.path='other' contradicts .* trained from model.path='{tiny_bert}'"):
        exported(run / "new", run, "model=folder", "model.path=other")


def test_the_card_states_scores_heads_and_the_command(run: Path, tmp_path: Path) -> None:
    folder = exported(tmp_path / "model", run)
    card = ModelCard.load(folder / "README.md")
    (result,) = card.data.eval_results
    assert (result.metric_name, result.metric_value) == ("val/accuracy", 0.75)
    assert (result.dataset_name, result.dataset_split, card.data.base_model) == ("demo_paraphrase", "validation", None)
    low, high = proportion_confint(306, 408, method="wilson")
    assert f"| val/accuracy | 0.750 | {low:.3f} to {high:.3f} | 0.575 | 408 |" in card.text
    assert re.search(r"2 of \d+ heads disabled in turn.* are needed", card.text), card.text
    rows = [line.split(" | ") for line in card.text.splitlines() if line.startswith("| layer ") and "head" in line]
    assert [(row[0], row[2]) for row in rows if row[-1] == "needed |"] == [
        ("| layer 1 · head 2", "−11.00"),
        ("| layer 0 · head 1", "−5.00"),
    ]
    # Not the folder of this machine, nor where the run was written.
    assert "python -m bertsecrets train task=demo_paraphrase model=folder 'model.path=<path>'\n" in card.text
    assert str(tmp_path) not in card.text


@pytest.mark.parametrize(
    ("setting", "printed"),
    [
        ("data.path=/home/John Smith/secret.csv", "'data.path=<path>'"),
        ("data.path='~/John Smith/secret.csv'", "'data.path=<path>'"),
        ("data.path=~john/secret.csv", "'data.path=<path>'"),
        ("data.path=file:///data/john/secret.csv", "'data.path=<path>'"),
        ("data.dataset=owner/name", "data.dataset=owner/name"),
        ("data.text=my review", "'data.text=my review'"),
    ],
)
def test_no_part_of_a_path_is_printed(run: Path, tmp_path: Path, setting: str, printed: str) -> None:
    (run / ".hydra" / "overrides.yaml").write_text(json.dumps([setting]))
    folder = exported(tmp_path / "model", run)
    assert f"python -m bertsecrets train {printed}\n" in (folder / "README.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("data", "words", "texts"),
    [
        ({}, None, '"The cat sat.", "The cat lay."'),
        ({"permute_labels": True}, "training labels shuffled", '"The cat sat.", "The cat lay."'),
        ({"only": "first"}, "first sentence only", '"The cat sat."'),
    ],
)
def test_a_control_is_called_one(
    run: Path, tmp_path: Path, data: dict[str, object], words: str | None, texts: str
) -> None:
    config = OmegaConf.load(run / "config.yaml")
    config.data.update(data)
    OmegaConf.save(config, run / "config.yaml")
    folder = exported(tmp_path / "model", run)
    text = (folder / "README.md").read_text("utf-8")
    assert f"tokenizer({texts}, truncation" in text
    assert ("It is a control" in text) == (words is not None)
    assert words is None or f"It is a control, not a model of the task: {words}." in text


def test_heads_of_other_weights_are_not_claimed(run: Path, tmp_path: Path) -> None:
    last = run / "checkpoints" / "last.ckpt"
    folder = exported(tmp_path / "model", last)
    text = (folder / "README.md").read_text("utf-8")
    assert "These weights were not scored" in text
    assert "No disabling sweep of these weights was found" in text
    assert "needed" not in text.partition("## Attention heads")[2].partition("## How")[0].replace("No disabling", "")
    assert not list(folder.glob("heads_together.*"))


def test_a_sweep_of_a_later_analysis_is_used(run: Path, tmp_path: Path) -> None:
    from bertsecrets.pages.model_card import analyses_of
    from bertsecrets.results.run import Run

    (run / "ablation.parquet").rename(tmp_path / "kept")
    analysis = make_run(
        tmp_path / "runs" / "later",
        task="demo_paraphrase",
        delta_LH=EFFECTS_LH,
        significant_LH=EFFECTS_LH < -0.1,
        checkpoint=str(run),
        trained={"name": "run", "init": "pretrained", "seed": 1, "folder": str(run.resolve())},
    )
    best = run / "checkpoints" / "best.ckpt"
    assert [found.folder for found in analyses_of(Run.open(run), best, step=9)] == [analysis.resolve()]
    assert not analyses_of(Run.open(run), best, step=12)
    folder = exported(tmp_path / "model", run)
    assert re.search(r"1 of \d+ heads disabled in turn.* is needed", (folder / "README.md").read_text("utf-8"))
    # An analysis from before the checkpoint was written is of other weights.
    os.utime(analysis / "finished.json", (1, 1))
    assert not analyses_of(Run.open(run), best, step=9)


def test_the_head_table_is_exported_as_csv_and_parquet(run: Path, tmp_path: Path) -> None:
    folder = exported(tmp_path / "model", run)
    table = pq.read_table(folder / "heads_together.parquet")
    assert read_csv(folder / "heads_together.csv").cast(table.schema).equals(table)
    heads = zip(table["layer"].to_pylist(), table["head"].to_pylist(), strict=True)
    assert list(heads) == list(np.ndindex(EFFECTS_LH.shape))
    assert table["drift/cosine"].to_pylist() == pytest.approx((1 + EFFECTS_LH).ravel())


def test_a_link_to_an_empty_folder_is_followed(run: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    folder = exported(tmp_path / "link", run)
    assert folder == tmp_path / "empty"
    assert (tmp_path / "link" / "README.md").is_file()


def test_an_empty_folder_that_cannot_be_replaced_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "parent" / "empty"
    folder.mkdir(parents=True)
    check_new_folder("save", folder)
    with monkeypatch.context() as patched:
        patched.setattr(os, "access", lambda path, mode: path != folder.parent)
        with pytest.raises(UserError, match="permission denied"):
            check_new_folder("save", folder)
    monkeypatch.setattr(os.path, "ismount", lambda path: path == folder)
    with pytest.raises(UserError, match="is a mount point; choose a new folder in it"):
        check_new_folder("save", folder)


def test_jobs_of_a_sweep_do_not_write_to_one_folder(tmp_path: Path) -> None:
    for name, refused in (("all", True), ("${name}", False)):
        invocation = parsed(["-m", "seed=1,2", f"save={tmp_path}/{name}"])
        if refused:
            with pytest.raises(UserError, match="would both write to the folder"):
                check(invocation)
        else:
            check(invocation)
