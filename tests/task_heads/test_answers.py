"""Answer heads against the official SQuAD scripts and the library's post-processing, one whole pass at a time."""

import collections
import json
import re
import string
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from data.toy import byte_level, wordpiece
from families import random_model
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional
from transformers import AutoModelForQuestionAnswering, PreTrainedModel, PreTrainedTokenizerFast

import bertsecrets as bs
from bertsecrets.ablation.engine import Engine
from bertsecrets.ablation.exact import exact_sweep
from bertsecrets.ablation.plan import Plan, every_head
from bertsecrets.ablation.verdicts import Judging, judge
from bertsecrets.attention.override import HeadEdit, override
from bertsecrets.attention.self_check import check_attention
from bertsecrets.data.example import Example
from bertsecrets.data.module import example_lengths
from bertsecrets.data.sources import make_source
from bertsecrets.data.sources.base import read_answers
from bertsecrets.data.sources.factory import SourceConfig
from bertsecrets.data.sources.questions import DemoQuestions
from bertsecrets.data.task import Task
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.errors import UserError
from bertsecrets.models.metrics import collected, scores
from bertsecrets.task_heads.answers import LONGEST_ANSWER, AnswerHead, Passage, best_spans
from bertsecrets.task_heads.labels import Answers

MAX, OVERLAP = 24, 8
TASK = Task(name="questions", kind="answers", metrics=("exact_match", "answer_f1"), texts=2)


# The official scripts, evaluate-v1.1.py and evaluate-v2.0.py.
def normalize_answer(s: str) -> str:
    def remove_punc(text: str) -> str:
        exclude = set(string.punctuation)
        return "".join(ch for ch in text if ch not in exclude)

    return " ".join(re.sub(r"\b(a|an|the)\b", " ", remove_punc(s.lower())).split())


def official_f1(given: str, gold: str, version: int) -> float:
    prediction_tokens, ground_truth_tokens = normalize_answer(given).split(), normalize_answer(gold).split()
    if version == 2 and (len(ground_truth_tokens) == 0 or len(prediction_tokens) == 0):
        return float(ground_truth_tokens == prediction_tokens)
    num_same = sum((collections.Counter(prediction_tokens) & collections.Counter(ground_truth_tokens)).values())
    if num_same == 0:
        return 0.0
    precision, recall = num_same / len(prediction_tokens), num_same / len(ground_truth_tokens)
    return (2 * precision * recall) / (precision + recall)


def official(given: str, golds: tuple[str, ...], version: int) -> tuple[float, float]:
    if version == 2:
        golds = tuple(gold for gold in golds if normalize_answer(gold)) or ("",)
    exact = max(float(normalize_answer(given) == normalize_answer(gold)) for gold in golds)
    return exact, max(official_f1(given, gold, version) for gold in golds)


TEXTS = st.lists(st.sampled_from(["the", "a", "An", "cat", "Cat", "cat's", "!", "U.S.", " ", "\t", "–", "theatre"]))


@given(TEXTS, st.lists(TEXTS, min_size=1, max_size=3), st.booleans())
def test_scores_of_texts_are_those_of_the_official_scripts(given: list[str], golds: list[list[str]], v2: bool) -> None:
    text, gold = " ".join(given), tuple(" ".join(one) for one in golds)
    passage = Passage(text, ((0, len(text)),), Answers(gold, optional=v2))
    assert passage.scores(0, 0) == pytest.approx(official(text, gold, 2 if v2 else 1), abs=1e-12)


def test_other_gold_answers_make_other_labels() -> None:
    [first, *_] = questions(1, False)
    other = replace(first, label=replace(first.label, texts=(*first.label.texts, "the")))
    labels = [EncodedSplit([one], wordpiece(), MAX, head=AnswerHead())[[0]].label_B for one in (first, first, other)]
    assert torch.equal(labels[0], labels[1])
    assert not torch.equal(labels[0], labels[2])


def test_the_best_span_is_that_of_all_pairs() -> None:
    logits_BS2 = torch.randn(6, 60, 2, generator=torch.Generator().manual_seed(0))
    first_B, last_B = torch.tensor([5, 9, 58, 3, 20, 1]), torch.tensor([59, 9, 58, 40, 58, 57])
    for row, found in enumerate(zip(*best_spans(logits_BS2, first_B, last_B), strict=True)):
        pairs = [
            (float(logits_BS2[row, start, 0] + logits_BS2[row, end, 1]), start, end)
            for start in range(int(first_B[row]), int(last_B[row]) + 1)
            for end in range(start, min(int(last_B[row]) + 1, start + LONGEST_ANSWER))
        ]
        score, start, end = max(pairs)
        assert found == (pytest.approx(score), start, end)


