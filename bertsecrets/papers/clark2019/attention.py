"""Section 3: where heads attend on the surface, and how broadly."""

from collections.abc import Sequence

import numpy as np

from bertsecrets.measures.offsets import column_name
from bertsecrets.papers.chapter import (
    Answers,
    Chapter,
    Claim,
    PaperRuns,
    by_layer,
    claims_tables,
    highest_in_half,
    layer_difference,
)
from bertsecrets.papers.clark2019 import published
from bertsecrets.papers.clark2019.models import (
    Model,
    claim,
    layers_above,
    model_tables,
    models,
    most_heads_below,
    not_measured,
    some_heads_above,
)
from bertsecrets.results.figures.layer_scatter import layer_scatter
from bertsecrets.results.figures.panels import LayerLine
from bertsecrets.results.figures.style import sample_size
from bertsecrets.results.formatting import MISSING, head_label, heads_label, number
from bertsecrets.results.report.content import FigureBlock, Section, Table
from bertsecrets.results.sections import highest

_SURFACE = "Add measure=[offsets,surface,entropy], or analyze.py analysis=surface."
_HALF, _LITTLE, _NEARLY_ALL = 0.5, 0.1, 0.9
_BROAD = 0.9
"""Least entropy of a broad head, as a share of that of uniform attention; the paper's is 3.8 of about 4.8 nats, 0.8."""

_SEPARATOR, _OTHER, _ALL = "gradient_sep_total", "gradient_other", "gradient_all"


def positions(runs: PaperRuns) -> Chapter:
    """Section 3.1: attention to the previous, the same and the next token."""
    title = "Section 3.1: relative position"
    measured = models(runs, "offsets")
    if not measured:
        return not_measured(title, _SURFACE)
    before = [model for model in measured if model.pretrained]
    previous, same, following = (column_name(offset) for offset in (-1, 0, 1))
    names = {
        previous: ("previous", published.PREVIOUS),
        following: ("next", published.NEXT),
    }
    claims = []
    for column, (name, _) in names.items():
        answers = Answers(
            {model.name: some_heads_above(model, column, _HALF) for model in before if model.view.has(column)}
        )
        claims += claim(
            f"Some heads give most of their attention to the {name} token.",
            "A head gives it significantly more than half",
            answers,
        )
    answers = Answers({model.name: most_heads_below(model, same, _LITTLE) for model in before if model.view.has(same)})
    claims += claim(
        "Most heads put little attention on the current token.",
        "More than half of the heads give it significantly less than a tenth",
        answers,
    )
    rows = [
        [
            f"{name} token",
            model.name,
            f"{head_label(*(place := highest(model.view.value(column))))}: {number(model.view.value(column)[place])}",
            _heads(np.argwhere(model.view.value(column) > _HALF)),
            _heads(theirs) if model.published else MISSING,
        ]
        for column, (name, theirs) in {**names, same: ("current", ())}.items()
        for model in measured
        if model.view.has(column)
    ]
    header = ["attention to the", "model", "highest head", "heads above one half", "paper"]
    tables = model_tables(header, rows, "Heads that attend to neighbours")
    lines = {
        label: [LayerLine(label, model.view.value(column))]
        for column, label in ((previous, "previous token"), (same, "current token"), (following, "next token"))
        for model in measured[:1]
        if model.view.has(column)
    }
    figures = _figure("paper_positions", lines, measured[0], previous, "Attention to neighbouring tokens, by layer")
    return _chapter(title, claims, tables, figures)


