"""Content of a report: sections of text, tables, figures and attention maps."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray
from pyarrow.csv import write_csv

from bertsecrets.results.captures import TellingExample
from bertsecrets.results.files import atomic_write, write_parquet
from bertsecrets.results.formatting import head_label, number

Grid = NDArray[Any]
"""Numbers or texts ``[layers, heads]``."""

CSV, PARQUET = "heads_together.csv", "heads_together.parquet"

_SHOWN = 10
"""Columns shown at first; readers can add others."""


Row = TypeVar("Row")


class OfHead(Protocol):
    """A row about a head."""

    @property
    def layer(self) -> int: ...

    @property
    def head(self) -> int: ...


def name_of(row: OfHead) -> str:
    """A head's name on pages."""
    return head_label(row.layer, row.head)


@dataclass(frozen=True)
class HeadColumn:
    """A column of the joint table.

    Args:
        experiment: The experiment's name.
        title: Its title.
        name: Name of the column.
        label: Heading.
        value_LH: Numbers ``[layers, heads]``, or texts.
        effects: Whether the numbers are changes of a score.
    """

    experiment: str
    title: str
    name: str
    label: str
    value_LH: Grid
    effects: bool = False

    @property
    def key(self) -> str:
        """Name of the column in files, e.g. ``drift/cosine``."""
        return f"{self.experiment}/{self.name}"

    @property
    def is_number(self) -> bool:
        """Whether it has numbers, rather than texts."""
        return bool(self.value_LH.dtype.kind == "f")

    @cached_property
    def texts(self) -> list[str]:
        """Text of each head, in order of layer and head."""
        return [number(float(value)) if self.is_number else str(value) for value in self.value_LH.ravel()]


@dataclass(frozen=True)
class HeadsTogether:
    """One row for each head, which readers sort, filter and open in the viewer.

    Args:
        columns: At least one; all of one shape. Those of an experiment follow one another.
        verdicts: Verdict on each head, as in :mod:`bertsecrets.results.verdicts`, the most needed head first; empty for
            none.
    """

    columns: Sequence[HeadColumn]
    verdicts: Mapping[tuple[int, int], str] = field(default_factory=dict)

    @property
    def heads(self) -> list[tuple[int, int]]:
        """Layer and head of each row."""
        layers, heads = self.columns[0].value_LH.shape
        return [(layer, head) for layer in range(layers) for head in range(heads)]

    @cached_property
    def main(self) -> list[HeadColumn]:
        """The texts and the first numbers of each experiment: as many as fit on a page."""
        numbers: Counter[str] = Counter()
        rank = {}
        for column in self.columns:
            numbers[column.experiment] += column.is_number
            # Texts come first, then every experiment's first number, then its second one.
            rank[column.key] = numbers[column.experiment] if column.is_number else 0
        shown = sorted(rank, key=lambda key: rank[key])[:_SHOWN]
        return [column for column in self.columns if column.key in shown]

    def write(self, folder: Path) -> None:
        """Write ``heads_together.csv`` and ``heads_together.parquet``: every column in full precision.

        Raises:
            UserError: If the disk is full.
        """
        table = self.arrow()
        with atomic_write(folder / CSV) as temporary:
            write_csv(table, temporary)
        write_parquet(folder / PARQUET, table)

    def arrow(self) -> pa.Table:
        """Every column: ``layer`` and ``head`` as int32, numbers as float64 (null where undefined), texts as
        strings.
        """
        columns = {
            name: pa.array([head[axis] for head in self.heads], pa.int32())
            for axis, name in enumerate(("layer", "head"))
        }
        for column in self.columns:
            # An undefined number is null, as its cell in the CSV is empty.
            columns[column.key] = pa.array(column.value_LH.ravel().tolist(), from_pandas=True)
        return pa.table(columns)


