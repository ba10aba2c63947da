"""Classifiers with a head of their own: every verdict is that of the user's model, as a loop that zeroes one head by a
hook finds it.
"""

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from data.toy import wordpiece
from families import CONFIGS
from torch import Tensor, nn
from transformers import BertForSequenceClassification, BertModel, BertPreTrainedModel, RobertaForSequenceClassification
from transformers.modeling_outputs import SequenceClassifierOutput

import bertsecrets as bs
from bertsecrets.ablation.engine import Engine
from bertsecrets.ablation.pairs import Pairs
from bertsecrets.ablation.partial_passes import OwnForwardError
from bertsecrets.ablation.plan import Plan, every_head

TEXTS = ["the dog chased the cat", "the old man sat", "a chair", "on the cat", "the dog", "a cat sat on the old chair"]


def mean_of(hidden_BSD: Tensor, mask_BS: Tensor) -> Tensor:
    return (hidden_BSD * mask_BS[..., None]).sum(1) / mask_BS.sum(1, keepdim=True)


class MeanPooled(BertPreTrainedModel):
    """The issue's case: a classifier of the mean, beside an encoder that still has its pooler."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.bert = BertModel(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **inputs: Any) -> SequenceClassifierOutput:
        hidden_BSD = self.bert(input_ids, attention_mask=attention_mask, **inputs).last_hidden_state
        return SequenceClassifierOutput(logits=self.classifier(mean_of(hidden_BSD, attention_mask)))


class OfTwoLayers(MeanPooled):
    """A head that the library would finish without an error: it reads the first token, of the last two layers."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **inputs: Any) -> SequenceClassifierOutput:
        output = self.bert(input_ids, attention_mask=attention_mask, output_hidden_states=True, **inputs)
        first_BD = (output.hidden_states[-1] + output.hidden_states[-2])[:, 0]
        return SequenceClassifierOutput(logits=self.classifier(first_BD))


class Unpacking(MeanPooled):
    """A forward of the days of tuples, which would fail if its encoder named its outputs."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **inputs: Any) -> tuple[Tensor]:
        hidden_BSD, _ = self.bert(input_ids, attention_mask=attention_mask, **inputs)
        return (self.classifier(mean_of(hidden_BSD, attention_mask)),)


class Headed(BertModel):
    """An encoder by inheritance: there is no encoder inside it."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.answer = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def forward(self, **inputs: Any) -> SequenceClassifierOutput:
        return SequenceClassifierOutput(logits=self.answer(super().forward(**inputs).last_hidden_state[:, 0]))


class UnusualNames(BertPreTrainedModel):
    """Neither the encoder nor the head has the library's name."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.backbone = BertModel(config, add_pooling_layer=False)
        self.answer = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def forward(self, **inputs: Any) -> SequenceClassifierOutput:
        return SequenceClassifierOutput(logits=self.answer(self.backbone(**inputs).last_hidden_state[:, 0]))


class Prompted(MeanPooled):
    """Learned vectors stand before the text: the encoder's sequences are longer than the text."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.prompt_PD = nn.Parameter(torch.randn(2, config.hidden_size))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **_: Any) -> SequenceClassifierOutput:
        text_BSD = self.bert.embeddings.word_embeddings(input_ids)
        embedded_BSD = torch.cat([self.prompt_PD.expand(len(input_ids), -1, -1), text_BSD], 1)
        mask_BS = torch.cat([attention_mask.new_ones(len(input_ids), 2), attention_mask], 1)
        hidden_BSD = self.bert(inputs_embeds=embedded_BSD, attention_mask=mask_BS).last_hidden_state
        return SequenceClassifierOutput(logits=self.classifier(mean_of(hidden_BSD, mask_BS)))


class Renamed(BertForSequenceClassification):
    """The usual way to weight a loss."""


class MeanHead(nn.Module):
    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, outputs)

    def forward(self, hidden_BSD: Tensor) -> Tensor:
        logits_BC: Tensor = self.linear(hidden_BSD.mean(1))
        return logits_BC


def spread(model: Any) -> Any:
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval()


def config_of(family: str = "bert") -> Any:
    config = CONFIGS[family]()
    config.vocab_size, config.num_labels = len(wordpiece()), 3
    return config


def in_tuples(model: Any) -> Any:
    model.config.return_dict = False
    return model


def with_mean_head() -> Any:
    """The library's class, whose head was replaced by one that pools itself."""
    model = RobertaForSequenceClassification(config_of("roberta"))
    model.classifier = MeanHead(model.config.hidden_size, 3)
    return spread(model)


