import json
import math
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
import wandb
from results.test_ablation_table import row
from wandb_log import leaves, read_log

from bertsecrets.grid import HeadGrid
from bertsecrets.present.figures.grids import heatmap
from bertsecrets.present.report.content import FigureBlock
from bertsecrets.present.wandb import (
    STEP,
    define_axes,
    log_ablation,
    log_curves,
    log_figures,
    log_grid,
    log_summary,
    log_table,
)
from bertsecrets.results.ablation_table import AblationTable
from bertsecrets.results.formatting import head_code
from bertsecrets.results.table import SCHEMA, HeadTable


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
        define_axes(run)
        log_grid(run, grid, 63, title="Drift")
        log_grid(run, grid, 126)
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
    for logged in (first, second):
        # Beside one picture and one table: a mean for each layer.
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
    assert metrics["drift/cosine/l00"].step_metric == STEP
    assert metrics["drift/cosine/l00"].options.hidden
    summary: dict[str, object] = {}
    for record in records:
        if record.WhichOneof("record_type") == "summary":
            summary |= leaves(record.summary.update)
    assert summary["accuracy"] == 0.86
    assert "pearson" not in summary
    assert not [name for name in summary if name.startswith(("drift/", "figures/"))]


def test_effects_have_no_mean_over_a_layers_heads(grid: HeadGrid) -> None:
    """It would bear the name of the effect of disabling the whole layer."""
    run, layers = Mock(), HeadGrid("ablation", ("f1",), *(torch.full((12, 1, 1), x) for x in (-0.25, 0.1, 9)), True)
    heads = HeadGrid("ablation", ("f1",), grid.value_LHC, grid.stderr_LHC, grid.count_LHC)
    for part in (heads, layers):
        log_grid(run, part, 5, effects=True)
    of_heads, of_layers = (logged.args[0] for logged in run.log.call_args_list)
    assert of_heads.keys() == {STEP, "ablation/f1/heatmap"}
    assert of_layers == {STEP: 5} | {f"ablation/f1/l{layer:02d}": -0.25 for layer in range(12)}


def test_curves_have_an_axis_of_their_own() -> None:
    run = Mock()
    points = [{"pruning/kept": 4.0, "pruning/a": -0.5, "pruning/b": -0.25}, {"pruning/kept": 8.0, "pruning/a": 0.0}]
    log_curves(run, {"pruning/kept": points})
    assert [logged.args[0] for logged in run.log.call_args_list] == points
    assert {defined.args[0]: defined.kwargs for defined in run.define_metric.call_args_list} == {
        "pruning/kept": {"hidden": True, "summary": "none"},
        "pruning/a": {"step_metric": "pruning/kept", "summary": "none"},
        "pruning/b": {"step_metric": "pruning/kept", "summary": "none"},
    }


def test_names_of_heads_sort_as_the_heads_do() -> None:
    names = [head_code(layer, head) for layer in range(24) for head in range(16)]
    assert names == sorted(names)
    assert head_code(3, None) == "l03"


def test_the_table_of_effects_has_the_words_of_pages_and_says_what_is_not_corrected() -> None:
    run = Mock(summary={})
    log_ablation(run, AblationTable.from_rows([row(verdict="dispensable", low=-0.5, low_simultaneous=-0.75)]))
    table = run.summary["ablation/table"]
    cells = dict(zip(table.columns, table.data[0], strict=True))
    assert (cells["verdict"], cells["low_pointwise"], cells["low_simultaneous"]) == ("can be spared", -0.5, -0.75)
    assert not {"low", "high", "p_value"} & cells.keys()
