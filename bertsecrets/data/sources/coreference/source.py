"""Documents with annotated coreference, each an example."""

from collections.abc import Callable, Iterator
from pathlib import Path

from pytorch_lightning.utilities import rank_zero_warn

from bertsecrets.data.example import Example
from bertsecrets.data.sources.base import SplitFiles, split_by_name
from bertsecrets.data.sources.coreference.conll import Document, read_conll
from bertsecrets.data.sources.coreference.gap import read_gap
from bertsecrets.data.task import Task
from bertsecrets.errors import UserError

_DEMO = Path(__file__).resolve().parents[2] / "demo"
_ENDINGS = ("conll", ".tsv")
_READERS: dict[str, Callable[[Path], Iterator[Document]]] = {".tsv": read_gap}


class CoreferenceSource(SplitFiles):
    """All CoNLL-2012 (``*conll``) or GAP (``*.tsv``) files in a folder and its subfolders.

    Splits are inferred from the names of files and folders (train, dev, test). Without a development file, the test
    files, else unnamed files, else the training files take its place.

    Args:
        task: Names the folder.
        root: The parent of the task's folder; None for the demo documents in the package.
        skip_bad_rows: Skip invalid documents, with a warning that counts them.

    Raises:
        UserError: If the folder does not exist or has no such files, or the task has no such layout.
    """

    def __init__(self, task: Task, root: Path | None, skip_bad_rows: bool = False) -> None:
        if task.coreference is None:
            raise UserError(
                f"Task '{task.name}' has no coreference layout; add a coreference section to "
                f"conf/task/{task.name}.yaml."
            )
        root = _DEMO if root is None else root
        if not root.is_dir():
            raise UserError(f"data.root '{root}' is not a directory; give a folder of CoNLL-2012 or GAP files.")
        folder = root / task.coreference.folder
        super().__init__(task, folder, {}, _files_of(folder))
        self.skip_bad_rows = skip_bad_rows

    def examples(self, split: str) -> list[Example]:
        examples: list[Example] = []
        bad: list[str] = []
        for path in self.paths(split):
            before = len(examples) + len(bad)
            for text, annotation, error in _READERS.get(path.suffix, read_conll)(path):
                if annotation is not None:
                    examples.append(Example(len(examples), (text,), None, (annotation,)))
                elif error is not None and not self.skip_bad_rows:
                    raise error
                else:
                    bad.append(str(error))
            if len(examples) + len(bad) == before:
                raise UserError(f"File '{path}' has no documents; expected CoNLL-2012, or GAP with a header.")
        if bad:
            counted = "1 document that is" if len(bad) == 1 else f"{len(bad):,} documents that are"
            self.notes.append(f"Split {split}: skipped {counted} not valid; the first: {bad[0]}")
            rank_zero_warn(f"{self.folder}: skipped {counted} not valid; the first: {bad[0]}")
        if not examples:
            raise UserError(f"No document of '{self.folder}' is valid; the first: {bad[0]}")
        return examples


def _files_of(folder: Path) -> dict[str, list[Path]]:
    """The files of a folder by split; raises UserError if there are none, or both kinds."""
    paths = sorted(path for path in folder.rglob("*") if path.name.endswith(_ENDINGS) and path.is_file())
    if not paths:
        raise UserError(f"data.root '{folder}' has no coreference files (*_conll, *.conll, or GAP's *.tsv).")
    # OntoNotes has each document twice: with gold and with predicted annotation.
    paths = [path for path in paths if path.name.endswith("gold_conll")] or paths
    if len({path.suffix == ".tsv" for path in paths}) > 1:
        raise UserError(f"data.root '{folder}' has both CoNLL-2012 and GAP files; give a folder with one kind.")
    return split_by_name({path: str(path.relative_to(folder)) for path in paths})
