"""Multiple choice against the library's own model, which reads all choices of a question at once."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import pytorch_lightning as pl
import torch
from cli.runs import door, small
from data.tasks import task as task_of
from data.toy import wordpiece
from families import HEADS, random_model
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader
from transformers import AutoModelForMultipleChoice, AutoTokenizer, PreTrainedModel

import bertsecrets as bs
from bertsecrets.ablation.engine import Engine
from bertsecrets.ablation.plan import Plan, every_head
from bertsecrets.analysis import Context, find
from bertsecrets.attention.override import HeadEdit, override
from bertsecrets.attention.self_check import check_attention
from bertsecrets.data.example import Example
from bertsecrets.data.inferred import inferred_task
from bertsecrets.data.sources import make_source
from bertsecrets.data.sources.choice_rows import DemoChoices
from bertsecrets.data.sources.demo import demo_examples
from bertsecrets.data.sources.factory import SourceConfig
from bertsecrets.data.task import Task, task_from_config
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.errors import UserError
from bertsecrets.importance.head_gradient import HeadGradient
from bertsecrets.lightning import DisableHeads
from bertsecrets.measures.analysis import MeasureAnalysis, Watched
from bertsecrets.measures.entropy import Entropy
from bertsecrets.task_heads.base import output_of
from bertsecrets.task_heads.choice import ChoiceHead, score_single_choices

WORDS = ["the dog", "the cat", "a chair", "chased", "sat", "the old man", "on"]
TASK = Task(name="endings", kind="choice", metrics=("accuracy",), texts=1, labels=("A", "B", "C"))


def questions(count: int = 9) -> list[Example]:
    """Questions with three choices of different lengths."""
    generator = torch.Generator().manual_seed(1)

    def text(words: int) -> str:
        return " ".join(WORDS[at] for at in torch.randint(0, len(WORDS), (words,), generator=generator))

    return [
        Example(index, (text(1 + index % 3), *(text(1 + (index + at) % 4) for at in range(3))), index % 3)
        for index in range(count)
    ]


def chooser(family: str = "bert") -> PreTrainedModel:
    return random_model(AutoModelForMultipleChoice, family, vocab_size=len(wordpiece()))


def at_once(model: PreTrainedModel, example: Example, **options: Any) -> Any:
    """The model's output for one question, called as the library documents it: ``[1, choices, tokens]``."""
    text, *choices = example.texts
    tokenizer = wordpiece(segments=hasattr(model.config, "type_vocab_size") and model.config.type_vocab_size > 1)
    encoded = tokenizer([text] * len(choices), choices, padding=True, return_tensors="pt")
    return model(**{name: tensor[None] for name, tensor in encoded.items()}, **options)


@pytest.mark.parametrize("family", ["roberta", "distilbert", "electra", "albert", "mpnet", "deberta-v2", "modernbert"])
def test_the_engine_gives_the_answers_of_whole_passes(family: str) -> None:
    model, examples = chooser(family), questions(4)
    segments = hasattr(model.config, "type_vocab_size") and model.config.type_vocab_size > 1
    batch = EncodedSplit(examples, wordpiece(segments=segments), 64, head=TASK.head)[range(4)]
    layers = model.config.num_hidden_layers
    plan = Plan("zero", layers, HEADS, tuple(every_head(layers, HEADS)))
    engine = Engine(model, plan)
    answers = engine.run(batch.inputs(), head=batch.head, label_B=batch.label_B)
    assert engine.shares
    check_attention(model)
    for place, answer_BC in enumerate([answers[0], *answers[1].unbind(1)]):
        edits = [HeadEdit(layer, head, "zero") for layer, head in plan.variants[place - 1].heads] if place else []
        with torch.no_grad(), override(model, edits):
            expected = torch.cat([at_once(model, example).logits for example in examples])
        assert torch.allclose(answer_BC, expected, atol=1e-4)


