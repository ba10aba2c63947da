"""Treebanks read from CoNLL-U: words, offsets, negation, and messages for bad files."""

from pathlib import Path

import pytest
from data.tasks import task
from data.toy import wordpiece

from bertsecrets.data.example import Annotation
from bertsecrets.data.module import TaskData
from bertsecrets.data.sources import SourceConfig, make_source
from bertsecrets.data.sources.conllu import read_conllu
from bertsecrets.data.task import ConlluLayout, Task
from bertsecrets.errors import UserError

SENTENCE = """\
# sent_id = toy-1
# text = He  doesn't (now) eat du pain.
1\tHe\the\tPRON\tPRP\t_\t5\tnsubj\t_\t_
2-3\tdoesn't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdoes\tdo\tAUX\tVBZ\t_\t5\taux\t_\t_
3\tn't\tnot\tPART\tRB\tPolarity=Neg\t5\tadvmod\t_\t_
4\t(now)\tnow\tADV\tRB\t_\t5\tadvmod\t_\t_
4.1\tgone\t_\tVERB\tVBN\t_\t_\t_\t_\t_
5\teat\teat\tVERB\tVB\t_\t0\troot\t_\t_
6-7\tdu\t_\t_\t_\t_\t_\t_\t_\t_
6\tde\tde\tADP\t_\t_\t8\tcase\t_\t_
7\tle\tle\tDET\t_\t_\t8\tdet\t_\t_
8\tpain\tpain\tNOUN\t_\t_\t5\tobj\t_\tSpaceAfter=No
9\t.\t.\tPUNCT\t.\t_\t5\tpunct\t_\t_

"""
SPELT = """\
1\tNothing\tnothing\tPRON\tNN\tPronType=Neg\t2\tnsubj\t_\t_
2\tworks\twork\tVERB\tVBZ\t_\t0\troot\t_\tSpaceAfter=No
3\t!\t!\tPUNCT\t.\t_\t2\tpunct\t_\t_

"""


def written(folder: Path, content: str) -> Path:
    path = folder / "toy.conllu"
    path.write_text(content, encoding="utf-8")
    return path


def test_words_have_their_offsets_in_the_text(tmp_path: Path) -> None:
    (text, annotation), (spelt, second) = read_conllu(written(tmp_path, SENTENCE + SPELT))
    assert text == "He  doesn't (now) eat du pain."
    found = [(word.form, text[word.start : word.end], word.head, word.relation) for word in annotation.words]
    assert found == [
        ("He", "He", 4, "nsubj"),
        ("does", "does", 4, "aux"),
        ("n't", "n't", 4, "advmod"),
        ("(now)", "(now)", 4, "advmod"),
        ("eat", "eat", -1, "root"),
        # "de" and "le" do not make up "du".
        ("de", "du", 7, "case"),
        ("le", "", 7, "det"),
        ("pain", "pain", 4, "obj"),
        (".", ".", 4, "punct"),
    ]
    assert [word.form for word in annotation.words if word.negation] == ["n't"]
    assert (annotation.words[1].pos, annotation.words[1].tag, annotation.words[5].tag) == ("AUX", "VBZ", "")
    assert spelt == "Nothing works!"
    assert [word.negation for word in second.words] == [True, False, False]


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("\t5\tnsubj", "\t12\tnsubj", r"sentence toy-1, word 1: head 12 does not exist; expected 0 \(the root\) to 9"),
        ("\t5\tnsubj", "\t_\tnsubj", r"word 1: the head, column 7, is '_'; expected 0 \(the root\) to 9"),
        ("1\tHe\t", "1\t\t", r"word 1: the form, column 2, is empty"),
        ("\t5\tnsubj", "\tfive\tnsubj", "sentence 1 is not CoNLL-U"),
        ("1\tHe", "one\tHe", "sentence 1 is not CoNLL-U"),
        ("4\t(now)", "6\t(now)", "does not number its words 1, 2, 3"),
        ("5\teat", "5\teats", r"'eats' does not occur next in its text \('eat du pain.'\)"),
        (
            "1\tHe\the\tPRON\tPRP\t_\t5\tnsubj\t_\t_",
            "1\tHe\the\tPRON",
            "word 1: column UPOS is missing|word 1: column HEAD is missing",
        ),
    ],
)
def test_a_bad_file_is_reported(tmp_path: Path, before: str, after: str, message: str) -> None:
    assert before in SENTENCE
    path = written(tmp_path, SENTENCE.replace(before, after, 1))
    with pytest.raises(UserError, match=message) as error:
        list(read_conllu(path))
    assert str(path) in str(error.value)


