"""The store of finished steps: what is kept, under which key, and when it goes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from families import tiny_model
from torch import Tensor, nn

from bertsecrets.results.store import NOTHING_KEPT, Store


@dataclass(frozen=True)
class Point:
    x: object


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    return model


@pytest.mark.parametrize(
    "value",
    [
        {"a": torch.rand(2, 3).T, "b": torch.arange(4), "none": torch.zeros(0)},
        tied().state_dict(),
        {"speed": 0.1, "of": [1, None, "two"]},
        3,
    ],
)
def test_a_value_comes_back(tmp_path: Path, value: Any) -> None:
    Store(tmp_path / "a", "key").put(value, 1)
    store = Store(tmp_path / "a", "key")
    back = store.get(1)
    assert store.loaded == 1
    if isinstance(value, dict) and isinstance(next(iter(value.values())), Tensor):
        assert back.keys() == value.keys()
        assert all(torch.equal(tensor, value[name]) for name, tensor in back.items())
    else:
        assert back == value
    assert store.get(2) is None
    assert Store(tmp_path / "a", "other").get(1) is None


def test_what_differs_has_another_key(tmp_path: Path) -> None:
    changed = tiny_model("bert")
    with torch.no_grad():
        changed.classifier.bias[0] += 1e-3
    large = torch.zeros(5000)
    nearly = large.clone()
    nearly[2500] = 1e-3
    keys: list[Any] = [
        *(1, 1.0, True, "1", None, "None", (1,), (1, 2), ((1,), 2), (1, (2,)), "12", ("1", "2"), {"1": 2}),
        *(Point(1), Point(2), torch.tensor(1), torch.tensor([1]), torch.tensor(1.0), large, nearly),
        *(frozenset({(0, 1)}), frozenset({(0, 1), (1, 0)}), tiny_model("bert"), changed),
    ]
    store = Store(tmp_path)
    for number, key in enumerate(keys):
        store.put(number, key)
    assert [store.get(key) for key in keys] == [*range(len(keys))]
    assert [store.of(key).get() for key in keys] == [None] * len(keys)
    assert store.get(tiny_model("bert")) == len(keys) - 2
    assert store.get(frozenset({(1, 0), (0, 1)})) == len(keys) - 3
    with pytest.raises(TypeError, match="A object cannot be part of a key"):
        store.get(object())


def test_damaged_values_count_as_missing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put({"a": torch.ones(3)}, "tensors")
    store.put([1, 2], "plain")
    for path in tmp_path.iterdir():
        path.write_bytes(path.read_bytes()[:-3])
    assert store.get("tensors") is store.get("plain") is None
    assert store.loaded == 0
    assert store.once(lambda: [3], "plain") == [3]
    assert store.once(lambda: pytest.fail("computed twice"), "plain") == [3]


def test_parts_count_with_the_whole_and_hash_weights_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, hashed = tiny_model("bert"), []
    state_dict = type(model).state_dict
    monkeypatch.setattr(type(model), "state_dict", lambda self: hashed.append(1) or state_dict(self))
    store = Store(tmp_path)
    for number in range(3):
        store.of(model).of("plan").put(number, number)
        assert store.of(model).of("plan").get(number) == number
    assert (len(hashed), store.loaded) == (1, 3)


def test_one_process_writes_what_all_compute(tmp_path: Path) -> None:
    other = Store(tmp_path, writes=False).of("part")
    assert other.once(lambda: 1, "number") == 1
    assert not [*tmp_path.iterdir()]
    other.put(2, "own share")
    assert Store(tmp_path).of("part").get("own share") == 2


def test_a_folder_is_filled_once_and_whole(tmp_path: Path) -> None:
    store = Store(tmp_path / "a")

    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.folder_once(fail, "model")
    folder = store.folder_once(lambda folder: (folder / "whole").touch(), "model")
    assert [path.name for path in folder.iterdir()] == ["whole"]
    assert Store(tmp_path / "a").folder_once(lambda _: pytest.fail("made twice"), "model") == folder


def test_values_are_removed_and_files_of_others_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Store(tmp_path / "a")
    for name in ("mine.safetensors", "notes.txt"):
        store.put({"a": torch.ones(1)}, name)
        store.put(1, name, "plain")
        (tmp_path / "a" / name).write_text("kept")
    store.folder_once(lambda folder: (folder / "whole").touch(), "model")
    torn = next(path for path in (tmp_path / "a").iterdir() if len(path.stem) == 24 and path.is_file())
    torn.rename(torn.with_name(f".{torn.stem}.0123abcd{torn.suffix}"))
    store.clear()
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["mine.safetensors", "notes.txt"]
    assert "keeps files that bertsecrets did not write: mine.safetensors, notes.txt." in caplog.text
    other = Store(tmp_path / "b")
    other.put(1, "key")
    other.clear()
    assert not (tmp_path / "b").exists()


def test_a_store_without_a_folder_keeps_nothing() -> None:
    NOTHING_KEPT.of("part").put(1, "key")
    assert NOTHING_KEPT.of("part").get("key") is None
    assert NOTHING_KEPT.once(lambda: 2, "key") == 2
    NOTHING_KEPT.clear()
