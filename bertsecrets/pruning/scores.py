"""Pruning scores: one number per head, removed in ascending order."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from bertsecrets.doors import error_text, free_names, load_offer, resolve
from bertsecrets.errors import UserError, choices
from bertsecrets.models.encoder import describe
from bertsecrets.pruning.measured import MeasuredScore, measured_scores
from bertsecrets.pruning.rows import CONTROLS, RANDOM, REVERSED
from bertsecrets.pruning.sets import HeadSet, Score, Situation, evaluate_sets
from bertsecrets.results.run import CHECKPOINT, TRAINING, Run
from bertsecrets.task_heads.metric import Array

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
