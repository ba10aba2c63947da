"""The experiment of probes: how it is declared, described and compared."""

import math
from collections.abc import Mapping

import numpy as np

from bertsecrets.grid import Column
from bertsecrets.present.figures.grids import HeadPanel, head_panels
from bertsecrets.present.figures.rows import IntervalRow, interval_rows
from bertsecrets.present.figures.style import seeds_in_words
from bertsecrets.present.report.content import FigureBlock, Section, Table
from bertsecrets.probes.record import (
    ATTENTION,
    ATTENTION_WORDS,
    DISTANCES_WORDS,
    LABELS,
    RANDOM_ATTENTION,
    RANDOM_ATTENTION_WORDS,
    RIGHT_BRANCHING,
    ProbesRecord,
    Share,
    StructuralScore,
)
from bertsecrets.results.experiment import Experiment
from bertsecrets.results.formatting import MISSING, percent, percents
from bertsecrets.results.views import Comparison, MeasureView

_UNIT = "weight of one spread"
_STRUCTURAL = "structural probe, edges without direction"
WEIGHT, WEIGHT_FROM_HEAD = "weight", "weight_from_head"


class Probes(Experiment):
    """Probes on the attention of a frozen encoder; the head table has the weights of the attention-only probe."""

    name = "probes"
    title = "Probes"
    columns = (
        Column(WEIGHT, "weight, word to its head", _UNIT),
        Column(WEIGHT_FROM_HEAD, "weight, head to its word", _UNIT),
    )

    @classmethod
    def describe(cls, view: MeasureView) -> Section | None:
        """Table 3 of the paper, with intervals and control tasks."""
        record = ProbesRecord.read(view.extras)
        return None if record is None else _section(view, record)

    @classmethod
    def compare(cls, comparison: Comparison) -> Section | None:
        """The share of right heads of each probe by condition."""
        records: dict[str, list[ProbesRecord]] = {}
        for label, replicates in comparison.replicates.items():
            read = [ProbesRecord.read(view.extras) for view in replicates.views]
            records[label] = [record for record in read if record is not None]
        records = {label: some for label, some in records.items() if some}
        if not records:
            return None
        rows = []
        for name, label in LABELS.items():
            shares = [
                [score.uas.value for record in some if (score := record.score(name)) is not None]
                for some in records.values()
            ]
            if any(shares):
                rows.append([label, *(percent(float(np.mean(some))) if some else MISSING for some in shares)])
        structural = [
            [record.structural.chosen.value for record in some if record.structural] for some in records.values()
        ]
        if any(structural):
            rows.append([_STRUCTURAL, *(percent(float(np.mean(some))) if some else MISSING for some in structural)])
        return Section(
            Probes.title,
            [],
            [
                f"Share of words with the right head, in percent; {seeds_in_words([len(some) for some in records.values()])}."
            ],
            [Table(["probe", *records], rows, "Probes by condition")],
        )

    @classmethod
    def scalars(cls, view: MeasureView) -> Mapping[str, float]:
        """The scores of each probe."""
        record = ProbesRecord.read(view.extras)
        if record is None:
            return {}
        values = {f"{score.name}/uas": score.uas.value for score in record.scores}
        values |= {f"{score.name}/las": score.las.value for score in record.scores}
        values |= {
            f"{score.name}/selectivity": score.selectivity.value
            for score in record.scores
            if score.selectivity is not None
        }
        if record.structural is not None:
            values["structural/uuas"] = record.structural.chosen.value
        return values


def _section(view: MeasureView, record: ProbesRecord) -> Section:
    rows = []
    for score in record.scores:
        control = math.nan if score.control is None else score.control.value
        rows.append(IntervalRow(f"{LABELS[score.name]}: UAS", score.uas.value, score.uas.low, score.uas.high, control))
        rows.append(IntervalRow(f"{LABELS[score.name]}: LAS", score.las.value, score.las.low, score.las.high))
    figure = interval_rows(
        rows,
        title="Syntactic heads found by probes",
        unit="share of words",
        note=f"UAS: right head, LAS: and right relation; bars: 95 % intervals over sentences; {record.words:,} words of "
        f"{record.sentences:,} sentences of {record.task}",
        limits=(0, 1),
        reference=None,
        value="probe",
        baseline="control task",
    )
    blocks = [FigureBlock(view.name, figure, "Scores of the probes.", "Dots with intervals, one row a probe.")]
    if view.has(WEIGHT):
        panels = [
            HeadPanel(column.label, view.value(column.name)) for column in Probes.columns if view.has(column.name)
        ]
        weights = head_panels(
            panels,
            title="Weights of heads in the attention-only probe",
            unit=_UNIT,
            note="what one standard deviation of a head's attention from a word to its possible syntactic head (left), or back (right), "
            "adds to the score",
            signed=True,
        )
        caption = "What the attention-only probe relies on; a positive weight speaks for a word as the head."
        blocks.append(FigureBlock(f"{view.name}_weights", weights, caption, "Two heatmaps of heads."))
    tables = [_table(record), _differences(record)]
    if record.structural is not None:
        tables.append(_by_state(record.structural))
    return Section(view.title, _findings(record), [_how(record)], tables, blocks)


