"""Gradient importance against a naive loop, over batches and two processes, and its section."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from data.tasks import task
from data.toy import wordpiece
from families import HEADS, LAYERS, SHAPE
from importance.toy import PARTS, TEXTS, model_of_tokens, split
from torch.nn import functional
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

from bertsecrets.data.batch import Batch
from bertsecrets.data.example import Example
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.errors import UserError
from bertsecrets.importance.gradient import GradientImportance, MaskedLMGradient
from bertsecrets.measures.entropy import Entropy
from bertsecrets.measures.one_pass import measure_pass
from bertsecrets.models.loading import load_masked_lm, load_model
from bertsecrets.models.spec import ModelSpec

KIND = {"[CLS]": 0, "[SEP]": 1, ".": 2, ",": 2}


def naive(example: int, model: torch.nn.Module) -> np.ndarray:
    """``[L, H, 12]`` from one text alone, by autograd through the library's eager attention."""
    batch = split()[[example]]
    output = model(**batch.inputs(), output_attentions=True)
    loss = functional.cross_entropy(output.logits, torch.tensor([example % 3]))
    slopes = torch.autograd.grad(loss, output.attentions)
    tokens = wordpiece().convert_ids_to_tokens(batch.input_ids_BS[0].tolist())
    kinds = [KIND.get(token, 3) for token in tokens]
    numbers = np.full((LAYERS, HEADS, 12), math.nan)
    for layer in range(LAYERS):
        for head in range(HEADS):
            gradient = slopes[layer][0, head].numpy()
            attention = output.attentions[layer][0, head].detach().numpy()
            for kind in range(5):
                keys = [j for j, other in enumerate(kinds) if kind in (other, 4)]
                pairs = [abs(gradient[i, j]) for i in range(len(tokens)) for j in keys]
                if pairs:
                    numbers[layer, head, kind] = np.mean(pairs)
                sums = [sum(abs(gradient[i, j] * attention[i, j]) for j in keys) for i in range(len(tokens))]
                numbers[layer, head, 5 + kind] = np.mean(sums)
            numbers[layer, head, 10] = numbers[layer, head, 1] - numbers[layer, head, 3]
            numbers[layer, head, 11] = numbers[layer, head, 0] - numbers[layer, head, 3]
    return numbers


def test_every_column_equals_a_naive_loop_over_single_texts() -> None:
    eager = model_of_tokens("eager")
    model = model_of_tokens()
    measure = GradientImportance(LAYERS, HEADS)
    measure.prepare(split())
    # Another measure in the same pass does not disturb it.
    grid, entropy = measure_pass(model, [measure, Entropy(LAYERS, HEADS)], [split()[part] for part in PARTS])
    numbers = np.stack([naive(example, eager) for example in range(4)])
    assert np.allclose(grid.value_LHC.numpy(), np.nanmean(numbers, 0), rtol=1e-8, atol=1e-12)
    counts = np.isfinite(numbers).sum(0)
    assert (grid.count_LHC.numpy() == counts).all()
    assert counts[0, 0].tolist() == [4, 4, 2, 4, 4, *[4] * 5, 4, 4]
    expected_errors = np.nanstd(numbers, 0, ddof=1) / np.sqrt(counts)
    assert np.allclose(grid.stderr_LHC.numpy(), expected_errors, rtol=1e-6, atol=1e-12)
    products = [grid.column(f"product_{name}") for name in ("cls", "sep_total", "punctuation", "other")]
    assert torch.allclose(torch.stack(products).sum(0), grid.column("product_all"))
    assert (entropy.count_LHC == 4).any()
    assert all(parameter.grad is None for parameter in model.parameters())


def masking() -> PreTrainedTokenizerFast:
    tokenizer = wordpiece()
    tokenizer.add_special_tokens({"mask_token": "[MASK]"})
    return tokenizer


def texts(*examples: tuple[str, ...]) -> EncodedSplit:
    return EncodedSplit([Example(i, text, None) for i, text in enumerate(examples)], masking(), 512)


def masked_lm_of_tokens(attention: str | None = None) -> BertForMaskedLM:
    torch.manual_seed(3)
    config = BertConfig(**SHAPE | {"vocab_size": len(masking()), "max_position_embeddings": 512})
    masked_lm = BertForMaskedLM._from_config(config, attn_implementation=attention)
    with torch.no_grad():
        for parameter in masked_lm.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return masked_lm.double().eval()


def drawing(examples: EncodedSplit, **settings: float) -> MaskedLMGradient:
    measure = MaskedLMGradient(LAYERS, HEADS, **settings)
    measure.prepare(examples)
    return measure


