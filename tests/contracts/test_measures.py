"""Every shipped measure, on labelled and annotated texts: padding, batches and processes change no number of its
grid.
"""

import copy
import pickle
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

import bertsecrets as bs
from bertsecrets.data.batch import Batch
from bertsecrets.data.example import Example
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.doors import resolve
from bertsecrets.grid import HeadGrid
from bertsecrets.measures.base import Measure
from bertsecrets.measures.one_pass import measure_pass
from bertsecrets.measures.shipped import shipped_measure, shipped_names
from bertsecrets.present.presenter import Presenter, presenter_of

LACKING = {"coreference", "masked_lm_gradient", "features_kovaleva", "token_to_token_kovaleva"}
"""They need linked mentions, a model with its head of masked words, or Penn Treebank tags."""

NAMES = [name for name in shipped_names() if name not in LACKING]

EXAMPLES = 6
Models = tuple[PreTrainedModel, PreTrainedModel]


@pytest.fixture(scope="module")
def models(tiny_bert: Path) -> Models:
    """A model, and one to compare with."""
    made = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        model = AutoModelForSequenceClassification.from_pretrained(tiny_bert)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
        made.append(model.double().eval())
    return made[0], made[1]


def encoded(tokenizer: PreTrainedTokenizerBase, pad_to: int | None = None) -> EncodedSplit:
    demo = bs.demo("demo_paraphrase", "validation", EXAMPLES)
    rows = zip(demo.texts, demo.labels, demo.annotations, strict=True)
    examples = [
        Example(index, tuple(texts), label, tuple(annotations))
        for index, (texts, label, annotations) in enumerate(rows)
    ]
    return EncodedSplit(examples, tokenizer, 64, pad_to=pad_to)


def taken(name: str, models: Models, split: EncodedSplit, batches: list[Batch]) -> tuple[Measure, HeadGrid]:
    model, reference = models
    measure = shipped_measure(name)(3, 4)
    measure.prepare(split)
    (grid,) = measure_pass(model, [measure], batches, {"initial": reference})
    return measure, grid


@pytest.mark.parametrize("name", NAMES)
def test_padding_batches_and_processes_change_no_number(name: str, models: Models, tiny_bert: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_bert)
    split, wide = encoded(tokenizer), encoded(tokenizer, pad_to=60)
    measure, whole = taken(name, models, split, [split[list(range(EXAMPLES))]])
    assert whole.value_LHC.shape == (3, 4, len(measure.columns))
    assert whole.value_LHC.isfinite().any()
    _, apart = taken(name, models, wide, [wide[[index]] for index in range(EXAMPLES)])
    first, second = (taken(name, models, split, [split[rows]])[0] for rows in ([0, 3, 4], [5, 1, 2]))
    first.merge_state(second)
    first._computed = None
    for grid in (apart, first.compute()):
        assert torch.equal(grid.count_LHC, whole.count_LHC)
        for values in ("value_LHC", "stderr_LHC"):
            torch.testing.assert_close(
                getattr(grid, values), getattr(whole, values), atol=1e-6, rtol=1e-5, equal_nan=True
            )


@pytest.mark.parametrize("name", shipped_names())
def test_a_measure_goes_to_another_process_and_its_declaration_is_found(name: str) -> None:
    measure = shipped_measure(name)(3, 4)
    for other in (copy.deepcopy(measure), pickle.loads(pickle.dumps(measure))):
        assert other.declaration() == measure.declaration()
    declaration = measure.declaration()
    assert isinstance(measure, resolve(declaration.experiment))
    assert (presenter_of(declaration) == Presenter()) == (not declaration.presenter)
