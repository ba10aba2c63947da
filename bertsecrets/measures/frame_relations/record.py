"""What the measure of frame relations records beside its grid, and the section that shows it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from typing_extensions import Self

from bertsecrets.present.figures.grids import heatmap
from bertsecrets.present.figures.maps import MapPanel, gallery
from bertsecrets.present.figures.scatters import ScatterPanel, head_scatter
from bertsecrets.present.ranking import picked
from bertsecrets.present.report.content import FigureBlock, Section, Table
from bertsecrets.results.formatting import head_label, number, p_value, with_error
from bertsecrets.results.views import LEVEL, ExtrasRecord, MeasureView


@dataclass(frozen=True)
class HeadMap:
    """One head's attention ``[T, T]`` in the example sentence."""

    layer: int
    head: int
    attention: list[list[float]]


@dataclass(frozen=True)
class RelationExample:
    """The example sentence: its tokens, its linked token pairs (attending, attended to) and some heads' maps."""

    text: str
    tokens: list[str]
    pairs: list[tuple[int, int]]
    maps: list[HeadMap]


@dataclass(frozen=True)
class RelationRecord(ExtrasRecord):
    """Source of the relations, and what a fixed offset could reach.

    Args:
        source: Name of the source of the sentences.
        settings: Settings of the links and of the choice of sentences.
        remaining: Number of sentences left after each filter, starting with all; empty without filters.
        links: Number of links.
        alone: Number of links without another sentence of equal length to exchange places with.
        offsets: Signed distance in tokens (attended to minus attending) -> links with a pair of that distance.
        example: The example sentence, with maps of the heads with the most attention.
    """

    source: str
    settings: dict[str, Any]
    remaining: dict[str, int]
    links: int
    alone: int
    offsets: dict[int, int]
    example: RelationExample

    @classmethod
    def read(cls, extras: Mapping[str, Any]) -> Self | None:
        # A run of an earlier version does not know how many links stay alone.
        return super().read({"alone": 0, **extras} if extras else {})


BASELINES = {
    "position": "same distance elsewhere",
    "received": "same word from elsewhere",
    "other_links": "places of other sentences' links",
}
"""Explanations of a head's weight that need no relation, with their labels."""

CORRECTED = "_corrected"
"""End of the names of the columns with corrected p-values."""

_LISTED = 10
_OUTLINED = 5
_PAIRS = 4

Grid = NDArray[np.float64]

RELATION, OPEN = "relation", "no relation shown"
"""Verdicts: the weight goes beyond all baselines, or is not shown to do so."""


@dataclass(frozen=True)
class RelationGrids:
    """All columns of the measure, ``[layers, heads]`` each; ``error`` are standard errors, ``count`` sentences."""

    value: dict[str, Grid]
    error: dict[str, Grid]
    count: NDArray[np.int64]

    @property
    def tested(self) -> bool:
        """Whether the model has p-values for all baselines; those of earlier versions do not."""
        return all(f"p_{name}{CORRECTED}" in self.value for name in BASELINES)

    @property
    def heads(self) -> list[tuple[int, int]]:
        """All heads, in descending order of weight."""
        weight_LH = self.value["weight"]
        order = np.argsort(-np.nan_to_num(weight_LH, nan=-1.0), axis=None, kind="stable")
        return [divmod(int(index), weight_LH.shape[1]) for index in order]

    def left(self, head: tuple[int, int]) -> list[str]:
        """The baselines that a head's weight is not shown to exceed; an undefined p-value shows nothing."""
        return [name for name in BASELINES if not self.value[f"p_{name}{CORRECTED}"][head] < LEVEL]

    def verdict(self, head: tuple[int, int]) -> str:
        """``relation`` if the weight exceeds all baselines at the level corrected over heads, else ``no relation shown``."""
        return OPEN if self.left(head) else RELATION


def relation_section(view: MeasureView) -> Section | None:
    """The section on relation-specific heads; None if no relation was measured.

    Raises:
        MissingColumnError: If the run is of a version without one of the tests.
    """
    record = RelationRecord.read(view.extras)
    if record is None or not view.has("weight"):
        return None
    for name in BASELINES:
        view.grid(f"p_{name}{CORRECTED}")
    grids = relation_grids(view)
    if not grids.count.any():
        return Section("Relation-specific heads", paragraphs=["No sentence has a link, so no head has a number."])
    verdicts = {head: grids.verdict(head) for head in grids.heads}
    first, *others = _findings(grids, verdicts, record)
    return Section(
        "Relation-specific heads",
        [first],
        [*others, _explained(record)],
        [
            _heads_table(grids, verdicts),
            _offsets_table(record),
            *([_filters_table(record)] if record.remaining else []),
        ],
        _figures(grids, verdicts, record),
        head=grids.heads[0],
    )


