"""The joint head table: its columns from all experiments of a run, and its section."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from bertsecrets.present.presenter import presenter_of
from bertsecrets.present.report.content import Section
from bertsecrets.present.report.heads import CSV, LATEX, PARQUET, Grid, HeadColumn, HeadsTogether
from bertsecrets.results.formatting import MISSING
from bertsecrets.results.rows import RecordError
from bertsecrets.results.run import Declaration
from bertsecrets.results.views import MeasureView


def heads_section(table: HeadsTogether, verdicts: Mapping[tuple[int, int], str] | None) -> Section:
    """The section of a page, with the verdict on each head, the most needed first."""
    return Section(
        "All heads",
        paragraphs=[
            f"One row per head; click it to open the head in the viewer, if the run captured maps. All "
            f"{len(table.columns)} columns are in {CSV} and {PARQUET} next to this page, the first ones in {LATEX}."
        ],
        joint=replace(table, verdicts=verdicts or {}),
    )


def heads_together(
    experiments: Mapping[str, tuple[Declaration, MeasureView]], trusted: Sequence[str] = ()
) -> HeadsTogether | None:
    """Join all experiments of a run head by head; None if none has a number per head.

    Args:
        experiments: The experiments by name, with their numbers.
        trusted: Classes of other packages that may describe their experiments, ``module:class``.
    """
    columns: list[HeadColumn] = []
    for declaration, view in experiments.values():
        numbers = [column for column in view.columns if column.role == "value" and view.has(column.name)]
        grids = {
            column: view.value(column.name)
            for column in numbers
            # Numbers of whole layers belong to no head.
            if not view.rows.select(column=column.name, stage=view.stage, step=view.step).table["head"].null_count
        }
        try:
            texts = presenter_of(declaration, trusted).classes(view)
        except RecordError:
            # Its section says so.
            texts = {}
        columns += [
            HeadColumn(view.name, view.title, heading, heading, np.array(text_LH)) for heading, text_LH in texts.items()
        ]
        columns += [
            HeadColumn(view.name, view.title, column.name, column.label, value_LH, view.shown.effects)
            for column, value_LH in grids.items()
        ]
    if not columns:
        return None
    layers, heads = (max(column.value_LH.shape[axis] for column in columns) for axis in (0, 1))
    padded = []
    for column in columns:
        # Undefined numbers, or dashes, stand for heads that a grid lacks.
        lacking = np.nan if column.is_number else MISSING
        value_LH: Grid = np.full((layers, heads), lacking, column.value_LH.dtype)
        value_LH[tuple(map(slice, column.value_LH.shape))] = column.value_LH
        padded.append(replace(column, value_LH=value_LH))
    return HeadsTogether(padded)
