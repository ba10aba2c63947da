"""Token heads against seqeval, a loop of whole passes and scikit-learn's accuracy."""

from typing import Any

import numpy as np
import pytest
import torch
from families import random_model, tiny_batch
from hypothesis import given
from hypothesis import strategies as st
from seqeval.metrics import accuracy_score, f1_score
from torch.nn import functional
from transformers import AutoModelForTokenClassification, PreTrainedModel

from bertsecrets.ablation.engine import Engine
from bertsecrets.ablation.plan import Plan, every_head, every_layer
from bertsecrets.ablation.planner import Pilot
from bertsecrets.ablation.predictions import PairedPredictions
from bertsecrets.ablation.seeds import RunSweep, judge_over_seeds
from bertsecrets.ablation.verdicts import Judging, judge
from bertsecrets.attention.override import HeadEdit, override
from bertsecrets.data.batch import Batch
from bertsecrets.task_heads.base import fingerprints
from bertsecrets.task_heads.labels import IGNORED
from bertsecrets.task_heads.tokens import TokenHead

BIO = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
SCHEMES = {
    "bio": BIO,
    "bioes": (*BIO, "E-PER", "S-PER", "E-LOC", "S-LOC"),
    "bilou": (*BIO, "L-PER", "U-PER", "L-LOC", "U-LOC"),
}
AS_BIOES = {"L": "E", "U": "S"}


def answers_of(labels: tuple[str, ...], gold: list[list[int]], predicted: list[list[int]]) -> torch.Tensor:
    """The answers of sentences of tags, with an unscored token before every word."""
    width = 2 * max(map(len, gold))
    label_BS = torch.full((len(gold), width), IGNORED)
    logits_BSC = torch.randn(len(gold), width, len(labels), generator=torch.Generator().manual_seed(0))
    for row, (tags, guesses) in enumerate(zip(gold, predicted, strict=True)):
        for word, (tag, guess) in enumerate(zip(tags, guesses, strict=True)):
            label_BS[row, 2 * word + 1] = tag
            logits_BSC[row, 2 * word + 1, guess] = 9.0
    head = TokenHead(labels)
    return head.answers(head.select(logits_BSC, label_BS), label_BS)


@st.composite
def tagged(draw: st.DrawFn) -> tuple[tuple[str, ...], list[list[int]], list[list[int]]]:
    labels = SCHEMES[draw(st.sampled_from(sorted(SCHEMES)))]
    gold = draw(st.lists(st.lists(st.integers(0, len(labels) - 1), min_size=1, max_size=8), min_size=1, max_size=6))
    predicted = [[draw(st.integers(0, len(labels) - 1)) for _ in tags] for tags in gold]
    return labels, gold, predicted


@given(tagged())
def test_entities_and_accuracy_are_those_of_seqeval(case: Any) -> None:
    labels, gold, predicted = case
    answer_NF = answers_of(*case).double().numpy()
    # seqeval's default mode knows the prefixes of BIOES alone.
    named = [
        [[AS_BIOES.get(labels[tag][0], labels[tag][0]) + labels[tag][1:] for tag in tags] for tags in sentences]
        for sentences in (gold, predicted)
    ]
    for name, expected in (
        ("entity_f1", f1_score(*named, zero_division=0)),
        ("token_accuracy", accuracy_score(*named)),
    ):
        metric = TokenHead.metrics[name]
        mean_F = metric.features(np.zeros(len(gold)), answer_NF[None]).mean(1)
        assert metric.score(mean_F)[0] == pytest.approx(float(expected), abs=1e-12)


def test_other_tags_have_no_entities() -> None:
    answer_NF = answers_of(("NOUN", "VERB", "B"), [[0, 1, 2]], [[0, 1, 1]])
    assert answer_NF[0, 1:].tolist() == [2, 3, 0, 0, 0]


def tagger(family: str) -> PreTrainedModel:
    return random_model(AutoModelForTokenClassification, family, 0.2, num_labels=len(BIO))


def tagged_batch(model: PreTrainedModel, lengths: tuple[int, ...] = (11, 7, 4)) -> Batch:
    """Some tokens without a label; labels near the model's own answers, for scores far from 0."""
    inputs = tiny_batch(lengths)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        label_BS = model(**inputs).logits.argmax(-1)
    other_BS = torch.randint(0, len(BIO), label_BS.shape, generator=generator)
    chance_BS = torch.rand(label_BS.shape, generator=generator)
    label_BS = torch.where(chance_BS < 0.3, other_BS, label_BS)
    label_BS[(inputs["attention_mask"] == 0) | (chance_BS > 0.8)] = IGNORED
    nothing_BS = torch.zeros_like(label_BS)
    return Batch(
        input_ids_BS=inputs["input_ids"],
        attention_mask_BS=inputs["attention_mask"],
        token_type_ids_BS=None,
        special_BS=nothing_BS.bool(),
        word_BS=nothing_BS,
        index_B=torch.arange(len(label_BS)),
        label_B=label_BS,
        head=TokenHead(BIO),
    )


