"""Sheets and page show every weight, and not whose it is; nothing written on them is lost."""

import csv
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from patterns.folders import fill, map_set
from PIL import Image

from bertsecrets.errors import UserError
from bertsecrets.patterns.labels import (
    Label,
    parse_labels,
)
from bertsecrets.patterns.page import write_page
from bertsecrets.patterns.sheets import check_free, pass_order, write_sheets
from bertsecrets.results.figures.contact_sheet import SheetMap, contact_sheet

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def test_a_sheet_shows_every_weight_where_it_stands() -> None:
    weight_QK = np.zeros((8, 8))
    weight_QK[2, 5], weight_QK[7, 0] = 1.0, 0.25
    whole = np.asarray(contact_sheet([SheetMap(1, weight_QK)], ""))
    assert whole.shape == (1340, 1600)
    # The map's own square: 8 x 35 pixels in the middle of the first place.
    ((top, left),) = {(int(y.min()), int(x.min())) for y, x in [np.nonzero(whole[100:, 100:] == 0)]}
    top, left = top + 100 - 2 * 35, left + 100 - 5 * 35
    cells = whole[top + 17 : top + 280 : 35, left + 17 : left + 280 : 35]
    assert cells.shape == (8, 8)
    expected = np.full((8, 8), 255)
    expected[2, 5], expected[7, 0] = 0, 127
    assert np.array_equal(cells, expected)


def test_the_passes_show_the_same_maps_in_other_orders(tmp_path: Path) -> None:
    maps = map_set()
    for number in (1, 2):
        write_sheets(tmp_path / f"pass{number}", maps, maps.names, number)
    tables = []
    for number in (1, 2):
        folder = tmp_path / f"pass{number}"
        assert sorted(path.name for path in folder.glob("*.png")) == ["sheet-01.png", "sheet-02.png"]
        with Image.open(folder / "sheet-01.png") as picture:
            assert picture.size == (1600, 1340)
        with (folder / "labels.csv").open(encoding="utf-8", newline="") as file:
            tables.append(list(csv.DictReader(file)))
    first, second = ([row["map"] for row in table] for table in tables)
    assert sorted(first) == sorted(second) == sorted(maps.names)
    assert np.mean([one == other for one, other in zip(first, second, strict=True)]) < 0.3
    assert [(row["sheet"], row["position"], row["pass"]) for row in tables[1]][19:21] == [
        ("1", "20", "2"),
        ("2", "1", "2"),
    ]


def test_sheets_never_replace_labels_that_were_not_taken_in(tmp_path: Path) -> None:
    maps = map_set()
    write_sheets(tmp_path / "pass2", maps, maps.names, 2)
    check_free(tmp_path, [])
    fill(tmp_path / "pass2" / "labels.csv", {maps.names[3]: "block"})
    with pytest.raises(UserError, match="labels that are not taken in"):
        check_free(tmp_path, [Label(maps.names[3], "block", "ann", 1, "2026-01-01T00:00:00Z")])
    check_free(tmp_path, [Label(maps.names[3], "block", "ann", 2, "2026-01-01T00:00:00Z")])


def test_the_page_shows_no_map_s_origin(tmp_path: Path) -> None:
    maps = map_set()
    write_page(tmp_path / "annotate.html", maps, maps.names, (1, 2))
    page = (tmp_path / "annotate.html").read_text("utf-8")
    assert not re.search(r"(src|href)=\"(?!data:)", page)
    embedded = json.loads(re.search(r'id="content">(.*?)</script>', page, re.DOTALL)[1])  # type: ignore[index]
    assert [embedded["maps"][place]["id"] for place in embedded["orders"]["2"]] == pass_order(maps.names, 2)
    visible = re.sub(r"<(script|style).*?</\1>", "", page, flags=re.DOTALL)
    assert "toy" not in visible
    assert "l00h00" not in visible


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium, Chrome or chromium-browser on the path")
def test_the_page_is_worked_with_the_keyboard(tmp_path: Path) -> None:
    maps = map_set()
    path = tmp_path / "annotate.html"
    write_page(path, maps, maps.names, (1, 2))
    # Labels the first map, the second wrongly, goes back and mends it, leaves the third, and opens the page once more.
    probe = """<script>
    const press = (key) => document.dispatchEvent(new KeyboardEvent("keydown", { key }));
    press("1");
    find("annotator").value = 'Ann "A", B';
    find("pass").value = "2";
    find("start").requestSubmit();
    ["2", "5", "Backspace", "4", "u", "ArrowLeft", "ArrowRight", "x", "6"].forEach(press);
    document.body.dataset.at = at;
    document.body.dataset.table = table();
    find("start").requestSubmit();
    document.body.dataset.progress = find("progress").textContent;
    </script>"""
    path.write_text(path.read_text("utf-8").replace("</body>", probe + "</body>"), "utf-8")
    assert CHROMIUM is not None
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    profile = [f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", "--virtual-time-budget=3000"]
    done = subprocess.run(
        [CHROMIUM, *options, *profile, "--dump-dom", path.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "CONSOLE" not in done.stderr, done.stderr
    read = dict(re.findall(r'data-(at|table|progress)="([^"]*)"', done.stdout))
    assert read["at"] == "3"
    (tmp_path / "labels.csv").write_text(read["table"].replace("&quot;", '"'), "utf-8")
    labels = parse_labels(tmp_path / "labels.csv", maps.names)
    order = pass_order(maps.names, 2)
    said = [(label.map, label.pattern, label.annotator, label.number) for label in labels]
    assert said == [(order[0], "diagonal", 'Ann "A", B', 2), (order[1], "block", 'Ann "A", B', 2)]
    assert all(label.at for label in labels)
    assert read["progress"] == "Map 4 of 23 · 2 labelled."
