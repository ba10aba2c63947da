"""Learn of jobs that a Slurm cluster does not accept, and wait for the rest of an array."""

import re
import subprocess
import time
from pathlib import Path

from bertsecrets.results.files import resume_command

_PAUSE = 5
"""Seconds between two looks at the queue."""


def rejection(error: BaseException, folder: Path) -> str | None:
    """The sentence for jobs that Slurm does not accept, such as those of an unknown partition; None for any other
    error.

    Args:
        error: What a launcher raised.
        folder: Folder of the sweep.
    """
    if type(error).__name__ != "FailedJobError":
        return None
    # A line for each reason, the last of which says that submission failed.
    reasons = [line.removeprefix("sbatch: error:").strip() for line in str(error).splitlines() if line.strip()]
    return (
        f"Slurm does not accept the jobs ({'; '.join(reasons)}); change the launcher's options, such as partition or "
        f"mem_gb: {resume_command(folder)} hydra.launcher.<option>=<value>."
    )


def wait_for_other_jobs(error: BaseException) -> bool:
    """Wait for the rest of an array if submitit gave up on a job that left no result; return whether it did.

    Args:
        error: What a launcher raised.
    """
    if type(error).__name__ != "UncompletedJobError":
        return False
    waiting_job = re.search(r"Job (\d+)", str(error))
    while waiting_job is not None:
        command = ["squeue", "--noheader", f"--jobs={waiting_job[1]}"]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        # Of jobs that have been over for some minutes it knows nothing.
        if answer.returncode or not answer.stdout.strip():
            break
        time.sleep(_PAUSE)
    return True
