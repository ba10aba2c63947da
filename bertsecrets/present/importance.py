"""Scores of heads on pages: confidence, gradients, relevance, Shapley values, direct and total effects."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from bertsecrets.ablation.rows import EarlyHeads, Worth
from bertsecrets.importance.rows import Completeness, Propagation
from bertsecrets.present.figures.grids import HeadPanel, head_panels
from bertsecrets.present.figures.layers import LayerLine, layer_scatter
from bertsecrets.present.figures.style import sample_size
from bertsecrets.present.grid import grid_section, highest
from bertsecrets.present.kit import block, table
from bertsecrets.present.presenter import Presenter
from bertsecrets.present.ranking import like_the_extreme, picked
from bertsecrets.present.report.content import FigureBlock, Section, Table
from bertsecrets.results.formatting import counted, head_label, lower_first, metric_label, number, p_value, with_error
from bertsecrets.results.views import LEVEL, Array, MeasureView

_CONFIDENT = 0.8
_LISTED, _ENDS = 20, 12


def confidence(view: MeasureView) -> Section | None:
    """Every column by head, and the number of confident heads."""
    section = grid_section(view)
    if section is None or not view.has("confidence"):
        return section
    value_LH = view.value("confidence")
    sentence = (
        f"Confidence exceeds {_CONFIDENT:g}, the level of positional heads in the paper, in "
        f"{int((value_LH > _CONFIDENT).sum())} of {value_LH.size} heads."
    )
    return replace(section, findings=[*section.findings, sentence])


def integrated_gradients(view: MeasureView) -> Section | None:
    """The shares by head, and a check of their sum."""
    section, sums = grid_section(view), view.fact(Completeness)
    if section is None or sums is None:
        return section
    sentence = (
        f"The shares sum to {number(sums.total)}; disabling all heads raises the loss from {number(sums.loss)} to "
        f"{number(sums.loss_disabled)}, by {number(sums.loss_disabled - sums.loss)}."
    )
    return replace(section, findings=[*section.findings, sentence])


def first_order(view: MeasureView) -> Section | None:
    """Which heads have estimates significantly above 0 in the run's mode of disabling, and every mode by head."""
    section = grid_section(view)
    modes = [column.name for column in view.columns if view.has(column.name)]
    defined = [mode for mode in modes if np.isfinite(view.value(mode)).any()]
    if section is None or not defined:
        return section
    asked = (view.run.config().get("ablation") or {}).get("mode")
    sentence, head = _rises(view, asked if asked in defined else defined[0])
    return replace(section, findings=[sentence], head=head, descriptive=False)


def _rises(view: MeasureView, mode: str) -> tuple[str, tuple[int, int]]:
    """A sentence on the heads whose estimates are significantly above 0, and the first of them."""
    value_LH, stderr_LH, count_LH = view.grid(mode)
    matters_LH = view.beyond({mode: 0.0})[mode]
    matter, heads = int(matters_LH.sum()), int(np.isfinite(value_LH).sum())
    top = highest(np.where(matters_LH, value_LH, np.nan) if matter else value_LH)
    rise = picked(top, value_LH, stderr_LH, count_LH)
    how = f"one-sided t tests over {count_LH.max():,} examples, false discovery rate {100 * LEVEL:g} %"
    above = "first-order estimate significantly above 0"
    if not matter:
        largest = f"the largest, {rise} without {head_label(*top)}, is not significant"
        return (
            f"None of {heads} heads has a {above} in mode {mode} ({how}); "
            f"{largest if value_LH[top] > 0 else 'no estimate is above 0'}."
        ), top
    which = f"has a {above}: {head_label(*top)}," if matter == 1 else f"have a {above}, most of all {head_label(*top)}:"
    alike = like_the_extreme(value_LH, stderr_LH, count_LH) if top == highest(value_LH) else ""
    return (
        f"{matter} of {heads} heads {which} the loss is estimated to rise by {rise} without it in mode {mode} ({how}). "
        f"{alike}"
    ).strip(), top


_SPECIAL = {"sep_total": "[SEP]", "cls": "[CLS]"}
_DRAWN = ("cls", "sep_total", "punctuation", "all")


