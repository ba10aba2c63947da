"""A smaller, faster model through the door: the command, what it writes, and what it refuses."""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cli.runs import door, ran
from pyarrow import parquet
from transformers import AutoTokenizer

import bertsecrets as bs
from bertsecrets.pruning.export import OnnxClassifier
from bertsecrets.pruning.rows import Shrunk
from bertsecrets.results.run import Run
from bertsecrets.results.views import MeasureView

pytestmark = pytest.mark.slow

LITTLE = (
    "analysis=shrink",
    "shrink.examples=33",
    "shrink.distilled_on=33",
    "shrink.latency_rounds=5",
    "shrink.batch_size=2",
)
QUIET = ("logger=csv", "progress=false")


@pytest.fixture(autouse=True)
def _the_first_search(trained: Path) -> None:
    """Searches of other tests on the same examples do not count."""
    shutil.rmtree(trained / "searches", ignore_errors=True)


def written(folder: Path) -> Path:
    """The folder of the smaller model: so small a model may be timed slower than asked."""
    return folder / shrunk_of(folder).folder


def shrunk_of(folder: Path) -> Shrunk:
    run = Run.open(folder)
    (declaration,) = [one for one in run.declarations() if one.name == "shrinking"]
    return Shrunk.of(MeasureView(run, declaration))


def test_the_fastest_model_that_holds_is_written_and_loads_alone(trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    asked = ("shrink.speedup=[1.05,1.1]", "shrink.max_loss=60")
    result = ran("analyze", f"checkpoint={trained}", *LITTLE, *QUIET, *asked, f"hydra.run.dir={folder}")
    assert "can rule out a loss of" in result.stdout + result.stderr
    shrunk = shrunk_of(folder)
    model = bs.load_pruned(written(folder))
    for smaller in shrunk.attempts:
        # Times of the finished model.
        assert smaller.attempt.missed == (smaller.timing(2).speedup < smaller.attempt.asked)
    # The next search on the same examples finds this one.
    assert shrunk.search.number == 1
    assert len(list((trained / "searches").iterdir())) == 1
    parameters = shrunk.written.attempt.parameters
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters < shrunk.search.parameters
    assert model(torch.full((1, 4), 5)).logits.shape == (1, 2)
    assert not [*folder.glob("unfinished-*")]
    rows = parquet.read_table(folder / "heads.parquet").to_pylist()
    assert sum(row["value"] for row in rows if row["measure"] == "shrinking") == sum(
        layer.count for layer in shrunk.written.layers
    )
    assert "A smaller, faster model" in (folder / "report.html").read_text("utf-8")


def test_a_model_that_fails_is_written_where_the_folder_says_so(trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    # The smallest loss that these examples can rule out, as the refusal names it: hardly an answer may change.
    refused = door("analyze", f"checkpoint={trained}", *LITTLE, *QUIET, "shrink.speedup=1.1", "shrink.max_loss=0.1")
    least = refused.stderr.partition("set shrink.max_loss=")[2].split()[0]
    asked = ("shrink.speedup=1.1", f"shrink.max_loss={least}", "shrink.epochs=0")
    ran("analyze", f"checkpoint={trained}", *LITTLE, *QUIET, *asked, f"hydra.run.dir={folder}")
    (smaller,) = shrunk_of(folder).attempts
    assert not smaller.attempt.passed
    model = bs.load_pruned(folder / "shrunk_failed")
    assert sum(parameter.numel() for parameter in model.parameters()) == smaller.attempt.parameters
    assert "No smaller model passed" in (folder / "shrunk_failed" / "README.md").read_text("utf-8")
    assert not (folder / "shrunk").exists()
    assert not [*folder.glob("unfinished-*")]


@pytest.mark.skipif(importlib.util.find_spec("onnxruntime") is None, reason="needs the extra export")
def test_weights_of_8_bits_are_a_further_step_under_the_same_test(trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    asked = ("shrink.speedup=1.05", "shrink.max_loss=60", "shrink.export=[int8]", "shrink.epochs=0")
    ran("analyze", f"checkpoint={trained}", *LITTLE, *QUIET, *asked, f"hydra.run.dir={folder}")
    assert [smaller.attempt.int8 for smaller in shrunk_of(folder).attempts] == [False, True]
    exported = OnnxClassifier(written(folder) / "model.int8.onnx")
    ids_BS = torch.arange(5, 11)[None]
    expected = bs.load_pruned(written(folder))(input_ids=ids_BS).logits
    logits = exported(input_ids=ids_BS, attention_mask=torch.ones_like(ids_BS)).logits
    torch.testing.assert_close(logits, expected.detach(), atol=0.05, rtol=0)
    assert not torch.equal(logits, expected)
    # The code of the card, in a process that knows neither this package nor PyTorch's models.
    card = (written(folder) / "README.md").read_text("utf-8")
    code = card.split("```python\n")[1].split("```")[0].replace("<this folder>", str(written(folder)))
    alone = f"{code}\nimport sys\nassert 'bertsecrets' not in sys.modules\nprint(logits.tolist())"
    answered = subprocess.run([sys.executable, "-c", alone], check=True, capture_output=True, text=True).stdout
    texts = ("The cat sat.", "The cat lay.")[: code.count("The cat")]
    tokens = AutoTokenizer.from_pretrained(written(folder))(*texts, return_tensors="pt")
    torch.testing.assert_close(torch.tensor(json.loads(answered)), exported(**tokens).logits, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            ("shrink.speedup=2", "shrink.max_loss=60", "shrink.max_class_loss=1"),
            "of class different cannot rule out a loss of 1 point at",
        ),
        (
            ("trainer.accelerator=cpu", "trainer.devices=2", "+trainer.strategy=ddp"),
            "there are 2; set trainer.devices=1 and trainer.num_nodes=1",
        ),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(
    settings: tuple[str, ...], message: str, trained: Path, tmp_path: Path
) -> None:
    result = door("analyze", f"checkpoint={trained}", *LITTLE, *QUIET, *settings, f"hydra.run.dir={tmp_path / 'run'}")
    assert result.returncode != 0
    assert message in result.stderr + result.stdout
    assert "Traceback" not in result.stderr
