"""Figures 1 and 5: attention maps of single heads on a sentence that a run kept."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bertsecrets.measures.dependency.record import RelationScore
from bertsecrets.measures.offsets import column_name
from bertsecrets.papers.chapter import Chapter, PaperRuns
from bertsecrets.papers.clark2019.models import Model, models, not_measured
from bertsecrets.results.captures import CapturedExample, read_examples, read_maps, read_steps
from bertsecrets.results.figures.gallery import MapPanel, gallery
from bertsecrets.results.formatting import head_label, number
from bertsecrets.results.report.content import FigureBlock, Section
from bertsecrets.results.sections import highest

_READABLE = 30
"""Most tokens of a sentence whose tokens can all be labelled."""

_RELATIONS = 4
_PATTERNS = {
    "attends broadly": ("entropy", "relative", "of uniform entropy"),
    "next token": ("offsets", column_name(1), "of its attention"),
    "[SEP]": ("surface", "sep_total", "of its attention"),
    "periods and commas": ("surface", "punctuation", "of its attention"),
}
"""Panels of figure 1 -> measure, column and what its number is a share of."""

Array = NDArray[np.float64]


def typical_heads(runs: PaperRuns) -> Chapter:
    """Figure 1: a sentence in the head that shows each pattern of section 3 most."""
    title = "Section 3, figure 1: heads of each pattern"
    for model in models(runs, "surface"):
        views = {
            other.view.name: other.view
            for measure in ("surface", "entropy", "offsets")
            for other in models(runs, measure)
            if (other.name, other.view.run.folder) == (model.name, model.view.run.folder)
        }
        kept = _kept(model)
        if kept is None or len(views) < 3:
            continue
        example, map_LHQK = kept
        panels, rows = [], []
        for label, (measure, column, unit) in _PATTERNS.items():
            value_LH = views[measure].value(column)
            place = highest(value_LH)
            share = number(100 * float(value_LH[place]), 0)
            rows.append(f"{label}, {head_label(*place)}: {share} % {unit}")
            panels.append(MapPanel("", f"{label}\n{head_label(*place)}", map_LHQK[place], example.tokens))
        figure = gallery(panels, title="The head that shows each pattern most")
        caption = (
            f"Figure 1 ({model.name}), on one text: “{' / '.join(example.texts)}” The heads with the highest means over all "
            f"texts: {'; '.join(rows)}."
        )
        return Chapter(
            Section(title, figures=[FigureBlock("paper_figure1", figure, caption, "Attention maps of four heads.")])
        )
    return not_measured(
        title,
        "It takes measure=[offsets,surface,entropy] and the maps of a few examples (callbacks.capture) in one run.",
    )


def heads_of_relations(records: Sequence[tuple[Model, Sequence[RelationScore]]]) -> list[FigureBlock]:
    """Figure 5: a sentence in the best heads of its relations, with the syntactic heads framed; none without kept maps."""
    for model, relations in records:
        kept = _kept(model, {score.relation for score in relations})
        if kept is None:
            continue
        example, map_LHQK = kept
        panels: list[MapPanel] = []
        for score in sorted(relations, key=lambda score: -score.gain):
            pairs = [(word, head) for word, head, relation in example.relations if relation == score.relation]
            if not pairs or score.gain_low <= 0 or len(panels) == _RELATIONS:
                continue
            marked = [(head, word) if score.from_head else (word, head) for word, head in pairs]
            place = (score.layer, score.head)
            panels.append(
                MapPanel("", f"{score.relation}\n{head_label(*place)}", map_LHQK[place], example.tokens, marked=marked)
            )
        if not panels:
            continue
        figure = gallery(panels, title="One sentence in the best heads of some of its relations")
        caption = (
            f"Figure 5 ({model.name}), on one text: “{' / '.join(example.texts)}” A frame marks the first tokens of a word and "
            "of its syntactic head. Heads are scored by the attention between words alone, without that to [CLS] and [SEP]."
        )
        return [FigureBlock("paper_figure5", figure, caption, "Attention maps of heads that follow relations.")]
    return []


def _kept(model: Model, relations: frozenset[str] | set[str] = frozenset()) -> tuple[CapturedExample, Array] | None:
    """A readable example with its maps ``[L, H, Q, K]``: that with the most of some relations, then the longest."""
    folder = model.view.run.captures
    steps = read_steps(folder)
    examples = [example for example in read_examples(folder) if len(example.tokens) <= _READABLE]
    if not steps or not examples or (model.pretrained and 0 not in steps):
        return None
    example = max(
        examples,
        key=lambda one: (len(relations & {relation for _, _, relation in one.relations}), len(one.tokens)),
    )
    return example, read_maps(steps[0 if model.pretrained else max(steps)])[example.index].numpy()
