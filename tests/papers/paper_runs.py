"""Runs of the papers' analyses with numbers put in by hand."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from reporting.finished_runs import make_run

from bertsecrets.measures.dependency.rows import Relation, Treebank
from bertsecrets.measures.role_rows import Distance, Limits
from bertsecrets.measures.surface import Surface
from bertsecrets.measures.voita_roles import VoitaRoles
from bertsecrets.papers.models import Studied, studied
from bertsecrets.papers.statements.judge import Cell, judge
from bertsecrets.papers.statements.kinds import KINDS
from bertsecrets.papers.statements.statement import Statement
from bertsecrets.pruning.rows import CausalGates, Chosen, GateFits, PathPoint, Point, PruneSearch, Pruning, Timing
from bertsecrets.pruning.scores import score_label
from bertsecrets.reporting.runs import find_runs
from bertsecrets.results.estimate import Estimate
from bertsecrets.results.run import Run

BERT = {"name": "bert_base", "path": "model"}
TRAINED = {"name": "x", "init": "pretrained", "seed": 1}
PREVIOUS_LH = np.array([[0.99, 0.99, 0.99, 0.91], [0.1] * 4, [0.1] * 4])


LAYERS = np.repeat([[0.1], [0.2], [0.4], [0.7]], 10, axis=1)
"""A column of 4 layers of 10 heads that rises with the layer; its mean is 0.35."""


def models_in(folder: Path) -> Studied:
    """The models behind the runs of a folder."""
    return studied(find_runs([str(folder)])[0])


def statement_of(test: Mapping[str, Any], about: str = "tuned", **keys: Any) -> Statement:
    base = {
        "name": "made_up",
        "source": "A paper",
        "statement": "It is so.",
        "published": "0.5.",
        "quote": "It is so.",
        "there": "BERT.",
        "here": "The same.",
        "about": about,
    }
    kind = KINDS[test["kind"]]
    return Statement.read("statement", {**base, **keys, "test": kind.read("test", dict(test))})


def by_layer(*means: float) -> ArrayLike:
    return np.repeat(np.array(means)[:, None], 2, axis=1)


def relation(name: str, accuracy: float, gain: float, *, from_head: bool = False, reach: float = 0.02) -> Relation:
    found = (Estimate(number, number - reach, number + reach, n=200) for number in (accuracy, gain))
    p_gain = 0.01 if gain > reach else 0.5
    return Relation(name, 200, 7, 10, from_head, 1.0, next(found), 1, accuracy - gain, next(found), p_gain, accuracy)


TREEBANK = Treebank("treebank", 100, 0, 0, 50, 2, 3, "mean", True, True, True, 10)


def with_rows(folder: Path, name: str, rows: Sequence[object], columns: Mapping[str, ArrayLike]) -> None:
    """A run with rows of the model before fine-tuning."""
    run = Run.open(make_run(folder / "run", model=BERT, measured=[("initial", name, columns)]))
    run.write_rows(name, "initial", 0, rows)


def pruned_run(folder: Path, seed: int, changes: Mapping[str, float], *, slowest: float = 8.0) -> None:
    """A pruned run of 12 heads: the changes of some orders, each with an interval of two points, ``random`` twice."""
    measured = [("checkpoint", "pruning", {"kept": np.ones((3, 4))})]
    run = Run.open(make_run(folder / f"run{seed}", seed=seed, p_constant=0.001, measured=measured))
    first = next(iter(changes))
    rows: list[object] = [prune_search(heads=12), chosen(first, kept=8)]
    for score, change in changes.items():
        for order in (0, 1) if score == "random" else (0,):
            shift = change - 0.01 * order
            points = zip((8, 6, 2), [Estimate(shift, shift - 0.02, shift + 0.02)] * 3, strict=True)
            rows += [point(score, kept, of, order=order, attempt=at) for at, (kept, of) in enumerate(points)]
    rows += [Timing(at, 32, 10.0, slowest - 1, slowest - 2, slowest) for at in range(3)]
    run.write_rows("pruning", "checkpoint", 0, rows)
    run.declare(Pruning().declaration())


def prune_search(**facts: Any) -> PruneSearch:
    """A search that ruled out a loss of one point on 400 examples, but for some facts."""
    default = PruneSearch(
        0.01, None, 0.95, 1, 0.967, True, 400, 64, 1000, 12, "cpu", 1, "accuracy", 0.8, 0.5, 24, False, 900
    )
    return replace(default, **facts)


def chosen(score: str, kept: int, **facts: Any) -> Chosen:
    """A model whose loss is not ruled out, but for some facts."""
    return replace(Chosen(score, 0, kept, False, False, 0.0, 0.02, 0.3, None, False), **facts)


def point(score: str, kept: int, change: Estimate, *, order: int = 0, attempt: int = 0) -> Point:
    """A point of a curve."""
    return Point(score, score_label(score), False, order, attempt, kept, change, 0.5, 90, 80)


def roles_measured(**shares: ArrayLike) -> dict[str, ArrayLike]:
    """Columns of ``voita_roles``: four positional heads in layer 0, one of them not significantly; others low unless
    given.
    """
    low_LH = np.full((3, 4), 0.1)
    names = ("next", "nsubj", "nsubj_from_head", "obj", "obj_from_head", "rarest", "two_rarest")
    return {"previous": PREVIOUS_LH, **dict.fromkeys(names, low_LH), **shares}


def gated_run(folder: Path, shut_LH: ArrayLike, path: Sequence[tuple[int, float, float]], *, seed: int = 1) -> Path:
    """A run with positional heads in layer 0, gates, and models on a path: heads kept of 12, ends of the interval in
    shares.
    """
    columns = {"pushed_shut": np.asarray(shut_LH, float), "pushed_open": np.ones((3, 4))}
    measured = [("checkpoint", "voita_roles", roles_measured()), ("checkpoint", "causal_gates", columns)]
    made = make_run(folder / f"run{seed}", seed=seed, p_constant=0.001, measured=measured)
    run = Run.open(made)
    rows: list[object] = [GateFits("accuracy", 0.8, 0.5, 0.95, 400, 8, 0.01, 1)]
    rows += [
        PathPoint(0.1 * place, kept, Estimate((low + high) / 2, low, high), 1.0)
        for place, (kept, low, high) in enumerate(path)
    ]
    run.write_rows("causal_gates", "checkpoint", 0, rows)
    run.write_rows("voita_roles", "checkpoint", 0, VOITA_ROWS)
    run.declare(CausalGates().declaration(), VoitaRoles(1, 1).declaration())
    return made


VOITA_ROWS: list[object] = [
    Limits(0.9, 0.1, 0.5, 100),
    *(Distance("nsubj", distance, pairs) for distance, pairs in ((1, 60), (2, 50), (-1, 50), (-9, 40))),
    *(Distance("obj", distance, 33) for distance in (1, 2, 3)),
]


def surface_run(folder: Path, cls_LH: ArrayLike = LAYERS, *, stage: str = "checkpoint", **settings: Any) -> Path:
    sep_LH = settings.pop("sep_LH", np.full(np.shape(cls_LH), 0.1))
    columns = {"cls": np.asarray(cls_LH), "sep_total": sep_LH}
    settings = {"p_constant": 0.001, "stderr": 0.005, **settings}
    made = make_run(folder, measured=[(stage, "surface", columns)], **settings)
    Run.open(made).declare(Surface(1, 1).declaration())
    return made


def disabled(
    delta_LH: ArrayLike, reach: float, metrics: Mapping[str, float] = MappingProxyType({"accuracy": 1}), **settings: Any
) -> Callable[[Path], object]:
    """Effects with limits ``reach`` points away on either side, times a factor for each metric."""

    def make(folder: Path) -> None:
        made = make_run(folder, **{"delta_LH": np.asarray(delta_LH) / 100, "p_constant": 0.001, **settings})
        run = Run.open(made)
        rows = [
            {**row, "metric": metric, "delta": factor * row["delta"]}
            for metric, factor in metrics.items()
            for row in run.ablation_table().rows()
        ]
        for row in rows:
            row.update(low=row["delta"] - reach / 100, high=row["delta"] + reach / 100, level=0.95)
        type(run.ablation_table()).from_rows(rows).write(run.ablation_path)

    return make


def disabled_words(delta_LH: ArrayLike) -> Callable[[Path], object]:
    """Effects on masked words before fine-tuning: these on the accuracy, times -2 on the pseudo-log-likelihood."""
    metrics = {"masked_accuracy": 1, "pseudo_log_likelihood": -2}
    return disabled(delta_LH, 0.1, metrics, model=BERT, checkpoint="initial", trained=TRAINED)


def pruned(*curves: tuple[str, int, float], **settings: object) -> Callable[[Path], object]:
    """Orders, heads kept of 10, and changes in points, each with limits of 2 points on either side."""
    facts = {"heads": 10, "examples": 408, **settings}

    def make(folder: Path) -> None:
        run = Run.open(make_run(folder, cosine_LH=LAYERS, p_constant=0.001))
        points = [
            point(order, kept, Estimate(*((change + end) / 100 for end in (0, -2, 2))))
            for order, kept, change in curves
        ]
        rows = [prune_search(**facts), chosen(curves[0][0], kept=5), *points]
        run.write_rows("pruning", "checkpoint", 0, rows)
        run.declare(Pruning().declaration())

    return make


def cell_of(folder: Path, *, about: str = "tuned", **test: Any) -> Cell:
    """The one cell of a statement with a test on the runs of a folder."""
    (entry,) = judge([statement_of(test, about)], models_in(folder))
    (cell,) = entry.cells
    return cell
