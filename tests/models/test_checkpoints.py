"""Checkpoints that others made: classes by name, the hub's cache, a Trainer's folders, adapters, other models."""

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import peft
import pytest
import torch
from data.toy import wordpiece
from families import CONFIGS, HEADS, LAYERS, VOCABULARY, WIDTH, tiny_model
from huggingface_hub import constants
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError
from torch import Tensor
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    PreTrainedModel,
    T5Config,
    T5ForSequenceClassification,
)

import bertsecrets as bs
from bertsecrets.data.classes import all_classes, match_classes
from bertsecrets.data.task import Task
from bertsecrets.errors import UserError
from bertsecrets.models import hub
from bertsecrets.models.checkpoint import OUTPUTS, load_checkpoint, reorder_outputs
from bertsecrets.models.files import output_names
from bertsecrets.models.hub import hub_folder
from bertsecrets.models.spec import ModelSpec, find_checkpoint

MNLI = ("entailment", "neutral", "contradiction")
TASK = Task(name="nli", metrics=("accuracy",), texts=2, labels=MNLI)


def inputs() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    ids_BS = torch.randint(5, VOCABULARY, (4, 9), generator=generator)
    return {"input_ids": ids_BS, "attention_mask": torch.ones_like(ids_BS)}


@torch.no_grad()
def logits(model: Any) -> Tensor:
    return model(**inputs()).logits


def spec(path: Path, **keys: Any) -> ModelSpec:
    return ModelSpec.read("model", {"name": "theirs", "path": str(path), **keys})


@pytest.mark.parametrize(
    ("names", "outputs", "places"),
    [
        (["negative", "positive"], ["NEGATIVE", "POSITIVE"], [0, 1]),
        (["pos", "Neg"], ["negative", "neutral", "positive"], [2, 0]),
        (MNLI, ["CONTRADICTION", "NEUTRAL", "ENTAILMENT"], [2, 1, 0]),
        (["not_entailment", "entailment"], ["entailment", "Non-Entailment"], [1, 0]),
        (["1", "2", "3", "4", "5"], ["1 star", "2 stars", "3 stars", "4 stars", "5 stars"], [0, 1, 2, 3, 4]),
        (["0.0", "1.0"], ["NEGATIVE", "POSITIVE"], [0, 1]),
        (["1", "2"], ["LABEL_0", "LABEL_1"], [0, 1]),
        (["0", "1"], ["LABEL_0", "LABEL_1", "LABEL_2"], [0, 1]),
        (["LABEL_1", "LABEL_0"], ["no", "yes"], [1, 0]),
        (["ham", "spam"], ["LABEL_0", "LABEL_1"], [0, 1]),
        (["yes", "no"], ["False", "True"], [1, 0]),
        (["LABEL_0", "LABEL_1"], ["LABEL_1", "LABEL_0"], [1, 0]),
        (["A", "A-", "B"], ["B", "A-", "A"], [2, 1, 0]),
        (["2", "3"], ["LABEL_0", "LABEL_1", "LABEL_2"], [1, 2]),
    ],
)
def test_classes_are_matched_by_name(names: list[str], outputs: list[str], places: list[int]) -> None:
    assert match_classes(names, outputs) == places


@pytest.mark.parametrize(
    ("names", "outputs", "unmatched"),
    [
        (["spam", "ham"], ["negative", "positive"], "spam"),
        (["neg", "Negative"], ["negative", "positive"], "neg"),
        (["negative", "positive"], ["NEG", "negative"], "positive"),
        (["1", "2"], ["LABEL_0", "LABEL_1", "LABEL_2"], "1"),
        (["-1", "1"], ["negative", "positive"], "-1"),
        (["6", "7"], ["1", "2"], "6"),
    ],
)
def test_classes_without_an_output_are_refused(names: list[str], outputs: list[str], unmatched: str) -> None:
    with pytest.raises(UserError) as error:
        match_classes(names, outputs)
    assert f"Class '{unmatched}' does not match exactly one output" in str(error.value)
    assert f"the data have {', '.join(names)}, the model has {', '.join(outputs)}; list" in str(error.value)


@pytest.mark.parametrize(
    ("names", "removed"), [(["good", "mixed", "bad"], "'mixed'"), (["a", "b", "c"], "all but 2 of them")]
)
def test_more_classes_than_outputs_are_refused_with_the_rows_to_remove(names: list[str], removed: str) -> None:
    with pytest.raises(UserError) as error:
        match_classes(names, ["bad", "good"])
    assert str(error.value) == (
        f"The data have 3 classes ({', '.join(names)}), but the model has 2 outputs (bad, good); remove the rows of "
        f"{removed}."
    )


