"""Pages are made without a model, and their makers load no PyTorch."""

import subprocess
import sys
from pathlib import Path

import bertsecrets.present

_MODULES = sorted(f"bertsecrets.present.{path.stem}" for path in Path(bertsecrets.present.__path__[0]).glob("[!_]*.py"))


def test_presenters_load_neither_torch_nor_transformers() -> None:
    code = (
        f"import sys, {', '.join(_MODULES)}, bertsecrets.reporting.run_report; print({{'torch', 'transformers'}} & "
        "set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "set()", done.stdout + done.stderr
