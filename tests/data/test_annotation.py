"""Annotation by spaCy pipelines: universal relation names, offsets, the cache on disk, and bad pipelines."""

import multiprocessing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from data.pipelines import train_pipeline
from data.tasks import task
from data.toy import annotate, wordpiece

from bertsecrets.data.annotation import Annotator, make_annotator, read_annotations, write_annotations
from bertsecrets.data.example import Annotation, Word
from bertsecrets.data.module import TaskData
from bertsecrets.data.sources import SourceConfig
from bertsecrets.data.sources.demo import demo_examples
from bertsecrets.errors import UserError
from bertsecrets.measures.linguistic.features import Features

spacy = pytest.importorskip("spacy", reason="spaCy is not installed; pip install 'bertsecrets[annotate]'")


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pipeline that learned a little: enough where only its form matters."""
    return train_pipeline(tmp_path_factory.mktemp("pipeline"), sentences=100, rounds=3)


def annotator(pipeline: Path, cache: Path, **settings: Any) -> Annotator:
    return make_annotator({"pipeline": str(pipeline), "cache_dir": str(cache), **settings}, progress=False)


@pytest.mark.slow
def test_a_trained_pipeline_agrees_with_the_gold_annotation(tmp_path: Path) -> None:
    pipeline = train_pipeline(tmp_path / "pipeline")
    gold = [
        (text, annotation)
        for example in demo_examples("demo_paraphrase", "validation")[:100]
        for text, annotation in zip(example.texts, example.annotations, strict=True)
    ]
    found = annotator(pipeline, tmp_path).annotate([text for text, _ in gold])
    same = {"pos": 0, "head": 0, "relation": 0}
    count = 0
    for (_, expected), annotation in zip(gold, found, strict=True):
        spans = [[(word.start, word.end) for word in each.words] for each in (expected, annotation)]
        if spans[0] != spans[1]:
            continue
        for left, right in zip(expected.words, annotation.words, strict=True):
            count += 1
            for name in same:
                same[name] += getattr(left, name) == getattr(right, name)
            assert right.negation == (right.form.lower() in {"not", "never", "no"})
    # The pipeline was trained with spaCy's relation names; agreement requires the universal ones.
    assert count > 1000
    assert same["pos"] / count > 0.95
    assert same["head"] / count > 0.8
    assert same["relation"] / count > 0.7
    relations = {word.relation for annotation in found for word in annotation.words}
    assert {"nsubj:pass", "obj", "aux:pass", "root"} <= relations
    assert not relations & {"nsubjpass", "dobj", "auxpass", "poss", "ROOT"}


class Counting:
    """Splits at spaces and records the texts that it annotates."""

    identity = "counting 1"

    def __init__(self) -> None:
        self.asked: list[str] = []

    def annotate(self, texts: Sequence[str]) -> list[Annotation]:
        self.asked += texts
        return [annotate(text, *text.split()) for text in texts]


def test_a_text_is_annotated_once_and_comes_back_the_same(tmp_path: Path) -> None:
    texts = [f"text {number} of several, not words" for number in range(1100)] + ["", "text 3 of several, not words"]
    first, second = Counting(), Counting()
    found = Annotator(first, tmp_path, progress=False).annotate(texts)
    assert sorted(first.asked) == sorted(set(texts))
    assert Annotator(second, tmp_path, progress=False).annotate(texts) == found
    assert second.asked == []
    assert found == [annotate(text, *text.split()) for text in texts]
    other = Counting()
    other.identity = "counting 2"
    Annotator(other, tmp_path, progress=False).annotate(texts)
    assert sorted(other.asked) == sorted(set(texts))


def test_an_interruption_loses_one_chunk(tmp_path: Path) -> None:
    class Interrupted(Counting):
        def annotate(self, texts: Sequence[str]) -> list[Annotation]:
            if len(self.asked) >= 1024:
                raise KeyboardInterrupt
            return super().annotate(texts)

    texts = [f"text {number:04}" for number in range(1500)]
    with pytest.raises(KeyboardInterrupt):
        Annotator(Interrupted(), tmp_path, progress=False).annotate(texts)
    after = Counting()
    Annotator(after, tmp_path, progress=False).annotate(texts)
    assert after.asked == texts[1024:]


def _annotate_in_parallel(folder: Path, barrier: Any, asked: Any) -> None:
    pipeline = Counting()
    barrier.wait()
    Annotator(pipeline, folder, progress=False).annotate([f"text {number}" for number in range(2000)])
    asked.put(len(pipeline.asked))


def test_two_processes_share_the_work(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    barrier, asked = context.Barrier(2), context.Queue()
    processes = [context.Process(target=_annotate_in_parallel, args=(tmp_path, barrier, asked)) for _ in range(2)]
    for process in processes:
        process.start()
    total = asked.get(timeout=60) + asked.get(timeout=60)
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert total == 2000


def test_every_field_of_a_word_is_kept(tmp_path: Path) -> None:
    words = (Word("n't", 3, 6, "PART", 1, "advmod", True, 7, "RB"), Word("gehört", 0, 3, "VERB", -1, "root"))
    annotations = [Annotation(words), Annotation(()), Annotation(words[1:])]
    write_annotations(tmp_path / "a.json", annotations)
    assert read_annotations(tmp_path / "a.json") == annotations
    (tmp_path / "a.json").write_text("[[[1, 2")
    with pytest.raises(UserError, match=r"a.json cannot be read .*; delete it, and run again"):
        read_annotations(tmp_path / "a.json")


def test_a_task_without_gold_annotation_gets_it(pipeline: Path, tmp_path: Path, glue: Path) -> None:
    source = SourceConfig(source="tsv", root=str(glue), limit_eval=40, limit_train=10)
    data = TaskData(task("mrpc"), source, wordpiece(), annotator=annotator(pipeline, tmp_path))
    assert all(len(example.annotations) == 2 for example in data.examples("validation"))
    assert all(example.annotations == () for example in data.examples("train"))
    for example in data.examples("validation"):
        for text, annotation in zip(example.texts, example.annotations, strict=True):
            assert all(text[word.start : word.end] == word.form for word in annotation.words)
            assert "".join(word.form for word in annotation.words) == "".join(text.split())
    measure = Features(1, 1, {"nouns": {"pos": ["NOUN", "PROPN"]}})
    measure.prepare(data.encoded("validation"))


def test_white_space_tokens_of_spacy_are_not_words(tmp_path: Path) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("attribute_ruler").add([[{"TEXT": {"REGEX": "."}}]], {"POS": "X"})
    nlp.to_disk(tmp_path / "ruler")
    [found] = annotator(tmp_path / "ruler", tmp_path / "cache").annotate(["two   words \n here"])
    assert [(word.form, word.start, word.head) for word in found.words] == [
        ("two", 0, -1), ("words", 6, -1), ("here", 14, -1),
    ]  # fmt: skip


def test_a_pipeline_that_cannot_be_used_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        UserError, match="'en_core_web_mdd' is neither installed nor a folder: install it with python -m"
    ):
        make_annotator({"pipeline": "en_core_web_mdd"})
    with pytest.raises(UserError, match=r"has no spaCy pipeline \(meta.json\)"):
        make_annotator({"pipeline": str(tmp_path)})
    spacy.blank("en").to_disk(tmp_path / "blank")
    with pytest.raises(UserError, match="has neither a tagger nor a parser"):
        annotator(tmp_path / "blank", tmp_path / "cache").annotate(["a text"])
    (tmp_path / "blank" / "config.cfg").write_text("[nlp]\n")
    with pytest.raises(UserError, match="could not be loaded"):
        annotator(tmp_path / "blank", tmp_path / "cache").annotate(["a text"])
    assert make_annotator({}) is None
    monkeypatch.setattr("bertsecrets.data.spacy_pipeline.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"Annotating with 'en_core_web_md' needs spaCy; run pip install"):
        make_annotator({"pipeline": "en_core_web_md"})
