"""The numbers of ``docs/dark_secrets.md``, taken again from what the runs' files hold."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from reporting.finished_runs import make_run
from scipy import stats
from sklearn.metrics import accuracy_score, f1_score

from benchmarks.dark_secrets_tables import (
    PATTERNS,
    Group,
    by_layers,
    difference,
    disabled,
    drift,
    drift_table,
    features,
    groups,
    layer_table,
    merged,
    numbers,
    patterns,
    plain,
    score,
    score_table,
    token_to_token,
)
from bertsecrets.ablation.seeds import Sweep
from bertsecrets.reporting.runs import read_run
from bertsecrets.results.views import MeasureView

LAYERS, HEADS = 3, 4
CHANGE = "checkpoint-initial"


def random_LH(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.1, 0.9, (LAYERS, HEADS))


def view_of(folder: Path, name: str) -> MeasureView:
    return read_run(folder).experiments[name][1]


def raw(folder: Path, **equal: object) -> list[dict[str, float]]:
    rows = pq.ParquetFile(folder / "heads.parquet").read().to_pylist()
    return [row for row in rows if all(row[name] == value for name, value in equal.items())]


def test_shares_of_patterns_are_means_over_heads_with_the_widest_interval(tmp_path: Path) -> None:
    stages = {"checkpoint": 0, "initial": 10, CHANGE: 20}
    measured = [
        (stage, "patterns", {name: random_LH(at + first) for at, name in enumerate(PATTERNS)})
        for stage, first in stages.items()
    ]
    run = make_run(tmp_path / "run", measured=measured)
    found = patterns(view_of(run, "patterns"))
    for name in PATTERNS:
        for key, stage in (("after", "checkpoint"), ("change", CHANGE)):
            values = [row["value"] for row in raw(run, column=name, stage=stage)]
            assert len(values) == LAYERS * HEADS
            mean = sum(values) / len(values)
            assert found[name][key] == pytest.approx([mean, mean - 1.96 * 0.01, mean + 1.96 * 0.01])


def test_the_most_changed_head_has_the_lowest_cosine(tmp_path: Path) -> None:
    cosine_LH = random_LH(1)
    cosine_LH[2, 1] = 0.01
    found = drift(view_of(make_run(tmp_path / "run", cosine_LH=cosine_LH), "drift"))
    assert found["most"] == [[2, 1], 0.01]
    assert [one[0] for one in found["layers"]] == pytest.approx([row.mean() for row in cosine_LH])


def test_heads_count_as_changed_if_their_change_is_beyond_its_error(tmp_path: Path) -> None:
    before_LH, change_LH = random_LH(2), np.zeros((LAYERS, HEADS))
    change_LH[0, :3], change_LH[1, 0], change_LH[2, 3] = 0.06, -0.2, 0.09  # standard errors of 0.01
    change_LH[2, 0] = 0.01
    columns = {"checkpoint": before_LH + change_LH, "initial": before_LH, CHANGE: change_LH}
    measured = [(stage, "features", {"nouns": values}) for stage, values in columns.items()]
    measured[0][2]["nouns_uniform"] = np.full((LAYERS, HEADS), 0.25)
    nouns = features(view_of(make_run(tmp_path / "run", measured=measured), "features"))["nouns"]
    assert (nouns["up"], nouns["down"]) == (4, 1)
    assert nouns["rise"] == [(2, 3), pytest.approx(before_LH[2, 3]), pytest.approx(before_LH[2, 3] + 0.09)]
    assert nouns["before"] == pytest.approx(before_LH.mean())
    assert nouns["after"] == pytest.approx((before_LH + change_LH).mean())
    assert nouns["uniform"] == 0.25


def test_the_head_that_links_words_is_the_one_with_the_largest_weight(tmp_path: Path) -> None:
    weight_LH, mean_LH, beyond_LH, word_LH = (random_LH(seed) for seed in range(4))
    weight_LH[1, 2] = 0.99
    beyond_LH[0], word_LH[:, 0] = 0.0, -0.1
    pair = {
        "verb_to_subject": weight_LH,
        "verb_to_subject_mean": mean_LH,
        "verb_to_subject_beyond_position": beyond_LH,
        "verb_to_subject_beyond_received": word_LH,
    }
    first = {"cls_to_sep": random_LH(5), "cls_to_nouns": random_LH(6)}
    run = make_run(tmp_path / "run", measured=[("checkpoint", "token_to_token", {**pair, **first})])
    found = token_to_token(view_of(run, "token_to_token"))
    linked = found["pairs"]["verb_to_subject"]
    assert (linked["head"], linked["weight"], linked["mean"]) == ((1, 2), 0.99, mean_LH[1, 2])
    assert linked["beyond"][0] == beyond_LH[1, 2]
    assert linked["heads"] == (LAYERS - 1) * (HEADS - 1)
    assert found["first"]["sep"][0] == pytest.approx(first["cls_to_sep"][-1].mean())


def test_scores_and_their_intervals() -> None:
    generator = np.random.default_rng(0)
    label_N = generator.integers(0, 2, 400).astype(float)
    predicted_N = np.where(generator.random(400) < 0.1, 1 - label_N, label_N)
    right_N = (predicted_N == label_N).astype(float)
    found = score("accuracy", label_N, predicted_N)
    assert found[0] == pytest.approx(accuracy_score(label_N, predicted_N))
    assert found[1:] == pytest.approx(stats.norm.interval(0.95, right_N.mean(), stats.sem(right_N)), abs=0.01)
    assert score("f1", label_N, predicted_N)[0] == pytest.approx(f1_score(label_N, predicted_N))


def test_the_difference_of_two_models_has_the_interval_of_independent_errors() -> None:
    generator = np.random.default_rng(0)
    many_RN = generator.normal([0.8, 0.5], [0.02, 0.05], (200_000, 2))
    one, other = ([mean, mean - 1.96 * error, mean + 1.96 * error] for mean, error in ((0.8, 0.02), (0.5, 0.05)))
    limits = np.percentile(many_RN[:, 0] - many_RN[:, 1], [2.5, 97.5])
    assert difference(one, other) == pytest.approx([0.3, *limits], abs=1e-3)
    # The interval of each is wider above than below.
    assert difference([0.8, 0.77, 0.84], [0.5, 0.46, 0.53]) == pytest.approx(
        [0.3, 0.3 - 0.03 * 2**0.5, 0.3 + 0.04 * 2**0.5]
    )


def test_what_disabling_does() -> None:
    generator = np.random.default_rng(3)
    label_N = generator.integers(0, 2, 300).astype(float)
    clean_N, *other = (np.where(generator.random(300) < wrong, 1 - label_N, label_N) for wrong in (0.2, 0.5, 0.1, 0.3))
    right = [accuracy_score(label_N, one) - accuracy_score(label_N, clean_N) for one in other]
    verdicts = ("needed", "dispensable", "inconclusive")
    rows = [
        {"metric": "accuracy", "baseline": 0.8, "layer": 0, "head": at, "delta": delta, "low": delta - 0.1}
        | {"high": delta + 0.1, "significant": at < 2, "verdict": verdicts[at]}
        for at, delta in enumerate(right)
    ]
    found = disabled(Sweep("run", rows, np.arange(300), label_N, clean_N, np.stack(other)))
    assert found["mean"][0] == pytest.approx(np.mean(right))
    change_N = np.mean([(one == label_N).astype(float) - (clean_N == label_N) for one in other], axis=0)
    assert found["mean"][1:] == pytest.approx(stats.norm.interval(0.95, change_N.mean(), stats.sem(change_N)), abs=0.01)
    assert (found["verdicts"], found["needed"], found["gains"]) == ("1 / 1 / 1", [[0, 0]], 1)
    assert (found["worst"][0], found["best"][0]) == ([0, 0], [0, 1])


def test_several_seeds_are_shown_by_their_mean_and_range() -> None:
    assert numbers([[0.5, 0.4, 0.7]], 1, 100, signed=True) == "+50.0 (+40.0 to +70.0)"
    assert numbers([[0.5, 0, 1], [0.1, 0, 1], [0.3, 0, 1]], 1) == "0.3 (0.1 to 0.5)"
    assert numbers([[None, None, None]]) == "– (– to –)"
    assert by_layers([[[0.5, 0.4, 0.6], [0.9, 0.88, 0.92]]]) == [".50 .90", "0.100"]
    assert by_layers([[[0.5, 0, 1], [0.9, 0, 1]], [[0.6, 0, 1], [0.7, 0, 1]]]) == [".55 .80", "0.100"]
    assert plain({"a": (np.float64("nan"), 0.123456)}) == {"a": [None, 0.12346]}


def record(task: str, seed: int, *, learned: bool, init: str = "pretrained", value: float = 0.8) -> dict[str, Any]:
    metrics = {"accuracy": {"constant": 0.5, "score": [value, value - 0.03, value + 0.03]}}
    return {
        "model": "minilm",
        "task": task,
        "seed": seed,
        "init": init,
        "scores": {"learned": learned, "count": 100, "metrics": metrics},
        "drift": {"layers": [[0.9, 0.8, 1.0]], "most": [[0, seed], 0.5]},
        "layer": {"delta": [-0.1, 0.0], "needed": [[0, None]] if learned else [], "verdicts": "1 / 0 / 1"},
    }


def test_a_model_that_learned_nothing_is_marked() -> None:
    runs = [record("rte", 2, learned=False), record("mrpc", 1, learned=True), record("rte", 1, learned=True)]
    tasks: list[Group] = groups({"runs": runs})
    rows = drift_table(tasks)[1:]
    assert [row[0] for row in rows] == ["MRPC, MiniLM", "MRPC, paper", "RTE, MiniLM †", "RTE, paper"]
    assert rows[0][1:] == [".90", "0.100"]
    assert rows[1][1].split()[-1] == ".41"  # Kovaleva et al., figure 5: the last layer on MRPC


def test_runs_that_are_read_later_are_added_and_replace_their_own_older_numbers() -> None:
    stored = {"runs": [record("mrpc", 1, learned=True), record("rte", 1, learned=True)]}
    runs = [
        record("mrpc", 1, learned=True, value=0.9),
        record("mrpc", 2, learned=False, value=0.7),
        record("mrpc", 2, learned=False, init="random_normal", value=0.5),
    ]
    mrpc, rte = groups(merged(stored, {"runs": runs}))
    assert [run["seed"] for run in mrpc.runs] == [1, 2]
    row = score_table([mrpc, rte])[1]
    assert row[3] == "80.0 (70.0 to 90.0)"
    assert row[4] == "50.0 (47.0 to 53.0) [1 of 2 seeds] †"
    assert row[5] == f"+20.0 ({20 - 3 * 2**0.5:+.1f} to {20 + 3 * 2**0.5:+.1f}) [1 of 2 seeds]"
    # Layer 0 is needed with one of the two seeds of MRPC, and with the only one of RTE.
    assert [cells[1] for cells in layer_table([mrpc, rte])[1:] if "paper" not in cells[0]] == [
        "−10.0 0.0",
        "−10.0* 0.0",
    ]
