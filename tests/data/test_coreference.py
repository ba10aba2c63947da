"""Coreference read from CoNLL-2012 and GAP: mentions with their heads, windows, and messages for bad files."""

from pathlib import Path

import pytest
from data.tasks import task
from data.toy import byte_level, wordpiece

from bertsecrets.data.example import Annotation, Example
from bertsecrets.data.module import TaskData
from bertsecrets.data.sources import SourceConfig, make_source
from bertsecrets.data.sources.coreference.conll import read_conll
from bertsecrets.data.sources.coreference.gap import COLUMNS, read_gap
from bertsecrets.data.sources.coreference.mentions import head_word
from bertsecrets.data.windows import windows
from bertsecrets.errors import UserError

LITBANK = """\
#begin document (toy); part 0
toy\t0\t0\tThe\t_\t_\t_\t_\t_\t_\t_\t_\t(1
toy\t0\t1\tman\t_\t_\t_\t_\t_\t_\t_\t_\t
toy\t0\t2\tin\t_\t_\t_\t_\t_\t_\t_\t_\t
toy\t0\t3\tBonn\t_\t_\t_\t_\t_\t_\t_\t_\t(2)|1)
toy\t0\t4\tsaw\t_\t_\t_\t_\t_\t_\t_\t_\t
toy\t0\t5\this\t_\t_\t_\t_\t_\t_\t_\t_\t(3|(1)
toy\t0\t6\tdog\t_\t_\t_\t_\t_\t_\t_\t_\t3)
toy\t0\t7\t.\t_\t_\t_\t_\t_\t_\t_\t_\t

toy\t0\t0\tHe\t_\t_\t_\t_\t_\t_\t_\t_\t(1)
toy\t0\t1\tdid\t_\t_\t_\t_\t_\t_\t_\t_\t
toy\t0\t2\tn't\t_\t_\t_\t_\t_\t_\t_\t_\t
toy\t0\t3\tsee\t_\t_\t_\t_\t_\t_\t_\t_\t
toy\t0\t4\tit\t_\t_\t_\t_\t_\t_\t_\t_\t(3)
toy\t0\t5\t.\t_\t_\t_\t_\t_\t_\t_\t_\t

#end document
"""
ONTONOTES = """\
#begin document (bc/toy); part 000
bc/toy 0 0 Ann NNP (TOP(S(NP* - - - s * (7)
bc/toy 0 1 -LRB- -LRB- * - - - s * -
bc/toy 0 2 her PRP$ * - - - s * (8|(7)
bc/toy 0 3 lawyers NNS *) - - - s * 8)

#end document
#begin document (bc/toy); part 001
bc/toy 1 0 Ann NNP * - - - s * (7)

#end document
"""
ROW = {
    "ID": "development-1",
    "Text": "Ann met Zoe's aunt. She laughed.",
    "Pronoun": "She",
    "Pronoun-offset": "20",
    "A": "Ann",
    "A-offset": "0",
    "A-coref": "TRUE",
    "B": "Zoe",
    "B-offset": "8",
    "B-coref": "FALSE",
    "URL": "x",
}


