"""The store of finished steps, from which an interrupted analysis is resumed."""

import hashlib
import json
import logging
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from bertsecrets.results.files import atomic_write, new_folder, write_text

_log = logging.getLogger(__name__)

_OWN = re.compile(r"\.?[0-9a-f]{24}(\.[0-9a-f]{8})?(\.safetensors|\.json)?")
"""Name of a file or folder of the store, or of one that a killed process was writing."""


class Store:
    """Values of finished steps on disk, each named by a hash of everything that it depends on.

    A key consists of models (their weights), tensors, plain values, and mappings, sequences, sets and dataclasses of
    these. An unreadable file counts as missing.

    Args:
        folder: Folder of the values, made with the first one; None to keep nothing.
        key: What all values depend on.
        writes: Whether this process writes the values of :meth:`once`, which are the same on every process.
    """

    def __init__(self, folder: Path | None = None, *key: object, writes: bool = True) -> None:
        self.folder = folder
        self.writes = writes
        # Hashing the weights of a large model takes a second; they do not change while an analysis runs.
        self._weights: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
        self._children: list[Store] = []
        self._own_loaded = 0
        self.key = "" if folder is None else self._hash(key)

    def of(self, *key: object) -> "Store":
        """The part of the store whose values depend on this, too.

        With sharded weights in the key, all processes must call it.
        """
        if self.folder is None:
            return self
        child = Store(self.folder, writes=self.writes)
        child._weights = self._weights
        child.key = self._hash((self.key, *key))
        self._children.append(child)
        return child

    @property
    def loaded(self) -> int:
        """Number of steps that did not have to be computed again, including those of the parts."""
        return self._own_loaded + sum(child.loaded for child in self._children)

    def get(self, *key: object) -> Any:
        """The value that was put here, tensors on the CPU; None if there is none."""
        if self.folder is None:
            return None
        path = self.folder / self._hash((self.key, *key))
        text = path.with_suffix(".json")
        try:
            value = json.loads(text.read_text("utf-8")) if text.is_file() else load_file(f"{path}.safetensors")
        except (OSError, ValueError, SafetensorError):
            return None
        self._own_loaded += 1
        return value

    def put(self, value: object, *key: object) -> None:
        """Keep a value, in place of an earlier one: tensors by name, or what JSON can hold.

        Raises:
            UserError: If the file cannot be written.
        """
        if self.folder is None:
            return
        path = self.folder / self._hash((self.key, *key))
        if not isinstance(value, Mapping) or not all(isinstance(tensor, Tensor) for tensor in value.values()):
            write_text(path.with_suffix(".json"), json.dumps(value))
            return
        # The format has no tensors that share memory, such as tied embeddings.
        tensors = {
            name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in value.items()
        }
        with atomic_write(path.with_suffix(".safetensors")) as temporary:
            save_file(tensors, temporary)

    def once(self, make: Callable[[], Any], *key: object) -> Any:
        """The value that was put here, or else a new one that is kept."""
        value = self.get(*key)
        if value is None:
            value = make()
            if self.writes:
                self.put(value, *key)
        return value

    def folder_once(self, fill: Callable[[Path], object], *key: object) -> Path:
        """The folder of a step whose value is files; if there is none, ``fill`` writes them.

        Raises:
            UserError: If it cannot be written.
        """
        assert self.folder is not None, "files need a folder"
        path = self.folder / self._hash((self.key, *key))
        if path.is_dir():
            self._own_loaded += 1
        else:
            with new_folder(path) as temporary:
                fill(temporary)
        return path

    def clear(self) -> None:
        """Remove all values, once the findings are written; files of others stay, and are named."""
        if self.folder is None or not self.folder.is_dir():
            return
        others = []
        for path in self.folder.iterdir():
            if not _OWN.fullmatch(path.name):
                others.append(path.name)
            elif path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        if others:
            _log.warning(f"'{self.folder}' keeps files that bertsecrets did not write: {', '.join(sorted(others))}.")
        else:
            self.folder.rmdir()

    def _hash(self, key: object) -> str:
        content = hashlib.sha256()
        self._add(content, key)
        return content.hexdigest()[:24]

    def _add(self, content: "hashlib._Hash", value: Any) -> None:
        """Add a part of a key to a hash; the types and brackets tell ``1``, ``"1"`` and ``[1]`` apart."""
        content.update(f"{type(value).__name__}(".encode())
        if value is None or isinstance(value, str | int | float):
            content.update(repr(value).encode())
        elif isinstance(value, nn.Module):
            if value not in self._weights:
                weights = hashlib.sha256()
                for name, tensor in sorted(value.state_dict().items()):
                    weights.update(name.encode())
                    # Of sharded weights each process has a part; all of them ask for the whole, in the same order.
                    weights.update(_bytes(tensor.full_tensor() if isinstance(tensor, DTensor) else tensor))
                self._weights[value] = weights.hexdigest()
            content.update(self._weights[value].encode())
        elif isinstance(value, Tensor):
            content.update(f"{value.dtype} {tuple(value.shape)} ".encode())
            content.update(_bytes(value))
        elif isinstance(value, Mapping):
            self._add(content, list(value.items()))
        elif isinstance(value, frozenset | set):
            self._add(content, sorted(value))
        elif isinstance(value, list | tuple):
            for part in value:
                self._add(content, part)
        elif is_dataclass(value) and not isinstance(value, type):
            self._add(content, [getattr(value, field.name) for field in fields(value)])
        else:
            raise TypeError(f"A {type(value).__name__} cannot be part of a key of the store.")
        content.update(b")")


def _bytes(tensor: Tensor) -> memoryview:
    data: memoryview = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
    return data


NOTHING_KEPT = Store()
"""Keeps nothing and gives nothing back."""
