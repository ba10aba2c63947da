"""Clark et al. 2019, *What Does BERT Look At?*: figures and tables of its page.

Layers and heads count from 0 here and from 1 in the paper. Numbers of figures were read off the pictures of the paper and of its
authors' notebook; their last digit may be wrong. Tables 1 to 3 are of the Wall Street Journal and of CoNLL-2012; other texts may
give other numbers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bertsecrets.data.special_tokens import SPECIAL_TOKENS
from bertsecrets.importance.gradient import GradientImportance, MaskedLMGradient
from bertsecrets.importance.sinks.rows import NOP, Agreement, Limits, SinkHead
from bertsecrets.measures.clusters.rows import Group, Place, Space
from bertsecrets.measures.coreference.measure import KINDS
from bertsecrets.measures.coreference.rows import Baseline, Mentions
from bertsecrets.measures.dependency.rows import Relation, Treebank
from bertsecrets.measures.offsets import column_name
from bertsecrets.measures.role_rows import LOCAL, SIEVE_ROLES, sieve_tests, thresholds
from bertsecrets.papers.models import Studied
from bertsecrets.papers.shows import by_layer, filled_table, published, without_counterpart
from bertsecrets.present.clusters import STABLE
from bertsecrets.present.figures.layers import LayerLine, layer_scatter
from bertsecrets.present.figures.maps import MapPanel, gallery
from bertsecrets.present.figures.rows import IntervalRow, interval_rows
from bertsecrets.present.figures.scatters import head_space
from bertsecrets.present.figures.style import sample_size
from bertsecrets.present.grid import highest
from bertsecrets.present.probes import state_label
from bertsecrets.present.report.content import FigureBlock, Section, Table
from bertsecrets.probes.rows import LABELS, HiddenState, Probed, ProbeScore, Structural
from bertsecrets.results.captures import CapturedExample, read_examples, read_maps, read_steps
from bertsecrets.results.estimate import Estimate
from bertsecrets.results.formatting import MISSING, head_label, heads_label, number, p_value, percent
from bertsecrets.results.views import MeasureView

BEFORE, FINE_TUNED = "before fine-tuning", "fine-tuned"
"""The states of a model, the ends of its name."""

Array = NDArray[np.float64]

_THEIRS = published("clark2019")


_UNIVERSAL = {
    "obj": "dobj",
    "compound": "nn",
    "nmod:poss": "poss",
    "aux:pass": "auxpass",
    "compound:prt": "prt",
}
"""Labels of Universal Dependencies -> those of the paper for the same relation, where they differ."""


@dataclass(frozen=True)
class State:
    """One experiment in one state of a model.

    Args:
        name: The model and its state, as named on the page.
        view: The numbers.
        pretrained: Whether it is the model before fine-tuning, of which the paper speaks.
    """

    name: str
    view: MeasureView
    pretrained: bool

    def layer_means(self, column: str) -> Array:
        """Mean over heads, ``[layers]``."""
        return np.asarray(np.nanmean(self.view.value(column), axis=1))


def states(models: Studied, experiment: str) -> list[State]:
    """The states with an experiment: of each group the model before fine-tuning, then the fine-tuned one of its first seed."""
    before = models.before(experiment)
    measured: list[State] = []
    for group in models.tuned:
        if (group.model, group.task) in before:
            measured.append(State(f"{group.name}, {BEFORE}", before[group.model, group.task], True))
        tuned = group.views(experiment, ready=lambda view: view.step is not None)
        measured += [State(f"{group.name}, {FINE_TUNED}", view, False) for view in tuned[:1]]
    # Without fine-tuned models of its task, the task names a model, together with its own name where there are several.
    tuned_on = {(group.model, group.task) for group in models.tuned}
    several = len({model for model, _ in before.keys() | tuned_on}) > 1
    for (model, task), view in before.items():
        if (model, task) not in tuned_on:
            measured.append(State(f"{task}{f' · {model}' * several}, {BEFORE}", view, True))
    return measured


def _tables(rows: Sequence[Mapping[str, str]], caption: str, *, apart: bool = False) -> list[Table]:
    """Rows of several models, which the column ``model`` names, as a table; of one model its caption says so instead.

    Args:
        rows, caption: Of the table.
        apart: Whether each model gets a table of its own.
    """
    of_model: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        without_name = {heading: cell for heading, cell in row.items() if heading != "model"}
        of_model.setdefault(row["model"], []).append(without_name)
    if not apart and len(of_model) > 1:
        return [filled_table(Table.of(rows, caption))]
    return [filled_table(Table.of(own_rows, f"{caption} ({name})")) for name, own_rows in of_model.items()]


_READABLE = 30
"""Most tokens of a sentence whose tokens can all be labelled."""

_MOST_PANELS = 4
_PATTERNS = {
    "attends broadly": ("entropy", "relative", "of uniform entropy"),
    "next token": ("offsets", column_name(1), "of its attention"),
    "[SEP]": ("surface", "sep_total", "of its attention"),
    "periods and commas": ("surface", "punctuation", "of its attention"),
}
"""Panels of figure 1 -> measure, column and what its number is a share of."""


def typical_heads(models: Studied) -> Section | None:
    """Figure 1: a sentence in the head that shows each pattern of section 3 most."""
    for model in states(models, "surface"):
        views = {
            state.view.name: state.view
            for measure in ("surface", "entropy", "offsets")
            for state in states(models, measure)
            if (state.name, state.view.run.folder) == (model.name, model.view.run.folder)
        }
        captured = _captured(model)
        if captured is None or len(views) < 3:
            continue
        example, map_LHQK = captured
        panels, rows = [], []
        for label, (measure, column, unit) in _PATTERNS.items():
            value_LH = views[measure].value(column)
            head = highest(value_LH)
            share = number(100 * float(value_LH[head]), 0)
            rows.append(f"{label}, {head_label(*head)}: {share} % {unit}")
            panels.append(MapPanel("", f"{label}\n{head_label(*head)}", map_LHQK[head], example.tokens))
        figure = gallery(panels, title="The head that shows each pattern most")
        caption = (
            f"Figure 1 ({model.name}), on one text: “{' / '.join(example.texts)}” The heads with the highest means over all "
            f"texts: {'; '.join(rows)}."
        )
        block = FigureBlock("clark_figure1", figure, caption, "Attention maps of four heads.")
        return Section(figures=[block], summary=f"{model.name}: {'; '.join(rows)}")
    return None


def heads_of_relations(records: Sequence[tuple[State, Sequence[Relation]]]) -> list[FigureBlock]:
    """Figure 5: a sentence in the best heads of its relations, with the syntactic heads framed; none without kept maps."""
    for model, relations in records:
        captured = _captured(model, {score.relation for score in relations})
        if captured is None:
            continue
        example, map_LHQK = captured
        panels: list[MapPanel] = []
        for score in sorted(relations, key=lambda score: -score.gain.value):
            pairs = [(word, head) for word, head, relation in example.relations if relation == score.relation]
            if not pairs or not score.beats_offsets or len(panels) == _MOST_PANELS:
                continue
            marked = [(head, word) if score.from_head else (word, head) for word, head in pairs]
            head = (score.layer, score.head)
            panels.append(
                MapPanel("", f"{score.relation}\n{head_label(*head)}", map_LHQK[head], example.tokens, marked=marked)
            )
        if not panels:
            continue
        figure = gallery(panels, title="One sentence in the best heads of some of its relations")
        caption = (
            f"Figure 5 ({model.name}), on one text: “{' / '.join(example.texts)}” A frame marks the first tokens of a word and "
            "of its syntactic head. Heads are scored by the attention between words alone, without that to [CLS] and [SEP]."
        )
        return [FigureBlock("clark_figure5", figure, caption, "Attention maps of heads that follow relations.")]
    return []


def _captured(model: State, relations: frozenset[str] | set[str] = frozenset()) -> tuple[CapturedExample, Array] | None:
    """A readable example with its maps ``[L, H, Q, K]``: that with the most of some relations, then the longest."""
    folder = model.view.run.captures
    steps = read_steps(folder)
    examples = [example for example in read_examples(folder) if len(example.tokens) <= _READABLE]
    # Maps of step 0 are of the model before fine-tuning.
    if not steps or not examples or (model.pretrained and 0 not in steps):
        return None
    example = max(
        examples,
        key=lambda candidate: (
            len(relations & {relation for _, _, relation in candidate.relations}),
            len(candidate.tokens),
        ),
    )
    return example, read_maps(steps[0 if model.pretrained else max(steps)])[example.index].astype(np.float64)


_HALF = 0.5
_SEP_GRADIENT, _OTHER_GRADIENT = "gradient_sep_total", "gradient_other"


def positions(models: Studied) -> Section | None:
    """Section 3.1: attention to the previous, the same and the next token."""
    measured = states(models, "offsets")
    if not measured:
        return None
    previous, same, following = (column_name(offset) for offset in (-1, 0, 1))
    names = {
        previous: ("previous", _THEIRS["positions"]["previous"]),
        following: ("next", _THEIRS["positions"]["next"]),
    }
    rows = [
        {
            "attention to the": f"{name} token",
            "model": model.name,
            "highest head": f"{head_label(*(head := highest(model.view.value(column))))}: {number(model.view.value(column)[head])}",
            "heads above one half": _heads(np.argwhere(model.view.value(column) > _HALF)),
            "paper": _heads(theirs),
        }
        for column, (name, theirs) in {**names, same: ("current", ())}.items()
        for model in measured
        if model.view.has(column)
    ]
    tables = _tables(rows, f"Heads that attend to neighbours, {_texts(measured, previous)}")
    lines = {
        label: [LayerLine(label, model.view.value(column))]
        for column, label in ((previous, "previous token"), (same, "current token"), (following, "next token"))
        for model in measured[:1]
        if model.view.has(column)
    }
    figures = _figure(
        "clark_positions", lines, measured[0], previous, "Attention to neighbouring tokens, by layer", "attention", 1.0
    )
    return Section(tables=tables, figures=figures)


def special_tokens(models: Studied) -> Section | None:
    """Section 3.2, figure 2: attention to [CLS], [SEP] and punctuation."""
    columns = {
        "cls": ("attention to", "[CLS]"),
        "sep_total": ("attention to", "[SEP]"),
        "punctuation": ("attention to", ". and ,"),
        "sep_to_sep": ("attention to [SEP] from", "[SEP]"),
        "other_to_sep": ("attention to [SEP] from", "other tokens"),
    }
    title = "Figure 2: special tokens and punctuation"
    return _layer_means(models, "surface", columns, _THEIRS["attention"], "clark_figure2", title, "attention", 1.0)


def gradients(models: Studied, measure: str = GradientImportance.name) -> Section | None:
    """Section 3.2, figure 3: how much a loss depends on attention to [SEP].

    Args:
        models: The models.
        measure: The loss: ``gradient_importance`` of the task, ``masked_lm_gradient`` of masked words.
    """
    columns = {_SEP_GRADIENT: ("gradient of", "[SEP]"), _OTHER_GRADIENT: ("gradient of", "other tokens")}
    theirs = {_SEP_GRADIENT: _THEIRS["gradient"]}
    loss = "masked words" if measure == MaskedLMGradient.name else "the task"
    title = f"Figure 3: gradient of the loss of {loss}, in the table divided by that of any token"
    name = f"clark_figure3_{measure}"
    return _layer_means(models, measure, columns, theirs, name, title, "gradient", over="gradient_all")


def entropy(models: Studied) -> Section | None:
    """Section 3.3, figure 4: focused and broad heads."""
    columns = {"bits": ("all", "tokens"), "cls_bits": ("from", "[CLS]")}
    theirs = {name: np.divide(nats, np.log(2)) for name, nats in _THEIRS["entropy"].items()}
    title = "Figure 4: entropy of attention; texts of the paper are longer than most sentences"
    return _layer_means(models, "entropy", columns, theirs, "clark_figure4", title, "bits", beside=("uniform",))


def _layer_means(
    models: Studied,
    measure: str,
    columns: Mapping[str, tuple[str, str]],
    theirs: Mapping[str, Sequence[float]],
    name: str,
    title: str,
    unit: str,
    top: float | None = None,
    over: str = "",
    beside: Sequence[str] = (),
) -> Section | None:
    """Means by layer in every state, the paper's beside ours, and a dot for each head of the first state.

    Args:
        models: The models.
        measure: The measure.
        columns: Column -> its panel in the figure, and its line there; together they name it in the table.
        theirs: Column -> the paper's means by layer.
        name, title, unit, top: Of the figure.
        over: A column by which the means of the table are divided; empty for none.
        beside: Columns that the table has besides, without numbers of the paper.
    """
    measured = [model for model in states(models, measure) if model.view.has(next(iter(columns)))]
    if not measured:
        return None
    rows = []
    for column in (*columns, *beside):
        label = " ".join(columns.get(column, (column,)))
        published_L = by_layer(theirs[column]) if column in theirs else MISSING
        # Beside several models the paper has a row of its own.
        beside_ours = published_L if len(measured) == 1 else MISSING
        for model in measured:
            if model.view.has(column):
                mean_L = model.layer_means(column) / (model.layer_means(over) if over else 1.0)
                rows.append((label, model.name, by_layer(mean_L), beside_ours))
        if published_L != beside_ours:
            rows.append((label, "paper (figure)", published_L, MISSING))
    first = measured[0]
    lines: dict[str, list[LayerLine]] = {}
    for column, (panel, line) in columns.items():
        if first.view.has(column):
            lines.setdefault(panel, []).append(
                LayerLine(line, first.view.value(column), None if over else theirs.get(column))
            )
    # A panel of one line has no legend.
    lines = {f"{panel} {series[0].name}" if len(series) == 1 else panel: series for panel, series in lines.items()}
    return Section(
        tables=_tables(
            [dict(zip((unit, "model", "mean by layer", "paper (figure)"), row, strict=True)) for row in rows],
            f"{title}; mean over heads, from layer 0, {_texts(measured, next(iter(columns)))}",
        ),
        figures=_figure(name, lines, first, next(iter(columns)), title, unit, top),
    )


def _figure(
    name: str,
    lines: dict[str, list[LayerLine]],
    model: State,
    column: str,
    title: str,
    unit: str,
    top: float | None,
) -> list[FigureBlock]:
    note = f"{model.name}; {sample_size(model.view.count(column))}"
    figure = layer_scatter(lines, title=title, unit=unit, note=note, top=top)
    return [FigureBlock(name, figure, f"{title} ({model.name}): a dot for each head.", "Scatter of heads by layer.")]


def _texts(measured: Sequence[State], column: str) -> str:
    """Number of examples of a column, over all states that have it."""
    return sample_size([model.view.count(column) for model in measured if model.view.has(column)])


def _heads(heads: Sequence[tuple[int, int]] | np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> str:
    return heads_label((int(layer), int(head)) for layer, head in heads) or MISSING


def sinks(models: Studied) -> Section | None:
    """Section 3.2: whether the answers stay the same when attention to [SEP] goes elsewhere, or is cut."""
    rows = [
        _sink_row(model, token, limits)
        for model in states(models, "sinks")
        if (limits := model.view.fact(Limits)) is not None
        for token in dict.fromkeys(row.token for row in model.view.found(Agreement))
    ]
    if not rows:
        return None
    caption = "Sink heads of each token: how many change the answers when cut or redirected, and raise the loss when redirected"
    return Section(
        paragraphs=[
            "The paper infers the no-op from small gradients. Here the attention of each sink head to its token is cut, or "
            "redirected to the other tokens in proportion, one head at a time. The change of the answers is the mean total "
            "variation distance of the predicted probabilities, or the mean change of the score over its range. The "
            "paper's statement is about [SEP]; in some models the sink is [CLS]."
        ],
        tables=_tables(rows, caption),
    )


def _sink_row(model: State, token: str, limits: Limits) -> dict[str, str]:
    heads = [head for head in model.view.found(SinkHead) if head.token == token]
    largest = max(heads, key=lambda head: max(head.redirect, head.cut), default=None)
    return {
        "token": SPECIAL_TOKENS[token],
        "model": model.name,
        "heads": str(len(heads)),
        "nop by norms": str(sum(head.by_norms == NOP for head in heads)),
        "answers move: cut": str(sum(head.cut >= limits.change for head in heads)),
        "redirected": str(sum(head.redirect >= limits.change for head in heads)),
        "loss rises": str(sum(head.loss_changes and head.redirect_loss.value > 0 for head in heads)),
        "largest change": MISSING
        if largest is None
        else f"{head_label(largest.layer, largest.head)}: {number(max(largest.redirect, largest.cut), 3)}",
    }


def roles(models: Studied) -> Section | None:
    """The kinds of heads of section 3 by the sieve bias test of Pande et al. 2021."""
    measured = [model for model in states(models, "roles") if model.view.has(LOCAL)]
    if not measured:
        return None
    rows = []
    for model in measured:
        limits, tests = thresholds(model.view), sieve_tests(model.view)
        for role in SIEVE_ROLES:
            if role not in tests or not np.isfinite(model.view.value(role)).any():
                continue
            value_LH = model.view.value(role)
            top = highest(value_LH)
            rows.append(
                {
                    "role": role,
                    "model": model.name,
                    "threshold": f"{limits[role]:g}",
                    "heads": str(int(tests[role].sum())),
                    "heads by layer": " ".join(str(int(heads)) for heads in tests[role].sum(1)),
                    "highest score": f"{head_label(*top)}: {number(float(value_LH[top]), 2)}",
                }
            )
    return Section(
        paragraphs=[
            "The paper names the kinds of heads by eye. Pande et al. 2021 score a head by its attention to the tokens that a "
            "role names, over its attention to an average token (1 under uniform attention), and test the score over "
            "examples; here with a false discovery rate of 5 % over heads and roles. A head may have several roles."
        ],
        tables=_tables(rows, f"Heads with each role, {_texts(measured, LOCAL)}"),
    )


_BASELINES = {
    "nearest": "nearest mention",
    "head_match": "same head word",
    "rule_based": "rules",
    "random": "random mention",
}


def dependency(models: Studied) -> Section | None:
    """Section 4.2, table 1: the best head of each relation."""
    records = [(model, found) for model in states(models, "dependency") if (found := model.view.found(Relation))]
    if not records:
        return None
    rows = [_relation_row(model, score) for model, relations in records for score in relations]
    model, relations = records[0]
    treebank = model.view.fact(Treebank)
    assert treebank is not None
    scores = [
        IntervalRow(
            f"{score.relation} ({head_label(score.layer, score.head)})",
            score.accuracy.value,
            score.accuracy.low,
            score.accuracy.high,
            score.baseline,
            published=_share(_THEIRS["relations"].get(_UNIVERSAL.get(score.relation, score.relation))),
        )
        for score in relations[:40]
    ]
    figure = interval_rows(
        scores,
        title="The best head of each relation, on sentences that did not choose it",
        unit="share of words whose head is found",
        baseline="best fixed offset",
        value="best head",
        published="the paper's best head",
        limits=(0, 1),
        reference=None,
        note=f"{model.name}; bars: 95 % intervals; {treebank.sentences:,} sentences",
    )
    caption = f"Table 1 as a figure ({model.name})."
    figures = [FigureBlock("clark_table1", figure, caption, "Dots with intervals, one row a relation.")]
    figures += heads_of_relations(records)
    return Section(
        paragraphs=[
            "Heads are chosen on a third of the sentences and scored on the others, over random splits; the paper's were chosen "
            "and scored on the same sentences of the Wall Street Journal, with Stanford labels. Where a treebank of "
            "Universal Dependencies has the same relation under another name, the paper's number stands beside it. "
            "P-values, against every offset, are corrected for the number of relations.",
            *without_counterpart(
                _THEIRS["relations"], {_UNIVERSAL.get(row["relation"], row["relation"]) for row in rows}
            ),
        ],
        tables=_tables(
            rows, "Table 1: the best head of each relation; paper: its best head and best offset", apart=True
        ),
        figures=figures,
    )


def coreference(models: Studied) -> Section | None:
    """Section 4.3, table 2: the best head for antecedents."""
    rows = [
        row
        for model in states(models, "coreference")
        for found in model.view.found(Mentions)
        for row in _mention_rows(model, found)
    ]
    if not rows:
        return None
    return Section(
        paragraphs=[
            "The head is chosen on a third of the documents and scored on the others, over random splits; the paper does not "
            "say how its head 4-3 (from 0) was chosen."
        ],
        tables=_tables(rows, "Table 2: antecedents found", apart=True),
    )


def probes(models: Studied) -> Section | None:
    """Section 5, table 3: dependency parsing from the attention of all heads."""
    rows, vectors = [], set()
    for model in states(models, "probes"):
        probed, scores = model.view.fact(Probed), model.view.found(ProbeScore)
        if probed is None or not scores:
            continue
        rows += [
            _probe_row(
                model,
                LABELS[row.probe],
                row.uas,
                str(_THEIRS["probes"].get(row.probe, MISSING)),
                f"{row.las:%}",
                MISSING if row.selectivity is None else percent(row.selectivity.value, signed=True),
            )
            for row in scores
        ]
        if (structural := model.view.fact(Structural)) is not None:
            rows.append(_probe_row(model, "neighbouring words", structural.neighbours))
            for found in model.view.found(HiddenState):
                if found.chosen or not found.state:
                    theirs = str(_THEIRS["probes"]["structural"]) if found.chosen else MISSING
                    label = f"structural, vectors of {state_label(found.state)}"
                    rows.append(_probe_row(model, label, found.uuas, theirs))
        if probed.vectors:
            vectors.add(
                f"Word vectors: {probed.vectors}; {probed.without_vector:,} of {probed.words:,} scored words have none."
            )
    if not rows:
        return None
    return Section(
        paragraphs=sorted(vectors),
        tables=_tables(rows, "Table 3: words with the right head; structural probes: edges found", apart=True),
    )


def _probe_row(
    model: State, label: str, share: Estimate, theirs: str = MISSING, las: str = MISSING, selectivity: str = MISSING
) -> dict[str, str]:
    return {
        "model": model.name,
        "probe": label,
        "heads right, % [95 %]": f"{share:%}",
        "with relation, % [95 %]": las,
        "selectivity": selectivity,
        "paper (WSJ)": theirs,
    }


def _share(published: Sequence[float] | None) -> float:
    """The paper's best head's share of words, which it gives in percent; NaN where it has none."""
    return np.nan if published is None else published[0] / 100


def _relation_row(model: State, score: Relation) -> dict[str, str]:
    theirs = _THEIRS["relations"].get(_UNIVERSAL.get(score.relation, score.relation))
    return {
        "model": model.name,
        "relation": score.relation,
        "words": f"{score.words:,}",
        "head": f"{head_label(score.layer, score.head)}{', from the head' if score.from_head else ''}",
        "accuracy, % [95 %]": f"{score.accuracy:%}",
        "offset: baseline, %": f"{number(score.offset, 0, signed=True)}: {percent(score.baseline)}",
        "difference [95 %]": f"{score.gain:+%}",
        "p": p_value(score.p_gain),
        "paper, %": MISSING if theirs is None else f"{theirs[0]}, {theirs[1]}",
        "paper's head": MISSING if theirs is None or len(theirs) < 4 else head_label(*theirs[2:]),
    }


def _mention_rows(model: State, found: Mentions) -> list[dict[str, str]]:
    baselines = [row for row in model.view.found(Baseline) if row.mention == found.mention]
    finders = [
        (head_label(found.layer, found.head), "head", found.accuracy),
        *((_BASELINES.get(row.baseline, row.baseline), row.baseline, row.accuracy) for row in baselines),
    ]
    theirs = _THEIRS["coreference"]
    return [
        {
            "model": model.name,
            "mentions": found.mention,
            "number": f"{found.mentions:,}",
            "finder": label,
            "accuracy, % [95 %]": f"{accuracy:%}",
            "paper (CoNLL-2012)": str(theirs[name][KINDS.index(found.mention)]) if name in theirs else MISSING,
        }
        for label, name, accuracy in finders
    ]


def groups(models: Studied) -> Section | None:
    """Distances between heads within layers and between them, and the groups that heads form."""
    measured = [pair for model in states(models, "clusters") for pair in _spaces(model)]
    if not measured:
        return None
    rows = []
    for model, space in measured:
        stability = [row.stability for row in model.view.found(Group) if row.before == space.before]
        rows.append(
            {
                "model": model.name,
                "within layers, nats": number(space.within),
                "between layers": number(space.between),
                "p": p_value(space.p_layers),
                "groups": str(len(stability)),
                "of these stable": str(sum(value >= STABLE for value in stability)) if space.replicates else MISSING,
                "stress": number(space.stress, 2),
            }
        )
    model, space = measured[0]
    places = [row for row in model.view.found(Place) if row.before == space.before]
    figure = head_space(
        [(row.x, row.y) for row in places],
        model.view.value("within_layer").shape[1],
        [row.group for row in places],
        title="Heads near each other attend alike",
        note=f"{model.name}; stress {number(space.stress, 2)}",
    )
    caption = f"Figure 6 ({model.name}): heads by layer and by group."
    return Section(
        tables=_tables(
            rows,
            f"Distances between heads and their groups, {_texts([model for model, _ in measured], 'within_layer')}",
        ),
        figures=[FigureBlock("clark_figure6", figure, caption, "Heads as points in the plane.")],
    )


def _spaces(model: State) -> list[tuple[State, Space]]:
    """A model's space; before it, that of the model before fine-tuning, which the measure takes along."""
    spaces = {space.before: space for space in model.view.found(Space)}
    if True not in spaces or model.pretrained:
        return [(model, space) for before, space in spaces.items() if not before]
    name = model.name.removesuffix(FINE_TUNED) + BEFORE
    return [(replace(model, name=name, pretrained=True), spaces[True]), (model, spaces[False])]
