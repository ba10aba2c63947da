"""Which examples stand together in a batch, and which process gets them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler

_POOL = 50
"""Batches' worth of examples within which training sorts by length: enough for even lengths, still shuffled."""

_POOLS = 4
"""Pools that an epoch has at least: sorted as one, a small split would fall into the same batches in every epoch."""

_MOST_PROCESSES = 16
"""Processes up to which evaluation batches do not depend on their number."""


@dataclass(frozen=True)
class BatchSpec:
    """The examples of a batch, by position in their split, and the weight of its mean loss."""

    positions: tuple[int, ...]
    weight: float = 1.0


class BucketedTrainSampler(Sampler[BatchSpec]):
    """Shuffled batches of similar length, each dealt out over all processes.

    ``batch_size`` counts the examples of all processes together, so that no hyper-parameter changes with the number
    of devices. Where the processes' shares of a batch differ in size, ``weight`` = processes x share / batch makes the
    mean of their gradients the gradient of the whole batch's mean loss. A process left without an example computes
    the batch's first one with weight 0.

    Args:
        lengths: Length of each example in tokens.
        batch_size: Examples in a batch of all processes; the epoch's last batch made may have fewer.
        seed: The order is a function of seed and epoch.
        rank, world_size: This process and how many there are.
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
        """Chooses the epoch whose order comes next."""
        self.epoch = epoch

    def __len__(self) -> int:
        return -(-len(self.lengths) // self.batch_size)

    def batches(self) -> list[list[int]]:
        """The epoch's batches of all processes, in order."""
        generator = torch.Generator().manual_seed(self.seed * 100_003 + self.epoch)
        order = torch.randperm(len(self.lengths), generator=generator).tolist()
        size = self.batch_size * min(_POOL, -(-len(self) // _POOLS))
        batches = []
        for start in range(0, len(order), size):
            # The sort is stable: examples of equal length stay in the epoch's random order.
            pool = sorted(order[start : start + size], key=self.lengths.__getitem__)
            batches += [pool[i : i + self.batch_size] for i in range(0, len(pool), self.batch_size)]
        return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]

    def __iter__(self) -> Iterator[BatchSpec]:
        """The process's batches of the epoch, without the first ``skip`` ones."""
        for batch in self.batches()[self.skip :]:
            share = batch[self.rank :: self.world_size]
            weight = self.world_size * len(share) / len(batch)
            yield BatchSpec(tuple(share or batch[:1]), weight)


class BucketedEvalSampler(Sampler[BatchSpec]):
    """Batches of similar length, every example in exactly one; whole batches are dealt out over the processes.

    Batches do not depend on the number of processes (up to 16), so that neither do the numbers computed from them. A
    small set is cut into smaller batches than asked for, so that no process is left without one: the others would
    wait for it when they gather results.

    Args:
        lengths: Length of each example in tokens.
        batch_size: Largest number of examples in a batch.
        rank, world_size: This process and how many there are.
        positions: The examples to deal out; None for all.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        positions: Sequence[int] | None = None,
    ) -> None:
        chosen = range(len(lengths)) if positions is None else positions
        order = sorted(chosen, key=lambda position: (lengths[position], position))
        size = max(1, min(batch_size, len(order) // max(world_size, _MOST_PROCESSES)))
        batches = [tuple(order[i : i + size]) for i in range(0, len(order), size)]
        self.mine = [BatchSpec(batch) for batch in batches[rank::world_size]]

    def __len__(self) -> int:
        return len(self.mine)

    def __iter__(self) -> Iterator[BatchSpec]:
        return iter(self.mine)


class ResumableDataLoader(DataLoader[Any]):
    """A loader over a :class:`BucketedTrainSampler` that can go on in the middle of an epoch.

    Lightning stores its state in every checkpoint and loads it before the first batch of a resumed epoch. Its state
    counts the batches that were asked for, not those that workers prepared ahead.
    """

    sampler: BucketedTrainSampler

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._dealt = 0
        self._loaded: dict[str, int] | None = None

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        # Lightning makes the iterator before it sets the epoch: nothing below runs until the first batch is asked for.
        state, self._loaded = self._loaded, None
        # A state of an epoch that was over, or cut short by limit_train_batches, is not for this one.
        self._dealt = state["dealt"] if state is not None and state["epoch"] == self.sampler.epoch else 0
        self.sampler.skip = self._dealt
        for batch in super().__iter__():
            self._dealt += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        """The epoch and how many of its batches were dealt; 0 after the last one."""
        return self._loaded or {"epoch": self.sampler.epoch, "dealt": self._dealt % len(self)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Makes the next iteration, if it is of the same epoch, begin after as many batches."""
        self._loaded = dict(state)
