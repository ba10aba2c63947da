"""What every kind of task head has: a run and its page, a comparison of seeds, a plan, a condition, smaller models."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import transformers
from cli.runs import door, ran, small
from pyarrow import parquet
from shared import made_once, session_folder
from wandb_log import tracked

from bertsecrets.results.formatting import metric_label

LAYERS, HEADS = 3, 4


@dataclass(frozen=True)
class Kind:
    """A demo task of a kind: its metrics, the class of its models, and settings of the run."""

    task: str
    metrics: tuple[str, ...]
    model: str
    settings: Mapping[str, object] = field(default_factory=dict)


KINDS = (
    Kind("demo_sentiment", ("accuracy",), "SequenceClassification"),
    Kind("demo_similarity", ("pearson", "spearman"), "SequenceClassification"),
    Kind("demo_tags", ("token_accuracy",), "TokenClassification"),
    # Texts longer than a window.
    Kind("demo_questions", ("exact_match", "answer_f1"), "QuestionAnswering", {"task.training.max_length": 32}),
    Kind("demo_choices", ("accuracy",), "MultipleChoice"),
    Kind("demo_words", ("masked_accuracy", "pseudo_log_likelihood"), "MaskedLM"),
)


@pytest.fixture(
    scope="module",
    # Other tests train on classes of sentences and of answers, too.
    params=[
        pytest.param(kind, id=kind.task, marks=[pytest.mark.slow] * (kind.task in ("demo_sentiment", "demo_choices")))
        for kind in KINDS
    ],
)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


@pytest.fixture(scope="module")
def run(kind: Kind, tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short training of the kind, with its heads disabled."""
    return trained(kind, 1, tiny_bert, session_folder(tmp_path_factory))


@pytest.fixture(scope="module")
def other_seed(kind: Kind, run: Path, tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(kind, 2, tiny_bert, session_folder(tmp_path_factory))


def trained(kind: Kind, seed: int, tiny_bert: Path, folder: Path) -> Path:
    def with_head(model: Path) -> None:
        # A head for masked words comes with the pre-trained model.
        encoder = transformers.AutoModel.from_pretrained(tiny_bert)
        whole = transformers.AutoModelForMaskedLM.from_config(encoder.config)
        whole.base_model.load_state_dict(encoder.state_dict(), strict=False)
        whole.save_pretrained(model)
        transformers.AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(model)

    def train(run: Path) -> None:
        model = made_once(folder / "tiny_masked_bert", with_head)
        given = small(model, run, task=kind.task, seed=seed, logger="wandb", trainer__max_epochs=1, **kind.settings)
        ran("train", *given, "logger.wandb.mode=offline")

    return made_once(folder / f"{kind.task}_seed{seed}", train)


def test_the_page_the_sweep_and_the_log_have_the_scores_of_the_training(kind: Kind, run: Path) -> None:
    scores = json.loads((run / "findings.json").read_text("utf-8"))["scores"]["sets"]["val"]
    assert scores["count"] == 37
    assert {*scores["model"]} == {*kind.metrics, "loss"}
    summary = tracked(run).summary
    rows = parquet.read_table(run / "ablation.parquet").to_pylist()
    page = (run / "report.html").read_text("utf-8")
    for metric in kind.metrics:
        score = pytest.approx(scores["model"][metric], abs=1e-6)
        assert summary[f"final/val/{metric}"] == score
        heads = [row["baseline"] for row in rows if row["metric"] == metric and row["kind"] == "head"]
        # A sweep computes rows of similar length together, which rounds differently.
        assert heads == [pytest.approx(scores["model"][metric], abs=2e-5)] * LAYERS * HEADS
        assert f"What disabling does to {metric_label(metric)}" in page
        assert f"change of {metric} " not in page or metric_label(metric) == metric


@pytest.mark.slow
def test_seeds_are_compared_judged_and_planned(kind: Kind, run: Path, other_seed: Path, tmp_path: Path) -> None:
    both, folder = f"runs=[{run},{other_seed}]", f"hydra.run.dir={tmp_path / 'compared'}"
    for limit, status in ((100, 0), (0, 3)):
        condition = f"fail_if='{kind.metrics[0]}_loss > {limit}'"
        judged = door("train", "--config-name=compare", both, folder, condition)
        assert judged.returncode == status, judged.stderr
    page = (tmp_path / "compared" / "comparison.html").read_text("utf-8")
    assert f"val/{kind.metrics[0]}" in page
    planned = door("train", "--config-name=plan", both, f"hydra.run.dir={tmp_path / 'planned'}")
    if kind.task == "demo_questions":
        assert "has examples in groups (data.group), but a plan counts independent examples" in planned.stderr
    else:
        assert planned.returncode == 0, planned.stderr
        assert "To rule out a loss of 1.0 point" in planned.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "asked",
    [
        ("measure=[entropy,patterns]",),
        ("analysis=importance",),
        ("analysis=gates", "analysis.gates.path=[0.1]", "analysis.gates.steps=4", "analysis.gates.fits=1"),
        ("analysis=prune", "prune.step=0.3", "prune.seeds=1", "prune.examples=33", "prune.latency_rounds=0"),
        (
            "analysis=shrink",
            "shrink.speedup=1.01",
            "shrink.max_loss=60",
            "shrink.examples=33",
            "shrink.batch_size=2",
            # The shortest of many passes is the same on a busy machine.
            "shrink.latency_rounds=40",
        ),
    ],
    ids=lambda asked: asked[0],
)
def test_analyses_of_a_run(kind: Kind, run: Path, tmp_path: Path, asked: tuple[str, ...]) -> None:
    given = (f"checkpoint={run}", "logger=csv", "progress=false", f"hydra.run.dir={tmp_path / 'out'}")
    assert "Report:" in ran("analyze", *given, *asked).stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "shown"), [("head=1.2", "layer 1 · head 2"), ("text=[The nurse slept.,The man ate soup.]", "nurse")]
)
def test_a_head_and_a_text_are_viewed(kind: Kind, run: Path, tmp_path: Path, asked: str, shown: str) -> None:
    folder = f"hydra.run.dir={tmp_path / 'view'}"
    ran("train", "--config-name=view", f"checkpoint={run}", asked, "progress=false", folder)
    (page,) = (tmp_path / "view").glob("*.html")
    assert shown in page.read_text("utf-8")


@pytest.mark.slow
def test_an_exported_model_and_its_card_name_its_class(kind: Kind, run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    ran("train", "--config-name=export", f"checkpoint={run}", f"folder={folder}")
    assert json.loads((folder / "config.json").read_text("utf-8"))["architectures"] == [f"BertFor{kind.model}"]
    assert f"AutoModelFor{kind.model}.from_pretrained" in (folder / "README.md").read_text("utf-8")