def test_losses_and_their_gradients_are_those_of_the_library() -> None:
    model, examples = chooser(), questions(5)
    batch = EncodedSplit(examples, wordpiece(), 64, head=TASK.head)[range(5)]
    label_N = torch.tensor([int(example.label) for example in examples])
    losses = torch.stack([at_once(model, one, labels=label_N[[at]]).loss for at, one in enumerate(examples)])
    expected = torch.autograd.grad(losses.mean(), [*model.parameters()])
    score_single_choices(model)
    output = output_of(model, batch.inputs())
    assert torch.allclose(batch.losses(output), losses, atol=1e-5)
    assert torch.allclose(
        batch.losses(output), functional.cross_entropy(batch.answers(output), label_N, reduction="none")
    )
    found = torch.autograd.grad(batch.loss(output), [*model.parameters()])
    assert all(torch.allclose(*pair, atol=1e-5) for pair in zip(found, expected, strict=True))
    # The second question alone, as measures of weights read it.
    alone = batch.rows(torch.tensor([1]))
    assert torch.allclose(alone.losses(output_of(model, alone.inputs())), losses[1], atol=1e-5)


def test_importance_is_the_derivative_of_the_loss_of_a_question() -> None:
    model, examples = chooser(), questions()
    layers, width = model.config.num_hidden_layers, model.config.hidden_size // HEADS
    split = EncodedSplit(examples, wordpiece(), 64, head=TASK.head)
    context, analysis = (
        Context.of_split(model, TASK, split, 4, progress=False),
        MeasureAnalysis([Watched(HeadGradient)]),
    )
    analysis.check(context)
    [findings] = find(analysis, context)
    derivatives = []
    for example in examples:
        gate_LH = torch.ones(layers, HEADS, requires_grad=True)

        def gated(_: Any, args: tuple[Tensor], gate_H: Tensor) -> tuple[Tensor]:
            return (args[0] * gate_H.repeat_interleave(width),)

        handles = [
            layer.attention.output.dense.register_forward_pre_hook(
                lambda module, args, at=at, gate_LH=gate_LH: gated(module, args, gate_LH[at])
            )
            for at, layer in enumerate(model.bert.encoder.layer)
        ]
        loss = at_once(model, example, labels=torch.tensor([example.label])).loss
        derivatives.append(torch.autograd.grad(loss, gate_LH)[0])
        for handle in handles:
            handle.remove()
    signed_NLH = torch.stack(derivatives).double()
    grid = findings.grids[0]
    assert torch.allclose(grid.column("signed"), signed_NLH.mean(0), atol=1e-6)
    assert torch.allclose(grid.column("example"), signed_NLH.abs().mean(0), atol=1e-6)
    assert int(grid.count_LHC[..., grid.columns.index("example")].max()) == len(examples)


def test_maps_are_measured_for_every_choice() -> None:
    model, examples = chooser(), questions(4)
    pairs = [(text, choice) for text, *choices in (example.texts for example in examples) for choice in choices]
    split = EncodedSplit(examples, wordpiece(), 64, head=TASK.head)
    context, analysis = Context.of_split(model, TASK, split, 4, progress=False), MeasureAnalysis([Watched(Entropy)])
    analysis.check(context)
    [findings] = find(analysis, context)
    expected = bs.measure(model, wordpiece(), pairs, "entropy")
    assert torch.allclose(findings.grids[0].value_LHC, expected.value_LHC, atol=1e-6)


def as_given(examples: list[Example]) -> tuple[list[Any], list[Any]]:
    return [(text, choices) for text, *choices in (one.texts for one in examples)], [one.label for one in examples]


def test_the_api_takes_texts_and_their_choices() -> None:
    model, examples = chooser(), questions()
    texts, labels = as_given(examples)
    found = bs.disable(model, wordpiece(), texts, labels, ["heads", "layers"], mode="zero", resamples=100)
    with torch.no_grad():
        right = [int(at_once(model, example).logits.argmax()) == example.label for example in examples]
    assert found.to_pandas()["baseline"].iloc[0] == pytest.approx(sum(right) / len(right))
    assert not model._forward_pre_hooks
    bs.fine_tune(model, wordpiece(), texts, labels, epochs=20, learning_rate=1e-3)
    with torch.no_grad():
        assert sum(int(at_once(model, example).logits.argmax()) == example.label for example in examples) > sum(right)
    with pytest.warns(UserWarning, match="texts were truncated to 5 tokens"):
        bs.disable(model, wordpiece(), texts, labels, mode="zero", resamples=100, max_length=5)