def test_a_binary_file_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "toy.conllu"
    path.write_bytes(b"1\t\xff\xfe\n\n")
    with pytest.raises(UserError, match=r"toy\.conllu' is not UTF-8"):
        list(read_conllu(path))


def treebank(folder: Path, content: str = SENTENCE) -> Task:
    (folder / "Toy").mkdir(exist_ok=True)
    written(folder / "Toy", content)
    files = {"train": "toy.conllu", "validation": "toy.conllu", "test": "gone.conllu"}
    layout = ConlluLayout(folder="Toy", files=files)
    return task("ud_ewt").model_copy(update={"name": "toy", "conllu": layout})


def test_a_treebank_is_a_task_of_sentences_without_labels(tmp_path: Path) -> None:
    toy = treebank(tmp_path, SENTENCE + SPELT)
    data = TaskData(toy, SourceConfig(root=str(tmp_path)), wordpiece())
    data.setup("fit")
    examples = data.examples("validation")
    assert [example.label for example in examples] == [None, None]
    assert [example.texts for example in examples] == [("He  doesn't (now) eat du pain.",), ("Nothing works!",)]
    assert all(isinstance(example.annotations[0], Annotation) for example in examples)
    assert data.evaluation_dataset("val")[[0]].label_B is None
    assert not toy.is_labelled
    assert toy.num_outputs == 1
    with pytest.raises(UserError, match="Split 'validation' of task 'toy' has no labels"):
        data.labels("validation")


def test_missing_files_and_packages_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = treebank(tmp_path)
    with pytest.raises(UserError, match=r"Task 'toy' reads a treebank: give data.root=<folder that contains Toy>"):
        make_source(SourceConfig(), toy)
    with pytest.raises(UserError, match="is not a directory; give the folder that contains Toy"):
        make_source(SourceConfig(root=str(tmp_path / "no")), toy)
    source = make_source(SourceConfig(source="conllu", root=str(tmp_path)), toy)
    with pytest.raises(UserError, match=r"gone.conllu' is missing; data.root must contain Toy/gone.conllu"):
        source.examples("test")
    assert not source.has("test")
    with pytest.raises(UserError, match="Unknown split 'dev' of task 'toy'"):
        source.examples("dev")
    with pytest.raises(UserError, match="has no CoNLL-U layout"):
        make_source(SourceConfig(source="conllu", root=str(tmp_path)), task("mrpc"))
    written(tmp_path / "Toy", "\n")
    with pytest.raises(UserError, match="has no sentences"):
        source.examples("validation")
    monkeypatch.setattr("bertsecrets.data.sources.conllu.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs the conllu package; run pip install 'bertsecrets\[annotate\]'"):
        make_source(SourceConfig(root=str(tmp_path)), toy)


STANFORD = """\
1\tJohn\t_\tNNP\tNNP\t_\t3\tposs\t_\t_
2\t's\t_\tPOS\tPOS\t_\t1\tpossessive\t_\t_
3\tdog\t_\tNN\tNN\tsg|x\t5\tnsubj\t_\t_
4\t-LRB-\t_\t-LRB-\t-LRB-\t_\t5\tdep\t_\t_
5\tbarks\t_\tVBZ\tVBZ\t_\t0\troot\t_\t_

"""


def test_conll_x_of_stanford_dependencies(tmp_path: Path) -> None:
    [(text, annotation)] = read_conllu(written(tmp_path, STANFORD))
    assert text == "John 's dog ( barks"
    assert [(word.form, word.head, word.relation) for word in annotation.words] == [
        ("John", 2, "poss"),
        ("'s", 0, "possessive"),
        ("dog", 4, "nsubj"),
        ("(", 4, "dep"),
        ("barks", -1, "root"),
    ]


