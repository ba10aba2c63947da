"""Models that tag words, in the API, from folders and in commands: equal to loops, and refused elsewhere."""

from pathlib import Path
from typing import Any

import pytest
import torch
from data.toy import wordpiece
from families import random_model
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification, PreTrainedModel

import bertsecrets as bs
from bertsecrets.attention.override import HeadEdit, override
from bertsecrets.errors import UserError
from bertsecrets.models.loading import load_folder
from bertsecrets.task_heads import kind_of

TAGS = ("O", "B-PER", "I-PER")
WORDS = ["the", "cat", "unhappy", "dogs", "saw", "fish", "man"]


def tagger(auto: Any = AutoModelForTokenClassification) -> PreTrainedModel:
    settings = {"vocab_size": len(wordpiece()), "num_labels": len(TAGS), "id2label": dict(enumerate(TAGS))}
    return random_model(auto, "bert", 0.2, **settings)


def sentences(count: int) -> tuple[list[list[str]], list[list[str]]]:
    """Words, and tags that follow from each word and the one before it."""
    generator = torch.Generator().manual_seed(1)
    texts, tags = [], []
    for _ in range(count):
        numbers = torch.randint(len(WORDS), (int(torch.randint(3, 8, (1,), generator=generator)),), generator=generator)
        words = [WORDS[number] for number in numbers]
        texts.append(words)
        tags.append(["B-PER" if word == "man" else "O" for word in words])
    return texts, tags


def right_words(model: PreTrainedModel, texts: list[list[str]], tags: list[list[str]], edits: list[HeadEdit]) -> int:
    """How many words a loop over sentences finds tagged right, each at its first piece."""
    tokenizer, right = wordpiece(), 0
    for words, of_words in zip(texts, tags, strict=True):
        encoded = tokenizer(" ".join(words), return_tensors="pt", return_offsets_mapping=True)
        offsets = encoded.pop("offset_mapping")[0].tolist()
        with torch.no_grad(), override(model, edits):
            answer_S = model(**encoded).logits[0].argmax(-1)
        start = 0
        for word, tag in zip(words, of_words, strict=True):
            (first,) = [place for place, (begin, end) in enumerate(offsets) if begin == start and end > begin]
            right += model.config.id2label[int(answer_S[first])] == tag
            start += len(word) + 1
    return right


def test_disabling_in_the_api_equals_a_loop_over_sentences() -> None:
    model = tagger()
    texts, tags = sentences(30)
    disabled = bs.disable(model, wordpiece(), texts, tags, metric="token_accuracy", resamples=200, batch_size=8)
    words = sum(map(len, texts))
    rows = {(row["layer"], row["head"]): row for row in disabled.rows}
    for layer, head in ((0, 0), (1, 2), (2, 3)):
        expected = right_words(model, texts, tags, [HeadEdit(layer, head, disabled.rows[0]["mode"])])
        assert rows[layer, head]["score"] == pytest.approx(expected / words, abs=1e-9)
        assert rows[layer, head]["baseline"] == pytest.approx(right_words(model, texts, tags, []) / words, abs=1e-9)
    # Tags by number are the same tags, and entities the default.
    numbers = [[TAGS.index(tag) for tag in of_words] for of_words in tags]
    assert bs.disable(model, wordpiece(), texts, numbers, resamples=200).rows[0]["metric"] == "entity_f1"


def test_fine_tuning_in_the_api_learns_tags() -> None:
    model, (texts, tags) = tagger(), sentences(60)
    before = right_words(model, texts, tags, [])
    bs.fine_tune(model, wordpiece(), texts, tags, epochs=12, batch_size=8, learning_rate=5e-3)
    assert before < right_words(model, texts, tags, []) == sum(map(len, texts))


@pytest.mark.parametrize(
    ("texts", "labels", "message"),
    [
        (["the cat"], [["O", "O"]], "Sentence 0 is 'the cat'; expected a list of words"),
        ([["the", "cat"]], [["O"]], "Sentence 0 has 2 words but 1 tags"),
        ([["the"]], [["B-LOC"]], "Sentence 0, word 1: unknown tag 'B-LOC'"),
        ([["the"]], [[7]], "Sentence 0, word 1: unknown tag 7; expected 0 to 2"),
        ([["the"]], [[-100]], "No word of the sentences has a tag"),
        ([["the", "cat"]], [["O", -100]], "No word of the sentences counts for entity F1, as all have tag O;"),
        ([["the"], ["cat"]], [["O"]], "2 sentences and 1 lists of tags"),
        ([["the"]], "O", "give a list of tags for each sentence"),
    ],
)
def test_words_and_tags_that_do_not_fit(texts: Any, labels: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        bs.disable(tagger(), wordpiece(), texts, labels)


def test_what_does_not_fit_a_tagger_is_refused() -> None:
    texts, tags = sentences(4)
    for options, message in (
        ({"metric": "accuracy"}, "Metric 'accuracy' does not fit task 'texts' of kind tokens"),
        ({"mode": "optimal"}, "give reference_texts and reference_labels"),
    ):
        with pytest.raises(UserError, match=message):
            bs.disable(tagger(), wordpiece(), texts, tags, **options)
    with pytest.raises(UserError, match="neither a sentence nor a pair"):
        bs.disable(tagger(AutoModelForSequenceClassification), wordpiece(), [["a", "b", "c"]], [0])


def test_a_head_of_another_kind_is_refused(tmp_path: Path) -> None:
    tagger().save_pretrained(tmp_path / "tags")
    tagger(AutoModelForSequenceClassification).save_pretrained(tmp_path / "texts")
    assert type(load_folder(tmp_path / "tags")).__name__ == "BertForTokenClassification"
    with pytest.raises(UserError, match=r"has a BertForTokenClassification, but the task .* of kind 'tokens'"):
        load_folder(tmp_path / "tags", auto="AutoModelForSequenceClassification")
    with pytest.raises(UserError, match=r"has a BertForSequenceClassification, but the task .* of kind 'sequence'"):
        load_folder(tmp_path / "texts", auto="AutoModelForTokenClassification")
    assert kind_of("BertModel") is None
