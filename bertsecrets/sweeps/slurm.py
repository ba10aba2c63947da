"""Learn of jobs that a Slurm cluster does not accept, and of the end of jobs where it keeps no accounts."""

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bertsecrets.results.files import resume_command

_PAUSE = 5
"""Seconds between two looks at the queue."""

_SACCT = """\
#!/bin/sh
# Answers as sacct -o JobID,State,NodeList --parsable2 would, from the controller's own memory of recent jobs.
jobs=
while [ $# -gt 0 ]; do
  case "$1" in -j) shift; jobs="$jobs,$1" ;; esac
  shift
done
echo 'JobID|State|NodeList'
exec squeue --states=all --array --noheader --format='%i|%T|%N' --jobs="${jobs#,}"
"""


@contextmanager
def followed_jobs() -> Iterator[None]:
    """While open, submitit learns of the end of jobs on a cluster without accounts, too.

    It asks ``sacct``, which there always fails. It would then wait for ever for a job that was cancelled before it could report. A program
    of the same name that asks ``squeue`` is therefore put first on the path; submitit itself has no other way in.
    """
    if shutil.which("squeue") is None or _has_accounts():
        yield
        return
    before = os.environ["PATH"]
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "sacct"
        program.write_text(_SACCT, "utf-8")
        program.chmod(0o755)
        os.environ["PATH"] = f"{folder}{os.pathsep}{before}"
        try:
            yield
        finally:
            os.environ["PATH"] = before


def rejection(error: BaseException, folder: Path) -> str | None:
    """The sentence for jobs that Slurm does not accept, such as those of an unknown partition; None for any other error.

    Args:
        error: What a launcher raised.
        folder: Folder of the sweep.
    """
    if type(error).__name__ != "FailedJobError":
        return None
    # A line for each reason, the last of which says that submission failed.
    reasons = [line.removeprefix("sbatch: error:").strip() for line in str(error).splitlines() if line.strip()]
    return (
        f"Slurm does not accept the jobs ({'; '.join(reasons)}); change the launcher's options, such as partition or mem_gb: "
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
        # Of jobs that have been over for some minutes it knows nothing.
        if answer.returncode or not answer.stdout.strip():
            break
        time.sleep(_PAUSE)
    return True


def _has_accounts() -> bool:
    if shutil.which("sacct") is None:
        return False
    return subprocess.run(["sacct", "--noheader", "--jobs=1"], capture_output=True, check=False).returncode == 0
