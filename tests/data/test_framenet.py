"""FrameNet's exemplars against nltk's reader, filters against counts by hand, and the paper's sentences."""

import logging
import shutil
import time
import zipfile
from collections import Counter
from pathlib import Path

import pytest
from data.framenet_folder import FRAMES, REMAINING, UNITS, write_framenet

from bertsecrets.data.example import Example
from bertsecrets.data.framenet.corpus import Exemplar, FrameNetCorpus, FrameNetFiles, FrameRoles, Span
from bertsecrets.data.framenet.source import Filters, FrameNetSource, read_published, select
from bertsecrets.errors import UserError

OPEN = {"core": "any", "max_words": None, "single_target": False, "max_element_words": None, "min_words_between": None}


def corpus(folder: Path) -> FrameNetCorpus:
    return FrameNetCorpus(FrameNetFiles(folder))


def linked_forms(example: Example) -> tuple[str, list[str]]:
    """The target and the linked elements, spelt from the words."""
    (annotation,), (text,) = example.annotations, example.texts
    (frame,) = annotation.frames
    words = annotation.words
    target = text[words[frame.target].start : words[frame.target_last].end]
    return target, [text[words[e.first].start : words[e.last].end] for e in frame.elements if e.core]


def test_exemplars_and_frames_are_those_that_nltk_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = pytest.importorskip("nltk.data")
    from nltk.corpus.reader.framenet import FramenetCorpusReader

    folder = write_framenet(tmp_path / "fn")
    monkeypatch.setattr(data, "path", [str(folder)])
    reader = FramenetCorpusReader(str(folder), [])
    expected = [
        Exemplar(
            sentence.text,
            unit.name,
            unit.frame.name,
            tuple(Span(start, end, "Target") for start, end in sentence.Target),
            tuple(Span(*place) for place in sentence.FE[0]),
        )
        for unit in reader.lus()
        for part in unit.subCorpus
        for sentence in part.sentence
    ]
    ours = corpus(folder)
    assert list(ours.exemplars()) == expected
    assert len(expected) == sum(len(sentences) for _, _, sentences in UNITS.values())
    for name in FRAMES:
        frame = reader.frame(name)
        assert ours.roles(name) == FrameRoles(
            frozenset(element.name for element in frame.FE.values() if element.coreType == "Core"),
            frozenset(element.name for group in frame.FEcoreSets for element in group),
        )


@pytest.mark.parametrize("matching", ["kovaleva", "offsets"])
def test_filters_leave_what_was_computed_by_hand(
    tmp_path: Path, matching: str, caplog: pytest.LogCaptureFixture
) -> None:
    ours = corpus(write_framenet(tmp_path / "fn"))
    with caplog.at_level(logging.INFO):
        found = select(ours.exemplars(), ours.roles, Filters.read("framenet", {"matching": matching}), "FrameNet 1.5")
    assert list(found.remaining.values()) == REMAINING[matching]
    assert f"at most 12 words: {REMAINING[matching][2]}" in caplog.text
    expected = [("nodded", ["He"]), ("nodded", ["The man"]), ("nodded", ["the man"]), ("nodding", ["He"])]
    if matching == "kovaleva":
        del expected[2]
    assert [linked_forms(example) for example in found.examples] == expected
    assert [example.index for example in found.examples] == list(range(len(expected)))


@pytest.mark.parametrize(
    ("switched", "count"),
    [
        ({}, 10),
        ({"core": "core_set"}, 8),
        ({"core": "core_type"}, 9),
        ({"max_words": 12}, 9),
        ({"single_target": True}, 9),
        ({"max_element_words": 3}, 9),
        ({"min_words_between": 2}, 9),
        ({"min_words_between": 2, "matching": "kovaleva"}, 8),
    ],
)
def test_every_filter_works_alone(tmp_path: Path, switched: dict[str, object], count: int) -> None:
    ours = corpus(write_framenet(tmp_path / "fn"))
    found = select(ours.exemplars(), ours.roles, Filters.read("framenet", {**OPEN, **switched}))
    assert len(found.examples) == count


def test_words_are_cut_where_target_and_elements_begin() -> None:
    exemplar = Exemplar(
        "half-hearted men", "", "F", (Span(5, 12, "Target"),), (Span(0, 4, "A"), Span(13, 16, "B"), Span(4, 5, "C"))
    )
    found = select([exemplar], lambda _: FrameRoles(frozenset({"A"}), frozenset()), Filters.read("framenet",
        {**OPEN, "core": "core_type"}
    ))  # fmt: skip
    (annotation,) = found.examples[0].annotations
    assert [word.form for word in annotation.words] == ["half", "-", "hearted", "men"]
    assert [(element.name, element.first, element.last, element.core) for element in annotation.frames[0].elements] == [
        ("A", 0, 0, True),
        ("B", 3, 3, False),
        ("C", 1, 1, False),
    ]


def test_a_zip_and_the_folder_above_are_read_alike(tmp_path: Path) -> None:
    folder = write_framenet(tmp_path / "above" / "framenet_v15")
    packed = tmp_path / "framenet.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        for path in folder.rglob("*.*"):
            archive.write(path, f"framenet_v15/{path.relative_to(folder)}")
    expected = list(corpus(folder).exemplars())
    assert list(corpus(folder.parent).exemplars()) == expected
    assert list(corpus(packed).exemplars()) == expected
    assert FrameNetSource.read("framenet", {"root": str(packed)}).name == "FrameNet 1.5"


