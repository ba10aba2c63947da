"""Questions about what heads do: positions, separators, syntax, entropy, and heads that attend alike."""

from collections.abc import Sequence

import numpy as np

from bertsecrets.measures.clusters.measure import ClusterRecord
from bertsecrets.measures.dependency.record import DependencyRecord, RelationScore
from bertsecrets.papers.models import Group, Studied
from bertsecrets.papers.questions.answer import Answer, Missing, Told, estimate
from bertsecrets.probes.record import ATTENTION, RIGHT_BRANCHING, ProbesRecord
from bertsecrets.results.figures.intervals import IntervalRow, interval_rows
from bertsecrets.results.figures.layer_scatter import layer_scatter
from bertsecrets.results.figures.panels import HeadPanel, LayerLine, head_panels
from bertsecrets.results.figures.style import sample_size
from bertsecrets.results.formatting import head_label, number, p_value
from bertsecrets.results.report.content import FigureBlock, Table
from bertsecrets.results.scores import LEVEL
from bertsecrets.results.sections import highest
from bertsecrets.results.views import MeasureView, Replicates
from bertsecrets.statistics.corrections import corrected
from bertsecrets.statistics.student import mean_exceeds_zero

_OFFSETS = {"previous": "the previous token", "same": "the token itself", "next": "the next token"}
_POSSESSIVES = ("nmod:poss", "poss", "case")
_MOST_RELATIONS = 16
_HALF = 0.5


def what_heads_do(runs: Studied) -> Answer:
    """Heads of relative positions, of [SEP] and of dependency relations, the possessive among them."""
    told = []
    missing = []
    for one in runs.tuned:
        parts = []
        shorts = []
        figures: list[FigureBlock] = []
        tables: list[Table] = []
        offsets = one.views("offsets", "previous", "next")
        surface = one.views("surface", "sep_total")
        panels = []
        if offsets:
            for column in ("previous", "next"):
                parts.append(_highest_in_words(offsets[0], column, _OFFSETS[column]))
                panels.append(HeadPanel(_OFFSETS[column], offsets[0].value(column)))
            parts.append("These intervals are not corrected for choosing the highest head.")
            shorts.append("positions")
        else:
            missing.append(_lack(one, "attention to neighbouring tokens.", "measure=[offsets,surface,entropy]"))
        if surface:
            count = int(_above(surface[0], "sep_total", _HALF).sum())
            size = surface[0].value("sep_total").size
            parts.append(f"{count} of {size} heads give [SEP] significantly more than half of their attention.")
            panels.append(HeadPanel("all [SEP]", surface[0].value("sep_total")))
            shorts.append("[SEP]")
        else:
            missing.append(_lack(one, "attention to [SEP].", "analysis=surface"))
        if panels:
            figure = head_panels(
                panels,
                title="Attention to neighbours and to [SEP]",
                unit="mean attention",
                note=sample_size((offsets or surface)[0].count("previous" if offsets else "sep_total")),
                limits=(0.0, 1.0),
            )
            figures.append(
                FigureBlock(f"positions_{one.name}", figure, f"Neighbours and [SEP], {one.name}.", "Heatmaps.")
            )
        record = _dependency(runs, one)
        if record is not None:
            name, scores = record
            parts.append(_syntax_in_words(name, scores))
            shorts.append("syntax")
            tables.append(_relation_table(name, scores))
            figures.append(_relation_figure(name, scores))
        else:
            missing.append(_lack(one, "which heads find syntactic relations.", f"measure=[dependency]{one.annotated}"))
        if parts:
            short = f"{' and '.join(shorts)} answered" if len(shorts) < 3 else "heads for all three are named"
            told.append(Told(one.name, short, " ".join(parts), tables, figures))
    return Answer(told, missing)


def _lack(one: Group, what: str, settings: str) -> Missing:
    return Missing(one.name, f"no run measured {what}", one.models[0].command(settings))


