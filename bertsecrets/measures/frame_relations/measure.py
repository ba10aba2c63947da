"""Relation-specific heads: attention between a frame's target and its elements (Kovaleva et al. 2019, section 4.2)."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from pytorch_lightning.utilities import rank_zero_warn
from torch import Tensor, nn

from bertsecrets.attention.watch import capture
from bertsecrets.data.batch import Batch
from bertsecrets.data.example import Matching
from bertsecrets.data.framenet.source import FrameNetSource, Selection
from bertsecrets.data.module import TaskData, sample_positions
from bertsecrets.data.tokenization import EncodedSplit, written
from bertsecrets.errors import UserError
from bertsecrets.grid import Column, HeadGrid
from bertsecrets.measures.base import MaxExamples, Measure, Need, Passed, once_per_batch
from bertsecrets.measures.frame_relations.links import (
    Direction,
    Exchange,
    Link,
    Moved,
    Pairs,
    Placements,
    averages,
    drawn_placements,
    fixed_offsets,
    links_of,
    p_values,
    placements_within,
)
from bertsecrets.measures.frame_relations.rows import (
    BASELINES,
    CORRECTED,
    Filter,
    LinkedPair,
    Links,
    Offset,
    RelationRow,
    Token,
    Weight,
)
from bertsecrets.settings import typed
from bertsecrets.statistics.corrections import LEVEL

_MOVED: dict[str, Moved] = {"position": "together", "received": "attending"}
"""What the baselines within a sentence move; the third baseline uses links of other sentences."""

_WEIGHT = "attention weight, mean over sentences"
_SHOWN, _BATCH = 3, 64
_DRAWINGS, _FEWEST_AT_LEVEL = 5_000, 20
_TOLERANCE = 1e-9


class FrameRelations(Measure):
    """Attention along annotated frame relations, tested against position and attended word as explanations.

    Columns, averaged over examples (an example's number is the mean over its frames):
        ``weight``: the largest attention weight among the token pairs of the link (methods K3).
        ``position``: the same for other placements in the sentence, with the pairs moved together so that all signed
            distances are kept. A head that attends at a fixed offset gives these placements as much as the link.
        ``received``: the same for other placements in the sentence, with only the attending tokens moved. A head that
            attends to such words from everywhere gives these placements as much as the link.
        ``other_links``: the same at the placements of the links of other sentences with as many tokens before and in
            them. A head that attends by absolute position gives these placements as much as the link; elements tend to
            be early and targets late.
        ``over_position``, ``over_received``, ``over_other_links``: ``weight`` minus each.
        ``uniform``: the weight under uniform attention, 1 / number of tokens.
        ``p_position``, ``p_received``, ``p_other_links``: one-sided p-values of the hypothesis that a link's own
            placement is no better than the others: the share of ``permutations`` random drawings of a placement for
            every link (including its own; for ``other_links``, random permutations of the links of equally long
            sentences) with a mean of at least ``weight``, the observed mean included.
        ``p_position_corrected`` and so on: corrected over all heads of the model by the step-down max-T method
        (Westfall
            and Young 1993), so that the smallest p-value does not depend on the number of heads.

    A head counts as a relation head if it beats all three. Links without other placements count in ``weight`` and
    ``uniform`` only; examples without a link do not count.

    Args:
        pairs, direction, matching: See :func:`bertsecrets.measures.frame_relations.links.links_of`.
        permutations: Drawings of each test, the same for every head; the smallest p-value, corrected or not, is 1 /
            (permutations + 1). None for 5,000, of which 250 decide at the 5 % level. A warning is given if fewer than
            20 decide.
        max_examples: Size of a random sample of examples; None for all. Links of other examples are not used at all.
        framenet: The ``framenet`` section of the configuration; without ``root`` and ``published`` the annotation of
            the evaluation set is used.
        example: Text of the sentence to show; by default, or if it has no link, the first sentence with a link.
        required: Whether a task without frames and without FrameNet is an error; otherwise the measure is skipped.
        seed: Seed of the drawings, combined with each example's index: results do not depend on batches and processes.

    Raises:
        UserError: If a choice does not exist, ``permutations`` is not a positive number, or the ``framenet`` section is
            not valid.
    """

    name = "frame_relations"
    title = "Attention along frame relations"
    columns = (
        Column("weight", "weight", _WEIGHT),
        Column("position", "same distance elsewhere", _WEIGHT),
        Column("received", "same word from elsewhere", _WEIGHT),
        Column("other_links", "positions of other sentences' links", _WEIGHT),
        Column("over_position", "beyond the same distance elsewhere", _WEIGHT),
        Column("over_received", "beyond the same word from elsewhere", _WEIGHT),
        Column("over_other_links", "beyond positions of other sentences' links", _WEIGHT),
        Column("uniform", "uniform attention", _WEIGHT, role="baseline"),
        *(
            Column(f"p_{name}{end}", f"p, {label}{text}", "p-value", (0.0, 1.0), role="p_value")
            for name, label in BASELINES.items()
            for end, text in (("", ""), (CORRECTED, " (corrected)"))
        ),
    )
    presenter = "bertsecrets.present.frame_relations:PRESENTER"
    needs = frozenset({Need.ANNOTATION})
    own_examples = True
    tracked = ("weight", "over_position")

    drawn_LTRH: Tensor

    @typed
    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        pairs: Pairs = "all",
        direction: Direction = "element_to_target",
        matching: Matching = "offsets",
        permutations: Annotated[int | None, Field(ge=1, description="a whole number from 1, or null")] = None,
        max_examples: MaxExamples = None,
        framenet: Mapping[str, Any] | None = None,
        example: str = "",
        required: bool = True,
        seed: Annotated[int, Field(ge=0, lt=2**32)] = 0,
    ) -> None:
        permutations = _DRAWINGS if permutations is None else permutations
        if LEVEL * (permutations + 1) < _FEWEST_AT_LEVEL:
            rank_zero_warn(
                f"With {permutations} permutations of the frame_relations measure, fewer than {_FEWEST_AT_LEVEL} "
                f"drawings decide at the level {LEVEL:g}; use the default of {_DRAWINGS:,}."
            )
        super().__init__(num_layers, num_heads, max_examples)
        self.pairs, self.direction, self.matching = pairs, direction, matching
        self.permutations = permutations
        self.seed = seed
        self.source = FrameNetSource.read("framenet", framenet or {})
        self.example, self.required = example, required
        self.selection: Selection | None = None
        self.split: EncodedSplit | None = None
        self.task = ""
        shape = (num_layers, len(BASELINES), permutations, num_heads)
        self.add_state("drawn_LTRH", torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")
        self._exchange = Exchange((), permutations, seed)
        self._links: list[tuple[int, int, Link]] = []
        """Every link, after its example's position in the split and its index."""

    def inapplicable(self, data: TaskData) -> str | None:
        if self.required or self.source.is_named:
            return None
        examples = data.evaluation_dataset(data.evaluation_names[0]).examples
        if any(annotation.frames for example in examples for annotation in example.annotations):
            return None
        return f"Task {data.task.name} has no frames and framenet.root is not given; relation heads are skipped."

    def dataset(self, data: TaskData, progress: bool = False) -> EncodedSplit | None:
        """FrameNet's sentences, read once; None for the evaluation set without FrameNet."""
        self.task = data.task.name
        if not self.source.is_named:
            return None
        if self.split is None:
            self.selection = self.source.load(progress)
            multiple = data.config.pad_to_multiple_of
            self.split = EncodedSplit(
                self.selection.examples, data.tokenizer, data.max_length, pad_to_multiple_of=multiple
            )
        return self.split

    def prepare(self, split: EncodedSplit) -> None:
        """Find the links of all measured examples, which exchange placements."""
        self.split = split
        self._links = []
        positions = sample_positions(len(split), self.feed.max_examples, self.feed.seed)
        for start in range(0, len(positions), _BATCH):
            batch = split[positions[start : start + _BATCH]]
            for link in links_of(batch, self.pairs, self.direction, self.matching):
                self._links.append((positions[start + link.row], int(batch.index_B[link.row]), link))
        self._exchange = Exchange(((index, link) for _, index, link in self._links), self.permutations, self.seed)

    def per_example(self, attention_BHQK: Tensor, batch: Batch, reference_BHQK: Tensor | None) -> Tensor:
        _, placements = self._placed(batch)
        if not placements:
            return attention_BHQK.new_full((batch.size, attention_BHQK.shape[1], len(self.averaged)), torch.nan)
        weights = {name: places.weights(attention_BHQK) for name, places in placements.items()}
        return self._numbers(batch, placements, weights)

    def update(self, passed: Passed) -> None:
        """Add one layer's maps of one batch, and the drawings of its links."""
        layer, batch = passed.layer, passed.batch
        _, placements = self._placed(batch)
        if not placements:
            self.add(layer, batch, None)
            return
        weights = {name: places.weights(passed.attention_BHQK) for name, places in placements.items()}
        self.add(layer, batch, self._numbers(batch, placements, weights))
        for test, (drawn_RM, weight_MH) in enumerate(zip(self._draw(batch), weights.values(), strict=True)):
            # One sparse product for all drawings is many times faster than indexing each of them.
            self.drawn_LTRH[layer, test].addmm_(drawn_RM, weight_MH)

    def _numbers(self, batch: Batch, placements: Mapping[str, Placements], weights: Mapping[str, Tensor]) -> Tensor:
        """Columns for each example, ``[B, H, C]``, from the weights of all placements, ``[M, H]`` by baseline."""
        elsewhere = [places.mean_elsewhere(weights[name]) for name, places in placements.items()]
        # A link's own placement is the same for all baselines.
        name, own = next(iter(placements.items()))
        weight_NH = weights[name][own.first_N]
        length_N1 = batch.lengths_B.to(weight_NH.device)[own.row_N, None]
        uniform_NH = (1 / length_N1.double()).expand_as(weight_NH)
        over = [weight_NH - mean_NH for mean_NH in elsewhere]
        number_NHC = torch.stack((weight_NH, *elsewhere, *over, uniform_NH), -1)
        total_BHC = number_NHC.new_zeros((batch.size, *number_NHC.shape[1:]))
        count_BHC = total_BHC.index_add(0, own.row_N, (~number_NHC.isnan()).to(number_NHC))
        # 0 / 0: examples without a link do not count.
        return total_BHC.index_add(0, own.row_N, number_NHC.nan_to_num(0.0)) / count_BHC

    def compute(self) -> HeadGrid:
        """Means, standard errors and counts, reduced over all processes, and p-values as further columns."""
        grid = super().compute()
        count_LH = grid.count_LHC[:, :, 0]
        # Compare sums, like the drawings; dividing by the count would only add rounding.
        observed_N = self.total_LHC[:, :, 0].flatten().cpu().numpy()
        values = []
        for drawn_LRH in self.drawn_LTRH.cpu().unbind(1):
            drawn_RN = drawn_LRH.transpose(0, 1).flatten(1).numpy()
            tests = p_values(observed_N, drawn_RN, _TOLERANCE * max(1, int(count_LH.max())))
            values += [torch.from_numpy(p_N).reshape(count_LH.shape) for p_N in tests]
        p_LHC = torch.stack(values, -1).masked_fill((count_LH == 0)[:, :, None], torch.nan)
        return self.with_p_values(grid, p_LHC, count_LH)

    @once_per_batch
    def _placed(self, batch: Batch) -> tuple[list[Link], dict[str, Placements]]:
        """The links of a batch, and their placements by baseline; no placements without a link."""
        links = links_of(batch, self.pairs, self.direction, self.matching)
        if not links:
            return links, {}
        # On the state's device: MPS has no float64, which keeps sums of thousands of drawings independent of their
        # order.
        device = self.total_LHC.device
        placements = {
            name: Placements.of(links, [placements_within(link, moved) for link in links], device)
            for name, moved in _MOVED.items()
        }
        exchanged = [self._exchange.others(int(batch.index_B[link.row]), link) for link in links]
        return links, {**placements, "other_links": Placements.of(links, exchanged, device)}

    @once_per_batch
    def _draw(self, batch: Batch) -> list[Tensor]:
        """The weights of a batch's placements in every drawing, by baseline, as from :func:`averages`."""
        links, placements = self._placed(batch)
        drawn = [
            drawn_placements(links, placements[name], batch.index_B, self.permutations, self.seed) for name in _MOVED
        ]
        drawn.append(self._exchange.drawn([int(batch.index_B[link.row]) for link in links], links))
        return [
            averages(links, of_baseline, drawn_NR)
            for of_baseline, drawn_NR in zip(placements.values(), drawn, strict=True)
        ]

    def findings(self, grid: HeadGrid, model: nn.Module) -> Sequence[RelationRow]:
        """The links, counts of links at each offset, and an example with maps of the heads with the most attention.

        Raises:
            UserError: If no sentence has a link.
        """
        split = self.split
        assert split is not None
        if not self._links:
            raise UserError(
                "No sentence has a frame with an element linked to its target; give annotated sentences with "
                "framenet.root=<folder of FrameNet> or use a demo task."
            )
        linked = [position for position, _, _ in self._links]
        wanted = [position for position in linked if split.examples[position].texts[0].strip() == self.example]
        shown = wanted[-1] if wanted else linked[0]
        batch = split[[shown]]
        map_LHQK = capture(model, batch.to(next(model.parameters()).device).inputs())[0]
        weight_LH = np.nan_to_num(grid.column("weight").numpy(), nan=-1.0)
        highest = [divmod(int(index), grid.num_heads) for index in np.argsort(-weight_LH, axis=None)[:_SHOWN]]
        real_S = batch.attention_mask_BS[0].bool()
        # Maps are cropped to real tokens: padding on the left shifts the pairs.
        first = int(real_S.nonzero()[0])
        tokens = written(split.tokenizer, batch.input_ids_BS[0][real_S].tolist())
        links = Links(
            source=self.source.name if self.source.is_named else f"the annotation of task {self.task}",
            links=len(linked),
            alone=sum(not self._exchange.others(index, link) for _, index, link in self._links),
            pairs=self.pairs,
            direction=self.direction,
            matching=self.matching,
            permutations=self.permutations,
            text=" / ".join(split.examples[shown].texts),
        )
        offsets = fixed_offsets(link for _, _, link in self._links)
        return [
            links,
            *(Filter(*step) for step in (self.selection.remaining.items() if self.selection else ())),
            *(Offset(*reached) for reached in sorted(offsets.items())),
            *(Token(position, token) for position, token in enumerate(tokens)),
            *(
                LinkedPair(query - first, key - first)
                for link in links_of(batch, self.pairs, self.direction, self.matching)
                for query, key in link.pairs
            ),
            *(
                Weight(*head, query, key, float(weight))
                for head in highest
                for (query, key), weight in np.ndenumerate(map_LHQK[head].float().cpu().numpy())
            ),
        ]
