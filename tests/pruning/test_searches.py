"""Searches on the same examples are counted in the folder of the model's run."""

import logging
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from present.test_shrink import SEARCH as SHRINK

import bertsecrets.shrinking.analysis as shrinking
from bertsecrets.pruning.guarantee import Searches, digest_of
from bertsecrets.pruning.rows import Attempt, Smaller
from bertsecrets.pruning.settings import ShrinkSettings
from bertsecrets.results.store import Store


def split(*rows: tuple[list[int], int]) -> Any:
    return SimpleNamespace(
        rows=[SimpleNamespace(ids=ids) for ids, _ in rows], examples=[SimpleNamespace(label=label) for _, label in rows]
    )


def search(model: Path | None, analysis: Path, digest: str = "abc") -> Searches:
    return Searches(model, digest, Store(analysis / "unfinished"), analysis)


def test_examples_are_known_by_tokens_and_labels_in_any_order() -> None:
    first, second, third = ([2, 7, 3], 0), ([2, 9, 3], 1), ([2, 9, 3], 0)
    assert digest_of(split(first, second)) == digest_of(split(second, first))
    assert len({digest_of(split(*rows)) for rows in ([first, second], [first, third], [first], [first, first])}) == 4


def test_a_second_search_on_the_same_examples_finds_the_first_and_a_resumed_one_itself(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    first, second = search(model, tmp_path / "a"), search(model, tmp_path / "b")
    assert (first.next(), first.begin()) == (1, 1)
    assert (second.next(), second.begin()) == (2, 2)
    # An interrupted search is the same one when it resumes, and what begins anew within it another.
    assert (first.next(), first.begin()) == (1, 1)
    assert first.begin(anew=True) == 3
    # Other examples, and another model, have searches of their own.
    assert search(model, tmp_path / "c", "xyz").begin() == 1
    (tmp_path / "other").mkdir()
    assert search(tmp_path / "other", tmp_path / "d").begin() == 1


def test_two_searches_at_once_do_not_share_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = search(tmp_path, tmp_path / "a"), search(tmp_path, tmp_path / "b")
    # Both counted before either began.
    monkeypatch.setattr(Searches, "_count", lambda self: 0)
    assert [first.begin(), second.begin()] == [1, 2]


def test_a_model_of_no_run_or_in_a_folder_that_cannot_be_written_is_searched_uncounted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert search(None, tmp_path / "a").begin() == 1
    (tmp_path / "model").write_text("no folder")
    with caplog.at_level(logging.WARNING):
        assert search(tmp_path / "model", tmp_path / "b").begin() == 1
    assert "This search is not counted for later searches on the same examples" in caplog.text


@pytest.mark.parametrize(("faster_passes", "of_int8"), [(True, 1), (False, 2)])
def test_8_bit_weights_after_a_model_that_failed_are_a_search_of_their_own(
    faster_passes: bool, of_int8: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fixed sequence ends with its first failure: what is tested after it spends more of the error."""
    search: Any = object.__new__(shrinking._Search)
    search.settings = ShrinkSettings.read("shrink", {"speedup": [1.5, 2.0], "export": ["int8"]})
    search.speedups, search.model, search.autocast, search.number = [1.5, 2.0], None, nullcontext, 1
    search.attempts, search.folders = [], []
    search.searches = SimpleNamespace(begin=lambda *, anew: 2)
    search.bar = lambda *_, **__: nullcontext(lambda *_: None)
    search.data = SimpleNamespace(training_sample=lambda _: [])
    search._facts = lambda _: SHRINK
    search._planned = lambda _, speedup: (None, speedup)

    def attempt(speedup: float, *_: object, int8: bool = False) -> Smaller:
        passed = faster_passes or speedup < 2
        facts = Attempt(len(search.attempts), speedup, int8, None, False, 0, search.number, passed, None, passed)
        search.attempts.append(Smaller(facts, [], [], [], []))
        return search.attempts[-1]

    search._attempt = attempt
    search._quantise = lambda before: attempt(before.attempt.asked, int8=True)
    monkeypatch.setattr(shrinking, "fisher_information", lambda *_, **__: None)
    taken = [(smaller.attempt.asked, smaller.attempt.search) for smaller in search.found().attempts]
    assert taken == [(1.5, 1), (2.0, 1), (2.0 if faster_passes else 1.5, of_int8)]
