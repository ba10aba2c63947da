"""``analyze.py`` of a Sentence Transformers folder: heads judged by the cosine of pairs."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from cli.runs import composed, door, ran
from data.tasks import task
from scipy.stats import spearmanr
from transformers import AutoModel, AutoTokenizer

import bertsecrets as bs
from bertsecrets.attention.override import HeadEdit, override
from bertsecrets.cli.analyze import embedder_settings
from bertsecrets.cli.settings import read_analyze
from bertsecrets.data.module import TaskData
from bertsecrets.data.sources import SourceConfig
from bertsecrets.errors import UserError
from bertsecrets.results.table import HeadTable


@pytest.fixture
def embedder(tiny_bert: Path, tmp_path: Path) -> Path:
    """The tiny model with mean pooling, and weights large enough to matter."""
    folder = tmp_path / "embedder"
    shutil.copytree(tiny_bert, folder)
    torch.manual_seed(0)
    model = AutoModel.from_pretrained(folder)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    kinds = {"": "Transformer", "1_Pooling": "Pooling"}
    modules = [{"idx": i, "path": path, "type": f"x.{kind}"} for i, (path, kind) in enumerate(kinds.items())]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "mean"}))
    return folder


def test_a_sentence_transformers_folder_is_analysed(embedder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    given = ["data.limit_eval=20", "data.limit_train=20", "ablation.resamples=100", "ablation.permutations=100"]
    given += ["logger=none", "progress=false", f"hydra.run.dir={out}"]
    assert "Report:" in ran("analyze", "task=demo_similarity", f"checkpoint={embedder}", *given).stdout

    tokenizer, model = AutoTokenizer.from_pretrained(embedder), AutoModel.from_pretrained(embedder).eval()
    config = SourceConfig.read("data", {"source": "demo", "limit_eval": 20})
    data = TaskData(task("demo_similarity"), config, tokenizer, batch_size=8, max_length=64, seed=0)
    examples = data.examples("validation")
    gold = [float(example.label or 0) for example in examples]

    def cosines() -> np.ndarray:
        with torch.no_grad():
            vectors = [
                [model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0) for text in example.texts]
                for example in examples
            ]
        return np.array([float(torch.dot(a, b) / a.norm() / b.norm()) for a, b in vectors])

    clean = cosines()
    scores = json.loads((out / "scores.json").read_text())["sets"]["val"]["model"]
    assert scores["spearman"] == pytest.approx(spearmanr(clean, gold)[0], abs=1e-6)
    assert scores["loss"] == pytest.approx(np.square(clean - np.array(gold) / 5).mean(), abs=1e-6)
    rows = {(row["variant"], row["metric"]): row for row in pq.read_table(out / "ablation.parquet").to_pylist()}
    moved_LH, _, count_LH = HeadTable.read(out / "heads.parquet").grid("cosine_change", "mean_change", "checkpoint", 0)
    assert (count_LH == 20).all()
    for layer, head in ((0, 2), (2, 3)):
        with override(model, [HeadEdit(layer, head, "uniform")]):
            new = cosines()
        row = rows[f"l{layer:02d}h{head:02d}", "spearman"]
        assert row["delta"] == pytest.approx(spearmanr(new, gold)[0] - spearmanr(clean, gold)[0], abs=1e-6)
        assert moved_LH[layer, head] == pytest.approx(np.abs(new - clean).mean(), abs=1e-6)
    report = (out / "report.html").read_text("utf-8")
    assert "How much disabling a head changes the cosine similarity" in report
    assert "a head is disabled in both sentences" in report
    assert "measure=[entropy," in report
    assert "analysis=prune" not in report


@pytest.mark.slow
def test_embedders_are_compared_judged_planned_and_viewed(embedder: Path, tmp_path: Path) -> None:
    given = ["data.limit_eval=36", "ablation.resamples=100", "ablation.permutations=100", "logger=none"]
    runs = [tmp_path / "one", tmp_path / "two"]
    for run, mode in zip(runs, ("uniform", "zero"), strict=True):
        asked = ["task=demo_similarity", f"checkpoint={embedder}", f"ablation.mode={mode}", "progress=false"]
        ran("analyze", *asked, *given, f"hydra.run.dir={run}")
    both, folder = f"runs=[{runs[0]},{runs[1]}]", f"hydra.run.dir={tmp_path / 'compared'}"
    for limit, status in ((200, 0), (0, 3)):
        judged = door("train", "--config-name=compare", both, folder, f"fail_if='spearman_loss > {limit}'")
        assert judged.returncode == status, judged.stderr
    planned = ran("train", "--config-name=plan", f"runs=[{runs[0]}]", f"hydra.run.dir={tmp_path / 'planned'}")
    assert "Warning" not in planned.stderr
    sentences = "text=[One.,Two.]"
    for number, asked in enumerate(
        (f"checkpoint={runs[0]} head=1.2", f"checkpoint={runs[0]} {sentences}", f"checkpoint={embedder} {sentences}")
    ):
        ran("train", "--config-name=view", *asked.split(), f"hydra.run.dir={tmp_path / str(number)}")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["task=mrpc"], "which task 'mrpc' cannot judge"),
        (["task=demo_tags", "analysis=disable"], "which task 'demo_tags' cannot judge"),
        (["task=stsb", "analysis=prune"], "is not available for a sentence-embedding model; choose analysis=disable"),
        (["task=stsb", "ablation.mode=resample"], "Mode 'resample' is not available"),
        (["task=stsb", "ablation.budget=10min"], "budgeted and plan-only sweeps are not"),
        (["task=stsb", "analysis=disable", "measure=[entropy]"], "run one command for each"),
    ],
)
def test_what_it_cannot_do_is_told_before_a_model_is_loaded(
    arguments: list[str], sentence: str, embedder: Path, tmp_path: Path
) -> None:
    (embedder / "model.safetensors").write_bytes(b"not weights")
    settings = read_analyze(composed([*arguments, f"checkpoint={embedder}"], "analyze"))
    with pytest.raises(UserError, match=sentence):
        embedder_settings(settings)


@pytest.fixture
def setfit(embedder: Path, tmp_path: Path) -> Path:
    """A folder as SetFit writes it, with a head that would write a file if it were unpickled."""
    (embedder / "config_setfit.json").write_text(json.dumps({"labels": ["bad", "good"], "normalize_embeddings": False}))
    (embedder / "model_head.pkl").write_bytes(f"cos\nmkdir\n(S'{tmp_path / 'executed'}'\ntR.".encode())
    rows = ["text,label", "a good film,good", "a bad film,bad", "the film was good,good", "bad,bad"]
    (tmp_path / "rows.csv").write_text("\n".join(rows))
    return embedder


def test_heads_of_the_body_of_setfit_are_measured(setfit: Path, tmp_path: Path) -> None:
    command = ["checkpoint=" + str(setfit), "data=csv", f"data.path={tmp_path / 'rows.csv'}", "data.text=text"]
    given = ["data.label=label", "logger=none", "progress=false", f"hydra.run.dir={tmp_path / 'out'}"]
    assert "analysis=disable" not in ran("analyze", *command, "measure=[entropy]", *given).stdout
    value_LH, _, count_LH = HeadTable.read(tmp_path / "out/heads.parquet").grid("entropy", "bits", "checkpoint", 0)
    tokenizer, model = AutoTokenizer.from_pretrained(setfit), AutoModel.from_pretrained(setfit)
    texts = [line.split(",")[0] for line in (tmp_path / "rows.csv").read_text().splitlines()[1:]]
    assert (count_LH == len(texts)).all()
    assert value_LH == pytest.approx(bs.measure(model, tokenizer, texts, "entropy").column("bits").numpy(), abs=1e-6)
    result = door("analyze", *command, "analysis=disable", "overwrite=true", *given)
    assert result.returncode != 0
    assert "is a SetFit model, whose head is a pickle that could run any code and is not read" in result.stderr
    assert "or measure its heads, e.g. measure=[entropy]" in result.stderr
    assert not (tmp_path / "executed").exists()


def test_sentences_of_pairs_are_measured_apart(embedder: Path, tmp_path: Path) -> None:
    given = ["data.limit_eval=10", "logger=none", "progress=false", f"hydra.run.dir={tmp_path / 'out'}"]
    ran("analyze", "task=demo_similarity", f"checkpoint={embedder}", "measure=[offsets]", *given)
    value_LH, _, count_LH = HeadTable.read(tmp_path / "out/heads.parquet").grid("offsets", "previous", "checkpoint", 0)
    assert (count_LH == 20).all()
    data = TaskData(
        task("demo_similarity"),
        SourceConfig.read("data", {"source": "demo", "limit_eval": 10}),
        AutoTokenizer.from_pretrained(embedder),
    )
    texts = [text for example in data.examples("validation") for text in example.texts]
    expected = bs.measure(AutoModel.from_pretrained(embedder), data.tokenizer, texts, "offsets").column("previous")
    assert value_LH == pytest.approx(expected.numpy(), abs=1e-6)
