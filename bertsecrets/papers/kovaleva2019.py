"""Kovaleva et al. 2019, *Revealing the Dark Secrets of BERT*: figures and tables of its sections that its page's file cannot describe.

Published numbers are by our task names; layers count from 0 here and from 1 in the paper. Those of table 1 are the paper's own.
Those of its figures, and of the figures in its authors' notebook, were read off the pictures; their last digit may be wrong.
"""

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from bertsecrets.measures.frame_relations.rows import LinkedPair, Links, Token, Weight
from bertsecrets.measures.linguistic.columns import (
    BEYOND,
    CLS_TO,
    MEAN,
    RANDOM,
    UNIFORM,
    feature_label,
    pair_label,
)
from bertsecrets.models.spec import RANDOM_INIT
from bertsecrets.papers.models import Group, Model, Studied
from bertsecrets.papers.shows import filled_table, published
from bertsecrets.patterns.classes import NAMES, PATTERNS, over_seeds, pattern_label
from bertsecrets.patterns.classifier import MIN_LENGTH, load_classifier
from bertsecrets.patterns.measure import Patterns
from bertsecrets.present.figures.grids import HeadPanel, head_panels
from bertsecrets.present.figures.layers import LayerPanel, layer_panels
from bertsecrets.present.figures.maps import MapPanel, TitledMap, gallery, map_sheet
from bertsecrets.present.figures.patterns import ShareBar, pattern_bars
from bertsecrets.present.figures.rows import IntervalRow, interval_rows
from bertsecrets.present.figures.style import sample_size, seeds_in_words
from bertsecrets.present.frame_relations import (
    OPEN,
    RELATION,
    by_weight,
    linked_tokens,
    maps_of_example,
    relation_heads,
)
from bertsecrets.present.grid import highest
from bertsecrets.present.patterns import ANNOTATED, NAMED
from bertsecrets.present.report.content import FigureBlock, Section, Table
from bertsecrets.reporting.runs import FinishedRun, constant_score
from bertsecrets.results.captures import read_examples, read_maps, read_steps
from bertsecrets.results.formatting import MISSING, head_label, number, with_limits
from bertsecrets.results.run import CAPTURES, INITIAL
from bertsecrets.results.scores import INTERVALS, score_interval
from bertsecrets.results.views import Grids, MeasureView, Replicates

_THEIRS = published("kovaleva2019")

_PAPERS_COLUMN = (
    "The paper's column has three models: pre-trained and fine-tuned, random and fine-tuned, and pre-trained without "
    "fine-tuning, which has an untrained classifier; it gives one run each and no intervals. A score is lower or higher than "
    "the paper's where its interval and that of the paper's score on the whole development set do not meet."
)


@dataclass(frozen=True)
class Scores:
    """One metric of a task's first evaluation set, by initialisation.

    Args:
        task: Name of the group.
        metric: Name of the metric.
        pretrained, random: Each seed's score; NaN where undefined. ``random`` is empty if there is no such run.
        untrained: Scores of the pre-trained encoder with an untrained classifier; empty if there is no such run.
        constant: A constant answer's score; NaN where undefined.
        published: The paper's scores in percent: untrained classifier, random, pre-trained; empty if there are none.
        count: Number of examples.
        papers_count: Number of examples of the whole development set, the paper's; 0 if there are no published scores.
    """

    task: str
    metric: str
    pretrained: list[float]
    random: list[float]
    untrained: list[float]
    constant: float
    published: Sequence[float]
    count: int
    papers_count: int


def initialisation(models: Studied) -> Section | None:
    """Table 1, per task, next to the published one; None without labelled runs."""
    tasks = [metrics for group in models.tuned if (metrics := _scores(models, group))]
    if not tasks:
        return None
    table = score_table(tasks)
    drawn = []
    for scores in (metrics[0] for metrics in tasks):
        drawn.append(_drawn("pre-trained", scores, scores.pretrained, 2))
        if scores.random:
            drawn.append(_drawn("random weights", scores, scores.random, 1))
    figure = interval_rows(
        drawn,
        title="Scores by initialisation",
        unit="score",
        reference=None,
        value="mean over seeds",
        baseline="constant answer",
        published="the paper",
        note=f"rings: seeds; bars: {INTERVALS}, cut off at the metric's ends",
    )
    caption = "Every seed's score, by task and initialisation."
    return Section(
        paragraphs=[
            "Scores in percent, mean over seeds with a 95 % interval over seeds and examples, cut off at the metric's ends. Where "
            "there is one seed it is over examples; those of F1 and Matthews' correlation are over seeds alone.",
            *([_PAPERS_COLUMN] if table.header[-1] == "paper" else []),
        ],
        tables=[table],
        figures=[FigureBlock("paper_table1", figure, caption, "Dot chart of scores.")],
    )


