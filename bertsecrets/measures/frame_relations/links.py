"""Annotated links between a frame's target and its elements as token pairs, and random placements for testing them."""

import warnings
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
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
        pairs: ``all`` uses every pair of an element token and a target token. ``zip`` pairs first with first, second
            with second, until one side ends, like the original code.
        direction: Direction of attention.
        matching: ``offsets`` uses the tokens at their positions. ``kovaleva`` uses, for each token, the first equal
            token of the example, like the original code.
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
                token_pairs = _pairs(source, target, pairs, direction)
                if token_pairs:
                    # The sentence: from one special token or end to the next.
                    first = last = token_pairs[0][0]
                    inside = [there and not added for there, added in zip(real_BS[row], special_BS[row], strict=True)]
                    while first > 0 and inside[first - 1]:
                        first -= 1
                    while last + 1 < len(inside) and inside[last + 1]:
                        last += 1
                    links.append(Link(row, token_pairs, range(first, last + 1), real_BS[row].index(1), number))
                    number += 1
            first_word += len(sentence.words)
    return links


def _tokens(frame: Frame, first_word: int, tokens_of: dict[int, list[int]]) -> tuple[list[int], list[int]]:
    """The tokens of all linked elements, element by element, and those of the target."""

    def between(first: int, last: int) -> list[int]:
        return [token for word in range(first, last + 1) for token in tokens_of.get(first_word + word, [])]

    last = frame.target if frame.target_last is None else frame.target_last
    elements = [between(element.first, element.last) for element in frame.elements if element.core]
    return [position for element in elements for position in element], between(frame.target, last)


def _pairs(source: list[int], target: list[int], pairs: Pairs, direction: Direction) -> tuple[Pair, ...]:
    if pairs == "zip":
        kept_pairs = list(zip(source, target, strict=False))
    else:
        kept_pairs = [(left, right) for left in source for right in target]
    # An element that contains the target does not link a token with itself.
    kept_pairs = [(left, right) for left, right in kept_pairs if left != right]
    reverse = [(right, left) for left, right in kept_pairs]
    both = {"element_to_target": kept_pairs, "target_to_element": reverse, "both": kept_pairs + reverse}
    return tuple(dict.fromkeys(both[direction]))


@dataclass(frozen=True)
class Placements:
    """Placements of N links: their own and all others where their pairs fit; M placements with J pairs.

    The placements of a link are contiguous, its own placement first.

    Args:
        row_N: Each link's example, as its row in the batch.
        link_M: The link of each placement.
        row_J, query_J, key_J: Position of each pair.
        placement_J: The placement of each pair.
    """

    row_N: Tensor
    link_M: Tensor
    row_J: Tensor
    query_J: Tensor
    key_J: Tensor
    placement_J: Tensor

    @classmethod
    def of(
        cls,
        links: Sequence[Link],
        others: Sequence[Sequence[tuple[Pair, ...]]],
        device: torch.device | str = "cpu",
    ) -> "Placements":
        """The placements of at least one link.

        Args:
            links: Links of one batch.
            others: For each link, the other placements of its pairs.
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
        """Number of placements of each link, including its own."""
        return torch.bincount(self.link_M)

    @cached_property
    def first_N(self) -> Tensor:
        """Each link's own placement."""
        return self.count_N.cumsum(0) - self.count_N

    def weights(self, attention_BHQK: Tensor) -> Tensor:
        """The largest weight over the pairs of each placement, ``[M, H]`` float64, on the device of the placements."""
        weight_JH = attention_BHQK[self.row_J, :, self.query_J, self.key_J].to(self.placement_J.device).double()
        weight_MH = weight_JH.new_empty((len(self.link_M), weight_JH.shape[1]))
        placement_JH = self.placement_J[:, None].expand_as(weight_JH)
        return weight_MH.scatter_reduce_(0, placement_JH, weight_JH, "amax", include_self=False)

    def mean_elsewhere(self, weight_MH: Tensor) -> Tensor:
        """The mean over each link's other placements, ``[N, H]``; NaN for a link without other placements."""
        others_MH = weight_MH.index_fill(0, self.first_N, 0.0)
        total_NH = weight_MH.new_zeros((len(self.row_N), weight_MH.shape[1])).index_add_(0, self.link_M, others_MH)
        return total_NH / (self.count_N[:, None] - 1)


