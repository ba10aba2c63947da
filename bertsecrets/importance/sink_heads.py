"""Sink heads: norms of special tokens' contributions (Kobayashi et al. 2020, section 3), and the effect of redirecting
attention away from these tokens.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from pydantic import Field
from scipy import optimize, stats
from torch import Tensor, nn

from bertsecrets.ablation.forecast import announce
from bertsecrets.analysis import Analysis, Context, Findings
from bertsecrets.attention.override import HeadEdit, override
from bertsecrets.attention.watch import output_weights, projected_norms, watch_values
from bertsecrets.data.batch import Batch
from bertsecrets.data.special_tokens import SPECIAL_TOKENS, TokenNames, special_token_ids
from bertsecrets.float64 import float64_device
from bertsecrets.grid import Column, HeadGrid, Shown
from bertsecrets.importance.rows import BROADCAST, CONTENT, NOP, Agreement, Limits, SinkHead
from bertsecrets.measures.base import MaxExamples, Measure, Passed
from bertsecrets.models.encoder import describe
from bertsecrets.results.estimate import Estimate
from bertsecrets.results.experiment import Experiment
from bertsecrets.results.progress import progress_over
from bertsecrets.results.views import LEVEL
from bertsecrets.settings import typed
from bertsecrets.statistics.corrections import corrected
from bertsecrets.statistics.student import mean_differs_from_zero

ATTENTION, RATIO, SHARE, MOVED = "_attention", "_value_ratio", "_norm_share", "_output_change"


class SinkNorms(Measure):
    """Contribution of attention to a special token to a head's output.

    With f(x) a token's value (including its bias) after the head's part of the output projection, and a the attention
    of token i to token j:

    Columns, for each token of ``ids``:
        ``<token>_attention``: mean over i of the attention to the token; 0..1.
        ``<token>_value_ratio``: mean norm of f over the occurrences of the token, divided by the mean over all words.
        ``<token>_norm_share``: with s the norm of the sum of a f over the occurrences of the token and r that over all
            other tokens, both averaged over i: s / (s + r); 0..1.
        ``<token>_output_change``: relative change of the head's output if the attention to the token is redirected
            proportionally to the other tokens: mean norm of the difference over mean norm of the output.

    Examples without the token do not count.

    Args:
        ids: Name of each special token, of :data:`~bertsecrets.data.special_tokens.SPECIAL_TOKENS`, and its id.
    """

    name = "sink_norms"
    title = "Norms of sink contributions"

    def __init__(self, num_layers: int, num_heads: int, ids: Mapping[str, int]) -> None:
        self.columns = tuple(column for name in ids for column in norm_columns(name))
        super().__init__(num_layers, num_heads)
        self.ids = dict(ids)

    def take(self, layer: int, attention_BHQK: Tensor, value_BHKd: Tensor, gram_Hdd: Tensor, batch: Batch) -> None:
        """Add one layer of one batch; ``gram_Hdd`` is that layer's :func:`output_grams`."""
        real_BS = batch.attention_mask_BS.bool()
        word_BS = real_BS & ~batch.special_BS
        rows_B1Q = real_BS.to(attention_BHQK.dtype)[:, None]
        values_BHC = []
        size_BHK = projected_norms(value_BHKd, gram_Hdd)
        output_BHQd = attention_BHQK @ value_BHKd
        for token in self.ids.values():
            sink_BK = real_BS & (batch.input_ids_BS == token)
            weight_BHQK = attention_BHQK * sink_BK[:, None, None].to(attention_BHQK.dtype)
            sunk_BHQ = weight_BHQK.sum(-1)
            rest_BHQK = attention_BHQK - weight_BHQK
            added_BHQd, rest_BHQd = weight_BHQK @ value_BHKd, rest_BHQK @ value_BHKd
            # A row that attends only to this token cannot be redirected.
            tiny = torch.finfo(rest_BHQK.dtype).tiny
            turned_BHQd = rest_BHQd / rest_BHQK.sum(-1, keepdim=True).clamp(min=tiny)
            added_BH, rest_BH, moved_BH, whole_BH = (
                (projected_norms(vector_BHQd, gram_Hdd) * rows_B1Q).sum(-1)
                for vector_BHQd in (added_BHQd, rest_BHQd, turned_BHQd - output_BHQd, output_BHQd)
            )
            ratio_BH = _mean_over(size_BHK, sink_BK) / _mean_over(size_BHK, word_BS)
            attention_BH = (sunk_BHQ * rows_B1Q).sum(-1) / rows_B1Q.sum(-1)
            token_BHC = torch.stack((attention_BH, ratio_BH, added_BH / (added_BH + rest_BH), moved_BH / whole_BH), -1)
            values_BHC.append(token_BHC.masked_fill(~sink_BK.any(-1)[:, None, None], torch.nan))
        self.update(Passed(layer, batch, values_BHC=torch.cat(values_BHC, -1)))


