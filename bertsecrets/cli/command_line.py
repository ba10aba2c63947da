"""Run a command: check its settings first, resume runs and sweeps, and print a mistake as one sentence."""

import errno
import json
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from bertsecrets.cli.composition import check
from bertsecrets.errors import UserError
from bertsecrets.results.config_copy import CONFIG_COPY
from bertsecrets.results.files import atomic_write
from bertsecrets.sweeps.hydra_arguments import is_multirun, parse_arguments, quoted, unquoted
from bertsecrets.sweeps.job_processes import end_with_parent
from bertsecrets.sweeps.run_folder import FAILURE, read_finished
from bertsecrets.sweeps.sweep import FAILED, JobRecord, Sweep, open_sweep, resume_arguments
from bertsecrets.sweeps.trust import check_sweep_arguments, names_target

_log = logging.getLogger(__name__)

_ALLOWED_WITH_RESUME = ("resume", "debug", "progress")


def run_command(task: Callable[[], object], config_dir: Path, config_name: str) -> None:
    """Check the command line, run ``task`` (a ``@hydra.main`` function), and turn errors into exit status 1.

    A :class:`UserError` is printed as one sentence; ``debug=true`` adds the traceback. Any other exception is a bug
    and shows its traceback. A sweep ends with a table of its jobs, and with exit status 1 if a job failed.
    """
    # Without this Hydra prints a shortened traceback and exits by itself.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    end_with_parent()
    sweep = None
    try:
        sys.argv[1:] = with_resume(sys.argv[1:])
        if (finished := _finished(sys.argv[1:])) is not None:
            print(f"The run in '{finished}' is already finished; there is nothing to do.")  # noqa: T201
            return
        sweep = _prepare(config_dir, config_name)
        if sweep is None:
            task()
        elif any(record.status == FAILED for record in _run(task, sweep)):
            sys.exit(1)
    except UserError as error:
        _report_failure(error)
        _stop(str(error))
    except OSError as error:
        _report_failure(error)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        _stop(
            f"No space left for '{error.filename or 'the results'}'; no incomplete file was kept: free some space and "
            "continue with resume=<run folder>."
        )
    except KeyboardInterrupt:
        folder = "<run folder>" if sweep is None else sweep.folder
        print(f"Interrupted; continue with resume={folder}", file=sys.stderr)  # noqa: T201
        sys.exit(128 + signal.SIGINT)
    except Exception as error:
        _report_failure(error)
        raise


def with_resume(arguments: list[str]) -> list[str]:
    """The arguments, with Hydra directed to the folder of the run or sweep that ``resume=<folder>`` names.

    Raises:
        UserError: If the folder holds neither, or the command line has settings that would change the run or sweep.
    """
    # Lightning passes these arguments on to the other processes of a run, where the folder is already quoted.
    resumed = [unquoted(argument.removeprefix("resume=")) for argument in arguments if argument.startswith("resume=")]
    if not resumed or resumed[-1].lower() in ("null", "", "true"):
        return arguments
    folder = Path(resumed[-1])
    sweep = resume_arguments(folder)
    if sweep is None and not (folder / CONFIG_COPY).is_file():
        raise UserError(
            f"Folder '{folder}' holds no {CONFIG_COPY}; resume= takes the folder of an interrupted run or sweep."
        )
    others = [argument for argument in arguments if not argument.startswith("resume=")]
    if sweep is None and {"-m", "--multirun"} & set(others):
        raise UserError(f"'{folder}' is the folder of a single run; leave out -m, or give resume=true and the sweep.")
    for argument in others:
        key = argument.split("=")[0].lstrip("+~")
        allowed = key in _ALLOWED_WITH_RESUME or key.startswith("hydra.") or names_target(argument)
        if not argument.startswith("-") and not allowed:
            raise UserError(
                f"'{argument}' cannot be combined with resume=<folder>, which uses the folder's own configuration; leave "
                "it out, or start a new run."
            )
    if sweep is not None:
        check_sweep_arguments(sweep, folder)
        return [*sweep, *others]
    return [
        *others,
        f"resume={quoted(str(folder))}",
        f"hydra.run.dir={quoted(str(folder))}",
        "hydra.output_subdir=null",
    ]


def _finished(arguments: list[str]) -> Path | None:
    """The folder of a single run to be resumed if that run is already finished; else None."""
    folders = [Path(unquoted(text.removeprefix("hydra.run.dir="))) for text in arguments if "hydra.run.dir=" in text]
    if not any(argument.startswith("resume=") for argument in arguments) or not folders:
        return None
    try:
        return folders[-1] if read_finished(folders[-1]) is not None else None
    except ValueError:
        # A file was changed or lost: the run continues from its checkpoint and writes the file again.
        return None


def _prepare(config_dir: Path, config_name: str) -> Sweep | None:
    """Check the command line; return the requested sweep, or None for a single run."""
    invocation = parse_arguments(sys.argv[1:], config_dir, config_name)
    if invocation is None:
        return None
    first = check(invocation)
    if not is_multirun(invocation, first):
        return None
    # Hydra does not accept settings on both sides of -m.
    arguments = ["-m", *(argument for argument in sys.argv[1:] if argument not in ("-m", "--multirun"))]
    sweep = open_sweep(invocation, first, arguments)
    sys.argv[1:] = [*arguments, *sweep.overrides()]
    return sweep


def _run(task: Callable[[], object], sweep: Sweep) -> list[JobRecord]:
    try:
        task()
    except BaseException:
        # Show which jobs are finished even if the launcher failed, without hiding its error behind another.
        try:
            sweep.close(_compare)
        except Exception as error:
            _log.warning(f"The table of jobs could not be printed ({type(error).__name__}: {error}).")
        raise
    return sweep.close(_compare)


def _compare(folder: Path, paper: bool) -> None:
    # Matplotlib takes a second to import.
    from bertsecrets.cli.pages import compare_sweep

    for page in compare_sweep(folder, paper=paper):
        print(f"Comparison: {page}")  # noqa: T201


def _stop(sentence: str) -> NoReturn:
    if "debug=true" in (argument.lower() for argument in sys.argv):
        traceback.print_exc()
    print(f"error: {sentence}", file=sys.stderr)  # noqa: T201
    sys.exit(1)


def _report_failure(error: Exception) -> None:
    """Write the reason for a failure where the sweep that started this process reads it."""
    path = os.environ.get(FAILURE)
    # The first process to fail knows the reason; the others fail because of it.
    if path and not Path(path).exists():
        reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        with atomic_write(Path(path)) as temporary:
            temporary.write_text(json.dumps({"error": type(error).__name__, "reason": reason}), "utf-8")
