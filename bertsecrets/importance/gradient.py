"""Gradient importance of attention to [SEP] and other tokens (Clark et al. 2019, section 3.2; methods C3)."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertsecrets.data.batch import Batch
from bertsecrets.grid import Column, HeadGrid
from bertsecrets.measures.base import GradientMeasure
from bertsecrets.measures.surface import CLASSES, TokenClasses
from bertsecrets.results.figures.grids import HeadPanel, head_panels
from bertsecrets.results.figures.layers import LayerLine, layer_scatter
from bertsecrets.results.figures.style import sample_size
from bertsecrets.results.formatting import number
from bertsecrets.results.report.content import FigureBlock, Section, Table
from bertsecrets.results.views import LEVEL, MeasureView
from bertsecrets.statistics.corrections import corrected
from bertsecrets.statistics.student import mean_differs_from_zero

GRADIENT, PRODUCT, MINUS_OTHER = "gradient_", "product_", "_minus_other"
ALL = "all"

_GRADIENT = "mean |∂loss/∂attention|"
_PRODUCT = "|attention × gradient|, sum over a row"
_SPECIAL = {"sep_total": "[SEP]", "cls": "[CLS]"}
_LABELS = {**CLASSES, ALL: "any token"}

Array = NDArray[np.float64]
Grid = tuple[Array, Array, NDArray[np.int64]]
"""Values, standard errors and counts of a column, ``[layers, heads]`` each."""


class GradientImportance(TokenClasses, GradientMeasure):
    """How much the task loss changes with a head's attention to four classes of tokens, to first order.

    With a the attention of token i to token j and g the derivative of the example's loss with respect to it, all other
    weights held fixed:

    Columns:
        ``gradient_<class>``: mean of |g| over all i and the tokens j of the class; an example without such tokens does
            not count. Classes are those of the measure ``surface``, and ``all``.
        ``product_<class>``: mean over i of the sum over the tokens j of the class of |a g|; an example without such
            tokens counts as 0. The four classes add up to ``product_all``.
        ``sep_total_minus_other``, ``cls_minus_other``: ``gradient_sep_total`` (``gradient_cls``) minus
            ``gradient_other``, example by example, to test whether they differ.

    For the settings see :class:`~bertsecrets.measures.surface.TokenClasses`.
    """

    name = "gradient_importance"
    title = "Gradient importance of attention"
    reads_task = True
    columns = (
        *(
            Column(GRADIENT + name, f"gradient, {label}", _GRADIENT, keep="high" if name == ALL else None)
            for name, label in _LABELS.items()
        ),
        *(
            Column(PRODUCT + name, f"attention × gradient, {label}", _PRODUCT, keep="high" if name == ALL else None)
            for name, label in _LABELS.items()
        ),
        *(
            Column(name + MINUS_OTHER, f"gradient, {label} minus other tokens", f"difference of {_GRADIENT}")
            for name, label in _SPECIAL.items()
        ),
    )
    tracked = (GRADIENT + "sep_total", GRADIENT + ALL)

    def per_example_gradient(self, attention_BHQK: Tensor, gradient_BHQK: Tensor, batch: Batch) -> Tensor:
        real_BS = batch.attention_mask_BS.bool()
        class_BCS = torch.cat((self.token_classes(batch), real_BS[:, None]), 1).to(attention_BHQK.dtype)
        row_BS = real_BS.to(attention_BHQK.dtype)
        row_B1Q1 = (row_BS / row_BS.sum(-1, keepdim=True))[:, None, :, None]
        size_BHQK = gradient_BHQK.abs()
        # The mean over rows first: what remains is one number for each token attended to.
        slope_BHK = (size_BHQK * row_B1Q1).sum(2)
        product_BHK = (size_BHQK * attention_BHQK * row_B1Q1).sum(2)
        count_B1C = class_BCS.sum(-1)[:, None]
        slope_BHC = slope_BHK @ class_BCS.transpose(1, 2) / count_B1C
        slope_BHC = slope_BHC.masked_fill(count_B1C == 0, torch.nan)
        names = list(_LABELS)
        other_BH = slope_BHC[..., names.index("other")]
        minus_BHC = torch.stack([slope_BHC[..., names.index(name)] - other_BH for name in _SPECIAL], -1)
        return torch.cat((slope_BHC, product_BHK @ class_BCS.transpose(1, 2), minus_BHC), -1)

    def extras(self, grid: HeadGrid, model: nn.Module) -> dict[str, Any]:
        """For each special token the layers' mean gradients over those for other tokens, and numbers of heads that differ."""
        columns: dict[str, Grid] = {
            column: (
                grid.value_LHC[..., index].numpy(),
                grid.stderr_LHC[..., index].numpy(),
                grid.count_LHC[..., index].numpy(),
            )
            for index, column in enumerate(grid.columns)
        }
        differs = _differs(columns)
        return {
            name: {
                "ratio_by_layer": [None if math.isnan(ratio) else ratio for ratio in _ratios(columns, name).tolist()],
                "heads": int(differs[name].size),
                "less": int((differs[name] & (columns[name + MINUS_OTHER][0] < 0)).sum()),
                "more": int((differs[name] & (columns[name + MINUS_OTHER][0] > 0)).sum()),
            }
            for name in _SPECIAL
        }

    @classmethod
    def describe(cls, view: MeasureView) -> Section | None:
        """Figure 3 of the paper: gradients by layer for each class, with attention times gradient, and a test by head."""
        if not view.has(GRADIENT + ALL):
            return None
        note = sample_size(view.count(GRADIENT + ALL))
        shown = ("cls", "sep_total", "punctuation", ALL)
        figures = []
        for prefix, unit, name, title in (
            (GRADIENT, _GRADIENT, cls.name, "Gradient of the loss with respect to attention"),
            (PRODUCT, _PRODUCT, f"{cls.name}_product", "Attention times gradient"),
        ):
            lines = [LayerLine(_LABELS[column], view.value(prefix + column)) for column in shown]
            figure = layer_scatter({"": lines}, title=f"{title}, by layer", unit=unit, note=note)
            caption = (
                "Figure 3 of Clark et al." if prefix == GRADIENT else "Each class's share of the first-order effect."
            )
            figures.append(
                FigureBlock(
                    name, figure, f"{caption} A dot for each head.", f"Scatter of heads by layer: {title.lower()}."
                )
            )
        columns = {column.name: view.grid(column.name) for column in view.columns if view.has(column.name)}
        differs = _differs(columns)
        with np.errstate(divide="ignore", invalid="ignore"):
            panels = [
                HeadPanel(
                    f"{_SPECIAL[name]} ÷ other tokens",
                    np.log2(view.value(GRADIENT + name) / view.value(GRADIENT + "other")),
                    differs[name],
                )
                for name in _SPECIAL
            ]
        heads = head_panels(
            panels,
            title="Gradients with respect to attention to special tokens, over those to other tokens",
            unit="log2 of the ratio",
            note=f"pale: may be chance (paired t test over examples, false discovery rate {LEVEL:.0%}); {note}",
            signed=True,
        )
        figures.append(FigureBlock(f"{cls.name}_heads", heads, "Head by head.", "Heatmaps of ratios."))
        return Section(
            view.title,
            [
                _finding(columns, name, differs[name])
                for name in _SPECIAL
                if np.isfinite(view.value(GRADIENT + name)).any()
            ],
            [
                "The gradient of an example's loss with respect to a head's attention from one token to another, all other "
                "weights held fixed, in absolute value, averaged over all pairs with a token of the class, then over "
                "examples (Clark et al. 2019, section 3.2). The loss is that of the task; the paper's is that of masked "
                "words. Layers differ in scale, so that only classes within a layer can be compared. A small gradient "
                "says that a small change of the attention hardly changes the loss; what turning all of it away does is "
                "tested by analysis=sinks."
            ],
            [_table(view)],
            figures,
        )