def norm_columns(name: str) -> tuple[Column, ...]:
    """The columns of one special token."""
    label = SPECIAL_TOKENS[name]
    return (
        Column(name + ATTENTION, f"attention to {label}", "mean attention", (0.0, 1.0)),
        Column(name + RATIO, f"value norm at {label} ÷ value norm of words", "ratio of norms"),
        Column(name + SHARE, f"{label}'s share of the output's norm", "share of norms", (0.0, 1.0)),
        Column(name + MOVED, f"output's change without attention to {label}", "relative change"),
    )


def output_grams(model: nn.Module) -> list[Tensor]:
    """For each layer the products of the output weights with themselves, ``[H, d, d]``: norms of f from values alone.

    Raises:
        UserError: If the model's family has no adapter.
    """
    grams = []
    for layer in range(describe(model).num_layers):
        weights_HDd = output_weights(model, layer).to(torch.float32)
        grams.append(weights_HDd.transpose(1, 2) @ weights_HDd)
    return grams


def _mean_over(size_BHK: Tensor, keys_BK: Tensor) -> Tensor:
    return size_BHK.masked_fill(~keys_BK[:, None], 0).sum(-1) / keys_BK.sum(-1)[:, None]


REDIRECT, CUT, LOSS, FLIPS = "_redirect", "_cut", "_redirect_loss", "_redirect_flips"

_EFFECT = "mean change of the prediction"

_NEAR = 1e-9


@dataclass(frozen=True)
class Sink:
    """A head that gives a special token much of its attention.

    Args:
        layer, head: The head.
        token: Name of the token, in :data:`~bertsecrets.data.special_tokens.SPECIAL_TOKENS`.
    """

    layer: int
    head: int
    token: str


class SinkEffects(Measure):
    """Changes of the predictions when a sink head's attention to its token is redirected or cut.

    A prediction's change is the total variation distance between the predicted probabilities; for scores, the absolute
    change divided by the width of their range.

    Columns, for each special token; heads that are not sinks of it have no number:
        ``<token>_redirect``: change of the prediction when the attention is redirected proportionally to all other
            tokens.
        ``<token>_redirect_loss``: the resulting change of the loss.
        ``<token>_redirect_flips``: share of examples with a changed predicted class; none for scores.
        ``<token>_cut``: change of the prediction when only the attention to the token is set to zero, which removes the
            token's value.

    Args:
        ids: Name and id of each special token.
        sinks: The sink heads.
        width: Width of the range of a regression task's scores; None for classes.
    """

    name = "sink_effects"
    title = "Effects of sinks"

    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        ids: Mapping[str, int],
        sinks: Sequence[Sink],
        width: float | None = None,
    ) -> None:
        self.columns = tuple(column for name in ids for column in effect_columns(name))
        super().__init__(num_layers, num_heads)
        self.ids = dict(ids)
        self.sinks = tuple(sinks)
        self.width = width

    @torch.no_grad()
    def take(self, model: nn.Module, batch: Batch) -> None:
        """Add one batch: a pass of the whole model, and two for each sink. The model is in evaluation mode."""
        names = list(self.ids)
        has_BT = torch.stack([(batch.input_ids_BS == token).any(-1) for token in self.ids.values()], -1)
        clean_BC = model(**batch.inputs()).logits
        assert batch.label_B is not None
        _, num_heads, columns = self.total_LHC.shape
        # Sums are added per layer, and several sinks may share a layer.
        by_layer: dict[int, Tensor] = {}
        for sink in self.sinks:
            token_index = names.index(sink.token)
            logits: list[Tensor] = []
            for mode in ("redirect", "cut"):
                with override(model, [HeadEdit(sink.layer, sink.head, mode)], away_from=[self.ids[sink.token]]):
                    logits.append(model(**batch.inputs()).logits)
            redirected_BC, cut_BC = logits
            numbers_BC = torch.stack(
                (
                    self.change(clean_BC, redirected_BC),
                    batch.losses(redirected_BC) - batch.losses(clean_BC),
                    self._flips(clean_BC, redirected_BC),
                    self.change(clean_BC, cut_BC),
                ),
                -1,
            ).masked_fill(~has_BT[:, token_index, None], torch.nan)
            if sink.layer not in by_layer:
                by_layer[sink.layer] = numbers_BC.new_full((batch.size, num_heads, columns), torch.nan)
            first = token_index * numbers_BC.shape[-1]
            by_layer[sink.layer][:, sink.head, first : first + numbers_BC.shape[-1]] = numbers_BC
        for layer, values_BHC in by_layer.items():
            self.update(Passed(layer, batch, values_BHC=values_BHC))

    def change(self, before_BC: Tensor, after_BC: Tensor) -> Tensor:
        """The change of each example's prediction, ``[B]`` in 0..1 (scores may leave their range)."""
        if self.width is not None:
            return (after_BC - before_BC)[:, 0].abs().float() / self.width
        before_BC, after_BC = (logits_BC.float().softmax(-1) for logits_BC in (before_BC, after_BC))
        return (after_BC - before_BC).abs().sum(-1) / 2

    def _flips(self, before_BC: Tensor, after_BC: Tensor) -> Tensor:
        if self.width is not None:
            return torch.full_like(before_BC[:, 0], torch.nan, dtype=torch.float32)
        return (before_BC.argmax(-1) != after_BC.argmax(-1)).float()


