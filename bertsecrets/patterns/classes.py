"""The five patterns that an attention map can show (Kovaleva et al. 2019, section 4.1 and Figure 1)."""

from enum import Enum


class Pattern(str, Enum):
    """What one map ``[L, L]`` looks like; every map shows exactly one. docs/patterns.md has the rules for doubtful maps.

    The order is that of the keys 1 to 5 of the annotation page and of a classifier's outputs.
    """

    VERTICAL = "vertical"
    """Nearly all rows attend to the same one or few columns, as a rule [CLS], [SEP] or punctuation."""
    DIAGONAL = "diagonal"
    """Each row attends to the tokens at a small fixed offset from it: the previous, the next or itself."""
    VERTICAL_DIAGONAL = "vertical_diagonal"
    """Both of these, each with a substantial part of the attention."""
    BLOCK = "block"
    """Rows of a segment attend evenly within that segment, in an input of two segments."""
    HETEROGENEOUS = "heterogeneous"
    """Anything else, so that the five are exhaustive."""


PATTERNS: tuple[str, ...] = tuple(pattern.value for pattern in Pattern)
"""The five names in their order; a class's number is its place here."""
