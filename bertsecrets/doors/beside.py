"""A report section for every measure that was taken beside another model: what has changed, and what may be chance."""

from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc
from matplotlib.figure import Figure
from numpy.typing import NDArray

from bertsecrets.doors.wording import described
from bertsecrets.measures.columns import is_comparable
from bertsecrets.results.figures.panels import HeadPanel, head_panels
from bertsecrets.results.figures.style import number, sample_size
from bertsecrets.results.report.content import FigureBlock, Section, Table
from bertsecrets.results.run import CHECKPOINT, INITIAL, RANDOM, TRAINING, difference_stage
from bertsecrets.results.table import HeadTable
from bertsecrets.statistics.corrections import corrected
from bertsecrets.statistics.student import mean_differs_from_zero

Array = NDArray[np.float64]

_LEVEL = 0.05
_MOST_PANELS = 12
_OTHERS = {INITIAL: "before fine-tuning", RANDOM: "random weights"}
_MODELS = {INITIAL: "the model before fine-tuning", RANDOM: "a model with random weights"}


@dataclass(frozen=True)
class Change:
    """One column of a measure beside another model's.

    Args:
        own_LH, other_LH: The two models' numbers.
        delta_LH: Mean over examples of the differences, ours less the other's.
        p_LH: Of no difference, paired over examples, corrected over heads; NaN where undefined.
        count: Examples, of the head with most.
    """

    own_LH: Array
    other_LH: Array
    delta_LH: Array
    p_LH: Array
    count: int

    @property
    def differs_LH(self) -> NDArray[np.bool_]:
        """Which heads differ at a false discovery rate of 5 %."""
        return np.nan_to_num(self.p_LH, nan=1.0) <= _LEVEL

    @property
    def largest(self) -> tuple[int, int]:
        """Layer and head that differ most among those that differ."""
        size_LH = np.where(self.differs_LH, np.abs(self.delta_LH), -1.0)
        layer, head = np.unravel_index(size_LH.argmax(), size_LH.shape)
        return int(layer), int(head)


def changes(table: HeadTable, measure: str, other: str) -> dict[str, Change]:
    """The columns of a measure that were compared with the ``initial`` or the ``random`` model; empty if none was.

    What no model can change, such as what uniform attention gives, is left out.
    """
    rows = table.select(measure=measure)
    for stage in (CHECKPOINT, TRAINING):
        compared = rows.select(stage=difference_stage(stage, other)).table
        if compared.num_rows:
            step = max(pc.unique(compared["step"]).to_pylist())
            return {
                column: _change(rows, measure, column, stage, other, step)
                for column in pc.unique(compared["column"]).to_pylist()
                if is_comparable(column)
            }
    return {}


def _change(rows: HeadTable, measure: str, column: str, stage: str, other: str, step: int) -> Change:
    delta_LH, stderr_LH, count_LH = rows.grid(measure, column, difference_stage(stage, other), step)
    return Change(
        rows.grid(measure, column, stage, step)[0],
        rows.grid(measure, column, other, 0)[0],
        delta_LH,
        corrected(mean_differs_from_zero(delta_LH, stderr_LH, count_LH)),
        int(count_LH.max()),
    )


def beside_sections(table: HeadTable, figures: dict[str, Figure], lead: list[str]) -> list[Section]:
    """A section for each measure that was taken on other models too; adds to ``figures`` and ``lead``."""
    names = pc.unique(table.table["measure"]).to_pylist()
    return [section for name in names if (section := _section(table, name, figures, lead)) is not None]


