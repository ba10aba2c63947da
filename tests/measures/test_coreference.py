"""Coreference heads against a naive loop over mentions, by hand, and from documents to the report."""

from typing import Any

import numpy as np
import pytest
import torch
from data.tasks import task
from data.toy import wordpiece
from measures.naive import batches_with_maps, bert_tokenizer, maps
from numpy.typing import NDArray

from bertsecrets.data.example import Annotation, Example, Mention, MentionKind, Word
from bertsecrets.data.sources import SourceConfig, make_source
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.data.windows import windows
from bertsecrets.errors import UserError
from bertsecrets.measures.base import Passed
from bertsecrets.measures.coreference.measure import KINDS, Coreference
from bertsecrets.measures.coreference.questions import BASELINES, ask
from bertsecrets.measures.coreference.rows import Baseline, Documents, Mentions
from bertsecrets.measures.coreference.sieve import agreement_of, head_match, nearest, rule_based
from bertsecrets.statistics.splits import choose_and_score, choosing_units, scored_ratios

Array = NDArray[np.float64]


def text_of(marked: str, tags: str = "", choices: tuple[int, ...] | None = None) -> Example:
    """A text from words with /entity/kind behind head words of one-word mentions: n, p (proper) or o (pronoun)."""
    kinds: dict[str, MentionKind] = {"n": "nominal", "p": "proper", "o": "pronoun"}
    words, mentions, start = [], [], 0
    seen: set[int] = set()
    for number, piece in enumerate(marked.split()):
        form, *rest = piece.split("/")
        words.append(Word(form, start, start + len(form), "", -1, "", tag=tags.split()[number] if tags else ""))
        start += len(form) + 1
        if rest:
            entity = int(rest[0])
            mentions.append(Mention(number, number, number, kinds[rest[1]], entity, entity in seen))
            seen.add(entity)
    if choices is not None:
        last = mentions[-1]
        mentions[-1] = Mention(last.first, last.last, last.head, last.kind, last.entity, True, choices)
    return Example(0, (" ".join(word.form for word in words),), None, (Annotation(tuple(words), (), tuple(mentions)),))


def demo(max_length: int = 128) -> EncodedSplit:
    """The demo documents, cut into windows if ``max_length`` is short."""
    documents = make_source(SourceConfig(), task("demo_coreference")).examples("validation")
    return EncodedSplit(windows(documents, bert_tokenizer(), max_length), bert_tokenizer(), max_length)


def fed(measure: Coreference, split: EncodedSplit, sizes: tuple[int, ...]) -> list[list[Array]]:
    """Feed random maps in batches; the maps ``[L, H, T, T]`` of each window."""
    measure.prepare(split)
    layers, heads, _ = measure.total_LHC.shape
    everything: list[list[Array]] = []
    for batch, attention_LBHQK in batches_with_maps(split, sizes, layers, heads):
        for layer in range(layers):
            measure.update(Passed(layer, batch, attention_LBHQK[layer]))
        for row, length in enumerate(batch.lengths_B.tolist()):
            everything.append([map_HQK.numpy() for map_HQK in attention_LBHQK[:, row, :, :length, :length]])
    return everything


def naive(split: EncodedSplit, place: int, map_HTT: Array) -> list[tuple[str, list[bool]]]:
    """Kind, and for each head whether the answer is right, of each anaphor of a window; earlier mentions as
    candidates.
    """
    [annotation] = split.examples[place].annotations
    word_of = list(split.rows[place].words)
    tokens_of = [[token for token, word in enumerate(word_of) if word == i] for i in range(len(annotation.words))]
    answers = []
    for anaphor in annotation.mentions:
        earlier = [m for m in annotation.mentions if m.head < anaphor.head and tokens_of[m.head]]
        if not anaphor.anaphoric or not tokens_of[anaphor.head]:
            continue
        if not any(m.entity == anaphor.entity for m in earlier):
            continue
        right = []
        for token in map_HTT:
            score = {
                m.head: np.mean(
                    [sum(token[query, key] for key in tokens_of[m.head]) for query in tokens_of[anaphor.head]]
                )
                for m in earlier
            }
            best = max(sorted(score), key=lambda head: score[head])
            right.append(any(m.head == best and m.entity == anaphor.entity for m in earlier))
        answers.append((anaphor.kind, right))
    return answers


