"""A dossier of one head over a whole evaluation set: examples that it decides, examples it attends in, and pairs of
tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertsecrets.ablation.outcomes import Outcomes
from bertsecrets.analysis import Context, find
from bertsecrets.data.example import Example
from bertsecrets.data.module import TaskData
from bertsecrets.data.sources import SourceConfig
from bertsecrets.data.task import Task, task_from_config
from bertsecrets.errors import UserError
from bertsecrets.measures.one_head import FEWEST, Attending, OneHead, TokenPair
from bertsecrets.models.checkpoint import load_checkpoint
from bertsecrets.models.loading import load_tokenizer
from bertsecrets.models.spec import INITIAL, ModelSpec, find_checkpoint
from bertsecrets.pages.page_view import PageView
from bertsecrets.present.report.content import NextStep, Report, Section, Table
from bertsecrets.reporting.overview import ANNOUNCED, DisabledHeads, view_step
from bertsecrets.reporting.run_report import report_run
from bertsecrets.results.components import HEAD
from bertsecrets.results.files import on_page
from bertsecrets.results.formatting import MISSING, head_label, low_to_high, lower_first, number, p_value, shortened
from bertsecrets.results.run import Run
from bertsecrets.results.verdicts import WORDS
from bertsecrets.statistics.ranks import rank_correlation

Array = NDArray[np.float64]

_GROUPS = 10
_SHOWN = 20
_LONGEST = 300
"""Characters of an example in a table."""


class HeadDossier(PageView):
    """The dossier of one head as a page without network: show it in a notebook, or :meth:`save` it; prints its
    findings.
    """

    def __repr__(self) -> str:
        return "\n".join([self.report.title, *(line for part in self.report.sections for line in part.findings)])


def head_dossier(run: Run, layer: int, head: int, *, progress: bool = False) -> HeadDossier:
    """The dossier of a head, from a run's folder, its checkpoint and the texts of its first evaluation set.

    Args:
        run: A finished run; with a sweep of single heads the page says which answers depend on the head.
        layer, head: The head, both from 0.
        progress: Whether to show a bar while the model reads the set.

    Raises:
        UserError: If the head does not exist, or the run's model or data cannot be loaded.
    """
    model, data = _load(run)
    disabled = DisabledHeads.of(run)
    analysis = OneHead(layer, head, None if disabled is None else disabled.any_row["evaluation"])
    context = Context.of_data(model, data, analysis.evaluation, progress=progress)
    analysis.check(context)
    rows = find(analysis, context)[0].rows
    attending = [row for row in rows if isinstance(row, Attending)]
    tested = [row for row in rows if isinstance(row, TokenPair)]
    examples = context.split.examples
    swept = None if disabled is None else _swept(run, disabled, (layer, head), data.task)
    sections = [_decided(run, swept, data, examples), _strength(attending, examples, swept), _pairs(tested)]
    page = _page(run, disabled, (layer, head), sections, context.evaluation, len(context.split))
    parts = [page.title]
    if swept is not None:
        parts.append(lower_first(sections[0].findings[0].partition(":")[0].rstrip(".")))
    for pair in _above_chance(tested)[:1]:
        parts.append(f"it attends most from “{pair.query}” to “{pair.key}” ({number(pair.weight, 2)})")
    return HeadDossier(replace(page, title="; ".join(parts)))


def _above_chance(tested: Sequence[TokenPair]) -> list[TokenPair]:
    return [pair for pair in tested if pair.low > 0]


def _load(run: Run) -> tuple[nn.Module, TaskData]:
    """The fine-tuned model and the data of a run, or of the run that it analysed."""
    config = run.config()
    checkpoint = config.get("checkpoint")
    if checkpoint == INITIAL:
        raise UserError(
            f"'{run.folder}' analysed a model before fine-tuning, whose answers mean nothing; give a run of train.py "
            "or its analysis."
        )
    # Of a training, the key is a section.
    source = (config.get("trained") or {}).get("folder", checkpoint) if isinstance(checkpoint, str) else run.folder
    for section, key in (("data", "source"), ("task", "source"), ("model", "family")):
        value = (config.get(section) or {}).get(key)
        # A run's folder is data, which must not cause imports.
        if isinstance(value, str) and (":" in value or ".py" in value):
            raise UserError(
                f"{section}.{key} of '{run.folder}' is the code '{value}', which is not imported because a folder "
                "names it; a dossier needs a source of this project or of an installed package."
            )
    task, spec = task_from_config(config["task"]), ModelSpec.read("model", config["model"])
    tokenizer = load_tokenizer(spec)
    rows, sizes = SourceConfig.read("data", config["data"]), config["task"]["training"]
    data = TaskData(task, rows, tokenizer, sizes["batch_size"], sizes["max_length"], config["seed"])
    data.prepare_data()
    return load_checkpoint(find_checkpoint(source, spec.revision), task, spec).model, data


@dataclass(frozen=True)
class _Swept:
    """What a run's sweep has stored of one head.

    Args:
        index_N: Index of each example of the sweep.
        label_N: Labels that the answers are judged by.
        before_NF, after_NF: Each answer with and without the head.
        evaluated_N: Which of them were computed; a screened sweep estimates the others.
        task: The task.
    """

    index_N: Tensor
    label_N: Tensor
    before_NF: Tensor
    after_NF: Tensor
    evaluated_N: Tensor
    task: Task

    @property
    def change_N(self) -> Tensor:
        """Change of each answer; NaN where it was only estimated."""
        change_N1 = self.task.head.changes(self.before_NF, self.after_NF[:, None])
        return change_N1[:, 0].where(self.evaluated_N, torch.nan)


def _swept(run: Run, disabled: DisabledHeads, head: tuple[int, int], task: Task) -> _Swept | None:
    """What the run's sweep has stored of a head; None if nothing."""
    path = disabled.outcomes_path(run)
    if not path.is_file():
        return None
    outcomes = Outcomes.read(path)
    indices = [
        index
        for index, variant in enumerate(outcomes.plan.variants)
        if variant.kind == HEAD.name and (variant.layer, variant.head) == head
    ]
    if not indices:
        return None
    before_NF, after_NF = outcomes.clean_NC, outcomes.logits_NVC[:, indices[0]]
    computed_N = after_NF.isfinite().all(-1)
    weight_NV = outcomes.weight_NV
    evaluated_N = torch.ones_like(computed_N) if weight_NV is None else weight_NV[:, indices[0]] > 0
    # A sweep that stopped early has no logits of some examples.
    return _Swept(
        outcomes.index_N[computed_N],
        outcomes.label_N[computed_N],
        before_NF[computed_N],
        after_NF[computed_N],
        evaluated_N[computed_N],
        task,
    )


