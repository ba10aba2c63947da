"""Direct and total effects of heads at the last validation."""

import pytorch_lightning as pl
import torch
from torch import nn

from bertsecrets.ablation.direct import DirectEffects, take_effects
from bertsecrets.ablation.plan import Plan, every_head
from bertsecrets.callbacks.head_analysis import HeadAnalysis, Result, check_scorable, replacements_of
from bertsecrets.callbacks.trainer_state import shows_progress
from bertsecrets.models.encoder import describe
from bertsecrets.results.progress import progress_over


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

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        check_scorable(trainer.datamodule, self.settings)  # type: ignore[attr-defined]

    def take(self, trainer: pl.Trainer, model: nn.Module) -> Result:
        encoder = describe(model)
        layers, heads = encoder.num_layers, encoder.num_heads
        plan = Plan(self.settings.mode, layers, heads, tuple(every_head(layers, heads)))
        device = next(encoder.model.parameters()).device
        measure = DirectEffects(layers, heads).to(torch.device("cpu") if device.type == "mps" else device)
        replacements, loader = replacements_of(trainer, model, plan, self.settings), self.loader(trainer)
        with progress_over(len(loader), "direct and total effects", visible=shows_progress(trainer)) as advance:
            take_effects(
                model,
                loader,
                self.settings.mode,
                measure,
                replacements=replacements,
                max_tokens=self.settings.max_tokens,
                context=trainer.precision_plugin.forward_context,
                progress=advance,
            )
        grid = measure.compute()
        return Result(DirectEffects(layers, heads), grid, {"mode": self.settings.mode, "early": measure.early})
