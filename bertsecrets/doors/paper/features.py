"""Section 4.4, figures 6 and 7: attention to special tokens and to linguistic features."""

from collections.abc import Mapping

import numpy as np

from bertsecrets.comparison import published
from bertsecrets.comparison.conditions import Condition
from bertsecrets.doors.beside import Change, changes
from bertsecrets.doors.feature_columns import shown
from bertsecrets.doors.paper.claims import Claim, claims_table, held
from bertsecrets.doors.paper.material import Material, listed
from bertsecrets.results.figures.panels import HeadPanel, head_panels
from bertsecrets.results.figures.style import sample_size
from bertsecrets.results.report.content import FigureBlock, Section, Table
from bertsecrets.results.run import INITIAL

_MEASURE = "features"
_SPECIAL = {"cls": "[CLS]", "sep": "[SEP]"}
_PUBLISHED: dict[str, Mapping[str, tuple[float, ...]]] = {"cls": published.FIRST, "sep": published.SEPARATOR}


def section(material: Material) -> Section | None:
    """Attention to [CLS] and [SEP] by task, and to words before and after; None where no run has it."""
    having = [each for each in material.trained if each.grids(_MEASURE, "cls") is not None]
    if not having:
        return None
    names = [material.name(each) for each in having]
    means = {
        column: [material.layer_means(each, _MEASURE, column) for each in having if each.grids(_MEASURE, column)]
        for column in _SPECIAL
    }
    early = [
        name for name, mean_L in zip(names, means["cls"], strict=True) if mean_L is not None and _peak(mean_L) < 0.5
    ]
    late = [
        name for name, mean_L in zip(names, means["sep"], strict=True) if mean_L is not None and _peak(mean_L) >= 0.5
    ]
    claims = [
        Claim(
            "[CLS] is attended in the earlier layers.",
            f"Its highest layer lies in the lower half {held(early, names) if early else 'nowhere'}.",
            len(early) == len(names),
        ),
        Claim(
            "[SEP] is attended in the later layers.",
            f"Its highest layer lies in the upper half {held(late, names) if late else 'nowhere'}.",
            len(late) == len(names),
        ),
        *_words_claim(having, names),
    ]
    material.claims += claims
    blocks = []
    for column, token in _SPECIAL.items():
        found = [each.grids(_MEASURE, column) for each in having]
        panels = [HeadPanel(name, grids[0].mean(axis=0)) for name, grids in zip(names, found, strict=True) if grids]
        if panels:
            figure = head_panels(
                panels,
                title=f"Attention to {token}",
                unit="mean attention received",
                note=f"mean over seeds, {sample_size([grids[2] for grids in found if grids])} for each",
                limits=(0.0, 1.0),
            )
            material.figures[f"paper_figure6_{column}"] = figure
            blocks.append(
                FigureBlock(figure, f"Figure 6: attention to {token}, by task.", "Heatmaps by layer and head.")
            )
    return Section(
        "Section 4.4, figure 6: attention to special tokens and linguistic features",
        ["The paper shows no numbers of the model before fine-tuning; here both models saw the same examples."],
        [claims_table(claims), _special_table(material, having), *_word_tables(having, names)],
        blocks,
    )


def _peak(mean_L: np.ndarray) -> float:
    """Where the highest layer lies, 0 for the first and 1 for the last."""
    return int(np.argmax(mean_L)) / max(1, len(mean_L) - 1)


def _special_table(material: Material, having: list[Condition]) -> Table:
    rows = []
    for column, token in _SPECIAL.items():
        for condition in having:
            mean_L = material.layer_means(condition, _MEASURE, column)
            theirs = material.published(condition, _PUBLISHED[column])
            if mean_L is not None:
                in_theirs = "–" if theirs is None else listed(theirs)
                rows.append([token, material.name(condition), listed(mean_L), in_theirs])
    return Table(
        ["token", "task", "mean by layer, here", "in their figure"],
        rows,
        "Mean over the heads of each layer, from layer 0",
    )


def _before_and_after(condition: Condition) -> dict[str, list[Change]]:
    """The columns of words in every seed that was compared with the model before fine-tuning."""
    found: dict[str, list[Change]] = {}
    for run in condition.runs:
        for column, change in changes(run.heads, _MEASURE, INITIAL).items():
            if column not in (*_SPECIAL, "sep_total") and "uniform" not in column:
                found.setdefault(column, []).append(change)
    return found


def _words_claim(having: list[Condition], names: list[str]) -> list[Claim]:
    rising, known = [], []
    for name, condition in zip(names, having, strict=True):
        compared = _before_and_after(condition)
        if compared:
            known.append(name)
            rising += (
                [name]
                if any((c.differs_LH & (c.delta_LH > 0)).any() for each in compared.values() for c in each)
                else []
            )
    if not known:
        return []
    return [
        Claim(
            "Fine-tuning makes some heads attend more to words that matter for the task, but negligibly "
            "(shown without the pre-trained model's numbers).",
            f"Heads that attend significantly more to some kind of word than before fine-tuning are there "
            f"{held(rising, known) if rising else 'nowhere'}; the table says how much more.",
            bool(rising),
        )
    ]


def _word_tables(having: list[Condition], names: list[str]) -> list[Table]:
    rows = []
    for name, condition in zip(names, having, strict=True):
        for column, each in _before_and_after(condition).items():
            before, after = (float(np.nanmean([getattr(c, part) for c in each])) for part in ("other_LH", "own_LH"))
            up, down = (np.mean([(c.differs_LH & (sign * c.delta_LH > 0)).sum() for c in each]) for sign in (1, -1))
            uniform = condition.grids(_MEASURE, f"{column}_uniform")
            even = "–" if uniform is None else f"{np.nanmean(uniform[0]):.3f}"
            rows.append([name, shown(column), f"{before:.3f}", f"{after:.3f}", even, f"{up:.0f}", f"{down:.0f}"])
    header = ["task", "words", "before", "after", "uniform attention", "heads up", "heads down"]
    caption = "Mean over heads before and after fine-tuning, and how many heads changed significantly (mean over seeds)"
    return [Table(header, rows, caption)] if rows else []
