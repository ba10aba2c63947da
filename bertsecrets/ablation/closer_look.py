"""After a sweep of single heads: disable all that can be spared together, and find the most telling examples."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bertsecrets.ablation.outcomes import Outcomes
from bertsecrets.ablation.predictions import PairedPredictions, judged_metrics
from bertsecrets.ablation.rows import Together
from bertsecrets.ablation.settings import AblationSettings
from bertsecrets.ablation.verdicts import judge
from bertsecrets.analysis import Context, SplitBatches
from bertsecrets.attention.override import HeadEdit, override
from bertsecrets.attention.watch import capture
from bertsecrets.data.task import Task
from bertsecrets.models.metrics import answers
from bertsecrets.models.sentence_embedder import SentenceEmbedder
from bertsecrets.results.captures import TellingExample
from bertsecrets.results.components import HEAD
from bertsecrets.results.estimate import Estimate
from bertsecrets.results.verdicts import CAN_BE_SPARED, joint_verdicts

_LONGEST = 40
"""Most tokens of a shown example, if any is this short; a larger map is unreadable beside the grid."""

_BATCH = 32

_MODES = ("uniform", "zero")
"""Modes that need no statistics of the data."""


def look_closer(
    context: Context, outcomes: Outcomes, settings: AblationSettings, rows: Sequence[Mapping[str, Any]]
) -> tuple[list[Together], dict[tuple[int, int], TellingExample]]:
    """What a run's page shows beyond the table of its sweep: the score without all heads that can be spared, by metric,
    and the example that each head, by layer and head, affects most.

    Every process runs the model over all examples of the sweep. Empty unless the sweep is the last of a run and
    disables heads one at a time in a model that answers for each text by itself.

    Args:
        context: The model that was swept.
        outcomes: Outcomes of the sweep.
        settings: How effects are judged.
        rows: Its rows of the ablation table.
    """
    heads = [row for row in rows if row["kind"] == HEAD.name]
    stored = context.last and context.output is not None and context.source is not None
    if not heads or not stored or isinstance(context.model, SentenceEmbedder):
        return [], {}
    position_of = {example.index: position for position, example in enumerate(context.split.examples)}
    positions = [position_of[index] for index in outcomes.index_N.tolist()]
    verdicts = joint_verdicts(heads)
    spared = sorted({(row["layer"], row["head"]) for row in heads if verdicts[row["variant"]] in CAN_BE_SPARED})
    together: list[Together] = []
    if outcomes.plan.mode in _MODES and len(spared) > 1:
        together = _together(context, outcomes, positions, spared, settings)
    return together, _telling(context, outcomes, positions)


def most_changed(outcomes: Outcomes, task: Task, length_N: Tensor) -> Tensor:
    """The index of the example that each variant affects most, ``[V]``.

    The change is that of :meth:`~bertsecrets.task_heads.base.TaskHead.changes`. Pairs that a screened sweep only
    estimated are ignored, and so are long examples if any is short.

    Args:
        outcomes: Outcomes of a sweep.
        task: The task.
        length_N: Tokens of each example.
    """
    change_NV = task.head.changes(outcomes.clean_NC, outcomes.logits_NVC).abs()
    shown_NV = (length_N <= max(_LONGEST, int(length_N.min())))[:, None].expand_as(change_NV)
    if outcomes.weight_NV is not None:
        shown_NV = shown_NV & (outcomes.weight_NV > 0)
    return change_NV.where(shown_NV & change_NV.isfinite(), -1.0).argmax(0)


def _telling(context: Context, outcomes: Outcomes, positions: Sequence[int]) -> dict[tuple[int, int], TellingExample]:
    """The example that each head affects most, with the head's map."""
    data, split = context.data, context.split
    length_N = torch.tensor([split.lengths[position] for position in positions])
    example_V = most_changed(outcomes, data.task, length_N).tolist()
    heads = [(index, outcomes.plan.variants[index].heads[0]) for index in outcomes.plan.of_kind(HEAD)]
    maps: dict[int, Tensor] = {}
    tokens: dict[int, list[str]] = {}
    for spec in SplitBatches(split, _BATCH, sorted({positions[example_V[index]] for index, _ in heads})).sampler:
        batch = split[spec]
        if split.by_row is not None:
            # An example may have several rows; show that of the correct choice.
            batch = split.by_row[[int(split.examples[place].label) * len(split) + place for place in spec.positions]]
        with context.autocast():
            captured = capture(context.model, batch.to(context.device).inputs())
        for row, (position, map_LHQK) in enumerate(zip(spec.positions, captured, strict=True)):
            maps[position] = map_LHQK
            tokens[position] = data.tokens(batch.input_ids_BS[row][batch.attention_mask_BS[row].bool()])
    examples = {}
    for variant_index, (layer, head) in heads:
        example = example_V[variant_index]
        position = positions[example]
        pair = outcomes.clean_NC[example], outcomes.logits_NVC[example, variant_index]
        before, after = (data.task.head.numbers(answer_F) for answer_F in pair)
        examples[layer, head] = TellingExample(
            tokens[position],
            data.label_name(split.examples[position].label),
            [(name, before[name], after[name]) for name in before],
            maps[position][layer, head].numpy(),
        )
    return examples


def _together(
    context: Context,
    outcomes: Outcomes,
    positions: Sequence[int],
    heads: Sequence[tuple[int, int]],
    settings: AblationSettings,
) -> list[Together]:
    """The score with all these heads disabled, for each metric."""
    task, mode, started = context.task, outcomes.plan.mode, time.monotonic()
    if context.split.head.reads_windows:
        # A text's answer comes from all its windows.
        texts = {context.split.examples[position].document for position in positions}
        positions = [place for place, example in enumerate(context.split.examples) if example.document in texts]
    with override(context.model, [HeadEdit(layer, head, mode) for layer, head in heads]):
        batches = SplitBatches(context.split, _BATCH, positions)
        prediction_N = answers(context.model, batches, task, context.autocast, context.device).prediction_N
    clean_N = task.head.predictions(outcomes.clean_NC).double().numpy()
    group_N = None if outcomes.group_N is None else outcomes.group_N.numpy()
    paired = PairedPredictions(outcomes.label_N.double().numpy(), clean_N, prediction_N[None], group_N=group_N)
    verdicts = {metric.name: judge(metric, paired, settings.judging()) for metric in judged_metrics(task)}
    names, seconds = " ".join(f"{layer}-{head}" for layer, head in heads), time.monotonic() - started
    return [
        Together(
            metric,
            mode,
            names,
            seconds,
            float(found.baseline[0]),
            float(found.score[0]),
            Estimate(float(found.delta[0]), float(found.low[0]), float(found.high[0]), n=paired.count),
        )
        for metric, found in verdicts.items()
    ]
