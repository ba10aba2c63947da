"""Direct and total effects of disabling a head: how much of the harm later layers undo (self-repair) or add."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bertsecrets.ablation.engine import Engine, EnginePass
from bertsecrets.ablation.outcomes import variant_losses
from bertsecrets.ablation.plan import Plan, every_head
from bertsecrets.ablation.replacements import DISABLING, Replacements, check_references, prepare
from bertsecrets.ablation.rows import EarlyHeads
from bertsecrets.ablation.settings import AblationSettings
from bertsecrets.analysis import Analysis, Context, Findings
from bertsecrets.attention.hooks import eager_execution
from bertsecrets.data.batch import Batch
from bertsecrets.errors import UserError
from bertsecrets.float64 import float64_device
from bertsecrets.grid import Column, HeadGrid, Shown
from bertsecrets.measures.base import MaxExamples, Measure, Passed
from bertsecrets.models.encoder import describe
from bertsecrets.results.estimate import Estimate
from bertsecrets.results.progress import progress_over
from bertsecrets.statistics.student import ratio_limits

DIRECT, TOTAL, UNDONE = "direct", "total", "undone"


class DirectEngine(Engine):
    """An engine whose variants affect the output through the residual stream only.

    The layer of the disabled head runs as usual. In every later layer the outputs of attention and of the feed-forward
    network are those of the unedited model, added to the changed residual stream; layer normalisation is applied to the
    sum. Only the tokens that the task head reads are computed.

    Args and errors are those of :class:`~bertsecrets.ablation.engine.Engine`; also raises UserError if passes of the
    model's family cannot start at a given layer.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.pass_type = _DirectPass
        if not self.shares:
            raise UserError(
                "Direct effects need an adapter that runs single layers, but model type "
                f"'{self.encoder.base.config.model_type}' has none; add one in bertsecrets/models/families."
            )


class _DirectPass(EnginePass):
    def __init__(self, engine: Engine, inputs: Mapping[str, Tensor], *options: Any) -> None:
        super().__init__(engine, inputs, *options)
        self.frozen: list[tuple[tuple[nn.Linear, Tensor], ...]] = []
        with eager_execution():
            for layer, clean in zip(self.encoder.layers, self.layers, strict=True):
                self.frozen.append(self._branches(layer, clean.output_BSD, clean.hidden_BSD))

    def _branches(
        self, layer: nn.Module, output_BSD: Tensor, hidden_BSD: Tensor
    ) -> tuple[tuple[nn.Linear, Tensor], ...]:
        """The linear maps (attention, feed-forward) that write to the residual stream, with their outputs."""
        called: list[tuple[nn.Linear, Tensor]] = []
        with ExitStack() as stack:
            for module in layer.modules():
                if isinstance(module, nn.Linear):

                    def keep(linear: nn.Module, args: Any, result: Tensor) -> None:
                        assert isinstance(linear, nn.Linear)
                        called.append((linear, result))

                    stack.callback(module.register_forward_hook(keep).remove)
            self.family.after_heads(layer, output_BSD, hidden_BSD)
        # In the order in which a layer runs: attention's output projection first, the feed-forward output last.
        return called[0], called[-1]

    def descend(self, layer: int, hidden_RSD: Tensor, nodes: Sequence[Sequence[int]]) -> None:
        """Pass the residual stream through the later layers, whose own outputs are those of the clean pass."""
        if layer < self.encoder.num_layers:
            hidden_RSD = self.at_read(hidden_RSD, len(nodes))
        # Post-norm layers normalise every sum, so each later layer must run although its branches are fixed.
        for later in range(layer, self.encoder.num_layers):
            output_BSD = self.at_read(self.layers[later].output_BSD)
            with self._frozen(later, len(nodes)):
                hidden_RSD = self.family.after_heads(
                    self.encoder.layers[later], output_BSD.repeat(len(nodes), 1, 1), hidden_RSD
                )
        self.classify(hidden_RSD, nodes)

    @contextmanager
    def _frozen(self, layer: int, copies: int) -> Iterator[None]:
        with ExitStack() as stack:
            for linear, result_BSD in self.frozen[layer]:
                kept_RSD = self.at_read(result_BSD).repeat(copies, 1, 1)

                def replace(_: nn.Module, args: Any, result: Tensor, kept_RSD: Tensor = kept_RSD) -> Tensor:
                    return kept_RSD

                stack.callback(linear.register_forward_hook(replace).remove)
            yield


