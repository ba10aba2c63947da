"""Direct and total effect of disabling a head: how much of the harm later layers undo, or add (self-repair)."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor, nn

from bertsecrets.ablation.engine import Engine, EnginePass
from bertsecrets.ablation.plan import Plan, every_head
from bertsecrets.ablation.replacements import Replacements
from bertsecrets.attention.hooks import eager_execution
from bertsecrets.data.batch import Batch
from bertsecrets.errors import UserError
from bertsecrets.grid import Column, HeadGrid, Shown
from bertsecrets.measures.base import Measure, Passed
from bertsecrets.measures.one_pass import task_losses
from bertsecrets.models.encoder import describe
from bertsecrets.present.figures.grids import HeadPanel, head_panels
from bertsecrets.present.report.content import FigureBlock, Section, Table
from bertsecrets.results.formatting import MISSING, head_label, number, p_value, with_error
from bertsecrets.results.views import LEVEL, MeasureView
from bertsecrets.statistics.corrections import corrected
from bertsecrets.statistics.student import mean_differs_from_zero

DIRECT, TOTAL, UNDONE = "direct", "total", "undone"
_LISTED = 20


class DirectEngine(Engine):
    """An engine whose variants reach the answer by the residual stream alone.

    The layer of the disabled head runs as usual. In every later layer the outputs of attention and of the feed-forward
    network are those of the unedited model, added to the changed residual stream; layer normalisation runs on the sum. If
    the task head reads the first token alone, no other token is computed.

    Args and errors as :class:`~bertsecrets.ablation.engine.Engine`; UserError also if the family's passes cannot be
    started in the middle.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.pass_type = _DirectPass
        if not self.shares:
            raise UserError(
                f"Direct effects need an adapter that runs single layers, and model type '{self.encoder.base.config.model_type}' "
                "has none; add one in bertsecrets/models/families."
            )


class _DirectPass(EnginePass):
    def __init__(
        self, engine: Engine, inputs: Mapping[str, Tensor], donors: Mapping[str, Tensor] | None = None
    ) -> None:
        super().__init__(engine, inputs, donors)
        self.frozen: list[tuple[tuple[nn.Linear, Tensor], ...]] = []
        with eager_execution():
            for layer, clean in zip(self.encoder.layers, self.layers, strict=True):
                self.frozen.append(self._branches(layer, clean.output_BSD, clean.hidden_BSD))

    def _branches(
        self, layer: nn.Module, output_BSD: Tensor, hidden_BSD: Tensor
    ) -> tuple[tuple[nn.Linear, Tensor], ...]:
        """The linear maps that write to the residual stream, with their outputs: of the heads, and of the network."""
        called: list[tuple[nn.Linear, Tensor]] = []
        with ExitStack() as stack:
            for module in layer.modules():
                if isinstance(module, nn.Linear):

                    def keep(linear: nn.Module, args: Any, result: Tensor) -> None:
                        assert isinstance(linear, nn.Linear)
                        called.append((linear, result))

                    stack.callback(module.register_forward_hook(keep).remove)
            self.family.after_heads(layer, output_BSD, hidden_BSD)
        # In the order of a layer: the projection of the heads first, the network's output last.
        return called[0], called[-1]

    def descend(self, layer: int, hidden_RSD: Tensor, nodes: Sequence[Sequence[int]]) -> None:
        """Carry the residual stream through the later layers, whose own outputs are those of the clean pass."""
        if self.first_only:
            hidden_RSD = hidden_RSD[:, :1]
        # Post-norm layers normalise every sum, so each later one must run, though its branches are fixed.
        for later in range(layer, self.encoder.num_layers):
            output_BSD = self.layers[later].output_BSD[self.first : self.last, : hidden_RSD.shape[1]]
            with self._frozen(later, hidden_RSD.shape[1], len(nodes)):
                hidden_RSD = self.family.after_heads(
                    self.encoder.layers[later], output_BSD.repeat(len(nodes), 1, 1), hidden_RSD
                )
        self.classify(hidden_RSD, nodes)

    @contextmanager
    def _frozen(self, layer: int, length: int, copies: int) -> Iterator[None]:
        with ExitStack() as stack:
            for linear, result_BSD in self.frozen[layer]:
                kept_RSD = result_BSD[self.first : self.last, :length].repeat(copies, 1, 1)

                def replace(_: nn.Module, args: Any, result: Tensor, kept_RSD: Tensor = kept_RSD) -> Tensor:
                    return kept_RSD

                stack.callback(linear.register_forward_hook(replace).remove)
            yield


