"""Checkpoint files that are never left half-written, on any file system."""

from os import PathLike
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning.plugins.io import TorchCheckpointIO

from bertsecrets.results.files import atomic_write


class AtomicCheckpointIO(TorchCheckpointIO):
    """Lightning's checkpoint files, written next to the old file and renamed over it.

    Lightning writes to the system's temporary folder and moves the file; across file systems that is a copy, and a run
    killed during the copy would lose the checkpoint from which it can be resumed.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | PathLike[str], storage_options: Any | None = None
    ) -> None:
        """Write a checkpoint; raise UserError if the disk is full."""
        with atomic_write(Path(path)) as temporary:
            torch.save(checkpoint, temporary)
