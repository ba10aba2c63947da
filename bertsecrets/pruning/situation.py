"""What a pruning score may look at."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field

from torch import Tensor, nn

from bertsecrets.data.batch import Batch
from bertsecrets.data.task import Task
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.pruning.sets import Context, HeadSet, PartsOf


@dataclass(frozen=True)
class Situation:
    """What a score may look at.

    Args:
        model: The model, in evaluation mode, with all its heads.
        task: The task.
        batches: The examples that may choose heads, the same on every process; each call starts anew.
        share: This process's share of them; None for all.
        split: The same examples as a tokenised split; None if there are only batches, which is not enough for a measure.
        removed: Heads that are already removed.
        seed: Seed of a random score.
        context: Entered around every batch, e.g. the trainer's autocast.
        computed: What scores have computed, by experiment and removed heads: column -> ``[layers, heads]``. Its opposite and
            other columns of the experiment use the same numbers.
        parts: Where finished batches of exact sweeps are saved.
        progress: Called with numbers of newly finished passes of an example.
    """

    model: nn.Module
    task: Task
    batches: Callable[[], Iterable[Batch]]
    share: Callable[[], Iterable[Batch]] | None = None
    split: Callable[[], EncodedSplit] | None = None
    removed: HeadSet = frozenset()
    seed: int = 0
    context: Context = nullcontext
    computed: dict[tuple[str, HeadSet], Mapping[str, Tensor]] = field(default_factory=dict)
    parts: PartsOf | None = None
    progress: Callable[[int], object] | None = None

    def share_batches(self) -> Iterable[Batch]:
        """This process's share of the examples."""
        return (self.share or self.batches)()


Score = Callable[[Situation], Tensor]
"""A score, ``[layers, heads]``: higher is worth keeping. Numbers of removed heads are ignored."""