def score_table(tasks: Sequence[Sequence[Scores]]) -> Table:
    """Table 1 without the columns that no row fills; the last row is the mean gain of fine-tuning.

    Args:
        tasks: The metrics of each task.
    """
    header = ["task", "metric", "pre-trained, fine-tuned", "random, fine-tuned", "pre-trained, untrained classifier"]
    header += ["constant answer", "against the paper, beyond both intervals", "paper"]
    rows = [
        [
            scores.task,
            scores.metric,
            _percent(scores, scores.pretrained),
            _percent(scores, scores.random) if scores.random else MISSING,
            _percent(scores, scores.untrained) if scores.untrained else MISSING,
            number(100 * scores.constant, 1),
            _beyond(scores),
            " / ".join(number(value, 1) for value in reversed(scores.published)) or MISSING,
        ]
        for metrics in tasks
        for scores in metrics
    ]
    return filled_table(Table(header, [*rows, *_gain(tasks)], "Table 1"))


def _beyond(scores: Scores) -> str:
    """The trained models whose interval does not meet that of the paper's score.

    An untrained classifier is one random draw, here and there, and is not compared.
    """
    differing, untested = [], False
    ours = {"fine-tuned": scores.pretrained, "random": scores.random}
    for (model, values), theirs in zip(ours.items(), reversed(scores.published), strict=False):
        if not values:
            continue
        here = score_interval(scores.metric, values, scores.count)
        there = score_interval(scores.metric, [theirs / 100], scores.papers_count)
        if np.isnan([here.low, there.low]).any():
            untested = True
        elif here.high < there.low or here.low > there.high:
            differing.append(f"{model} {'lower' if here.high < there.low else 'higher'}")
    return ", ".join(differing) or ("not tested" if untested else MISSING)


def _scores(models: Studied, group: Group) -> list[Scores]:
    """The metrics of models that started from pre-trained weights, the task's first one first."""
    random = models.of_random(group)
    untrained = [model for model in models.initial_of(group) if model.init != RANDOM_INIT]
    name, first = next(iter(group.models[0].scores["sets"].items()))
    return [
        Scores(
            group.name,
            metric,
            _by_seed(group.models, metric),
            [] if random is None else _by_seed(random.models, metric),
            _by_seed(untrained, metric),
            constant_score(group.models, name, metric),
            _THEIRS["scores"].get(group.task, {}).get(metric, ()),
            int(first["count"]),
            _THEIRS["development"].get(group.task, 0),
        )
        for metric in first["constant"]
    ]


def _gain(tasks: Sequence[Sequence[Scores]]) -> list[list[str]]:
    """A row of Table 1: the gain of fine-tuning over an untrained classifier, mean over the tasks that have both.

    The first metric of each task counts, for the paper too.
    """
    firsts = [first for first, *_ in tasks if first.untrained]
    if not firsts:
        return []
    ours = [100 * (float(np.mean(first.pretrained)) - float(np.mean(first.untrained))) for first in firsts]
    theirs = [first.published[-1] - first.published[0] for first in firsts if first.published]
    what = f"mean gain over an untrained classifier, {len(firsts)} task{'s' * (len(firsts) != 1)}"
    means = [number(float(np.mean(gains)), 1, signed=True) if gains else MISSING for gains in (ours, theirs)]
    return [[what, MISSING, means[0], *[MISSING] * 4, means[1]]]


def _by_seed(models: Sequence[Model], metric: str) -> list[float]:
    values = [model.first_set["model"].get(metric) for model in models]
    return [math.nan if value is None else float(value) for value in values]


def _drawn(init: str, scores: Scores, values: list[float], place: int) -> IntervalRow:
    interval = score_interval(scores.metric, values, scores.count)
    theirs = scores.published[place] / 100 if scores.published else math.nan
    return IntervalRow(
        f"{scores.task} · {init}", interval.mean, interval.low, interval.high, scores.constant, values, theirs
    )


def _percent(scores: Scores, values: list[float]) -> str:
    """The mean with its interval, in percent."""
    interval = score_interval(scores.metric, values, scores.count)
    return with_limits(100 * interval.mean, 100 * interval.low, 100 * interval.high, 1)


