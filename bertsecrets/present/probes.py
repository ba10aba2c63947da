"""Probes on pages: table 3 of Clark et al. 2019, with intervals and control tasks."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bertsecrets.present.figures.grids import HeadPanel, head_panels
from bertsecrets.present.figures.style import seeds_in_words
from bertsecrets.present.presenter import Presenter
from bertsecrets.present.report.content import Section, Table, block, table
from bertsecrets.probes.rows import (
    ATTENTION,
    ATTENTION_WORDS,
    DISTANCES_WORDS,
    LABELS,
    RANDOM_ATTENTION,
    RANDOM_ATTENTION_WORDS,
    RIGHT_BRANCHING,
    STRUCTURAL,
    Difference,
    HiddenState,
    Probed,
    ProbeScore,
    Structural,
)
from bertsecrets.results.estimate import Estimate
from bertsecrets.results.formatting import MISSING, counted, percent
from bertsecrets.results.views import Comparison, MeasureView

_SCORES: dict[str, Callable[[ProbeScore], str]] = {
    "probe": lambda row: LABELS[row.probe],
    "UAS, %": lambda row: f"{row.uas:%}",
    "LAS, %": lambda row: f"{row.las:%}",
    "control task, %": lambda row: MISSING if row.control is None else f"{row.control:%}",
    "selectivity": lambda row: MISSING if row.selectivity is None else f"{row.selectivity:+%}",
    "weights": lambda row: f"{row.weights:,}",
}
_DIFFERENCES: dict[str, Callable[[Difference], str]] = {
    "difference": lambda row: f"{LABELS[row.first]} minus {LABELS[row.second]}",
    "UAS, points": lambda row: f"{row.uas:+%}",
}


def section(view: MeasureView) -> Section | None:
    """The scores of the probes, and the weights of the attention-only probe; None without probes."""
    probed, scores = view.fact(Probed), view.found(ProbeScore)
    if probed is None:
        return None
    structural, states = view.fact(Structural), view.found(HiddenState)
    figures = []
    if panels := [HeadPanel(column.label, view.value(column.name)) for column in view.columns if view.has(column.name)]:
        weights = block(
            f"{view.name}_weights",
            "Weights of heads in the attention-only probe",
            head_panels,
            "Weights of the attention-only probe; a positive weight favours a word as the head.",
            panels=panels,
            unit=view.columns[0].unit,
            note="contribution to the score of one standard deviation of a head's attention from a word to its "
            "possible syntactic head (left), or back (right)",
            signed=True,
        )
        figures.append(weights)
    tables = [
        table(scores, _SCORES, "Table 3 of Clark et al.: dependency parsing from attention"),
        table(view.found(Difference), _DIFFERENCES, "Differences of probes on the same sentences"),
    ]
    if structural is not None:
        lines = [
            ["neighbouring words", f"{structural.neighbours:%}"],
            *([f"{state_label(row.state)}{', chosen' * row.chosen}", f"{row.uuas:%}"] for row in states),
            ["chosen minus embeddings", f"{structural.gain:+%}"],
        ]
        caption = "Structural probe: edges of the trees, without direction"
        tables.append(Table(["vectors of", "edges found, %"], lines, caption))
    findings = _findings(scores, structural, states, probed)
    return Section(view.title, findings, [_how(probed, scores, structural)], tables, figures)


def comparison(compared: Comparison) -> Section | None:
    """The share of correct heads of each probe by condition."""
    found = {
        condition: [of_seed for view in replicates.views if (of_seed := _shares(view))]
        for condition, replicates in compared.replicates.items()
    }
    found = {condition: seeds for condition, seeds in found.items() if seeds}
    if not found:
        return None
    names = {**LABELS, STRUCTURAL: "structural probe, edges without direction"}
    rows = []
    for name, label in names.items():
        shares = [[of_seed[name].value for of_seed in seeds if name in of_seed] for seeds in found.values()]
        if any(shares):
            rows.append([label, *(percent(float(np.mean(some))) if some else MISSING for some in shares)])
    words = (
        f"Share of words with the correct head, in percent; {seeds_in_words([len(seeds) for seeds in found.values()])}."
    )
    title = next(iter(compared.replicates.values())).title
    return Section(title, [], [words], [Table(["probe", *found], rows, "Probes by condition")])


def scalars(view: MeasureView) -> Mapping[str, float]:
    """The scores of each probe, in percent."""
    values = {}
    for row in view.found(ProbeScore):
        for name, share in (("uas", row.uas), ("las", row.las), ("selectivity", row.selectivity)):
            if share is not None:
                values[f"{row.probe}/{name}"] = 100 * share.value
    values.update((f"{STRUCTURAL}/uuas", 100 * row.uuas.value) for row in view.found(HiddenState) if row.chosen)
    return values


PRESENTER = Presenter(section, comparison, scalars=scalars)


def state_label(state: int) -> str:
    """Name of a hidden state: 0 is the embeddings, n the output of layer n - 1."""
    return f"layer {state - 1}" if state else "the embeddings"


def _shares(view: MeasureView) -> dict[str, Estimate]:
    """Share of correct heads of each probe, and of edges for the structural probe."""
    chosen = [(STRUCTURAL, row.uuas) for row in view.found(HiddenState) if row.chosen]
    return dict([*((row.probe, row.uas) for row in view.found(ProbeScore)), *chosen])


def _findings(
    scores: Sequence[ProbeScore], structural: Structural | None, states: Sequence[HiddenState], probed: Probed
) -> list[str]:
    uas = {row.probe: row.uas for row in scores}
    sentences = []
    for name, others in (
        (ATTENTION, (RIGHT_BRANCHING, RANDOM_ATTENTION)),
        (ATTENTION_WORDS, (DISTANCES_WORDS, RANDOM_ATTENTION_WORDS)),
    ):
        if name in uas:
            beside = [f"{LABELS[other]} {percent(uas[other].value)} %" for other in others if other in uas]
            sentences.append(
                f"A probe on {LABELS[name]} finds the syntactic heads of {uas[name]:%} % of the words of "
                f"{'; '.join(filter(None, (probed.corpus, ', '.join(beside))))}."
            )
    if structural is not None:
        best = next(row for row in states if row.chosen)
        sentences.append(
            f"The structural probe finds {best.uuas:%} % of the trees' edges in the vectors of "
            f"{state_label(best.state)}; embeddings {percent(states[0].uuas.value)} %, neighbouring words "
            f"{percent(structural.neighbours.value)} %."
        )
    return sentences


def _how(probed: Probed, scores: Sequence[ProbeScore], structural: Structural | None) -> str:
    """How probes are trained and scored, and what was excluded."""
    where = (
        f"one half of the sentences ({probed.trained_on:,}) and scored on the other"
        if probed.halves
        else f"{probed.trained_on:,} training sentences and scored on {probed.sentences:,} others"
    )
    parts = [
        "The encoder is frozen. The attention-only probe has one weight for each head and direction; with words, the "
        "weights depend on the vectors of both words (Clark et al. 2019, section 5). Each word chooses its head "
        f"independently. Probes are trained on {where}. UAS is the share of words with the correct head, LAS the "
        "share with correct head and relation, predicted by a classifier from the probe's inputs for the arc. "
        f"Punctuation is {'' if probed.punctuation else 'not '}scored. Intervals are 95 % limits over "
        f"{probed.replicates} bootstrap samples of sentences, without variation in training."
    ]
    if any(row.control is not None for row in scores):
        parts.append(
            "In the control task every word type attaches to itself, the first or the last word, drawn at random "
            "(Hewitt and Liang 2019); selectivity is UAS minus the score of the same probe trained on it."
        )
    if structural is not None:
        parts.append(
            f"The structural probe maps hidden states linearly to {structural.rank} dimensions in which squared "
            "distances between words approximate their distance in the tree (Hewitt and Manning 2019); its minimum "
            f"spanning tree is compared with the annotated tree: {structural.edges:,} edges, without direction. "
            f"{structural.chosen_on:,} training sentences are held out for choosing the layer."
        )
    if probed.vectors:
        parts.append(f"Word vectors: {probed.vectors}; {probed.without_vector:,} scored words have no vector.")
    if probed.truncated:
        parts.append(f"{counted(probed.truncated, 'sentence')} skipped because they are too long.")
    if probed.vanished:
        parts.append(f"{counted(probed.vanished, 'word')} without a token do not count.")
    return " ".join(parts)
