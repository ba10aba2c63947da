"""Specify the weights, of a pre-trained model or a fine-tuned checkpoint, and locate their files."""

import hashlib
import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field

from bertsecrets.errors import UserError, choices
from bertsecrets.models.files import check_config_file, holds_model, is_file, trainer_checkpoint
from bertsecrets.settings import Meaning, Name, Settings, shown

RANDOM_INIT = "random_normal"
"""Weights drawn at random: the baseline of Kovaleva et al. 2019."""

INITS = ("pretrained", RANDOM_INIT)
"""Initial weights for fine-tuning."""

BEST, FINAL, LAST = "best.ckpt", "final.ckpt", "last.ckpt"
"""The checkpoints of a run folder."""

INITIAL = "initial"
"""Value of ``checkpoint`` for the model before any fine-tuning."""


Objective = Literal["masked_words", "replaced_words", "sentence_embeddings"]
"""Pre-training objectives; sentence-embedding models are language models that were trained further by contrastive
learning.
"""


def check_init(init: str) -> None:
    """Raise UserError if there is no such initialisation."""
    if init not in INITS:
        raise UserError(f"Unknown init '{init}'; {choices(str(init), INITS)}.")


def _in_order(labels: Any) -> Any:
    """The names in a mapping from names to numbers, ordered by number; YAML reads some names as other values."""
    if isinstance(labels, Mapping):
        if set(labels.values()) != set(range(len(labels))):
            raise ValueError("not the numbers of outputs")
        labels = sorted(labels, key=lambda name: int(labels[name]))
    return [name if isinstance(name, str) else shown(name) for name in labels] if isinstance(labels, list) else labels


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
        attention_dropout: Share of attention weights dropped in training; None for the value in the model's
            configuration.
        labels: The class that each output of a fine-tuned model stands for, in the order of the outputs, or class ->
            number of its output; None to match the model's names with those of the task.
        objective: Pre-training objective; None if unknown. Statements about pre-trained language models add a note if
            the model is of another kind.
    """

    name: Name
    path: str = Field(min_length=1, description="a hub model or a local folder, e.g. model.path=my_bert")
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
    labels: Annotated[Annotated[tuple[str, ...], Field(strict=False)] | None, BeforeValidator(_in_order)] = Field(
        default=None, description="the class of each output, e.g. [bad,good] or {bad: 0, good: 1}, or null"
    )
    objective: Annotated[Objective | None, Meaning(numbers=False)] = Field(
        default=None, description=f"{', '.join(get_args(Objective))}, or null"
    )

    def locate(self) -> str:
        """The local folder, or the cached folder of a hub model, with checked weights.

        Raises:
            UserError: If the package is not installed, the folder does not exist or has no model, the hub does not
                provide the model, or the hash is wrong.
        """
        folder = self.folder()
        if folder is None:
            # A slow import that only hub models need.
            from bertsecrets.models.hub import hub_folder

            folder = hub_folder(self.path, self.revision)
        else:
            try:
                exists, is_folder = folder.exists(), folder.is_dir()
            except (OSError, ValueError) as error:
                raise UserError(f"model.path '{self.path}' cannot be read ({error}); give a model folder.") from error
            if not is_folder:
                reason = "is not a directory" if exists else "does not exist"
                raise UserError(
                    f"Model folder '{folder}' {reason}; give a folder made by save_pretrained, or a hub name "
                    "(owner/name)."
                )
        check_config_file(folder)
        if self.sha256 is not None:
            weights = folder / "model.safetensors"
            if not weights.is_file():
                raise UserError(f"Weights '{weights}' are missing; install the model again.")
            digest = hashlib.sha256()
            with weights.open("rb") as stream:
                # Read in pieces, as weights may exceed the free memory.
                while chunk := stream.read(1 << 20):
                    digest.update(chunk)
            if digest.hexdigest() != self.sha256:
                raise UserError(
                    f"Weights '{weights}' have sha256 {digest.hexdigest()[:12]}…, expected {self.sha256[:12]}…; "
                    "install the model again."
                )
        return str(folder)

    def folder(self) -> Path | None:
        """The local folder, which may not exist; None for a hub model."""
        if self.package is not None:
            package = importlib.util.find_spec(self.package)
            if package is None or not package.submodule_search_locations:
                raise UserError(
                    f"Model '{self.name}' is part of the Python package '{self.package}', which is not installed; run "
                    "pip install -e '.[demo]'."
                )
            return Path(package.submodule_search_locations[0]) / self.path
        return None if _may_be_on_hub(self.path) else Path(self.path).expanduser()


def _may_be_on_hub(path: str) -> bool:
    """Whether a path can be the name of a hub model. A path in an existing local folder, or without the form of a hub
    name, is a folder, even if it does not exist.
    """
    owner, _, name = path.partition("/")
    is_name = bool(owner) and "/" not in name and not path.startswith((".", "~"))
    return is_name and not (name and os.path.isdir(owner)) and not os.path.exists(path)


def _is_on_hub(name: str) -> bool:
    """Whether a checkpoint that does not exist locally is meant to be on the hub."""
    return "/" in name and not name.endswith(".ckpt") and _may_be_on_hub(name)


def model_folder(name: str, revision: str | None = None) -> Path | None:
    """The model folder for a checkpoint's name; None for a file, a run, or a missing path.

    Args:
        name, revision: As in :func:`find_checkpoint`.

    Raises:
        UserError: If the hub does not provide the model.
    """
    path = Path(name).expanduser()
    if not path.exists() and not _is_on_hub(name):
        return None
    found = find_checkpoint(name, revision) if not path.exists() else path
    if not found.is_dir():
        return None
    return found if holds_model(found) else trainer_checkpoint(found)


def find_checkpoint(name: str | Path, revision: str | None = None) -> Path:
    """The checkpoint file or model folder for a path or a hub name. For a run folder, the checkpoint of its report; for
    a Trainer's output folder, its best checkpoint.

    Args:
        name: A path, or ``owner/name`` of a hub model.
        revision: Revision of the hub model.

    Raises:
        UserError: If there is none, or the hub does not provide it.
    """
    path = Path(name).expanduser()
    if is_file(path):
        return path
    if not path.exists():
        if not _is_on_hub(str(name)):
            raise UserError(
                f"Checkpoint '{path}' does not exist; give a .ckpt file, a run folder, a folder with a model, or a hub "
                "name (owner/name)."
            )
        from bertsecrets.models.hub import hub_folder

        path = hub_folder(str(name), revision)
    if holds_model(path):
        return path
    for file in (BEST, FINAL, LAST):
        if is_file(path / "checkpoints" / file):
            return path / "checkpoints" / file
    saved = trainer_checkpoint(path)
    if saved is None:
        raise UserError(
            f"Folder '{path}' has neither a model (config.json) nor a run (checkpoints/{FINAL}); give a .ckpt file, a "
            "run folder, a folder with a model, or a hub name (owner/name)."
        )
    return saved