def patterns(models: Studied) -> Section | None:
    """Shares of the patterns of fine-tuned models, per task, and a map of each pattern; None if no run measured them."""
    bars, drawn, rows, counts = [], [], [], []
    for group in models.tuned:
        grids = [grid for name in NAMES if (grid := group.grids(Patterns.name, name)) is not None]
        if len(grids) < len(NAMES):
            continue
        share_RLHC = np.stack([grid.value_RLH for grid in grids], axis=-1)
        error_RLHC = np.stack([grid.stderr_RLH for grid in grids], axis=-1)
        bar = ShareBar(group.name, *over_seeds(share_RLHC, error_RLHC))
        bars.append(bar)
        drawn.append(replace(bar, name=group.title))
        counts.append(grids[0].count)
        theirs = _THEIRS["shares"].get(group.task)
        if theirs:
            share_C = np.array([theirs.get(name, 0.0) / 100 for name in NAMES])
            drawn.append(ShareBar(f"paper: {group.task}", share_C, np.full_like(share_C, np.nan)))
        rows.append([bar.name, *_with_published(bar, theirs)])
    if not bars:
        return None
    typical = typical_maps(models)
    blocks = (
        [FigureBlock("paper_figure1", typical, "Figure 1: a map of each pattern.", "Five attention maps.")]
        if typical is not None
        else []
    )
    figure = pattern_bars(
        drawn,
        title="Share of each attention pattern",
        note=f"{NAMED}; {sample_size(counts)} for each; bars at the end of a share: 95% intervals over seeds, or over examples "
        "where there is one seed",
    )
    blocks.append(
        FigureBlock(
            "paper_figure2",
            figure,
            "Figure 2: shares of the patterns, by task.",
            "Stacked bars of the shares of patterns.",
        )
    )
    header = ["task", *map(pattern_label, NAMES)]
    caption = "Share of attention maps in percent, these runs / paper (figure)"
    return Section(paragraphs=[ANNOTATED], tables=[Table(header, rows, caption)], figures=blocks)


def _with_published(bar: ShareBar, theirs: Mapping[str, float] | None) -> list[str]:
    return [
        number(100 * share, 1) + (f" / {number(theirs[name], 1)}" if theirs and name in theirs else "")
        for name, share in zip(NAMES, np.asarray(bar.share_C).tolist(), strict=True)
    ]


def typical_maps(models: Studied) -> Figure | None:
    """The fine-tuned models' map of each pattern that the classifier is most certain of; None if no run kept maps."""
    classifier = load_classifier()
    best: dict[int, tuple[float, str, Tensor]] = {}
    map_count = 0
    for group in models.tuned:
        for map_LHQK in _last_maps(group.models[0]):
            length = map_LHQK.shape[-1]
            if length < MIN_LENGTH:
                continue
            map_count += map_LHQK[..., 0, 0].numel()
            judgement = classifier(map_LHQK, torch.ones(map_LHQK.shape[0], length, dtype=torch.bool))
            for pattern in range(len(PATTERNS)):
                probability_LH = judgement.probability_P[..., pattern].masked_fill(judgement.pattern != pattern, -1.0)
                layer, head = divmod(int(probability_LH.argmax()), probability_LH.shape[1])
                probability = float(probability_LH[layer, head])
                if probability > best.get(pattern, (0.0,))[0]:
                    source = f"{group.name}, {head_label(layer, head)}"
                    best[pattern] = (probability, source, map_LHQK[layer, head])
    if not best:
        return None
    titled = [
        TitledMap(
            f"{PATTERNS[pattern].replace('_', ' + ')} ({number(probability, 2)})\n{textwrap.fill(source, 22)}\n{map_QK.shape[-1]} tokens",
            map_QK,
        )
        for pattern, (probability, source, map_QK) in sorted(best.items())
    ]
    return map_sheet(
        titled,
        title="A map of each pattern, after fine-tuning",
        note=f"of {map_count:,} maps that the runs kept, those that the classifier is most certain of (its probability in "
        "brackets); attending tokens downward, attended tokens to the right; from dark violet (0) to yellow (the "
        "largest weight of the map); layers and heads count from 0",
    )


def _last_maps(run: FinishedRun) -> Iterator[Tensor]:
    steps = read_steps(run.folder / CAPTURES)
    if steps:
        yield from map(torch.from_numpy, read_maps(steps[max(steps)]).values())


