"""Section 4.2, figure 3: relation-specific heads of the model before fine-tuning."""

from dataclasses import dataclass

import numpy as np

from bertsecrets.measures.frame_relations.record import (
    LEVEL,
    RELATION,
    RelationExample,
    RelationGrids,
    RelationRecord,
    linked,
    relation_grids,
    relation_maps,
)
from bertsecrets.papers.chapter import MODEL, Chapter, Claim, PaperRuns, beside_the_paper, claims_tables, held
from bertsecrets.papers.kovaleva2019 import published
from bertsecrets.reporting.conditions import Condition
from bertsecrets.results.figures.panels import HeadPanel, head_panels
from bertsecrets.results.figures.style import sample_size
from bertsecrets.results.formatting import MISSING, head_label, number
from bertsecrets.results.report.content import FigureBlock, Section
from bertsecrets.results.run import INITIAL
from bertsecrets.results.views import MeasureView

_MEASURE = "frame_relations"
_LISTED = 3


@dataclass(frozen=True)
class _Sentences:
    """The numbers of a set of sentences in a model before fine-tuning.

    Args:
        name: Name of the set.
        grids: The measure's columns.
        example: The sentence that is drawn, if the run kept one.
        published: The paper's highest heads; a dash for another model.
    """

    name: str
    grids: RelationGrids
    example: RelationExample | None
    published: str


def relations(runs: PaperRuns) -> Chapter | None:
    """The heads' weights on annotated relations, one panel for each set of sentences; None if none was measured."""
    sets: list[_Sentences] = []
    for condition in runs.pretrained:
        view = _before_fine_tuning(condition)
        if view is None:
            continue
        sentences = _sentences(runs, condition, view)
        # Every task's run on FrameNet's own sentences starts from the same model and has the same numbers.
        if not any(_equal(sentences, known) for known in sets):
            sets.append(sentences)
    if not sets:
        return None
    counts = [int(sentences.grids.count.max()) for sentences in sets]
    claim = _claim(sets)
    figure = head_panels(
        [HeadPanel(sentences.name, sentences.grids.value["weight"]) for sentences in sets],
        title="Attention along frame relations, before fine-tuning",
        unit="largest weight among linked tokens",
        note=sample_size(counts),
    )
    blocks = [FigureBlock("paper_figure3", figure, "Figure 3.", "Heatmaps of relation weights by layer and head.")]
    example = next((sentences.example for sentences in sets if sentences.example is not None), None)
    if example is not None:
        caption = f"Figure 3, one sentence: {example.text.strip()} Linked: {linked(example)} (attending → attended to)."
        maps = relation_maps(example)
        blocks.append(FigureBlock("paper_figure3_maps", maps, caption, "Attention maps of the highest heads."))
    rows = [_row(sentences, count) for sentences, count in zip(sets, counts, strict=True)]
    header = ["source", "sentences", "highest heads", "highest beyond position"]
    header += ["heads that follow the relation", "mean", "paper (figure)"]
    section = Section(
        "Section 4.2, figure 3: do heads attend along frame relations?",
        paragraphs=[
            "The paper takes 473 sentences of FrameNet 1.7; set framenet.root to use those of your own release."
        ],
        tables=[
            *claims_tables([claim]),
            beside_the_paper(header, rows, "Heads by their weight on annotated relations, and what explains it"),
        ],
        figures=blocks,
    )
    return Chapter(section, [claim])


def _before_fine_tuning(condition: Condition) -> MeasureView | None:
    """The numbers of any run of a condition that has them: before fine-tuning all seeds are the same."""
    replicates = condition.replicates(_MEASURE)
    views = [] if replicates is None else [view.at(INITIAL) for view in replicates.views]
    return next((view for view in views if view is not None and view.has("weight")), None)


def _sentences(runs: PaperRuns, condition: Condition, view: MeasureView) -> _Sentences:
    record = RelationRecord.read(view.extras)
    name = runs.name(condition) if record is None else record.source
    known = "; ".join(f"{head_label(*head)}: {number(value)}" for head, value in published.RELATIONS.items())
    return _Sentences(
        f"{condition.factors['model']} · {name}" if "model" in runs.varying else name,
        relation_grids(view),
        None if record is None else record.example,
        known if condition.factors["model"] == MODEL else MISSING,
    )


def _equal(first: _Sentences, second: _Sentences) -> bool:
    return first.name == second.name and np.allclose(
        first.grids.value["weight"], second.grids.value["weight"], equal_nan=True
    )


def _claim(sets: list[_Sentences]) -> Claim:
    statement = "A few heads of the pre-trained model attend along frame relations."
    tested = [sentences for sentences in sets if sentences.grids.tested]
    if not tested:
        here = "These runs have no tests of the model before fine-tuning; measure them again with this version."
        return Claim(statement, here, None)
    names = [sentences.name for sentences in tested]
    by_relation = [
        sentences.name
        for sentences in tested
        if any(sentences.grids.verdict(head) == RELATION for head in sentences.grids.heads)
    ]
    return Claim(
        statement,
        "A head whose weight goes beyond same distance, same word and the places of other sentences' links exists "
        f"{held(by_relation, names)} (three permutation tests, each corrected over heads, p < {LEVEL:g}); the table has the "
        "verdict on each of the highest heads.",
        # That no head was shown to go beyond them does not show that none does.
        True if len(by_relation) == len(names) else None,
    )


def _row(sentences: _Sentences, count: int) -> list[str]:
    grids = sentences.grids
    highest = grids.heads[:_LISTED]
    return [
        sentences.name,
        f"{count:,}",
        "; ".join(_weight(grids, head) for head in highest),
        number(grids.value["over_position"][highest[0]], signed=True),
        f"{sum(grids.verdict(head) == RELATION for head in grids.heads)} of {len(grids.heads)}"
        if grids.tested
        else MISSING,
        number(float(np.nanmean(grids.value["weight"]))),
        sentences.published,
    ]


def _weight(grids: RelationGrids, head: tuple[int, int]) -> str:
    verdict = f" ({grids.verdict(head)})" if grids.tested else ""
    return f"{head_label(*head)}: {number(grids.value['weight'][head])}{verdict}"
