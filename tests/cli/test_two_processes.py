"""Analyses by two processes find what one process finds: every table of the run's folder."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from cli.runs import ran

pytestmark = pytest.mark.slow

LITTLE = [
    "logger=csv",
    "progress=false",
    "report.figures=0",
    "measure=[]",
    "ablation.resamples=100",
    "ablation.permutations=100",
]
PRUNING = ["prune.step=0.3", "prune.seeds=1", "prune.examples=33", "prune.latency_rounds=0", "prune.iterative=true"]
MEASURED = "[exact,head_gradient/token_normalised,first_order/mean,relevance,direct_effect,shapley]"
ANALYSES = {
    "importance": [
        "analysis=shapley",
        "analysis.shapley.permutations=3",
        "analysis.shapley.max_examples=null",
        "+analysis.relevance._target_=bertsecrets.importance.relevance.RelevanceOfHeads",
        "+analysis.direct_effect._target_=bertsecrets.ablation.direct.EffectsOfHeads",
        "ablation.mode=resample",
        "ablation.reference_examples=40",
    ],
    "sinks-and-probes": [
        "analysis=sinks",
        "analysis.sinks.attention=0.03",
        "+analysis.probes._target_=bertsecrets.probes.analysis.TrainProbes",
        "+analysis.probes.epochs=1",
        "+analysis.probes.probes=[attention,distances_words]",
        "+analysis.probes.replicates=50",
    ],
    "disabling": ["analysis=disable"],
    "pruning": ["analysis=prune", *PRUNING, f"prune.scores={MEASURED}"],
    "gates": ["analysis=gates", "analysis.gates.path=[0.1]", "analysis.gates.steps=6", "analysis.gates.fits=1", "analysis.gates.examples=33"],
}  # fmt: skip

_OF_THE_MACHINE = ("seconds", "speed", "latency")


def tables_of(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The rows of every table of a run, without times, in the order of their texts and whole numbers."""
    tables = {}
    for path in sorted([*folder.glob("*.parquet"), *folder.glob("findings/*.parquet")]):
        rows = [
            {key: value for key, value in _flat(row).items() if not any(word in key for word in _OF_THE_MACHINE)}
            for row in pq.read_table(path).to_pylist()
        ]
        tables[path.relative_to(folder).as_posix()] = sorted(
            rows, key=lambda row: repr([value for value in row.values() if not isinstance(value, float)])
        )
    return tables


def _flat(row: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in row.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


@pytest.mark.parametrize("arguments", [pytest.param(arguments, id=name) for name, arguments in ANALYSES.items()])
def test_two_processes_give_the_tables_of_one(arguments: list[str], trained: Path, tmp_path: Path) -> None:
    found = []
    for name, extra in (("one", ["trainer.accelerator=cpu"]), ("two", ["trainer=ddp_cpu", "trainer.devices=2"])):
        folder, own = tmp_path / name, tmp_path / f"{name}_trained"
        # A second search on the same examples of a run would be held to a stricter level.
        shutil.copytree(trained, own)
        ran("analyze", f"checkpoint={own}", *arguments, *LITTLE, *extra, f"hydra.run.dir={folder}")
        found.append(tables_of(folder))
    one, two = found
    assert one.keys() == two.keys()
    assert any(one.values())
    for name, rows in one.items():
        assert len(rows) == len(two[name]), name
        for first, second in zip(rows, two[name], strict=True):
            for key, value in first.items():
                if isinstance(value, float):
                    # Standard errors of sums of squares lose digits.
                    np.testing.assert_allclose(second[key], value, rtol=1e-4, atol=1e-5, err_msg=f"{name} {key}")
                else:
                    assert second[key] == value, (name, key)
