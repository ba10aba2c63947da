"""Figures of pages of papers: attention maps that runs kept, and what lines of a table cannot show."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from bertsecrets.measures.clusters.rows import Place, Space
from bertsecrets.measures.frame_relations.rows import LinkedPair, Links, Token, Weight
from bertsecrets.measures.linguistic.columns import feature_label
from bertsecrets.measures.role_rows import strength, voita_limits, voita_roles
from bertsecrets.papers import sources
from bertsecrets.papers.models import Studied
from bertsecrets.papers.sources import Array, State, states
from bertsecrets.patterns.classes import NAMES, PATTERNS, over_seeds
from bertsecrets.patterns.classifier import MIN_LENGTH, load_classifier
from bertsecrets.present.figures.grids import HeadPanel, head_panels
from bertsecrets.present.figures.maps import MapPanel, TitledMap, gallery, map_sheet
from bertsecrets.present.figures.patterns import ShareBar, pattern_bars
from bertsecrets.present.figures.scatters import head_space
from bertsecrets.present.figures.style import (
    ACCENTS,
    PAGE_WIDTH,
    footnote,
    house_style,
    panels_across,
    sample_size,
    seeds_in_words,
    titled_panels,
)
from bertsecrets.present.frame_relations import linked_tokens, maps_of_example
from bertsecrets.present.grid import highest
from bertsecrets.present.patterns import ANNOTATED, NAMED
from bertsecrets.present.report.content import FigureBlock, Section
from bertsecrets.results.captures import CapturedExample, read_examples, read_maps, read_steps
from bertsecrets.results.formatting import head_label, number
from bertsecrets.results.run import CAPTURES
from bertsecrets.results.views import LEVEL

_READABLE = 30
"""Most tokens of a sentence whose tokens can all be labelled."""

_MOST_PANELS = 4


def typical_heads(models: Studied, columns: Mapping[str, Sequence[str]], name: str, caption: str) -> Section | None:
    """A text in the head that is highest in each column; None without maps of a model that has all columns.

    Args:
        models: The models.
        columns: Name of a pattern -> the column, ``measure/column``, and what its number is a share of.
        name, caption: Of the figure.
    """
    measures = {column.partition("/")[0] for column, _ in columns.values()}
    for state in states(models, min(measures)):
        views = {
            other.view.name: other.view
            for measure in measures
            for other in states(models, measure)
            if (other.name, other.view.run.folder) == (state.name, state.view.run.folder)
        }
        captured = _captured(state)
        if captured is None or len(views) < len(measures):
            continue
        example, map_LHQK = captured
        panels, shares = [], []
        for label, (column, unit) in columns.items():
            value_LH = views[column.partition("/")[0]].value(column.partition("/")[2])
            at = highest(value_LH)
            shares.append(f"{label}, {head_label(*at)}: {number(100 * float(value_LH[at]), 0)} % {unit}")
            panels.append(MapPanel("", f"{label}\n{head_label(*at)}", map_LHQK[at], example.tokens))
        told = (
            f"{caption} ({state.name}), on one text: “{' / '.join(example.texts)}” The heads with the highest means "
            f"over all texts: {'; '.join(shares)}."
        )
        figure = gallery(panels, title="The head that shows each pattern most")
        block = FigureBlock(name, figure, told, "Attention maps of heads.")
        return Section(figures=[block], summary=f"{state.name}: {'; '.join(shares)}")
    return None


def relation_heads(models: Studied, name: str, caption: str) -> Section | None:
    """A sentence in the best heads of its syntactic relations, with the syntactic heads framed; None without kept
    maps.
    """
    for state in states(models, "dependency"):
        relations = {line["relation"]: line for line in state.view.lines("relation")}
        captured = _captured(state, relations.keys())
        if captured is None:
            continue
        example, map_LHQK = captured
        panels: list[MapPanel] = []
        for relation, line in sorted(relations.items(), key=lambda item: -item[1]["gain"]["value"]):
            pairs = [(word, head) for word, head, of_pair in example.relations if of_pair == relation]
            if pairs and line["p_gain"] <= LEVEL and len(panels) < _MOST_PANELS:
                marked = [(head, word) if line["from_head"] else (word, head) for word, head in pairs]
                at = line["layer"], line["head"]
                label = f"{relation}\n{head_label(*at)}"
                panels.append(MapPanel("", label, map_LHQK[at], example.tokens, marked=marked))
        if panels:
            told = (
                f"{caption} ({state.name}), on one text: “{' / '.join(example.texts)}” A frame marks the first tokens "
                "of a word and of its syntactic head. Heads are scored by the attention between words alone, without "
                "that to [CLS] and [SEP]."
            )
            figure = gallery(panels, title="One sentence in the best heads of some of its relations")
            return Section(figures=[FigureBlock(name, figure, told, "Attention maps of heads that follow relations.")])
    return None


def _captured(state: State, relations: Any = frozenset()) -> tuple[CapturedExample, Array] | None:
    """A readable example with its maps ``[L, H, Q, K]``: that with the most of some relations, then the longest."""
    folder = state.view.run.captures
    steps = read_steps(folder)
    examples = [example for example in read_examples(folder) if len(example.tokens) <= _READABLE]
    # Maps of step 0 are of the model before fine-tuning.
    if not steps or not examples or (state.pretrained and 0 not in steps):
        return None

    def telling(example: CapturedExample) -> tuple[int, int]:
        return len(relations & {relation for _, _, relation in example.relations}), len(example.tokens)

    example = max(examples, key=telling)
    return example, read_maps(steps[0 if state.pretrained else max(steps)])[example.index].astype(np.float64)


def heads_in_space(models: Studied, name: str, caption: str) -> Section | None:
    """The heads of the first state as points in the plane by their distances; None if no run measured them."""
    for state in states(models, "clusters"):
        found = {space.before: space for space in state.view.found(Space)}
        before = True in found and not state.pretrained
        if before not in found:
            continue
        places = [row for row in state.view.found(Place) if row.before == before]
        model = f"{state.name}{', model before it' * before}"
        figure = head_space(
            [(row.x, row.y) for row in places],
            {"by group (number of heads)": [f"group {row.group}" for row in places]},
            heads=state.view.value("within_layer").shape[1],
            title="Heads near each other attend alike",
            note=f"{model}; stress {number(found[before].stress, 2)}",
        )
        block = FigureBlock(name, figure, f"{caption} ({model}): heads by layer and by group.", "Heads as points.")
        return Section(figures=[block])
    return None


def typical_maps(models: Studied, name: str, caption: str) -> Section | None:
    """The fine-tuned models' map of each pattern that the classifier is most certain of; None if no run kept maps."""
    classifier = load_classifier()
    best: dict[int, tuple[float, str, torch.Tensor]] = {}
    map_count = 0
    for group in models.tuned:
        steps = read_steps(group.models[0].folder / CAPTURES)
        for kept_LHQK in read_maps(steps[max(steps)]).values() if steps else ():
            map_LHQK = torch.from_numpy(kept_LHQK)
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
                    best[pattern] = (probability, f"{group.name}, {head_label(layer, head)}", map_LHQK[layer, head])
    if not best:
        return None
    titled = [
        TitledMap(
            f"{PATTERNS[pattern].replace('_', ' + ')} ({number(probability, 2)})\n{textwrap.fill(source, 22)}\n"
            f"{map_QK.shape[-1]} tokens",
            map_QK,
        )
        for pattern, (probability, source, map_QK) in sorted(best.items())
    ]
    figure = map_sheet(
        titled,
        title="A map of each pattern, after fine-tuning",
        note=f"of {map_count:,} maps that the runs kept, those that the classifier is most certain of (its probability "
        "in "
        "brackets); attending tokens downward, attended tokens to the right; from dark violet (0) to yellow (the "
        "largest weight of the map); layers and heads count from 0",
    )
    return Section(figures=[FigureBlock(name, figure, caption, "Five attention maps.")])


