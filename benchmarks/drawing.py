"""Draw the same heatmaps of heads with the package's matplotlib figures and with Altair and vl-convert; time and size of each.

    pip install altair vl-convert-python
    python benchmarks/drawing.py --out benchmarks/results/drawing.json

Each library draws five grids of 6 layers and 12 heads in a fresh process, as PNG at 150 dpi and as SVG. ``page_bytes`` is what an offline page
needs to show one of them: for matplotlib its SVG, for Altair a page with the scripts that make it interactive.

Matplotlib stays. Altair is faster (five heatmaps and the import: 3.8 s of processor time against 5.1 s), but adds about 100 MB
to the installation and 0.9 MB of scripts to a page, whose own grid of heads answers clicks and keys already. It would be a second library
beside matplotlib, which all other figures need.
"""

import argparse
import importlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

FIGURES, LAYERS, HEADS, DPI = 5, 6, 12, 150

Draw = Callable[[NDArray[np.float64]], tuple[bytes, bytes]]
"""Draws a grid as PNG and SVG."""


def matplotlib_drawer() -> tuple[Draw, Callable[[NDArray[np.float64]], int]]:
    """The package's own heatmap, and the bytes it adds to a page."""
    from bertsecrets.results.figures.grids import heatmap
    from bertsecrets.results.figures.saving import png, svg

    def draw(value_LH: NDArray[np.float64]) -> tuple[bytes, bytes]:
        figure = heatmap(value_LH, title="Drift: cosine similarity", unit="cosine similarity", count=400)
        return png(figure, DPI), svg(figure)

    return draw, lambda value_LH: len(draw(value_LH)[1])


def altair_drawer() -> tuple[Draw, Callable[[NDArray[np.float64]], int]]:
    """A heatmap with the same title, axes, colours and colour bar, and the bytes of an interactive page with it."""
    alt = importlib.import_module("altair")
    convert = importlib.import_module("vl_convert")

    def specification(value_LH: NDArray[np.float64]) -> str:
        rows = [
            {"layer": layer, "head": head, "value": float(value_LH[layer, head])}
            for layer, head in np.ndindex(value_LH.shape)
        ]
        base = alt.Chart(alt.Data(values=rows), title="Drift: cosine similarity", width=540, height=270).encode(
            x=alt.X("head:O", title="head", axis=alt.Axis(labelAngle=0)),
            y=alt.Y("layer:O", title="layer (0 at the top, next to the input)"),
            tooltip=["layer:O", "head:O", "value:Q"],
        )
        colour = alt.Color("value:Q", title="cosine similarity", scale=alt.Scale(scheme="viridis"))
        chart = base.mark_rect().encode(color=colour) + base.mark_text().encode(text=alt.Text("value:Q", format=".3f"))
        return str(chart.to_json())

    def draw(value_LH: NDArray[np.float64]) -> tuple[bytes, bytes]:
        content = specification(value_LH)
        return convert.vegalite_to_png(content, ppi=DPI), convert.vegalite_to_svg(content).encode()

    return draw, lambda value_LH: len(convert.vegalite_to_html(specification(value_LH), bundle=True).encode())


DRAWERS = {"matplotlib": matplotlib_drawer, "altair": altair_drawer}
PACKAGES = {"matplotlib": ("matplotlib",), "altair": ("altair", "vl-convert-python")}


def measured(library: str) -> dict[str, float]:
    """Processor seconds and bytes of a library, in this process."""
    generator = np.random.default_rng(0)
    start = time.process_time()
    draw, page_bytes = DRAWERS[library]()
    imported = time.process_time()
    seconds = []
    for _ in range(FIGURES):
        before = time.process_time()
        value_LH = generator.uniform(0.5, 1.0, (LAYERS, HEADS))
        raster, vector = draw(value_LH)
        seconds.append(time.process_time() - before)
    total = time.process_time() - start
    return {
        "import_seconds": round(imported - start, 2),
        "first_figure_seconds": round(seconds[0], 2),
        "later_figure_seconds": round(median(seconds[1:]), 2),
        "five_figures_seconds": round(total, 2),
        "png_bytes": len(raster),
        "svg_bytes": len(vector),
        "page_bytes": page_bytes(value_LH),
        "installed_bytes": sum(
            Path(str(file.locate())).stat().st_size
            for package in PACKAGES[library]
            for file in metadata.files(package) or ()
            if Path(str(file.locate())).is_file()
        ),
    }


def main() -> None:
    """Measure each library in a process of its own, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--library", choices=DRAWERS, help="measure this one alone, in this process")
    options = parser.parse_args()
    if options.library is not None:
        print(json.dumps(measured(options.library)))
        return
    results = {
        library: json.loads(
            subprocess.run(
                [sys.executable, __file__, "--library", library], capture_output=True, text=True, check=True
            ).stdout
        )
        for library in DRAWERS
    }
    print(json.dumps(results, indent=1))
    if options.out is not None:
        options.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