def _decided(run: Run, swept: _Swept | None, data: TaskData, examples: Sequence[Example]) -> Section:
    """The examples whose predictions change most without the head."""
    title = "Predictions that change most without it"
    if swept is None:
        return Section(
            title,
            ["It was not measured which predictions depend on this head."],
            commands=[f"python -m bertsecrets analyze checkpoint={on_page(run.folder)} analysis=disable"],
        )
    by_index = {example.index: example for example in examples}
    change_N = swept.change_N
    rows = []
    for row in change_N.abs().nan_to_num(-1).argsort(descending=True)[:_SHOWN].tolist():
        if not change_N[row].isfinite():
            continue
        example, change = by_index[int(swept.index_N[row])], float(change_N[row])
        rows.append(
            [
                shortened(" / ".join(example.texts), _LONGEST),
                data.label_name(example.label),
                *(data.task.head.described(answer_F) for answer_F in (swept.before_NF[row], swept.after_NF[row])),
                number(100 * change, 1, signed=True) if data.task.head.classifies else number(change, 3, signed=True),
            ]
        )
    unit = "change of the loss" if data.task.head.statistics else "change"
    unit = "change of the predicted class, points" if data.task.head.classifies else unit
    header = ["text", "label", "with the head", "without it", unit]
    return Section(title, [_flips(swept)], tables=[Table(header, rows)])


def _flips(swept: _Swept) -> str:
    """How many predictions change, in a sentence."""
    before_NF, after_NF, label_N = swept.before_NF, swept.after_NF, swept.label_N
    head = swept.task.head
    if head.statistics:
        before, after = (head.described(answer_NF.sum(0)) for answer_NF in (before_NF, after_NF))
        return f"With the head: {before}; without it: {after}."
    if not head.classifies:
        moved = number(float((after_NF - before_NF).abs().mean()))
        return f"Without it a score changes by {moved} on average over {len(label_N):,} examples."
    answer_N, without_N = before_NF.argmax(-1), after_NF.argmax(-1)
    right_N, still_N = answer_N == label_N.long(), without_N == label_N.long()
    return (
        f"Without it {int((answer_N != without_N).sum()):,} of {len(label_N):,} predictions change: "
        f"{int((right_N & ~still_N).sum()):,} from right to wrong, {int((~right_N & still_N).sum()):,} from wrong to "
        "right."
    )


