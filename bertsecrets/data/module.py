"""A task's data as a Lightning data module."""

import random
from collections import Counter, defaultdict
from collections.abc import Sequence, Sized
from dataclasses import replace
from itertools import chain, islice
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler
from transformers import PreTrainedTokenizerFast

from bertsecrets.data.annotation import Annotator
from bertsecrets.data.batch import (
    Batch,
    BatchSpec,
    BucketedEvalSampler,
    BucketedTrainSampler,
    ResumableDataLoader,
    rank_and_world_size,
)
from bertsecrets.data.example import Example, Label
from bertsecrets.data.groups import note_on
from bertsecrets.data.sources import TRAIN, SourceConfig, check_controls, make_source, text_columns
from bertsecrets.data.sources.base import ALL, CHOOSING
from bertsecrets.data.tags import check_scored, note_on_tags, tagged_windows
from bertsecrets.data.task import Task
from bertsecrets.data.tokenization import EncodedSplit, rows_of, written
from bertsecrets.data.windows import windows
from bertsecrets.errors import UserError, choices
from bertsecrets.task_heads.labels import IGNORED, Answers
from bertsecrets.task_heads.regression import SIMILARITY


class TaskData(pl.LightningDataModule):
    """Length-bucketed batches of a task's splits; distributed evaluation counts each example exactly once.

    Use it with ``Trainer(use_distributed_sampler=False)``.

    Args:
        task: Names splits and labels.
        source: Where the rows come from, and how many of them.
        tokenizer: A fast tokenizer.
        batch_size: Training examples per step, of all processes together.
        max_length: Longest sequence in tokens, special tokens included.
        seed: Seed of the training order, of the sample that ``limit_train`` draws, and of permuted labels.
        annotator: Annotates the words of the evaluation sets; None keeps the source's own annotation.
        choosing: Share of the training rows that is set aside as the evaluation set ``choosing``, for choosing a
            checkpoint; None for no such set.

    Attributes:
        remarks: Further sentences for :attr:`notes`.

    Raises:
        UserError: If the source lacks the task, or a control does not fit the task.
    """

    def __init__(
        self,
        task: Task,
        source: SourceConfig,
        tokenizer: PreTrainedTokenizerFast,
        batch_size: int = 32,
        max_length: int = 128,
        seed: int = 0,
        annotator: Annotator | None = None,
        choosing: float | None = None,
    ) -> None:
        super().__init__()
        check_controls(source, task)
        if annotator is not None and task.head.per_word:
            raise UserError(
                f"The tags of task '{task.name}' belong to the words of its data, which annotation.pipeline would "
                "replace by other words; leave it out (annotation=gold)."
            )
        self.task = task
        self.config = source
        self.remarks: list[str] = []
        self.source = make_source(source, task, choosing)
        self.tokenizer = tokenizer
        self.batch_size = batch_size
        self.max_length = max_length
        self.seed = seed
        self.annotator = annotator
        self.apart: int | None = None
        """Longest sentence in tokens where those of a pair are encoded apart; None if a pair is encoded as one."""
        self._examples: dict[str, list[Example]] = {}
        self._encoded: dict[tuple[str, int, int | None], EncodedSplit] = {}
        self._pairs: dict[str, EncodedSplit] = {}
        # MNLI's mismatched set is often absent; the first set must exist.
        self.evaluation = {
            name: split for i, (name, split) in enumerate(task.evaluation.items()) if i == 0 or self.source.has(split)
        }
        if choosing is not None:
            self.evaluation[CHOOSING] = CHOOSING

    @property
    def evaluation_names(self) -> tuple[str, ...]:
        """Names of the evaluation sets, in the order of ``val_dataloader``."""
        return tuple(self.evaluation)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about the controls, and about skipped or unusual rows in the files read so far."""
        return (*self.config.controls, *self.source.notes, *self.remarks)

    def prepare_data(self) -> None:
        # Lightning calls this on one process per machine; the others read from the cache.
        self.source.prepare()

    def setup(self, stage: str) -> None:
        """Read the splits that a stage needs; for a task without labels, only the evaluation sets.

        Raises:
            UserError: If a split is missing, empty, not valid or not labelled.
        """
        if stage == "fit" and self.task.is_labelled:
            self.check_labels(TRAIN)
        if stage in ("fit", "validate"):
            for split in self.evaluation.values():
                if not self.task.is_labelled:
                    self.examples(split)
                    continue
                self.check_labels(split)
                self.remark(note_on(self.examples(split), text_columns(self.config, self.task)))

    def remark(self, note: str | None) -> None:
        """Warn, once, and keep the sentence, if there is one, for the pages."""
        if note is not None and note not in self.remarks:
            self.remarks.append(note)
            rank_zero_warn(note)

    def examples(self, split: str) -> list[Example]:
        """The examples of a split, or the sample that ``limit_train`` or ``limit_eval`` sets.

        The training sample depends on the seed; evaluation samples do not, so runs can be compared. A smaller sample
        is part of a larger one. Examples keep their ``index`` and their order. With ``only``, each has one sentence of
        its pair; with ``permute_labels``, the labels of the training sample are shuffled.
        """
        if split not in self._examples:
            all_examples = self.source.examples(split)
            limit, seed = (self.config.limit_train, self.seed) if split == TRAIN else (self.config.limit_eval, 0)
            sample = [all_examples[position] for position in sample_positions(len(all_examples), limit, seed)]
            if self.task.head.makes_labels:
                sample = [replace(example, label=None) for example in sample]
            if self.config.only is not None:
                side = self.config.sentences
                sample = [replace(one, texts=one.texts[side], annotations=one.annotations[side]) for one in sample]
            if self.config.permute_labels and split == TRAIN:
                sample = permuted_labels(sample, self.seed)
            if self.annotator is not None and split in self.task.evaluation.values():
                annotations = iter(self.annotator.annotate([text for example in sample for text in example.texts]))
                sample = [
                    replace(example, annotations=tuple(islice(annotations, len(example.texts)))) for example in sample
                ]
            self._examples[split] = sample
        return self._examples[split]

    def encoded(self, split: str, max_length: int | None = None, pad_to: int | None = None) -> EncodedSplit:
        """A tokenised split; documents that are longer than ``max_length`` are cut into windows at sentence ends."""
        key = (split, max_length or self.apart or self.max_length, pad_to)
        if key not in self._encoded:
            examples = self.examples(split)
            if self.apart is not None:
                examples = rows_of(examples, SIMILARITY)
            if any(annotation.sentences for example in examples for annotation in example.annotations):
                cut = windows(examples, self.tokenizer, key[1])
                if len(cut) > len(examples):
                    rank_zero_info(
                        f"{len(examples):,} documents of split '{split}' were cut at sentence ends into {len(cut):,} "
                        f"windows of at most {key[1]} tokens."
                    )
                examples = cut
            elif self.task.head.per_word and examples[0].label is not None:
                cut = tagged_windows(examples, self.task.labels, self.tokenizer, key[1])
                longer = sum(count > 1 for count in Counter(one.document for one in cut).values())
                if len(cut) > len(examples):
                    which = "1 sentence is" if longer == 1 else f"{longer:,} sentences are"
                    self.remark(
                        f"{which} longer than {key[1]} tokens in split '{split}' and cut between words into windows, "
                        "outside of entities; those of one sentence are judged together."
                    )
                examples = cut
            encoded = EncodedSplit(
                examples,
                self.tokenizer,
                key[1],
                pad_to=pad_to,
                pad_to_multiple_of=self.config.pad_to_multiple_of if pad_to is None else None,
                head=self.task.head,
            )
            if encoded.truncated:
                rank_zero_warn(
                    f"{encoded.truncated} of {len(encoded)} examples of split '{split}' were truncated to {key[1]} "
                    "tokens."
                )
            if encoded.written:
                self.remark(
                    f"{encoded.written:,} of the {len(encoded):,} examples of split '{split}' contain a special "
                    f"token, such as {self.tokenizer.sep_token or self.tokenizer.pad_token}, in their texts; it is "
                    "treated as special, not as a word."
                )
            self._encoded[key] = encoded
        return self._encoded[key]

    def check_evaluation(self, name: str | None) -> str:
        """The name of an evaluation set, by default the task's first. Raises UserError if it does not exist."""
        if name is None:
            return self.evaluation_names[0]
        if name not in self.evaluation_names:
            raise UserError(
                f"Evaluation set '{name}' does not exist in task '{self.task.name}'; "
                f"{choices(str(name), self.evaluation_names)}."
            )
        return name

    def evaluation_dataset(self, name: str) -> EncodedSplit:
        """The tokenised evaluation set with this name."""
        return self.encoded(self.evaluation[name])

    def judged_dataset(self, name: str) -> EncodedSplit:
        """The tokenised evaluation set with this name, with a label for each pair where sentences are encoded apart."""
        split = self.evaluation[name]
        if self.apart is None or not self.task.is_labelled:
            return self.encoded(split)
        if split not in self._pairs:
            self._pairs[split] = EncodedSplit(self.examples(split), self.tokenizer, self.apart, head=SIMILARITY)
        return self._pairs[split]

    def encode_apart(self, max_length: int, *, judged: bool) -> None:
        """Encode each sentence of a pair by itself, as a sentence-embedding model reads them.

        Args:
            max_length: Longest sentence in tokens, special tokens included.
            judged: Whether cosines are judged by gold similarities, which are scaled to 0..1, by rank correlation
                first; else no label is used.
        """
        self.apart = max_length
        if not judged:
            self.task = self.task.without_labels
            return
        assert self.task.label_range is not None
        low, high = self.task.label_range
        metrics = ("spearman", *(name for name in self.task.metrics if name != "spearman"))
        self.task = self.task.model_copy(update={"metrics": metrics, "label_range": (0.0, 1.0)})
        for split, examples in self._examples.items():
            labels = ((self.labels(split).double() - low) / (high - low)).tolist()
            self._examples[split] = [
                replace(example, label=label) for example, label in zip(examples, labels, strict=True)
            ]

    def train_dataloader(self) -> DataLoader[Batch]:
        dataset = self.encoded(TRAIN)
        rank, world_size = self._rank_and_world_size()
        sampler = BucketedTrainSampler(dataset.lengths, self.batch_size, self.seed, rank, world_size)
        return self._loader(ResumableDataLoader, dataset, sampler)

    def _loader(
        self, kind: type[DataLoader[Any]], dataset: Dataset[Batch], sampler: Sampler[BatchSpec]
    ) -> DataLoader[Batch]:
        return kind(
            dataset,
            sampler=sampler,
            # The sampler yields whole batches, whose varying sizes PyTorch's batching cannot produce.
            batch_size=None,
            num_workers=self.config.num_workers,
            pin_memory=torch.cuda.is_available(),
        )

    def val_dataloader(self) -> list[DataLoader[Batch]]:
        return [self.evaluation_loader(name) for name in self.evaluation_names]

    def test_dataloader(self) -> list[DataLoader[Batch]]:
        """The test splits in the order of ``task.test``, without missing ones; batches have no labels."""
        splits = [split for split in self.task.test.values() if self.source.has(split)]
        return [self.loader_of(self.encoded(split)) for split in splits]

    def predict_dataloader(self) -> list[DataLoader[Batch]]:
        """The same as ``test_dataloader``."""
        return self.test_dataloader()

    def evaluation_loader(
        self,
        name: str,
        max_examples: int | None = None,
        max_length: int | None = None,
        pad_to: int | None = None,
        seed: int = 0,
    ) -> DataLoader[Batch]:
        """This process's batches of an evaluation set.

        Args:
            name: One of ``evaluation_names``.
            max_examples: Size of a random sample, drawn with ``seed``.
            max_length, pad_to: Truncate and pad to these lengths instead of the task's.

        Raises:
            UserError: If there is no such set, or ``pad_to`` is less than an example's length.
        """
        split = self.evaluation[self.check_evaluation(name)]
        whole = max_length is None and pad_to is None
        dataset = self.judged_dataset(name) if whole else self.encoded(split, max_length, pad_to)
        return self.loader_of(dataset, sample_rows(dataset, max_examples, seed))

    def check_apart(self, what: str) -> None:
        """Raise UserError if the same rows would be used for training or selection and for testing."""
        if ALL in self.evaluation.values():
            raise UserError(
                f"{what} needs rows apart from the test rows, but all rows are used for evaluation; set "
                "data.eval_fraction=0.5 to test on half of them, or data.eval_path=<file with test rows>."
            )

    def training_sample(self, max_examples: int) -> DataLoader[Batch]:
        """Batches of a random sample of the training split, the same on every process."""
        dataset = self.training_split(max_examples)
        sampler = BucketedEvalSampler(dataset.lengths, self.config.eval_batch_size)
        return DataLoader(dataset, sampler=sampler, batch_size=None)

    def training_share(self, max_examples: int) -> DataLoader[Batch]:
        """This process's batches of :meth:`training_sample`, each example on one process."""
        return self.loader_of(self.training_split(max_examples))

    def training_split(self, max_examples: int) -> EncodedSplit:
        """The tokenised examples of :meth:`training_sample`."""
        dataset = self.encoded(TRAIN)
        return dataset.part(sample_positions(len(dataset), max_examples, 0))

    def loader_of(self, dataset: EncodedSplit, positions: Sequence[int] | None = None) -> DataLoader[Batch]:
        """This process's batches, in evaluation order, of a tokenised split or of some of its positions."""
        rank, world_size = self._rank_and_world_size()
        sampler = BucketedEvalSampler(dataset.lengths, self.config.eval_batch_size, rank, world_size, positions)
        return self._loader(DataLoader, dataset, sampler)

    def tokens(self, ids_S: Tensor) -> list[str]:
        """The tokens of ids as text."""
        return written(self.tokenizer, ids_S.tolist())

    def label_name(self, label: Label | None) -> str:
        """A label as text: the class name, the score, the words' tags, the masked tokens, the answer, or "?"."""
        if label is None:
            return "?"
        if isinstance(label, Answers):
            return label.texts[0] if label.texts else "no answer"
        if isinstance(label, tuple) and self.task.head.makes_labels:
            return " ".join(self.tokens(torch.tensor([token for token in label if token >= 0])))
        if isinstance(label, tuple):
            return " ".join("-" if tag == IGNORED else self.task.labels[tag] for tag in label)
        return f"{label:.2f}" if self.task.is_regression else self.task.labels[int(label)]

    def labels(self, split: str) -> Tensor:
        """The labels of a split with one for each text: class indices (int64) or scores (float32).

        Raises:
            UserError: If the split has none.
        """
        self.check_labels(split)
        labels = [example.label for example in self.examples(split)]
        return torch.tensor(labels, dtype=torch.float32 if self.task.is_regression else torch.int64)

    def check_labels(self, split: str) -> None:
        """Raise UserError if an example of a split has no label; note words whose tags are not as they should be."""
        examples = self.examples(split)
        if self.task.head.makes_labels:
            return
        without = [example.label for example in examples].count(None)
        if 0 < without < len(examples):
            raise UserError(
                f"{without:,} of the {len(examples):,} rows of split '{split}' of task '{self.task.name}' have no "
                "label (empty, or -1 in a hub data set); add labels, remove the rows, or choose another split."
            )
        if without:
            raise UserError(f"Split '{split}' of task '{self.task.name}' has no labels; choose a labelled one.")
        if self.task.head.per_word:
            what = f"split '{split}' of task '{self.task.name}'"
            check_scored(examples, self.task.head, self.task.metrics, what)
            self.remark(note_on_tags(examples, self.task.labels, f"split '{split}'"))

    def constant_prediction(self) -> float:
        """The constant baseline's prediction: :func:`constant_prediction` of the first evaluation set.

        Training rows differ between seeds, and their most frequent class would be too easy to beat if it is rare in the
        evaluation set.
        """
        return constant_prediction(self.labels(next(iter(self.evaluation.values()))), self.task)

    def _rank_and_world_size(self) -> tuple[int, int]:
        if self.trainer is not None:
            return self.trainer.global_rank, self.trainer.world_size
        return rank_and_world_size()


