"""Mean outputs of heads over training examples, by which mode ``mean`` replaces heads."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn

from bertsecrets.attention.override import mean_head_outputs
from bertsecrets.data.module import TaskData
from bertsecrets.models.encoder import describe


def training_means(
    model: nn.Module, data: TaskData, max_examples: int, context: Callable[[], AbstractContextManager[Any]]
) -> Tensor:
    """Mean output of every head over a sample of the training examples, ``[layers, heads, head width]`` float64.

    Args:
        model: The model; it runs in evaluation mode and returns to its own.
        data: The task's data.
        max_examples: Size of the sample, the same in every process.
        context: Context manager for the forward passes, e.g. the trainer's autocast.
    """
    network = describe(model).model
    training = network.training
    network.eval()
    try:
        batches = data.training_sample(max_examples)
        with context():
            device = next(network.parameters()).device
            return mean_head_outputs(network, (batch.to(device).inputs() for batch in batches))
    finally:
        network.train(training)
