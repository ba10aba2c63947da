"""Which model a checkpoint was fine-tuned from."""

import copy
from pathlib import Path

import pytest
import torch
from data.tasks import task
from families import CONFIGS, LAYERS
from transformers import AutoModelForSequenceClassification, PreTrainedModel, ReformerConfig

from bertsecrets.errors import UserError
from bertsecrets.models import hub
from bertsecrets.models.loading import load_config, load_model
from bertsecrets.models.origin import (
    INITIAL_WEIGHTS,
    check_folder_origin,
    check_origin,
    check_same_size,
    config_difference,
    weights_cosine,
    weights_digest,
)
from bertsecrets.models.spec import ModelSpec


def built(family: str = "bert", seed: int = 0, **keys: object) -> PreTrainedModel:
    torch.manual_seed(seed)
    config = CONFIGS[family]()
    for key, value in keys.items():
        setattr(config, key, value)
    return AutoModelForSequenceClassification.from_config(config)


def test_the_digest_is_of_the_encoder_alone() -> None:
    model = built()
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.classifier.weight.add_(1.0)
        other.bert.pooler.dense.weight.add_(1.0)
    assert weights_digest(other) == weights_digest(model)
    with torch.no_grad():
        other.bert.encoder.layer[1].output.dense.bias[3] += 1e-6
    assert weights_digest(other) != weights_digest(model)


def test_a_checkpoint_of_other_weights_is_refused() -> None:
    record = {INITIAL_WEIGHTS: weights_digest(built(seed=0)), "model": {"name": "one", "path": "here"}}
    check_origin(record, built(seed=0), "one", "x.ckpt")
    check_origin({}, built(seed=1), "one", "x.ckpt")
    with pytest.raises(UserError, match=r"was fine-tuned from other weights .'one' in 'here'. than model 'two'"):
        check_origin(record, built(seed=1), "two", "x.ckpt")


def test_the_cosine_is_that_of_all_matrices_as_one_vector() -> None:
    model, other = built(seed=0), built(seed=1)
    vectors = [
        torch.cat([tensor.flatten() for tensor in encoder.base_model.state_dict().values() if tensor.dim() >= 2])
        for encoder in (model, other)
    ]
    expected = torch.nn.functional.cosine_similarity(*(vector.double() for vector in vectors), dim=0)
    assert weights_cosine(model, other) == pytest.approx(float(expected), abs=1e-9)
    assert weights_cosine(model, model) == pytest.approx(1.0)
    check_folder_origin(model, model, "one", "folder")
    with pytest.raises(UserError, match="do not resemble model 'two'"):
        check_folder_origin(model, other, "two", "folder")


@pytest.mark.parametrize("family", CONFIGS)
def test_a_saved_model_has_the_configuration_of_one_that_is_built_anew(
    family: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("saved")
    model = built(family)
    model.save_pretrained(folder)
    loaded = AutoModelForSequenceClassification.from_pretrained(folder)
    anew = AutoModelForSequenceClassification.from_config(type(model.config).from_pretrained(folder))
    assert config_difference(loaded.config.to_dict(), anew.config.to_dict()) is None
    assert weights_digest(loaded) == weights_digest(model)
    anew.config.num_attention_heads = 2
    assert "is 4 there and 2 here" in str(config_difference(loaded.config.to_dict(), anew.config.to_dict()))


@pytest.mark.parametrize("family", ["bert", "mpnet", "distilbert"])
def test_dropout_of_attention_is_set_and_other_dropout_stays(family: str, tmp_path: Path) -> None:
    built(family).save_pretrained(tmp_path)

    def dropouts(asked: float | None) -> dict[str, float]:
        spec = ModelSpec.read("model", {"name": family, "path": str(tmp_path), "attention_dropout": asked})
        modules = load_model(spec, task("sst2"), "pretrained", seed=0).named_modules()
        return {name: module.p for name, module in modules if isinstance(module, torch.nn.Dropout)}

    usual, without = dropouts(None), dropouts(0)
    changed = {name for name in usual if usual[name] != without[name]}
    assert len(changed) == LAYERS
    assert all(".attention." in name and without[name] == 0 for name in changed)
    assert usual.keys() - changed
    assert {usual[name] for name in changed} == {0.1}


def test_dropout_of_attention_that_a_model_does_not_have_is_refused(tmp_path: Path) -> None:
    ReformerConfig(
        vocab_size=97, hidden_size=32, num_attention_heads=4, attn_layers=["local", "local"]
    ).save_pretrained(tmp_path)
    given = {"name": "tiny", "path": str(tmp_path)}
    load_config(ModelSpec.read("model", given))
    with pytest.raises(UserError, match=r"attention_dropout is 0.0, but the configuration of model 'tiny' has neither"):
        load_config(ModelSpec.read("model", given | {"attention_dropout": 0.0}))
    with pytest.raises(UserError, match=r"model.attention_dropout is 1.0; expected a number from 0 to below 1"):
        ModelSpec.read("model", given | {"attention_dropout": 1.0})


def test_a_reference_of_another_size_is_refused() -> None:
    check_same_size(built(), built(seed=1))
    with pytest.raises(UserError, match="The reference has 3 layers of 2 heads"):
        check_same_size(built(), built(num_attention_heads=2))


@pytest.mark.parametrize("error", [None, ConnectionError("no network"), RuntimeError("client of another version")])
def test_the_hub_is_asked_once_and_briefly(monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> None:
    asked = []

    class Session:
        def head(self, url: str, timeout: float) -> None:
            asked.append(timeout)
            if error is not None:
                raise error

    monkeypatch.setattr(hub.constants, "is_offline_mode", lambda: False)
    monkeypatch.setattr(hub, "get_session", Session)
    hub.hub_is_reachable.cache_clear()
    try:
        assert [hub.hub_is_reachable(), hub.hub_is_reachable()] == [error is None] * 2
    finally:
        hub.hub_is_reachable.cache_clear()
    assert len(asked) == 1
    assert asked[0] <= 5
