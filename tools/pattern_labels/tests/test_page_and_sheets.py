"""Sheets and page show every weight without its origin, and never lose labels."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
from browser import Page, check_policy, in_browser, seen
from matplotlib import colormaps
from PIL import Image

from bertsecrets.errors import UserError
from tools.pattern_labels.labels import (
    Label,
    parse_labels,
)
from tools.pattern_labels.page_and_sheets import (
    SheetMap,
    check_imported,
    contact_sheet,
    pass_order,
    write_page,
    write_sheets,
)
from tools.pattern_labels.tests.annotation_folders import fill, map_set


def viridis(share: float) -> np.ndarray:
    """The colour of a share of the largest weight."""
    return np.rint(255 * np.array(colormaps["viridis"](share)[:3])).astype(np.uint8)


def test_a_sheet_shows_every_weight_where_it_stands() -> None:
    weight_QK = np.zeros((8, 8))
    weight_QK[2, 5], weight_QK[7, 0] = 1.0, 0.25
    whole = np.asarray(contact_sheet([SheetMap(1, weight_QK)], ""))
    assert whole.shape == (1004, 1216, 3)
    square = whole[72 : 72 + 280, 10 : 10 + 280]
    middles = ((np.arange(8) + 0.5) * 280 / 8).astype(int)
    expected = np.tile(viridis(0.0), (8, 8, 1))
    expected[2, 5], expected[7, 0] = viridis(1.0), viridis(64 / 255)
    assert np.array_equal(square[np.ix_(middles, middles)], expected)


def test_a_sheet_marks_where_the_second_segment_begins() -> None:
    weight_QK = np.eye(8)
    one, two = (np.asarray(contact_sheet([SheetMap(1, weight_QK, at)], "")).astype(int) for at in (None, 3))
    changed = np.argwhere((one != two).any(-1))
    # Only to the left of the map and above it; the triangles point at the middle of the fourth row and column.
    assert not ((changed >= (72, 10)).all(1) & (changed < (72 + 280, 10 + 280)).all(1)).any()
    assert changed[changed[:, 0] == 72 - 2][:, 1].mean() == pytest.approx(10 + 3.5 * 35, abs=1)
    assert changed[changed[:, 1] == 10 - 2][:, 0].mean() == pytest.approx(72 + 3.5 * 35, abs=1)


def test_on_a_sheet_every_weight_takes_the_same_area_however_long_the_map() -> None:
    for length in (50, 300):
        weight_QK = np.zeros((length, length))
        weight_QK[length // 3] = 1.0
        square = np.asarray(contact_sheet([SheetMap(1, weight_QK)], ""))[72 : 72 + 280, 10 : 10 + 280]
        empty, full = viridis(0.0).astype(float), viridis(1.0).astype(float)
        drawn = (square - empty).sum() / (full - empty).sum()
        assert drawn == pytest.approx(280 * 280 / length, rel=0.05)


def test_the_passes_show_the_same_maps_in_other_orders(tmp_path: Path) -> None:
    maps = map_set()
    for number in (1, 2):
        write_sheets(tmp_path / f"pass{number}", maps, maps.names, number)
    tables = []
    for number in (1, 2):
        folder = tmp_path / f"pass{number}"
        assert sorted(path.name for path in folder.glob("*.png")) == ["sheet-01.png", "sheet-02.png"]
        with Image.open(folder / "sheet-01.png") as picture:
            assert picture.size == (1216, 1004)
        with (folder / "labels.csv").open(encoding="utf-8", newline="") as file:
            tables.append(list(csv.DictReader(file)))
    first, second = ([row["map"] for row in table] for table in tables)
    assert sorted(first) == sorted(second) == sorted(maps.names)
    assert np.mean([one == other for one, other in zip(first, second, strict=True)]) < 0.3
    assert [(row["sheet"], row["position"], row["pass"]) for row in tables[1]][11:13] == [
        ("1", "12", "2"),
        ("2", "1", "2"),
    ]


def test_sheets_never_replace_labels_that_were_not_imported(tmp_path: Path) -> None:
    maps = map_set()
    write_sheets(tmp_path / "pass2", maps, maps.names, 2)
    check_imported(tmp_path, [])
    fill(tmp_path / "pass2" / "labels.csv", {maps.names[3]: "block"})
    with pytest.raises(UserError, match="labels that are not imported"):
        check_imported(tmp_path, [Label(maps.names[3], "block", "ann", 1, "2026-01-01T00:00:00Z")])
    check_imported(tmp_path, [Label(maps.names[3], "block", "ann", 2, "2026-01-01T00:00:00Z")])


def test_the_page_does_not_show_where_maps_come_from(tmp_path: Path) -> None:
    maps = map_set()
    write_page(tmp_path / "annotate.html", maps, maps.names, (1, 2))
    page = (tmp_path / "annotate.html").read_text("utf-8")
    check_policy(Page(tmp_path / "annotate.html"))
    assert not re.search(r"(src|href)=\"(?!data:)", page)
    embedded = json.loads(re.search(r'id="content">(.*?)</script>', page, re.DOTALL)[1])  # type: ignore[index]
    assert [embedded["maps"][place]["id"] for place in embedded["orders"]["2"]] == pass_order(maps.names, 2)
    visible = re.sub(r"<(script|style).*?</\1>", "", page, flags=re.DOTALL)
    assert "toy" not in visible
    assert "l00h00" not in visible


@in_browser
def test_the_page_works_with_the_keyboard(tmp_path: Path) -> None:
    maps = map_set()
    path = tmp_path / "annotate.html"
    write_page(path, maps, maps.names, (1, 2))
    # Label the first map, label the second wrongly, go back and correct it, skip the third, and open the page again.
    probe = """
    const press = (key) => document.dispatchEvent(new KeyboardEvent("keydown", { key }));
    press("1");
    find("annotator").value = 'Ann "A", B';
    find("pass").value = "2";
    find("start").requestSubmit();
    ["2", "5", "Backspace", "4", "u", "ArrowLeft", "ArrowRight", "x", "6"].forEach(press);
    const seen = { at, table: table() };
    find("start").requestSubmit();
    document.body.dataset.seen = JSON.stringify({ ...seen, progress: find("progress").textContent });
    """
    found = seen(path, probe)
    assert found["at"] == 3
    (tmp_path / "labels.csv").write_text(found["table"], "utf-8")
    labels = parse_labels(tmp_path / "labels.csv", maps.names)
    order = pass_order(maps.names, 2)
    said = [(label.map, label.pattern, label.annotator, label.number) for label in labels]
    assert said == [(order[0], "diagonal", 'Ann "A", B', 2), (order[1], "block", 'Ann "A", B', 2)]
    assert all(label.at for label in labels)
    assert found["progress"] == "Map 4 of 23 · 2 labelled."