def examples(models: Studied, tasks: Sequence[str]) -> Section | None:
    """The shortest kept text of each task in the head whose map fine-tuning changed most, before and after; None without kept maps.

    Args:
        models: The models; the first seed of each task.
        tasks: The tasks, those of the authors' blog post.
    """
    panels, texts = [], []
    for group in models.tuned:
        folder = group.models[0].folder / CAPTURES
        steps = read_steps(folder)
        if group.task not in tasks or 0 not in steps or len(steps) < 2:
            continue
        before, after = read_maps(steps[0]), read_maps(steps[max(steps)])
        kept = [example for example in read_examples(folder) if example.index in before and example.index in after]
        if not kept:
            continue
        example = min(kept, key=lambda example: len(example.tokens))
        old_LHQK, new_LHQK = (torch.from_numpy(maps[example.index]).double() for maps in (before, after))
        cosine_LH = torch.nn.functional.cosine_similarity(old_LHQK.flatten(2), new_LHQK.flatten(2), dim=-1)
        layer, head = divmod(int(cosine_LH.argmin()), cosine_LH.shape[1])
        row = f"{group.name}, {head_label(layer, head)}"
        panels += [
            MapPanel(row, "before fine-tuning", old_LHQK[layer, head], example.tokens),
            MapPanel(row, "after fine-tuning", new_LHQK[layer, head], example.tokens),
        ]
        texts.append(
            f"{group.name}: “{' / '.join(example.texts)}” ({example.label}), cosine {number(float(cosine_LH[layer, head]), 2)}"
        )
    if not panels:
        return None
    caption = f"A text of each task in the head whose map of it changed most. {'; '.join(texts)}."
    figure = gallery(panels, title="Attention before and after fine-tuning")
    return Section(figures=[FigureBlock("blog_examples", figure, caption, "Attention maps before and after.")])


_LISTED = 3


def relations(models: Studied) -> Section | None:
    """The heads' weights on annotated relations before fine-tuning, one panel for each set of sentences."""
    views = models.before("frame_relations", lambda view: view.has("weight"))
    several = len({model for model, _ in views}) > 1
    sets: list[tuple[str, MeasureView]] = []
    for (model, task), view in sorted(views.items(), key=lambda item: item[0][::-1]):
        links = view.fact(Links)
        source = task if links is None else links.source
        name = f"{model} · {source}" if several else source
        alike = (other.value("weight") for other_name, other in sets if other_name == name)
        # Every task's run on FrameNet's own sentences starts from the same model and has the same numbers.
        if not any(np.allclose(view.value("weight"), weight_LH, equal_nan=True) for weight_LH in alike):
            sets.append((name, view))
    if not sets:
        return None
    counts = [view.count("weight") for _, view in sets]
    figure = head_panels(
        [HeadPanel(name, view.value("weight")) for name, view in sets],
        title="Attention along frame relations, before fine-tuning",
        unit="largest weight among linked tokens",
        note=sample_size(counts),
    )
    blocks = [
        FigureBlock(
            "paper_figure3",
            figure,
            "Figure 3: weights on annotated relations.",
            "Heatmaps of relation weights by layer and head.",
        )
    ]
    for _, view in sets:
        if links := view.fact(Links):
            tokens = view.found(Token)
            linked = linked_tokens(tokens, view.found(LinkedPair))
            title = "One sentence in the heads with the most attention along relations"
            caption = f"Figure 3, one sentence: {links.text.strip()} Linked: {linked} (attending → attended to)."
            maps = maps_of_example(tokens, view.found(Weight), title)
            blocks.append(FigureBlock("paper_figure3_maps", maps, caption, "Attention maps of the highest heads."))
            break
    rows = [_relation_row(name, view) for name, view in sets]
    return Section(
        tables=[filled_table(Table.of(rows, "Heads by their weight on annotated relations, and what explains it"))],
        figures=blocks,
    )


def _relation_row(name: str, view: MeasureView) -> dict[str, str]:
    heads, weight_LH, relation_LH = by_weight(view), view.value("weight"), relation_heads(view)
    top = heads[:_LISTED]
    verdicts = {head: "" if relation_LH is None else f" ({RELATION if relation_LH[head] else OPEN})" for head in top}
    return {
        "source": name,
        "sentences": f"{view.count('weight'):,}",
        "highest heads": "; ".join(f"{_at_head(head, weight_LH[head])}{verdicts[head]}" for head in top),
        "highest beyond position": number(view.value("over_position")[top[0]], signed=True),
        "heads that follow the relation": MISSING if relation_LH is None else f"{relation_LH.sum()} of {len(heads)}",
        "mean": number(float(np.nanmean(weight_LH))),
        "paper (figure)": "; ".join(_at_head(head, value) for *head, value in _THEIRS["relation_heads"]),
    }