def gradient(view: MeasureView) -> Section | None:
    """Figure 3 of Clark et al.: gradients by layer for each class of tokens, with attention times gradient, and a test
    by head.
    """
    if not view.has("gradient_all") or not view.count("gradient_all"):
        return None
    loss, meaning = (
        ("The loss of masked words", "the loss of masked words, as in the paper")
        if view.name == "masked_lm_gradient"
        else ("The loss", "the task loss; the paper uses the loss of masked words (masked_lm_gradient)")
    )
    labels = {
        column.name.removeprefix("product_"): column.label.removeprefix("attention × gradient, ")
        for column in view.columns
        if column.name.startswith("product_")
    }
    note = sample_size(view.count("gradient_all"))
    gradients, products = ({name: view.value(prefix + name) for name in labels} for prefix in ("gradient_", "product_"))
    tested = view.differs([f"{name}_minus_other" for name in _SPECIAL])
    p_values = dict(zip(_SPECIAL, tested.values(), strict=True))
    title = f"Gradient of {lower_first(loss)} with respect to attention"
    figures = [
        block(
            name,
            f"{title}, by layer",
            layer_scatter,
            f"{caption} A dot for each head.",
            panels={"": [LayerLine(labels[each], values[each]) for each in _DRAWN]},
            unit=view.column(column).unit,
            note=note,
        )
        for values, column, name, title, caption in (
            (gradients, "gradient_all", view.name, title, "Figure 3 of Clark et al."),
            (
                products,
                "product_all",
                f"{view.name}_product",
                "Attention times gradient",
                "Shares of the first-order effect.",
            ),
        )
    ]
    with np.errstate(divide="ignore", invalid="ignore"):
        panels = [
            HeadPanel(f"{label} ÷ other tokens", np.log2(gradients[name] / gradients["other"]), p_values[name] <= LEVEL)
            for name, label in _SPECIAL.items()
        ]
    figures.append(
        block(
            f"{view.name}_heads",
            "Gradients with respect to attention to special tokens, relative to other tokens",
            head_panels,
            "Head by head.",
            panels=panels,
            unit="log2 of the ratio",
            note=f"pale: not significant (paired t test over examples, false discovery rate {LEVEL:.0%}); {note}",
            signed=True,
        )
    )
    return Section(
        view.title,
        [
            _less_and_more(view, name, p_values[name], gradients, loss)
            for name in _SPECIAL
            if np.isfinite(gradients[name]).any()
        ],
        [
            "Absolute gradient of an example's loss with respect to a head's attention from one token to another, "
            "all other weights held fixed, averaged over the pairs with a token of the class, then over examples "
            f"(Clark et al. 2019, section 3.2). The loss is {meaning}. Compare classes within a layer, because layers "
            "differ in scale. A small gradient means that a small change of the attention hardly changes the loss; "
            "analysis=sinks redirects all of it."
        ],
        [_classes_by_layer(labels, gradients, products)],
        figures,
    )