def test_classes_that_the_data_lack_follow_theirs() -> None:
    names = all_classes(["2", "0"], ["LABEL_0", "LABEL_1", "LABEL_2"])
    assert names == ["2", "0", "LABEL_1"]
    # As they are matched again when the model is loaded.
    assert match_classes(names, ["LABEL_0", "LABEL_1", "LABEL_2"]) == [2, 0, 1]


@pytest.mark.parametrize("family", CONFIGS)
def test_reordered_outputs_are_the_same_numbers(family: str) -> None:
    model = tiny_model(family)
    before_BC = logits(model)
    reorder_outputs(model, [2, 0, 1])
    assert torch.allclose(logits(model), before_BC[:, [2, 0, 1]], atol=1e-6)


@pytest.mark.parametrize(
    ("outputs", "settings"),
    [
        (("Contradiction", "entail", "neu"), {}),
        (("LABEL_0", "LABEL_1", "LABEL_2"), {"labels": ["contradiction", "entailment", "neutral"]}),
        (("x", "y", "z"), {"labels": {"entailment": 1, "neutral": 2, "contradiction": 0}}),
    ],
)
def test_a_model_of_other_names_in_another_order_is_that_of_the_task(
    outputs: tuple[str, ...], settings: dict[str, Any], tmp_path: Path
) -> None:
    model = tiny_model("roberta")
    expected_BC = logits(model)[:, [1, 2, 0]]
    model.config.id2label = dict(enumerate(outputs))
    model.save_pretrained(tmp_path)
    checkpoint = load_checkpoint(tmp_path, TASK, spec(tmp_path, **settings))
    assert torch.allclose(logits(checkpoint.model), expected_BC, atol=1e-6)
    assert checkpoint.model.config.id2label == dict(enumerate(MNLI))
    assert checkpoint.record == {OUTPUTS: ["contradiction", "entailment", "neutral"]}
    (note,) = checkpoint.notes
    assert all(f"{name} is '{label}'" in note for name, label in zip(outputs, checkpoint.record[OUTPUTS], strict=True))


def test_outputs_are_in_the_order_of_their_numbers_whatever_the_order_of_the_keys(tmp_path: Path) -> None:
    model = tiny_model("bert")
    expected_BC = logits(model)[:, [2, 1, 0]]
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text("utf-8"))
    config["id2label"] = {"2": "entailment", "0": "contradiction", "1": "neutral"}
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    assert output_names(tmp_path) == ["contradiction", "neutral", "entailment"]
    assert torch.allclose(logits(load_checkpoint(tmp_path, TASK, spec(tmp_path)).model), expected_BC, atol=1e-6)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["entailment", "neutral"], r"model.labels has 2 classes .* but the model has 3 outputs"),
        ({"entailment": 1, "neutral": 2, "contradiction": 3}, r"model.labels is .* expected the class of each output"),
        (["a", "b", "c"], r"Class 'entailment' does not match exactly one output.* the model has a, b, c"),
    ],
)
def test_wrong_names_of_outputs_are_refused(labels: Any, message: str, tmp_path: Path) -> None:
    tiny_model("bert").save_pretrained(tmp_path)
    with pytest.raises(UserError, match=message):
        load_checkpoint(tmp_path, TASK, spec(tmp_path, labels=labels))


def in_cache(cache: Path, model: PreTrainedModel, commit: str = "a" * 40) -> Path:
    """Save a model of the hub as its client caches it."""
    repository = cache / "models--them--theirs"
    (repository / "refs").mkdir(parents=True, exist_ok=True)
    (repository / "refs" / "main").write_text(commit)
    model.save_pretrained(repository / "snapshots" / commit)
    return repository / "snapshots" / commit


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    hub_folder.cache_clear()
    return tmp_path / "cache"


def test_a_model_of_the_hub_is_read_from_its_cache(cache: Path) -> None:
    model, older = tiny_model("bert"), tiny_model("bert", seed=1)
    in_cache(cache, older, "b" * 40)
    snapshot = in_cache(cache, model)
    assert find_checkpoint("them/theirs") == snapshot
    for revision, expected in ((None, model), ("main", model), ("b" * 40, older)):
        theirs = spec(Path("them/theirs"), revision=revision)
        loaded = load_checkpoint(find_checkpoint("them/theirs", revision), TASK, theirs).model
        assert torch.equal(logits(loaded), logits(expected))


