"""Searches on the same examples are counted in the folder of the model's run."""

import logging
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import bertsecrets.callbacks.shrink as shrinking
from bertsecrets.pruning.searches import Searches, digest_of, search_in_words, search_level
from bertsecrets.pruning.settings import ShrinkSettings


def split(*rows: tuple[list[int], int]) -> Any:
    return SimpleNamespace(
        rows=[SimpleNamespace(ids=ids) for ids, _ in rows], examples=[SimpleNamespace(label=label) for _, label in rows]
    )


def search(model: Path | None, analysis: Path, digest: str = "abc") -> Searches:
    return Searches(model, digest, analysis / "shrinking" / "search.json", analysis)


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
    assert "This search is not counted for later ones on the same examples" in caplog.text


def test_the_search_is_said_with_what_it_spends() -> None:
    content = {"search": 2, "level": search_level(0.9, 2), "confidence": 0.9, "counted": True}
    assert search_in_words(content) == (
        "This is search 2 for a smaller model on these examples; each spends two thirds of the error that is left, so that all together "
        "keep 90% confidence: this one is tested at 97.78%."
    )
    assert "search 1 for a smaller model on these examples as far as is known;" in search_in_words(
        {**content, "search": 1, "counted": False}
    )
    assert search_in_words({"confidence": 0.9}) == ""


@pytest.mark.parametrize(("faster_passes", "of_int8"), [(True, 1), (False, 2)])
def test_8_bit_weights_after_a_model_that_failed_are_a_search_of_their_own(
    faster_passes: bool, of_int8: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fixed sequence ends with its first failure: what is tested after it spends more of the error."""
    search: Any = object.__new__(shrinking._Search)
    search.settings = ShrinkSettings.read("shrink", {"speedup": [1.5, 2.0], "export": ["int8"]})
    search.speedups, search.model, search.context, search.search = [1.5, 2.0], None, nullcontext, 1
    search.searches = SimpleNamespace(begin=lambda *, anew: 2)
    search.bar = lambda *_, **__: nullcontext(lambda *_: None)
    search.data = SimpleNamespace(training_sample=lambda _: [])
    search.extras = lambda _: {}
    search._planned = lambda _, speedup: (None, speedup)
    search._attempt = lambda speedup, *_: {
        "asked": speedup,
        "passed": faster_passes or speedup < 2,
        "search": search.search,
    }
    search._quantised = lambda attempt: {**attempt, "search": search.search}
    for name in ("fisher_information", "attempt_in_words"):
        monkeypatch.setattr(shrinking, name, lambda *_, **__: None)
    taken = [(attempt["asked"], attempt["search"]) for attempt in search.attempts()]
    assert taken == [(1.5, 1), (2.0, 1), (2.0 if faster_passes else 1.5, of_int8)]
