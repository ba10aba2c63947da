"""Which maps to label: a sample of all heads and lengths, or maps that may show rare patterns."""

import random
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor
from transformers import PreTrainedModel
from typing_extensions import Self

from bertsecrets.attention.watch import capture
from bertsecrets.data.batch import Batch
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.errors import UserError, choices
from bertsecrets.models.encoder import describe
from bertsecrets.patterns.classes import PATTERNS
from bertsecrets.patterns.classifier import MIN_LENGTH, PatternClassifier, load_classifier
from bertsecrets.patterns.map_features import first_segments
from bertsecrets.results.progress import progress_over
from bertsecrets.results.run import CHECKPOINT, INITIAL, Run
from bertsecrets.settings import Settings
from tools.pattern_labels.map_set import MapRow, MapSet
from tools.pattern_labels.rules import Rules, masses

STAGES = (INITIAL, CHECKPOINT)
_BATCH = 16
_POSITIVE = "a whole number from 1"

HeadIndex = tuple[int, int]
"""Layer and head, from 0."""


class SampleSettings(Settings):
    """Which maps are sampled.

    Args:
        maps: Number of maps to add.
        stages: ``initial`` (before fine-tuning) and ``checkpoint``; the maps alternate between them.
        min_length, max_length: Bounds on an example's tokens, special tokens included; both inclusive.
        evaluation: Evaluation set; None for the task's first.
        passes: Number of passes with contact sheets.
        patterns: Sample only maps that may show one of these patterns; None for a sample of all maps.
        examples: Number of examples searched for ``patterns``.
        seed: Seed of the sample.
    """

    maps: int = Field(default=72, ge=1, description=_POSITIVE)
    stages: Sequence[str] = Field(default=STAGES, description=f"a list of {' and '.join(STAGES)}")
    min_length: int = Field(default=8, ge=1, description=_POSITIVE)
    max_length: int = Field(default=64, ge=1, description=_POSITIVE)
    evaluation: str | None = Field(default=None, description="an evaluation set, or null for the task's first")
    passes: int = Field(default=2, ge=1, description=_POSITIVE)
    patterns: Sequence[str] | None = Field(default=None, description=f"a list of {', '.join(PATTERNS)}, or null")
    examples: int = Field(default=100, ge=1, description=_POSITIVE)
    seed: int = Field(default=0, ge=0, lt=2**32, description=f"a whole number from 0 to {2**32 - 1}")

    @field_validator("stages")
    @classmethod
    def _valid_stages(cls, stages: Sequence[str]) -> Sequence[str]:
        if not stages:
            raise UserError(f"stages names no stage; choose from {', '.join(STAGES)}.")
        for stage in stages:
            if stage not in STAGES:
                raise UserError(f"Unknown stage '{stage}' in stages; {choices(stage, STAGES)}.")
        return stages

    @field_validator("patterns")
    @classmethod
    def _valid_patterns(cls, patterns: Sequence[str] | None) -> Sequence[str] | None:
        if patterns is not None and not patterns:
            raise UserError(f"patterns names no pattern; choose from {', '.join(PATTERNS)}, or give null.")
        for pattern in patterns or ():
            if pattern not in PATTERNS:
                raise UserError(f"Unknown pattern '{pattern}' in patterns; {choices(pattern, PATTERNS)}.")
        return patterns

    @model_validator(mode="after")
    def _ordered_lengths(self) -> Self:
        if self.max_length < self.min_length:
            raise UserError(
                f"max_length is {self.max_length}; expected a whole number from {self.min_length}, which is min_length."
            )
        return self


