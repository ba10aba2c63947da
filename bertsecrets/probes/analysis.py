"""Train probes on the attention of a frozen encoder."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field

from bertsecrets.analysis import Analysis, Context, Findings, without_errors
from bertsecrets.data.module import TaskData
from bertsecrets.data.sources import TRAIN
from bertsecrets.errors import UserError, choices
from bertsecrets.probes.experiment import Probes
from bertsecrets.probes.rows import PROBES
from bertsecrets.probes.sentences import Sentences
from bertsecrets.probes.study import WITH_WORDS, Study, run_study
from bertsecrets.probes.training import Recipe
from bertsecrets.probes.vectors import glove_vectors
from bertsecrets.settings import typed

_log = logging.getLogger(__name__)

_NUMBER = "a whole number from 1"


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
        self.study: Study | None = None

    def check(self, context: Context) -> None:
        super().check(context)
        if context.is_first:
            # Report sentences that do not fit before the long work starts.
            self.study = self._study(context)

    def run(self, context: Context) -> Iterator[Findings]:
        if self.study is None:
            return
        context.run.folder.mkdir(parents=True, exist_ok=True)
        # Validation runs in inference mode, whose tensors cannot be differentiated later.
        with torch.inference_mode(False):
            rows, weight_LH2 = run_study(self.study, context.model)
        grids = [] if weight_LH2 is None else [without_errors(Probes(), weight_LH2, len(self.study.train.rows))]
        yield Findings(Probes(), grids, rows)

    def _study(self, context: Context) -> Study:
        data = context.data
        evaluation = data.evaluation_dataset(data.check_evaluation(self.evaluation))
        if not all(example.annotations for example in evaluation.examples):
            raise UserError(
                f"Probes need annotated words, but the sentences of task '{data.task.name}' have none; use a treebank "
                "(task=treebank data.root=<folder>), a demo task, or a spaCy pipeline (annotation=spacy)."
            )
        scored = Sentences.of(evaluation, punctuation=self.punctuation, seed=self.seed)
        halves = not _has_training_split(data)
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
        if self.glove is not None and WITH_WORDS & set(self.probes):
            vectors = glove_vectors(self.glove, [*train.rows, *scored.rows])
        return Study(
            task=data.task.name,
            train=train,
            evaluation=scored,
            halves=halves,
            probes=self.probes,
            control=self.control,
            vectors=vectors,
            recipe=Recipe(*self.training, context.run.folder, progress=context.progress),
            replicates=self.replicates,
            punctuation=self.punctuation,
            eval_batch_size=data.config.eval_batch_size,
            context=context.autocast,
        )


def _has_training_split(data: TaskData) -> bool:
    """Whether the task has annotated training sentences; a spaCy pipeline annotates evaluation sets only."""
    return data.source.has(TRAIN) and all(example.annotations for example in data.examples(TRAIN))
