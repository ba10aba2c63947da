"""Silence library messages about themselves and the machine, line by line; show everything else."""

import codecs
import io
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from bertsecrets.sweeps.run_folder import FAILURE

_RANK_ZERO = ("pytorch_lightning.utilities.rank_zero", "lightning_fabric.utilities.rank_zero")

_LINES = (
    r"[GTH]PU available: ",
    r"\N{ELECTRIC LIGHT BULB} Tip: ",
    r"LOCAL_RANK: \d+ - CUDA_VISIBLE_DEVICES: ",
    r"`Trainer\.fit` stopped: `max_(epochs|steps)=",
    r"`Trainer\(val_check_interval=1\.0\)` was configured so validation will run at the end",
    r"Restor(ing states|ed all states) from the checkpoint",
    r"Loaded model weights from the checkpoint",
    r"Using \S+ Automatic Mixed Precision",
    r"You are using a CUDA device .* that has Tensor Cores",
)
"""Prefixes of lines that Lightning logs."""

_WARNINGS = (
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",
    r"You called `self\.log\(.*` but have no logger configured",
    r"The '\w+' does not have many workers",
    r"The number of training batches \(\d+\) is smaller than the logging interval",
    r"Checkpoint directory .* exists and is not empty",
    r"Experiment logs directory .* exists and is not empty",
    r"GPU available but not used",
    r"MPS available but not used",
    r"Trying to infer the `batch_size` from an ambiguous collection",
    r"The `srun` command is available on your system but is not used",
    r"You're resuming from a checkpoint that ended before the epoch ended",
)
"""Prefixes of Lightning's and PyTorch's warnings that our users cannot act on."""


class _Named(logging.Filter):
    """Drop the lines of ``_LINES``."""

    _pattern = re.compile("|".join(_LINES))

    def filter(self, record: logging.LogRecord) -> bool:
        return self._pattern.match(record.getMessage()) is None


class Line(logging.Formatter):
    """A log record on the terminal: the message alone, after its level if it is a warning or worse."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        text = super().format(record)
        return f"{record.levelname.lower()}: {text}" if record.levelno >= logging.WARNING else text


_named = _Named()

_PACKAGE = Path(__file__).parent.parent

_of_python = warnings.formatwarning


def _warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """This package's warnings as a sentence; others with their line of code."""
    if category is UserWarning and Path(filename).is_relative_to(_PACKAGE):
        return f"warning: {message}\n"
    return _of_python(message, category, filename, lineno, line)


def install() -> None:
    """Silence the lines, and in a sweep's job our own too; its parent prints a line about it. The log file is UTF-8."""
    for name in _RANK_ZERO:
        # A filter is added once, however often this is called.
        logging.getLogger(name).addFilter(_named)
    for message in _WARNINGS:
        warnings.filterwarnings("ignore", message=message)
    warnings.formatwarning = _warning
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.FileHandler):
            # Hydra opens the log in the locale's encoding, which loses lines with other characters.
            stream: Any = handler.stream
            stream.reconfigure(encoding="utf-8")
        elif isinstance(handler, logging.StreamHandler):
            # The log file has times and module names, the terminal only the message.
            handler.setFormatter(Line())
            if in_job():
                handler.setLevel(logging.WARNING)


def in_job() -> bool:
    """Whether this process runs a job of a sweep."""
    return FAILURE in os.environ


class _Unbroken:
    """A stream that discards its output once the reader is gone."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text, or discard it."""
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            self._silence()
            return len(text)

    def flush(self) -> None:
        """Flush the stream, or discard what it has buffered."""
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._silence()

    def _silence(self) -> None:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self._stream.fileno())
        os.close(null)


_PLAIN = {"\N{MINUS SIGN}": "-", "\N{MIDDLE DOT}": "*", "\N{PLUS-MINUS SIGN}": "+/-", "\N{MULTIPLICATION SIGN}": "x"}
_PLAIN |= {"\N{HORIZONTAL ELLIPSIS}": "...", "\N{EN DASH}": "-", "\N{LEFT DOUBLE QUOTATION MARK}": '"'}
_PLAIN |= {"\N{RIGHT DOUBLE QUOTATION MARK}": '"', "\N{RIGHTWARDS ARROW}": "->", "\N{NO-BREAK SPACE}": " "}


def _in_plain_letters(error: UnicodeError) -> tuple[str, int]:
    """Replacements for characters that the terminal's encoding lacks; a number must keep its sign."""
    assert isinstance(error, UnicodeEncodeError)
    return "".join(_PLAIN.get(letter, "?") for letter in error.object[error.start : error.end]), error.end


codecs.register_error("bertsecrets.plain", _in_plain_letters)


@contextmanager
def unbroken_output() -> Iterator[None]:
    """Keep working when the reader of the output exits, as in ``train.py | head``, or its encoding lacks a letter."""
    streams = sys.stdout, sys.stderr
    for stream in streams:
        # A test may put a stream of another kind there.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="bertsecrets.plain")
    sys.stdout, sys.stderr = (_Unbroken(stream) for stream in streams)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        sys.stdout, sys.stderr = streams