def placements_within(link: Link, moved: Moved) -> list[tuple[Pair, ...]]:
    """The other placements of a link's pairs in its own sentence.

    Args:
        link: The link.
        moved: ``together`` moves attending and attended tokens together, keeping all signed distances.
            ``attending`` moves only the attending tokens, keeping the attended tokens.
    """
    positions = [
        position for query, key in link.pairs for position in ((query, key) if moved == "together" else (query,))
    ]
    shifts = range(link.words.start - min(positions), link.words.stop - max(positions))
    with_key = int(moved == "together")
    placements = [
        tuple((query + shift, key + with_key * shift) for query, key in link.pairs) for shift in shifts if shift
    ]
    # Attention of a token to itself does not count as attention from other tokens.
    return [pairs for pairs in placements if all(query != key for query, key in pairs)]


def fixed_offsets(links: Iterable[Link]) -> Counter[int]:
    """Number of links with a pair at each signed distance (attended minus attending), reachable by a fixed offset."""
    return Counter(offset for link in links for offset in {key - query for query, key in link.pairs})


def drawn_placements(
    links: Sequence[Link], placements: Placements, index_B: Tensor, permutations: int, seed: int
) -> Tensor:
    """Draw one placement per link, R times, each equally likely; int32 ``[N, R]``, 0 for the link's own.

    Args:
        links, placements: Links of one batch, at least one, and their placements.
        index_B: Index of each example; part of its seed, so results do not depend on batches and processes.
        permutations: Number of drawings, R.
        seed: Seed of all drawings.
    """
    generators = {
        row: torch.Generator().manual_seed((seed << 32) + int(index_B[row])) for row in {link.row for link in links}
    }
    return torch.stack(
        [
            torch.randint(count, (permutations,), generator=generators[link.row], dtype=torch.int32)
            for link, count in zip(links, placements.count_N.tolist(), strict=True)
        ]
    )


def averages(links: Sequence[Link], placements: Placements, drawn_NR: Tensor) -> Tensor:
    """The weight of each of the M placements in each drawing, sparse ``[R, M]`` float64.

    Its product with numbers of the placements, ``[M, H]``, is the sum over examples of the mean over the example's
    links.

    Args:
        links, placements: Links of one batch, at least one, and their placements.
        drawn_NR: The drawn placement of each link, 0 for its own.
    """
    rows = Counter(link.row for link in links)
    device = placements.link_M.device
    placement_RN = drawn_NR.T.to(device) + placements.first_N.int()
    share_N = torch.tensor([1 / rows[link.row] for link in links], dtype=torch.float64, device=device)
    # Sparse, because a dense matrix would be nearly all zeros.
    start_R = torch.arange(0, placement_RN.numel() + 1, len(links), dtype=torch.int32, device=device)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(
            start_R,
            placement_RN.flatten(),
            share_N.repeat(len(placement_RN)),
            (len(placement_RN), len(placements.link_M)),
            check_invariants=False,
        )


