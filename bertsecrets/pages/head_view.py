"""A page of one text's attention: every head's map, as lines between tokens too, for a notebook or a browser."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bertsecrets.attention.self_check import check_wrapper
from bertsecrets.attention.watch import capture
from bertsecrets.data.classes import names_of
from bertsecrets.data.sources.base import check_characters
from bertsecrets.data.tokenization import written
from bertsecrets.errors import UserError
from bertsecrets.grid import HeadGrid
from bertsecrets.models.encoder import check_encoder, describe, evaluating, unwrap
from bertsecrets.models.loading import check_segments, max_positions
from bertsecrets.models.origin import check_same_size
from bertsecrets.pages.page_view import PageView
from bertsecrets.present.report.content import HeadColumn, HeadsTogether, HeadViewer, Report, Section, ViewerExample
from bertsecrets.results.formatting import number, shortened
from bertsecrets.results.run import Run as RunFolder
from bertsecrets.task_heads.sequence import find_logits

if TYPE_CHECKING:
    # Its sections take seconds to import, which a plain view need not wait for.
    from bertsecrets.pages.notebook_run import Run

_WEIGHTS = 2 * 144 * 128**2
"""Weights that fit into a page of 3 MB, if need be with fewer digits: two models' 144 heads at 128 tokens."""

_WITHOUT = "uniform"
_TITLE = 80


class HeadView(PageView):
    """Every head's attention to one text.

    Args:
        report: The page.
        example: The tokens and their weights.
    """

    def __init__(self, report: Report, example: ViewerExample) -> None:
        super().__init__(report)
        self.example = example

    def __repr__(self) -> str:
        layers, heads = self.example.stages[0][1].shape[:2]  # type: ignore[union-attr]
        return (
            f"HeadView: {layers} layers x {heads} heads, {len(self.example.tokens)} tokens; save it with "
            '.save("view.html") and open it in a browser'
        )


