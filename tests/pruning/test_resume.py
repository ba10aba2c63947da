"""Finished steps of an interrupted search are used again, and only where everything they depend on is the same."""

from pathlib import Path

import pytest
import torch
from families import tiny_model

from bertsecrets.pruning.resume import Finished

HEADS = frozenset({(0, 1), (2, 3)})


def changed(model: torch.nn.Module) -> torch.nn.Module:
    with torch.no_grad():
        next(model.parameters()).add_(1)
    return model


def test_a_recovered_model_is_made_once(tmp_path: Path) -> None:
    model = tiny_model("bert")
    finished = Finished(tmp_path, ["32-true", "mrpc"])
    path = finished.model_file(model, HEADS, (2, 1e-5))
    first = finished.recovered(model, path, lambda: changed(tiny_model("bert")))
    again = Finished(tmp_path, ["32-true", "mrpc"])
    second = again.recovered(model, again.model_file(model, HEADS, (2, 1e-5)), lambda: pytest.fail("made twice"))
    assert again.loaded == 1
    for name, tensor in first.state_dict().items():
        torch.testing.assert_close(second.state_dict()[name], tensor, rtol=0, atol=0)
    others = [
        again.model_file(model, frozenset({(0, 1)}), (2, 1e-5)),
        again.model_file(model, HEADS, (3, 1e-5)),
        again.model_file(changed(tiny_model("bert")), HEADS, (2, 1e-5)),
        Finished(tmp_path, ["bf16-mixed", "mrpc"]).model_file(model, HEADS, (2, 1e-5)),
    ]
    assert len({path, *others}) == 5
    again.clear()
    assert not tmp_path.exists()


def test_fitted_gates_are_kept_and_damaged_files_are_made_again(tmp_path: Path) -> None:
    model, gates = tiny_model("bert"), torch.rand(3, 4)
    Finished(tmp_path).fitted(model, (0.1, 7), lambda: gates)
    kept = Finished(tmp_path)
    torch.testing.assert_close(kept.fitted(model, (0.1, 7), lambda: pytest.fail("made twice")), gates)
    torch.testing.assert_close(kept.fitted(model, (0.1, 8), lambda: gates + 1), gates + 1)
    for path in tmp_path.iterdir():
        path.write_bytes(b"damaged")
    torch.testing.assert_close(kept.fitted(model, (0.1, 7), lambda: gates + 2), gates + 2)
    assert kept.loaded == 1