def _section(table: HeadTable, measure: str, figures: dict[str, Figure], lead: list[str]) -> Section | None:
    found = {other: each for other in _OTHERS if (each := changes(table, measure, other))}
    if not found:
        return None
    title, unit = described(measure, "")
    spoken = f"{title[0].lower()}{title[1:]}"
    words, blocks = [], []
    for other, columns in found.items():
        moving = {name: each for name, each in columns.items() if np.nanmax(np.abs(each.delta_LH), initial=0) > 0}
        words.append(_sentence(moving, columns, other, spoken))
        if moving:
            name = f"{measure}_beside_{other}"
            figures[name] = _figure(moving, f"{title}: the model less {_OTHERS[other]}", unit)
            caption = f"Differences from {_OTHERS[other]}, paired over examples; only what is significant is coloured."
            blocks.append(FigureBlock(figures[name], caption, f"Heatmaps of differences of {spoken}."))
    lead.append(words[0])
    return Section(
        f"{title}, beside other models",
        [*words, _reading(tuple(found))],
        [Table(_header(found), _rows(found), "Means over heads, and heads that differ")],
        blocks,
    )


def _sentence(moving: dict[str, Change], columns: dict[str, Change], other: str, spoken: str) -> str:
    heads = next(iter(columns.values())).delta_LH.size
    if not moving:
        return f"Compared with {_MODELS[other]}, no head differs at all in {spoken}."
    most = max(moving, key=lambda name: int(moving[name].differs_LH.sum()))
    change = moving[most]
    if not change.differs_LH.any():
        return f"Compared with {_MODELS[other]}, no head differs by more than chance in {spoken}."
    layer, head = change.largest
    return (
        f"Compared with {_MODELS[other]}, the widest difference in {spoken} is that of {_name(most)}: in "
        f"{int(change.differs_LH.sum())} of {heads} heads, most in layer {layer} · head {head} "
        f"({change.other_LH[layer, head]:.3f} there, {change.own_LH[layer, head]:.3f} here)."
    )


def _figure(moving: dict[str, Change], title: str, unit: str) -> Figure:
    widest = sorted(moving, key=lambda name: -int(moving[name].differs_LH.sum()))[:_MOST_PANELS]
    shown = {name: each for name, each in moving.items() if name in widest}
    part = f"; the {len(shown)} of {len(moving)} columns with most differing heads" if len(shown) < len(moving) else ""
    return head_panels(
        [HeadPanel(_name(name), each.delta_LH, each.differs_LH) for name, each in shown.items()],
        title=title,
        unit=f"difference of {unit}" if unit else "difference",
        note=(
            f"pale: may be chance (paired t test over examples, false discovery rate {_LEVEL:.0%} over the heads of a "
            f"panel){part}; {sample_size([each.count for each in shown.values()])}"
        ),
        signed=True,
    )


def _header(found: dict[str, dict[str, Change]]) -> list[str]:
    header = ["column", "this model"]
    for other in found:
        header += [_OTHERS[other], "higher here", "lower here", "largest difference"]
    return header


def _rows(found: dict[str, dict[str, Change]]) -> list[list[str]]:
    rows = []
    for name, own in next(iter(found.values())).items():
        # What is the same in both models is no row.
        if not any(np.nanmax(np.abs(columns[name].delta_LH), initial=0) > 0 for columns in found.values()):
            continue
        row = [_name(name), _mean(own.own_LH)]
        for columns in found.values():
            each = columns[name]
            row.append(_mean(each.other_LH))
            row += [str(int((each.differs_LH & sign_LH).sum())) for sign_LH in (each.delta_LH > 0, each.delta_LH < 0)]
            row.append(_largest(each))
        rows.append(row)
    return rows


def _largest(change: Change) -> str:
    if not change.differs_LH.any():
        return "–"
    layer, head = change.largest
    return f"{number(float(change.delta_LH[layer, head]), 3)} (layer {layer} · head {head})"


def _reading(others: tuple[str, ...]) -> str:
    random = (
        " The model with random weights has seen no text at all: what it has too comes from the architecture and the "
        "positions of tokens alone."
        if RANDOM in others
        else ""
    )
    return (
        "“Higher here” and “lower here” count the heads whose difference is significant: the same examples were given to "
        f"both models, and differences are tested over examples with a paired t test, corrected over heads.{random}"
    )


def _mean(value_LH: Array) -> str:
    return f"{np.nanmean(value_LH):.3f}" if np.isfinite(value_LH).any() else "–"


def _name(column: str) -> str:
    return column.replace("_", " ")
