"""What the coreference measure records beside its grid, and the section that shows it."""

from dataclasses import dataclass
from typing import Any

from bertsecrets.measures.best_heads import BestHead, compare_best_heads
from bertsecrets.present.figures.grids import HeadPanel, head_panels
from bertsecrets.present.figures.rows import IntervalRow, interval_rows
from bertsecrets.present.report.content import FigureBlock, Section, Table
from bertsecrets.results.formatting import head_label, percent, percents
from bertsecrets.results.views import LEVEL, Comparison, ExtrasRecord, MeasureView


@dataclass(frozen=True)
class BaselineScore:
    """A baseline on all documents.

    Args:
        name: ``nearest``, ``head_match``, ``rule_based`` or ``random``.
        accuracy, low, high: Share of the anaphors whose antecedent it finds, and the limits of a 95 % interval.
        gain, gain_low, gain_high: The head's accuracy minus this on the documents that score, with limits.
        p_value: Two-sided, the splits combined, corrected over kinds and baselines.
    """

    name: str
    accuracy: float
    low: float
    high: float
    gain: float
    gain_low: float
    gain_high: float
    p_value: float

    @property
    def differs(self) -> bool:
        """Whether the head is significantly better or worse."""
        return self.p_value <= LEVEL


@dataclass(frozen=True)
class MentionScore:
    """The best head for a kind of mention: chosen on a third of the documents and scored on the others, over random splits.

    Args:
        kind: ``all``, ``pronoun``, ``proper`` or ``nominal``.
        count, documents: Anaphors, and documents that have any.
        layer, head: The head chosen most often for this kind.
        chosen: Share of the splits that chose it.
        accuracy, low, high: Share of the anaphors whose antecedent it attends to most, and the limits of a 95 % interval.
        one_head, one_head_low, one_head_high: The same for the head chosen for all kinds together, as the paper shows one head.
        baselines: The baselines.
        chosen_on_all: Accuracy of the head that is best on all documents, scored on the same ones, as in the paper.
        layer_on_all, head_on_all: That head.
    """

    kind: str
    count: int
    documents: int
    layer: int
    head: int
    chosen: float
    accuracy: float
    low: float
    high: float
    one_head: float
    one_head_low: float
    one_head_high: float
    baselines: list[BaselineScore]
    chosen_on_all: float
    layer_on_all: int
    head_on_all: int


@dataclass(frozen=True)
class CoreferenceRecord(ExtrasRecord):
    """The kinds of mentions of a set of documents, and what was left out.

    Args:
        task: Name of the task.
        documents, windows: Documents and windows of them that were read.
        outside: Mentions that do not count because all antecedents lie outside of their window.
        vanished: Mentions that do not count because they or all antecedents have no token of their own.
        unanswered: Mentions of which no offered choice is an antecedent; they do not count.
        splits: Random splits of the documents.
        settings: Settings of the measure.
        kinds: One score each, all kinds together first; empty if there are too few documents.
    """

    task: str
    documents: int
    windows: int
    outside: int
    vanished: int
    unanswered: int
    splits: int
    settings: dict[str, Any]
    kinds: list[MentionScore]


NAMES = {"all": "all mentions", "pronoun": "pronouns", "proper": "names", "nominal": "nominals"}
BASELINE_NAMES = {
    "nearest": "nearest mention",
    "head_match": "head match",
    "rule_based": "rule-based",
    "random": "random mention",
}
_THAN = {
    "nearest": "the nearest mention",
    "head_match": "head match",
    "rule_based": "the rules",
    "random": "a random mention",
}
_SHOWN = "rule_based"
_TITLE = "The best head for each kind of mention, on documents that did not choose it"
_UNIT = "share of mentions whose antecedent is found"


def coreference_section(view: MeasureView) -> Section | None:
    """The section on coreference heads; None without a record of them."""
    record = CoreferenceRecord.read(view.extras)
    if record is None:
        return None
    panels = [
        HeadPanel(f"{name} (n = {view.count(kind):,})", view.value(kind))
        for kind, name in NAMES.items()
        if view.has(kind) and view.count(kind)
    ]
    blocks = []
    if record.kinds:
        figure = interval_rows(
            [
                IntervalRow(
                    f"{NAMES[score.kind]} (layer {score.layer} · {score.head})",
                    score.accuracy,
                    score.low,
                    score.high,
                    _baseline(score, _SHOWN),
                )
                for score in record.kinds
            ],
            title=_TITLE,
            unit=_UNIT,
            baseline="rule-based",
            value="best head",
            limits=(0, 1),
            reference=None,
            note=f"bars: 95 % intervals; {record.documents:,} documents of {record.task}, a third to choose, the others to "
            f"score, over {record.splits} splits; layers and heads count from 0",
        )
        blocks.append(
            FigureBlock(view.name, figure, "Heads and the rules, by kind of mention.", "Dots with intervals.")
        )
    if panels:
        by_head = head_panels(
            panels,
            title="How often each head attends from a mention to its antecedent",
            unit=_UNIT,
            note="mentions of all documents",
            limits=(0.0, 1.0),
        )
        caption = "All heads, by kind of mention."
        blocks.append(FigureBlock(f"{view.name}_heads", by_head, caption, "Heatmaps of heads, one for each kind."))
    tables = [_table(record.kinds), _differences(record.kinds)] if record.kinds else []
    first = record.kinds[0] if record.kinds and not _without_choice(record) else None
    head = None if first is None else (first.layer, first.head)
    return Section(view.title, _findings(record), [_how(record)], tables, blocks, head=head)


