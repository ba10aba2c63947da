"""Section 4.4, figure 6: attention to special tokens and to linguistic features."""

from collections.abc import Mapping, Sequence

import numpy as np

from bertsecrets.comparison import published
from bertsecrets.comparison.conditions import Condition
from bertsecrets.doors.beside import Change, changes
from bertsecrets.doors.feature_columns import shown
from bertsecrets.doors.paper.claims import Claim, claims_table, held
from bertsecrets.doors.paper.material import Material, listed
from bertsecrets.measures.features import UNIFORM
from bertsecrets.results.figures.panels import HeadPanel, head_panels
from bertsecrets.results.figures.style import sample_size
from bertsecrets.results.report.content import FigureBlock, Section, Table
from bertsecrets.results.run import INITIAL

_MEASURE = "features"
_SPECIAL = {"cls": "[CLS]", "sep": "[SEP]"}
_ALL_SEPARATORS = "sep_total"
_PUBLISHED: dict[str, Mapping[str, tuple[float, ...]]] = {"cls": published.FIRST, "sep": published.SEPARATOR}


def section(material: Material) -> Section | None:
    """Attention to [CLS] and [SEP] by task, and to words before and after; None where no run has the measure."""
    having = [each for each in material.trained if each.columns(_MEASURE)]
    if not having:
        return None
    missing = [token for column, token in _SPECIAL.items() if not any(each.grids(_MEASURE, column) for each in having)]
    claims = [
        *_place_claim(material, having, "cls", "[CLS] is attended in the earlier layers.", late=False),
        *_place_claim(material, having, "sep", "[SEP] is attended in the later layers.", late=True),
        *_words_claim(material, having),
    ]
    material.claims += claims
    return Section(
        "Section 4.4, figure 6: attention to special tokens and linguistic features",
        [
            "The paper shows no numbers of the model before fine-tuning; here both models saw the same examples.",
            *(f"No run measured attention to {token}: what the paper says of it is left out." for token in missing),
        ],
        [
            *([claims_table(claims)] if claims else []),
            *_special_table(material, having),
            *_before_and_after_table(material, having),
        ],
        [block for column in _SPECIAL for block in _figure(material, having, column)],
    )


def _place_claim(
    material: Material, having: Sequence[Condition], column: str, statement: str, *, late: bool
) -> list[Claim]:
    """Whether the layer that attends most to a special token lies in one half, among the runs that have the token."""
    means = {material.name(each): material.layer_means(each, _MEASURE, column) for each in having}
    known = {name: mean_L for name, mean_L in means.items() if mean_L is not None}
    if not known:
        return []
    there = [name for name, mean_L in known.items() if (_peak(mean_L) >= 0.5) == late]
    here = f"Its highest layer lies in the {'upper' if late else 'lower'} half {held(there, list(known))}."
    return [Claim(statement, here, len(there) == len(known))]


def _figure(material: Material, having: Sequence[Condition], column: str) -> list[FigureBlock]:
    found = {material.name(each): grids for each in having if (grids := each.grids(_MEASURE, column)) is not None}
    if not found:
        return []
    panels = [HeadPanel(name, value_RLH.mean(axis=0)) for name, (value_RLH, _, _) in found.items()]
    figure = head_panels(
        panels,
        title=f"Attention to {_SPECIAL[column]}",
        unit="mean attention received",
        note=f"mean over seeds, {sample_size([count for _, _, count in found.values()])} for each",
        limits=(0.0, max(float(np.nanmax(panel.value_LH)) for panel in panels)),
    )
    material.figures[f"paper_figure6_{column}"] = figure
    return [FigureBlock(figure, f"Figure 6: attention to {_SPECIAL[column]}, by task.", "Heatmaps by layer and head.")]


def _peak(mean_L: np.ndarray) -> float:
    """Where the highest layer lies, 0 for the first and 1 for the last."""
    return int(np.argmax(mean_L)) / max(1, len(mean_L) - 1)


def _special_table(material: Material, having: Sequence[Condition]) -> list[Table]:
    rows = []
    for column, token in _SPECIAL.items():
        for condition in having:
            mean_L = material.layer_means(condition, _MEASURE, column)
            theirs = material.published(condition, _PUBLISHED[column])
            if mean_L is not None:
                published_L = "–" if theirs is None else listed(theirs)
                rows.append([token, material.name(condition), listed(mean_L), published_L])
    header = ["token", "task", "mean by layer, here", "in their figure"]
    return [Table(header, rows, "Mean over the heads of each layer, from layer 0")] if rows else []


def _before_and_after(condition: Condition) -> dict[str, list[Change]]:
    """The columns of every seed that was compared with the model before fine-tuning."""
    found: dict[str, list[Change]] = {}
    for run in condition.runs:
        for column, change in changes(run.heads, _MEASURE, INITIAL).items():
            found.setdefault(column, []).append(change)
    return found


def _words_claim(material: Material, having: Sequence[Condition]) -> list[Claim]:
    rising, known = [], []
    for condition in having:
        words = [
            change
            for column, each in _before_and_after(condition).items()
            for change in each
            if column not in (*_SPECIAL, _ALL_SEPARATORS)
        ]
        if words:
            known.append(material.name(condition))
            rising += known[-1:] if any((c.differs_LH & (c.delta_LH > 0)).any() for c in words) else []
    if not known:
        return []
    return [
        Claim(
            "Fine-tuning makes some heads attend more to words that matter for the task, but negligibly "
            "(shown without the pre-trained model's numbers).",
            f"Heads that attend significantly more to some kind of word than before fine-tuning are there "
            f"{held(rising, known)}; the table says how much more.",
            bool(rising),
        )
    ]


def _before_and_after_table(material: Material, having: Sequence[Condition]) -> list[Table]:
    rows = []
    for condition in having:
        theirs = material.published(condition, published.FEATURES) or {}
        for column, each in _before_and_after(condition).items():
            before, after = (float(np.nanmean([getattr(c, part) for c in each])) for part in ("other_LH", "own_LH"))
            up, down = (np.mean([(c.differs_LH & (sign * c.delta_LH > 0)).sum() for c in each]) for sign in (1, -1))
            uniform = condition.grids(_MEASURE, column + UNIFORM)
            rows.append(
                [
                    material.name(condition),
                    shown(column),
                    f"{before:.3f}",
                    f"{after:.3f}",
                    "–" if uniform is None else f"{np.nanmean(uniform[0]):.3f}",
                    f"{up:.0f}",
                    f"{down:.0f}",
                    " → ".join(f"{value:.3f}" for value in theirs[column]) if column in theirs else "–",
                ]
            )
    header = ["task", "tokens", "before", "after", "uniform attention", "heads up", "heads down", "in their notebook"]
    caption = "Mean over heads before and after fine-tuning, and how many heads changed significantly (mean over seeds)"
    return [Table(header, rows, caption)] if rows else []
