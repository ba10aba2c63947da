"""What the report says of features and linked words, against grids made by hand."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from doors.runs import door, small
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.stats import false_discovery_control, norm

from bertsecrets.doors.feature_columns import Columns, above
from bertsecrets.doors.features_section import features_section
from bertsecrets.doors.token_to_token_section import token_to_token_section
from bertsecrets.grid import HeadGrid
from bertsecrets.results.report.content import Section
from bertsecrets.results.table import HeadTable

Array = NDArray[np.float64]


def table_of(measure: str, values: dict[str, Array], counts: dict[str, int]) -> HeadTable:
    value_LHC = torch.tensor(np.stack(list(values.values()), -1))
    count_LHC = torch.tensor([counts.get(name, 50) for name in values]).expand(value_LHC.shape)
    grid = HeadGrid(measure, tuple(values), value_LHC, torch.full_like(value_LHC, 0.01), count_LHC)
    return HeadTable.from_grid(grid, run="r", model="m", task="t", init="pretrained", stage="checkpoint", step=3)


FEATURES = {
    "nouns": np.array([[0.02, 0.06], [0.04, 0.32]]),
    "negation": np.full((2, 2), math.nan),
    "cls": np.array([[0.4, 0.6], [0.1, 0.1]]),
    "sep": np.array([[0.05, 0.05], [0.5, 0.3]]),
    "nouns_uniform": np.full((2, 2), 0.05),
    "negation_uniform": np.full((2, 2), math.nan),
    "cls_uniform": np.full((2, 2), 0.05),
    "sep_uniform": np.full((2, 2), 0.05),
}


def features(values: dict[str, Array]) -> tuple[Section, dict[str, Figure], list[str]]:
    figures: dict[str, Figure] = {}
    lead: list[str] = []
    rows = table_of("features", values, {"negation": 0, "negation_uniform": 0})
    return features_section(Columns(rows, "features"), figures, lead), figures, lead


def test_features_are_told_where_they_are_attended_to_most() -> None:
    section, figures, lead = features(FEATURES)
    assert lead == [
        "Most attention goes to [CLS] in layer 0 (0.500 on average over heads) and [SEP] in layer 1 (0.400 on average over "
        "heads), as in the paper: [CLS] early, [SEP] late.",
        "The feature of words attended to most is nouns: layer 1 · head 1 gives it 6.4 times what uniform attention would, "
        "heads on average 2.2 times.",
    ]
    assert set(figures) == {"features_special", "features_special_heads", "features_words"}
    [table] = section.tables
    assert table.header[2:4] == ["mean of heads", "uniform"]
    # Only what an example has: no example has a negation.
    assert [row[0] for row in table.rows] == ["nouns", "[CLS]", "[SEP]"]
    assert table.rows[0][1:] == ["50", "0.110", "0.050", "1 of 4", "layer 1 · head 1: 0.320 ± 0.010"]
    assert "unlike the paper's" in features({**FEATURES, "cls": FEATURES["sep"], "sep": FEATURES["cls"]})[2][0]


def test_features_of_words_alone_make_no_figure_of_special_tokens() -> None:
    _, figures, lead = features({name: FEATURES[name] for name in ("nouns", "nouns_uniform")})
    assert set(figures) == {"features_words"}
    assert len(lead) == 1


PAIRS = {
    "cls_to_nouns": np.array([[0.9, 0.9], [0.2, 0.4]]),
    "cls_to_sep": np.array([[0.1, 0.1], [0.5, 0.7]]),
    "cls_to_sep_total": np.array([[0.1, 0.1], [0.5, 0.7]]),
    "subject_to_verb": np.array([[0.9, 0.1], [0.2, 0.5]]),
    "subject_to_verb_beyond_position": np.array([[0.0, -0.1], [0.001, 0.2]]),
    "subject_to_verb_far": np.array([[0.02, 0.1], [0.2, 0.4]]),
    "coreferent": np.full((2, 2), math.nan),
    "coreferent_beyond_position": np.full((2, 2), math.nan),
    "coreferent_far": np.full((2, 2), math.nan),
    "uniform": np.full((2, 2), 0.05),
}


def test_a_head_that_goes_by_position_is_told_from_one_that_goes_beyond() -> None:
    figures: dict[str, Figure] = {}
    lead: list[str] = []
    empty = dict.fromkeys((name for name in PAIRS if name.startswith("coreferent")), 0)
    table = table_of("token_to_token", PAIRS, empty)
    section = token_to_token_section(Columns(table, "token_to_token"), figures, lead)
    assert lead == [
        "In the last layer [CLS] attends most to [SEP] (0.600 on average over heads), then to nouns (0.300); uniform "
        "attention gives 0.050.",
        "Beyond position, 1 of 1 kinds of linked words have a head that attends to them; furthest goes "
        "layer 1 · head 1: 0.200 ± 0.010 for subject → verb.",
    ]
    [rows] = [table.rows for table in section.tables]
    assert rows == [
        [
            "subject → verb",
            "50",
            "layer 0 · head 0: 0.900 ± 0.010",
            "0.000",
            "0.020",
            "1 of 4",
            "layer 1 · head 1: 0.200 ± 0.010",
        ]
    ]
    assert set(figures) == {"token_to_token_cls", "token_to_token_pairs", "token_to_token_beyond_position"}


def test_heads_above_their_level_equal_an_independent_correction() -> None:
    rng = np.random.default_rng(0)
    values = [rng.normal(0.05, 0.05, (4, 6)) for _ in range(3)]
    levels, stderrs = [np.full((4, 6), 0.05)] * 3, [rng.uniform(0.005, 0.03, (4, 6)) for _ in range(3)]
    values[1][2, 3] = math.nan
    found = np.stack(above(values, levels, stderrs))
    z = (np.stack(values) - 0.05) / np.stack(stderrs)
    expected = np.zeros_like(found)
    tested = np.isfinite(z)
    expected[tested] = false_discovery_control(norm.sf(z[tested])) <= 0.05
    assert (found == expected).all()
    assert 0 < found.sum() < found.size


@pytest.mark.slow
def test_a_pipeline_annotates_a_task_and_the_original_definitions_run_on_it(
    tiny_bert: Path, tmp_path: Path, glue: Path
) -> None:
    pytest.importorskip("spacy", reason="spaCy is not installed; pip install 'bertsecrets[annotate]'")
    from data.pipelines import train_pipeline

    given = small(
        tiny_bert,
        tmp_path / "trained",
        task="mrpc",
        data="tsv",
        data__root=glue,
        data__limit_eval=100,
        trainer__max_epochs=1,
        callbacks="features",
    )
    refused = door("train", *given)
    assert refused.returncode == 1
    for way in ("annotation=spacy annotation.pipeline=", "task=demo_paraphrase", "task=ud_ewt data.root="):
        assert way in refused.stderr
    pipeline = train_pipeline(tmp_path / "pipeline")
    annotated = [
        *given,
        "annotation=spacy",
        f"annotation.pipeline={pipeline}",
        f"annotation.cache_dir={tmp_path / 'kept'}",
    ]
    trained = door("train", *annotated)
    assert trained.returncode == 0, trained.stderr[-2000:]
    assert HeadTable.read(tmp_path / "trained" / "heads.parquet").steps("features", "nouns", "training")
    analysed = door(
        "analyze",
        *(each for each in annotated if not each.startswith(("callbacks", "hydra", "trainer.max", "task.training"))),
        f"checkpoint={tmp_path / 'trained'}",
        "analysis=[features,features_kovaleva,token_to_token_kovaleva]",
        f"hydra.run.dir={tmp_path / 'analysed'}",
    )
    assert analysed.returncode == 0, analysed.stderr[-2000:]
    table = HeadTable.read(tmp_path / "analysed" / "heads.parquet")
    [step] = table.steps("features", "objects", "checkpoint")
    assert np.isfinite(table.grid("token_to_token_kovaleva", "subject_to_verb", "checkpoint", step)[0]).all()
    # Absent ones count as 0, but negation's are disregarded.
    assert table.grid("features_kovaleva", "objects", "checkpoint", step)[2].min() == 100
    assert table.grid("features_kovaleva", "negation", "checkpoint", step)[2].max() < 100


def test_a_treebank_is_analysed_without_scores(tiny_bert: Path, tmp_path: Path, glue: Path) -> None:
    if not (glue.parent / "ud" / "UD_English-EWT").is_dir():
        pytest.skip("UD_English-EWT is not there")
    folder = tmp_path / "run"
    given = small(
        tiny_bert,
        folder,
        task="ud_ewt",
        data__root=glue.parent / "ud",
        checkpoint=tiny_bert,
        data__limit_eval=120,
        analysis="[features,token_to_token]",
        analysis__features__beside="[]",
        analysis__token_to_token__beside="[]",
    )
    given.append("+analysis.features.measures.features.features.adjectives={pos: [ADJ]}")
    given.append("analysis.features.measures.features.features.objects=null")
    # The encoder alone is in the folder: a task without labels needs no head.
    run = door("analyze", *given)
    assert run.returncode == 0, run.stderr[-2000:]
    table = HeadTable.read(folder / "heads.parquet")
    value_LH, _, count_LH = table.grid("features", "adjectives", "checkpoint", 0)
    assert not table.steps("features", "objects", "checkpoint")
    assert np.isfinite(value_LH).all()
    assert 30 < count_LH.min() <= 120
    assert (folder / "report.html").is_file()
    assert not (folder / "predictions").exists()
    for name in ("features_words", "token_to_token_cls", "token_to_token_beyond_position"):
        assert (folder / "figures" / f"{name}.png").is_file()