class Sampler:
    """Samples maps of a run before and after fine-tuning.

    Args:
        run: The run; its name, task, model and initialisation go into the rows of maps.
        models: The model of each stage.
        dataset: The evaluation set.
        settings: Which maps are sampled.
        progress: Whether to show a progress bar.
    """

    def __init__(
        self,
        run: Run,
        models: Mapping[str, PreTrainedModel],
        dataset: EncodedSplit,
        settings: SampleSettings,
        progress: bool = False,
    ) -> None:
        self.run = run
        self.models = models
        self.dataset = dataset
        self.settings = settings
        self.progress = progress

    def sample(self, earlier: MapSet) -> tuple[list[MapRow], dict[str, Tensor]]:
        """Rows and weights of new maps, from all heads or of ``settings.patterns``; fewer if the examples have no more.

        The heads with the fewest maps in the folder come first: runs that share a folder sample all heads about equally
        often.

        Args:
            earlier: Maps that the folder already holds.
        """
        if self.settings.patterns is not None:
            return self._sample_patterns(self.settings.patterns, earlier)
        count, seed, stages = self.settings.maps, self.settings.seed, self.settings.stages
        encoder = describe(self.models[stages[0]])
        taken = [(row.layer, row.head) for row in earlier.rows]
        heads = choose_heads(count, encoder.num_layers, encoder.num_heads, taken, seed)
        positions = choose_examples(
            count, self.dataset.lengths, self.settings.min_length, self.settings.max_length, seed
        )
        rows: list[MapRow] = []
        maps: dict[str, Tensor] = {}
        with progress_over(len(stages), "maps", visible=self.progress) as advance:
            for turn, stage in enumerate(stages):
                members = range(turn, count, len(stages))
                for i, all_LHQQ, batch, row_of_batch in self._captured(stage, members, positions):
                    row = self._row(stage, *heads[i], batch, row_of_batch, positions[i])
                    rows.append(row)
                    maps[row.map] = all_LHQQ[row.layer, row.head].half()
                advance()
        return rows, maps

    def _sample_patterns(self, patterns: Sequence[str], earlier: MapSet) -> tuple[list[MapRow], dict[str, Tensor]]:
        """Maps that may show some patterns, from all heads and ``settings.examples`` examples."""
        settings = self.settings
        classifier, rules, earlier_names = load_classifier(), Rules(), set(earlier.names)
        count = min(settings.examples, len(self.dataset.lengths))
        # Examples repeat if too few have such lengths; each is searched once.
        drawn = choose_examples(count, self.dataset.lengths, settings.min_length, settings.max_length, settings.seed)
        positions = list(dict.fromkeys(drawn))
        candidates: list[tuple[MapRow, Tensor, set[str]]] = []
        with progress_over(len(settings.stages), "stages searched", visible=self.progress) as advance:
            for stage in dict.fromkeys(settings.stages):
                for i, all_LHQQ, batch, row_of_batch in self._captured(stage, range(len(positions)), positions):
                    special_S = batch.special_BS[row_of_batch]
                    real_S = batch.attention_mask_BS[row_of_batch].bool()
                    first_segment = int(first_segments(special_S[None], real_S[None]))
                    possible = possible_patterns(classifier, rules, all_LHQQ.flatten(0, 1), first_segment)
                    for n, names in enumerate(possible):
                        if names & set(patterns):
                            head = divmod(n, all_LHQQ.shape[1])
                            row = self._row(stage, *head, batch, row_of_batch, positions[i])
                            if row.map not in earlier_names:
                                candidates.append((row, all_LHQQ[head].half(), names))
                advance()
        by_head = [((row.layer, row.head), names) for row, _, names in candidates]
        sampled = choose_by_pattern(settings.maps, by_head, patterns, settings.seed)
        rows = [replace(candidates[n][0], sought=pattern) for n, pattern in sampled]
        return rows, {candidates[n][0].map: candidates[n][1] for n, _ in sampled}

    def _captured(
        self, stage: str, members: Iterable[int], positions: Sequence[int]
    ) -> Iterator[tuple[int, Tensor, Batch, int]]:
        """Each member with its maps ``[L, H, Q, Q]``, its batch, and its row in the batch."""
        model = self.models[stage]
        # Sorted by length for little padding.
        ordered = sorted(members, key=lambda i: self.dataset.lengths[positions[i]])
        for first in range(0, len(ordered), _BATCH):
            part = ordered[first : first + _BATCH]
            batch = self.dataset[[positions[i] for i in part]]
            captured = capture(model, batch.to(model.device).inputs())
            for row, i in enumerate(part):
                yield i, captured[row], batch, row

    def _row(self, stage: str, layer: int, head: int, batch: Batch, row_of_batch: int, position: int) -> MapRow:
        example = int(batch.index_B[row_of_batch])
        special_S = batch.special_BS[row_of_batch][batch.attention_mask_BS[row_of_batch].bool()]
        # The first special token after the one that begins the sequence.
        later = special_S[1:].nonzero()
        return MapRow(
            map=f"{self.run.name}-{stage}-l{layer:02d}h{head:02d}-e{example}",
            task=self.run.task,
            model=self.run.model,
            init=self.run.init,
            stage=stage,
            layer=layer,
            head=head,
            example=example,
            length=len(special_S),
            segments=len(self.dataset.examples[position].texts),
            separator=int(later[0]) + 1 if len(later) else -1,
        )


