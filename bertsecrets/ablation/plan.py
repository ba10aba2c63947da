"""Plans: which heads are disabled together, in which mode, and which parts of layers are left out."""

import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from bertsecrets.errors import UserError
from bertsecrets.results.components import (
    GROUP,
    HEAD,
    LAYER,
    RANDOM,
    Kind,
)

Head = tuple[int, int]
"""Layer and head, both counted from 0."""

Part = tuple[int, str]
"""Layer, and name of a part of it."""


@dataclass(frozen=True)
class Variant:
    """One way to disable parts of a model.

    Args:
        name: A sortable name: ``l03h11``, ``l03``, ``all-but-l03h11``, ``group-002``, ``top-010``,
            ``random-02.03-001``.
        kind: One of :data:`bertsecrets.results.components.KINDS`.
        heads: The heads disabled together, ordered by layer and head.
        layer, head: The head or layer that the variant is about, if there is only one.
        parts: Parts of layers that are left out: layer, and name of one of
            :data:`bertsecrets.results.components.PARTS`, or of a group of neurons
            (:data:`bertsecrets.results.components.GROUP_OF_NEURONS` and its number).
    """

    name: str
    kind: str
    heads: tuple[Head, ...]
    layer: int | None = None
    head: int | None = None
    parts: tuple[Part, ...] = ()

    @property
    def layers(self) -> set[int]:
        """The layers that the variant changes."""
        return {layer for layer, _ in (*self.heads, *self.parts)}


@dataclass(frozen=True)
class Plan:
    """Variants of a model of ``num_layers`` times ``num_heads`` heads, all disabled in one mode.

    The mode is checked only when heads are disabled: outcomes can be read without the package that provides it.

    Raises:
        UserError: If the plan is empty, a head is out of range or appears twice in one variant, or two variants have
            the same name.
    """

    mode: str
    num_layers: int
    num_heads: int
    variants: tuple[Variant, ...]

    def __post_init__(self) -> None:
        if not self.variants:
            raise UserError("The plan does not disable anything; give at least one head or layer.")
        for variant in self.variants:
            if not variant.parts:
                check_heads(variant.heads, self.num_layers, self.num_heads, f"Variant '{variant.name}'")
            check_layers([layer for layer, _ in variant.parts], self.num_layers, f"Variant '{variant.name}'")
        names = [variant.name for variant in self.variants]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise UserError(f"Variant '{twice}' is in the plan twice; remove one of them.")

    def of_kind(self, kind: Kind) -> list[int]:
        """Indices of the variants of a kind."""
        return [index for index, variant in enumerate(self.variants) if variant.kind == kind.name]


def single_head(layer: int, head: int) -> Variant:
    """A head alone."""
    return Variant(HEAD.code_of(layer, head), HEAD.name, ((layer, head),), layer, head)


def every(kind: Kind, num_layers: int, num_heads: int, layers: Iterable[int] | None = None) -> list[Variant]:
    """Each component of a kind, optionally in some layers only.

    Each head alone (Kovaleva et al. 2019, Figure 8; Michel et al. 2019, section 3.2), each whole layer (Kovaleva et al.
    2019, Figure 9), all heads of a layer but one (Michel et al. 2019, section 3.3), or a part of each layer (He et
    al. 2024) or group of its neurons left out.
    """
    layers = list(range(num_layers) if layers is None else layers)
    check_layers(layers, num_layers, "The plan")
    variants = []
    for layer in layers:
        for place in range(num_heads) if "head" in kind.axes else (None,):
            heads: tuple[Head, ...] = ()
            parts: tuple[Part, ...] = ()
            if kind.done:
                # A group of neurons has a number.
                parts = ((layer, kind.name if place is None else f"{kind.name}-{place}"),)
            elif kind is HEAD and place is not None:
                heads = ((layer, place),)
            else:
                # All heads of the layer, or all but one.
                heads = tuple((layer, head) for head in range(num_heads) if head != place)
            variants.append(Variant(kind.code_of(layer, place), kind.name, heads, layer, place, parts))
    return variants


every_head = partial(every, HEAD)
every_layer = partial(every, LAYER)


def as_groups(heads: Sequence[Any] | None) -> list[Any]:
    """A single group, several groups or None, as a list of groups."""
    if heads is None:
        return []
    entries = list(heads)
    one = bool(entries) and all(isinstance(pair, Sequence) and all(type(n) is int for n in pair) for pair in entries)
    return [entries] if one else entries


def groups(heads: Sequence[Any]) -> list[Variant]:
    """Named groups of heads, ``[[[3, 1], [7, 10]], ...]``.

    Raises:
        UserError: If the nesting is different.
    """
    variants = []
    for index, group in enumerate(heads):
        fits = isinstance(group, Sequence) and not isinstance(group, str) and len(group) > 0
        if not fits or not all(
            isinstance(pair, Sequence)
            and len(pair) == 2
            and all(type(number) is int and number >= 0 for number in pair)
            for pair in group
        ):
            raise UserError(
                f"Group {index} is {group!r:.60}; expected a list of [layer, head], such as [[3, 1], [7, 10]]."
            )
        pairs = sorted((int(layer), int(head)) for layer, head in group)
        variants.append(Variant(f"group-{index:03d}", GROUP.name, tuple(pairs)))
    return variants


def random_groups_like(group: Sequence[Head], num_heads: int, count: int, seed: int) -> list[Variant]:
    """Random groups with the same number of heads per layer as a group: controls for the effect of the layers.

    All are different; there are fewer than ``count`` if the layers do not allow more.

    Args:
        group: The heads of the group.
        num_heads: Heads of a layer.
        count: Number of random groups.
        seed: Seed; groups of the same layers get the same controls.
    """
    sizes = Counter(layer for layer, _ in group)
    name = ".".join(f"{layer:02d}" for layer, _ in sorted(group))
    generator = random.Random(f"{seed}/{name}")
    most = min(count, math.prod(math.comb(num_heads, size) for size in sizes.values()))
    drawn: dict[tuple[Head, ...], None] = {}
    while len(drawn) < most:
        heads = [(layer, head) for layer, size in sizes.items() for head in generator.sample(range(num_heads), size)]
        drawn[tuple(sorted(heads))] = None
    return [Variant(f"random-{name}-{index:03d}", RANDOM.name, heads) for index, heads in enumerate(drawn)]


def check_layers(layers: Iterable[int], num_layers: int, name: str) -> None:
    """Raise UserError, with ``name`` as the subject of its sentence, unless a model has all of the layers."""
    for layer in layers:
        if not 0 <= layer < num_layers:
            raise UserError(f"{name} contains layer {layer}, but the model has layers 0 to {num_layers - 1}.")


def check_heads(heads: Sequence[Head], num_layers: int, num_heads: int, name: str) -> None:
    """Raise UserError, with ``name`` as the subject of its sentence, unless a model has all of the heads and each is
    listed once.
    """
    if not heads:
        raise UserError(f"{name} is empty; give at least one head.")
    check_layers([layer for layer, _ in heads], num_layers, name)
    for layer, head in heads:
        if not 0 <= head < num_heads:
            raise UserError(
                f"{name} contains head {head} of layer {layer}, but the model has heads 0 to {num_heads - 1}."
            )
    if len(set(heads)) < len(heads):
        layer, head = next(pair for pair in heads if heads.count(pair) > 1)
        raise UserError(f"{name} contains head {head} of layer {layer} twice; remove one of them.")
