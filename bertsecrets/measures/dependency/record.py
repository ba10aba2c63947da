"""What the dependency measure records beside its grid, and the section that shows it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from bertsecrets.measures.best_heads import BestHead, compare_best_heads
from bertsecrets.results.figures.grids import HeadPanel, head_panels
from bertsecrets.results.figures.rows import IntervalRow, interval_rows
from bertsecrets.results.formatting import MISSING, head_label, number, p_value, percent, percents
from bertsecrets.results.report.content import FigureBlock, Section, Table
from bertsecrets.results.views import LEVEL, Comparison, ExtrasRecord, MeasureView


@dataclass(frozen=True)
class RelationScore:
    """The best head of a relation: chosen on a third of the sentences and scored on the others, over random splits.

    Args:
        relation: The relation; ``all`` for all words.
        count: Its words.
        layer, head: The head chosen most often.
        from_head: Whether the head word attends to its dependents, rather than a dependent to its head.
        chosen: Share of the splits that chose it.
        accuracy, low, high: Share of the words whose head the chosen head points to, and the limits of a 95 % interval.
        offset: The best fixed offset on all sentences.
        baseline: Its share there.
        gain, gain_low, gain_high: Accuracy minus that of this offset on the same sentences, with limits.
        p_value: Of no gain over some offset, the splits combined; corrected over the relations, except for ``all``.
        chosen_on_all: Accuracy of the head that is best on all sentences, scored on the same ones, as in the paper.
    """

    relation: str
    count: int
    layer: int
    head: int
    from_head: bool
    chosen: float
    accuracy: float
    low: float
    high: float
    offset: int
    baseline: float
    gain: float
    gain_low: float
    gain_high: float
    p_value: float
    chosen_on_all: float

    @property
    def beats_offsets(self) -> bool:
        """Whether the head is significantly better than every fixed offset."""
        return self.p_value <= LEVEL


@dataclass(frozen=True)
class DependencyRecord(ExtrasRecord):
    """The relations of a treebank, and what was left out.

    Args:
        task: Name of the task.
        sentences: Sentences that count.
        truncated: Sentences longer than the model or ``max_length``, left out.
        vanished: Words without a token of their own, which do not count, nor do the words that depend on them.
        splits: Random splits of the sentences.
        single: Least and most relations whose best head would beat every offset by one split alone, corrected.
        settings: Settings of the measure.
        relations: One score each; all words first, then in descending order of frequency.
    """

    task: str
    sentences: int
    truncated: int
    vanished: int
    splits: int
    single: list[int]
    settings: dict[str, Any]
    relations: list[RelationScore]


_PANELS, _ROWS = 12, 40
_TITLE = "The best head of each relation, on sentences that did not choose it"
_UNIT = "share of words whose head is found"


def dependency_section(view: MeasureView) -> Section | None:
    """The section on dependency heads; None without a record of them."""
    record = DependencyRecord.read(view.extras)
    if record is None:
        return None
    if not record.relations:
        counted = "1 sentence" if record.sentences == 1 else f"{record.sentences:,} sentences"
        return Section(
            view.title,
            [
                f"Heads are chosen on some sentences and scored on others; {counted} leave none to choose or to score by, so "
                "that there is no table. More sentences are needed."
            ],
        )
    everything = [score for score in record.relations if score.relation == "all"]
    relations = [score for score in record.relations if score.relation != "all"]
    scores = [*everything, *relations]
    figure = interval_rows(
        [IntervalRow(_name(score), score.accuracy, score.low, score.high, score.baseline) for score in scores[:_ROWS]],
        title=_TITLE,
        unit=_UNIT,
        baseline="best fixed offset",
        value="best head",
        limits=(0, 1),
        reference=None,
        note=f"bars: 95 % intervals; {record.sentences:,} sentences of {record.task}, a third to choose, the others to score, "
        f"over {record.splits} splits; layers and heads count from 0",
    )
    blocks = [
        FigureBlock(
            view.name, figure, "Heads and fixed offsets, by relation.", "Dots with intervals, one row a relation."
        )
    ]
    panels = [
        HeadPanel(
            f"{score.relation} (n = {view.count(column):,})",
            np.maximum(view.value(column), view.value(f"{column}_from_head")),
        )
        for score in relations[:_PANELS]
        if view.has(column := score.relation.replace(":", "_"))
    ]
    if panels:
        by_head = head_panels(
            panels,
            title="How often each head points along a relation",
            unit=f"{_UNIT}, better direction",
            note="words of all sentences",
            limits=(0.0, 1.0),
        )
        caption = f"The {len(panels)} most frequent relations, head by head, in the better of two directions."
        blocks.append(FigureBlock(f"{view.name}_heads", by_head, caption, "Heatmaps of heads, one for each relation."))
    best = _clearest(relations) or next(iter(everything), None)
    return Section(
        view.title,
        _findings(record, everything, relations),
        [_how(record)],
        [_table(scores)],
        blocks,
        head=None if best is None else (best.layer, best.head),
    )


def dependency_comparison(comparison: Comparison) -> Section | None:
    """The best head of each relation by condition, mean over seeds; None without a record of any condition."""

    def read(view: MeasureView) -> dict[str, BestHead]:
        record = DependencyRecord.read(view.extras)
        return {
            score.relation: BestHead(score.layer, score.head, score.accuracy, score.baseline)
            for score in (record.relations if record is not None else ())
        }

    share = "Share of words whose head is found, in percent, with the head (the best fixed offset in brackets)"
    return compare_best_heads(comparison, read, "relation", _TITLE, share)


def relation_classes(view: MeasureView) -> list[list[str]] | None:
    """The relation that each head follows most beyond the best fixed offset, ``[layers][heads]``; a dash for none.

    Only where the better direction's share of the words is significantly above the offset's share of all words, taken as it
    is, at a false discovery rate of 5 % over heads, directions and relations. None without a record.
    """
    record = DependencyRecord.read(view.extras)
    scores = {
        score.relation.replace(":", "_") + direction: score
        for score in (record.relations if record is not None else ())
        for direction in ("", "_from_head")
        if score.relation != "all"
    }
    limits = {column: score.baseline for column, score in scores.items() if view.has(column)}
    if not limits:
        return None
    beyond = view.beyond(limits)
    gain_RLH = np.stack([np.where(beyond[name], view.value(name) - limit, -np.inf) for name, limit in limits.items()])
    names = np.array([scores[column].relation for column in limits])[gain_RLH.argmax(axis=0)]
    follows: list[list[str]] = np.where(gain_RLH.max(axis=0) > 0, names, MISSING).tolist()
    return follows


def _name(score: RelationScore) -> str:
    return f"{score.relation} (layer {score.layer} · {score.head})"


def _clearest(relations: list[RelationScore]) -> RelationScore | None:
    """The relation whose head most clearly finds more than every fixed offset; None without one."""
    above = (score for score in relations if score.beats_offsets)
    return max(above, key=lambda score: score.gain_low, default=None)


def _findings(record: DependencyRecord, everything: list[RelationScore], relations: list[RelationScore]) -> list[str]:
    findings = []
    above = [score for score in relations if score.beats_offsets]
    if relations:
        counted = "1 relation" if len(relations) == 1 else f"{len(relations)} relations"
        low, high = record.single
        alone = f"{low}" if low == high else f"{low} to {high}"
        findings.append(
            (f"For {len(above)} of {counted}, one head finds" if above else f"For none of {counted} does one head find")
            + " the syntactic head of a word significantly more often than every fixed offset, on sentences of "
            f"{record.task} that did not choose it ({record.splits} splits together, corrected over relations; one split alone "
            f"would say {alone})."
        )
    else:
        least = record.settings.get("min_count")
        findings.append(
            "No relation is scored on its own: none has words to choose and to score by in every split"
            + ("." if least is None else f" and {least} words in all; measure.dependency.min_count lowers the limit.")
        )
    if (best := _clearest(relations)) is not None:
        findings.append(
            f"The clearest is {best.relation}: {head_label(best.layer, best.head)} finds {percent(best.accuracy)} % "
            f"({percent(best.low)} to {percent(best.high)}), {_offset(best)}."
        )
    for score in everything:
        findings.append(
            f"Over all relations the best head is {head_label(score.layer, score.head)}: it finds the heads of "
            f"{percent(score.accuracy)} % of all words, {_offset(score)}."
        )
    return findings


def _offset(score: RelationScore) -> str:
    return f"the word at offset {number(score.offset, 0, signed=True)} {percent(score.baseline)} %"


def _how(record: DependencyRecord) -> str:
    settings = record.settings
    rows = {"mean": "averaged over the tokens of the attending one", "first": "taken from its first token"}
    parts = [
        "Attention between words is summed over the tokens of the attended word and "
        f"{rows[settings['from_word']]}; [CLS], [SEP] and the word itself are left out (Clark et al. 2019, section 4.1). The "
        "best of all heads in both directions is chosen on a third of the sentences and scored on the others; the paper chooses "
        f"and scores on the same ones (last column). Numbers are medians over {record.splits} random splits, intervals the medians "
        "of 97.5 % limits, which cover at 95 % although splits share sentences. The p-value of a relation is twice the median "
        "of the splits' (Meinshausen et al. 2009), against the offset that does best there, corrected over relations (Holm)."
    ]
    counted = [
        f"Punctuation {'counts' if settings['punctuation'] else 'does not count'} among all words, and roots "
        f"{'count there as wrong' if settings['root'] else 'do not count'}."
    ]
    if settings["possessive"]:
        counted.append("For possessors before an 's, the attention of the 's is scored, as in the paper.")
    if record.truncated:
        counted.append(f"{record.truncated:,} sentences were too long and are left out.")
    if record.vanished:
        counted.append(f"{record.vanished:,} words have no token of their own and do not count.")
    return " ".join((*parts, *counted))


def _table(scores: list[RelationScore]) -> Table:
    rows = [
        {
            "relation": score.relation,
            "words": f"{score.count:,}",
            "head (chosen in)": f"{head_label(score.layer, score.head)}{', from the head' if score.from_head else ''} "
            f"({score.chosen:.0%})",
            "accuracy, %": percents(score.accuracy, score.low, score.high),
            "baseline (offset)": f"{percent(score.baseline)} ({number(score.offset, 0, signed=True)})",
            "difference": percents(score.gain, score.gain_low, score.gain_high, signed=True),
            "p, corrected": p_value(score.p_value),
            "chosen on the same": percent(score.chosen_on_all),
        }
        for score in scores
    ]
    return Table.of(rows, "Table 1 of Clark et al.: the best head of each relation")
