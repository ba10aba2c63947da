"""Run a command: check its settings, resume runs and sweeps, and report user errors in one sentence."""

import importlib
import logging
import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, read_write

from bertsecrets.cli.arguments import parse
from bertsecrets.cli.composition import check, output_folder
from bertsecrets.cli.help import help_text
from bertsecrets.cli.quiet import in_job, install, unbroken_output
from bertsecrets.cli.run_settings import resumed, with_run_settings
from bertsecrets.errors import UserError, causes
from bertsecrets.keys import COMMANDS, command_of
from bertsecrets.reporting.gate import REFUSED, losses_of_later, losses_of_run, refusals
from bertsecrets.results.files import copied, displayed, in_command, resume_command
from bertsecrets.results.formatting import message
from bertsecrets.results.run import CONFIG_COPY, SWEEP_FILE, Run, is_first_process, plain
from bertsecrets.settings import CONF
from bertsecrets.sweeps import signals
from bertsecrets.sweeps.hydra_arguments import (
    BASE,
    Invocation,
    is_multirun,
    key_of,
    offer_to_hydra,
    without_hydra,
)
from bertsecrets.sweeps.job_processes import LostProcessError, end_at_once, end_with_parent
from bertsecrets.sweeps.run_folder import cannot_write, claimed, exclusive_run, report_failure
from bertsecrets.sweeps.signals import Interrupted
from bertsecrets.sweeps.sweep import FAILED, JobRecord, Sweep, open_sweep, rejection, start_job, wait_for_other_jobs
from bertsecrets.sweeps.trust import may_be_given_again

_log = logging.getLogger(__name__)

_FUNCTIONS = {
    "train": ("bertsecrets.cli.train", "train"),
    "analyze": ("bertsecrets.cli.analyze", "analyze"),
    "compare": ("bertsecrets.cli.pages", "compare_runs"),
    "report": ("bertsecrets.cli.pages", "report_again"),
    "view": ("bertsecrets.cli.pages", "view"),
    "export": ("bertsecrets.cli.export", "export_model"),
    "plan": ("bertsecrets.cli.pages", "plan"),
    "workspace": ("bertsecrets.cli.workspace", "save_workspace"),
}
_ELSEWHERE = ("export", "report")
"""The commands without an output folder of their own: they write to a given folder."""


def run_command(command: str) -> None:
    """Run the command line; turn errors into exit status 1.

    A :class:`UserError` is printed as one sentence; ``debug=true`` adds the traceback. Any other exception is a bug
    and shows its traceback. A sweep ends with a table of its jobs, and with exit status 1 if a job failed. SIGINT and
    SIGTERM end in a sentence and exit status 130 or 143.

    Args:
        command: The default command, which ``--config-name`` overrides.
    """
    # Without this Hydra prints a shortened traceback and exits by itself.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    # A log file on a full disk must not fill the terminal with tracebacks.
    logging.raiseExceptions = False
    limit_spinning()
    parent = end_with_parent()
    # The first process of a run decides for the others.
    with unbroken_output(), signals.handled(forward_to=None if is_first_process() else parent):
        _run_command(command)


def _run_command(command: str) -> None:
    folder: Path | None = None
    try:
        offer_to_hydra()
        invocation = parse(sys.argv[1:], command)
        if invocation is not None:
            if invocation.help:
                print(help_text(invocation.config_name, invocation.search))  # noqa: T201
                return
            # Lightning and sweeps start their processes with these arguments.
            sys.argv[1:] = invocation.words
        if invocation is None or invocation.shows:
            hydra.main(config_path=str(CONF), config_name=command, **BASE)(_start_job)()
            return
        config = check(invocation)
        if is_multirun(invocation, config):
            options = ["-m", *(option for option in invocation.options if option not in ("-m", "--multirun"))]
            # The sweep's file records its command separately.
            recorded = [option for option in options if not option.startswith("--config-name=")]
            sweep = open_sweep(invocation, config, [*recorded, *invocation.overrides])
            sys.argv[1:] = [*options, *invocation.overrides, *sweep.overrides()]
            folder = sweep.folder
            records = _run_sweep(sweep, command)
            if any(record.status == FAILED for record in records):
                sys.exit(1)
            _judge(config, [Path(record.folder) for record in records])
        else:
            name = invocation.config_name
            own_command = name if name in COMMANDS else command_of(without_hydra(config))
            run_dir = output_folder(config, "run.dir")
            # Resolved again, ${now:...} could name the folder of the next second.
            with read_write(config.hydra):
                config.hydra.run.dir = run_dir
            folder = None if own_command in _ELSEWHERE else Path(os.path.abspath(run_dir))
            _run_single(invocation, own_command, config, folder)
            if folder is not None and is_first_process():
                _judge(config, [folder])
    except LostProcessError as error:
        report_failure(type(error).__name__, str(error))
        # The broken connection to the lost process would keep this one from exiting.
        end_at_once(str(error))
    except (Exception, Interrupted, KeyboardInterrupt) as error:
        if (number := signals.interruption(error)) is not None:
            report_failure("Interrupted", "interrupted.")
            if is_first_process() and not in_job():
                print(_interrupted(folder), file=sys.stderr)  # noqa: T201
            sys.exit(128 + number)
        if isinstance(error, UserError):
            reason: str | None = str(error)
        else:
            reason = None if folder is None else _disk_error(error, folder)
        report_failure(type(error).__name__, reason or f"{type(error).__name__}: {error}")
        if reason is None:
            raise
        stop(reason)


