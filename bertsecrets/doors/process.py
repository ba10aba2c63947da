"""Which process of a distributed run this one is."""

import os


def is_first_process() -> bool:
    """Whether this process writes: the first of a distributed run, however it was launched, or the only one."""
    if "RANK" in os.environ:
        return os.environ["RANK"] == "0"
    if "LOCAL_RANK" in os.environ:
        return os.environ["LOCAL_RANK"] == "0" and os.environ.get("NODE_RANK", "0") == "0"
    return os.environ.get("SLURM_PROCID", "0") == "0"
