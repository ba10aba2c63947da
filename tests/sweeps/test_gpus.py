"""GPUs are dealt out once each; the machine's own list is read, not torch's."""

import threading
import time
from pathlib import Path

from bertsecrets.sweeps.gpus import lease, visible_gpus


def test_each_gpu_goes_to_one_job_at_a_time(tmp_path: Path) -> None:
    busy: set[str] = set()
    most, clashes, guard = 0, [], threading.Lock()

    def job(count: int) -> None:
        nonlocal most
        with lease(count, ["0", "1", "2"], tmp_path) as gpus:
            with guard:
                clashes.extend(busy & set(gpus))
                busy.update(gpus)
                most = max(most, len(busy))
            assert len(gpus) == count
            time.sleep(0.2)
            with guard:
                busy.difference_update(gpus)

    jobs = [threading.Thread(target=job, args=(count,)) for count in (1, 2, 1, 3, 1)]
    for each in jobs:
        each.start()
    for each in jobs:
        each.join(timeout=60)
    assert not any(each.is_alive() for each in jobs)
    assert clashes == []
    assert most == 3


def test_visible_gpus_are_those_of_the_environment_or_the_driver(tmp_path: Path, monkeypatch) -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "2,5"}) == ["2", "5"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": ""}) == []
    monkeypatch.setenv("PATH", str(tmp_path))
    assert visible_gpus({}) == []
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 0\necho 1\n")
    tool.chmod(0o755)
    assert visible_gpus({}) == ["0", "1"]
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert visible_gpus({}) == []