@pytest.mark.parametrize(
    "family", ["bert", "roberta", "distilbert", "electra", "albert", "mpnet", "deberta-v2", "modernbert"]
)
@pytest.mark.parametrize("mode", ["zero", "mean"])
def test_the_engine_gives_the_answers_of_whole_passes(family: str, mode: str) -> None:
    model = tagger(family)
    batch = tagged_batch(model)
    layers, heads = model.config.num_hidden_layers, model.config.num_attention_heads
    plan = Plan(mode, layers, heads, (*every_head(layers, heads), *every_layer(layers, heads)))
    constants_LHd = torch.randn(layers, heads, model.config.hidden_size // heads) if mode == "mean" else None
    engine = Engine(model, plan, constants_LHd=constants_LHd)
    clean_BF, answer_BVF = engine.run(batch.inputs(), head=batch.head, label_B=batch.label_B)
    assert engine.shares
    for variant, answer_BF in zip([None, *plan.variants], [clean_BF, *answer_BVF.unbind(1)], strict=True):
        edits = [] if variant is None else [HeadEdit(layer, head, mode) for layer, head in variant.heads]
        with torch.no_grad(), override(model, edits, constants_LHd):
            logits_BSC = model(**batch.inputs()).logits
        for row, label_S in enumerate(batch.label_B):
            scored_S = label_S != IGNORED
            loss = functional.cross_entropy(logits_BSC[row, scored_S], label_S[scored_S])
            predicted_W, gold_W = logits_BSC[row, scored_S].argmax(-1), label_S[scored_S]
            assert answer_BF[row, 0].item() == pytest.approx(loss.item(), abs=1e-4)
            assert answer_BF[row, 1:3].tolist() == [int((predicted_W == gold_W).sum()), len(gold_W)]


def test_words_are_labelled_at_their_first_pieces() -> None:
    head = TokenHead(BIO)
    label_BS = head.label_tensor([(1, 0), (2,)], [(-1, 0, 0, 1, -1), (-1, 0, -1)], 6)
    assert label_BS.tolist() == [
        [IGNORED, 1, IGNORED, 0, IGNORED, IGNORED],
        [IGNORED, 2, IGNORED, IGNORED, IGNORED, IGNORED],
    ]


def test_the_baseline_gives_every_word_the_commonest_tag() -> None:
    answer, answer_NF = TokenHead(BIO).baseline([(0, 1, 0), (0, 3)])
    assert answer == "O"
    assert answer_NF[:, 1:].tolist() == [[2, 3, 0, 0, 1], [1, 2, 0, 0, 1]]
    # Words without a tag are not scored, even if every sentence has some.
    assert TokenHead(BIO).baseline([(0, IGNORED, 1), (0,)])[1][:, 1:].tolist() == [[1, 2, 0, 0, 1], [1, 1, 0, 0, 0]]


def test_an_example_is_changed_if_what_a_metric_reads_is_another_number() -> None:
    """Another loss alone is no other answer; a tag that is wrong now is one for accuracy and not for entities."""
    clean_NF = np.tile([0.5, 4.0, 5.0, 1.0, 2.0, 2.0], (3, 1))
    other_VNF = np.stack([clean_NF, clean_NF])
    other_VNF[0, :, 0] = 0.9
    other_VNF[1, 1, 1] = 3.0
    paired = PairedPredictions(np.zeros(3), clean_NF, other_VNF)
    flips = {
        name: judge(metric, paired, Judging(resamples=10)).flips.tolist() for name, metric in TokenHead.metrics.items()
    }
    assert flips == {"token_accuracy": [0, pytest.approx(1 / 3)], "entity_f1": [0, 0]}


def test_a_plan_of_entities_counts_what_the_metric_counts() -> None:
    """Heads that each lose one of four entities in some sentences: the score changes by as much, over seeds too."""
    generator = np.random.default_rng(0)
    clean_NF = np.tile([0.5, 9.0, 10.0, 4.0, 4.0, 4.0], (60, 1))
    lost_VN = generator.random((5, 60)) < np.array([0, 0.02, 0.05, 0.3, 0.6])[:, None]
    other_VNF = np.stack([clean_NF] * 5)
    other_VNF[..., 3] -= lost_VN
    metric, judging = TokenHead.metrics["entity_f1"], Judging(resamples=50, permutations=199)
    verdicts = judge(metric, PairedPredictions(np.zeros(60), clean_NF, other_VNF), judging)
    assert verdicts.delta == pytest.approx(-lost_VN.mean(1) / 4)
    rows = [
        {
            "variant": f"l00h{v:02}",
            "kind": "head",
            "layer": 0,
            "head": v,
            "metric": "entity_f1",
            "sweep": "exact",
            **{name: getattr(judging, name) for name in ("margin", "level", "correction", "false_discovery_rate")},
            **{name: float(getattr(verdicts, name)[v]) for name in ("low", "high", "p_value", "stderr", "flips")},
            "verdict": verdicts.verdict[v],
        }
        for v in range(5)
    ]
    sweeps = [
        RunSweep(np.zeros(60), clean_NF, other_VNF, name=name, rows=rows, index_N=np.arange(60)) for name in ("a", "b")
    ]
    assert Pilot.of(sweeps[:1], rows).change_SV[0] == pytest.approx(verdicts.delta)
    assert judge_over_seeds(sweeps).effects.delta == pytest.approx(verdicts.delta)


LABELS = st.lists(st.sampled_from([IGNORED, 0, 1, 2, 30_521]), min_size=2, max_size=12)


@given(LABELS, LABELS)
def test_labels_that_differ_have_other_numbers(one: list[int], other: list[int]) -> None:
    width = max(len(one), len(other))
    label_BS = torch.tensor([[*row, *[IGNORED] * (width - len(row))] for row in (one, other)])
    first, second = fingerprints(label_BS).tolist()
    assert (first == second) == (label_BS[0].tolist() == label_BS[1].tolist())


@given(LABELS, st.integers(0, 20))
def test_padding_changes_nothing(row: list[int], padding: int) -> None:
    [short] = fingerprints(torch.tensor([row])).tolist()
    [padded] = fingerprints(torch.tensor([[*row, *[IGNORED] * padding]])).tolist()
    assert short == padded
    assert torch.tensor(short, dtype=torch.float32).long().item() == short
