"""Pruning scores: one number per head, removed in ascending order; also every column that ranks heads, computed on the
selection examples.
"""

import copy
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor, nn

from bertsecrets.ablation.direct import DirectEffects, take_effects
from bertsecrets.ablation.shapley import PERMUTATIONS, Shapley, orders, plan_of, take_worths, value_grid
from bertsecrets.attention.override import mean_head_outputs
from bertsecrets.data.batch import Batch
from bertsecrets.doors import error_text, free_names, load_offer, resolve
from bertsecrets.errors import UserError, choices
from bertsecrets.float64 import float64_device
from bertsecrets.grid import Column, HeadGrid
from bertsecrets.importance.relevance import Relevance, take_relevance
from bertsecrets.measures.base import Measure, Need
from bertsecrets.measures.one_pass import measure_pass
from bertsecrets.measures.shipped import shipped_measures
from bertsecrets.models.encoder import describe, scale_heads
from bertsecrets.pruning.rows import CONTROLS, RANDOM, REVERSED
from bertsecrets.pruning.sets import HeadSet, Score, Situation, evaluate_sets
from bertsecrets.results.formatting import lower_first
from bertsecrets.results.run import CHECKPOINT, TRAINING, Run
from bertsecrets.task_heads.metric import Array

MODE = "zero"
"""How heads are disabled: a removed head's output is zero."""


@dataclass(frozen=True)
class MeasuredScore:
    """A pruning score from a column of a measure or another analysis that ranks heads.

    Args:
        experiment: Name of the measure or analysis.
        label: Description of the score.
        column: The column; its ``keep`` tells whether high or low numbers are kept.
        take: Computes the grid of a model in a situation.
        passes: Maps the number of heads to the passes over each example that are needed.
    """

    experiment: str
    label: str
    column: Column
    take: Callable[[Situation, nn.Module], HeadGrid]
    passes: Callable[[int], int]

    def __call__(self, situation: Situation) -> Tensor:
        key = (self.experiment, situation.removed)
        if key not in situation.computed:
            grid = self.take(situation, without_heads(situation.model, situation.removed, self.experiment))
            situation.computed[key] = {column: grid.column(column) for column in grid.columns}
        value_LH = situation.computed[key][self.column.name]
        return -value_LH if self.column.keep == "low" else value_LH


@cache
def measured_scores() -> dict[str, MeasuredScore]:
    """The scores by ``measure/column``: from measures, with the settings in ``conf/measure`` or their package, and from
    analyses.

    Measures that need a reference, annotated words or a masked-language-model head are excluded.
    """
    scores: list[MeasuredScore] = []
    for make in ranking_measures().values():
        measure = make(1, 1)
        if not measure.needs & {Need.REFERENCE, Need.ANNOTATION, Need.MASKED_LM}:
            title = f"{lower_first(measure.title)}, "
            scores += _of(measure.name, measure.columns, partial(_measure, make), sum(measure.passes), title)
    scores += _of(Relevance.name, Relevance.columns, _relevance, 2)
    scores += _of(DirectEffects.name, DirectEffects.columns, _direct_effects, lambda heads: 2 * heads)
    # On few examples, the metric has too many ties to rank heads.
    scores += _of(Shapley.name, Shapley("").columns[:1], _shapley, lambda heads: PERMUTATIONS * heads)
    return {f"{score.experiment}/{score.column.name}": score for score in scores}


def ranking_measures() -> dict[str, Callable[[int, int], Measure]]:
    """The measures with a column that ranks heads (``Column.keep``), by name, with their default settings."""
    makers: dict[str, Callable[[int, int], Measure]] = {}
    for name, maker in shipped_measures().items():
        columns = inspect.getattr_static(maker.func, "columns", ())
        if isinstance(columns, tuple) and any(column.keep is not None for column in columns):
            makers[name] = maker
    return makers


def _of(
    experiment: str,
    columns: tuple[Column, ...],
    take: Callable[[Situation, nn.Module], HeadGrid],
    passes: int | Callable[[int], int],
    title: str = "",
) -> list[MeasuredScore]:
    counted = passes if callable(passes) else lambda heads: passes
    ranking = [column for column in columns if column.keep is not None]
    return [MeasuredScore(experiment, f"{title}{column.label}", column, take, counted) for column in ranking]