@pytest.mark.parametrize(
    ("texts", "labels", "match"),
    [
        ([("a", ["the dog", "on"])], [2], r"Label 2 is not the place of a choice; expected a whole number from 0 to 1"),
        ([("a", ["the dog", "on"])], ["A"], r"Label 'A' is not the place of a choice"),
        ([("a", ["the dog"])], [0], r"has no choices, one, or not as many as the first text"),
        ([("a", ["the dog", "on"]), ("a", ["on", "the", "a"])], [0, 0], r"not as many as the first text"),
        (["the dog"], [0], r"give \('text', \['choice', 'choice'\]\)"),
    ],
)
def test_texts_without_choices_and_labels_beside_them_are_refused(texts: Any, labels: Any, match: str) -> None:
    with pytest.raises(UserError, match=match):
        bs.disable(chooser(), wordpiece(), texts, labels)


class Chooses(pl.LightningModule):
    """A user's own module, whose library model reads all choices at once."""

    def __init__(self) -> None:
        super().__init__()
        self.model = chooser()

    def validation_step(self, batch: Any, _: int) -> None:
        self.model(**batch["inputs"])

    def configure_optimizers(self) -> None:
        pass


def answered(module: Any, batch: Any) -> tuple[Tensor, Tensor]:
    return module.model(**batch["inputs"]).logits, batch["labels"]


def test_callbacks_disable_heads_of_a_module_of_ones_own(tmp_path: Path) -> None:
    examples = questions()
    batches = []
    for first in range(0, len(examples), 3):
        part = examples[first : first + 3]
        texts = [text for one in part for text in one.texts[:1] * 3]
        choices = [choice for one in part for choice in one.texts[1:]]
        encoded = wordpiece()(texts, choices, padding=True, return_tensors="pt")
        inputs = {name: tensor.unflatten(0, (len(part), 3)) for name, tensor in encoded.items()}
        batches.append({"inputs": inputs, "labels": torch.tensor([one.label for one in part])})
    callback = DisableHeads(outcome=answered, mode="zero", folder=tmp_path / "heads", resamples=100)
    trainer = pl.Trainer(callbacks=[callback], accelerator="cpu", logger=False, enable_progress_bar=False)
    module = Chooses().eval()
    trainer.validate(module, DataLoader(batches, batch_size=None), verbose=False)
    own = pd.read_parquet(tmp_path / "heads" / "ablation.parquet").set_index("variant")
    expected = bs.disable(module.model, wordpiece(), *as_given(examples), mode="zero", resamples=100).to_pandas()
    expected = expected.set_index("variant")
    own = own[own["metric"] == "accuracy"].loc[expected.index]
    assert own["delta"].to_numpy() == pytest.approx(expected["delta"].to_numpy(), abs=1e-6)


def written(path: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"source": "jsonl", "path": str(path)}


ROWS = [
    {"q": f"question {at}", "b": "It", "c0": f"is {at}", "c1": "is not", "options": ["is", f"was {at}"]}
    for at in range(4)
]


@pytest.mark.parametrize(
    ("columns", "labels", "names"),
    [
        ({"text": ["q", "b"], "choices": ["c0", "c1"]}, [0, 1, 1, 0], ["0", "1"]),
        ({"text": "q", "choices": ["c0", "c1"]}, ["2", "1", "1", "2"], ["1", "2"]),
        ({"text": "q", "choices": "options"}, ["B", "A", "A", "B"], ["A", "B"]),
        ({"text": "q", "choices": ["c0", "c1"]}, ["c1", "c0", "c1", "c0"], ["c0", "c1"]),
    ],
)
def test_files_have_columns_of_choices_or_lists(
    columns: dict[str, Any], labels: list[Any], names: list[str], tmp_path: Path
) -> None:
    rows = [row | {"label": label} for row, label in zip(ROWS, labels, strict=True)]
    config = SourceConfig.read("data", written(tmp_path / "rows.jsonl", rows) | columns)
    facts = inferred_task(config)
    assert (facts["kind"], facts["labels"], facts["metrics"]) == ("choice", names, ["accuracy"])
    training = {"learning_rate": 1e-4, "batch_size": 2, "max_epochs": 1, "max_length": 16}
    task = task_from_config({**facts, "evaluation": {"val": "held_out"}, "test": {}, "training": training})
    read = make_source(config, task.model_copy(update={"evaluation": {}})).examples("train")
    begun = "It " if len(facts["table"]["texts"]) == 2 else ""
    for example, row, label in zip(read, rows, labels, strict=True):
        given = row["options"] if columns["choices"] == "options" else [row["c0"], row["c1"]]
        assert example.texts == (row["q"], *(begun + choice for choice in given))
        assert example.label == names.index(str(label))


