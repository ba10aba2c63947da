"""Choosing candidates so that nothing on the surface tells the classes apart."""

from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Item = TypeVar("Item")


@dataclass
class Matcher(Generic[Item]):
    """Groups candidates, one of each class, that have the same surface.

    Candidates wait until every one of the ``classes`` has one with their surface; then all of them are released.
    """

    classes: int
    _waiting: dict[Hashable, tuple[deque[Item], ...]] = field(default_factory=dict)

    def add(self, label: int, surface: Hashable, item: Item) -> Iterator[Item]:
        """Add a candidate of class ``label`` (from 0), and yield the group that it completes, if any."""
        queues = self._waiting.setdefault(surface, tuple(deque[Item]() for _ in range(self.classes)))
        queues[label].append(item)
        if all(queues):
            yield from (queue.popleft() for queue in queues)


def overlap(first: Sequence[str], second: Sequence[str]) -> tuple[float, int, int]:
    """Jaccard overlap of two word sequences (0 to 1), their difference in length and the number of shared words."""
    one, two = {word.lower() for word in first}, {word.lower() for word in second}
    return len(one & two) / len(one | two), len(second) - len(first), len(one & two)