@pytest.mark.parametrize(("name", "revision"), [("them/others", None), ("them/theirs", "v2"), ("not a/name", None)])
def test_a_model_that_is_not_in_the_cache_is_told(name: str, revision: str | None, cache: Path) -> None:
    in_cache(cache, tiny_model("bert"))
    with pytest.raises(UserError, match=f"'{name}' is not a folder, the hub cannot be reached, and the local cache"):
        find_checkpoint(name, revision)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            RepositoryNotFoundError,
            "neither a folder nor a hub model that this login can read; check the spelling",
        ),
        (GatedRepoError, "is gated; ask for access on its page"),
        (RevisionNotFoundError, "has no revision 'v2' on the hub; set model.revision to a branch"),
        (ConnectionError, "could not be downloaded from the hub"),
    ],
)
def test_what_the_hub_refuses_is_told(
    kind: type[Exception], message: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = kind("no") if kind is ConnectionError else kind("no", response=Mock())
    monkeypatch.setattr(hub, "hub_is_reachable", lambda: True)
    monkeypatch.setattr(hub, "HfApi", lambda: SimpleNamespace(model_info=Mock(side_effect=error)))
    with pytest.raises(UserError, match=message):
        hub_folder("them/theirs", "v2")


def test_the_best_checkpoint_of_a_trainer_is_taken(tmp_path: Path) -> None:
    for step in (5, 10, 20):
        tiny_model("bert").save_pretrained(tmp_path / f"checkpoint-{step}")
    assert find_checkpoint(tmp_path) == tmp_path / "checkpoint-20"
    state = {"best_model_checkpoint": "/elsewhere/out/checkpoint-10"}
    (tmp_path / "checkpoint-20" / "trainer_state.json").write_text(json.dumps(state))
    assert find_checkpoint(tmp_path) == tmp_path / "checkpoint-10"
    # What the Trainer saved at the end stands above them.
    tiny_model("bert").save_pretrained(tmp_path)
    assert find_checkpoint(tmp_path) == tmp_path


@pytest.fixture
def base(tmp_path: Path) -> Path:
    tiny_model("bert").base_model.save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def adapted(base: Path, seed: int = 0, **keys: Any) -> Any:
    """A model with LoRA on its base, of random numbers."""
    torch.manual_seed(seed)
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=3)
    config = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value", "dense"], **keys)
    wrapped = peft.get_peft_model(model, config)
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * (0.3 if "lora" in name else 0.1))
    return wrapped.eval()


def test_an_adapter_has_the_names_of_its_base(tmp_path: Path) -> None:
    model = tiny_model("bert")
    model.config.id2label = dict(enumerate(("neutral", "entailment", "contradiction")))
    model.save_pretrained(tmp_path / "base")
    wearing = adapted(tmp_path / "base")
    wearing.save_pretrained(tmp_path / "adapter")
    assert output_names(tmp_path / "adapter", tmp_path / "base") == ["neutral", "entailment", "contradiction"]
    assert output_names(tmp_path / "adapter") == ["LABEL_0", "LABEL_1", "LABEL_2"]
    checkpoint = load_checkpoint(tmp_path / "adapter", TASK, spec(tmp_path / "base"))
    assert torch.allclose(logits(checkpoint.model), logits(wearing)[:, [1, 0, 2]], atol=1e-5)


def test_an_adapter_is_merged_into_its_base(base: Path, tmp_path: Path) -> None:
    model = adapted(base)
    model.save_pretrained(tmp_path / "adapter")
    theirs = spec(base, labels=["neutral", "entailment", "contradiction"])
    checkpoint = load_checkpoint(find_checkpoint(tmp_path / "adapter"), TASK, theirs)
    merged_BC = logits(copy.deepcopy(model).merge_and_unload())
    assert torch.allclose(logits(checkpoint.model), merged_BC[:, [1, 0, 2]], atol=1e-6)
    assert not torch.allclose(merged_BC, logits(model.unload()), atol=1e-3)
    assert "The adapter was merged into the weights of" in checkpoint.notes[0]
    assert not any("lora" in name for name, _ in checkpoint.model.named_parameters())


def test_an_adapter_that_does_not_fit_is_refused(base: Path, tmp_path: Path) -> None:
    adapted(base).save_pretrained(tmp_path / "adapter")
    other = CONFIGS["bert"]()
    other.hidden_size, other.num_hidden_layers = 2 * WIDTH, LAYERS
    AutoModel.from_config(other).save_pretrained(tmp_path / "wider")
    tiny_model("distilbert").save_pretrained(tmp_path / "distil")
    for name in ("wider", "distil"):
        with pytest.raises(
            UserError, match=r"trained on '.*base', does not fit model 'theirs' .*; give the model that"
        ):
            load_checkpoint(tmp_path / "adapter", TASK, spec(tmp_path / name))
    two = Task(name="two", metrics=("accuracy",), texts=1, labels=("a", "b"))
    with pytest.raises(UserError, match=r"has 3 outputs .* but task 'two' needs 2"):
        load_checkpoint(tmp_path / "adapter", two, spec(base))


