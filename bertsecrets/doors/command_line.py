"""The command line: checked before anything else happens, and one sentence for a mistake instead of a traceback."""

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

from bertsecrets.doors.composition import check, is_multirun, parse, quoted, unquoted
from bertsecrets.doors.sweep import Sweep, arguments_of, has_failed, open_sweep
from bertsecrets.doors.unit import CONFIG_COPY, FAILURE
from bertsecrets.errors import UserError
from bertsecrets.results.files import atomic_write
from bertsecrets.sweeps.process import end_with_parent
from bertsecrets.sweeps.records import JobRecord
from bertsecrets.sweeps.unit import read_finished

_log = logging.getLogger(__name__)

_HARMLESS = ("resume", "debug", "progress")


def run_door(main: Callable[[], object], config_dir: Path, config_name: str) -> None:
    """Checks the command line, runs ``main`` (a ``@hydra.main`` function) and turns errors into exit status 1.

    A :class:`UserError` prints its one sentence; ``debug=true`` shows the traceback as well. Any other exception is a
    defect and always shows its traceback. A sweep ends with a table of its jobs, and fails if one of them did.
    """
    # Hydra would print a traceback of its own and hide the exception's type.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    end_with_parent()
    sweep = None
    try:
        sys.argv[1:] = with_resume(sys.argv[1:])
        if (finished := _finished(sys.argv[1:])) is not None:
            print(f"'{finished}' had finished before; nothing is left to do there.")  # noqa: T201
            return
        sweep = _prepare(config_dir, config_name)
        if sweep is None:
            main()
        elif has_failed(_run(main, sweep)):
            sys.exit(1)
    except UserError as error:
        _leave_reason(error)
        _stop(str(error))
    except OSError as error:
        _leave_reason(error)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        _stop(
            f"No space is left for '{error.filename or 'the results'}'; nothing half-written was left: make room and go "
            "on with resume=<run folder>."
        )
    except KeyboardInterrupt:
        folder = "<run folder>" if sweep is None else sweep.folder
        print(f"Interrupted; go on with resume={folder}", file=sys.stderr)  # noqa: T201
        sys.exit(128 + signal.SIGINT)
    except Exception as error:
        _leave_reason(error)
        raise


def _finished(arguments: list[str]) -> Path | None:
    """The folder of a single run that is to go on though it has finished; None where something is left to do."""
    folders = [Path(unquoted(each.removeprefix("hydra.run.dir="))) for each in arguments if "hydra.run.dir=" in each]
    if not any(each.startswith("resume=") for each in arguments) or not folders:
        return None
    try:
        return folders[-1] if read_finished(folders[-1]) is not None else None
    except ValueError:
        # A file was changed or lost: the run goes on from its checkpoint and writes it anew.
        return None


def _prepare(config_dir: Path, config_name: str) -> Sweep | None:
    invocation = parse(sys.argv[1:], config_dir, config_name)
    if invocation is None:
        return None
    first = check(invocation)
    if not is_multirun(invocation, first):
        return None
    # Hydra does not understand settings on both sides of -m.
    arguments = ["-m", *(argument for argument in sys.argv[1:] if argument not in ("-m", "--multirun"))]
    sweep = open_sweep(invocation, first, arguments)
    sys.argv[1:] = [*arguments, *sweep.overrides()]
    return sweep


def _run(main: Callable[[], object], sweep: Sweep) -> list[JobRecord]:
    try:
        main()
    except BaseException:
        # What is finished is worth seeing, whatever the launcher died of; and what it died of, whatever comes of that.
        try:
            sweep.close()
        except Exception as error:
            _log.warning(f"What became of the jobs could not be told ({type(error).__name__}: {error}).")
        raise
    return sweep.close()


def _stop(sentence: str) -> NoReturn:
    if "debug=true" in (argument.lower() for argument in sys.argv):
        traceback.print_exc()
    print(f"error: {sentence}", file=sys.stderr)  # noqa: T201
    sys.exit(1)


def _leave_reason(error: Exception) -> None:
    """Tells the sweep that started this process why it failed."""
    path = os.environ.get(FAILURE)
    # Of several processes the first to fail knows why; the others fail because of it.
    if path and not Path(path).exists():
        told = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        with atomic_write(Path(path)) as temporary:
            temporary.write_text(json.dumps({"error": type(error).__name__, "reason": told}), "utf-8")


def with_resume(arguments: list[str]) -> list[str]:
    """The arguments, with Hydra sent to the folder of the run or sweep that ``resume=<folder>`` goes on with.

    Raises:
        UserError: If the folder is neither, or other settings are given that would change what goes on.
    """
    # Lightning starts the other processes of a run with this one's arguments, whose folder is quoted already.
    resumed = [unquoted(argument.removeprefix("resume=")) for argument in arguments if argument.startswith("resume=")]
    if not resumed or resumed[-1].lower() in ("null", "", "true"):
        return arguments
    folder = Path(resumed[-1])
    sweep = arguments_of(folder)
    if sweep is None and not (folder / CONFIG_COPY).is_file():
        raise UserError(
            f"Folder '{folder}' holds no {CONFIG_COPY}; resume= takes the folder of an interrupted run or sweep."
        )
    others = [argument for argument in arguments if not argument.startswith("resume=")]
    if sweep is None and {"-m", "--multirun"} & set(others):
        raise UserError(f"'{folder}' is the folder of a single run; leave out -m, or give resume=true and the sweep.")
    for argument in others:
        key = argument.split("=")[0].lstrip("+~")
        if not argument.startswith("-") and key not in _HARMLESS and not key.startswith("hydra."):
            raise UserError(
                f"'{argument}' cannot be given together with resume=<folder>, which goes on with the folder's own "
                "configuration; leave it out, or start anew."
            )
    if sweep is not None:
        return [*sweep, *others]
    return [
        *others,
        f"resume={quoted(str(folder))}",
        f"hydra.run.dir={quoted(str(folder))}",
        "hydra.output_subdir=null",
    ]
