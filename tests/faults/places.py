"""What cases are arranged from: a tiny model, and copies of the finished runs that cases share."""

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml
from faults.runner import Warm, copied
from safetensors.torch import load_file, save_file

Arrange = Callable[[Path], None]

warm_process: list[Warm] = []
"""The warm process, once the fixture has made it."""


class Touch:
    """Pickled, it makes the file ``pwned`` in the working directory of whoever unpickles it."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch pwned",)


def model(*edits: Arrange) -> Arrange:
    """Copy the tiny model to ``m`` and change it."""

    def arrange(folder: Path) -> None:
        copied(warm_process[-1].model, folder / "m")
        for edit in edits:
            edit(folder / "m")

    return arrange


def run(*edits: Arrange, name: str = "run") -> Arrange:
    """Copy a finished run to ``r`` and change it."""

    def arrange(folder: Path) -> None:
        copied(warm_process[-1].finished(name), folder / "r")
        for edit in edits:
            edit(folder / "r")

    return arrange


def unfinished(*edits: Arrange) -> Arrange:
    """Copy a finished run to ``r``, make it one that can be resumed, and change it."""
    return run(remove("finished.json"), *edits)


def both(*steps: Callable[[Path], object]) -> Arrange:
    """Take several steps, one after another."""

    def arrange(folder: Path) -> None:
        for step in steps:
            step(folder)

    return arrange


def remove(*names: str) -> Arrange:
    def arrange(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return arrange


def write(name: str, content: bytes | str) -> Arrange:
    def arrange(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return arrange


def cut(name: str, share: float = 0.5) -> Arrange:
    def arrange(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(len(content) * share)])

    return arrange


def flipped(name: str) -> Arrange:
    """Change one byte of a file."""

    def arrange(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[len(content) // 4] ^= 1
        (folder / name).write_bytes(content)

    return arrange


def directory(name: str) -> Arrange:
    def arrange(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).mkdir(parents=True)

    return arrange


def forbid(name: str) -> Arrange:
    def arrange(folder: Path) -> None:
        (folder / name).chmod(0)

    return arrange


def json_keys(name: str, **values: Any) -> Arrange:
    """Set keys of a JSON file."""

    def arrange(folder: Path) -> None:
        content = json.loads((folder / name).read_text("utf-8"))
        (folder / name).write_text(json.dumps(content | values), "utf-8")

    return arrange


def yaml_keys(name: str = "config.yaml", /, **values: Any) -> Arrange:
    """Set keys of a run's configuration; ``__`` stands for a dot."""

    def arrange(folder: Path) -> None:
        path = folder / name
        content = yaml.safe_load(path.read_text("utf-8"))
        for key, value in values.items():
            *sections, last = key.split("__")
            section = content
            for part in sections:
                section = section.setdefault(part, {})
            section[last] = value
        path.write_text(yaml.safe_dump(content), "utf-8")

    return arrange


def replaced(name: str, before: str, after: str) -> Arrange:
    """Replace the first occurrence of a text in a file."""

    def arrange(folder: Path) -> None:
        text = (folder / name).read_text("utf-8")
        assert before in text
        (folder / name).write_text(text.replace(before, after, 1), "utf-8")

    return arrange


def tensors(edit: Callable[[dict[str, torch.Tensor]], None]) -> Arrange:
    """Change the weights of a model's folder."""

    def arrange(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        edit(weights)
        save_file(weights, folder / "model.safetensors", {"format": "pt"})

    return arrange


def checkpoint(edit: Callable[[dict[str, Any]], None], name: str = "last.ckpt") -> Arrange:
    """Change a checkpoint of a run."""

    def arrange(folder: Path) -> None:
        path = folder / "checkpoints" / name
        content = torch.load(path, weights_only=True)
        edit(content)
        torch.save(content, path)

    return arrange


def as_bin(*, pickled: bool = False, legacy: bool = False) -> Arrange:
    """Turn the weights of a model's folder into ``pytorch_model.bin``, with an object that runs a command if
    ``pickled``.
    """

    def arrange(folder: Path) -> None:
        content: dict[str, Any] = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").unlink()
        content |= {"extra": Touch()} if pickled else {}
        torch.save(content, folder / "pytorch_model.bin", _use_new_zipfile_serialization=not legacy)

    return arrange


def sharded(*edits: Arrange) -> Arrange:
    """Split the weights of a model's folder into ``a.safetensors`` and ``b.safetensors`` with an index."""

    def arrange(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").unlink()
        shard_of = {name: "ab"[place % 2] + ".safetensors" for place, name in enumerate(sorted(weights))}
        for shard in set(shard_of.values()):
            own = {name: weights[name] for name in weights if shard_of[name] == shard}
            save_file(own, folder / shard, {"format": "pt"})
        index = {"metadata": {}, "weight_map": shard_of}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index), "utf-8")
        for edit in edits:
            edit(folder)

    return arrange


def pickle_bytes() -> bytes:
    """A pickle that runs a command when it is read."""
    return pickle.dumps({"state_dict": Touch()})


def torch_pickle(name: str, *, legacy: bool = False) -> Arrange:
    """Replace a file by one of ``torch.save`` that runs a command when it is unpickled."""

    def arrange(folder: Path) -> None:
        torch.save({"bertsecrets": {}, "state_dict": Touch()}, folder / name, _use_new_zipfile_serialization=not legacy)

    return arrange
