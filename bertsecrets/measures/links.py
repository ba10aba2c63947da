"""Annotated links between a frame's target and its elements, as pairs of tokens, and where else they would fit."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
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
        words: The tokens of the sentence it stands in, special tokens left out.
    """

    row: int
    pairs: tuple[Pair, ...]
    words: range


def links_of(batch: Batch, pairs: Pairs, direction: Direction, matching: Matching) -> list[Link]:
    """The links of a batch, frame by frame; a frame without a linked element among the tokens has none.

    Args:
        batch: Its annotations name the frames.
        pairs: ``all`` takes every pair of an element's token with a target's. ``zip`` pairs the first with the first,
            the second with the second until one side ends, as the original code does.
        direction: Who attends to whom.
        matching: ``offsets`` takes the tokens where they stand. ``kovaleva`` takes, for each token, the first one of
            the example that is equal, as the original code does.
    """
    found = []
    word_BS, special_BS = batch.word_BS.tolist(), batch.special_BS.tolist()
    real_BS, ids_BS = batch.attention_mask_BS.tolist(), batch.input_ids_BS.tolist()
    for row, sentences in enumerate(batch.annotations):
        tokens_of: dict[int, list[int]] = {}
        for position, word in enumerate(word_BS[row]):
            tokens_of.setdefault(word, []).append(position)
        first_of = {
            token: position for position, token in reversed(list(enumerate(ids_BS[row]))) if real_BS[row][position]
        }
        first_word = 0
        for sentence in sentences:
            for frame in sentence.frames:
                source, target = _tokens(frame, first_word, tokens_of)
                if matching == "kovaleva":
                    source = [first_of[ids_BS[row][position]] for position in source]
                    target = [first_of[ids_BS[row][position]] for position in target]
                chosen = _pairs(source, target, pairs, direction)
                if chosen:
                    words = _stretch(chosen[0][0], special_BS[row], real_BS[row])
                    found.append(Link(row, chosen, words))
            first_word += len(sentence.words)
    return found


def _tokens(frame: Frame, first_word: int, tokens_of: dict[int, list[int]]) -> tuple[list[int], list[int]]:
    """The tokens of all linked elements, one element after the other, and those of the target."""

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
    # An element that holds the target itself is no link of a token with itself.
    chosen = [(left, right) for left, right in chosen if left != right]
    reverse = [(right, left) for left, right in chosen]
    both = {"element_to_target": chosen, "target_to_element": reverse, "both": chosen + reverse}
    return tuple(dict.fromkeys(both[direction]))


def _stretch(place: int, special: list[bool], real: list[bool]) -> range:
    """The sentence's tokens around a place: from one special token or end to the next."""
    inside = [there and not added for there, added in zip(real, special, strict=True)]
    first = last = place
    while first > 0 and inside[first - 1]:
        first -= 1
    while last + 1 < len(inside) and inside[last + 1]:
        last += 1
    return range(first, last + 1)


@dataclass(frozen=True)
class Places:
    """Where links stand, their own place first, and where else their pairs would fit, as tensors.

    Link n in place p has pair j at ``[row_N[n], query_NPJ[n, p, j], key_NPJ[n, p, j]]`` where ``used_NPJ``.
    """

    row_N: Tensor
    query_NPJ: Tensor
    key_NPJ: Tensor
    used_NPJ: Tensor

    @classmethod
    def of(cls, links: Sequence[Link], moved: Moved, device: torch.device | str = "cpu") -> "Places":
        """The places of at least one link.

        Args:
            links: Of one batch.
            moved: ``together`` moves attending and attended tokens alike, so that all signed distances stay.
                ``attending`` moves the attending tokens alone, so that the tokens attended to stay.
        """
        placed = [_places(link, moved) for link in links]
        shape = (len(links), max(map(len, placed)), max(len(link.pairs) for link in links))
        pair_NPJ2 = torch.zeros((*shape, 2), dtype=torch.long)
        used_NPJ = torch.zeros(shape, dtype=torch.bool)
        for number, places in enumerate(placed):
            pair_PJ2 = torch.tensor(places)
            pair_NPJ2[number, : pair_PJ2.shape[0], : pair_PJ2.shape[1]] = pair_PJ2
            used_NPJ[number, : pair_PJ2.shape[0], : pair_PJ2.shape[1]] = True
        row_N = torch.tensor([link.row for link in links])
        tensors = (row_N, pair_NPJ2[..., 0], pair_NPJ2[..., 1], used_NPJ)
        return cls(*(tensor.to(device) for tensor in tensors))

    @property
    def count_N(self) -> Tensor:
        """How many places each link has, its own among them."""
        return self.used_NPJ[:, :, 0].sum(-1)

    def weights(self, attention_BHQK: Tensor) -> Tensor:
        """The largest weight over each link's pairs, in every place, ``[N, H, P]``; NaN beyond a link's last place."""
        row_N11 = self.row_N[:, None, None]
        weight_NPJH = attention_BHQK.permute(0, 2, 3, 1)[row_N11, self.query_NPJ, self.key_NPJ]
        weight_NPH = weight_NPJH.masked_fill(~self.used_NPJ[..., None], -torch.inf).amax(2)
        return weight_NPH.masked_fill(weight_NPH.isinf(), torch.nan).transpose(1, 2)


def _places(link: Link, moved: Moved) -> list[tuple[Pair, ...]]:
    positions = [place for query, key in link.pairs for place in ((query, key) if moved == "together" else (query,))]
    shifts = range(link.words.start - min(positions), link.words.stop - max(positions))
    with_key = int(moved == "together")
    places = [tuple((query + shift, key + with_key * shift) for query, key in link.pairs) for shift in shifts if shift]
    # What a token gives itself is no measure of what others give it.
    return [link.pairs, *(pairs for pairs in places if all(query != key for query, key in pairs))]


def fixed_offsets(links: list[Link]) -> Counter[int]:
    """How many links hold a pair of each signed distance (attended to minus attending): what an offset alone can reach."""
    return Counter(offset for link in links for offset in {key - query for query, key in link.pairs})