@pytest.mark.parametrize(
    ("choices", "changes", "match"),
    [
        (["c0", "c1"], {"label": 3}, r"contains 3, but rows have 2 choices; expected 0 to 1, 1 to 2, A to B"),
        (["c0", "c1"], {"label": "yes"}, r"contains 'yes', but rows have 2 choices; expected 0 to 1, 1 to 2, A to B"),
        (["c0"], {}, r"column 'c0' contains|has rows with 0 choice"),
        (["c0", "c7"], {}, r"has no column 'c7'"),
        ("options", {"options": ["only"]}, r"has 1 choices in some rows and 2 in others"),
    ],
)
def test_files_that_are_not_choices_are_refused(
    choices: Any, changes: dict[str, Any], match: str, tmp_path: Path
) -> None:
    label: Any = "0" if changes == {"label": "yes"} else 0
    rows = [row | {"label": label} | (changes if at == 2 else {}) for at, row in enumerate(ROWS)]
    with pytest.raises(UserError, match=match):
        inferred_task(
            SourceConfig.read("data", written(tmp_path / "rows.jsonl", rows) | {"text": "q", "choices": choices})
        )


def test_rows_with_other_numbers_of_choices_are_refused() -> None:
    with pytest.raises(UserError, match=r"Row 7 has 2 choices, 'on / the dog', but the task has 3 \(A, B, C\)"):
        EncodedSplit([Example(7, ("a", "on", "the dog"), 0)], wordpiece(), 32, head=ChoiceHead(TASK.labels))


def test_demo_endings_are_those_of_the_sentences() -> None:
    sentences = {one.texts[0] for one in demo_examples("demo_nli", "validation")}
    examples = DemoChoices().examples("validation")
    assert len(examples) > 350
    for example in examples:
        text, *endings = example.texts
        assert len({*endings}) == 4
        assert f"{text} {endings[int(example.label)]}" in sentences
    assert task_of("demo_choices").head.num_outputs == 4
    assert {one.label for one in DemoChoices().examples("test")} == {None}


def test_a_run_and_a_folder_of_the_library_are_analysed(tiny_bert: Path, tmp_path: Path) -> None:
    quick = {"task": "demo_choices", "trainer__max_epochs": 1, "data__limit_train": 24, "data__limit_eval": 16}
    assert door("train", *small(tiny_bert, tmp_path / "run", **quick)).returncode == 0
    folder = tmp_path / "chooser"
    AutoModelForMultipleChoice.from_pretrained(tiny_bert).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(folder)
    rows = [
        {"sent1": text, "sent2": "It", **{f"ending{at}": one for at, one in enumerate(endings)}, "label": label}
        for (text, *endings), label in ((one.texts, one.label) for one in DemoChoices().examples("validation")[:12])
    ]
    written(tmp_path / "endings.jsonl", rows)
    out = [f"hydra.run.dir={tmp_path / 'out'}", "ablation.resamples=100", "progress=false", "report.figures=0"]
    analysed = door("analyze", str(folder), str(tmp_path / "endings.jsonl"), *out)
    assert (analysed.returncode, analysed.stderr) == (0, "")
    found = pd.read_parquet(tmp_path / "out" / "ablation.parquet")
    assert found["kind"].value_counts().to_dict() == {"head": 12, "layer": 3}
    assert {*found["metric"]} == {"accuracy"}
    assert {*found["count"]} == {12}