def _differs(columns: Mapping[str, Grid]) -> Mapping[str, NDArray[np.bool_]]:
    """For each special token the heads whose gradients differ from those of other tokens, corrected over all of them."""
    p_values = [mean_differs_from_zero(*columns[name + MINUS_OTHER]) for name in _SPECIAL]
    # NaN (nothing to test) compares as not significant.
    return dict(zip(_SPECIAL, corrected(np.stack(p_values)) <= LEVEL, strict=True))


def _ratios(columns: Mapping[str, Grid], name: str) -> Array:
    """Each layer's mean gradient for a class over that for other tokens."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio_L: Array = _layer_means(columns[GRADIENT + name][0]) / _layer_means(columns[GRADIENT + "other"][0])
    return ratio_L


def _finding(columns: Mapping[str, Grid], name: str, differs_LH: NDArray[np.bool_]) -> str:
    delta_LH = columns[name + MINUS_OTHER][0]
    less, more = (int((differs_LH & (sign * delta_LH > 0)).sum()) for sign in (-1, 1))
    counted = (
        f"The loss depends significantly less on attention to {_SPECIAL[name]} than on attention to other tokens in {less} "
        f"of {delta_LH.size} heads, and more in {more}"
    )
    ratio_L = _ratios(columns, name)
    if not np.isfinite(ratio_L).any():
        return f"{counted}."
    low, high = int(np.nanargmin(ratio_L)), int(np.nanargmax(ratio_L))
    return (
        f"{counted}; a layer's mean gradient for {_SPECIAL[name]} is between {number(float(ratio_L[low]), 2)} (layer {low}) "
        f"and {number(float(ratio_L[high]), 2)} (layer {high}) times that for other tokens."
    )


def _layer_means(value_LH: Array) -> Array:
    defined_L = np.isfinite(value_LH).any(axis=1)
    mean_L = np.full(len(value_LH), math.nan)
    mean_L[defined_L] = np.nanmean(value_LH[defined_L], axis=1)
    return mean_L


def _table(view: MeasureView) -> Table:
    gradients = {name: _layer_means(view.value(GRADIENT + name)) for name in _LABELS}
    products = {name: _layer_means(view.value(PRODUCT + name)) for name in CLASSES}
    total_L = _layer_means(view.value(PRODUCT + ALL))
    rows = []
    with np.errstate(divide="ignore", invalid="ignore"):
        for layer in range(len(total_L)):
            row = [str(layer), f"{gradients[ALL][layer]:.2e}"]
            row += [number(float(gradients[name][layer] / gradients[ALL][layer]), 2) for name in CLASSES]
            row += [number(float(100 * products[name][layer] / total_L[layer]), 1) for name in CLASSES]
            rows.append(row)
    header = ["layer", "mean |gradient|"]
    header += [f"{label} ÷ any token" for label in CLASSES.values()]
    header += [f"{label}, % of attention × gradient" for label in CLASSES.values()]
    return Table(header, rows, "Means over the heads of each layer", folded=True)
