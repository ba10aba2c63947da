"""Which examples stand together in a batch, and which process gets them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler

_POOL = 50
"""Batches' worth of examples within which training sorts by length: enough for even lengths, still shuffled."""


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
        batch_size: Examples in a batch of all processes.
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

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch whose order comes next."""
        self.epoch = epoch

    def __len__(self) -> int:
        return -(-len(self.lengths) // self.batch_size)

    def batches(self) -> list[list[int]]:
        """The epoch's batches of all processes, in order."""
        generator = torch.Generator().manual_seed(self.seed * 100_003 + self.epoch)
        order = torch.randperm(len(self.lengths), generator=generator).tolist()
        size = self.batch_size * _POOL
        batches = []
        for start in range(0, len(order), size):
            pool = sorted(order[start : start + size], key=lambda position: (self.lengths[position], position))
            batches += [pool[i : i + self.batch_size] for i in range(0, len(pool), self.batch_size)]
        return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]

    def __iter__(self) -> Iterator[BatchSpec]:
        for batch in self.batches():
            share = batch[self.rank :: self.world_size]
            weight = self.world_size * len(share) / len(batch)
            yield BatchSpec(tuple(share or batch[:1]), weight)


class BucketedEvalSampler(Sampler[BatchSpec]):
    """Batches of similar length, every example in exactly one; whole batches are dealt out over the processes.

    Batches do not depend on the number of processes, so that neither do the numbers computed from them.

    Args:
        lengths: Length of each example in tokens.
        batch_size: Examples in a batch.
        rank, world_size: This process and how many there are.
    """

    def __init__(self, lengths: Sequence[int], batch_size: int, rank: int = 0, world_size: int = 1) -> None:
        order = sorted(range(len(lengths)), key=lambda position: (lengths[position], position))
        batches = [tuple(order[i : i + batch_size]) for i in range(0, len(order), batch_size)]
        self.mine = [BatchSpec(batch) for batch in batches[rank::world_size]]

    def __len__(self) -> int:
        return len(self.mine)

    def __iter__(self) -> Iterator[BatchSpec]:
        return iter(self.mine)


class ResumableDataLoader(DataLoader[Any]):
    """A data loader that goes on in the middle of an epoch.

    Lightning stores its state in every checkpoint and loads it before the first batch of a resumed epoch.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._dealt = 0
        self._skip = 0

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        skip, self._skip = self._skip, 0
        self._dealt = skip
        sampler = self.sampler
        assert isinstance(sampler, BucketedTrainSampler)
        # A loader of its own over the rest of the epoch: batches dealt before are not even put together.
        rest: DataLoader[Any] = DataLoader(
            self.dataset,
            sampler=list(sampler)[skip:],
            batch_size=None,
            num_workers=self.num_workers,
            pin_memory=self.pin_memory,
        )
        for batch in rest:
            self._dealt += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        """How many batches of the epoch were dealt; 0 after the last one."""
        return {"dealt": self._dealt % len(self)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Makes the next epoch begin after as many batches."""
        self._skip = state["dealt"]
