"""Section 4.1, figures 1 and 2: which patterns the maps show, task by task."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bertsecrets.comparison import published
from bertsecrets.doors.comparison_patterns import over_seeds
from bertsecrets.doors.paper.claims import Claim, claims_table, held
from bertsecrets.doors.paper.material import Material
from bertsecrets.doors.paper.typical_maps import typical_maps
from bertsecrets.patterns.measure import PATTERN_MEASURE, Patterns
from bertsecrets.results.figures.patterns import ShareBar, pattern_bars
from bertsecrets.results.figures.style import sample_size
from bertsecrets.results.report.content import FigureBlock, Section, Table

_THEIR_ORDER = ("heterogeneous", "block", "vertical_diagonal", "diagonal", "vertical")
_CLOSE = 0.05


def section(material: Material) -> Section | None:
    """Shares of the patterns of fine-tuned models, per task; None where no run has them."""
    names = Patterns.columns
    bars, rows, counts = [], [], []
    for condition in material.trained:
        grids = [grid for name in names if (grid := condition.grids(PATTERN_MEASURE, name)) is not None]
        if len(grids) < len(names):
            continue
        share_RLHC = np.stack([value_RLH for value_RLH, _, _ in grids], axis=-1)
        error_RLHC = np.stack([stderr_RLH for _, stderr_RLH, _ in grids], axis=-1)
        bars.append(ShareBar(material.name(condition), *over_seeds(share_RLHC, error_RLHC)))
        counts.append(grids[0][2])
        theirs = material.published(condition, published.PATTERNS)
        rows.append([bars[-1].name, *_beside(bars[-1].share_C, names, theirs)])
    if not bars:
        return None
    figure = pattern_bars(
        bars,
        names,
        title="Share of each attention pattern",
        note=f"{sample_size(counts)} for each; bars at the end of a share: 95% intervals over seeds, or over examples "
        "where there is one seed",
        unit="share of attention maps",
    )
    material.figures["paper_figure2"] = figure
    blocks = [FigureBlock(figure, "Figure 2, by task.", "Stacked bars of the shares of patterns.")]
    examples = typical_maps(material)
    if examples is not None:
        material.figures["paper_figure1"] = examples
        blocks.insert(0, FigureBlock(examples, "Figure 1: a map of each pattern.", "Five attention maps."))
    claims = _claims(bars, names)
    material.claims += claims
    return Section(
        "Section 4.1, figures 1 and 2: which patterns do the heads show?",
        [
            "Shares of patterns belong to the classifier as well as to the model: the same annotated maps and nearly the "
            "same network gave Prasanna et al. 2020 shares that differ from these authors' by up to 30 percentage points."
        ],
        [
            claims_table(claims),
            Table(
                ["task", *(name.replace("_", " + ") for name in names)],
                rows,
                "Share of attention maps in percent, here / in their figure",
            ),
        ],
        blocks,
    )


def _beside(share_C: NDArray[np.float64], names: Sequence[str], theirs: Sequence[float] | None) -> list[str]:
    known = {} if theirs is None else dict(zip(_THEIR_ORDER, theirs, strict=True))
    return [
        f"{100 * share:.1f}" + (f" / {known[name]:.1f}" if name in known else "")
        for name, share in zip(names, share_C, strict=True)
    ]


def _claims(bars: Sequence[ShareBar], names: Sequence[str]) -> list[Claim]:
    place = {name: number for number, name in enumerate(names)}
    tasks = [bar.name for bar in bars]
    heterogeneous = {bar.name: float(bar.share_C[place["heterogeneous"]]) for bar in bars}
    informative = {bar.name: heterogeneous[bar.name] + float(bar.share_C[place["block"]]) for bar in bars}
    vertical = {bar.name: float(bar.share_C[place["vertical"]]) for bar in bars}
    within = [task for task in tasks if 0.32 - _CLOSE <= informative[task] <= 0.61 + _CLOSE]
    return [
        Claim(
            "Maps that could be informative (heterogeneous and block) are 32% to 61% of all, by task.",
            f"They are {_range(list(informative.values()))}; within 5 points of that range {held(within, tasks)}.",
            len(within) == len(tasks),
        ),
        Claim(
            "In most cases heterogeneous maps are less than half (in their figure, for 4 of 7 tasks).",
            f"Less than half {held([task for task in tasks if heterogeneous[task] < 0.5], tasks)}.",
            sum(value < 0.5 for value in heterogeneous.values()) > len(tasks) / 2,
        ),
        Claim(
            "At least a third of the heads simply attend to [SEP] and [CLS] (in their figure, for 4 of 7 tasks).",
            f"A third or more of the maps are vertical {held([t for t in tasks if vertical[t] >= 1 / 3], tasks)}.",
            sum(value >= 1 / 3 for value in vertical.values()) > len(tasks) / 2,
        ),
    ]


def _range(shares: Sequence[float]) -> str:
    low, high = f"{min(shares):.0%}", f"{max(shares):.0%}"
    return low if low == high else f"{low} to {high}"
