"""Run a command: check its settings first, resume runs and sweeps, and print a mistake as one sentence."""

import logging
import os
import re
import shlex
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from bertsecrets.cli.composition import check
from bertsecrets.cli.habits import as_setting, check_model_name, group_of, with_new_names, with_trainer_arguments
from bertsecrets.cli.help import help_text
from bertsecrets.cli.own_data import own_data, with_task_file
from bertsecrets.cli.quiet import in_job, raise_kept, unbroken_output
from bertsecrets.cli.run_settings import with_run_settings
from bertsecrets.errors import UserError
from bertsecrets.keys import top_level
from bertsecrets.results.config_copy import CONFIG_COPY, plain
from bertsecrets.results.formatting import message
from bertsecrets.results.run import is_first_process
from bertsecrets.sweeps import signals
from bertsecrets.sweeps.hydra_arguments import (
    Invocation,
    as_argument,
    config_dir_of,
    is_multirun,
    offer_to_hydra,
    parse_arguments,
    parse_overrides,
    quoted,
    unknown_options,
    unquoted,
)
from bertsecrets.sweeps.job_processes import end_at_once, end_with_parent
from bertsecrets.sweeps.output_folder import cannot_write, claimed
from bertsecrets.sweeps.run_folder import report_failure
from bertsecrets.sweeps.run_processes import LostProcessError
from bertsecrets.sweeps.signals import Interrupted
from bertsecrets.sweeps.sweep import FAILED, SWEEP_FILE, JobRecord, Sweep, open_sweep, resume_arguments
from bertsecrets.sweeps.trust import TARGET, check_links, check_sweep_arguments, may_be_given_again, names_code

_log = logging.getLogger(__name__)

_TEXT = "text="
_ALLOWED_WITH_RESUME = top_level(lambda meaning: meaning.with_resume)


def run_command(task: Callable[[], object], config_dir: Path, config_name: str) -> None:
    """Check the command line, run ``task`` (a ``@hydra.main`` function), and turn errors into exit status 1.

    A :class:`UserError` is printed as one sentence; ``debug=true`` adds the traceback. Any other exception is a bug
    and shows its traceback. A sweep ends with a table of its jobs, and with exit status 1 if a job failed. SIGINT and
    SIGTERM end in a sentence and exit status 130 or 143.
    """
    # Without this Hydra prints a shortened traceback and exits by itself.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    if config_name == "analyze":
        limit_kept_products()
    # A log file on a full disk must not fill the terminal with tracebacks.
    logging.raiseExceptions = False
    parent = end_with_parent()
    # The first process of a run decides for the others.
    with unbroken_output(), signals.handled(forward_to=None if is_first_process() else parent):
        _run_command(task, config_dir, config_name)


def limit_kept_products() -> None:
    """Let oneDNN keep its code for fewer shapes of matrix products, unless the environment says how many.

    It keeps 1,024 by default. A sweep has other shapes in every batch and layer, and in bf16 their code takes some 300 MB in all. It has
    to be called before the first product.
    """
    if not {"ONEDNN_PRIMITIVE_CACHE_CAPACITY", "DNNL_PRIMITIVE_CACHE_CAPACITY"} & os.environ.keys():
        os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] = "64"


