"""Whether the heads that fine-tuning changed are the heads that the model needs."""

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from bertsecrets.doors.ablation_summary import latest_rows
from bertsecrets.results.ablation_table import AblationTable
from bertsecrets.results.figures.gradients import spearman
from bertsecrets.results.figures.replicates import ScatterPanel, head_scatter
from bertsecrets.results.report.content import FigureBlock, Section

FIGURE = "drift_against_ablation"


def changed_and_needed(
    cosine_LH: NDArray[np.float64], table: AblationTable, figures: dict[str, Figure], lead: list[str]
) -> Section | None:
    """Drift against the change of score when a head is disabled; None unless every head has both.

    Args:
        cosine_LH: Similarity of each head's maps with those before fine-tuning.
        table: The run's ablation table.
        figures: Receives the figure.
        lead: Receives the finding.
    """
    rows = [row for row in latest_rows(table) if row["kind"] == "head"]
    rows = [row for row in rows if all(row[name] == rows[0][name] for name in ("evaluation", "metric", "mode"))]
    if len(rows) != cosine_LH.size or not np.isfinite(cosine_LH).all():
        return None
    drift = np.array([1 - cosine_LH[row["layer"], row["head"]] for row in rows])
    effect = np.array([100 * row["delta"] for row in rows])
    if not np.isfinite(effect).all() or not np.ptp(drift) or not np.ptp(effect):
        return None
    rho = spearman(drift, effect)
    certain = np.array([row["significant"] for row in rows])
    figures[FIGURE] = head_scatter(
        [ScatterPanel(f"ρ = {rho:.2f}", drift, effect, certain)],
        title="Are the heads that changed the heads that matter?",
        x_label="drift (1 − cosine)",
        y_label="change of score (points)",
        note=f"one dot a head; filled: significant; disabled by {rows[0]['mode']}; n = {rows[0]['count']} examples",
    )
    sentence = (
        f"Over {len(rows)} heads the rank correlation of drift and change of score without the head is {rho:.2f} "
        "(negative: heads that changed more matter more)."
    )
    lead.append(sentence)
    block = FigureBlock(figures[FIGURE], "Drift against the effect of disabling, head by head.", "Scatter of heads.")
    return Section("Changed and needed", [sentence], figures=[block])
