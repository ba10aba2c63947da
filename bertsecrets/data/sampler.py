"""Form batches of examples of similar length, and distribute them over processes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed
from torch.utils.data import DataLoader, Sampler

_POOL = 50
"""Training sorts by length within pools of this many batches: batches have similar lengths and are still shuffled."""

_POOLS = 4
"""Least number of pools per epoch: a small split in one pool would give the same batches in every epoch."""

_MOST_PROCESSES = 16
"""Up to this many processes, evaluation batches do not depend on the number of processes."""


def rank_and_world_size() -> tuple[int, int]:
    """The number of this process, and of processes, in the default process group; 0 and 1 without one."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


@dataclass(frozen=True)
class BatchSpec:
    """The examples of a batch, by position in the split, and the weight of the batch's mean loss."""

    positions: tuple[int, ...]
    weight: float = 1.0


class BucketedTrainSampler(Sampler[BatchSpec]):
    """Shuffled batches of similar length, each split over all processes.

    ``batch_size`` counts the examples of all processes together: hyperparameters do not depend on the number of
    devices. If the processes' shares of a batch differ in size, ``weight`` = processes x share / batch makes the mean
    of their gradients the gradient of the whole batch's mean loss. A process without an example computes the batch's
    first one with weight 0.

    Args:
        lengths: Length of each example in tokens.
        batch_size: Examples in a batch of all processes; one batch per epoch may have fewer.
        seed: The order depends only on seed and epoch.
        rank, world_size: Number of this process, and of processes.
    """

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int, rank: int = 0, world_size: int = 1) -> None:
        self.lengths = lengths
        self.batch_size = batch_size
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.epoch = 0
        self.skip = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
        self.epoch = epoch

    def __len__(self) -> int:
        return -(-len(self.lengths) // self.batch_size)

    def batches(self) -> list[list[int]]:
        """The epoch's batches of all processes, in order."""
        # If seed and epoch were added, the second epoch of one seed would equal the first of the next.
        generator = torch.Generator().manual_seed(self.seed * 100_003 + self.epoch)
        order = torch.randperm(len(self.lengths), generator=generator).tolist()
        # A multiple of the batch size, so that only the last pool can end with a smaller batch.
        size = self.batch_size * min(_POOL, -(-len(self) // _POOLS))
        batches = []
        for start in range(0, len(order), size):
            # The sort is stable: examples of equal length keep the epoch's random order.
            pool = sorted(order[start : start + size], key=self.lengths.__getitem__)
            batches += [pool[i : i + self.batch_size] for i in range(0, len(pool), self.batch_size)]
        # Within a pool, batches are sorted from short to long, so they are shuffled.
        return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]

    def __iter__(self) -> Iterator[BatchSpec]:
        """This process's batches of the epoch, without the first ``skip``."""
        for batch in self.batches()[self.skip :]:
            share = batch[self.rank :: self.world_size]
            weight = self.world_size * len(share) / len(batch)
            yield BatchSpec(tuple(share or batch[:1]), weight)


class BucketedEvalSampler(Sampler[BatchSpec]):
    """Batches of similar length, every example in exactly one; whole batches are distributed over the processes.

    Batches, and the numbers computed from them, do not depend on the number of processes (up to 16). A small set gets
    smaller batches, so that every process has at least one; otherwise gathering results would hang.

    Args:
        lengths: Length of each example in tokens.
        batch_size: Largest number of examples in a batch.
        rank, world_size: Number of this process, and of processes.
        positions: The examples to use; None for all.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        positions: Sequence[int] | None = None,
    ) -> None:
        selected = range(len(lengths)) if positions is None else positions
        order = sorted(selected, key=lambda position: (lengths[position], position))
        size = max(1, min(batch_size, len(order) // max(world_size, _MOST_PROCESSES)))
        batches = [tuple(order[i : i + size]) for i in range(0, len(order), size)]
        self.mine = [BatchSpec(batch) for batch in batches[rank::world_size]]

    def __len__(self) -> int:
        return len(self.mine)

    def __iter__(self) -> Iterator[BatchSpec]:
        return iter(self.mine)


class ResumableDataLoader(DataLoader[Any]):
    """A loader over a :class:`BucketedTrainSampler` that can resume in the middle of an epoch.

    Lightning stores its state in every checkpoint and loads it before the first batch of a resumed epoch. The state
    counts the batches delivered, not those that workers have prefetched.
    """

    sampler: BucketedTrainSampler

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._delivered = 0
        self._loaded: dict[str, int] | None = None

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        # Lightning creates the iterator before it sets the epoch; a generator's body runs only at the first batch.
        state, self._loaded = self._loaded, None
        # The state of an epoch that has ended, or that limit_train_batches cut short, does not apply to this one.
        self._delivered = state["dealt"] if state is not None and state["epoch"] == self.sampler.epoch else 0
        self.sampler.skip = self._delivered
        for batch in super().__iter__():
            self._delivered += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        """The epoch and the number of its batches delivered; 0 after the last one."""
        return self._loaded or {"epoch": self.sampler.epoch, "dealt": self._delivered % len(self)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Start the next iteration after this many batches, if it is in the same epoch."""
        self._loaded = dict(state)
