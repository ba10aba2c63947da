"""A measure defined in this file, with one config, has all that a shipped measure has; no other file knows it."""

import re
from pathlib import Path

import pytest
import torch
from cli.runs import ran, small
from torch import Tensor
from wandb_log import tracked

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


@pytest.fixture(scope="module")
def trained(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that took the measure."""
    folder, configs = (tmp_path_factory.mktemp(name) for name in ("trained", "configs"))
    (configs / "measure").mkdir()
    (configs / "measure" / "sharpness.yaml").write_text(CONFIG, "utf-8")
    settings = {"logger": "wandb", "measure": "[sharpness]", "compare_with": "[initial]", "report__figures": "null"}
    ran("train", "--config-dir", str(configs), *small(tiny_bert, folder, **settings))
    return folder


def test_its_numbers_are_in_the_head_table(trained: Path) -> None:
    table = HeadTable.read(trained / "heads.parquet").select(measure="sharpness", column="bits")
    stages = set(table.table["stage"].to_pylist())
    # During training, and at the end of the best checkpoint.
    assert stages == {"training", "checkpoint", "initial", "checkpoint-initial"}
    value_LH, stderr_LH, count_LH = table.grid(
        "sharpness", "bits", "checkpoint", table.steps("sharpness", "bits", "checkpoint")[-1]
    )
    assert (count_LH == 37).all()
    assert (value_LH > 0).all()
    assert (stderr_LH > 0).all()


def test_its_section_has_a_finding_a_figure_with_its_unit_and_a_table(trained: Path) -> None:
    page = (trained / "report.html").read_text("utf-8")
    finding = (
        r"Sharpness of attention: (layer \d · head \d+ has the highest value of “bits below uniform "
        r"attention”|bits below uniform attention is 0\.\d+ in all)"
    )
    assert re.search(finding, page)
    assert "<h2>Sharpness of attention</h2>" in page
    assert "<h2>Sharpness of attention, compared with other models</h2>" in page
    assert "mean over heads" in page
    assert (trained / "figures" / "sharpness.svg").is_file()
    assert (trained / "figures" / "sharpness_beside_initial.svg").is_file()


def test_its_heads_its_mean_and_its_figures_are_in_wandb(trained: Path) -> None:
    shown = {"sharpness/bits/mean", "sharpness/bits/l00", "sharpness/bits/heatmap/_type", "figures/sharpness/_type"}
    assert shown <= tracked(trained).logged.keys()


def test_its_report_can_be_made_again_without_its_class(trained: Path) -> None:
    figure = trained / "figures" / "sharpness.svg"
    before = figure.read_bytes()
    figure.unlink()
    # Neither this folder nor the config is at hand: labels and units come from the run's folder.
    ran("report", f"run={trained}", "progress=false")
    assert figure.read_bytes() == before
