"""Batches: every example once, the same for any number of processes, and an interrupted epoch that goes on.

tests/cli/test_checkpoints.py interrupts whole trainings.
"""

from collections import Counter
from typing import Any

import pytest
import torch
from data.toy import pairs, wordpiece
from hypothesis import given
from hypothesis import strategies as st

from bertsecrets.data.batch import Batch, BatchSpec, BucketedEvalSampler, BucketedTrainSampler, ResumableDataLoader
from bertsecrets.data.tokenization import EncodedSplit

LENGTHS = st.lists(st.integers(2, 60), min_size=1, max_size=400)
SIZES = st.integers(1, 40)
WORLDS = st.integers(1, 9)


def train_samplers(lengths: list[int], size: int, world: int, epoch: int = 0) -> list[list[BatchSpec]]:
    dealt = []
    for rank in range(world):
        sampler = BucketedTrainSampler(lengths, size, seed=3, rank=rank, world_size=world)
        sampler.set_epoch(epoch)
        dealt.append(list(sampler))
        assert len(dealt[-1]) == len(sampler)
    return dealt


def counted(spec: BatchSpec) -> tuple[int, ...]:
    """The examples that count in a batch."""
    return spec.positions if spec.weight > 0 else ()


@given(lengths=LENGTHS, size=SIZES, world=WORLDS, epoch=st.integers(0, 3))
def test_training_sees_every_example_once_in_an_epoch(lengths: list[int], size: int, world: int, epoch: int) -> None:
    ranks = train_samplers(lengths, size, world, epoch)
    seen = Counter(position for rank in ranks for spec in rank for position in counted(spec))
    assert seen == Counter(range(len(lengths)))


@given(lengths=LENGTHS, size=SIZES, world=WORLDS)
def test_processes_share_the_batches_of_one_process(lengths: list[int], size: int, world: int) -> None:
    (alone,) = train_samplers(lengths, size, 1)
    ranks = train_samplers(lengths, size, world)
    for spec, *shares in zip(alone, *ranks, strict=True):
        assert sorted(position for share in shares for position in counted(share)) == sorted(spec.positions)
        assert all(share.positions for share in shares)


@given(lengths=LENGTHS, size=SIZES, world=WORLDS)
def test_weighted_means_of_processes_average_to_the_mean_of_the_batch(
    lengths: list[int], size: int, world: int
) -> None:
    loss_N = torch.rand(len(lengths), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    (alone,) = train_samplers(lengths, size, 1)
    for spec, *shares in zip(alone, *train_samplers(lengths, size, world), strict=True):
        mean = sum(share.weight * loss_N[list(share.positions)].mean() for share in shares) / world
        assert mean == pytest.approx(loss_N[list(spec.positions)].mean().item(), rel=1e-12)


@given(lengths=LENGTHS, size=SIZES)
def test_only_one_batch_of_an_epoch_is_smaller(lengths: list[int], size: int) -> None:
    (specs,) = train_samplers(lengths, size, 1)
    sizes = Counter(len(spec.positions) for spec in specs)
    rest = len(lengths) % size
    assert sizes == Counter({size: len(lengths) // size}) + Counter({rest: 1} if rest else {})


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    lengths = [2 + i % 17 for i in range(300)]

    def order(seed: int, epoch: int) -> list[BatchSpec]:
        sampler = BucketedTrainSampler(lengths, 8, seed)
        sampler.set_epoch(epoch)
        return list(sampler)

    assert order(1, 2) == order(1, 2)
    assert order(1, 2) != order(1, 3)
    assert order(1, 2) != order(2, 2)


def test_batches_of_a_small_split_are_not_the_same_in_every_epoch() -> None:
    lengths = [2 + i for i in range(160)]
    sampler = BucketedTrainSampler(lengths, 16, seed=0)
    first = {frozenset(batch) for batch in sampler.batches()}
    sampler.set_epoch(1)
    assert len(first & {frozenset(batch) for batch in sampler.batches()}) <= 2


def test_bucketing_saves_most_of_the_padding() -> None:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(5, 100, (4000,), generator=generator).tolist()
    sampler = BucketedTrainSampler(lengths, 32, seed=0)
    padded = sum(len(batch) * max(lengths[i] for i in batch) for batch in sampler.batches())
    # Unsorted batches of 32 of these lengths pad to 1.85 times the tokens.
    assert padded < 1.06 * sum(lengths)


@given(lengths=LENGTHS, size=SIZES, world=WORLDS)
def test_evaluation_covers_every_example_exactly_once(lengths: list[int], size: int, world: int) -> None:
    dealt = [list(BucketedEvalSampler(lengths, size, rank, world)) for rank in range(world)]
    seen = sorted(position for rank in dealt for spec in rank for position in spec.positions)
    assert seen == list(range(len(lengths)))
    assert all(len(spec.positions) <= size for rank in dealt for spec in rank)
    if len(lengths) >= world:
        assert all(dealt)


@given(lengths=LENGTHS, size=SIZES, world=WORLDS)
def test_evaluation_batches_do_not_depend_on_the_number_of_processes(lengths: list[int], size: int, world: int) -> None:
    alone = set(BucketedEvalSampler(lengths, size))
    assert {spec for rank in range(world) for spec in BucketedEvalSampler(lengths, size, rank, world)} == alone


def test_evaluation_batches_are_sorted_by_length() -> None:
    lengths = [9, 3, 7, 3, 5] * 20
    ordered = [lengths[position] for spec in BucketedEvalSampler(lengths, 8) for position in spec.positions]
    assert ordered == sorted(lengths)


def test_evaluation_of_chosen_examples() -> None:
    lengths = [5] * 100
    seen = [p for spec in BucketedEvalSampler(lengths, 8, positions=[3, 50, 99]) for p in spec.positions]
    assert sorted(seen) == [3, 50, 99]


EXAMPLES, SIZE = 44, 8
SPLIT = EncodedSplit(pairs(EXAMPLES), wordpiece(), 16)


class CountingSplit(EncodedSplit):
    """Counts the batches that are formed."""

    made = 0

    def __getitem__(self, chosen: Any) -> Batch:
        self.made += 1
        return super().__getitem__(chosen)


def loader(split: EncodedSplit = SPLIT, num_workers: int = 0) -> ResumableDataLoader:
    sampler = BucketedTrainSampler(split.lengths, SIZE, seed=5)
    return ResumableDataLoader(split, sampler=sampler, batch_size=None, num_workers=num_workers)


@pytest.mark.parametrize("workers", [0, 1])
def test_the_state_counts_the_batches_delivered_and_is_zero_after_the_last(workers: int) -> None:
    data = loader(num_workers=workers)
    assert data.state_dict() == {"epoch": 0, "dealt": 0}
    counts = []
    for _ in data:
        counts.append(data.state_dict()["dealt"])
    assert counts == [1, 2, 3, 4, 5, 0]


def test_skipped_batches_are_not_formed() -> None:
    split = CountingSplit(pairs(EXAMPLES), wordpiece(), 16)
    whole = [batch.index_B.tolist() for batch in loader(split)]
    split.made = 0
    data = loader(split)
    data.load_state_dict({"epoch": 0, "dealt": 4})
    assert data.state_dict() == {"epoch": 0, "dealt": 4}
    assert [batch.index_B.tolist() for batch in data] == whole[4:]
    assert split.made == 2
    assert [batch.index_B.tolist() for batch in data] == whole


def test_the_state_of_another_epoch_skips_nothing() -> None:
    data = loader()
    data.load_state_dict({"epoch": 0, "dealt": 4})
    data.sampler.set_epoch(1)
    assert len(list(data)) == len(data)
