"""Analyse a finished checkpoint: the numbers, figures and report of training, without training."""

import logging
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from pytorch_lightning.utilities import rank_zero_info, rank_zero_warn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from bertsecrets.ablation.replacements import check_embedder_mode
from bertsecrets.ablation.sweep import SIMILAR_GROUPS, DisableAnalysis
from bertsecrets.cli.build import (
    begin,
    check_model,
    check_trainer,
    make_callbacks,
    make_watcher,
    run_folder,
)
from bertsecrets.cli.finish import finish, open_trainer
from bertsecrets.cli.rows import record_rows
from bertsecrets.cli.run_settings import run_of
from bertsecrets.cli.settings import AnalyzeSettings, ModelSettings, read_analyze
from bertsecrets.cli.targets import load_target, make
from bertsecrets.data.task import Task
from bertsecrets.errors import UserError
from bertsecrets.keys import ViewKeys
from bertsecrets.measures.base import Need
from bertsecrets.measures.capture import CaptureAnalysis
from bertsecrets.models.checkpoint import OUTPUTS, Checkpoint, initial_checkpoint, load_checkpoint
from bertsecrets.models.classifier import SequenceClassifier
from bertsecrets.models.loading import check_vocabulary, load_masked_lm, load_model
from bertsecrets.models.origin import check_folder_origin, check_origin, check_same_size
from bertsecrets.models.sentence_embedder import SentenceEmbedder, embedder_spec, is_embedder_folder, is_setfit_folder
from bertsecrets.models.settings import OptimizerConfig
from bertsecrets.models.spec import INITIAL, RANDOM_INIT, ModelSpec, find_checkpoint
from bertsecrets.results.files import displayed, resume_command
from bertsecrets.results.run import FINISHED, TRAINING, Run, is_first_process, plain, write_config
from bertsecrets.sweeps.run_folder import exclusive_run

_log = logging.getLogger(__name__)


def analyze(config: DictConfig) -> dict[str, dict[str, float]]:
    """Run the chosen analyses of one checkpoint in Hydra's output folder; return its scores.

    If the checkpoint belongs to a run, the run's own measurements of the same kind are copied too.

    Raises:
        UserError: If a setting or the data are wrong; raised before a model is loaded where possible.
    """
    folder = run_folder()
    settings = read_analyze(plain(config))
    check_trainer(settings)
    with exclusive_run(config, folder):
        return _analyze(config, settings, folder)


def _analyze(config: DictConfig, settings: AnalyzeSettings, folder: Path) -> dict[str, dict[str, float]]:
    started = time.monotonic()
    embeds = embedder_settings(settings)
    # Labels are read also where they are not used.
    read, settings = settings.task, embeds or settings
    keys, task, spec = settings.keys, settings.task, settings.model
    if is_first_process():
        _log.info(f"Analysing {keys.checkpoint} ({spec.name} on {task.name}) in {displayed(folder)}")
    path = None if keys.checkpoint == INITIAL else find_checkpoint(str(keys.checkpoint), spec.revision)
    if keys.reference is None and _is_its_own_origin(path, spec):
        settings = _without_origin(settings)
    tokenizer, data = begin(replace(settings, task=read), apart=embeds is not None)
    checkpoint, reference = load_models(settings, tokenizer)
    longest = settings.training["max_length"]
    if isinstance(checkpoint.model, SentenceEmbedder):
        longest = checkpoint.model.max_length
        data.encode_apart(longest, judged=task.is_labelled)
        task = data.task
    for note in checkpoint.notes:
        rank_zero_info(note)
    data.remarks += checkpoint.notes
    record = checkpoint.record
    init, seed = record.get("init", keys.init), record.get("seed", keys.seed)
    check_model(checkpoint.model, longest)

    origin = run_of(keys.checkpoint)
    if origin is not None and not (origin.folder / FINISHED).is_file():
        rank_zero_warn(
            f"The run in '{displayed(origin.folder)}' is not finished, so these numbers describe its last checkpoint; "
            f"continue it with {resume_command(origin.folder)}."
        )
    run = Run(folder, record.get("name", keys.name), spec.name, task.name, init, is_first_process(), seed)
    record_rows(data, folder)
    if run.writes:
        run.folder.mkdir(parents=True, exist_ok=True)
        recorded = config.copy()
        trained = {"name": run.name, "init": init, "seed": seed}
        if path is not None and path.is_file():
            trained["folder"] = str(path.parent.parent.resolve())
        if embeds is not None:
            revision = settings.config["model"]["revision"]
            recorded.model = {**spec.model_dump(), "path": str(keys.checkpoint), "revision": revision}
            if not task.is_labelled:
                recorded.task = {**recorded.task, "labels": [], "label_range": None, "metrics": []}
        if OUTPUTS in record:
            trained[OUTPUTS] = record[OUTPUTS]
        if origin is not None:
            trained["layer_decay"] = origin.config().get("optimizer", {}).get("layer_decay", 1.0)
            trained["attention_dropout"] = origin.config()["model"].get("attention_dropout")
        OmegaConf.update(recorded, "trained", trained, force_add=True)
        write_config(recorded, folder)
    module = SequenceClassifier(
        checkpoint.model,
        task,
        OptimizerConfig.read("optimizer", {"learning_rate": 1e-5}),
        data.evaluation_names,
        record={**record, "step": record.get("step", 0)},
        seed=seed,
    )
    untrained = partial(load_model, spec, task, RANDOM_INIT, seed)
    masked_lm = partial(load_masked_lm, spec, init)
    callbacks = [
        *make_watcher(
            settings,
            run=run,
            reference=reference,
            random=untrained,
            masked_lm=masked_lm,
            reference_name=None if keys.reference is None else Path(keys.reference).name,
        ),
        *make_callbacks(
            settings.callbacks,
            run=run,
            # Callbacks label its results as those before fine-tuning.
            reference=reference if keys.reference is None else None,
            origin=origin,
            **settings.offered,
        ),
    ]
    with open_trainer(settings, run, callbacks) as trainer:
        trainer.validate(module, datamodule=data, verbose=False)
        # The model may be analysed on sentences of another task, where its training history does not belong.
        if path is not None and path.is_file() and record["task"] == task.name:
            training = Run(path.parent.parent, run.name, run.model, run.task, run.init, writes=False)
            if run.writes and training.heads_path.is_file():
                history = training.table().select(stage=TRAINING)
                # Only this analysis's experiments; the run's own report has the others.
                run.add(*(history.select(measure=declaration.name) for declaration in run.declarations()))
        finish(run, module, data, trainer, settings, seconds=time.monotonic() - started)
    return module.scores


