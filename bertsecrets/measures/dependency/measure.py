"""Dependency heads: how often a head points from a word to its syntactic head, or back (methods C5)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from pytorch_lightning.utilities import rank_zero_warn
from torch import Tensor, nn

from bertsecrets.data.batch import Batch
from bertsecrets.data.module import TaskData
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.errors import UserError, choices
from bertsecrets.grid import Column, HeadGrid
from bertsecrets.measures.base import Feed, MaxExamples, Measure, Need, check_count
from bertsecrets.measures.dependency.record import (
    DependencyRecord,
    RelationScore,
    dependency_comparison,
    dependency_section,
    relation_classes,
)
from bertsecrets.measures.dependency.words import (
    Counting,
    FromWord,
    Gold,
    is_listed,
    pointed_to,
    relation_counts,
    word_maps,
)
from bertsecrets.results.report.content import Section
from bertsecrets.results.views import Comparison, MeasureView

ALL = "all"
FROM_HEAD = "_from_head"
"""Suffix of the columns for attention from a head word to its dependents."""

_UNIT = "share of words whose head is found"
_CHOOSES, _SCORES = 0, 1
_LEVELS = (2.5, 97.5)

Array = NDArray[np.float64]


class Dependency(Measure):
    """How often attention points from a word to its syntactic head (Clark et al. 2019, section 4.2; methods C5).

    Attention between words is summed over the tokens of the attended word and averaged over those of the attending one.
    A head points from a word to the other word of the sentence that it attends to most (from a dependent to its head), or
    that attends to it most (from a head to its dependent).

    Columns, for all words and for each relation:
        ``all``, ``<relation>``: share of the words with this relation to their head that point to it; 0..1.
        ``all_from_head``, ``<relation>_from_head``: the same for the other direction.

    Standard errors allow for words of one sentence being alike (ratio estimator over sentences). A paired comparison with
    another model weighs sentences, not words, equally. Words without tokens of their own and the words that depend on
    them do not count, nor do sentences that were truncated.

    Args:
        num_layers, num_heads: Size of the grid.
        relations: Relations with columns of their own; None for all of the treebank with at least ``min_count`` words, except
            roots and punctuation.
        min_count: Least number of words of a relation, with ``relations=None``.
        offsets: Positions of the word that a fixed-offset baseline predicts, minus that of the word.
        from_word: ``mean`` over the tokens of the attending word, or its ``first`` token only, the default of the paper's
            code.
        possessive: Whether the attention of an 's stands in for that of the possessor before it, as in the paper.
        punctuation: Whether punctuation counts in ``all``, as in the paper.
        root: Whether roots count in ``all``, always as wrong, as in the paper.
        replicates: Bootstrap samples of sentences for the intervals.
        max_examples: A random sample of this many sentences; None for all.
        seed: Seed of the halves and of the samples.

    Raises:
        UserError: If a setting is not valid.
    """

    name = "dependency"
    title = "Dependency heads"
    columns: tuple[Column, ...] = (
        Column(ALL, "all words", _UNIT),
        Column(ALL + FROM_HEAD, "all words, from their heads", _UNIT),
    )
    needs = frozenset({Need.ANNOTATION})
    tracked = (ALL,)

    correct_SLHDR: Tensor
    words_SR: Tensor
    offset_SOR: Tensor
    squares_LHDR: Tensor
    products_LHDR: Tensor
    word_squares_R: Tensor
    sentences: Tensor
    vanished: Tensor
    drawn_correct_KLHDR: Tensor
    drawn_words_KR: Tensor
    drawn_offset_KOR: Tensor

    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        relations: Sequence[str] | None = None,
        min_count: int = 100,
        offsets: Sequence[int] = (-3, -2, -1, 1, 2, 3),
        from_word: FromWord = "mean",
        possessive: bool = True,
        punctuation: bool = True,
        root: bool = True,
        replicates: int = 500,
        max_examples: MaxExamples = None,
        seed: int = 0,
    ) -> None:
        super().__init__(num_layers, num_heads)
        if from_word not in get_args(FromWord):
            raise UserError(
                f"Unknown from_word '{from_word}' of the dependency measure; {choices(str(from_word), get_args(FromWord))}."
            )
        if not len(offsets) or any(type(offset) is not int for offset in offsets):
            raise UserError(
                f"offsets of the dependency measure is {offsets!r}; expected a list of whole numbers, e.g. [-1, 1]."
            )
        check_count("min_count", min_count, self.name)
        check_count("replicates", replicates, self.name)
        self.relations = None if relations is None else tuple(map(str, relations))
        self.min_count, self.offsets, self.from_word = min_count, tuple(offsets), from_word
        self.possessive, self.punctuation, self.root = possessive, punctuation, root
        self.replicates, self.seed = replicates, seed
        self.feed = Feed(max_examples=max_examples)
        self.counting: Counting | None = None
        self.task = ""
        self._half: dict[int, int] = {}
        self._gold: tuple[Batch, Gold, Tensor, Tensor] | None = None

    def dataset(self, data: TaskData, progress: bool = False) -> EncodedSplit | None:
        self.task = data.task.name
        return None

    def prepare(self, split: EncodedSplit) -> None:
        """Find the relations, and split the sentences into halves.

        Raises:
            UserError: If no sentence fits the model or has dependencies, or a relation of ``relations`` does not occur.
        """
        truncated = [example.index for example, row in zip(split.examples, split.rows, strict=True) if row.truncated]
        left_out = frozenset(truncated)
        if len(left_out) == len(split):
            raise UserError(
                f"All {len(split):,} sentences are longer than {max(split.lengths)} tokens; raise task.training.max_length."
            )
        if left_out:
            rank_zero_warn(
                f"The dependency measure leaves out {len(left_out):,} truncated sentences of {len(split):,}."
            )
        counts = relation_counts(split.examples, left_out)
        if not any(counts):
            raise UserError(
                f"The words of these {len(split):,} texts have no dependencies; use a treebank (task=treebank "
                "data.root=<folder>) or a spaCy pipeline (annotation=spacy annotation.pipeline=en_core_web_md)."
            )
        relations = self.relations
        if relations is None:
            relations = tuple(name for name, count in counts.items() if count >= self.min_count and is_listed(name))
        for relation in relations:
            if relation not in counts:
                raise UserError(
                    f"Relation '{relation}' of measure.dependency.relations occurs in none of the {len(split):,} sentences; "
                    f"{choices(relation, counts)}."
                )
        self.counting = Counting(relations, self.possessive, self.punctuation, self.root, left_out)
        order = torch.randperm(len(split), generator=torch.Generator().manual_seed(self.seed)).tolist()
        self._half = {split.examples[position].index: place % 2 for place, position in enumerate(order)}
        self._make_columns(relations)

    def _make_columns(self, relations: Sequence[str]) -> None:
        labels = {ALL: "all words", **{relation.replace(":", "_"): relation for relation in relations}}
        self.columns = self.averaged = (
            *(Column(name, label, _UNIT) for name, label in labels.items()),
            *(Column(name + FROM_HEAD, f"{label}, from the head", _UNIT) for name, label in labels.items()),
        )
        layers, heads, _ = self.total_LHC.shape
        size, places = len(labels), len(self.offsets)
        shape = (layers, heads, len(self.columns))
        device = self.total_LHC.device

        def zeros(*size: int) -> Tensor:
            return torch.zeros(size, dtype=torch.float64, device=device)

        # A run takes one process's columns for granted: all processes read the same sentences.
        self.add_state("total_LHC", zeros(*shape), dist_reduce_fx="sum")
        self.add_state("squares_LHC", zeros(*shape), dist_reduce_fx="sum")
        self.add_state("count_LHC", torch.zeros(shape, dtype=torch.int64, device=device), dist_reduce_fx="sum")
        states = {
            "correct_SLHDR": (2, layers, heads, 2, size),
            "words_SR": (2, size),
            "offset_SOR": (2, places, size),
            "squares_LHDR": (layers, heads, 2, size),
            "products_LHDR": (layers, heads, 2, size),
            "word_squares_R": (size,),
            "sentences": (2,),
            "vanished": (),
            "drawn_words_KR": (self.replicates, size),
            "drawn_offset_KOR": (self.replicates, places, size),
        }
        for name, state_shape in states.items():
            self.add_state(name, zeros(*state_shape), dist_reduce_fx="sum")
        # Whole numbers below 2^24 are exact in float32, and this is the largest state.
        drawn = torch.zeros((self.replicates, layers, heads, 2, size), device=device)
        self.add_state("drawn_correct_KLHDR", drawn, dist_reduce_fx="sum")

    def per_example(self, attention_BHQK: Tensor, batch: Batch, reference_BHQK: Tensor | None) -> Tensor:
        """Share of each sentence's words whose head is found; NaN in a sentence without such words."""
        gold, _, _ = self._annotated(batch)
        correct_BHDR = self._correct(attention_BHQK, batch, gold)
        words_B11R = gold.counts_BWR.sum(1).to(correct_BHDR.dtype)[:, None, None]
        return (correct_BHDR / words_B11R).flatten(2)

    def update(self, layer: int, attention_BHQK: Tensor, batch: Batch, reference_BHQK: Tensor | None = None) -> None:
        """Add one layer's maps of one batch."""
        gold, half_B, weight_KB = self._annotated(batch)
        correct_BHDR = self._correct(attention_BHQK, batch, gold)
        words_BR = gold.counts_BWR.sum(1).to(correct_BHDR)
        for half in (_CHOOSES, _SCORES):
            self.correct_SLHDR[half, layer] += correct_BHDR[half_B == half].sum(0)
        self.squares_LHDR[layer] += correct_BHDR.square().sum(0)
        self.products_LHDR[layer] += (correct_BHDR * words_BR[:, None, None]).sum(0)
        drawn_KHDR = torch.einsum("kb,bhdr->khdr", weight_KB.to(correct_BHDR), correct_BHDR)
        self.drawn_correct_KLHDR[:, layer] += drawn_KHDR.to(self.drawn_correct_KLHDR)
        if layer == 0:
            self._add_words(batch, gold, half_B, weight_KB.to(words_BR), words_BR)
        self._add(layer, batch, (correct_BHDR / words_BR[:, None, None]).flatten(2))

    def _add_words(self, batch: Batch, gold: Gold, half_B: Tensor, weight_KB: Tensor, words_BR: Tensor) -> None:
        """Count the words, and those that fixed offsets predict: the same for every layer."""
        host = words_BR.device
        right_BOW = gold.correct(gold.at_offsets(self.offsets)).to(host, torch.float64)
        offset_BOR = right_BOW @ gold.counts_BWR.to(host, torch.float64)
        for half in (_CHOOSES, _SCORES):
            self.words_SR[half] += words_BR[half_B == half].sum(0)
            self.offset_SOR[half] += offset_BOR[half_B == half].sum(0)
            self.sentences[half] += (words_BR[half_B == half, 0] > 0).sum()
        self.word_squares_R += words_BR.square().sum(0)
        self.drawn_words_KR += weight_KB @ words_BR
        self.drawn_offset_KOR += torch.einsum("kb,bor->kor", weight_KB, offset_BOR)
        has_tokens_BW = torch.zeros(
            (batch.size, gold.head_BW.shape[1] + 1), dtype=torch.bool, device=batch.word_BS.device
        )
        has_tokens_BW.scatter_(1, batch.word_BS.masked_fill(batch.word_BS < 0, gold.head_BW.shape[1]), True)
        assert self.counting is not None
        for row, sentences in enumerate(batch.annotations):
            if int(batch.index_B[row]) not in self.counting.left_out:
                words = sum(len(sentence.words) for sentence in sentences)
                self.vanished += words - int(has_tokens_BW[row, :words].sum())

    def _correct(self, attention_BHQK: Tensor, batch: Batch, gold: Gold) -> Tensor:
        """Words of each relation whose head is found, ``[B, H, D, R]`` float64, on the device of the state."""
        word_BHWW = word_maps(attention_BHQK, batch.word_BS, gold.head_BW.shape[1], self.from_word)
        right_BDHW = gold.correct(pointed_to(word_BHWW, gold.candidate_BWW))
        counts_BWR = gold.counts_BWR.to(attention_BHQK.dtype)
        correct_BDHR = right_BDHW.to(attention_BHQK.dtype) @ counts_BWR[:, None]
        return correct_BDHR.transpose(1, 2).to(self.total_LHC.device).to(torch.float64)

    def _annotated(self, batch: Batch) -> tuple[Gold, Tensor, Tensor]:
        """The dependencies of a batch, the half of each sentence, and its weight in each bootstrap sample ``[K, B]``."""
        if self.counting is None:
            raise ValueError("relations are those of the sentences: call prepare(split) before the first batch")
        if self._gold is None or self._gold[0] is not batch:
            indices = batch.index_B.tolist()
            half_B = torch.tensor([self._half[index] for index in indices])
            ones_K = torch.ones(self.replicates)
            # Poisson weights: the bootstrap of a stream; by index, so that batches and processes do not matter.
            weights = [
                torch.poisson(ones_K, generator=torch.Generator().manual_seed((self.seed << 32) + index))
                for index in indices
            ]
            weight_KB = torch.stack(weights, -1) * (half_B == _SCORES)
            device = self.total_LHC.device
            self._gold = batch, Gold.of(batch, self.counting), half_B.to(device), weight_KB.to(device)
        return self._gold[1:]

    def compute(self) -> HeadGrid:
        """Shares of words over all sentences, reduced over all processes, with standard errors by sentences."""
        if self.counting is None:
            return super().compute()
        correct_LHDR, words_R = self.correct_SLHDR.sum(0).cpu(), self.words_SR.sum(0).cpu()
        share_LHDR = correct_LHDR / words_R
        sentences = float(self.sentences.sum())
        spread_LHDR = (
            self.squares_LHDR.cpu()
            - 2 * share_LHDR * self.products_LHDR.cpu()
            + share_LHDR.square() * self.word_squares_R.cpu()
        ).clamp(min=0)
        scale = sentences / (sentences - 1) if sentences > 1 else float("nan")
        stderr_LHDR = (scale * spread_LHDR).sqrt() / words_R
        count_LHDR = words_R.expand_as(share_LHDR)
        return HeadGrid(
            self.name,
            self.columns,
            share_LHDR.flatten(2),
            stderr_LHDR.flatten(2),
            count_LHDR.flatten(2).to(torch.int64),
        )

    def extras(self, grid: HeadGrid, model: nn.Module) -> dict[str, Any]:
        """The table of the paper, :class:`DependencyRecord`."""
        assert self.counting is not None
        names = (ALL, *self.counting.relations)
        frequency = Counter(dict(zip(names, self.words_SR.sum(0).tolist(), strict=True)))
        scores = [self._score(name, place) for place, name in enumerate(names)]
        shown = [score for score in scores if score is not None]
        record = DependencyRecord(
            task=self.task,
            sentences=int(self.sentences.sum()),
            truncated=len(self.counting.left_out),
            vanished=int(self.vanished),
            replicates=self.replicates,
            settings={
                "from_word": self.from_word,
                "possessive": self.possessive,
                "punctuation": self.punctuation,
                "root": self.root,
                "offsets": list(self.offsets),
                "min_count": None if self.relations is not None else self.min_count,
            },
            relations=sorted(shown, key=lambda score: (score.relation != ALL, -frequency[score.relation])),
        )
        return asdict(record)

    def _score(self, relation: str, place: int) -> RelationScore | None:
        """The best head of a relation; None if a half has no such word."""
        words_S = self.words_SR[:, place].cpu().numpy()
        if not words_S.all():
            return None
        correct_SLHD = self.correct_SLHDR[..., place].cpu().numpy()
        offset_SO = self.offset_SOR[..., place].cpu().numpy()
        layer, head, direction = (
            int(axis) for axis in np.unravel_index(correct_SLHD[_CHOOSES].argmax(), correct_SLHD.shape[1:])
        )
        best = int(offset_SO[_CHOOSES].argmax())
        drawn_words_K = self.drawn_words_KR[:, place].cpu().numpy()
        drawn_K = self.drawn_correct_KLHDR[:, layer, head, direction, place].cpu().numpy().astype(np.float64)
        drawn_baseline_K = self.drawn_offset_KOR[:, best, place].cpu().numpy()
        accuracy = correct_SLHD[_SCORES, layer, head, direction] / words_S[_SCORES]
        baseline = offset_SO[_SCORES, best] / words_S[_SCORES]
        low, high = _interval(drawn_K, drawn_words_K)
        gain_low, gain_high = _interval(drawn_K - drawn_baseline_K, drawn_words_K)
        return RelationScore(
            relation=relation,
            count=int(words_S[_SCORES]),
            layer=layer,
            head=head,
            from_head=bool(direction),
            accuracy=float(accuracy),
            low=low,
            high=high,
            offset=self.offsets[best],
            baseline=float(baseline),
            gain=float(accuracy - baseline),
            gain_low=gain_low,
            gain_high=gain_high,
            chosen_on_all=float(correct_SLHD.sum(0).max() / words_S.sum()),
            baseline_on_all=float(offset_SO.sum(0).max() / words_S.sum()),
        )

    def reset(self) -> None:
        """Forget all sentences."""
        super().reset()
        self._gold = None

    @classmethod
    def describe(cls, view: MeasureView) -> Section | None:
        """Table 1 of the paper, with heads chosen and scored on different sentences."""
        return dependency_section(view)

    @classmethod
    def classes(cls, view: MeasureView) -> Mapping[str, Sequence[Sequence[str]]]:
        """The relation that a head follows most beyond the best fixed offset, if any."""
        relations = relation_classes(view)
        return {} if relations is None else {"relation": relations}

    @classmethod
    def compare(cls, comparison: Comparison) -> Section | None:
        """The best head of each relation by condition."""
        return dependency_comparison(comparison)


def _interval(drawn_K: Array, words_K: Array) -> tuple[float, float]:
    """Limits of the 95 % interval of a share, from bootstrap samples."""
    known = words_K > 0
    low, high = np.percentile(drawn_K[known] / words_K[known], _LEVELS)
    return float(low), float(high)
