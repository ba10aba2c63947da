"""Probes against naive loops, finite differences and hand-worked cases; training on attention that tells the heads."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data.toy import wordpiece
from families import tiny_model
from probes.treebanks import fill, random_sentences, sentence, sentences
from torch import Tensor

from bertsecrets.attention.watch import capture
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.errors import UserError
from bertsecrets.models.encoder import describe
from bertsecrets.probes.attention_file import SPECIAL, AttentionFile, random_encoder, store_attention
from bertsecrets.probes.batches import ProbeBatch, ProbeDataset
from bertsecrets.probes.models import AttentionProbe, DistanceProbe, Probe
from bertsecrets.probes.scoring import probe_scores, right_branching
from bertsecrets.probes.sentences import Sentences, relations_of
from bertsecrets.probes.training import Answers, Recipe, choice, head_loss, train_and_answer
from bertsecrets.probes.vectors import embedding_vectors

CHANNELS, WIDTH, RELATIONS = 5, 3, 4


def random_batch(seed: int = 0) -> ProbeBatch:
    """Three sentences in float64 with random attention and word vectors."""
    data = sentences(random_sentences(3, seed))
    generator = torch.Generator().manual_seed(seed)
    batch = ProbeDataset(data, relations_of(data.rows), None, None)[[0, 1, 2]]
    size, width = batch.head_BW.shape
    places = width + SPECIAL
    attention = torch.rand(size, places, places, CHANNELS, generator=generator, dtype=torch.float64)
    vectors = torch.randn(size, width, WIDTH, generator=generator, dtype=torch.float64)
    return replace(batch, attention_BNNC=attention, vectors_BWD=vectors)


def random_probe(probe: Probe, seed: int = 1) -> Probe:
    """The probe in float64 with random weights."""
    generator = torch.Generator().manual_seed(seed)
    probe.double()
    with torch.no_grad():
        for parameter in probe.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return probe


def attention_probe(width: int) -> AttentionProbe:
    return random_probe(AttentionProbe(torch.rand(CHANNELS) + 0.5, RELATIONS, width))


def naive_attention(probe: AttentionProbe, batch: ProbeBatch, row: int, i: int, j: int) -> tuple[Tensor, Tensor]:
    """The score of word j as the head of word i (-1: the root), and the features of their relation without words."""
    map_nnC, index = batch.attention_BNNC[row], SPECIAL + i
    if j >= 0:
        to_C, from_C = map_nnC[index, SPECIAL + j], map_nnC[SPECIAL + j, index]
    else:
        s, e = probe.root
        to_C = s * map_nnC[index, 0] + e * map_nnC[index, 1]
        from_C = s * map_nnC[0, index] + e * map_nnC[1, index]
    to_C, from_C = to_C / probe.spread_C, from_C / probe.spread_C
    w_C, u_C = probe.weight_DC
    if hasattr(probe, "dependent"):
        joined = torch.cat([probe.dependent.weight, probe.governor.weight], 1)
        w_C, u_C = (joined @ torch.cat(words_of(batch, row, i, j))).view(2, CHANNELS) + probe.weight_DC
    score = sum(w_C[k] * to_C[k] + u_C[k] * from_C[k] for k in range(CHANNELS))
    return score, torch.cat([to_C, from_C, torch.tensor([float(j < 0)], dtype=torch.float64)])


def naive_distance(probe: DistanceProbe, batch: ProbeBatch, row: int, i: int, j: int) -> tuple[Tensor, Tensor]:
    """The same of the probe that sees where words stand."""
    distance, words = j - i, int(batch.words_B[row])
    features = [0.0] * 7 + [1.0]
    if j >= 0:
        near = [float(distance == offset) for offset in (0, -1, 1, -2, 2)]
        features = [max(distance, 0) / words, max(-distance, 0) / words, *near, 0.0]
    position_F = torch.tensor(features, dtype=torch.float64)
    own_D, other_D = words_of(batch, row, i, j)
    hidden_F = probe.position(position_F) + probe.dependent.weight @ own_D + probe.governor.weight @ other_D
    return probe.score(hidden_F.tanh())[0], position_F


def words_of(batch: ProbeBatch, row: int, i: int, j: int) -> tuple[Tensor, Tensor]:
    """The vectors of both words; the root has none."""
    vectors_WD = batch.vectors_BWD[row]
    return vectors_WD[i], vectors_WD[j] if j >= 0 else torch.zeros_like(vectors_WD[i])


@pytest.mark.parametrize(
    ("make", "naive", "width"),
    [
        (lambda: attention_probe(0), naive_attention, 0),
        (lambda: attention_probe(WIDTH), naive_attention, WIDTH),
        (lambda: random_probe(DistanceProbe(RELATIONS, WIDTH)), naive_distance, WIDTH),
    ],
    ids=["attention", "attention and words", "distances and words"],
)
def test_a_probe_equals_a_naive_loop(make: Callable[[], Any], naive: Callable[..., Any], width: int) -> None:
    batch, probe = random_batch(), make()
    scores_BWT = probe.scores(batch)
    relations_BWR = probe.relation_scores(batch, batch.head_BW)
    for row, words in enumerate(batch.words_B.tolist()):
        for i in range(words):
            for j in range(-1, words):
                score, features_F = naive(probe, batch, row, i, j)
                torch.testing.assert_close(scores_BWT[row, i, j + 1], torch.as_tensor(score))
                if j + 1 == batch.head_BW[row, i]:
                    parts = [features_F, *(words_of(batch, row, i, j) if width else ())]
                    torch.testing.assert_close(relations_BWR[row, i], probe.relation(torch.cat(parts)))


def test_only_candidates_are_chosen_and_cost() -> None:
    scores = torch.tensor([[[0.0, 9.0, 1.0], [2.0, 1.0, 9.0]]])
    candidates = torch.tensor([[[True, False, True], [True, True, False]]])
    assert choice(scores, candidates).tolist() == [[2, 0]]
    heads, counts = torch.tensor([[2, 0]]), torch.tensor([[True, True]])
    expected = 2 * np.log(1 + np.e**-1.0)
    assert head_loss(scores, candidates, heads, counts).item() == pytest.approx(expected)


def stored(data: Sentences, path: Path, channels: int = CHANNELS) -> AttentionFile:
    file = AttentionFile(path, [len(row) for row in data.rows], channels)
    fill(file, data.rows)
    return file


def test_a_file_gives_back_padded_maps(tmp_path: Path) -> None:
    data = sentences(random_sentences(3))
    sizes = [len(row) for row in data.rows]
    maps = [torch.rand(size + SPECIAL, size + SPECIAL, 2) for size in sizes]
    file = AttentionFile(tmp_path / "maps", sizes, 2)
    for number in (2, 0, 1):
        file.write(number, maps[number])
    batch = file.padded([1, 2])
    deviations = [(own[2:, 2:] - own[2:, 2:].mean(1, keepdim=True)).square().mean(1) for own in maps]
    torch.testing.assert_close(file.spread_C, torch.cat(deviations).mean(0).sqrt())
    for row, number in enumerate((1, 2)):
        size = sizes[number] + SPECIAL
        torch.testing.assert_close(batch[row, :size, :size], maps[number], atol=5e-4, rtol=0)
        assert batch[row, size:].abs().sum() == 0
    with pytest.raises(UserError, match=r"need .* GB, but '.*' has .* left; free some space"):
        AttentionFile(tmp_path / "maps", [100_000] * 100, 144)


def test_stored_attention_equals_word_by_word_sums_and_means(tmp_path: Path) -> None:
    examples = [sentence(0, ("dogs", 1, "x"), ("eats", -1, "root"), ("", 1, "x"), ("unhappy", 1, "x"))]
    examples += random_sentences(4)[1:]
    split = EncodedSplit(examples, wordpiece(), 64)
    data = Sentences.of(split, punctuation=False, seed=0)
    model = tiny_model("bert").eval()
    encoder = describe(model)
    channels = encoder.num_layers * encoder.num_heads
    file = AttentionFile(tmp_path / "maps", [len(row) for row in data.rows], channels)
    store_attention(model, data, file, 3, nullcontext, lambda count: None)
    for number, row in enumerate(data.rows):
        [tokens_LHSS] = capture(model, split[[row.position]].inputs())
        words = split.rows[row.position].words
        size = len(row)
        places = [[0], [len(words) - 1]] + [[s for s, word in enumerate(words) if word == w] for w in range(size)]
        map_nnC = file.read(number)
        for x, own in enumerate(places):
            for y, other in enumerate(places):
                if own and other:
                    expected = tokens_LHSS[:, :, own][..., other].sum(-1).mean(-1).flatten()
                else:
                    expected = torch.zeros(channels)
                torch.testing.assert_close(map_nnC[x, y], expected, atol=1e-3, rtol=0)


def test_a_random_encoder_keeps_the_embeddings_alone() -> None:
    model = tiny_model("bert")
    random = random_encoder(model, seed=1)
    own, other = dict(model.named_parameters()), dict(random.named_parameters())
    same = {name for name in own if own[name].dim() > 1 and torch.equal(own[name], other[name])}
    assert same == {name for name in own if "embeddings" in name and own[name].dim() > 1}


def test_right_branching_by_hand() -> None:
    train = sentences(
        [
            sentence(0, ("the", 1, "det"), ("cat", 2, "nsubj"), ("sees", -1, "root"), ("a", 2, "x")),
            sentence(1, ("a", 1, "det"), ("man", -1, "root")),
        ]
    )
    scored = sentences(
        [
            # Right: the (det, right label), cat (nsubj, wrong label); sees and the last word are wrong.
            sentence(0, ("the", 1, "det"), ("cat", 2, "nsubj"), ("sees", -1, "root"), ("fish", 2, "obj")),
            # Right: both, with their labels; "!" would be wrong but is not scored.
            sentence(1, ("a", 1, "det"), ("man", -1, "root")),
            sentence(2, ("eats", -1, "root"), ("!", 0, "punct")),
        ]
    )
    answers = right_branching(train, scored)
    assert answers.heads_N.tolist() == [2, 2, 0]
    assert answers.labelled_N.tolist() == [1, 2, 0]


def test_scores_are_shares_of_words_with_intervals_over_sentences() -> None:
    generator = np.random.default_rng(0)
    words_N = generator.integers(1, 30, 200)
    heads_N, control_N = generator.binomial(words_N, 0.7), generator.binomial(words_N, 0.4)
    answers = {
        "attention": Answers(heads_N, heads_N // 2, control_N, 1.0, 10),
        "right_branching": Answers(control_N, control_N, None, 0.0, 0),
    }
    scores, [difference] = probe_scores(answers, words_N, replicates=400, seed=5)
    assert [score.probe for score in scores] == ["right_branching", "attention"]
    own = scores[1]
    assert own.uas.value == heads_N.sum() / words_N.sum()
    assert own.selectivity.value == pytest.approx((heads_N.sum() - control_N.sum()) / words_N.sum())
    assert (difference.first, difference.second) == ("attention", "right_branching")
    assert difference.uas == own.selectivity
    # Sentence by sentence, from the same samples.
    drawn = np.random.default_rng(5).multinomial(200, np.full(200, 1 / 200), size=400)
    shares = []
    for weights in drawn:
        right = sum(int(weight) * int(count) for weight, count in zip(weights, heads_N, strict=True))
        total = sum(int(weight) * int(count) for weight, count in zip(weights, words_N, strict=True))
        shares.append(right / total)
    assert (own.uas.low, own.uas.high) == pytest.approx(tuple(np.percentile(shares, (2.5, 97.5))))
    assert scores[0].control is None


def test_a_probe_learns_what_attention_tells_and_no_more(tmp_path: Path) -> None:
    train, scored = sentences(random_sentences(150)), sentences(random_sentences(40, seed=9))
    relations = relations_of(train.rows)
    recipe = Recipe(epochs=8, learning_rate=0.1, batch_size=8, seed=0)
    first, second = stored(train, tmp_path / "train"), stored(scored, tmp_path / "scored")
    datasets = [ProbeDataset(part, relations, file, None) for part, file in ((train, first), (scored, second))]
    probe, answers = train_and_answer(
        lambda: AttentionProbe(first.spread_C, len(relations)), *datasets, recipe, control=True
    )
    words_N = np.array([row.scored_W.sum() for row in scored.rows])
    assert answers.heads_N.sum() >= 0.98 * words_N.sum()
    assert answers.labelled_N.sum() >= 0.95 * words_N.sum()
    assert answers.control_N.sum() < 0.75 * words_N.sum()
    assert (answers.heads_N <= words_N).all()
    # The two heads that tell the answer weigh most, each in its direction.
    assert probe.weights_DC.argmax(-1).tolist() == [CHANNELS - 2, CHANNELS - 1]


def test_words_are_looked_up_for_each_batch() -> None:
    data = sentences(random_sentences(4))
    vectors = embedding_vectors(tiny_model("bert"), data.rows)
    batch = ProbeDataset(data, relations_of(data.rows), None, vectors)[[3, 1]]
    for row, number in enumerate((3, 1)):
        own = data.rows[number]
        torch.testing.assert_close(batch.vectors_BWD[row, : len(own)], vectors.table_VD[vectors.rows(own)])
        assert batch.vectors_BWD[row, len(own) :].abs().sum() == 0
