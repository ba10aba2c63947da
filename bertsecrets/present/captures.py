"""The viewer of captured attention maps."""

from collections.abc import Sequence

from bertsecrets.present.presenter import Presenter
from bertsecrets.present.report.content import HeadViewer, Section, ViewerExample
from bertsecrets.results.captures import moment_name, read_examples, read_maps, read_steps
from bertsecrets.results.views import MeasureView

_FEWEST_STEPS = 3
"""Steps that the viewer always includes: before, halfway and after."""

_STEPS_BYTES = 16_000_000
"""Limit on the total bytes of captured maps in the viewer; compression reduces them to a tenth."""


def section(view: MeasureView) -> Section | None:
    """A viewer of the maps at every validation; None if no map was captured."""
    examples, files = read_examples(view.run.captures), read_steps(view.run.captures)
    if not examples or not files:
        return None
    most = max(_FEWEST_STEPS, _STEPS_BYTES // max(1, next(iter(files.values())).stat().st_size))
    maps = {step: read_maps(files[step]) for step in _spread(list(files), most)}
    viewer = HeadViewer(
        [
            ViewerExample(
                f"example {example.index} ({example.label})",
                example.tokens,
                [(moment_name(step), maps_of_step[example.index]) for step, maps_of_step in maps.items()],
                example.sentences,
                example.special,
            )
            for example in examples
        ]
    )
    return Section(view.title, viewer=viewer)


PRESENTER = Presenter(section)


def _spread(steps: Sequence[int], most: int) -> list[int]:
    """At most this many steps, evenly spaced, including the first and the last.

    >>> _spread([0, 10, 20, 30, 40], 3), _spread([0, 10], 3)
    ([0, 20, 40], [0, 10])
    """
    count = min(most, len(steps))
    return [steps[round(index * (len(steps) - 1) / max(1, count - 1))] for index in range(count)]