def permuted_labels(examples: Sequence[Example], seed: int) -> list[Example]:
    """The examples with shuffled labels, or tags of words; the same seed gives the same order."""
    # A separate random stream: the usual one draws the training sample.
    generator = random.Random(f"labels {seed}")
    labels = [example.label for example in examples]
    per_word = [label for label in labels if isinstance(label, tuple)]
    if len(per_word) < len(labels):
        generator.shuffle(labels)
    else:
        # Sentences have different numbers of words.
        tags = [tag for label in per_word for tag in label]
        generator.shuffle(tags)
        shuffled = iter(tags)
        labels = [tuple(islice(shuffled, len(label))) for label in per_word]
    return [replace(example, label=label) for example, label in zip(examples, labels, strict=True)]


def sample_positions(count: int, limit: int | None, seed: int) -> list[int]:
    """The first ``limit`` positions of a seeded shuffle, in ascending order."""
    positions = list(range(count))
    if limit is None or limit >= count:
        return positions
    random.Random(seed).shuffle(positions)
    return sorted(positions[:limit])


def rows_by_example(split: Sized) -> list[list[int]]:
    """The rows of each example of a tokenised split: several where it is read in windows."""
    if not (isinstance(split, EncodedSplit) and split.head.reads_windows):
        return [[row] for row in range(len(split))]
    rows: dict[int | None, list[int]] = defaultdict(list)
    for row, example in enumerate(split.examples):
        rows[example.document].append(row)
    return [*rows.values()]