def read_and_wanted(measure: MaskedLMGradient, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens that the model reads, and the library's labels: -100 where the loss does not depend on the logits."""
    run = measure.differentiated(masked_lm_of_tokens(), batch)
    logits_BSV = torch.zeros((*batch.input_ids_BS.shape, len(masking())), requires_grad=True)
    [slope_BSV] = torch.autograd.grad(run.loss(logits_BSV), logits_BSV)
    return run.batch.input_ids_BS, batch.input_ids_BS.masked_fill((slope_BSV == 0).all(-1), -100)


def test_gradients_of_masked_words_are_those_of_the_librarys_loss() -> None:
    examples = texts(*TEXTS)
    measure = drawing(examples, share=0.4)
    [grid] = measure_pass(masked_lm_of_tokens(), [measure], [examples[part] for part in PARTS])
    expected = []
    for example in range(4):
        alone = examples[[example]]
        read_BS, label_BS = read_and_wanted(measure, alone)
        inputs = alone.inputs() | {"input_ids": read_BS}
        output = masked_lm_of_tokens("eager")(**inputs, labels=label_BS, output_attentions=True)
        slopes = torch.autograd.grad(output.loss, output.attentions)
        expected.append([[head.abs().mean().item() for head in slope[0]] for slope in slopes])
    assert np.allclose(grid.column("gradient_all").numpy(), np.mean(expected, 0), rtol=1e-8, atol=1e-12)


def test_tokens_are_masked_as_in_bert() -> None:
    examples = texts(*[("the man saw the cat " * 40,)] * 60)
    measure = drawing(examples)
    batch = examples[list(range(60))]
    read_BS, label_BS = read_and_wanted(measure, batch)
    drawn_BS, changed_BS = label_BS != -100, read_BS != batch.input_ids_BS
    ordinary_BS = batch.attention_mask_BS.bool() & ~batch.special_BS
    assert not (drawn_BS & ~ordinary_BS).any()
    assert not (changed_BS & ~drawn_BS).any()
    assert drawn_BS.sum(1).tolist() == [30] * 60
    masks_BS = read_BS == masking().mask_token_id
    # Of 1,800 tokens; five standard deviations, and random tokens that are the mask or the token itself.
    assert masks_BS.sum().item() / 1800 == pytest.approx(0.8, abs=0.05)
    assert (changed_BS & ~masks_BS).sum().item() / 1800 == pytest.approx(0.1, abs=0.04)
    alone_BS, _ = read_and_wanted(measure, examples[[7]])
    assert (alone_BS[0] == read_BS[7]).all()
    assert (alone_BS[0] != read_BS[8]).any()
    assert (read_and_wanted(drawing(examples, seed=1), batch)[0] != read_BS).any()


def test_a_classifier_predicts_words_with_the_head_of_its_pretraining(tmp_path: Path) -> None:
    masked_lm_of_tokens().float().save_pretrained(tmp_path)
    spec, examples = ModelSpec(name="toy", path=str(tmp_path)), texts(*TEXTS)
    classifier = load_model(spec, task("sst2"), "pretrained", seed=0)
    measure = drawing(examples)
    measure.take_head(load_masked_lm(spec, "pretrained"))
    batches = [examples[[0, 1, 2, 3]]]
    [of_classifier] = measure_pass(classifier, [measure], batches)
    [of_masked_lm] = measure_pass(load_masked_lm(spec, "pretrained"), [drawing(examples)], batches)
    assert torch.allclose(of_classifier.value_LHC, of_masked_lm.value_LHC, equal_nan=True)
    # The encoder is the measured one.
    with torch.no_grad():
        classifier.bert.encoder.layer[0].attention.self.value.weight.mul_(1.5)
    [changed] = measure_pass(classifier, [measure], batches)
    assert not torch.allclose(changed.value_LHC, of_classifier.value_LHC, rtol=1e-3, equal_nan=True)


def test_models_without_a_head_of_masked_words_are_refused(tmp_path: Path) -> None:
    model_of_tokens().float().save_pretrained(tmp_path)
    spec = ModelSpec(name="toy", path=str(tmp_path))
    with pytest.raises(UserError, match=f"no masked-language-model head: the weights in '{tmp_path}' lack 6 of its"):
        load_masked_lm(spec, "pretrained")
    with pytest.raises(UserError, match="random weights"):
        load_masked_lm(spec, "random_normal")
    with pytest.raises(UserError, match="the tokenizer has no mask token"):
        drawing(split())
    with pytest.raises(UserError, match="BertForSequenceClassification has none; load the model with AutoModelForMask"):
        measure_pass(model_of_tokens(), [drawing(texts(*TEXTS))], [texts(*TEXTS)[[0]]])


def test_a_text_without_words_has_no_loss() -> None:
    examples = texts(("the man saw",), ("",))
    [grid] = measure_pass(masked_lm_of_tokens(), [drawing(examples)], [examples[[0, 1]]])
    assert (grid.count_LHC[..., grid.columns.index("gradient_all")] == 1).all()


def test_texts_without_labels_are_refused() -> None:
    unlabelled = EncodedSplit([Example(0, TEXTS[0], None)], wordpiece(), 64)
    measure = GradientImportance(LAYERS, HEADS)
    measure.prepare(unlabelled)
    with pytest.raises(UserError, match="'gradient_importance' needs the gradients of a loss"):
        measure_pass(model_of_tokens(), [measure], [unlabelled[[0]]])
