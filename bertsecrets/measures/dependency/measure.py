"""Dependency heads: how often a head points from a word to its syntactic head, or back (methods C5)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from pytorch_lightning.utilities import rank_zero_warn
from torch import Tensor, nn

from bertsecrets.data.batch import Batch
from bertsecrets.errors import UserError, choices
from bertsecrets.grid import Column, HeadGrid
from bertsecrets.measures.base import Count, MaxExamples, Measure, Need, Passed, once_per_batch
from bertsecrets.measures.dependency.rows import Relation, Treebank
from bertsecrets.measures.dependency.words import (
    Counting,
    FromWord,
    Gold,
    is_listed,
    pointed_to,
    relation_counts,
    word_maps,
)
from bertsecrets.measures.ratio import ratio_grid
from bertsecrets.results.estimate import Estimate
from bertsecrets.settings import typed
from bertsecrets.statistics.corrections import LEVEL, holm
from bertsecrets.statistics.splits import choose_and_score, choosing_units, combined_p

if TYPE_CHECKING:
    from bertsecrets.data.module import TaskData
    from bertsecrets.data.tokenization import EncodedSplit

ALL = "all"
FROM_HEAD = "_from_head"
"""Suffix of the columns for attention from a head word to its dependents."""

_UNIT = "share of words whose head is found"
_BYTE = 255

Array = NDArray[np.float64]
Offsets = Annotated[Sequence[int], Field(min_length=1, description="a list of whole numbers, e.g. [-1, 1]")]


class Dependency(Measure):
    """How often attention points from a word to its syntactic head (Clark et al. 2019, section 4.2; methods C5).

    Attention between words is summed over the tokens of the attended word and averaged over those of the attending one.
    A head points from a word to the other word of the sentence that it attends to most (from a dependent to its head),
    or that attends to it most (from a head to its dependent).

    Columns, for all words and for each relation:
        ``all``, ``<relation>``: share of the words with this relation to their head that point to it; 0..1.
        ``all_from_head``, ``<relation>_from_head``: the same for the other direction.

    Standard errors account for the correlation of words in a sentence (ratio estimator over sentences). A paired
    comparison with another model weighs sentences, not words, equally. Words without tokens, words that depend on them,
    and truncated sentences do not count.

    Args:
        relations: Relations with separate columns; None for all relations with at least ``min_count`` words, except
            roots and punctuation.
        min_count: Least number of words of a relation, with ``relations=None``.
        offsets: Positions of the word that a fixed-offset baseline predicts, minus that of the word.
        from_word: ``mean`` over the tokens of the attending word, or its ``first`` token only, the default of the
            paper's code.
        possessive: Whether the attention of an 's stands in for that of the possessor before it, as in the paper.
        punctuation: Whether punctuation counts in ``all``, as in the paper.
        root: Whether roots count in ``all``, always as wrong, as in the paper.
        splits: Random splits of the sentences: one third to choose the best heads, the rest to score them.
        max_examples: Size of a random sample of sentences; None for all.
        seed: Seed of the splits.

    Raises:
        UserError: If a setting is not valid.
    """

    name = "dependency"
    title = "Dependency heads"
    columns: tuple[Column, ...] = (
        Column(ALL, "all words", _UNIT),
        Column(ALL + FROM_HEAD, "all words, from their heads", _UNIT),
    )
    presenter = "bertsecrets.present.dependency:PRESENTER"
    needs = frozenset({Need.ANNOTATION})
    tracked = (ALL,)

    correct_NLHDR: Tensor
    words_NR: Tensor
    offset_NOR: Tensor
    vanished: Tensor

    @typed
    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        relations: Sequence[str] | None = None,
        min_count: Count = 100,
        offsets: Offsets = (-3, -2, -1, 1, 2, 3),
        from_word: FromWord = "mean",
        possessive: bool = True,
        punctuation: bool = True,
        root: bool = True,
        splits: Count = 50,
        max_examples: MaxExamples = None,
        seed: int = 0,
    ) -> None:
        super().__init__(num_layers, num_heads, max_examples)
        self.relations = None if relations is None else tuple(map(str, relations))
        self.min_count, self.offsets, self.from_word = min_count, tuple(offsets), from_word
        self.possessive, self.punctuation, self.root = possessive, punctuation, root
        self.splits, self.seed = splits, seed
        self.counting: Counting | None = None
        self.task = ""
        self._position: dict[int, int] = {}

    def dataset(self, data: "TaskData", progress: bool = False) -> "EncodedSplit | None":
        self.task = data.task.name
        return None

    def prepare(self, split: "EncodedSplit") -> None:
        """Find the relations.

        Raises:
            UserError: If no sentence fits the model or has dependencies, or a relation of ``relations`` does not occur.
        """
        truncated = [example.index for example, row in zip(split.examples, split.rows, strict=True) if row.truncated]
        left_out = frozenset(truncated)
        if len(left_out) == len(split):
            raise UserError(
                f"All {len(split):,} sentences are longer than {max(split.lengths)} tokens; raise "
                "task.training.max_length."
            )
        if left_out:
            rank_zero_warn(f"The dependency measure skips {len(left_out):,} truncated sentences of {len(split):,}.")
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
                    f"Relation '{relation}' of measure.dependency.relations does not occur in the {len(split):,} "
                    f"sentences; {choices(relation, counts)}."
                )
        self.counting = Counting(relations, self.possessive, self.punctuation, self.root, left_out)
        self._position = {example.index: position for position, example in enumerate(split.examples)}
        labels = {ALL: "all words", **{relation.replace(":", "_"): relation for relation in relations}}
        self.columns = self.averaged = (
            *(Column(name, label, _UNIT) for name, label in labels.items()),
            *(Column(name + FROM_HEAD, f"{label}, from the head", _UNIT) for name, label in labels.items()),
        )
        layers, heads, _ = self.total_LHC.shape
        device = self.total_LHC.device
        # All processes must have the same columns, so all read the same sentences.
        self._add_sums(layers, heads, device)
        size, positions = len(labels), len(self.offsets)
        # The largest state: one number per sentence, relation and head. A count in a sentence is at most its length.
        longest = max(sum(len(part.words) for part in example.annotations) for example in split.examples)
        sentences = len(split)
        small = torch.uint8 if longest <= _BYTE else torch.int32
        states = {
            "correct_NLHDR": torch.zeros((sentences, layers, heads, 2, size), dtype=small, device=device),
            "words_NR": torch.zeros((sentences, size), dtype=torch.int32, device=device),
            "offset_NOR": torch.zeros((sentences, positions, size), dtype=torch.int32, device=device),
            "vanished": torch.zeros((), dtype=torch.int64, device=device),
        }
        for name, zeros in states.items():
            self.add_state(name, zeros, dist_reduce_fx=_sum_as_it_is)

    def per_example(self, attention_BHQK: Tensor, batch: Batch, reference_BHQK: Tensor | None) -> Tensor:
        """Share of each sentence's words whose head is found; NaN in a sentence without such words."""
        gold = self._annotated(batch)
        correct_BHDR = self._correct(attention_BHQK, batch, gold)
        words_B11R = gold.counts_BWR.sum(1).to(correct_BHDR.dtype)[:, None, None]
        return (correct_BHDR / words_B11R).flatten(2)

    def update(self, passed: Passed) -> None:
        """Add one layer's maps of one batch."""
        layer, batch = passed.layer, passed.batch
        gold = self._annotated(batch)
        correct_BHDR = self._correct(passed.attention_BHQK, batch, gold)
        words_BR = gold.counts_BWR.sum(1).to(correct_BHDR)
        positions = [self._position[index] for index in batch.index_B.tolist()]
        self.correct_NLHDR[positions, layer] += correct_BHDR.to(self.correct_NLHDR)
        if layer == 0:
            # The words and those that fixed offsets predict are the same for every layer.
            right_BOW = gold.correct(gold.at_offsets(self.offsets)).to(words_BR)
            self.words_NR[positions] += words_BR.to(self.words_NR)
            self.offset_NOR[positions] += (right_BOW @ gold.counts_BWR.to(words_BR)).to(self.offset_NOR)
            self.vanished += gold.vanished
        self.add(layer, batch, (correct_BHDR / words_BR[:, None, None]).flatten(2))

    def _correct(self, attention_BHQK: Tensor, batch: Batch, gold: Gold) -> Tensor:
        """Words of each relation whose head is found, ``[B, H, D, R]`` float64, on the device of the state."""
        word_BHWW = word_maps(attention_BHQK, batch.word_BS, gold.head_BW.shape[1], self.from_word)
        right_BDHW = gold.correct(pointed_to(word_BHWW, gold.candidate_BWW))
        counts_BWR = gold.counts_BWR.to(attention_BHQK.dtype)
        correct_BDHR = right_BDHW.to(attention_BHQK.dtype) @ counts_BWR[:, None]
        return correct_BDHR.transpose(1, 2).to(self.total_LHC.device).to(torch.float64)

    @once_per_batch
    def _annotated(self, batch: Batch) -> Gold:
        """The dependencies of a batch."""
        if self.counting is None:
            raise ValueError("relations are those of the sentences: call prepare(split) before the first batch")
        return Gold.of(batch, self.counting)

    def compute(self) -> HeadGrid:
        """Shares of words over all sentences, reduced over all processes, with standard errors by sentences."""
        if self.counting is None:
            return super().compute()
        words_NR = self.words_NR.cpu().numpy().astype(np.float64)
        return ratio_grid(self, self.correct_NLHDR.flatten(3), np.tile(words_NR, 2), words_NR[:, 0] > 0)

    def findings(self, grid: HeadGrid, model: nn.Module) -> Sequence[Relation | Treebank]:
        """Table 1 of the paper: all words first, then relations in descending order of frequency."""
        assert self.counting is not None
        names = (ALL, *self.counting.relations)
        seen = np.flatnonzero(self.words_NR[:, 0].cpu().numpy())
        chooses_SN = choosing_units(len(seen), self.splits, self.seed) if len(seen) > 1 else None
        relations: list[Relation] = []
        tests: list[Array] = []
        for column, name in enumerate(names):
            scored = None if chooses_SN is None else self._score(name, column, seen, chooses_SN)
            if scored is not None:
                relations.append(scored[0])
                tests.append(scored[1])
        (single_low, single_high), relations = _corrected(relations, tests)
        treebank = Treebank(
            corpus=self.task,
            sentences=len(seen),
            truncated=len(self.counting.left_out),
            vanished=int(self.vanished),
            splits=self.splits,
            single_low=single_low,
            single_high=single_high,
            from_word=self.from_word,
            possessive=self.possessive,
            punctuation=self.punctuation,
            root=self.root,
            min_count=None if self.relations is not None else self.min_count,
        )
        return [treebank, *sorted(relations, key=lambda row: (row.relation != ALL, -row.words))]

    def _score(
        self, relation: str, column: int, seen: NDArray[np.int64], chooses_SN: NDArray[np.bool_]
    ) -> tuple[Relation, Array] | None:
        """The best head of a relation and its p-value in each split; None if a split has too few of its words."""
        words_N, correct_NLHD, offset_NO = (
            state_NR[..., column].cpu().numpy()[seen].astype(np.float64)
            for state_NR in (self.words_NR, self.correct_NLHDR, self.offset_NOR)
        )
        chosen = choose_and_score(correct_NLHD.reshape(len(words_N), -1), offset_NO, words_N, chooses_SN)
        if chosen is None:
            return None
        best = int(offset_NO.sum(0).argmax())
        layer, head, direction = map(int, np.unravel_index(chosen.candidate, correct_NLHD.shape[1:]))
        # To be better than every offset, use the largest p-value (Berger 1982), so that no offset has to be chosen.
        p_S = chosen.gains.exceeds_zero().max(1)
        row = Relation(
            relation=relation,
            words=int(words_N.sum()),
            layer=layer,
            head=head,
            from_head=bool(direction),
            chosen=chosen.share,
            accuracy=Estimate(*chosen.accuracy.over_splits(), n=int(words_N.sum())),
            offset=self.offsets[best],
            baseline=float(offset_NO[:, best].sum() / words_N.sum()),
            gain=Estimate(*chosen.gains.over_splits(best), n=int(words_N.sum())),
            p_gain=float(combined_p(p_S)),
            chosen_on_all=chosen.accuracy_on_all,
        )
        return row, p_S


def _sum_as_it_is(state: Tensor) -> Tensor:
    """The sum over processes; torch would widen whole numbers to 64 bits."""
    return state.sum(0, dtype=state.dtype)


def _corrected(rows: Sequence[Relation], tests: Sequence[Array]) -> tuple[tuple[int, int], list[Relation]]:
    """The least and most relations significant in a single split, and rows with p-values corrected over relations."""
    apart = [index for index, row in enumerate(rows) if row.relation != ALL]
    if not apart:
        return (0, 0), list(rows)
    adjusted = dict(zip(apart, holm(np.array([rows[index].p_gain for index in apart])).tolist(), strict=True))
    significant_S = [int((holm(p_R) <= LEVEL).sum()) for p_R in np.stack([tests[index] for index in apart], 1)]
    corrected = [replace(row, p_gain=adjusted.get(index, row.p_gain)) for index, row in enumerate(rows)]
    return (min(significant_S), max(significant_S)), corrected