def _run_command(task: Callable[[], object], config_dir: Path, config_name: str) -> None:
    folder: Path | None = None
    try:
        if {"--help", "-h"} & set(sys.argv[1:]):
            print(help_text(config_name, config_dir_of(sys.argv[1:])))  # noqa: T201
            return
        sys.argv[1:], renamed = with_new_names(sys.argv[1:])
        for sentence in renamed:
            print(sentence, file=sys.stderr)  # noqa: T201
        check_words(sys.argv[1:], config_name)
        offer_to_hydra()
        arguments = with_task_file(with_quoted_text(with_analysis(with_resume(sys.argv[1:]), config_name)))
        sys.argv[1:] = with_trainer_arguments(arguments)
        invocation = parse_arguments(sys.argv[1:], config_dir, config_name)
        if invocation is None:
            _run_task(task)
            return
        check_model_name(invocation)
        own = own_data(invocation)
        if own:
            # Hydra does not accept settings on both sides of an option.
            last = max(i for i, argument in enumerate(sys.argv) if argument == invocation.overrides[-1])
            sys.argv[last + 1 : last + 1] = own
            invocation = replace(invocation, overrides=[*invocation.overrides, *own])
        if invocation.shows:
            _run_task(task)
            return
        first = check(invocation)
        if is_multirun(invocation, first):
            sweep = _open_sweep(invocation, first)
            folder = sweep.folder
            if any(record.status == FAILED for record in _run_sweep(task, sweep)):
                sys.exit(1)
        else:
            folder = _output_folder(first)
            _run_single(task, first, folder)
    except LostProcessError as error:
        report_failure(type(error).__name__, str(error))
        # What is left of the connection to the lost process would keep this one from ending by itself.
        end_at_once(str(error))
    except UserError as error:
        report_failure(type(error).__name__, str(error))
        stop(str(error))
    except (Interrupted, KeyboardInterrupt) as error:
        number = error.number if isinstance(error, Interrupted) else signal.SIGINT
        report_failure("Interrupted", "interrupted.")
        if is_first_process() and not in_job():
            print(_interrupted(folder), file=sys.stderr)  # noqa: T201
        sys.exit(128 + number)
    except Exception as error:
        reason = None if folder is None else _disk_error(error, folder)
        report_failure(type(error).__name__, reason or f"{type(error).__name__}: {error}")
        if reason is None:
            raise
        stop(reason)


def _run_task(task: Callable[[], object]) -> None:
    task()
    raise_kept()


def _disk_error(error: BaseException | None, folder: Path) -> str | None:
    """The sentence for an error that comes from the disk of a run's output folder; None for any other error."""
    while error is not None:
        if isinstance(error, OSError) and (sentence := cannot_write(error, folder)) is not None:
            return sentence
        error = error.__cause__ or error.__context__
    return None


def _interrupted(folder: Path | None) -> str:
    if folder is None or not any((folder / name).exists() for name in (CONFIG_COPY, SWEEP_FILE)):
        return signals.NOTHING_SAVED
    # Of the folder's own configuration these count only if they are given again.
    again = [argument for argument in sys.argv[1:] if may_be_given_again(_key(argument))]
    return f"Interrupted; continue with {shlex.join([f'resume={folder}', *again])}"


def check_words(arguments: list[str], command: str) -> None:
    """Check that each argument is a setting, or an option of Hydra's.

    Raises:
        UserError: If one is not; the sentence says what to write.
    """
    unknown = unknown_options(arguments)
    if unknown:
        place = arguments.index(unknown[0])
        following = arguments[place + 1] if place + 1 < len(arguments) else None
        raise UserError(
            f"'{unknown[0]}' is not an option; settings have no dashes: write {as_setting(unknown[0], following, command)}."
        )
    for argument in arguments:
        group = group_of(argument)
        if group is not None:
            raise UserError(f"'{argument}' is a choice of {group}; write {group}={argument}.")


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
    check_links(folder)
    for argument in others:
        key = _key(argument)
        trusts = names_code(key) and (key.endswith(TARGET) or ":" in argument.partition("=")[2])
        allowed = key in _ALLOWED_WITH_RESUME or key.startswith("hydra.") or may_be_given_again(key) or trusts
        if not argument.startswith("-") and not allowed:
            raise UserError(
                f"'{argument}' cannot be combined with resume=<folder>, which uses the folder's own configuration; leave "
                "it out, or start a new run."
            )
    if sweep is not None:
        again = set(map(_key, others))
        sweep = [argument for argument in sweep if _key(argument) not in again]
        check_sweep_arguments(sweep, folder)
        return [*sweep, *others]
    return [
        *others,
        f"resume={quoted(str(folder))}",
        f"hydra.run.dir={quoted(str(folder))}",
        "hydra.output_subdir=null",
    ]


def _key(argument: str) -> str:
    return argument.partition("=")[0].lstrip("+~")


def with_analysis(arguments: list[str], config_name: str) -> list[str]:
    """The arguments of ``analyze.py`` with ``analysis=prune`` where settings of pruning are given without an analysis.

    >>> with_analysis(["checkpoint=run", "prune.max_loss=1.0"], "analyze")
    ['checkpoint=run', 'prune.max_loss=1.0', 'analysis=prune']
    """
    keys = list(map(_key, arguments))
    if config_name != "analyze" or {"analysis", "experiment", "resume"} & set(keys):
        return arguments
    last = max((place for place, key in enumerate(keys) if key.startswith("prune.")), default=None)
    if last is None:
        return arguments
    return [*arguments[: last + 1], "analysis=prune", *arguments[last + 1 :]]


