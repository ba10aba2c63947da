"""Relation-specific heads on pages: figure 3 of Kovaleva et al. 2019, and explanations without a relation."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from bertsecrets.measures.frame_relations.rows import (
    BASELINES,
    CORRECTED,
    Filter,
    LinkedPair,
    Links,
    Offset,
    Token,
    Weight,
)
from bertsecrets.present.figures.grids import heatmap
from bertsecrets.present.figures.maps import MapPanel, gallery
from bertsecrets.present.figures.scatters import ScatterPanel, head_scatter
from bertsecrets.present.presenter import Presenter
from bertsecrets.present.ranking import picked
from bertsecrets.present.report.content import Section, block, table
from bertsecrets.results.formatting import counted, head_label, listed, number, p_value, with_error
from bertsecrets.results.views import LEVEL, MeasureView

_LISTED, _OUTLINED, _PAIRS, _OFFSETS = 10, 5, 4, 5

RELATION, OPEN = "relation", "no relation shown"
"""Verdicts: the weight significantly exceeds all explanations without a relation, or not."""


def section(view: MeasureView) -> Section | None:
    """The heads that attend along relations, and those without another explanation; None without links.

    Raises:
        MissingColumnError: If the run comes from a version without one of the tests.
    """
    links, offsets = view.fact(Links), view.found(Offset)
    if links is None or not view.has("weight"):
        return None
    count_LH, open_LH = view.grid("weight")[2], open_explanations(view)
    title = "Relation-specific heads"
    if not count_LH.any():
        return Section(title, paragraphs=["No sentence has a link, so no head has a number."])
    heads, relation_LH = by_weight(view), ~np.any(list(open_LH.values()), axis=0)

    def cell(column: str, words: Callable[[float], str]) -> Callable[[tuple[int, int]], str]:
        value_LH = view.value(column)
        return lambda head: words(value_LH[head])

    columns: dict[str, Callable[[tuple[int, int]], str]] = {
        "head": lambda head: head_label(*head),
        "weight": lambda head: with_error(view.value("weight")[head], view.stderr("weight")[head]),
    }
    for name, label in BASELINES.items():
        columns[label] = cell(name, number)
        columns[f"p, {label}"] = cell(f"p_{name}{CORRECTED}", p_value)
    columns["verdict"] = lambda head: RELATION if relation_LH[head] else OPEN
    reached: dict[str, Callable[[Offset], str]] = {
        "offset in tokens": lambda row: f"{row.offset:+d}",
        "links with such a pair": lambda row: f"{row.links:,}",
        "share": lambda row: f"{row.links / links.links:.3f}",
    }
    left: dict[str, Callable[[Filter], str]] = {
        "filter": lambda row: row.name,
        "sentences left": lambda row: f"{row.sentences:,}",
    }
    tables = [
        table(
            heads[:_LISTED],
            columns,
            "The heads that attend most along the links (± one standard error; p corrected over heads)",
        ),
        table(
            sorted(offsets, key=lambda row: -row.links)[:_OFFSETS],
            reached,
            "Score of a head that attends to one fixed offset",
        ),
    ]
    if filters := view.found(Filter):
        tables.append(table(filters, left, f"How the sentences of {links.source} were chosen"))
    marked = [head for head in heads if relation_LH[head]][:_OUTLINED]
    outlined = (
        f"outlined: the {len(marked)} highest heads with the verdict “relation”" if marked else "no head is outlined"
    )

    value_LH, stderr_LH, _ = view.grid("weight")
    tokens = [row.token for row in view.found(Token)]
    pairs = [f"{tokens[pair.query]} → {tokens[pair.key]}" for pair in view.found(LinkedPair)]
    more = len(pairs) - _PAIRS
    linked = ", ".join([*pairs[:_PAIRS], *([f"{more} more"] if more > 0 else [])])
    map_of: dict[tuple[int, int], NDArray[np.float64]] = {}
    for row in view.found(Weight):
        map_QK = map_of.setdefault((row.layer, row.head), np.zeros((len(tokens), len(tokens))))
        map_QK[row.query, row.key] = row.weight
    first, *others = _findings(view, links, offsets)
    return Section(
        title,
        [first],
        [*others, _how(links)],
        tables,
        [
            block(
                "frame_relations",
                "Attention along frame relations",
                heatmap,
                f"Figure 3 of the paper; {outlined}.",
                value_LH=value_LH,
                stderr_LH=stderr_LH,
                count=count_LH,
                marked=marked,
                unit="largest weight along a link, mean over sentences",
            ),
            block(
                "frame_relations_baselines",
                "Relation, distance, word or position?",
                head_scatter,
                "Attention to the link beyond three explanations without a relation, a dot for each head.",
                panels=[
                    ScatterPanel(
                        label, view.value(name).ravel(), view.value(f"over_{name}").ravel(), relation_LH.ravel()
                    )
                    for name, label in BASELINES.items()
                ],
                x_label="weight elsewhere",
                y_label="link minus elsewhere",
                note=f"one dot a head; filled: relation, all three corrected p < {LEVEL:g}; n = "
                f"{int(count_LH.max()):,} sentences",
            ),
            block(
                "frame_relations_maps",
                "One sentence in the heads with the most attention along relations",
                gallery,
                f"{links.text.strip()} — linked: {linked} (attending → attended to).",
                panels=[
                    MapPanel("highest heads", head_label(*head), map_QK, tokens) for head, map_QK in map_of.items()
                ],
            ),
        ],
        head=heads[0],
    )


PRESENTER = Presenter(section)


def by_weight(view: MeasureView) -> list[tuple[int, int]]:
    """All heads, in descending order of their weight along the links."""
    weight_LH = view.value("weight")
    order = np.argsort(-np.nan_to_num(weight_LH, nan=-1.0), axis=None, kind="stable")
    return [divmod(int(index), weight_LH.shape[1]) for index in order]


def open_explanations(view: MeasureView) -> dict[str, NDArray[np.bool_]]:
    """For each explanation without a relation, the heads ``[layers, heads]`` whose weight does not significantly exceed
    it.

    An undefined p-value is not significant.

    Raises:
        MissingColumnError: If the run comes from a version without one of the tests.
    """
    return {name: ~(view.value(f"p_{name}{CORRECTED}") < LEVEL) for name in BASELINES}


def relation_heads(view: MeasureView) -> NDArray[np.bool_] | None:
    """The heads ``[layers, heads]`` that exceed all explanations; None in a run from a version without one of the
    tests.
    """
    tested = all(view.has(f"p_{name}{CORRECTED}") for name in BASELINES)
    return ~np.any(list(open_explanations(view).values()), axis=0) if tested else None


def _findings(view: MeasureView, links: Links, offsets: Sequence[Offset]) -> list[str]:
    open_LH, best = open_explanations(view), by_weight(view)[0]
    left = [label for name, label in BASELINES.items() if open_LH[name][best]]
    beyond = (
        f"not significantly beyond {listed(left, 'or')}"
        if left
        else "which exceeds all three explanations without a relation"
    )
    elsewhere = ", ".join(f"{label} {number(view.value(name)[best])}" for name, label in BASELINES.items())
    weight = picked(best, *view.grid("weight"), bounds=(0.0, 1.0))
    relation_LH = ~np.any(list(open_LH.values()), axis=0)
    number_open = "; ".join(f"{label} {int(open_LH[name].sum())}" for name, label in BASELINES.items())
    most = max(offsets, key=lambda row: (row.links, -abs(row.offset)))
    where = f"{counted(abs(most.offset), 'token')} to the {'right' if most.offset > 0 else 'left'}"
    sentences = [
        f"Over {counted(view.count('weight'), 'sentence')} of {links.source}, {head_label(*best)} attends most along "
        f"annotated frame relations: {weight}, {beyond} ({elsewhere}, uniform attention "
        f"{number(view.value('uniform')[best])}).",
        f"{int(relation_LH.sum())} of {counted(relation_LH.size, 'head')} attend along the relation beyond all three "
        f"explanations (permutation tests, each corrected over heads, p < {LEVEL:g}). Heads not significantly beyond: "
        f"{number_open}. An explanation that is not excluded need not be true.",
        f"A head that always attends {where} would score {most.links / links.links:.3f}, the share of "
        f"{counted(links.links, 'link')} with a pair at this distance.",
    ]
    if links.alone:
        sentences.append(
            f"{links.alone:,} of {counted(links.links, 'link')} have no counterpart in another sentence of the same "
            "length."
        )
    return sentences


def _how(links: Links) -> str:
    """How a sentence's number is computed and tested."""
    pairs = {"all": "all pairs of their tokens", "zip": "their tokens paired one by one"}[links.pairs]
    direction = {
        "element_to_target": "from the frame element to the word that evokes the frame",
        "target_to_element": "from the word that evokes the frame to the frame element",
        "both": "between the frame element and the word that evokes the frame, either way",
    }[links.direction]
    return (
        f"A sentence's number is the largest attention weight {direction}, over {pairs} (Kovaleva et al. 2019, "
        "section 4.2). “Same distance elsewhere” moves the pairs together to every other position in the sentence; "
        "“same word from elsewhere” moves only the attending tokens; “positions of other sentences' links” are those "
        "of links in equally long sentences, because elements tend to be early and targets late. Each test draws a "
        f"position for every link {links.permutations:,} times; p-values are corrected over heads by the step-down "
        f"max-T method (Westfall and Young 1993), so that {int(LEVEL * (links.permutations + 1))} drawings decide at "
        f"the level {LEVEL:g} for any number of heads."
    )
