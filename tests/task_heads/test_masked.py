"""Masked words against a loop of whole passes, a plain bootstrap and hand-worked cases."""

import functools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from families import CONFIGS, HEADS, LAYERS, random_model
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional
from transformers import AutoModelForMaskedLM, BertModel, PreTrainedModel, PreTrainedTokenizerFast

import bertsecrets as bs
from bertsecrets.ablation.engine import Engine
from bertsecrets.ablation.plan import Plan, every_head, every_layer
from bertsecrets.attention.override import HeadEdit, override
from bertsecrets.data.batch import Batch
from bertsecrets.data.example import Example
from bertsecrets.data.task import Task, task_from_config
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.errors import UserError
from bertsecrets.models.loading import load_model
from bertsecrets.models.spec import ModelSpec
from bertsecrets.task_heads.labels import IGNORED
from bertsecrets.task_heads.masked import EachWordHead, MaskedHead

TASK = Task(name="words", kind="masked", metrics=("pseudo_log_likelihood", "masked_accuracy"), texts=1)
WORDS = ("the", "cat", "sat", "on", "unbelievable", "mats", "and", "watched", "birds", "embroidering")


@functools.cache
def tokenizer() -> PreTrainedTokenizerFast:
    """Of words in pieces: a letter each, but for the commonest words."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    letters = "abcdefghijklmnopqrstuvwxyz"
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "on", "and", *letters]
    vocabulary += [f"##{letter}" for letter in letters]
    ids = {token: number for number, token in enumerate(vocabulary)}
    made = Tokenizer(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, [("[CLS]", 2), ("[SEP]", 3)])
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=made, mask_token="[MASK]", **special)


def encoded(texts: list[str], head: MaskedHead | None = None, first: int = 0) -> EncodedSplit:
    examples = [Example(index, (text,), None) for index, text in enumerate(texts, start=first)]
    return EncodedSplit(examples, tokenizer(), 64, head=head or MaskedHead())


def plain(texts: list[str]) -> list[list[int]]:
    return [tokenizer()(text)["input_ids"] for text in texts]


@given(st.lists(st.lists(st.sampled_from(WORDS), min_size=0, max_size=5).map(" ".join), min_size=1, max_size=5))
def test_15_percent_of_the_pieces_are_asked_for_and_the_others_stay(texts: list[str]) -> None:
    split = encoded(texts)
    again = encoded([*texts, "the cat"])
    for example, row, repeated, ids in zip(split.examples, split.rows, again.rows, plain(texts), strict=False):
        assert row.ids == repeated.ids
        asked = [place for place, token in enumerate(example.label) if token != IGNORED]
        assert len(asked) == (max(1, round(0.15 * (len(ids) - 2))) if len(ids) > 2 else 0)
        assert not {0, len(ids) - 1} & set(asked)
        for place, token in enumerate(ids):
            assert example.label[place] == (token if place in asked else IGNORED)
            assert place in asked or row.ids[place] == token


def test_of_the_chosen_pieces_80_percent_are_masked_10_replaced_and_10_kept() -> None:
    texts = [" ".join(WORDS[(i + j) % len(WORDS)] for j in range(6)) for i in range(1500)]
    split = encoded(texts)
    read: Counter[str] = Counter()
    for example, row in zip(split.examples, split.rows, strict=True):
        for token, gold in zip(row.ids, example.label, strict=True):
            if gold != IGNORED:
                read["masked" if token == tokenizer().mask_token_id else "kept" if token == gold else "replaced"] += 1
                assert token not in {0, 1, 2, 3}
    count = sum(read.values())
    for kind, share in (("masked", 0.8), ("replaced", 0.1), ("kept", 0.1)):
        assert read[kind] / count == pytest.approx(share, abs=4 * (share * (1 - share) / count) ** 0.5 + 0.002)


def test_each_word_is_masked_once_with_all_its_pieces() -> None:
    split = encoded(["the mats sat", "cat"], EachWordHead(), first=7)
    the, m, a, t, s, sat = plain(["the mats sat"])[0][1:-1]
    mask = tokenizer().mask_token_id
    assert [list(row.ids[1:-1]) for row in split.rows] == [
        [mask, m, a, t, s, sat],
        [the, mask, mask, mask, mask, sat],
        [the, m, a, t, s, mask],
        [mask],
    ]
    assert [example.label for example in split.examples][1] == (IGNORED, IGNORED, m, a, t, s, IGNORED, IGNORED)
    assert [(example.index, example.group) for example in split.examples] == [(0, 7), (1, 7), (2, 7), (3, 8)]


def masked_lm(family: str) -> PreTrainedModel:
    return random_model(AutoModelForMaskedLM, family, 0.2)


def batches_of(model: PreTrainedModel, count: int = 1) -> list[Batch]:
    """Batches whose words are near the model's own answers, for scores far from 0."""
    texts = [" ".join(WORDS[(3 * i + j * j) % len(WORDS)] for j in range(2 + i % 3)) for i in range(8 * count)]
    split = encoded(texts)
    batches = [split[list(range(8 * number, 8 * number + 8))] for number in range(count)]
    generator = torch.Generator().manual_seed(1)
    for batch in batches:
        with torch.no_grad():
            own_BS = model(**batch.inputs()).logits.argmax(-1)
        taken_BS = (torch.rand(own_BS.shape, generator=generator) < 0.6) & (batch.label_B != IGNORED)
        batch.label_B = torch.where(taken_BS, own_BS, batch.label_B)
        batch.token_type_ids_BS = None
    return batches


