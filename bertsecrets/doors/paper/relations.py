"""Section 4.2, figure 3: relation-specific heads of the model before fine-tuning."""

import numpy as np
from numpy.typing import NDArray

from bertsecrets.comparison import published
from bertsecrets.comparison.conditions import Condition
from bertsecrets.comparison.runs import FinishedRun
from bertsecrets.doors.frame_relations import linked, relation_maps
from bertsecrets.doors.paper.claims import Claim, claims_table, held
from bertsecrets.doors.paper.material import Material
from bertsecrets.results.figures.panels import HeadPanel, head_panels
from bertsecrets.results.figures.style import sample_size
from bertsecrets.results.relations import RelationExample, RelationRecord
from bertsecrets.results.report.content import FigureBlock, Section, Table
from bertsecrets.results.run import INITIAL

_MEASURE = "frame_relations"
_SHOWN = 3

Array = NDArray[np.float64]


def section(material: Material) -> Section | None:
    """The heads' weights on annotated relations, one panel for each set of sentences; None where none was measured."""
    panels: list[HeadPanel] = []
    rows, counts, names, beyond = [], [], [], []
    example: RelationExample | None = None
    for condition in material.trained:
        run = _measured(condition)
        if run is None:
            continue
        weight_LH, count = _initial(run, "weight")
        excess_LH, _ = _initial(run, "over_position")
        record = RelationRecord.read(run.folder)
        if example is None and record is not None:
            example = record.initial
        name = material.name(condition) if record is None else record.source
        name = f"{condition.factors['model']} · {name}" if "model" in material.varying else name
        # On FrameNet's own sentences every task's run begins with the same model and has the same numbers.
        if any(panel.title == name and np.allclose(panel.value_LH, weight_LH, equal_nan=True) for panel in panels):
            continue
        names.append(name)
        counts.append(count)
        panels.append(HeadPanel(name, weight_LH))
        highest = [divmod(int(place), weight_LH.shape[1]) for place in np.argsort(-weight_LH, axis=None)[:_SHOWN]]
        beyond += [name] if excess_LH[highest[0]] > 0 else []
        rows.append(
            [
                name,
                str(count),
                "; ".join(f"layer {layer} · head {head}: {weight_LH[layer, head]:.3f}" for layer, head in highest),
                f"{excess_LH[highest[0]]:+.3f}",
                f"{np.nanmean(weight_LH):.3f}",
                _published(condition),
            ]
        )
    if not panels:
        return None
    claim = Claim(
        "A few heads of the pre-trained model attend along frame relations.",
        f"The highest head goes beyond what position alone gives it {held(beyond, names) if beyond else 'nowhere'}; each "
        "run's report tests every head against position and against the attended word alone.",
        len(beyond) == len(names),
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
    header = ["source", "sentences", "highest heads", "highest beyond position", "mean", "paper"]
    return Section(
        "Section 4.2, figure 3: do heads attend along frame relations?",
        ["The paper takes 473 sentences of FrameNet 1.7; give framenet.root to take those of a release at hand."],
        [claims_table([claim]), Table(header, rows, "Heads by their weight on annotated relations")],
        blocks,
    )


def _measured(condition: Condition) -> FinishedRun | None:
    """Any run of a condition that has the numbers: before fine-tuning all seeds have the same."""
    return next((run for run in condition.runs if run.heads.steps(_MEASURE, "weight", INITIAL)), None)


def _initial(run: FinishedRun, column: str) -> tuple[Array, int]:
    value_LH, _, count_LH = run.heads.grid(_MEASURE, column, INITIAL, run.heads.steps(_MEASURE, column, INITIAL)[-1])
    return value_LH, int(count_LH.max())


def _published(condition: Condition) -> str:
    if condition.factors["model"] != published.MODEL:
        return "–"
    return "; ".join(
        f"layer {layer} · head {head}: {value:.3f}" for (layer, head), value in published.RELATIONS.items()
    )
