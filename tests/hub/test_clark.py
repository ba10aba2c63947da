"""Published values of the pre-trained bert-base-uncased (METHODS C1, C2, C4, C5), where its weights can be had.

The paper took pairs of Wikipedia's paragraphs, ours are pairs of questions: heads are compared by name, layers by their curve.
Table 1 is only asserted on its own treebank: BERTSECRETS_WSJ names a folder with section 22 of the Wall Street Journal in
CoNLL-X form with Stanford labels.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from cli.runs import door
from hub.test_published import grids
from numpy.typing import NDArray

from bertsecrets.measures.dependency.record import DependencyRecord
from bertsecrets.measures.entropy import Entropy
from bertsecrets.measures.offsets import Offsets
from bertsecrets.measures.surface import Surface
from bertsecrets.papers.clark2019 import published

pytestmark = [pytest.mark.hub, pytest.mark.timeout(1800)]


def highest(value_LH: NDArray[np.float64], count: int) -> set[tuple[int, ...]]:
    places = np.argsort(-value_LH, axis=None)[:count]
    return {tuple(map(int, np.unravel_index(place, value_LH.shape))) for place in places}


def test_heads_of_neighbours(glue: Path) -> None:
    found = grids(glue, [Offsets(12, 12, mean_over="tokens")], None)
    assert highest(found["previous"], 4) == set(published.PREVIOUS)
    assert highest(found["next"], 5) == set(published.NEXT)
    assert min(found["next"][head] for head in ((2, 0), (2, 9))) > 0.85


def test_curves_of_special_tokens_and_entropy(glue: Path) -> None:
    found = grids(glue, [Surface(12, 12), Entropy(12, 12)], None)
    curves = {
        "cls": published.CLS,
        "sep_total": published.SEPARATOR,
        "sep_to_sep": published.SEP_TO_SEP,
        "other_to_sep": published.OTHER_TO_SEP,
        "bits": published.ENTROPY,
    }
    for column, theirs in curves.items():
        mean_L = np.nanmean(found[column], axis=1)
        assert np.corrcoef(mean_L, theirs)[0, 1] > 0.8, column
    separator_L, itself_L = (np.nanmean(found[column], axis=1) for column in ("sep_total", "sep_to_sep"))
    assert (separator_L[5:9] > 0.5).all()
    assert (itself_L[4:9] > 0.8).all()


def test_table_1_on_the_wall_street_journal(tmp_path: Path) -> None:
    folder = os.environ.get("BERTSECRETS_WSJ")
    if folder is None:
        pytest.skip("BERTSECRETS_WSJ names no folder of the paper's treebank")
    weights = os.environ.get("BERTSECRETS_BERT_BASE", "bert-base-uncased")
    words = ["checkpoint=initial", "analysis=dependency", "task=treebank", f"data.root={folder}", "model=bert_base"]
    done = door(
        "analyze.py", *words, f"model.path={weights}", "logger=none", f"hydra.run.dir={tmp_path}/run", timeout=1800
    )
    assert done.returncode == 0, done.stderr
    record = DependencyRecord.read(json.loads((tmp_path / "run" / "dependency.json").read_text())["model"])
    assert record is not None
    scores = {score.relation: score for score in record.relations}
    for relation, (accuracy, baseline, _) in published.RELATIONS.items():
        score = scores[relation]
        assert 100 * score.chosen_on_all == pytest.approx(accuracy, abs=2.0), relation
        assert 100 * score.baseline_on_all == pytest.approx(baseline, abs=2.0), relation
    for relation in ("det", "dobj", "pobj", "poss", "auxpass"):
        assert (scores[relation].layer, scores[relation].head) == published.RELATIONS[relation][2]