@pytest.mark.parametrize("max_length", [24, 128])
def test_the_demo_equals_a_naive_implementation(max_length: int) -> None:
    split = demo(max_length)
    measure = Coreference(2, 2)
    layers = fed(measure, split, (5, len(split) - 5))
    grid = measure.compute()
    rows: dict[tuple[str, int], dict[int, list[list[bool]]]] = {}
    for position, maps_L in enumerate(layers):
        for layer, map_HTT in enumerate(maps_L):
            for kind, right in naive(split, position, map_HTT):
                for name in ("all", kind):
                    by_document = rows.setdefault((name, layer), {})
                    document = split.examples[position].document
                    by_document.setdefault(document, []).append(right)
    assert {name for name, _ in rows} == set(KINDS)
    for (name, layer), by_document in rows.items():
        correct_NH = np.array([np.sum(answers, 0) for answers in by_document.values()])
        count_N = np.array([len(answers) for answers in by_document.values()])
        share_H = correct_NH.sum(0) / count_N.sum()
        column = KINDS.index(name)
        assert grid.value_LHC[layer, :, column].numpy() == pytest.approx(share_H, abs=1e-12)
        assert grid.count_LHC[layer, 0, column] == count_N.sum()
        squares = ((correct_NH - share_H * count_N[:, None]) ** 2).sum(0)
        error_H = np.sqrt(len(count_N) / (len(count_N) - 1) * squares) / count_N.sum()
        assert grid.stderr_LHC[layer, :, column].numpy() == pytest.approx(error_H, abs=1e-9)


def test_attention_by_hand() -> None:
    # Tokens: [CLS] man cat dog he did ##n [SEP]; "didn" is two tokens.
    example = text_of("man/1/n cat/2/n didn/1/p saw eats/1/n")
    split = EncodedSplit([example], wordpiece(), 32)
    assert list(split.rows[0].words) == [-1, 0, 1, 2, 2, 3, 4, -1]
    attention = torch.zeros(1, 3, 8, 8)
    # From "didn", on average: head 0 man .3, cat .2; head 1 cat .3, man .2; from its first token alone both the other
    # way.
    attention[0, 0, 3, 1], attention[0, 0, 3, 2], attention[0, 0, 4, 1] = 0.1, 0.4, 0.5
    attention[0, 1, 3, 2], attention[0, 1, 3, 1], attention[0, 1, 4, 2] = 0.1, 0.4, 0.5
    # From "eats": head 0 "didn" .2 + .2, cat .3; head 1 cat .5; head 2 the last word itself, then saw, then man.
    attention[0, 0, 6, 3], attention[0, 0, 6, 4], attention[0, 0, 6, 2] = 0.2, 0.2, 0.3
    attention[0, 1, 6, 2] = 0.5
    attention[0, 2, 6, 6], attention[0, 2, 6, 5], attention[0, 2, 6, 1] = 0.6, 0.3, 0.1
    attention[0, 2, 3, 6], attention[0, 2, 3, 1] = 0.7, 0.1
    expected = {
        "earlier": {"proper": [1, 0, 1], "nominal": [1, 0, 1]},
        # "didn" attends most to the later mention in head 2, which is no antecedent.
        "others": {"proper": [1, 0, 0], "nominal": [1, 0, 1]},
        "words": {"proper": [1, 0, 0], "nominal": [1, 0, 0]},
    }
    for candidates, shares in expected.items():
        measure = Coreference(1, 3, candidates=candidates)
        batch = split[[0]]
        measure.prepare(split)
        measure.update(Passed(0, batch, attention))
        grid = measure.compute()
        for kind, share in shares.items():
            assert grid.column(kind)[0].tolist() == share, (candidates, kind)
        assert grid.count_LHC[0, 0].tolist() == [2, 0, 1, 1]
        # One document has no error, and cannot be halved.
        assert grid.stderr_LHC[0, 0].isnan().all()
        [documents] = measure.findings(grid, torch.nn.Identity())
        assert isinstance(documents, Documents)


def test_questions_by_hand() -> None:
    [annotation] = text_of("man/1/n cat/2/n cat/3/n he/1/o cat/2/n she/4/o").annotations
    asked = ask(annotation, set(range(6)))
    he, cat = asked.questions
    assert (he.asks, he.candidates, he.right) == (3, (0, 1, 2), frozenset({0}))
    # Nearest: cat (wrong); head match: none; rules: man, cat and cat agree, the nearest is wrong; random: 1 of 3.
    assert he.baselines == (0.0, 0.0, 0.0, pytest.approx(1 / 3))
    # Nearest: he; head match and rules: the nearest cat, of another entity; random: 1 of 4.
    assert cat.baselines == (0.0, 0.0, 0.0, 0.25)
    assert cat.candidates == (0, 1, 2, 3)
    gone = ask(annotation, {1, 2, 3, 4, 5})
    assert ([question.asks for question in gone.questions], gone.vanished, gone.outside) == ([4], 1, 0)
    cut = Annotation(annotation.words, mentions=annotation.mentions[1:])
    assert (ask(cut, set(range(6))).outside, len(ask(cut, set(range(6))).questions)) == (1, 1)