def coreference_comparison(comparison: Comparison) -> Section | None:
    """The best head for each kind of mention by condition, mean over seeds; None without a record of any condition."""

    def read(view: MeasureView) -> dict[str, BestHead]:
        record = CoreferenceRecord.read(view.extras)
        return {
            NAMES[score.kind]: BestHead(score.layer, score.head, score.accuracy, _baseline(score, _SHOWN))
            for score in (record.kinds if record is not None else ())
        }

    share = (
        "Share of mentions whose antecedent is found, in percent, with the head (the rule-based baseline in brackets)"
    )
    return compare_best_heads(comparison, read, "mentions", _TITLE, share)


def _baseline(score: MentionScore, name: str) -> float:
    return next(baseline.accuracy for baseline in score.baselines if baseline.name == name)


def _without_choice(record: CoreferenceRecord) -> bool:
    """Whether every candidate is an antecedent, so that nothing is learned about heads."""
    return _baseline(record.kinds[0], "random") >= 1.0


def _findings(record: CoreferenceRecord) -> list[str]:
    if not record.kinds:
        return []
    if _without_choice(record):
        return [
            f"The mentions of {record.task} have no choice: every candidate is an antecedent, so that any head and a random mention are "
            "always right, and nothing is learned about heads."
        ]
    findings = []
    for score in record.kinds[:1]:
        outcomes = {
            "significantly more often than": [b.name for b in score.baselines if b.differs and b.gain > 0],
            "significantly less often than": [b.name for b in score.baselines if b.differs and b.gain < 0],
            "not significantly more or less often than": [b.name for b in score.baselines if not b.differs],
        }
        verdicts = [f"{words} {_listed([_THAN[name] for name in names])}" for words, names in outcomes.items() if names]
        findings.append(
            f"On documents of {record.task} that did not choose it, {head_label(score.layer, score.head)} attends most to an "
            f"antecedent for {percent(score.accuracy)} % ({percent(score.low)} to {percent(score.high)}) of {score.count:,} "
            f"mentions: {'; '.join(verdicts)}."
        )
    apart = record.kinds[1:]
    better = [NAMES[score.kind] for score in apart if all(b.differs and b.gain > 0 for b in score.baselines)]
    if better and len(apart) > 1:
        findings.append(
            f"For {_listed(better)}, a head chosen for these mentions alone finds significantly more antecedents than every "
            "baseline."
        )
    return findings


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _how(record: CoreferenceRecord) -> str:
    among = {
        "earlier": "the head words of earlier mentions in the window, the same that the baselines choose from",
        "others": "the head words of all other mentions in the window; the baselines choose from earlier ones",
        "words": "all other words of the window; the baselines choose from earlier mentions",
    }
    parts = [
        "From the head word of each mention, attention is compared over "
        f"{among[record.settings['candidates']]}, or over the names that the data set offers (GAP); it is summed over the tokens of the "
        "attended word and averaged over those of the attending one (Clark et al. 2019, section 4.3). The answer is right if "
        "the largest goes to an antecedent. A head is chosen on a third of the documents and scored on the others; the paper "
        "chooses and scores on the same documents (last row). Baselines are the nearest mention, the nearest one with the same "
        "head word, the first of four rules that applies (same words; same head word; person, number and gender; nearest), and a "
        f"random mention. Numbers of heads are medians over {record.splits} random splits, their intervals the medians of 97.5 % "
        "limits, which cover at 95 % although splits share documents; significance is by twice the median p-value, corrected over "
        "kinds and baselines (Holm)."
    ]
    if not record.kinds:
        parts.append(f"{record.documents:,} documents are too few to choose and to score by: no head is chosen.")
    if record.windows > record.documents:
        only = ", of which only the first of each counts" if record.settings["windows"] == "first" else ""
        parts.append(f"The {record.documents:,} documents were read in {record.windows:,} windows{only}.")
    for count, reason in (
        (record.outside, "have all antecedents outside of their window"),
        (record.vanished, "have no token of their own or of an antecedent"),
        (record.unanswered, "have no antecedent among the offered names"),
    ):
        if count:
            parts.append(f"{count:,} mentions {reason} and do not count.")
    return " ".join(parts)


def _table(scores: list[MentionScore]) -> Table:
    by_baseline = [[_interval(score.baselines[index]) for score in scores] for index in range(len(BASELINE_NAMES))]
    rows = [
        *([name, *cells] for name, cells in zip(BASELINE_NAMES.values(), by_baseline, strict=True)),
        [
            f"{head_label(scores[0].layer, scores[0].head)}, the best for all",
            *(percents(score.one_head, score.one_head_low, score.one_head_high) for score in scores),
        ],
        ["best head of each kind", *(_interval(score) for score in scores)],
        [
            "which it is (chosen in)",
            *(f"{head_label(score.layer, score.head)} ({score.chosen:.0%})" for score in scores),
        ],
        [
            "best head, chosen on the same",
            *(
                f"{percent(score.chosen_on_all)} {head_label(score.layer_on_all, score.head_on_all)}"
                for score in scores
            ),
        ],
    ]
    header = ["antecedent found, %", *(f"{NAMES[score.kind]} (n = {score.count:,})" for score in scores)]
    return Table(header, rows, "Table 2 of Clark et al.: antecedents found by baselines and by heads")


def _differences(scores: list[MentionScore]) -> Table:
    rows = [
        [
            f"minus {name}",
            *(
                percents(baseline.gain, baseline.gain_low, baseline.gain_high, signed=True)
                for baseline in (score.baselines[index] for score in scores)
            ),
        ]
        for index, name in enumerate(BASELINE_NAMES.values())
    ]
    header = ["best head of each kind", *(NAMES[score.kind] for score in scores)]
    return Table(header, rows, "Differences between the best head and each baseline, in percentage points")


def _interval(score: MentionScore | BaselineScore) -> str:
    return percents(score.accuracy, score.low, score.high)
