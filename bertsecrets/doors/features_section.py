"""The report's section on attention to linguistic features."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from bertsecrets.doors.feature_columns import (
    RATE,
    SPECIAL,
    Array,
    Columns,
    counted,
    highest,
    shown,
    strongest,
)
from bertsecrets.doors.wording import FEATURES
from bertsecrets.measures.features import OVER_UNIFORM, UNIFORM
from bertsecrets.results.figures.layer_means import LayerLine, layer_means
from bertsecrets.results.figures.panels import HeadPanel, head_panels
from bertsecrets.results.figures.style import sample_size
from bertsecrets.results.report.content import FigureBlock, Section, Table

_LOWEST = -8
"""Power of two of the lowest multiple that the figure tells apart from zero."""


def features_section(columns: Columns, figures: dict[str, Figure], lead: list[str]) -> Section:
    """What is attended to, beside uniform attention; adds to ``figures`` and ``lead``."""
    names = [name for name in columns.names if not name.endswith(UNIFORM)]
    special = [name for name in names if name in ("cls", "sep")]
    words = [name for name in names if name not in SPECIAL]
    blocks: list[FigureBlock] = []
    sentences: list[str] = []
    if special:
        blocks += _special_figures(columns, special, figures)
        sentences.append(_early_and_late(columns, special))
    if words:
        blocks.append(_word_figure(columns, words, figures))
        sentences.append(_most_attended(columns, words))
    lead += sentences
    return Section(
        FEATURES[columns.measure],
        paragraphs=[
            *sentences,
            "Each number is the largest mean attention that a token with the feature receives, averaged over the examples "
            "that have such a token (Kovaleva et al. 2019, section 4.4). Uniform attention gives every token 1/L. The "
            "largest of several tokens is above that even where a head does not know the feature: the fair comparison is "
            f"with a random model (analysis={columns.measure} analysis.{columns.measure}.beside=[initial,random]). Heads are "
            "counted as above uniform attention by a one-sided t test of the differences from it over examples, at a false "
            f"discovery rate of {RATE:.0%} over all heads and features.",
        ],
        tables=[_table(columns, names)],
        figures=blocks,
    )


def _special_figures(columns: Columns, special: Sequence[str], figures: dict[str, Figure]) -> list[FigureBlock]:
    title, note = "Attention to special tokens, by layer", sample_size([columns.count(name) for name in special])
    unit = "mean attention received"
    figures[f"{columns.measure}_special"] = layer_means(
        [LayerLine(SPECIAL[name], columns.value(name)) for name in special],
        title=title,
        unit=unit,
        note=note,
        level=float(np.nanmean(columns.value(special[0] + UNIFORM))),
        level_name="uniform attention",
    )
    figures[f"{columns.measure}_special_heads"] = head_panels(
        [HeadPanel(counted(columns, name, SPECIAL[name]), columns.value(name)) for name in special],
        title="Attention to special tokens, head by head",
        unit=unit,
        note=note,
        limits=(0.0, 1.0),
    )
    return [
        FigureBlock(
            figures[f"{columns.measure}_special"], f"{title} (figure 6 of Kovaleva et al.).", "Line chart by layer."
        ),
        FigureBlock(figures[f"{columns.measure}_special_heads"], "The same, head by head.", "Heatmaps of heads."),
    ]


def _word_figure(columns: Columns, words: Sequence[str], figures: dict[str, Figure]) -> FigureBlock:
    title = "Attention to words, in multiples of what uniform attention gives"
    figures[f"{columns.measure}_words"] = head_panels(
        [
            HeadPanel(
                counted(columns, name, shown(name)),
                np.log2(np.maximum(_ratio(columns, name), 2.0**_LOWEST)),
            )
            for name in words
        ],
        title=title,
        unit="times uniform attention",
        note=sample_size([columns.count(name) for name in words]),
        signed=True,
        ticks={float(power): _times(power) for power in range(_LOWEST, -_LOWEST + 1)},
    )
    return FigureBlock(figures[f"{columns.measure}_words"], f"{title}.", "Heatmaps of heads, one for each feature.")


def _most_attended(columns: Columns, words: Sequence[str]) -> str:
    best = max(words, key=lambda name: float(np.nanmax(_ratio(columns, name))))
    ratio_LH = _ratio(columns, best)
    layer, head = highest(ratio_LH)
    return (
        f"The feature of words attended to most is {shown(best)}: layer {layer} · head {head} gives it "
        f"{ratio_LH[layer, head]:.1f} times what uniform attention would, heads on average {np.nanmean(ratio_LH):.1f} times."
    )


def _table(columns: Columns, names: Sequence[str]) -> Table:
    certain = columns.above_zero([name + OVER_UNIFORM for name in names])
    header = ["feature", "examples", "mean of heads", "uniform", "heads above it", "highest head ± standard error"]
    rows = [
        [
            shown(name),
            f"{columns.count(name):,}",
            f"{np.nanmean(columns.value(name)):.3f}",
            f"{np.nanmean(columns.value(name + UNIFORM)):.3f}",
            f"{int(certain_LH.sum())} of {certain_LH.size}",
            strongest(columns, name),
        ]
        for name, certain_LH in zip(names, certain, strict=True)
    ]
    return Table(header, rows, "Features, over all heads, beside what uniform attention gives")


def _ratio(columns: Columns, name: str) -> Array:
    return columns.value(name) / columns.value(name + UNIFORM)


def _times(power: int) -> str:
    return f"{2**power}×" if power >= 0 else f"1/{2**-power}×"


def _early_and_late(columns: Columns, special: Sequence[str]) -> str:
    """Where the special tokens are attended to most."""
    layers = {name: np.nanmean(columns.value(name), 1) for name in special}
    peaks = {name: int(mean_L.argmax()) for name, mean_L in layers.items()}
    places = " and ".join(
        f"{SPECIAL[name]} in layer {peaks[name]} ({layers[name][peaks[name]]:.3f} on average over heads)"
        for name in special
    )
    order = ""
    if len(special) == 2:
        earlier = peaks["cls"] < peaks["sep"]
        order = (
            ", as in the paper: [CLS] early, [SEP] late" if earlier else ", unlike the paper's [CLS] early, [SEP] late"
        )
    return f"Most attention goes to {places}{order}."