def head_view(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    text: str | tuple[str, str],
    second: str | None = None,
    *,
    reference: nn.Module | None = None,
    run: "Run | RunFolder | str | Path | None" = None,
    grids: Sequence[HeadGrid] = (),
    start: tuple[int, int] | None = None,
    max_length: int | None = None,
) -> HeadView:
    """View every head's attention to a sentence or a pair of sentences.

    The view has a map, lines between tokens, and a grid of all heads; for a classifier also the prediction with and
    without the selected head (its attention made uniform). Weights are from one forward pass in evaluation mode, before
    dropout. A page has at most 3 MB; longer texts are cut, with a note.

    Args:
        model: Any Hugging Face encoder, with or without a task head; it is not modified.
        tokenizer: Its fast tokenizer.
        text: A sentence or a pair of sentences.
        second: The second sentence, if any.
        reference: A model of the same size to compare with, such as the one before fine-tuning.
        run: A finished run, or its folder, with numbers to colour heads by.
        grids: Further numbers to colour heads by, e.g. from :func:`bertsecrets.measure`.
        start: The ``(layer, head)`` shown first; None for the head with the largest loss in ``run``, or else the head
            that changes the prediction for this text most.
        max_length: Maximum length in tokens; None for the model's limit.

    Raises:
        UserError: If a sentence is empty, the model is not an encoder, or the reference, the run, a grid or ``start``
            does not match it.
    """
    network = check_encoder(model, tokenizer)
    sentences = _sentences(text, second)
    if len(sentences) == 2:
        check_segments(tokenizer, network.config, type(network).__name__)
    encoder = describe(network)
    size = (encoder.num_layers, encoder.num_heads)
    if start is not None and not (0 <= start[0] < size[0] and 0 <= start[1] < size[1]):
        raise UserError(
            f"start is {tuple(start)}; expected a layer from 0 to {size[0] - 1} and a head from 0 to {size[1] - 1}."
        )
    table = _table(run, grids, size)
    inputs, sentence_of, special, notes = _encoded(network, tokenizer, sentences, max_length)
    stages = []
    if reference is not None:
        other = describe(reference).model
        if other is encoder.model:
            raise UserError("reference is the model itself; load the model before fine-tuning separately.")
        check_same_size(network, reference)
        stages.append(("reference", _maps(other, inputs)))
    stages.append(("model" if reference is None else "this model", _maps(network, inputs)))
    length = len(sentence_of)
    shown = _shown_positions(sentence_of, special, math.isqrt(_WEIGHTS // (size[0] * size[1] * len(stages))))
    if len(shown) < length:
        notes.append(
            f"To keep this page under 3 MB, {length - len(shown)} of {length} tokens at the end of sentences are "
            "omitted; weights are those of the whole text, so rows sum to less than 1."
        )
    tokens = written(tokenizer, inputs["input_ids"][0].tolist())
    example = ViewerExample(
        shortened(" / ".join(sentences), _TITLE),
        [tokens[position] for position in shown],
        [(name, map_LHQK[:, :, shown][:, :, :, shown].numpy()) for name, map_LHQK in stages],
        [sentence_of[position] for position in shown],
        [special[position] for position in shown],
    )
    title, answers, decisive = _answers(model, inputs)
    if start is None and run is not None:
        from bertsecrets.reporting.overview import DisabledHeads

        disabled = DisabledHeads.of(_folder(run))
        start = None if disabled is None else disabled.start
    viewer = HeadViewer([example], start or decisive, table, answers=answers)
    report = Report(title=title, subtitle=example.name, notes=notes, sections=[Section(viewer=viewer)], wide=True)
    return HeadView(report, example)


def _sentences(text: Any, second: Any) -> tuple[str, ...]:
    if isinstance(text, (tuple, list)):
        if second is not None:
            raise UserError("Both text and second are given, and text is a pair; give one pair, or two sentences.")
        parts = tuple(text)
    else:
        parts = (text,) if second is None else (text, second)
    if not 1 <= len(parts) <= 2 or not all(isinstance(part, str) for part in parts):
        raise UserError(
            f"Text {shortened(repr(text), _TITLE)} is neither a sentence nor a pair; give one or two texts."
        )
    for name, part in zip(("first", "second"), parts, strict=False):
        if not part.strip():
            raise UserError(
                f"The {name} sentence is {part!r}, which contains no word; give a sentence such as 'The cat sat.'."
            )
        check_characters(part)
    return parts


def _encoded(
    network: PreTrainedModel, tokenizer: Any, sentences: tuple[str, ...], max_length: int | None
) -> tuple[dict[str, Tensor], list[int], list[bool], list[str]]:
    """Inputs of one text, its tokens' sentences and whether they are special, and notes on what is left out."""
    limits = [limit for limit in (max_positions(network), max_length) if limit is not None]
    options: dict[str, Any] = {"return_tensors": "pt", "verbose": False}
    encoding = tokenizer(*sentences, **options)
    length = encoding["input_ids"].shape[1]
    notes = []
    if limits and length > min(limits):
        most = min(limits)
        special_tokens = tokenizer.num_special_tokens_to_add(pair=len(sentences) == 2)
        if most < special_tokens + len(sentences):
            raise UserError(
                f"max_length is {most}, which leaves no room for a word; give at least {special_tokens + 2}."
            )
        encoding = tokenizer(*sentences, truncation="longest_first", max_length=most, **options)
        whose = "the model takes" if most != max_length else "max_length is"
        notes.append(f"The text has {length} tokens and {whose} {most}: the last {length - most} are omitted.")
    segments = encoding.sequence_ids(0)
    if all(segment is None for segment in segments):
        raise UserError(
            f"The tokenizer finds no token in {shortened(repr(sentences[0]), _TITLE)}; give a sentence with words."
        )
    sentence_of, last = [], 0
    for segment in segments:
        last = last if segment is None else segment
        sentence_of.append(last)
    inputs = {name: tensor.to(network.device) for name, tensor in encoding.items()}
    return inputs, sentence_of, [segment is None for segment in segments], notes


def _folder(run: "Run | RunFolder | str | Path") -> RunFolder:
    return RunFolder.open(run if isinstance(run, str | Path) else run.folder)


def _answers(model: nn.Module, inputs: dict[str, Tensor]) -> tuple[str, dict[tuple[int, int], str], tuple[int, int]]:
    """A title with the prediction of a sequence classifier and the number of heads that change it, a sentence on each
    head, and the head that changes the prediction most.

    Other models get a neutral title, no sentences, and the first head.
    """
    network = unwrap(model)
    with evaluating(network), torch.no_grad():
        logits_BC = find_logits(network, inputs)
    # An embedding is not a prediction either.
    if logits_BC is None or logits_BC.shape[1] != network.config.num_labels:
        return "Attention heads", {}, (0, 0)
    check_wrapper(model, inputs, logits_BC)
    # Imported late: other models need no sweep.
    from bertsecrets.ablation.engine import Engine
    from bertsecrets.ablation.plan import Plan, every_head

    encoder = describe(network)
    size = (encoder.num_layers, encoder.num_heads)
    plan = Plan(_WITHOUT, *size, tuple(every_head(*size)))
    with evaluating(network), torch.no_grad():
        clean_BC, logits_BVC = Engine(network, plan).run(inputs)
    names = names_of(network.config.id2label, network.config.num_labels)
    answer_with_head = _answer(clean_BC[0], names)
    title = f"The model predicts {answer_with_head}"
    if clean_BC.shape[1] > 1:
        changing = int((logits_BVC[0].argmax(-1) != clean_BC[0].argmax()).sum())
        title += (
            f"; {changing or 'none'} of {len(plan.variants)} heads change{'s' * (changing <= 1)} that when "
            "disabled alone"
        )
    # Of the answer's probability, or of the score.
    share_VC = logits_BVC[0].float() if clean_BC.shape[1] == 1 else logits_BVC[0].float().softmax(-1)
    share_C = clean_BC[0].float() if clean_BC.shape[1] == 1 else clean_BC[0].float().softmax(-1)
    change_V = (share_VC - share_C)[:, int(clean_BC[0].argmax())].abs()
    decisive = plan.variants[int(change_V.argmax())].heads[0]
    answers = {
        variant.heads[0]: f"The model predicts {answer_with_head}, and {_answer(logits_C, names)} without this head."
        for variant, logits_C in zip(plan.variants, logits_BVC[0], strict=True)
    }
    return title, answers, decisive


def _answer(logits_C: Tensor, names: Sequence[str]) -> str:
    """The likeliest class with its probability, or the score of a model with one output."""
    if len(logits_C) == 1:
        return number(float(logits_C[0]), 2)
    share_C = logits_C.float().softmax(-1)
    best = int(share_C.argmax())
    return f"“{names[best]}” ({number(float(share_C[best]), 3)})"


def _maps(network: PreTrainedModel, inputs: dict[str, Tensor]) -> Tensor:
    device = network.device
    with torch.no_grad():
        (map_LHQK,) = capture(network, {name: tensor.to(device) for name, tensor in inputs.items()})
    return map_LHQK


def _shown_positions(sentence_of: Sequence[int], special: Sequence[bool], most: int) -> list[int]:
    """Positions of at most ``most`` tokens: special tokens, and the first tokens of each sentence."""
    if len(sentence_of) <= most:
        return list(range(len(sentence_of)))
    words = [
        [at for at, (segment, added) in enumerate(zip(sentence_of, special, strict=True)) if segment == s and not added]
        for s in (0, 1)
    ]
    room = max(most - sum(special), 0)
    # The shorter sentence stays whole where it can.
    shorter = min(words, key=len)
    share = min(len(shorter), room // 2)
    counts = [share if sentence is shorter else room - share for sentence in words]
    with_room = {position for sentence, count in zip(words, counts, strict=True) for position in sentence[:count]}
    return [position for position, added in enumerate(special) if added or position in with_room]


def _table(
    run: "Run | RunFolder | str | Path | None", grids: Sequence[HeadGrid], size: tuple[int, int]
) -> HeadsTogether | None:
    if run is None and not grids:
        return None
    # A plain view, which takes a few seconds, need not wait for the seconds that the sections of a report take to
    # import.
    from bertsecrets.reporting.run_report import heads_together, views_of

    columns: list[HeadColumn] = []
    if run is not None:
        together = heads_together(views_of(_folder(run)))
        columns += [] if together is None else together.columns
    for grid in grids:
        columns += [
            HeadColumn(grid.measure, grid.measure, column.name, column.label, grid.column(column.name).numpy())
            for column in grid.described
        ]
    for column in columns:
        if column.value_LH.shape != size:
            layers, heads = column.value_LH.shape
            raise UserError(
                f"Column '{column.key}' has {layers} layers of {heads} heads, but the model {size[0]} of {size[1]}; "
                "give a run or a grid of this model."
            )
    return HeadsTogether(columns) if columns else None