def questions(count: int, optional: bool) -> list[Example]:
    """Questions about texts of one to four windows, some with two gold answers or, if they may, none."""
    generator = torch.Generator().manual_seed(1)
    vocabulary = ["the cat", "dogs", "saw", "unhappy", "a man", "eats", "fish.", "xylo9", "!"]
    examples = []
    for index in range(count):
        chosen = torch.randint(0, len(vocabulary), (4 + 7 * (index % 4),), generator=generator)
        context = " ".join(vocabulary[word] for word in chosen)
        start = context.index(" ", len(context) // 3) + 1
        gold = context[start:].split(" ")[0]
        golds = () if optional and index % 3 == 0 else (gold, context[:3].strip())[: 1 + index % 2]
        examples.append(Example(index, ("a cat saw", context), Answers(golds, start, optional), group=index // 2))
    return examples


def answerer(tokenizer: PreTrainedTokenizerFast, family: str = "bert") -> PreTrainedModel:
    settings = {"vocab_size": len(tokenizer), "num_labels": 2}
    return random_model(AutoModelForQuestionAnswering, family, 0.1, **settings)


def post_processed(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, example: Example
) -> tuple[str, list[float]]:
    """The answer to one question and the loss of each window, as in the library's script, without a limit of n_best."""
    encoded: Any = tokenizer(
        *example.texts,
        truncation="only_second",
        max_length=MAX,
        stride=OVERLAP,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    spans: list[tuple[float, str]] = []
    nulls, losses = [], []
    gold = example.label
    for window, ids in enumerate(encoded["input_ids"]):
        inputs = {"input_ids": torch.tensor([ids])}
        if "token_type_ids" in encoded:
            inputs["token_type_ids"] = torch.tensor([encoded["token_type_ids"][window]])
        with torch.no_grad():
            output = model(**inputs)
        start_S, end_S = output.start_logits[0], output.end_logits[0]
        offsets = encoded["offset_mapping"][window]
        inside = [token for token, text in enumerate(encoded.sequence_ids(window)) if text == 1]
        nulls.append(float(start_S[0] + end_S[0]))
        for start in inside:
            for end in inside:
                if start <= end < start + LONGEST_ANSWER:
                    text = example.texts[1][offsets[start][0] : offsets[end][1]]
                    spans.append((float(start_S[start] + end_S[end]), text))
        first = last = 0
        if gold.texts:
            begin, finish = gold.start, gold.start + len(gold.texts[0])
            if offsets[inside[0]][0] <= begin and offsets[inside[-1]][1] >= finish:
                first = max(token for token in inside if offsets[token][0] <= begin)
                last = min(token for token in inside if offsets[token][1] >= finish)
        places = torch.tensor([first]), torch.tensor([last])
        ends = zip((start_S, end_S), places, strict=True)
        losses.append(sum(float(functional.cross_entropy(logits[None], place)) for logits, place in ends) / 2)
    score, text = max(spans, key=lambda span: span[0])
    return "" if gold.optional and min(nulls) > score else text, losses


@pytest.mark.parametrize("tokenizer", [wordpiece(), byte_level()], ids=["pieces", "bytes"])
@pytest.mark.parametrize("optional", [False, True], ids=["1.1", "2.0"])
def test_a_sweep_gives_the_answers_of_a_loop_over_questions(tokenizer: PreTrainedTokenizerFast, optional: bool) -> None:
    examples = questions(12, optional)
    model = answerer(tokenizer)
    if optional:
        # The first token's logits near those of the best spans, so that some questions get no answer.
        with torch.no_grad():
            direction = model.qa_outputs.weight.sum(0)
            model.bert.embeddings.word_embeddings.weight[tokenizer.cls_token_id] = direction
    split = EncodedSplit(examples, tokenizer, MAX, head=AnswerHead())
    assert len(split) > len(examples)
    layers, heads = model.config.num_hidden_layers, model.config.num_attention_heads
    plan = Plan("zero", layers, heads, tuple(every_head(layers, heads)))
    # The windows of a question are in different batches.
    order = torch.randperm(len(split), generator=torch.Generator().manual_seed(0)).tolist()
    batches = [split[order[first : first + 5]] for first in range(0, len(order), 5)]
    outcomes = exact_sweep(model, plan, batches)
    assert outcomes.index_N.tolist() == [example.index for example in examples]
    assert outcomes.group_N.tolist() == [example.group for example in examples]
    empty = 0
    for place in (None, 0, 5, layers * heads - 1):
        edits = [] if place is None else [HeadEdit(*plan.variants[place].heads[0], "zero")]
        answer_NF = outcomes.clean_NC if place is None else outcomes.logits_NVC[:, place]
        with override(model, edits):
            for example, answer_F in zip(examples, answer_NF, strict=True):
                given, losses = post_processed(model, tokenizer, example)
                expected = official(given, example.label.texts or ("",), 2 if optional else 1)
                assert answer_F[1:3].tolist() == pytest.approx(expected, abs=1e-6)
                assert answer_F[0].item() == pytest.approx(sum(losses) / len(losses), abs=1e-4)
                empty += not given
    assert (empty > 0) == optional
    verdicts = judge(TASK.head.metrics["exact_match"], outcomes.predictions(TASK), Judging(resamples=200))
    assert verdicts.baseline[0] == pytest.approx(float(outcomes.clean_NC[:, 1].mean()))


@pytest.mark.parametrize("family", ["roberta", "distilbert", "electra", "albert", "mpnet", "deberta-v2", "modernbert"])
def test_the_engine_gives_the_answers_of_whole_passes(family: str) -> None:
    tokenizer = wordpiece(segments=False)
    model = answerer(tokenizer, family)
    batch = EncodedSplit(questions(5, True), tokenizer, MAX, head=AnswerHead())[[0, 1, 2, 3]]
    layers, heads = model.config.num_hidden_layers, model.config.num_attention_heads
    plan = Plan("zero", layers, heads, tuple(every_head(layers, heads)))
    engine = Engine(model, plan)
    clean_BF, answer_BVF = engine.run(batch.inputs(), head=batch.head, label_B=batch.label_B)
    assert engine.shares
    check_attention(model)
    for variant, answer_BF in zip([None, *plan.variants], [clean_BF, *answer_BVF.unbind(1)], strict=True):
        edits = [] if variant is None else [HeadEdit(layer, head, "zero") for layer, head in variant.heads]
        with torch.no_grad(), override(model, edits):
            output = model(**batch.inputs())
        expected_BF = batch.answers(torch.stack([output.start_logits, output.end_logits], -1))
        assert torch.allclose(answer_BF, expected_BF, atol=1e-3)


def test_the_api_takes_questions_texts_and_answers() -> None:
    tokenizer = wordpiece()
    model = answerer(tokenizer)
    examples = questions(12, True)
    texts = [example.texts for example in examples]
    golds = [[*example.label.texts] or None for example in examples]
    found = bs.disable(
        model,
        tokenizer,
        texts,
        golds,
        group=[example.group for example in examples],
        metric="answer_f1",
        max_length=MAX,
        mode="zero",
        resamples=200,
    )
    given = [post_processed(model, tokenizer, example)[0] for example in examples]
    expected = [official(one, example.label.texts or ("",), 2)[1] for one, example in zip(given, examples, strict=True)]
    assert found.to_pandas()["baseline"].iloc[0] == pytest.approx(sum(expected) / len(expected), abs=1e-6)
    for labels, match in (
        (["dog"] * 12, r"Answer 'dog' is not in the text"),
        ([3] * 12, r"Label 3 is not an answer"),
    ):
        with pytest.raises(UserError, match=match):
            bs.disable(model, tokenizer, texts, labels)
    with pytest.raises(UserError, match=r"averages the answers of 4 draws.*allow one draw"):
        bs.disable(model, tokenizer, texts, golds, mode="resample")
    with pytest.raises(UserError, match=r"is not a pair of question and text"):
        bs.disable(model, tokenizer, ["a cat"], [None])


def test_an_evaluation_counts_each_question_once() -> None:
    tokenizer = wordpiece()
    examples = questions(9, False)
    model = answerer(tokenizer)
    split = EncodedSplit(examples, tokenizer, MAX, head=AnswerHead())
    rows = [
        [len(row.ids) for one, row in zip(split.examples, split.rows, strict=True) if one.document == number]
        for number in range(len(examples))
    ]
    assert any(len(windows) > 1 for windows in rows)
    assert example_lengths(split) == [*map(sum, rows)]
    parts = []
    for position in range(len(split)):
        batch = split[[position]]
        with torch.no_grad():
            output = model(**batch.inputs())
        answers = batch.answers(torch.stack([output.start_logits, output.end_logits], -1))
        parts.append((batch.index_B, answers, batch.head.outcome_labels(batch.label_B)))
    index_N, answer_NF, label_N = collected(parts, TASK.head)
    assert index_N.tolist() == list(range(9))
    # Runs on other questions of the same numbers are told apart by these.
    assert len({(example.texts[1], example.label) for example in examples}) == len({*label_N.tolist()})
    found = scores(answer_NF, label_N, TASK)
    expected = [official(post_processed(model, tokenizer, example)[0], example.label.texts, 1) for example in examples]
    assert found["exact_match"] == pytest.approx(sum(exact for exact, _ in expected) / 9)
    assert found["answer_f1"] == pytest.approx(sum(f1 for _, f1 in expected) / 9)


def squad_file(folder: Path, *asked: dict[str, Any], name: str = "dev-v1.1.json") -> Path:
    path = folder / name
    articles = [
        {
            "title": title,
            "paragraphs": [
                {"context": "The cat saw a man.", "qas": [{"id": title, "question": f"Who, {title}?", **one}]}
            ],
        }
        for title, one in zip(("cats", "men"), asked, strict=True)
    ]
    path.write_text(json.dumps({"version": "1.1", "data": articles}))
    return path


def config(**settings: Any) -> SourceConfig:
    return SourceConfig.read("data", {**SourceConfig.defaults(), "source": "squad", **settings})


def test_squad_files_are_read_with_their_groups(tmp_path: Path) -> None:
    right = {"answers": [{"text": "cat", "answer_start": 4}, {"text": "The cat", "answer_start": 0}]}
    path = squad_file(tmp_path, right, {"answers": [], "is_impossible": True})
    layout = {"files": {"validation": path.name}}
    task = TASK.model_copy(update={"unanswerable": True})
    [first, second] = make_source(
        config(path=str(path), eval_path=str(path), group="title"), _with(task, layout)
    ).examples("validation")
    assert first.texts == ("Who, cats?", "The cat saw a man.")
    assert first.label == Answers(("cat", "The cat"), 4, optional=True)
    assert second.label == Answers((), 0, optional=True)
    assert first.group != second.group
    with pytest.raises(UserError, match=r"give data.eval_path=<SQuAD file to evaluate> too"):
        make_source(config(path=str(path)), _with(TASK, layout))
    with pytest.raises(UserError, match=r"question 'men' has no answer; give it one, or set task.unanswerable=true"):
        make_source(config(root=str(tmp_path)), _with(TASK, layout)).examples("validation")


def _with(task: Task, layout: dict[str, Any]) -> Task:
    return Task(**{**task.model_dump(exclude={"squad"}), "squad": layout})


@pytest.mark.parametrize(
    ("texts", "starts", "match"),
    [
        (["dog"], [4], r"has the answer 'dog' at character 4, where its text has 'cat'"),
        (["cat"], [-1], r"at character -1"),
        (["cat", "a"], [4], r"has 2 answers at 1 places"),
        ([""], [0], r"has the answer ''"),
        ([], [], r"has no answer"),
    ],
)
def test_answers_that_are_not_in_their_text_are_refused(texts: list[Any], starts: list[Any], match: str) -> None:
    with pytest.raises(UserError, match=match):
        read_answers(texts, starts, "The cat saw a man.", optional=False, where="Row 0")


def test_a_question_too_long_for_its_windows_is_refused() -> None:
    example = replace(questions(1, False)[0], texts=("the cat " * 10, "the cat saw a man"))
    with pytest.raises(UserError, match=r"The question of row 0 has 20 tokens.*windows of 24 tokens have room for 12"):
        EncodedSplit([example], wordpiece(), MAX, head=AnswerHead())


def test_demo_questions_are_answered_by_one_sentence_each() -> None:
    examples = DemoQuestions().examples("validation")
    assert len({example.texts[0] for example in examples}) == len(examples) > 350
    for example in examples:
        question, context = example.texts
        [answer] = example.label.texts
        assert context[example.label.start :].startswith(answer)
        # With the question word in place of the answer, one sentence becomes the question.
        sentences = [part.strip() + "." for part in context.split(".") if part.strip()]
        assert sum(answer in one and _as_question(one, answer, question) for one in sentences) == 1


def _as_question(sentence: str, answer: str, question: str) -> bool:
    words = ("who", "what", "when", "where", "how")
    made = {f"{sentence.replace(answer, word, 1).rstrip('.')}?".casefold() for word in words}
    return question.casefold() in made