def _run_single(invocation: Invocation, command: str, config: DictConfig, folder: Path | None) -> None:
    """Run a single run in its folder, which its first process locks before Hydra or a logger writes there."""
    if command == "analyze":
        limit_kept_products()
    if folder is None or not is_first_process():
        invocation.run(partial(_perform, command), config)
        return
    settings = plain(without_hydra(config))
    resume = config.resume is not None
    with claimed(folder, settings, resume=resume, overwrite=config.overwrite) as unfinished:
        if not unfinished:
            again = "" if resume else "; add overwrite=true to run it again"
            if settings.get("save") is not None:
                again += (
                    f", or write its model with python -m bertsecrets export folder={copied(settings['save'])} "
                    f"checkpoint={in_command(folder)}"
                )
            print(f"The run in '{displayed(folder)}' is already finished{again}.")  # noqa: T201
            return
        invocation.run(partial(_perform, command), config)


def _judge(config: DictConfig, folders: Sequence[Path]) -> None:
    """Exit with status :data:`REFUSED` if what finished runs found meets the command's ``fail_if``."""
    text = config.get("fail_if")
    if text is None:
        return
    compared = config.get("runs")
    if compared is None:
        losses = [loss for folder in folders for loss in losses_of_run(Run.open(folder))]
    else:
        names = [compared] if isinstance(compared, str) else list(compared)
        # A slow import.
        from bertsecrets.reporting.runs import find_runs

        losses = losses_of_later([run.folder for run in find_runs(names)[0]])
    if reasons := refusals(text, losses):
        print(f"refused: {' '.join(reasons)}", file=sys.stderr)  # noqa: T201
        sys.exit(REFUSED)


def _perform(command: str, config: DictConfig) -> None:
    """Call a command's function in Hydra's output folder."""
    install()
    # Imported late, so that a mistake on the command line is reported before PyTorch loads.
    from bertsecrets.cli.build import run_folder

    if config.resume is not None:
        config = resumed(config, run_folder(), HydraConfig.get().overrides.task)
    module, function = _FUNCTIONS[command]
    run = getattr(importlib.import_module(module), function)
    if command == "compare":
        # Its output folder can be resumed as a run's.
        with exclusive_run(config, run_folder()):
            run(config)
    else:
        run(config)


def _start_job(config: DictConfig) -> float | None:
    """Start one job of a sweep, for Hydra and its launchers."""
    return start_job(with_run_settings(config, HydraConfig.get().overrides.task))


def _run_sweep(sweep: Sweep, command: str) -> list[JobRecord]:
    signals.hand_on(sweep.interrupt)
    try:
        # Only Hydra's own entry point runs sweepers and launchers. They pass a job's settings as strings, from which
        # its process composes its configuration again.
        hydra.main(config_path=str(CONF), config_name=command, **BASE)(_start_job)()
    except BaseException as error:
        if (sentence := rejection(error, sweep.folder)) is not None:
            raise UserError(sentence) from error
        if wait_for_other_jobs(error):
            return sweep.close(_compare)
        # Show which jobs are finished even if the launcher failed, without hiding its error behind another.
        hurried = signals.interruption(error) is not None
        try:
            sweep.close((lambda folder, paper: None) if hurried else _compare, complete=False)
        except Exception as error:
            _log.warning(f"The table of jobs could not be printed ({type(error).__name__}: {error}).")
        raise
    return sweep.close(_compare)


def limit_spinning() -> None:
    """Let idle OpenMP threads sleep instead of spinning, unless the environment sets how they wait.

    By default they spin for milliseconds after every operation. On two cores shared with another busy process, the
    README's first command then has a fifth of its training done by the time it would otherwise have finished
    (benchmarks/results/first_run.json). Never spinning is slower on an idle machine. Call this before torch is first
    imported.
    """
    if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = "2000"


def limit_kept_products() -> None:
    """Let oneDNN cache code for fewer matrix shapes, unless the environment sets a limit.

    The default is 1,024. In a sweep the shapes differ by batch and layer, and their bf16 code adds up to about 300 MB.
    Call this before the first matrix product.
    """
    if not {"ONEDNN_PRIMITIVE_CACHE_CAPACITY", "DNNL_PRIMITIVE_CACHE_CAPACITY"} & os.environ.keys():
        os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] = "64"


def _disk_error(error: BaseException, folder: Path) -> str | None:
    """The message for a disk error in a run's output folder; None for any other error."""
    for one in causes(error):
        if isinstance(one, OSError) and (sentence := cannot_write(one, folder)) is not None:
            return sentence
    return None


def _interrupted(folder: Path | None) -> str:
    if folder is None or not any((folder / name).exists() for name in (CONFIG_COPY, SWEEP_FILE)):
        return signals.NOTHING_SAVED
    # Resuming ignores the folder's recorded values of these, so they have to be given again.
    again = [argument for argument in sys.argv[1:] if may_be_given_again(key_of(argument))]
    return f"Interrupted; continue with {' '.join([resume_command(folder), *map(shlex.quote, again)])}"


def _compare(folder: Path, paper: bool | str) -> None:
    # Matplotlib takes a second to import.
    from bertsecrets.cli.pages import compare_sweep, page_line

    for page in compare_sweep(folder, paper=paper):
        print(page_line(page))  # noqa: T201


def stop(sentence: str) -> NoReturn:
    """Print an error as one sentence and exit with status 1."""
    if "debug=true" in (argument.lower() for argument in sys.argv):
        traceback.print_exc()
    print(f"error: {message(sentence)}", file=sys.stderr)  # noqa: T201
    sys.exit(1)
