"""Treebanks that are broken, and treebanks that are merely unusual."""

import re
from collections.abc import Sequence
from html import unescape
from pathlib import Path

from faults.cases import LATE, Case, Outcome, analyze, parametrized
from faults.runner import Warm

TREEBANK = {
    "checkpoint": "initial",
    "model": "folder",
    "model__path": "{model}",
    "task": "treebank",
    "analysis": "dependency",
    "measure": "[dependency]",
    "data__root": "{folder}/data",
    "measure__dependency__min_count": 1,
    "measure__dependency__splits": 5,
}

PLAIN = ("1\tdas\t2\tdet", "2\tHaus\t3\tnsubj", "3\tsteht\t0\troot", "4\tda\t3\tadvmod")
CYCLE = ("1\tdas\t2\tdet", "2\tHaus\t1\tnsubj", "3\tsteht\t0\troot")
ROOTS = ("1\tdas\t2\tdet", "2\tHaus\t0\troot", "3\tsteht\t0\troot", "4\tda\t3\tadvmod")
JOINED = ("1\ter\t2\tnsubj", "2\tgeht\t0\troot", "3-4\tzum", "3\tzu\t5\tcase", "4\tdem\t5\tdet", "5\tHaus\t2\tobl")
EMPTY = ("1\ter\t2\tnsubj", "2\tgeht\t0\troot", "2.1\tgeht", "3\tda\t2\tadvmod")
VANISHING = ("1\tdas\t2\tdet", "2\tHaus\t3\tnsubj", "3\tsteht\t0\troot", "4\t\u200b\t3\tdep")
LONG = ("1\tso\t0\troot", *(f"{place}\tda\t1\tadvmod" for place in range(2, 900)))


def conllu(*sentences: Sequence[str]) -> str:
    """Sentences of words ``id form [head relation]`` in ten columns."""
    blocks = []
    for words in sentences:
        lines = []
        for word in words:
            place, form, head, relation = (*word.split("\t"), "_", "_")[:4]
            lines.append("\t".join([place, form, form, "X", "_", "_", head, relation, "_", "_"]))
        blocks.append("\n".join(lines) + "\n\n")
    return "".join(blocks)


def case(name: str, sentence: str, text: str, **settings: object) -> Case:
    """A refusal of a folder with one file, of no treebank that is known by name."""

    def arrange(root: Path) -> None:
        (root / "data").mkdir()
        (root / "data" / "de_klein.conllu").write_text(text, "utf-8")

    return Case(name, analyze(**{**TREEBANK, **settings}), sentence, arrange=arrange, leaves=LATE)


def runs(name: str, said: Sequence[str], text: str, **settings: object) -> Case:
    """A run that ends in a table and says what was unusual, on the terminal or on its page."""

    def check(folder: Path, outcome: Outcome) -> None:
        [page] = (folder / "outputs").rglob("report.html")
        visible = unescape(re.sub(r"<[^>]+>", " ", page.read_text("utf-8")))
        everything = " ".join(f"{outcome.stdout} {outcome.stderr} {visible}".split())
        for sentence in said:
            assert re.search(sentence, everything), sentence

    refusal = case(name, r"Report: ", text, **settings)
    return Case(
        name, refusal.words, refusal.sentence, status=0, arrange=refusal.arrange, check=check, leaves=("outputs",)
    )


CASES = [
    case("treebank-cycle", r"de_klein.conllu:\d+: .*its heads form a cycle", conllu(PLAIN, CYCLE)),
    case("treebank-all-skipped", r"has no sentences", conllu(CYCLE), data__skip_bad_rows=True),
    case(
        "treebank-relation-of-nobody",
        r"Relation 'nsub' of measure.dependency.relations does not occur",
        conllu(PLAIN, PLAIN),
        measure__dependency__relations="[nsub]",
    ),
    runs(
        "treebank-skipped",
        [r"unusual in the data de_klein.conllu: skipped 1 sentence"],
        conllu(*[PLAIN] * 8, CYCLE),
        data__skip_bad_rows=True,
    ),
    runs(
        "treebank-unusual",
        [r"several roots", r"empty nodes?", r"too long", r"no token of their own"],
        conllu(*[PLAIN, ROOTS, JOINED, EMPTY, VANISHING] * 4, LONG),
    ),
]


@parametrized(CASES)
def test_a_treebank(case: Case, warm: Warm, tmp_path: Path) -> None:
    warm.check(case, tmp_path)