def test_offered_choices_are_the_candidates_before_and_after() -> None:
    [annotation] = text_of("Zoe/2/p saw Ann/1/p him/3/o his/1/o", choices=(0, 1)).annotations
    [question] = ask(annotation, set(range(5)), "words").questions
    assert (question.candidates, question.right) == ((0, 2), frozenset({2}))
    assert question.baselines == (1.0, 0.0, 1.0, 0.5)
    [neither] = text_of("Zoe/2/p saw Ann/1/p his/3/o", choices=(0, 1)).annotations
    unasked = Mention(3, 3, 3, "pronoun", 3, False, (0, 1))
    asked = ask(Annotation(neither.words, mentions=(*neither.mentions[:2], unasked)), set(range(4)))
    assert (asked.questions, asked.unanswered) == ((), 1)


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        # The same words, though farther away and of another gender than the nearest.
        ("she/1/o he/2/o she/3/o", 0),
        # The same head word.
        ("Dog/1/n he/2/o dog/3/n", 0),
        # Gender: he is not she; a woman is neither he nor it.
        ("man/1/n woman/2/n he/3/o", 0),
        ("man/1/n woman/2/n she/3/o", 1),
        # Number: they are several.
        ("dogs/1/n woman/2/n they/3/o", 0),
        # Person: I am no third person, so the nearest of all is taken.
        ("dog/1/n woman/2/n I/3/o", 1),
        # A name's gender is unknown, so it agrees.
        ("man/1/n Ann/2/p he/3/o", 1),
        # It is no man.
        ("tree/1/n man/2/n he/3/o it/4/o", 0),
    ],
)
def test_rules_by_hand(text: str, chosen: int) -> None:
    [annotation] = text_of(text).annotations
    *earlier, anaphor = annotation.mentions
    answer = rule_based(anaphor, earlier, annotation.words)
    assert answer is earlier[chosen]


def test_simple_baselines_by_hand() -> None:
    [annotation] = text_of("cat/1/n dog/2/n Cat/3/n dog/4/n").annotations
    *earlier, last = annotation.mentions
    assert head_match(last, earlier, annotation.words) is earlier[1]
    assert nearest(last, []) is rule_based(last, [], annotation.words) is None
    # Equally near on both sides: the earlier.
    assert nearest(earlier[1], [earlier[2], earlier[0]]) is earlier[0]


@pytest.mark.parametrize(
    ("words", "tags", "kind", "agreement"),
    [
        ("his", "", "pronoun", (3, "singular", "masculine")),
        ("Our", "", "pronoun", (1, "plural", None)),
        ("Mrs. Dalloway", "", "proper", (3, "singular", "feminine")),
        ("the two dogs", "", "nominal", (3, "plural", None)),
        ("the boss", "", "nominal", (3, "singular", None)),
        ("Jane and Elizabeth", "", "proper", (3, "plural", None)),
        ("James", "", "proper", (3, "singular", None)),
        ("his sisters", "PRP$ NNS", "nominal", (3, "plural", None)),
        ("the fish", "DT NNS", "nominal", (3, "plural", None)),
        ("the glass", "DT NN", "nominal", (3, "singular", None)),
    ],
)
def test_agreement_by_hand(words: str, tags: str, kind: MentionKind, agreement: tuple[Any, ...]) -> None:
    forms = words.split()
    annotated = [
        Word(form, 0, 0, "", -1, "", tag=tag)
        for form, tag in zip(forms, tags.split() or [""] * len(forms), strict=True)
    ]
    assert agreement_of(Mention(0, len(forms) - 1, len(forms) - 1, kind, 0, False), annotated) == agreement


