"""Coreference heads: how often a head attends from a mention to one of its antecedents (methods C6)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pytorch_lightning.utilities import rank_zero_info
from torch import Tensor, nn

from bertsecrets.data.batch import Batch
from bertsecrets.errors import UserError
from bertsecrets.grid import Column, HeadGrid
from bertsecrets.measures.base import Count, MaxExamples, Measure, Need, Passed, once_per_batch
from bertsecrets.measures.coreference.questions import BASELINES, Candidates, Question, TextQuestions, ask
from bertsecrets.measures.coreference.rows import Baseline, Documents, Mentions
from bertsecrets.measures.ratio import ratio_grid
from bertsecrets.results.estimate import Estimate
from bertsecrets.settings import typed
from bertsecrets.statistics.corrections import holm
from bertsecrets.statistics.splits import choose_and_score, choosing_units, combined_p, ratios, scored_ratios

if TYPE_CHECKING:
    from bertsecrets.data.module import TaskData
    from bertsecrets.data.tokenization import EncodedSplit

KINDS = ("all", "pronoun", "proper", "nominal")
Windows = Literal["all", "first"]

_UNIT = "share of mentions whose antecedent is attended to most"

Array = NDArray[np.float64]


class Coreference(Measure):
    """How often a head attends from a mention to one of its antecedents (Clark et al. 2019, section 4.3; methods C6).

    From the head word of each mention that has an antecedent, the attention to the head words of the candidates is
    compared: summed over the tokens of a candidate, averaged over those of the mention. The answer is correct if the
    largest goes to the head word of an earlier mention of the same entity (in GAP, of one of the two names).

    Columns:
        ``all``, ``pronoun``, ``proper``, ``nominal``: share of correct answers, for all such mentions and for those
            whose head word is a pronoun, a name or a common noun; 0..1.

    Standard errors account for the correlation of mentions in a document (ratio estimator over documents). A paired
    comparison with another model weighs windows, not mentions, equally. Mentions with all antecedents outside their
    window do not count.

    Args:
        candidates: Head words of ``earlier`` mentions (as for the baselines), of all ``others``, or all other
            ``words``. If the data set lists choices (GAP), they are the candidates.
        windows: ``all`` windows of a document, or only the ``first``: with ``task.training.max_length=128``, the
            paper's truncated documents.
        splits: Random splits of the documents: one third to choose the best heads, the rest to score them.
        max_examples: Size of a random sample of windows; None for all.
        seed: Seed of the splits.

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
    presenter = "bertsecrets.present.coreference:PRESENTER"
    needs = frozenset({Need.ANNOTATION})
    tracked = ("all",)

    correct_NLHT: Tensor
    seen_E: Tensor

    @typed
    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        candidates: Candidates = "earlier",
        windows: Windows = "all",
        splits: Count = 50,
        max_examples: MaxExamples = None,
        seed: int = 0,
    ) -> None:
        super().__init__(num_layers, num_heads, max_examples)
        self.candidates, self.windows = candidates, windows
        self.splits, self.seed = splits, seed
        self.task = ""
        self._texts: list[TextQuestions] = []
        self._position: dict[int, int] = {}
        self._document_E: NDArray[np.int64] = np.zeros(0, dtype=np.int64)

    def dataset(self, data: "TaskData", progress: bool = False) -> "EncodedSplit | None":
        self.task = data.task.name
        return None

    def prepare(self, split: "EncodedSplit") -> None:
        """Find the mentions that have an antecedent in their window.

        Raises:
            UserError: If the examples have no mentions that count.
        """
        if not any(annotation.mentions for example in split.examples for annotation in example.annotations):
            raise UserError(
                "Measure 'coreference' needs annotated mentions, but these examples have none; use "
                "task=demo_coreference, or task=coreference data.root=<folder of CoNLL-2012 or GAP files>, with "
                "annotation=gold."
            )
        documents: dict[int, int] = {}
        document_of: list[int] = []
        self._texts, self._position = [], {}
        for example, row in zip(split.examples, split.rows, strict=True):
            key = example.index if example.document is None else example.document
            # The first one seen is the document's first window.
            later = key in documents and self.windows == "first"
            of_text = [ask(annotation, set(row.words), self.candidates) for annotation in example.annotations[:1]]
            self._position[example.index] = len(self._texts)
            self._texts.append(TextQuestions(()) if later or not of_text else of_text[0])
            document_of.append(documents.setdefault(key, len(documents)))
        counted = sum(len(of_text.questions) for of_text in self._texts)
        outside = sum(of_text.outside for of_text in self._texts)
        vanished = sum(of_text.vanished for of_text in self._texts)
        if not counted:
            raise UserError(
                f"No mention of the {len(split):,} texts has an antecedent in its text ({outside:,} have one outside); "
                "raise task.training.max_length."
            )
        if outside or vanished:
            rank_zero_info(
                f"{counted:,} mentions count; excluded are {outside:,} with all antecedents outside their window and "
                f"{vanished:,} without tokens or without an antecedent with tokens."
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

    def update(self, passed: Passed) -> None:
        """Add one layer's maps of one batch."""
        layer, batch = passed.layer, passed.batch
        questions = self._questions(batch)
        correct_BHT = self._correct(passed.attention_BHQK, batch, questions)
        positions = [self._position[index] for index in batch.index_B.tolist()]
        document_B = torch.from_numpy(self._document_E[positions]).to(self.correct_NLHT.device)
        self.correct_NLHT[:, layer].index_add_(0, document_B, correct_BHT.to(self.correct_NLHT))
        if layer == 0:
            self.seen_E[positions] += 1
        self.add(layer, batch, correct_BHT / _counts(questions).to(correct_BHT)[:, None])

    @once_per_batch
    def _questions(self, batch: Batch) -> list[tuple[Question, ...]]:
        """The questions of each example of a batch."""
        if not self._texts:
            raise ValueError("the mentions are those of the documents: call prepare(split) before the first batch")
        return [self._texts[self._position[index]].questions for index in batch.index_B.tolist()]

    def _correct(self, attention_BHQK: Tensor, batch: Batch, questions: Sequence[Sequence[Question]]) -> Tensor:
        """Correct answers of each window, head and kind, ``[B, H, T]``."""
        size, heads = attention_BHQK.shape[:2]
        correct_BHT = attention_BHQK.new_zeros((size, heads, len(KINDS)))
        for row, text_questions in enumerate(questions):
            if text_questions:
                right_HX = answers_right(attention_BHQK[row], batch.word_BS[row], text_questions)
                correct_BHT[row] = right_HX.to(attention_BHQK) @ _kind_XT(text_questions).to(attention_BHQK)
        return correct_BHT

    def compute(self) -> HeadGrid:
        """Shares of mentions over all documents, reduced over all processes, with standard errors by documents."""
        if not self._texts:
            return super().compute()
        return ratio_grid(self, self.correct_NLHT, self._mentions(self.seen_E.tolist())[0])

    def _mentions(self, seen: Sequence[float]) -> tuple[Array, Array]:
        """Mentions that count ``[N, T]``, and correct answers of the baselines ``[N, B, T]``, weighted by how often
        each window was seen.
        """
        documents = len(self.correct_NLHT)
        mentions_NT = np.zeros((documents, len(KINDS)))
        baseline_NBT = np.zeros((documents, len(BASELINES), len(KINDS)))
        for example, times in enumerate(seen):
            questions = self._texts[example].questions
            if times and questions:
                kind_XT = _kind_XT(questions).numpy()
                right_BX = np.array([question.baselines for question in questions]).T
                mentions_NT[self._document_E[example]] += times * kind_XT.sum(0)
                baseline_NBT[self._document_E[example]] += times * (right_BX @ kind_XT)
        return mentions_NT, baseline_NBT

    def findings(self, grid: HeadGrid, model: nn.Module) -> Sequence[Mentions | Baseline | Documents]:
        """Table 2 of the paper, starting with all mentions, without kinds that have too few documents."""
        times_seen = self.seen_E.tolist()
        seen = [example for example, times in enumerate(times_seen) if times]
        documents = Documents(
            corpus=self.task,
            documents=len(set(self._document_E[seen].tolist())),
            texts=len(seen),
            outside=sum(self._texts[example].outside for example in seen),
            vanished=sum(self._texts[example].vanished for example in seen),
            unanswered=sum(self._texts[example].unanswered for example in seen),
            splits=self.splits,
            candidates=self.candidates,
            windows=self.windows,
        )
        mentions_NT, baseline_NBT = self._mentions(times_seen)
        counting = np.flatnonzero(mentions_NT[:, 0])
        if len(counting) < 2:
            return [documents]
        chooses_SN = choosing_units(len(counting), self.splits, self.seed)
        correct_NCT = (
            self.correct_NLHT.cpu().numpy()[counting].astype(np.float64).reshape(len(counting), -1, len(KINDS))
        )
        found: list[Mentions] = []
        compared: list[Baseline] = []
        overall_S: NDArray[np.intp] | None = None
        for kind, name in enumerate(KINDS):
            mentions_N, correct_NC = mentions_NT[counting, kind], correct_NCT[..., kind]
            baseline_NB = baseline_NBT[counting, :, kind]
            chosen = choose_and_score(correct_NC, baseline_NB, mentions_N, chooses_SN)
            if chosen is None:
                continue
            # All kinds come first and have every entry that a kind can have.
            overall_S = chosen.choice_S if overall_S is None else overall_S
            one_head = scored_ratios(correct_NC[:, overall_S, None], mentions_N, chooses_SN)
            of_baselines, number = ratios(baseline_NB, mentions_N), int(mentions_N.sum())
            layer, head = divmod(chosen.candidate, grid.num_heads)
            rows = [
                Baseline(
                    mention=name,
                    baseline=baseline,
                    layer=layer,
                    head=head,
                    accuracy=Estimate(*of_baselines.over_splits(column), n=number),
                    gain=Estimate(*chosen.gains.over_splits(column), n=number),
                    p_gain=float(p),
                )
                for column, (baseline, p) in enumerate(
                    zip(BASELINES, combined_p(chosen.gains.differs_from_zero()), strict=True)
                )
            ]
            layer_on_all, head_on_all = divmod(chosen.on_all, grid.num_heads)
            found.append(
                Mentions(
                    mention=name,
                    mentions=number,
                    documents=int((mentions_N > 0).sum()),
                    layer=layer,
                    head=head,
                    chosen=chosen.share,
                    accuracy=Estimate(*chosen.accuracy.over_splits(), n=number),
                    one_head=Estimate(*one_head.over_splits(), n=number),
                    rules=rows[BASELINES.index("rule_based")].accuracy.value,
                    chosen_on_all=chosen.accuracy_on_all,
                    layer_on_all=layer_on_all,
                    head_on_all=head_on_all,
                )
            )
            compared += rows
        p_N = holm(np.array([row.p_gain for row in compared]))
        return [documents, *found, *(replace(row, p_gain=float(p)) for row, p in zip(compared, p_N, strict=True))]


def answers_right(attention_HQK: Tensor, word_S: Tensor, questions: Sequence[Question]) -> Tensor:
    """Whether each head attends most to an antecedent, ``[H, X]`` bool, for X questions of one text.

    Args:
        attention_HQK: Attention between the text's tokens.
        word_S: Word of each token, -1 for none.
        questions: At least one.
    """
    device = word_S.device
    words = 1 + max(int(word_S.max()), *(question.candidates[-1] for question in questions))
    # One product instead of a loop over words: texts have hundreds of mentions.
    into_KW = (word_S[:, None] == torch.arange(words, device=device)).to(attention_HQK)
    asks_X = torch.tensor([question.asks for question in questions], device=device)
    from_XQ = into_KW.T[asks_X]
    from_XQ = from_XQ / from_XQ.sum(-1, keepdim=True)
    candidate_XW = torch.zeros((len(questions), words), dtype=torch.bool)
    right_XW = torch.zeros_like(candidate_XW)
    for row, question in enumerate(questions):
        candidate_XW[row, list(question.candidates)] = True
        right_XW[row, list(question.right)] = True
    word_HXW = from_XQ @ attention_HQK @ into_KW
    answer_HX = word_HXW.masked_fill(~candidate_XW.to(device), -1.0).argmax(-1)
    return right_XW.to(device).expand(len(answer_HX), -1, -1).gather(-1, answer_HX[..., None])[..., 0]


def _kind_XT(questions: Sequence[Question]) -> Tensor:
    """Whether each question is of each kind (``all`` includes every question); float64."""
    return torch.tensor(
        [[float(kind in ("all", question.kind)) for kind in KINDS] for question in questions], dtype=torch.float64
    )


def _counts(questions: Sequence[Sequence[Question]]) -> Tensor:
    """Questions of each kind in each window, ``[B, T]``."""
    empty_T = torch.zeros(len(KINDS), dtype=torch.float64)
    return torch.stack([_kind_XT(text_questions).sum(0) if text_questions else empty_T for text_questions in questions])