@torch.inference_mode(False)
def without_heads(model: nn.Module, removed: HeadSet, score: str) -> nn.Module:
    """A copy of a model whose removed heads output nothing; the model itself if none is removed.

    Raises:
        UserError: If layers share their weights; the message names the score.
    """
    if not removed:
        return model
    encoder = describe(model)
    if encoder.shares_layers:
        raise UserError(
            f"The pruning score '{score}' cannot be recomputed after each step, because the layers of model type "
            f"'{encoder.base.config.model_type}' share one set of weights; set iterative=false, or choose exact."
        )
    gate_LH = torch.ones(encoder.num_layers, encoder.num_heads)
    for layer, head in removed:
        gate_LH[layer, head] = 0
    smaller = copy.deepcopy(encoder.model)
    scale_heads(describe(smaller), gate_LH)
    return smaller


def _counted(situation: Situation, passes: int) -> Iterator[Batch]:
    """This process's batches; after use, each is reported as this many finished passes of its examples."""
    for batch in situation.share_batches():
        yield batch
        if situation.progress is not None:
            situation.progress(batch.size * passes)


def _measure(make: Callable[[int, int], Measure], situation: Situation, model: nn.Module) -> HeadGrid:
    encoder = describe(model)
    measure = make(encoder.num_layers, encoder.num_heads)
    if situation.split is None:
        raise ValueError("a measure is prepared with its examples: give the situation a split")
    measure.prepare(situation.split())
    means_LHd = None
    if measure.reference_examples:
        device = next(encoder.model.parameters()).device
        with situation.context():
            means_LHd = mean_head_outputs(model, (batch.to(device).inputs() for batch in situation.batches()))
    batches = _counted(situation, sum(measure.passes))
    [grid] = measure_pass(model, [measure], batches, context=situation.context, means_LHd=means_LHd)
    return grid


def _relevance(situation: Situation, model: nn.Module) -> HeadGrid:
    return take_relevance(model, _counted(situation, 2))


def _direct_effects(situation: Situation, model: nn.Module) -> HeadGrid:
    encoder = describe(model)
    device = next(encoder.model.parameters()).device
    measure = DirectEffects(encoder.num_layers, encoder.num_heads, MODE)
    measure = measure.to(float64_device(device))
    batches = _counted(situation, 2 * encoder.num_layers * encoder.num_heads)
    take_effects(model, batches, measure, context=situation.context)
    return measure.compute()


def _shapley(situation: Situation, model: nn.Module) -> HeadGrid:
    encoder, task = describe(model), situation.task
    layers, heads = encoder.num_layers, encoder.num_heads
    drawn = orders(layers, heads, PERMUTATIONS, situation.seed)
    plans = [plan_of(order, MODE, layers, heads) for order in drawn]
    worth_PKC = take_worths(
        model,
        plans,
        situation.share_batches,
        task,
        context=situation.context,
        store=situation.store,
        progress=situation.progress,
    )
    return value_grid(task.metrics[0], drawn, worth_PKC)


EXACT = "exact"


def exact(situation: Situation) -> Tensor:
    """Increase of the mean loss if the head is also disabled (mode ``zero``), from an exact sweep."""
    key = (EXACT, situation.removed)
    if key in situation.computed:
        return situation.computed[key][EXACT]
    encoder = describe(situation.model)
    heads = [(layer, head) for layer in range(encoder.num_layers) for head in range(encoder.num_heads)]
    sets = [situation.removed | {head} for head in heads]
    results = evaluate_sets(
        situation.model,
        [situation.removed, *sets],
        situation.share_batches(),
        situation.task,
        context=situation.context,
        store=situation.store,
        progress=situation.progress,
    )
    rise_LH = torch.from_numpy(results.loss_V[1:] - results.loss_V[0]).view(encoder.num_layers, encoder.num_heads)
    situation.computed[key] = {EXACT: rise_LH}
    return rise_LH


def random_order(situation: Situation) -> Tensor:
    """The control that removes heads at random."""
    encoder = describe(situation.model)
    generator = torch.Generator().manual_seed(situation.seed)
    return torch.rand(encoder.num_layers, encoder.num_heads, generator=generator, dtype=torch.float64)


