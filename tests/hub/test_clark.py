"""Published values of the pre-trained bert-base-uncased (methods C1 to C7), where its weights can be had.

The paper took pairs of Wikipedia's paragraphs, ours are pairs of questions: heads are compared by name, layers by their
curve. Tables 1 to 3 are only asserted on their own texts: BERTSECRETS_WSJ names a folder with the Wall Street Journal
in CoNLL-X form with Stanford labels (training sections and section 22 as dev), BERTSECRETS_ONTONOTES one with the
development documents of CoNLL-2012, BERTSECRETS_GLOVE the file of GloVe's vectors of 100 numbers.
"""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from cli.runs import door
from hub.test_published import grids
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoModelForMaskedLM, AutoTokenizer

from bertsecrets.attention.gradients import attention_gradients
from bertsecrets.data.sources.demo import demo_examples
from bertsecrets.measures.coreference.measure import KINDS
from bertsecrets.measures.coreference.rows import Baseline, Mentions
from bertsecrets.measures.dependency.rows import Relation
from bertsecrets.measures.entropy import Entropy
from bertsecrets.measures.offsets import Offsets
from bertsecrets.measures.surface import Surface
from bertsecrets.papers.names import page_files
from bertsecrets.papers.page import read_page
from bertsecrets.probes.rows import HiddenState, ProbeScore
from bertsecrets.results.run import Run
from bertsecrets.results.views import MeasureView

THEIRS = read_page(page_files()["clark2019"]).settings.published
pytestmark = [pytest.mark.hub, pytest.mark.timeout(1800)]


def highest(value_LH: NDArray[np.float64], count: int) -> set[tuple[int, ...]]:
    places = np.argsort(-value_LH, axis=None)[:count]
    return {tuple(map(int, np.unravel_index(place, value_LH.shape))) for place in places}


def test_heads_of_neighbours(glue: Path) -> None:
    found = grids(glue, [Offsets(12, 12, mean_over="tokens")], None)
    assert highest(found["previous"], 4) == set(map(tuple, THEIRS["positions"]["previous"]))
    assert highest(found["next"], 5) == set(map(tuple, THEIRS["positions"]["next"]))
    assert min(found["next"][head] for head in ((2, 0), (2, 9))) > 0.85


def test_curves_of_special_tokens_and_entropy(glue: Path) -> None:
    found = grids(glue, [Surface(12, 12), Entropy(12, 12)], None)
    curves = {
        "cls": THEIRS["attention"]["cls"],
        "sep_total": THEIRS["attention"]["sep_total"],
        "sep_to_sep": THEIRS["attention"]["sep_to_sep"],
        "other_to_sep": THEIRS["attention"]["other_to_sep"],
        "bits": THEIRS["entropy"]["bits"],
    }
    for column, theirs in curves.items():
        mean_L = np.nanmean(found[column], axis=1)
        assert np.corrcoef(mean_L, theirs)[0, 1] > 0.8, column
    separator_L, itself_L = (np.nanmean(found[column], axis=1) for column in ("sep_total", "sep_to_sep"))
    assert (separator_L[5:9] > 0.5).all()
    assert (itself_L[4:9] > 0.8).all()


def test_gradients_of_masked_words_by_attention_to_separators() -> None:
    weights = os.environ.get("BERTSECRETS_BERT_BASE", "bert-base-uncased")
    try:
        tokenizer = AutoTokenizer.from_pretrained(weights)
        model = AutoModelForMaskedLM.from_pretrained(weights).eval()
    except OSError as error:
        pytest.skip(f"weights or data are not available here: {error}")
    texts = [example.texts for example in demo_examples("demo_paraphrase", "validation")[:100]]
    generator = torch.Generator().manual_seed(0)
    total_L2, count_L2 = torch.zeros(12, 2), torch.zeros(12, 2)
    for first, second in texts:
        inputs = tokenizer(first, second, return_tensors="pt")
        ids_1S = inputs["input_ids"].clone()
        separator_S = ids_1S[0] == tokenizer.sep_token_id
        special_S = separator_S | (ids_1S[0] == tokenizer.cls_token_id)
        masked_S = (torch.rand(len(special_S), generator=generator) < 0.15) & ~special_S
        if not masked_S.any():
            continue
        inputs["input_ids"][0, masked_S] = tokenizer.mask_token_id

        def loss(logits_1SV: Tensor, ids_1S: Tensor = ids_1S, masked_S: Tensor = masked_S) -> Tensor:
            return torch.nn.functional.cross_entropy(logits_1SV[0, masked_S], ids_1S[0, masked_S])

        def add(
            layer: int, attention: Tensor, gradient: Tensor, sep: Tensor = separator_S, out: Tensor = masked_S
        ) -> None:
            for place, chosen_S in enumerate((sep, ~out)):
                total_L2[layer, place] += gradient[0, :, :, chosen_S].abs().sum()
                count_L2[layer, place] += gradient[0, :, :, chosen_S].numel()

        attention_gradients(model, dict(inputs), loss, add)
    ratio_L = (total_L2[:, 0] / count_L2[:, 0]) / (total_L2[:, 1] / count_L2[:, 1])
    # Figure 3: from the fifth to the tenth layer the gradient to [SEP] is a small part of that to any token.
    assert (ratio_L[4:10] < 0.25).all()
    assert np.corrcoef(ratio_L.numpy(), THEIRS["gradient"])[0, 1] > 0.8


