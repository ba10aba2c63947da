"""Coreference heads: how often a head attends from a mention to one of its antecedents (methods C6)."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from pytorch_lightning.utilities import rank_zero_info
from torch import Tensor, nn

from bertsecrets.data.batch import Batch
from bertsecrets.data.module import TaskData
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.errors import UserError, choices
from bertsecrets.grid import Column, HeadGrid
from bertsecrets.measures.base import Feed, MaxExamples, Measure, Need, check_count
from bertsecrets.measures.coreference.questions import BASELINES, Asked, Candidates, Question, ask
from bertsecrets.measures.coreference.record import (
    BaselineScore,
    CoreferenceRecord,
    MentionScore,
    coreference_comparison,
    coreference_section,
)
from bertsecrets.results.report.content import Section
from bertsecrets.results.views import Comparison, MeasureView

KINDS = ("all", "pronoun", "proper", "nominal")
Windows = Literal["all", "first"]

_UNIT = "share of mentions whose antecedent is attended to most"
_LEVELS = (2.5, 97.5)

Array = NDArray[np.float64]


class Coreference(Measure):
    """How often a head attends from a mention to one of its antecedents (Clark et al. 2019, section 4.3; methods C6).

    From the head word of each mention that has an antecedent, the attention to the head words of the candidates is compared:
    summed over the tokens of a candidate, averaged over those of the mention. The answer is right if the largest goes to the
    head word of an earlier mention of the same entity (in GAP, of one of the two names).

    Columns:
        ``all``, ``pronoun``, ``proper``, ``nominal``: share of right answers, for all such mentions and for those whose head
            word is a pronoun, a name or a common noun; 0..1.

    Standard errors allow for mentions of one document being alike (ratio estimator over documents). A paired comparison with
    another model weighs windows, not mentions, equally. Mentions whose antecedents all lie outside of their window do not count.

    Args:
        num_layers, num_heads: Size of the grid.
        candidates: Head words of ``earlier`` mentions, the same that the baselines choose from; of all ``others``; or all other
            ``words``. Where a data set offers choices (GAP), they are the candidates.
        windows: ``all`` windows of a document, or only the ``first``: with ``task.training.max_length=128``, the paper's
            truncated documents.
        replicates: Bootstrap samples of documents for the intervals.
        max_examples: A random sample of this many windows; None for all.
        seed: Seed of the halves and of the samples.

    Raises:
        UserError: If a setting is not valid.
    """

    name = "coreference"
    title = "Coreference heads"
    columns = (
        Column("all", "all mentions", _UNIT),
        Column("pronoun", "pronouns", _UNIT),
        Column("proper", "names", _UNIT),
        Column("nominal", "nominals", _UNIT),
    )
    needs = frozenset({Need.ANNOTATION})
    tracked = ("all",)

    correct_NLHT: Tensor
    seen_E: Tensor

    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        candidates: Candidates = "earlier",
        windows: Windows = "all",
        replicates: int = 1000,
        max_examples: MaxExamples = None,
        seed: int = 0,
    ) -> None:
        super().__init__(num_layers, num_heads)
        for key, value, valid in (("candidates", candidates, Candidates), ("windows", windows, Windows)):
            if value not in get_args(valid):
                raise UserError(
                    f"Unknown {key} '{value}' of the coreference measure; {choices(str(value), get_args(valid))}."
                )
        check_count("replicates", replicates, self.name)
        self.candidates, self.windows = candidates, windows
        self.replicates, self.seed = replicates, seed
        self.feed = Feed(max_examples=max_examples)
        self.task = ""
        self._asked: list[Asked] = []
        self._position: dict[int, int] = {}
        self._document_E: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._batch: tuple[Batch, list[tuple[Question, ...]]] | None = None

    def dataset(self, data: TaskData, progress: bool = False) -> EncodedSplit | None:
        self.task = data.task.name
        return None

    def prepare(self, split: EncodedSplit) -> None:
        """Find the mentions that have an antecedent in their window.

        Raises:
            UserError: If the examples have no mentions, or none counts.
        """
        if not any(annotation.mentions for example in split.examples for annotation in example.annotations):
            raise UserError(
                "Measure 'coreference' needs annotated mentions, but these examples have none; use task=demo_coreference, or "
                "task=coreference data.root=<folder of CoNLL-2012 or GAP files>, with annotation=gold."
            )
        documents: dict[int, int] = {}
        document_of: list[int] = []
        self._asked, self._position = [], {}
        for example, row in zip(split.examples, split.rows, strict=True):
            key = example.index if example.document is None else example.document
            later = key in documents and self.windows == "first"
            asked = [ask(annotation, set(row.words), self.candidates) for annotation in example.annotations[:1]]
            self._position[example.index] = len(self._asked)
            self._asked.append(Asked(()) if later or not asked else asked[0])
            document_of.append(documents.setdefault(key, len(documents)))
        counted = sum(len(asked.questions) for asked in self._asked)
        outside = sum(asked.outside for asked in self._asked)
        vanished = sum(asked.vanished for asked in self._asked)
        if not counted:
            raise UserError(
                f"No mention of the {len(split):,} texts has an antecedent in its text ({outside:,} have one outside); raise "
                "task.training.max_length."
            )
        if outside or vanished:
            rank_zero_info(
                f"{counted:,} mentions count; {outside:,} whose antecedents all lie outside of their window do not, nor do "
                f"{vanished:,} without tokens of their own or of an antecedent."
            )
        self._document_E = np.array(document_of)
        layers, heads, _ = self.total_LHC.shape
        device = self.total_LHC.device
        # Whole numbers below 2^24 are exact in float32, and this is the largest state.
        correct = torch.zeros((len(documents), layers, heads, len(KINDS)), device=device)
        self.add_state("correct_NLHT", correct, dist_reduce_fx="sum")
        self.add_state("seen_E", torch.zeros(len(split), device=device), dist_reduce_fx="sum")

    def per_example(self, attention_BHQK: Tensor, batch: Batch, reference_BHQK: Tensor | None) -> Tensor:
        """Share of each window's mentions whose antecedent is found; NaN in a window without such mentions."""
        questions = self._questions(batch)
        return self._correct(attention_BHQK, batch, questions) / _counts(questions).to(attention_BHQK)[:, None]

    def update(self, layer: int, attention_BHQK: Tensor, batch: Batch, reference_BHQK: Tensor | None = None) -> None:
        """Add one layer's maps of one batch."""
        questions = self._questions(batch)
        correct_BHT = self._correct(attention_BHQK, batch, questions)
        places = [self._position[index] for index in batch.index_B.tolist()]
        document_B = torch.from_numpy(self._document_E[places]).to(self.correct_NLHT.device)
        self.correct_NLHT[:, layer].index_add_(0, document_B, correct_BHT.to(self.correct_NLHT))
        if layer == 0:
            self.seen_E[places] += 1
        self._add(layer, batch, correct_BHT / _counts(questions).to(correct_BHT)[:, None])

    def _questions(self, batch: Batch) -> list[tuple[Question, ...]]:
        """The questions of each example of a batch."""
        if not self._asked:
            raise ValueError("the mentions are those of the documents: call prepare(split) before the first batch")
        if self._batch is None or self._batch[0] is not batch:
            self._batch = batch, [self._asked[self._position[index]].questions for index in batch.index_B.tolist()]
        return self._batch[1]

    def _correct(self, attention_BHQK: Tensor, batch: Batch, questions: Sequence[Sequence[Question]]) -> Tensor:
        """Right answers of each window, head and kind, ``[B, H, T]``."""
        size, heads = attention_BHQK.shape[:2]
        correct_BHT = attention_BHQK.new_zeros((size, heads, len(KINDS)))
        for row, asked in enumerate(questions):
            if asked:
                right_HX = answers_right(attention_BHQK[row], batch.word_BS[row], asked)
                correct_BHT[row] = right_HX.to(attention_BHQK) @ _kind_XT(asked).to(attention_BHQK)
        return correct_BHT

    def compute(self) -> HeadGrid:
        """Shares of mentions over all documents, reduced over all processes, with standard errors by documents."""
        if not self._asked:
            return super().compute()
        correct_NLHT = self.correct_NLHT.cpu().to(torch.float64)
        mentions_NT = torch.from_numpy(self._mentions(self.seen_E.tolist())[0])
        total_T = mentions_NT.sum(0)
        share_LHT = correct_NLHT.sum(0) / total_T
        residual_NLHT = correct_NLHT - share_LHT * mentions_NT[:, None, None]
        count_T = (mentions_NT > 0).sum(0).to(torch.float64)
        scale_T = torch.where(count_T > 1, count_T / (count_T - 1), torch.nan)
        stderr_LHT = (scale_T * residual_NLHT.square().sum(0)).sqrt() / total_T
        counts = total_T.to(torch.int64).expand_as(share_LHT)
        return HeadGrid(self.name, self.columns, share_LHT, stderr_LHT, counts)

    def _mentions(self, seen: Sequence[float]) -> tuple[Array, Array]:
        """Mentions that count ``[N, T]``, and right answers of the baselines ``[N, B, T]``, of the windows seen so often."""
        documents = len(self.correct_NLHT)
        mentions_NT = np.zeros((documents, len(KINDS)))
        baseline_NBT = np.zeros((documents, len(BASELINES), len(KINDS)))
        for place, times in enumerate(seen):
            questions = self._asked[place].questions
            if times and questions:
                kind_XT = _kind_XT(questions).numpy()
                right_BX = np.array([question.baselines for question in questions]).T
                mentions_NT[self._document_E[place]] += times * kind_XT.sum(0)
                baseline_NBT[self._document_E[place]] += times * (right_BX @ kind_XT)
        return mentions_NT, baseline_NBT

    def extras(self, grid: HeadGrid, model: nn.Module) -> dict[str, Any]:
        """Table 2 of the paper, :class:`CoreferenceRecord`."""
        correct_NLHT, times_seen = self.correct_NLHT.cpu().to(torch.float64).numpy(), self.seen_E.tolist()
        mentions_NT, baseline_NBT = self._mentions(times_seen)
        seen = [place for place, times in enumerate(times_seen) if times]
        counting = np.flatnonzero(mentions_NT[:, 0])
        order = np.random.default_rng(self.seed).permutation(counting)
        chooses, scores = np.sort(order[0::2]), np.sort(order[1::2])
        kinds: list[MentionScore] = []
        if len(scores):
            overall = _best(correct_NLHT[chooses, ..., 0])
            rng = np.random.default_rng(self.seed)
            weight_KN = rng.multinomial(len(scores), np.full(len(scores), 1 / len(scores)), size=self.replicates)
            for kind in range(len(KINDS)):
                if mentions_NT[chooses, kind].any() and mentions_NT[scores, kind].any():
                    kinds.append(
                        _score(
                            KINDS[kind],
                            correct_NLHT[..., kind],
                            mentions_NT[:, kind],
                            baseline_NBT[..., kind],
                            (chooses, scores),
                            weight_KN.astype(np.float64),
                            overall,
                        )
                    )
        record = CoreferenceRecord(
            task=self.task,
            documents=len(set(self._document_E[seen].tolist())),
            windows=len(seen),
            outside=sum(self._asked[place].outside for place in seen),
            vanished=sum(self._asked[place].vanished for place in seen),
            unanswered=sum(self._asked[place].unanswered for place in seen),
            replicates=self.replicates,
            settings={"candidates": self.candidates, "windows": self.windows},
            kinds=kinds,
        )
        return asdict(record)

    def reset(self) -> None:
        """Forget all documents."""
        super().reset()
        self._batch = None

    @classmethod
    def describe(cls, view: MeasureView) -> Section | None:
        """Table 2 of the paper, with heads chosen and scored on different documents."""
        return coreference_section(view)

    @classmethod
    def compare(cls, comparison: Comparison) -> Section | None:
        """The best head for each kind of mention by condition."""
        return coreference_comparison(comparison)


