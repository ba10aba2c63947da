"""The same numbers on a GPU as on the CPU, and the doors on one."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from cli.runs import door, small
from families import FAMILIES, HEADS, LAYERS, tiny_batch, tiny_model
from sweeps.sweeps import sweep

from bertsecrets.ablation.engine import Engine
from bertsecrets.ablation.plan import Plan, every_head, every_layer
from bertsecrets.attention.override import HeadEdit, override
from bertsecrets.attention.self_check import check_attention
from bertsecrets.data.batch import Batch
from bertsecrets.measures.drift import Drift
from bertsecrets.measures.linguistic.features import Features
from bertsecrets.measures.one_pass import measure_pass
from bertsecrets.results.ablation_table import AblationTable
from bertsecrets.results.table import HeadTable

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and torch sees none"),
]
GPU = torch.device("cuda")


def batch_of(inputs: dict[str, torch.Tensor]) -> Batch:
    ids_BS = inputs["input_ids"]
    special_BS = torch.zeros_like(ids_BS).bool()
    special_BS[:, :2] = True
    return Batch(
        input_ids_BS=ids_BS,
        attention_mask_BS=inputs["attention_mask"],
        token_type_ids_BS=None,
        special_BS=special_BS,
        word_BS=torch.zeros_like(ids_BS),
        index_B=torch.arange(len(ids_BS)),
        label_B=torch.zeros(len(ids_BS), dtype=torch.long),
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_gpu_gives_the_grids_of_the_cpu(family: str) -> None:
    model, reference = tiny_model(family).double(), tiny_model(family, seed=1).double()
    measures = [Drift(LAYERS, HEADS), Features(LAYERS, HEADS, {"cls": {"special": "first"}})]
    found = []
    for device in ("cpu", "cuda"):
        model, reference = model.to(device), reference.to(device)
        found.append(measure_pass(model, measures, [batch_of(tiny_batch())], reference))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one.value_LHC, other.value_LHC, atol=1e-9, rtol=0)
        torch.testing.assert_close(one.stderr_LHC, other.stderr_LHC, atol=1e-9, rtol=0)
        assert torch.equal(one.count_LHC, other.count_LHC)


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_shared_work_equals_one_forward_pass_for_each_variant(family: str) -> None:
    model = tiny_model(family).double().to(GPU)
    batch = {name: tensor.to(GPU) for name, tensor in tiny_batch().items()}
    variants = (*every_head(LAYERS, HEADS), *every_layer(LAYERS, HEADS))
    clean_BC, logits_BVC = Engine(model, Plan("uniform", LAYERS, HEADS, variants)).run(batch)
    torch.testing.assert_close(clean_BC, model(**batch).logits, atol=1e-9, rtol=0)
    for place, variant in enumerate(variants):
        with override(model, [HeadEdit(layer, head, "uniform") for layer, head in variant.heads]):
            torch.testing.assert_close(logits_BVC[:, place], model(**batch).logits, atol=1e-9, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_check_passes_on_a_gpu(family: str) -> None:
    check = check_attention(tiny_model(family).to(GPU))
    assert check.watched_difference == 0 or check.watched_difference < 1e-4
    assert min(check.override_differences) > 0


@pytest.mark.parametrize(
    "given",
    [
        {"trainer": "gpu", "callbacks": "disable"},
        {"trainer": "gpu", "compile": "true"},
        {"trainer": "ddp", "trainer__devices": 1},
        {"trainer": "fsdp", "trainer__devices": 1},
    ],
    ids=["bf16", "compiled", "ddp", "fsdp"],
)
def test_a_run_on_a_gpu_leaves_everything_behind(given: dict[str, object], tiny_bert: Path, tmp_path: Path) -> None:
    arguments = [each for each in small(tiny_bert, tmp_path / "run", **given) if each != "trainer.accelerator=cpu"]
    if given["trainer"] == "fsdp":
        arguments.append("~callbacks.gradient_flow")
    result = door("train", *arguments)
    assert result.returncode == 0, result.stderr
    value_LH, _, count_LH = HeadTable.read(tmp_path / "run" / "heads.parquet").grid("drift", "cosine", "training", 24)
    assert np.isfinite(value_LH).all()
    assert (count_LH == 37).all()
    assert (tmp_path / "run" / "report.html").is_file()
    if given.get("callbacks") == "disable":
        rows = AblationTable.read(tmp_path / "run" / "ablation.parquet").rows()
        assert {row["kind"] for row in rows} == {"head", "layer"}
    else:
        # The checkpoint is one that a CPU can read, too.
        other = [each for each in small(tiny_bert, tmp_path / "cpu") if not each.startswith(("trainer.m", "task.t"))]
        result = door("analyze", *other, f"checkpoint={tmp_path / 'run'}", "analysis=drift")
        assert result.returncode == 0, result.stderr


def test_jobs_of_a_sweep_share_out_the_gpus(tiny_bert: Path, tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    for launcher in ("joblib", "local_cluster"):
        given = ["seed=1,2", f"launcher={launcher}", "trainer=gpu"]
        result = sweep(tiny_bert, folder / launcher, *given)
        if launcher == "local_cluster" and "needs a plugin" in result.stderr:
            pytest.skip("hydra-submitit-launcher is not installed here")
        assert result.returncode == 0, result.stderr
        assert "2 finished, 0 skipped, 0 failed" in result.stdout
        for path in (folder / launcher).glob("*/scores.json"):
            assert json.loads(path.read_text())["sets"]["val"]["count"] == 9
