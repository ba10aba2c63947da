"""Calls of the notebook API with something wrong: each ends in one sentence that names the value and what to give."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from families import tiny_model
from torch import nn
from transformers import BertModel, BertPreTrainedModel, BertTokenizerFast

import bertsecrets as bs
from bertsecrets.errors import UserError

TEXTS, LABELS = ["a good film", "a bad film", "a fine film", "a poor film"], [1, 0, 1, 0]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> BertTokenizerFast:
    path = tmp_path_factory.mktemp("tokenizer") / "vocab.txt"
    path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "good", "bad", "film"]), "utf-8")
    return BertTokenizerFast(str(path))


def on_meta() -> nn.Module:
    return tiny_model("bert").to("meta")


def frozen() -> nn.Module:
    return tiny_model("bert").requires_grad_(False)


class Inside(nn.Module):
    """What wrappers share: a library model in ``classifier``."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = tiny_model("bert")


class Reordered(Inside):
    def forward(self, **inputs: Any) -> Any:
        output = self.classifier(**inputs)
        output.logits = output.logits.flip(-1)
        return output


class InTuple(Inside):
    def forward(self, **inputs: Any) -> Any:
        return (self.classifier(**inputs).logits,)


class Prompted(Inside):
    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **_: Any) -> Any:
        text_BSD = self.classifier.get_input_embeddings()(input_ids)
        prompt_BPD = torch.ones_like(text_BSD[:, :1])
        mask_BS = torch.cat([torch.ones_like(attention_mask[:, :1]), attention_mask], 1)
        return self.classifier(inputs_embeds=torch.cat([prompt_BPD, text_BSD], 1), attention_mask=mask_BS)


class OfBatches(Inside):
    def forward(self, batch: dict[str, torch.Tensor]) -> Any:
        return self.classifier(**batch)


class Distilled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.teacher, self.student = tiny_model("bert"), tiny_model("bert", seed=1)

    def forward(self, **inputs: Any) -> Any:
        return self.student(**inputs)


class Towers(BertPreTrainedModel):
    def __init__(self) -> None:
        config = tiny_model("bert").config
        super().__init__(config)
        self.bert, self.other = BertModel(config), BertModel(config)
        self.post_init()


def quantised() -> nn.Module:
    """As bitsandbytes keeps linear maps."""
    model: Any = tiny_model("bert")
    query = model.bert.encoder.layer[0].attention.self.query
    query.weight = nn.Parameter(query.weight.to(torch.int8), requires_grad=False)
    return model


def five_outputs() -> nn.Module:
    model: Any = tiny_model("bert")
    model.classifier = nn.Linear(model.config.hidden_size, 5)
    return model


def disabled(model: nn.Module, tokenizer: Any) -> object:
    return bs.disable(model, tokenizer, TEXTS, LABELS, resamples=100)


def watched(observer: Any) -> None:
    with bs.watch(tiny_model("bert"), observer):
        pass


def overridden(edits: Any) -> None:
    with bs.override(tiny_model("bert"), edits):
        pass


