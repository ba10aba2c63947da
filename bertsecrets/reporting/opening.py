"""How a run's page opens."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bertsecrets.present.grid import SHORT
from bertsecrets.present.report.content import Colouring, NextStep, Overview, Section
from bertsecrets.present.report.heads import HeadsTogether
from bertsecrets.reporting.answer import answers
from bertsecrets.reporting.overview import DisabledHeads, next_steps, overview, scores_in_words
from bertsecrets.results.formatting import upper_first
from bertsecrets.results.run import Run
from bertsecrets.results.scores import RunScores
from bertsecrets.results.views import MeasureView


@dataclass(frozen=True)
class Found:
    """The contents of a run's page.

    Args:
        run: The run.
        scores: Its scores.
        analysis: Whether it analysed a checkpoint rather than trained one.
        views: Its experiments by name.
        sections: Their sections.
        compared: Sections on differences from other models, by name.
        disabled: Its disabled heads; None without any, or if the model learned nothing.
        heads: The joint table of heads; None if no head was measured.
    """

    run: Run
    scores: RunScores
    analysis: bool
    views: Mapping[str, MeasureView]
    sections: Mapping[str, Section]
    compared: Mapping[str, Section]
    disabled: DisabledHeads | None
    heads: HeadsTogether | None

    @property
    def steps(self) -> list[NextStep]:
        """Suggested next commands."""
        return next_steps(self.run, self.disabled, self.views, learned=self.scores.learned)


@dataclass(frozen=True)
class Opening:
    """The first screen of a page.

    Args:
        title: The answer in a sentence, or the subject of the page.
        picture: The grid of heads; None for the first figure.
        steps: Suggested next commands.
        answers: Headings and sentences.
        notes: Further sentences.
        leads: The sections that come first, by name.
    """

    title: str
    picture: Overview | None
    steps: Sequence[NextStep]
    answers: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()
    leads: Mapping[str, Section] = field(default_factory=dict)


def opening(found: Found) -> Opening:
    """The first screen of a run's page: the first answer that what was found allows."""
    own = {name: section for name, section in found.sections.items() if section.summary or section.steps}
    if found.analysis and own:
        # The figure of an analysis such as pruning is more informative than a grid of heads.
        steps = [step for section in own.values() for step in section.steps]
        notes = [] if found.heads is None else [scores_in_words(found.scores)]
        return Opening(_analysis_title(found, own), None, [*steps, *found.steps], notes=notes, leads=own)
    if found.disabled is not None:
        answered = answers(found.views, found.sections, found.disabled)
        return Opening(found.disabled.title(), _picture(found, {}), found.steps, answered)
    if not found.analysis:
        model, task = found.run.model, found.run.task
        title = (
            f"{model} does not significantly beat the majority baseline on {task}; its heads are not interpreted."
            if found.scores.learned is False
            else f"What fine-tuning on {task} changed in {model}"
        )
        return Opening(title, _picture(found, {}), found.steps)
    described = next(iter(found.sections.values()), Section()).descriptive
    if not (described and found.compared and found.scores.learned is not False):
        return Opening(_analysis_title(found, {}), _picture(found, {}), found.steps)
    # Differences from another model say more than which head has the highest number.
    leads = dict(list(found.compared.items())[:1])
    picture = _picture(found, leads)
    if picture is not None:
        differences = [one for view in found.views.values() if (one := _difference(view)) is not None]
        about = {
            (layer, head): [*(f"{one.label} {one.texts[layer][head]}." for one in differences), *lines]
            for (layer, head), lines in picture.about.items()
        }
        picture = replace(picture, colourings=[*differences, *picture.colourings], about=about)
    return Opening(_analysis_title(found, leads), picture, found.steps, leads=leads)


def firsts(sections: Iterable[Section]) -> list[str]:
    """The first finding of each section that has one."""
    findings = ([line for part in section.flat() for line in part.findings] for section in sections)
    return [lines[0] for lines in findings if lines]


def _picture(found: Found, leads: Mapping[str, Section]) -> Overview | None:
    """The grid of heads; without verdicts, the first findings stand next to it."""
    sections = {**leads, **found.sections}.values()
    heads = (part.head for section in sections for part in section.flat() if part.head is not None)
    screen = overview(found.run, found.scores, found.disabled, found.heads, next(heads, None))
    if screen is None or found.disabled is not None:
        return screen
    return replace(screen, notes=[*firsts(sections)[: 1 + len(leads)], *screen.notes])


def _analysis_title(found: Found, leads: Mapping[str, Section]) -> str:
    """The answer of an analysis in a sentence, else its subject.

    Measures with more to report than their highest head take precedence.
    """
    sections = {**leads, **found.sections}.values()
    news = [section.news for section in sections if section.news]
    told = [section for section in sections if section.findings]
    if news and told and told[0].descriptive:
        return f"{upper_first('; '.join(news[:2]))}."
    titles = [view.title for view in found.views.values() if view.title]
    subject = titles[0] if len(titles) == 1 else "Attention heads"
    return (
        next((section.summary for section in sections if section.summary), "")
        or next((section.headline for section in sections if section.findings), "")
        or f"{subject}: {found.run.model} on {found.run.task}"
    )


def _difference(view: MeasureView) -> Colouring | None:
    """The difference from the compared model in the column with most differing heads; None without a difference."""
    other = next(iter(view.compared), None)
    if other is None or view.of_layers:
        return None
    column, change = view.widest_change(other)
    label = f"{view.title}: {column.label}, difference from {SHORT[other]}"
    return Colouring(label, change.delta_LH, digits=2, signed=True) if change.moves else None
