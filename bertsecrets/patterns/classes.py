"""The five patterns that an attention map can show (Kovaleva et al. 2019, section 4.1 and Figure 1)."""

from enum import Enum


class Pattern(str, Enum):
    """What one map ``[L, L]`` looks like; every map shows exactly one.

    The order is that of the keys 1 to 5 of the annotation page and of the classifier's outputs.
    """

    VERTICAL = "vertical"
    """Attention mainly to a few tokens, such as [CLS] and [SEP]: vertical lines."""
    DIAGONAL = "diagonal"
    """Attention to the previous, the same or the following tokens."""
    VERTICAL_DIAGONAL = "vertical_diagonal"
    """A mix of the two."""
    BLOCK = "block"
    """Attention within each segment, in inputs of two."""
    HETEROGENEOUS = "heterogeneous"
    """Highly variable, with no distinct structure: anything else."""


PATTERNS: tuple[str, ...] = tuple(pattern.value for pattern in Pattern)
"""The five names; a pattern's number is its index here."""
