"""Train probes on the attention of a frozen encoder, and score them."""

import logging
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from bertsecrets.analysis import Analysis, Context, Findings, without_errors
from bertsecrets.data.sources import TRAIN
from bertsecrets.errors import UserError, choices
from bertsecrets.grid import Column
from bertsecrets.probes.attention_file import AttentionFile, random_encoder, store_attention
from bertsecrets.probes.batches import ProbeDataset
from bertsecrets.probes.models import AttentionProbe, DistanceProbe, Probe
from bertsecrets.probes.rows import (
    ATTENTION,
    ATTENTION_WORDS,
    DISTANCES_WORDS,
    PROBES,
    RANDOM_ATTENTION,
    RANDOM_ATTENTION_WORDS,
    RIGHT_BRANCHING,
    STRUCTURAL,
    HiddenState,
    Probed,
    ProbeRow,
    Structural,
)
from bertsecrets.probes.scoring import probe_scores, right_branching
from bertsecrets.probes.sentences import Sentences, relations_of
from bertsecrets.probes.structural import store_hidden_states, structural_score
from bertsecrets.probes.training import Answers, Recipe, train_and_answer
from bertsecrets.probes.vectors import WordVectors, embedding_vectors, glove_vectors
from bertsecrets.results.experiment import Experiment
from bertsecrets.results.progress import progress_over
from bertsecrets.settings import typed

_log = logging.getLogger(__name__)

_NUMBER = "a whole number from 1"
_UNIT = "weight per standard deviation of attention"

_PREFIX = ".probes-"
_PROBED, _RANDOM = "own", "random"
_ENCODER = {
    ATTENTION: _PROBED,
    ATTENTION_WORDS: _PROBED,
    RANDOM_ATTENTION: _RANDOM,
    RANDOM_ATTENTION_WORDS: _RANDOM,
    DISTANCES_WORDS: None,
}
"""The encoder whose attention a probe reads."""

_WITH_WORDS = frozenset({ATTENTION_WORDS, RANDOM_ATTENTION_WORDS, DISTANCES_WORDS})
"""The probes that read words."""


class Probes(Experiment):
    """Probes on the attention of a frozen encoder; the head table has the weights of the attention-only probe."""

    name = "probes"
    title = "Probes"
    columns = (
        Column("weight", "weight, word to its head", _UNIT),
        Column("weight_from_head", "weight, head to its word", _UNIT),
    )
    presenter = "bertsecrets.present.probes:PRESENTER"


@dataclass(frozen=True)
class _Material:
    """What probes are trained and scored on.

    Args:
        train, evaluation: Sentences to train on, and to score.
        halves: Whether both are halves of one set.
        vectors: Word vectors; None for the encoder's own input embeddings.
    """

    train: Sentences
    evaluation: Sentences
    halves: bool
    vectors: WordVectors | None

    @property
    def parts(self) -> dict[str, Sentences]:
        """The sentences by the names of their files."""
        return {"train": self.train, "evaluation": self.evaluation}

    def skipped(self, name: str) -> int:
        """Counts of skipped words or sentences; both halves of one set have the same counts."""
        parts = (self.evaluation,) if self.halves else (self.train, self.evaluation)
        return sum(getattr(part, name) for part in parts)


