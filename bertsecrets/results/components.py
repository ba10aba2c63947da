"""Kinds of variants that a sweep disables, and their names in tables, figures and sentences."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from bertsecrets.results.formatting import head_code, head_label, heads_label

Row = dict[str, Any]
"""A row of the ablation table."""

AnyRow = TypeVar("AnyRow", bound=Mapping[str, Any])


@dataclass(frozen=True)
class Kind:
    """Variants of one kind, which are tested, listed, drawn and counted together.

    Args:
        name: In the column ``kind`` of the ablation table, in names of figures and in statements.
        singular, plural: Name of one variant, or of several, inside a sentence.
        plan: The plan that disables every variant of this kind; empty if they are listed or drawn at random.
        component: Its name in ``ablation.components``; empty if it is not a part of the model.
        axes: Dimensions of the grid of effects: ``layer`` and ``head``, ``layer``, or none.
        column: Name of a layer's cells, in a grid over layers and ``head``.
        code: Name of a variant in tables and W&B, with the placeholders ``{component}`` (code of its head or layer),
            ``{layer}`` and ``{head}``.
        label: Name of a variant on pages, with the placeholders ``{component}``, ``{layer}``, ``{head}``, ``{heads}``
            and ``{num_heads}``.
        title: Title of a figure over all variants.
        without: The part that the model lacks: "change of accuracy without ...".
        suffix: Distinguishes the columns of such a grid from single heads' columns.
        done: Verb for parts of a layer, which are skipped in every mode; empty for heads.
    """

    name: str
    singular: str
    plural: str
    plan: str = ""
    component: str = ""
    axes: tuple[str, ...] = ()
    column: str = "head"
    code: str = "{component}"
    label: str = "{component}"
    title: str = ""
    without: str = ""
    suffix: str = ""
    done: str = ""

    def code_of(self, layer: int, head: int | None = None) -> str:
        """Name of the variant of a head or layer in tables.

        >>> ALL_BUT_ONE.code_of(3, 11), LAYER.code_of(3), NEURONS.code_of(3, 11)
        ('all-but-l03h11', 'l03', 'l03n11')
        """
        return self.code.format(component=head_code(layer, head), layer=layer, head=head)

    def label_of(self, row: Mapping[str, Any]) -> str:
        """Name of a row's variant on pages.

        >>> ALL_BUT_ONE.label_of({"layer": 3, "head": 1, "heads": "3-0 3-2", "num_heads": 2})
        'all but layer 3 · head 1'
        >>> GROUP.label_of({"layer": None, "head": None, "heads": "3-0 3-2", "num_heads": 2})
        'layer 3 · heads 0, 2'
        >>> NEURONS.label_of({"layer": 3, "head": 1, "heads": "", "num_heads": 0})
        'layer 3 · neurons 1'
        """
        component = "" if row["layer"] is None else head_label(row["layer"], row["head"])
        fields = {name: row[name] for name in ("layer", "head", "num_heads")}
        return self.label.format(component=component, heads=_heads(row), **fields)

    def size(self, layers: int, heads: int) -> tuple[int, int]:
        """Shape of a grid of effects for a model with this many layers and heads per layer; for kinds with axes."""
        return layers, heads if "head" in self.axes else 1

    def cell(self, row: Mapping[str, Any]) -> tuple[int, int]:
        """Position of a row in such a grid."""
        return row["layer"], row["head"] if "head" in self.axes else 0

    def of(self, rows: Iterable[AnyRow]) -> list[AnyRow]:
        """The rows of this kind."""
        return [row for row in rows if row["kind"] == self.name]


_GRID = ("layer", "head")

HEAD = Kind(
    "head",
    "head",
    "heads",
    plan="heads",
    component="heads",
    axes=_GRID,
    title="Single heads disabled",
    without="the head",
)
LAYER = Kind(
    "layer",
    "whole layer",
    "whole layers",
    plan="layers",
    axes=("layer",),
    title="Whole layers disabled",
    without="the layer's heads",
)
GROUP = Kind("group", "group", "groups", label="{heads}")
GROUP_BUT_ONE = Kind("group_but_one", "group but one head", "groups but one head", label="{heads}")
ALL_BUT_ONE = Kind(
    "all_but_one",
    "layer but for one head",
    "layers but for one head",
    plan="all_but_one",
    axes=_GRID,
    code="all-but-{component}",
    label="all but {component}",
    title="All heads of a layer but one disabled",
    without="all other heads of the layer",
    suffix="_all_but_one",
)
CUMULATIVE = Kind("cumulative", "set", "sets", label="the first {num_heads}", title="Heads disabled one after another")
RANDOM = Kind("random", "random group", "random groups", label="{heads}")
ATTENTION = Kind(
    "attention",
    "attention sublayer",
    "attention sublayers",
    plan="attention",
    component="attention",
    axes=("layer",),
    code="{component}-attention",
    label="attention of {component}",
    title="Attention sublayers left out",
    without="the attention sublayer",
    suffix="_attention",
    done="left out",
)
FEED_FORWARD = Kind(
    "ffn",
    "feed-forward sublayer",
    "feed-forward sublayers",
    plan="ffn",
    component="ffn",
    axes=("layer",),
    code="{component}-ffn",
    label="feed-forward of {component}",
    title="Feed-forward sublayers left out",
    without="the feed-forward sublayer",
    suffix="_ffn",
    done="left out",
)
NEURONS = Kind(
    "neurons",
    "group of neurons",
    "groups of neurons",
    plan="neurons",
    component="neurons",
    axes=_GRID,
    column="group",
    code="l{layer:02d}n{head:02d}",
    label="layer {layer} · neurons {head}",
    title="Groups of feed-forward neurons left out",
    without="the group of neurons",
    suffix="_neurons",
    done="left out",
)
"""Neurons of a feed-forward part, split in order into as many equal groups as the layer has heads; ``head`` counts the
groups.
"""

GROUP_OF_NEURONS = f"{NEURONS.name}-"
"""Prefix of such a group's name; its number follows."""

BLOCK = Kind(
    "block",
    "block",
    "blocks",
    plan="blocks",
    component="layers",
    axes=("layer",),
    code="{component}-block",
    label="block of {component}",
    title="Blocks skipped",
    without="the block of attention and feed-forward",
    suffix="_block",
    done="skipped",
)

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        HEAD,
        LAYER,
        GROUP,
        GROUP_BUT_ONE,
        ALL_BUT_ONE,
        CUMULATIVE,
        RANDOM,
        ATTENTION,
        FEED_FORWARD,
        NEURONS,
        BLOCK,
    )
}
"""In the order of the table's rows."""

PARTS = (ATTENTION, FEED_FORWARD, BLOCK)
"""Parts of a layer that can be skipped: a sublayer then adds 0 to the residual stream, and a block passes its input on.
"""

COMPONENTS = tuple(kind for kind in KINDS.values() if kind.axes)
"""Kinds with one variant per head or layer."""


def _heads(row: Mapping[str, Any]) -> str:
    """The heads listed in the table as ``3-1 7-10``."""
    pairs = (head.split("-") for head in row["heads"].split())
    return heads_label((int(layer), int(head)) for layer, head in pairs)
