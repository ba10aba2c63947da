"""The section on relation-specific heads: figure 3 of Kovaleva et al. 2019, and how much of it position explains."""

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from bertsecrets.measures.frame_relations.record import RelationExample, RelationRecord
from bertsecrets.results.figures.gallery import MapPanel, gallery
from bertsecrets.results.figures.heatmap import heatmap
from bertsecrets.results.figures.panels import ScatterPanel, head_scatter
from bertsecrets.results.formatting import head_label, number, p_value, with_error
from bertsecrets.results.report.content import FigureBlock, Section, Table
from bertsecrets.results.views import MeasureView

LEVEL = 0.05
"""Level of the tests, after Holm's correction."""

_LISTED = 10
_OUTLINED = 5
_PAIRS = 4

Grid = NDArray[np.float64]

RELATION, WORD, POSITION, NEITHER = "relation", "word", "position", "neither"


@dataclass(frozen=True)
class RelationGrids:
    """All columns of the measure, ``[layers, heads]`` each; ``error`` are standard errors, ``count`` sentences."""

    value: dict[str, Grid]
    error: dict[str, Grid]
    count: NDArray[np.int64]

    @property
    def tested(self) -> bool:
        """Whether the model has p-values."""
        return "p_position_holm" in self.value

    @property
    def heads(self) -> list[tuple[int, int]]:
        """All heads, in descending order of weight."""
        weight_LH = self.value["weight"]
        order = np.argsort(-np.nan_to_num(weight_LH, nan=-1.0), axis=None, kind="stable")
        return [divmod(int(place), weight_LH.shape[1]) for place in order]

    def verdict(self, head: tuple[int, int]) -> str:
        """Explanation of a head's weight by the two tests, after Holm's correction.

        ``relation``: the weight goes beyond distance and beyond the attended word. ``word``: only beyond
        distance. ``position``: only beyond the word. ``neither``: beyond neither of them.
        """
        beyond_position = self.value["p_position_holm"][head] < LEVEL
        beyond_word = self.value["p_received_holm"][head] < LEVEL
        if beyond_position:
            return RELATION if beyond_word else WORD
        return POSITION if beyond_word else NEITHER


def relation_section(view: MeasureView) -> Section | None:
    """The section on relation-specific heads; None if no relation was measured."""
    record = RelationRecord.read(view.extras)
    if record is None or not view.has("weight"):
        return None
    grids = relation_grids(view)
    verdicts = {head: grids.verdict(head) for head in grids.heads}
    findings = _findings(grids, verdicts, record)
    return Section(
        "Relation-specific heads",
        findings[:1],
        [*findings[1:], _explained(record)],
        [
            _heads_table(grids, verdicts),
            _offsets_table(record),
            *([_filters_table(record)] if record.remaining else []),
        ],
        _figures(grids, verdicts, record),
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
    explained = {
        RELATION: "which neither distance nor the attended word alone explains",
        WORD: "not shown to go beyond what the attended words get from other tokens",
        POSITION: "not shown to go beyond what other tokens at the same distance get",
        NEITHER: "not shown to go beyond what distance or the attended word alone explains",
    }[verdicts[best]]
    first = (
        f"Over {int(grids.count.max()):,} sentences of {record.source}, {head_label(*best)} attends most along annotated frame "
        f"relations: {_with_error(grids, 'weight', best)}, {explained} (same distance elsewhere {number(value['position'])}, "
        f"same word from elsewhere {number(value['received'])}, uniform attention {number(value['uniform'])})."
    )
    of = {name: sum(verdict == name for verdict in verdicts.values()) for name in (RELATION, WORD, POSITION, NEITHER)}
    second = (
        f"Of {len(verdicts)} heads, by both permutation tests (Holm-corrected p < {LEVEL:g}): relation {of[RELATION]} "
        f"(neither distance nor the attended word alone explains the weight), word {of[WORD]} (such words are attended to "
        f"from everywhere), position {of[POSITION]} (such distances are), neither {of[NEITHER]}."
    )
    offset, share = _best_offset(record)
    tokens = f"token{'' if abs(offset) == 1 else 's'} to the {'right' if offset > 0 else 'left'}"
    third = (
        f"A head that only attends {abs(offset)} {tokens} would score {share:.3f}, the share of the "
        f"{record.links:,} links with a pair at this distance."
    )
    return [first, second, third]


def _explained(record: RelationRecord) -> str:
    pairs = {"all": "all pairs of their tokens", "zip": "their tokens paired one by one"}[record.settings["pairs"]]
    direction = {
        "element_to_target": "from the frame element to the word that evokes the frame",
        "target_to_element": "from the word that evokes the frame to the frame element",
        "both": "between the frame element and the word that evokes the frame, either way",
    }[record.settings["direction"]]
    drawings = int(record.settings["permutations"])
    return (
        f"A sentence's number is the largest attention weight {direction}, over {pairs} (Kovaleva et al. 2019, section "
        "4.2). “Same distance elsewhere” is the same with the pairs moved together to every other place of the sentence; "
        "“same word from elsewhere” moves the attending tokens alone. Each test draws a place for every link "
        f"{drawings:,} times, the link's own among them; the smallest p it can give is {1 / (drawings + 1):.2g}, before "
        "Holm's correction for the number of heads."
    )


def _heads_table(grids: RelationGrids, verdicts: dict[tuple[int, int], str]) -> Table:
    rows = [
        [
            head_label(*head),
            _with_error(grids, "weight", head),
            f"{grids.value['position'][head]:.3f}",
            p_value(grids.value["p_position_holm"][head]),
            f"{grids.value['received'][head]:.3f}",
            p_value(grids.value["p_received_holm"][head]),
            verdicts[head],
        ]
        for head in grids.heads[:_LISTED]
    ]
    header = [
        "head",
        "weight",
        "same distance elsewhere",
        "p (Holm)",
        "same word from elsewhere",
        "p (Holm)",
        "verdict",
    ]
    return Table(header, rows, "The heads that attend most along the links (± one standard error)")


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
            for name, title in (("position", "same distance elsewhere"), ("received", "same word from elsewhere"))
        ],
        title="Relation, distance or word?",
        x_label="weight elsewhere",
        y_label="link minus elsewhere",
        note=f"one dot a head; filled: relation, both p < {LEVEL:g} after Holm's correction; "
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
            "Attention to the link beyond two explanations that need no relation, a dot for each head.",
            "Scatter of heads: excess attention against two baselines.",
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


def _best_offset(record: RelationRecord) -> tuple[int, float]:
    offset = max(record.offsets, key=lambda offset: (record.offsets[offset], -abs(offset)))
    return offset, _share(record, offset)


def _share(record: RelationRecord, offset: int) -> float:
    return record.offsets[offset] / record.links


def _with_error(grids: RelationGrids, column: str, head: tuple[int, int]) -> str:
    return with_error(grids.value[column][head], grids.error[column][head])
