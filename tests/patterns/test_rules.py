"""The rules' masses on maps whose masses are known, and their thresholds on labels that thresholds made."""

import numpy as np
import pytest
import torch

from bertsecrets.patterns.classes import PATTERNS
from bertsecrets.patterns.rules import Rules, masses, tune
from bertsecrets.patterns.segments import ONE, UNKNOWN


def test_masses_of_plain_maps() -> None:
    length = 20
    uniform = torch.full((length, length), 1 / length)
    column = torch.zeros(length, length)
    column[:, 3] = 1
    halves = torch.block_diag(torch.full((8, 8), 1 / 8), torch.full((12, 12), 1 / 12))
    maps = [uniform, column, torch.eye(length), halves]
    found = masses(maps, [UNKNOWN] * 4)
    assert found[0] == pytest.approx([0, 0, 0], abs=1e-6)
    assert found[1, 0] == pytest.approx(1 - 3 / length)
    # Of three diagonals with the main one, offsets 0 to 2 have the fewest cells: 3 L - 3 of L^2.
    assert found[2, 1] == pytest.approx(1 - (3 * length - 3) / length**2)
    assert found[3, 2] == pytest.approx(1 - (8**2 + 12**2) / length**2)
    assert masses(maps, [8] * 4)[3, 2] == pytest.approx(found[3, 2])
    # The first ten rows keep 8 of their 10 to themselves at the boundary 10, the others all.
    within = (8 + 2 * 2 / 12 + 10 * 10 / 12) / length
    assert masses(maps, [10] * 4)[3, 2] == pytest.approx(within - (10**2 + 10**2) / length**2)
    assert masses(maps, [ONE] * 4)[3, 2] == 0


def test_rules_name_the_plain_maps() -> None:
    mass = [[0.8, 0.05, 0.1], [0.05, 0.8, 0.3], [0.4, 0.4, 0.2], [0.1, 0.1, 0.45], [0.1, 0.1, 0.1]]
    assert [PATTERNS[number] for number in Rules()(mass)] == list(PATTERNS)


def test_thresholds_are_found_again() -> None:
    mass = np.random.default_rng(0).uniform(0, 0.9, (800, 3))
    truth = Rules(0.3, 0.2, 0.5, 0.44, 0.36)(mass)
    found = tune(mass, truth, np.ones(len(mass)))(mass)
    assert (found == truth).mean() > 0.97
