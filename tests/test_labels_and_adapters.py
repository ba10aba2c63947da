"""Notebook calls with labels as people have them, and models that wear an adapter."""

import copy
import warnings
from typing import Any

import numpy as np
import pandas
import peft
import pytest
import torch
from data.toy import wordpiece
from families import CONFIGS
from transformers import AutoModelForSequenceClassification

import bertsecrets as bs
from bertsecrets.attention.self_check import check_attention
from bertsecrets.attention.watch import output_weights
from bertsecrets.errors import UserError

TEXTS = ["the dog chased the cat", "the old man sat", "a chair", "on the cat", "the dog", "the old chair"] * 4
CLASSES = [0, 1, 2, 1, 0, 2] * 4
NAMES = {0: "Neg", 1: "NEUTRAL", 2: "positive"}


def model(names: dict[int, str] = NAMES) -> Any:
    torch.manual_seed(0)
    config = CONFIGS["bert"]()
    config.vocab_size, config.id2label = len(wordpiece()), names
    made = AutoModelForSequenceClassification.from_config(config)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return made.eval()


def disabled(made: Any, labels: Any) -> pandas.DataFrame:
    return bs.disable(made, wordpiece(), TEXTS, labels, resamples=100, permutations=100).to_pandas()


@pytest.mark.parametrize(
    "labels",
    [
        [NAMES[label] for label in CLASSES],
        [("negative", "neu", "POS")[label] for label in CLASSES],
        np.array(CLASSES),
        torch.tensor(CLASSES),
        pandas.Series(CLASSES, dtype=float),
        pandas.Series([NAMES[label] for label in CLASSES], dtype="category"),
        [str(label) for label in CLASSES],
    ],
    ids=["names", "synonyms", "numpy", "torch", "pandas floats", "pandas categories", "digits"],
)
def test_labels_may_be_names_or_numbers_of_any_library(labels: Any) -> None:
    pandas.testing.assert_frame_equal(disabled(model(), labels), disabled(model(), CLASSES))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (
            ["spam", *map(str, CLASSES[1:])],
            r"The data have 4 classes .*Neg, NEUTRAL, positive\); remove the rows of 'spam'",
        ),
        ([1.5, *CLASSES[1:]], r"Label 1\.5 is not a class of the model; .* or a name: Neg, NEUTRAL, positive"),
        ([float("nan"), *CLASSES[1:]], "Label nan is not a class of the model"),
        ([3, *CLASSES[1:]], "Label 3 is not a class of the model; expected a whole number from 0 to 2"),
        ([["Neg"], *CLASSES[1:]], r"Label \['Neg'\] is not a class"),
    ],
)
def test_labels_that_match_no_class_are_refused(labels: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        disabled(model(), labels)


def test_names_for_a_model_without_names_are_taken_in_their_order_and_said() -> None:
    unnamed = model(names={place: f"LABEL_{place}" for place in range(3)})
    names = [("a", "b", "c")[label] for label in CLASSES]
    with pytest.warns(UserWarning, match="does not name its classes; by number, LABEL_0 is 'a', LABEL_1 is 'b'"):
        table = disabled(unnamed, names)
    pandas.testing.assert_frame_equal(table, disabled(unnamed, CLASSES))


@pytest.mark.parametrize("places", [CLASSES, [1 + label % 2 for label in CLASSES]], ids=["all", "two"])
def test_numbers_that_outputs_are_called_are_their_names(places: list[int]) -> None:
    stars = model(names={0: "3 stars", 1: "2 stars", 2: "1 star"})
    pandas.testing.assert_frame_equal(disabled(stars, [3 - place for place in places]), disabled(model(), places))


def test_classes_in_another_order_are_told() -> None:
    made = model()
    with torch.no_grad():
        said = [int(made(**wordpiece()([text], return_tensors="pt")).logits.argmax()) for text in TEXTS]
    truth = [(answer + 1) % 3 for answer in said]
    with pytest.warns(UserWarning, match=r"accuracy is 0 % if .* and 100 % if .*set model\.config\.id2label"):
        disabled(made, truth)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        disabled(made, said)


def adapted(seed: int = 0, **keys: Any) -> Any:
    """A model with LoRA on its maps, of random numbers."""
    torch.manual_seed(seed)
    maps = ["query", "value", "attention.output.dense", "intermediate.dense"]
    config = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=maps, **keys)
    wrapped = peft.get_peft_model(model(), config)
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "lora" in name:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return wrapped.eval()


def test_a_model_that_wears_lora_equals_the_merged_one() -> None:
    wearing = adapted()
    merged = copy.deepcopy(wearing).merge_and_unload()
    check_attention(wearing)
    for column in ("score", "loss_change", "flips"):
        one, other = (disabled(made, CLASSES)[column].to_numpy(float) for made in (wearing, merged))
        assert np.allclose(one, other, atol=2e-4), column
    for measure in ("entropy", "offsets"):
        one, other = (bs.measure(made, wordpiece(), TEXTS, measure) for made in (wearing, merged))
        for name in one.columns:
            assert torch.allclose(one.column(name), other.column(name), atol=1e-5)
    assert torch.allclose(output_weights(wearing, 1), output_weights(merged, 1), atol=1e-6)
    assert not torch.allclose(output_weights(wearing, 1), output_weights(wearing.unload(), 1), atol=1e-3)
    bs.head_view(adapted(), wordpiece(), TEXTS[0])


def test_an_adapter_that_is_switched_off_adds_nothing() -> None:
    wearing, plain = adapted(), model()
    with wearing.disable_adapter():
        assert torch.equal(output_weights(wearing, 0), output_weights(plain, 0))
    wearing.merge_adapter()
    assert torch.allclose(output_weights(wearing, 0), output_weights(adapted(), 0), atol=1e-6)


def test_heads_are_not_removed_below_an_adapter_and_dora_has_to_be_merged() -> None:
    with pytest.raises(UserError, match=r"An adapter \(Linear\) wraps weights of the model; merge the adapter"):
        bs.remove_heads(adapted(), [(0, 1)])
    with pytest.raises(UserError, match="an adapter wraps it: merge the adapter into the weights"):
        disabled(adapted(use_dora=True), CLASSES)
