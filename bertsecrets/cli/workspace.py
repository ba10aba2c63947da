"""A W&B workspace and a report template for the results that sweeps log."""

import json
from typing import Any

from omegaconf import DictConfig
from rich.console import Console

from bertsecrets.cli.build import run_folder
from bertsecrets.errors import UserError
from bertsecrets.results.files import atomic_write
from bertsecrets.results.wandb import STEP
from bertsecrets.sweeps.output_folder import keep_results

_SCORES = [f"val/{metric}" for metric in ("accuracy", "f1", "matthews", "pearson", "spearman")]
_SCORES += ["mnli_m/accuracy", "mnli_mm/accuracy"]
_DRIFT = ["drift/cosine/heatmap", "drift/jensen_shannon/heatmap"]
_VERDICTS = ("worst_delta", "n_needed", "n_dispensable", "n_inconclusive", "n_significant_gain")
_EFFECTS = [f"ablation/{name}" for name in _VERDICTS]


def save_workspace(config: DictConfig) -> None:
    """Create both in the project ``workspace`` (``entity/project``), restricted to the sweep ``group`` if it is set.

    The workspace's specification is written to the run's folder as well.

    Raises:
        UserError: If the extra is not installed, or the server cannot be reached.
    """
    entity, _, project = str(config.workspace).partition("/")
    folder = run_folder()
    workspace, report = build_workspace(entity, project, config.group), build_report(entity, project, config.group)
    # The specification is of use even if nobody is logged in.
    keep_results()
    with atomic_write(folder / "wandb_workspace.json") as temporary:
        temporary.write_text(json.dumps(specification(workspace), indent=1), "utf-8")
    Console().print(f"Specification: {folder / 'wandb_workspace.json'}", soft_wrap=True)
    for page in (workspace, report):
        try:
            page.save()
        except Exception as error:
            # The library raises a bare Exception if nobody is logged in.
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
            raise UserError(
                f"W&B did not accept the {type(page).__name__.lower()} ({reason}); log in with `wandb login` and run this "
                "again where the server can be reached."
            ) from error
        Console().print(f"{type(page).__name__}: {page.url}", soft_wrap=True)


def build_workspace(entity: str, project: str, group: str | None) -> Any:
    """Build a workspace: scores with seeds as a band, heatmaps side by side by task, effects of disabling.

    Raises:
        UserError: If ``wandb-workspaces`` is not installed.
    """
    _, ws = _library()
    sections = [
        ws.Section(name="Scores, seeds as a band", panels=_score_panels(), is_open=True),
        ws.Section(name="Drift, side by side by task", panels=_drift_panels(), is_open=True),
        ws.Section(name="Disabling heads", panels=_effect_panels(), is_open=True),
    ]
    runs = ws.RunsetSettings(filters=_of_group(group), groupby=[ws.Config("task.name"), ws.Config("init")])
    return ws.Workspace(entity=entity, project=project, name="bertsecrets", sections=sections, runset_settings=runs)


def build_report(entity: str, project: str, group: str | None) -> Any:
    """Build a report with the same panels and short explanations.

    Raises:
        UserError: If ``wandb-workspaces`` is not installed.
    """
    wr, _ = _library()
    runs = wr.Runset(
        entity=entity,
        project=project,
        name=group or "all runs",
        filters=_of_group(group),
        groupby=["config.task.name", "config.init"],
    )
    parts = [
        ("Scores", "Each line is a task and an initialisation; the band spans its seeds.", _score_panels()),
        (
            "Which heads changed",
            "Similarity with the maps before fine-tuning. Layers and heads are counted from 0.",
            _drift_panels(),
        ),
        (
            "Which heads matter",
            "Change of score when a head is disabled; effects that may be chance are pale. The heads that changed need not be the "
            "heads that matter.",
            _effect_panels(),
        ),
    ]
    blocks: list[Any] = [wr.TableOfContents()]
    for title, text, panels in parts:
        blocks += [wr.H1(title), wr.P(text), wr.PanelGrid(runsets=[runs], panels=panels)]
    return wr.Report(
        entity=entity, project=project, title="What fine-tuning did to each head", width="fluid", blocks=blocks
    )


def specification(page: Any) -> dict[str, Any]:
    """The specification that the library would send to the server."""
    spec: dict[str, Any] = json.loads(page._to_model().model_dump_json(by_alias=True, exclude_none=True))
    return spec


def _of_group(group: str | None) -> Any:
    _, ws = _library()
    return ws.And(ws.Metric("Group") == group) if group else []


def _score_panels() -> list[Any]:
    wr, _ = _library()
    return [
        wr.LinePlot(
            title=name,
            x=STEP,
            y=[name],
            groupby_aggfunc="mean",
            groupby_rangefunc="minmax",
            layout=wr.Layout(x=8 * (place % 3), y=6 * (place // 3), w=8, h=6),
        )
        for place, name in enumerate(_SCORES)
    ]


def _drift_panels() -> list[Any]:
    wr, _ = _library()
    return [
        wr.MediaBrowser(title=name, media_keys=[name], num_columns=3, layout=wr.Layout(x=0, y=12 * place, w=24, h=12))
        for place, name in enumerate(_DRIFT)
    ]


def _effect_panels() -> list[Any]:
    wr, _ = _library()
    bars = [
        wr.BarPlot(title=name, metrics=[name], layout=wr.Layout(x=8 * (place % 3), y=6 * (place // 3), w=8, h=6))
        for place, name in enumerate(_EFFECTS)
    ]
    pictures = wr.MediaBrowser(
        title="drift against effect of disabling",
        media_keys=["ablation/drift_against_ablation"],
        num_columns=3,
        layout=wr.Layout(x=0, y=12, w=24, h=12),
    )
    return [*bars, pictures]


def _library() -> tuple[Any, Any]:
    try:
        import wandb_workspaces.reports.v2 as reports
        import wandb_workspaces.workspaces as workspaces
    except ImportError as error:
        raise UserError("Workspaces need wandb-workspaces; run pip install 'bertsecrets[sweeps]'.") from error
    return reports, workspaces
