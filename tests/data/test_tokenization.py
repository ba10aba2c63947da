"""Encoded splits against naive tokenisation of one example at a time, and the words that tokens belong to."""

import pytest
import torch
from data.toy import annotate, byte_level, pairs, wordpiece
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from bertsecrets.data.batch import Batch, BatchSpec
from bertsecrets.data.example import Example
from bertsecrets.data.tokenization import EncodedSplit, written
from bertsecrets.errors import UserError
from bertsecrets.task_heads.regression import RegressionHead

MAX = 16


def real(batch: Batch, row: int, name: str) -> list[int]:
    """A row of a tensor without its padding."""
    values: torch.Tensor = getattr(batch, name)
    return values[row][batch.attention_mask_BS[row].bool()].tolist()


@pytest.mark.parametrize("tokenizer", [wordpiece(), byte_level()], ids=["pieces", "bytes"])
def test_a_batch_holds_what_naive_tokenisation_gives(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertsecrets.data.tokenization._AT_ONCE", 16)
    examples = pairs(40)
    split = EncodedSplit(examples, tokenizer, MAX)
    positions = [3, 17, 0, 39, 8]
    batch = split[positions]
    naive = [
        tokenizer(*examples[p].texts, truncation="longest_first", max_length=MAX, return_special_tokens_mask=True)
        for p in positions
    ]
    assert batch.input_ids_BS.shape == (5, max(len(row["input_ids"]) for row in naive))
    for row, (position, expected) in enumerate(zip(positions, naive, strict=True)):
        assert real(batch, row, "input_ids_BS") == expected["input_ids"]
        assert real(batch, row, "special_BS") == expected["special_tokens_mask"]
        if "token_type_ids" in expected:
            assert real(batch, row, "token_type_ids_BS") == expected["token_type_ids"]
        assert split.lengths[position] == batch.lengths_B[row] == len(expected["input_ids"])
    assert (batch.token_type_ids_BS is None) == ("token_type_ids" not in naive[0])
    assert set(batch.inputs()) == {name for name in naive[0] if name != "special_tokens_mask"}
    assert batch.index_B.tolist() == positions
    assert batch.label_B.tolist() == [position % 2 for position in positions]


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_on_the_right_and_does_not_change_the_real_tokens(side: str) -> None:
    examples, positions = pairs(12), [0, 5, 11]
    narrow = EncodedSplit(examples, wordpiece(side), MAX)[positions]
    wide = EncodedSplit(examples, wordpiece(side), MAX, pad_to=40)[positions]
    assert wide.input_ids_BS.shape == (3, 40)
    padding_BS = ~wide.attention_mask_BS.bool()
    assert bool((wide.input_ids_BS[padding_BS] == wordpiece().pad_token_id).all())
    assert bool((wide.word_BS[padding_BS] == -1).all())
    assert not wide.special_BS[padding_BS].any()
    assert not (wide.attention_mask_BS.diff(dim=1) > 0).any()
    for row in range(3):
        for name in ("input_ids_BS", "special_BS", "word_BS", "token_type_ids_BS"):
            assert real(wide, row, name) == real(narrow, row, name)


def test_lengths_are_rounded_up_to_a_multiple() -> None:
    for max_length, rounded in ((13, 16), (16, 16), (17, 24)):
        assert EncodedSplit(pairs(12), wordpiece(), max_length)[[2, 3]].input_ids_BS.shape[1] == max_length
        split = EncodedSplit(pairs(12), wordpiece(), max_length, pad_to_multiple_of=8)
        assert split[[2, 3]].input_ids_BS.shape[1] == rounded


def test_types_of_the_tensors() -> None:
    batch = EncodedSplit(pairs(4), wordpiece(), MAX)[BatchSpec((1, 2), weight=0.5)]
    assert batch.weight == 0.5
    assert batch.size == 2
    for tensor in (batch.input_ids_BS, batch.attention_mask_BS, batch.token_type_ids_BS, batch.word_BS, batch.index_B):
        assert tensor.dtype == torch.int64
    assert batch.special_BS.dtype == torch.bool
    assert batch.label_B.dtype == torch.int64
    scores = EncodedSplit([Example(0, ("a",), 2), Example(1, ("a",), 2.5)], wordpiece(), MAX, head=RegressionHead())[
        [0, 1]
    ]
    assert scores.label_B.dtype == torch.float32
    assert scores.label_B.tolist() == [2.0, 2.5]
    assert EncodedSplit([Example(0, ("a",), None)], wordpiece(), MAX)[[0]].label_B is None


def test_a_batch_moves_as_a_whole() -> None:
    batch = EncodedSplit(pairs(4), wordpiece(), MAX)[BatchSpec((1, 2), weight=0.5)]
    moved = batch.to("meta")
    for name, value in vars(batch).items():
        if isinstance(value, torch.Tensor):
            assert getattr(moved, name).device.type == "meta", name
    assert moved.weight == 0.5
    assert batch.input_ids_BS.device.type == "cpu"


def test_words_without_annotation_are_the_tokenizers_and_are_numbered_through_both_texts() -> None:
    split = EncodedSplit([Example(0, ("dogs sees", "unhappy cat"), 0)], wordpiece(), MAX)
    tokens = split.tokenizer.convert_ids_to_tokens(split[[0]].input_ids_BS[0].tolist())
    assert tokens[1:3] == ["dog", "##s"]
    assert tokens[5:8] == ["un", "##hap", "##py"]
    assert split[[0]].word_BS.tolist() == [[-1, 0, 0, 1, -1, 2, 2, 2, 3, -1]]


def test_gold_words_decide_where_they_and_the_tokenizer_disagree() -> None:
    first, second = "he didn't eat.", "Fish, fish"
    example = Example(
        0,
        (first, second),
        0,
        (annotate(first, "he", "did", "n't", "eat", "."), annotate(second, "Fish", ",", "fish")),
    )
    batch = EncodedSplit([example], wordpiece(), 40)[[0]]
    tokens = wordpiece().convert_ids_to_tokens(batch.input_ids_BS[0].tolist())
    found = list(zip(tokens, batch.word_BS[0].tolist(), strict=True))
    # The tokenizer's own words are "didn", "'" and "t"; the token "##n" begins the gold word "n't".
    assert found == [
        ("[CLS]", -1), ("h", 0), ("##e", 0), ("did", 1), ("##n", 2), ("'", 2), ("t", 2), ("e", 3), ("##a", 3),
        ("##t", 3), (".", 4), ("[SEP]", -1), ("fish", 5), (",", 6), ("fish", 7), ("[SEP]", -1),
    ]  # fmt: skip
    assert batch.annotations == (example.annotations,)


def test_a_space_belongs_to_the_word_after_it_and_text_outside_all_words_to_none() -> None:
    text = "a bc - d "
    example = Example(0, (text,), 0, (annotate(text, "a", "bc", "d"),))
    batch = EncodedSplit([example], byte_level(), 40)[[0]]
    #                                           CLS a  ␣  b  c  ␣   -   ␣  d  ␣   SEP
    assert batch.word_BS.tolist() == [[-1, 0, 1, 1, 1, -1, -1, 2, 2, -1, -1]]


def test_truncation_shortens_the_longer_text_and_is_counted() -> None:
    long, short = "cat " * 30, "dog fish"
    split = EncodedSplit([Example(0, (long, short), 0), Example(1, (short, short), 0)], wordpiece(), 12)
    batch = split[[0]]
    assert split.truncated == 1
    assert split.lengths == [12, 7]
    assert batch.token_type_ids_BS.sum() == 3
    assert batch.word_BS[0].tolist() == [-1, *range(7), -1, 7, 8, -1]


def test_what_cannot_be_encoded_is_reported() -> None:
    with pytest.raises(UserError, match=r"pad_to is 5, but an example has \d+ tokens; set max_length=5"):
        EncodedSplit(pairs(4), wordpiece(), MAX, pad_to=5)
    bare = wordpiece()
    bare.pad_token = None
    with pytest.raises(UserError, match="has no padding token"):
        EncodedSplit(pairs(4), bare, MAX)


def test_a_slow_tokenizer_is_reported() -> None:
    class Slow:
        is_fast = False

    with pytest.raises(UserError, match=r"The tokenizer is a Slow.*use a model with a fast tokenizer"):
        EncodedSplit(pairs(4), Slow(), MAX)


def test_a_text_without_a_token_is_refused() -> None:
    tokenizer = wordpiece()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])
    examples = [Example(0, ("one",), 0), Example(1, ("",), 1), Example(2, (" ",), 1)]
    with pytest.raises(UserError, match=r"2 of 3 texts have no token, e\.g\. '' \(row 1\)"):
        EncodedSplit(examples, tokenizer, MAX)


