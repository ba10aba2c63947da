"""Merging labels without loss, the majority of the passes, and errors in one sentence."""

from pathlib import Path

import pytest

from bertsecrets.errors import UserError
from tools.pattern_labels.labels import (
    Label,
    consensus,
    disputed,
    majority_of_others,
    merge_labels,
    of_pass,
    parse_labels,
    read_labels,
    write_labels,
)
from tools.pattern_labels.page_and_sheets import write_sheets
from tools.pattern_labels.tests.annotation_folders import fill, map_set


def test_repeated_labels_are_merged_once_and_changed_ones_added(tmp_path: Path) -> None:
    maps = map_set()
    write_sheets(tmp_path / "pass1", maps, maps.names, 1)
    one, other = maps.names[:2]
    path = fill(tmp_path / "pass1" / "labels.csv", {one: "vertical", other: "diagonal"})
    labels = merge_labels([], parse_labels(path, maps.names, "ann"), "2026-01-01T00:00:00+00:00")
    assert merge_labels(labels, parse_labels(path, maps.names, "ann"), "2026-01-02T00:00:00+00:00") == labels
    fill(path, {one: "vertical", other: "block"})
    changed = merge_labels(labels, parse_labels(path, maps.names, "ann"), "2026-01-03T00:00:00+00:00")
    assert changed == [*labels, Label(other, "block", "ann", 1, "2026-01-03T00:00:00+00:00")]
    # An older file that is imported late is kept and does not override newer answers.
    late = [Label(other, "heterogeneous", "ann", 1, "2026-01-02T00:00:00Z")]
    everything = merge_labels(changed, late, "2026-01-09T00:00:00+00:00")
    assert everything == [*changed, *late]
    assert of_pass(everything, 1) == {one: "vertical", other: "block"}
    write_labels(tmp_path, everything)
    assert list(read_labels(tmp_path)) == everything


def answers(name: str, letters: str) -> list[Label]:
    """One label for each pass of a map."""
    names = {"v": "vertical", "b": "block", "d": "diagonal", "h": "heterogeneous"}
    return [
        Label(name, names[letter], f"ann{number}", number, f"2026-01-0{number}T00:00:00Z")
        for number, letter in enumerate(letters, start=1)
    ]


@pytest.mark.parametrize(
    ("letters", "pattern", "next_pass_of_3", "next_pass_of_5"),
    [
        ("v", None, None, None),
        ("vv", "vertical", None, 3),
        ("vb", None, 3, 3),
        ("vbb", "block", None, 4),
        ("bbb", "block", None, None),
        # A third vote cannot change what two agree on; two more can, with five votes.
        ("vvb", "vertical", None, 4),
        ("vvbb", "block", None, 5),
        ("vvbbb", "block", None, None),
        # Three different patterns: the last one decides.
        ("vbh", "heterogeneous", None, 4),
        ("vbhd", "diagonal", None, 5),
        # Of those named most often, the last one.
        ("vbvbh", "block", None, None),
    ],
)
def test_the_pattern_named_most_often_is_taken(
    letters: str, pattern: str | None, next_pass_of_3: int | None, next_pass_of_5: int | None
) -> None:
    labels = [*answers("other", "dd"), *answers("m", letters)]
    assert consensus(labels).get("m") == pattern
    assert disputed(labels, 3).get("m") == next_pass_of_3
    assert disputed(labels, 5).get("m") == next_pass_of_5


def test_the_majority_of_the_others_leaves_out_one_pass_and_ties() -> None:
    labels = [*answers("clear", "vvdvd"), *answers("tied", "vvdd"), *answers("short", "v")]
    assert majority_of_others(labels, 1) == {"tied": "diagonal"}
    assert majority_of_others(labels, 3) == {"clear": "vertical", "tied": "vertical"}
    assert majority_of_others(labels, 5) == {"clear": "vertical"}


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
def test_bad_labels_are_refused_in_one_sentence(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "labels.csv"
    path.write_text(content, "utf-8")
    with pytest.raises(UserError, match=message):
        parse_labels(path, {"m1"})
