"""Recovery: fine-tune a model without its removed heads."""

import copy
from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel

from bertsecrets.attention.override import HeadEdit, override
from bertsecrets.data.batch import Batch
from bertsecrets.data.task import Task
from bertsecrets.models.encoder import describe
from bertsecrets.models.optimisation import linear_rate, parameter_groups
from bertsecrets.models.settings import OptimizerConfig
from bertsecrets.pruning.sets import Context, HeadSet


def recovered(
    model: nn.Module,
    heads: HeadSet,
    batches: Callable[[], Iterable[Batch]],
    task: Task,
    *,
    epochs: int,
    learning_rate: float,
    seed: int,
    context: Context,
) -> PreTrainedModel:
    """A copy of a model, fine-tuned with some heads disabled (mode ``zero``): AdamW, a rate that falls linearly to 0.

    Args:
        model: Any module that contains a transformers model.
        heads: The disabled heads.
        batches: The training examples; each call is an epoch.
        task: Chooses the loss.
        epochs: Number of epochs.
        learning_rate: Peak learning rate.
        seed: Seed of dropout and of the order of batches.
        context: Entered around every batch, e.g. the trainer's autocast.
    """
    with torch.enable_grad(), torch.inference_mode(False):
        network: PreTrainedModel = copy.deepcopy(describe(model).model).train()
        device = next(network.parameters()).device
        config = OptimizerConfig.read("optimizer", {"learning_rate": learning_rate})
        optimizer = torch.optim.AdamW(parameter_groups(network, config), betas=config.betas, eps=config.eps)
        steps = epochs * sum(1 for _ in batches())
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: linear_rate(step, steps, 0.0))
        edits = [HeadEdit(layer, head, "zero") for layer, head in sorted(heads)]
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), override(network, edits):
            torch.manual_seed(seed)
            for _ in range(epochs):
                # In evaluation order, batches of similar lengths follow one another.
                epoch = list(batches())
                for place in torch.randperm(len(epoch)).tolist():
                    batch = epoch[place].to(device)
                    assert batch.label_B is not None
                    with context():
                        loss = task_loss(network(**batch.inputs()).logits, batch.label_B, task)
                    loss.backward()
                    nn.utils.clip_grad_norm_(network.parameters(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad()
                    schedule.step()
    network.eval()
    return network


def task_loss(logits_BC: torch.Tensor, label_B: torch.Tensor, task: Task) -> torch.Tensor:
    """Mean cross-entropy, or mean squared error of a score; computed in float32."""
    if task.is_regression:
        return functional.mse_loss(logits_BC[:, 0].float(), label_B.float())
    return functional.cross_entropy(logits_BC.float(), label_B)
