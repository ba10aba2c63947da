"""What the report says of features and linked words, against grids made by hand."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from doors.runs import door, small
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy import stats

from bertsecrets.doors.feature_columns import Columns
from bertsecrets.doors.features_section import features_section
from bertsecrets.doors.linguistic_sections import linguistic_sections
from bertsecrets.doors.token_to_token_section import token_to_token_section
from bertsecrets.grid import HeadGrid
from bertsecrets.results.report.content import Section
from bertsecrets.results.table import HeadTable

Array = NDArray[np.float64]


def table_of(measure: str, values: dict[str, Array], counts: dict[str, int], stderr: float = 0.01) -> HeadTable:
    value_LHC = torch.tensor(np.stack(list(values.values()), -1))
    count_LHC = torch.tensor([counts.get(name, 50) for name in values]).expand(value_LHC.shape)
    grid = HeadGrid(measure, tuple(values), value_LHC, torch.full_like(value_LHC, stderr), count_LHC)
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


FEATURES |= {f"{name}_over_uniform": FEATURES[name] - 0.05 for name in ("nouns", "negation", "cls", "sep")}


EMPTY = {name: 0 for name in FEATURES if name.startswith("negation")}


def features(values: dict[str, Array]) -> tuple[Section, dict[str, Figure], list[str]]:
    figures: dict[str, Figure] = {}
    lead: list[str] = []
    rows = table_of("features", values, {name: 0 for name in values if name.startswith("negation")})
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
    _, figures, lead = features({name: FEATURES[name] for name in FEATURES if name.startswith("nouns")})
    assert set(figures) == {"features_words"}
    assert len(lead) == 1


def test_all_separators_together_without_the_highest_of_them() -> None:
    values = {name.replace("sep", "sep_total"): value for name, value in FEATURES.items()}
    section, figures, _ = features(values)
    assert [row[0] for row in section.tables[0].rows] == ["nouns", "[CLS]", "all [SEP] together"]
    assert set(figures) == {"features_special", "features_special_heads", "features_words"}
    figures, lead = {}, []
    without = {name: value for name, value in PAIRS.items() if not name.startswith(("cls_to_sep", "coreferent"))}
    without |= {"cls_to_sep_total": PAIRS["cls_to_sep_total"]}
    token_to_token_section(Columns(table_of("token_to_token", without, {}), "token_to_token"), figures, lead)
    assert "[CLS] attends most to all [SEP] together (0.600" in lead[0]


PAIRS = {
    "cls_to_nouns": np.array([[0.9, 0.9], [0.2, 0.4]]),
    "cls_to_sep": np.array([[0.1, 0.1], [0.5, 0.7]]),
    "cls_to_sep_total": np.array([[0.1, 0.1], [0.5, 0.7]]),
    "subject_to_verb": np.array([[0.9, 0.1], [0.2, 0.5]]),
    "subject_to_verb_mean": np.array([[0.6, 0.1], [0.2, 0.3]]),
    "subject_to_verb_beyond_position": np.array([[0.0, -0.1], [0.001, 0.2]]),
    "subject_to_verb_far": np.array([[0.02, 0.1], [0.2, 0.4]]),
    "coreferent": np.full((2, 2), math.nan),
    "coreferent_mean": np.full((2, 2), math.nan),
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
            "0.600",
            "0.000",
            "0.020",
            "1 of 4",
            "layer 1 · head 1: 0.200 ± 0.010",
        ]
    ]
    assert set(figures) == {"token_to_token_cls", "token_to_token_pairs", "token_to_token_beyond_position"}


def test_heads_above_uniform_are_those_of_scipys_test_on_the_examples_themselves() -> None:
    rng = np.random.default_rng(0)
    # Few examples whose lengths, and with them what uniform attention gives, differ widely.
    uniform_N = 1 / rng.integers(5, 60, 7)
    over_NLHC = rng.normal(rng.uniform(-0.02, 0.05, (3, 4, 2)), 0.03, (7, 3, 4, 2))
    batch_values = {
        "nouns": uniform_N[:, None, None] + over_NLHC[..., 0],
        "verbs": uniform_N[:, None, None] + over_NLHC[..., 1],
        "nouns_uniform": np.broadcast_to(uniform_N[:, None, None], (7, 3, 4)),
        "verbs_uniform": np.broadcast_to(uniform_N[:, None, None], (7, 3, 4)),
        "nouns_over_uniform": over_NLHC[..., 0],
        "verbs_over_uniform": over_NLHC[..., 1],
    }
    value_NLHC = torch.tensor(np.stack(list(batch_values.values()), -1))
    count_LHC = torch.full(value_NLHC.shape[1:], 7)
    grid = HeadGrid.from_sums("features", tuple(batch_values), value_NLHC.sum(0), value_NLHC.square().sum(0), count_LHC)
    rows = HeadTable.from_grid(grid, run="r", model="m", task="t", init="pretrained", stage="checkpoint", step=3)
    [table] = features_section(Columns(rows, "features"), {}, []).tables
    related = [
        stats.ttest_rel(batch_values[name], batch_values[f"{name}_uniform"], axis=0, alternative="greater").pvalue
        for name in ("nouns", "verbs")
    ]
    expected_CN = stats.false_discovery_control(np.stack(related).ravel()).reshape(2, 12) <= 0.05
    assert 0 < expected_CN.sum() < expected_CN.size
    assert [row[4] for row in table.rows] == [f"{each.sum()} of 12" for each in expected_CN]
    # A normal test that takes the two for samples of their own counts others.
    spreads = [np.hypot(stats.sem(batch_values[name]), stats.sem(uniform_N)) for name in ("nouns", "verbs")]
    p_CN = stats.norm.sf(np.moveaxis(over_NLHC.mean(0), -1, 0) / np.stack(spreads)).ravel()
    assert (stats.false_discovery_control(p_CN).reshape(2, 12) <= 0.05).sum() != expected_CN.sum()


def test_a_measure_of_another_version_leaves_the_rest_of_the_report_alone() -> None:
    older = table_of("features", {name: each for name, each in FEATURES.items() if "over" not in name}, EMPTY)
    figures: dict[str, Figure] = {}
    lead: list[str] = []
    [section] = linguistic_sections(older, figures, lead)
    assert "no features/nouns_over_uniform" in section.paragraphs[0]
    assert not section.tables
    assert not figures
    assert not lead
    [section] = linguistic_sections(table_of("features", FEATURES, EMPTY), figures, lead)
    assert section.tables
    assert figures
    assert lead


def test_the_hint_is_a_key_that_can_be_typed() -> None:
    section, _, _ = features(FEATURES)
    assert "analysis=features analysis.features.beside=[initial,random]" in section.paragraphs[-1]


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
