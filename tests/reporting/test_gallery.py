"""The folder of pages that a static host serves, and its index."""

import re
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from present.test_report import CHROMIUM, add_probe, browse
from reporting.finished_runs import make_run

from bertsecrets.errors import UserError
from bertsecrets.reporting.gallery import INDEX, GalleryPage, write_gallery
from bertsecrets.reporting.long_table import FILE
from bertsecrets.reporting.run_report import report_run
from bertsecrets.results.run import Run

NEEDED_LH = np.array([[True, False], [False, False], [False, False]])


def gallery(tmp_path: Path) -> tuple[list[GalleryPage], list[str], Path]:
    """Of a sweep with two runs and a comparison, whose page links to one of them and to one that is elsewhere, and of
    another run.
    """
    runs = {
        "sweep/a & b": make_run(
            tmp_path / "sweep" / "a & b",
            delta_LH=np.where(NEEDED_LH, -0.2, 0.0),
            significant_LH=NEEDED_LH,
            dispensable_LH=~NEEDED_LH,
        ),
        "sweep/rte": make_run(tmp_path / "sweep" / "rte", task="rte", seed=3, accuracy=0.7),
        "sst2": make_run(tmp_path / "sst2", task="sst2", accuracy=0.9),
    }
    for folder in runs.values():
        run = Run.open(folder)
        report_run(run, heads=1, figures=0).write(run)
    (tmp_path / "sweep" / "comparison").mkdir()
    (tmp_path / "sweep" / "comparison" / "comparison.html").write_text(
        "<h1 class='x'>Two <b>tasks</b> &lt;need&gt;\n other heads</h1><a href='#x'>x</a>"
        '<a href="../a%20%26%20b/report.html#overview">a</a><a href="../../gone/report.html">gone</a>'
    )
    (tmp_path / "sweep" / "rte" / "wandb").mkdir()
    (tmp_path / "sweep" / "rte" / "wandb" / "media.html").write_text("<h1>media</h1>")
    site = tmp_path / "site"
    return *write_gallery([tmp_path / "sweep", tmp_path / "sst2"], site), site


def test_the_index_shows_every_page_and_every_link_resolves(tmp_path: Path) -> None:
    pages, missing, site = gallery(tmp_path)
    places = [
        "sweep/a & b/report.html",
        "sweep/rte/report.html",
        "sst2/report.html",
        "sweep/comparison/comparison.html",
    ]
    assert [page.place.as_posix() for page in pages] == places
    assert [(page.task, page.facts) for page in pages] == [
        ("mrpc", ["seed 1", "accuracy 0.800"]),
        ("rte", ["seed 3", "accuracy 0.700"]),
        ("sst2", ["seed 1", "accuracy 0.900"]),
        ("", ["comparison"]),
    ]
    assert pages[-1].title == "Two tasks <need> other heads"
    assert pages[0].heads == {
        (layer, head): "needed" if NEEDED_LH[layer, head] else "dispensable" for layer, head in np.ndindex(3, 2)
    }
    assert missing == ["gone/report.html"]
    index = (site / INDEX).read_text("utf-8")
    links = re.findall(r'<a href="([^"]*)">([^<]*)</a>', index)
    assert [unescape(title) for _, title in links] == [page.title for page in pages]
    for (link, _), place in zip(links, places, strict=True):
        assert (site / unquote(link)).read_bytes() == (tmp_path / place).read_bytes()
    assert {path.relative_to(site).as_posix() for path in site.rglob("*") if path.is_file()} == {INDEX, *places}
    # One needed head and five others: of three layers and two heads.
    assert '<svg viewBox="0 0 20 30"' in index
    assert re.findall(r'<path class="needed" d="([^"]*)"/>', index)[1:] == ["M1 1h8v8h-8z"]


def test_a_folder_without_pages_and_damaged_findings_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"empty' has no page; give the folder of"):
        write_gallery([tmp_path / "empty"], tmp_path / "site")
    run = Run.open(make_run(tmp_path / "run"))
    report_run(run, heads=1, figures=0).write(run)
    for content in ("{", '{"title": "a"}', "[]", '{"title": "a", "numbers": 3}'):
        (run.folder / FILE).write_text(content)
        with pytest.raises(UserError, match=r"findings.json' cannot be read .* report run="):
            write_gallery([tmp_path / "run"], tmp_path / "site")
    assert not (tmp_path / "site").exists()


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium, Chrome or chromium-browser on the path")
def test_the_index_filters_by_what_is_chosen_and_by_its_address(tmp_path: Path) -> None:
    _, _, site = gallery(tmp_path)
    add_probe(
        site / INDEX,
        """
        const seen = () => [...document.querySelectorAll(".gallery li")].filter((page) => page.offsetParent)
          .map((page) => page.dataset.task).join() + " " + document.querySelector("[data-count]").textContent;
        const task = document.querySelector("[data-pick=task]");
        document.body.dataset.first = seen();
        task.value = ""; task.dispatchEvent(new Event("change"));
        document.body.dataset.second = seen();
        task.value = "sst2"; task.dispatchEvent(new Event("change"));
        document.body.dataset.third = seen() + " " + location.hash;
        """,
    )
    done = browse(site / INDEX, tmp_path / "profile", "--dump-dom", fragment="#task=rte&model=minilm&other=1")
    assert not re.search(r"ERROR:CONSOLE|Uncaught", done.stderr), done.stderr
    assert 'data-first="rte 1 of 4 pages"' in done.stdout
    assert 'data-second="mrpc,rte,sst2 3 of 4 pages"' in done.stdout
    assert 'data-third="sst2 1 of 4 pages #task=sst2&amp;model=minilm"' in done.stdout
