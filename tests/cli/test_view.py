"""``view``: a sentence from the command line becomes a page, of the model before fine-tuning or of a checkpoint beside
it.
"""

from pathlib import Path

import pytest
from cli.runs import configured
from omegaconf import DictConfig

from bertsecrets.cli import pages
from bertsecrets.cli.arguments import with_quoted_text
from bertsecrets.errors import UserError


@pytest.fixture
def config_of(tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pages, "run_folder", lambda: tmp_path / "out")

    def compose_view(*arguments: str) -> DictConfig:
        return configured(with_quoted_text(["model=folder", f"model.path={tiny_bert}", *arguments]), "view")

    return compose_view


def test_a_sentence_with_quotes_and_commas_becomes_a_page(config_of, tmp_path: Path) -> None:
    shown = pages.view(config_of("text=It's late, she said."))
    assert (tmp_path / "out" / "view.html").stat().st_size < 3_000_000
    assert shown.example.name == "It's late, she said."
    assert [name for name, _ in shown.example.stages] == ["model"]


def test_two_sentences_are_compared_with_a_reference(config_of, tiny_bert: Path) -> None:
    shown = pages.view(config_of("text=[The cat sat.,The cat lay.]", f"reference={tiny_bert}"))
    assert set(shown.example.sentences) == {0, 1}
    assert [name for name, _ in shown.example.stages] == ["reference", "this model"]


def test_an_empty_sentence_is_refused_before_a_model_is_loaded(config_of) -> None:
    with pytest.raises(UserError, match="A sentence of text is empty"):
        pages.view(config_of("text= ", "model.path=nowhere"))
    with pytest.raises(UserError, match=r"Text 'The \\ud800 sat.' has a lone surrogate, '\\ud800', at character 4"):
        pages.view(config_of("text=The \ud800 sat.", "model.path=nowhere"))


def test_a_view_needs_a_sentence_or_a_head_of_a_run(config_of, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"give text='The cat sat.', or checkpoint=<run> head=5\.1"):
        pages.view(config_of())
    with pytest.raises(UserError, match=r"head=1\.10 needs a run, but checkpoint is 'initial'"):
        pages.view(config_of("head=1.10"))
    with pytest.raises(
        UserError, match=r"head is 'five'; expected a layer and a head in quotes, e\.g\. '5\.1', or null"
    ):
        pages.view(config_of("head=five"))
