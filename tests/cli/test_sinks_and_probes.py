"""Sink heads and probes by one process and by two."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.runs import door, small

from bertsecrets.results.run import Run

SCORED = ("words", "sentences", "trained_on", "differences", "vectors")


def analysed(model: Path, folder: Path, *settings: str) -> tuple[Run, dict[str, Any], dict[str, Any]]:
    """The run of both analyses with their records; all heads are sinks, and any effect counts."""
    kept = [
        word for word in small(model, folder) if not word.startswith(("trainer.", "data.limit_train", "task.training"))
    ]
    words = ["checkpoint=initial", "analysis=sinks", "measure=[]", "analysis.sinks.attention=0.03", *kept, *settings]
    words += ["+analysis.probes._target_=bertsecrets.probes.analysis.TrainProbes", "+analysis.probes.epochs=1"]
    words += ["+analysis.probes.probes=[attention,distances_words]", "+analysis.probes.replicates=50"]
    done = door("analyze", *words, "data.limit_train=40", "data.limit_eval=21")
    assert done.returncode == 0, done.stderr
    records = [json.loads((folder / f"{name}.json").read_text("utf-8"))["model"] for name in ("sinks", "probes")]
    return Run.open(folder), records[0], records[1]


@pytest.mark.slow
def test_two_processes_find_what_one_finds(tiny_bert: Path, tmp_path: Path) -> None:
    one, sinks, probes = analysed(tiny_bert, tmp_path / "one", "trainer.accelerator=cpu")
    two, shared, probed = analysed(tiny_bert, tmp_path / "two", "trainer=ddp_cpu", "trainer.devices=2")
    assert sinks["tokens"]["cls"]["heads"]
    assert {name: part for name, part in probed.items() if name in SCORED} == {name: probes[name] for name in SCORED}
    for name, token in sinks["tokens"].items():
        theirs = shared["tokens"][name]["heads"]
        assert [(head["layer"], head["head"]) for head in theirs] == [
            (head["layer"], head["head"]) for head in token["heads"]
        ]
    whole, halves = (
        {
            (row["measure"], row["column"], row["layer"], row["head"]): (row["value"], row["stderr"], row["count"])
            for row in run.table().table.to_pylist()
            if row["measure"] in ("sinks", "probes")
        }
        for run in (one, two)
    )
    assert whole.keys() == halves.keys()
    assert {key[0] for key in whole} == {"sinks", "probes"}
    np.testing.assert_allclose(
        np.array([halves[key] for key in whole], float), np.array([whole[key] for key in whole], float), 1e-4, 1e-6
    )
