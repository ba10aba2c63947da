"""Batches: examples of similar length are chosen for each, spread over processes, and become tensors."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, distributed
from torch.utils.data import DataLoader, Sampler

from bertsecrets.data.example import Annotation

# A measure's module loads no task heads.
if TYPE_CHECKING:
    from bertsecrets.task_heads.base import TaskHead

_Content = TypeVar("_Content")

_OF_EXAMPLES = ("index_B", "label_B", "group_B")
"""Tensors with an entry for each example; the others have one for each row."""

_POOL = 50
"""Training sorts by length within pools of this many batches: batches have similar lengths and are still shuffled."""

_POOLS = 4
"""Least number of pools per epoch: a small split in one pool would give the same batches in every epoch."""

_MOST_PROCESSES = 16
"""Up to this many processes, evaluation batches do not depend on the number of processes."""


class Batch:
    """Padded token sequences with their labels, words and annotations.

    Not a dataclass: Lightning would search one, including its annotations, for numbers to convert.

    Args:
        input_ids_BS: Token ids, int64.
        attention_mask_BS: 1 for real tokens, 0 for padding, int64.
        token_type_ids_BS: Segment ids, int64; None for models without segments.
        special_BS: Whether the tokenizer added the token ([CLS], [SEP]), bool.
        word_BS: Word number, int64: of the annotation's words if the example has one, else of the tokenizer's. Numbers
            of the second sentence continue those of the first. -1 for special tokens, padding and text outside words.
        index_B: Index of each example in its split, int64. Where examples have several rows
            (:attr:`~bertsecrets.task_heads.base.TaskHead.in_parts`), other tensors have all first rows, then all second
            ones, and so on.
        label_B: Class indices (int64) or scores (float32), or what else the task head predicts, with an entry for each
            example; None in a split without labels.
        weight: Weight of this process's mean loss (see ``BucketedTrainSampler``).
        annotations: For each example its sentences' annotations, or an empty tuple.
        group_B: Group of each example, int64; None if all examples are independent.
        position_ids_BS: Positions, int64; None if the model counts them itself.
        head: What the model's head predicts about the examples; None for one class per text.
    """

    def __init__(
        self,
        input_ids_BS: Tensor,
        attention_mask_BS: Tensor,
        token_type_ids_BS: Tensor | None,
        special_BS: Tensor,
        word_BS: Tensor,
        index_B: Tensor,
        label_B: Tensor | None,
        weight: float = 1.0,
        annotations: tuple[tuple[Annotation, ...], ...] = (),
        group_B: Tensor | None = None,
        position_ids_BS: Tensor | None = None,
        head: "TaskHead | None" = None,
    ) -> None:
        self.input_ids_BS = input_ids_BS
        self.attention_mask_BS = attention_mask_BS
        self.token_type_ids_BS = token_type_ids_BS
        self.special_BS = special_BS
        self.word_BS = word_BS
        self.index_B = index_B
        self.label_B = label_B
        self.weight = weight
        self.annotations = annotations
        self.group_B = group_B
        self.position_ids_BS = position_ids_BS
        if head is None:
            from bertsecrets.task_heads.sequence import SEQUENCE

            head = SEQUENCE
        self.head: TaskHead = head

    @property
    def size(self) -> int:
        """Number of examples."""
        return len(self.index_B)

    @property
    def parts(self) -> int:
        """Rows of each example."""
        return len(self.input_ids_BS) // max(1, self.size)

    @property
    def lengths_B(self) -> Tensor:
        """Real tokens of each example, special tokens included."""
        return self.attention_mask_BS.sum(-1)

    @property
    def separators_BS(self) -> Tensor:
        """Which tokens are special tokens after the first, such as [SEP], bool."""
        special_BS = self.special_BS & self.attention_mask_BS.bool()
        return special_BS & (special_BS.cumsum(-1) > 1)

    def answers(self, output: Tensor) -> Tensor:
        """The answers ``[B, F]`` in a model's output (see :class:`~bertsecrets.task_heads.base.TaskHead`)."""
        return self.head.answers(self._of_examples(output), self.label_B)

    def predictions(self, output: Tensor) -> Tensor:
        """The predictions in a model's output, one a row, ``[N, C]``."""
        return self.head.rows(self._of_examples(output), self.label_B)

    def loss(self, output: Tensor) -> Tensor:
        """The training loss of a model's output."""
        return self.head.loss(self._of_examples(output), self.label_B)

    def losses(self, output: Tensor) -> Tensor:
        """The loss of each example, ``[B]``, from a model's output."""
        return self.head.losses(self._of_examples(output), self.label_B)

    def _of_examples(self, output: Tensor) -> Tensor:
        return self.head.together(self.head.select(output, self.label_B))

    def summed(self, value_RX: Tensor) -> Tensor:
        """The sums ``[B, ...]`` over the rows of each example."""
        value_BX: Tensor = value_RX.unflatten(0, (self.parts, self.size)).sum(0)
        return value_BX

    def inputs(self) -> dict[str, Tensor]:
        """The keyword arguments of a transformers model."""
        inputs = {"input_ids": self.input_ids_BS, "attention_mask": self.attention_mask_BS}
        if self.token_type_ids_BS is not None:
            inputs["token_type_ids"] = self.token_type_ids_BS
        if self.position_ids_BS is not None:
            inputs["position_ids"] = self.position_ids_BS
        return inputs

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Batch":
        """The batch on another device."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def rows(self, place_B: Tensor) -> "Batch":
        """Some examples of the batch, padded as they are; their places in it, int64."""
        row_R = torch.cat([place_B + part * self.size for part in range(self.parts)])
        fields: dict[str, Any] = {
            name: value[(place_B if name in _OF_EXAMPLES else row_R).to(value.device)]
            if isinstance(value, Tensor)
            else value
            for name, value in vars(self).items()
        }
        if self.annotations:
            fields["annotations"] = tuple(self.annotations[row] for row in row_R.tolist())
        return Batch(**fields)

    def pin_memory(self) -> "Batch":
        """The batch in page-locked memory."""
        return self._map(lambda tensor: tensor.pin_memory())

    def _map(self, function: Callable[[Tensor], Tensor]) -> "Batch":
        fields: dict[str, Any] = {
            name: function(value) if isinstance(value, Tensor) else value for name, value in vars(self).items()
        }
        return Batch(**fields)


def rank_and_world_size() -> tuple[int, int]:
    """The number of this process, and of processes, in the default process group; 0 and 1 without one."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def over_processes(value: Tensor, by: distributed.ReduceOp.RedOpType = distributed.ReduceOp.SUM) -> Tensor:
    """A tensor, reduced in place element by element over all processes."""
    if distributed.is_initialized():
        distributed.all_reduce(value, by)
    return value


def gathered(content: _Content) -> list[_Content]:
    """Gather an object from every process, ordered by rank."""
    if not distributed.is_initialized():
        return [content]
    contents: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(contents, content)
    return contents


def whole_set(parts: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Concatenate the batches of all processes, sorted by example index, on the CPU.

    Args:
        parts: This process's batches, each as tensors with one entry per example; the first holds the indices.

    Raises:
        RuntimeError: If an example occurs more than once.
    """
    mine = [torch.cat(tensors).cpu() for tensors in zip(*parts, strict=True)]
    # A process may have no batch.
    index_N, *values = (torch.cat(tensors) for tensors in zip(*filter(None, gathered(mine)), strict=True))
    order_N = index_N.argsort()
    index_N = index_N[order_N]
    if bool((index_N.diff() == 0).any()):
        raise RuntimeError("An example was evaluated more than once; the evaluation sampler must not pad.")
    return [index_N, *(value[order_N] for value in values)]


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
