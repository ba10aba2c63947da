"""Output folders: used, occupied, read-only or full ones, and what resuming and overwriting do."""

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faults.cases import LATE, Case, Outcome, analyze, parametrized, train
from faults.runner import Warm

WORK = (
    *LATE,
    "*.parquet",
    "scores.json",
    "experiments.json",
    "rows.json",
    "findings.json",
    "*.ckpt",
    "tokenizer/*",
    "*.csv",
    "*.tex",
    "figures/*",
    "hparams.yaml",
)
"""What a training has written before it finds that it cannot write one of its files."""


def _read_only(folder: Path) -> None:
    (folder / "out").mkdir(mode=0o555)


def _occupied(name: str, *, by_folder: bool) -> Callable[[Path], None]:
    """Put a folder in the place of a file, or a file in the place of a folder."""

    def arrange(folder: Path) -> None:
        path = folder / "out" / name
        path.parent.mkdir(parents=True)
        if by_folder:
            path.mkdir()
            (path / "mine.txt").write_text("mine")
        else:
            path.write_text("mine")

    return arrange


def _nothing(folder: Path, outcome: Outcome) -> None:
    assert list(folder.iterdir()) == []


def _one_line(folder: Path, outcome: Outcome) -> None:
    assert outcome.stdout.count("\n") == 1
    assert outcome.stderr == ""


OUT = "{folder}/out"
OTHERS = {
    "train": train(hydra__run__dir="{run}", seed=7),
    "analyze": analyze(hydra__run__dir="{run}"),
    "compare": ("compare", "runs=[{run}]", "hydra.run.dir={run}"),
}
FOLDERS = ("checkpoints", "csv", "tokenizer", ".hydra", "figures", "predictions")
FILES = ("heads.parquet", "scores.json", "report.html", "begun.json", "train.log", ".lock", "experiments.json")

CASES = [
    *(Case(f"used-by-{name}", words, "already contains a finished run") for name, words in OTHERS.items()),
    Case(
        "finished-training",
        train(hydra__run__dir="{run}"),
        r"^The run in '{run}' is already finished; add overwrite=true to run it again\.$",
        status=0,
        check=_one_line,
    ),
    Case("resume-finished", ("train.py", "resume={run}"), r"'{run}' is already finished\.$", status=0, check=_one_line),
    Case(
        "sweep-in-a-run",
        (*train(hydra__sweep__dir="{run}"), "-m", "seed=1,2"),
        r"hydra.sweep.dir is '{run}', which contains a single run; choose another folder",
    ),
    Case("read-only", train(hydra__run__dir=OUT), r"'{folder}/out' cannot be written \(permission", arrange=_read_only),
    Case(
        "read-only-sweep",
        (*train(hydra__sweep__dir=OUT + "/a"), "-m", "seed=1,2"),
        r"hydra.sweep.dir is '{folder}/out/a', which cannot be written \(permission denied\)",
        arrange=_read_only,
    ),
    Case("long-name", train(hydra__run__dir="{folder}/" + "x" * 300), r"cannot be written \(file name too long\)"),
    *(
        Case(
            f"refused-leaves-nothing-{name}",
            (*words, "hydra.run.dir={folder}/a/b"),
            sentence,
            check=_nothing,
        )
        for name, words, sentence in (
            ("layer", train(optimizer__freeze="[7]"), r"layer from 0 to 2"),
            ("model", train(model__path="{folder}/nowhere"), r"nowhere"),
            ("length", train(task__training__max_length=400), r"only 128 positions"),
            ("data", train(data__root="{folder}/nowhere"), r"nowhere"),
            ("evaluation", analyze(analysis="disable_heads", ablation__evaluation="tset"), r"tset"),
            ("checkpoint", analyze(checkpoint="{folder}/nowhere"), r"does not exist"),
            (
                "head",
                analyze(analysis="disable_heads", ablation__layer=7),
                r"ablation.layer contains layer 7, but the model has layers 0 to 2",
            ),
        )
    ),
    Case(
        "refused-leaves-nothing-at-another-time",
        (*train(model__path="{folder}/nowhere"), "hydra.run.dir={folder}/a/${now:%f}"),
        r"nowhere",
        check=_nothing,
    ),
    *(
        Case(
            f"file-{name}",
            train(hydra__run__dir=OUT, logger="csv"),
            r"cannot be written|cannot be used|is a file|Not a directory|File exists",
            arrange=_occupied(name, by_folder=False),
            leaves=WORK,
        )
        for name in FOLDERS
    ),
    *(
        Case(
            f"folder-{name}",
            train(hydra__run__dir=OUT, logger="csv"),
            r"cannot be written|cannot be used|cannot be read",
            arrange=_occupied(name, by_folder=True),
            leaves=WORK,
        )
        for name in FILES
    ),
    Case(
        "resume-and-overwrite", ("train.py", "resume={run}", "overwrite=true"), r"'overwrite=true' cannot be combined"
    ),
]


@parametrized(CASES)
def test_folders(case: Case, warm: Warm, tmp_path: Path) -> None:
    warm.check(case, tmp_path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Mounts a disk of some kilobytes."""
    disk = tmp_path / "disk"
    disk.mkdir()

    def mount(kilobytes: int) -> Path:
        options = ["-t", "tmpfs", "-o", f"size={kilobytes}k,nr_inodes=2000", "tmpfs", str(disk)]
        if shutil.which("mount") is None or subprocess.run(["mount", *options], check=False).returncode:
            pytest.skip("needs the right to mount a disk")
        return disk

    try:
        yield mount
    finally:
        subprocess.run(["umount", str(disk)], check=False, stderr=subprocess.DEVNULL)


@pytest.mark.faults
@pytest.mark.parametrize(
    "kilobytes",
    [pytest.param(size, marks=[] if size == 2000 else pytest.mark.slow) for size in (4, 40, 1200, 2000, 8000, 20000)],
)
def test_a_full_disk_is_told_in_one_sentence(
    kilobytes: int, warm: Warm, tmp_path: Path, small_disk: Callable[[int], Path]
) -> None:
    disk = small_disk(kilobytes)
    words = train(hydra__run__dir=disk / "run", callbacks="default", logger="csv", checkpoint__every_n_steps=1)
    outcome = warm.run(words, tmp_path)
    printed = outcome.stdout + outcome.stderr
    if outcome.status == 0:
        assert kilobytes == 20000, printed
        return
    assert outcome.status == 1, printed
    assert "Traceback" not in printed
    lines = outcome.stderr.splitlines()
    assert sum(line.startswith("error: ") for line in lines) == 1, printed
    # What writes a checkpoint does not say why it could not.
    assert re.search(r"cannot be written \((no space left on device|the disk or a quota may be full)\)", lines[-1]), (
        printed
    )
    assert not [path for path in disk.rglob(".*.*") if path.is_file() and ".hydra" not in str(path)]
