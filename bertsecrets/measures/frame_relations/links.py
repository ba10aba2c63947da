"""Annotated links between a frame's target and its elements as token pairs, and the other places where they fit."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from bertsecrets.data.batch import Batch
from bertsecrets.data.example import Frame, Matching

Pairs = Literal["all", "zip"]
Direction = Literal["element_to_target", "target_to_element", "both"]
Moved = Literal["together", "attending"]

Pair = tuple[int, int]
"""The token that attends and the token attended to."""


@dataclass(frozen=True, slots=True)
class Link:
    """One frame's link in one example.

    Args:
        row: The example's row in its batch.
        pairs: Token pairs of the link.
        words: The tokens of its sentence, without special tokens.
        first: The example's first token: 0 without padding on the left.
        number: Number of the link in its example, from 0.
    """

    row: int
    pairs: tuple[Pair, ...]
    words: range
    first: int = 0
    number: int = 0


def links_of(batch: Batch, pairs: Pairs, direction: Direction, matching: Matching) -> list[Link]:
    """The links of a batch, frame by frame; a frame without linked elements among the tokens has no link.

    Args:
        batch: A batch with annotated frames.
        pairs: ``all`` takes every pair of an element's token with a target's. ``zip`` pairs the first with the first,
            the second with the second until one side ends, as the original code does.
        direction: Which end attends to which.
        matching: ``offsets`` uses the tokens at their positions. ``kovaleva`` uses, for each token, the first equal
            token of the example, as the original code does.
    """
    links = []
    word_BS, special_BS = batch.word_BS.tolist(), batch.special_BS.tolist()
    real_BS, ids_BS = batch.attention_mask_BS.tolist(), batch.input_ids_BS.tolist()
    for row, sentences in enumerate(batch.annotations):
        tokens_of: dict[int, list[int]] = {}
        for position, word in enumerate(word_BS[row]):
            tokens_of.setdefault(word, []).append(position)
        first_of = {
            token: position for position, token in reversed(list(enumerate(ids_BS[row]))) if real_BS[row][position]
        }
        first_word, number = 0, 0
        for sentence in sentences:
            for frame in sentence.frames:
                source, target = _tokens(frame, first_word, tokens_of)
                if matching == "kovaleva":
                    source = [first_of[ids_BS[row][position]] for position in source]
                    target = [first_of[ids_BS[row][position]] for position in target]
                chosen = _pairs(source, target, pairs, direction)
                if chosen:
                    words = _stretch(chosen[0][0], special_BS[row], real_BS[row])
                    links.append(Link(row, chosen, words, real_BS[row].index(1), number))
                    number += 1
            first_word += len(sentence.words)
    return links


def _tokens(frame: Frame, first_word: int, tokens_of: dict[int, list[int]]) -> tuple[list[int], list[int]]:
    """The tokens of all linked elements, element by element, and those of the target."""

    def between(first: int, last: int) -> list[int]:
        return [place for word in range(first, last + 1) for place in tokens_of.get(first_word + word, [])]

    last = frame.target if frame.target_last is None else frame.target_last
    elements = [between(element.first, element.last) for element in frame.elements if element.core]
    return [position for element in elements for position in element], between(frame.target, last)


def _pairs(source: list[int], target: list[int], pairs: Pairs, direction: Direction) -> tuple[Pair, ...]:
    if pairs == "zip":
        chosen = list(zip(source, target, strict=False))
    else:
        chosen = [(left, right) for left in source for right in target]
    # An element that contains the target does not link a token with itself.
    chosen = [(left, right) for left, right in chosen if left != right]
    reverse = [(right, left) for left, right in chosen]
    both = {"element_to_target": chosen, "target_to_element": reverse, "both": chosen + reverse}
    return tuple(dict.fromkeys(both[direction]))


def _stretch(place: int, special: list[bool], real: list[bool]) -> range:
    """The tokens of the sentence around a position: from one special token or end to the next."""
    inside = [there and not added for there, added in zip(real, special, strict=True)]
    first = last = place
    while first > 0 and inside[first - 1]:
        first -= 1
    while last + 1 < len(inside) and inside[last + 1]:
        last += 1
    return range(first, last + 1)


@dataclass(frozen=True)
class Places:
    """Places of N links: where they are, and where else their pairs fit; M places with J pairs.

    The places of a link are contiguous, its own place first.

    Args:
        row_N: Each link's example, as its row in the batch.
        link_M: The link of each place.
        row_J, query_J, key_J: Position of each pair.
        place_J: The place of each pair.
    """

    row_N: Tensor
    link_M: Tensor
    row_J: Tensor
    query_J: Tensor
    key_J: Tensor
    place_J: Tensor

    @classmethod
    def of(
        cls,
        links: Sequence[Link],
        others: Sequence[Sequence[tuple[Pair, ...]]],
        device: torch.device | str = "cpu",
    ) -> "Places":
        """The places of at least one link.

        Args:
            links: Links of one batch.
            others: For each link, the other places of its pairs.
        """
        link_of: list[int] = []
        pairs_of: list[tuple[int, int, int, int]] = []
        for number, (link, elsewhere) in enumerate(zip(links, others, strict=True)):
            for pairs in (link.pairs, *elsewhere):
                pairs_of += [(link.row, query, key, len(link_of)) for query, key in pairs]
                link_of.append(number)
        row_N = torch.tensor([link.row for link in links])
        tensors = (row_N, torch.tensor(link_of), *torch.tensor(pairs_of).unbind(-1))
        return cls(*(tensor.to(device) for tensor in tensors))

    @cached_property
    def count_N(self) -> Tensor:
        """Number of places of each link, including its own."""
        return torch.bincount(self.link_M)

    @cached_property
    def first_N(self) -> Tensor:
        """Each link's own place."""
        return self.count_N.cumsum(0) - self.count_N

    def weights(self, attention_BHQK: Tensor) -> Tensor:
        """The largest weight over the pairs of each place, ``[M, H]`` float64, on the device of the places."""
        weight_JH = attention_BHQK[self.row_J, :, self.query_J, self.key_J].to(self.place_J.device).double()
        weight_MH = weight_JH.new_empty((len(self.link_M), weight_JH.shape[1]))
        place_JH = self.place_J[:, None].expand_as(weight_JH)
        return weight_MH.scatter_reduce_(0, place_JH, weight_JH, "amax", include_self=False)

    def mean_elsewhere(self, weight_MH: Tensor) -> Tensor:
        """The mean over each link's other places, ``[N, H]``; NaN for a link without other places."""
        others_MH = weight_MH.index_fill(0, self.first_N, 0.0)
        total_NH = weight_MH.new_zeros((len(self.row_N), weight_MH.shape[1])).index_add_(0, self.link_M, others_MH)
        return total_NH / (self.count_N[:, None] - 1)


def places_within(link: Link, moved: Moved) -> list[tuple[Pair, ...]]:
    """The other places of a link's pairs in its own sentence.

    Args:
        link: The link.
        moved: ``together`` moves attending and attended tokens together, keeping all signed distances.
            ``attending`` moves only the attending tokens, keeping the attended tokens.
    """
    positions = [place for query, key in link.pairs for place in ((query, key) if moved == "together" else (query,))]
    shifts = range(link.words.start - min(positions), link.words.stop - max(positions))
    with_key = int(moved == "together")
    places = [tuple((query + shift, key + with_key * shift) for query, key in link.pairs) for shift in shifts if shift]
    # Attention of a token to itself does not count as attention from other tokens.
    return [pairs for pairs in places if all(query != key for query, key in pairs)]


def fixed_offsets(links: list[Link]) -> Counter[int]:
    """Number of links with a pair at each signed distance (attended minus attending): what a fixed offset can reach."""
    return Counter(offset for link in links for offset in {key - query for query, key in link.pairs})
