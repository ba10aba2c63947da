"""Saved maps: their rows, where the first segment ends, and what is refused."""

from pathlib import Path

import numpy as np
import pytest

from bertsecrets.errors import UserError
from tools.pattern_labels.__main__ import main
from tools.pattern_labels.map_set import MapSet
from tools.pattern_labels.saved_maps import read_saved_maps

PAIR = ["[CLS]", "a", "hare", "ran", "[SEP]", "it", "won", "[SEP]"]


def save(path: Path, words: list[str], **changes: np.ndarray) -> Path:
    weights = np.random.default_rng(0).dirichlet(np.ones(len(words)), (2, 3, len(words))).astype(np.float32)
    np.savez(path, **{"attention": weights, "tokens": np.array(words), **changes})
    return path


@pytest.mark.parametrize(
    ("tokens", "segments", "separator"),
    [
        (PAIR, 2, 4),
        (["[CLS]", "a", "hare", "ran", "and", "it", "won", "[SEP]"], 1, 7),
        (["<s>", "a", "hare", "</s>", "</s>", "it", "won", "</s>"], 2, 3),
        (["<s>", "a", "hare", "ran", "and", "won", "</s>", "</s>"], 1, 6),
        (["a", "hare", "ran", "and", "it", "won", "a", "race"], 1, -1),
    ],
)
def test_every_head_is_a_row_with_its_segments(
    tmp_path: Path, tokens: list[str], segments: int, separator: int
) -> None:
    rows, maps = read_saved_maps([save(tmp_path / "some-model.npz", tokens)])
    assert [(row.layer, row.head) for row in rows] == [(layer, head) for layer in range(2) for head in range(3)]
    assert {(row.model, row.length, row.segments, row.separator) for row in rows} == {
        ("some-model", 8, segments, separator)
    }
    with np.load(tmp_path / "some-model.npz") as arrays:
        assert np.allclose(maps[rows[4].map].numpy(), arrays["attention"][1, 1], atol=1e-3)


def test_saved_maps_of_several_models_fill_one_folder(tmp_path: Path) -> None:
    for name in ("one", "other"):
        path = save(tmp_path / f"{name}.npz", PAIR)
        main(["read", str(path), "--folder", str(tmp_path / "maps"), "--passes", "1"])
    assert {row.model for row in MapSet.read(tmp_path / "maps").rows} == {"one", "other"}
    assert {path.name for path in (tmp_path / "maps" / "sheets").iterdir()} == {"pass1"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": np.array(PAIR[:7])}, r"is 2 x 3 x 8 x 8 for 7 tokens"),
        ({"tokens": np.array(PAIR[:4]), "attention": np.full((1, 1, 4, 4), 0.25)}, "at least 8 tokens"),
        ({"attention": np.ones((2, 3, 8, 8))}, "do not sum to 1"),
        ({"tokens": np.array(PAIR, object)}, "cannot be read as saved maps"),
    ],
)
def test_other_arrays_are_refused(tmp_path: Path, changes: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_saved_maps([save(tmp_path / "m.npz", PAIR, **changes)])


def test_files_without_maps_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "m.npz", tokens=np.array(PAIR))
    (tmp_path / "text.npz").write_text("no archive")
    for name in ("m.npz", "text.npz", "gone.npz"):
        with pytest.raises(SystemExit, match=f"error: File '.*{name}' cannot be read as saved maps"):
            main(["read", str(tmp_path / name), "--folder", str(tmp_path / "maps")])
    assert not (tmp_path / "maps").exists()
