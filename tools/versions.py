"""Try the versions that pyproject.toml promises: install them in a fresh environment, and run a quick set of tests
there.

    python tools/versions.py lowest                          # direct dependencies at their lowest; ten minutes on one
    core python tools/versions.py newest --python 3.13            # another interpreter, by version or path
    python tools/versions.py newest --tests run              # fewer tests: a group, or paths
    python tools/versions.py lowest --store                  # keep the outcome in benchmarks/results/versions.json

UV_TORCH_BACKEND=cpu takes PyTorch without CUDA from its own index. Only Python's own library is needed.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
STORED = ROOT / "benchmarks" / "results" / "versions.json"
RESOLUTIONS = {"lowest": "lowest-direct", "newest": "highest"}
"""The sets of versions, and what uv calls them: the lowest of each direct dependency, what these need at its newest."""

SHOWN = ("torch", "pytorch-lightning", "transformers", "datasets", "numpy", "wandb", "hydra-core", "filelock")
ROOMS = ("attention", "models", "data", "statistics", "results")
RUNS = tuple(
    f"cli/test_{name}.py" for name in ("runs", "tracking", "disable", "importance", "sinks_and_probes", "view")
)
GROUPS = {
    "rooms": (*ROOMS, "test_notebook.py", RUNS[0]),
    "runs": RUNS,
    "run": ("cli/test_tracking.py", "cli/test_view.py", "test_notebook.py"),
}
"""Tests, in the folder of tests: of the rooms that meet a library, and of a run; of training, W&B, several processes,
analyses and a view; of a training with W&B, its analysis and a view. All but the second also of the notebook
interface."""

QUICK = {"lowest": "rooms", "newest": "runs"}
"""The group that is run with a set."""


def lowest_torch(project: str) -> str:
    """The lowest PyTorch that a project's file promises; what needs it would otherwise ask for a newer one.

    >>> lowest_torch('dependencies = ["torch>=2.6,<2.14"]')
    '2.6'
    """
    match = re.search(r'"torch>=([\d.]+)', project)
    assert match is not None
    return match[1]


def pinned(requirements: str) -> dict[str, str]:
    """The versions of the shown packages in the lines ``name==version``.

    >>> pinned("numpy==1.26.0\\nsix==1.17.0\\ntorch==2.6.0 ; sys_platform == 'linux'")
    {'numpy': '1.26.0', 'torch': '2.6.0'}
    """
    lines = re.findall(r"^([\w.-]+)==([^\s;]+)", requirements, re.MULTILINE)
    return {name: version for name, version in lines if name in SHOWN}


def outcome(closing: str) -> str:
    """What pytest's last line counts.

    >>> outcome("=== 3 failed, 501 passed, 2 skipped, 9 deselected in 70.11s ===")
    '501 passed, 3 failed, 2 skipped'
    """
    counts = {word: number for number, word in re.findall(r"(\d+) (passed|failed|errors?|skipped)", closing)}
    words = ("passed", "failed", "error", "errors", "skipped")
    return ", ".join(f"{counts[word]} {word}" for word in words if word in counts)


def paths(tests: str) -> list[str]:
    """The paths of a group of tests, or those that are named.

    >>> paths("run")
    ['tests/cli/test_tracking.py', 'tests/cli/test_view.py', 'tests/test_notebook.py']
    >>> paths("tests/measures tests/probes")
    ['tests/measures', 'tests/probes']
    """
    return [f"tests/{name}" for name in GROUPS[tests]] if tests in GROUPS else tests.split()


def table(rows: list[dict[str, Any]]) -> str:
    """The outcomes as a table in Markdown, a column for each: there are more packages than fit side by side."""
    rows = sorted(rows, key=lambda row: (row["set"], [int(part) for part in row["python"].split(".")]))
    lines = [["", *(row["set"] for row in rows)], ["---"] * (1 + len(rows))]
    lines += [
        [label, *(row[name] for row in rows)]
        for name, label in (("python", "Python"), ("tests", "tests"), ("outcome", "outcome"))
    ]
    lines += [[name, *(row["packages"].get(name, "") for row in rows)] for name in SHOWN]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def try_versions(name: str, python: str, tests: str) -> tuple[dict[str, Any], int]:
    """Install a set of versions and run the tests; the outcome, and pytest's exit status."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", f"{folder}/uv"], check=True)
        subprocess.run([f"{folder}/uv/bin/pip", "install", "--quiet", "uv"], check=True)
        environment = {**os.environ, "VIRTUAL_ENV": f"{folder}/venv", "HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline"}
        environment["PATH"] = f"{folder}/venv/bin{os.pathsep}{environment['PATH']}"

        def uv(*arguments: str) -> None:
            subprocess.run([f"{folder}/uv/bin/uv", "--quiet", *arguments], cwd=ROOT, env=environment, check=True)

        uv("venv", "--python", python, f"{folder}/venv")
        interpreter = f"{folder}/venv/bin/python"
        constraint, listed = Path(folder, "constraint.txt"), Path(folder, "versions.txt")
        torch = lowest_torch((ROOT / "pyproject.toml").read_text("utf-8"))
        constraint.write_text(f"torch=={torch}\n" if name == "lowest" else "")
        resolution = f"--resolution={RESOLUTIONS[name]}"
        uv("pip", "compile", "--no-header", "--no-annotate", f"--python={interpreter}", resolution, "--extra=test",
           f"--constraint={constraint}", f"--output-file={listed}", "pyproject.toml")  # fmt: skip
        uv("pip", "install", f"--constraint={listed}", "-e", ".[test]")
        uv("pip", "check")
        command = [interpreter, "-m", "pytest", *paths(tests)]
        lines: list[str] = []
        with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                print(line, end="", flush=True)
                lines.append(line)
        version = subprocess.check_output([interpreter, "-c", "import platform; print(platform.python_version())"])
        row = {
            "set": name,
            "python": version.decode().strip(),
            "packages": pinned(listed.read_text("utf-8")),
            "tests": tests,
            "outcome": outcome(lines[-1] if lines else ""),
        }
        return row, process.returncode


def main() -> int:
    """Run the command line; pytest's exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", choices=RESOLUTIONS)
    parser.add_argument("--python", default=f"{sys.version_info.major}.{sys.version_info.minor}")
    parser.add_argument("--tests", nargs="+", help=f"one of {', '.join(GROUPS)}, or paths; without it {QUICK}")
    parser.add_argument("--store", action="store_true")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = json.loads(STORED.read_text("utf-8")) if STORED.is_file() else []
    tests = QUICK[options.set] if options.tests is None else " ".join(options.tests)
    row, status = try_versions(options.set, options.python, tests)
    print(table([row]))
    if options.store:
        kept = [other for other in rows if (other["set"], other["python"]) != (row["set"], row["python"])]
        STORED.write_text(json.dumps([*kept, row], indent=1) + "\n", "utf-8")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
