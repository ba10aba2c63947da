"""What stands in for a disabled head: the mean or the optimal vector, or the outputs on other examples."""

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from bertsecrets.ablation.optimal import optimal_head_outputs
from bertsecrets.ablation.plan import Plan
from bertsecrets.ablation.settings import AblationSettings
from bertsecrets.attention.override import mean_head_outputs
from bertsecrets.data.batch import Batch
from bertsecrets.data.module import TaskData, sample_positions
from bertsecrets.data.sampler import BucketedEvalSampler
from bertsecrets.data.sources import TRAIN
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.errors import UserError
from bertsecrets.models.encoder import describe, evaluating
from bertsecrets.results.files import atomic_write
from bertsecrets.results.progress import progress_over

NEAREST = 32
"""Donors of an example are drawn among this many reference examples of the most similar length."""

_FIT_BATCH = 8
"""Examples in a step of the fit of optimal outputs: each counts once for every head."""


@dataclass(frozen=True)
class Reference:
    """The examples that replacements are computed from.

    Args:
        split: A tokenised split.
        positions: The examples of it that are used.
    """

    split: EncodedSplit
    positions: tuple[int, ...]

    def batches(self, size: int) -> Iterator[Batch]:
        """Batches of similar length."""
        for spec in BucketedEvalSampler(self.split.lengths, size, positions=self.positions):
            yield self.split[spec]


def training_reference(data: TaskData, max_examples: int) -> Reference:
    """A random sample of the training split, the same on every process."""
    split = data.encoded(TRAIN)
    return Reference(split, tuple(sample_positions(len(split), max_examples, 0)))


class Donors:
    """Draw donors for mode ``resample``: for each example, other examples whose heads' outputs stand in for its own.

    They are drawn without replacement among the :data:`NEAREST` reference examples with other tokens that are nearest in
    length, by a generator seeded with ``seed`` and the example's index: an example has the same donors in any batch, on
    any number of processes, and in a resumed sweep.

    Args:
        reference: The examples to draw from.
        split: The tokenised split of the examples that receive.
        draws: Donors of an example.
        seed: Seed of the generator.

    Raises:
        UserError: If ``draws`` is below 1.
    """

    def __init__(self, reference: Reference, split: EncodedSplit, draws: int, seed: int) -> None:
        if draws < 1:
            raise UserError(f"The number of draws is {draws}; expected a whole number from 1.")
        self.reference, self.draws, self.seed = reference, draws, seed
        self._ids = {example.index: row.ids for example, row in zip(split.examples, split.rows, strict=True)}

    def of(self, batch: Batch) -> list[Batch]:
        """For each draw a batch with one donor for each example.

        Raises:
            UserError: If fewer reference examples than draws have other tokens than an example.
        """
        chosen = [self.positions(int(index)) for index in batch.index_B]
        return [self.reference.split[[row[draw] for row in chosen]] for draw in range(self.draws)]

    def positions(self, index: int) -> list[int]:
        """The positions in the reference split of an example's donors, by draw."""
        ids, split = self._ids[index], self.reference.split
        others = [position for position in self.reference.positions if split.rows[position].ids != ids]
        if len(others) < self.draws:
            raise UserError(
                f"ablation.draws is {self.draws}, but only {len(others)} of the {len(self.reference.positions)} reference "
                f"examples differ from example {index}; lower ablation.draws or raise ablation.reference_examples."
            )
        near = sorted(others, key=lambda position: (abs(split.lengths[position] - len(ids)), position))
        return random.Random(f"{self.seed}/{index}").sample(near[: max(NEAREST, self.draws)], self.draws)


@dataclass(frozen=True)
class Replacements:
    """What the modes take their replacements from; None for modes that do not need it.

    Args:
        constants_LHd: A vector for each head, for modes ``mean`` and ``optimal``.
        donors: For mode ``resample``.
    """

    constants_LHd: Tensor | None = None
    donors: Donors | None = None


def check_embedder_mode(settings: AblationSettings) -> None:
    """Raise UserError if a mode takes replacements from other examples, which a sentence-embedding model has not."""
    if settings.mode not in ("uniform", "zero"):
        raise UserError(
            f"Mode '{settings.mode}' is not available for a sentence-embedding model; choose mode uniform or zero."
        )


def prepare(
    model: nn.Module,
    plan: Plan,
    settings: AblationSettings,
    split: EncodedSplit,
    reference: Callable[[], Reference],
    *,
    batch_size: int = 32,
    context: Callable[[], AbstractContextManager[Any]] = nullcontext,
    progress: bool = True,
    saved: Path | None = None,
    fingerprint: str = "",
) -> Replacements:
    """Prepare the replacements of a plan's mode.

    Args:
        model: Any module that holds a transformers encoder with a sequence classification head.
        plan: What is disabled, and how.
        settings: ``draws``, ``optimal_steps`` and ``seed``.
        split: The tokenised split of the examples that are judged.
        reference: Makes the reference examples; called if the mode needs them. Mode ``optimal`` needs labelled ones and
            leaves out those that are judged.
        batch_size: Examples in a forward pass.
        context: Entered around every pass, e.g. the trainer's autocast.
        progress: Whether to show a progress bar.
        saved: File of fitted optimal outputs: read if they have this ``fingerprint``, else written.
        fingerprint: Identifies model and settings.

    Raises:
        UserError: If reference examples of mode ``optimal`` lack labels, or all are judged.
    """
    if plan.mode not in ("mean", "resample", "optimal"):
        return Replacements()
    examples = reference()
    if plan.mode == "resample":
        return Replacements(donors=Donors(examples, split, settings.draws, settings.seed))
    encoder = describe(model)
    network = encoder.model
    device = next(network.parameters()).device
    with evaluating(network):
        if plan.mode == "mean":
            with context():
                batches = (batch.to(device).inputs() for batch in examples.batches(batch_size))
                return Replacements(mean_head_outputs(network, batches))
        constants_LHd = None if saved is None else _read(saved, fingerprint)
        if constants_LHd is None:
            heads = sorted({place for variant in plan.variants for place in variant.heads})
            with progress_over(settings.optimal_steps, "fitting optimal outputs", visible=progress) as advance:
                constants_LHd = optimal_head_outputs(
                    network,
                    list(_apart(examples, split).batches(_FIT_BATCH)),
                    heads,
                    steps=settings.optimal_steps,
                    seed=settings.seed,
                    max_tokens=settings.max_tokens,
                    context=context,
                    progress=advance,
                )
            if saved is not None:
                saved.parent.mkdir(parents=True, exist_ok=True)
                with atomic_write(saved) as temporary:
                    save_file({"outputs": constants_LHd.cpu()}, temporary, metadata={"fingerprint": fingerprint})
        return Replacements(constants_LHd.to(device))


def _read(path: Path, fingerprint: str) -> Tensor | None:
    """Fitted outputs; None if there are none, or those of other settings."""
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            outputs_LHd: Tensor = file.get_tensor("outputs")
    except (OSError, SafetensorError):
        return None
    return outputs_LHd if metadata.get("fingerprint") == fingerprint else None


def _apart(reference: Reference, split: EncodedSplit) -> Reference:
    """The reference examples that are not judged: on those that are, fitted outputs would look too good."""
    judged = {row.ids for row in split.rows}
    apart = tuple(position for position in reference.positions if reference.split.rows[position].ids not in judged)
    if not apart:
        raise UserError(
            f"All {len(reference.positions)} reference examples are also judged, but mode 'optimal' fits outputs on other "
            "examples; give examples that are not in the evaluation set."
        )
    return Reference(reference.split, apart)
