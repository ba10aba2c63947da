"""Published values of the pre-trained bert-base-uncased on QQP (methods K5 and K6), where its weights can be had.

The published ones are of 1000 pairs of QQP's own development set; ours are of a labelled sample of QQP, so that means
may differ by what another sample does.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from data.tasks import task
from hydra import compose, initialize_config_dir

from bertsecrets.cli.targets import make
from bertsecrets.data.annotation import make_annotator
from bertsecrets.data.module import TaskData
from bertsecrets.data.sources import SourceConfig
from bertsecrets.errors import UserError
from bertsecrets.measures.base import Measure
from bertsecrets.measures.linguistic.features import Features
from bertsecrets.measures.one_pass import measure_pass
from bertsecrets.models.loading import load_model, load_tokenizer
from bertsecrets.models.spec import ModelSpec
from bertsecrets.results.run import plain
from bertsecrets.sweeps.hydra_arguments import BASE

pytestmark = [pytest.mark.hub, pytest.mark.timeout(1800)]
CONF = Path(__file__).resolve().parents[2] / "conf"
FEATURES = {
    "nouns": "NOUN",
    "verbs": "VERB",
    "pronouns": "PRON",
    "subjects": "SUBJ",
    "objects": "OBJ",
    "negation": "NEG",
}


def measure(name: str) -> Measure:
    with initialize_config_dir(str(CONF), **BASE):
        config = compose("analyze", [f"measure=[{name}]"])
    return make(plain(config.measure)[name], num_layers=12, num_heads=12)


def grids(glue: Path, measures: list[Measure], pipeline: str | None) -> dict[str, np.ndarray]:
    """The columns of the measures, ``[12, 12]``, on at most 1000 pairs; skips where weights or data are missing."""
    spec = ModelSpec(name="bert_base", path=os.environ.get("BERTSECRETS_BERT_BASE", "bert-base-uncased"))
    try:
        tokenizer, model = load_tokenizer(spec), load_model(spec, task("qqp"), "pretrained", seed=0)
        annotator = make_annotator({"pipeline": pipeline})
    except UserError as error:
        pytest.skip(f"weights or data are not available here: {error}")
    source = SourceConfig.read("data", {"source": "tsv", "root": str(glue)})
    data = TaskData(task("qqp"), source, tokenizer, batch_size=32, max_length=200, seed=0, annotator=annotator)
    data.prepare_data()
    data.setup("fit")
    loader = data.evaluation_loader("val", max_examples=1000, max_length=200)
    for each in measures:
        each.prepare(data.evaluation_dataset("val"))
    found = measure_pass(model, measures, loader)
    return {column: grid.column(column).numpy() for grid in found for column in grid.columns}


def published(glue: Path, name: str) -> np.ndarray:
    content = json.loads((glue.parent / "reference_values" / "qqp_features.json").read_text())
    return np.array(content[name]["base"])


def test_attention_to_special_tokens(glue: Path) -> None:
    special = {"cls": {"special": "first"}, "sep": {"special": "separator"}}
    found = grids(glue, [Features(12, 12, special, max_length=200)], None)
    # Figure 6's model before fine-tuning: means over heads, and the paper's heads 2-7 and 11-2.
    assert found["cls"].mean() == pytest.approx(0.099, abs=0.01)
    assert found["sep"].mean() == pytest.approx(0.270, abs=0.03)
    assert np.unravel_index(found["cls"].argmax(), (12, 12)) == (1, 6)
    assert found["cls"][1, 6] == pytest.approx(0.883, abs=0.03)
    assert np.unravel_index(found["sep"].argmax(), (12, 12)) == (10, 1)
    assert found["sep"][10, 1] == pytest.approx(0.650, abs=0.05)
    for column, name in (("cls", "CLS"), ("sep", "SEP")):
        assert np.abs(found[column] - published(glue, name)).mean() < 0.02


def test_attention_to_words_by_the_original_definitions(glue: Path) -> None:
    found = grids(glue, [measure("features_kovaleva")], "en_core_web_md")
    for column, name in FEATURES.items():
        theirs = published(glue, name)
        assert found[column].mean() == pytest.approx(theirs.mean(), rel=0.15), name
        assert np.corrcoef(found[column].ravel(), theirs.ravel())[0, 1] > 0.9, name


def test_linked_words_by_the_original_definitions(glue: Path) -> None:
    found = grids(glue, [measure("token_to_token_kovaleva")], "en_core_web_md")
    for column, name in (("subject_to_verb", "SUBJ-VERB"), ("verb_to_subject", "VERB-SUBJ")):
        theirs = published(glue, name)
        highest = set(np.argsort(-theirs, axis=None)[:3].tolist())
        assert len(highest & set(np.argsort(-found[column], axis=None)[:5].tolist())) >= 2, name
        assert np.corrcoef(found[column].ravel(), theirs.ravel())[0, 1] > 0.9, name