def examples(models: Studied, tasks: Sequence[str], name: str, caption: str) -> Section | None:
    """The shortest kept text of each task in the head whose map fine-tuning changed most, before and after; None
    without maps.

    Args:
        models: The models; the first seed of each task.
        tasks: The tasks.
        name, caption: Of the figure.
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
            MapPanel(row, f"{when} fine-tuning", map_LHQK[layer, head], example.tokens)
            for when, map_LHQK in (("before", old_LHQK), ("after", new_LHQK))
        ]
        cosine = number(float(cosine_LH[layer, head]), 2)
        texts.append(f"{group.name}: “{' / '.join(example.texts)}” ({example.label}), cosine {cosine}")
    if not panels:
        return None
    figure = gallery(panels, title="Attention before and after fine-tuning")
    return Section(figures=[FigureBlock(name, figure, f"{caption} {'; '.join(texts)}.", "Attention maps.")])


def pattern_shares(
    models: Studied, name: str, caption: str, published: Mapping[str, Mapping[str, float]]
) -> Section | None:
    """Stacked bars of the patterns' shares, over seeds, with the paper's in percent below; None if no run measured
    them.
    """
    bars, counts = [], []
    for group in models.tuned:
        grids = [grid for name in NAMES if (grid := group.grids("patterns", name)) is not None]
        if len(grids) < len(NAMES):
            continue
        share_RLHC = np.stack([grid.value_RLH for grid in grids], axis=-1)
        error_RLHC = np.stack([grid.stderr_RLH for grid in grids], axis=-1)
        bars.append(ShareBar(group.title, *over_seeds(share_RLHC, error_RLHC)))
        counts.append(grids[0].count)
        if theirs := published.get(group.task):
            share_C = np.array([theirs.get(name, 0.0) / 100 for name in NAMES])
            bars.append(ShareBar(f"paper: {group.task}", share_C, np.full_like(share_C, np.nan)))
    if not bars:
        return None
    note = (
        f"{NAMED}; {sample_size(counts)} for each; bars at the end of a share: 95% intervals over seeds, or over "
        "examples"
    )
    figure = pattern_bars(bars, title="Share of each attention pattern", note=f"{note} where there is one seed")
    return Section(
        paragraphs=[ANNOTATED], figures=[FigureBlock(name, figure, caption, "Stacked bars of the shares of patterns.")]
    )


def frame_relations(models: Studied, name: str, caption: str) -> Section | None:
    """The heads' weights on annotated relations, and one sentence in the highest; None if no run measured them."""
    lines = list(sources.frame_relations(models))
    if not lines:
        return None
    figure = head_panels(
        [HeadPanel(line["source"], line["view"].value("weight")) for line in lines],
        title="Attention along frame relations, before fine-tuning",
        unit="largest weight among linked tokens",
        note=sample_size([line["examples"] for line in lines]),
    )
    blocks = [FigureBlock(name, figure, f"{caption}: weights on annotated relations.", "Heatmaps of relation weights.")]
    for view in (line["view"] for line in lines):
        if links := view.fact(Links):
            tokens = view.found(Token)
            linked = linked_tokens(tokens, view.found(LinkedPair))
            title = "One sentence in the heads with the most attention along relations"
            told = f"{caption}, one sentence: {links.text.strip()} Linked: {linked} (attending → attended to)."
            maps = maps_of_example(tokens, view.found(Weight), title)
            blocks.append(FigureBlock(f"{name}_maps", maps, told, "Attention maps of the highest heads."))
            break
    return Section(figures=blocks)


