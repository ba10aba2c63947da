"""Kinds of tests that read records, scores and several columns, each on numbers worked out by hand."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import yaml
from ablation.test_over_examples import TASK, outcomes_of
from numpy.typing import NDArray
from papers.paper_runs import (
    BERT,
    TREEBANK,
    VOITA_ROWS,
    by_layer,
    gated_run,
    models_in,
    pruned_run,
    relation,
    roles_measured,
    statement_of,
    with_rows,
)
from reporting.finished_runs import make_run
from scipy import stats

from bertsecrets.ablation.over_examples import over_examples
from bertsecrets.errors import UserError
from bertsecrets.measures.clusters.rows import Group, Space
from bertsecrets.measures.coreference.rows import Baseline
from bertsecrets.papers.statements import statement as statement_module
from bertsecrets.papers.statements.judge import FAILS, FAILS_HERE, HOLDS, HOLDS_HERE, UNTOLD, Cell, judge
from bertsecrets.papers.statements.kinds import KINDS
from bertsecrets.papers.statements.sheet import Grid
from bertsecrets.papers.statements.statement import read_statement
from bertsecrets.papers.statements.test import Finding, Reading
from bertsecrets.results.estimate import Estimate
from bertsecrets.results.run import Run
from bertsecrets.settings import CONF


def cell_of(folder: Path, about: str = "tuned", **test: Any) -> Cell:
    """The one cell of a statement with a test on the runs of a folder."""
    (entry,) = judge([statement_of(test, about)], models_in(folder), folder.parent / f"{folder.name}-readings")
    (cell,) = entry.cells
    return cell


def value_of(cell: Cell) -> float:
    assert cell.finding is not None
    return cell.finding.value


RELATIONS: dict[str, Any] = {
    "kind": "found",
    "experiment": "dependency",
    "rows": "relation",
    "without": {"relation": "all"},
}


def treebank(folder: Path, **changes: Mapping[str, Any]) -> None:
    """Relations found in 90 %, 30 points more often than by an offset, unless changed by name."""
    scores = [relation("all", 0.35, 0.1)]
    for name in ("det", "obj", "case", "aux", "mark", "cc"):
        scores.append(relation(name, **{"accuracy": 0.9, "gain": 0.3, **changes.get(name, {})}))
    with_rows(folder, "dependency", [TREEBANK, *scores], {"all": np.full((2, 2), 0.3)})


def test_the_share_over_examples_is_that_of_the_losses_of_the_mode(tmp_path: Path) -> None:
    settings = yaml.safe_load((CONF / "task" / "mrpc.yaml").read_text("utf-8"))
    folder = make_run(tmp_path / "runs" / "run", p_constant=0.001, delta_LH=np.zeros((3, 4)), task_settings=settings)
    outcomes = outcomes_of(60)
    outcomes.write(folder / "ablation" / "checkpoint-00000009-zero.safetensors", TASK)
    zero, mean = (cell_of(tmp_path / "runs", kind="over_examples", mode=mode, above=0.5) for mode in ("zero", "mean"))
    (row,) = over_examples(outcomes, TASK, 0.95)
    assert (value_of(zero), zero.verdict) == (pytest.approx(row.share.value), HOLDS_HERE)
    assert zero.finding is not None
    assert zero.finding.readings[0].detail == "12 heads"
    assert mean.command.endswith("analysis=disable ablation.mode=mean ablation.sweep=exact")


def test_a_number_of_a_row_is_found_with_its_interval_and_head(tmp_path: Path) -> None:
    share = Estimate(0.2, 0.15, 0.25, n=9)
    rows = [Baseline("all", "nearest", 4, 3, share, share, 0.01)]
    with_rows(tmp_path, "coreference", rows, {"all": np.full((2, 2), 0.3)})
    test = {"kind": "found", "experiment": "coreference", "rows": "baseline", "value": "gain", "above": 0.0}
    cell = cell_of(tmp_path, "before", **test, where={"mention": "all", "baseline": "nearest"})
    assert cell.finding is not None
    assert (cell.finding.low, cell.finding.high) == pytest.approx((0.15, 0.25))
    assert (cell.verdict, cell.finding.readings[0].detail) == (HOLDS_HERE, "layer 4 · head 3")
    missing = cell_of(tmp_path, "before", **test, where={"baseline": "rules"})
    assert (missing.finding, missing.verdict) == (None, UNTOLD)
    assert missing.command.endswith("analysis=coreference task=coreference data.root=<folder>")


def test_sentences_with_too_few_words_are_named_before_those_without_the_analysis(tmp_path: Path) -> None:
    treebank(tmp_path)
    make_run(tmp_path / "other", model=BERT, task="cola", measured=[("initial", "surface", {"cls": np.ones((2, 2))})])
    rows = {"experiment": "dependency", "rows": "relation", "where": {"relation": "nmod:poss"}}
    cell = cell_of(tmp_path, "before", kind="found", **rows, value="gain", above=0.0)
    assert (cell.task, cell.finding) == ("mrpc", None)
    assert cell.reason == "No run has gain of dependency (relation; nmod:poss) (too few, or not measured)."


def test_relations_are_counted_with_the_interval_of_their_gains(tmp_path: Path) -> None:
    treebank(tmp_path, det={"gain": -0.3}, obj={"gain": 0.01})
    cell = cell_of(tmp_path, "before", **RELATIONS, value="gain", aggregate="share", p="p_gain", above=0.5)
    # Five of six gain, one of them uncertainly: the share is 4/6 to 6/6.
    assert cell.finding is not None
    assert (cell.finding.value, cell.finding.low, cell.finding.high) == pytest.approx((5 / 6, 4 / 6, 1.0))
    assert cell.verdict == HOLDS_HERE


@pytest.mark.parametrize(("accuracy", "verdict"), [(0.9, HOLDS_HERE), (0.76, UNTOLD), (0.6, FAILS_HERE)])
def test_the_relation_with_the_lowest_accuracy_counts(tmp_path: Path, accuracy: float, verdict: str) -> None:
    treebank(tmp_path, obj={"accuracy": accuracy}, cc={"accuracy": 0.1})
    named = ["det", "obj", "auxpass"]
    cell = cell_of(
        tmp_path,
        "before",
        **{**RELATIONS, "where": {"relation": named}},
        value="accuracy",
        aggregate="lowest",
        above=0.75,
    )
    assert (value_of(cell), cell.verdict) == (accuracy, verdict)


@pytest.mark.parametrize(("reversed_relations", "verdict"), [(0, HOLDS_HERE), (1, UNTOLD), (6, FAILS_HERE)])
def test_directions_are_compared_by_a_sign_test(tmp_path: Path, reversed_relations: int, verdict: str) -> None:
    names = ("det", "obj", "case", "aux", "mark", "cc")[:reversed_relations]
    treebank(tmp_path, **{name: {"from_head": True} for name in names})
    cell = cell_of(tmp_path, "before", **RELATIONS, value="from_head", aggregate="share", above=0.5)
    assert cell.finding is not None
    assert cell.finding.p_value == pytest.approx(stats.binomtest(6 - reversed_relations, 6).pvalue)
    assert cell.verdict == verdict


@pytest.mark.parametrize(("separator", "verdict"), [(0.4, HOLDS_HERE), (0.31, UNTOLD), (0.1, FAILS_HERE)])
def test_a_column_is_held_against_the_highest_other(tmp_path: Path, separator: float, verdict: str) -> None:
    columns = {
        "cls_to_sep": by_layer(0.9, separator),
        "cls_to_nouns": by_layer(0.1, 0.3),
        "cls_to_verbs": by_layer(0.95, 0.05),
        "cls_to_cls": by_layer(0.9, 0.9),
        "cls_to_nouns_random": by_layer(0.9, 0.9),
    }
    make_run(tmp_path / "run", measured=[("checkpoint", "token_to_token", columns)], p_constant=0.001)
    cell = cell_of(
        tmp_path,
        kind="mean",
        column="token_to_token/cls_to_sep",
        highest_of="token_to_token/cls_to_",
        without=["token_to_token/cls_to_cls"],
        layers="last",
        above=0.0,
    )
    assert (value_of(cell), cell.verdict) == (pytest.approx(separator - 0.3), verdict)
    assert cell.finding is not None
    assert cell.finding.readings[0].detail == "highest other: cls_to_nouns"


@pytest.mark.parametrize(("beyond", "verdict"), [(0.05, HOLDS_HERE), (0.15, UNTOLD), (0.28, FAILS_HERE)])
def test_what_links_keep_beyond_position(tmp_path: Path, beyond: float, verdict: str) -> None:
    highest = np.array([[False, True], [False, False]])
    values = {"": 0.9, "_mean": 0.3, "_beyond_position": beyond}
    columns = {f"verb_to_subject{end}": np.where(highest, value, 0.01) for end, value in values.items()}
    make_run(tmp_path / "run", measured=[("checkpoint", "token_to_token", columns)], p_constant=0.001)
    cell = cell_of(tmp_path, kind="linked", pairs=["verb_to_subject", "noun_to_pronoun"], below=0.5)
    assert (value_of(cell), cell.verdict) == (pytest.approx(beyond / 0.3), verdict)


@pytest.mark.parametrize(("second", "number", "verdict"), [(0.03, 1, HOLDS_HERE), (0.3, 0, UNTOLD)])
def test_a_head_passes_all_tests_or_none(tmp_path: Path, second: float, number: int, verdict: str) -> None:
    columns = {
        "p_position_corrected": np.array([[0.01, 0.9], [0.01, 0.9]]),
        "p_received_corrected": np.array([[second, 0.01], [0.4, 0.9]]),
    }
    make_run(tmp_path / "run", measured=[("initial", "frame_relations", columns)])
    names = [f"frame_relations/{name}" for name in columns]
    cell = cell_of(tmp_path, "before", kind="tested_heads", p_values=names, above=0)
    assert (value_of(cell), cell.verdict) == (number, verdict)


def scored(folder: Path, init: str, seed: int, accuracy: float, constant: float = 0.53) -> None:
    make_run(
        folder / f"{init}{seed}",
        task="rte",
        init=init,
        seed=seed,
        accuracy=accuracy,
        constant=constant,
        p_constant=0.001 if init == "pretrained" else 0.6,
    )


@pytest.mark.parametrize(("pretrained", "verdict"), [(0.8, HOLDS), (0.54, UNTOLD), (0.3, FAILS)])
def test_scores_are_compared_with_random_weights(tmp_path: Path, pretrained: float, verdict: str) -> None:
    for seed in (1, 2):
        scored(tmp_path, "pretrained", seed, pretrained + 0.001 * seed)
        scored(tmp_path, "random_normal", seed, 0.53 + 0.001 * seed)
    cell = cell_of(tmp_path, kind="score", minus="random", above=0)
    assert (value_of(cell), cell.verdict) == (pytest.approx(100 * (pretrained - 0.53)), verdict)


@pytest.mark.parametrize(("random", "verdict"), [(0.53, HOLDS), (0.54, UNTOLD), (0.7, FAILS)])
def test_random_weights_are_compared_with_a_constant_answer(tmp_path: Path, random: float, verdict: str) -> None:
    for seed in (1, 2):
        scored(tmp_path, "random_normal", seed, random)
    cell = cell_of(tmp_path, "random", kind="score", minus="constant", absolute=True, below=1)
    assert (value_of(cell), cell.verdict) == (pytest.approx(100 * (random - 0.53)), verdict)


@pytest.mark.parametrize(
    ("metric", "error"),
    [("pearson", 100 * (1 - 0.64) / math.sqrt(997)), ("spearman", 100 * 0.36 / math.sqrt(997)), ("matthews", math.nan)],
)
def test_a_correlation_of_numbers_has_the_error_of_its_examples(metric: str, error: float, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", task="stsb", p_constant=0.001)
    scores = json.loads((folder / "scores.json").read_text())
    scores["sets"]["val"] |= {"count": 1000, "model": {metric: 0.8}, "constant": {metric: None}}
    (folder / "scores.json").write_text(json.dumps(scores))
    cell = cell_of(tmp_path, kind="score", minus="constant", above=0)
    assert cell.finding is not None
    assert cell.finding.readings[0].stderr == pytest.approx(error, nan_ok=True)


PASSED, LOST = (-0.005, 0.01), (-0.05, -0.02)


@pytest.mark.parametrize(
    ("path", "kept", "verdict"),
    [
        # A second look at fewer than half of the heads does not count.
        ([(9, *LOST), (5, *PASSED), (3, *LOST)], 5, HOLDS_HERE),
        ([(9, *PASSED), (5, *LOST), (3, *PASSED)], 5, FAILS_HERE),
        ([(9, *PASSED), (7, *PASSED)], None, UNTOLD),
    ],
)
def test_gates_are_judged_by_the_first_model_with_few_heads(
    tmp_path: Path, path: list[tuple[int, float, float]], kept: int | None, verdict: str
) -> None:
    gated_run(tmp_path, np.zeros((3, 4)), path)
    cell = cell_of(tmp_path, kind="gates", value="change", above=-1)
    assert cell.verdict == verdict
    assert kept is None or (cell.finding and cell.finding.readings[0].detail == f"{kept} of 12 heads kept; accuracy")


@pytest.mark.parametrize(
    ("open_heads", "verdict"),
    [((0, 1, 2, 3), HOLDS_HERE), ((4, 5, 6, 7, 8, 9, 10, 11), FAILS_HERE), ((0, 1, 4, 5, 8, 9), UNTOLD)],
)
def test_heads_with_a_role_are_compared_with_the_others(
    tmp_path: Path, open_heads: tuple[int, ...], verdict: str
) -> None:
    """The four positional heads are those of layer 0."""
    gated_run(tmp_path, np.isin(np.arange(12), open_heads).reshape(3, 4), [(3, *PASSED)])
    cell = cell_of(tmp_path, kind="gates", value="roles", above=0)
    kept = [sum(head in open_heads for head in part) for part in (range(4), range(4, 12))]
    p = stats.fisher_exact([[kept[0], 4 - kept[0]], [kept[1], 8 - kept[1]]]).pvalue
    assert cell.finding is not None
    assert (cell.finding.p_value, value_of(cell)) == pytest.approx((p, kept[0] / 4 - kept[1] / 8))
    assert cell.verdict == verdict


@pytest.mark.parametrize(("nsubj", "verdict"), [(0.46, HOLDS_HERE), (0.41, UNTOLD), (0.35, FAILS_HERE)])
def test_a_syntactic_head_is_above_the_most_frequent_distance(tmp_path: Path, nsubj: float, verdict: str) -> None:
    """The most frequent distance is right in 0.3, so that 0.4 is the threshold; too few objects count."""
    nsubj_LH = np.full((3, 4), 0.1)
    nsubj_LH[2, 1] = nsubj
    columns = roles_measured(nsubj_from_head=nsubj_LH, obj=np.full((3, 4), 0.9))
    run = Run.open(make_run(tmp_path / "run", measured=[("initial", "voita_roles", columns)]))
    run.write_rows("voita_roles", "initial", 0, VOITA_ROWS)
    cell = cell_of(tmp_path, "before", kind="voita_syntactic", above=0.1)
    assert (value_of(cell), cell.verdict) == (pytest.approx(nsubj - 0.3), verdict)
    assert cell.finding is not None
    assert cell.finding.readings[0].detail == "nsubj_from_head: layer 2 · head 1"


@pytest.mark.parametrize(("slowest", "verdict"), [(6.0, HOLDS_HERE), (11.0, UNTOLD)])
def test_a_faster_model_is_faster_by_more_than_its_rounds_vary(tmp_path: Path, slowest: float, verdict: str) -> None:
    pruned_run(tmp_path, 1, {"exact": 0.0, "random": -0.1}, slowest=slowest)
    cell = cell_of(tmp_path, kind="speed", share=0.5, above=0)
    assert (value_of(cell), cell.verdict) == (pytest.approx(100 * (10 / (slowest - 1) - 1)), verdict)


@pytest.mark.parametrize(("second", "verdict"), [(0.9, HOLDS_HERE), (0.76, UNTOLD)])
def test_two_stable_groups_are_asked_for(tmp_path: Path, second: float, verdict: str) -> None:
    groups = [Group(False, number, 0.1, stability) for number, stability in enumerate((0.95, second, 0.2))]
    columns = {"within_layer": np.full((2, 2), 0.1)}
    run = Run.open(make_run(tmp_path / "run", measured=[("checkpoint", "clusters", columns)], p_constant=0.001))
    run.write_rows("clusters", "checkpoint", 0, [Space(False, 100, 50, 0.1, 0.1, 0.2, 0.01), *groups])
    cell = cell_of(tmp_path, kind="groups", above=0.75)
    assert (value_of(cell), cell.verdict) == (second, verdict)


def test_a_column_stands_in_for_one_that_was_not_measured(tmp_path: Path) -> None:
    test: dict[str, Any] = {"kind": "mean", "column": "features/sep or surface/sep_total", "above": 0.2}
    make_run(
        tmp_path / "a" / "run",
        measured=[("checkpoint", "surface", {"sep_total": by_layer(0.3, 0.5)})],
        p_constant=0.001,
    )
    assert value_of(cell_of(tmp_path / "a", **test)) == pytest.approx(0.4)
    both = [("checkpoint", "surface", {"sep_total": by_layer(0.3, 0.5)})]
    both.append(("checkpoint", "features", {"sep": by_layer(0.1, 0.2)}))
    make_run(tmp_path / "b" / "run", measured=both, p_constant=0.001)
    assert value_of(cell_of(tmp_path / "b", **test)) == pytest.approx(0.15)


def test_the_highest_of_several_columns_counts_head_by_head(tmp_path: Path) -> None:
    columns = {"previous": by_layer(0.1, 0.3), "next": np.array([[0.2, 0.95], [0.1, 0.1]])}
    make_run(tmp_path / "run", measured=[("checkpoint", "offsets", columns)], p_constant=0.001)
    test: dict[str, Any] = {"kind": "some_head", "column": "offsets/previous", "or_columns": ["offsets/next"]}
    assert value_of(cell_of(tmp_path, **test, above=0.9)) == pytest.approx(0.95)
    assert value_of(cell_of(tmp_path, **test, layers="last", above=0.9)) == pytest.approx(0.3)
    # A column that no run has is left out.
    test["or_columns"] = ["offsets/same"]
    assert value_of(cell_of(tmp_path, **test, above=0.9)) == pytest.approx(0.3)


def test_one_seed_speaks_for_its_model_and_several_for_the_task(tmp_path: Path) -> None:
    test: dict[str, Any] = {"kind": "mean", "column": "drift/cosine", "above": 0.5}
    make_run(tmp_path / "one", cosine_LH=by_layer(0.8, 0.9), p_constant=0.001)
    assert cell_of(tmp_path, **test).verdict == HOLDS_HERE
    make_run(tmp_path / "two", seed=2, cosine_LH=by_layer(0.81, 0.9), p_constant=0.001)
    assert cell_of(tmp_path, **test).verdict == HOLDS


class Means:
    """A sheet of one column: the same number for two heads of each layer, with its error."""

    def __init__(self, mean_L: NDArray[np.float64], error: float) -> None:
        self.mean_L, self.error = mean_L, error

    def grid(self, column: str) -> Grid:
        value_LH = np.repeat(self.mean_L[:, None], 2, axis=1)
        return Grid(value_LH, np.full(value_LH.shape, self.error), 100)


LAST_TWO = {"kind": "extreme_layers", "column": "drift/cosine", "layers": "last_two", "extreme": "lowest", "above": 0}


def extreme(mean_SL: NDArray[np.float64], error: float = 0.001) -> tuple[Reading, Finding]:
    test = KINDS["extreme_layers"].read("test", LAST_TWO)
    reading = test.joint_reading([[cast(Any, Means(mean_L, error))] for mean_L in mean_SL])
    return reading, test.judge([reading])


def test_extreme_layers_are_compared_in_the_mean_of_the_seeds() -> None:
    """Each seed has another layer that is lower than one of the last two; in the mean none is."""
    mean_SL = np.full((4, 6), 0.9)
    mean_SL[:, -2:] = 0.7
    mean_SL[range(4), range(4)] = 0.68
    reading, finding = extreme(mean_SL)
    gaps_S = mean_SL[:, 0] - 0.7
    assert reading.value == pytest.approx(gaps_S.mean())
    assert reading.detail.startswith("lowest layer: ")
    assert finding.p_value == pytest.approx(stats.ttest_1samp(gaps_S, 0).pvalue, rel=0.4)
    mean_SL[:, 0] = 0.5
    reading, finding = extreme(mean_SL)
    assert finding.value < 0
    assert finding.p_value < 0.05


def test_layers_that_are_alike_are_rarely_refuted() -> None:
    generator = np.random.default_rng(1)
    refuted = 0
    for _ in range(30):
        _, finding = extreme(0.8 + 0.02 * generator.standard_normal((5, 6)), 0.0)
        refuted += finding.value < 0 and finding.p_value <= 0.05
    assert refuted <= 3


def test_a_reading_that_is_kept_keeps_its_own_p_value(tmp_path: Path) -> None:
    columns = {"p_position_corrected": np.array([[0.01, 0.9], [0.01, 0.9]])}
    make_run(tmp_path / "run", measured=[("initial", "frame_relations", columns)])
    test: dict[str, Any] = {"kind": "tested_heads", "p_values": ["frame_relations/p_position_corrected"], "above": 0}
    first, second = (cell_of(tmp_path, "before", **test) for _ in range(2))
    assert first.verdict == HOLDS_HERE
    # Their limits are NaN, which equals nothing.
    assert repr(second) == repr(first)


def test_a_kind_of_an_installed_package_is_named_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_kinds.py").write_text(
        "from bertsecrets.papers.statements.kinds.columns import Mean\n\n\nclass Doubled(Mean):\n    factor: float\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "theirs.yaml"
    test = {"kind": "their_kinds.Doubled", "factor": 2.0, "column": "drift/cosine", "above": 0.5}
    words = dict.fromkeys(("source", "statement", "quote", "published", "there", "here"), "So.")
    path.write_text(yaml.safe_dump({**words, "about": "tuned", "test": test}))
    with pytest.raises(UserError, match=r"test\.kind is 'their_kinds.Doubled'"):
        read_statement(path)
    monkeypatch.setattr(statement_module, "files", lambda: {"theirs": path})
    assert type(read_statement(path).test).__name__ == "Doubled"
    path.write_text(path.read_text().replace("Doubled", "Tripled"))
    with pytest.raises(UserError, match=r"'their_kinds\.Tripled' cannot be imported"):
        read_statement(path)
