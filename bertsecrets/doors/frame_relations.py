"""The report's section on relation-specific heads: Figure 3 of Kovaleva et al. 2019, and what position explains of it."""

from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc
from matplotlib.figure import Figure
from numpy.typing import NDArray

from bertsecrets.results.figures.gallery import MapPanel, gallery
from bertsecrets.results.figures.heatmap import heatmap
from bertsecrets.results.figures.replicates import ScatterPanel, head_scatter
from bertsecrets.results.relations import RelationExample, RelationRecord
from bertsecrets.results.report.content import FigureBlock, Section, Table
from bertsecrets.results.run import CHECKPOINT, TRAINING
from bertsecrets.results.table import HeadTable

MEASURE = "frame_relations"
ALPHA = 0.05
_LISTED = 10
_OUTLINED = 5

Grid = NDArray[np.float64]

RELATION, POSITION, NEITHER = "relation", "position", "neither"


@dataclass(frozen=True)
class RelationGrids:
    """All columns of the measure, ``[layers, heads]`` each; ``error`` are standard errors, ``count`` sentences."""

    value: dict[str, Grid]
    error: dict[str, Grid]
    count: NDArray[np.int64]

    @property
    def heads(self) -> list[tuple[int, int]]:
        """All heads, by falling weight."""
        weight_LH = self.value["weight"]
        order = np.argsort(-np.nan_to_num(weight_LH, nan=-1.0), axis=None, kind="stable")
        return [divmod(int(place), weight_LH.shape[1]) for place in order]

    def verdict(self, head: tuple[int, int]) -> str:
        """What a head's weight is due to.

        ``relation``: it attends to the links more than to other places at the same distance (Holm-corrected).
        ``position``: it does not, but attends to the links more than uniform attention would. ``neither``: not even
        that.
        """
        if self.value["p_holm"][head] < ALPHA:
            return RELATION
        return POSITION if self.value["weight"][head] > self.value["uniform"][head] else NEITHER


def relation_sections(
    table: HeadTable, record: RelationRecord | None, figures: dict[str, Figure], lead: list[str]
) -> list[Section]:
    """The section, if relations were measured; adds to ``figures`` and ``lead``."""
    rows = table.select(measure=MEASURE)
    if not rows.table.num_rows or record is None:
        return []
    grids = _latest(rows)
    verdicts = {head: grids.verdict(head) for head in grids.heads}
    sentences = _findings(grids, verdicts, record)
    lead.append(sentences[0])
    tables = [_heads_table(grids, verdicts), _offsets_table(record)]
    if record.remaining:
        tables.append(_filters_table(record))
    return [
        Section(
            "Relation-specific heads",
            paragraphs=[*sentences, _explained(record)],
            tables=tables,
            figures=_figures(grids, verdicts, record, figures),
        )
    ]


def _latest(rows: HeadTable) -> RelationGrids:
    stage = CHECKPOINT if CHECKPOINT in pc.unique(rows.table["stage"]).to_pylist() else TRAINING
    step = rows.steps(MEASURE, "weight", stage)[-1]
    value, error = {}, {}
    for column in pc.unique(rows.table["column"]).to_pylist():
        value[column], error[column], _ = rows.grid(MEASURE, column, stage, step)
    return RelationGrids(value, error, rows.grid(MEASURE, "weight", stage, step)[2])


def _findings(grids: RelationGrids, verdicts: dict[tuple[int, int], str], record: RelationRecord) -> list[str]:
    best = grids.heads[0]
    count = int(grids.count.max())
    words = {
        RELATION: f"more than at other places of the same distance ({grids.value['position'][best]:.3f})",
        POSITION: f"no more than at other places of the same distance ({grids.value['position'][best]:.3f})",
        NEITHER: "less than uniform attention would",
    }
    first = (
        f"Over {count:,} sentences of {record.source}, {_name(best)} attends most along annotated frame relations: "
        f"{_with_error(grids, 'weight', best)}, {words[verdicts[best]]}."
    )
    of = {verdict: sum(each == verdict for each in verdicts.values()) for verdict in (RELATION, POSITION, NEITHER)}
    second = (
        f"Of {len(verdicts)} heads, {of[RELATION]} attend to the links more than their position explains "
        f"(permutation test, Holm-corrected p < {ALPHA:g}); {of[POSITION]} attend to them more than uniform attention "
        f"but no more than to other places of the same distance; {of[NEITHER]} do neither."
    )
    offset, share = _best_offset(record)
    side = "to the right" if offset > 0 else "to the left"
    third = (
        f"A head that looked at nothing but the token {abs(offset)} places {side} would score {share:.3f}: "
        f"that many of the {record.links:,} links hold a pair of this distance."
    )
    return [first, second, third]