_PAPER_SCALE = 0.5
"""Upper end of the colour scale in the figure of Kovaleva et al."""


def last_layer_of_cls(models: Studied, name: str, caption: str) -> Section | None:
    """What [CLS] attends to in every head of the last layer, a panel for each task; kinds of tokens that it lacks are
    hatched.
    """
    lines = list(sources.last_layer_of_cls(models))
    if not lines:
        return None
    present = dict.fromkeys(kind for line in lines for kind in line["kinds"])
    shown = [kind for kind in ("sep", "cls") if kind in present]
    shown += [kind for kind in present if kind not in ("sep", "cls", "sep_total")]
    grids_H = [value_H for line in lines for value_H in line["kinds"].values()]
    figure = head_panels(
        [
            HeadPanel(
                line["name"], np.stack([line["kinds"].get(kind, np.full_like(grids_H[0], np.nan)) for kind in shown])
            )
            for line in lines
        ],
        title="What [CLS] attends to in the last layer",
        unit="largest attention from [CLS]",
        note=f"{seeds_in_words([line['seeds'] for line in lines])}; hatched: no example has one",
        limits=(0.0, max(_PAPER_SCALE, *(float(np.nanmax(value_H)) for value_H in grids_H))),
        rows=[feature_label(kind) for kind in shown],
    )
    return Section(figures=[FigureBlock(name, figure, caption, "Heatmaps of kinds of tokens by head.")])


