"""Voita et al. 2019, *Analyzing Multi-Head Self-Attention*: figures and tables of its page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from bertsecrets.importance.confidence import Confidence
from bertsecrets.importance.relevance import RELEVANCE, Relevance
from bertsecrets.measures.role_rows import (
    FROM_HEAD,
    PREVIOUS,
    VOITA_ROLES,
    distances,
    judged_relations,
    strength,
    voita_limits,
    voita_roles,
    voita_tests,
)
from bertsecrets.measures.voita_roles import VoitaRoles
from bertsecrets.papers.models import Group, Model, Studied, callbacks_of_training
from bertsecrets.papers.shows import published
from bertsecrets.present.figures.grids import HeadPanel, head_panels
from bertsecrets.present.figures.pruning import CurvePoint, pruning_curves
from bertsecrets.present.figures.style import (
    ACCENTS,
    PAGE_WIDTH,
    footnote,
    house_style,
    panels_across,
    sample_size,
    titled_panels,
)
from bertsecrets.present.grid import highest
from bertsecrets.present.report.content import FigureBlock, Section, Table
from bertsecrets.pruning.experiment import GATE, KEPT, FirstPruned, LearnedGates
from bertsecrets.pruning.rows import GateFits, PathPoint
from bertsecrets.results.estimate import Estimate
from bertsecrets.results.formatting import MISSING, head_label, low_to_high, number, percent, with_limits
from bertsecrets.results.views import Array
from bertsecrets.statistics.ranks import rank_correlation
from bertsecrets.statistics.replicates import Interval, interval_over_seeds, mean_interval

_THEIRS = published("voita2019")
_SAME = {"dobj": "obj"}
"""Labels of relations -> those of the published numbers, where they differ."""

_CONFIDENT = 0.8
_FARTHEST = 7
_MARGIN = 0.01
_LEVEL = 0.95


def roles(models: Studied) -> Section | None:
    """Section 5: positional, syntactic and rare-word heads; None if no run measured these roles."""
    rows = []
    for group in models.tuned:
        views = group.views(VoitaRoles.name, PREVIOUS)
        tests = [voita_tests(view) for view in views]
        cells = []
        for role in VOITA_ROLES:
            shown = [test[role] for test in tests if role in test]
            if len(shown) < len(tests):
                cells.append(MISSING)
                continue
            counts = [int(voita_roles(view)[role].sum()) for view in views]
            pairs = zip(counts, shown, strict=True)
            cells.append(", ".join(f"{count} ({int(above_LH.sum())})" for count, above_LH in pairs))
        if views:
            rows.append([group.name, str(views[0].value(PREVIOUS).size), *cells])
    if not rows:
        return None
    caption = "Heads that reach the threshold of a role, by seed, in parentheses those significantly above it; a head can have several roles"
    return Section(tables=[Table(["task", "heads", *VOITA_ROLES], rows, caption)])


def figure_1(models: Studied) -> Section | None:
    """Section 4, figures 1 and 2: relevance, confidence and functions of heads; None if no run has two of them."""
    rows = []
    blocks: list[FigureBlock] = []
    for group in models.tuned:
        model = group.models[0]
        relevance = model.view(Relevance.name, lambda view: view.has(RELEVANCE))
        confidence = model.view(Confidence.name, lambda view: view.has(Confidence.name))
        by_role = model.view(VoitaRoles.name, lambda view: view.has(PREVIOUS))
        grids = {
            name: view.value(column)
            for name, view, column in (
                ("relevance", relevance, RELEVANCE),
                ("confidence", confidence, Confidence.name),
            )
            if view is not None
        }
        panels = [HeadPanel(name, grid) for name, grid in grids.items()]
        roles_by_name = {} if by_role is None else voita_roles(by_role)
        if by_role is not None:
            limits = voita_limits(by_role)
            panels += [
                HeadPanel(role, strength(by_role, limits[role]), passed) for role, passed in roles_by_name.items()
            ]
        if len(grids) + (by_role is not None) < 2:
            continue
        counts = [view.count(view.columns[0].name) for view in (relevance, confidence, by_role) if view is not None]
        figure = head_panels(
            panels,
            title=f"{group.name}: importance, confidence and function of each head",
            unit="share",
            note="relevance: share of the layer's; functions are pale below their threshold; "
            f"seed {model.seed}; {sample_size(counts)}",
            limits=(0.0, 1.0),
        )
        caption = f"Figures 1 and 2 for {group.name}."
        blocks.append(FigureBlock(f"voita_figure1_{len(blocks)}", figure, caption, "Heatmaps by layer and head."))
        if "relevance" in grids:
            rows.append([group.name, str(model.seed), *_most_relevant(grids, roles_by_name)])
    if not blocks:
        return None
    header = [
        "task",
        "seed",
        "layers whose most relevant head has a function",
        "layers whose most relevant head has a confidence above 0.8",
        "Spearman's ρ of relevance and confidence over all heads; within layers (95 % intervals)",
    ]
    return Section(
        paragraphs=[
            "In the paper a few heads of each layer are relevant, they are the confident ones but for the head of rare words in layer 0, and "
            "nearly all of them have a function. Relevance is that of the answer's logit, split among the heads of a layer."
        ],
        tables=[Table(header, rows, "The most relevant heads, one of each layer")] if rows else [],
        figures=blocks,
        summary=f"{rows[0][0]}: the most relevant head has a function in {rows[0][2]} layers"
        if rows and rows[0][2] != MISSING
        else "",
    )


def _most_relevant(grids: Mapping[str, Array], roles_by_name: Mapping[str, NDArray[np.bool_]]) -> list[str]:
    best_L = grids["relevance"].argmax(axis=1)
    layers = np.arange(len(best_L))
    with_role, confident, agreement = MISSING, MISSING, MISSING
    if roles_by_name:
        has_role_LH = np.logical_or.reduce(list(roles_by_name.values()))
        with_role = f"{int(has_role_LH[layers, best_L].sum())} of {len(layers)}"
    if "confidence" in grids:
        confident = f"{int((grids['confidence'][layers, best_L] > _CONFIDENT).sum())} of {len(layers)}"
        ranks = rank_correlation(grids["relevance"], grids["confidence"])
        agreement = "; ".join(with_limits(part.rho, part.low, part.high, 2) for part in (ranks, ranks.claim))
    return [with_role, confident, agreement]


def dependencies(models: Studied) -> Section | None:
    """Section 5.2, table 1 and figure 3: the best head of each relation, and where the other word stands; None without annotated words."""
    rows = []
    distributions: dict[str, Mapping[int, int]] = {}
    before = [
        (f"{model} on {task}, before fine-tuning", MISSING, view)
        for (model, task), view in models.before(VoitaRoles.name).items()
    ]
    # Of models with gates, too, there would be a table of each strength.
    usual = [group for group in models.tuned if models.as_usual(group) in (None, group)]
    tuned = [
        [
            (group.name, str(model.seed), view)
            for model in group.models
            if (view := model.view(VoitaRoles.name, lambda view: view.has(PREVIOUS))) is not None
        ][:1]
        for group in usual
    ]
    for name, seed, view in chain(before, *tuned):
        for column, baseline in judged_relations(view).items():
            relation, back = column.removesuffix(FROM_HEAD), column.endswith(FROM_HEAD)
            value_LH, stderr_LH, _ = view.grid(column)
            top = highest(value_LH)
            theirs = _THEIRS["relations"].get(_SAME.get(relation, relation))
            pairs = distances(view)[relation]
            distributions.setdefault(relation, pairs)
            rows.append(
                {
                    "model and task": name,
                    "seed": seed,
                    "relation": f"{relation}, {'from' if back else 'to'} the head",
                    "pairs": f"{sum(pairs.values()):,}",
                    "best head": head_label(*top),
                    "pairs found, %": f"{percent(value_LH[top])} ± {percent(1.96 * stderr_LH[top])}",
                    "most frequent distance, %": percent(baseline),
                    "paper (WMT)": MISSING if theirs is None else f"{theirs[back][0]}: {theirs[back][1]}",
                }
            )
    if not rows:
        return None
    return Section(
        paragraphs=[
            "A head finds a pair of words where it attends most to the other word. The best of all heads is chosen and counted on the same "
            "pairs, as in the paper's table 1. Standard errors are over texts."
        ],
        tables=[
            Table.of(
                rows,
                "Relations, in both directions. ± 95 %; the best head is chosen on the same pairs, so that its share is somewhat too high. "
                "Paper: its best head, then its most frequent distance",
            )
        ],
        figures=_distances(distributions),
    )


def _distances(distributions: Mapping[str, Mapping[int, int]]) -> list[FigureBlock]:
    """Figure 3: how often the head of a relation stands how far from the dependent."""
    titles = [f"{relation} ({sum(counts.values()):,} pairs)" for relation, counts in distributions.items()]
    with house_style():
        figure, axes_N = titled_panels(
            titles,
            panels_across(len(titles)),
            (PAGE_WIDTH, 1.8),
            "Where the syntactic head stands",
            "words from the dependent to its head",
            margin=0.8,
        )
        for axes, counts in zip(axes_N, distributions.values(), strict=True):
            total = sum(counts.values())
            offsets = range(-_FARTHEST, _FARTHEST + 1)
            axes.bar(offsets, [100 * counts.get(offset, 0) / total for offset in offsets], color=ACCENTS[0])
        figure.supylabel("% of pairs", fontsize=9.0)
        footnote(figure, f"farther than {_FARTHEST} words: not drawn")
    return [
        FigureBlock(
            "voita_figure3",
            figure,
            "Figure 3: from each dependent to its syntactic head, in these texts.",
            "Bar charts of distances by relation.",
        )
    ]


_FROZEN, _LEARNED, _ALONE = "of the frozen model", "learned in training", "open heads alone, from the start"
"""What the rows of gates are called; the last kind fine-tunes the heads that gates left open, without the others."""
_IN_LEGEND = {_FROZEN: f"gates {_FROZEN}", _LEARNED: f"gates {_LEARNED}", _ALONE: _ALONE}


def gates(models: Studied) -> Section | None:
    """Section 6: how many heads gates leave open, and at which score; None if no run fitted or learned gates."""
    frozen = [(fits, path) for fits, path in map(_path, models.tuned) if fits is not None and path]
    learned = [fitted for group in models.tuned if (fitted := _fitted(models, group)) is not None]
    if not frozen and not learned:
        return None
    # Gates of another penalty may have been learned with other seeds.
    fits = [*chain.from_iterable(path for _, path in frozen), *learned]
    most_seeds = {fitted.name: fitted for fitted in sorted(fits, key=lambda fitted: len(fitted.whole_R))}
    rows = [
        [name, "none", MISSING, f"{whole.heads} of {whole.heads}", _by_seed(whole.whole_R), MISSING, MISSING]
        for name, whole in most_seeds.items()
        if len(whole.whole_R)
    ]
    for fitted in fits:
        change = fitted.change
        rows.append(
            [
                fitted.name,
                fitted.how,
                fitted.penalty,
                f"{', '.join(map(str, fitted.kept_R))} of {fitted.heads}",
                _by_seed(fitted.score_R),
                number(100 * change.mean, 1, signed=True),
                low_to_high(100 * change.low, 100 * change.high, 1),
            ]
        )
    paper = "paper: WMT, BLEU"
    rows.append([paper, "none", MISSING, "48/48/48 of 48 each", number(_THEIRS["whole"], 2), MISSING, MISSING])
    for place, how in enumerate((_LEARNED, _ALONE)):
        rows += [
            [
                paper,
                how,
                MISSING,
                f"{kept} of 48 each",
                number(scores[place], 2),
                number(scores[place] - _THEIRS["whole"], 2, signed=True),
                MISSING,
            ]
            for kept, scores in _THEIRS["pruned"].items()
        ]
    header = ["task", "gates", "penalty", "heads kept", "score", "change, points", "95 % interval"]
    caption = (
        "Heads kept by gates, by seed. Intervals are over seeds; of the frozen model over seeds and examples, or, with one seed, over examples. "
        "Paper: heads of encoder, decoder and cross-attention"
    )
    return Section(
        paragraphs=[
            "The paper starts from a trained model and goes on training it with gates; here gates are fitted to the frozen model, and learned "
            "together with fine-tuning. Its encoder translates from English to Russian."
        ],
        tables=[Table(header, rows, caption)],
        figures=[_figure(fits, path, learned, index) for index, (fits, path) in enumerate(frozen)],
        summary=_in_words(learned),
    )


@dataclass(frozen=True)
class _Fitted:
    """Models of several seeds with gates, frozen or learned, or of whose heads some were left out from the start.

    Args:
        name: Name of the same models with all heads, or their own where there are none.
        how: Which of the three.
        penalty: The gates' penalty; a dash for the last kind.
        heads: Number of heads.
        kept_R: Heads kept, by seed.
        score_R: Score, by seed.
        whole_R: Score with all heads of the same seeds; empty where some seed has none.
        change: Mean change of the score with the kept heads alone.
    """

    name: str
    how: str
    penalty: str
    heads: int
    kept_R: list[int]
    score_R: list[float]
    whole_R: list[float]
    change: Interval


def _path(group: Group) -> tuple[GateFits | None, list[_Fitted]]:
    """The first seed's fits of gates to the frozen model, and the models on their path by penalty; none without gates."""
    views = group.views("causal_gates", "pushed_shut", ready=lambda view: bool(view.lines("pathpoint")))
    by_penalty: dict[float, list[tuple[float, PathPoint]]] = {}
    all_fits = [view.found(GateFits)[0] for view in views]
    for view, fits in zip(views, all_fits, strict=True):
        for point in view.found(PathPoint):
            by_penalty.setdefault(point.penalty, []).append((fits.score, point))
    path = []
    for penalty, of_seeds in by_penalty.items():
        defined = [(whole, point.change) for whole, point in of_seeds if np.isfinite(point.change.value)]
        path.append(
            _Fitted(
                group.name,
                _FROZEN,
                f"{penalty:g}",
                views[0].value("pushed_shut").size,
                [point.kept for _, point in of_seeds],
                [whole + change.value for whole, change in defined],
                [whole for whole, _ in defined],
                interval_over_seeds(
                    [[change.value, change.low, change.high] for _, change in defined], _LEVEL, symmetric=True
                ),
            )
        )
    return all_fits[0] if all_fits else None, path