class DirectEffects(Measure):
    """Direct and total effect on the loss of disabling a head.

    The total effect is the loss of an example with the head disabled, minus its loss without. For the direct effect, later
    layers add to the residual stream what they add in the unedited model (path patching, Goldowsky-Dill et al. 2023): they
    do not react to the missing head. Their layer normalisations do, which rescale the changed residual stream: a post-norm
    encoder such as BERT has one after every sum, and no path from a head to the answer avoids them.

    Columns:
        ``direct``, ``total``: rise of the loss.
        ``undone``: direct minus total effect, example by example: positive if later layers undo harm (self-repair).

    Attributes:
        early: After ``compute``, for the sums of both effects over all heads below the last layer: means over examples, the
            variances and the covariance of these means, and the number of examples; empty with fewer than two.
    """

    name = "direct_effect"
    title = "Direct and total effect of heads"
    shown = Shown(compared=False, reads_task=True)
    columns = (
        Column(DIRECT, "direct effect", "rise of the loss", keep="high"),
        Column(TOTAL, "total effect", "rise of the loss"),
        Column(UNDONE, "direct minus total", "rise of the loss"),
    )

    early_sums: Tensor

    def __init__(self, num_layers: int, num_heads: int) -> None:
        super().__init__(num_layers, num_heads)
        self.early: dict[str, float] = {}
        self.add_state("early_sums", torch.zeros(6, dtype=torch.float64), dist_reduce_fx="sum")

    def take(self, batch: Batch, effects_BLHC: Tensor) -> None:
        """Add the effects of one batch."""
        for layer, effects_BHC in enumerate(effects_BLHC.unbind(1)):
            self.update(Passed(layer, batch, values_BHC=effects_BHC))
        direct_B, total_B = effects_BLHC[:, :-1, :, :2].to(self.early_sums).sum((1, 2)).unbind(-1)
        parts = (torch.ones_like(direct_B), direct_B, total_B, direct_B**2, total_B**2, direct_B * total_B)
        self.early_sums += torch.stack([part_B.sum() for part_B in parts])

    def compute(self) -> HeadGrid:
        """Means, standard errors and counts, reduced over all processes; :attr:`early` has the effects of early heads."""
        count, *sums = self.early_sums.tolist()
        if count > 1:
            direct, total, squares, total_squares, products = (value / count for value in sums)
            self.early = {
                DIRECT: direct,
                TOTAL: total,
                "direct_variance": max(squares - direct**2, 0.0) / (count - 1),
                "total_variance": max(total_squares - total**2, 0.0) / (count - 1),
                "covariance": (products - direct * total) / (count - 1),
                "count": count,
            }
        return super().compute()

    @classmethod
    def describe(cls, view: MeasureView) -> Section | None:
        """Both effects of all heads, and where they differ."""
        if not view.has(UNDONE):
            return None
        grids = {column.name: view.grid(column.name) for column in cls.columns}
        p_CLH = corrected(np.stack([mean_differs_from_zero(*grids[column.name]) for column in cls.columns]))
        differs = dict(zip(grids, p_CLH <= LEVEL, strict=True))
        # The last layer has no later one: its difference is rounding.
        differs[UNDONE][-1] = False
        figure = head_panels(
            [HeadPanel(column.label, grids[column.name][0], differs[column.name]) for column in cls.columns],
            title="Effect of disabling a head on the loss: alone, with the reaction of later layers, and the difference",
            unit="rise of the loss",
            note=(
                f"pale: may be 0 (t test over examples, false discovery rate {LEVEL:.0%}); {view.count(DIRECT):,} examples"
            ),
            signed=True,
        )
        mode = view.extras.get("mode", "")
        return Section(
            view.title,
            [_finding(view, differs)],
            [
                f"Each head is disabled alone (mode {mode}). For its direct effect, later layers add to the residual stream "
                "what they add in the unedited model, so that they neither repair nor worsen what the head's absence does; the "
                "layer's own feed-forward network does react. Layer normalisation rescales the changed stream after each sum, "
                "which is part of the direct effect. Direct minus total is what later layers undo."
            ],
            [_table(view, p_CLH[2])],
            [FigureBlock(cls.name, figure, "Direct and total effects.", "Heatmaps of effects.")],
        )


