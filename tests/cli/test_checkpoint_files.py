"""Checkpoint files stay complete when a run is cut short."""

from pathlib import Path

import pytest
import torch

from bertsecrets.cli.checkpoint_files import AtomicCheckpointIO


def test_a_checkpoint_is_the_old_one_or_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "checkpoints" / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint({"step": 1}, path)

    def cut_short(content: object, target: Path) -> None:
        Path(target).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr("bertsecrets.cli.checkpoint_files.torch.save", cut_short)
    with pytest.raises(KeyboardInterrupt):
        AtomicCheckpointIO().save_checkpoint({"step": 2}, path)
    assert torch.load(path, weights_only=True) == {"step": 1}
    assert [each.name for each in path.parent.iterdir()] == ["last.ckpt"]