def test_special_tokens_in_a_text_are_special_and_no_words() -> None:
    tokenizer = wordpiece()
    texts = [("a [SEP] b", "c"), ("a b", "c [PAD] [CLS]"), ("a b", "c")]
    split = EncodedSplit([Example(i, pair, 0) for i, pair in enumerate(texts)], tokenizer, MAX)
    batch = split[[0, 1, 2]]
    for row in range(3):
        expected = tokenizer.get_special_tokens_mask(real(batch, row, "input_ids_BS"), already_has_special_tokens=True)
        unknown = [token == tokenizer.unk_token_id for token in real(batch, row, "input_ids_BS")]
        special = [flag and not other for flag, other in zip(expected, unknown, strict=True)]
        assert real(batch, row, "special_BS") == special
        assert [word < 0 for word in real(batch, row, "word_BS")] == special
    assert split.written == 2
    assert split.part([2]).written == 0


TEXT = "Die Katze im Café, 3 naïve Mäuse und 東京."


def byte_pairs(llama: bool) -> PreTrainedTokenizerFast:
    """Byte-level BPE as in RoBERTa, or with a splitting pattern before it, as in EuroBERT and Llama."""
    tokenizer = Tokenizer(models.BPE())
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not llama)
    split = pre_tokenizers.Split(Regex(r" ?\w+|[^\w\s]+"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, level]) if llama else level
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=["<s>"], show_progress=False
    )
    tokenizer.train_from_iterator([TEXT] * 5, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, cls_token="<s>")


