"""Where a figure's heatmaps show heads, so that a page can open the head under the pointer."""

from dataclasses import dataclass
from weakref import WeakKeyDictionary

from matplotlib.axes import Axes
from matplotlib.figure import Figure

_marked: WeakKeyDictionary[Axes, tuple[int, int]] = WeakKeyDictionary()


@dataclass(frozen=True)
class HeadCells:
    """A heatmap of heads within a figure: one row of equal cells for each layer, layer 0 at the top.

    Args:
        left, top, width, height: Its place, as shares of the figure's width and height from the top left corner.
        layers, heads: Number of rows and of columns.
    """

    left: float
    top: float
    width: float
    height: float
    layers: int
    heads: int


def mark_heads(axes: Axes, layers: int, heads: int) -> None:
    """Note that axes show nothing but a heatmap whose rows are layers and whose columns are heads."""
    _marked[axes] = (layers, heads)


def head_cells(figure: Figure) -> list[HeadCells]:
    """The heatmaps of heads of a figure that has been drawn, as its layout is known only then."""
    places = [(axes.get_position(), *_marked[axes]) for axes in figure.axes if axes in _marked]
    return [HeadCells(box.x0, 1 - box.y1, box.width, box.height, layers, heads) for box, layers, heads in places]
