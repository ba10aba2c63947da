"""What a report says, before any of it is HTML."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike


@dataclass(frozen=True)
class Table:
    """A table of text cells; columns of numbers are set flush right.

    Raises:
        ValueError: If a row has more or fewer cells than the header.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.header):
                raise ValueError(f"Table '{self.caption}': a row of {len(row)} cells under {len(self.header)} headings")


@dataclass(frozen=True)
class FigureBlock:
    """A figure with the caption that readers see and the text that stands in for it where it cannot be seen."""

    figure: Figure
    caption: str
    alt: str


@dataclass(frozen=True)
class Section:
    """A headed part of the page: paragraphs, then tables, then figures."""

    title: str
    paragraphs: Sequence[str] = ()
    tables: Sequence[Table] = ()
    figures: Sequence[FigureBlock] = ()


@dataclass(frozen=True)
class ViewerExample:
    """One text whose attention the reader can look through.

    Args:
        name: How the example is called in the menu.
        tokens: The T tokens.
        stages: Pairs of a stage's name and its weights ``[layers, heads, T, T]`` in 0..1, in order of training.

    Raises:
        ValueError: If there is no stage, or a stage's weights have another shape than the tokens and the first stage
            ask for, or leave 0..1.
    """

    name: str
    tokens: Sequence[str]
    stages: Sequence[tuple[str, ArrayLike]]

    def __post_init__(self) -> None:
        if not self.stages:
            raise ValueError(f"Viewer example '{self.name}' has no stage")
        first = np.shape(self.stages[0][1])
        expected = (*first[:2], len(self.tokens), len(self.tokens))
        for stage, attention_LHQK in self.stages:
            array = np.asarray(attention_LHQK)
            if array.ndim != 4 or array.shape != expected:
                raise ValueError(
                    f"Viewer example '{self.name}', stage '{stage}': weights of shape {list(array.shape)}, "
                    f"expected [layers, heads, {len(self.tokens)}, {len(self.tokens)}] as in the first stage"
                )
            # Half-precision softmax may round a hair above 1.
            if array.size and not (array.min() >= 0.0 and array.max() <= 1.001):
                raise ValueError(f"Viewer example '{self.name}', stage '{stage}': weights outside 0..1")


@dataclass(frozen=True)
class HeadViewer:
    """Attention maps that the reader picks by example, layer, head and stage.

    Args:
        examples: The examples, most telling first: where the page grows too large the last are left out.
        start: The ``(layer, head)`` shown at first.
    """

    examples: Sequence[ViewerExample]
    start: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Report:
    """A whole page.

    Args:
        title: What was done, in a line.
        subtitle: The run or runs it is about.
        facts: Names and values worth knowing at a glance, e.g. ``("model", "bert-base-uncased")``.
        lead: The findings, one plain sentence each.
        sections: The evidence.
        viewer: Maps to look through, if any.
    """

    title: str
    subtitle: str = ""
    facts: Sequence[tuple[str, str]] = ()
    lead: Sequence[str] = ()
    sections: Sequence[Section] = ()
    viewer: HeadViewer | None = None
