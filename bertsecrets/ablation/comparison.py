"""The section on disabling of a comparison page: effects of single heads and of whole layers, side by side."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertsecrets.results.figures.panels import HeadPanel, LayerPanel, head_panels, layer_panels
from bertsecrets.results.figures.style import sample_size
from bertsecrets.results.formatting import head_code, lower_first
from bertsecrets.results.report.content import FigureBlock, Section, Table, joined
from bertsecrets.results.run import CHECKPOINT
from bertsecrets.results.sections import (
    MOST_PANELS,
    agreement_in_words,
    agreement_table,
    condition_rows,
    left_out_panels,
    lowest_layer,
)
from bertsecrets.results.views import Comparison, Replicates


@dataclass(frozen=True)
class Effects:
    """The effects at the last step of the first metric.

    Args:
        delta_RLH: Changes of the score, ``[replicates, layers, heads]``; a whole layer is one head.
        certain_RLH: Which of them are significant.
        baseline_R: Scores of the models with nothing disabled.
        count: Examples.
        metric, mode: The score, and the mode of disabling.
    """

    delta_RLH: NDArray[np.float64]
    certain_RLH: NDArray[np.bool_]
    baseline_R: NDArray[np.float64]
    count: int
    metric: str
    mode: str

    @property
    def what(self) -> str:
        """Metric and mode, as shown in tables."""
        return f"{self.metric} ({self.mode})"


def effects(replicates: Replicates, kind: str) -> Effects | None:
    """Effects of every head or layer (``kind``); None if no replicate disabled any."""
    deltas, verdicts, baselines, last = [], [], [], None
    for view in replicates.views:
        singles = [row for row in view.run.ablation_table().rows() if row["kind"] == kind]
        singles = [row for row in singles if row["stage"] == CHECKPOINT] or singles
        run_size = view.run.size()
        if not singles or run_size is None:
            continue
        step = max(row["step"] for row in singles)
        first = last = next(row for row in singles if row["step"] == step)
        size = run_size if kind == "head" else (run_size[0], 1)
        delta_LH, certain_LH = np.full(size, np.nan), np.zeros(size, bool)
        for row in singles:
            if all(row[name] == first[name] for name in ("step", "evaluation", "metric", "mode", "stage")):
                delta_LH[row["layer"], row["head"] or 0] = row["delta"]
                certain_LH[row["layer"], row["head"] or 0] = row["significant"]
        deltas.append(delta_LH)
        verdicts.append(certain_LH)
        baselines.append(first["baseline"])
    if last is None:
        return None
    return Effects(
        np.stack(deltas), np.stack(verdicts), np.array(baselines), last["count"], last["metric"], last["mode"]
    )


def compare_effects(comparison: Comparison) -> Section | None:
    """The effects of disabling heads, then of disabling layers; None if no run disabled any."""
    return joined([section for section in (_heads(comparison), _layers(comparison)) if section is not None])


def _heads(comparison: Comparison) -> Section | None:
    panels: list[HeadPanel] = []
    cells: list[list[str]] = []
    repeated: dict[str, NDArray[np.float64]] = {}
    counts: list[int] = []
    rows: list[Mapping[str, object]] = []
    for label, replicates in comparison.replicates.items():
        effect = effects(replicates, "head")
        if effect is None:
            continue
        delta_RLH = effect.delta_RLH
        share_LH = effect.certain_RLH.mean(axis=0)
        # Coloured if more than half of the seeds show an effect.
        panels.append(HeadPanel(label, 100 * delta_RLH.mean(axis=0), share_LH > 0.5))
        counts.append(effect.count)
        always = [head_code(layer, head) for layer, head in np.argwhere(share_LH == 1)]
        shown = ", ".join(always[:10]) + (" …" if len(always) > 10 else "")
        ever = int((share_LH > 0).sum())
        rows += condition_rows(label, "ablation", effect.what, delta_RLH, np.full_like(delta_RLH, np.nan))
        cells.append([label, str(len(delta_RLH)), effect.what, str(ever), str(len(always)), shown or "none"])
        if len(delta_RLH) > 1:
            repeated[label] = delta_RLH
    if not panels:
        return None
    title = "Change of score when a head is disabled"
    figure = head_panels(
        panels[:MOST_PANELS],
        title=title,
        unit="change of score (points)",
        note=f"mean over seeds; pale: significant in at most half of them; {sample_size(counts)} for each"
        f"{left_out_panels(panels)}",
        signed=True,
    )
    header = ["condition", "seeds", "metric (mode)", "heads significant in any seed", "in every seed", "which"]
    tables = [Table(header, cells, "Which heads matter, and in how many seeds")]
    paragraphs = []
    if repeated:
        tables.append(agreement_table(repeated, f"{title}: agreement between seeds"))
        paragraphs.append(agreement_in_words(repeated, lower_first(title)))
        some = sum(int(row[3]) for row in cells if int(row[1]) > 1)
        every = sum(int(row[4]) for row in cells if int(row[1]) > 1)
        finding = f"Of {some} heads that matter in some seed of a condition, {every} matter{'s' * (every == 1)} in every seed."
    else:
        ever = sum(int(row[3]) for row in cells)
        finding = f"In {len(cells)} conditions of one seed each, {ever} heads matter; other seeds may choose others."
    block = FigureBlock(
        "ablation", figure, f"{title}, side by side on one scale.", "Heatmaps of disabling effects by condition."
    )
    title = "Heads: disabling (figure 8 of Kovaleva et al.)"
    return Section(title, [finding], paragraphs, tables, [block], rows=rows)


def _layers(comparison: Comparison) -> Section | None:
    panels: list[LayerPanel] = []
    cells: list[list[str]] = []
    counts: list[int] = []
    costs: dict[str, float] = {}
    for label, replicates in comparison.replicates.items():
        effect = effects(replicates, "layer")
        if effect is None:
            continue
        delta_RL, certain_RL = 100 * effect.delta_RLH[:, :, 0], effect.certain_RLH[:, :, 0]
        worst = lowest_layer(delta_RL.T)
        if worst is None:
            continue
        panels.append(LayerPanel(label, delta_RL, certain_RL.mean(axis=0) > 0.5))
        counts.append(effect.count)
        costs[label] = float(np.nanmean(delta_RL[:, worst]))
        always = ", ".join(str(layer) for layer in np.flatnonzero(certain_RL.all(axis=0))) or "none"
        cells.append([label, str(len(delta_RL)), effect.what, f"layer {worst}", f"{costs[label]:+.1f}", always])
    if not panels:
        return None
    title = "Change of score when a whole layer's heads are disabled"
    figure = layer_panels(
        panels[:MOST_PANELS],
        title=title,
        unit="change of score (points)",
        note=f"dots: seeds; bars: their mean, pale where significant in at most half of them; {sample_size(counts)}"
        f"{left_out_panels(panels)}",
    )
    header = ["condition", "seeds", "metric (mode)", "worst layer", "points", "layers significant in every seed"]
    most = min(costs, key=lambda label: costs[label])
    finding = (
        f"Disabling a whole layer costs most for {most}: {costs[most]:+.1f} points."
        if costs[most] < 0
        else "Disabling a whole layer lowers the score of no condition, on average over seeds."
    )
    block = FigureBlock("ablation_layers", figure, f"{title}, by condition.", "Bar charts of layers by condition.")
    title = "Layers: disabling (figure 9 of Kovaleva et al.)"
    return Section(title, [finding], [], [Table(header, cells)], [block])