def with_quoted_text(arguments: list[str]) -> list[str]:
    """The arguments, with the sentences of ``text`` quoted for Hydra, to which commas, quotes and dollars would mean something.

    So is the ``head`` of a layer, which Hydra would take for a number: 5.10 is another head than 5.1.

    >>> with_quoted_text(["text=It's late, she said.", "text=[one,two]", "checkpoint=a"])
    ["text='It\\\\'s late, she said.'", "text=['one', 'two']", 'checkpoint=a']
    >>> with_quoted_text(["head=5.10"])
    ["head='5.10'"]
    """
    arguments = [re.sub(r"^head=(\d+\.\d+)$", r"head='\1'", argument) for argument in arguments]
    return [f"{_TEXT}{_as_text(argument)}" if argument.startswith(_TEXT) else argument for argument in arguments]


def _as_text(argument: str) -> str:
    text = argument.removeprefix(_TEXT)
    if text == "null":
        return text
    if not text.startswith(("[", "'", '"')):
        return quoted(text)
    override = parse_overrides([argument])[0]
    if override.is_sweep_override():
        return ",".join(_as_text(f"{_TEXT}{value}") for value in override.sweep_string_iterator())
    return as_argument(override.value())


def _output_folder(config: DictConfig) -> Path:
    """The output folder that Hydra will use for a single run."""
    before = HydraConfig.instance().cfg
    HydraConfig.instance().set_config(config)
    try:
        return Path(os.path.abspath(str(config.hydra.run.dir)))
    finally:
        HydraConfig.instance().cfg = before


def _run_single(task: Callable[[], object], config: DictConfig, folder: Path) -> None:
    """Run a single run in its folder, which the first of its processes holds before Hydra or a logger writes there."""
    if not is_first_process():
        _run_task(task)
        return
    own = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    own = with_run_settings(own, list(config.hydra.overrides.task))
    resume = config.resume is not None
    with claimed(folder, plain(own), resume=resume, overwrite=config.overwrite) as unfinished:
        if not unfinished:
            again = "" if resume else "; add overwrite=true to run it again"
            if own.get("save") is not None:
                again += f", or write its model with python -m bertsecrets export folder={own.save} checkpoint={folder}"
            print(f"The run in '{folder}' is already finished{again}.")  # noqa: T201
            return
        # The default folder has the time in its name, which is not to pass meanwhile.
        sys.argv.append(f"hydra.run.dir={quoted(str(folder))}")
        _run_task(task)


def _open_sweep(invocation: Invocation, first: DictConfig) -> Sweep:
    # Hydra does not accept settings on both sides of -m.
    arguments = ["-m", *(argument for argument in sys.argv[1:] if argument not in ("-m", "--multirun"))]
    # The sweep's file names its command apart.
    sweep = open_sweep(invocation, first, [word for word in arguments if not word.startswith("--config-name=")])
    sys.argv[1:] = [*arguments, *sweep.overrides()]
    return sweep


def _run_sweep(task: Callable[[], object], sweep: Sweep) -> list[JobRecord]:
    signals.hand_on(sweep.interrupt)
    try:
        task()
    except BaseException as error:
        # Show which jobs are finished even if the launcher failed, without hiding its error behind another.
        hurried = isinstance(error, (Interrupted, KeyboardInterrupt))
        try:
            sweep.close((lambda folder, paper: None) if hurried else _compare)
        except Exception as error:
            _log.warning(f"The table of jobs could not be printed ({type(error).__name__}: {error}).")
        raise
    return sweep.close(_compare)


def _compare(folder: Path, paper: bool | str) -> None:
    # Matplotlib takes a second to import.
    from bertsecrets.cli.pages import compare_sweep, page_line

    for page in compare_sweep(folder, paper=paper):
        print(page_line(page))  # noqa: T201


def stop(sentence: str) -> NoReturn:
    """Print a mistake as one sentence, and end with exit status 1."""
    if "debug=true" in (argument.lower() for argument in sys.argv):
        traceback.print_exc()
    print(f"error: {message(sentence)}", file=sys.stderr)  # noqa: T201
    sys.exit(1)