def effect_columns(name: str) -> tuple[Column, ...]:
    """The columns of one special token."""
    label = SPECIAL_TOKENS[name]
    return (
        Column(name + REDIRECT, f"{label} redirected: change of the prediction", _EFFECT),
        Column(name + LOSS, f"{label} redirected: change of the loss", "loss"),
        Column(name + FLIPS, f"{label} redirected: changed predicted class", "share of examples", (0.0, 1.0)),
        Column(name + CUT, f"{label} cut: change of the prediction", _EFFECT),
    )


class Sinks(Experiment):
    """Whether the attention of sink heads to [SEP] or [CLS] is a no-op (Clark et al. 2019, section 3.2)."""

    name = "sinks"
    title = "Is attention to special tokens a no-op?"
    shown = Shown(compared=False, reads_task=True)
    presenter = "bertsecrets.present.special_tokens:SINKS"

    def __init__(self, tokens: Sequence[str] = tuple(SPECIAL_TOKENS)) -> None:
        self.columns: tuple[Column, ...] = tuple(
            column for name in tokens for column in (*norm_columns(name), *effect_columns(name))
        )


def by_norms(value_ratio: float, norm_share: float, limits: Limits) -> str:
    """The kind by diagnosis.

    *nop*: the token's values are small. *broadcast*: they are not, and contribute at least half of the output's norm.
    *content*: other tokens contribute more.
    """
    if value_ratio < limits.value_ratio:
        return NOP
    return BROADCAST if norm_share >= 0.5 else CONTENT


def by_intervention(cut: float, redirect: float, limits: Limits) -> str:
    """The kind by intervention.

    *broadcast*: removing the token's value changes the prediction. *content*: it does not, but redirecting the
    attention to other tokens does. *nop*: neither does.
    """
    if cut >= limits.change:
        return BROADCAST
    return CONTENT if redirect >= limits.change else NOP


