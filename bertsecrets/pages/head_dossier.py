"""A dossier of one head over a whole evaluation set: examples that it decides, examples it attends in, and pairs of
tokens.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor, nn

from bertsecrets.ablation.outcomes import Outcomes
from bertsecrets.attention.watch import watch
from bertsecrets.data.batch import Batch
from bertsecrets.data.example import Example
from bertsecrets.data.module import TaskData
from bertsecrets.data.task import Task, task_from_config
from bertsecrets.data.tokenization import written
from bertsecrets.errors import UserError
from bertsecrets.models.checkpoint import load_checkpoint
from bertsecrets.models.encoder import describe, evaluating
from bertsecrets.models.loading import load_tokenizer
from bertsecrets.models.spec import INITIAL, ModelSpec, find_checkpoint
from bertsecrets.pages.page_view import PageView
from bertsecrets.present.report.content import NextStep, Report, Section, Table
from bertsecrets.reporting.overview import ANNOUNCED, DisabledHeads, view_step
from bertsecrets.reporting.run_report import report_run
from bertsecrets.results.components import HEAD
from bertsecrets.results.files import on_page
from bertsecrets.results.formatting import MISSING, head_label, low_to_high, lower_first, number, p_value, shortened
from bertsecrets.results.progress import progress_over, reported
from bertsecrets.results.run import Run
from bertsecrets.results.verdicts import WORDS
from bertsecrets.statistics.ranks import rank_correlation

Array = NDArray[np.float64]

_GROUPS = 10
_SHOWN = 20
_FEWEST = 10
"""Fewer examples with a pair of tokens do not show that the head attends to it."""

_LEVEL = 0.05
_LONGEST = 300
"""Characters of an example in a table."""

_PAIRS_AT_ONCE = 2_000_000
"""Pairs of tokens kept apart by example before they are added up."""


class HeadDossier(PageView):
    """The dossier of one head as a page without network: show it in a notebook, or :meth:`save` it; prints its
    findings.
    """

    def __repr__(self) -> str:
        return "\n".join([self.report.title, *(line for part in self.report.sections for line in part.findings)])


@dataclass(frozen=True)
class TokenPair:
    """A pair of tokens that a head attends to by more than chance.

    Args:
        query, key: The tokens.
        weight: Mean weight from ``query`` to ``key``, first within and then over examples.
        chance: The weight if each token of the example got the same.
        low: Lower limit of ``weight - chance``, corrected for all pairs that were tested.
        examples: Number of examples with the pair.
    """

    query: str
    key: str
    weight: float
    chance: float
    low: float
    examples: int


@dataclass(frozen=True)
class HeadAttention:
    """What one head attends to in N examples.

    Args:
        share_N: Mean share of a token's attention that goes to other tokens of the text, neither special ones nor
            itself; NaN for a text of one token.
        strongest: For each example the largest such weight: the two tokens and the weight.
        pairs: Pairs of tokens attended to by more than chance, the largest mean weight first.
        tested: Number of pairs that were tested.
    """

    share_N: Array
    strongest: Sequence[tuple[str, str, float]]
    pairs: Sequence[TokenPair]
    tested: int


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
    encoder = describe(model)
    if not (0 <= layer < encoder.num_layers and 0 <= head < encoder.num_heads):
        raise UserError(
            f"There is no head {layer}.{head}; the model has layers 0 to {encoder.num_layers - 1} and heads 0 to "
            f"{encoder.num_heads - 1}, e.g. head={encoder.num_layers - 1}.0."
        )
    disabled = DisabledHeads.of(run)
    name = data.evaluation_names[0] if disabled is None else disabled.any_row["evaluation"]
    dataset = data.evaluation_dataset(name)
    with progress_over(len(data.evaluation_loader(name)), "reading the evaluation set", visible=progress) as advance:
        attention = attention_of_head(
            model, reported(data.evaluation_loader(name), advance), layer, head, data.tokenizer
        )
    swept = None if disabled is None else _swept(run, disabled, (layer, head), data.task)
    strength = _strength(attention, dataset.examples)
    if swept is not None:
        strength = _with_correlation(strength, attention.share_N, swept.change_of(dataset.examples))
    sections = [_decided(run, swept, data, dataset.examples), strength, _pairs(attention)]
    page = _page(run, disabled, (layer, head), sections, name, len(dataset))
    changes = "" if swept is None else sections[0].findings[0].partition(":")[0].rstrip(".")
    return HeadDossier(replace(page, title=f"{page.title}{_does(changes, attention)}"))


def _does(changes: str, attention: HeadAttention) -> str:
    """What a head does, for the end of a title: how answers change without it, and the pair it attends to most."""
    parts = [lower_first(changes)] if changes else []
    if attention.pairs:
        pair = attention.pairs[0]
        parts.append(f"it attends most from “{pair.query}” to “{pair.key}” ({number(pair.weight, 2)})")
    return "".join(f"; {part}" for part in parts)


def attention_of_head(
    model: nn.Module, batches: Iterable[Batch], layer: int, head: int, tokenizer: Any
) -> HeadAttention:
    """What one head attends to in all examples of the batches, in order of their index.

    Args:
        model: The model, which is put into evaluation mode meanwhile.
        batches: Batches of examples.
        layer, head: The head.
        tokenizer: Its tokenizer, for the names of tokens.
    """
    maps: list[Tensor] = []
    rows: dict[int, tuple[float, int, int, float]] = {}
    sums = _PairSums(len(tokenizer))

    def observe(seen_layer: int, attention_BHQK: Tensor) -> None:
        if seen_layer == layer:
            maps[:] = [attention_BHQK[:, head].cpu().double()]

    device = next(model.parameters()).device
    with evaluating(model), torch.no_grad(), watch(model, observe):
        for batch in batches:
            model(**batch.to(device).inputs())
            for row, index in enumerate(batch.index_B.tolist()):
                length = int(batch.attention_mask_BS[row].sum())
                real_S = batch.attention_mask_BS[row].bool()
                ids_S = batch.input_ids_BS[row][real_S].numpy()
                words = np.flatnonzero(~batch.special_BS[row][real_S].numpy())
                weight_QK = maps[0][row][real_S][:, real_S].numpy()[np.ix_(words, words)]
                np.fill_diagonal(weight_QK, 0)
                if len(words) < 2:
                    rows[index] = (np.nan, -1, -1, np.nan)
                    continue
                query, key = np.unravel_index(int(weight_QK.argmax()), weight_QK.shape)
                rows[index] = (
                    float(weight_QK.sum(-1).mean()),
                    int(ids_S[words[query]]),
                    int(ids_S[words[key]]),
                    float(weight_QK[query, key]),
                )
                sums.add(ids_S[words], weight_QK, 1 / length)
    ordered = [rows[index] for index in sorted(rows)]

    def name(token: int) -> str:
        return MISSING if token < 0 else written(tokenizer, [token])[0]

    return HeadAttention(
        np.array([share for share, *_ in ordered]),
        [(name(query), name(key), weight) for _, query, key, weight in ordered],
        *sums.above_chance(name),
    )


class _PairSums:
    """Sums over examples of the weight of each pair of tokens and of its excess over chance."""

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self.parts: list[tuple[NDArray[np.int64], Array]] = []
        self.size = 0

    def add(self, ids_W: NDArray[np.int64], weight_WW: Array, chance: float) -> None:
        """Add an example's weights between different tokens of its text."""
        apart_WW = ~np.eye(len(ids_W), dtype=bool)
        # One number for each pair of tokens, by which pairs are counted.
        keys = (ids_W[:, None] * self.vocabulary + ids_W[None])[apart_WW]
        key_P, pair_N = np.unique(keys, return_inverse=True)
        mean_P = np.bincount(pair_N, weight_WW[apart_WW]) / np.bincount(pair_N)
        excess_P = mean_P - chance
        ones = np.ones(len(key_P))
        self.parts.append((key_P, np.stack([ones, mean_P, chance * ones, excess_P, excess_P**2], 1)))
        self.size += len(key_P)
        if self.size > _PAIRS_AT_ONCE:
            self._add_up()

    def _add_up(self) -> None:
        keys = np.concatenate([key_P for key_P, _ in self.parts])
        values = np.concatenate([value_P5 for _, value_P5 in self.parts])
        key_P, pair_N = np.unique(keys, return_inverse=True)
        self.parts = [(key_P, np.stack([np.bincount(pair_N, column) for column in values.T], 1))]
        self.size = 0

    def above_chance(self, name: Callable[[int], str]) -> tuple[list[TokenPair], int]:
        """Pairs whose mean excess is above 0 by a one-sided t test with Bonferroni's correction, and how many were
        tested.
        """
        if not self.parts:
            return [], 0
        self._add_up()
        key_P, sums_P5 = self.parts[0]
        frequent_P = sums_P5[:, 0] >= _FEWEST
        key_P, (count_P, weight_P, chance_P, excess_P, squares_P) = key_P[frequent_P], sums_P5[frequent_P].T
        if not len(key_P):
            return [], 0
        mean_P = excess_P / count_P
        spread_P = np.sqrt(np.maximum(squares_P - count_P * mean_P**2, 0) / (count_P - 1))
        low_P = mean_P - stats.t.isf(_LEVEL / len(key_P), count_P - 1) * spread_P / np.sqrt(count_P)
        weight_P, chance_P = weight_P / count_P, chance_P / count_P
        pairs = [
            TokenPair(
                name(int(key_P[pair] // self.vocabulary)),
                name(int(key_P[pair] % self.vocabulary)),
                float(weight_P[pair]),
                float(chance_P[pair]),
                float(low_P[pair]),
                int(count_P[pair]),
            )
            for pair in np.argsort(-weight_P)
            if low_P[pair] > 0
        ]
        return pairs, len(key_P)


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
    data = TaskData.from_config(config["data"], task, tokenizer, config["task"]["training"], config["seed"])
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

    def change_of(self, examples: Sequence[Example]) -> Array:
        """How much each answer changes, in order of the examples' index; NaN for examples that the sweep left out."""
        by_index = dict(zip(self.index_N.tolist(), self.change_N.abs().tolist(), strict=True))
        return np.array([by_index.get(index, np.nan) for index in sorted(example.index for example in examples)])


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


def _strength(attention: HeadAttention, examples: Sequence[Example]) -> Section:
    """Examples by the share of attention between words, in deciles."""
    texts = dict(enumerate(sorted(examples, key=lambda example: example.index)))
    strongest_first = np.argsort(-np.nan_to_num(attention.share_N, nan=-1)).tolist()
    attending = [row for row in strongest_first if row in texts and np.isfinite(attention.share_N[row])]
    rows = []
    groups = [group.tolist() for group in np.array_split(np.array(attending, int), min(_GROUPS, len(attending)) or 1)]
    for rank, group in enumerate(groups, start=1):
        if not group:
            continue
        middle = group[len(group) // 2]
        query, key, weight = attention.strongest[middle]
        high, low = attention.share_N[group[0]], attention.share_N[group[-1]]
        rows.append(
            [
                str(rank),
                low_to_high(low, high, 2),
                shortened(" / ".join(texts[middle].texts), _LONGEST),
                f"{query} → {key} ({number(weight, 2)})",
            ]
        )
    mean = number(float(np.nanmean(attention.share_N))) if attending else MISSING
    return Section(
        "Where it attends strongly",
        [
            f"A token gives other tokens of the text {mean} of its attention, on average over {len(attending):,} "
            "examples."
        ],
        [
            "The rest goes to special tokens and to the token itself. The table shows the median example of each "
            "decile, the strongest first."
        ],
        [Table(["decile", "share", "text", "strongest pair"], rows)],
    )


def _with_correlation(section: Section, share_N: Array, change_N: Array) -> Section:
    """The section, with a test of whether predictions depend more on the head where it attends strongly."""
    correlation = rank_correlation(share_N, change_N)
    if not correlation.judged:
        return section
    verb = "is" if correlation.significant else "is not significantly"
    return replace(
        section,
        findings=[
            *section.findings,
            f"This share {verb} correlated with the change of the prediction without it: rank correlation "
            f"{number(correlation.rho, 2)} ({number(correlation.low, 2)} to {number(correlation.high, 2)}, p "
            f"{p_value(correlation.p_value)}).",
        ],
    )


def _pairs(attention: HeadAttention) -> Section:
    """Pairs of tokens with more attention than chance."""
    title = "Pairs of tokens with more attention than chance"
    if not attention.tested:
        return Section(title, [f"No pair of tokens occurs in {_FEWEST} examples."])
    shown = attention.pairs[:_SHOWN]
    rows = [
        [f"{pair.query} → {pair.key}", number(pair.weight), number(pair.chance), number(pair.low), f"{pair.examples:,}"]
        for pair in shown
    ]
    lead = f"; most: {shown[0].query} → {shown[0].key} ({number(shown[0].weight, 2)})" if shown else ""
    return Section(
        title,
        [f"{len(attention.pairs):,} of {attention.tested:,} pairs of tokens get more attention than chance{lead}."],
        [
            f"Pairs in at least {_FEWEST} examples. Chance is the same weight for every token of an example; limits "
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
