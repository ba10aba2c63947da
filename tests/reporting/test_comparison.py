"""The comparison page against numbers put into the runs by hand."""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
from cli.runs import door
from hydra import compose, initialize_config_dir
from reporting.finished_runs import make_run

from bertsecrets.cli import pages
from bertsecrets.measures.dependency.measure import Dependency
from bertsecrets.reporting.comparison import write_comparison
from bertsecrets.reporting.conditions import find_conditions
from bertsecrets.reporting.runs import find_runs
from bertsecrets.results.ablation_table import AblationTable
from bertsecrets.results.run import Run
from bertsecrets.settings import CONF
from bertsecrets.sweeps.hydra_arguments import BASE


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Two initialisations of one task, three seeds of each, with known effects."""
    generator = np.random.default_rng(0)
    base_LH = np.linspace(0.4, 0.9, 6).reshape(2, 3)
    for init, shift in (("pretrained", 0.0), ("random_normal", 0.08)):
        for seed in (1, 2, 3):
            noise_LH = 0.001 * generator.standard_normal((2, 3))
            certain_LH = np.zeros((2, 3), bool)
            certain_LH[1, 2] = True
            certain_LH[0, 0] = seed == 1
            make_run(
                tmp_path / "sweep" / f"{init}-{seed}",
                init=init,
                seed=seed,
                accuracy=0.7 + 0.02 * seed - shift,
                cosine_LH=base_LH + shift + noise_LH,
                delta_LH=np.array([[-0.01, 0, 0.01], [0, 0.001, -0.1]]) + noise_LH,
                significant_LH=certain_LH,
            )
    return tmp_path / "sweep"


def compare(folder: Path) -> Path:
    """The page of all runs of a folder."""
    runs, unfinished = find_runs([str(folder)])
    return write_comparison(runs, unfinished, folder / "comparison", heads=True)


def test_page_and_numbers_say_what_was_put_in(sweep: Path) -> None:
    page = compare(sweep)
    assert page == sweep / "comparison" / "comparison.html"
    text = page.read_text()
    # Mean of 0.72, 0.74, 0.76: variance 0.02² / 3 over seeds, and Wilson's of 408 examples below and above it.
    assert "0.740" in text
    assert "0.675 to 0.803" in text
    assert "On average no better than the majority baseline: random normal · accuracy" in text
    assert "differs in 6 of 6 heads, those by −0.080 on average" in text
    assert (
        "cannot be judged over seeds: fewer than two of its runs disabled the same heads and kept their predictions"
        in text
    )
    rows = pq.read_table(sweep / "comparison" / "comparison.parquet").to_pylist()
    (cell,) = [
        row
        for row in rows
        if (row["condition"], row["column"], row["layer"], row["head"]) == ("pretrained", "cosine", 1, 2)
    ]
    assert cell["mean"] == pytest.approx(0.9, abs=0.002)
    assert cell["low_pointwise"] < cell["mean"] < cell["high_pointwise"]
    assert cell["seeds"] == 3
    assert len(rows) == 2 * 2 * 6
    for name in ("scores", "drift_cosine", "drift_cosine_differences", "ablation", "drift_against_ablation"):
        assert (sweep / "comparison" / "figures" / f"{name}.png").is_file(), name


def test_the_page_links_every_report_and_has_one_majority_baseline(tmp_path: Path) -> None:
    for seed, constant in ((1, 0.6), (2, 0.7)):
        folder = make_run(tmp_path / "my sweep" / f"run {seed}", seed=seed, constant=constant)
        if seed == 1:
            (folder / "report.html").touch()
    text = compare(tmp_path / "my sweep").read_text("utf-8")
    assert re.findall(r'<td[^>]*><a href="([^"]*)">([^<]*)</a>', text) == [("../run%201/report.html", "run 1")]
    assert re.search("<td[^>]*>run 2</td>", text)
    # Seeds of earlier versions answered different classes: the better one is to beat.
    assert "0.650" not in text
    assert re.search(r"<td[^>]*>0.700</td>", text)


def test_runs_that_learned_nothing_are_named_and_left_out(tmp_path: Path) -> None:
    needed_LH = np.arange(6).reshape(2, 3) == 5
    delta_LH = np.where(needed_LH, -0.2, 0.0)
    for seed, p in ((1, 1e-9), (2, 0.6), (3, None)):
        learned = p != 0.6
        make_run(
            tmp_path / "mixed" / f"seed-{seed}",
            seed=seed,
            accuracy=0.83 if learned else 0.51,
            p_constant=p,
            delta_LH=delta_LH if learned else -delta_LH,
            cosine_LH=np.linspace(0.4, 0.9, 6).reshape(2, 3),
            measured=[("checkpoint", "entropy", {"bits": np.full((2, 3), float(seed))})],
        )
    runs, _ = find_runs([str(tmp_path / "mixed")])
    (condition,), _ = find_conditions(runs)
    of_task, any_run = condition.replicates("ablation", of_task=True), condition.replicates("entropy")
    assert [view.run.folder.name for view in of_task.views] == ["seed-1", "seed-3"]
    assert len(any_run.views) == 3
    page = compare(tmp_path / "mixed").read_text()
    left_out = "Heads not interpreted, because the model does not significantly beat the majority baseline: seed-2."
    assert left_out in page
    assert "No verdicts over seeds" not in page
    shutil.rmtree(tmp_path / "mixed" / "seed-3")
    page = compare(tmp_path / "mixed").read_text()
    assert left_out in page
    assert "No verdicts over seeds, because fewer than two runs are left: minilm." in page
    # Runs that are to learn nothing are compared as they are.
    control = make_run(tmp_path / "control", p_constant=0.6, delta_LH=delta_LH, data={"permute_labels": True})
    random = make_run(tmp_path / "random", p_constant=0.6, delta_LH=delta_LH, init="random_normal")
    for folder in (control, random):
        assert find_conditions(find_runs([str(folder)])[0])[0][0].unlearned == ()


def test_the_page_says_which_condition_scores_highest_and_what_to_do_next(sweep: Path) -> None:
    text = compare(sweep).read_text()
    answer = re.search(r'<p class="answer">(.*?)</p>', text)
    assert answer[1].startswith(
        "Highest mean accuracy: pretrained has 0.740 (0.675 to 0.803); lowest: random normal has 0.660 ("
    )
    commands = re.findall(r"<code>(python -m bertsecrets [^<]*)</code>", text)
    assert [command.split()[3] for command in commands] == ["compare", "compare", "report"]
    # All runs of a folder are named by it.
    assert commands[0] == f"python -m bertsecrets compare runs={sweep} paper=statements"
    some, _ = find_runs([str(sweep / f"pretrained-{seed}") for seed in (1, 2)])
    text = write_comparison(some, [], sweep / "some", heads=False).read_text()
    assert f"[{sweep}/pretrained-1,{sweep}/pretrained-2]" in text


def test_a_damaged_record_leaves_the_rest_of_the_page_alone(tmp_path: Path) -> None:
    for seed in (1, 2):
        columns = {"nsubj": np.full((1, 2), 0.5)}
        folder = make_run(tmp_path / f"run-{seed}", seed=seed, measured=[("checkpoint", "dependency", columns)])
        run = Run.open(folder)
        run.declare(Dependency(1, 2).declaration())
        (run.folder / "findings").mkdir()
        (run.folder / "findings" / "dependency.treebank.parquet").write_text("none")
    text = compare(tmp_path).read_text("utf-8")
    assert "repeat the analysis." in text
    assert "Model and majority baseline, mean over seeds" in text


def test_a_run_and_its_analysis_have_one_table_of_heads(tmp_path: Path) -> None:
    cosine_LH, delta_LH = np.array([[0.9, 0.5]]), np.array([[0.0, -0.2]])
    training = make_run(tmp_path / "run", cosine_LH=cosine_LH)
    trained = {"name": "run", "init": "pretrained", "seed": 1, "folder": str(training)}
    analysed = {"checkpoint": str(training), "trained": trained, "reference": None}
    make_run(tmp_path / "analysis", delta_LH=delta_LH, significant_LH=delta_LH < -0.1, **analysed)
    text = compare(tmp_path).read_text()
    assert "<h1>Layer 0 · head 1 is needed (" in text
    rows = re.findall(r'<tr data-layer="0" data-head="\d">.*?</tr>', text)
    assert ["needed" in re.sub(r"<[^>]*>", "|", row).split("|") for row in rows] == [False, True]
    header, *_ = (tmp_path / "comparison" / "heads_together.csv").read_text().splitlines()
    assert "drift/cosine" in header
    assert "ablation/" in header


def title_of(folder: Path) -> str:
    """The title of the page of all runs of a folder."""
    title = re.search(r"<h1>(.*?)</h1>", compare(folder).read_text())
    return title[1]


def test_the_title_says_what_each_condition_needs_and_can_spare(tmp_path: Path) -> None:
    delta_LH = np.array([[-0.2, -0.15, -0.12], [-0.1, 0.0, -0.02]])
    tasks = ("mrpc", "rte", "stsb", "wnli")
    for needed, task in enumerate(tasks):
        certain_LH = np.arange(6).reshape(2, 3) < needed
        spared_LH = np.array([[False, True, True], [False, True, False]])
        folder = tmp_path / "all four" / task
        make_run(
            folder, task=task, delta_LH=delta_LH, significant_LH=certain_LH, dispensable_LH=spared_LH & ~certain_LH
        )
    for name, chosen in {"one": tasks[1:2], "two": tasks[0:3:2]}.items():
        for task in chosen:
            shutil.copytree(tmp_path / "all four" / task, tmp_path / name / task)
    assert title_of(tmp_path / "one").startswith("Layer 0 · head 0 is needed (−20.0 points of accuracy")
    assert (
        title_of(tmp_path / "two")
        == "mrpc: each of 6 heads costs at most 22.0 points of accuracy; stsb: 2 of 6 heads are needed, most of all "
        "layer 0 · head 0, −20.0 points of accuracy (one seed each)."
    )
    assert (
        title_of(tmp_path / "all four")
        == "wnli: 3 of 6 heads are needed, most of all layer 0 · head 0, −20.0 points of accuracy; mrpc: each of 6 "
        "heads costs at most 22.0 points of accuracy (one seed each, 4 conditions)."
    )


def test_without_disabled_heads_the_title_is_the_first_finding(tmp_path: Path, sweep: Path) -> None:
    assert title_of(sweep) == (
        "Over 3 seeds, the head that costs most for pretrained is layer 1 · head 2, −10.0 points of accuracy; the runs "
        "keep no predictions by which heads could be judged over seeds."
    )
    for init, accuracy in (("pretrained", 0.8), ("random_normal", 0.6)):
        make_run(tmp_path / "scores" / init, init=init, accuracy=accuracy)
    # Wilson's intervals of 408 examples.
    title = (
        "Highest mean accuracy: pretrained has 0.800 (0.757 to 0.835); lowest: random normal has 0.600 (0.552 to "
        "0.647)."
    )
    assert title_of(tmp_path / "scores") == title
    page = (tmp_path / "scores" / "comparison" / "comparison.html").read_text()
    assert f'class="answer">{title}' not in page


def test_heads_without_a_number_are_no_lowest_ones_and_stop_nothing(tmp_path: Path) -> None:
    cosine_LH = np.array([[np.nan, 0.5, 0.6], [0.7, 0.8, 0.9]])
    for seed in (1, 2):
        make_run(tmp_path / "sweep" / f"a{seed}", seed=seed, cosine_LH=cosine_LH)
        make_run(tmp_path / "sweep" / f"b{seed}", seed=seed, init="random_normal", cosine_LH=np.full((2, 3), np.nan))
    page = compare(tmp_path / "sweep")
    # Five heads have a number: all of them are the five lowest, and the one without is none of them.
    assert "layer 0 · heads 1, 2; layer 1 · heads 0, 1, 2" in page.read_text()
    assert "layer 0 · heads 0" not in page.read_text()


def test_a_constant_prediction_is_named_where_its_correlation_is_undefined(tmp_path: Path) -> None:
    for seed in (1, 2):
        folder = make_run(tmp_path / "sweep" / f"run{seed}", task="stsb", seed=seed)
        scores = json.loads((folder / "scores.json").read_text())
        scores["sets"]["val"].update(model={"pearson": -0.05}, constant={"pearson": None})
        (folder / "scores.json").write_text(json.dumps(scores))
    text = compare(tmp_path / "sweep").read_text()
    assert "On average no better than the majority baseline: minilm · pearson" in text
    assert "<title>On average no model beats the majority baseline" in text


def test_runs_that_disable_one_head_each_are_compared_by_their_effects(tmp_path: Path) -> None:
    for name, delta in (("0.1", -0.02), ("1.0", -0.11), ("1.1", 0.005)):
        folder = make_run(
            tmp_path / "sweep" / name,
            delta_LH=np.full((2, 2), delta),
            analysis={"disable": {}},
            ablation={"head": name},
            checkpoint="run",
        )
        layer, head = map(int, name.split("."))
        table = AblationTable.read(folder / "ablation.parquet").select(layer=layer, head=head).rows()
        row = {**table[0], "low": delta - 0.03, "high": delta + 0.03}
        AblationTable.from_rows([row]).write(folder / "ablation.parquet")
    text = compare(tmp_path / "sweep").read_text("utf-8")
    title = "Accuracy changes most without layer 1 · head 0, by −11.0 points (−14.0 to −8.0)"
    assert f"<title>{title}" in text
    assert "least without layer 1 · head 1, by +0.5 points (−2.5 to +3.5)" in text
    # The scores of the model with all heads, which are the same in each, come after the effects.
    headings = re.findall(r"<h2>(.*?)</h2>", text)
    assert headings[1:3] == ["Change of accuracy without what each run disables", "Scores"]
    drawn = {path.stem for path in (tmp_path / "sweep" / "comparison" / "figures").glob("*.png")}
    assert drawn == {"disabled", "scores"}


@pytest.mark.parametrize("overrides", [[], ["hydra.run.dir=elsewhere"]])
def test_the_pages_of_a_sweep_lie_in_its_folder(
    sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: list[str]
) -> None:
    (sweep / "sweep.json").touch()
    asked = SimpleNamespace(overrides=SimpleNamespace(hydra=overrides))
    monkeypatch.setattr(pages, "HydraConfig", SimpleNamespace(get=lambda: asked))
    monkeypatch.setattr(pages, "run_folder", lambda: tmp_path / "elsewhere")
    with initialize_config_dir(str(CONF), **BASE):
        config = compose("compare", [f"runs={sweep}", "heads=false", "name=comparison"])
    folder = tmp_path / "elsewhere" if overrides else sweep / "comparison"
    assert pages.compare_runs(config) == [folder / "comparison.html"]
    # The folder of a sweep's pages is not taken for a run.
    assert (folder / "config.yaml").exists() == bool(overrides)
    assert find_runs([str(sweep)])[1] == []


def test_runs_of_different_sizes_are_compared_without_heads(sweep: Path, tmp_path: Path) -> None:
    make_run(tmp_path / "other", seed=9, cosine_LH=np.ones((4, 3)))
    pair = f"runs=[{sweep / 'pretrained-1'},{tmp_path / 'other'}]"
    result = door("compare", pair, f"hydra.run.dir={tmp_path / 'pair'}")
    assert result.returncode == 1
    assert "'pretrained-1' (2 by 3 heads) and 'other' (4 by 3 heads) cannot be compared" in result.stderr
    result = door("compare", pair, "heads=false", f"hydra.run.dir={tmp_path / 'pair'}")
    assert result.returncode == 0, result.stderr
