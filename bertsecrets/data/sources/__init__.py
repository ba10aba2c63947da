"""Sources of rows: the hub, a folder in the GLUE layout, a treebank, or the project's own generator."""

from bertsecrets.data.sources.base import TRAIN, Source
from bertsecrets.data.sources.factory import (
    FILES,
    SourceConfig,
    check_controls,
    has_gold_words,
    make_source,
    text_columns,
)

__all__ = [
    "FILES",
    "TRAIN",
    "Source",
    "SourceConfig",
    "check_controls",
    "has_gold_words",
    "make_source",
    "text_columns",
]