def _above(view: MeasureView, column: str, level: float) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Which heads are significantly above a level, at a false discovery rate of 5 % over heads."""
    value_LH, stderr_LH, count_LH = view.grid(column)
    return np.nan_to_num(corrected(mean_exceeds_zero(value_LH - level, stderr_LH, count_LH)), nan=1.0) <= LEVEL


def _highest_in_words(view: MeasureView, column: str, what: str) -> str:
    value_LH, stderr_LH, _ = view.grid(column)
    place = highest(value_LH)
    most = estimate([float(value_LH[place])], float(stderr_LH[place]))
    ends = f"{number(max(most.low, 0.0))} to {number(min(most.high, 1.0))}"
    return f"{head_label(*place).capitalize()} attends most to {what}: {number(most.value)} (95 % interval {ends})."


def _dependency(runs: Studied, one: Group) -> tuple[str, list[RelationScore]] | None:
    """The relations of the fine-tuned model, else of a model before fine-tuning; with what they were measured on."""
    views = one.views("dependency", ready=lambda view: _relations(view) is not None)
    if views:
        scores = _relations(views[0])
        return (one.name, scores) if scores else None
    for name, view in runs.before("dependency"):
        scores = _relations(view)
        if scores and name.startswith(f"{one.config['model']['name']} on "):
            return f"{name}, before fine-tuning", scores
    return None


def _relations(view: MeasureView) -> list[RelationScore] | None:
    record = DependencyRecord.read(view.extras)
    scores = [] if record is None else [score for score in record.relations if score.relation != "all"]
    return scores or None


def _syntax_in_words(name: str, scores: Sequence[RelationScore]) -> str:
    better = [score for score in scores if score.gain_low > 0]
    best = max(scores, key=lambda score: score.gain)
    possessive = [score for score in scores if score.relation in _POSSESSIVES]
    text = (
        f"For {len(better)} of {len(scores)} relations ({name}) the best head is better than any fixed distance; most for "
        f"{best.relation}: {head_label(best.layer, best.head)} finds {number(100 * best.accuracy, 0)} % (95 % interval "
        f"{number(100 * best.low, 0)} to {number(100 * best.high, 0)}), the best distance {number(100 * best.baseline, 0)} %."
    )
    if not possessive:
        return f"{text} Too few possessives to tell about the 's."
    found = "; ".join(
        f"{score.relation}: {head_label(score.layer, score.head)}{', from the head to its dependent,' if score.from_head else ''} "
        f"finds {number(100 * score.accuracy, 0)} % ({number(100 * score.low, 0)} to {number(100 * score.high, 0)}), distance "
        f"{number(100 * score.baseline, 0)} %"
        for score in possessive
    )
    return f"{text} Possessives and 's: {found}."


def _relation_table(name: str, scores: Sequence[RelationScore]) -> Table:
    rows = [
        [
            score.relation,
            f"{score.count:,}",
            head_label(score.layer, score.head),
            "head to dependent" if score.from_head else "dependent to head",
            f"{number(100 * score.accuracy, 1)} ({number(100 * score.low, 1)} to {number(100 * score.high, 1)})",
            number(100 * score.baseline, 1),
        ]
        for score in scores[:_MOST_RELATIONS]
    ]
    header = ["relation", "words", "best head", "direction", "accuracy, % (95 % interval)", "best distance, %"]
    return Table(
        header,
        rows,
        f"Best head of each relation, chosen on one half of the sentences and scored on the other ({name})",
    )


def _relation_figure(name: str, scores: Sequence[RelationScore]) -> FigureBlock:
    figure = interval_rows(
        [
            IntervalRow(
                f"{score.relation} (layer {score.layer} · head {score.head})",
                *(100 * value for value in (score.gain, score.gain_low, score.gain_high)),
            )
            for score in scores[:_MOST_RELATIONS]
        ],
        title="The best head of each relation, beyond the best fixed distance",
        unit="accuracy beyond the best distance (points)",
        note="lines: 95 % intervals over sentences; not corrected over relations",
    )
    return FigureBlock(f"syntax_{name}", figure, f"Dependency relations, {name}.", "Dots with intervals.")


def diagonal_entropy_and_likeness(runs: Studied) -> Answer:
    """What diagonals are, where entropy is low, whether heads of a layer attend alike, and what probes find."""
    told = []
    missing = []
    for one in runs.tuned:
        parts = []
        figures = []
        offsets = one.views("offsets", *_OFFSETS)
        if offsets:
            parts.append(_diagonal(offsets[0]))
        else:
            missing.append(_lack(one, "attention to the previous, the same and the next token.", "measure=[offsets]"))
        entropy = one.views("entropy", "bits")
        if entropy:
            parts.append(_entropy(entropy))
            figures.append(_entropy_figure(one.name, entropy[0]))
        else:
            missing.append(_lack(one, "entropy.", "measure=[entropy]"))
        clusters = one.views("clusters", ready=lambda view: ClusterRecord.read(view.extras) is not None)
        record = ClusterRecord.read(clusters[0].extras) if clusters else None
        if record is not None:
            p = p_value(record.p)
            parts.append(
                f"The mean distance of heads of one layer is {number(record.within)} nats, that of heads of different layers "
                f"{number(record.between)} (p of shuffled layers {p if p.startswith('<') else f'= {p}'})."
            )
        else:
            missing.append(_lack(one, "distances between heads.", "analysis=clusters"))
        probes = [
            (name, probed)
            for name, view in [*((one.name, view) for view in one.views("probes")), *runs.before("probes")]
            if (probed := ProbesRecord.read(view.extras)) is not None
        ]
        if probes:
            parts.append(_probes(*probes[0]))
        if parts:
            told.append(Told(one.name, "", " ".join(parts), [], figures))
    return Answer(told, missing)


def _diagonal(view: MeasureView) -> str:
    counts = {column: int(_above(view, column, _HALF).sum()) for column in _OFFSETS}
    text = ", ".join(f"{counts[column]} to {what}" for column, what in _OFFSETS.items())
    return f"Heads that give significantly more than half of their attention to one offset: {text}."


def _entropy(views: Sequence[MeasureView]) -> str:
    grids = Replicates(views).grids("bits")
    assert grids is not None
    mean_L = np.nanmean(grids.value_RLH, axis=(0, 2))
    lowest = int(np.nanargmin(mean_L))
    return (
        f"Entropy is lowest in layer {lowest} ({number(float(mean_L[lowest]), 2)} bits; first layer {number(float(mean_L[0]), 2)} "
        f"bits, last {number(float(mean_L[-1]), 2)})."
    )


def _entropy_figure(name: str, view: MeasureView) -> FigureBlock:
    figure = layer_scatter(
        {"all tokens": [LayerLine("all tokens", view.value("bits"))]},
        title="Entropy of attention, by layer",
        unit="bits",
        note=sample_size(view.count("bits")),
        level=float(np.nanmean(view.value("uniform"))) if view.has("uniform") else None,
        level_name="uniform attention",
    )
    return FigureBlock(f"entropy_{name}", figure, f"Entropy, {name}.", "Scatter of heads by layer.")


def _probes(name: str, record: ProbesRecord) -> str:
    attention, baseline = record.score(ATTENTION), record.score(RIGHT_BRANCHING)
    if attention is None or baseline is None:
        return ""
    uas = attention.uas
    return (
        f"A probe of all heads ({name}) finds {number(100 * uas.value, 1)} % of the syntactic heads of words (95 % interval "
        f"{number(100 * uas.low, 1)} to {number(100 * uas.high, 1)}), right-branching {number(100 * baseline.uas.value, 1)} %."
    )