@pytest.mark.parametrize(
    "family", ["bert", "roberta", "distilbert", "electra", "albert", "mpnet", "deberta-v2", "modernbert"]
)
def test_the_engine_gives_the_answers_of_whole_passes(family: str) -> None:
    model = masked_lm(family)
    (batch,) = batches_of(model)
    layers, heads = model.config.num_hidden_layers, model.config.num_attention_heads
    plan = Plan("zero", layers, heads, (*every_head(layers, heads), *every_layer(layers, heads)))
    engine = Engine(model, plan)
    clean_BF, answer_BVF = engine.run(batch.inputs(), head=batch.head, label_B=batch.label_B)
    assert engine.shares
    for variant, answer_BF in zip([None, *plan.variants], [clean_BF, *answer_BVF.unbind(1)], strict=True):
        edits = [] if variant is None else [HeadEdit(layer, head, "zero") for layer, head in variant.heads]
        with torch.no_grad(), override(model, edits):
            logits_BSV = model(**batch.inputs()).logits
        for row, label_S in enumerate(batch.label_B):
            asked_S = label_S != IGNORED
            loss = functional.cross_entropy(logits_BSV[row, asked_S], label_S[asked_S])
            right = (logits_BSV[row, asked_S].argmax(-1) == label_S[asked_S]).sum()
            expected = [loss.item(), int(right), int(asked_S.sum()), -loss.item() * int(asked_S.sum())]
            assert answer_BF[row].tolist() == pytest.approx(expected, abs=2e-4)


def test_the_baseline_answers_with_the_commonest_word_and_the_shares_of_all() -> None:
    name, answer_NF = MaskedHead().baseline([(IGNORED, 5, 5), (7, IGNORED), (IGNORED,)])
    assert name == "the commonest word"
    two, one = np.log(2 / 3), np.log(1 / 3)
    expected = [[-two, 2, 2, 2 * two], [-one, 0, 1, one], [0, 0, 0, 0]]
    assert answer_NF.numpy() == pytest.approx(np.array(expected), abs=1e-6)
    assert MaskedHead().described(answer_NF.sum(0)) == "2 of 3 words predicted, log-likelihood -0.64"


def test_any_task_of_texts_has_masked_words() -> None:
    training = {"learning_rate": 1e-4, "batch_size": 8, "max_epochs": 1, "max_length": 64}
    content = {"name": "stars", "texts": 1, "labels": ["good", "bad"], "metrics": ["accuracy"], "training": training}
    task = task_from_config({**content, "kind": "masked"})
    assert (task.labels, task.metrics, task.is_labelled) == ((), ("masked_accuracy", "pseudo_log_likelihood"), True)


def test_a_model_without_the_head_is_refused(tmp_path: Path) -> None:
    BertModel(CONFIGS["bert"]()).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="has no masked-language-model head"):
        load_model(ModelSpec(name="bare", path=str(tmp_path)), TASK, "pretrained", 0)


def test_disable_takes_texts_alone() -> None:
    texts = [" ".join(WORDS[(i + j) % len(WORDS)] for j in range(4)) for i in range(12)]
    model = random_model(AutoModelForMaskedLM, "bert", vocab_size=len(tokenizer()))
    disabled = bs.disable(model, tokenizer(), texts, resamples=100)
    rows = disabled.to_pandas()
    assert set(rows["metric"]) == {"masked_accuracy", "pseudo_log_likelihood"}
    assert len(rows) == 2 * LAYERS * HEADS
    with pytest.raises(UserError, match="leave it out"):
        bs.disable(model, tokenizer(), texts, [0] * len(texts))


def test_texts_longer_than_the_model_are_truncated_and_counted() -> None:
    split = EncodedSplit(
        [Example(0, ("the cat",), None), Example(1, ("the " * 90,), None)], tokenizer(), 64, head=MaskedHead()
    )
    assert split.truncated == 1
    asked = [sum(token != IGNORED for token in example.label or ()) for example in split.examples]
    assert asked == [1, round(0.15 * 62)]
