"""Relevance of heads at the last validation."""

import pytorch_lightning as pl

from bertsecrets.ablation.settings import AblationSettings
from bertsecrets.callbacks.head_analysis import HeadAnalysis, Result
from bertsecrets.callbacks.trainer_state import shows_progress
from bertsecrets.importance.relevance import Relevance, Rule, take_relevance
from bertsecrets.importance.rows import Propagation
from bertsecrets.measures.base import MaxExamples
from bertsecrets.models.classifier import SequenceClassifier
from bertsecrets.models.encoder import describe
from bertsecrets.results.progress import progress_over, reported
from bertsecrets.results.run import Run


class RelevanceOfHeads(HeadAnalysis):
    """Propagate the relevance of the answer's logit down to the heads: one forward and one backward pass of each
    example.

    Any number of processes gives the relevances of one.

    Args:
        run: The run to write results to.
        ablation: Its ``evaluation`` is used.
        consider_attention: Whether attention weights take part, see
            :func:`~bertsecrets.importance.relevance.head_relevance`.
        rule: How an output's relevance is shared among its inputs, see the same function.
        max_examples: A random sample of this many examples; None for all.

    Raises:
        UserError: If the model has a part that relevance propagation does not know.
    """

    def __init__(
        self,
        run: Run,
        ablation: AblationSettings | None = None,
        consider_attention: bool = False,
        rule: Rule = "z",
        max_examples: MaxExamples = None,
    ) -> None:
        super().__init__(run, (ablation or AblationSettings.read("ablation", {})).evaluation, max_examples)
        self.consider_attention = consider_attention
        self.rule = rule

    def take(self, trainer: pl.Trainer, module: SequenceClassifier) -> Result:
        encoder, loader = describe(module.model), self.loader(trainer)
        with progress_over(len(loader), "relevance", visible=shows_progress(trainer)) as advance:
            batches = reported(loader, advance)
            grid = take_relevance(module.model, batches, self.consider_attention, self.rule)
        how = Propagation(self.rule, self.consider_attention)
        return Result(Relevance(encoder.num_layers, encoder.num_heads), grid, rows=[how])
