"""Where a fine-tuned model lies on disk; without loading anything."""

from pathlib import Path

from bertsecrets.errors import UserError

BEST, LAST = "best.ckpt", "last.ckpt"

INITIAL = "initial"
"""In place of a checkpoint: the model before any fine-tuning."""


def find_checkpoint(path: Path) -> Path:
    """The checkpoint file or Hugging Face folder that a path means; a run folder means its best checkpoint.

    Raises:
        UserError: If there is none.
    """
    if path.is_file():
        return path
    if not path.exists():
        raise UserError(
            f"Checkpoint '{path}' does not exist; give a .ckpt file, a run folder or a Hugging Face folder."
        )
    if (path / "config.json").is_file():
        return path
    for name in (BEST, LAST):
        if (path / "checkpoints" / name).is_file():
            return path / "checkpoints" / name
    raise UserError(
        f"Folder '{path}' holds neither a model (config.json) nor a run (checkpoints/{BEST}); give a .ckpt file, a run "
        "folder or a Hugging Face folder."
    )
