"""What attention to [SEP] is for."""

from collections.abc import Iterator

import numpy as np

from bertsecrets.ablation.blocking import BlockingRecord, blocking_figure, blocking_table, change_in_words, over_seeds
from bertsecrets.importance.sinks.kinds import Limits, sinks_of
from bertsecrets.importance.sinks.norms import RATIO
from bertsecrets.papers.models import Group, Studied
from bertsecrets.papers.questions.answer import GroupAnswer, Missing, Part, estimate, widest_error
from bertsecrets.papers.statements.judge import UNTOLD
from bertsecrets.present.report.content import FigureBlock
from bertsecrets.results.verdicts import DISPENSABLE, NEEDED
from bertsecrets.results.views import MeasureView

_SEP = "sep"


def what_sep_is_for(models: Studied, group: Group) -> Iterator[Part]:
    """Whether the model needs attention to [SEP], and what [SEP] gathered from the text."""
    views = group.views("blocking", ready=_blocked)
    if not views:
        why = "no run blocked attention to [SEP] and from [SEP]."
        yield Missing(group.name, why, group.command("analysis=block_attention"))
        return
    records = [record for view in views if (record := BlockingRecord.read(view.extras)) is not None]
    record = over_seeds(records)
    verdicts = {direction: _verdict(record, direction) for direction in ("to", "from")}
    short, meaning = _MEANING.get((verdicts["to"], verdicts["from"]), (UNTOLD, _OPEN))
    changes = "; ".join(
        f"{direction} [SEP]: {change_in_words(row, record)}, {record.words[row.verdict]}"
        for direction in ("to", "from")
        if (row := record.row(_SEP, direction)) is not None
    )
    seeds = f" (mean of {record.seeds} seeds)" if record.seeds > 1 else ""
    sentence = f"With attention blocked in all heads, {record.metric} changes{seeds}: {changes}. {meaning}"
    norms = _norms(group)
    if norms is None:
        why = "no run measured the norms of what [SEP] adds."
        yield Missing(group.name, why, group.command("analysis=sinks"))
    block = FigureBlock(
        f"blocked_{group.name}",
        blocking_figure(record),
        f"Change of {record.metric} with attention to [SEP] or from it blocked in all heads, {group.name}{seeds}.",
        "Dots with intervals.",
    )
    yield GroupAnswer(group.name, short, f"{sentence}{norms or ''}", [blocking_table(record)], [block])


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
    record = BlockingRecord.read(view.extras)
    return record is not None and all(record.row(_SEP, direction) for direction in ("to", "from"))


def _verdict(record: BlockingRecord, direction: str) -> str:
    row = record.row(_SEP, direction)
    assert row is not None
    return row.verdict


def _norms(group: Group) -> str | None:
    """A sentence on the norms of what [SEP] adds; None where they were not measured."""
    views = group.views("sinks", f"{_SEP}{RATIO}", ready=lambda view: "limits" in view.extras)
    if not views:
        return None
    view = views[0]
    ratio = estimate(
        [float(np.nanmean(seed_view.value(f"{_SEP}{RATIO}"))) for seed_view in views],
        widest_error(view.stderr(f"{_SEP}{RATIO}")),
    )
    heads = sinks_of(view, Limits(**view.extras["limits"]))[_SEP].heads
    return (
        f" Over all heads, the norm of [SEP]'s value is {ratio.text(2, signed=False)} times that of words; "
        f"{len(heads)} heads give [SEP] at least half of their attention."
    )
