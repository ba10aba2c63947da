"""Coreference heads on pages: table 2 of Clark et al. 2019, with heads chosen and scored on different documents."""

from collections.abc import Callable, Sequence

from bertsecrets.measures.coreference.rows import Baseline, Documents, Mentions
from bertsecrets.present.best_heads import best_heads, best_heads_figure, scored_elsewhere
from bertsecrets.present.figures.grids import HeadPanel, head_panels
from bertsecrets.present.presenter import Presenter
from bertsecrets.present.report.content import Section, block, name_of, table
from bertsecrets.results.formatting import are, counted, head_label, listed, p_value, percent, percentage
from bertsecrets.results.views import Comparison, MeasureView

_NAMES = {"all": "all mentions", "pronoun": "pronouns", "proper": "names", "nominal": "nominals"}
_BASELINES = {
    "nearest": "the nearest mention",
    "head_match": "head match",
    "rule_based": "the rules",
    "random": "a random mention",
}
_BEST = "The best head for each kind of mention, on held-out documents"
_UNIT = "share of mentions whose antecedent is found"

_HEADS: dict[str, Callable[[Mentions], str]] = {
    "mentions": lambda row: f"{_NAMES[row.mention]} (n = {row.mentions:,})",
    "head (chosen in)": lambda row: f"{name_of(row)} ({percentage(row.chosen)})",
    "antecedents found, %": lambda row: f"{row.accuracy:%}",
    "by the best head for all mentions": lambda row: f"{row.one_head:%}",
    "chosen on the same documents": lambda row: (
        f"{percent(row.chosen_on_all)} {head_label(row.layer_on_all, row.head_on_all)}"
    ),
}
_DIFFERENCES: dict[str, Callable[[Baseline], str]] = {
    "mentions": lambda row: _NAMES[row.mention],
    "baseline": lambda row: _BASELINES[row.baseline],
    "antecedents found, %": lambda row: f"{row.accuracy:%}",
    "best head minus baseline": lambda row: f"{row.gain:+%}",
    "p, corrected": lambda row: p_value(row.p_gain),
}


def section(view: MeasureView) -> Section | None:
    """The best head for each kind of mention, next to rules; None without such a search."""
    documents, rows, baselines = view.fact(Documents), view.found(Mentions), view.found(Baseline)
    if documents is None:
        return None
    figure = best_heads_figure(
        view.name,
        _BEST,
        rows,
        lambda row: _NAMES[row.mention],
        lambda row: row.rules,
        rival="the rules",
        unit=_UNIT,
        texts=f"{counted(documents.documents, 'document')} of {documents.corpus}",
        splits=documents.splits,
    )
    panels = [
        HeadPanel(f"{name} (n = {view.count(mention):,})", view.value(mention))
        for mention, name in _NAMES.items()
        if view.has(mention) and view.count(mention)
    ]
    heatmaps = block(
        f"{view.name}_heads",
        "How often each head attends from a mention to its antecedent",
        head_panels,
        "All heads, by kind of mention.",
        panels=panels,
        unit=_UNIT,
        note="mentions of all documents",
        limits=(0.0, 1.0),
    )
    if not rows:
        return Section(view.title, paragraphs=[_how(documents, scored=False)], figures=[heatmaps] * bool(panels))
    choice = not any(row.mention == "all" and row.baseline == "random" and row.accuracy.value >= 1 for row in baselines)
    uninformative = (
        f"The mentions of {documents.corpus} are uninformative about heads: every candidate is an antecedent, so any "
        "head and a random mention are always correct."
    )
    return Section(
        view.title,
        _findings(rows, baselines, documents) if choice else [uninformative],
        [_how(documents, scored=True)],
        [
            table(rows, _HEADS, "Table 2 of Clark et al.: the best head for each kind of mention"),
            table(baselines, _DIFFERENCES, "Baselines, on all documents"),
        ],
        [figure, *[heatmaps] * bool(panels)],
        head=(rows[0].layer, rows[0].head) if choice else None,
    )


def comparison(compared: Comparison) -> Section | None:
    """The best head for each kind of mention by condition, mean over seeds."""
    share = (
        "Share of mentions whose antecedent is found, in percent, with the head (the rule-based baseline in brackets)"
    )
    return best_heads(
        compared,
        lambda view: view.found(Mentions),
        "mentions",
        lambda row: _NAMES[row.mention],
        lambda row: row.rules,
        caption=_BEST,
        share=share,
    )


PRESENTER = Presenter(section, comparison)


def _findings(rows: Sequence[Mentions], baselines: Sequence[Baseline], documents: Documents) -> list[str]:
    first = rows[0]
    of_first = [row for row in baselines if row.mention == first.mention]
    outcomes = {
        "significantly more often than": [row for row in of_first if row.differs and row.gain.value > 0],
        "significantly less often than": [row for row in of_first if row.differs and row.gain.value < 0],
        "not significantly more or less often than": [row for row in of_first if not row.differs],
    }
    verdicts = [
        f"{words} {listed([_BASELINES[row.baseline] for row in some])}" for words, some in outcomes.items() if some
    ]
    sentences = [
        f"On held-out documents of {documents.corpus}, {name_of(first)} attends most to an antecedent for "
        f"{first.accuracy:%} % of {counted(first.mentions, 'mention')}: {'; '.join(verdicts)}."
    ]
    others = rows[1:]
    better = [
        _NAMES[row.mention]
        for row in others
        if all(one.differs and one.gain.value > 0 for one in baselines if one.mention == row.mention)
    ]
    if better and len(others) > 1:
        sentences.append(
            f"For {listed(better)}, a head chosen for these mentions only finds significantly more antecedents than "
            "every baseline."
        )
    return sentences


def _how(documents: Documents, scored: bool) -> str:
    """How heads are chosen and scored, and what was excluded."""
    among = {
        "earlier": "the head words of earlier mentions in the window, as for the baselines",
        "others": "the head words of all other mentions in the window (baselines: of earlier ones)",
        "words": "all other words of the window (baselines: head words of earlier mentions)",
    }[documents.candidates]
    windows = ", of which only the first per document counts" if documents.windows == "first" else ""
    read = counted(documents.documents, "document")
    parts = [
        f"From the head word of each mention, attention is compared over {among}, or over the data set's candidate "
        "names (GAP), summed over the tokens of the attended word and averaged over those of the attending word "
        "(Clark et al. 2019, section 4.3). The answer is correct if the largest attention goes to an antecedent. "
        + scored_elsewhere("documents", documents.splits)
        + " P-values are twice the median over splits, corrected over kinds and baselines (Holm). Rules, in order: "
        "the same words; the same head word; agreement in person, number and gender; the nearest mention.",
        "" if scored else f"{read} {are(documents.documents)} too few to choose and to score by.",
        f"{read} were read in {documents.texts:,} windows{windows}." if documents.texts > documents.documents else "",
        *(
            f"Excluded: {counted(count, 'mention')} {reason}."
            for count, reason in (
                (documents.outside, "with all antecedents outside their window"),
                (documents.vanished, "without a token, or without an antecedent with a token"),
                (documents.unanswered, "without an antecedent among the candidate names"),
            )
            if count
        ),
    ]
    return " ".join(filter(None, parts))