def _less_and_more(view: MeasureView, name: str, p_LH: Array, gradients: Mapping[str, Array], loss: str) -> str:
    delta_LH, label = view.value(f"{name}_minus_other"), _SPECIAL[name]
    less, more = (int(((p_LH <= LEVEL) & (sign * delta_LH > 0)).sum()) for sign in (-1, 1))
    sentence = (
        f"{loss} depends significantly less on attention to {label} than on attention to other tokens in {less} of "
        f"{delta_LH.size} heads, and more in {more}"
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio_L = _layer_means(gradients[name]) / _layer_means(gradients["other"])
    if not np.isfinite(ratio_L).any():
        return f"{sentence}."
    low, high = int(np.nanargmin(ratio_L)), int(np.nanargmax(ratio_L))
    return (
        f"{sentence}; a layer's mean gradient for {label} is between {number(float(ratio_L[low]), 2)} (layer {low}) "
        f"and {number(float(ratio_L[high]), 2)} (layer {high}) times that for other tokens."
    )


def _classes_by_layer(
    labels: Mapping[str, str], gradients: Mapping[str, Array], products: Mapping[str, Array]
) -> Table:
    slope, product = ({name: _layer_means(values[name]) for name in labels} for values in (gradients, products))
    classes = [name for name in labels if name != "all"]
    with np.errstate(divide="ignore", invalid="ignore"):
        rows = [
            [
                str(layer),
                f"{mean:.2e}",
                *(number(float(slope[name][layer] / mean), 2) for name in classes),
                *(number(float(100 * product[name][layer] / product["all"][layer]), 1) for name in classes),
            ]
            for layer, mean in enumerate(slope["all"])
        ]
    header = ["layer", "mean |gradient|", *(f"{labels[name]} ÷ any token" for name in classes)]
    header += [f"{labels[name]}, % of attention × gradient" for name in classes]
    return Table(header, rows, "Means over the heads of each layer", folded=True)


def _layer_means(value_LH: Array) -> Array:
    """Means over the heads of each layer with a value; NaN if none has one."""
    return np.ma.masked_invalid(value_LH).mean(axis=1).filled(np.nan)  # type: ignore[no-any-return]


def relevance(view: MeasureView) -> Section | None:
    """Both columns, and the most relevant head of each layer."""
    if not view.has("relevance") or not view.count("relevance"):
        return None
    value_LH, stderr_LH, count_LH = view.grid("relevance")
    signed_LH, how = view.value("signed"), view.fact(Propagation) or Propagation(False)
    top = highest(value_LH)
    columns: dict[str, Callable[[tuple[int, int]], str]] = {
        "layer": lambda head: str(head[0]),
        "most relevant head": lambda head: head_label(*head),
        "relevance": lambda head: with_error(float(value_LH[head]), float(stderr_LH[head])),
        "with its sign": lambda head: number(float(signed_LH[head]), signed=True),
    }
    tops = list(enumerate(np.nanargmax(value_LH, axis=1).tolist()))
    weights = (
        "receive half of the relevance of a product and pass it on to queries and keys"
        if how.consider_attention
        else "are held fixed, so relevance passes to the values"
    )
    return Section(
        view.title,
        [
            f"{head_label(*top).capitalize()} has the highest share of its layer's relevance: "
            f"{picked(top, value_LH, stderr_LH, count_LH, bounds=(0.0, 1.0))}, compared with "
            f"{number(1 / value_LH.shape[1])} for equal shares. {like_the_extreme(value_LH, stderr_LH, count_LH)}"
        ],
        [
            "Relevance of a head to the logit of the predicted class, by layer-wise relevance propagation through "
            "the whole encoder, as a share of the absolute relevances of the layer's heads (Voita et al. 2019). "
            f"Attention weights {weights}. Shares are comparable within a layer, "
            "not between layers."
        ],
        [table(tops, columns, "The top head of each layer", folded=True)],
        [
            _panels(
                view,
                [name],
                f"Relevance of heads to the prediction{', with its sign' * signed}",
                count=f"{view.count(name):,} examples",
                signed=signed,
            )
            for name, signed in (("relevance", False), ("signed", True))
        ],
    )


def shapley(view: MeasureView) -> Section | None:
    """Values of all heads, which of them differ from 0, and their sum."""
    worths = view.found(Worth)
    if not worths or view.step is None or not view.count(worths[0].quantity):
        return None
    names = [worth.quantity for worth in worths]
    p_values = view.differs(names)
    value_LH = view.value(names[0])
    order = np.argsort(-value_LH, axis=None, kind="stable").tolist()
    few = len(order) <= 2 * _ENDS
    which = "All heads" if few else f"The {_ENDS} heads with the highest and the lowest values"
    columns: dict[str, Callable[[tuple[int, int]], str]] = {}
    for name in names:
        columns |= {name: _value(view, name), f"{name}: p": _p(p_values[name])}
    return Section(
        view.title,
        [_adds_up(view, worth, p_values[worth.quantity]) for worth in worths],
        [
            f"Heads are disabled (mode {worths[0].mode}) one after another in random orders; a head's value is the "
            "mean decrease of the score, or increase of the mean loss, at its turn. In every order, the values add "
            "up to the difference between the intact model and the model without heads. Errors are from sampling "
            f"orders on these {counted(worths[0].examples, 'example')} (Held and Yang 2023, but without truncated "
            "orders)."
        ],
        [
            _by_head(
                value_LH.shape[1],
                order if few else [*order[:_ENDS], *order[-_ENDS:]],
                columns,
                f"{which}, by value for the loss (p: t test over orders, corrected)",
            )
        ],
        [
            _panels(view, [name], f"Shapley values of heads: {name}", p_values, f"{view.count(name):,} random orders")
            for name in names
        ],
        head=highest(value_LH),
    )


def _adds_up(view: MeasureView, worth: Worth, p_LH: Array) -> str:
    value_LH, stderr_LH, count_LH = view.grid(worth.quantity)
    up, down = (int(((p_LH <= LEVEL) & (sign * value_LH > 0)).sum()) for sign in (1, -1))
    head = highest(value_LH)
    score, sign = ("mean loss", -1) if worth.quantity == "loss" else (metric_label(worth.quantity), 1)
    return (
        f"The {score} is {number(sign * worth.whole)} with all heads and {number(sign * worth.none)} without any; the "
        f"values of the {value_LH.size} heads add up to this difference. {up} have a value significantly above 0 and "
        f"{down} below; the highest is {picked(head, value_LH, stderr_LH, count_LH, digits=4)}, of {head_label(*head)}."
    )


def direct_effects(view: MeasureView) -> Section | None:
    """Both effects of all heads, and where they differ."""
    if not view.has("undone"):
        return None
    names = ["direct", "total", "undone"]
    p_values = view.differs(names)
    # The last layer has no later layers, so its difference is rounding.
    p_values["undone"][-1] = np.nan
    direct_LH, undone_LH = view.value("direct"), view.value("undone")
    harmful = int(((p_values["direct"] <= LEVEL) & (direct_LH > 0)).sum())
    less, more = (int(((p_values["undone"] <= LEVEL) & (sign * undone_LH > 0)).sum()) for sign in (1, -1))
    sentence = (
        f"Disabling a head raises the loss significantly by its direct effect in {harmful} of {direct_LH.size} heads. "
        f"Below the last layer, the total effect is significantly less than the direct one in {counted(less, 'head')}, "
        f"and more in {more}."
    )
    early = view.fact(EarlyHeads)
    if early is not None and early.ratio is not None:
        sentence += (
            f" Summed over all heads below the last layer, the total effect is {early.ratio:.2} times the direct one."
        )
    elif early is not None and early.direct is not None:
        sentence += (
            " Summed over all heads below the last layer, the direct effect may be 0, so the share compensated by "
            "later layers is undefined."
        )
    columns = {
        "direct": _value(view, "direct"),
        "total": _value(view, "total"),
        "direct − total": _value(view, "undone"),
        "p of no difference": _p(p_values["undone"]),
    }
    largest = np.argsort(-np.abs(direct_LH), axis=None, kind="stable")[:_LISTED].tolist()
    caption = "Heads by the size of their direct effect on the loss (t test over examples, corrected)"
    title = (
        "Effect of disabling a head on the loss: direct, total (with the reaction of later layers), and the difference"
    )
    return Section(
        view.title,
        [sentence],
        [
            f"Each head is disabled singly{f' (mode {early.mode})' if early else ''}. For its direct effect, later "
            "layers contribute the same to the residual stream as in the intact model, so they neither compensate "
            "nor amplify the harm; the layer's own feed-forward network reacts, and layer normalisation rescales the "
            "changed stream. Direct minus total is the compensation by later layers."
        ],
        [_by_head(direct_LH.shape[1], largest, columns, caption)],
        [_panels(view, names, title, p_values, f"{view.count('direct'):,} examples")],
    )


def _panels(
    view: MeasureView,
    names: Sequence[str],
    title: str,
    p_values: Mapping[str, Array] | None = None,
    count: str = "",
    *,
    signed: bool = True,
) -> FigureBlock:
    """Heatmaps of columns with one unit, over ``count``; pale where a number may be 0."""
    panels = [
        HeadPanel(view.column(name).label, view.value(name), p_values[name] <= LEVEL if p_values else None)
        for name in names
    ]
    unit = view.column(names[0]).unit
    pale = f"pale: may be 0 (t test, false discovery rate {LEVEL:.0%}); " if p_values else ""
    note = f"{pale}{count}"
    name = view.name if len(names) > 1 else f"{view.name}_{names[0]}"
    return block(name, title, head_panels, panels=panels, unit=unit, note=note, signed=signed)


def _by_head(
    heads: int, order: Sequence[int], columns: Mapping[str, Callable[[tuple[int, int]], str]], caption: str
) -> Table:
    """A folded table of heads, given by their indices in the order of layer and head."""
    rows = [divmod(place, heads) for place in order]
    return table(rows, {"head": lambda head: head_label(*head), **columns}, caption, folded=True)


def _value(view: MeasureView, name: str) -> Callable[[tuple[int, int]], str]:
    value_LH, stderr_LH, _ = view.grid(name)
    return lambda head: with_error(float(value_LH[head]), float(stderr_LH[head]), 4)


def _p(p_LH: Array) -> Callable[[tuple[int, int]], str]:
    return lambda head: p_value(float(p_LH[head]))


CONFIDENCE, INTEGRATED_GRADIENTS, FIRST_ORDER = map(Presenter, (confidence, integrated_gradients, first_order))
GRADIENT, RELEVANCE, SHAPLEY, DIRECT_EFFECTS = map(Presenter, (gradient, relevance, shapley, direct_effects))
