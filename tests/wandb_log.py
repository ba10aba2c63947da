"""Reads what an offline W&B run has written."""

import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2

_BLOCK = 32768


def read_log(path: Path) -> Iterator[wandb_internal_pb2.Record]:
    """Records of an offline run: a 7-byte file header, then LevelDB log blocks."""
    data = path.read_bytes()
    assert data[:4] == b":W&B"
    at, parts = 7, b""
    while at + 7 <= len(data):
        if _BLOCK - at % _BLOCK < 7:
            at += _BLOCK - at % _BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


def leaves(items: Iterable[Any]) -> dict[str, object]:
    """Logged values by name; those of dictionaries (media), which W&B may or may not split up, by ``name/key``."""
    found: dict[str, object] = {}
    for item in items:
        name, value = item.key or "/".join(item.nested_key), json.loads(item.value_json)
        found |= {f"{name}/{key}": part for key, part in value.items()} if isinstance(value, dict) else {name: value}
    return found


@dataclass(frozen=True)
class Tracked:
    """The only offline run of a folder: its file, records and beginning; settings by name; numbers by name."""

    path: Path
    records: list[wandb_internal_pb2.Record]
    run: Any
    config: dict[str, Any]
    summary: dict[str, object]
    history: list[dict[str, object]]

    @property
    def logged(self) -> dict[str, object]:
        """The last value of everything that was logged at some step."""
        return {name: value for line in self.history for name, value in line.items()}


def tracked(folder: Path) -> Tracked:
    """Read the only offline run of a folder."""
    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    records = list(read_log(path))
    settings = [update for record in records for update in (*record.run.config.update, *record.config.update)]
    return Tracked(
        path,
        records,
        next(record.run for record in records if record.HasField("run")),
        {update.key or "/".join(update.nested_key): json.loads(update.value_json) for update in settings},
        leaves(update for record in records for update in record.summary.update),
        [leaves(record.history.item) for record in records if record.HasField("history")],
    )
