"""Gradient and update norms against a naive loop over named weights."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from families import FAMILIES, HEADS, LAYERS, WIDTH, tiny_batch, tiny_model

from bertsecrets.callbacks.gradient_flow import GradientFlow, norms
from bertsecrets.data.task import Task
from bertsecrets.errors import UserError
from bertsecrets.models.classifier import SequenceClassifier
from bertsecrets.models.encoder import describe
from bertsecrets.models.settings import OptimizerConfig
from bertsecrets.models.sharding import ShardedStrategy
from bertsecrets.results.run import Run

TOY = Task(name="toy", metrics=("accuracy",), texts=1, labels=("a", "b", "c"))


def test_norms_equal_sums_over_named_slices() -> None:
    model = tiny_model("bert")
    model(**tiny_batch()).logits.square().sum().backward()
    norm_L, norm_LH = norms(describe(model), lambda parameter: parameter.grad)
    width = WIDTH // HEADS
    for layer in range(LAYERS):
        module = model.bert.encoder.layer[layer]
        whole = sum(p.grad.double().square().sum().item() for p in module.parameters())
        assert norm_L[layer].item() == pytest.approx(math.sqrt(whole), rel=1e-5)
        attention = module.attention
        for head in range(HEADS):
            rows = slice(head * width, (head + 1) * width)
            mine = sum(
                getattr(attention.self, name).weight.grad[rows].double().square().sum().item()
                for name in ("query", "key", "value")
            )
            mine += attention.output.dense.weight.grad[:, rows].double().square().sum().item()
            assert norm_LH[layer, head].item() == pytest.approx(math.sqrt(mine), rel=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_head_that_is_switched_off_has_no_gradient_in_any_family(family: str) -> None:
    """Zeroing a head's columns of the output projection cuts its query, key and value off from the loss."""
    model = tiny_model(family)
    encoder = describe(model)
    projection = encoder.sites[0].projection
    width = encoder.head_dim
    with torch.no_grad():
        projection.weight[:, width : 2 * width] = 0
    model(**tiny_batch(pad_id=model.config.pad_token_id)).logits.square().sum().backward()
    for parameter, shape, dimension in encoder.family.head_weights(encoder.sites[0], encoder.num_heads):
        by_head = parameter.grad.view(shape).abs().movedim(dimension, 0).flatten(1).sum(1)
        if parameter is projection.weight:
            assert (by_head > 0).all()
        else:
            assert by_head[1] == 0
            assert (by_head[[0, 2, 3]] > 0).all()


def test_frozen_weights_count_as_nothing() -> None:
    model = tiny_model("bert")
    model.bert.encoder.layer[1].requires_grad_(False)
    model(**tiny_batch()).logits.sum().backward()
    norm_L, norm_LH = norms(describe(model), lambda parameter: parameter.grad)
    assert norm_L[1] == 0
    assert (norm_LH[1] == 0).all()
    assert norm_L[0] > 0


def test_sharded_weights_are_refused(tmp_path: Path) -> None:
    """The project's own strategy of trainer=fsdp, too."""
    module = SequenceClassifier(tiny_model("bert"), TOY, OptimizerConfig(learning_rate=0.1), ("val",), {}, seed=0)
    trainer: Any = SimpleNamespace(strategy=ShardedStrategy())
    with pytest.raises(UserError, match=r"unsharded weights.*~callbacks\.gradient_flow"):
        GradientFlow(Run(tmp_path, "run", "tiny", "toy", "pretrained")).on_fit_start(trainer, module)
