"""Detect jobs that a Slurm cluster rejects, and wait for the rest of an array."""

import re
import subprocess
import time
from pathlib import Path

from bertsecrets.results.files import resume_command

_PAUSE = 5
"""Seconds between queue checks."""


def rejection(error: BaseException, folder: Path) -> str | None:
    """The message for jobs that Slurm rejects, for example an unknown partition; None for any other error.

    Args:
        error: What a launcher raised.
        folder: Folder of the sweep.
    """
    if type(error).__name__ != "FailedJobError":
        return None
    # One line per reason; the last only says that submission failed.
    reasons = [line.removeprefix("sbatch: error:").strip() for line in str(error).splitlines() if line.strip()]
    return (
        f"Slurm rejected the jobs ({'; '.join(reasons)}); change the launcher's options, such as partition or mem_gb: "
        f"{resume_command(folder)} hydra.launcher.<option>=<value>."
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
        # Slurm forgets jobs a few minutes after they end.
        if answer.returncode or not answer.stdout.strip():
            break
        time.sleep(_PAUSE)
    return True