def special_tokens(runs: PaperRuns) -> Chapter:
    """Section 3.2, figure 2: attention to [CLS], [SEP] and punctuation."""
    title = "Section 3.2, figure 2: attention to separators"
    measured = models(runs, "surface")
    if not measured:
        return not_measured(title, _SURFACE)
    before = [model for model in measured if model.pretrained]
    most, itself, early, late = Answers(), Answers(), Answers(), Answers()
    for model in before:
        layers, none = layers_above(model, "sep_total", _HALF)
        most[model.name] = True if layers else False if none else None
        itself[model.name] = _nearly_all(model, layers)
        for answers, column, upper in ((early, "cls", False), (late, "punctuation", True)):
            grids = model.grids(column)
            if grids is not None:
                answers[model.name] = highest_in_half(grids, model.layer_means(column), late=upper)
    claims = [
        *claim(
            "In some middle layers over half of all attention goes to [SEP].",
            "A layer's mean over its heads is significantly above one half",
            most,
        ),
        *claim(
            "In those layers [SEP] attends almost entirely (over 90 %) to [SEP].",
            "In each layer that is above one half, attention from [SEP] to [SEP] is significantly above 0.9",
            itself,
        ),
        *claim(
            "[CLS] is attended to in the earlier layers.",
            "Its highest layer lies in the lower half of the model, significantly above every layer of the upper half",
            early,
        ),
        *claim(
            "Periods and commas are attended to in the last layers.",
            "Their highest layer lies in the upper half of the model, significantly above every layer of the lower half",
            late,
        ),
    ]
    shown = {
        "cls": ("[CLS]", published.CLS),
        "sep_total": ("[SEP]", published.SEPARATOR),
        "punctuation": (". and ,", published.PUNCTUATION),
        "sep_to_sep": ("[SEP] → [SEP]", published.SEP_TO_SEP),
        "other_to_sep": ("other → [SEP]", published.OTHER_TO_SEP),
    }
    rows = [
        [label, model.name, by_layer(model.layer_means(column)), model.theirs(theirs)]
        for column, (label, theirs) in shown.items()
        for model in measured
        if model.view.has(column)
    ]
    tables = model_tables(
        ["attention", "model", "mean by layer", "paper (figure)"], rows, "Mean over heads, from layer 0"
    )
    first = measured[0]
    lines = {
        "attention to": [
            LayerLine(shown[name][0], first.view.value(name)) for name in ("cls", "sep_total", "punctuation")
        ],
        "attention to [SEP] from": [
            LayerLine(label, first.view.value(name))
            for name, label in (("sep_to_sep", "[SEP]"), ("other_to_sep", "other tokens"))
        ],
    }
    figures = _figure("paper_figure2", lines, first, "cls", "Figure 2: special tokens and punctuation")
    return _chapter(title, claims, tables, figures)


def gradients(runs: PaperRuns) -> Chapter:
    """Section 3.2, figure 3: how much the loss depends on attention to [SEP]."""
    title = "Section 3.2, figure 3: gradient importance"
    measured = [model for model in models(runs, "gradient_importance") if model.view.has(_SEPARATOR)]
    if not measured:
        return not_measured(title, "Add measure=[gradient_importance], or analyze.py analysis=gradient_importance.")
    answers = Answers({model.name: _separator_matters_less(model) for model in measured})
    claims = claim(
        "From the fifth layer on, changing attention to [SEP] does little to the loss: much less than to other tokens.",
        "From a third of the depth on, the gradient with respect to attention to [SEP] is in every layer significantly below "
        "that to other tokens",
        answers,
    )
    rows = [
        [
            model.name,
            by_layer(model.layer_means(_SEPARATOR) / model.layer_means(_ALL)),
            model.theirs(published.SEPARATOR_GRADIENT),
        ]
        for model in measured
    ]
    header = ["model", "gradient of [SEP] / of any token, by layer", "paper (figure, masked language modelling)"]
    tables = model_tables(header, rows, "How much the loss depends on attention to [SEP], from layer 0")
    first = measured[0]
    lines = {
        label: [LayerLine(label, first.view.value(column))]
        for column, label in ((_SEPARATOR, "[SEP]"), (_OTHER, "other tokens"))
    }
    figures = _figure("paper_figure3", lines, first, _SEPARATOR, "Figure 3: gradient of the loss", "gradient", None)
    return _chapter(title, claims, tables, figures)