def _strength(attending: Sequence[Attending], examples: Sequence[Example], swept: _Swept | None) -> Section:
    """Examples by the share of attention between words, in deciles, and whether predictions depend more on the head
    where it attends strongly.
    """
    texts = {example.index: shortened(" / ".join(example.texts), _LONGEST) for example in examples}
    known = [row for row in attending if np.isfinite(row.share)]
    strongest_first = sorted(known, key=lambda row: -row.share)
    rows = []
    places = np.array_split(np.arange(len(known)), min(_GROUPS, len(known)) or 1)
    for rank, group in enumerate((group for group in places if len(group)), start=1):
        middle = strongest_first[group[len(group) // 2]]
        high, low = strongest_first[group[0]].share, strongest_first[group[-1]].share
        pair = f"{middle.query} → {middle.key} ({number(middle.weight, 2)})"
        rows.append([str(rank), low_to_high(low, high, 2), texts[middle.index], pair])
    mean = number(float(np.mean([row.share for row in known]))) if known else MISSING
    findings = [
        f"A token gives other tokens of the text {mean} of its attention, on average over {len(known):,} examples."
    ]
    if swept is not None:
        change_of = dict(zip(swept.index_N.tolist(), swept.change_N.abs().tolist(), strict=True))
        pairs = [(row.share, change_of.get(row.index, np.nan)) for row in attending]
        correlation = rank_correlation(*np.array(pairs).reshape(-1, 2).T)
        if correlation.judged:
            findings.append(
                f"This share {'is' if correlation.significant else 'is not significantly'} correlated with the change "
                f"of the prediction without it: rank correlation {number(correlation.rho, 2)} "
                f"({number(correlation.low, 2)} to {number(correlation.high, 2)}, p {p_value(correlation.p_value)})."
            )
    return Section(
        "Where it attends strongly",
        findings,
        [
            "The rest goes to special tokens and to the token itself. The table shows the median example of each "
            "decile, the strongest first."
        ],
        [Table(["decile", "share", "text", "strongest pair"], rows)],
    )


def _pairs(tested: Sequence[TokenPair]) -> Section:
    """Pairs of tokens with more attention than chance."""
    title = "Pairs of tokens with more attention than chance"
    if not tested:
        return Section(title, [f"No pair of tokens occurs in {FEWEST} examples."])
    pairs = _above_chance(tested)
    shown = pairs[:_SHOWN]
    rows = [
        [f"{pair.query} → {pair.key}", number(pair.weight), number(pair.chance), number(pair.low), f"{pair.examples:,}"]
        for pair in shown
    ]
    lead = f"; most: {shown[0].query} → {shown[0].key} ({number(shown[0].weight, 2)})" if shown else ""
    return Section(
        title,
        [f"{len(pairs):,} of {len(tested):,} pairs of tokens get more attention than chance{lead}."],
        [
            f"Pairs in at least {FEWEST} examples. Chance is the same weight for every token of an example; limits "
            "are corrected for all tested pairs."
        ],
        [Table(["pair", "mean weight", "chance", "excess at least", "examples"], rows)] if rows else [],
    )


def _page(
    run: Run,
    disabled: DisabledHeads | None,
    head: tuple[int, int],
    sections: Sequence[Section],
    evaluation: str,
    count: int,
) -> Report:
    """The page: the run's grid of heads with this one selected, and the sections."""
    report = report_run(run, heads=1, figures=0).report
    screen = report.overview
    if screen is not None:
        # What the run's page says of all heads together is not about this one.
        screen = replace(screen, start=head, notes=[] if disabled is None else disabled.notes())
    verdict = None if disabled is None else disabled.verdicts.get(head)
    together = [section for section in report.sections if section.joint is not None]
    return Report(
        title=head_label(*head) + (f": {WORDS[verdict]}" if verdict else ""),
        subtitle=f"{run.name}: {count:,} examples of {evaluation}",
        facts=report.facts,
        sections=[*sections, *together],
        overview=screen,
        steps=[
            NextStep("Which heads can stand in for it?", f"{run.analyze_command} analysis=redundancy", ANNOUNCED),
            view_step("it", f"checkpoint={run.analysed}", run),
        ],
    )
