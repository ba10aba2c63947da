"""Direct and total effects of heads at the last validation."""

import pytorch_lightning as pl

from bertsecrets.ablation.direct import DirectEffects, take_effects
from bertsecrets.ablation.plan import Plan, every_head
from bertsecrets.ablation.replacements import prepare
from bertsecrets.ablation.settings import AblationSettings
from bertsecrets.callbacks.head_analysis import DISABLING, HeadAnalysis, Result, check_references
from bertsecrets.float64 import float64_device
from bertsecrets.measures.base import MaxExamples
from bertsecrets.models.classifier import SequenceClassifier
from bertsecrets.results.progress import progress_over
from bertsecrets.results.run import Run


class EffectsOfHeads(HeadAnalysis):
    """Disable each head with and without the reaction of later layers.

    Any number of processes gives the effects of one.

    Args:
        run: The run to write results to.
        ablation: How heads are disabled; its ``mode`` and ``evaluation`` are used.
        max_examples: A random sample of this many examples; None for all.

    Raises:
        UserError: If the task has no labels, or the model's family cannot be started in the middle of a pass.
    """

    without_labels = DISABLING

    def __init__(self, run: Run, ablation: AblationSettings | None = None, max_examples: MaxExamples = None) -> None:
        self.settings = ablation or AblationSettings.read("ablation", {})
        super().__init__(run, self.settings.evaluation, max_examples)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        check_references(trainer, self.settings)

    def take(self, trainer: pl.Trainer, module: SequenceClassifier) -> Result:
        subject, mode = self.subject(trainer, module.model), self.settings.mode
        layers, heads = subject.encoder.num_layers, subject.encoder.num_heads
        plan = Plan(mode, layers, heads, tuple(every_head(layers, heads)))
        device = module.device
        measure = DirectEffects(layers, heads, mode).to(float64_device(device))
        replacements, batches = prepare(subject, plan, self.settings), subject.batches(self.max_examples)
        with progress_over(len(batches), "direct and total effects", visible=subject.progress) as advance:
            take_effects(
                module.model,
                batches,
                measure,
                replacements=replacements,
                max_tokens=self.settings.max_tokens,
                context=subject.context,
                progress=advance,
            )
        grid = measure.compute()
        return Result(measure, grid, rows=measure.found(grid, module.model))
