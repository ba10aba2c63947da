"""The answers that take more than statements and the sections of papers, by name, as a page shows them."""

from collections.abc import Mapping
from dataclasses import replace

from bertsecrets.errors import UserError, choices
from bertsecrets.papers.models import Studied
from bertsecrets.papers.questions.answer import Question, answer_to, section_of
from bertsecrets.papers.questions.importance import more_than_needed, redundant_or_unnecessary, relation_heads
from bertsecrets.papers.questions.knowledge import before_and_after, meaningful_or_vertical
from bertsecrets.papers.questions.separators import what_sep_is_for
from bertsecrets.papers.questions.training import gradients, reasons, without_attention_dropout
from bertsecrets.present.report.content import Section

_QUESTIONS: Mapping[str, Question] = {
    question.__name__: question
    for question in (
        gradients,
        before_and_after,
        what_sep_is_for,
        redundant_or_unnecessary,
        meaningful_or_vertical,
        relation_heads,
        more_than_needed,
        reasons,
        without_attention_dropout,
    )
}


def answered(models: Studied, answer: str, of_task: bool = False) -> Section:
    """An answer from the models.

    Args:
        models: The models.
        answer: Name of the answer.
        of_task: Whether it is about what fine-tuning did: models that learned nothing do not answer it.

    Raises:
        UserError: If there is no such answer.
    """
    if answer not in _QUESTIONS:
        raise UserError(f"Unknown answer '{answer}'; {choices(answer, _QUESTIONS)}.")
    others = [group for group in models.groups if group not in models.tuned]
    learned = [group for group in models.tuned if not of_task or group.learned is not False]
    judged = replace(models, groups=(*learned, *others))
    return section_of(models, answer_to(_QUESTIONS[answer], judged), of_task=of_task)
