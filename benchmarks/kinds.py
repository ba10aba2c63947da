"""Processor time of a sweep over heads, by kind of task head: the engine compared with one pass for each variant.

    python -m benchmarks.kinds --treebank <UD_English-EWT>

A BERT of 12 layers of 12 heads and width 384, with random weights (time does not depend on them), answers for sentences
of the treebank's development set: a part of speech for each word, masked words, a span of the text, or one class. Each
head is disabled alone. Sentences of a batch are of all lengths, as a shuffled loader gives them, or of one length, so
that no token is padding. Both ways run on one thread and in turn, so that other work on the machine slows both; the
answers must be equal.
"""

import argparse
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import BertConfig

from benchmarks.jobs import ROOT
from benchmarks.watch import MINILM
from bertsecrets.ablation.engine import Engine
from bertsecrets.ablation.plan import Plan, every_head
from bertsecrets.data.example import Example
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.models.loading import load_tokenizer
from bertsecrets.task_heads import TASK_HEADS
from bertsecrets.task_heads.base import TaskHead
from bertsecrets.task_heads.labels import Answers

RESULTS = ROOT / "benchmarks" / "results" / "kinds.json"
LAYERS, HEADS, WIDTH = 12, 12, 384
"""Narrower than BERT-base: the seconds depend on the width, the ratio on the layers."""
KINDS = ("sequence", "tokens", "masked", "answers")
BATCH, ROUNDS = 16, 3
Sentence = tuple[list[str], list[str]]
"""Words and parts of speech."""
TAGS = 17
"""Parts of speech of the treebank."""


@dataclass(frozen=True)
class Asked:
    """A batch of inputs, with what is asked about it."""

    head: TaskHead
    inputs: dict[str, Tensor]
    label_B: Tensor | None


def sentences(treebank: Path) -> list[Sentence]:
    """Words and parts of speech of the development set."""
    blocks = (treebank / "en_ewt-ud-dev.conllu").read_text("utf-8").split("\n\n")
    rows = [[line.split("\t") for line in block.splitlines() if line[:1].isdigit()] for block in blocks]
    words = [[row for row in block if row[0].isdigit()] for block in rows]
    return [([row[1] for row in block], [row[3] for row in block]) for block in words if len(block) > 1]


def batches(kind: str, chosen: Sequence[Sentence], tokenizer: Any) -> list[Asked]:
    """The sentences as batches of similar length, with the head of a kind and labels."""
    if kind == "tokens":
        tags = sorted({tag for _, tags in chosen for tag in tags})
        head = TASK_HEADS[kind](tags)
        asked = []
        for first in range(0, len(chosen), BATCH):
            texts, gold = zip(*chosen[first : first + BATCH], strict=True)
            encoded = tokenizer(list(texts), is_split_into_words=True, padding=True, return_tensors="pt")
            places = [[-1 if word is None else word for word in encoded.word_ids(row)] for row in range(len(texts))]
            numbers = [[tags.index(tag) for tag in row] for row in gold]
            label_BS = head.label_tensor(numbers, places, encoded["input_ids"].shape[1])
            asked.append(Asked(head, dict(encoded), label_BS))
        return asked
    examples = []
    for index, (words, _) in enumerate(chosen):
        text = " ".join(words)
        answer = Answers((words[-1],), text.rindex(words[-1]))
        asked_about = ("what is it", text) if kind == "answers" else (text,)
        examples.append(Example(index, asked_about, answer if kind == "answers" else index % 2))
    split = EncodedSplit(examples, tokenizer, 128, head=TASK_HEADS[kind]())
    parts = [split[list(range(first, min(first + BATCH, len(split))))] for first in range(0, len(split), BATCH)]
    return [Asked(part.head, part.inputs(), part.label_B) for part in parts]


def of_all_lengths(rows: Sequence[Sentence], count: int) -> Sequence[Sentence]:
    """So many sentences, from the shortest to the longest."""
    ordered = sorted(rows, key=lambda row: len(row[0]))
    return ordered[:: max(1, len(ordered) // count)][:count]


def of_one_length(rows: Sequence[Sentence], count: int) -> Sequence[Sentence]:
    """So many sentences of one number of tokens, near the median."""
    tokenizer = load_tokenizer(MINILM, pairs=False)
    lengths = [len(tokenizer(words, is_split_into_words=True)["input_ids"]) for words, _ in rows]
    chosen = min(
        (length for length, found in Counter(lengths).items() if found >= count),
        key=lambda length: abs(length - median(lengths)),
    )
    return [row for row, length in zip(rows, lengths, strict=True) if length == chosen][:count]


LENGTHS = {"all_lengths": of_all_lengths, "one_length": of_one_length}
"""How the sentences of a batch are chosen."""


def measured(kind: str, chosen: Sequence[Sentence]) -> dict[str, Any]:
    """Processor seconds of both ways, the median of several rounds, and their ratio."""
    tokenizer = load_tokenizer(MINILM, pairs=kind == "answers")
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH,
    )
    config.num_labels = 2 if kind == "answers" else TAGS
    model = getattr(transformers, TASK_HEADS[kind].auto).from_config(config).eval()
    asked = batches(kind, chosen, tokenizer)
    engine = Engine(model, Plan("uniform", LAYERS, HEADS, tuple(every_head(LAYERS, HEADS))))
    times: dict[bool, list[float]] = {True: [], False: []}
    answers: dict[bool, list[Tensor]] = {}
    for _ in range(ROUNDS):
        for shares in (True, False):
            engine.shares = shares
            start = time.process_time()
            answers[shares] = [engine.run(part.inputs, head=part.head, label_B=part.label_B)[1] for part in asked]
            times[shares].append(time.process_time() - start)
    for ours, theirs in zip(answers[True], answers[False], strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=1e-3)
    shared, each = median(times[True]), median(times[False])
    return {"engine": round(shared, 2), "one pass each": round(each, 2), "ratio": round(each / shared, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--treebank", type=Path, required=True)
    parser.add_argument("--examples", type=int, default=16, help="sentences")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = sentences(options.treebank)
    results = {
        lengths: {kind: measured(kind, choose(rows, options.examples)) for kind in KINDS}
        for lengths, choose in LENGTHS.items()
    }
    report = {"torch": torch.__version__, "layers": LAYERS, "heads": HEADS, "width": WIDTH, **results}
    RESULTS.write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