def load_models(
    settings: AnalyzeSettings | ModelSettings[ViewKeys], tokenizer: PreTrainedTokenizerFast
) -> tuple[Checkpoint, PreTrainedModel | None]:
    """The checkpoint to analyse, and the model to compare it with: ``reference``, or the model it was fine-tuned from,
    if known.

    Raises:
        UserError: If one of them cannot be loaded, or they or the tokenizer do not fit together.
    """
    keys, task, spec = settings.keys, settings.task, settings.model
    path = None if keys.checkpoint in (None, INITIAL) else find_checkpoint(str(keys.checkpoint), spec.revision)
    if path is None:
        checkpoint = initial_checkpoint(task, spec, keys.init, keys.seed)
    else:
        checkpoint = load_checkpoint(path, task, spec)
    record = checkpoint.record
    init, seed = record.get("init", keys.init), record.get("seed", keys.seed)
    reference: PreTrainedModel | None = None
    if keys.reference is not None:
        named = Path(keys.reference)
        if named.is_file() or (named / "checkpoints").is_dir():
            reference = load_checkpoint(find_checkpoint(named), task, spec).model
        else:
            other = ModelSpec(name="reference", path=keys.reference, family=spec.family)
            reference = load_model(other, task, "pretrained", seed)
        check_same_size(checkpoint.model, reference)
        check_vocabulary(tokenizer, reference.config, keys.reference)
    elif not _is_its_own_origin(path, spec):
        reference = load_model(spec, task, init, seed)
        if path is not None and path.is_file():
            check_origin(record, reference, spec.name, path)
        elif path is not None and init != RANDOM_INIT:
            check_folder_origin(checkpoint.model, reference, spec.name, path)
    check_vocabulary(tokenizer, checkpoint.model.config, keys.name)
    return checkpoint, reference


def _is_its_own_origin(path: Path | None, spec: ModelSpec) -> bool:
    """Whether only the checkpoint's own folder is given, so that its pretrained model is unknown."""
    folder = spec.folder() or Path(spec.locate())
    return path is not None and path.is_dir() and path.resolve() == folder.resolve()


def _without_origin(settings: AnalyzeSettings) -> AnalyzeSettings:
    """The settings without measures that compare with the model before fine-tuning, which is unknown.

    Raises:
        UserError: If no other measure remains, or ``compare_with`` asks for that model.
    """
    keys = settings.keys
    compared = [name for name, one in settings.measures.items() if Need.REFERENCE in one.make(1, 1).needs]
    kept = {name: one for name, one in settings.measures.items() if name not in compared}
    unknown = f"The pretrained model of '{keys.checkpoint}' is unknown"
    known = "name it with model=<name>, or another model with reference=<folder>"
    if INITIAL in keys.compare_with:
        raise UserError(f"{unknown}, so compare_with=[initial] is not possible; {known}.")
    if compared and not kept and not settings.callbacks:
        raise UserError(f"{unknown}, but needed by {' and '.join(compared)}; {known}.")
    if compared:
        rank_zero_warn(f"{unknown}, so {' and '.join(compared)} is left out; {known}.")
    return replace(settings, measures=kept)


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
    only_drift = [*settings.measures] == ["drift"] and settings.keys.reference is None
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
    return replace(settings, model=spec, callbacks=kept, measures={})


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
    for name in settings.measures:
        if name != "drift":
            raise UserError(
                f"measure={name} of a sentence-embedding model is taken of single sentences, and heads are "
                "judged by pairs; run one command for each."
            )
