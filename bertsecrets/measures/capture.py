"""The attention maps of a few examples, during training and of a finished model."""

from collections.abc import Iterator, Sequence
from typing import Annotated

from pydantic import Field

from bertsecrets.analysis import Analysis, Context, Findings
from bertsecrets.attention.watch import capture
from bertsecrets.data.batch import Batch
from bertsecrets.data.example import Example
from bertsecrets.data.module import TaskData
from bertsecrets.data.tokenization import EncodedSplit, written
from bertsecrets.errors import UserError
from bertsecrets.grid import Shown
from bertsecrets.results.captures import CapturedExample, step_name, write_examples, write_maps
from bertsecrets.results.experiment import Experiment
from bertsecrets.results.run import INITIAL, Run

_BYTES = 4

_Count = Annotated[int, Field(ge=1)]
_Index = Annotated[int, Field(ge=0)]


class CaptureAnalysis(Analysis, Experiment):
    """Write all heads' maps of chosen examples at step 0 and after every validation.

    Only the first process captures; the others do not wait. At most ``max_megabytes`` of maps are held in memory. Maps
    go to the run's ``captures/step-<step>.safetensors``, examples to ``captures/examples.json``. If the model before
    fine-tuning is given, step 0 uses its maps.

    Args:
        examples: The number of examples (spread evenly over the set by length), or a list of indices into the set.
        evaluation: Evaluation set to choose from; None for the task's first.
        max_megabytes: Limit on the maps of one step, in units of 10^6 bytes.
        every_n_validations: At every n-th validation and at the last; 0: only at the last.

    Raises:
        UserError: If an example does not exist, or the maps would not fit in ``max_megabytes``.
    """

    name = "capture"
    title = "Attention maps of a few examples"
    shown = Shown(compared=False)
    presenter = "bertsecrets.present.captures:PRESENTER"

    at_start = True

    def __init__(
        self,
        examples: Annotated[
            _Count | Annotated[Sequence[_Index], Field(min_length=1)],
            Field(description="a whole number from 1, or a list of examples from 0"),
        ] = 4,
        evaluation: str | None = None,
        max_megabytes: Annotated[float, Field(gt=0, description="a number above 0")] = 64,
        every_n_validations: Annotated[int, Field(ge=0, description="a whole number from 0")] = 1,
    ) -> None:
        super().__init__(evaluation)
        self.examples, self.max_megabytes, self.every_n_validations = examples, max_megabytes, every_n_validations
        self._batch: Batch | None = None

    def needs_reference(self, context: Context) -> bool:
        # Before training, the task's examples are known and the model itself is step 0.
        return context.source is None

    def check(self, context: Context) -> None:
        super().check(context)
        if context.source is not None:
            self._chosen(context)

    def run(self, context: Context) -> Iterator[Findings]:
        if not context.is_first:
            return
        first = self._batch is None
        if self._batch is None:
            # Use the same texts at every validation, even if loaders shuffle.
            self._batch = self._chosen(context)
        batch = self._batch.to(context.device)

        def finish(run: Run, stage: str, step: int) -> None:
            models = {step: context.model}
            if first:
                if INITIAL in context.references:
                    models[0] = context.references[INITIAL]
                write_examples(run.captures, list(_described(context, batch)))
            for at, model in models.items():
                maps = capture(model, batch.inputs())
                write_maps(run.captures, step_name(at), dict(zip(batch.index_B.tolist(), maps, strict=True)))

        yield Findings(self, finish=finish)

    def _chosen(self, context: Context) -> Batch:
        """The examples, checked to fit."""
        split = context.split.by_row or context.split
        lengths = split.lengths
        if isinstance(self.examples, int):
            if self.examples < 1:
                raise UserError(
                    f"examples is {self.examples}; expected a number of at least 1, or a list of examples to capture."
                )
            order = sorted(range(len(lengths)), key=lambda position: (lengths[position], position))
            count = min(self.examples, len(order))
            # The middle of each of `count` equal parts: typical short, medium and long examples without the extremes.
            positions = [order[(2 * part + 1) * len(order) // (2 * count)] for part in range(count)]
        else:
            positions = list(self.examples)
            for position in positions:
                if not 0 <= position < len(lengths):
                    raise UserError(f"examples lists example {position}; the set has examples 0 to {len(lengths) - 1}.")
        batch = split[positions]
        encoder, square = context.encoder, int(batch.lengths_B.max()) ** 2
        needed = batch.size * encoder.num_layers * encoder.num_heads * square * _BYTES / 1e6
        if needed > self.max_megabytes:
            raise UserError(
                f"Capturing {batch.size} examples needs {needed:.0f} MB of memory, more than "
                f"max_megabytes={self.max_megabytes:g}; choose fewer or shorter examples, or raise the limit."
            )
        return batch


def _described(context: Context, batch: Batch) -> Iterator[CapturedExample]:
    """The captured examples with their known properties."""
    split = context.split.by_row or context.split
    examples = {example.index: example for example in split.examples}
    for row, index in enumerate(batch.index_B.tolist()):
        real_S = batch.attention_mask_BS[row].bool()
        ids: list[int] = batch.input_ids_BS[row][real_S].tolist()
        # Without a tokenizer, use the token ids.
        tokens = written(split.tokenizer, ids) if split.tokenizer else list(map(str, ids))
        yield CapturedExample(
            index,
            tokens,
            list(examples[index].texts) or [" ".join(tokens)],
            "?" if context.source is None else _label(context.source, context.split, examples[index]),
            _relations(batch, row),
            batch.special_BS[row][real_S].tolist(),
        )


def _label(data: TaskData, split: EncodedSplit, example: Example) -> str:
    """The label of an example, or whether a choice is right."""
    if split.by_row is None:
        return data.label_name(example.label)
    place, row = divmod(example.index, len(split))
    label = split.examples[row].label
    right = "?" if label is None else "right" if label == place else "wrong"
    return f"choice {data.task.labels[place]}: {right}"


def _relations(batch: Batch, row: int) -> list[tuple[int, int, str]]:
    """First tokens of each annotated word and of its head, and the relation; words without tokens are left out."""
    tokens: dict[int, int] = {}
    for token, word in enumerate(batch.word_BS[row].tolist()):
        tokens.setdefault(word, token)
    pairs, first = [], 0
    for sentence in batch.annotations[row] if batch.annotations else ():
        for i, word in enumerate(sentence.words):
            if word.head >= 0 and first + i in tokens and first + word.head in tokens:
                pairs.append((tokens[first + i], tokens[first + word.head], word.relation))
        first += len(sentence.words)
    return pairs
