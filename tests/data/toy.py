"""Small tokenizers and examples, built in memory."""

import random
import string

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from bertsecrets.data.example import Annotation, Example, Word

_SPECIAL = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
_WORDS = ["the", "cat", "dog", "##s", "sees", "did", "##n", "saw", "un", "##hap", "##py", "a", "man", "eats", "fish"]


def wordpiece(padding_side: str = "right", segments: bool = True) -> PreTrainedTokenizerFast:
    """BERT's kind of tokenizer, with some words and every ASCII character."""
    letters = list(string.ascii_lowercase + string.digits)
    pieces = [*_SPECIAL.values(), *_WORDS, *letters, *(f"##{letter}" for letter in letters), *string.punctuation]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return _finish(tokenizer, padding_side, segments)


def byte_level() -> PreTrainedTokenizerFast:
    """RoBERTa's kind of tokenizer without merges: one token for each byte, spaces included."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: number for number, piece in enumerate([*_SPECIAL.values(), *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return _finish(tokenizer, "right", segments=False)


def _finish(tokenizer: Tokenizer, padding_side: str, segments: bool) -> PreTrainedTokenizerFast:
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )
    names = ["input_ids", "token_type_ids", "attention_mask"] if segments else ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, padding_side=padding_side, model_input_names=names, **_SPECIAL
    )


def pairs(count: int, seed: int = 0, longest: int = 12) -> list[Example]:
    """Pairs of word sequences of different lengths; the label is 0 or 1."""
    chance = random.Random(seed)
    vocabulary = ["the", "cat", "dogs", "sees", "didn't", "saw", "unhappy", "a", "man", "eats", "fish", "xylo9", "!"]
    texts = [
        tuple(" ".join(chance.choices(vocabulary, k=chance.randint(1, longest))) for _ in range(2))
        for _ in range(count)
    ]
    return [Example(index, text, index % 2) for index, text in enumerate(texts)]


def annotate(text: str, *forms: str) -> Annotation:
    """An annotation with these pieces of a text as its words, from left to right."""
    words, start = [], 0
    for number, form in enumerate(forms):
        start = text.index(form, start)
        words.append(Word(form, start, start + len(form), "X", number - 1, "dep"))
        start += len(form)
    return Annotation(tuple(words))
