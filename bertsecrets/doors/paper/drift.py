"""Section 4.3 and figure 5: how fine-tuning changes attention."""

import numpy as np

from bertsecrets.comparison import published
from bertsecrets.doors.paper.claims import Claim, claims_table, held
from bertsecrets.doors.paper.material import Material, listed
from bertsecrets.results.figures.panels import HeadPanel, head_panels
from bertsecrets.results.figures.style import sample_size
from bertsecrets.results.report.content import FigureBlock, Section, Table

_EXCEPTION = "qqp"
"""The task on which their figure has another layer among the two that change most."""
_UNCHANGED = 0.93
"""The least mean of the first layer in their figure."""


def section(material: Material) -> Section | None:
    """Cosine similarities before and after, per task; None where no run has them."""
    panels, rows, counts = [], [], []
    last_two, first_least, first_same, names, expected = [], [], [], [], []
    for condition in material.trained:
        found = condition.grids("drift", "cosine")
        mean_L = material.layer_means(condition, "drift", "cosine")
        if found is None or mean_L is None:
            continue
        name = material.name(condition)
        names.append(name)
        counts.append(found[2])
        panels.append(HeadPanel(name, found[0].mean(axis=0)))
        lowest = set(np.argsort(mean_L)[:2].tolist())
        last_two += [name] if lowest == {len(mean_L) - 2, len(mean_L) - 1} else []
        expected += [name] if condition.task != _EXCEPTION else []
        first_least += [name] if int(np.argmax(mean_L)) == 0 else []
        first_same += [name] if round(float(mean_L[0]), 2) >= _UNCHANGED else []
        theirs = material.published(condition, published.DRIFT)
        rows.append([name, listed(mean_L), "–" if theirs is None else listed(theirs)])
    if not panels:
        return None
    figure = head_panels(
        panels,
        title="Cosine similarity of attention maps before and after fine-tuning",
        unit="cosine similarity (1: unchanged)",
        note=f"mean over seeds, {sample_size(counts)} for each",
        limits=(0.0, 1.0),
    )
    material.figures["paper_figure5"] = figure
    claims = [
        Claim(
            "The last two layers change most (in their figure on every task but QQP).",
            f"The two layers with the lowest mean are the last two {held(last_two, names)}.",
            set(expected) <= set(last_two) if expected else None,
        ),
        Claim(
            "The first layer hardly changes (mean cosine 0.93 and more).",
            f"Layer 0 changes least {held(first_least, names)}; its mean is {_UNCHANGED} or more {held(first_same, names)}.",
            len(first_least) == len(first_same) == len(names),
        ),
    ]
    material.claims += claims
    return Section(
        "Section 4.3, figure 5: how does fine-tuning change attention?",
        [],
        [
            claims_table(claims),
            Table(
                ["task", "mean by layer, here", "in their figure"],
                rows,
                "Mean over the heads of each layer, from layer 0",
            ),
        ],
        [FigureBlock(figure, "Figure 5, by task.", "Heatmaps of cosine similarity by layer and head.")],
    )
