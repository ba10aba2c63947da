"""The shipped classifier on constructed and generated maps, and its measure against one map at a time."""

import json
import logging
import shutil
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from patterns.random_maps import batch_of, cropped, random_maps, real_tokens
from sklearn.metrics import f1_score

from bertsecrets.errors import UserError
from bertsecrets.measures.base import Passed
from bertsecrets.patterns.classes import NAMES, PATTERNS, UNCERTAIN
from bertsecrets.patterns.classifier import CARD, SHIPPED, WEIGHTS, judge, load_classifier
from bertsecrets.patterns.measure import Patterns
from tools.pattern_classifier.generator import generate


def classify(maps: list[np.ndarray]) -> list[int]:
    classifier = load_classifier()
    patterns = []
    for weight in maps:
        attention = torch.from_numpy(weight)[None, None]
        patterns.append(int(classifier(attention, torch.ones(1, len(weight), dtype=torch.bool)).pattern))
    return patterns


def test_maps_constructed_by_definition_are_classified() -> None:
    """methods K2, synthetic acceptance: F1 of at least 0.95 on stripes, bands, both, squares and random rows."""
    generator = np.random.default_rng(11)
    maps, label = [], []
    for number in range(300):
        length = int(generator.integers(10, 100))
        separator = int(generator.integers(length // 3, 2 * length // 3))
        rest = generator.dirichlet(np.ones(length), length)
        stripe, band, squares = (np.zeros((length, length)) for _ in range(3))
        stripe[:, generator.choice([0, separator, length - 1])] = 1
        rows = np.arange(length)
        band[rows, np.clip(rows + generator.choice([-1, 1]), 0, length - 1)] = 1
        squares[: separator + 1, : separator + 1] = 1 / (separator + 1)
        squares[separator + 1 :, separator + 1 :] = 1 / (length - separator - 1)
        share = generator.uniform(0.7, 0.95)
        part = [stripe, band, (stripe + band) / 2, squares, rest][number % 5]
        maps.append(share * part + (1 - share) * rest)
        label.append(number % 5)
    assert f1_score(label, classify(maps), average="macro") >= 0.95


def test_generated_maps_are_classified() -> None:
    """Less well, as generated patterns have competing backgrounds, bright cells and own rows of special tokens."""
    generated = list(islice(generate(np.random.default_rng(987)), 500))
    label = [PATTERNS.index(sample.pattern) for sample in generated]
    assert f1_score(label, classify([sample.attention_QK for sample in generated]), average="macro") >= 0.85


@pytest.mark.parametrize("length", [8, 20, 128, 512])
def test_constructed_maps_of_any_length(length: int) -> None:
    column = torch.full((length, length), 0.1 / length)
    column[:, 0] += 0.9
    previous = 0.9 * torch.eye(length).roll(1, 0) + 0.1 / length
    previous[0] = 1 / length
    half = length // 2
    halves = torch.block_diag(torch.ones(half, half) / half, torch.ones(length - half, length - half) / (length - half))
    noise = torch.randn(length, length, generator=torch.Generator().manual_seed(0)).softmax(-1)
    maps = torch.stack([column, previous, (column + previous) / 2, 0.95 * halves + 0.05 / length, noise])
    judgement = load_classifier()(maps[:, None], torch.ones(5, length, dtype=torch.bool))
    assert [PATTERNS[number] for number in judgement.pattern[:, 0]] == list(PATTERNS)


def test_one_segment_shows_no_blocks() -> None:
    halves = torch.block_diag(torch.full((10, 10), 0.1), torch.full((14, 14), 1 / 14))[None, None]
    real, classifier = torch.ones(1, 24, dtype=torch.bool), load_classifier()
    for first, pattern in ((10, "block"), (-1, "block"), (0, None)):
        judgement = classifier(halves, real, torch.tensor([first]))
        assert judgement.probability_P.sum().item() == pytest.approx(1)
        if pattern is None:
            assert judgement.probability_P[0, 0, PATTERNS.index("block")] == 0
        else:
            assert PATTERNS[int(judgement.pattern)] == pattern


def test_a_tie_is_uncertain() -> None:
    # Probabilities 0.52 and 0.48 are a tie at a margin of 0.1; 0.6 and 0.4 are not.
    logits = torch.tensor([[0.52, 0.48, 0, 0, 0], [0.6, 0.4, 0, 0, 0]]).log()
    assert judge(logits, 0.1).uncertain.tolist() == [True, False]
    assert judge(logits, 0.3).uncertain.tolist() == [True, True]


@pytest.mark.parametrize("length", [64, 256])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_blocks_are_recognised_wherever_the_boundary_is(length: int, share: float) -> None:
    first = round(length * share)
    halves = torch.block_diag(
        torch.full((first, first), 1 / first), torch.full((length - first,) * 2, 1 / (length - first))
    )
    even = 0.95 * halves + 0.05 / length
    judgement = load_classifier()(even[None, None], torch.ones(1, length, dtype=torch.bool), torch.tensor([first]))
    assert PATTERNS[int(judgement.pattern)] == "block"


@pytest.mark.parametrize("left", [False, True])
def test_the_measure_equals_one_map_at_a_time(left: bool) -> None:
    lengths, heads = (12, 40, 8, 7, 23), 4
    attention = random_maps(lengths, heads, 3, left, extra=3)
    real = real_tokens(lengths, 43, left)
    batch = batch_of(real)
    # [CLS] and two separators, the first after a third of the tokens; the last example has one segment.
    firsts = [length // 3 + 1 for length in lengths[:-1]] + [0]
    for row, (length, first) in enumerate(zip(lengths, firsts, strict=True)):
        start = int(real[row].int().argmax())
        batch.special_BS[row, [start + index for index in {0, max(first - 1, 0), length - 1}]] = True
    measure = Patterns(1, heads, margin=0.5)
    measure.update(Passed(0, batch, attention))
    grid = measure.compute()
    assert grid.columns == NAMES
    classifier = load_classifier()
    for head in range(heads):
        patterns = []
        for row, length in enumerate(lengths):
            if length >= 8:
                alone = cropped(attention, real, row, head)[None, None]
                first_segment_B = torch.tensor([firsts[row]])
                probability = classifier(alone, real_tokens((length,), length), first_segment_B).probability_P[0, 0]
                best, second = sorted(probability.tolist(), reverse=True)[:2]
                patterns.append(UNCERTAIN if best - second < 0.5 else PATTERNS[int(probability.argmax())])
        assert (grid.count_LHC[0, head] == 4).all()
        expected = [patterns.count(name) / 4 for name in NAMES]
        assert grid.value_LHC[0, head].tolist() == pytest.approx(expected)
        # The standard error of a share p of n: sqrt(p (1 - p) / (n - 1)).
        errors = [(share * (1 - share) / 3) ** 0.5 for share in expected]
        assert grid.stderr_LHC[0, head].tolist() == pytest.approx(errors)


def test_a_set_of_short_maps_has_no_patterns_and_logs_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    measure = Patterns(1, 2)
    measure.update(Passed(0, batch_of(real_tokens((7, 5), 7)), random_maps((7, 5), 2, 0)))
    with caplog.at_level(logging.WARNING):
        grid = measure.compute()
    assert grid.value_LHC.isnan().all()
    assert "has 8 tokens, the minimum for a pattern" in caplog.text


def test_autocast_does_not_round_the_maps() -> None:
    classifier = load_classifier()
    attention, real = random_maps((33, 21), 3, 4), real_tokens((33, 21), 33)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = classifier(attention, real).probability_P
    assert torch.equal(rounded, classifier(attention, real).probability_P)


def test_the_shipped_weights_are_small() -> None:
    assert (SHIPPED / WEIGHTS).stat().st_size < 1_000_000


def test_classifiers_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no readable pattern classifier"):
        Patterns(1, 1, classifier=str(tmp_path))
    for name in (WEIGHTS, CARD):
        shutil.copy(SHIPPED / name, tmp_path)
    card = json.loads((tmp_path / CARD).read_text())
    (tmp_path / CARD).write_text(json.dumps({**card, "bins": 32}))
    with pytest.raises(UserError, match="was trained with bins 32"):
        load_classifier(tmp_path)
    with pytest.raises(UserError, match=r"Patterns.margin is .wide."):
        Patterns(1, 1, margin="wide")
    with pytest.raises(UserError, match=r"Patterns.margin is 2"):
        Patterns(1, 1, margin=2)
