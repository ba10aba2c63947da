"""Positional, syntactic and rare-word heads by the published thresholds (Voita et al. 2019, section 5; methods V4)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from bertsecrets.data.batch import Batch
from bertsecrets.data.module import TaskData
from bertsecrets.data.sources import TRAIN
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.errors import UserError
from bertsecrets.grid import Column, HeadGrid
from bertsecrets.measures.base import Count, MaxExamples, once_per_batch
from bertsecrets.measures.dependency.words import SYNTACTIC_RELATIONS, Counting, Gold, word_maps
from bertsecrets.measures.ratio import RatioMeasure
from bertsecrets.present.figures.grids import HeadPanel, head_panels
from bertsecrets.present.figures.style import sample_size
from bertsecrets.present.grid import highest, names_by_head
from bertsecrets.present.report.content import FigureBlock, Section, Table
from bertsecrets.results.formatting import MISSING, head_label, number, with_error
from bertsecrets.results.views import MeasureView
from bertsecrets.settings import typed

POSITIONAL, SYNTACTIC, RARE = "positional", "syntactic", "rare words"
ROLES = (POSITIONAL, SYNTACTIC, RARE)

FROM_HEAD = "_from_head"
PREVIOUS, NEXT, RAREST, TWO_RAREST = "previous", "next", "rarest", "two_rarest"

_TOKENS = "share of tokens"
_PAIRS = "share of pairs of words"
_RELATIONS = "a list of different relations, e.g. [nsubj, obj]"

Share = Annotated[float, Field(gt=0, le=1, description="a number above 0 and at most 1")]
Array = NDArray[np.float64]


class VoitaRoles(RatioMeasure):
    """Where the largest weight of a row falls, attention to the end of a sentence ([SEP]) left out.

    Columns:
        ``previous``, ``next``: share of the tokens, special ones left out, whose largest weight is at the token before or
            after them.
        ``<relation>``, ``<relation>_from_head``: share of the pairs of words in the relation where the dependent attends
            most to its head, or the head to its dependent, among the words of the sentence, itself included. Attention
            between words is summed over the tokens attended to and averaged over those that attend.
        ``rarest``, ``two_rarest``: share of the tokens whose largest weight is at the token of the text that is rarest in the
            training set, or at one of the two rarest; of texts whose rarest token is not among the ``frequent`` most
            frequent.

    A head is positional if ``previous`` or ``next`` reaches ``positional``, syntactic if a relation with ``min_count`` pairs
    reaches that of the most frequent distance between the two words plus ``gain``, and a rare-word head if
    ``two_rarest`` reaches ``rare``. The paper gives the first two thresholds; the third is the least share that it reports.

    Args:
        relations: Syntactic relations; those of the paper, by the names of Universal and Stanford Dependencies.
        positional, gain, rare: Thresholds.
        frequent: Tokens that are not rare.
        min_count: Least number of pairs of a relation to judge heads by.

    Raises:
        UserError: If ``relations`` is not a list of different names, or a number is out of range.
    """

    name = "voita_roles"
    title = "Positional, syntactic and rare-word heads"
    tracked = (PREVIOUS, NEXT)

    @typed
    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        relations: Annotated[Sequence[str], Field(description=_RELATIONS)] = SYNTACTIC_RELATIONS,
        positional: Share = 0.9,
        gain: Share = 0.1,
        rare: Share = 0.5,
        frequent: Count = 500,
        min_count: Count = 100,
        max_examples: MaxExamples = None,
    ) -> None:
        taken = (PREVIOUS, NEXT, RAREST, TWO_RAREST)
        if len({*relations, *taken}) < len(relations) + len(taken):
            raise UserError(f"VoitaRoles.relations is {relations!r}; expected {_RELATIONS}.")
        self.relations = tuple(map(str, relations))
        self.columns = (
            Column(PREVIOUS, "to the previous token", _TOKENS, (0.0, 1.0)),
            Column(NEXT, "to the next token", _TOKENS, (0.0, 1.0)),
            *(Column(name, f"{name}, to the head", _PAIRS, (0.0, 1.0)) for name in self.relations),
            *(Column(name + FROM_HEAD, f"{name}, from the head", _PAIRS, (0.0, 1.0)) for name in self.relations),
            Column(RAREST, "to the rarest token", _TOKENS, (0.0, 1.0)),
            Column(TWO_RAREST, "to the two rarest tokens", _TOKENS, (0.0, 1.0)),
        )
        super().__init__(num_layers, num_heads, max_examples)
        self.thresholds = {"positional": float(positional), "gain": float(gain), "rare": float(rare)}
        self.frequent, self.min_count = frequent, min_count
        self._frequencies: Counter[int] | None = None
        self._distances: dict[str, Counter[int]] = {}

    def dataset(self, data: TaskData, progress: bool = False) -> EncodedSplit | None:
        """None for the evaluation set; notes how frequent tokens are in the training set, if there is one."""
        if self._frequencies is None and data.source.has(TRAIN):
            self._frequencies = frequencies(data.encoded(TRAIN))
        return None

    def prepare(self, split: EncodedSplit) -> None:
        if self._frequencies is None:
            self._frequencies = frequencies(split)
        self._distances = {relation: Counter() for relation in self.relations}
        for example in split.examples:
            for sentence in example.annotations:
                for at, word in enumerate(sentence.words):
                    if word.relation in self._distances and word.head >= 0:
                        self._distances[word.relation][word.head - at] += 1

    def per_example(self, attention_BHQK: Tensor, batch: Batch, reference_BHQK: Tensor | None) -> Tensor:
        things_BC, gold, rarest_B2S, target_B2S = self._of(batch)
        real_BS = batch.attention_mask_BS.bool()
        # -1 is below any weight, also below the exact 0 of padding.
        pointed_BHQ = attention_BHQK.masked_fill((~real_BS | batch.separators_BS)[:, None, None], -1.0).argmax(-1)
        position_S = torch.arange(real_BS.shape[1], device=pointed_BHQ.device)
        hits = [
            ((pointed_BHQ == position_S + offset) & target_BS[:, None]).sum(-1)
            for offset, target_BS in zip((-1, 1), target_B2S.unbind(1), strict=True)
        ]
        if gold is None:
            empty_BH = torch.zeros_like(hits[0])
            hits += [empty_BH] * (2 * len(self.relations))
        else:
            hits += self._syntactic(attention_BHQK, batch, gold)
        word_BS = real_BS & ~batch.special_BS
        for rarest_BS in rarest_B2S.unbind(1):
            at_BHQ = rarest_BS[:, None].expand_as(pointed_BHQ).gather(-1, pointed_BHQ)
            hits.append((at_BHQ & word_BS[:, None]).sum(-1))
        hits_BHC = torch.stack(hits, -1).to(attention_BHQK.dtype)
        # 0 / 0 is NaN: an example without such things does not count.
        return hits_BHC / things_BC[:, None].to(attention_BHQK.dtype)

    def weights(self, batch: Batch) -> Tensor:
        return self._of(batch)[0]

    def _syntactic(self, attention_BHQK: Tensor, batch: Batch, gold: Gold) -> list[Tensor]:
        """Numbers of hits ``[B, H]`` of each relation, to the head and then from it."""
        words = gold.head_BW.shape[1]
        maps_BHWW = word_maps(attention_BHQK, batch.word_BS, words)
        candidate_BWW = gold.candidate_BWW | torch.eye(words, dtype=torch.bool, device=maps_BHWW.device)
        pointed_BHW = maps_BHWW.masked_fill(~candidate_BWW[:, None], -1.0).argmax(-1)
        head_BHW = gold.head_BW.clamp(min=0)[:, None].expand_as(pointed_BHW)
        word_W = torch.arange(words, device=pointed_BHW.device)
        relations = gold.counts_BWR[..., 1:].unbind(-1)
        return [
            (correct_BHW & counts_BW[:, None]).sum(-1)
            for correct_BHW in (pointed_BHW == head_BHW, pointed_BHW.gather(-1, head_BHW) == word_W)
            for counts_BW in relations
        ]

    @once_per_batch
    def _of(self, batch: Batch) -> tuple[Tensor, Gold | None, Tensor, Tensor]:
        """Numbers of things, gold relations, rarest tokens, tokens with neighbours."""
        if self._frequencies is None:
            raise ValueError("rare tokens are found by their frequency: call prepare(split) before the first batch")
        real_BS = batch.attention_mask_BS.bool()
        special_BS = batch.special_BS & real_BS
        word_BS = real_BS & ~special_BS
        allowed_BS = real_BS & ~batch.separators_BS
        before_BS, after_BS = torch.zeros_like(word_BS), torch.zeros_like(word_BS)
        before_BS[:, 1:], after_BS[:, :-1] = allowed_BS[:, :-1], allowed_BS[:, 1:]
        target_B2S = torch.stack((word_BS & before_BS, word_BS & after_BS), 1)
        rarest_B2S = self._rarest(batch, word_BS)
        things = [target_B2S.sum(-1)]
        gold = None
        if any(batch.annotations):
            gold = Gold.of(batch, Counting(self.relations, possessive=False))
            # A root has no head to attend to.
            gold.counts_BWR[..., 1:] &= (gold.head_BW >= 0)[..., None]
            pairs_BR = gold.counts_BWR[..., 1:].sum(1)
            things += [pairs_BR, pairs_BR]
        else:
            things.append(torch.zeros(batch.size, 2 * len(self.relations), dtype=torch.int64, device=real_BS.device))
        rare_B1 = word_BS.sum(-1, keepdim=True) * rarest_B2S[:, 0].any(-1, keepdim=True)
        things.append(rare_B1.expand(-1, 2))
        return torch.cat(things, -1), gold, rarest_B2S, target_B2S

    def _rarest(self, batch: Batch, word_BS: Tensor) -> Tensor:
        """The tokens that are rarest, and the two rarest with those as rare, ``[B, 2, S]``; none in texts of frequent ones."""
        assert self._frequencies is not None
        ranked = self._frequencies.most_common(self.frequent)
        frequent = {token for token, _ in ranked}
        rarest_B2S = torch.zeros(batch.size, 2, word_BS.shape[1], dtype=torch.bool)
        for row, (ids, words) in enumerate(zip(batch.input_ids_BS.tolist(), word_BS.tolist(), strict=True)):
            positions = [position for position, is_word in enumerate(words) if is_word]
            # A Counter: tokens that the training set lacks have 0, and are the rarest.
            counts = {position: self._frequencies[ids[position]] for position in positions}
            order = sorted(counts.values())
            if not order or all(ids[position] in frequent for position in positions if counts[position] == order[0]):
                continue
            for at, limit in enumerate((order[0], order[min(1, len(order) - 1)])):
                rarest_B2S[row, at, [position for position in positions if counts[position] <= limit]] = True
        return rarest_B2S.to(word_BS.device)

    def extras(self, grid: HeadGrid, model: nn.Module) -> dict[str, Any]:
        """Thresholds, and for each relation the number of pairs, how many are at each distance (the head's position minus the
        dependent's), and the share at the most frequent one."""
        baselines = {
            relation: {
                "count": counts.total(),
                "share": counts.most_common(1)[0][1] / counts.total(),
                "distances": {str(distance): count for distance, count in sorted(counts.items())},
            }
            for relation, counts in self._distances.items()
            if counts
        }
        return {"thresholds": self.thresholds, "min_count": self.min_count, "baselines": baselines}

    @classmethod
    def describe(cls, view: MeasureView) -> Section | None:
        """The heads of each role, and the best head of each column."""
        roles = roles_of(view)
        if not roles:
            return None
        counts = ", ".join(f"{int(passed_LH.sum())} {role}" for role, passed_LH in roles.items())
        size = view.value(PREVIOUS).size
        missing = "".join(f" The {role} role could not be judged here." for role in ROLES if role not in roles)
        panels = [HeadPanel(role, strength(view, role), passed_LH) for role, passed_LH in roles.items()]
        figure = head_panels(
            panels,
            title="Share of largest weights on the target of each role",
            unit="share",
            note=f"pale: below the threshold; syntactic: the best relation; {sample_size([view.count(PREVIOUS)])}",
            limits=(0.0, 1.0),
        )
        return Section(
            view.title,
            [f"Of {size} heads, by the thresholds of Voita et al. (2019): {counts}.{missing}"],
            [
                "Where the largest weight of each row falls, attention to [SEP] left out. Positional: at the previous or the next "
                f"token in at least {view.extras['thresholds']['positional']:.0%} of tokens. Syntactic: at the other word of a "
                f"relation, {100 * view.extras['thresholds']['gain']:g} points more often than the most frequent distance between "
                "the two words is right. Rare words: at one of the two rarest tokens of the text in at least "
                f"{view.extras['thresholds']['rare']:.0%} of tokens. These are limits for the measured shares, not tests."
            ],
            [_table(view)],
            [FigureBlock(view.name, figure, "Heads by role.", "Heatmaps of shares by layer and head.")],
        )

    @classmethod
    def classes(cls, view: MeasureView) -> Mapping[str, Sequence[Sequence[str]]]:
        """The roles of each head; a dash for none."""
        roles = roles_of(view)
        return {"role (Voita)": names_by_head(roles, view.value(PREVIOUS).shape)} if roles else {}

    @classmethod
    def scalars(cls, view: MeasureView) -> Mapping[str, float]:
        """Number of heads with each role."""
        return {f"heads/{role}": float(passed_LH.sum()) for role, passed_LH in roles_of(view).items()}


def frequencies(split: EncodedSplit) -> Counter[int]:
    """How often each token id occurs, special tokens left out."""
    return Counter(
        token for row in split.rows for token, special in zip(row.ids, row.special, strict=True) if not special
    )


def roles_of(view: MeasureView) -> dict[str, NDArray[np.bool_]]:
    """Which heads ``[layers, heads]`` reach the threshold of each role that could be judged."""
    return {
        role: np.any([view.value(column) >= limit for column, limit in limits.items()], axis=0)
        for role, limits in _limits(view).items()
    }


def role_tests(view: MeasureView) -> dict[str, tuple[NDArray[np.bool_], NDArray[np.bool_]]]:
    """Which heads ``[layers, heads]`` are significantly above the threshold of each role, and which are below it.

    One-sided t tests over texts, corrected over heads and columns; the most frequent distance's share is taken as known. Of
    the columns of a role, a head is above the threshold of one, or below those of all.
    """
    limits_by_role = _limits(view)
    limits = {column: limit for limits in limits_by_role.values() for column, limit in limits.items()}
    above, below = view.beyond(limits), view.beyond(limits, sign=-1)
    return {
        role: (
            np.any([above[column] for column in of_role], axis=0),
            np.all([below[column] for column in of_role], axis=0),
        )
        for role, of_role in limits_by_role.items()
    }


def _limits(view: MeasureView) -> dict[str, dict[str, float]]:
    """The columns of each role that could be judged, with their thresholds; none without the measure's extras."""
    if not view.has(PREVIOUS) or "thresholds" not in view.extras:
        return {}
    thresholds = view.extras["thresholds"]
    limits = {
        POSITIONAL: dict.fromkeys((PREVIOUS, NEXT), thresholds["positional"]),
        SYNTACTIC: {column: share + thresholds["gain"] for column, share in judged_relations(view).items()},
        RARE: {TWO_RAREST: thresholds["rare"]} if np.isfinite(view.value(TWO_RAREST)).any() else {},
    }
    return {role: of_role for role, of_role in limits.items() if of_role}


def judged_relations(view: MeasureView) -> dict[str, float]:
    """The columns of relations with enough pairs, with the shares at the most frequent distance; none without the measure's extras."""
    return {
        relation + suffix: baseline["share"]
        for relation, baseline in view.extras.get("baselines", {}).items()
        for suffix in ("", FROM_HEAD)
        if baseline["count"] >= view.extras["min_count"]
        and view.has(relation + suffix)
        and np.isfinite(view.value(relation + suffix)).any()
    }


def strength(view: MeasureView, role: str) -> Array:
    """The highest share ``[layers, heads]`` among a role's columns."""
    strength_LH: Array = np.fmax.reduce([view.value(column) for column in _limits(view)[role]])
    return strength_LH


def _table(view: MeasureView) -> Table:
    judged = judged_relations(view)
    limits = {column: limit for of_role in _limits(view).values() for column, limit in of_role.items()}
    rows = []
    for column in view.columns:
        value_LH, stderr_LH, _ = view.grid(column.name)
        relation = column.name.removesuffix(FROM_HEAD)
        if not np.isfinite(value_LH).any():
            continue
        limit = limits.get(column.name)
        top = highest(value_LH)
        count = view.extras["baselines"].get(relation, {}).get("count", view.count(column.name))
        rows.append(
            {
                "largest weight": column.label,
                "best head": head_label(*top),
                "share ± standard error": with_error(value_LH[top], stderr_LH[top], 3),
                "most frequent distance": MISSING if column.name not in judged else number(judged[column.name], 3),
                "threshold": MISSING if limit is None else number(limit, 3),
                "heads": MISSING if limit is None else str(int((value_LH >= limit).sum())),
                "pairs or texts": f"{count:,}",
            }
        )
    return Table.of(rows, "Best heads; relations with too few pairs have no threshold")