def _fitted(models: Studied, group: Group) -> _Fitted | None:
    how, columns, fitted = "", [], []
    for model in group.models:
        learned = model.view(LearnedGates.name, lambda view: view.has(GATE))
        shape = model.view(FirstPruned.name, lambda view: view.has(KEPT))
        if learned is not None:
            how, gate_LH = _LEARNED, learned.value(GATE)
        elif shape is not None:
            how, gate_LH = _ALONE, shape.value(KEPT)
        else:
            continue
        columns.append(gate_LH)
        fitted.append(model)
    if not fitted:
        return None
    usual = models.as_usual(group)
    whole = {} if usual is None else {model.seed: _score(model) for model in usual.models}
    score_R = [_score(model) for model in fitted]
    whole_R = [whole[model.seed] for model in fitted] if all(model.seed in whole for model in fitted) else []
    return _Fitted(
        group.name if usual is None else usual.name,
        how,
        _penalty(fitted[0]),
        columns[0].size,
        [int((gate_LH >= 0.5).sum()) for gate_LH in columns],
        score_R,
        whole_R,
        mean_interval(np.subtract(score_R, whole_R) if whole_R else [], _LEVEL),
    )


def _score(model: Model) -> float:
    return float(next(iter(model.first_set["model"].values())))


def _by_seed(score_R: Sequence[float]) -> str:
    return ", ".join(number(score) for score in score_R) or MISSING


