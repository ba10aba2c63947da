"""A folder of pages for any static host: the pages of runs and sweeps, and an index that filters them."""

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from jinja2 import Environment, StrictUndefined

from bertsecrets.errors import UserError
from bertsecrets.present.report.page import content_policy, report_style, report_text
from bertsecrets.reporting.long_table import FILE
from bertsecrets.results.files import in_command, write_text
from bertsecrets.results.formatting import counted, metric_label, number, visible
from bertsecrets.results.run import Run
from bertsecrets.results.scores import RunScores
from bertsecrets.results.verdicts import WORDS, over_metrics

INDEX = "index.html"

_HEADING = re.compile(r"<h1[^>]*>(.*?)</h1>", re.DOTALL)
_LINK = re.compile(r'\b(?:href|data-page)="([^"#:]+\.html)(?:#[^"]*)?"')
_NO_PAGES = {"wandb", "checkpoints"}
"""Folders of a run that hold files of other programs."""


@dataclass(frozen=True)
class GalleryPage:
    """A page as the index shows it.

    Args:
        place: Path in the gallery.
        title: The page's answer.
        task, model: Those of a run; empty for a page about several runs.
        facts: Seed and score of a run; what kind of page it is otherwise.
        heads: Verdict on each disabled head: (layer, head) -> code.
    """

    place: Path
    title: str
    task: str = ""
    model: str = ""
    facts: Sequence[str] = ()
    heads: Mapping[tuple[int, int], str] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """The page's address relative to the index."""
        return quote(self.place.as_posix())

    @property
    def size(self) -> tuple[int, int]:
        """Layers and heads of the picture."""
        layers, heads = zip(*self.heads, strict=True)
        return max(layers) + 1, max(heads) + 1

    def cells(self) -> dict[str, str]:
        """The picture: code of a verdict -> SVG path of its cells, 10 units each."""
        paths: dict[str, str] = {}
        for (layer, head), code in self.heads.items():
            paths[code] = f"{paths.get(code, '')}M{10 * head + 1} {10 * layer + 1}h8v8h-8z"
        return paths


def write_gallery(sources: Sequence[Path], folder: Path) -> tuple[list[GalleryPage], list[str]]:
    """Copy all pages below the sources into a folder, in their places relative to each other, and write the index.

    Args:
        sources: Folders of runs, of sweeps, or of both.
        folder: An empty folder.

    Returns:
        The pages in the index's order, and the places of pages that these link to but that no source holds.

    Raises:
        UserError: If a source holds no page, or the findings beside a page cannot be read.
    """
    found: dict[Path, None] = {}
    for source in sources:
        root = source.resolve()
        below = [page for page in sorted(root.rglob("*.html")) if not _NO_PAGES & {*page.relative_to(root).parts}]
        if not below:
            raise UserError(f"'{source}' has no page; give the folder of a finished run or sweep, or a folder of runs.")
        found |= dict.fromkeys(below)
    top = Path(os.path.commonpath([source.resolve().parent for source in sources]))
    pages = [_page(path, path.relative_to(top)) for path in found]
    pages.sort(key=lambda page: (not page.task, page.task, page.model, page.place))
    missing: set[str] = set()
    for page in pages:
        target = folder / page.place
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(top / page.place, target)
        for link in _LINK.findall(target.read_text("utf-8")):
            linked = Path(os.path.normpath(top / page.place.parent / unquote(unescape(link))))
            missing |= {os.path.relpath(linked, top)} if linked not in found else set()
    write_text(folder / INDEX, _index(pages))
    return pages, sorted(missing)


def _page(path: Path, place: Path) -> GalleryPage:
    if not path.with_name(FILE).is_file() or path.name != Run.open(path.parent).report_path.name:
        heading = _HEADING.search(path.read_text("utf-8"))
        title = " ".join(unescape(re.sub(r"<[^>]*>", "", heading[1])).split()) if heading else path.stem
        return GalleryPage(place, title, facts=[path.stem])
    run = Run.open(path.parent)
    scores = RunScores.read(run.scores_path)
    try:
        content = json.loads(path.with_name(FILE).read_text("utf-8"))
        title, heads = str(content["title"]), _verdicts(content["numbers"])
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"'{path.with_name(FILE)}' cannot be read ({type(error).__name__}: {error}); write it again with "
            f"python -m bertsecrets report run={in_command(path.parent)}."
        ) from error
    facts = [f"seed {content['seed']}"] if content.get("seed") is not None else []
    if lines := scores.lines():
        facts.append(f"{metric_label(lines[0].name.rpartition('/')[2])} {number(lines[0].value)}")
    # What the heads of a model that learned nothing do is not interpreted.
    return GalleryPage(place, title, run.task, run.model, facts, {} if scores.learned is False else heads)


def _verdicts(numbers: Iterable[Mapping[str, Any]]) -> dict[tuple[int, int], str]:
    """The verdict on each single head over all metrics, on the first evaluation set and in the first mode."""
    codes: dict[tuple[int, int], list[str]] = {}
    first = None
    for line in numbers:
        if line["quantity"] != "delta" or line["head"] is None or line["verdict"] not in WORDS:
            continue
        key = dict(part.split("=", 1) for part in line["key"].split() if "=" in part)
        swept = key.get("evaluation"), key.get("mode")
        first = first or swept
        if key.get("kind") == "head" and swept == first:
            codes.setdefault((int(line["layer"]), int(line["head"])), []).append(line["verdict"])
    return {head: over_metrics(each) for head, each in codes.items()}


def _index(pages: Sequence[GalleryPage]) -> str:
    style, script = report_style() + report_text("gallery.css"), report_text("gallery.js")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(report_text("gallery.html.jinja")).render(
        pages=pages,
        choices={
            name: sorted({value for page in pages if (value := getattr(page, name))}) for name in ("task", "model")
        },
        count=counted(len(pages), "page"),
        words={code: word for code, word in WORDS.items() if any(code in page.heads.values() for page in pages)},
        visible=visible,
        policy=content_policy(style, script),
        css=style,
        script=script,
    )
