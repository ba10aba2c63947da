"""Dependency heads on pages: table 1 of Clark et al. 2019, with heads chosen and scored on different sentences."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bertsecrets.measures.dependency.rows import Relation, Treebank
from bertsecrets.present.best_heads import best_heads, best_heads_figure, scored_elsewhere
from bertsecrets.present.figures.grids import HeadPanel, head_panels
from bertsecrets.present.presenter import Presenter
from bertsecrets.present.report.content import Section, block, name_of, table
from bertsecrets.results.formatting import MISSING, counted, number, p_value, percent, percentage
from bertsecrets.results.views import Comparison, MeasureView

_BEST = "The best head of each relation, on held-out sentences"
_UNIT = "share of words whose head is found"
_PANELS, _ROWS = 12, 40

_COLUMNS: dict[str, Callable[[Relation], str]] = {
    "relation": lambda row: row.relation,
    "words": lambda row: f"{row.words:,}",
    "head (chosen in)": lambda row: f"{name_of(row)}{', from the head' * row.from_head} ({percentage(row.chosen)})",
    "accuracy, %": lambda row: f"{row.accuracy:%}",
    "baseline (offset)": lambda row: f"{percent(row.baseline)} ({number(row.offset, 0, signed=True)})",
    "difference": lambda row: f"{row.gain:+%}",
    "p, corrected": lambda row: p_value(row.p_gain),
    "chosen on the same sentences": lambda row: percent(row.chosen_on_all),
}


def section(view: MeasureView) -> Section | None:
    """The best head of each relation; None without such a search."""
    treebank, rows = view.fact(Treebank), view.found(Relation)
    if treebank is None:
        return None
    if not rows:
        left = counted(treebank.sentences, "sentence")
        return Section(
            view.title, [f"Heads are chosen on some sentences and scored on others; {left} are too few for that."]
        )
    relations = [row for row in rows if row.relation != "all"]
    figure = best_heads_figure(
        view.name,
        _BEST,
        rows[:_ROWS],
        lambda row: row.relation,
        lambda row: row.baseline,
        rival="the best fixed offset",
        unit=_UNIT,
        texts=f"{counted(treebank.sentences, 'sentence')} of {treebank.corpus}",
        splits=treebank.splits,
    )
    panels = [
        HeadPanel(
            f"{row.relation} (n = {view.count(column):,})",
            np.maximum(view.value(column), view.value(f"{column}_from_head")),
        )
        for row in relations[:_PANELS]
        if view.has(column := row.relation.replace(":", "_"))
    ]
    heatmaps = block(
        "dependency_heads",
        "How often each head points along a relation",
        head_panels,
        f"The {counted(len(panels), 'most frequent relation')}, head by head, in the better direction.",
        panels=panels,
        unit=f"{_UNIT}, better direction",
        note="words of all sentences",
        limits=(0.0, 1.0),
    )
    best = _clearest(relations) or rows[0]
    return Section(
        view.title,
        _findings(rows, relations, treebank),
        [_how(treebank)],
        [table(rows, _COLUMNS, "Table 1 of Clark et al.: the best head of each relation")],
        [figure, *([heatmaps] if panels else [])],
        head=(best.layer, best.head),
    )


def comparison(compared: Comparison) -> Section | None:
    """The best head of each relation by condition, mean over seeds."""
    share = "Share of words whose head is found, in percent, with the head (the best fixed offset in brackets)"
    return best_heads(
        compared,
        lambda view: view.found(Relation),
        "relation",
        lambda row: row.relation,
        lambda row: row.baseline,
        caption=_BEST,
        share=share,
    )


def classes(view: MeasureView) -> Mapping[str, Sequence[Sequence[str]]]:
    """The relation in which each head exceeds the best fixed offset most; a dash for none.

    Only if the better direction's share of the words is significantly above the offset's share of all words (treated as
    known), at a false discovery rate of 5 % over heads, directions and relations.
    """
    rows = {
        row.relation.replace(":", "_") + direction: row
        for row in view.found(Relation)
        for direction in ("", "_from_head")
        if row.relation != "all"
    }
    limits = {column: row.baseline for column, row in rows.items() if view.has(column)}
    if not limits:
        return {}
    beyond = view.beyond(limits)
    gain_RLH = np.stack([np.where(beyond[name], view.value(name) - limit, -np.inf) for name, limit in limits.items()])
    names = np.array([rows[column].relation for column in limits])[gain_RLH.argmax(axis=0)]
    return {"relation": np.where(gain_RLH.max(axis=0) > 0, names, MISSING).tolist()}


PRESENTER = Presenter(section, comparison, classes)


def _clearest(relations: Sequence[Relation]) -> Relation | None:
    """The relation whose head most clearly beats every fixed offset."""
    return max((row for row in relations if row.beats_offsets), key=lambda row: row.gain.low, default=None)


def _findings(rows: Sequence[Relation], relations: Sequence[Relation], treebank: Treebank) -> list[str]:
    low, high = treebank.single_low, treebank.single_high
    above = sum(row.beats_offsets for row in relations)
    sentences = [
        f"For {above or 'none'} of {counted(len(relations), 'relation')}, one head finds the syntactic head of a word "
        f"significantly more often than every fixed offset, on held-out sentences of {treebank.corpus} "
        f"({treebank.splits} splits combined, corrected over relations; a single split would give "
        f"{low if low == high else f'{low} to {high}'})."
        if relations
        else "No relation is scored separately, because none has words for choosing and scoring in every split"
        + (
            "."
            if treebank.min_count is None
            else f" and {treebank.min_count} words in total; measure.dependency.min_count lowers the limit."
        )
    ]
    if best := _clearest(relations):
        sentences.append(
            f"The clearest is {best.relation}: {name_of(best)} finds {best.accuracy:%} %, {_offset(best)}."
        )
    if rows[0].relation == "all":
        sentences.append(
            f"Over all relations, {name_of(rows[0])} finds the heads of {rows[0].accuracy:%} % of all words, "
            f"{_offset(rows[0])}."
        )
    return sentences


def _offset(row: Relation) -> str:
    return f"the word at offset {number(row.offset, 0, signed=True)} {percent(row.baseline)} %"


def _how(treebank: Treebank) -> str:
    """How heads are chosen and scored, and what was left out."""
    rows = {"mean": "averaged over the tokens of the attending one", "first": "taken from its first token"}
    parts = [
        f"Attention between words is summed over the tokens of the attended word and {rows[treebank.from_word]}; "
        "[CLS], [SEP] and the word itself are left out (Clark et al. 2019, section 4.1). Heads count in both "
        "directions. "
        + scored_elsewhere("sentences", treebank.splits)
        + " The p-value of a relation is twice the median of the splits' (Meinshausen et al. 2009), against the offset "
        "that does "
        "best there, corrected over relations (Holm).",
        f"Punctuation {'counts' if treebank.punctuation else 'does not count'} among all words, and roots "
        f"{'count there as wrong' if treebank.root else 'do not count'}.",
    ]
    if treebank.possessive:
        parts.append("For possessors before an 's, the attention of the 's is scored, as in the paper.")
    if treebank.truncated:
        parts.append(f"{counted(treebank.truncated, 'sentence')} too long and left out.")
    if treebank.vanished:
        parts.append(f"{counted(treebank.vanished, 'word')} without a token of their own do not count.")
    return " ".join(parts)