def _in_words(learned: Sequence[_Fitted]) -> str:
    """What the gates that leave nearest to half of the heads cost; empty without gates that were learned."""
    told = [fitted for fitted in learned if fitted.how == _LEARNED and np.isfinite(fitted.change.mean)]
    if not told:
        return ""
    half = min(told, key=lambda fitted: abs(np.mean(fitted.kept_R) / fitted.heads - 0.5))
    kept = " to ".join(map(str, sorted({min(half.kept_R), max(half.kept_R)})))
    change = with_limits(100 * half.change.mean, 100 * half.change.low, 100 * half.change.high, 1, signed=True)
    return f"{half.name}: gates learned with fine-tuning leave {kept} of {half.heads} heads, {change} points"


def _penalty(model: Model) -> str:
    callbacks = callbacks_of_training(model.parts[0]).values()
    return next((f"{settings['penalty']:g}" for settings in callbacks if "penalty" in settings), MISSING)


def last_to_go(models: Studied) -> Section | None:
    """Section 6.3: which heads with a role are left when gates shut others; None without roles and gates of one model."""
    rows = []
    for group in models.tuned:
        for model in group.models:
            by_role_view = model.view(VoitaRoles.name, lambda view: view.has(PREVIOUS))
            shut = model.view("causal_gates", lambda view: view.has("pushed_shut"))
            learned = model.view(LearnedGates.name, lambda view: view.has(GATE))
            gates_of = [view.value(name) for view, name in ((shut, "pushed_shut"), (learned, GATE)) if view is not None]
            if by_role_view is None or not gates_of:
                continue
            kept_LH = gates_of[0] >= 0.5
            by_role = voita_roles(by_role_view)
            kept_by_role = [_kept_of(by_role[role], kept_LH) if role in by_role else MISSING for role in VOITA_ROLES]
            without_LH = ~np.logical_or.reduce(list(by_role.values()))
            how = f"{_FROZEN}, pushed shut" if shut is not None else f"{_LEARNED}, penalty {_penalty(model)}"
            name = (models.as_usual(group) or group).name
            rows.append([name, str(model.seed), how, *kept_by_role, _kept_of(without_LH, kept_LH)])
    if not rows:
        return None
    caption = (
        "Heads kept, of those with each role. A head is kept if its gate is at least 0.5. Gates that are pushed shut are means over fits "
        "with one penalty, apart from the path of penalties"
    )
    return Section(tables=[Table(["task", "seed", "gates", *VOITA_ROLES, "no role"], rows, caption)])


