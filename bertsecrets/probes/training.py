"""Train a probe, and optionally the same probe on a control task, and predict with them."""

import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from bertsecrets.probes.batches import NO_RELATION, ProbeBatch, ProbeDataset, epoch_batches
from bertsecrets.probes.models import Probe
from bertsecrets.probes.sentences import Sentences
from bertsecrets.results.progress import progress_over

Counts = NDArray[np.int64]
TrainingT = TypeVar("TrainingT", bound="Training")


@dataclass(frozen=True)
class Recipe:
    """How and where probes are trained.

    Args:
        epochs: Passes over the training sentences.
        learning_rate: Adam's initial learning rate; it decays linearly to 0.
        batch_size: Most sentences in a batch.
        seed: Seed of the order of the sentences and of the initial weights.
        device: Where to train.
        progress: Whether to show progress bars.
    """

    epochs: int
    learning_rate: float
    batch_size: int
    seed: int
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


class Training(nn.Module):
    """Something that a recipe trains."""

    @abstractmethod
    def loss(self, batch: Any) -> Tensor:
        """The loss of a batch."""

    @abstractmethod
    def right(self, batch: Any) -> dict[str, Tensor]:
        """Numbers of correct predictions in each sentence of a batch, by name."""


class ProbeTraining(Training):
    """A probe and a second one for its control task, trained side by side without shared weights.

    The loss is the cross entropy of the heads plus the cross entropy of the relations given the correct heads, with
    equal weight for each word.

    Args:
        probe: Learns the heads and relations.
        control: Learns the control task; None for none.
        words: Words that count in a batch, on average.
    """

    def __init__(self, probe: Probe, control: Probe | None, words: float) -> None:
        super().__init__()
        self.probe = probe
        self.control = control
        self.words = words

    def loss(self, batch: ProbeBatch) -> Tensor:
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

    def right(self, batch: ProbeBatch) -> dict[str, Tensor]:
        predicted_BW = choice(self.probe.scores(batch), batch.candidate_BWT)
        relation_BW = self.probe.relation_scores(batch, predicted_BW).argmax(-1)
        right_BW = (predicted_BW == batch.head_BW) & batch.scored_BW
        labelled_BW = right_BW & (relation_BW == batch.relation_BW)
        answers = {"heads": right_BW.sum(-1), "labelled": labelled_BW.sum(-1)}
        if self.control is not None:
            control_BW = choice(self.control.scores(batch), batch.control_candidate_BWT)
            answers["control"] = ((control_BW == batch.control_BW) & batch.scored_BW).sum(-1)
        return answers


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
        return ProbeTraining(build(), build() if control else None, counted / (steps // recipe.epochs))

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
    """Train a module with Adam, at a learning rate that decays linearly to 0, and predict with it.

    Args:
        build: Builds the module for a number of steps.
        train, evaluations: Sentences to train on, and to predict.
        recipe: How to train.

    Returns:
        The module, and for each evaluation the counts in the order of its sentences.
    """

    def batches(dataset: SentenceDataset, epoch: int) -> list[list[int]]:
        words = [len(row) for row in dataset.sentences.rows]
        return epoch_batches(words, recipe.batch_size, recipe.seed, epoch)

    device = torch.device(recipe.device)
    order = [numbers for epoch in range(recipe.epochs) for numbers in batches(train, epoch)]
    # The caller may be a validation loop, which runs in inference mode.
    with torch.inference_mode(False), torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(recipe.seed)
        module = build(len(order)).to(device)
        optimizer = torch.optim.Adam(module.parameters(), lr=recipe.learning_rate)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=len(order))
        with (
            torch.enable_grad(),
            progress_over(len(order), "training a probe", visible=recipe.progress, unit="step") as advance,
        ):
            for numbers in order:
                optimizer.zero_grad()
                module.loss(train[numbers].to(device)).backward()
                optimizer.step()
                schedule.step()
                advance()
        predicted = []
        for evaluation in evaluations:
            with torch.no_grad():
                parts = [(numbers, module.right(evaluation[numbers].to(device))) for numbers in batches(evaluation, 0)]
            order_N = np.argsort(np.concatenate([numbers for numbers, _ in parts]))
            predicted.append(
                {
                    name: np.concatenate([right[name].cpu().numpy() for _, right in parts])[order_N].astype(np.int64)
                    for name in parts[0][1]
                }
            )
    return module, predicted
