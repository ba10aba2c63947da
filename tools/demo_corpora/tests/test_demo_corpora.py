"""The demo corpus: sound annotation, balanced and separate splits, and labels that word overlap does not predict."""

import functools
import gzip
import hashlib
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from bertsecrets.data.example import Annotation, Example, Word
from bertsecrets.data.sources.demo import CORPORA, ROWS, demo_examples
from tools.demo_corpora import baselines
from tools.demo_corpora.__main__ import lines_of
from tools.demo_corpora.corpus import Matcher, generate, overlap
from tools.demo_corpora.edits import swap_roles
from tools.demo_corpora.events import SEQUELS, Sampler
from tools.demo_corpora.frames import BY_VERB, FRAMES
from tools.demo_corpora.lexicon import ADJECTIVES, BY_CATEGORY, HYPERNYMS, NAMES, NOUNS, OPPOSITE
from tools.demo_corpora.pairs import shared_meaning

SPLITS = ("train", "validation", "test")
PAIR_TASKS = tuple(task for task in CORPORA if task != "demo_sentiment")
UD_RELATIONS = {
    "acl:relcl", "advcl", "advmod", "amod", "aux", "aux:pass", "case", "cc", "conj", "cop", "det", "mark",
    "nmod:poss", "nsubj", "nsubj:pass", "nummod", "obj", "obl", "obl:agent", "obl:tmod", "punct", "root",
}  # fmt: skip
UD_TAGS = {"ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "NOUN", "NUM", "PART", "PRON", "PROPN", "PUNCT", "SCONJ", "VERB"}
# Relations that belong to one tag: a word that breaks the rule was attached wrongly.
TAGS_OF = {
    "det": {"DET"},
    "case": {"ADP", "PART"},
    "aux": {"AUX"},
    "aux:pass": {"AUX"},
    "cop": {"AUX"},
    "amod": {"ADJ"},
    "nummod": {"NUM"},
    "punct": {"PUNCT"},
    "mark": {"SCONJ"},
    "cc": {"CCONJ"},
    "advmod": {"ADV", "PART"},
    "nsubj": {"NOUN", "PROPN", "PRON"},
    "nsubj:pass": {"NOUN", "PROPN", "PRON"},
    "obl:agent": {"NOUN", "PROPN", "PRON"},
    "obj": {"NOUN", "PROPN", "PRON"},
    "root": {"VERB", "ADJ", "NOUN"},
}
NEGATIVES = {"no", "not", "never"}
GENDERS = {"she": "f", "her": "f", "he": "m", "him": "m", "his": "m", "it": "n", "its": "n"}
PLURALS = {"they", "them", "their"}


rows_of = functools.cache(demo_examples)


@pytest.fixture(params=CORPORA)
def corpus(request: pytest.FixtureRequest) -> dict[str, list[Example]]:
    return {split: rows_of(request.param, split) for split in SPLITS}


@pytest.fixture(scope="module")
def everything() -> dict[str, list[Example]]:
    return {task: [row for split in SPLITS for row in rows_of(task, split)] for task in CORPORA}


@pytest.fixture(scope="module")
def sentences(everything: dict[str, list[Example]]) -> list[tuple[str, Annotation]]:
    rows = [row for task in everything.values() for row in task]
    assert all(len(row.texts) == len(row.annotations) for row in rows)
    return [pair for row in rows for pair in zip(row.texts, row.annotations, strict=True)]


@pytest.mark.parametrize("task", CORPORA)
def test_the_package_ships_what_the_grammar_makes(task: str) -> None:
    for split, rows in generate(task).items():
        assert lines_of(rows) == gzip.decompress((ROWS / f"{task}.{split}.jsonl.gz").read_bytes())
        assert rows_of(task, split) == rows


def test_offsets_match_the_text(sentences: list[tuple[str, Annotation]]) -> None:
    for text, annotation in sentences:
        assert [text[word.start : word.end] for word in annotation.words] == [word.form for word in annotation.words]
        covered = "".join(word.form for word in annotation.words)
        assert covered == text.replace(" ", "")


def test_every_sentence_is_one_tree(sentences: list[tuple[str, Annotation]]) -> None:
    for text, annotation in sentences:
        heads = [word.head for word in annotation.words]
        assert heads.count(-1) == 1, text
        assert all(-1 <= head < len(heads) for head in heads), text
        for position in range(len(heads)):
            steps, at = 0, position
            while at >= 0:
                at, steps = heads[at], steps + 1
                assert steps <= len(heads), text


def test_relations_and_tags_are_those_of_universal_dependencies(sentences: list[tuple[str, Annotation]]) -> None:
    seen: Counter[str] = Counter()
    for text, annotation in sentences:
        for word in annotation.words:
            seen[word.relation] += 1
            assert word.pos in UD_TAGS, text
            assert (word.relation == "root") == (word.head == -1), text
            assert word.pos in TAGS_OF.get(word.relation, {word.pos}), (text, word)
    assert set(seen) == UD_RELATIONS


def test_trees_are_projective(sentences: list[tuple[str, Annotation]]) -> None:
    for text, annotation in sentences:
        arcs = [(min(i, w.head), max(i, w.head)) for i, w in enumerate(annotation.words) if w.head >= 0]
        assert not any(a < c < b < d for a, b in arcs for c, d in arcs), text


def test_negation_marks_exactly_the_negative_words(sentences: list[tuple[str, Annotation]]) -> None:
    for text, annotation in sentences:
        for word in annotation.words:
            assert word.negation == (word.form.lower() in NEGATIVES), text


def test_pronouns_agree_with_an_antecedent(everything: dict[str, list[Example]]) -> None:
    nouns = {form: noun for noun in (*NOUNS, *NAMES, *HYPERNYMS.values()) for pair in noun.forms for form in pair}
    checked: Counter[str] = Counter()
    for row in (row for task in everything.values() for row in task):
        words = [word for annotation in row.annotations for word in annotation.words]
        for pronoun in words:
            form = pronoun.form.lower()
            if form not in GENDERS and form not in PLURALS:
                continue
            antecedents = [
                word for word in words if word.entity == pronoun.entity >= 0 and word.pos in ("NOUN", "PROPN")
            ]
            assert antecedents, (row.texts, pronoun)
            for antecedent in antecedents:
                noun = nouns.get(antecedent.form)
                if noun is None:
                    continue
                checked[form] += 1
                plural = noun.countable and not noun.proper and antecedent.form in {pair[1] for pair in noun.forms}
                singular = antecedent.form in {pair[0] for pair in noun.forms}
                assert plural if form in PLURALS else singular, (row.texts, pronoun)
                assert form in PLURALS or noun.gender in (GENDERS[form], "any"), (row.texts, pronoun)
    assert min(checked[form] for form in ("she", "her", "he", "him", "his", "it", "they", "them")) > 0


def test_no_example_calls_one_person_he_and_she(everything: dict[str, list[Example]]) -> None:
    for row in (row for task in everything.values() for row in task):
        called: dict[int, str] = {}
        for word in (word for annotation in row.annotations for word in annotation.words):
            gender = GENDERS.get(word.form.lower())
            if gender is not None and word.pos == "PRON":
                assert called.setdefault(word.entity, gender) == gender, row.texts


def test_clusters_have_two_mentions(everything: dict[str, list[Example]]) -> None:
    across = 0
    for row in (row for task in everything.values() for row in task):
        sizes = Counter(word.entity for part in row.annotations for word in part.words if word.entity >= 0)
        assert all(size > 1 for size in sizes.values()), row.texts
        inside = [{word.entity for word in part.words if word.entity >= 0} for part in row.annotations]
        across += len(inside) == 2 and bool(inside[0] & inside[1])
    assert across > 1000


def test_frames_lie_inside_their_sentence(sentences: list[tuple[str, Annotation]]) -> None:
    for text, annotation in sentences:
        assert annotation.frames, text
        for frame in annotation.frames:
            assert annotation.words[frame.target].pos in ("VERB", "ADJ"), text
            assert frame.elements, text
            for element in frame.elements:
                assert 0 <= element.first <= element.last < len(annotation.words), text
                assert not element.first <= frame.target <= element.last, text


def test_agent_and_patient_agree_with_the_syntax(everything: dict[str, list[Example]]) -> None:
    passives = 0
    for row in everything["demo_paraphrase"]:
        for annotation in row.annotations:
            agent, patient = _fillers(annotation)
            passives += agent.relation == "obl:agent"
            assert (agent.relation, patient.relation) in {("nsubj", "obj"), ("obl:agent", "nsubj:pass")}, row.texts
    assert passives > 1000


def test_lexicon_is_large_enough() -> None:
    assert len({frame.name for frame in FRAMES}) >= 40
    assert len(NOUNS) >= 300
    assert len({noun.forms[0][0] for noun in NOUNS}) == len(NOUNS)
    assert len(ADJECTIVES) >= 60
    assert {adjective.polarity for adjective in ADJECTIVES} == {-1, 0, 1}


def test_lexicon_is_consistent() -> None:
    for frame in FRAMES:
        roles = [role for role in (frame.agent, frame.patient, frame.third) if role is not None]
        assert all(category in BY_CATEGORY for role in roles for category in role.categories), frame
        assert not frame.opposite or BY_VERB[BY_VERB[frame.opposite].opposite] == frame
    assert all(verb in BY_VERB for before, after in SEQUELS.items() for verb in (before, *after.split()))
    assert all(OPPOSITE[OPPOSITE[word]] == word and OPPOSITE[word].polarity == -word.polarity for word in OPPOSITE)


def test_sizes_and_indices(corpus: dict[str, list[Example]]) -> None:
    assert {split: len(rows) for split, rows in corpus.items()} == {"train": 2000, "validation": 400, "test": 400}
    assert all([row.index for row in rows] == list(range(len(rows))) for rows in corpus.values())


def test_labels_are_balanced_and_withheld(corpus: dict[str, list[Example]]) -> None:
    assert all(row.label is None for row in corpus["test"])
    for split in ("train", "validation"):
        labels = [row.label for row in corpus[split]]
        if any(isinstance(label, float) for label in labels):
            assert all(isinstance(label, float) and 0 <= label <= 5 for label in labels)
            counts = Counter(min(int(label or 0), 4) for label in labels)
            assert set(counts) == set(range(5))
        else:
            counts = Counter(int(label or 0) for label in labels)
            assert set(counts) in ({0, 1}, {0, 1, 2})
        assert max(counts.values()) - min(counts.values()) <= 2


def test_no_sentence_occurs_twice(corpus: dict[str, list[Example]]) -> None:
    texts = Counter(text for rows in corpus.values() for row in rows for text in row.texts)
    assert max(texts.values()) == 1


def test_spelling(sentences: list[tuple[str, Annotation]]) -> None:
    # By sound, written out: an independent list of the words that the spelling misleads about.
    a_before_vowel = {"uniform", "uniforms", "ukulele", "unicycle"}
    an_before_consonant = {"honest"}
    determiners = "(the|an?|no|any|some|its|their|his)"
    articles = 0
    for text, _ in sentences:
        assert "  " not in text
        assert text == text.strip()
        assert text[0].isupper()
        assert text.endswith(".")
        assert not re.search(r" [.,']", text), text
        for article, word in re.findall(r"\b([Aa]n?) (\w+)", text):
            articles += 1
            vowel = (word[0] in "aeiou" and word not in a_before_vowel) or word in an_before_consonant
            assert (article.lower() == "an") == vowel, text
        assert not re.search(rf"\b{determiners} {determiners}\b", text, re.IGNORECASE), text
    assert articles > 1000


@pytest.mark.slow
def test_same_text_in_every_process() -> None:
    code = (
        "import hashlib; from tools.demo_corpora.corpus import RECIPES, generate;"
        "print(hashlib.sha256(repr([generate(task)['validation'] for task in RECIPES]).encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[3])},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    here = hashlib.sha256(repr([rows_of(task, "validation") for task in CORPORA]).encode()).hexdigest()
    assert digests == {here}


def test_seed_changes_the_corpus() -> None:
    assert generate("demo_sentiment", seed=1)["validation"] != rows_of("demo_sentiment", "validation")


def test_an_unknown_task_is_refused() -> None:
    with pytest.raises(ValueError, match="did you mean 'demo_paraphrase'"):
        generate("demo_paraphrse")


@pytest.mark.slow
@pytest.mark.parametrize(("task", "limit"), [("demo_paraphrase", 0.60), ("demo_nli", 0.45), ("demo_similarity", 0.60)])
def test_word_overlap_does_not_give_the_label_away(task: str, limit: float) -> None:
    assert baselines.overlap_baseline(task) <= limit


@pytest.mark.parametrize("task", PAIR_TASKS)
def test_swapped_roles_change_the_label(task: str) -> None:
    same_meaning = {"demo_paraphrase": 1, "demo_nli": 0, "demo_similarity": 5.0}[task]
    rows = [row for split in ("train", "validation") for row in rows_of(task, split)]
    swapped = [row for row in rows if _is_swapped(row)]
    assert len(swapped) > 50
    assert all(row.label != same_meaning for row in swapped)


def test_a_quarter_of_the_different_pairs_swap_roles() -> None:
    different = [row for row in rows_of("demo_paraphrase", "train") if row.label == 0]
    assert 0.18 < sum(_is_swapped(row) for row in different) / len(different) < 0.32


def test_swapping_an_event_lowers_its_score() -> None:
    sampler = Sampler(Random(0))
    events = [sampler.event() for _ in range(300)]
    swapped = [(event, swap) for event in events if (swap := swap_roles(sampler, event)) is not None]
    assert swapped
    for event, swap in swapped:
        assert shared_meaning(event, event) == 5.0
        assert shared_meaning(event, swap) <= 3.0
        assert swap_roles(sampler, swap) == event


def test_matcher_releases_one_of_each_class() -> None:
    matcher = Matcher[str](2)
    assert list(matcher.add(0, "short", "a")) == []
    assert list(matcher.add(1, "long", "b")) == []
    assert list(matcher.add(0, "short", "c")) == []
    assert list(matcher.add(1, "short", "d")) == ["a", "d"]


def test_overlap() -> None:
    assert overlap(("The", "cat", "slept"), ("the", "dog", "slept", "well")) == (2 / 5, 1, 2)


def _fillers(annotation: Annotation) -> tuple[Word, Word]:
    """The words that head the agent and the patient of the sentence's main frame."""
    frame = next(frame for frame in annotation.frames if annotation.words[frame.target].head == -1)
    heads: list[Word] = []
    for element in frame.elements[:2]:
        span = annotation.words[element.first : element.last + 1]
        heads.append(next(word for word in span if word.head == frame.target))
    return heads[0], heads[1]


def _is_swapped(row: Example) -> bool:
    (agent, patient), (other_agent, other_patient) = (_fillers(annotation) for annotation in row.annotations)
    pair = (agent.entity, patient.entity)
    return -1 not in pair and pair == (other_patient.entity, other_agent.entity)