def test_a_cycle_is_reported_with_its_line_or_skipped(tmp_path: Path) -> None:
    # "works" depends on "Nothing", which depends on it; "!" hangs on the circle.
    path = written(tmp_path, SENTENCE + SPELT.replace("\t0\troot", "\t1\tdep"))
    with pytest.raises(UserError, match=r"toy.conllu:16: sentence 2, word 1: its heads form a cycle"):
        list(read_conllu(path))
    with pytest.warns(UserWarning, match=r"skipped 1 sentence that is not valid; the first: .*:16: sentence 2, word 1"):
        sentences = list(read_conllu(path, skip_bad=True))
    assert [text for text, _ in sentences] == ["He  doesn't (now) eat du pain."]


def test_lines_are_named_and_unusual_sentences_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = written(tmp_path, SENTENCE.replace("\t5\taux", "\t12\taux"))
    with pytest.raises(UserError, match=r"toy.conllu:5: sentence toy-1, word 2: head 12 does not exist"):
        list(read_conllu(path))
    two_roots = SPELT.replace("\t2\tpunct", "\t0\tpunct")
    with caplog.at_level("INFO"):
        sentences = list(read_conllu(written(tmp_path, "# a comment\n\n" + SENTENCE + two_roots)))
    assert [sum(word.head < 0 for word in annotation.words) for _, annotation in sentences] == [1, 2]
    assert "skipped 1 empty nodes; 1 sentences have several roots" in caplog.text


def test_any_folder_of_a_treebank_is_a_task(tmp_path: Path) -> None:
    anything = task("treebank")
    config = SourceConfig(root=str(tmp_path))
    with pytest.raises(UserError, match=r"give data\.root=<folder of"):
        make_source(SourceConfig(), anything)
    with pytest.raises(UserError, match="has no CoNLL-U files"):
        make_source(config, anything)
    for name in ("inner", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x-ud-test.conllu").write_text(SPELT)
    with pytest.raises(UserError, match="has no CoNLL-U files; give one of its folders: inner, other"):
        make_source(config, anything)
    expected = {"x-ud-train.conllu": 1, "part.conll": 2, "y-ud-test.conllu": 3, "y-ud-dev.conllu": 4}
    for name, count in expected.items():
        # The latest of them is the better evaluation set.
        (tmp_path / name).write_text(SPELT * count)
        source = make_source(config, anything)
        assert len(source.examples("validation")) == count
        # Training files that are evaluated for want of others are not trained on.
        assert source.has("train") == (count > 1)
    (tmp_path / "z_dev.conllu").write_text(SPELT)
    source = make_source(config, anything)
    assert [example.index for example in source.examples("validation")] == [0, 1, 2, 3, 4]
    assert (len(source.examples("train")), source.has("test")) == (1, True)
    (tmp_path / "x-ud-train.conllu").unlink()
    with pytest.raises(UserError, match="has no file for split 'train'; add one with train in its name"):
        make_source(config, anything).examples("train")


def test_folders_named_like_splits_or_a_single_folder_are_a_treebank(tmp_path: Path) -> None:
    for name, count in {"only/x.conllu": 1, "two/train/x.conllu": 2, "two/dev/y.conllu": 3}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text(SPELT * count)
    single = make_source(SourceConfig(root=str(tmp_path)), task("treebank"))
    assert len(single.examples("validation")) == 1
    splits = make_source(SourceConfig(root=str(tmp_path / "two")), task("treebank"))
    assert (len(splits.examples("validation")), len(splits.examples("train"))) == (3, 2)


def test_rows_of_another_format_are_not_read_as_roots(tmp_path: Path) -> None:
    row = "1\tThe\tthe\tthe\tDT\tDT\t_\t_\t2\t2\tNMOD\tNMOD\t_\t_\n"
    with pytest.raises(UserError, match=r"conllu:2: sentence 1: the row has more than 10 columns"):
        list(read_conllu(written(tmp_path, "# a comment\n" + row)))
