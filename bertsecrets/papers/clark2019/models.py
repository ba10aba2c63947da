"""The models that runs measured, before and after fine-tuning, and tests of their heads and layers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertsecrets.papers.chapter import MODEL, Answers, Chapter, Claim, PaperRuns, by_layer
from bertsecrets.reporting.runs import FinishedRun
from bertsecrets.results.formatting import MISSING
from bertsecrets.results.report.content import Section, Table
from bertsecrets.results.run import INITIAL
from bertsecrets.results.scores import LEVEL
from bertsecrets.results.views import Grids, MeasureView
from bertsecrets.statistics.corrections import corrected, holm
from bertsecrets.statistics.student import mean_exceeds_zero

BEFORE, FINE_TUNED = "before fine-tuning", "fine-tuned"
"""The states of a model, the ends of its name."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Model:
    """One experiment in one model.

    Args:
        name: The model and its state, as named on the page.
        view: The numbers.
        pretrained: Whether it is the model before fine-tuning, of which the paper speaks.
        published: Whether the paper's numbers are of this model.
    """

    name: str
    view: MeasureView
    pretrained: bool
    published: bool

    def grids(self, column: str) -> Grids | None:
        """A column as that of one replicate; None if the model does not have it."""
        if not self.view.has(column):
            return None
        value_LH, stderr_LH, count_LH = self.view.grid(column)
        return Grids(value_LH[None], stderr_LH[None], int(count_LH.max()))

    def layer_means(self, column: str) -> Array:
        """Mean over heads, ``[layers]``."""
        return np.asarray(np.nanmean(self.view.value(column), axis=1))

    def theirs(self, values: Sequence[float]) -> str:
        """The paper's numbers by layer for a table cell; a dash for another model."""
        return by_layer(values) if self.published else MISSING


def models(runs: PaperRuns, experiment: str) -> list[Model]:
    """The models with an experiment: of each condition the one before fine-tuning, then the fine-tuned one of its first seed."""
    return [
        model for condition in runs.pretrained for model in _models(runs.name(condition), condition.runs, experiment)
    ]


def _models(name: str, runs: Sequence[FinishedRun], experiment: str) -> Iterator[Model]:
    measured = [(run, run.experiments[experiment][1]) for run in runs if experiment in run.experiments]
    own = [(run, view) for run, view in measured if run.source == INITIAL]
    # Before fine-tuning, the models of all seeds are the same.
    first = [(run, initial) for run, view in measured if (initial := view.at(INITIAL)) is not None]
    for run, view in (own or first)[:1]:
        yield Model(f"{name}, {BEFORE}", view, True, run.config["model"]["name"] == MODEL)
    for _, view in [(run, view) for run, view in measured if run.source != INITIAL and view.step is not None][:1]:
        yield Model(f"{name}, {FINE_TUNED}", view, False, False)


def some_heads_above(model: Model, column: str, level: float, layers: range | None = None) -> bool | None:
    """Whether a head's mean is significantly above a level; False if every head's is significantly below.

    Args:
        model: The model.
        column: The column.
        level: The level.
        layers: The heads of these layers; None for all.

    Over texts, by Student's t; that one is above is corrected over heads (Holm), that all are below needs each of their tests.
    """
    above_N, below_N = _sides(model, column, level, layers)
    if (holm(above_N) <= LEVEL).any():
        return True
    return False if (below_N <= LEVEL).all() else None


def all_below(model: Model, column: str, level: float, chosen_LH: NDArray[np.bool_]) -> bool | None:
    """Whether each of some heads is significantly below a level; False if one is significantly above; None without heads.

    Over examples, by Student's t; that one is above is corrected over the heads (Holm), that all are below needs each of their
    tests.
    """
    if not chosen_LH.any():
        return None
    value_N, error_N, count_N = (grid_LH[chosen_LH] for grid_LH in model.view.grid(column))
    above_N = np.nan_to_num(mean_exceeds_zero(value_N - level, error_N, count_N), nan=1.0)
    below_N = np.nan_to_num(mean_exceeds_zero(level - value_N, error_N, count_N), nan=1.0)
    if (holm(above_N) <= LEVEL).any():
        return False
    return True if (below_N <= LEVEL).all() else None