def _findings(record: ProbesRecord) -> list[str]:
    findings = []
    uas_of = {score.name: score.uas for score in record.scores}
    for name, others in (
        (ATTENTION, (RIGHT_BRANCHING, RANDOM_ATTENTION)),
        (ATTENTION_WORDS, (DISTANCES_WORDS, RANDOM_ATTENTION_WORDS)),
    ):
        if name in uas_of:
            beside = [f"{LABELS[other]} {percent(uas_of[other].value)} %" for other in others if other in uas_of]
            findings.append(
                f"A probe on {LABELS[name]} finds the syntactic heads of {percent(uas_of[name].value)} % of the words of "
                f"{record.task} ({_limits(uas_of[name])}){'; ' if beside else ''}{', '.join(beside)}."
            )
    if (structural := record.structural) is not None:
        findings.append(
            f"The structural probe finds {percent(structural.chosen.value)} % of the trees' edges "
            f"({_limits(structural.chosen)}) in the vectors of {state_label(structural.state)}; embeddings "
            f"{percent(structural.uuas[0].value)} %, neighbouring words {percent(structural.neighbours.value)} %."
        )
    return findings


def state_label(state: int) -> str:
    """Name of a hidden state: 0 is the embeddings, n the output of layer n - 1."""
    return f"layer {state - 1}" if state else "the embeddings"


def _how(record: ProbesRecord) -> str:
    settings = record.settings
    where = (
        f"one half of the sentences ({record.trained_on:,}) and scored on the other"
        if record.halves
        else f"{record.trained_on:,} training sentences and scored on {record.sentences:,} others"
    )
    parts = [
        "The encoder is frozen. The attention-only probe has one weight for each head and direction; with words, the "
        "weights depend on the vectors of both words (Clark et al. 2019, section 5). Each word chooses its head by itself; "
        f"probes are trained on {where}. UAS is the share of words with the right head, LAS of those with the right head "
        "and relation, which a classifier names from what the probe sees of the arc.",
        f"Punctuation is {'scored, too' if settings['punctuation'] else 'not scored'}. Intervals are 95 % limits of "
        f"{record.replicates} bootstrap samples of sentences; they do not cover the randomness of the training.",
    ]
    if any(score.control is not None for score in record.scores):
        parts.append(
            "In the control task every word type attaches to itself, the first or the last word, drawn at random (Hewitt "
            "and Liang 2019); selectivity is UAS less the score of the same probe trained on it."
        )
    if (structural := record.structural) is not None:
        parts.append(
            f"The structural probe maps hidden states linearly to {structural.rank} dimensions in which squared distances "
            "of two words are to be their distance in the tree (Hewitt and Manning 2019). The smallest tree that spans the "
            f"scored words is compared with the annotated one: {structural.edges:,} edges, without direction. "
            f"{structural.chosen_on:,} of the training sentences are left out of the training and choose the layer."
        )
    if record.vectors:
        parts.append(f"Word vectors: {record.vectors}; {record.without_vector:,} scored words have none.")
    if record.truncated:
        parts.append(f"{record.truncated:,} sentences were too long and are left out.")
    if record.vanished:
        parts.append(f"{record.vanished:,} words have no token of their own and do not count.")
    return " ".join(parts)


def _table(record: ProbesRecord) -> Table:
    rows = [
        [
            LABELS[score.name],
            _with_limits(score.uas),
            _with_limits(score.las),
            _with_limits(score.control),
            _with_limits(score.selectivity, signed=True),
            f"{score.weights:,}",
        ]
        for score in record.scores
    ]
    header = ["probe", "UAS, %", "LAS, %", "control task, %", "selectivity", "weights"]
    return Table(header, rows, "Table 3 of Clark et al.: dependency parsing from attention")


def _differences(record: ProbesRecord) -> Table:
    rows = [
        [f"{LABELS[one.first]} less {LABELS[one.second]}", _with_limits(one.uas, signed=True)]
        for one in record.differences
    ]
    return Table(["difference", "UAS, points"], rows, "Differences of probes on the same sentences")


def _by_state(structural: StructuralScore) -> Table:
    rows = [["neighbouring words", _with_limits(structural.neighbours)]]
    rows += [
        [f"{state_label(state)}{', chosen' if state == structural.state else ''}", _with_limits(share)]
        for state, share in enumerate(structural.uuas)
    ]
    rows.append(["chosen less the embeddings", _with_limits(structural.gain, signed=True)])
    return Table(["vectors of", "edges found, %"], rows, "Structural probe: edges of the trees, without direction")


def _limits(share: Share) -> str:
    return f"{percent(share.low)} to {percent(share.high)}"


def _with_limits(share: Share | None, *, signed: bool = False) -> str:
    return MISSING if share is None else percents(share.value, share.low, share.high, signed=signed)
