"""One, two and three processes give the same metrics and grids on real development sets."""

import json
from pathlib import Path

import numpy as np
import pytest
from cli.runs import door

from bertsecrets.results.table import HeadTable

COLUMNS = ("cosine", "jensen_shannon", "cls_cosine", "cls_jensen_shannon")


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(("task", "count"), [("cola", 1043), ("rte", 277), ("mrpc", 408)])
def test_world_sizes_agree_on_real_data(task: str, count: int, glue: Path, tmp_path: Path) -> None:
    given = [f"task={task}", "data=tsv", f"data.root={glue}", "model=minilm", "logger=csv", "progress=false"]
    little = ["data.limit_train=128", "data.limit_eval=32", "trainer.max_epochs=1", "callbacks=none"]
    result = door("train", *given, *little, f"hydra.run.dir={tmp_path / 'run'}", timeout=600)
    assert result.returncode == 0, result.stderr
    sizes = ["trainer=ddp_cpu", "trainer.devices=1,2,3", f"checkpoint={tmp_path / 'run'}", "analysis=drift"]
    sweep = ["-m", f"hydra.sweep.dir={tmp_path / 'sweep'}", "hydra.sweep.subdir=${trainer.devices}"]
    result = door("analyze", *given, *sizes, *sweep, timeout=1200)
    assert result.returncode == 0, result.stderr
    scores = [json.loads((tmp_path / "sweep" / str(n) / "scores.json").read_text())["sets"]["val"] for n in (1, 2, 3)]
    tables = [HeadTable.read(tmp_path / "sweep" / str(n) / "heads.parquet") for n in (1, 2, 3)]
    for other in (1, 2):
        assert scores[other]["count"] == scores[0]["count"] == count
        for metric, value in scores[0]["model"].items():
            assert scores[other]["model"][metric] == pytest.approx(value, abs=1e-6), metric
        for column in COLUMNS:
            steps = tables[0].steps("drift", column, "checkpoint")
            one, more = (table.grid("drift", column, "checkpoint", steps[-1]) for table in (tables[0], tables[other]))
            assert np.array_equal(one[2], more[2])
            assert (one[2] == count).all()
            assert np.allclose(one[0], more[0], atol=1e-6)
            assert np.allclose(one[1], more[1], atol=1e-6)
