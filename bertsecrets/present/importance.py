"""Scores of heads on pages: confidence, gradients, relevance, Shapley values, direct and total effects."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from bertsecrets.ablation.rows import EarlyHeads, Worth
from bertsecrets.importance.rows import Completeness, Propagation
from bertsecrets.present.figures.grids import HeadPanel, head_panels
from bertsecrets.present.figures.layers import LayerLine, layer_scatter
from bertsecrets.present.figures.style import sample_size
from bertsecrets.present.grid import grid_section, highest
from bertsecrets.present.presenter import Presenter
from bertsecrets.present.ranking import like_the_extreme, picked
from bertsecrets.present.report.content import FigureBlock, Section, block
from bertsecrets.results.formatting import counted, head_label, lower_first, metric_label, number, percentage
from bertsecrets.results.views import LEVEL, Array, MeasureView

_CONFIDENT = 0.8


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
    how = f"one-sided t tests over {count_LH.max():,} examples, false discovery rate {percentage(LEVEL)}"
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
            note=f"pale: not significant (paired t test over examples, false discovery rate {percentage(LEVEL)}); "
            f"{note}",
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
        figures=figures,
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


def _layer_means(value_LH: Array) -> Array:
    """Means over the heads of each layer with a value; NaN if none has one."""
    return np.ma.masked_invalid(value_LH).mean(axis=1).filled(np.nan)  # type: ignore[no-any-return]


def relevance(view: MeasureView) -> Section | None:
    """Both columns, and the most relevant head."""
    section = grid_section(view)
    if section is None or not view.has("relevance") or not view.count("relevance"):
        return None
    value_LH, stderr_LH, count_LH = view.grid("relevance")
    top, how = highest(value_LH), view.fact(Propagation) or Propagation(False)
    finding = (
        f"{head_label(*top).capitalize()} has the highest share of its layer's relevance: "
        f"{picked(top, value_LH, stderr_LH, count_LH, bounds=(0.0, 1.0))}, compared with "
        f"{number(1 / value_LH.shape[1])} for equal shares. {like_the_extreme(value_LH, stderr_LH, count_LH)}"
    )
    weights = (
        "receive half of the relevance of a product and pass it on to queries and keys"
        if how.consider_attention
        else "are held fixed, so relevance passes to the values"
    )
    meaning = (
        "Relevance of a head to the logit of the predicted class, by layer-wise relevance propagation through the "
        "whole encoder, as a share of the absolute relevances of the layer's heads (Voita et al. 2019). Attention "
        f"weights {weights}. Shares are comparable within a layer, not between layers."
    )
    return replace(section, findings=[finding], paragraphs=[meaning], descriptive=False)


def shapley(view: MeasureView) -> Section | None:
    """Values of all heads, which of them differ from 0, and their sum."""
    worths = view.found(Worth)
    if not worths or view.step is None or not view.count(worths[0].quantity):
        return None
    names = [worth.quantity for worth in worths]
    p_values = view.differs(names)
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
        figures=[
            _panels(view, [name], f"Shapley values of heads: {name}", p_values, f"{view.count(name):,} random orders")
            for name in names
        ],
        head=highest(view.value(names[0])),
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
        figures=[_panels(view, names, title, p_values, f"{view.count('direct'):,} examples")],
    )


def _panels(
    view: MeasureView, names: Sequence[str], title: str, p_values: Mapping[str, Array], count: str
) -> FigureBlock:
    """Heatmaps of columns with one unit, over ``count``; pale where a number may be 0."""
    panels = [HeadPanel(view.column(name).label, view.value(name), p_values[name] <= LEVEL) for name in names]
    unit, note = (
        view.column(names[0]).unit,
        f"pale: may be 0 (t test, false discovery rate {percentage(LEVEL)}); {count}",
    )
    name = view.name if len(names) > 1 else f"{view.name}_{names[0]}"
    return block(name, title, head_panels, panels=panels, unit=unit, note=note, signed=True)


CONFIDENCE, INTEGRATED_GRADIENTS, FIRST_ORDER = map(Presenter, (confidence, integrated_gradients, first_order))
GRADIENT, RELEVANCE, SHAPLEY, DIRECT_EFFECTS = map(Presenter, (gradient, relevance, shapley, direct_effects))
