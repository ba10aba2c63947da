"""Sections that combine two experiments of one run; no other part of a report names experiments."""

from collections.abc import Callable, Mapping

import numpy as np

from bertsecrets.ablation.section import single_heads
from bertsecrets.ablation.verdicts import NEEDED
from bertsecrets.results.captures import moment_name, read_examples, read_maps, read_steps
from bertsecrets.results.figures.gallery import MapPanel, gallery
from bertsecrets.results.figures.gradients import gradient_against_drift
from bertsecrets.results.figures.panels import ScatterPanel, head_scatter
from bertsecrets.results.formatting import head_label, number
from bertsecrets.results.report.content import FigureBlock, Section
from bertsecrets.results.sections import correlation_in_words
from bertsecrets.results.views import MeasureView
from bertsecrets.statistics.ranks import rank_correlation

Join = Callable[[Mapping[str, MeasureView], Mapping[str, Section], int], Section | None]

_GALLERY_TOKENS = 40


def gradients_and_drift(
    views: Mapping[str, MeasureView], sections: Mapping[str, Section], heads: int
) -> Section | None:
    """Whether layers drift more because they get larger gradients; None unless both are known."""
    if "drift" not in sections or "gradient_flow" not in sections:
        return None
    history = views["gradient_flow"].whole_layers().history("gradient_norm")
    norm_L = np.stack([value_L1[:, 0] for _, value_L1 in history]).mean(axis=0)
    value_LH, _, count_LH = views["drift"].grid("cosine")
    drift_L = 1 - np.nanmean(value_LH, axis=1)
    title = "Do layers drift more because they get larger gradients?"
    figure = gradient_against_drift(norm_L, drift_L, title=title, unit="1 − cosine", count=count_LH)
    correlation = rank_correlation(norm_L, drift_L)
    finding = (
        "too few layers to judge it by"
        if not correlation.judged
        else "not distinguishable from chance"
        if not correlation.significant
        else "layers with larger gradients drifted more"
        if correlation.rho > 0
        else "layers with larger gradients drifted less: gradient size does not explain the drift"
    )
    return Section(
        "Gradients and drift",
        [
            f"Over {correlation.count} layers the rank correlation of mean gradient norm and drift is "
            f"{correlation_in_words(correlation)}: {finding}."
        ],
        figures=[
            FigureBlock(
                "gradient_against_drift", figure, "Mean gradient norm against drift, by layer.", "Scatter of layers."
            )
        ],
    )


def drift_and_ablation(views: Mapping[str, MeasureView], sections: Mapping[str, Section], heads: int) -> Section | None:
    """Whether the heads that changed are the heads that matter; None unless both numbers differ between heads."""
    if "drift" not in sections or "ablation" not in sections:
        return None
    cosine_LH = views["drift"].value("cosine")
    rows = single_heads(views["ablation"].run.ablation_table())
    if len(rows) != cosine_LH.size:
        return None
    drift = np.array([1 - cosine_LH[row["layer"], row["head"]] for row in rows])
    effect = np.array([100 * row["delta"] for row in rows])
    known = np.isfinite(drift) & np.isfinite(effect)
    drift, effect, rows = drift[known], effect[known], [row for row, both in zip(rows, known, strict=True) if both]
    if not len(rows) or not np.ptp(drift) or not np.ptp(effect):
        return None
    correlation = rank_correlation(drift, effect)
    certain = np.array([row["verdict"] == NEEDED for row in rows])
    figure = head_scatter(
        [ScatterPanel(f"ρ = {number(correlation.rho, 2)}", drift, effect, certain)],
        title="Are the heads that changed the heads that matter?",
        x_label="drift (1 − cosine)",
        y_label="change of score (points)",
        note=f"one dot a head; filled: needed; disabled by {rows[0]['mode']}; n = {rows[0]['count']} examples",
    )
    return Section(
        "Changed and needed",
        [
            f"Over {len(rows)} heads the rank correlation of drift and change of score without the head is "
            f"{correlation_in_words(correlation)}; negative: heads that changed more matter more."
        ],
        figures=[
            FigureBlock(
                "drift_against_ablation",
                figure,
                "Drift against the effect of disabling, head by head.",
                "Scatter of heads.",
            )
        ],
    )


def maps_of_changed_heads(
    views: Mapping[str, MeasureView], sections: Mapping[str, Section], heads: int
) -> Section | None:
    """Maps of the most changed heads before and after fine-tuning; None unless both drift and maps are known."""
    highlights = sections["drift"].highlights if "drift" in sections else None
    if highlights is None or "capture" not in sections:
        return None
    folder = views["capture"].run.captures
    files = read_steps(folder)
    # The maps of the weights that the page is about; those of the last step are kept too.
    step = views["drift"].step
    first, last = min(files), step if step in files else max(files)
    examples = read_examples(folder)
    # The longest example with tokens still readable in print.
    fitting = [example for example in examples if len(example.tokens) <= _GALLERY_TOKENS]
    example = (
        max(fitting, key=lambda one: len(one.tokens)) if fitting else min(examples, key=lambda one: len(one.tokens))
    )
    before, after = (read_maps(files[step])[example.index].numpy() for step in (first, last))
    panels = []
    for line in highlights.heads[:heads]:
        row, place = head_label(line.layer, line.head), (line.layer, line.head)
        panels.append(MapPanel(row, moment_name(first), before[place], example.tokens))
        if last != first:
            panels.append(MapPanel(row, moment_name(last), after[place], example.tokens))
            panels.append(MapPanel(row, "difference", after[place] - before[place], example.tokens, signed=True))
    figure = gallery(panels, title="The most changed heads, before and after")
    caption = f"Example {example.index} ({example.label}): {' / '.join(example.texts)}"
    return Section(
        "Maps before and after",
        paragraphs=["Rows are the tokens that attend, columns the tokens attended to."],
        figures=[FigureBlock("maps", figure, caption, "Attention maps of the most changed heads.")],
    )


JOINS: tuple[Join, ...] = (gradients_and_drift, drift_and_ablation, maps_of_changed_heads)
"""The joins of a run's report, in the order of their sections."""

READ_TASK = frozenset({gradients_and_drift, drift_and_ablation})
"""The joins that speak of what fine-tuning on the task did."""