def written(folder: Path, name: str, content: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return path


def gap(**changes: str) -> str:
    """A file of one row; a change of None leaves a column out."""
    row = {**ROW, **{key.replace("_", "-"): value for key, value in changes.items()}}
    return "\t".join(row) + "\n" + "\t".join(row.values()) + "\n"


def shown(text: str, annotation: Annotation) -> list[tuple[str, str, str, int, bool]]:
    """Text, head word, kind, entity and whether it has an antecedent, for each mention."""
    words = annotation.words
    return [
        (text[words[m.first].start : words[m.last].end], words[m.head].form, m.kind, m.entity, m.anaphoric)
        for m in annotation.mentions
    ]


def test_litbank_by_hand(tmp_path: Path) -> None:
    [(text, annotation, error)] = read_conll(written(tmp_path, "toy.conll", LITBANK))
    assert error is None
    assert text == "The man in Bonn saw his dog. He didn't see it."
    assert [text[word.start : word.end] for word in annotation.words] == [word.form for word in annotation.words]
    assert annotation.sentences == (0, 8)
    assert shown(text, annotation) == [
        ("The man in Bonn", "man", "nominal", 1, False),
        ("Bonn", "Bonn", "proper", 2, False),
        ("his dog", "dog", "nominal", 3, False),
        ("his", "his", "pronoun", 1, True),
        ("He", "He", "pronoun", 1, True),
        ("it", "it", "pronoun", 3, True),
    ]
    entities = {word.form: word.entity for word in annotation.words if word.entity >= 0}
    assert entities == {"man": 1, "dog": 3, "his": 1, "He": 1, "it": 3}


def test_ontonotes_has_tags_parts_and_escapes(tmp_path: Path) -> None:
    documents = list(read_conll(written(tmp_path, "toy.v4_gold_conll", ONTONOTES)))
    (text, annotation, _), (_, second, _) = documents
    assert text == "Ann (her lawyers"
    assert shown(text, annotation) == [
        ("Ann", "Ann", "proper", 7, False),
        ("her lawyers", "lawyers", "nominal", 8, False),
        ("her", "her", "pronoun", 7, True),
    ]
    # Entities are numbered within a part.
    assert not second.mentions[0].anaphoric


def test_gap_by_hand(tmp_path: Path) -> None:
    [(text, annotation, _)] = read_gap(written(tmp_path, "gap-test.tsv", gap()))
    assert [word.form for word in annotation.words][:6] == ["Ann", "met", "Zoe", "'", "s", "aunt"]
    assert annotation.sentences == (0, 7)
    assert shown(text, annotation) == [
        ("Ann", "Ann", "proper", 0, False),
        ("Zoe", "Zoe", "proper", 2, False),
        ("She", "She", "pronoun", 0, True),
    ]
    assert [mention.choices for mention in annotation.mentions] == [None, None, (0, 1)]


def test_in_gap_a_name_may_be_part_of_a_run_of_letters_and_no_name_the_antecedent(tmp_path: Path) -> None:
    content = gap(
        Text="Zoes aunt met Ann. She laughed.", A_offset="14", B_offset="0", Pronoun_offset="19", A_coref="FALSE"
    )
    [(_, annotation, _)] = read_gap(written(tmp_path, "gap-test.tsv", content))
    assert [word.form for word in annotation.words][:3] == ["Zoe", "s", "aunt"]
    assert [mention.anaphoric for mention in annotation.mentions] == [False, False, False]


@pytest.mark.parametrize(
    ("mention", "tags", "head"),
    [
        ("a single man in possession of a fortune", "", "man"),
        ("the President of the United States", "", "President"),
        ("Mr. Jones , the farmer", "", "Jones"),
        ("a tall , thin man", "", "man"),
        ("Sammy Davis Jr.", "", "Davis"),
        ("Anna 's", "", "Anna"),
        ("the girl who laughed", "", "girl"),
        ("his", "", "his"),
        ("that", "", "that"),
        (". . .", "", "."),
        ("the men working there", "DT NNS VBG RB", "men"),
        ("the working men", "DT VBG NNS", "men"),
        ("two of them", "CD IN PRP", "two"),
        ("John , a friend", "NNP , DT NN", "John"),
        ("the reason he refused to return", "", "reason"),
        ("countries you own", "", "countries"),
        ("those around him", "", "those"),
        ("you and I", "", "I"),
        ("the house beyond the hill", "", "house"),
        ("the villa his father had rented", "", "villa"),
        ("all the king 's men", "", "men"),
        ("the throng passing the windows", "", "throng"),
        ("a mulatto owned by a planter", "", "mulatto"),
        ("a large building in the park", "", "building"),
        ("the next morning the guests left", "", "morning"),
        ("the round table", "", "table"),
        ("everybody else", "", "everybody"),
        ("an elderly man like him", "", "man"),
        ("the king himself", "", "king"),
        ("the field he was in", "DT NN PRP VBD IN", "field"),
        ("some of them", "DT IN PRP", "some"),
        ("those who stayed", "DT WP VBD", "those"),
        ("more than forty men", "JJR IN CD NNS", "men"),
        ("she and I", "PRP CC PRP", "I"),
        ("the king himself", "DT NN PRP", "king"),
        ("his plodding mule", "PRP$ VBG NN", "mule"),
        ("student - based course descriptions", "NN HYPH VBN NN NNS", "descriptions"),
        ("the king 's beloved son", "DT NN POS VBN NN", "son"),
        ("Israel 's partially completed barrier", "NNP POS RB VBN NN", "barrier"),
        ("two armed men", "CD VBN NNS", "men"),
        ("a cat and missing dogs", "DT NN CC VBG NNS", "dogs"),
        ("just some random guy", "RB DT JJ NN", "guy"),
        ("just some random guy", "", "guy"),
        ("later that night", "RBR DT NN", "night"),
        ("more than a decade", "JJR IN DT NN", "decade"),
        ("more than a decade", "", "decade"),
        ("the A section", "DT NN NN", "section"),
        ("an on - line shop", "DT IN HYPH NN NN", "shop"),
        ("their in - house lawyers", "", "lawyers"),
        ("a daughter - in - law", "", "daughter"),
        ("her aunt and in a way her mother", "", "aunt"),
        ("Anna or at least her sister", "NNP CC IN JJS PRP$ NN", "Anna"),
        ("USD / Euro", "NN , NN", "Euro"),
        ("whose old coat", "WP$ JJ NN", "coat"),
        ("his", "PRP$", "his"),
    ],
)
def test_head_words_by_hand(mention: str, tags: str, head: str) -> None:
    forms = mention.split()
    assert forms[head_word(forms, tags.split() or [""] * len(forms))] == head


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("(2)|1)", "(2)", r"toy.conll:2: mention \(1 is not closed in its sentence"),
        ("(2)|1)", "(2)|1)|1)", r"toy.conll:5: 1\) closes a mention that is not open"),
        ("(2)|1)", "(2)|1]", r"toy.conll:5: coreference '\(2\)\|1\]'; expected brackets"),
        ("(2)|1)", "2", r"toy.conll:5: coreference '2'; expected brackets"),
        ("\tsaw\t_\t_\t_\t_\t_\t_\t_\t_\t", "", r"toy.conll:6: 3 columns, expected at least 5"),
        ("\tsaw\t", "\t\t", r"toy.conll:6: the word, column 4, is empty"),
        ("#end document", "", r"toy.conll:1: the document that starts here has no '#end document'"),
    ],
)
def test_a_bad_document_is_reported_or_left_out(tmp_path: Path, before: str, after: str, message: str) -> None:
    assert before in LITBANK
    written(tmp_path, "toy.conll", LITBANK.replace(before, after, 1))
    settings = {"root": str(tmp_path)}
    with pytest.raises(UserError, match=message):
        make_source(SourceConfig(**settings), task("coreference")).examples("validation")
    with pytest.raises(UserError, match=r"No document of .* is valid"):
        make_source(SourceConfig(**settings, skip_bad_rows=True), task("coreference")).examples("validation")
    written(tmp_path, "whole.conll", LITBANK)
    with pytest.warns(UserWarning, match="skipped 1 document that is not valid; the first: .*" + message):
        examples = make_source(SourceConfig(**settings, skip_bad_rows=True), task("coreference")).examples("validation")
    assert [example.index for example in examples] == [0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"A_offset": "1"}, r"gap.tsv:2: A 'Ann' is not at offset '1' of the text \(there: 'nn '\)"),
        ({"Pronoun_offset": "-3"}, r"gap.tsv:2: Pronoun 'She' is not at offset '-3'"),
        ({"B_offset": "eight"}, r"gap.tsv:2: B 'Zoe' is not at offset 'eight'"),
        ({"B_coref": "maybe"}, r"gap.tsv:2: B-coref is 'maybe'; expected TRUE or FALSE"),
    ],
)
def test_a_bad_row_of_gap_is_reported(tmp_path: Path, changes: dict[str, str], message: str) -> None:
    written(tmp_path, "gap.tsv", gap(**changes))
    with pytest.raises(UserError, match=message):
        make_source(SourceConfig(root=str(tmp_path)), task("coreference")).examples("validation")


