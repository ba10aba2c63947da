"""Verdicts of each kind of task head against a naive loop: one hook, one evaluation a head, tests by scipy."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from data.toy import wordpiece
from families import HEADS, LAYERS, WIDTH
from scipy import stats
from seqeval.metrics.sequence_labeling import get_entities
from task_heads.test_answers import answerer, official, post_processed, questions
from task_heads.test_choice import TASK as CHOICES
from task_heads.test_choice import at_once, chooser
from task_heads.test_choice import questions as choice_questions
from task_heads.test_masked import TASK as WORDS
from task_heads.test_masked import batches_of, masked_lm
from task_heads.test_tokens import BIO, tagged_batch, tagger
from torch import Tensor
from transformers import PreTrainedModel

from bertsecrets.ablation.exact import exact_sweep
from bertsecrets.ablation.plan import Plan, every_head
from bertsecrets.ablation.replacements import Replacements
from bertsecrets.ablation.verdicts import Judging, judge
from bertsecrets.data.batch import Batch
from bertsecrets.data.task import Task
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.results.verdicts import DISPENSABLE, INCONCLUSIVE, NEEDED
from bertsecrets.statistics.corrections import holm
from bertsecrets.task_heads.answers import AnswerHead
from bertsecrets.task_heads.labels import IGNORED, Answers

Array = np.ndarray
Case = tuple[PreTrainedModel, Task, Sequence[Batch], Callable[[], Array]]
"""A model, its task, batches, and an evaluation by plain passes: the numbers of each example whose sums are scored."""


def of_tags() -> Case:
    model = tagger("bert")
    batches = [tagged_batch(model, tuple(4 + (7 * i + j) % 8 for j in range(8))) for i in range(6)]
    for number, batch in enumerate(batches):
        batch.index_B = batch.index_B + 8 * number

    def evaluate() -> Array:
        counts = []
        for batch in batches:
            with torch.no_grad():
                tag_BS = model(**batch.inputs()).logits.argmax(-1)
            for pair in zip(batch.label_B, tag_BS, strict=True):
                gold, found = ({*get_entities([BIO[tag] for tag in tag_S[pair[0] != IGNORED]])} for tag_S in pair)
                counts.append([len(gold & found), (len(gold) + len(found)) / 2])
        return np.array(counts, np.float64)

    return model, Task(name="names", kind="tokens", metrics=("entity_f1",), texts=1, labels=BIO), batches, evaluate


def of_masked_words(metric: str) -> Case:
    model = masked_lm("bert")
    batches = batches_of(model, 6)

    def evaluate() -> Array:
        counts = []
        for batch in batches:
            with torch.no_grad():
                log_BSV = model(**batch.inputs()).logits.log_softmax(-1)
            for log_SV, label_S in zip(log_BSV, batch.label_B, strict=True):
                asked = [(log_V, int(gold)) for log_V, gold in zip(log_SV, label_S, strict=True) if gold != IGNORED]
                right = [float(log_V[gold] if "log" in metric else log_V.argmax() == gold) for log_V, gold in asked]
                counts.append([sum(right), len(asked)])
        return np.array(counts, np.float64)

    return model, Task(name="words", kind=WORDS.kind, metrics=(metric,), texts=1), batches, evaluate


def of_questions(metric: str) -> Case:
    tokenizer = wordpiece()
    model, examples = answerer(tokenizer), questions(24, False)
    # Gold answers are the model's own, of all but every fourth question.
    for place, example in enumerate(examples):
        given, _ = post_processed(model, tokenizer, example)
        own = Answers((given,), example.texts[1].index(given)) if place % 4 else example.label
        examples[place] = replace(example, label=own, group=None)
    split = EncodedSplit(examples, tokenizer, 24, head=AnswerHead())

    def evaluate() -> Array:
        scores = [official(post_processed(model, tokenizer, one)[0], one.label.texts, 1) for one in examples]
        return np.array([[pair[metric == "answer_f1"], 1] for pair in scores])

    task = Task(name="questions", kind="answers", metrics=(metric,), texts=2)
    return model, task, [split[range(len(split))]], evaluate


def of_choices() -> Case:
    model, examples = chooser(), choice_questions(40)
    with torch.no_grad():
        for place, example in enumerate(examples):
            if place % 4:
                own = int(at_once(model, example).logits.argmax())
                examples[place] = replace(example, label=own)

    def evaluate() -> Array:
        with torch.no_grad():
            return np.array([[float(at_once(model, one).logits.argmax() == one.label), 1] for one in examples])

    return model, CHOICES, [EncodedSplit(examples, wordpiece(), 64, head=CHOICES.head)[range(40)]], evaluate


CASES: dict[str, tuple[Callable[[], Case], str, float]] = {
    "entity_f1": (of_tags, "zero", 0.5),
    "masked_accuracy": (lambda: of_masked_words("masked_accuracy"), "mean", 0.7),
    "pseudo_log_likelihood": (lambda: of_masked_words("pseudo_log_likelihood"), "zero", 1.0),
    "exact_match": (lambda: of_questions("exact_match"), "mean", 0.4),
    "answer_f1": (lambda: of_questions("answer_f1"), "zero", 0.5),
    "accuracy": (of_choices, "mean", 0.6),
}
"""The model and so on of each metric, a mode, and a margin that is much larger than most effects."""


def score(number_N2: Array, axis: int = 0) -> Array:
    over, under = np.moveaxis(number_N2.sum(axis), -1, 0)
    return np.asarray(over / under)


def by_scipy(clean_N2: Array, other_N2: Array, margin: float, events: bool) -> tuple[float, float, float, float]:
    """The change, its standard error, the p-value of no change, and that of a loss of the margin."""
    generator = np.random.default_rng(0)
    change = float(score(other_N2) - score(clean_N2))
    row_RN = generator.integers(0, len(clean_N2), (4000, len(clean_N2)))
    drawn_R = score(other_N2[row_RN], 1) - score(clean_N2[row_RN], 1)
    moved_N = (clean_N2 != other_N2).any(-1)
    if events:
        lost, won = (int(part.sum()) for part in (clean_N2[:, 0] > other_N2[:, 0], clean_N2[:, 0] < other_N2[:, 0]))
        p = stats.binomtest(lost, lost + won).pvalue if lost + won else 1.0
    elif moved_N.any():
        swap_RN = generator.random((4000, len(clean_N2), 1)) < 0.5
        first_R, second_R = (
            score(np.where(swap_RN, *pair), 1) for pair in ((other_N2, clean_N2), (clean_N2, other_N2))
        )
        p = float((np.abs(second_R - first_R) >= abs(change) - 1e-9).mean())
    else:
        p = 1.0
    return change, float(drawn_R.std()), p, float((drawn_R <= -margin).mean())


@pytest.mark.parametrize("name", CASES)
def test_verdicts_are_those_of_a_naive_loop(name: str) -> None:
    case, mode, wide = CASES[name]
    model, task, batches, evaluate = case()
    generator = torch.Generator().manual_seed(3)
    constants_LHd = 0.1 * torch.randn(LAYERS, HEADS, WIDTH // HEADS, generator=generator)
    plan = Plan(mode, LAYERS, HEADS, tuple(every_head(LAYERS, HEADS)))
    given = Replacements(constants_LHd=constants_LHd) if mode == "mean" else None
    paired = exact_sweep(model, plan, batches, replacements=given).predictions(task)
    metric = task.head.metrics[name]
    clean_N2, others = evaluate(), []

    def disabled(_: Any, args: tuple[Tensor], layer: int, head: int) -> tuple[Tensor]:
        kept_BSHd = args[0].unflatten(-1, (HEADS, -1)).clone()
        kept_BSHd[..., head, :] = constants_LHd[layer, head] if mode == "mean" else 0
        return (kept_BSHd.flatten(-2),)

    for variant in plan.variants:
        ((layer, head),) = variant.heads
        output = model.bert.encoder.layer[layer].attention.output.dense
        handle = output.register_forward_pre_hook(partial(disabled, layer=layer, head=head))
        others.append(evaluate())
        handle.remove()
    for margin in (0.02, wide):
        found = judge(metric, paired, Judging(margin=margin, resamples=2000, permutations=4000))
        tests = [by_scipy(clean_N2, other_N2, margin, metric.events) for other_N2 in others]
        change_V, stderr_V, p_V, p_margin_V = np.array(tests).T
        assert found.baseline[0] == pytest.approx(float(score(clean_N2)), abs=1e-5)
        assert found.delta == pytest.approx(change_V, abs=1e-5)
        assert found.stderr == pytest.approx(stderr_V, rel=0.15, abs=1e-4)
        assert found.p_value == pytest.approx(p_V, abs=1e-9 if metric.events else 0.04)
        needed_V = holm(np.where(change_V < 0, p_V / 2, 1)) <= 0.05
        # Without a changed answer a bootstrap rules out any loss: a loss of the margin of so many events.
        none_V = np.array([(clean_N2 == other_N2).all() for other_N2 in others])
        p_margin_V = np.where(none_V, (1 - margin) ** len(clean_N2), p_margin_V)
        spared_V = stats.false_discovery_control(p_margin_V) <= 0.05
        expected_V = np.where(spared_V, DISPENSABLE, np.where(needed_V, NEEDED, INCONCLUSIVE))
        assert [*found.verdict] == [*expected_V], margin
        assert margin != wide or DISPENSABLE in expected_V
