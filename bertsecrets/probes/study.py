"""All probes of one encoder on one treebank: store attention, train, score."""

import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from bertsecrets.models.encoder import Autocast, describe
from bertsecrets.probes.attention_file import AttentionFile, random_encoder, store_attention
from bertsecrets.probes.batches import ProbeDataset
from bertsecrets.probes.models import AttentionProbe, DistanceProbe, Probe
from bertsecrets.probes.rows import (
    ATTENTION,
    ATTENTION_WORDS,
    DISTANCES_WORDS,
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
from bertsecrets.probes.vectors import WordVectors, embedding_vectors
from bertsecrets.results.progress import progress_over

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

WITH_WORDS = frozenset({ATTENTION_WORDS, RANDOM_ATTENTION_WORDS, DISTANCES_WORDS})
"""The probes that read words."""


@dataclass(frozen=True)
class Study:
    """The settings of a probing study.

    Args:
        task: Name of the task, to be recorded.
        train, evaluation: Sentences to train on, and to score.
        halves: Whether both are halves of one set.
        probes: The probes, from ``rows.PROBES``.
        control: Whether to also train each on its control task.
        vectors: Word vectors; None for the encoder's own input embeddings.
        recipe: How to train, except for the device, which is the model's.
        replicates: Bootstrap samples of sentences.
        punctuation: Whether punctuation is scored.
        eval_batch_size: Sentences in a forward pass of the encoder.
        context: Context manager for every forward pass, e.g. the trainer's autocast.
    """

    task: str
    train: Sentences
    evaluation: Sentences
    halves: bool
    probes: tuple[str, ...]
    control: bool
    vectors: WordVectors | None
    recipe: Recipe
    replicates: int
    punctuation: bool
    eval_batch_size: int
    context: Autocast

    @property
    def parts(self) -> dict[str, Sentences]:
        """The sentences by the names of their files."""
        return {"train": self.train, "evaluation": self.evaluation}


def run_study(study: Study, model: nn.Module) -> tuple[list[ProbeRow], Tensor | None]:
    """Train and score all probes.

    The attention of one encoder at a time, and then hidden states, are stored in temporary files in the recipe's
    folder.

    Args:
        study: What is probed.
        model: Any module that contains an encoder.

    Returns:
        The results, and the weights of the attention-only probe for attention divided by its spread, ``[L, H, 2]``.

    Raises:
        UserError: If the disk has no room.
    """
    study = replace(study, recipe=replace(study.recipe, device=str(next(model.parameters()).device)))
    folder, progress = study.recipe.folder, study.recipe.progress
    for leftover in folder.glob(f"{_PREFIX}*"):
        # A run that was killed could not remove its file.
        shutil.rmtree(leftover)
    encoder = describe(model)
    sentences = [*study.train.rows, *study.evaluation.rows]
    vectors: WordVectors | None = None
    if WITH_WORDS & set(study.probes):
        vectors = study.vectors or embedding_vectors(model, sentences)
    answers: dict[str, Answers] = {RIGHT_BRANCHING: right_branching(study.train, study.evaluation)}
    trained: dict[str, Probe] = {}
    file_bytes, read_seconds = 0, 0.0
    # One encoder at a time: its file takes gigabytes and is removed before the next.
    for source in (_PROBED, _RANDOM, None):
        names = [name for name, seen in _ENCODER.items() if name in study.probes and seen == source]
        if not names:
            continue
        with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=folder) as scratch:
            files: list[AttentionFile | None] = [None, None]
            if source is not None:
                started = time.monotonic()
                network = model if source == _PROBED else random_encoder(model, study.recipe.seed)
                channels = encoder.num_layers * encoder.num_heads
                stored = [
                    AttentionFile(Path(scratch) / name, [len(row) for row in part.rows], channels)
                    for name, part in study.parts.items()
                ]
                with progress_over(
                    len(sentences), "attention between words", visible=progress, unit="sentence"
                ) as done:
                    for part, file in zip(study.parts.values(), stored, strict=True):
                        store_attention(network, part, file, study.eval_batch_size, study.context, done)
                files = list(stored)
                file_bytes = sum(file.bytes for file in stored)
                read_seconds += time.monotonic() - started
            for name in names:
                trained[name], answers[name] = _trained(study, name, files, vectors)
    structural: list[Structural | HiddenState] = []
    if STRUCTURAL in study.probes:
        with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=folder) as states:
            with progress_over(len(sentences), "hidden states", visible=progress, unit="sentence") as done:
                learned, scored = (
                    store_hidden_states(model, part, Path(states) / name, study.eval_batch_size, study.context, done)
                    for name, part in study.parts.items()
                )
            found, hidden = structural_score(
                study.train, learned, study.evaluation, scored, study.recipe, study.replicates
            )
            structural = [found, *hidden]
    words_N = torch.tensor([int(row.scored_W.sum()) for row in study.evaluation.rows]).numpy()
    scores, differences = probe_scores(answers, words_N, study.replicates, study.recipe.seed)
    probed = Probed(
        corpus=study.task,
        trained_on=len(study.train.rows),
        sentences=len(study.evaluation.rows),
        words=int(words_N.sum()),
        halves=study.halves,
        truncated=_of_both(study, "truncated"),
        vanished=_of_both(study, "vanished"),
        vectors="" if vectors is None else vectors.source,
        without_vector=0 if vectors is None else vectors.missing(study.evaluation.rows),
        replicates=study.replicates,
        punctuation=study.punctuation,
        epochs=study.recipe.epochs,
        learning_rate=study.recipe.learning_rate,
        batch_size=study.recipe.batch_size,
        recipe_seed=study.recipe.seed,
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
    study: Study, name: str, files: Sequence[AttentionFile | None], vectors: WordVectors | None
) -> tuple[Probe, Answers]:
    relations = relations_of(study.train.rows)
    seen = vectors if name in WITH_WORDS else None
    width = 0 if seen is None else seen.table_VD.shape[1]

    def build() -> Probe:
        if name == DISTANCES_WORDS:
            return DistanceProbe(len(relations), width)
        assert files[0] is not None
        return AttentionProbe(files[0].spread_C, len(relations), width)

    train, evaluation = (
        ProbeDataset(part, relations, file, seen) for part, file in zip(study.parts.values(), files, strict=True)
    )
    return train_and_answer(build, train, evaluation, study.recipe, study.control)


def _of_both(study: Study, name: str) -> int:
    """Counts of skipped words or sentences; both halves of one set have the same counts."""
    parts = (study.evaluation,) if study.halves else (study.train, study.evaluation)
    return sum(getattr(part, name) for part in parts)
