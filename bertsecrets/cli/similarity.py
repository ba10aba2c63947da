"""Analyse a sentence-embedding model: every head disabled, judged by the cosine similarity of sentence pairs."""

import time
from dataclasses import replace
from pathlib import Path

import torch
from omegaconf import DictConfig, OmegaConf
from torch import nn

from bertsecrets.ablation.cosine_change import CosineChange, cosine_change
from bertsecrets.ablation.outcomes import Outcomes
from bertsecrets.ablation.replacements import check_embedder_mode
from bertsecrets.ablation.sweep import SIMILAR_GROUPS, DisableAnalysis
from bertsecrets.analysis import Context, Findings, record
from bertsecrets.attention.self_check import check_attention
from bertsecrets.cli.build import make_data, make_loggers, trusted_classes
from bertsecrets.cli.finish import closing, present
from bertsecrets.cli.rows import check_rows, record_rows
from bertsecrets.cli.settings import AnalyzeSettings
from bertsecrets.cli.targets import load_target, make
from bertsecrets.data.module import TaskData
from bertsecrets.data.sentence_pairs import SentencePairs
from bertsecrets.data.task import Task
from bertsecrets.errors import UserError
from bertsecrets.measures.capture import CaptureAnalysis
from bertsecrets.models.metrics import score
from bertsecrets.models.sentence_embedder import is_embedder_folder, load_embedder
from bertsecrets.models.spec import INITIAL, find_checkpoint
from bertsecrets.results.config_copy import write_config
from bertsecrets.results.run import CHECKPOINT, Run
from bertsecrets.results.scores import RunScores, SetScores, beats_constant
from bertsecrets.sweeps.output_folder import keep_results


def is_embedder(settings: AnalyzeSettings) -> bool:
    """Whether the checkpoint is a sentence-embedding model that a labelled task is to judge.

    Raises:
        UserError: If the folder cannot be read.
    """
    checkpoint = settings.keys.checkpoint
    if checkpoint in (None, INITIAL) or not settings.task.is_labelled:
        return False
    path = find_checkpoint(str(checkpoint), settings.model.revision)
    return path.is_dir() and is_embedder_folder(path)


def analyze_similarity(config: DictConfig, settings: AnalyzeSettings, folder: Path) -> dict[str, dict[str, float]]:
    """Score a sentence-embedding model on pairs and disable its heads and layers; return its scores.

    Raises:
        UserError: If the task has no similarity of pairs, the analysis is another than disabling, or the model cannot
            be read.
    """
    started = time.monotonic()
    task, ablation = _task(settings), settings.ablation
    sweep = _sweep(settings)
    model, tokenizer = load_embedder(find_checkpoint(str(settings.keys.checkpoint), settings.model.revision))
    data = make_data(settings, tokenizer)
    check_rows(settings, data, folder)
    check_attention(model)
    if torch.cuda.is_available() and settings.trainer.accelerator != "cpu":
        module: nn.Module = model
        module.to("cuda")

    name = Path(str(settings.keys.checkpoint)).resolve().name
    run = Run(folder, settings.keys.name, name, task.name, "pretrained")
    run.folder.mkdir(parents=True, exist_ok=True)
    record_rows(data, folder)
    recorded = config.copy()
    recorded.model = {
        "name": name,
        "path": str(settings.keys.checkpoint),
        "package": None,
        "revision": None,
        "sha256": None,
        "objective": "sentence_embeddings",
    }
    trained = {"name": run.name, "init": run.init, "seed": settings.keys.seed}
    OmegaConf.update(recorded, "trained", trained, force_add=True)
    write_config(recorded, folder)

    evaluation = data.check_evaluation(ablation.evaluation)
    assert data.task.label_range is not None
    low, high = data.task.label_range
    examples = data.examples(data.evaluation[evaluation])
    similarity_N = (data.labels(data.evaluation[evaluation]).double() - low) / (high - low)
    # Similarities from 0 to 1.
    pairs = [replace(example, label=label) for example, label in zip(examples, similarity_N.tolist(), strict=True)]
    split = SentencePairs(pairs, tokenizer, model.max_length)
    context = Context.of_split(
        model,
        task,
        split,
        data.config.eval_batch_size,
        evaluation,
        progress=settings.keys.progress,
        output=run,
        key=(model.pooling, model.max_length),
    )
    keep_results()
    loggers = make_loggers(settings, run)
    with closing(loggers):
        judged = sweep.judged(context)
        assert judged is not None
        moved = cosine_change(judged.outcomes)
        found = [judged.findings(CHECKPOINT), *([] if moved is None else [Findings(CosineChange(), [moved])])]
        record(run, found, CHECKPOINT, 0)
        scores = _scores(judged.outcomes, task, data, evaluation, time.monotonic() - started)
        present(run, scores, loggers, report=settings.report, trusted=trusted_classes(settings))
    return {evaluation: scores.sets[evaluation].model}