class TrainProbes(Analysis):
    """Train probes to find the syntactic head of each word in the attention of a frozen encoder.

    They are trained on the training split and scored on an evaluation set, or on two halves of the evaluation set if
    the task has no annotated training split. Only the first process trains.

    Args:
        probes: The probes to train, from ``PROBES``; right-branching needs no training and is always scored.
        control: Whether to also train each probe on a control task.
        glove: Text file of word vectors; None for the encoder's own input embeddings.
        epochs, learning_rate, batch_size: Training settings.
        evaluation: Evaluation set; None for the task's first.
        punctuation: Whether to score punctuation.
        replicates: Bootstrap samples of sentences for the intervals.
        seed: Seed of the training, the halves, the control task and the samples.

    Raises:
        UserError: If a probe or the file does not exist, or a number does not fit.
    """

    @typed
    def __init__(
        self,
        probes: Annotated[Sequence[str], Field(min_length=1, description=f"a list of {', '.join(PROBES)}")] = PROBES,
        control: bool = True,
        glove: Annotated[str | None, Field(min_length=1, description="the path of a text file, or null")] = None,
        epochs: Annotated[int, Field(ge=1, description=_NUMBER)] = 3,
        learning_rate: Annotated[float, Field(gt=0, description="a positive number")] = 0.002,
        batch_size: Annotated[int, Field(ge=1, description=_NUMBER)] = 32,
        evaluation: str | None = None,
        punctuation: bool = False,
        replicates: Annotated[int, Field(ge=2, description="a whole number from 2")] = 1000,
        seed: Annotated[int, Field(ge=0, lt=2**32, description=f"a whole number from 0 to {2**32 - 1}")] = 0,
    ) -> None:
        for name in probes:
            if name not in PROBES:
                raise UserError(f"Unknown probe '{name}'; {choices(str(name), PROBES)}.")
        if glove is not None and not Path(glove).is_file():
            raise UserError(
                f"analysis.probes.glove is '{glove}', which is not a file; give a text file of word vectors."
            )
        super().__init__(evaluation)
        self.probes = tuple(probes)
        self.control = control
        self.glove = None if glove is None else Path(glove)
        self.training = (epochs, learning_rate, batch_size, seed)
        self.seed = seed
        self.punctuation = punctuation
        self.replicates = replicates
        self.material: _Material | None = None

    def check(self, context: Context) -> None:
        super().check(context)
        if context.is_first:
            # Report sentences that do not fit before the long work starts.
            self.material = self._prepared(context)

    def run(self, context: Context) -> Iterator[Findings]:
        if self.material is None:
            return
        context.run.folder.mkdir(parents=True, exist_ok=True)
        # Validation runs in inference mode, whose tensors cannot be differentiated later.
        with torch.inference_mode(False):
            rows, weight_LH2 = self._probed(context, self.material)
        grids = [] if weight_LH2 is None else [without_errors(Probes(), weight_LH2, len(self.material.train.rows))]
        yield Findings(Probes(), grids, rows)

    def _prepared(self, context: Context) -> _Material:
        data = context.data
        evaluation = data.evaluation_dataset(data.check_evaluation(self.evaluation))
        if not all(example.annotations for example in evaluation.examples):
            raise UserError(
                f"Probes need annotated words, but the sentences of task '{data.task.name}' have none; use a treebank "
                "(task=treebank data.root=<folder>), a demo task, or a spaCy pipeline (annotation=spacy)."
            )
        scored = Sentences.of(evaluation, punctuation=self.punctuation, seed=self.seed)
        # A spaCy pipeline annotates evaluation sets only.
        halves = not (data.source.has(TRAIN) and all(example.annotations for example in data.examples(TRAIN)))
        if halves:
            _log.info(
                f"Task '{data.task.name}' has no annotated training split, so probes are trained on one half of the "
                "sentences and scored on the other."
            )
            train, scored = scored.halves(self.seed)
        else:
            train = Sentences.of(data.encoded(TRAIN), punctuation=self.punctuation, seed=self.seed)
        if not train.rows or not any(row.scored_W.any() for row in scored.rows):
            raise UserError(
                f"Task '{data.task.name}' has too few annotated sentences of at most {data.max_length} tokens to "
                "train and score probes; give more sentences, or raise task.training.max_length."
            )
        vectors = None
        if self.glove is not None and _WITH_WORDS & set(self.probes):
            vectors = glove_vectors(self.glove, [*train.rows, *scored.rows])
        return _Material(train, scored, halves, vectors)

    def _probed(self, context: Context, material: _Material) -> tuple[list[ProbeRow], Tensor | None]:
        """The results of all probes, and the weights of the attention-only probe for attention divided by its spread,
        ``[L, H, 2]``.

        The attention of one encoder at a time, and then hidden states, are stored in temporary files.

        Raises:
            UserError: If the disk has no room.
        """
        model, encoder, folder, progress = context.model, context.encoder, context.run.folder, context.progress
        recipe = Recipe(*self.training, str(context.device), progress)
        train, evaluation, batch_size = material.train, material.evaluation, context.data.config.eval_batch_size
        for leftover in folder.glob(f"{_PREFIX}*"):
            # A run that was killed could not remove its file.
            shutil.rmtree(leftover)
        sentences = [*train.rows, *evaluation.rows]
        vectors: WordVectors | None = None
        if _WITH_WORDS & set(self.probes):
            vectors = material.vectors or embedding_vectors(model, sentences)
        answers: dict[str, Answers] = {RIGHT_BRANCHING: right_branching(train, evaluation)}
        trained: dict[str, Probe] = {}
        file_bytes, read_seconds = 0, 0.0
        # One encoder at a time: its file takes gigabytes and is removed before the next.
        for source in (_PROBED, _RANDOM, None):
            names = [name for name, seen in _ENCODER.items() if name in self.probes and seen == source]
            if not names:
                continue
            with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=folder) as scratch:
                files: list[AttentionFile | None] = [None, None]
                if source is not None:
                    started = time.monotonic()
                    network = model if source == _PROBED else random_encoder(model, self.seed)
                    channels = encoder.num_layers * encoder.num_heads
                    stored = [
                        AttentionFile(Path(scratch) / name, [len(row) for row in part.rows], channels)
                        for name, part in material.parts.items()
                    ]
                    with progress_over(
                        len(sentences), "attention between words", visible=progress, unit="sentence"
                    ) as done:
                        for part, file in zip(material.parts.values(), stored, strict=True):
                            store_attention(network, part, file, batch_size, context.autocast, done)
                    files = list(stored)
                    file_bytes = sum(file.bytes for file in stored)
                    read_seconds += time.monotonic() - started
                for name in names:
                    trained[name], answers[name] = self._trained(material, recipe, name, files, vectors)
        structural: list[Structural | HiddenState] = []
        if STRUCTURAL in self.probes:
            with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=folder) as states:
                with progress_over(len(sentences), "hidden states", visible=progress, unit="sentence") as done:
                    learned, scored = (
                        store_hidden_states(model, part, Path(states) / name, batch_size, context.autocast, done)
                        for name, part in material.parts.items()
                    )
                found, hidden = structural_score(train, learned, evaluation, scored, recipe, self.replicates)
                structural = [found, *hidden]
        words_N = torch.tensor([int(row.scored_W.sum()) for row in evaluation.rows]).numpy()
        scores, differences = probe_scores(answers, words_N, self.replicates, self.seed)
        probed = Probed(
            corpus=context.data.task.name,
            trained_on=len(train.rows),
            sentences=len(evaluation.rows),
            words=int(words_N.sum()),
            halves=material.halves,
            truncated=material.skipped("truncated"),
            vanished=material.skipped("vanished"),
            vectors="" if vectors is None else vectors.source,
            without_vector=0 if vectors is None else vectors.missing(evaluation.rows),
            replicates=self.replicates,
            punctuation=self.punctuation,
            epochs=recipe.epochs,
            learning_rate=recipe.learning_rate,
            batch_size=recipe.batch_size,
            recipe_seed=self.seed,
            file_bytes=file_bytes,
            read_seconds=read_seconds,
        )
        weight_LH2 = None
        if ATTENTION in trained:
            probe = trained[ATTENTION]
            assert isinstance(probe, AttentionProbe)
            weight_LH2 = probe.weight_DC.detach().T.reshape(encoder.num_layers, encoder.num_heads, 2).cpu()
        return [probed, *scores, *differences, *structural], weight_LH2

    def _trained(
        self,
        material: _Material,
        recipe: Recipe,
        name: str,
        files: Sequence[AttentionFile | None],
        vectors: WordVectors | None,
    ) -> tuple[Probe, Answers]:
        relations = relations_of(material.train.rows)
        seen = vectors if name in _WITH_WORDS else None
        width = 0 if seen is None else seen.table_VD.shape[1]

        def build() -> Probe:
            if name == DISTANCES_WORDS:
                return DistanceProbe(len(relations), width)
            assert files[0] is not None
            return AttentionProbe(files[0].spread_C, len(relations), width)

        train, evaluation = (
            ProbeDataset(part, relations, file, seen) for part, file in zip(material.parts.values(), files, strict=True)
        )
        return train_and_answer(build, train, evaluation, recipe, self.control)
