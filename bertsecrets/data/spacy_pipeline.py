"""Annotate words, tags and dependencies with a spaCy pipeline."""

import hashlib
from collections.abc import Sequence
from functools import cached_property
from importlib.metadata import entry_points, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertsecrets.data.example import Annotation, Word
from bertsecrets.errors import UserError, choices

if TYPE_CHECKING:
    from spacy.tokens import Doc, Token

NEGATIONS = frozenset(
    ["cannot", "n't", "neither", "never", "no", "nobody", "none", "nor", "not", "nothing", "nowhere", "n’t", "nt"]
)
"""English negation words, for parsers without the relation ``neg``."""

_UNUSED = ("ner", "lemmatizer", "textcat")

_UNIVERSAL_NAMES = {
    "ROOT": "root",
    "auxpass": "aux:pass",
    "csubjpass": "csubj:pass",
    "dative": "iobj",
    "dobj": "obj",
    "intj": "discourse",
    "neg": "advmod",
    "npadvmod": "obl:unmarked",
    "nsubjpass": "nsubj:pass",
    "poss": "nmod:poss",
    "preconj": "cc:preconj",
    "predet": "det:predet",
    "prt": "compound:prt",
    "quantmod": "advmod",
    "relcl": "acl:relcl",
}
"""ClearNLP relations, used by spaCy's English pipelines, and their Universal Dependencies names."""


class SpacyPipeline:
    """A spaCy pipeline: an installed package such as ``en_core_web_md``, or the folder of a saved one.

    It is loaded when the first text is annotated; cached annotations do not load it.

    Args:
        name: Package or folder.
        processes: Processes that annotate in parallel.

    Raises:
        UserError: If spaCy is not installed, or the package or folder does not exist.
    """

    def __init__(self, name: str, processes: int = 1) -> None:
        if find_spec("spacy") is None:
            raise UserError(
                f"Annotating with '{name}' needs spaCy; run pip install 'bertsecrets[annotate]' and then python -m "
                f"spacy download {name}."
            )
        self.name = name
        self.processes = processes
        self.folder = _pipeline_folder(name)
        self._loaded: Any = None

    @cached_property
    def identity(self) -> str:
        """A hash of spaCy's version, the pipeline's files and this module."""
        digest = hashlib.sha256(version("spacy").encode())
        digest.update(Path(__file__).read_bytes())
        for path in sorted(path for path in self.folder.rglob("*") if path.is_file() and path.suffix != ".pyc"):
            digest.update(str(path.relative_to(self.folder)).encode())
            with path.open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
        return f"spacy {digest.hexdigest()}"

    def annotate(self, texts: Sequence[str]) -> list[Annotation]:
        if self._loaded is None:
            import spacy

            source = self.name if self.name in _installed() else self.folder
            try:
                self._loaded = spacy.load(source, exclude=list(_UNUSED))
            # The errors of a pipeline's components have no common base class.
            except Exception as error:
                reason = " ".join(str(error).split()).rstrip(".")
                raise UserError(
                    f"spaCy pipeline '{self.name}' could not be loaded ({reason}); check spaCy's version."
                ) from error
        docs = list(self._loaded.pipe(texts, n_process=self.processes))
        if not any(doc.has_annotation(layer) for doc in docs for layer in ("POS", "TAG", "DEP")) and any(
            map(len, docs)
        ):
            raise UserError(
                f"spaCy pipeline '{self.name}' has neither a tagger nor a parser (its components: "
                f"{', '.join(self._loaded.pipe_names) or 'none'}); use one with a tagger and a parser, such as "
                "en_core_web_md."
            )
        return [_annotation(doc) for doc in docs]


def universal(relation: str) -> str:
    """The Universal Dependencies name of a ClearNLP relation; a relation without a counterpart keeps its name.

    Heads are not changed: in ClearNLP prepositions (``prep``, ``pobj``, ``agent``) and copulas (``attr``, ``acomp``)
    govern what they mark in Universal Dependencies.

    >>> [universal(name) for name in ("nsubjpass", "dobj", "amod", "pobj")]
    ['nsubj:pass', 'obj', 'amod', 'pobj']
    """
    return _UNIVERSAL_NAMES.get(relation, relation)


def _pipeline_folder(name: str) -> Path:
    import spacy.util

    folder = Path(name).expanduser()
    if (folder / "meta.json").is_file():
        return folder
    if name in _installed():
        return Path(spacy.util.get_package_path(name))
    if folder.is_dir():
        raise UserError(f"Folder '{name}' has no spaCy pipeline (meta.json); give a folder written by nlp.to_disk.")
    suggestion = f"; {choices(name, installed)}" if (installed := _installed()) else ""
    raise UserError(
        f"spaCy pipeline '{name}' is neither installed nor a folder: install it with python -m spacy download {name}, "
        f"or give a folder written by nlp.to_disk{suggestion}."
    )


def _installed() -> set[str]:
    """Names of the installed packages that declare themselves as pipelines.

    A pipeline's package is imported, and its name may come from a run's folder: it must not be any package.
    """
    return {entry.name for entry in entry_points(group="spacy_models")}


def _annotation(doc: "Doc") -> Annotation:
    """The words of a text, without spaCy's white-space tokens."""
    words = [token for token in doc if not token.is_space]
    position_of = {token.i: position for position, token in enumerate(words)}
    return Annotation(
        tuple(
            Word(
                token.text,
                token.idx,
                token.idx + len(token.text),
                pos=token.pos_,
                head=_head(token, position_of),
                relation=universal(token.dep_),
                negation=token.dep_ == "neg" or token.lower_ in NEGATIONS,
                tag=token.tag_,
            )
            for token in words
        )
    )


def _head(token: "Token", position_of: dict[int, int]) -> int:
    """The position of the nearest governing word; -1 for a root."""
    head = token.head
    while head.i not in position_of and head.head.i != head.i:
        head = head.head
    return -1 if head.i == token.i else position_of.get(head.i, -1)
