"""The package of CONTRIBUTING.md, built from the page itself: what it brings is listed, runs, and is on pages, with no edit here."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from cli.runs import ROOT, door, small
from packages import installed, write_package
from scipy import stats

import bertsecrets as bs
from bertsecrets.measures.shipped import shipped_measures, shipped_names
from bertsecrets.results.table import HeadTable

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
    settings = small(tiny_bert, folder, measure="[sharpness]", compare_with="[initial]")
    done = door("train", "model=tiny", *settings[1:])
    assert done.returncode == 0, done.stderr
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
    assert re.search(r"^  measures +sharpness \(my_heads\)$", text, re.MULTILINE)


def test_the_measure_is_in_table_and_page(trained: Path) -> None:
    table = HeadTable.read(trained / "heads.parquet").select(measure="sharpness", column="bits")
    assert set(table.table["stage"].to_pylist()) == {"training", "checkpoint", "initial", "checkpoint-initial"}
    page = (trained / "report.html").read_text("utf-8")
    assert "Sharpness of attention" in page
    assert "bits below uniform attention" in page


def test_a_run_is_analysed_and_its_page_made_again(trained: Path, tmp_path: Path) -> None:
    done = door("analyze", f"checkpoint={trained}", "measure=[sharpness]", f"hydra.run.dir={tmp_path}", "logger=csv")
    assert done.returncode == 0, done.stderr
    assert "Sharpness of attention" in (tmp_path / "report.html").read_text("utf-8")
    done = door("analyze", f"report={trained}", "progress=false")
    assert done.returncode == 0, done.stderr


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


def test_a_score_of_the_package_is_computed_on_training_examples(package: Path) -> None:
    shipped_measures.cache_clear()
    assert "sharpness" in shipped_measures()


def test_a_misspelt_measure_is_told_the_packages_name(package: Path, tiny_bert: Path, tmp_path: Path) -> None:
    done = door("train", *small(tiny_bert, tmp_path, measure="[sharpnes]"))
    assert done.returncode == 1
    assert "Unknown measure 'sharpnes'; did you mean 'sharpness'?" in done.stderr
