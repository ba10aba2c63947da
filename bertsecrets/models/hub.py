"""The Hugging Face hub: check whether it can be reached, and download model folders."""

import functools
from pathlib import Path, PurePosixPath

from huggingface_hub import HfApi, constants, get_session, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from bertsecrets.errors import UserError

_PATIENCE_S = 3.0
_LONGEST_REASON = 200

_EXPORTS = frozenset({"onnx", "openvino", "coreml", "tflite", "runs"})
"""Folders of a repository with other model formats or logs."""


@functools.cache
def hub_is_reachable() -> bool:
    """Whether the hub answers within three seconds; asked once per process.

    Without this check, the hub's client keeps retrying each file of a model for most of a minute.
    """
    if constants.is_offline_mode():
        return False
    try:
        get_session().head(constants.ENDPOINT, timeout=_PATIENCE_S)
    # The hub library's HTTP client, and so the class of its errors, depends on its version.
    except Exception:
        return False
    return True


@functools.cache
def hub_folder(name: str, revision: str | None = None) -> Path:
    """The folder with a hub model's files, downloaded if possible; offline, its files in the local cache.

    Args:
        name: ``owner/name``, or a single word for a model without owner.
        revision: A branch, a tag or a commit; None for the newest.

    Raises:
        UserError: If there is no such model or revision, it is gated, or the hub cannot be reached and the cache lacks
            it.
    """
    if not hub_is_reachable():
        try:
            return Path(snapshot_download(name, revision=revision, local_files_only=True))
        except (LocalEntryNotFoundError, HFValidationError) as error:
            of_revision = "" if revision is None else f" in revision '{revision}'"
            raise UserError(
                f"'{name}' is not a folder, the hub cannot be reached, and the local cache has no model of this name"
                f"{of_revision}; connect to the network, or give a local folder."
            ) from error
    try:
        found = HfApi().model_info(name, revision=revision)
        files = model_files([file.rfilename for file in found.siblings or ()])
        return Path(snapshot_download(name, revision=found.sha, allow_patterns=files))
    except GatedRepoError as error:
        raise UserError(
            f"The model '{name}' is gated; ask for access on its page {constants.ENDPOINT}/{name} and run "
            "`hf auth login`, or give a local folder."
        ) from error
    except RevisionNotFoundError as error:
        raise UserError(
            f"The model '{name}' has no revision '{revision}' on the hub; set model.revision to a branch, tag or "
            "commit, or remove it."
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise UserError(
            f"'{name}' is neither a folder nor a hub model that this login can read; check the spelling (owner/name), "
            "or run `hf auth login` for a private one."
        ) from error
    # The library's HTTP client, and so the class of connection errors, depends on its version.
    except Exception as error:
        reason = (" ".join(str(error).split()) or type(error).__name__)[:_LONGEST_REASON].rstrip(".")
        raise UserError(
            f"The model '{name}' could not be downloaded from the hub ({reason}); try again, or give a local folder."
        ) from error


def model_files(names: list[str]) -> list[str]:
    """The files of a repository needed to load a model: safetensors if there are any, and no exports to other formats.

    >>> model_files(["model.safetensors", "pytorch_model.bin", "onnx/config.json", "1_Pooling/config.json"])
    ['model.safetensors', '1_Pooling/config.json']
    """
    paths = [PurePosixPath(name) for name in names]
    own = [
        path
        for path in paths
        if not any(part in _EXPORTS or part.startswith("checkpoint-") for part in path.parts[:-1])
    ]
    weights = ".safetensors" if any(path.suffix == ".safetensors" for path in own) else ".bin"
    return [str(path) for path in own if path.suffix in (".json", ".txt", ".model", weights)]
