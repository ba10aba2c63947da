"""Whether the Hugging Face hub can be reached."""

import functools

from huggingface_hub import constants, get_session

_PATIENCE_S = 3.0


@functools.cache
def hub_is_reachable() -> bool:
    """Whether the hub answers within three seconds; asked once per process.

    Without this question the hub's client tries each file of a model again and again, for most of a minute.
    """
    if constants.is_offline_mode():
        return False
    try:
        get_session().head(constants.ENDPOINT, timeout=_PATIENCE_S)
    # Which HTTP client the hub's library uses, and so the class of its errors, depends on the library's version.
    except Exception:
        return False
    return True
