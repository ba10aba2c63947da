"""A measure defined in this file, with one config, has all that a shipped measure has; no other file knows it."""

import re
import subprocess
from pathlib import Path

import pytest
import torch
from cli.runs import door, small
from torch import Tensor
from wandb_log import leaves, read_log

from bertsecrets import Column, Measure
from bertsecrets.data.batch import Batch
from bertsecrets.results.table import HeadTable


class SharpnessInBits(Measure):
    """How much sharper than uniform a head attends: log2 L minus the entropy of its rows in bits."""

    name = "sharpness"
    title = "Sharpness of attention"
    columns = (Column("bits", "bits below uniform attention", "bits"),)

    def per_example(self, attention_BHQK: Tensor, batch: Batch, reference_BHQK: Tensor | None) -> Tensor:
        real_BS = batch.attention_mask_BS.to(attention_BHQK.dtype)
        entropy_BHQ = -torch.xlogy(attention_BHQK, attention_BHQK).sum(-1) / torch.log(torch.tensor(2.0))
        mean_BH = (entropy_BHQ * real_BS[:, None]).sum(-1) / real_BS.sum(-1)[:, None]
        return (real_BS.sum(-1).log2()[:, None] - mean_BH)[:, :, None]


CONFIG = "sharpness:\n  _target_: cli.test_new_measure.SharpnessInBits\n"


def run(name: str, configs: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command with this file's config in its search path."""
    return door(name, "--config-dir", str(configs), *arguments)


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("configs")
    (folder / "measure").mkdir()
    (folder / "measure" / "sharpness.yaml").write_text(CONFIG, "utf-8")
    return folder


@pytest.fixture(scope="module")
def trained(tiny_bert: Path, configs: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a run that took the measure, and what it printed."""
    folder = tmp_path_factory.mktemp("trained")
    settings = {"logger": "wandb", "measure": "[sharpness]", "compare_with": "[initial]", "report__figures": "null"}
    done = run("train", configs, *small(tiny_bert, folder, **settings))
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_its_numbers_are_in_the_head_table(trained: tuple[Path, str]) -> None:
    table = HeadTable.read(trained[0] / "heads.parquet").select(measure="sharpness", column="bits")
    stages = set(table.table["stage"].to_pylist())
    # During training, and at the end of the best checkpoint.
    assert stages == {"training", "checkpoint", "initial", "checkpoint-initial"}
    value_LH, stderr_LH, count_LH = table.grid(
        "sharpness", "bits", "checkpoint", table.steps("sharpness", "bits", "checkpoint")[-1]
    )
    assert (count_LH == 37).all()
    assert (value_LH > 0).all()
    assert (stderr_LH > 0).all()


def test_its_section_has_a_finding_a_figure_with_its_unit_and_a_table(trained: tuple[Path, str]) -> None:
    folder, _ = trained
    page = (folder / "report.html").read_text("utf-8")
    finding = (
        r"Sharpness of attention: (layer \d · head \d+ has the highest value of “bits below uniform "
        r"attention”|bits below uniform attention is 0\.\d+ in all)"
    )
    assert re.search(finding, page)
    assert "<h2>Sharpness of attention</h2>" in page
    assert "<h2>Sharpness of attention, compared with other models</h2>" in page
    assert "mean over heads" in page
    assert (folder / "figures" / "sharpness.svg").is_file()
    assert (folder / "figures" / "sharpness_beside_initial.svg").is_file()


def test_its_heads_its_mean_and_its_figures_are_in_wandb(trained: tuple[Path, str]) -> None:
    (log,) = (trained[0] / "wandb").glob("offline-run-*/*.wandb")
    names = leaves(item for record in read_log(log) for item in record.history.item)
    assert {"sharpness/bits/mean", "sharpness/bits/l00", "sharpness/bits/heatmap/_type"} <= names.keys()
    assert "figures/sharpness/_type" in names


def test_its_report_can_be_made_again_without_its_class(trained: tuple[Path, str]) -> None:
    folder, _ = trained
    before = (folder / "figures" / "sharpness.svg").read_bytes()
    (folder / "figures" / "sharpness.svg").unlink()
    # Neither this folder nor the config is at hand: labels and units come from the run's folder.
    done = door("report", f"run={folder}", "progress=false")
    assert done.returncode == 0, done.stderr
    assert (folder / "figures" / "sharpness.svg").read_bytes() == before