def _kept_of(role_LH: NDArray[np.bool_], kept_LH: NDArray[np.bool_]) -> str:
    return f"{int((role_LH & kept_LH).sum())} of {int(role_LH.sum())}"


def _figure(fits: GateFits, path: Sequence[_Fitted], learned: Sequence[_Fitted], index: int) -> FigureBlock:
    name, heads, seeds = path[0].name, path[0].heads, max(len(one.kept_R) for one in path)
    of_group = [one for one in (*path, *learned) if one.name == name and np.isfinite(one.change.mean)]
    points_of_all = []
    for how, legend in _IN_LEGEND.items():
        points = [(float(np.mean(one.kept_R)), one.change) for one in of_group if one.how == how]
        points.sort(key=itemgetter(0))
        points_of_all += [CurvePoint(legend, kept, Estimate(of.mean, of.low, of.high)) for kept, of in points]
    published = {
        f"paper (BLEU), {_IN_LEGEND[how]}": [
            (heads * int(kept.split("/")[0]) / 48, (scores[place] - _THEIRS["whole"]) / 100)
            for kept, scores in _THEIRS["pruned"].items()
        ]
        for place, how in enumerate((_LEARNED, _ALONE))
    }
    figure = pruning_curves(
        points_of_all,
        margin=_MARGIN,
        title=f"{name}: change of {fits.metric} by heads kept",
        count=fits.examples,
        level=_LEVEL,
        over="seeds and examples" if seeds > 1 else "examples",
        published=published,
    )
    return FigureBlock(
        f"voita_gates_{index}",
        figure,
        f"Figure 7 and table 2 for {name}{', means over seeds' * (seeds > 1)}; crosses: the paper's, in points of BLEU, at the same share of the "
        "encoder's heads.",
        "Line chart of scores by heads kept.",
    )
