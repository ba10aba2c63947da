"""Scores with intervals from correct predictions."""

from collections import Counter
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from bertsecrets.probes.rows import DIFFERENCES, LABELS, Difference, ProbeScore
from bertsecrets.probes.sentences import Sentence, Sentences
from bertsecrets.probes.training import Answers
from bertsecrets.results.estimate import Estimate

_LEVELS = (2.5, 97.5)

Array = NDArray[np.float64]


def right_branching(train: Sentences, evaluation: Sentences) -> Answers:
    """Every word depends on the next word of its sentence, and the last is the root (Clark et al. 2019, section 5).

    The relation is the most frequent one among training words that depend on the next word, or among roots.
    """
    labels = [Counter[str](), Counter[str]()]
    for row in train.rows:
        next_W = _next(row)
        for word in row.counts_W.nonzero()[0]:
            if row.head_W[word] == 0:
                labels[0][row.relations[word]] += 1
            elif row.head_W[word] == next_W[word]:
                labels[1][row.relations[word]] += 1
    of_root, of_next = (counts.most_common(1)[0][0] if counts else "" for counts in labels)
    heads_N, labelled_N = np.zeros((2, len(evaluation.rows)), np.int64)
    for number, row in enumerate(evaluation.rows):
        next_W = _next(row)
        right_W = (next_W == row.head_W) & row.scored_W
        answer_W = np.where(next_W == 0, of_root, of_next)
        heads_N[number] = right_W.sum()
        labelled_N[number] = (right_W & (answer_W == np.array(row.relations))).sum()
    return Answers(heads_N, labelled_N, None, 0.0, 0)


class Resamples:
    """Bootstrap samples of sentences; all shares use the same samples, so they are paired.

    Args:
        words_N: Number of words scored in each sentence.
        replicates: Number of bootstrap samples.
        seed: Seed of the samples.
    """

    def __init__(self, words_N: NDArray[np.int64], replicates: int, seed: int) -> None:
        size = len(words_N)
        # How often each sentence is drawn, so that one product gives the sums of all samples.
        self.drawn_KN = np.random.default_rng(seed).multinomial(size, np.full(size, 1 / size), size=replicates)
        self.words_K = self.drawn_KN @ words_N
        self.words = words_N.sum()

    def share(self, right_N: NDArray[np.int64]) -> Estimate:
        """The share of correct words, with its 95 % interval."""
        # A sample without a scored word has no share.
        nonempty_K = self.words_K > 0
        low, high = np.percentile((self.drawn_KN @ right_N)[nonempty_K] / self.words_K[nonempty_K], _LEVELS)
        return Estimate(float(right_N.sum() / self.words), float(low), float(high), n=len(right_N))


def probe_scores(
    answers: Mapping[str, Answers], words_N: NDArray[np.int64], replicates: int, seed: int
) -> tuple[list[ProbeScore], list[Difference]]:
    """The scores of probes and their differences, with 95 % intervals from bootstrap samples of sentences.

    Args:
        answers: Correct predictions of each probe, by name.
        words_N: Number of words scored in each sentence.
        replicates: Number of bootstrap samples.
        seed: Seed of the samples.
    """
    share = Resamples(words_N, replicates, seed).share
    scores = [
        ProbeScore(
            probe=name,
            uas=share(counts.heads_N),
            las=share(counts.labelled_N),
            control=None if counts.control_N is None else share(counts.control_N),
            selectivity=None if counts.control_N is None else share(counts.heads_N - counts.control_N),
            weights=counts.weights,
            seconds=counts.seconds,
        )
        for name in LABELS
        if (counts := answers.get(name)) is not None
    ]
    differences = [
        Difference(first, second, share(answers[first].heads_N - answers[second].heads_N))
        for first, second in DIFFERENCES
        if first in answers and second in answers
    ]
    return scores, differences


def _next(row: Sentence) -> NDArray[np.int64]:
    """The next word of the same sentence, from 1; 0 for the last."""
    word_W = np.arange(1, len(row) + 1)
    last_W = np.append(row.tree_W[1:] != row.tree_W[:-1], True)
    return np.where(last_W, 0, word_W + 1)