def test_heads_are_chosen_on_some_documents_and_scored_on_others() -> None:
    split = demo(48)
    batched, single = (Coreference(2, 3, seed=5) for _ in range(2))
    layers = fed(batched, split, (3, len(split) - 3))
    fed(single, split, (1,) * len(split))
    # Batches, and so processes, do not matter.
    assert torch.equal(batched.correct_NLHT, single.correct_NLHT)
    found = batched.findings(batched.compute(), torch.nn.Identity())
    assert found == single.findings(single.compute(), torch.nn.Identity())
    [documents] = [row for row in found if isinstance(row, Documents)]
    assert (documents.documents, documents.texts) == (24, len(split))
    assert documents.outside > 0
    numbers = {document: number for number, document in enumerate(dict.fromkeys(e.document for e in split.examples))}
    right, rivals = ({kind: np.zeros((24, size)) for kind in KINDS} for size in (6, len(BASELINES)))
    asked = {kind: np.zeros(24) for kind in KINDS}
    for place, (example, row, maps_L) in enumerate(zip(split.examples, split.rows, layers, strict=True)):
        number = numbers[example.document]
        questions = ask(example.annotations[0], set(row.words)).questions
        answers_L = [naive(split, place, map_HTT) for map_HTT in maps_L]
        for question, *answers in zip(questions, *answers_L, strict=True):
            for kind in ("all", question.kind):
                right[kind][number] += np.concatenate([right_H for _, right_H in answers])
                rivals[kind][number] += question.baselines
                asked[kind][number] += 1
    # Choosing and scoring are compared with loops in tests/statistics/test_splits.py.
    chooses_SN = choosing_units(24, 50, 5)
    overall = choose_and_score(right["all"], rivals["all"], asked["all"], chooses_SN)
    for kind in [row for row in found if isinstance(row, Mentions)]:
        of_kind = right[kind.mention], rivals[kind.mention], asked[kind.mention]
        chosen = choose_and_score(*of_kind, chooses_SN)
        assert ((kind.layer, kind.head), kind.chosen) == (divmod(chosen.candidate, 3), chosen.share)
        assert kind.accuracy.value == pytest.approx(chosen.accuracy.over_splits()[0])
        one_head = scored_ratios(of_kind[0][:, overall.choice_S, None], of_kind[2], chooses_SN)
        assert kind.one_head.value == pytest.approx(one_head.over_splits()[0])
        assert kind.mentions == of_kind[2].sum()
        assert kind.chosen_on_all == pytest.approx(of_kind[0].sum(0).max() / kind.mentions)
        baselines = [row for row in found if isinstance(row, Baseline) and row.mention == kind.mention]
        assert [row.baseline for row in baselines] == list(BASELINES)
        for column, baseline in enumerate(baselines):
            assert baseline.accuracy.value == pytest.approx(of_kind[1][:, column].sum() / kind.mentions)
            assert baseline.gain.value == pytest.approx(chosen.gains.over_splits(column)[0])
            assert (baseline.layer, baseline.head) == (kind.layer, kind.head)


def test_what_is_found_is_that_of_all_processes() -> None:
    split = demo(48)
    whole, one, other = (Coreference(1, 2) for _ in range(3))
    for measure, places in (
        (whole, range(len(split))),
        (one, range(0, len(split), 2)),
        (other, range(1, len(split), 2)),
    ):
        measure.prepare(split)
        for index in places:
            batch = split[[index]]
            measure.update(Passed(0, batch, maps(batch, 2, seed=index)))

    def gather(state: torch.Tensor, group: Any = None) -> list[torch.Tensor]:
        [name] = [name for name in one._defaults if getattr(one, name) is state]
        return [state, getattr(other, name)]

    one.dist_sync_fn, one.distributed_available_fn = gather, lambda: True
    grids = one.compute(), whole.compute()
    # After compute, the states are those of one process again.
    assert not torch.equal(one.seen_E, whole.seen_E)
    assert torch.equal(grids[0].value_LHC, grids[1].value_LHC)
    assert one.found(grids[0], torch.nn.Identity()) == whole.findings(grids[1], torch.nn.Identity())


def test_only_first_windows_count_the_papers_way() -> None:
    split = demo(24)
    measure = Coreference(1, 1, windows="first")
    fed(measure, split, (len(split),))
    first = [
        index
        for index, example in enumerate(split.examples)
        if index == 0 or split.examples[index - 1].document != example.document
    ]
    expected = sum(
        len(ask(split.examples[index].annotations[0], set(split.rows[index].words)).questions) for index in first
    )
    assert measure.compute().count_LHC[0, 0, 0] == expected


def test_texts_without_mentions_or_antecedents_are_reported() -> None:
    with pytest.raises(UserError, match="needs annotated mentions, but these examples have none; use task=demo_coref"):
        Coreference(1, 1).prepare(EncodedSplit([text_of("the cat")], wordpiece(), 32))
    with pytest.raises(
        UserError, match=r"No mention of the 1 texts has an antecedent in its text \(0 have one outside\)"
    ):
        Coreference(1, 1).prepare(EncodedSplit([text_of("cat/1/n dog/2/n")], wordpiece(), 32))