@pytest.mark.parametrize("packed", [True, False])
def test_a_file_that_unpacks_to_more_than_any_release_has_is_not_read_to_its_end(tmp_path: Path, packed: bool) -> None:
    folder = write_framenet(tmp_path / "framenet")
    with (folder / "luIndex.xml").open("r+b") as file:
        file.truncate(50_000_001)
    root = tmp_path / "framenet.zip" if packed else folder
    if packed:
        with zipfile.ZipFile(root, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for path in folder.rglob("*.*"):
                archive.write(path, path.relative_to(folder))
        assert root.stat().st_size < 1_000_000
    with pytest.raises(
        UserError, match=r"file 'luIndex.xml' of .* has more than 50,000,000 bytes, more than any release"
    ):
        FrameNetFiles(root)


def _without(*names: str):
    def spoil(folder: Path) -> None:
        for name in names:
            path = folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return spoil


def _with(name: str, content: str):
    return lambda folder: (folder / name).write_text(content)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_without("."), "does not exist"),
        (_without("frRelation.xml"), r"incomplete or another version \(frRelation.xml missing\)"),
        (_without("lu", "frame"), r"\(lu/, frame/ missing\)"),
        (_without("luIndex.xml"), r"\(luIndex.xml missing\)"),
        (_with("README.txt", "Release 1.3"), "has version 1.3; give a release of FrameNet 1.5, 1.6 or 1.7"),
        (_with("luIndex.xml", "<lexicalUnits/>"), "another version"),
        (_with("luIndex.xml", "<luIndex"), "luIndex.xml' of .* is damaged"),
        (_without("lu/lu1.xml"), "incomplete .*lu/lu1.xml is missing"),
        (_without("frame/Nodding.xml"), "incomplete .*frame/Nodding.xml is missing"),
        (_with("lu/lu1.xml", "<lexUnit>"), "lu/lu1.xml' of .* is damaged"),
    ],
)
def test_a_spoilt_folder_is_reported_in_one_sentence(tmp_path: Path, spoil, message: str) -> None:
    folder = write_framenet(tmp_path / "fn")
    spoil(folder)
    with pytest.raises(UserError, match=message) as caught:
        FrameNetSource.read("framenet", {"root": str(folder)}).load()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"published": "none.txt"}, "'none.txt' does not exist"),
        ({"root": "a", "published": "b"}, "both given"),
    ],
)
def test_a_wrong_setting_is_reported(section: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        FrameNetSource.read("framenet", section)


def test_filters_that_leave_nothing_are_reported(tmp_path: Path) -> None:
    section = {"root": str(write_framenet(tmp_path / "fn")), "max_words": 1}
    with pytest.raises(UserError, match="none left after 'at most 1 words'"):
        FrameNetSource.read("framenet", section).load()


def test_a_missing_nltk_is_reported_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "nltk.tokenize", None)
    with pytest.raises(UserError, match=r"pip install 'bertsecrets\[annotate\]'"):
        FrameNetSource.read("framenet", {"root": str(write_framenet(tmp_path / "fn"))}).load()


def test_published_sentences_are_read(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_text("He was agitated .  agitated ['He'] \nThe men [ and she ] saw him saw ['The men', 'she']\n")
    first, second = read_published(path)
    assert first.texts == ("He was agitated . ",)
    assert linked_forms(first) == ("agitated", ["He"])
    assert linked_forms(second) == ("saw", ["The men", "she"])


@pytest.mark.parametrize("line", ["", "He was .", "He was agitated . calm ['He']", "He was agitated . agitated [He]"])
def test_lines_of_another_form_are_reported(tmp_path: Path, line: str) -> None:
    path = tmp_path / "list.txt"
    path.write_text(line + "\n")
    with pytest.raises(UserError, match="<sentence> <target>"):
        read_published(path)


@pytest.fixture(scope="module")
def framenet(glue: Path) -> Path:
    return glue.parent / "framenet"


def test_the_papers_473_sentences_are_as_described(framenet: Path) -> None:
    examples = read_published(framenet / "kovaleva_473.txt")
    forms = [linked_forms(example)[1] for example in examples]
    assert len(examples) == 473
    assert sum(len(links) > 1 for links in forms) == 8
    assert sum(all(len(form.split()) == 1 for form in links) for links in forms) == 323
    lengths = [len(example.texts[0].split()) for example in examples]
    assert max(lengths) == 12
    assert sum(lengths) / 473 == pytest.approx(8.85, abs=0.005)


@pytest.mark.slow
def test_framenet_1_5_in_full_holds_the_papers_sentences(framenet: Path) -> None:
    started = time.process_time()
    ours = corpus(framenet / "framenet_v15.zip")
    exemplars = list(ours.exemplars())
    found = select(exemplars, ours.roles, Filters(matching="kovaleva"))
    assert time.process_time() - started < 120
    assert list(found.remaining.values()) == [154_485, 75_256, 12_024, 11_967, 8_331, 694, 439]

    def key(text: str, target: str) -> tuple[str, str]:
        return text.strip(), target

    passed = Counter(key(example.texts[0], linked_forms(example)[0]) for example in found.examples)
    there = {key(each.text, each.text[span.start : span.end]) for each in exemplars for span in each.targets}
    published = [
        key(example.texts[0], linked_forms(example)[0]) for example in read_published(framenet / "kovaleva_473.txt")
    ]
    failing = sorted(target for text, target in published if (text, target) in there and not passed[text, target])
    # Annotated otherwise in 1.5: a frame without a core set, and an element that holds the target (docs/relations.md).
    assert failing == ["curious", "curious", "strong"]
    assert sum(each not in there for each in published) == 32
    assert len(passed - Counter(published)) == 1