def sample_rows(split: Sized, limit: int | None, seed: int) -> list[int]:
    """The rows of the examples of :func:`sample_positions`."""
    rows = rows_by_example(split)
    return sorted(chain.from_iterable(rows[place] for place in sample_positions(len(rows), limit, seed)))


def example_count(split: Sized, rows: Sequence[int] | None = None) -> int:
    """Number of examples in some rows of a tokenised split; in all rows if None."""
    chosen = set(range(len(split)) if rows is None else rows)
    return sum(not chosen.isdisjoint(of_example) for of_example in rows_by_example(split))


def example_lengths(split: EncodedSplit) -> list[int]:
    """Tokens of each example, in the order of their rows; those of all its windows for a text that is read in some."""
    return [sum(split.lengths[row] for row in rows) for rows in rows_by_example(split)]


def constant_prediction(label_N: Tensor, task: Task) -> float:
    """The prediction of a constant baseline: the most frequent class of some labels (the first of ties), or their mean
    score.

    >>> task = Task(name="toy", metrics=("accuracy",), texts=1, labels=("no", "yes"))
    >>> constant_prediction(torch.tensor([1, 0, 1]), task)
    1.0
    """
    if task.is_regression:
        return label_N.double().mean().float().item()
    return float(torch.bincount(label_N, minlength=len(task.labels)).argmax())