def test_table_1_on_the_wall_street_journal(tmp_path: Path) -> None:
    view = analysed("dependency", "BERTSECRETS_WSJ", "treebank", tmp_path)
    scores = {row.relation: row for row in view.found(Relation)}
    for relation, (accuracy, baseline, *_) in THEIRS["relations"].items():
        score = scores[relation]
        assert 100 * score.chosen_on_all == pytest.approx(accuracy, abs=2.0), relation
        assert 100 * score.baseline == pytest.approx(baseline, abs=2.0), relation
    for relation in ("det", "dobj", "pobj", "poss", "auxpass"):
        assert [scores[relation].layer, scores[relation].head] == THEIRS["relations"][relation][2:]


def test_table_2_on_conll_2012(tmp_path: Path) -> None:
    settings = ["task.training.max_length=128", "measure.coreference.windows=first"]
    view = analysed("coreference", "BERTSECRETS_ONTONOTES", "coreference", tmp_path, *settings)
    scores = {row.mention: row for row in view.found(Mentions)}
    assert (scores["all"].layer_on_all, scores["all"].head_on_all) == (4, 3)
    for row in view.found(Baseline):
        if row.baseline in THEIRS["coreference"]:
            theirs = THEIRS["coreference"][row.baseline][KINDS.index(row.mention)]
            assert 100 * row.accuracy.value == pytest.approx(theirs, abs=5), row
    assert 100 * scores["all"].chosen_on_all == pytest.approx(THEIRS["coreference"]["head"][0], abs=5)


def test_table_3_on_the_wall_street_journal(tmp_path: Path) -> None:
    vectors = os.environ.get("BERTSECRETS_GLOVE")
    if vectors is None:
        pytest.skip("BERTSECRETS_GLOVE names no file of GloVe's vectors")
    settings = [f"analysis.probes.glove={vectors}", "analysis.probes.control=false"]
    view = analysed("probes", "BERTSECRETS_WSJ", "treebank", tmp_path, *settings)
    scores = {row.probe: 100 * row.uas.value for row in view.found(ProbeScore)}
    scores["structural"] = next(100 * row.uuas.value for row in view.found(HiddenState) if row.chosen)
    for name, theirs in THEIRS["probes"].items():
        assert scores[name] == pytest.approx(theirs, abs=4), name


def analysed(analysis: str, variable: str, task: str, folder: Path, *settings: str) -> MeasureView:
    """What an analysis found of bert-base-uncased on the texts that an environment variable names."""
    texts = os.environ.get(variable)
    if texts is None:
        pytest.skip(f"{variable} names no folder of the paper's texts")
    weights = os.environ.get("BERTSECRETS_BERT_BASE", "bert-base-uncased")
    words = ["checkpoint=initial", f"analysis={analysis}", f"task={task}", f"data.root={texts}", "model=bert_base"]
    run = [f"model.path={weights}", "logger=none", f"hydra.run.dir={folder}/run"]
    done = door("analyze", *words, *run, *settings, timeout=1800)
    assert done.returncode == 0, done.stderr
    run = Run.open(folder / "run")
    return MeasureView(run, next(declaration for declaration in run.declarations() if declaration.name == analysis))
