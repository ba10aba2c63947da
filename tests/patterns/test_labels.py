"""Labels are taken in once, changed ones beside the older, and mistakes told in one sentence."""

from pathlib import Path

import pytest
from patterns.folders import fill, map_set

from bertsecrets.errors import UserError
from bertsecrets.patterns.labels import (
    Label,
    consensus,
    disagreements,
    merge_labels,
    of_pass,
    parse_labels,
    read_labels,
    write_labels,
)
from bertsecrets.patterns.sheets import write_sheets


def test_labels_taken_in_twice_are_there_once_and_changed_ones_twice(tmp_path: Path) -> None:
    maps = map_set()
    write_sheets(tmp_path / "pass1", maps, maps.names, 1)
    one, other = maps.names[:2]
    path = fill(tmp_path / "pass1" / "labels.csv", {one: "vertical", other: "diagonal"})
    labels = merge_labels([], parse_labels(path, maps.names, "ann"), "2026-01-01T00:00:00+00:00")
    assert merge_labels(labels, parse_labels(path, maps.names, "ann"), "2026-01-02T00:00:00+00:00") == labels
    fill(path, {one: "vertical", other: "block"})
    changed = merge_labels(labels, parse_labels(path, maps.names, "ann"), "2026-01-03T00:00:00+00:00")
    assert changed == [*labels, Label(other, "block", "ann", 1, "2026-01-03T00:00:00+00:00")]
    # An older file that turns up late is kept, and does not undo what was said after it.
    late = [Label(other, "heterogeneous", "ann", 1, "2026-01-02T00:00:00Z")]
    everything = merge_labels(changed, late, "2026-01-09T00:00:00+00:00")
    assert everything == [*changed, *late]
    assert of_pass(everything, 1) == {one: "vertical", other: "block"}
    write_labels(tmp_path, everything)
    assert list(read_labels(tmp_path)) == everything


def test_the_third_pass_decides() -> None:
    answers = {1: "vbd", 2: "vdd"}
    names = {"v": "vertical", "b": "block", "d": "diagonal"}
    labels = [
        Label(f"m{i}", names[letter], "ann", number, "2026-01-01T00:00:00Z")
        for number, letters in answers.items()
        for i, letter in enumerate(letters)
    ]
    labels.append(Label("m7", "block", "ann", 1, "2026-01-01T00:00:00Z"))
    assert consensus(labels) == {"m0": "vertical", "m2": "diagonal"}
    assert disagreements(labels) == ["m1"]
    labels.append(Label("m1", "heterogeneous", "eve", 3, "2026-01-02T00:00:00Z"))
    assert consensus(labels) == {"m0": "vertical", "m1": "heterogeneous", "m2": "diagonal"}
    assert disagreements(labels) == []
    # What the first two agree on, the third cannot change.
    labels.append(Label("m0", "block", "eve", 3, "2026-01-02T00:00:00Z"))
    assert consensus(labels)["m0"] == "vertical"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "map,pattern,annotator,pass\nm1,verticle,ann,1\n",
            "Unknown pattern 'verticle' .*line 2; did you mean 'vertical'",
        ),
        ("map,pattern,annotator,pass\nm1,block,ann,1\nm9,block,ann,1\n", "Unknown map 'm9' .*line 3"),
        ("map,pattern,annotator,pass\nm1,block,,1\n", "No annotator is named .*line 2"),
        ("map,pattern,annotator,pass\nm1,block,ann,one\n", "pass is 'one'"),
        ("map,pattern,annotator,pass,at\nm1,block,ann,1,yesterday\n", "at is 'yesterday'"),
        ("map,label\nm1,block\n", "has no column 'pattern'"),
    ],
)
def test_bad_labels_are_told_in_one_sentence(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "labels.csv"
    path.write_text(content, "utf-8")
    with pytest.raises(UserError, match=message):
        parse_labels(path, {"m1"})


def test_files_that_are_no_tables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        parse_labels(tmp_path / "none.csv", {"m1"})
    (tmp_path / "sheet.xlsx").write_bytes(b"PK\x03\x04\xff\xfe")
    with pytest.raises(UserError, match="in UTF-8"):
        parse_labels(tmp_path / "sheet.xlsx", {"m1"})