@dataclass(frozen=True)
class Table:
    """A table of text cells; columns of numbers are set flush right.

    Args:
        header: Headings of the columns.
        rows: Cells of each row.
        caption: Text above it.
        folded: Whether readers have to open it: for numbers that a figure of the section shows too.
        links: Addresses that the first cells of the rows link to, empty for no link; none for a table without links.

    Raises:
        ValueError: If a row has more or fewer cells than the header, or the links do not fit the rows.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    folded: bool = False
    links: Sequence[str] = ()

    def __post_init__(self) -> None:
        if len(self.links) not in (0, len(self.rows)):
            raise ValueError(f"Table '{self.caption}': {len(self.links)} links for {len(self.rows)} rows")
        for row in self.rows:
            if len(row) != len(self.header):
                raise ValueError(f"Table '{self.caption}': a row of {len(row)} cells under {len(self.header)} headings")


@dataclass(frozen=True)
class FigureBlock:
    """A figure on a page and in a file.

    Args:
        name: Name of its files and of its panel in W&B.
        drawing: The figure, or what draws it when somebody first looks: a page shows few of the figures it could.
        caption: Text under it.
        alt: Text in its place for readers who cannot see it.
    """

    name: str
    drawing: Figure | Callable[[], Figure]
    caption: str
    alt: str

    @cached_property
    def figure(self) -> Figure:
        """The figure, drawn once."""
        return self.drawing if isinstance(self.drawing, Figure) else self.drawing()


def table(
    rows: Sequence[Row], columns: Mapping[str, Callable[[Row], str]], caption: str = "", **settings: Any
) -> Table:
    """A table with a line for each row and a column for each heading."""
    return Table(list(columns), [[cell(row) for cell in columns.values()] for row in rows], caption, **settings)


def block(name: str, title: str, draw: Callable[..., Figure], caption: str = "", **settings: Any) -> FigureBlock:
    """A figure that is drawn when a page shows it; its title is its caption unless another is given."""
    return FigureBlock(name, partial(draw, title=title, **settings), caption or f"{title}.", f"Chart: {title}.")


@dataclass(frozen=True)
class ViewerExample:
    """One text with its attention maps, for the viewer.

    Args:
        name: Name of the example in the menu.
        tokens: The T tokens.
        stages: Pairs of a stage's name and its weights ``[layers, heads, T, T]`` in 0..1, in order of training.
        sentences: For each token its sentence, 0 or 1 (a special token belongs to the one before it); empty if unknown.
        special: For each token whether the tokenizer added it; empty if unknown.
    """

    name: str
    tokens: Sequence[str]
    stages: Sequence[tuple[str, ArrayLike]]
    sentences: Sequence[int] = ()
    special: Sequence[bool] = ()


@dataclass(frozen=True)
class HeadHistory:
    """One number of every head at the stages of training.

    Args:
        label: What it is, e.g. ``"Drift: cosine similarity"``.
        values: Name of a stage, as in :class:`ViewerExample`, -> its numbers ``[layers, heads]``.
    """

    label: str
    values: Mapping[str, ArrayLike]


@dataclass(frozen=True)
class HeadViewer:
    """Attention maps that the reader selects by example, layer, head and stage.

    Args:
        examples: The examples, most informative first: if the page grows too large, the last ones are left out.
        start: The ``(layer, head)`` shown at first.
        heads: A table by whose columns the reader colours heads; None for the page's own table of all heads.
        histories: Numbers that follow the reader from stage to stage.
        answers: For a head, a sentence on what the model answers with and without it.
    """

    examples: Sequence[ViewerExample]
    start: tuple[int, int] = (0, 0)
    heads: HeadsTogether | None = None
    histories: Sequence[HeadHistory] = ()
    answers: Mapping[tuple[int, int], str] = field(default_factory=dict)


@dataclass(frozen=True)
class HeadLine:
    """One head's number, as printed: ``layer 5 · head 3   cosine 0.412 ± 0.010``.

    Args:
        layer: Layer, from 0.
        head: Head, from 0.
        quantity: Name of the number, e.g. ``"cosine"``.
        value: The number.
        stderr: Its standard error; NaN where unknown.
    """

    layer: int
    head: int
    quantity: str
    value: float
    stderr: float


@dataclass(frozen=True)
class Highlights:
    """The heads that an experiment highlights, most informative first; the terminal prints them.

    Args:
        title: Heading, e.g. ``"Heads that changed most"``.
        heads: Their numbers.
    """

    title: str
    heads: Sequence[HeadLine]


_LONGEST_TITLE = 170
"""Letters of the longest finding that serves as a title."""


@dataclass(frozen=True)
class Section:
    """A headed part of the page: findings and paragraphs, then tables, then figures.

    Args:
        title: Heading; empty for what goes into a section that has one.
        findings: Sentences for the top of the page; the section opens with them, too.
        paragraphs: Further sentences.
        tables: Tables.
        figures: Figures.
        joint: A table with a row for each head.
        viewer: Maps for the page's viewer, if the section has any.
        highlights: The heads that it highlights, if any.
        head: Layer and head that its findings are about, or name first; a page without disabled heads opens on it.
        rows: On a comparison page, the numbers behind the section, for ``comparison.parquet``.
        parts: Sections that follow it under headings of their own.
        summary: What it says in a few words, for the page's contents. On the page of an analysis it is the title, and
            the section's first figure opens the page in place of the grid of heads.
        commands: Commands to type, such as one that would add to it.
        steps: What to do next, with the same effect.
        unfolded: Whether the page shows it open.
        news: What it found in a few words, without a full stop, for a title beside those of other sections.
        descriptive: Whether its findings only say which head has the highest number, which answers no question by
            itself.
    """

    title: str = ""
    findings: Sequence[str] = ()
    paragraphs: Sequence[str] = ()
    tables: Sequence[Table] = ()
    figures: Sequence[FigureBlock] = ()
    joint: HeadsTogether | None = None
    viewer: HeadViewer | None = None
    highlights: Highlights | None = None
    head: tuple[int, int] | None = None
    rows: Sequence[Mapping[str, object]] = ()
    parts: Sequence["Section"] = ()
    summary: str = ""
    commands: Sequence[str] = ()
    steps: Sequence["NextStep"] = ()
    unfolded: bool = False
    descriptive: bool = False
    news: str = ""

    @property
    def line(self) -> str:
        """What it says in a line: its summary, or the first sentence of its first finding or paragraph."""
        sentences = [self.summary, *self.findings, *self.paragraphs]
        return next((re.split(r"(?<=[.!?]) (?=[A-Z])", sentence)[0] for sentence in sentences if sentence), "")

    @property
    def brief(self) -> str:
        """Its line without what stands in brackets, for a section that is folded.

        >>> Section("Entropy", ["5 of 6 heads differ (p < 0.05); largest: layer 0 · head 1."]).brief
        '5 of 6 heads differ; largest: layer 0 · head 1.'
        """
        return re.sub(r" \([^()]*\)", "", self.line)

    @property
    def headline(self) -> str:
        """Its line as a title, without what stands in brackets or after a semicolon; empty if that is still long.

        >>> Section("Entropy", ["5 of 6 heads differ (p < 0.05); largest: layer 0 · head 1."]).headline
        '5 of 6 heads differ.'
        """
        sentence = self.brief.split("; ")[0].rstrip(".")
        return f"{sentence}." if 0 < len(sentence) <= _LONGEST_TITLE else ""

    def flat(self) -> Iterator["Section"]:
        """The section and all that follow it."""
        yield self
        for part in self.parts:
            yield from part.flat()


def joined(sections: Sequence[Section]) -> Section | None:
    """Several sections as one that the others follow; None of none."""
    return replace(sections[0], parts=(*sections[0].parts, *sections[1:])) if sections else None


@dataclass(frozen=True)
class Colouring:
    """One way to colour the grid of heads on the first screen: by verdict, or by a number of each head.

    Args:
        label: What the cells show, with its unit.
        value_LH: A number for each head, NaN where unknown.
        codes: Verdict of each head, as in :mod:`bertsecrets.results.verdicts`, ``[layers][heads]``; empty for a scale
            of colours.
        layers: Number and verdict of each whole layer; empty if none was disabled.
        digits, signed: How numbers are written.
        effects: Whether numbers are changes of a score, whose losses are drawn red.
    """

    label: str
    value_LH: ArrayLike
    codes: Sequence[Sequence[str]] = ()
    layers: Sequence[tuple[float, str]] = ()
    digits: int = 1
    signed: bool = False
    effects: bool = False

    @property
    def texts(self) -> list[list[str]]:
        """The cells as a page shows them."""
        return [
            [number(float(value), self.digits, signed=self.signed) for value in value_H]
            for value_H in np.asarray(self.value_LH, np.float64)
        ]


@dataclass(frozen=True)
class NextStep:
    """A command that would settle something, and about how long it takes; empty where that is unknown."""

    settles: str
    command: str
    takes: str = ""


@dataclass(frozen=True)
class Overview:
    """The first screen of a page: a picture of all heads that can be asked, and what to do next.

    Args:
        summary: The scores in a sentence.
        notes: Further sentences, such as on what verdicts mean.
        colourings: Ways to colour the grid, the first one shown first.
        about: For each layer and head, sentences with its verdict and numbers.
        start: The head that is selected first.
        examples: For a head, the example whose answer changes most without it.
    """

    summary: str
    notes: Sequence[str]
    colourings: Sequence[Colouring]
    about: Mapping[tuple[int, int], Sequence[str]]
    start: tuple[int, int]
    examples: Mapping[tuple[int, int], TellingExample]


_MOST_STEPS = 3


@dataclass(frozen=True)
class Report:
    """A whole page.

    Args:
        title: Heading of the page.
        subtitle: The runs that it describes.
        facts: Names and values worth knowing at a glance, e.g. ``("model", "bert-base-uncased")``.
        sections: The sections in order; their findings appear at the top of the page, too.
        notes: Sentences before the findings, such as on runs that were left out.
        links: Texts and relative addresses of other pages.
        wide: Whether the page uses the whole width of the window.
        maps: Relative address of another page with a viewer of the same heads, for a page without one; empty for none.
        overview: A first screen with a grid of heads; None for one with an answer and the first figure.
        steps: What to do next; none for the commands of the sections.

    All sections are folded below the first screen, with a line of what each says; a page without a figure shows its
    first section.
    """

    title: str
    subtitle: str = ""
    facts: Sequence[tuple[str, str]] = ()
    sections: Sequence[Section] = ()
    notes: Sequence[str] = ()
    links: Sequence[tuple[str, str]] = ()
    wide: bool = False
    maps: str = ""
    overview: Overview | None = None
    steps: Sequence[NextStep] = ()

    @property
    def answer(self) -> str:
        """What the page says beside its title: the first finding of a section, else the first note on its sections."""
        findings = [finding for section in self.sections for finding in section.findings if finding != self.title]
        first = next(iter([*findings, *(self.notes if self.headed else [])]), "")
        return first.removeprefix(f"{self.title} ")

    @property
    def picture(self) -> FigureBlock | None:
        """The figure of a first screen without a grid of heads: the first one."""
        return None if self.overview is not None else next(iter(self.figures), None)

    @property
    def next_steps(self) -> list[NextStep]:
        """What to do next, three commands at most, each once: the first of each section, of empty ones before others,
        before any second.
        """
        if self.steps:
            return list(self.steps)[:_MOST_STEPS]
        ranked = [
            ((rank, bool(section.tables or section.figures)), section.title, command)
            for section in self.sections
            for rank, command in enumerate(section.commands)
        ]
        titles: dict[str, list[str]] = {}
        for _, title, command in sorted(ranked, key=itemgetter(0)):
            titles.setdefault(command, []).append(title)
        # Questions end with their mark.
        settled = {command: re.sub(r"([?.]);", r"\1", "; ".join(names)) for command, names in titles.items()}
        return [NextStep(words, command) for command, words in settled.items()][:_MOST_STEPS]

    @property
    def lead(self) -> list[str]:
        """The notes, and the findings of all sections."""
        return [*self.notes, *(finding for section in self.sections for finding in section.findings)]

    @property
    def headed(self) -> list[Section]:
        """The sections that stand under a heading: all but those that have a viewer alone."""
        return [
            section
            for section in self.sections
            if section.viewer is None
            or section.findings
            or section.paragraphs
            or section.tables
            or section.figures
            or section.joint
        ]

    @property
    def figures(self) -> list[FigureBlock]:
        """The figures of all sections."""
        return [block for section in self.sections for block in section.figures]

    @property
    def viewer(self) -> HeadViewer | None:
        """The viewer of the first section that has one."""
        return next((section.viewer for section in self.sections if section.viewer is not None), None)

    @property
    def heads(self) -> HeadsTogether | None:
        """The table by whose columns the viewer colours heads."""
        if self.viewer is not None and self.viewer.heads is not None:
            return self.viewer.heads
        return next((section.joint for section in self.sections if section.joint is not None), None)
