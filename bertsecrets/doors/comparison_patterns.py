"""The part of a comparison that shows attention patterns: figure 2 of Kovaleva et al., a bar for each condition."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy import stats

from bertsecrets.comparison.conditions import Condition
from bertsecrets.doors.pattern_summary import over_heads
from bertsecrets.patterns.measure import PATTERN_MEASURE, Patterns
from bertsecrets.results.figures.patterns import ShareBar, pattern_bars
from bertsecrets.results.figures.style import sample_size
from bertsecrets.results.report.content import FigureBlock, Section, Table

Array = NDArray[np.float64]


def pattern_section(
    conditions: Sequence[Condition], varying: Sequence[str], figures: dict[str, Figure], lead: list[str]
) -> Section | None:
    """Shares of the patterns over all heads, condition by condition; None where no run measured them."""
    names = Patterns.columns
    bars, counts, replicates = [], [], []
    for condition in conditions:
        grids = [grid for name in names if (grid := condition.grids(PATTERN_MEASURE, name)) is not None]
        if len(grids) == len(names):
            share_RLHC = np.stack([value_RLH for value_RLH, _, _ in grids], axis=-1)
            error_RLHC = np.stack([stderr_RLH for _, stderr_RLH, _ in grids], axis=-1)
            bars.append(ShareBar(condition.label(varying), *over_seeds(share_RLHC, error_RLHC)))
            counts.append(grids[0][2])
            replicates.append(len(share_RLHC))
    if not bars:
        return None
    over = (
        "over seeds (Student's t)" if min(replicates) > 1 else "over seeds where there are several, else over examples"
    )
    figure = pattern_bars(
        bars,
        names,
        title="Attention patterns, over all heads",
        note=f"{sample_size(counts)} for each; bars at the end of a share: 95% intervals {over}",
        unit="share of attention maps",
    )
    figures["patterns_shares"] = figure
    heterogeneous_R = np.array([bar.share_C[names.index("heterogeneous")] for bar in bars])
    block_R = np.array([bar.share_C[names.index("block")] for bar in bars])
    free_R = heterogeneous_R + block_R
    most, least = int(free_R.argmax()), int(free_R.argmin())
    lead.append(
        "Heterogeneous and block maps, of which Kovaleva et al. say that they could be informative, are "
        f"{free_R[most]:.0%} of the maps"
        + (
            f" of {bars[most].name} and {free_R[least]:.0%} of those of {bars[least].name}; theirs are 32% (MRPC) to "
            "61% (QQP)."
            if len(bars) > 1
            else "; theirs are 32% (MRPC) to 61% (QQP)."
        )
    )
    rows = [
        [
            bar.name,
            *(_share(share, reach) for share, reach in zip(bar.share_C, bar.error_C, strict=True)),
            f"{free:.1%}",
        ]
        for bar, free in zip(bars, free_R, strict=True)
    ]
    header = ["", *(name.replace("_", " + ") for name in names), "heterogeneous + block"]
    return Section(
        "Attention patterns (figure 2 of Kovaleva et al.)",
        tables=[Table(header, rows, f"Share of attention maps ± half of a 95% interval {over}")],
        figures=[FigureBlock(figure, "Share of each pattern over all heads.", "Stacked bars of shares.")],
    )


def over_seeds(share_RLHC: Array, error_RLHC: Array) -> tuple[Array, Array]:
    """Mean share over heads and seeds, and the half-width of its 95% interval: over seeds, or examples with one seed."""
    if len(share_RLHC) == 1:
        return over_heads(share_RLHC[0], error_RLHC[0])
    share_RC = np.nanmean(share_RLHC, axis=(1, 2))
    count = len(share_RC)
    share_C: Array = share_RC.mean(0)
    reach_C: Array = stats.t.ppf(0.975, count - 1) * share_RC.std(0, ddof=1) / np.sqrt(count)
    return share_C, reach_C


def _share(share: float, reach: float) -> str:
    return f"{share:.1%} ± {reach:.1%}"
