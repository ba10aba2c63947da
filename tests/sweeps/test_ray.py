"""``launcher=ray`` on a Ray of two nodes on this machine, one of which is killed. Needs an environment with the extra
``ray``.
"""

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.runs import ran, start
from shared import wait_for
from sweeps.sweeps import sweep_arguments

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs pip install -e '.[ray]'"),
]


@pytest.fixture
def cluster() -> Iterator[Any]:
    """Two nodes, each with room for one job."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        yield cluster
    finally:
        cluster.shutdown()


def arguments(folder: Path, model: Path, *settings: str) -> list[str]:
    return sweep_arguments(model, folder, "seed=1,2", *settings, trainer__max_epochs=30, data__limit_train=90)


def scores(folder: Path) -> dict[str, Any]:
    """By job, all but how long it took."""
    read = {path.parent.name: json.loads(path.read_text()) for path in folder.glob("*/scores.json")}
    return {job: {key: value for key, value in content.items() if key != "seconds"} for job, content in read.items()}


def test_jobs_of_a_lost_node_finish_on_another_with_the_numbers_of_a_local_sweep(
    cluster: Any, tiny_bert: Path, tmp_path: Path
) -> None:
    node = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    folder = tmp_path / "ray"
    address = f"hydra.launcher.ray.init.address='{cluster.address}'"
    sweep = start(*arguments(folder, tiny_bert, "launcher=ray", address))
    wait_for(lambda: len([*folder.glob("*/checkpoints/last.ckpt")]) == 2, 600)
    cluster.remove_node(node, allow_graceful=False)
    output, errors = sweep.communicate(timeout=900)
    assert sweep.returncode == 0, errors
    assert "2 finished, 0 skipped, 0 failed" in output, output
    # One job began once, that of the lost node twice.
    assert sorted(len([*job.glob("csv/attempt_*")]) for job in folder.glob("*/") if (job / "csv").is_dir()) == [1, 2]
    ran("train", *arguments(tmp_path / "local", tiny_bert), timeout=900)
    assert scores(folder) == scores(tmp_path / "local")