def test_an_adapter_of_tokens_is_refused(base: Path, tmp_path: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=3)
    config = peft.PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=2)
    peft.get_peft_model(model, config).save_pretrained(tmp_path / "adapter")
    with pytest.raises(UserError, match=r"adds tokens \(PROMPT_TUNING\) and changes no weights"):
        load_checkpoint(tmp_path / "adapter", TASK, spec(base))


def test_other_kinds_of_model_are_refused(tmp_path: Path) -> None:
    shape = {"vocab_size": VOCABULARY, "num_labels": 3}
    decoder = GPT2ForSequenceClassification(GPT2Config(n_embd=WIDTH, n_layer=1, n_head=HEADS, **shape))
    both = T5ForSequenceClassification(T5Config(d_model=WIDTH, d_kv=8, d_ff=8, num_layers=1, num_heads=HEADS, **shape))
    encoder = tiny_model("bert").base_model
    quantised = tiny_model("bert")
    for name, model, message in (
        ("decoder", decoder, r"is a decoder \('gpt2'\), whose heads are not analysed; give an encoder"),
        ("both", both, r"is an encoder-decoder \('t5'\), whose heads are not analysed"),
        (
            "encoder",
            encoder,
            r"no fine-tuned classifier, but a BertModel .* fine-tune it first .* or watch and measure",
        ),
        ("quantised", quantised, r"are quantized; .* model\.dequantize\(\)"),
    ):
        model.save_pretrained(tmp_path / name)
        if name == "quantised":
            path = tmp_path / name / "config.json"
            path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": {"quant_method": "x"}}))
        with pytest.raises(UserError, match=message):
            load_checkpoint(tmp_path / name, TASK, spec(tmp_path / name))


TEXTS = ["the cat sees", "a dog", "the man eats fish", "a man saw the dog"] * 2


def saved(folder: Path, model: PreTrainedModel | None = None) -> PreTrainedModel:
    """A model that is saved with its tokenizer."""
    model = tiny_model("bert") if model is None else model
    model.resize_token_embeddings(len(wordpiece()))
    model.save_pretrained(folder)
    wordpiece().save_pretrained(folder)
    return model.eval()


def test_a_folder_or_a_name_of_the_hub_is_loaded_for_the_api(cache: Path, tmp_path: Path) -> None:
    theirs, older = saved(tmp_path / "out" / "checkpoint-5"), tiny_model("bert", seed=1)
    for model, commit in ((older, "b" * 40), (theirs, "a" * 40)):
        saved(in_cache(cache, model, commit), model)
    for loaded, expected in (
        (bs.load(tmp_path / "out"), theirs),
        (bs.load("them/theirs"), theirs),
        (bs.load("them/theirs", revision="b" * 40), older.eval()),
    ):
        assert torch.equal(logits(loaded[0]), logits(expected))
        assert not loaded[0].training
    labels, quick = [0, 1, 2, 1] * 2, {"resamples": 100, "permutations": 100}
    table = bs.disable(*bs.load("them/theirs"), TEXTS, labels, **quick).to_pandas()
    assert table.equals(bs.disable(theirs, wordpiece(), TEXTS, labels, **quick).to_pandas())


@pytest.mark.parametrize("kind", [AutoModel, AutoModelForTokenClassification])
def test_a_model_of_another_kind_is_loaded_with_its_own_head(kind: Any, tmp_path: Path) -> None:
    theirs = saved(tmp_path, kind.from_config(CONFIGS["bert"]()))
    model, tokenizer = bs.load(tmp_path)
    with torch.no_grad():
        loaded, expected = model(**inputs())[0], theirs(**inputs())[0]
    assert torch.equal(loaded, expected)
    assert bs.measure(model, tokenizer, TEXTS, "entropy").num_layers == LAYERS


@pytest.mark.parametrize("moved", [False, True])
def test_an_adapter_is_loaded_for_the_api(moved: bool, tmp_path: Path) -> None:
    saved(base := tmp_path / "base")
    wearing = adapted(base)
    wearing.save_pretrained(tmp_path / "adapter")
    model, _ = bs.load(tmp_path / "adapter", base=base.rename(tmp_path / "moved") if moved else None)
    assert torch.allclose(logits(model), logits(wearing.merge_and_unload()), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("nowhere", {}, "Checkpoint 'nowhere' does not exist; give a .ckpt file"),
        ("them/others", {}, "the hub cannot be reached, and the local cache has no model of this name"),
        ("folder", {"base": "bert"}, "base is 'bert', but 'folder' is not an adapter"),
        ("folder", {"family": "berd"}, "Unknown model.family 'berd'; did you mean 'bert'"),
    ],
)
def test_what_cannot_be_loaded_is_said(
    name: str, options: dict[str, Any], message: str, cache: Path, tmp_path: Path
) -> None:
    saved(tmp_path / "folder")
    with pytest.raises(UserError, match=message):
        bs.load(name, **options)
