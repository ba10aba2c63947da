"""An exact sweep: one pass over the data with every variant of a plan."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import Any

from torch import Tensor, nn

from bertsecrets.ablation.engine import Engine
from bertsecrets.ablation.outcomes import Collected, Outcomes, check_finite
from bertsecrets.ablation.plan import Plan
from bertsecrets.ablation.replacements import Replacements
from bertsecrets.data.batch import Batch
from bertsecrets.errors import UserError
from bertsecrets.models.encoder import Autocast
from bertsecrets.results.store import NOTHING_KEPT, Store


def exact_sweep(
    model: nn.Module,
    plan: Plan,
    batches: Iterable[Batch],
    *,
    replacements: Replacements | None = None,
    max_tokens: int | None = None,
    context: Autocast = nullcontext,
    outcome: Callable[[Mapping[str, Any]], Tensor] | None = None,
    store: Store = NOTHING_KEPT,
    progress: Callable[[int], object] | None = None,
) -> Outcomes:
    """Compute the logits of every variant for every example, gathered from all processes.

    Args:
        model: Any module that holds a transformers encoder with a task head, or a sentence-embedding
            model.
        plan: What to disable.
        batches: This process's share of the examples; moved to the model's device.
        replacements: Constants or donors, for modes ``mean``, ``optimal`` and ``resample``.
        max_tokens: Limit on the number of tokens, see :class:`bertsecrets.ablation.engine.Engine`.
        context: Entered around every batch, e.g. the trainer's autocast.
        outcome: For other modules, maps the arguments of a pass to its answers; None for the model's logits.
        store: Where the outcomes of finished batches are saved, to resume an interrupted sweep.
        progress: Called with the number of newly completed pairs of a variant and an example.

    Raises:
        UserError: If an example has no label, logits are not finite, or the plan does not fit the model.
    """
    replacements = replacements or Replacements()
    engine = Engine(model, plan, constants_LHd=replacements.constants_LHd, max_tokens=max_tokens, outcome=outcome)
    collected = Collected(plan)
    finished = store.of(model, plan)
    for on_host in batches:
        batch = on_host.to(engine.device)
        if batch.label_B is None:
            raise UserError("A sweep needs labelled examples; choose a labelled split.")
        key = batch.inputs()
        if batch.head.statistics:
            # Answers count what is right.
            key["labels"] = batch.label_B
        saved = finished.get(batch.index_B, key)
        if saved is None:
            advance = None if progress is None else (lambda n, size=batch.size: progress(n * size))
            donors = () if replacements.donors is None else replacements.donors.of(on_host)
            with context():
                inputs = [donor.to(engine.device).inputs() for donor in donors]
                clean_BC, logits_BVC = engine.run(
                    batch.inputs(), advance, inputs, head=batch.head, label_B=batch.label_B
                )
            check_finite(clean_BC, "the model")
            # One check for all variants; the offending one is looked for only if it fails.
            if not logits_BVC.isfinite().all():
                for variant, logits_BC in zip(plan.variants, logits_BVC.unbind(1), strict=True):
                    check_finite(logits_BC, f"variant '{variant.name}'")
            finished.put({"clean": clean_BC, "logits": logits_BVC}, batch.index_B, key)
        else:
            clean_BC, logits_BVC = saved["clean"].to(engine.device), saved["logits"].to(engine.device)
            if progress is not None:
                progress(batch.size * len(plan.variants))
        collected.update(batch, batch.head.outcome_labels(batch.label_B), clean_BC, logits_BVC)
    return collected.outcomes()
