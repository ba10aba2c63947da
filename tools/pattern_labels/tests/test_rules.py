"""Masses of constructed maps, and thresholds tuned on labels that thresholds gave."""

import numpy as np
import pytest
import torch

from bertsecrets.patterns.classes import PATTERNS
from bertsecrets.patterns.map_features import ONE, UNKNOWN
from tools.pattern_classifier.crossvalidation import tune_rules
from tools.pattern_labels.rules import Rules, masses


def test_masses_of_constructed_maps() -> None:
    length = 20
    uniform = torch.full((length, length), 1 / length)
    column = torch.zeros(length, length)
    column[:, 3] = 1
    halves = torch.block_diag(torch.full((8, 8), 1 / 8), torch.full((12, 12), 1 / 12))
    maps = [uniform, column, torch.eye(length), halves]
    mass_N3 = masses(maps, [UNKNOWN] * 4)
    assert mass_N3[0] == pytest.approx([0, 0, 0], abs=1e-6)
    assert mass_N3[1, 0] == pytest.approx(1 - 3 / length)
    # Of three diagonals with the main one, offsets 0 to 2 have the fewest cells: 3 L - 3 of L^2.
    assert mass_N3[2, 1] == pytest.approx(1 - (3 * length - 3) / length**2)
    assert mass_N3[3, 2] == pytest.approx(1 - (8**2 + 12**2) / length**2)
    assert masses(maps, [8] * 4)[3, 2] == pytest.approx(mass_N3[3, 2])
    # At boundary 10, the first eight rows keep all their weight, the next two 2 of 12, and the last ten 10 of 12.
    within = (8 + 2 * 2 / 12 + 10 * 10 / 12) / length
    assert masses(maps, [10] * 4)[3, 2] == pytest.approx(within - (10**2 + 10**2) / length**2)
    assert masses(maps, [ONE] * 4)[3, 2] == 0


def test_the_default_rules_find_each_pattern() -> None:
    mass = [[0.8, 0.05, 0.1], [0.05, 0.8, 0.3], [0.4, 0.4, 0.2], [0.1, 0.1, 0.45], [0.1, 0.1, 0.1]]
    assert [PATTERNS[number] for number in Rules()(mass)] == list(PATTERNS)


def test_thresholds_are_recovered() -> None:
    mass = np.random.default_rng(0).uniform(0, 0.9, (800, 3))
    truth = Rules(0.3, 0.2, 0.5, 0.44, 0.36)(mass)
    predicted = tune_rules(mass, truth, np.ones(len(mass)))(mass)
    assert (predicted == truth).mean() > 0.97
