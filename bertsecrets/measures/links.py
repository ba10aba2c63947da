"""Annotated links between a frame's target and its elements, as pairs of tokens, and where else they would fit."""

from collections import Counter
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bertsecrets.data.batch import Batch
from bertsecrets.data.example import Frame

Pairs = Literal["all", "zip"]
Direction = Literal["element_to_target", "target_to_element", "both"]
Matching = Literal["offsets", "kovaleva"]

Pair = tuple[int, int]
"""The token that attends and the token attended to."""


@dataclass(frozen=True, slots=True)
class Link:
    """One frame's link in one example.

    Args:
        row: The example's row in its batch.
        pairs: Token pairs of the link.
        shifts: By how many tokens the whole link can be moved within its sentence, 0 among them: ascending.
    """

    row: int
    pairs: tuple[Pair, ...]
    shifts: range


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
        first_of = {token: position for position, token in reversed(list(enumerate(ids_BS[row]))) if real_BS[row][position]}
        first_word = 0
        for sentence in sentences:
            for frame in sentence.frames:
                source, target = _tokens(frame, first_word, tokens_of)
                if matching == "kovaleva":
                    source = [first_of[ids_BS[row][position]] for position in source]
                    target = [first_of[ids_BS[row][position]] for position in target]
                chosen = _pairs(source, target, pairs, direction)
                if chosen:
                    inside = [bool(real) and not special for real, special in zip(real_BS[row], special_BS[row], strict=True)]
                    found.append(Link(row, chosen, _shifts(chosen, inside)))
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


def _shifts(pairs: tuple[Pair, ...], inside: list[bool]) -> range:
    """How far the pairs can move together before one of them leaves the stretch of words they stand in."""
    places = [place for pair in pairs for place in pair]
    low, high = min(places), max(places)
    back = ahead = 0
    while low - back > 0 and inside[low - back - 1]:
        back += 1
    while high + ahead + 1 < len(inside) and inside[high + ahead + 1]:
        ahead += 1
    return range(-back, ahead + 1)


def link_weights(attention_BHQK: Tensor, links: list[Link]) -> Tensor:
    """The largest weight over each link's pairs, at its own place and at every other, ``[N, H, P]``.

    Place p of link n is its ``shifts[p]``; NaN beyond the last one.
    """
    places = max(len(link.shifts) for link in links)
    most = max(len(link.pairs) for link in links)
    query_NPJ = torch.zeros((len(links), places, most), dtype=torch.long)
    key_NPJ = torch.zeros_like(query_NPJ)
    used_NPJ = torch.zeros_like(query_NPJ, dtype=torch.bool)
    for number, link in enumerate(links):
        pairs_J2, shift_P = torch.tensor(link.pairs), torch.tensor(link.shifts)
        area = number, slice(len(link.shifts)), slice(len(link.pairs))
        query_NPJ[area] = pairs_J2[:, 0] + shift_P[:, None]
        key_NPJ[area] = pairs_J2[:, 1] + shift_P[:, None]
        used_NPJ[area] = True
    row_N11 = torch.tensor([link.row for link in links])[:, None, None]
    device = attention_BHQK.device
    weight_NPJH = attention_BHQK.permute(0, 2, 3, 1)[row_N11.to(device), query_NPJ.to(device), key_NPJ.to(device)]
    weight_NPJH = weight_NPJH.masked_fill(~used_NPJ.to(device)[..., None], -torch.inf)
    weight_NPH = weight_NPJH.amax(2)
    return weight_NPH.masked_fill(weight_NPH.isinf(), torch.nan).transpose(1, 2)


def fixed_offsets(links: list[Link]) -> Counter[int]:
    """How many links hold a pair of each signed distance (attended to minus attending): what an offset alone can reach."""
    return Counter(offset for link in links for offset in {key - query for query, key in link.pairs})