CALLS: dict[str, tuple[Callable[[Any], object], str]] = {
    "texts, a number": (lambda t: bs.measure(tiny_model("bert"), t, 5, "entropy"), "texts is 5; give a list of sentences"),
    "measures, None": (lambda t: bs.measure(tiny_model("bert"), t, TEXTS, None), "measures is None; give the name of"),
    "a measure, None": (lambda t: bs.measure(tiny_model("bert"), t, TEXTS, [None]), "None is not the name or class of a measure"),
    "model, None": (lambda t: bs.measure(None, t, TEXTS, "entropy"), "model is None; give a Hugging Face"),
    "model on meta": (lambda t: bs.measure(on_meta(), t, TEXTS, "entropy"), "on the device meta.*load its weights"),
    "labels, None": (lambda t: bs.disable(tiny_model("bert"), t, TEXTS, None), "labels is None; give one label for"),
    "labels, None, fine_tune": (lambda t: bs.fine_tune(tiny_model("bert"), t, TEXTS, None), "labels is None; give one"),
    "a label, None": (lambda t: bs.disable(tiny_model("bert"), t, TEXTS, [0, 1, None, 1]), "Label None is not a class"),
    "a frozen model": (lambda t: bs.fine_tune(frozen(), t, TEXTS, LABELS), "no trainable parameters"),
    "plans, a string": (lambda t: bs.disable(tiny_model("bert"), t, TEXTS, LABELS, "heads"), r"plans is 'heads'; give a list, e\.g\. \['heads'\]"),
    "plans, empty": (lambda t: bs.disable(tiny_model("bert"), t, TEXTS, LABELS, []), "plans is empty; name at least one"),
    "max_length=1": (lambda t: bs.measure(tiny_model("bert"), t, TEXTS, "entropy", max_length=1), "max_length is 1; .*at least 3"),
    "a negative seed": (lambda t: bs.fine_tune(tiny_model("bert"), t, TEXTS, LABELS, seed=-1), "seed is -1; expected a whole number from 0"),
    "a negative limit": (lambda _: bs.demo("demo_sentiment", limit=-1), "limit is -1; expected a whole number from 1"),
    "epochs=0": (lambda t: bs.fine_tune(tiny_model("bert"), t, TEXTS, LABELS, epochs=0), "epochs is 0; expected a whole"),
    "a single edit": (lambda _: overridden(bs.HeadEdit(0, 0)), r"edits is HeadEdit\(.*\); give a list of HeadEdit, e"),
    "edits of pairs": (lambda _: overridden([(0, 0)]), r"Edit \(0, 0\) is not a HeadEdit"),
    "HeadEdit(True, False)": (lambda _: overridden([bs.HeadEdit(True, False)]), "layer is True; expected a whole number"),
    "HeadEdit(0, 1.0)": (lambda _: overridden([bs.HeadEdit(0, 1.0)]), "head is 1.0; expected a whole number"),
    "watch(m, 5)": (lambda _: watched(5), "observer is 5; give a function of a layer and its maps"),
    "watch(None)": (lambda _: bs.watch(None, print).__enter__(), "model is None; give"),
    "wrapper, reordered classes": (lambda t: disabled(Reordered(), t), r"Reordered returns logits that differ from those of the BertForSequenceClassification inside it.*give <model>\.classifier"),
    "wrapper, prompts": (lambda t: disabled(Prompted(), t), "Prompted returns logits that differ from those of the BertForSequenceClassification"),
    "wrapper, prompts, viewed": (lambda t: bs.head_view(Prompted(), t, "a good film"), "Prompted returns logits that differ"),
    "wrapper, reordered classes, trained": (lambda t: bs.fine_tune(Reordered(), t, TEXTS, LABELS), "Reordered returns logits that"),
    "wrapper, a tuple": (lambda t: disabled(InTuple(), t), r"The forward of InTuple returns tuple; expected logits or an output with \.logits: give <model>\.classifier"),
    "no head": (lambda t: disabled(tiny_model("bert").bert, t), "BertModel has no prediction per text.*AutoModelForSequenceClassification"),
    "no head, trained": (lambda t: bs.fine_tune(tiny_model("bert").bert, t, TEXTS, LABELS), "BertModel has no prediction per text"),
    "wrapper of batches": (lambda t: disabled(OfBatches(), t), r"OfBatches cannot be called with only input_ids, .* \(TypeError\).*give <model>\.classifier"),
    "teacher and student": (lambda t: disabled(Distilled(), t), r"Distilled contains several encoders, among them 'teacher' \(BertForSequenceClassification\) and 'student'.*give one of them, e\.g\. <model>\.teacher"),
    "teacher and student, measured": (lambda t: bs.measure(Distilled(), t, TEXTS, "entropy"), "contains several encoders, among"),
    "two encoders in one library model": (lambda t: disabled(Towers(), t), r"Towers contains several encoders, among them 'bert' \(BertModel\) and 'other'"),
    "five outputs for three labels": (lambda t: disabled(five_outputs(), t), r"gives 5 outputs per text, but its config\.num_labels is 3; set <model>"),
    "int8": (lambda t: disabled(quantised(), t), "names 'query' in BertSelfAttention, which is Linear; its weights are quantised: load the model unquantised"),
    "remove_heads, as the library prunes": (lambda _: bs.remove_heads(tiny_model("bert"), {0: [1]}), r"heads is \{0: \[1\]\}; give \(layer, head\) pairs, e\.g\. \[\(0, 1\)\]"),
    "remove_heads, real numbers": (lambda _: bs.remove_heads(tiny_model("bert"), [(0, 1.5)]), r"heads is \[\(0, 1\.5\)\]; give \(layer"),
    "head_view, a number": (lambda t: bs.head_view(tiny_model("bert"), t, 5), "5 is neither a sentence|Text 5"),
}  # fmt: skip


@pytest.mark.faults
@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_is_named(name: str, tokenizer: BertTokenizerFast) -> None:
    call, sentence = CALLS[name]
    with pytest.raises(UserError) as caught:
        call(tokenizer)
    text = str(caught.value)
    assert re.search(sentence, text), text
    assert "\n" not in text
    assert text.endswith(".")


@pytest.mark.faults
def test_the_model_is_as_before(tokenizer: BertTokenizerFast) -> None:
    """A refused fine-tuning changes neither weights nor what can be trained."""
    model = tiny_model("bert")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(UserError):
        bs.fine_tune(model, tokenizer, TEXTS, LABELS, seed=-1)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())