def _task(settings: AnalyzeSettings) -> Task:
    """The task, with the rank correlation as its first metric.

    Raises:
        UserError: If it has no similarity of pairs.
    """
    task = settings.task
    if not task.is_regression or task.texts != 2:
        raise UserError(
            f"'{settings.keys.checkpoint}' is a sentence-embedding model, which task '{task.name}' cannot judge: it "
            "has no similarity scores of sentence pairs; choose task=stsb or task=demo_similarity, or measure its "
            "heads in Python (bs.load, bs.measure)."
        )
    further_metrics = [name for name in task.metrics if name != "spearman"]
    return task.model_copy(update={"metrics": ("spearman", *further_metrics), "label_range": (0.0, 1.0)})


def _sweep(settings: AnalyzeSettings) -> DisableAnalysis:
    """The chosen sweep, or that of every head and layer.

    Raises:
        UserError: If something else is asked for.
    """
    wish = "; choose analysis=disable, disable_heads, disable_layers or disable_groups."
    ablation = settings.ablation
    check_embedder_mode(ablation)
    screened = ablation.sweep == "screened" or ablation.precision is not None
    if screened or ablation.budget is not None or ablation.plan_only:
        raise UserError(
            "Screened, budgeted and merely planned sweeps are not available for a sentence-embedding model; leave out "
            "ablation.sweep, ablation.precision, ablation.budget and ablation.plan_only."
        )
    sweep = DisableAnalysis(ablation=ablation)
    for name, section in settings.callbacks.items():
        kind = load_target(f"analysis.{name}", section)
        if kind is DisableAnalysis:
            sweep = make(section, ablation=ablation)
        elif kind is not CaptureAnalysis:
            raise UserError(f"analysis.{name} is not available for a sentence-embedding model{wish}")
    for measure in settings.measures:
        # The default of a command without an analysis compares with a model that such a folder does not name.
        if measure.name != "drift":
            raise UserError(
                f"measure={measure.name} of a sentence-embedding model is taken by bertsecrets.measure{wish}"
            )
    if SIMILAR_GROUPS in sweep.plans:
        raise UserError(f"Groups of heads with similar maps are not available for a sentence-embedding model{wish}")
    return sweep


def _scores(outcomes: Outcomes, task: Task, data: TaskData, evaluation: str, seconds: float) -> RunScores:
    """Scores of the unedited model on the examples of the sweep."""
    cosine_N, label_N = outcomes.clean_NC[:, 0], outcomes.label_N
    constant = float(label_N.mean())
    model_scores = {**score(cosine_N, label_N, task), "loss": float((cosine_N - label_N).square().mean())}
    p_constant = beats_constant(cosine_N.numpy(), label_N.numpy(), constant, correlated=True)
    constant_scores = score(torch.full_like(label_N, constant), label_N, task)
    sets = {evaluation: SetScores(len(label_N), model_scores, constant_scores, p_constant)}
    return RunScores(sets, f"{constant:.2f}", 0, seconds, notes=data.notes)