MODELS: dict[str, tuple[Callable[[], Any], bool]] = {
    "the mean": (lambda: spread(MeanPooled(config_of())), False),
    "two layers": (lambda: spread(OfTwoLayers(config_of())), False),
    "unusual names": (lambda: spread(UnusualNames(config_of())), False),
    "prompts": (lambda: spread(Prompted(config_of())), False),
    "a replaced head": (with_mean_head, False),
    "another name": (lambda: spread(Renamed(config_of())), True),
    "an encoder itself": (lambda: spread(Headed(config_of())), False),
    "tuples": (lambda: in_tuples(spread(Renamed(config_of()))), True),
    "tuples, unpacked": (lambda: in_tuples(spread(Unpacking(config_of()))), False),
}
"""Models, and whether their variants share passes."""


def answers(model: Any) -> Tensor:
    """The user's model on one text at a time."""
    with torch.no_grad():
        outputs = [model(**wordpiece()(text, return_tensors="pt")) for text in TEXTS]
    return torch.cat([output[0] if isinstance(output, tuple) else output.logits for output in outputs])


def naive_NVC(model: Any) -> Tensor:
    """The same with each head zeroed in turn, by a hook in plain PyTorch."""
    base = next(part for part in (model, *model.children()) if isinstance(part, nn.Module) and hasattr(part, "encoder"))
    logits = []
    for layer in base.encoder.layer:
        width = layer.attention.self.attention_head_size
        for head in range(layer.attention.self.num_attention_heads):

            def zero(_: nn.Module, args: tuple[Tensor], head: int = head, width: int = width) -> tuple[Tensor]:
                output_BSD = args[0].clone()
                output_BSD[..., head * width : (head + 1) * width] = 0
                return (output_BSD,)

            handle = layer.attention.output.dense.register_forward_pre_hook(zero)
            logits.append(answers(model))
            handle.remove()
    return torch.stack(logits, 1)


@pytest.mark.parametrize("name", MODELS)
def test_verdicts_are_those_of_the_users_model(name: str, caplog: pytest.LogCaptureFixture) -> None:
    make, shares = MODELS[name]
    model = make()
    clean_NC, expected_NVC = answers(model), naive_NVC(model)
    # Labels that the model gets right, so that every change of an answer is a loss.
    labels = clean_NC.argmax(-1).tolist()
    with caplog.at_level(logging.WARNING):
        disabled = bs.disable(model, wordpiece(), TEXTS, labels, mode="zero", batch_size=4, resamples=100)
    assert (expected_NVC - clean_NC[:, None]).abs().max() > 1e-2
    torch.testing.assert_close(disabled.outcomes.clean_NC, clean_NC, atol=2e-5, rtol=0)
    torch.testing.assert_close(disabled.outcomes.logits_NVC, expected_NVC, atol=2e-5, rtol=0)
    lost_V = (expected_NVC.argmax(-1) != clean_NC.argmax(-1)[:, None]).float().mean(0)
    assert disabled.to_pandas()["delta"].to_list() == pytest.approx((-lost_V).tolist(), abs=1e-6)
    assert ("every variant needs a whole forward pass" in caplog.text) == (not shares)


@pytest.mark.parametrize("name", ["the mean", "an encoder itself", "tuples", "tuples, unpacked"])
def test_a_view_says_what_the_users_model_answers(name: str) -> None:
    model = MODELS[name][0]()
    share_C = answers(model)[0].softmax(-1)
    text = bs.head_view(model, wordpiece(), TEXTS[0]).report.title
    assert f"“LABEL_{int(share_C.argmax())}” ({float(share_C.max()):.3f})".replace("0.", ".") in text.replace("0.", ".")


@pytest.mark.parametrize("make", [Renamed, Unpacking])
def test_a_model_of_tuples_is_trained(make: Any) -> None:
    model = in_tuples(spread(make(config_of())))
    before = answers(model)
    labels = [(int(label) + 1) % 3 for label in before.argmax(-1)]
    bs.fine_tune(model, wordpiece(), TEXTS, labels, epochs=2, learning_rate=1e-2)
    assert (answers(model) - before).abs().max() > 1e-2
    # As the user configured it, also afterwards.
    assert isinstance(model(**wordpiece()(TEXTS[0], return_tensors="pt")), tuple)


def test_single_pairs_are_refused() -> None:
    """A screened sweep starts passes in the middle, which only the family's head could finish."""
    plan = Plan("zero", 3, 4, tuple(every_head(3, 4)))
    inputs = dict(wordpiece()(TEXTS, padding=True, return_tensors="pt"))
    with pytest.raises(
        OwnForwardError, match=r"MeanPooled does not compute its logits from.*use ablation\.sweep=exact"
    ):
        Pairs(Engine(spread(MeanPooled(config_of())), plan)).begin(inputs)
    Pairs(Engine(spread(Renamed(config_of())), plan)).begin(inputs)
