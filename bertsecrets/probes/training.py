"""Train a probe, and optionally the same probe on a control task, and predict with them."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import numpy as np
import pytorch_lightning as pl
import torch
from numpy.typing import NDArray
from pytorch_lightning.utilities.types import OptimizerLRScheduler
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from bertsecrets.probes.batches import NO_RELATION, ProbeBatch, ProbeDataset, ProbeSampler
from bertsecrets.probes.models import Probe
from bertsecrets.probes.sentences import Sentences
from bertsecrets.results.training_progress import TrainingProgress

Counts = NDArray[np.int64]
TrainingT = TypeVar("TrainingT", bound=pl.LightningModule)


@dataclass(frozen=True)
class Recipe:
    """How and where probes are trained.

    Args:
        epochs: Passes over the training sentences.
        learning_rate: Adam's initial learning rate; it decays linearly to 0.
        batch_size: Most sentences in a batch.
        seed: Seed of the order of the sentences and of the initial weights.
        folder: Folder for temporary files.
        device: Where to train.
        progress: Whether to show progress bars.
    """

    epochs: int
    learning_rate: float
    batch_size: int
    seed: int
    folder: Path
    device: str = "cpu"
    progress: bool = False


@dataclass(frozen=True)
class Answers:
    """Correct predictions of a probe in each of N sentences.

    Args:
        heads_N, labelled_N: Words with the correct head, and with the correct head and relation.
        control_N: Words with the correct label in the control task; None without one.
        seconds: Time for training and prediction.
        weights: Number of trained weights that predict the heads, without those for relations.
    """

    heads_N: Counts
    labelled_N: Counts
    control_N: Counts | None
    seconds: float
    weights: int


class RecipeTraining(pl.LightningModule):
    """The base of all probes: Adam with a learning rate that decays linearly to 0.

    Args:
        recipe: How to train.
        steps: Total number of steps.
    """

    def __init__(self, recipe: Recipe, steps: int) -> None:
        super().__init__()
        self.recipe = recipe
        self.steps = steps

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        return batch.to(device)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        optimizer = torch.optim.Adam(self.parameters(), lr=self.recipe.learning_rate)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=self.steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class ProbeTraining(RecipeTraining):
    """A probe and a second one for its control task, trained side by side without shared weights.

    The loss is the cross entropy of the heads plus the cross entropy of the relations given the correct heads, with
    equal weight for each word.

    Args:
        probe: Learns the heads and relations.
        control: Learns the control task; None for none.
        recipe: How to train.
        steps: Total number of steps.
        words: Words that count in a batch, on average.
    """

    def __init__(self, probe: Probe, control: Probe | None, recipe: Recipe, steps: int, words: float) -> None:
        super().__init__(recipe, steps)
        self.probe = probe
        self.control = control
        self.words = words

    def training_step(self, batch: ProbeBatch, batch_idx: int) -> Tensor:
        counts_BW = batch.counts_BW
        loss = head_loss(self.probe.scores(batch), batch.candidate_BWT, batch.head_BW, counts_BW)
        relations_BWR = self.probe.relation_scores(batch, batch.head_BW)
        loss = loss + cross_entropy(
            relations_BWR[counts_BW], batch.relation_BW[counts_BW], ignore_index=NO_RELATION, reduction="sum"
        )
        if self.control is not None:
            scores_BWT = self.control.scores(batch)
            loss = loss + head_loss(scores_BWT, batch.control_candidate_BWT, batch.control_BW, counts_BW)
        # Divided by the same number in all batches, so that each word has the same weight.
        return loss / self.words

    def predict_step(self, batch: ProbeBatch, batch_idx: int) -> dict[str, Tensor]:
        """The number of correct predictions in each sentence."""
        predicted_BW = choice(self.probe.scores(batch), batch.candidate_BWT)
        relation_BW = self.probe.relation_scores(batch, predicted_BW).argmax(-1)
        right_BW = (predicted_BW == batch.head_BW) & batch.scored_BW
        answers = {"number": batch.number_B, "heads": right_BW.sum(-1)}
        answers["labelled"] = (right_BW & (relation_BW == batch.relation_BW)).sum(-1)
        if self.control is not None:
            control_BW = choice(self.control.scores(batch), batch.control_candidate_BWT)
            answers["control"] = ((control_BW == batch.control_BW) & batch.scored_BW).sum(-1)
        return {name: value.cpu() for name, value in answers.items()}


def head_loss(scores_BWT: Tensor, candidate_BWT: Tensor, head_BW: Tensor, counts_BW: Tensor) -> Tensor:
    """Cross entropy of the correct heads among the candidates, summed over the words that count."""
    barred_BWT = scores_BWT.masked_fill(~candidate_BWT, torch.finfo(scores_BWT.dtype).min)
    return cross_entropy(barred_BWT[counts_BW], head_BW[counts_BW], reduction="sum")


def choice(scores_BWT: Tensor, candidate_BWT: Tensor) -> Tensor:
    """The best candidate of each word, ``[B, W]``; words choose independently, so the heads need not form a tree."""
    return scores_BWT.masked_fill(~candidate_BWT, -torch.inf).argmax(-1)


def train_and_answer(
    build: Callable[[], Probe],
    train: ProbeDataset,
    evaluation: ProbeDataset,
    recipe: Recipe,
    control: bool,
) -> tuple[Probe, Answers]:
    """Train a probe and count its correct predictions.

    Args:
        build: Builds the probe; called a second time for the control task.
        train, evaluation: Sentences to train on, and to predict.
        recipe: How to train.
        control: Whether to also train on the control task.
    """
    counted = sum(int(row.counts_W.sum()) for row in train.sentences.rows)

    def module(steps: int) -> ProbeTraining:
        words = counted / (steps // recipe.epochs)
        return ProbeTraining(build(), build() if control else None, recipe, steps, words)

    started = time.monotonic()
    trained, [counts] = fit_and_predict(module, train, [evaluation], recipe)
    probe = trained.probe
    weights = sum(value.numel() for name, value in probe.named_parameters() if not name.startswith("relation"))
    seconds = time.monotonic() - started
    return probe, Answers(counts["heads"], counts["labelled"], counts.get("control"), seconds, weights)


class SentenceDataset(Protocol):
    """A dataset whose items are batches of some sentences."""

    sentences: Sentences

    def __getitem__(self, numbers: Sequence[int]) -> Any:
        """A batch of the sentences at these indices."""


def fit_and_predict(
    build: Callable[[int], TrainingT],
    train: SentenceDataset,
    evaluations: Sequence[SentenceDataset],
    recipe: Recipe,
) -> tuple[TrainingT, list[dict[str, Counts]]]:
    """Train a module and predict with it.

    Args:
        build: Builds the module for a number of steps; its predictions are counts by name, and the sentences'
            ``number``.
        train, evaluations: Sentences to train on, and to predict.
        recipe: How to train.

    Returns:
        The module, and for each evaluation the counts in the order of its sentences.
    """
    device = torch.device(recipe.device)
    devices = [device.index or 0] if device.type == "cuda" else []
    # The caller may be a validation loop, which runs in inference mode.
    with _quiet(), torch.inference_mode(False), torch.enable_grad(), torch.random.fork_rng(devices):
        torch.manual_seed(recipe.seed)
        loader = _loader(train, recipe)
        module = build(recipe.epochs * len(loader))
        trainer = pl.Trainer(
            accelerator=device.type if device.type != "cuda" else "gpu",
            devices=devices or 1,
            max_epochs=recipe.epochs,
            logger=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=recipe.progress,
            callbacks=[TrainingProgress("training a probe")] if recipe.progress else [],
            use_distributed_sampler=False,
            default_root_dir=str(recipe.folder),
        )
        trainer.fit(module, loader)
        predicted = [trainer.predict(module, _loader(evaluation, recipe)) for evaluation in evaluations]
    return module, [_in_order(parts or ()) for parts in predicted]


def _in_order(parts: Sequence[Any]) -> dict[str, Counts]:
    """The counts of all batches in the order of the sentences' numbers."""
    order_N = torch.cat([part["number"] for part in parts]).argsort()
    return {
        name: torch.cat([part[name] for part in parts])[order_N].cpu().numpy().astype(np.int64)
        for name in parts[0].keys() - {"number"}
    }


def _loader(dataset: SentenceDataset, recipe: Recipe) -> DataLoader[Any]:
    sampler = ProbeSampler([len(row) for row in dataset.sentences.rows], recipe.batch_size, recipe.seed)
    return DataLoader(cast(Any, dataset), sampler=sampler, batch_size=None)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep a second trainer from repeating messages about the machine."""
    log = logging.getLogger("pytorch_lightning")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)
