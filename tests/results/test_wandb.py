import json
import math
from pathlib import Path

import pytest
import torch
import wandb
from wandb_log import leaves, read_log

from bertsecrets.grid import HeadGrid
from bertsecrets.results.figures.heatmap import heatmap
from bertsecrets.results.formatting import head_code
from bertsecrets.results.report.content import FigureBlock
from bertsecrets.results.table import SCHEMA, HeadTable
from bertsecrets.results.wandb import STEP, define_axis, log_figures, log_grid, log_summary, log_table


@pytest.fixture
def grid() -> HeadGrid:
    value_LHC = torch.rand(12, 4, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    value_LHC[0, 2] = math.nan
    return HeadGrid("drift", ("cosine",), value_LHC, value_LHC / 10, torch.full((12, 4, 1), 408))


def test_an_offline_run_holds_everything_under_stable_names(tmp_path: Path, grid: HeadGrid) -> None:
    table = HeadTable.from_grid(grid, run="r", model="m", task="t", init="i", stage="train", step=63)
    figure = heatmap(grid.column("cosine"), title="t", unit="u", count=408)
    layers = HeadGrid("gradient_flow", ("norm",), *(torch.full((2, 1, 1), x) for x in (0.5, math.nan, 1)), True)
    with wandb.init(mode="offline", dir=tmp_path, project="test", settings=wandb.Settings(silent=True)) as run:
        define_axis(run, "drift")
        log_grid(run, grid, 63, title="Drift")
        log_grid(run, grid, 126, effects=True)
        log_grid(run, layers, 126)
        log_table(run, table)
        log_figures(run, [FigureBlock("scores", figure, "c", "a"), FigureBlock("drift_cosine", figure, "c", "a")])
        log_summary(run, {"accuracy": 0.86, "pearson": math.nan})
    # Only when W&B's service ends is the log sure to be on disk.
    wandb.teardown()
    (log,) = tmp_path.rglob("*.wandb")
    records = list(read_log(log))
    first, second, whole, heads, last = (
        leaves(r.history.item) for r in records if r.WhichOneof("record_type") == "history"
    )
    assert (first[STEP], second[STEP]) == (63, 126)
    scalars = {f"single_heads/drift/cosine/l{layer:02d}h{head:02d}" for layer in range(12) for head in range(4)}
    scalars.remove("single_heads/drift/cosine/l00h02")
    for logged in (first, second):
        assert {name for name in logged if name.startswith("single_heads/")} == scalars
        # Beside the heads, in sections of their own: a mean for each layer, one picture and one table, at every step.
        others = {
            name for name in logged if name.startswith("drift/") and "/heatmap/" not in name and "/table/" not in name
        }
        assert others == {f"drift/cosine/l{layer:02d}" for layer in range(12)}
        image = log.parent / "files" / str(logged["drift/cosine/heatmap/path"])
        assert image.read_bytes().startswith(b"\x89PNG")
        rows = json.loads((log.parent / "files" / str(logged["drift/table/path"])).read_text())
        assert rows["columns"] == ["layer", "head", "cosine", "cosine_stderr"]
        assert rows["data"][2] == [0, 2, None, None]
        value = grid.value_LHC[11, 3, 0].item()
        assert rows["data"][-1] == [11, 3, pytest.approx(value), pytest.approx(value / 10)]
    assert first["single_heads/drift/cosine/l11h03"] == pytest.approx(grid.value_LHC[11, 3, 0].item())
    assert first["drift/cosine/l00"] == pytest.approx(grid.value_LHC[0, [0, 1, 3], 0].mean().item())
    assert {name: value for name, value in whole.items() if name.startswith("gradient_flow/")} == {
        "gradient_flow/norm/l00": 0.5,
        "gradient_flow/norm/l01": 0.5,
    }
    stored = json.loads((log.parent / "files" / str(heads["heads/path"])).read_text())
    assert stored["columns"] == SCHEMA.names
    assert len(stored["data"]) == len(table)
    # Whatever their names, all figures are panels.
    for name in ("scores", "drift_cosine"):
        picture = log.parent / "files" / str(last[f"figures/{name}/path"])
        assert picture.read_bytes().startswith(b"\x89PNG")
    metrics = {m.glob_name or m.name: m for m in (r.metric for r in records if r.WhichOneof("record_type") == "metric")}
    assert metrics["drift/*"].step_metric == metrics["single_heads/drift/*"].step_metric == STEP
    summary: dict[str, object] = {}
    for record in records:
        if record.WhichOneof("record_type") == "summary":
            summary |= leaves(record.summary.update)
    assert summary["accuracy"] == 0.86
    assert "pearson" not in summary


def test_without_a_run_nothing_happens(grid: HeadGrid) -> None:
    define_axis(None, "drift")
    log_grid(None, grid, 0)
    log_table(None, HeadTable.empty())
    log_figures(None, [])
    log_summary(None, {"a": 1})


def test_names_of_heads_sort_as_the_heads_do() -> None:
    names = [head_code(layer, head) for layer in range(24) for head in range(16)]
    assert names == sorted(names)
    assert head_code(3, None) == "l03"
