"""Parameter groups, layer-wise rates, freezing and the schedule."""

from contextlib import suppress

import pytest
import torch
from families import FAMILIES, tiny_model
from transformers import get_linear_schedule_with_warmup

from bertsecrets.errors import UserError
from bertsecrets.models.classifier import freeze, linear_rate, parameter_groups
from bertsecrets.models.encoder import describe, requiring_gradients
from bertsecrets.models.loading import random_normal_
from bertsecrets.models.settings import OptimizerConfig


@pytest.mark.parametrize("family", FAMILIES)
def test_every_parameter_is_in_one_group_at_its_depths_rate(family: str) -> None:
    model = tiny_model(family)
    encoder = describe(model)
    groups = parameter_groups(model, OptimizerConfig(learning_rate=1.0, weight_decay=0.1, layer_decay=0.5))
    members = [id(p) for group in groups for p in group["params"]]
    assert sorted(members) == sorted(id(p) for p in model.parameters())
    rate = {id(p): group["lr"] for group in groups for p in group["params"]}
    decay = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    top = encoder.num_layers + 1
    for name, parameter in model.named_parameters():
        flat = name.endswith("bias") or "norm" in name.lower() or parameter.dim() < 2
        assert decay[id(parameter)] == (0.0 if flat else 0.1), name
    for layer, module in enumerate(encoder.layers):
        highest = max(i for i, other in enumerate(encoder.layers) if other is module)
        for parameter in module.parameters():
            assert rate[id(parameter)] == pytest.approx(0.5 ** (top - 1 - highest)), layer
    for module in encoder.embeddings:
        for parameter in module.parameters():
            assert rate[id(parameter)] == pytest.approx(0.5**top)
    head = next(p for name, p in model.named_parameters() if "classifier" in name)
    assert rate[id(head)] == 1.0


def test_an_inverted_decay_lets_lower_layers_learn_faster() -> None:
    model = tiny_model("bert")
    groups = parameter_groups(model, OptimizerConfig(learning_rate=1e-4, layer_decay=1.25))
    rate = {id(p): group["lr"] for group in groups for p in group["params"]}
    by_layer = [{rate[id(p)] for p in layer.parameters()} for layer in describe(model).layers]
    assert [len(rates) for rates in by_layer] == [1, 1, 1]
    # Three layers: the lowest is three factors below the classification head.
    assert [rates.pop() for rates in by_layer] == pytest.approx([1.953125e-4, 1.5625e-4, 1.25e-4])
    with pytest.raises(UserError, match=r"optimizer.layer_decay is 2.5; expected a number above 0 and up to 2"):
        OptimizerConfig.read("optimizer", {"learning_rate": 1e-4, "layer_decay": 2.5})


def test_frozen_parts_do_not_learn_and_others_do() -> None:
    model = tiny_model("bert")
    freeze(model, ["embeddings", 1])
    learning = {name for name, p in model.named_parameters() if p.requires_grad}
    assert not any("embeddings" in name or "layer.1." in name for name in learning)
    assert any("layer.0." in name for name in learning)
    listed = {id(p) for g in parameter_groups(model, OptimizerConfig(learning_rate=1e-3)) for p in g["params"]}
    assert listed == {id(p) for p in model.parameters() if p.requires_grad}
    for wrong in (3, -1, "embedings"):
        with pytest.raises(UserError, match="layer from 0 to 2"):
            freeze(model, [wrong])


def test_chosen_parameters_alone_require_gradients_and_all_return_to_what_they_were() -> None:
    model = tiny_model("bert")
    freeze(model, ["embeddings", 1])
    before = [parameter.requires_grad for parameter in model.parameters()]
    chosen = next(model.named_parameters())
    with suppress(KeyError), requiring_gradients(model, [chosen[1]]):
        assert [name for name, parameter in model.named_parameters() if parameter.requires_grad] == [chosen[0]]
        raise KeyError
    assert [parameter.requires_grad for parameter in model.parameters()] == before
    assert not all(before)


@pytest.mark.parametrize(("steps", "fraction"), [(10, 0.1), (97, 0.25), (30, 0.0), (8, 1.0)])
def test_the_schedule_equals_the_librarys(steps: int, fraction: float) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = get_linear_schedule_with_warmup(optimizer, round(steps * fraction), steps)
    for step in range(steps + 1):
        assert linear_rate(step, steps, fraction) == pytest.approx(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()


@pytest.mark.parametrize("family", FAMILIES)
def test_random_normal_weights(family: str) -> None:
    model, again = tiny_model(family), tiny_model(family, seed=1)
    random_normal_(model, seed=7)
    random_normal_(again, seed=7)
    for (name, a), b in zip(model.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
        if "norm" in name.lower() and name.endswith("weight"):
            assert (a == 1).all(), name
        elif a.dim() < 2:
            assert (a == 0).all(), name
    drawn = torch.cat([p.flatten() for p in model.parameters() if p.dim() >= 2])
    assert drawn.mean().abs() < 5 * 0.02 / len(drawn) ** 0.5
    assert drawn.std().item() == pytest.approx(0.02, rel=0.05)
