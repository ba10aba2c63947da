"""What libraries say about themselves is silenced by name; anything else is shown."""

import logging
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from bertsecrets.cli import quiet
from bertsecrets.cli.quiet import Line, install


@pytest.fixture
def printed(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    install()
    caplog.set_level(logging.INFO, "pytorch_lightning.utilities.rank_zero")
    return caplog


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("GPU available: False, used: False", False),
        ("TPU available: False, using: 0 TPU cores", False),
        ("\N{ELECTRIC LIGHT BULB} Tip: For seamless cloud logging, try installing it", False),
        ("`Trainer.fit` stopped: `max_epochs=3` reached.", False),
        ("Restoring states from the checkpoint path at x.ckpt", False),
        ("Signal SIGTERM received", True),
        ("The GPU available: is too small", True),
    ],
)
def test_lines_of_lightning(line: str, shown: bool, printed: pytest.LogCaptureFixture) -> None:
    logging.getLogger("pytorch_lightning.utilities.rank_zero").info(line)
    assert (line in printed.messages) == shown


def test_warnings_are_silenced_by_their_text() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        install()
        warnings.warn(
            "`isinstance(treespec, LeafSpec)` is deprecated, use something else.", FutureWarning, stacklevel=1
        )
        warnings.warn("The 'train_dataloader' does not have many workers which may be a bottleneck.", stacklevel=1)
        warnings.warn("The loss is not finite.", stacklevel=1)
    assert [str(one.message) for one in seen] == ["The loss is not finite."]


def test_a_warning_of_this_package_is_its_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    install()
    ours, sentence = str(Path(quiet.__file__).parent.parent / "data" / "module.py"), "3 rows were left out."
    assert warnings.formatwarning(sentence, UserWarning, ours, 7) == "warning: 3 rows were left out.\n"
    assert "other.py:7: UserWarning: 3 rows" in warnings.formatwarning(sentence, UserWarning, "other.py", 7)
    assert "module.py:7: DeprecationWarning" in warnings.formatwarning(sentence, DeprecationWarning, ours, 7)


def test_a_line_on_the_terminal_has_no_time_and_names_only_warnings() -> None:
    def line(level: int) -> str:
        return Line().format(logging.LogRecord("x.y", level, "", 0, "Memory is %s.", ("short",), None))

    assert line(logging.INFO) == "Memory is short."
    assert line(logging.WARNING) == "warning: Memory is short."


def test_in_a_job_of_a_sweep_only_warnings_reach_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = logging.StreamHandler()
    root = logging.getLogger()
    root.addHandler(terminal)
    try:
        install()
        assert terminal.level == logging.NOTSET
        monkeypatch.setenv(quiet.FAILURE, "somewhere")
        install()
        assert terminal.level == logging.WARNING
    finally:
        root.removeHandler(terminal)


def test_a_log_file_keeps_every_line_whatever_the_locale(tmp_path: Path) -> None:
    handler = logging.FileHandler(tmp_path / "train.log", encoding="ascii")
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        install()
        root.warning("changes by \N{MINUS SIGN}1.0")
    finally:
        root.removeHandler(handler)
        handler.close()
    assert (tmp_path / "train.log").read_text("utf-8") == "changes by \N{MINUS SIGN}1.0\n"


def test_a_closed_pipe_does_not_end_the_work(tmp_path: Path) -> None:
    """As in ``train.py | head -1``: what was begun is finished."""
    code = (
        "import sys\nfrom pathlib import Path\nfrom bertsecrets.cli.quiet import unbroken_output\n"
        "with unbroken_output():\n    for line in range(20000):\n        print('line', line, flush=line % 2 == 0)\n"
        "    Path(sys.argv[1]).write_text('finished')\n"
    )
    marker = tmp_path / "marker"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(marker)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout.readline() == b"line 0\n"
    process.stdout.close()
    assert process.wait(60) == 0
    assert process.stderr.read() == b""
    assert marker.read_text() == "finished"


@pytest.mark.parametrize(("encoding", "shown"), [("ascii", '-1.0 * +/-0.1 "..." ?'), ("cp1252", "-1.0 · ±0.1 “…” ?")])
def test_what_an_encoding_lacks_has_a_stand_in(encoding: str, shown: str) -> None:
    program = (
        "from bertsecrets.cli.quiet import unbroken_output\n"
        "with unbroken_output(): print('\N{MINUS SIGN}1.0 · ±0.1 “…” \N{GREEK SMALL LETTER ALPHA}')"
    )
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True)
    assert done.stdout.decode(encoding) == f"{shown}\n"


def test_files_of_the_working_directory_do_not_stand_for_the_standard_library(tmp_path: Path) -> None:
    for name in ("random.py", "csv.py", "difflib.py"):
        (tmp_path / name).write_text("raise RuntimeError('not the standard library')", "utf-8")
    root = str(Path(quiet.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-m", "bertsecrets", "train", "--help"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
