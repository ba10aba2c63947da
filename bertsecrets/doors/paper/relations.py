"""Section 4.2, figure 3: relation-specific heads of the model before fine-tuning."""

import numpy as np

from bertsecrets.comparison import published
from bertsecrets.comparison.conditions import Condition
from bertsecrets.comparison.runs import FinishedRun
from bertsecrets.doors.frame_relations import (
    MEASURE,
    RELATION,
    RelationGrids,
    linked,
    relation_grids,
    relation_maps,
)
from bertsecrets.doors.paper.claims import Claim, claims_table, held
from bertsecrets.doors.paper.material import Material
from bertsecrets.measures.frame_relations import LEVEL
from bertsecrets.results.figures.panels import HeadPanel, head_panels
from bertsecrets.results.figures.style import sample_size
from bertsecrets.results.relations import RelationExample, RelationRecord
from bertsecrets.results.report.content import FigureBlock, Section, Table
from bertsecrets.results.run import INITIAL

_SHOWN = 3


def section(material: Material) -> Section | None:
    """The heads' weights on annotated relations, one panel for each set of sentences; None where none was measured."""
    panels: list[HeadPanel] = []
    rows, counts, tested, relation = [], [], [], []
    example: RelationExample | None = None
    for condition in material.trained:
        run = _measured(condition)
        if run is None:
            continue
        grids = relation_grids(run.heads, INITIAL)
        weight_LH, count = grids.value["weight"], int(grids.count.max())
        record = RelationRecord.read(run.folder)
        if example is None and record is not None:
            example = record.initial
        name = material.name(condition) if record is None else record.source
        name = f"{condition.factors['model']} · {name}" if "model" in material.varying else name
        # On FrameNet's own sentences every task's run begins with the same model and has the same numbers.
        if any(panel.title == name and np.allclose(panel.value_LH, weight_LH, equal_nan=True) for panel in panels):
            continue
        counts.append(count)
        panels.append(HeadPanel(name, weight_LH))
        highest = grids.heads[:_SHOWN]
        if grids.tested:
            tested.append(name)
            relation += [name] if grids.verdict(highest[0]) == RELATION else []
        rows.append(
            [
                name,
                str(count),
                "; ".join(_shown(grids, head) for head in highest),
                f"{grids.value['over_position'][highest[0]]:+.3f}",
                _number_of_relations(grids),
                f"{np.nanmean(weight_LH):.3f}",
                _published(condition),
            ]
        )
    if not panels:
        return None
    claim = Claim(
        "A few heads of the pre-trained model attend along frame relations.",
        f"The highest head's weight goes beyond what position and what the attended word alone give it "
        f"{held(relation, tested)} (both permutation tests, Holm-corrected p < {LEVEL:g}); the table says what each of the "
        "highest heads goes by."
        if tested
        else "These runs have no tests of the model before fine-tuning; run them again with this version.",
        len(relation) == len(tested) if tested else None,
    )
    material.claims.append(claim)
    figure = head_panels(
        panels,
        title="Attention along frame relations, before fine-tuning",
        unit="largest weight among linked tokens",
        note=sample_size(counts),
    )
    material.figures["paper_figure3"] = figure
    blocks = [FigureBlock(figure, "Figure 3.", "Heatmaps of relation weights by layer and head.")]
    if example is not None:
        maps = relation_maps(example)
        material.figures["paper_figure3_maps"] = maps
        caption = f"Figure 3, one sentence: {example.text.strip()} Linked: {linked(example)} (attending → attended to)."
        blocks.append(FigureBlock(maps, caption, "Attention maps of the highest heads."))
    header = ["source", "sentences", "highest heads", "highest beyond position"]
    header += ["heads that go by the relation", "mean", "paper"]
    return Section(
        "Section 4.2, figure 3: do heads attend along frame relations?",
        ["The paper takes 473 sentences of FrameNet 1.7; give framenet.root to take those of a release at hand."],
        [
            claims_table([claim]),
            Table(header, rows, "Heads by their weight on annotated relations, and what they go by"),
        ],
        blocks,
    )


def _measured(condition: Condition) -> FinishedRun | None:
    """Any run of a condition that has the numbers: before fine-tuning all seeds have the same."""
    return next((run for run in condition.runs if run.heads.steps(MEASURE, "weight", INITIAL)), None)


def _shown(grids: RelationGrids, head: tuple[int, int]) -> str:
    verdict = f" ({grids.verdict(head)})" if grids.tested else ""
    return f"layer {head[0]} · head {head[1]}: {grids.value['weight'][head]:.3f}{verdict}"


def _number_of_relations(grids: RelationGrids) -> str:
    """How many heads neither position nor the attended word explains."""
    if not grids.tested:
        return "–"
    return f"{sum(grids.verdict(head) == RELATION for head in grids.heads)} of {len(grids.heads)}"


def _published(condition: Condition) -> str:
    if condition.factors["model"] != published.MODEL:
        return "–"
    return "; ".join(
        f"layer {layer} · head {head}: {value:.3f}" for (layer, head), value in published.RELATIONS.items()
    )
