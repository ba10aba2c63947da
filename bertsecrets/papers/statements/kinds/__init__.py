"""The kinds of tests, by the names that statements give."""

from bertsecrets.papers.statements.kinds.columns import (
    Agreement,
    Contrast,
    Correlation,
    ExtremeLayers,
    HighestColumn,
    Linked,
    Mean,
    Share,
    SomeHead,
    TestedHeads,
)
from bertsecrets.papers.statements.kinds.experiments import (
    Gates,
    Groups,
    Pruning,
    Record,
    Relations,
    Score,
    Speed,
    VoitaSyntactic,
)
from bertsecrets.papers.statements.test import Test

KINDS: dict[str, type[Test]] = {
    "agreement": Agreement,
    "contrast": Contrast,
    "correlation": Correlation,
    "extreme_layers": ExtremeLayers,
    "gates": Gates,
    "groups": Groups,
    "highest_column": HighestColumn,
    "linked": Linked,
    "mean": Mean,
    "pruning": Pruning,
    "record": Record,
    "relations": Relations,
    "score": Score,
    "share": Share,
    "some_head": SomeHead,
    "speed": Speed,
    "tested_heads": TestedHeads,
    "voita_syntactic": VoitaSyntactic,
}
"""Every kind of test of the package by its name; statements of installed packages may name one of theirs (``package.module.Class``)."""
