"""Processor time to read and select FrameNet's exemplars: bertsecrets' reader compared with nltk's.

    python benchmarks/framenet_readers.py <FrameNet as zip> [--every 40]

Both read the annotated sentences of the same lexical units and apply the filters of ``conf/framenet/default.yaml``. nltk
reads folders only, and refuses those outside its data path and files that another account owns: the zip is unpacked.
"""

import argparse
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import nltk.data
from nltk.corpus.reader.framenet import FramenetCorpusReader

from bertsecrets.data.framenet.corpus import Exemplar, FrameNetCorpus, FrameNetFiles, FrameRoles, Span
from bertsecrets.data.framenet.selection import Filters, select


class NltkCorpus:
    """Exemplars and frames as nltk reads them; lexical units that stop its reader are counted and left out."""

    def __init__(self, folder: Path, every: int) -> None:
        nltk.data.path.append(str(folder))
        self.reader = FramenetCorpusReader(str(folder), [])
        index = FrameNetCorpus(FrameNetFiles(folder)).units
        self.units = [int(unit["ID"]) for unit in index[::every]]
        self.failed = 0

    def exemplars(self) -> Iterator[Exemplar]:
        for number in self.units:
            try:
                unit = self.reader.lu(number)
                sentences = [sentence for part in unit.subCorpus for sentence in part.sentence]
            except AssertionError:
                self.failed += 1
                continue
            for sentence in sentences:
                yield Exemplar(
                    sentence.text,
                    unit.name,
                    unit.frame.name,
                    tuple(Span(start, end, "Target") for start, end in sentence.get("Target", ())),
                    tuple(Span(*span) for span in sentence.FE[0]) if "FE" in sentence else (),
                )

    def roles(self, name: str) -> FrameRoles:
        frame = self.reader.frame(name)
        return FrameRoles(
            frozenset(element.name for element in frame.FE.values() if element.coreType == "Core"),
            frozenset(element.name for group in frame.FEcoreSets for element in group),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("release", type=Path, help="zip of FrameNet 1.5, 1.6 or 1.7")
    parser.add_argument("--every", type=int, default=1, help="read every n-th lexical unit only")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        with zipfile.ZipFile(options.release) as archive:
            archive.extractall(temporary)
        folder = next(Path(temporary).glob("**/luIndex.xml")).parent
        for path in folder.rglob("*"):
            path.chmod(0o700 if path.is_dir() else 0o600)
        ours = FrameNetCorpus(FrameNetFiles(folder))
        ours.units = ours.units[:: options.every]
        theirs = NltkCorpus(folder, options.every)
        for name, corpus in (("bertsecrets", ours), ("nltk", theirs)):
            started = time.process_time()
            selection = select(corpus.exemplars(), corpus.roles, Filters())
            seconds = time.process_time() - started
            remaining = list(selection.remaining.values())
            print(f"{name}: {seconds:.1f} s for {remaining[0]:,} exemplars, {remaining[-1]} selected")
        print(f"nltk could not read {theirs.failed} of {len(theirs.units)} lexical units")


if __name__ == "__main__":
    main()
