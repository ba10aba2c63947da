"""What benchmarks share: a model of BERT-base's size, runs by their names, work in a process of its own, and stored
results.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from bertsecrets.results.files import write_text
from bertsecrets.results.run import FINISHED
from bertsecrets.sweeps.run_folder import BEGUN

ROOT = Path(__file__).resolve().parent.parent


def of_base(base: Path) -> list[str]:
    """The settings of all-mpnet-base-v2 in this folder."""
    return [
        "model=folder",
        f"model.path={base}",
        "model.name=mpnet",
        "model.objective=sentence_embeddings",
    ]


def run(name: str, command: Sequence[str], out: Path) -> None:
    """Run a script of this repository in the folder ``out/name`` unless it is finished there; resume it if it has
    begun.

    Its output is appended to ``out/name.log``. How long it took, or that it failed, is printed.

    Args:
        name: Name of the run.
        command: The script and its settings; a run that is resumed keeps the settings that it began with.
        out: Folder of the runs.
    """
    folder, log, started = out / name, out / f"{name}.log", time.monotonic()
    if (folder / FINISHED).is_file():
        return
    if (folder / BEGUN).is_file():
        print(f"{name}: resumed with the settings of {folder}", flush=True)
        command = [command[0], f"resume={folder}"]
    else:
        command = [*command, "overwrite=true", "progress=false", f"hydra.run.dir={folder}"]
    with log.open("a", encoding="utf-8") as output:
        done = subprocess.run(
            [sys.executable, *command], cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, check=False
        )
    minutes = (time.monotonic() - started) / 60
    print(f"{name}: {f'{minutes:.1f} minutes' if done.returncode == 0 else f'failed, see {log}'}", flush=True)


def in_process(*arguments: str) -> dict[str, float]:
    """What a benchmark prints as JSON in its last line, in a process of its own, whose peak of memory is that of the
    work.

    Args:
        arguments: Those of ``python -m``.
    """
    result = subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(result.stdout.strip().splitlines()[-1])
    return found


def store(path: Path, change: Callable[[Any], Any]) -> Any:
    """Change stored results; another process that changes them waits, and finds what this one stored.

    Args:
        path: A JSON file.
        change: From the content of the file, None if it is missing, to the new content; runs alone.

    Returns:
        The new content.
    """
    with FileLock(f"{path}.lock"):
        content = change(json.loads(path.read_text("utf-8")) if path.is_file() else None)
        write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return content