def take_effects(
    model: nn.Module,
    batches: Iterable[Batch],
    mode: str,
    measure: DirectEffects,
    *,
    replacements: Replacements | None = None,
    max_tokens: int | None = None,
    context: Callable[[], Any],
    progress: Callable[[int], object] | None = None,
) -> None:
    """Add the effects of disabling each head to a measure.

    Args:
        model: Any module that holds a transformers encoder with a sequence classification head.
        batches: Labelled examples; moved to the model's device.
        mode: How heads are disabled.
        measure: Receives the effects.
        replacements: What the mode takes its replacements from.
        max_tokens: See :class:`~bertsecrets.ablation.engine.Engine`.
        context: Entered around every pass, e.g. the trainer's autocast.
        progress: Called with 1 after each batch.

    Raises:
        UserError: If an example has no label, or the family's passes cannot be started in the middle.
    """
    encoder, replacements = describe(model), replacements or Replacements()
    plan = Plan(mode, encoder.num_layers, encoder.num_heads, tuple(every_head(encoder.num_layers, encoder.num_heads)))
    engines = [
        kind(model, plan, constants_LHd=replacements.constants_LHd, max_tokens=max_tokens)
        for kind in (DirectEngine, Engine)
    ]
    for on_host in batches:
        batch = on_host.to(engines[0].device)
        if batch.label_B is None:
            raise UserError("Effects need labelled examples to judge the loss by; choose a labelled split.")
        donors = () if replacements.donors is None else replacements.donors.of(on_host)
        passed = [donor.to(engines[0].device).inputs() for donor in donors]
        with context():
            runs = [engine.run(batch.inputs(), donors=passed) for engine in engines]
        clean_B = task_losses(runs[0][0], batch.label_B)
        rises = []
        for _, logits_BVC in runs:
            label_N = batch.label_B.repeat_interleave(len(plan.variants))
            loss_BV = task_losses(logits_BVC.flatten(0, 1), label_N).unflatten(0, (batch.size, len(plan.variants)))
            rises.append((loss_BV - clean_B[:, None]).unflatten(1, (plan.num_layers, plan.num_heads)))
        direct_BLH, total_BLH = rises
        measure.take(batch, torch.stack((direct_BLH, total_BLH, direct_BLH - total_BLH), -1))
        if progress is not None:
            progress(1)


def _finding(view: MeasureView, differs: Mapping[str, NDArray[np.bool_]]) -> str:
    direct_LH, undone_LH = view.value(DIRECT), view.value(UNDONE)
    harmful_LH = differs[DIRECT] & (direct_LH > 0)
    less, more = (int((differs[UNDONE] & (sign * undone_LH > 0)).sum()) for sign in (1, -1))
    counted = (
        f"Disabling a head raises the loss significantly by its direct effect in {int(harmful_LH.sum())} of {direct_LH.size} "
        f"heads. Below the last layer, the total effect is significantly less than the direct one in {less} heads, and more in "
        f"{more}."
    )
    early = view.extras.get("early")
    if not early or len(direct_LH) < 2:
        return counted
    interval = ratio_interval(early)
    if interval is None:
        return (
            f"{counted} Summed over all heads below the last layer, the direct effect may be 0, so the share of it that later "
            "layers undo cannot be told."
        )
    low, high = (number(limit, 2) for limit in interval)
    return (
        f"{counted} Summed over all heads below the last layer, the total effect is {number(early[TOTAL] / early[DIRECT], 2)} times "
        f"the direct one (95 % interval {low} to {high})."
    )


def ratio_interval(early: Mapping[str, float]) -> tuple[float, float] | None:
    """95 % limits of the total effect over the direct one (Fieller 1954); None if the direct effect may be 0.

    The ratios R for which the mean over examples of total - R direct may be 0, by a t test.

    Args:
        early: As :attr:`DirectEffects.early`.
    """
    direct, total = early[DIRECT], early[TOTAL]
    square = float(stats.t.ppf(0.975, early["count"] - 1)) ** 2
    # Not above 0: the direct effect may be 0, and the set of ratios has no ends.
    leading = direct**2 - square * early["direct_variance"]
    if leading <= 0:
        return None
    middle = direct * total - square * early["covariance"]
    last = total**2 - square * early["total_variance"]
    reach = math.sqrt(max(middle**2 - leading * last, 0.0))
    return (middle - reach) / leading, (middle + reach) / leading


def _table(view: MeasureView, p_LH: NDArray[np.float64]) -> Table:
    grids = [view.grid(name) for name in (DIRECT, TOTAL, UNDONE)]
    direct_LH = grids[0][0]
    rows = []
    for flat_index in np.argsort(-np.abs(direct_LH), axis=None, kind="stable")[:_LISTED]:
        layer, head = divmod(int(flat_index), direct_LH.shape[1])
        cells = [with_error(float(grid[0][layer, head]), float(grid[1][layer, head]), 4) for grid in grids]
        last = layer == len(direct_LH) - 1
        rows.append([head_label(layer, head), *cells, MISSING if last else p_value(float(p_LH[layer, head]))])
    header = ["head", "direct", "total", "direct − total", "p of no difference"]
    caption = "Heads by the size of their direct effect on the loss (t test over examples, corrected)"
    return Table(header, rows, caption, folded=True)
