"""A sentence-embedding model in ``analyze.py``: its heads are measured, or judged by the cosines of pairs."""

from dataclasses import replace
from typing import Any

from bertsecrets.ablation.replacements import check_embedder_mode
from bertsecrets.ablation.sweep import SIMILAR_GROUPS, DisableAnalysis
from bertsecrets.cli.settings import AnalyzeSettings
from bertsecrets.cli.targets import load_target, make
from bertsecrets.data.task import Task
from bertsecrets.errors import UserError
from bertsecrets.measures.capture import CaptureAnalysis
from bertsecrets.models.sentence_embedder import embedder_spec, is_embedder_folder, is_setfit_folder
from bertsecrets.models.spec import INITIAL, find_checkpoint


def embedder_settings(settings: AnalyzeSettings) -> AnalyzeSettings | None:
    """The settings with which a sentence-embedding model is analysed; None if the checkpoint is another model.

    What reads no labels, such as measures, is taken of each sentence by itself. Without an analysis, every head and
    layer is disabled.

    Raises:
        UserError: If such a model cannot be analysed in this way, or its folder cannot be read.
    """
    checkpoint = settings.keys.checkpoint
    if checkpoint in (None, INITIAL):
        return None
    path = find_checkpoint(str(checkpoint), settings.model.revision)
    if not path.is_dir() or not is_embedder_folder(path):
        return None
    callbacks = dict(settings.callbacks)
    kinds: dict[str, Any] = {name: load_target(f"analysis.{name}", section) for name, section in callbacks.items()}
    only_drift = [measure.name for measure in settings.measures] == ["drift"] and settings.keys.reference is None
    if only_drift and {*kinds.values()} <= {CaptureAnalysis}:
        # The default measures compare with a pretrained model, which such a folder does not name.
        callbacks["disable"] = {"_target_": f"{DisableAnalysis.__module__}.{DisableAnalysis.__name__}"}
        kinds["disable"] = DisableAnalysis
    judging = [name for name, kind in kinds.items() if getattr(kind, "without_labels", "")]
    spec = embedder_spec(path).model_copy(update={"family": settings.model.family})
    if not judging:
        return replace(settings, model=spec, task=settings.task.without_labels)
    _check_task(settings.task, str(checkpoint), is_setfit_folder(path))
    for name in judging:
        if kinds[name] is not DisableAnalysis:
            raise UserError(
                f"analysis.{name} is not available for a sentence-embedding model; choose analysis=disable, "
                "disable_heads, disable_layers or disable_groups, or measures, e.g. measure=[entropy]."
            )
        _check_sweep(settings, make(callbacks[name], ablation=settings.ablation))
    # Maps are of single sentences, and the sets are of pairs.
    kept = {name: section for name, section in callbacks.items() if kinds[name] is not CaptureAnalysis}
    return replace(settings, model=spec, callbacks=kept, measures=())


def _check_task(task: Task, checkpoint: str, is_setfit: bool) -> None:
    """Raise UserError if a task does not judge sentence-embedding models."""
    if task.is_regression and task.texts == 2:
        return
    what = "is a sentence-embedding model"
    if is_setfit:
        what = (
            "is a SetFit model, whose head is a pickle that could run any code and is not read; its body is a "
            "sentence-embedding model"
        )
    raise UserError(
        f"'{checkpoint}' {what}, which task '{task.name}' cannot judge: it has no similarity scores of sentence pairs; "
        "choose task=stsb or task=demo_similarity, or measure its heads, e.g. measure=[entropy]."
    )


def _check_sweep(settings: AnalyzeSettings, sweep: DisableAnalysis) -> None:
    """Raise UserError if a sweep is not available for a sentence-embedding model."""
    ablation = settings.ablation
    check_embedder_mode(ablation)
    screened = ablation.sweep == "screened" or ablation.precision is not None
    if screened or ablation.budget is not None or ablation.plan_only:
        raise UserError(
            "Screened, budgeted and plan-only sweeps are not available for a sentence-embedding model; remove "
            "ablation.sweep, ablation.precision, ablation.budget and ablation.plan_only."
        )
    if SIMILAR_GROUPS in sweep.plans:
        raise UserError("Groups of heads with similar maps are not available for a sentence-embedding model.")
    for measure in settings.measures:
        if measure.name != "drift":
            raise UserError(
                f"measure={measure.name} of a sentence-embedding model is taken of single sentences, and heads are "
                "judged by pairs; run one command for each."
            )
