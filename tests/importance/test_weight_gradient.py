"""Gradient norms of heads' weights against parameters' own gradients, text by text."""

import numpy as np
import pytest
import torch
from families import HEADS, LAYERS, tiny_batch, tiny_model
from importance.toy import PARTS, model_of_tokens, split
from torch.nn import functional

from bertsecrets.attention.gradients import weight_gradient_norms
from bertsecrets.errors import UserError
from bertsecrets.importance.weight_gradient import WeightGradient
from bertsecrets.measures.one_pass import measure_pass


def naive(example: int) -> np.ndarray:
    """``[L, H, 3]`` of one text: the rows of a head in the gradients that ``backward`` leaves in the parameters."""
    model = model_of_tokens()
    functional.cross_entropy(model(**split()[[example]].inputs()).logits, torch.tensor([example % 3])).backward()
    norms = np.empty((LAYERS, HEADS, 3))
    for layer in range(LAYERS):
        attention = model.bert.encoder.layer[layer].attention.self
        width = attention.query.weight.shape[0] // HEADS
        for head in range(HEADS):
            rows = slice(head * width, (head + 1) * width)
            for column, linear in enumerate((attention.query, attention.key, attention.value)):
                norms[layer, head, column] = np.sqrt((linear.weight.grad[rows].numpy() ** 2).sum())
    return norms


def test_norms_are_those_of_the_parameters_own_gradients() -> None:
    model = model_of_tokens()
    model.bert.encoder.layer[1].requires_grad_(False)
    [grid] = measure_pass(model, [WeightGradient(LAYERS, HEADS)], [split()[part] for part in PARTS])
    norms = np.stack([naive(example) for example in range(4)])
    mean, error = norms.mean(0), norms.std(0, ddof=1) / 2
    assert np.allclose(grid.value_LHC[..., :3].numpy(), mean, rtol=1e-5)
    assert np.allclose(grid.stderr_LHC[..., :3].numpy(), error, rtol=1e-5)
    query, key, value = mean[..., 0], mean[..., 1], mean[..., 2]
    assert np.allclose(grid.column("product").numpy(), query * key * value, rtol=1e-5)
    most = query * key * value * (error / mean).sum(-1)
    assert np.allclose(grid.stderr_LHC[..., 3].numpy(), most, rtol=1e-5)
    assert (grid.count_LHC == 4).all()
    # The model is as before: no gradients, and what was frozen still is.
    assert all(parameter.grad is None for parameter in model.parameters())
    frozen = [parameter.requires_grad for parameter in model.bert.encoder.layer[1].parameters()]
    assert not any(frozen)
    assert model.bert.encoder.layer[0].attention.self.query.weight.requires_grad


def test_layers_that_share_weights_share_their_numbers_and_one_map_for_all_is_refused() -> None:
    norms_LH3 = weight_gradient_norms(tiny_model("albert"), tiny_batch(), lambda logits_BC: logits_BC.sum())
    assert (norms_LH3[0] == norms_LH3[2]).all()
    assert (norms_LH3 > 0).all()
    with pytest.raises(UserError, match="'modernbert' has one map for queries, keys and values"):
        weight_gradient_norms(tiny_model("modernbert"), tiny_batch(), lambda logits_BC: logits_BC.sum())
