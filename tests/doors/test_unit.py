"""What a run leaves on disk when it is cut short."""

from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from bertsecrets.doors.checkpoint_files import AtomicCheckpointIO
from bertsecrets.doors.job import _state
from bertsecrets.doors.unit import key_of, read_config, unit_of_work, write_config
from bertsecrets.errors import UserError
from bertsecrets.sweeps.identity import config_digest


def test_a_checkpoint_is_the_old_one_or_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "checkpoints" / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint({"step": 1}, path)

    def cut_short(content: object, target: Path) -> None:
        Path(target).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr("bertsecrets.doors.checkpoint_files.torch.save", cut_short)
    with pytest.raises(KeyboardInterrupt):
        AtomicCheckpointIO().save_checkpoint({"step": 2}, path)
    assert torch.load(path, weights_only=True) == {"step": 1}
    assert [each.name for each in path.parent.iterdir()] == ["last.ckpt"]


def test_an_interrupted_unit_goes_on_only_with_its_own_code_and_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"seed": 1, "task": {"name": "mrpc"}}
    folder = tmp_path / "run"

    def interrupted() -> None:
        with unit_of_work(OmegaConf.create(config), folder):
            write_config(OmegaConf.create(config), folder)
            raise KeyboardInterrupt

    def begin() -> None:
        with pytest.raises(KeyboardInterrupt):
            interrupted()

    begin()
    assert _state(folder, key_of(config), config_digest(config)) == (False, True)
    other = {**config, "seed": 2}
    assert _state(folder, key_of(other), config_digest(other)) == (False, False)
    assert not folder.exists()
    begin()
    monkeypatch.setattr("bertsecrets.sweeps.identity.code_version", lambda: "9.9.9+other")
    assert _state(folder, key_of(config), config_digest(config)) == (False, False)
    assert len(list((tmp_path / ".set_aside").iterdir())) == 2


@pytest.mark.parametrize("content", ["{", "", "- 1", "a: ${"])
def test_a_configuration_that_cannot_be_read_is_told(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(content)
    with pytest.raises(UserError, match=r"config.yaml' (cannot be read|holds no configuration)"):
        read_config(tmp_path)
