"""What attention to [SEP] is for."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from bertsecrets.ablation.blocking import over_seeds
from bertsecrets.ablation.rows import Blocked
from bertsecrets.importance.sinks.norms import RATIO
from bertsecrets.importance.sinks.rows import SinkHead
from bertsecrets.papers.models import Group, Studied
from bertsecrets.papers.questions.answer import GroupAnswer, Missing, Part, estimate, widest_error
from bertsecrets.papers.statements.judge import UNTOLD
from bertsecrets.present.special_tokens import blocking_figure, blocking_table
from bertsecrets.results.verdicts import DISPENSABLE, NEEDED, OVER_SEEDS, WORDS
from bertsecrets.results.views import MeasureView

_SEP = "sep"


def what_sep_is_for(models: Studied, group: Group) -> Iterator[Part]:
    """Whether the model needs attention to [SEP], and what [SEP] gathered from the text."""
    views = group.views("blocking", ready=_blocked)
    if not views:
        why = "no run blocked attention to [SEP] and from [SEP]."
        yield Missing(group.name, why, group.command("analysis=block_attention"))
        return
    rows = over_seeds([view.found(Blocked) for view in views])
    of_sep = [row for direction in ("to", "from") for row in rows if (row.token, row.direction) == (_SEP, direction)]
    short, meaning = _MEANING.get((of_sep[0].verdict, of_sep[1].verdict), (UNTOLD, _OPEN))
    words = OVER_SEEDS if len(views) > 1 else WORDS
    changes = "; ".join(f"{row.direction} [SEP]: {row.change:+points}, {words[row.verdict]}" for row in of_sep)
    seeds = f" (mean of {len(views)} seeds)" if len(views) > 1 else ""
    sentence = f"With attention blocked in all heads, {of_sep[0].metric} changes{seeds}: {changes}. {meaning}"
    norms = _norms(group)
    if norms is None:
        why = "no run measured the norms of what [SEP] adds."
        yield Missing(group.name, why, group.command("analysis=sinks"))
    caption = (
        f"Change of {rows[0].metric} with attention to [SEP] or from it blocked in all heads, {group.name}{seeds}."
    )
    block = replace(blocking_figure(f"blocked_{group.name}", rows, len(views)), caption=caption)
    yield GroupAnswer(group.name, short, f"{sentence}{norms or ''}", [blocking_table(rows, len(views))], [block])


_OPEN = "The intervals leave open which of the two explanations holds."
_MEANING = {
    (DISPENSABLE, DISPENSABLE): (
        "not needed",
        "A loss that matters is ruled out either way: the model needs neither attention to [SEP] nor what [SEP] gathers.",
    ),
    (DISPENSABLE, NEEDED): (
        "not needed",
        "The model does not need attention to [SEP], so that it cannot need what [SEP] gathers either; a [SEP] that attends only to "
        "itself disturbs the tokens that attend to it.",
    ),
    (NEEDED, DISPENSABLE): (
        "a place to attend to, not information",
        "The model needs [SEP] to attend to, but not what [SEP] gathers from the text: the attention is a place to go to, not "
        "a source of information.",
    ),
    (NEEDED, NEEDED): (
        "both are needed; consistent with information in [SEP]",
        "Both lower the score, as they would if [SEP] passed on what it gathers from the text; that it does is not shown.",
    ),
}


def _blocked(view: MeasureView) -> bool:
    return {(_SEP, "to"), (_SEP, "from")} <= {(row.token, row.direction) for row in view.found(Blocked)}


def _norms(group: Group) -> str | None:
    """A sentence on the norms of what [SEP] adds; None where they were not measured."""
    views = group.views("sinks", f"{_SEP}{RATIO}", ready=lambda view: bool(view.lines("limits")))
    if not views:
        return None
    view = views[0]
    ratio = estimate(
        [float(np.nanmean(seed_view.value(f"{_SEP}{RATIO}"))) for seed_view in views],
        widest_error(view.stderr(f"{_SEP}{RATIO}")),
    )
    heads = [head for head in view.found(SinkHead) if head.token == _SEP]
    return (
        f" Over all heads, the norm of [SEP]'s value is {ratio.text(2, signed=False)} times that of words; "
        f"{len(heads)} heads give [SEP] at least half of their attention."
    )
