"""The report of a run: which weights its numbers are of."""

from pathlib import Path

import numpy as np
import pytest
from comparison.runs import make_run
from omegaconf import DictConfig, OmegaConf

from bertsecrets.doors.scores import RunScores, SetScores
from bertsecrets.doors.summary import summarise
from bertsecrets.results.run import Run


@pytest.mark.parametrize(("scored", "told"), [(9, False), (4, True)])
def test_scores_of_other_weights_than_those_whose_change_is_shown_are_told(
    tmp_path: Path, scored: int, told: bool
) -> None:
    # Drift is known at steps 4 and 9; the best checkpoint may be of either.
    folder = make_run(tmp_path / "run", cosine_LH=np.full((2, 3), 0.9))
    config = OmegaConf.merge(OmegaConf.load(folder / "config.yaml"), {"report": {"heads": 2}})
    assert isinstance(config, DictConfig)
    config.trainer.max_epochs = 1
    scores = RunScores({"val": SetScores(408, {"accuracy": 0.8}, {"accuracy": 0.68})}, "x", scored, 3.5)
    lead = summarise(Run(folder, "run", "minilm", "mrpc", "pretrained"), scores, heads=2, config=config).report.lead
    of_weights = [line for line in lead if "weights of step" in line]
    assert len(of_weights) == told
    if told:
        assert "weights of step 4," in of_weights[0]
        assert "changed is of step 9" in of_weights[0]