def answers_right(attention_HQK: Tensor, word_S: Tensor, questions: Sequence[Question]) -> Tensor:
    """Whether each head attends most to an antecedent, ``[H, X]`` bool, for X questions of one text.

    Args:
        attention_HQK: Attention between the text's tokens.
        word_S: Word of each token, -1 for none.
        questions: At least one.
    """
    device = word_S.device
    words = 1 + max(int(word_S.max()), *(question.candidates[-1] for question in questions))
    into_KW = (word_S[:, None] == torch.arange(words, device=device)).to(attention_HQK)
    asks_X = torch.tensor([question.asks for question in questions], device=device)
    from_XQ = into_KW.T[asks_X]
    from_XQ = from_XQ / from_XQ.sum(-1, keepdim=True)
    candidate_XW = torch.zeros((len(questions), words), dtype=torch.bool)
    right_XW = torch.zeros_like(candidate_XW)
    for place, question in enumerate(questions):
        candidate_XW[place, list(question.candidates)] = True
        right_XW[place, list(question.right)] = True
    word_HXW = from_XQ @ attention_HQK @ into_KW
    chosen_HX = word_HXW.masked_fill(~candidate_XW.to(device), -1.0).argmax(-1)
    return right_XW.to(device).expand(len(chosen_HX), -1, -1).gather(-1, chosen_HX[..., None])[..., 0]