def relation_grids(view: MeasureView) -> RelationGrids:
    """All columns that the measure has at the view's step."""
    grids = {column.name: view.grid(column.name) for column in view.columns if view.has(column.name)}
    return RelationGrids(
        {name: value_LH for name, (value_LH, _, _) in grids.items()},
        {name: stderr_LH for name, (_, stderr_LH, _) in grids.items()},
        grids["weight"][2],
    )


def _findings(grids: RelationGrids, verdicts: dict[tuple[int, int], str], record: RelationRecord) -> list[str]:
    best = grids.heads[0]
    value = {column: value_LH[best] for column, value_LH in grids.value.items()}
    left = [BASELINES[name] for name in grids.left(best)]
    explained = (
        f"not shown to go beyond {_listed(left)}"
        if left
        else "which goes beyond all three explanations without a relation"
    )
    elsewhere = ", ".join(f"{label} {number(value[name])}" for name, label in BASELINES.items())
    count = int(grids.count.max())
    first = (
        f"Over {count:,} sentence{'s' * (count != 1)} of {record.source}, {head_label(*best)} attends most along annotated "
        f"frame relations: {picked(best, grids.value['weight'], grids.error['weight'], grids.count, bounds=(0.0, 1.0))}, {explained} ({elsewhere}, uniform attention "
        f"{number(value['uniform'])})."
    )
    relation = sum(verdict == RELATION for verdict in verdicts.values())
    open_to = {label: sum(name in grids.left(head) for head in verdicts) for name, label in BASELINES.items()}
    heads = f"{len(verdicts)} heads" if len(verdicts) > 1 else "1 head"
    second = (
        f"Of {heads}, {relation} attend{'s' * (relation == 1)} along the relation beyond all three explanations (permutation "
        f"tests, each corrected over heads, p < {LEVEL:g}). Not shown to go beyond: "
        f"{'; '.join(f'{label} {number_open}' for label, number_open in open_to.items())}. That an explanation is not ruled "
        "out does not mean that it is right."
    )
    offset = max(record.offsets, key=lambda offset: (record.offsets[offset], -abs(offset)))
    tokens = f"token{'' if abs(offset) == 1 else 's'} to the {'right' if offset > 0 else 'left'}"
    third = (
        f"A head that only attends {abs(offset)} {tokens} would score {_share(record, offset):.3f}, the share of the "
        f"{record.links:,} link{'s' * (record.links != 1)} with a pair at this distance."
    )
    fourth = (
        f"{record.alone:,} of {record.links:,} links {'is' if record.alone == 1 else 'are'} left out of the comparison with "
        "other sentences' links: no other sentence of that length has one to take the place of."
    )
    return [first, second, third, *([fourth] if record.alone else [])]


def _listed(names: Sequence[str]) -> str:
    """Names in a sentence: ``a, b or c``."""
    return " or ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


def _explained(record: RelationRecord) -> str:
    pairs = {"all": "all pairs of their tokens", "zip": "their tokens paired one by one"}[record.settings["pairs"]]
    direction = {
        "element_to_target": "from the frame element to the word that evokes the frame",
        "target_to_element": "from the word that evokes the frame to the frame element",
        "both": "between the frame element and the word that evokes the frame, either way",
    }[record.settings["direction"]]
    drawings = int(record.settings["permutations"])
    decide = int(LEVEL * (drawings + 1))
    return (
        f"A sentence's number is the largest attention weight {direction}, over {pairs} (Kovaleva et al. 2019, section "
        "4.2). “Same distance elsewhere” is the same with the pairs moved together to every other place of the sentence; "
        "“same word from elsewhere” moves the attending tokens alone; “places of other sentences' links” are those of the "
        "links of equally long sentences, since elements stand early and targets late. Each test draws a place for every "
        f"link {drawings:,} times; p-values are corrected over heads by the step-down max-T method (Westfall and Young 1993), "
        f"so that {decide} drawings decide at the level {LEVEL:g} for any number of heads."
    )