def test_missing_columns_and_fields_of_gap_are_reported(tmp_path: Path) -> None:
    for name in COLUMNS:
        with pytest.raises(UserError, match=f"gap.tsv:1: column '{name}' of GAP is missing"):
            list(read_gap(written(tmp_path, "gap.tsv", gap().replace(f"\t{name}\t", f"\tx{name}\t", 1))))
    [(_, annotation, error)] = read_gap(written(tmp_path, "gap.tsv", gap().replace("\tFALSE\tx", "")))
    assert annotation is None
    assert "gap.tsv:2: 9 fields, expected at least 10" in str(error)


def test_splits_go_by_the_names_of_files_and_folders(tmp_path: Path) -> None:
    for name in (
        "train/a.v4_gold_conll",
        "development/b.v4_gold_conll",
        "development/b.v4_auto_conll",
        "test/c.v4_gold_conll",
    ):
        written(tmp_path, name, ONTONOTES)
    source = make_source(SourceConfig(root=str(tmp_path)), task("coreference"))
    # Each file has two parts; those of taggers are left out.
    assert [len(source.examples(split)) for split in ("train", "validation", "test")] == [2, 2, 2]
    alone = tmp_path / "alone"
    written(alone, "toy.conll", LITBANK)
    lone = make_source(SourceConfig(root=str(alone)), task("coreference"))
    assert len(lone.examples("validation")) == 1
    assert not lone.has("test")
    with pytest.raises(UserError, match="has no file for split 'test'; add one with test in its name"):
        lone.examples("test")


