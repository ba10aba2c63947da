"""Linked words: pairs of tokens such as a verb and its subject, or two mentions of one entity."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from bertsecrets.data.batch import Batch
from bertsecrets.data.example import Annotation, Example, Word
from bertsecrets.errors import UserError, choices
from bertsecrets.measures.linguistic.matching import OffsetMatching, StringMatching
from bertsecrets.measures.linguistic.word_features import Feature, shared_forms

Link = Literal["head", "dependent", "entity", "sentence"]


@dataclass(frozen=True)
class WordPair:
    """Pairs of an attending and an attended word.

    Args:
        link: Relation of the second word to the first: its syntactic ``head``, one of its dependents (``dependent``),
            another mention of the same ``entity``, or any other word of the same ``sentence``.
        source: Feature of the first word; None for any word.
        target: Feature of the second word; None for any word.

    Raises:
        UserError: If the link does not exist, or an end is not a feature of words.
    """

    link: str
    source: Feature | None = None
    target: Feature | None = None

    def __post_init__(self) -> None:
        if self.link not in get_args(Link):
            raise UserError(f"Unknown link '{self.link}' of a word pair; {choices(str(self.link), get_args(Link))}.")
        for end in (self.source, self.target):
            if end is not None and not end.needs_annotation:
                raise UserError(
                    "A word pair links words: define its ends by pos, relation, tag, lexicon or negation, not by "
                    "special tokens or contains."
                )

    @classmethod
    def from_config(cls, name: str, section: Mapping[str, Any]) -> "WordPair":
        """Read a pair from a section of ``conf/measure/token_to_token.yaml``: ``{link: head, from: {...}, to: {...}}``.

        Raises:
            UserError: If a key does not exist, or the pair is not valid.
        """
        if not isinstance(section, Mapping):
            raise UserError(f"Pair '{name}' is {section!r}; expected e.g. {{link: head, from: {{relation: [det]}}}}.")
        for key in section:
            if key not in ("link", "from", "to"):
                raise UserError(f"Unknown key '{key}' of pair '{name}'; {choices(str(key), ('link', 'from', 'to'))}.")
        ends = [
            Feature.read(f"pairs.{name}.{key}", section[key]) if section.get(key) is not None else None
            for key in ("from", "to")
        ]
        return cls(section.get("link", ""), *ends)

    def in_example(self, annotations: Sequence[Annotation]) -> list[tuple[Word, Word]]:
        """The linked words of an example, ordered by sentence, then by dependent or first word."""
        linked = []
        for number, sentence in enumerate(annotations):
            for position, word in enumerate(sentence.words):
                if self.link in ("head", "dependent"):
                    if word.head >= 0:
                        ends = (word, sentence.words[word.head])
                        linked.append(ends if self.link == "head" else ends[::-1])
                elif self.link == "sentence":
                    linked += [(word, other) for at, other in enumerate(sentence.words) if at != position]
                elif word.entity >= 0:
                    linked += [
                        (word, other)
                        for other_number, other_sentence in enumerate(annotations)
                        for at, other in enumerate(other_sentence.words)
                        if other.entity == word.entity and (other_number, at) != (number, position)
                    ]
        shared = shared_forms(annotations)
        return [
            ends
            for ends in linked
            if all(
                feature is None or feature.fits(word, shared)
                for feature, word in zip((self.source, self.target), ends, strict=True)
            )
        ]


@dataclass(frozen=True)
class TokenPairs:
    """Pairs of tokens of a batch, N in all.

    Args:
        row_N, query_N, key_N: Position of each pair, int64.
        pair_N: Word pair of each pair of tokens, int64.
    """

    row_N: Tensor
    query_N: Tensor
    key_N: Tensor
    pair_N: Tensor


class OffsetPairs:
    """Every token of a first word with every token of its second word.

    Args:
        pairs: The word pairs to find.
    """

    def __init__(self, pairs: Sequence[WordPair]) -> None:
        self.pairs = tuple(pairs)
        self.ends = [(pair.source, pair.target) for pair in pairs]
        self.matching = OffsetMatching([end for ends in self.ends for end in ends if end is not None])

    def find(self, batch: Batch) -> TokenPairs:
        """The pairs of tokens of an annotated batch."""
        words = self.matching.words(batch)
        row_BS = words.row_BS
        is_word_BS = row_BS != len(words.head_W) - 1
        others_BSS = (row_BS[:, :, None] != row_BS[:, None]) & is_word_BS[:, :, None] & is_word_BS[:, None]
        heads_BSS = words.head_W[row_BS][:, :, None] == row_BS[:, None]
        linked = {"head": heads_BSS, "dependent": heads_BSS.transpose(1, 2)}
        for link, group_W in (("sentence", words.sentence_W), ("entity", words.entity_W)):
            group_BS = group_W[row_BS]
            linked[link] = (group_BS[:, :, None] == group_BS[:, None]) & (group_BS[:, :, None] >= 0)
        # In the order in which the ends were given to the matching.
        fits = iter(words.fits_WF[row_BS].unbind(-1))
        masks = []
        for pair, (source, target) in zip(self.pairs, self.ends, strict=True):
            mask_BSS = linked[pair.link] & others_BSS
            if source is not None:
                mask_BSS = mask_BSS & next(fits)[:, :, None]
            if target is not None:
                mask_BSS = mask_BSS & next(fits)[:, None]
            masks.append(mask_BSS)
        pair_N, row_N, query_N, key_N = torch.stack(masks).nonzero(as_tuple=True)
        return TokenPairs(row_N, query_N, key_N, pair_N)


class SpellingPairs:
    """The pairs used by the original code of Kovaleva et al. (methods K6).

    The tokens spelt like a piece of any first word of the example, from left to right, are paired one to one with those
    spelt like a piece of any second word, regardless of the word; the surplus of the longer list is dropped.

    Args:
        pairs: The word pairs to find.
        matching: Matching by spelling.
    """

    def __init__(self, pairs: Sequence[WordPair], matching: StringMatching) -> None:
        self.pairs = tuple(pairs)
        self.matching = matching

    def find(self, batch: Batch) -> TokenPairs:
        """The pairs of tokens of an annotated batch."""
        rows: list[tuple[int, int, int, int]] = []
        for row, annotations in enumerate(batch.annotations):
            ids_S = batch.input_ids_BS[row].cpu()
            for number, pair in enumerate(self.pairs):
                linked = pair.in_example(annotations)
                queries, keys = (
                    self.matching.positions(ids_S, [words[end].form for words in linked]).nonzero()[:, 0].tolist()
                    for end in (0, 1)
                )
                rows += [(row, query, key, number) for query, key in zip(queries, keys, strict=False)]
        columns = torch.tensor(rows, dtype=torch.int64).reshape(-1, 4).to(batch.input_ids_BS.device)
        return TokenPairs(*columns.unbind(-1))


def check_pairs_occur(measure: str, pairs: Mapping[str, WordPair], examples: Sequence[Example]) -> list[str]:
    """Names of ``entity`` pairs that occur in no example, as most annotation has no coreference.

    Args:
        measure: Name of the measure with the pairs.
        pairs: By name.
        examples: All examples.

    Raises:
        UserError: If any other pair is in no example.
    """
    absent = [
        name for name, pair in pairs.items() if not any(pair.in_example(example.annotations) for example in examples)
    ]
    for name in absent:
        if pairs[name].link != "entity":
            raise UserError(
                f"Pair '{name}' matches nothing in the {len(examples):,} examples; correct its definition or remove "
                f"it with measure.{measure}.pairs.{name}=null."
            )
    return absent