def sink_rows(grid: HeadGrid, tokens: Sequence[str], limits: Limits) -> Iterator[Limits | SinkHead | Agreement]:
    """The limits, the sink heads of each token by layer, and the agreement of their kinds, from the numbers of all
    heads.
    """
    yield limits
    columns = {name: index for index, name in enumerate(grid.columns)}
    loss_C = [columns[token + LOSS] for token in tokens]
    error_LHT = grid.stderr_LHC[..., loss_C].numpy()
    # Corrected over all tokens, because readers look for significant heads in either table.
    p_LHT = corrected(
        mean_differs_from_zero(grid.value_LHC[..., loss_C].numpy(), error_LHT, grid.count_LHC[..., loss_C].numpy())
    )
    for index, token in enumerate(tokens):
        value = {
            suffix: grid.column(token + suffix).numpy()
            for suffix in (ATTENTION, RATIO, SHARE, MOVED, REDIRECT, LOSS, FLIPS, CUT)
        }
        heads = []
        for layer, head in np.argwhere(is_sink(value[ATTENTION], limits) & np.isfinite(value[REDIRECT])).tolist():
            number = {suffix: float(value_LH[layer, head]) for suffix, value_LH in value.items()}
            heads.append(
                SinkHead(
                    token=token,
                    layer=layer,
                    head=head,
                    attention=number[ATTENTION],
                    value_ratio=number[RATIO],
                    norm_share=number[SHARE],
                    output_change=number[MOVED],
                    redirect=number[REDIRECT],
                    redirect_loss=Estimate(number[LOSS], stderr=float(error_LHT[layer, head, index])),
                    redirect_flips=number[FLIPS],
                    cut=number[CUT],
                    loss_changes=bool(p_LHT[layer, head, index] <= LEVEL),
                    by_norms=by_norms(number[RATIO], number[SHARE], limits),
                    by_intervention=by_intervention(number[CUT], number[REDIRECT], limits),
                )
            )
        yield from heads
        ratio_N = [head.value_ratio for head in heads]
        changes = {"cutting": [head.cut for head in heads], "redirecting": [head.redirect for head in heads]}
        for intervention, change_N in changes.items():
            changes_N = [change >= limits.change for change in change_N]
            changing = sum(changes_N)
            yield Agreement(
                token, intervention, area_under_curve(ratio_N, changes_N), changing, len(changes_N) - changing
            )


def area_under_curve(score_N: ArrayLike, positive_N: ArrayLike) -> Estimate:
    """The area under the ROC curve: the probability that a positive case scores higher than a negative one, with ties
    counting half; NaN if all cases are in one class.

    The 95 % interval is that of Newcombe 2006 (method 5), which has positive width even if the classes do not overlap.

    >>> area = area_under_curve([0.1, 0.4, 0.35, 0.8], [False, False, True, True])
    >>> area.value, round(area.low, 3), round(area.high, 3)
    (0.75, 0.227, 0.967)
    """
    # Imported late: scikit-learn takes a second, and few runs need it.
    from sklearn.metrics import roc_auc_score

    score, positive = np.asarray(score_N, np.float64), np.asarray(positive_N, bool)
    m, n = int(positive.sum()), int((~positive).sum())
    if not m or not n:
        return Estimate(math.nan, math.nan, math.nan, n=m + n)
    value = float(roc_auc_score(positive, score))
    z = stats.norm.ppf(0.975)
    # Newcombe's variance, with both sizes replaced by their mean in the factor.
    extra = (m + n) / 2 - 1

    def beyond(theta: float) -> float:
        variance = theta * (1 - theta) * (1 + extra * ((1 - theta) / (2 - theta) + theta / (1 + theta))) / (m * n)
        return float(abs(theta - value) - z * math.sqrt(variance))

    # At 0 and 1 the variance is also 0, and the value would be its own limit.
    inside = min(max(value, _NEAR), 1 - _NEAR)
    low = optimize.brentq(beyond, 0.0, inside) if value > 0 else 0.0
    high = optimize.brentq(beyond, inside, 1.0) if value < 1 else 1.0
    return Estimate(value, float(low), float(high), n=m + n)


def is_sink(attention_LH: NDArray[np.float64], limits: Limits) -> NDArray[np.bool_]:
    """Which heads are sinks by their mean attention to a token; an undefined mean does not count."""
    return np.nan_to_num(attention_LH, nan=-math.inf) >= limits.attention


_SETTING = "analysis.sinks.tokens"
_Share = Annotated[float, Field(gt=0, le=1, description="a number above 0 and up to 1")]


