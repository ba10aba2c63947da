"""The Hugging Face hub: check whether it can be reached, and download and upload model folders."""

import functools
from pathlib import Path, PurePosixPath

from huggingface_hub import HfApi, constants, get_session, get_token, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

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
        raise UserError(
            f"The model '{name}' could not be downloaded from the hub ({_reason(error)}); try again, or give a local "
            "folder."
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


def check_upload(repo: str) -> None:
    """Check before any work that the current user may upload to a hub repository.

    Args:
        repo: ``owner/name``, or a name in the user's own account.

    Raises:
        UserError: If the name is not valid, nobody is logged in, the hub does not answer, or the login has no write
            access.
    """
    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise UserError(
            f"push_to_hub is '{repo}', which is not the name of a repository; give <owner>/<name>."
        ) from error
    if get_token() is None:
        raise UserError(
            f"push_to_hub={repo} needs a login to the Hugging Face hub; run `hf auth login`, or remove push_to_hub."
        )
    if not hub_is_reachable():
        raise UserError(
            f"push_to_hub={repo} needs the Hugging Face hub, which does not answer; connect to the network, or remove "
            "push_to_hub and upload the folder later."
        )
    try:
        user = HfApi().whoami()
    # The library's HTTP client, and so the class of connection errors, depends on its version.
    except Exception as error:
        raise UserError(
            f"The Hugging Face hub does not confirm the login ({_reason(error)}); run `hf auth login` again."
        ) from error
    owner = repo.partition("/")[0] if "/" in repo else user["name"]
    owners = [user["name"], *(organisation["name"] for organisation in user.get("orgs", ()))]
    if owner not in owners:
        raise UserError(
            f"push_to_hub is '{repo}', but the login belongs to '{user['name']}'; give {' or '.join(owners)} as the "
            "owner."
        )
    if user.get("auth", {}).get("accessToken", {}).get("role") == "read":
        raise UserError(
            f"push_to_hub={repo} needs a token with write access; create one, and run `hf auth login` again."
        )


def upload(folder: Path, repo: str) -> str:
    """Upload a model's folder; return its page's URL. A new repository is created as private.

    Raises:
        UserError: If the hub rejects it or cannot be reached.
    """
    api = HfApi()
    try:
        created = api.create_repo(repo, private=True, exist_ok=True)
        api.upload_folder(repo_id=created.repo_id, folder_path=folder, commit_message="Upload by bertsecrets")
    except Exception as error:
        raise UserError(
            f"'{folder}' is complete, but could not be uploaded to '{repo}' ({_reason(error)}); upload it later with "
            f"`hf upload {repo} {folder}`."
        ) from error
    return str(created)


def _reason(error: Exception) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:_LONGEST_REASON].rstrip(".")