def _explained(record: RelationRecord) -> str:
    pairs = {"all": "all pairs of their tokens", "zip": "their tokens paired off one by one"}[record.settings["pairs"]]
    direction = {
        "element_to_target": "from the frame element to the word that evokes the frame",
        "target_to_element": "from the word that evokes the frame to the frame element",
        "both": "between the frame element and the word that evokes the frame, either way",
    }[record.settings["direction"]]
    return (
        f"A sentence's number is the largest attention weight {direction}, over {pairs} (Kovaleva et al. 2019, section "
        "4.2). “Position” is the same with the pairs moved together to every other place of the sentence, so that all "
        "distances stay. The test draws a place for every link "
        f"{record.settings['permutations']:,} times. It tells a relation from a distance; it does not tell it from a "
        "head that attends to such words from everywhere."
    )


def _heads_table(grids: RelationGrids, verdicts: dict[tuple[int, int], str]) -> Table:
    rows = [
        [
            _name(head),
            _with_error(grids, "weight", head),
            f"{grids.value['position'][head]:.3f}",
            _with_error(grids, "excess", head),
            _p(grids.value["p_holm"][head]),
            verdicts[head],
        ]
        for head in grids.heads[:_LISTED]
    ]
    header = ["head", "weight", "position alone", "excess", "p (Holm)", "verdict"]
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


def _figures(
    grids: RelationGrids,
    verdicts: dict[tuple[int, int], str],
    record: RelationRecord,
    figures: dict[str, Figure],
) -> list[FigureBlock]:
    unit = "largest weight along a link, mean over sentences"
    marked = [head for head in grids.heads if verdicts[head] == RELATION][:_OUTLINED]
    figures["frame_relations"] = heatmap(
        grids.value["weight"],
        title="Attention along frame relations",
        unit=unit,
        count=grids.count,
        stderr_LH=grids.error["weight"],
        marked=marked,
    )
    figures["frame_relations_excess"] = heatmap(
        grids.value["excess"],
        title="Attention along frame relations beyond what position explains",
        unit="weight minus weight at the same distance elsewhere",
        count=grids.count,
        stderr_LH=grids.error["excess"],
        marked=marked,
    )
    certain_LH = grids.value["p_holm"] < ALPHA
    figures["frame_relations_position"] = head_scatter(
        [
            ScatterPanel(
                f"{len(verdicts)} heads",
                grids.value["position"].ravel(),
                grids.value["excess"].ravel(),
                certain_LH.ravel(),
            )
        ],
        title="Relation or position?",
        x_label="weight at the same distance elsewhere",
        y_label="excess at the link",
        note=f"one dot a head; filled: p < {ALPHA:g} after Holm's correction; n = {int(grids.count.max()):,} sentences",
    )
    blocks = [
        FigureBlock(
            figures["frame_relations"],
            "Figure 3 of the paper; outlined: the five highest heads whose weight position does not explain.",
            "Heatmap of attention along frame relations by layer and head.",
        ),
        FigureBlock(
            figures["frame_relations_excess"],
            "The same, less what the head gives other places at the same distance; outlined: the same heads.",
            "Heatmap of excess attention along frame relations by layer and head.",
        ),
        FigureBlock(
            figures["frame_relations_position"],
            "Excess against what position alone gives, a dot for each head.",
            "Scatter of heads: excess attention against position.",
        ),
    ]
    if record.example is not None:
        figures["frame_relations_maps"] = _maps(record.example)
        caption = f"{record.example.text.strip()} — linked: {_linked(record.example)} (attending → attended to)."
        blocks.append(FigureBlock(figures["frame_relations_maps"], caption, "Attention maps of the highest heads."))
    return blocks


def _maps(example: RelationExample) -> Figure:
    panels = [
        MapPanel("highest heads", _name((each.layer, each.head)), each.attention, example.tokens)
        for each in example.maps
    ]
    return gallery(panels, title="One sentence in the heads with the most attention along relations")


def _linked(example: RelationExample) -> str:
    return ", ".join(f"{example.tokens[query]} → {example.tokens[key]}" for query, key in example.pairs)


def _best_offset(record: RelationRecord) -> tuple[int, float]:
    offset = max(record.offsets, key=lambda each: (record.offsets[each], -abs(each)))
    return offset, _share(record, offset)


def _share(record: RelationRecord, offset: int) -> float:
    return record.offsets[offset] / record.links


def _name(head: tuple[int, int]) -> str:
    return f"layer {head[0]} · head {head[1]}"


def _with_error(grids: RelationGrids, column: str, head: tuple[int, int]) -> str:
    return f"{grids.value[column][head]:.3f} ± {grids.error[column][head]:.3f}"


def _p(value: float) -> str:
    return f"{value:.2g}" if value >= 0.001 else "< 0.001"