def most_heads_below(model: Model, column: str, level: float) -> bool | None:
    """Whether more than half of the heads are significantly below a level; False if half or more are above.

    Over texts, by Student's t, at a false discovery rate of 5 %.
    """
    above_N, below_N = _sides(model, column, level)
    if (corrected(below_N) <= LEVEL).mean() > 0.5:
        return True
    return False if (corrected(above_N) <= LEVEL).mean() >= 0.5 else None


def _sides(model: Model, column: str, level: float, layers: range | None = None) -> tuple[Array, Array]:
    """P-values of each head's being above a level, and of its being below; 1 where undefined."""
    part = slice(None) if layers is None else slice(layers.start, layers.stop)
    value_LH, stderr_LH, count_LH = (grid[part].ravel() for grid in model.view.grid(column))
    above_N = mean_exceeds_zero(value_LH - level, stderr_LH, count_LH)
    below_N = mean_exceeds_zero(level - value_LH, stderr_LH, count_LH)
    return np.nan_to_num(above_N, nan=1.0), np.nan_to_num(below_N, nan=1.0)


def layers_above(model: Model, column: str, level: float) -> tuple[list[int], bool]:
    """The layers whose mean over heads is significantly above a level, and whether all layers are significantly below.

    The first by Holm over layers; a layer's error is the mean of its heads', the most that it can be, as if they all went one way.
    """
    value_LH, stderr_LH, count_LH = model.view.grid(column)
    mean_L, error_L, count_L = np.nanmean(value_LH, axis=1), np.nanmean(stderr_LH, axis=1), count_LH.max(axis=1)
    above_L = np.nan_to_num(mean_exceeds_zero(mean_L - level, error_L, count_L), nan=1.0)
    below_L = np.nan_to_num(mean_exceeds_zero(level - mean_L, error_L, count_L), nan=1.0)
    layers = [int(layer) for layer in np.flatnonzero(holm(above_L) <= LEVEL)]
    return layers, bool((below_L <= LEVEL).all())


def model_tables(
    header: Sequence[str], rows: Sequence[Sequence[str]], caption: str, *, apart: bool = False
) -> list[Table]:
    """Rows of several models as a table, without the columns that are empty.

    Args:
        header: The columns, one of which is ``model``.
        rows: The rows.
        caption: What the table shows; the name of a table's only model is added.
        apart: Whether each model gets a table of its own.
    """
    place = list(header).index("model")
    names = list(dict.fromkeys(row[place] for row in rows))
    if apart or len(names) == 1:
        parts = [(f"{caption} ({name})", [row for row in rows if row[place] == name], {place}) for name in names]
    else:
        parts = [(caption, list(rows), set[int]())]
    tables = []
    for title, part, left_out in parts:
        kept = [
            column
            for column in range(len(header))
            if column not in left_out and any(row[column] != MISSING for row in part)
        ]
        tables.append(
            Table([header[column] for column in kept], [[row[column] for column in kept] for row in part], title)
        )
    return tables


def claim(statement: str, test: str, answers: Answers) -> list[Claim]:
    """A statement of the paper with its test and the test's outcome in each model; none without models.

    Args:
        statement: The statement.
        test: What has to be shown, without a full stop.
        answers: Whether it was shown, by model; False if its opposite was.
    """
    if not answers:
        return []
    words = {True: "yes", False: "no", None: "cannot be told"}
    groups: dict[str, list[str]] = {}
    for name, answer in answers.items():
        groups.setdefault(words[answer], []).append(name)
    if len(groups) == 1:
        outcome = next(iter(groups)) + (f" (all {len(answers)} models)" if len(answers) > 1 else "")
    else:
        outcome = "; ".join(f"{word} for {', '.join(names)}" for word, names in groups.items())
    return [Claim(statement, f"{test}: {outcome}.", answers.everywhere)]


def not_measured(title: str, sentence: str) -> Chapter:
    """A chapter that no run has numbers for: a sentence on how to get them."""
    return Chapter(Section(title, paragraphs=[f"No run measured this. {sentence}"]))