def features_before_and_after(models: Studied) -> Section | None:
    """Attention to words and special tokens before and after fine-tuning; None if no run measured both."""
    rows, seeds = [], []
    for group in models.tuned:
        compared = [view.compared[INITIAL] for view in group.views("features") if INITIAL in view.compared]
        for column in dict.fromkeys(chain(*compared)):
            changes = [of_seed[column] for of_seed in compared if column in of_seed]
            seeds.append(len(changes))
            uniform = group.grids("features", column + UNIFORM)
            theirs = _THEIRS["features"].get(group.task, {}).get(column, ())
            rows.append(
                {
                    "task": group.name,
                    "tokens": feature_label(column),
                    "before": number(float(np.nanmean([change.other_LH for change in changes]))),
                    "after": number(float(np.nanmean([change.model_LH for change in changes]))),
                    "uniform attention": MISSING if uniform is None else number(float(np.nanmean(uniform.value_RLH))),
                    "heads up": number(float(np.mean([change.risen for change in changes])), 0),
                    "heads down": number(float(np.mean([change.fallen for change in changes])), 0),
                    "paper (notebook)": " → ".join(number(value) for value in theirs) or MISSING,
                }
            )
    if not rows:
        return None
    caption = "Mean over heads before and after fine-tuning, and how many heads changed significantly"
    return Section(tables=[filled_table(Table.of(rows, f"{caption} ({seeds_in_words(seeds)})"))])


_SEPARATOR, _FIRST, _ALL_SEPARATORS = _SPECIAL = ("sep", "cls", "sep_total")
_PAPER_SCALE = 0.5
"""Upper end of the colour scale in the paper's figure."""


def token_to_token(models: Studied) -> Section | None:
    """What [CLS] attends to in the last layer, and linked words beside position; None if no run measured it."""
    measured = [(group, replicates) for group in models.tuned if (replicates := group.replicates("token_to_token"))]
    if not measured:
        return None
    attended = [(group, kinds) for group, replicates in measured if (kinds := _attended_to(replicates))]
    rows = [
        [group.name, _in_order(_means(kinds)), _in_order(_THEIRS["cls_attends_to"].get(group.task, {}))]
        for group, kinds in attended
    ]
    tables = []
    if rows:
        seeds = seeds_in_words([len(grids.value_RLH) for _, kinds in attended for grids in kinds.values()])
        caption = f"Last layer, mean over heads, {seeds}: the largest weight from [CLS] on each kind of token"
        tables.append(filled_table(Table(["task", "[CLS] attends to", "paper (notebook)"], rows, caption)))
    pair_rows = [row for group, replicates in measured for row in _pair_rows(group, replicates)]
    if pair_rows:
        counts = [len(replicates.views) for _, replicates in measured]
        caption = (
            "The head with the largest attention to each kind of linked words, and its mean attention to all of them, "
            f"{seeds_in_words(counts)}"
        )
        tables.append(filled_table(Table.of(pair_rows, caption)))
    figures = [_attended_figure({group.title: kinds for group, kinds in attended})] if attended else []
    return Section(tables=tables, figures=figures)


def _columns(replicates: Replicates) -> list[str]:
    return sorted(column.name for column in replicates.columns)


def _attended_to(replicates: Replicates) -> dict[str, Grids]:
    """Attention from [CLS], by the kind of token attended to, of kinds that the last layer has numbers of."""
    kinds = {}
    for column in _columns(replicates):
        grids = replicates.grids(column) if column.startswith(CLS_TO) and not column.endswith(RANDOM) else None
        if grids is not None and np.isfinite(grids.value_RLH[:, -1]).any():
            kinds[column.removeprefix(CLS_TO)] = grids
    return kinds


def _last_layer(grids: Grids) -> NDArray[np.float64]:
    """Mean over seeds in the last layer, ``[heads]``."""
    return np.asarray(np.nanmean(grids.value_RLH[:, -1], axis=0))


def _means(kinds: Mapping[str, Grids]) -> dict[str, float]:
    """Means over heads, highest first, without [CLS] itself and without all separators together."""
    means = {
        kind: float(np.nanmean(_last_layer(grids)))
        for kind, grids in kinds.items()
        if kind not in (_FIRST, _ALL_SEPARATORS)
    }
    return dict(sorted(means.items(), key=lambda item: -item[1]))


