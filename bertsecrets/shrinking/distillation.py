"""Distil a model into a smaller one."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from bertsecrets.ablation.partial_passes import first_of, recorded_calls
from bertsecrets.data.batch import Batch
from bertsecrets.models.classifier import linear_rate
from bertsecrets.models.encoder import Autocast, describe, evaluating
from bertsecrets.models.settings import OptimizerConfig
from bertsecrets.task_heads.base import output_of


def distill(
    teacher: nn.Module,
    student: PreTrainedModel,
    batches: Callable[[], Iterable[Batch]],
    *,
    epochs: int,
    learning_rate: float,
    seed: int,
    context: Autocast,
    matched: Sequence[int] | None = None,
    advance: Callable[[int], object] | None = None,
) -> None:
    """Distil the original model into a smaller one, in place; labels are not used.

    The loss is the divergence of the student's predictions from the teacher's (Hinton et al. 2015; squared error for a
    score), plus the squared error of each layer's output divided by the teacher's variance (Jiao et al. 2020, equation
    8, without a map between them, as their widths agree). AdamW with a learning rate that decays linearly to 0.

    Args:
        teacher: Any module that contains the original model, of a family with an adapter.
        student: The smaller model.
        batches: The training examples; each call is an epoch.
        epochs, learning_rate: Number of epochs, and peak learning rate.
        seed: Seed of dropout and of the order of batches.
        context: Entered around every batch, e.g. the trainer's autocast.
        matched: For each layer of the student, the teacher's layer to match; None if both have the same layers.
        advance: Called with the number of examples of each finished batch.
    """
    encoder = describe(teacher)
    assert encoder.family is not None
    base: Any = student.base_model
    layers = encoder.family.layers(base)
    imitated = encoder.layers if matched is None else [encoder.layers[layer] for layer in matched]

    def loss(batch: Batch) -> Tensor:
        inputs = batch.inputs()
        with torch.no_grad(), evaluating(encoder.model), recorded_calls(imitated) as taught:
            answer_NC = batch.predictions(output_of(encoder.model, inputs)).float()
        with recorded_calls(layers) as learnt:
            logits_NC = batch.predictions(output_of(student, inputs)).float()
        real_BS = inputs["attention_mask"].bool()
        total = answer_loss(logits_NC, answer_NC)
        for (_, target), (_, output) in zip(taught, learnt, strict=True):
            target_ND, output_ND = (first_of(value)[real_BS].float() for value in (target, output))
            total = total + functional.mse_loss(output_ND, target_ND) / target_ND.var() / len(layers)
        return total

    # Lightning validates in inference mode, which prevents training.
    with torch.enable_grad(), torch.inference_mode(False):
        student.train()
        device = next(student.parameters()).device
        config = OptimizerConfig.read("optimizer", {"learning_rate": learning_rate})
        weights = list(student.parameters())
        # Biases and norms are the parameters with fewer than two dimensions.
        groups = [
            {"params": [weight for weight in weights if weight.dim() >= 2], "weight_decay": config.weight_decay},
            {"params": [weight for weight in weights if weight.dim() < 2], "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, lr=learning_rate, betas=config.betas, eps=config.eps)
        steps = epochs * sum(1 for _ in batches())
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: linear_rate(step, steps, 0.0))
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            for _ in range(epochs):
                # In evaluation order, consecutive batches have similar lengths, so they are shuffled.
                epoch = list(batches())
                for index in torch.randperm(len(epoch)).tolist():
                    batch = epoch[index].to(device)
                    with context():
                        value = loss(batch)
                    value.backward()
                    nn.utils.clip_grad_norm_(student.parameters(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad()
                    schedule.step()
                    if advance is not None:
                        advance(batch.size)
    student.eval()


def answer_loss(logits_BC: Tensor, answer_BC: Tensor) -> Tensor:
    """Distance of predictions from another model's: mean divergence in nats, or squared error of a score."""
    if logits_BC.shape[1] == 1:
        return functional.mse_loss(logits_BC, answer_BC)
    return functional.kl_div(
        functional.log_softmax(logits_BC, -1),
        functional.log_softmax(answer_BC, -1),
        log_target=True,
        reduction="batchmean",
    )