SCORES: dict[str, Score] = {EXACT: exact, RANDOM: random_order}
"""The built-in scores; others are scores of installed packages, columns of a head table, measured scores,
``package.module:function`` or ``file.py:function``.
"""


def offered_names() -> tuple[str, ...]:
    """The names of scores from installed packages."""
    return free_names("scores", (*SCORES, REVERSED))


OPPOSITE = "-"
"""Prefix of a score's name for the opposite order."""


def score_label(name: str) -> str:
    """The description of a score in figures, tables and sentences; other scores keep their name.

    >>> score_label("exact"), score_label("-head_gradient/example"), score_label("random")
    ('effects of single heads', 'opposite of gradient importance of heads, per example', 'random')
    """
    if name.startswith(OPPOSITE):
        return f"opposite of {score_label(name.removeprefix(OPPOSITE))}"
    if name == EXACT:
        return "effects of single heads"
    score = measured_scores().get(name)
    return name if score is None else score.label


def with_controls(names: Sequence[str]) -> list[str]:
    """The scores without repetition, plus the controls.

    >>> with_controls(["exact"]), with_controls(["random", "drift/cosine"])
    (['exact', 'random', 'reversed'], ['random', 'drift/cosine', 'reversed'])

    Raises:
        UserError: If all of them are controls.
    """
    if all(name in CONTROLS for name in names):
        raise UserError(
            f"prune.scores is [{', '.join(names)}], which are controls; add a score that chooses heads, e.g. exact."
        )
    return list(dict.fromkeys([*names, *CONTROLS]))


def column_of(name: str, columns: Collection[str]) -> str | None:
    """The table column or measured score with this name, as ``measure/column``; None if there is none.

    The measure or the column alone suffices if only one fits, or if both have the same name.

    Args:
        name: The score's name, with or without the prefix ``-``.
        columns: Columns of head tables.

    Raises:
        UserError: If several fit.
    """
    name = name.removeprefix(OPPOSITE)
    if name in (*SCORES, REVERSED, *offered_names()):
        return None
    keys = [*dict.fromkeys([*columns, *measured_scores()])]
    fitting = [key for key in (name, f"{name}/{name}") if key in keys] or [
        key for key in keys if name in key.split("/")
    ]
    if len(fitting) > 1:
        raise UserError(f"The pruning score '{name}' fits several columns; choose one of {', '.join(fitting)}.")
    return fitting[0] if fitting else None


def find_score(name: str, columns: Mapping[str, Array], first: str = EXACT) -> Score:
    """A score by its name, its column or its function.

    Args:
        name: A name of ``SCORES`` or :func:`offered_names`, ``reversed``, a column as :func:`column_of` reads it,
            ``package.module:function`` or ``file.py:function``; with the prefix ``-``, its opposite.
        columns: Columns of head tables by ``measure/column``, each ``[layers, heads]``; higher is better to keep. A
            missing column is computed if it is in :func:`measured_scores`.
        first: The score that ``reversed`` reverses.

    Raises:
        UserError: If there is no such score, or several columns have this name.
    """
    if name == REVERSED:
        return _opposite(find_score(first, columns))
    if name.startswith(OPPOSITE):
        return _opposite(find_score(name.removeprefix(OPPOSITE), columns))
    if name in SCORES:
        return SCORES[name]
    if name in offered_names():
        offered: Score | None = load_offer("scores", name)
        if offered is None:
            raise UserError(f"The pruning score '{name}' cannot be imported; correct its package, or remove the score.")
        return offered
    column = column_of(name, columns)
    if column is not None:
        if column not in columns:
            return measured_scores()[column]
        score_LH = torch.from_numpy(columns[column].copy())
        return lambda situation: score_LH
    if ":" in name:
        try:
            score: Score = resolve(name)
        except Exception as error:
            # Importing a user's module can raise anything.
            raise UserError(
                f"The pruning score '{name}' cannot be imported ({error_text(error)}); give package.module:function or "
                "file.py:function."
            ) from error
        return score
    valid = dict.fromkeys([*SCORES, REVERSED, *offered_names(), *measured_scores(), *columns])
    raise UserError(
        f"Unknown pruning score '{name}'; {choices(name, valid)}; other columns are read from prune.tables=[<the "
        "folder of their analysis>]."
    )


