"""The questions page: fourteen questions about the papers, answered for the models of any runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bertsecrets.papers.questions.answer import UNTOLD, Question
from bertsecrets.papers.questions.importance import more_than_needed, redundant_or_unnecessary, relation_heads
from bertsecrets.papers.questions.knowledge import (
    before_and_after,
    linked_words,
    meaningful_or_vertical,
    shares_as_published,
    side_by_side,
)
from bertsecrets.papers.questions.models import question_runs
from bertsecrets.papers.questions.separators import what_sep_is_for, where_special_tokens_are_attended
from bertsecrets.papers.questions.structure import diagonal_entropy_and_likeness, what_heads_do
from bertsecrets.papers.questions.training import gradients, reasons
from bertsecrets.reporting.runs import FinishedRun, left_out
from bertsecrets.results.report.content import Report, Section
from bertsecrets.results.report.page import save_figures, write_report

QUESTIONS = (
    Question(
        "Do layers change more because they get larger gradients, or because of their learning rates?",
        "Kovaleva et al. 2019 (section 4.3) find that the last two layers change most. Larger gradients near the output, or "
        "learning rates that differ by layer, could explain that without anything about the task.",
        gradients,
    ),
    Question(
        "How much of the attention to words and special tokens was there before fine-tuning?",
        "Kovaleva et al. 2019 (section 4.4) say what fine-tuning does to attention, without numbers of the model before it.",
        before_and_after,
    ),
    Question(
        "Which patterns do heads show, what linguistic knowledge do they hold, and how do they differ in importance?",
        "These are the research questions of Kovaleva et al. 2019, whose sections answer one each: here they stand side by side.",
        side_by_side,
    ),
    Question(
        "Is attention to [SEP] enough because [SEP] gathered the text, or because it is not needed?",
        "Kovaleva et al. 2019 find that many heads attend mostly to [SEP] and [CLS], and Clark et al. 2019 (section 3.2) call that a "
        "no-op. The model may still read from [SEP] what [SEP] has gathered.",
        what_sep_is_for,
    ),
    Question(
        "When a head can go without loss, do other heads stand in for it, or is it unnecessary?",
        "Kovaleva et al. 2019 (section 4.6) and Michel et al. 2019 (section 3.2) disable single heads with little harm, which does not "
        "tell the two apart.",
        redundant_or_unnecessary,
    ),
    Question(
        "Does fine-tuning favour patterns that could be meaningful, or vertical ones?",
        "Kovaleva et al. 2019 (section 4.1) show shares of patterns after fine-tuning alone.",
        meaningful_or_vertical,
        of_task=False,
    ),
    Question(
        "Are fewer than half of the maps heterogeneous, and a third or more vertical?",
        "Kovaleva et al. 2019 (section 4.1) say so of most tasks; their figure shows it for four of seven.",
        shares_as_published,
        of_task=False,
    ),
    Question(
        "Does the fine-tuned model use the heads that follow frame relations?",
        "Kovaleva et al. 2019 (section 4.2) find such heads before fine-tuning, and do not show that they matter afterwards.",
        relation_heads,
    ),
    Question(
        "Does a model of this size have more heads than it needs?",
        "Kovaleva et al. 2019 call BERT overparametrised from results of one size, 12 layers of 12 heads.",
        more_than_needed,
    ),
    Question(
        "Does the model need what the task asks for, or is a shortcut enough?",
        "Kovaleva et al. 2019 draw conclusions from tasks on which a model may be right for the wrong reasons: the most frequent class, "
        "or one sentence of a pair, may be enough.",
        reasons,
        of_task=False,
    ),
    Question(
        "Which heads serve relative positions, [SEP] and syntax, and does one find the possessor of 's?",
        "Clark et al. 2019 (sections 3.1, 3.2 and 4.2) name such heads for one model before fine-tuning.",
        what_heads_do,
        of_task=False,
    ),
    Question(
        "Do heads link words, or do they attend to neighbours?",
        "Kovaleva et al. 2019 (section 4.5) find that heads which link verbs and subjects, or nouns and pronouns, look diagonal.",
        linked_words,
        of_task=False,
    ),
    Question(
        "Is [CLS] attended to in early layers and [SEP] in late ones, and is that a matter of how many [SEP] there are?",
        "Kovaleva et al. 2019 (section 4.4, figure 6) say so; an input of one sentence has one [SEP], which then gets all of the attention.",
        where_special_tokens_are_attended,
        of_task=False,
    ),
    Question(
        "Is the diagonal the token itself, is entropy lowest in the middle, and do heads of a layer attend alike?",
        "Kovaleva et al. 2019 do not say whether their diagonal pattern is attention to the token itself or to its neighbours; Clark et "
        "al. 2019 (sections 3.1, 3.3, 5 and 6) report on entropy, likeness and probes before fine-tuning.",
        diagonal_entropy_and_likeness,
        of_task=False,
    ),
)
"""The questions, in the order of the page."""


@dataclass(frozen=True)
class QuestionsPage:
    """The page.

    Args:
        file: File name of the page.
        sizes_may_differ: Whether runs of models of several sizes go together.
    """

    file: str = "questions.html"
    sizes_may_differ: bool = False

    def write(self, runs: Sequence[FinishedRun], folder: Path, unfinished: Sequence[str] = ()) -> Path:
        """Write the page and its figures into a folder; returns the page.

        Args:
            runs: At least one finished run.
            folder: Created if missing.
            unfinished: Names of the unfinished runs, which are left out.
        """
        found = question_runs(runs)
        sections = [question.section(found) for question in QUESTIONS]
        untold = sum(section.summary == UNTOLD for section in sections)
        controls = [control.name for control in found.controls]
        report = Report(
            title="Questions to the papers, answered for your model",
            subtitle=f"{len(QUESTIONS)} questions that readers raised, from {len(runs)} run{'s' * (len(runs) > 1)}",
            facts=[
                (
                    "models",
                    "; ".join(
                        f"{one.name} ({len(one.models)} seed{'s' * (len(one.models) > 1)})" for one in found.tuned
                    ),
                ),
                *([("controls", "; ".join(controls))] if controls else []),
            ],
            notes=[
                f"{len(sections) - untold} of {len(sections)} questions are answered, at least in part; {untold} cannot be told from "
                "these runs. Where an analysis is missing, the question names the command that takes it; analysis=questions takes all that "
                "a finished model can give. Compare the new folder together with these.",
                *left_out(unfinished),
            ],
            sections=[*sections, _READING],
        )
        save_figures(report.figures, folder / "figures")
        write_report(folder / self.file, report)
        return folder / self.file


_READING = Section(
    "How to read this page",
    paragraphs=[
        "“Cannot be told” stands where an analysis is missing, or where an interval leaves both answers open. An interval is over seeds "
        "where there are several, else over examples: then it holds for that one model. Intervals of means over heads are as wide as if "
        "the errors of all heads went one way. Questions are not corrected for one another. Layers and heads are counted from 0.",
        "A model that is not shown to beat a constant answer is not judged where a question is about what fine-tuning did.",
    ],
)

PAGE = QuestionsPage()