def choose_heads(count: int, num_layers: int, num_heads: int, taken: Iterable[HeadIndex], seed: int) -> list[HeadIndex]:
    """Heads of ``count`` more maps, those with the fewest maps first and ties in random order.

    Over any number of calls that fill one folder, the numbers of maps of two heads differ by at most one.

    Args:
        count: Number of maps.
        num_layers, num_heads: Size of the grid.
        taken: Layer and head of each map that the folder holds already.
        seed: Seed of the order of ties.
    """
    maps = Counter(taken)
    # Another run with the same seed that adds to the folder draws another order.
    generator = random.Random(f"{seed} {maps.total()}")
    grid = [(layer, head) for layer in range(num_layers) for head in range(num_heads)]
    heads = []
    for _ in range(count):
        fewest = min(maps[head] for head in grid)
        head = generator.choice([head for head in grid if maps[head] == fewest])
        maps[head] += 1
        heads.append(head)
    return heads


def choose_examples(count: int, lengths: Sequence[int], shortest: int, longest: int, seed: int) -> list[int]:
    """Positions of ``count`` examples with lengths spread evenly over ``shortest`` to ``longest`` tokens.

    For each map a length is drawn uniformly, then the least used example with the nearest length. Random examples would
    mostly have the task's usual length.

    Args:
        count: Number of examples; they repeat only if fewer have such a length.
        lengths: Tokens of every example.
        shortest, longest: Bounds, both inclusive.
        seed: Seed of the draws.

    Raises:
        UserError: If no example has such a length.
    """
    fitting = [position for position, length in enumerate(lengths) if shortest <= length <= longest]
    if not fitting:
        raise UserError(
            f"No example has {shortest} to {longest} tokens (they have {min(lengths)} to {max(lengths)}); set "
            "min_length and max_length to lengths within that range."
        )
    generator = random.Random(seed)
    generator.shuffle(fitting)
    used: Counter[int] = Counter()
    positions = []
    for _ in range(count):
        wanted = generator.randint(shortest, longest)
        position = min(fitting, key=lambda position: (used[position], abs(lengths[position] - wanted)))
        used[position] += 1
        positions.append(position)
    return positions


def possible_patterns(
    classifier: PatternClassifier, rules: Rules, maps_NQQ: Tensor, first_segment: int
) -> list[set[str]]:
    """For each map, the pattern by the network and the pattern by the rules.

    A sample that accepts either favours neither when the two are compared on it.

    Args:
        classifier: The network.
        rules: The baseline.
        maps_NQQ: Maps of one length without padding, float32; no pattern for maps shorter than ``MIN_LENGTH``.
        first_segment: As in :func:`~bertsecrets.patterns.map_features.first_segments`.
    """
    count, length = maps_NQQ.shape[:2]
    if length < MIN_LENGTH:
        return [set() for _ in range(count)]
    real_NS, first_segment_N = torch.ones(count, length, dtype=torch.bool), torch.full((count,), first_segment)
    by_network_N = classifier(maps_NQQ[:, None], real_NS, first_segment_N).pattern[:, 0].tolist()
    by_rules_N = rules(masses(list(maps_NQQ), first_segment_N.tolist())).tolist()
    return [{PATTERNS[one], PATTERNS[other]} for one, other in zip(by_network_N, by_rules_N, strict=True)]


def choose_by_pattern(
    count: int, candidates: Sequence[tuple[HeadIndex, Collection[str]]], patterns: Sequence[str], seed: int
) -> list[tuple[int, str]]:
    """Positions of ``count`` candidates that may show one of some patterns, each with that pattern.

    The patterns alternate, and for each the heads sampled least come first: otherwise a rare pattern would be sampled
    from the one head that always shows it. Patterns without candidates are skipped.

    Args:
        count: Number of maps; fewer are taken if there are fewer candidates.
        candidates: Head of each map, and the patterns that it may show.
        patterns: The patterns to sample.
        seed: Seed of the order of ties.
    """
    generator = random.Random(seed)
    left = {pattern: [n for n, (_, possible) in enumerate(candidates) if pattern in possible] for pattern in patterns}
    for positions in left.values():
        generator.shuffle(positions)
    heads: dict[str, Counter[HeadIndex]] = {pattern: Counter() for pattern in patterns}
    pattern_of: dict[int, str] = {}
    while len(pattern_of) < count and any(left.values()):
        for pattern in patterns:
            left[pattern] = [n for n in left[pattern] if n not in pattern_of]
            if left[pattern] and len(pattern_of) < count:
                best = min(left[pattern], key=lambda n: heads[pattern][candidates[n][0]])
                heads[pattern][candidates[best][0]] += 1
                pattern_of[best] = pattern
    return list(pattern_of.items())
