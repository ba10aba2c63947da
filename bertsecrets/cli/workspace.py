"""A W&B workspace and a report for the results that sweeps log."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import DictConfig

from bertsecrets.cli.build import run_folder
from bertsecrets.errors import UserError
from bertsecrets.present.console import print_lines
from bertsecrets.present.disabling import counted_verdict
from bertsecrets.present.pruning import CHANGE_OF, KEPT_AXIS
from bertsecrets.present.wandb import STEP
from bertsecrets.results.files import write_text
from bertsecrets.results.verdicts import WORDS
from bertsecrets.sweeps.run_folder import keep_results
from bertsecrets.task_heads import METRICS

_SCORES = [*(f"val/{metric}" for metric in METRICS), "mnli_m/accuracy", "mnli_mm/accuracy"]
_DRIFT = ["drift/cosine/heatmap", "drift/jensen_shannon/heatmap"]
_EFFECTS = ["ablation/worst_delta", *map(counted_verdict, WORDS)]
_EFFECT_PICTURES = {
    "effect of disabling": [f"ablation/{metric}/heatmap" for metric in METRICS],
    "drift against effect of disabling": ["figures/drift_against_ablation"],
}
_TRAINING = ["train/loss", "train/learning_rate"]
_LAYERS = ["gradient_flow/gradient_norm", "gradient_flow/update_ratio", "drift/cosine"]
_GROUPED_BY = ("task.name", "model.name", "init")


def save_workspace(config: DictConfig) -> None:
    """Create both in the ``project`` (``entity/project``), restricted to the sweep ``group`` if set.

    Their specifications are first written to the run's folder, which needs no server.

    Raises:
        UserError: If the extra is not installed, or the server cannot be reached.
    """
    entity, _, project = str(config.project).partition("/")
    folder = run_folder()
    workspace, report = build_workspace(entity, project, config.group), build_report(entity, project, config.group)
    # The specifications are useful even if nobody is logged in.
    keep_results()
    for name, page in (("workspace", workspace), ("report", report)):
        path = folder / f"wandb_{name}.json"
        write_text(path, json.dumps(specification(page), indent=1))
        print_lines(f"Specification: {path}")
    for page in (workspace, report):
        try:
            page.save()
        except Exception as error:
            # The library raises a bare Exception if nobody is logged in.
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
            raise UserError(
                f"W&B did not accept the {type(page).__name__.lower()} ({reason}); log in with `wandb login` and run "
                "this again where the server can be reached."
            ) from error
        print_lines(f"{type(page).__name__}: {page.url}")


def build_workspace(entity: str, project: str, group: str | None) -> Any:
    """Build a workspace, runs grouped by task, model and initialisation, with a section for each part.

    Raises:
        UserError: If ``wandb-workspaces`` is not installed.
    """
    _, ws = _library()
    sections = [ws.Section(name=title, panels=panels, is_open=is_open) for title, _, panels, is_open in _parts()]
    runs = ws.RunsetSettings(filters=_of_group(group), groupby=[ws.Config(name) for name in _GROUPED_BY])
    return ws.Workspace(entity=entity, project=project, name="bertsecrets", sections=sections, runset_settings=runs)


def build_report(entity: str, project: str, group: str | None) -> Any:
    """Build a report with the same panels and short explanations.

    Raises:
        UserError: If ``wandb-workspaces`` is not installed.
    """
    wr, _ = _library()
    # By default the runs come from the report's project, so the server need not be asked.
    runs = wr.Runset(
        entity="",
        project="",
        name=group or "all runs",
        filters=_of_group(group),
        groupby=[f"config.{name}" for name in _GROUPED_BY],
    )
    blocks: list[Any] = [wr.TableOfContents()]
    for title, text, panels, _ in _parts():
        blocks += [wr.H1(title), wr.P(text), wr.PanelGrid(runsets=[runs], panels=panels)]
    return wr.Report(
        entity=entity, project=project, title="What fine-tuning did to each head", width="fluid", blocks=blocks
    )


def _parts() -> list[tuple[str, str, list[Any], bool]]:
    """Title, explanation and panels of each part, and whether a workspace shows it open."""
    wr, _ = _library()
    lines = [{"title": name, "y": [name]} for name in _TRAINING]
    layers = [{"title": f"{name} by layer", "metric_regex": rf"^{name}/l\d+$"} for name in _LAYERS]
    band = {"groupby_aggfunc": "mean", "groupby_rangefunc": "minmax"}
    bars = [
        wr.BarPlot(title=name, metrics=[name], layout=wr.Layout(x=8 * (index % 3), y=6 * (index // 3), w=8, h=6))
        for index, name in enumerate(_EFFECTS)
    ]
    return [
        (
            "Scores",
            "Each line is a task, a model and an initialisation; the band spans its seeds.",
            _line_plots([{"title": name, "y": [name], **band} for name in _SCORES]),
            True,
        ),
        (
            "Which heads changed",
            "Similarity with the maps before fine-tuning; the slider goes through the training steps. Layers and heads "
            "are counted from 0.",
            _pictures({name: [name] for name in _DRIFT}),
            True,
        ),
        (
            "Which heads matter",
            "Change in score when a head is disabled, in hundredths (of accuracy: percentage points); effects that may "
            "be due to chance are pale. The heads that changed need not be the heads that matter.",
            [*bars, *_pictures(_EFFECT_PICTURES, first=1)],
            True,
        ),
        (
            "How many heads can be pruned",
            "Change in score, in hundredths (of accuracy: percentage points), by the number of heads kept.",
            _line_plots([{"title": "change in score by heads kept", "metric_regex": f"^{CHANGE_OF}"}], KEPT_AXIS),
            True,
        ),
        (
            "Training",
            "Learning rate, loss, and gradient norms of the layers before clipping.",
            _line_plots([*lines, *layers]),
            False,
        ),
    ]


def specification(page: Any) -> dict[str, Any]:
    """The specification that the library would send to the server."""
    spec: dict[str, Any] = json.loads(page._to_model().model_dump_json(by_alias=True, exclude_none=True))
    return spec


def _of_group(group: str | None) -> Any:
    _, ws = _library()
    return ws.And(ws.Metric("Group") == group) if group else []


def _line_plots(described: Sequence[Mapping[str, Any]], x: str = STEP) -> list[Any]:
    wr, _ = _library()
    return [
        wr.LinePlot(**lines, x=x, layout=wr.Layout(x=8 * (index % 3), y=6 * (index // 3), w=8, h=6))
        for index, lines in enumerate(described)
    ]


def _pictures(keys_by_title: Mapping[str, Sequence[str]], first: int = 0) -> list[Any]:
    wr, _ = _library()
    return [
        wr.MediaBrowser(title=title, media_keys=keys, num_columns=3, layout=wr.Layout(x=0, y=12 * index, w=24, h=12))
        for index, (title, keys) in enumerate(keys_by_title.items(), first)
    ]


def _library() -> tuple[Any, Any]:
    try:
        import wandb_workspaces.reports.v2 as reports
        import wandb_workspaces.workspaces as workspaces
    except ImportError as error:
        raise UserError("Workspaces need wandb-workspaces; run pip install 'bertsecrets[sweeps]'.") from error
    return reports, workspaces