def p_values(
    observed_N: NDArray[np.float64], drawn_RN: NDArray[np.float64], tolerance: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """One-sided p-values of N heads, and those corrected over the heads by the step-down max-T method.

    p = (1 + number of drawings that reach the observed value) / (1 + R). The corrected p-value (Westfall and Young
    1993, algorithm 4.1) compares with the largest of the heads' standardised drawn values instead, so that its smallest
    value is 1 / (1 + R) for any number of heads. The drawings must be the same for all heads.

    Args:
        observed_N: The observed values.
        drawn_RN: The drawn values.
        tolerance: Difference that counts as rounding.
    """
    least_N = observed_N - tolerance
    raw_N = (1 + (drawn_RN >= least_N).sum(0)) / (1 + len(drawn_RN))
    all_RN = np.concatenate((observed_N[None], drawn_RN))
    mean_N, spread_N = all_RN.mean(0), all_RN.std(0)
    # Without variation nothing is significant: no drawing is below the observed value.
    scale_N = np.where(spread_N > tolerance, 1 / np.maximum(spread_N, tolerance), 0.0)
    order = np.argsort(-(observed_N - mean_N) * scale_N, kind="stable")
    standard_RN = ((drawn_RN - mean_N) * scale_N)[:, order]
    largest_RN = np.maximum.accumulate(standard_RN[:, ::-1], axis=1)[:, ::-1]
    reached_N = (largest_RN >= ((least_N - mean_N) * scale_N)[order]).sum(0)
    corrected_N = np.empty_like(raw_N)
    corrected_N[order] = np.maximum.accumulate((1 + reached_N) / (1 + len(drawn_RN)))
    return raw_N, corrected_N


_LARGEST = 32
"""Largest number of links that exchange placements; it limits the placements of a link."""
_KEPT = 256
"""Number of blocks whose permutations are kept in memory."""


class Exchange:
    """Blocks of links whose placements are randomly permuted.

    The links of a block are in different examples, in sentences with the same number of tokens before and in them, so
    that the placements of one fit the sentences of all. If only absolute positions matter, every permutation is equally
    likely; the drawings are exact permutations, which use every link's placement once.

    Args:
        links: Index of the example and link, for all links; those whose pairs leave their sentence stay alone.
        permutations: Number of drawings, R.
        seed: Seed of blocks and permutations.
    """

    def __init__(self, links: Iterable[tuple[int, Link]], permutations: int, seed: int) -> None:
        self.permutations, self.seed = permutations, seed
        strata: dict[tuple[int, int], dict[int, list[Link]]] = defaultdict(lambda: defaultdict(list))
        for index, link in links:
            if all(position in link.words for pair in link.pairs for position in pair):
                strata[link.words.start - link.first, len(link.words)][index].append(link)
        self.blocks: list[list[tuple[Pair, ...]]] = []
        """Each block's placements, relative to the first token of the sentence."""
        self.member_of: dict[tuple[int, int], tuple[int, int]] = {}
        """Index of the example and number of the link -> its block and its placement there."""
        # One generator, in sorted order of the strata: blocks do not depend on the order of the links.
        generator = torch.Generator().manual_seed(seed)
        for _, examples in sorted(strata.items()):
            indices = sorted(examples)
            order = [indices[number] for number in torch.randperm(len(indices), generator=generator).tolist()]
            ordered = [(index, link) for index in order for link in examples[index]]
            # Distributed in turn, so that consecutive links of one sentence are in different blocks.
            blocks = max(-(-len(ordered) // _LARGEST), max(map(len, examples.values())))
            for start in range(blocks):
                members = ordered[start::blocks]
                for number, (index, link) in enumerate(members):
                    self.member_of[index, link.number] = (len(self.blocks), number)
                self.blocks.append(
                    [
                        tuple((query - link.words.start, key - link.words.start) for query, key in link.pairs)
                        for _, link in members
                    ]
                )
        self._drawn: OrderedDict[int, Tensor] = OrderedDict()

    def others(self, index: int, link: Link) -> list[tuple[Pair, ...]]:
        """The placements of the block's other links in this link's sentence; none for an unknown link."""
        if (index, link.number) not in self.member_of:
            return []
        block, own_number = self.member_of[index, link.number]
        start = link.words.start
        return [
            tuple((start + query, start + key) for query, key in pairs)
            for number, pairs in enumerate(self.blocks[block])
            if number != own_number
        ]

    def drawn(self, indices: Sequence[int], links: Sequence[Link]) -> Tensor:
        """The placement that each permutation gives each link, int32 ``[N, R]``: 0 is its own, then ``others``.

        Args:
            indices: Index of each link's example.
            links: The N links.
        """
        rows = []
        for index, link in zip(indices, links, strict=True):
            if (index, link.number) in self.member_of:
                block, own_number = self.member_of[index, link.number]
                number_R = self._permutations(block)[:, own_number].int()
                rows.append(torch.where(number_R == own_number, 0, number_R + (number_R < own_number)))
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
