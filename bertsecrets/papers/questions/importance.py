"""Questions about importance: redundant or unnecessary heads, heads of relations, and how many heads are needed."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from bertsecrets.papers.models import Group, Studied
from bertsecrets.papers.questions.answer import GroupAnswer, Missing, Part
from bertsecrets.papers.statements.judge import UNTOLD
from bertsecrets.present.disabling import rounded
from bertsecrets.present.figures.pruning import pruning_curves
from bertsecrets.present.figures.rows import IntervalRow, interval_rows
from bertsecrets.present.figures.scatters import ScatterPanel, head_scatter
from bertsecrets.present.figures.style import sample_size
from bertsecrets.present.frame_relations import relation_heads as heads_of_relations
from bertsecrets.present.grid import correlation_in_words
from bertsecrets.present.pruning import curve_points, guarantee_in_words
from bertsecrets.present.report.content import FigureBlock, Table
from bertsecrets.pruning.rows import Pruned
from bertsecrets.results.components import GROUP
from bertsecrets.results.disabled import rows_of
from bertsecrets.results.formatting import MISSING, low_to_high, number, p_value, with_limits
from bertsecrets.results.verdicts import DISPENSABLE, NEEDED, WORDS
from bertsecrets.results.views import MeasureView
from bertsecrets.statistics.ranks import rank_correlation

_MOST_GROUPS = 16

Row = Mapping[str, Any]


def redundant_or_unnecessary(models: Studied, group: Group) -> Iterator[Part]:
    """Of groups of heads with similar maps: which are needed together though not singly, and which can all go."""
    by_seed = {
        model.seed: _groups(view)
        for model in group.learners
        if (view := model.view("ablation", lambda view: bool(_groups(view)))) is not None
    }
    if not by_seed:
        why = "no run disabled groups of similar heads together and singly."
        yield Missing(group.name, why, group.command("analysis=redundancy"))
        return
    counts = [Counter(_kind(row) for row in rows) for rows in by_seed.values()]
    rows = next(iter(by_seed.values()))
    worst = _most_together(rows)
    of_groups = _listed([count.total() for count in counts])
    seeds = f" ({len(counts)} seeds)" if len(counts) > 1 else ""
    kinds = ", ".join(f"{_listed([count[kind] for count in counts])} {words}" for kind, words in _KINDS.items())
    sentence = (
        f"Of {of_groups} groups of heads with similar maps{seeds}: {kinds}. The largest loss beyond the sum of single heads is that "
        f"of heads {worst['heads']}: {_points(worst)}.{_more_examples(list(chain(*by_seed.values())))}"
    )
    if seeds:
        sentence += " These heads, the figure and the list of groups are of the first seed; similar groups differ between seeds."
    redundant, spared = (_listed([count[kind] for count in counts]) for kind in (_REDUNDANT, DISPENSABLE))
    redundant = f"{'none' if redundant == '0' else redundant} shown to be redundant"
    if not _tested(rows):
        redundant = "redundancy not tested"
        sentence += " Redundancy was not tested: that takes 19 random groups for each (ablation.group_count=20)."
    told = any(count[_REDUNDANT] or count[DISPENSABLE] for count in counts)
    short = f"{spared} of {of_groups} groups can be spared together{seeds}, {redundant}" if told else UNTOLD
    shown = sorted(rows, key=lambda row: row["interaction"])[:_MOST_GROUPS]
    figure = interval_rows(
        [IntervalRow(row["heads"], *_beyond_the_sum(row)) for row in shown],
        title="Effect of groups beyond the sum of their heads' effects",
        unit=f"{rows[0]['metric']} (points)",
        note=f"negative: heads that stand in for each other; lines: {rows[0]['level']:.0%} intervals; heads as "
        f"layer-head; {sample_size(rows[0]['count'])}",
    )
    block = FigureBlock(
        f"groups_{group.name}",
        figure,
        f"Change of score without a group of heads with similar maps, less the sum of its heads' changes, {group.name}.",
        "Dots with intervals.",
    )
    tables = [_seed_table(group.name, by_seed, counts), _group_table(shown)]
    yield GroupAnswer(group.name, short, sentence, tables, [block])


_REDUNDANT = "redundant"
_KINDS = {
    _REDUNDANT: "redundant (needed together, though each of its heads can be spared)",
    DISPENSABLE: f"{WORDS[DISPENSABLE]} together",
    NEEDED: "needed but not shown to be redundant",
    "": "undecided",
}


def _kind(row: Row) -> str:
    """One of :data:`_KINDS`."""
    if row["redundant"]:
        return _REDUNDANT
    return str(row["verdict"]) if row["verdict"] in _KINDS else ""


def _listed(counts: Sequence[int]) -> str:
    """The counts of all seeds, as one where they agree."""
    if len(set(counts)) == 1:
        return str(counts[0])
    return f"{', '.join(map(str, counts[:-1]))} and {counts[-1]}"


def _tested(rows: Sequence[Row]) -> bool:
    """Whether some group was compared with enough random ones to be shown redundant."""
    return any(row["p_controls"] is not None and math.isfinite(row["p_controls"]) for row in rows)


def _enough(rows: Sequence[Row]) -> str:
    """How many examples would tell that the median undecided group can be spared, if it has no effect; a dash if none is undecided."""
    needed = [
        row["count"] * ((row["delta"] - row["low"]) / row["margin"]) ** 2
        for row in rows
        if _kind(row) == "" and row["margin"] and math.isfinite(row["low"])
    ]
    return f"about {rounded(float(np.median(needed))):,}" if needed else MISSING


def _more_examples(rows: Sequence[Row]) -> str:
    """What it would take to tell of the undecided groups whether they can be spared, as a sentence after a space."""
    enough = _enough(rows)
    if enough == MISSING:
        return ""
    margin = number(100 * rows[0]["margin"], 1)
    return f" {enough.capitalize()} examples would settle the median undecided group if it has no effect (margin {margin} points)."


def _groups(view: MeasureView) -> list[Row]:
    """Groups whose heads were also disabled alone, of the first metric, mode and set at the last step."""
    return [row for row in rows_of(GROUP, view.run.ablation_table()) if row["interaction"] is not None]


def _beyond_the_sum(row: Row) -> tuple[float, float, float]:
    """What a group loses beyond the sum of its heads, and its limits, in points."""
    return 100 * row["interaction"], 100 * row["interaction_low"], 100 * row["interaction_high"]


def _points(row: Row) -> str:
    value, low, high = _beyond_the_sum(row)
    return (
        f"{number(value, 1, signed=True)} points ({row['level']:.0%} interval {low_to_high(low, high, 1, signed=True)})"
    )


def _seed_table(name: str, by_seed: Mapping[int, Sequence[Row]], counts: Sequence[Counter[str]]) -> Table:
    rows = []
    for (seed, seed_rows), count in zip(by_seed.items(), counts, strict=True):
        kinds = [MISSING if kind == _REDUNDANT and not _tested(seed_rows) else str(count[kind]) for kind in _KINDS]
        beyond = with_limits(*_beyond_the_sum(_most_together(seed_rows)), 1, signed=True)
        examples = f"{seed_rows[0]['count']:,}"
        rows.append([name, str(seed), examples, str(count.total()), *kinds, _enough(seed_rows), beyond])
    header = ["models", "seed", "examples", "groups", *(words.partition(" (")[0] for words in _KINDS.values())]
    header += ["examples to settle the median undecided", "largest loss beyond the sum, points [95 %]"]
    return Table(header, rows, "Groups of heads with similar maps, counted by seed")


def _most_together(rows: Sequence[Row]) -> Row:
    """The group that loses most beyond the sum of its heads."""
    return min(rows, key=lambda row: float(row["interaction"]))


def _group_table(rows: Sequence[Row]) -> Table:
    cells = [
        {
            "heads": row["heads"],
            "together, points": number(100 * row["delta"], 1, signed=True),
            "verdict": WORDS[row["verdict"]],
            "beyond the sum": number(100 * row["interaction"], 1, signed=True),
            "interval": low_to_high(100 * row["interaction_low"], 100 * row["interaction_high"], 1, signed=True),
            "p, random groups": p_value(row["p_controls"]),
            "redundant": "yes" if row["redundant"] else "not shown",
        }
        for row in rows
    ]
    return Table.of(cells, "Groups of heads with similar maps, the largest loss beyond the sum first")


def relation_heads(models: Studied, group: Group) -> Iterator[Part]:
    """Whether heads that follow frame relations before fine-tuning matter for the fine-tuned model."""
    relations = models.before("frame_relations", lambda view: view.has("weight") and view.has("over_position"))
    before_views = [view for (model, _), view in relations.items() if model == group.config["model"]["name"]]
    effect = group.effects("head")
    if not before_views:
        settings = "analysis=frame_relations framenet.root=<FrameNet folder> 'compare_with=[initial]'"
        why = "no run measured attention along frame relations in the model before fine-tuning."
        yield Missing(group.name, why, group.command(settings))
    if effect is None:
        yield Missing(group.name, _NO_EFFECTS, group.command("analysis=disable"))
    if not before_views or effect is None:
        return
    beyond_LH = before_views[0].value("over_position")
    delta_LH = 100 * effect.delta_RLH.mean(axis=0)
    correlation = rank_correlation(beyond_LH, -delta_LH)
    relation_LH = heads_of_relations(before_views[0])
    shown_LH = np.zeros_like(beyond_LH, dtype=bool) if relation_LH is None else relation_LH
    needed_LH = effect.needed_LH
    used = int((needed_LH & shown_LH).sum())
    short = (
        UNTOLD
        if not correlation.significant
        else "relation heads matter more"
        if correlation.claim.rho > 0
        else "relation heads matter less"
    )
    needed = (
        f"{used} of them {'is' if used == 1 else 'are'} needed by the fine-tuned model ({int(needed_LH.sum())} of all heads are)"
        if effect.judged
        else "its seeds cannot be judged together, so which of them are needed cannot be said"
    )
    sentence = (
        f"{shown_LH.sum()} of {beyond_LH.size} heads are shown to follow frame relations before fine-tuning; {needed}. Over all "
        "heads, the rank correlation of attention along relations (beyond position) and loss without the head is "
        f"{correlation_in_words(correlation)}."
    )
    figure = head_scatter(
        [ScatterPanel(group.name, beyond_LH, delta_LH, needed_LH)],
        title="Are the heads of frame relations the heads that matter?",
        x_label="attention along relations, beyond position",
        y_label="change of score when disabled (points)",
        note=f"a dot for each head; filled: needed (over seeds, if several); heads disabled on {effect.count:,} examples",
    )
    block = FigureBlock(
        f"relations_{group.name}", figure, f"Relations and importance, {group.name}.", "Scatter of heads."
    )
    yield GroupAnswer(group.name, short, sentence, [], [block])


_NO_EFFECTS = "no run disabled every head in turn."


def more_than_needed(models: Studied, group: Group) -> Iterator[Part]:
    """How many heads can be spared one at a time, and how many together with a guarantee."""
    effect = group.effects("head")
    pruned = [run for view in group.views("pruning") if (run := Pruned.of(view)) is not None]
    if effect is None:
        yield Missing(group.name, _NO_EFFECTS, group.command("analysis=disable"))
    if not pruned:
        why = "no run pruned heads with a test on unseen examples."
        yield Missing(group.name, why, group.command("analysis=prune"))
    if effect is None and not pruned:
        return
    sentences = []
    shorts = []
    size = None if effect is None else effect.delta_RLH.shape[1:]
    if effect is not None and size is not None and effect.judged:
        needed, spared = (int(mask_LH.sum()) for mask_LH in (effect.needed_LH, effect.dispensable_LH))
        how_many = f"{needed} {'is' if needed == 1 else 'are'}" if needed else "none is shown to be"
        sentences.append(
            f"The model has {size[0]} layers of {size[1]} heads. Disabled one at a time, {how_many} needed, and "
            f"{spared} of {size[0] * size[1]} can be spared: a loss of {effect.metric} that matters is ruled out on "
            f"{effect.count:,} examples{', judged over seeds' if len(effect.delta_RLH) > 1 else ''}."
        )
    if pruned:
        search, chosen = pruned[0].search, pruned[0].chosen
        holds = [run.chosen.holds and not run.chosen.asked for run in pruned]
        sentences.append(("In the first seed: " if len(pruned) > 1 else "") + guarantee_in_words(pruned[0]))
        gone = search.heads - chosen.kept
        yes = sum(holds) > len(holds) / 2 and gone
        shorts.append(f"yes: {gone} of {search.heads} heads can go" if yes else UNTOLD)
    blocks = [_pruning_figure(group.name, run) for run in pruned[:1]]
    yield GroupAnswer(group.name, shorts[0] if shorts else UNTOLD, " ".join(sentences), [], blocks)


def _pruning_figure(name: str, pruned: Pruned) -> FigureBlock:
    search, chosen = pruned.search, pruned.chosen
    figure = pruning_curves(
        curve_points(pruned),
        margin=search.margin,
        marked=chosen.kept if chosen.holds else None,
        title=f"Change of {search.metric} by heads kept: {name}",
        count=search.examples,
        level=search.confidence,
    )
    caption = (
        f"Heads removed in the order of {pruned.order[0].label}; random and reversed orders are controls ({name})."
    )
    return FigureBlock(f"pruning_{name}", figure, caption, "Line chart of changes of score by heads kept.")