def functions_of_heads(models: Studied, name: str, caption: str) -> Section | None:
    """Relevance, confidence and roles of each head, a figure for each model; None if no run has two of them.

    Args:
        models: The models.
        name, caption: Of the figures; ``{name}`` stands for the models.
    """
    blocks: list[FigureBlock] = []
    for line in sources.most_relevant(models, confident=1.0):
        views = line["views"]
        panels = [HeadPanel(of, views[of].value(of)) for of in ("relevance", "confidence") if of in views]
        if "voita_roles" in views:
            limits = voita_limits(views["voita_roles"])
            panels += [
                HeadPanel(role, strength(views["voita_roles"], limits[role]), passed)
                for role, passed in voita_roles(views["voita_roles"]).items()
            ]
        figure = head_panels(
            panels,
            title=f"{line['task']}: importance, confidence and function of each head",
            unit="share",
            note="relevance: share of the layer's; functions are pale below their threshold; "
            f"seed {line['seed']}; {sample_size([view.count(view.columns[0].name) for view in views.values()])}",
            limits=(0.0, 1.0),
        )
        told = caption.format(name=line["task"])
        blocks.append(FigureBlock(f"{name}_{len(blocks)}", figure, told, "Heatmaps by layer and head."))
    return Section(figures=blocks) if blocks else None


_FARTHEST = 7


def distances_of_relations(models: Studied, name: str, caption: str) -> Section | None:
    """How often the head of a syntactic relation stands how far from the dependent; None without annotated words."""
    pairs_of: dict[str, Mapping[int, int]] = {}
    for line in sources.best_of_relations(models):
        pairs_of.setdefault(line["relation"], line["distances"])
    if not pairs_of:
        return None
    with house_style():
        figure, axes_N = titled_panels(
            [f"{relation} ({sum(pairs.values()):,} pairs)" for relation, pairs in pairs_of.items()],
            panels_across(len(pairs_of)),
            (PAGE_WIDTH, 1.8),
            "Where the syntactic head stands",
            "words from the dependent to its head",
            margin=0.8,
        )
        offsets = range(-_FARTHEST, _FARTHEST + 1)
        for axes, pairs in zip(axes_N, pairs_of.values(), strict=True):
            shares = [100 * pairs.get(offset, 0) / sum(pairs.values()) for offset in offsets]
            axes.bar(offsets, shares, color=ACCENTS[0])
        figure.supylabel("% of pairs", fontsize=9.0)
        footnote(figure, f"farther than {_FARTHEST} words: not drawn")
    return Section(figures=[FigureBlock(name, figure, caption, "Bar charts of distances by relation.")])