class DirectEffects(Measure):
    """Direct and total effects of disabling a head on the loss.

    The total effect is the loss of an example with the head disabled, minus its loss without. For the direct effect,
    later layers add to the residual stream what they add in the unedited model (path patching, Goldowsky-Dill et al.
    2023): they do not react to the missing head. Their layer normalisations do, which rescale the changed residual
    stream: a post-norm encoder such as BERT has one after every sum, so no path from a head to the output avoids them.

    Columns:
        ``direct``, ``total``: rise of the loss.
        ``undone``: direct minus total effect, example by example: positive if later layers undo harm (self-repair).

    Args:
        mode: How heads are disabled.
    """

    name = "direct_effect"
    title = "Direct and total effects of heads"
    shown = Shown(compared=False, reads_task=True)
    presenter = "bertsecrets.present.importance:DIRECT_EFFECTS"
    columns = (
        Column(DIRECT, "direct effect", "rise of the loss", keep="high"),
        Column(TOTAL, "total effect", "rise of the loss"),
        Column(UNDONE, "direct minus total", "rise of the loss"),
    )

    early_sums: Tensor

    def __init__(self, num_layers: int, num_heads: int, mode: str = "uniform") -> None:
        super().__init__(num_layers, num_heads)
        self.mode = mode
        self.add_state("early_sums", torch.zeros(6, dtype=torch.float64), dist_reduce_fx="sum")

    def take(self, batch: Batch, effects_BLHC: Tensor) -> None:
        """Add the effects of one batch."""
        for layer, effects_BHC in enumerate(effects_BLHC.unbind(1)):
            self.update(Passed(layer, batch, values_BHC=effects_BHC))
        direct_B, total_B = effects_BLHC[:, :-1, :, :2].to(self.early_sums).sum((1, 2)).unbind(-1)
        parts = (torch.ones_like(direct_B), direct_B, total_B, direct_B**2, total_B**2, direct_B * total_B)
        self.early_sums += torch.stack([part_B.sum() for part_B in parts])

    def findings(self, grid: HeadGrid, model: nn.Module) -> Sequence[EarlyHeads]:
        """Both effects, summed over all heads below the last layer."""
        count, *sums = self.early_sums.tolist()
        if count < 2 or grid.num_layers < 2:
            return [EarlyHeads(self.mode, None, None, None)]
        direct, total, squares, total_squares, products = (value / count for value in sums)
        total_variance, direct_variance = (
            max(each, 0.0) / (count - 1) for each in (total_squares - total**2, squares - direct**2)
        )
        covariance, n = (products - direct * total) / (count - 1), int(count)
        limits = ratio_limits(total, direct, total_variance, direct_variance, covariance, n)
        ratio = None if limits is None else Estimate(total / direct, *limits, n=n)
        return [
            EarlyHeads(
                self.mode,
                Estimate(direct, stderr=math.sqrt(direct_variance), n=n),
                Estimate(total, stderr=math.sqrt(total_variance), n=n),
                ratio,
            )
        ]


def take_effects(
    model: nn.Module,
    batches: Iterable[Batch],
    measure: DirectEffects,
    *,
    replacements: Replacements | None = None,
    max_tokens: int | None = None,
    context: Callable[[], Any],
    progress: Callable[[int], object] | None = None,
) -> None:
    """Feed a measure with the effects of disabling each head.

    Args:
        model: Any module that holds a transformers encoder with a sequence classification head.
        batches: Labelled examples; moved to the model's device.
        measure: Receives the effects of disabling heads in its mode.
        replacements: The replacements that the mode uses.
        max_tokens: See :class:`~bertsecrets.ablation.engine.Engine`.
        context: Entered around every pass, e.g. the trainer's autocast.
        progress: Called with 1 after each batch.

    Raises:
        UserError: If an example has no label, or passes of the model's family cannot start at a given layer.
    """
    encoder, replacements = describe(model), replacements or Replacements()
    plan = Plan(
        measure.mode, encoder.num_layers, encoder.num_heads, tuple(every_head(encoder.num_layers, encoder.num_heads))
    )
    engines = [
        kind(model, plan, constants_LHd=replacements.constants_LHd, max_tokens=max_tokens)
        for kind in (DirectEngine, Engine)
    ]
    for on_host in batches:
        batch = on_host.to(engines[0].device)
        if batch.label_B is None:
            raise UserError("Effects on the loss need labelled examples; choose a labelled split.")
        donors = () if replacements.donors is None else replacements.donors.of(on_host)
        passed = [donor.to(engines[0].device).inputs() for donor in donors]
        with context():
            runs = [
                engine.run(batch.inputs(), donors=passed, head=batch.head, label_B=batch.label_B) for engine in engines
            ]
        label_B = batch.head.outcome_labels(batch.label_B)
        clean_B = batch.head.answer_losses(runs[0][0], label_B)
        rises = []
        for _, logits_BVC in runs:
            loss_BV = variant_losses(logits_BVC, label_B, batch.head)
            rises.append((loss_BV - clean_B[:, None]).unflatten(1, (plan.num_layers, plan.num_heads)))
        direct_BLH, total_BLH = rises
        measure.take(batch, torch.stack((direct_BLH, total_BLH, direct_BLH - total_BLH), -1))
        if progress is not None:
            progress(1)


class EffectsOfHeads(Analysis):
    """Measure the effect of disabling each head with and without the reaction of later layers.

    Args:
        ablation: How heads are disabled; its ``mode`` and ``evaluation`` are used.
        max_examples: A random sample of this many examples; None for all.

    Raises:
        UserError: If the task has no labels, or passes of the model's family cannot start at a given layer.
    """

    without_labels = DISABLING

    def __init__(self, ablation: AblationSettings | None = None, max_examples: MaxExamples = None) -> None:
        self.settings = ablation or AblationSettings.read("ablation", {})
        super().__init__(self.settings.evaluation, max_examples)

    def check(self, context: Context) -> None:
        super().check(context)
        check_references(context, self.settings)

    def run(self, context: Context) -> Iterator[Findings]:
        layers, heads = context.encoder.num_layers, context.encoder.num_heads
        plan = Plan(self.settings.mode, layers, heads, tuple(every_head(layers, heads)))
        measure = DirectEffects(layers, heads, plan.mode).to(float64_device(context.device))
        replacements, batches = prepare(context, plan, self.settings), context.batches(self.max_examples)
        with progress_over(len(batches), "direct and total effects", visible=context.progress) as advance:
            take_effects(
                context.model,
                batches,
                measure,
                replacements=replacements,
                max_tokens=self.settings.max_tokens,
                context=context.autocast,
                progress=advance,
            )
        grid = measure.compute()
        yield Findings(measure, [grid], measure.found(grid, context.model))
