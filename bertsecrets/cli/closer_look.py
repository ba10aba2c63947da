"""After a sweep of single heads: disable all redundant heads together, and find the example each head affects most."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from bertsecrets.ablation.outcomes import Outcomes
from bertsecrets.ablation.predictions import PairedPredictions
from bertsecrets.ablation.rows import ABLATION, Together
from bertsecrets.ablation.scoring import judged_metrics
from bertsecrets.ablation.settings import AblationSettings
from bertsecrets.ablation.verdicts import judge
from bertsecrets.analysis import Context
from bertsecrets.attention.override import HeadEdit, override
from bertsecrets.attention.watch import capture
from bertsecrets.data.batch import Batch
from bertsecrets.data.task import Task
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.models.encoder import evaluating
from bertsecrets.models.metrics import answers
from bertsecrets.models.sentence_embedder import SentenceEmbedder
from bertsecrets.reporting.overview import DisabledHeads
from bertsecrets.results.captures import TellingExample, write_telling
from bertsecrets.results.components import HEAD
from bertsecrets.results.estimate import Estimate
from bertsecrets.task_heads.metric import Array

_LONGEST = 40
"""Most tokens of a shown example, if any is this short; a larger map is unreadable beside the grid."""

_BATCH = 32

_MODES = ("uniform", "zero")
"""Modes that need no statistics of the data."""


def look_closer(context: Context, settings: AblationSettings) -> None:
    """Write what a run's page shows beyond the table of its sweep; nothing unless heads were disabled one at a time
    in a model that answers for each text by itself.

    Runs the model in this process alone, over all examples of the sweep.

    Args:
        context: The model that was swept, and the run with the table and the outcomes of the sweep.
        settings: How effects are judged.
    """
    run, model = context.run, context.model
    disabled = None if isinstance(model, SentenceEmbedder) else DisabledHeads.of(run)
    if disabled is None:
        return
    row = disabled.any_row
    path = disabled.outcomes_path(run)
    if not path.is_file():
        return
    outcomes = Outcomes.read(path)
    dataset = context.data.evaluation_dataset(row["evaluation"])
    position_of = {example.index: position for position, example in enumerate(dataset.examples)}
    positions = [position_of[index] for index in outcomes.index_N.tolist()]
    with evaluating(model), torch.no_grad():
        write_telling(run.folder / "ablation", _telling(context, dataset, outcomes, positions))
        spared = disabled.spared
        if row["mode"] in _MODES and len(spared) > 1:
            started = time.monotonic()
            edits = [HeadEdit(layer, head, row["mode"]) for layer, head in spared]
            with override(model, edits):
                prediction_N = _predicted(context, dataset, positions)
            judged = _judged(outcomes, prediction_N, context.task, settings)
            names = " ".join(f"{layer}-{head}" for layer, head in spared)
            how = {"mode": row["mode"], "heads": names, "seconds": time.monotonic() - started}
            rows = [Together(**how, **of_metric) for of_metric in judged]
            run.write_rows(ABLATION, row["stage"], row["step"], rows, [Together], mode=row["mode"])


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


def _telling(
    context: Context, dataset: EncodedSplit, outcomes: Outcomes, positions: Sequence[int]
) -> dict[tuple[int, int], TellingExample]:
    """The example that each head affects most, with the head's map."""
    data = context.data
    length_N = torch.tensor([dataset.lengths[position] for position in positions])
    example_V = most_changed(outcomes, data.task, length_N).tolist()
    heads = [(index, outcomes.plan.variants[index].heads[0]) for index in outcomes.plan.of_kind(HEAD)]
    wanted = sorted(
        {positions[example_V[variant_index]] for variant_index, _ in heads},
        key=lambda position: dataset.lengths[position],
    )
    maps: dict[int, Tensor] = {}
    tokens: dict[int, list[str]] = {}
    for batch, members in _batches(dataset, wanted):
        if dataset.by_row is not None:
            # Of an example with several rows, that of the right choice.
            rows = [int(dataset.examples[member].label) * len(dataset) + member for member in members]
            batch = dataset.by_row[rows]
        with context.autocast():
            captured = capture(context.model, batch.to(context.device).inputs())
        for row, (position, map_LHQK) in enumerate(zip(members, captured, strict=True)):
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
            data.label_name(dataset.examples[position].label),
            [(name, before[name], after[name]) for name in before],
            maps[position][layer, head].numpy(),
        )
    return examples


def _batches(dataset: EncodedSplit, positions: Sequence[int]) -> Iterator[tuple[Batch, Sequence[int]]]:
    for first in range(0, len(positions), _BATCH):
        members = positions[first : first + _BATCH]
        yield dataset[list(members)], members


def _predicted(context: Context, dataset: EncodedSplit, positions: Sequence[int]) -> Array:
    """Predictions ``[N, ...]`` for the examples at these positions, each from all its windows."""
    if dataset.head.reads_windows:
        texts = {dataset.examples[position].document for position in positions}
        positions = [position for position, example in enumerate(dataset.examples) if example.document in texts]
    by_length = sorted(positions, key=dataset.lengths.__getitem__)
    batches = (batch for batch, _ in _batches(dataset, by_length))
    return answers(context.model, batches, context.task, context.autocast, context.device).prediction_N


def _judged(outcomes: Outcomes, prediction_N: Array, task: Task, settings: AblationSettings) -> list[dict[str, Any]]:
    """Metric, baseline, score and change with all these heads disabled, for each metric."""
    clean_N = task.head.predictions(outcomes.clean_NC).double().numpy()
    group_N = None if outcomes.group_N is None else outcomes.group_N.numpy()
    paired = PairedPredictions(outcomes.label_N.double().numpy(), clean_N, prediction_N[None], group_N=group_N)
    content = []
    for metric in judged_metrics(task):
        verdicts = judge(metric, paired, settings.judging())
        baseline, score, delta, low, high = (
            float(getattr(verdicts, name)[0]) for name in ("baseline", "score", "delta", "low", "high")
        )
        change = Estimate(delta, low, high, n=paired.count)
        content.append({"metric": metric.name, "baseline": baseline, "score": score, "change": change})
    return content
