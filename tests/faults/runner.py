"""Runs fault cases in forked children of a warm process, and checks what they printed and left behind."""

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from faults.cases import Case, Outcome, analyze, train
from faults.client import warm_process
from shared import made_once

MOST_BYTES = 3 << 30
"""Memory that no case may use, the imports of half a gigabyte included."""

_HYDRA = (".hydra/*.yaml", "train.log", "analyze.log")
_PLACES = re.compile(r"\{(folder|model|data|run|second|analysis|random|mean)\}")
_RUNS = {
    "run": train(),
    "second": train(seed=2),
    "random": train(init="random_normal"),
    "analysis": analyze(analysis="disable_heads"),
    "mean": analyze(analysis="disable_heads", ablation__layer=1, ablation__mode="mean"),
}
"""The finished runs that cases share, by name."""


class Warm:
    """A warm process, with a tiny model and the finished runs that cases share.

    Args:
        scratch: A folder for output.
        shared: A folder for what all workers share.
        model: Folder of a tiny model.
    """

    def __init__(self, scratch: Path, shared: Path, model: Path) -> None:
        self.scratch, self.shared, self.model = scratch, shared, model
        shared.mkdir(exist_ok=True)
        self.data = made_once(shared / "data", lambda folder: write_sentences(folder / "SST-2"))
        self._process = warm_process()

    def run(
        self, words: tuple[str, ...], folder: Path, environment: Mapping[str, str] | None = None, seconds: float = 60.0
    ) -> Outcome:
        """Run a command, in which ``{folder}``, ``{model}``, ``{run}`` and ``{analysis}`` stand for these folders."""
        stdout, stderr = self.scratch / "stdout", self.scratch / "stderr"
        answer = self._process.run(
            [self.filled(word, folder) for word in words],
            folder,
            {key: self.filled(value, folder) for key, value in (environment or {}).items()},
            stdout,
            stderr,
            seconds,
        )
        return Outcome(
            stdout=stdout.read_text("utf-8", errors="replace"),
            stderr=stderr.read_text("utf-8", errors="replace"),
            **answer,
        )

    def filled(self, text: str, folder: Path, *, pattern: bool = False) -> str:
        """A text with its places filled in; escaped for a regular expression if it is a pattern."""

        def place(match: re.Match[str]) -> str:
            path = str(
                {"folder": folder, "model": self.model, "data": self.data}.get(match.group(1))
                or self.finished(match.group(1))
            )
            return re.escape(path) if pattern else path

        return _PLACES.sub(place, text)

    def finished(self, name: str) -> Path:
        """The folder of a finished run, made when first asked for."""

        def make(folder: Path) -> None:
            outcome = self.run((*_RUNS[name], f"hydra.run.dir={folder}"), self.shared, seconds=300.0)
            assert outcome.status == 0, outcome.stdout + outcome.stderr

        return made_once(self.shared / name, make)

    def check(self, case: Case, folder: Path) -> Outcome:
        """Run a case in an empty folder; assert that it ends as expected."""
        for name, source in case.copies.items():
            shutil.copytree(self.finished(source), folder / name)
        if case.arrange is not None:
            case.arrange(folder)
        before = _files(folder)
        outcome = self.run(case.words, folder, case.environment, case.seconds)
        printed = f"\n--- stdout\n{outcome.stdout[-3000:]}\n--- stderr\n{outcome.stderr[-6000:]}"
        assert not outcome.timed_out, f"took more than {case.seconds} s{printed}"
        assert outcome.status == case.status, f"exit status {outcome.status}{printed}"
        assert "Traceback" not in outcome.stdout + outcome.stderr, printed
        assert outcome.peak_bytes < MOST_BYTES, f"used {outcome.peak_bytes / 1e9:.1f} GB{printed}"
        sentence = self.filled(case.sentence, folder, pattern=True)
        if case.status == 0:
            assert re.search(sentence, outcome.stdout + outcome.stderr), printed
        else:
            lines = outcome.stderr.rstrip("\n").split("\n")
            assert re.search(sentence, lines[-1]), printed
            assert case.status != 1 or lines[-1].startswith("error: "), printed
            assert sum(line.startswith("error: ") for line in lines) <= 1, printed
            # A file that a refused run may not touch must not change either.
            after = _files(folder)
            changed = [
                name
                for name, stamp in before.items()
                if after.get(name) != stamp and not (name in after and _may_stay(name, case.leaves))
            ]
            assert not changed, f"changed or lost {changed}{printed}"
            left = [name for name in after if name not in before and not _may_stay(name, case.leaves)]
            assert not left, f"left {left}{printed}"
        if case.check is not None:
            case.check(folder, outcome)
        return outcome


def write_sentences(folder: Path, count: int = 24) -> None:
    """Write ``train.tsv`` and ``dev.tsv`` (half as long) of task ``sst2``, with both labels in turn."""
    folder.mkdir(parents=True)
    for name, rows in (("train", count), ("dev", count // 2)):
        lines = [f"film number {row} is {('bad', 'good')[row % 2]}\t{row % 2}" for row in range(rows)]
        (folder / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *lines]) + "\n", "utf-8")


def copied(source: Path, target: Path) -> Path:
    """A copy of a folder that a case may change."""
    return Path(shutil.copytree(source, target))


def _files(folder: Path) -> dict[str, tuple[int, int]]:
    """Modification time and size of every file, by relative path; folders do not count."""
    stamps = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            stat = path.lstat()
            stamps[path.relative_to(folder).as_posix()] = (stat.st_mtime_ns, stat.st_size)
    return stamps


def _may_stay(name: str, patterns: tuple[str, ...]) -> bool:
    return any(Path(name).match(pattern) for pattern in (*_HYDRA, *patterns))
