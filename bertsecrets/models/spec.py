"""Which pre-trained model is meant, and where its files are."""

import hashlib
import importlib.util
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from bertsecrets.errors import UserError, choices

RANDOM_INIT = "random_normal"
"""Weights drawn at random: the baseline of Kovaleva et al. 2019."""

INITS = ("pretrained", RANDOM_INIT)
"""The weights that fine-tuning may start from."""


def check_init(init: str) -> None:
    """Raises UserError if there is no such initialisation."""
    if init not in INITS:
        raise UserError(f"Unknown init '{init}'; {choices(str(init), INITS)}.")


@dataclass(frozen=True)
class ModelSpec:
    """A pre-trained model.

    Args:
        name: Name in tables and figures.
        path: Hub name (``google-bert/bert-base-uncased``), local folder, or folder inside ``package``.
        package: Python package that carries the model, or None.
        revision: Hub revision.
        sha256: Expected hash of ``model.safetensors``, checked before use; None to skip.
    """

    name: str
    path: str
    package: str | None = None
    revision: str | None = None
    sha256: str | None = None

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "ModelSpec":
        """Reads ``conf/model/*.yaml``; raises UserError at an unknown or missing key."""
        known = [field.name for field in fields(cls)]
        for key in config:
            if key not in known:
                raise UserError(f"Unknown key 'model.{key}'; {choices(str(key), known)}.")
        for key in ("name", "path"):
            if not config.get(key):
                raise UserError(
                    f"model.{key} is empty; name a model of the hub or a local folder, e.g. model.path=my_bert."
                )
        return cls(**{str(key): value for key, value in config.items()})

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def locate(self) -> str:
        """The local folder, its weights checked, or the hub name.

        Raises:
            UserError: If the package is not installed, the folder is not there or the hash is wrong.
        """
        folder = self._folder()
        if folder is None:
            return self.path
        if not (folder / "config.json").is_file():
            raise UserError(
                f"Model folder '{folder}' has no config.json; give a folder made by save_pretrained, or a hub name."
            )
        if self.sha256 is not None:
            _check_hash(folder / "model.safetensors", self.sha256)
        return str(folder)

    def _folder(self) -> Path | None:
        if self.package is not None:
            found = importlib.util.find_spec(self.package)
            if found is None or not found.submodule_search_locations:
                raise UserError(
                    f"Model '{self.name}' comes with the Python package '{self.package}', which is not installed; "
                    "run pip install -e '.[demo]'."
                )
            return Path(found.submodule_search_locations[0]) / self.path
        folder = Path(self.path).expanduser()
        # A path that cannot be a hub name ("owner/name") is meant as a folder even where it does not exist.
        if folder.is_dir() or folder.is_absolute() or self.path.count("/") > 1 or self.path.startswith((".", "~")):
            return folder
        return None


def _check_hash(weights: Path, expected: str) -> None:
    if not weights.is_file():
        raise UserError(f"Weights '{weights}' are missing; install the model again.")
    digest = hashlib.sha256()
    with weights.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    if digest.hexdigest() != expected:
        raise UserError(
            f"Weights '{weights}' have sha256 {digest.hexdigest()[:12]}…, expected {expected[:12]}…; they are not the "
            "published ones: install the model again."
        )
