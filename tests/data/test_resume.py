"""Interrupted epochs resume where they stopped; tests/cli/test_last_checkpoint.py interrupts whole trainings."""

from typing import Any

import pytest
from data.toy import pairs, wordpiece

from bertsecrets.data.batch import Batch, BucketedTrainSampler, ResumableDataLoader
from bertsecrets.data.tokenization import EncodedSplit

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