def test_folders_without_files_or_with_both_kinds_are_reported(tmp_path: Path) -> None:
    def source(root: Path) -> None:
        make_source(SourceConfig(root=str(root)), task("coreference"))

    with pytest.raises(UserError, match="is not a directory; give a folder of CoNLL-2012 or GAP files"):
        source(tmp_path / "missing")
    with pytest.raises(UserError, match="has no coreference files"):
        source(tmp_path)
    with pytest.raises(UserError, match=r"give data.root=<folder of CoNLL-2012 or GAP files>"):
        make_source(SourceConfig(), task("coreference"))
    written(tmp_path, "gap.tsv", gap())
    written(tmp_path, "toy.conll", LITBANK)
    with pytest.raises(UserError, match="has both CoNLL-2012 and GAP files"):
        source(tmp_path)
    empty = tmp_path / "empty"
    written(empty, "toy.conll", "#begin document (x); part 0\n\n#end document\n")
    with pytest.raises(UserError, match="has no documents"):
        make_source(SourceConfig(root=str(empty)), task("coreference")).examples("validation")


def test_the_demo_has_gold_documents_of_all_kinds() -> None:
    examples = make_source(SourceConfig(), task("demo_coreference")).examples("validation")
    kinds = [m.kind for example in examples for m in example.annotations[0].mentions if m.anaphoric]
    assert len(examples) >= 20
    assert all(kinds.count(kind) >= 10 for kind in ("pronoun", "proper", "nominal"))


@pytest.mark.parametrize("max_length", [8, 12, 16, 40])
@pytest.mark.parametrize("tokenizer", [wordpiece(), byte_level()], ids=["wordpiece", "bytes"])
def test_windows_keep_every_word_once_and_the_mentions_within(
    tmp_path: Path, max_length: int, tokenizer: object
) -> None:
    documents = [
        Example(index, (text,), None, (annotation,))
        for index, (text, annotation, _) in enumerate(read_conll(written(tmp_path, "toy.conll", LITBANK * 2)))
        if annotation is not None
    ]
    cut = windows(documents, tokenizer, max_length)
    assert [window.index for window in cut] == list(range(len(cut)))
    for document in documents:
        pieces = [window for window in cut if window.document == document.index]
        words = [word.form for piece in pieces for word in piece.annotations[0].words]
        assert words == [word.form for word in document.annotations[0].words]
        for piece in pieces:
            [annotation] = piece.annotations
            encoded = tokenizer(piece.texts[0])
            # A word of its own may be too long; byte_level counts spaces, which a window begins without.
            assert len(encoded["input_ids"]) <= max_length or len(annotation.words) == 1
            assert all(piece.texts[0][word.start : word.end] == word.form for word in annotation.words)
            texts = {entry[0] for entry in shown(piece.texts[0], annotation)}
            assert texts <= {entry[0] for entry in shown(document.texts[0], document.annotations[0])}
            assert all(m.first <= m.head <= m.last < len(annotation.words) for m in annotation.mentions)


def test_windows_end_with_sentences_that_fit(tmp_path: Path) -> None:
    [(text, annotation, _)] = read_conll(written(tmp_path, "toy.conll", LITBANK))
    documents = [Example(0, (text,), None, (annotation,))]
    whole = windows(documents, wordpiece(), 64)
    assert len(whole) == 1
    assert whole[0].annotations == documents[0].annotations
    # 14 and 11 tokens, and two special ones.
    tokens = [len(wordpiece()(part)["input_ids"]) for part in ("The man in Bonn saw his dog.", "He didn't see it.")]
    cut = windows(documents, wordpiece(), max(tokens))
    assert [window.texts[0] for window in cut] == ["The man in Bonn saw his dog.", "He didn't see it."]
    # The antecedents of He and it are in the first window: they still have one.
    assert [mention.anaphoric for mention in cut[1].annotations[0].mentions] == [True, True]
    # A sentence that is longer than a window is cut between words.
    [first, _] = windows(documents, wordpiece(), max(tokens) - 1)
    assert first.texts == ("The man in Bonn saw his dog",)


def test_the_choices_of_a_window_are_those_within(tmp_path: Path) -> None:
    text = "Zoe met an aunt. Ann laughed. She laughed."
    content = gap(Text=text, A_offset="17", B_offset="0", Pronoun_offset="30")
    [(_, annotation, _)] = read_gap(written(tmp_path, "gap.tsv", content))
    tokenizer = wordpiece()
    length = len(tokenizer("Ann laughed. She laughed.")["input_ids"])
    cut = windows([Example(0, (text,), None, (annotation,))], tokenizer, length)
    last = cut[-1].annotations[0]
    assert [last.words[mention.head].form for mention in last.mentions] == ["Ann", "She"]
    assert last.mentions[1].choices == (0,)


def test_the_data_module_cuts_documents(tmp_path: Path) -> None:
    written(tmp_path, "toy.conll", LITBANK)
    data = TaskData(task("coreference"), SourceConfig(root=str(tmp_path)), wordpiece(), max_length=20)
    split = data.evaluation_dataset("val")
    assert len(data.examples("validation")) == 1
    assert len(split) > 1
    assert not any(row.truncated for row in split.rows)
    assert {example.document for example in split.examples} == {0}
