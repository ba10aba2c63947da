"""Links of equally long sentences that exchange their places: what absolute position alone gives a head."""

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from bertsecrets.measures.frame_relations.links import Link, Pair

_LARGEST = 32
"""Largest number of links that exchange places, which bounds the places of a link."""
_KEPT = 256
"""Number of blocks whose permutations are kept in memory."""


class Exchange:
    """Blocks of links within which a random permutation gives every link the place of another.

    The links of a block are in different examples, in sentences with the same number of tokens before and in them, so that
    the places of one fit the sentences of all. If only absolute positions matter, every permutation of them is equally
    likely; the drawings are exact permutations, which use every link's place once.

    Args:
        links: Index of the example and link, for all links; those whose pairs leave their sentence stay alone.
        permutations: Number of drawings, R.
        seed: Seed of blocks and permutations.
    """

    def __init__(self, links: Iterable[tuple[int, Link]], permutations: int, seed: int) -> None:
        self.permutations, self.seed = permutations, seed
        strata: dict[tuple[int, int], dict[int, list[Link]]] = defaultdict(lambda: defaultdict(list))
        for index, link in links:
            if all(place in link.words for pair in link.pairs for place in pair):
                strata[link.words.start - link.first, len(link.words)][index].append(link)
        self.blocks: list[list[tuple[Pair, ...]]] = []
        """Each block's places, relative to the first token of the sentence."""
        self.member_of: dict[tuple[int, int], tuple[int, int]] = {}
        """Index of the example and number of the link -> its block and its place there."""
        generator = torch.Generator().manual_seed(seed)
        for _, examples in sorted(strata.items()):
            indices = sorted(examples)
            order = [indices[place] for place in torch.randperm(len(indices), generator=generator).tolist()]
            ordered = [(index, link) for index in order for link in examples[index]]
            # One by one in turn: links of one sentence, which follow each other, fall into different blocks.
            blocks = max(-(-len(ordered) // _LARGEST), max(map(len, examples.values())))
            for start in range(blocks):
                members = ordered[start::blocks]
                for place, (index, link) in enumerate(members):
                    self.member_of[index, link.number] = (len(self.blocks), place)
                self.blocks.append([_relative(link) for _, link in members])
        self._drawn: OrderedDict[int, Tensor] = OrderedDict()

    def is_alone(self, index: int, link: Link) -> bool:
        """Whether no other sentence of equal length has a place for the link."""
        return not self.others(index, link)

    def others(self, index: int, link: Link) -> list[tuple[Pair, ...]]:
        """The places of the other links of the block, in this link's sentence; none for a link that was not given."""
        if (index, link.number) not in self.member_of:
            return []
        block, own = self.member_of[index, link.number]
        start = link.words.start
        return [
            tuple((start + query, start + key) for query, key in pairs)
            for place, pairs in enumerate(self.blocks[block])
            if place != own
        ]

    def drawn(self, indices: Sequence[int], links: Sequence[Link]) -> Tensor:
        """The place that each permutation gives each link, int32 ``[N, R]``: 0 is its own, then ``others``.

        Args:
            indices: Index of each link's example.
            links: The N links.
        """
        rows = []
        for index, link in zip(indices, links, strict=True):
            if (index, link.number) in self.member_of:
                block, own = self.member_of[index, link.number]
                place_R = self._permutations(block)[:, own].int()
                rows.append(torch.where(place_R == own, 0, place_R + (place_R < own)))
            else:
                rows.append(torch.zeros(self.permutations, dtype=torch.int32))
        return torch.stack(rows)

    def _permutations(self, block: int) -> Tensor:
        """The permutations of a block, uint8 ``[R, members]``; the same in every process and batch."""
        if block not in self._drawn:
            generator = torch.Generator().manual_seed((self.seed << 32) + block)
            members = len(self.blocks[block])
            drawn_RN = torch.rand((self.permutations, members), generator=generator, dtype=torch.float64)
            self._drawn[block] = drawn_RN.argsort(-1).to(torch.uint8)
            if len(self._drawn) > _KEPT:
                self._drawn.popitem(last=False)
        return self._drawn[block]


def _relative(link: Link) -> tuple[Pair, ...]:
    return tuple((query - link.words.start, key - link.words.start) for query, key in link.pairs)
