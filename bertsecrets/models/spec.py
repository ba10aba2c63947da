"""Which weights are meant, and where their files are: a pre-trained model or a fine-tuned checkpoint."""

import hashlib
import importlib.util
import os
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field

from bertsecrets.errors import UserError, choices
from bertsecrets.models.files import CONFIG, check_config_file, is_file
from bertsecrets.settings import Meaning, Name, Settings

RANDOM_INIT = "random_normal"
"""Weights drawn at random: the baseline of Kovaleva et al. 2019."""

INITS = ("pretrained", RANDOM_INIT)
"""The weights that fine-tuning may start from."""

BEST, FINAL, LAST = "best.ckpt", "final.ckpt", "last.ckpt"
"""The checkpoints of a run folder."""

INITIAL = "initial"
"""Given as the checkpoint: the model before any fine-tuning."""


Objective = Literal["masked_words", "replaced_words", "sentence_embeddings"]
"""What a pre-trained model was trained for; models of sentence embeddings are language models trained on, by contrast
of sentences.
"""


def check_init(init: str) -> None:
    """Raise UserError if there is no such initialisation."""
    if init not in INITS:
        raise UserError(f"Unknown init '{init}'; {choices(str(init), INITS)}.")


class ModelSpec(Settings):
    """A pre-trained model: the ``model`` section of the configuration.

    Attributes:
        name: Name in tables and figures.
        path: Hub name (``google-bert/bert-base-uncased``), local folder, or folder inside ``package``.
        package: Python package that contains the model, or None.
        revision: Hub revision.
        sha256: Expected hash of ``model.safetensors``, checked before use; None skips the check.
        family: The ``module:Class`` or ``file.py:Class`` of a :class:`~bertsecrets.models.families.base.Family`, or a
            model type whose family fits; None for that of the model's type.
        attention_dropout: Share of attention weights dropped in training; None for what the model's configuration says.
        objective: What the weights were trained for before any fine-tuning; None if unknown. Statements about
            pre-trained language models say so where they are judged on another kind of model.
    """

    name: Name
    path: str = Field(min_length=1, description="a model of the hub or a local folder, e.g. model.path=my_bert")
    # The parents of a dotted name would be imported to look for it.
    package: str | None = Field(
        default=None, pattern=r"^[A-Za-z_]\w*$", description="the name of a top-level Python package, or null"
    )
    revision: str | None = Field(default=None, min_length=1, description="a revision of the hub, or null")
    sha256: str | None = Field(
        default=None, pattern="^[0-9a-f]{64}$", description="the 64 hexadecimal digits of a SHA-256, or null"
    )
    family: str | None = Field(
        default=None, min_length=1, description="module:Class or file.py:Class of a family, a model type, or null"
    )
    attention_dropout: float | None = Field(
        default=None, ge=0, lt=1, description="a number from 0 to below 1, or null for the model's own"
    )
    objective: Annotated[Objective | None, Meaning(numbers=False)] = Field(
        default=None, description=f"{', '.join(get_args(Objective))}, or null"
    )

    def locate(self) -> str:
        """The local folder (its weights checked) or the hub name.

        Raises:
            UserError: If the package is not installed, the folder does not exist or is no model's, or the hash is
                wrong.
        """
        folder = self.folder()
        if folder is None:
            return self.path
        try:
            exists, is_folder = folder.exists(), folder.is_dir()
        except (OSError, ValueError) as error:
            raise UserError(f"model.path '{self.path}' cannot be read ({error}); give a model's folder.") from error
        if not is_folder:
            reason = "is not a directory" if exists else "does not exist"
            raise UserError(
                f"Model folder '{folder}' {reason}; give a folder made by save_pretrained, or a hub name (owner/name)."
            )
        check_config_file(folder)
        if self.sha256 is not None:
            _check_hash(folder / "model.safetensors", self.sha256)
        return str(folder)

    def folder(self) -> Path | None:
        """The local folder, which may not exist; None for a model of the hub."""
        if self.package is not None:
            package = importlib.util.find_spec(self.package)
            if package is None or not package.submodule_search_locations:
                raise UserError(
                    f"Model '{self.name}' comes with the Python package '{self.package}', which is not installed; "
                    "run pip install -e '.[demo]'."
                )
            return Path(package.submodule_search_locations[0]) / self.path
        folder = Path(self.path).expanduser()
        # A path that cannot be a hub name ("owner/name"), or lies in a folder that is here, is a folder, even one that
        # does not exist.
        owner, _, name = self.path.partition("/")
        is_name = bool(owner) and "/" not in name and not self.path.startswith((".", "~"))
        if is_name and not (name and os.path.isdir(owner)) and not os.path.exists(folder):
            return None
        return folder


def find_checkpoint(path: Path) -> Path:
    """The checkpoint file or Hugging Face folder at a path; of a run folder, the one that its report is about.

    Raises:
        UserError: If there is none.
    """
    if is_file(path):
        return path
    if not path.exists():
        raise UserError(
            f"Checkpoint '{path}' does not exist; give a .ckpt file, a run folder or a Hugging Face folder."
        )
    if is_file(path / CONFIG):
        return path
    for name in (BEST, FINAL, LAST):
        if is_file(path / "checkpoints" / name):
            return path / "checkpoints" / name
    raise UserError(
        f"Folder '{path}' holds neither a model (config.json) nor a run (checkpoints/{FINAL}); give a .ckpt file, a "
        "run folder or a Hugging Face folder."
    )


def _check_hash(weights: Path, expected: str) -> None:
    if not weights.is_file():
        raise UserError(f"Weights '{weights}' are missing; install the model again.")
    digest = hashlib.sha256()
    with weights.open("rb") as stream:
        # In pieces: weights may be larger than what memory is left.
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    if digest.hexdigest() != expected:
        raise UserError(
            f"Weights '{weights}' have sha256 {digest.hexdigest()[:12]}…, expected {expected[:12]}…; install the model "
            "again."
        )