def _kind_XT(questions: Sequence[Question]) -> Tensor:
    """Whether each question is of each kind, all of ``all``; float64."""
    return torch.tensor(
        [[float(kind in ("all", question.kind)) for kind in KINDS] for question in questions], dtype=torch.float64
    )


def _counts(questions: Sequence[Sequence[Question]]) -> Tensor:
    """Questions of each kind in each window, ``[B, T]``."""
    empty_T = torch.zeros(len(KINDS), dtype=torch.float64)
    return torch.stack([_kind_XT(asked).sum(0) if asked else empty_T for asked in questions])


def _best(correct_NLH: Array) -> tuple[int, int]:
    """The layer and head with the most right answers."""
    layer, head = np.unravel_index(correct_NLH.sum(0).argmax(), correct_NLH.shape[1:])
    return int(layer), int(head)


def _score(
    kind: str,
    correct_NLH: Array,
    mentions_N: Array,
    baseline_NB: Array,
    halves: tuple[NDArray[np.int64], NDArray[np.int64]],
    weight_KN: Array,
    overall: tuple[int, int],
) -> MentionScore:
    """One kind of mention; ``weight_KN`` says how often each bootstrap sample has a document that scores."""
    chooses, scores = halves
    layer, head = _best(correct_NLH[chooses])
    layer_on_all, head_on_all = _best(correct_NLH)
    total_N = mentions_N[scores]

    def share(right_N: Array) -> tuple[float, float, float]:
        low, high = _interval(weight_KN @ right_N[scores], weight_KN @ total_N)
        return float(right_N[scores].sum() / total_N.sum()), low, high

    right_N = correct_NLH[:, layer, head]
    accuracy = share(right_N)
    baselines = [
        BaselineScore(name, *share(answer_N), *share(right_N - answer_N), float(answer_N.sum() / mentions_N.sum()))
        for name, answer_N in zip(BASELINES, baseline_NB.T, strict=True)
    ]
    return MentionScore(
        kind,
        int(total_N.sum()),
        int((total_N > 0).sum()),
        layer,
        head,
        *accuracy,
        *share(correct_NLH[:, overall[0], overall[1]]),
        baselines,
        float(correct_NLH[:, layer_on_all, head_on_all].sum() / mentions_N.sum()),
        layer_on_all,
        head_on_all,
    )


def _interval(drawn_K: Array, mentions_K: Array) -> tuple[float, float]:
    """Limits of the 95 % interval of a share, from bootstrap samples."""
    known = mentions_K > 0
    low, high = np.percentile(drawn_K[known] / mentions_K[known], _LEVELS)
    return float(low), float(high)