def entropy(runs: PaperRuns) -> Chapter:
    """Section 3.3, figure 4: focused and broad heads."""
    title = "Section 3.3, figure 4: focused and broad attention"
    measured = models(runs, "entropy")
    if not measured:
        return not_measured(title, _SURFACE)
    before = [model for model in measured if model.pretrained]
    broad = Answers({model.name: _broad_below(model) for model in before})
    last = Answers({model.name: _last_is_highest(model) for model in before})
    claims = [
        *claim(
            "Some heads in the lower layers attend very broadly.",
            f"A head of the lower half has significantly more than {_BROAD} of the entropy of uniform attention",
            broad,
        ),
        *claim(
            "The last layer has a high entropy of attention from [CLS], which attends broadly there.",
            "The last layer's mean is significantly above that of every other layer",
            last,
        ),
    ]
    nats = {"bits": ("all tokens", published.ENTROPY), "cls_bits": ("from [CLS]", published.CLS_ENTROPY)}
    rows = [
        [
            label,
            model.name,
            by_layer(model.layer_means(column)),
            number(float(np.nanmean(model.view.value("uniform"))), 2),
            model.theirs([value / np.log(2) for value in theirs]),
        ]
        for column, (label, theirs) in nats.items()
        for model in measured
    ]
    header = ["rows", "model", "bits, mean by layer", "uniform", "paper (figure)"]
    tables = model_tables(
        header, rows, "Entropy of attention, from layer 0; texts of the paper are longer than most sentences"
    )
    first = measured[0]
    lines = {label: [LayerLine(label, first.view.value(column))] for column, (label, _) in nats.items()}
    figures = _figure("paper_figure4", lines, first, "bits", "Figure 4: entropy of attention", "bits", None)
    return _chapter(title, claims, tables, figures)


def _chapter(title: str, claims: Sequence[Claim], tables: Sequence[Table], figures: Sequence[FigureBlock]) -> Chapter:
    return Chapter(Section(title, tables=[*claims_tables(claims), *tables], figures=figures), claims)


def _figure(
    name: str,
    lines: dict[str, list[LayerLine]],
    model: Model,
    column: str,
    title: str,
    unit: str = "attention",
    top: float | None = 1.0,
) -> list[FigureBlock]:
    note = f"{model.name}; {sample_size(model.view.count(column))}"
    figure = layer_scatter(lines, title=title, unit=unit, note=note, top=top)
    return [FigureBlock(name, figure, f"{title} ({model.name}): a dot for each head.", "Scatter of heads by layer.")]


def _heads(places: Sequence[tuple[int, int]] | np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> str:
    return heads_label((int(layer), int(head)) for layer, head in places) or MISSING


def _nearly_all(model: Model, layers: Sequence[int]) -> bool | None:
    """Whether [SEP] gives over nine tenths to [SEP] in all of some layers; None without layers."""
    if not layers or not model.view.has("sep_to_sep"):
        return None
    above, _ = layers_above(model, "sep_to_sep", _NEARLY_ALL)
    if set(layers) <= set(above):
        return True
    value_LH, stderr_LH, _ = model.view.grid("sep_to_sep")
    upper_L = np.nanmean(value_LH, axis=1) + 1.96 * np.nanmean(stderr_LH, axis=1)
    return False if any(upper_L[layer] < _NEARLY_ALL for layer in layers) else None


def _separator_matters_less(model: Model) -> bool | None:
    column = "sep_total_minus_other"
    if not model.view.has(column):
        return None
    upper = range(len(model.layer_means(column)) // 3, len(model.layer_means(column)))
    value_LH, stderr_LH, _ = model.view.grid(column)
    mean_L, reach_L = np.nanmean(value_LH, axis=1), 1.96 * np.nanmean(stderr_LH, axis=1)
    if all(mean_L[layer] + reach_L[layer] < 0 for layer in upper):
        return True
    return False if any(mean_L[layer] - reach_L[layer] > 0 for layer in upper) else None


def _broad_below(model: Model) -> bool | None:
    layers = model.view.value("relative").shape[0]
    return some_heads_above(model, "relative", _BROAD, range((layers + 1) // 2))


def _last_is_highest(model: Model) -> bool | None:
    """Whether the last layer's [CLS] entropy is above every other's; None where a difference is not significant."""
    grids = model.grids("cls_bits")
    if grids is None or grids.value_RLH.shape[1] < 2:
        return None
    last = grids.value_RLH.shape[1] - 1
    differences = [layer_difference(grids, last, layer) for layer in range(last)]
    if any(certain and delta < 0 for delta, certain in differences):
        return False
    return True if all(certain for _, certain in differences) else None