def _in_order(means: Mapping[str, float]) -> str:
    return ", ".join(f"{feature_label(kind)} {number(value)}" for kind, value in means.items()) or MISSING


def _pair_rows(group: Group, replicates: Replicates) -> list[dict[str, str]]:
    """The highest head for each kind of linked words."""
    rows = []
    for column in _columns(replicates):
        if not column.endswith(BEYOND):
            continue
        pair = column.removesuffix(BEYOND)
        grids = [replicates.grids(name) for name in (pair, pair + MEAN, column)]
        values = [grid.value_RLH.mean(axis=0) for grid in grids if grid is not None]
        if len(values) < len(grids) or not np.isfinite(values[0]).any():
            continue
        head = highest(values[0])
        weight, mean, beyond = (float(value_LH[head]) for value_LH in values)
        theirs = _THEIRS["pairs"].get(group.task, {}).get(pair, ())
        rows.append(
            {
                "task": group.name,
                "words": pair_label(pair),
                "highest head": _at_head(head, weight),
                "its mean": number(mean),
                "of that beyond position": number(beyond, signed=True),
                "paper (notebook)": "; ".join(_at_head(head, value) for *head, value in theirs) or MISSING,
            }
        )
    return rows


def _at_head(head: Sequence[int], value: float) -> str:
    return f"{head_label(*head)}: {number(value)}"


def _attended_figure(attended: Mapping[str, Mapping[str, Grids]]) -> FigureBlock:
    """Every head of the last layer, one panel per task; kinds of tokens that no example of a task has are hatched."""
    grids = [of_kind for kinds in attended.values() for of_kind in kinds.values()]
    present = dict.fromkeys(kind for kinds in attended.values() for kind in kinds)
    shown = [kind for kind in (_SEPARATOR, _FIRST) if kind in present]
    shown += [kind for kind in present if kind not in _SPECIAL]
    missing_H = np.full_like(_last_layer(grids[0]), np.nan)
    figure = head_panels(
        [
            HeadPanel(name, np.stack([_last_layer(kinds[kind]) if kind in kinds else missing_H for kind in shown]))
            for name, kinds in attended.items()
        ],
        title=f"What [CLS] attends to in the last layer ({grids[0].value_RLH.shape[1] - 1})",
        unit="largest attention from [CLS]",
        note=f"{seeds_in_words([len(of_kind.value_RLH) for of_kind in grids])}, "
        f"{sample_size([of_kind.count for of_kind in grids])} with such a token; hatched: no example has one",
        limits=(0.0, max(_PAPER_SCALE, *(float(np.nanmax(_last_layer(of_kind))) for of_kind in grids))),
        rows=[feature_label(kind) for kind in shown],
    )
    caption = "Figure 7: what [CLS] attends to in the last layer, by task."
    return FigureBlock("paper_figure7", figure, caption, "Heatmaps of kinds of tokens by head.")


def disabled_layers(models: Studied) -> Section | None:
    """Scores with one layer disabled, per task; None if no run disabled layers."""
    measured = models.effects("layer", "uniform")
    if not measured:
        return None
    rows = []
    for group, effect in measured:
        theirs_L, whole = _THEIRS["layers"].get(group.task), _THEIRS["heads"].get(group.task)
        rows.append(
            {
                "task": group.name,
                "examples": f"{effect.count:,}",
                "score": number(effect.baseline_R.mean()),
                "change by layer, points": _points(effect.delta_RLH[:, :, 0].mean(axis=0)),
                "paper (figure)": MISSING
                if theirs_L is None or whole is None
                else _points(np.array(theirs_L) - whole[0]),
            }
        )
    figure = layer_panels(
        [
            LayerPanel(group.title, 100 * effect.delta_RLH[:, :, 0], effect.certain_RLH[:, :, 0].mean(axis=0) > 0.5)
            for group, effect in measured
        ],
        title="Change of score when a whole layer is disabled",
        note="dots: seeds; bars: their mean, pale where significant in at most half of them; "
        f"{sample_size([effect.count for _, effect in measured])}",
    )
    return Section(
        tables=[filled_table(Table.of(rows, "Change of score by disabled layer, from layer 0"))],
        figures=[
            FigureBlock(
                "paper_figure9",
                figure,
                "Figure 9: change of score with all heads of a layer disabled, by task.",
                "Bar charts of changes by layer.",
            )
        ],
    )


def _points(delta_L: NDArray[np.float64]) -> str:
    return " ".join(number(100 * float(delta), 1, signed=True) for delta in delta_L)