def passes_of(names: Sequence[str], columns: Mapping[str, Array], num_heads: int) -> int:
    """One-time passes over each example for the scores, except user functions; for a progress bar."""
    passes = {}
    for name in names:
        score = None if name in CONTROLS else find_score(name.removeprefix(OPPOSITE), columns)
        if score is exact:
            passes[EXACT] = num_heads
        elif isinstance(score, MeasuredScore):
            passes[score.experiment] = score.passes(num_heads)
    return sum(passes.values())


def _opposite(score: Score) -> Score:
    return lambda situation: -score(situation)


def removal_sets(score: Score, situation: Situation, sizes: Sequence[int], *, iterative: bool) -> list[HeadSet]:
    """The heads to remove to reach each size: the lowest scores first, ties in order of layer and head.

    Args:
        score: The score.
        situation: The model and examples for scores; heads that it has removed remain removed.
        sizes: Numbers of removed heads, ascending.
        iterative: Whether scores are recomputed after each size (Michel et al. 2019 compute them once).

    Raises:
        UserError: If the score's shape does not match the model's heads, or it is NaN for a head.
    """
    encoder = describe(situation.model)
    removed = situation.removed
    ranking: list[tuple[int, int]] = []
    sets = []
    for size in sizes:
        if not ranking or iterative:
            ranking = _ranking(score, replace(situation, removed=removed), encoder.num_layers, encoder.num_heads)
        left = [head for head in ranking if head not in removed]
        removed = removed | frozenset(left[: size - len(removed)])
        sets.append(removed)
    return sets


def _ranking(score: Score, situation: Situation, num_layers: int, num_heads: int) -> list[tuple[int, int]]:
    score_LH = score(situation)
    if list(score_LH.shape) != [num_layers, num_heads]:
        raise UserError(
            f"The pruning score has shape {list(score_LH.shape)}; this model needs [{num_layers}, {num_heads}], one "
            "number per head."
        )
    heads = [(layer, head) for layer in range(num_layers) for head in range(num_heads)]
    open_heads = [head for head in heads if head not in situation.removed]
    for layer, head in open_heads:
        if score_LH[layer, head].isnan():
            raise UserError(
                f"The pruning score is not a number for head {head} of layer {layer}; choose a score that is defined "
                "for all heads."
            )
    return sorted(open_heads, key=lambda head: float(score_LH[head]))


def table_of(folder: str) -> Run:
    """The run of a folder in ``prune.tables``; raises UserError if it is not a run or has no head table."""
    if not (Path(folder) / "config.yaml").is_file():
        raise UserError(
            f"prune.tables lists '{folder}', which is not a run folder; give the folder of a training run or an "
            "analysis."
        )
    run = Run.open(Path(folder))
    if not run.heads_path.is_file():
        raise UserError(
            f"'{folder}' has no head table, so it has no scores for prune.tables; give a run that measured heads."
        )
    return run


def columns_of(run: Run) -> dict[str, Array]:
    """The columns of a run's head table at their last step as scores, ``measure/column`` -> ``[layers, heads]``.

    A training run has those of its validations. A column in which low numbers mark heads to keep (``Column.keep``) is
    negated, so that higher is better to keep.
    """
    table = run.table()
    stage = CHECKPOINT if table.select(stage=CHECKPOINT).table.num_rows else TRAINING
    table = table.select(stage=stage)
    names = set(zip(*(table.table[name].to_pylist() for name in ("measure", "column")), strict=True))
    low = {
        (declaration.name, column.name)
        for declaration in run.declarations()
        for column in declaration.columns
        if column.keep == "low"
    }
    scores = {}
    for measure, column in sorted(names):
        value_LH = table.grid(measure, column, stage, table.steps(measure, column, stage)[-1])[0]
        scores[f"{measure}/{column}"] = -value_LH if (measure, column) in low else value_LH
    return scores


def steps_of(num_heads: int, share: float) -> list[int]:
    """Numbers of removed heads, in steps of a share of all heads, up to all but one.

    >>> steps_of(12, 0.25), steps_of(10, 0.5)
    ([3, 6, 9, 11], [5, 9])
    """
    size = max(1, round(num_heads * share))
    return [*range(size, num_heads - 1, size), num_heads - 1]
