"""Checkpoints on disk: the old file or the new one, never half of one, on whatever file system the folder lies."""

from os import PathLike
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning.plugins.io import TorchCheckpointIO

from bertsecrets.results.files import atomic_write


class AtomicCheckpointIO(TorchCheckpointIO):
    """Lightning's checkpoint files, written beside the old one and renamed over it.

    Lightning itself writes to the system's temporary folder and moves; across file systems that move is a copy, and a
    run killed during it would lose the checkpoint that it is to go on from.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | PathLike[str], storage_options: Any | None = None
    ) -> None:
        """Writes a checkpoint; raises UserError if the disk is full."""
        with atomic_write(Path(path)) as temporary:
            torch.save(checkpoint, temporary)