def _heads_table(grids: RelationGrids, verdicts: dict[tuple[int, int], str]) -> Table:
    rows = [
        [
            head_label(*head),
            _with_error(grids, "weight", head),
            *(
                text
                for name in BASELINES
                for text in (number(grids.value[name][head]), p_value(grids.value[f"p_{name}{CORRECTED}"][head]))
            ),
            verdicts[head],
        ]
        for head in grids.heads[:_LISTED]
    ]
    header = ["head", "weight", *(text for label in BASELINES.values() for text in (label, "p")), "verdict"]
    return Table(
        header, rows, "The heads that attend most along the links (± one standard error; p corrected over heads)"
    )


def _offsets_table(record: RelationRecord) -> Table:
    first = sorted(record.offsets, key=lambda offset: -record.offsets[offset])[:5]
    rows = [[f"{offset:+d}", f"{record.offsets[offset]:,}", f"{_share(record, offset):.3f}"] for offset in first]
    return Table(
        ["offset in tokens", "links with such a pair", "share"],
        rows,
        "What a head that attends to one fixed offset would score",
    )


def _filters_table(record: RelationRecord) -> Table:
    rows = [[name, f"{count:,}"] for name, count in record.remaining.items()]
    return Table(["filter", "sentences left"], rows, f"How the sentences of {record.source} were chosen")


def _figures(grids: RelationGrids, verdicts: dict[tuple[int, int], str], record: RelationRecord) -> list[FigureBlock]:
    unit = "largest weight along a link, mean over sentences"
    marked = [head for head in grids.heads if verdicts[head] == RELATION][:_OUTLINED]
    outlined = (
        f"outlined: the {len(marked)} highest heads with the verdict “relation”" if marked else "no head is outlined"
    )
    weight = heatmap(
        grids.value["weight"],
        title="Attention along frame relations",
        unit=unit,
        count=grids.count,
        stderr_LH=grids.error["weight"],
        marked=marked,
    )
    over_position = heatmap(
        grids.value["over_position"],
        title="Attention along frame relations beyond the same distance elsewhere",
        unit="difference of weights",
        count=grids.count,
        stderr_LH=grids.error["over_position"],
        marked=marked,
    )
    certain = np.array([verdicts[head] == RELATION for head in np.ndindex(grids.count.shape)])
    baselines = head_scatter(
        [
            ScatterPanel(title, grids.value[name].ravel(), grids.value[f"over_{name}"].ravel(), certain)
            for name, title in BASELINES.items()
        ],
        title="Relation, distance, word or place?",
        x_label="weight elsewhere",
        y_label="link minus elsewhere",
        note=f"one dot a head; filled: relation, all three corrected p < {LEVEL:g}; "
        f"n = {int(grids.count.max()):,} sentences",
    )
    example = record.example
    caption = f"{example.text.strip()} — linked: {linked(example)} (attending → attended to)."
    return [
        FigureBlock(
            "frame_relations",
            weight,
            f"Figure 3 of the paper; {outlined}.",
            "Heatmap of attention along frame relations by layer and head.",
        ),
        FigureBlock(
            "frame_relations_over_position",
            over_position,
            f"The same, minus the head's attention to other places at the same distance; {outlined}.",
            "Heatmap of excess attention along frame relations by layer and head.",
        ),
        FigureBlock(
            "frame_relations_baselines",
            baselines,
            "Attention to the link beyond three explanations that need no relation, a dot for each head.",
            "Scatter of heads: excess attention against three baselines.",
        ),
        FigureBlock("frame_relations_maps", relation_maps(example), caption, "Attention maps of the highest heads."),
    ]


def relation_maps(example: RelationExample) -> Figure:
    """A sentence's maps in the heads with the most attention along relations."""
    panels = [
        MapPanel("highest heads", head_label(head_map.layer, head_map.head), head_map.attention, example.tokens)
        for head_map in example.maps
    ]
    return gallery(panels, title="One sentence in the heads with the most attention along relations")


def linked(example: RelationExample) -> str:
    """Its linked tokens, the first few by name."""
    pairs = [f"{example.tokens[query]} → {example.tokens[key]}" for query, key in example.pairs]
    more = len(pairs) - _PAIRS
    return ", ".join([*pairs[:_PAIRS], *([f"{more} more"] if more > 0 else [])])


def _share(record: RelationRecord, offset: int) -> float:
    return record.offsets[offset] / record.links


def _with_error(grids: RelationGrids, column: str, head: tuple[int, int]) -> str:
    return with_error(grids.value[column][head], grids.error[column][head])