class InterveneOnSinks(Analysis):
    """Test the claim that attention to a special token is a no-op.

    One pass over the examples finds the sink heads of [SEP] and [CLS] and the norms of those tokens' contributions; a
    second pass runs the model twice per sink head, with its attention redirected and cut.

    Args:
        tokens: The special tokens, ``sep`` and ``cls``.
        attention: Least mean attention to a token of a sink head.
        value_ratio: Ratio of the value norm at the token to that of words, below which a head's diagnosis is *nop*.
        change: Mean change of the prediction below which an intervention counts as having no effect.
        max_examples: Size of a random sample of examples; None for all.
        evaluation: Evaluation set; None for the task's first.

    Raises:
        UserError: If a token is unknown or missing in the tokenizer, or the task has no labels.
    """

    of_whole_texts = True
    without_labels = "the effect of redirecting attention cannot be measured"

    @typed
    def __init__(
        self,
        tokens: TokenNames = ("sep", "cls"),
        attention: _Share = 0.5,
        value_ratio: Annotated[float, Field(gt=0, description="a number above 0")] = 0.5,
        change: _Share = 0.01,
        max_examples: MaxExamples = None,
        evaluation: str | None = None,
    ) -> None:
        super().__init__(evaluation, max_examples)
        self.tokens = tuple(dict.fromkeys(tokens))
        self.limits = Limits(float(attention), float(value_ratio), float(change))

    def check(self, context: Context) -> None:
        super().check(context)
        special_token_ids(context.data.tokenizer, self.tokens, _SETTING)

    def run(self, context: Context) -> Iterator[Findings]:
        encoder, device, host = context.encoder, context.device, float64_device(context.device)
        ids = special_token_ids(context.data.tokenizer, self.tokens, _SETTING)
        norms = SinkNorms(encoder.num_layers, encoder.num_heads, ids).to(host)
        grams = output_grams(encoder.model)
        batches = context.batches(self.max_examples)
        with progress_over(len(batches), "sinks: norms", visible=context.progress) as advance:
            for on_host in batches:
                batch = on_host.to(device)

                def observe(layer: int, attention: torch.Tensor, value: torch.Tensor, batch: Batch = batch) -> None:
                    # Norms in full precision, independent of the model's precision.
                    with torch.autocast(device.type, enabled=False):
                        norms.take(layer, attention, value, grams[layer], batch)

                with context.autocast(), watch_values(encoder.model, observe):
                    encoder.model(**batch.inputs())
                advance()
        norm_grid = norms.compute()
        sinks = [
            Sink(int(layer), int(head), name)
            for name in ids
            for layer, head in torch.from_numpy(
                is_sink(norm_grid.column(name + ATTENTION).numpy(), self.limits)
            ).nonzero()
        ]
        if sinks:
            examples = len(context.positions(self.max_examples))
            work = f"Redirecting attention away from special tokens, {len(sinks)} times on {examples:,} examples"
            # Each head is redirected and cut.
            announce(work, context, 1 + 2 * len(sinks), self.max_examples)
        limits = context.task.label_range
        width = None if limits is None else limits[1] - limits[0]
        effects = SinkEffects(encoder.num_layers, encoder.num_heads, ids, sinks, width).to(host)
        with progress_over(len(batches), "sinks: interventions", visible=context.progress) as advance:
            for on_host in batches:
                with context.autocast():
                    effects.take(encoder.model, on_host.to(device))
                advance()
        tracked = tuple(name + suffix for name in self.tokens for suffix in (ATTENTION, REDIRECT))
        grid = _joined(norm_grid, effects.compute(), self.tokens)
        rows = list(sink_rows(grid, self.tokens, self.limits))
        yield Findings(Sinks(self.tokens), [grid], rows, tracked=[grid.only(tracked)])


def _joined(norms: HeadGrid, effects: HeadGrid, tokens: Sequence[str]) -> HeadGrid:
    columns = Sinks(tokens).columns

    def together(norms_LHC: torch.Tensor, effects_LHC: torch.Tensor) -> torch.Tensor:
        names = (*norms.columns, *effects.columns)
        return torch.cat((norms_LHC, effects_LHC), -1)[..., [names.index(column.name) for column in columns]]

    return HeadGrid(
        Sinks.name,
        columns,
        together(norms.value_LHC, effects.value_LHC),
        together(norms.stderr_LHC, effects.stderr_LHC),
        together(norms.count_LHC, effects.count_LHC),
    )