@pytest.mark.parametrize("llama", [False, True])
def test_tokens_of_bytes_are_shown_as_they_are_written(llama: bool) -> None:
    tokenizer = byte_pairs(llama)
    ids = [tokenizer.cls_token_id, *tokenizer(TEXT)["input_ids"]]
    # The library's own decoding is the reference; the pieces of a word of whole letters add up to it.
    spans = [tokenizer.decode([token]) for token in ids]
    shown = written(tokenizer, ids)
    assert shown[0] == "<s>"
    assert [text.removeprefix("##") for text in shown] == [span.removeprefix(" ") for span in spans]
    joined = " ".join(shown).replace(" ##", "")
    for word in ("Die", "Katze", "Café", "naïve", "Mäuse"):
        assert word in joined.split()
    assert not set("ĠÃ©") & set("".join(shown)) - set(TEXT)


def test_a_token_that_is_a_space_can_be_seen() -> None:
    tokenizer = byte_level()
    ids = tokenizer("a  b")["input_ids"]
    assert written(tokenizer, ids) == ["[CLS]", "a", "␣", "␣", "b", "[SEP]"]


def test_tokens_of_other_tokenizers_stay() -> None:
    tokenizer = wordpiece()
    ids = tokenizer("unhappy cats")["input_ids"]
    assert written(tokenizer, ids) == ["[CLS]", "un", "##hap", "##py", "cat", "##s", "[SEP]"]
    unigram = Tokenizer(models.Unigram([("<unk>", 0.0), ("▁un", -1.0), ("happy", -1.0)], unk_id=0))
    unigram.pre_tokenizer, unigram.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    sentencepiece = PreTrainedTokenizerFast(tokenizer_object=unigram, unk_token="<unk>")
    assert written(sentencepiece, sentencepiece("unhappy")["input_ids"]) == ["▁un", "happy"]
