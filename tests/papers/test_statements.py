"""The statements ledger, against numbers put into the runs by hand."""

import json
import math
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
import yaml
from cli.runs import door, parsed
from papers.paper_runs import BERT, LAYERS, TRAINED, disabled, disabled_words, statement_of, surface_run
from reporting.finished_runs import make_run
from scipy import stats

from bertsecrets.cli.composition import check
from bertsecrets.errors import UserError
from bertsecrets.papers.models import studied
from bertsecrets.papers.names import LEDGER
from bertsecrets.papers.page import find_page
from bertsecrets.papers.statements.judge import DIFFERS, HOLDS, HOLDS_HERE, UNTOLD, Entry, depends_on, judge
from bertsecrets.papers.statements.kinds import KINDS
from bertsecrets.papers.statements.statement import (
    FOLDER,
    Statement,
    check_columns,
    files,
    read_statement,
    read_statements,
)
from bertsecrets.reporting.runs import find_runs
from bertsecrets.results.run import Run


def ledger(folder: Path, *statements: Statement) -> list[Entry]:
    return judge(statements, studied(find_runs([str(folder)])[0]))


def only(entry: Entry) -> Any:
    (cell,) = entry.cells
    return cell


ORDERED = np.arange(40.0).reshape(4, 10) / 100
MEAN = {"kind": "mean", "column": "surface/cls"}


def compared_run(folder: Path, seed: int, other: int, cosine: float) -> None:
    """An analysis of a seed's model that compares it with another seed's."""
    origin = folder / f"run{seed}"
    measured = [("checkpoint", "drift", {"cosine": np.full((4, 10), cosine)})]
    trained = {"init": "pretrained", "seed": seed, "name": origin.name, "folder": str(origin)}
    settings = {"checkpoint": str(origin), "reference": str(folder / f"run{other}"), "trained": trained}
    make_run(folder / f"compared{seed}", seed=seed, measured=measured, stderr=0.001, p_constant=0.001, **settings)


def test_maps_of_seeds_are_compared_in_a_ring(tmp_path: Path) -> None:
    """The interval is that of a jackknife over seeds: each leaves the one pair without it."""
    cosines = (0.80, 0.84, 0.85)
    statements = [
        statement_of({"kind": "mean", "column": f"{prefix}drift/cosine", "above": 0.5}, name=name)
        for prefix, name in (("seeds:", "seeds"), ("", "fine_tuning"))
    ]
    for seed in (1, 2, 3):
        surface_run(tmp_path / f"run{seed}", seed=seed)
    lacking = only(ledger(tmp_path, statements[0])[0])
    settings = f"checkpoint={tmp_path / 'run1'} reference={tmp_path / 'run2'} 'measure=[drift]'"
    assert lacking.command == f"python -m bertsecrets analyze {settings}"
    for seed, cosine in zip((1, 2, 3), cosines, strict=True):
        compared_run(tmp_path, seed, seed % 3 + 1, cosine)
    seeds, fine_tuning = (only(entry) for entry in ledger(tmp_path, *statements))
    jackknife = 2 / 3 * sum((cosine - np.mean(cosines)) ** 2 for cosine in cosines)
    variance = jackknife + 0.001**2
    freedom = variance**2 / (jackknife**2 / 2)
    assert (seeds.verdict, seeds.finding.value) == (HOLDS, pytest.approx(np.mean(cosines)))
    assert seeds.finding.high - seeds.finding.low == pytest.approx(
        2 * stats.t.ppf(0.975, freedom) * math.sqrt(variance), rel=0.02
    )
    # The comparison with another seed is not one with the model before fine-tuning.
    assert fine_tuning.finding is None


def test_p_values_are_corrected_over_the_ledger(tmp_path: Path) -> None:
    """With p = 0.03 alone a statement is told; beside two statements with large p-values it is not."""
    surface_run(tmp_path / "run", stderr=0.005)
    near = 0.35 - 0.005 * stats.norm.isf(0.015)
    test = statement_of({**MEAN, "above": near})
    assert only(ledger(tmp_path, test)[0]).verdict == HOLDS_HERE
    others = [statement_of({**MEAN, "above": 0.35}, name=f"other{i}") for i in range(2)]
    cell = only(ledger(tmp_path, test, *others)[0])
    assert cell.p_value == pytest.approx(0.09, rel=1e-3)
    assert cell.verdict == UNTOLD
    assert "after correction" in cell.reason
    # Numbers over seeds are another family.
    for seed in (1, 2):
        surface_run(tmp_path / f"rte{seed}", task="rte", seed=seed, stderr=0.5)
    single, several = ledger(tmp_path, test)[0].cells
    assert (single.verdict, single.over_seeds, several.over_seeds) == (HOLDS_HERE, False, True)
    assert single.p_value == pytest.approx(0.03, rel=1e-3)
    assert several.p_value > 0.5


def test_a_model_that_has_not_learned_is_not_read_but_its_model_before_is(tmp_path: Path) -> None:
    made = surface_run(tmp_path / "run", p_constant=0.4)
    surface_run(
        tmp_path / "before",
        stage="initial",
        p_constant=0.4,
        checkpoint=str(made),
        trained={**TRAINED, "folder": str(made)},
    )
    tuned, before = ledger(
        tmp_path, statement_of({**MEAN, "above": 0.3}), statement_of({**MEAN, "above": 0.3}, "before", name="b")
    )
    assert only(tuned).finding is None
    assert "did not significantly beat the majority baseline" in only(tuned).reason
    assert only(before).verdict == HOLDS_HERE


def test_a_verdict_on_pre_training_names_a_sentence_embedding_model(tmp_path: Path) -> None:
    statement = statement_of({**MEAN, "above": 0.3}, "before")
    model = {"name": "minilm", "path": "model", "objective": "sentence_embeddings"}
    surface_run(tmp_path / "run", stage="initial", model=model)
    runs, _ = find_runs([str(tmp_path / "run")])
    cell = only(ledger(tmp_path, statement)[0])
    # Where no model is of another kind, the page says so once.
    assert (cell.subject, cell.verdict) == ("mrpc", HOLDS_HERE)
    surface_run(tmp_path / "bert", stage="initial", model=BERT)
    subjects = [cell.subject for cell in ledger(tmp_path, statement)[0].cells]
    assert subjects == ["mrpc · bert_base", "mrpc · minilm (sentence-embedding model)"]
    for page in (find_page(LEDGER, ("clark_cls_early",)), find_page("clark2019")):
        text = page.write(runs, tmp_path / "page").read_text("utf-8")
        assert "Trained for sentence embeddings before fine-tuning: minilm." in text


def test_an_analysis_of_the_model_before_fine_tuning_gives_its_columns_alone(tmp_path: Path) -> None:
    test = {"kind": "correlation", "column": "surface/cls", "other": "initial:surface/cls", "above": 0.5}
    surface_run(tmp_path / "run", ORDERED)
    surface_run(tmp_path / "initial", -ORDERED, checkpoint="initial", trained=TRAINED)
    cell = only(ledger(tmp_path, statement_of(test))[0])
    assert cell.finding.value == pytest.approx(-1)
    assert only(ledger(tmp_path, statement_of({**MEAN, "above": 0.0}))[0]).finding.value == pytest.approx(
        ORDERED.mean()
    )


BITS = {"kind": "mean", "column": "entropy/bits", "above": 3}
GROUPS = {"kind": "correlation", "column": "surface/cls", "other": "initial:clusters/within_layer", "above": 0.5}


@pytest.mark.parametrize(
    ("test", "about", "settings"),
    [
        (BITS, "tuned", "checkpoint={made} 'measure=[entropy]'"),
        (BITS, "change", "checkpoint={made} 'measure=[entropy]' 'compare_with=[initial]'"),
        ({**BITS, "column": "disable/zero/layer"}, "tuned", "checkpoint={made} analysis=disable ablation.mode=zero"),
        (
            {"kind": "pruning", "order": "exact", "share": 0.5, "above": 3},
            "tuned",
            "checkpoint={made} analysis=prune 'prune.scores=[exact]' prune.step=0.05",
        ),
        (GROUPS, "tuned", "checkpoint=initial model=minilm task=mrpc 'measure=[clusters]'"),
        (
            {"kind": "found", "experiment": "dependency", "rows": "relation", "value": "gain", "above": 0},
            "before",
            "checkpoint=initial model=minilm analysis=dependency task=ud_ewt data.root=<folder of UD_English-EWT>",
        ),
    ],
)
def test_what_is_lacking_names_its_command(tmp_path: Path, test: dict[str, Any], about: str, settings: str) -> None:
    made = surface_run(tmp_path / "run")
    cell = only(ledger(tmp_path, statement_of(test, about))[0])
    assert (cell.verdict, cell.command) == (UNTOLD, f"python -m bertsecrets analyze {settings.format(made=made)}")


def test_what_is_lacking_of_a_model_before_fine_tuning_is_run_on_its_data(tmp_path: Path) -> None:
    make_run(tmp_path / "run", checkpoint="initial", trained=TRAINED, data={"source": "tsv", "root": "my data"})
    settings = "checkpoint=initial model=minilm task=mrpc data=tsv 'data.root=my data' 'measure=[entropy]'"
    cell = only(ledger(tmp_path, statement_of(BITS, "before"))[0])
    assert cell.command == f"python -m bertsecrets analyze {settings}"


def test_the_mode_of_disabling_is_that_of_the_statement(tmp_path: Path) -> None:
    """A second analysis, with another mode and a sample, does not answer for the first."""
    disabled(np.full((4, 10), -3.0), 1)(tmp_path / "run")
    statements = [
        statement_of({"kind": "mean", "column": f"disable/{mode}/head", "below": -1}, name=mode)
        for mode in ("uniform", "zero")
    ]
    uniform, zero = (only(entry) for entry in ledger(tmp_path, *statements))
    assert uniform.finding.readings[0].detail == "accuracy on val, 408 examples"
    assert (zero.finding, zero.verdict) == (None, UNTOLD)
    assert zero.command.endswith("analysis=disable ablation.mode=zero")
    run = Run.open(tmp_path / "run")
    rows = [{**row, "mode": "zero", "delta": -0.05, "count": 100} for row in run.ablation_table().rows()]
    run.ablation_table().append(type(run.ablation_table()).from_rows(rows)).write(run.ablation_path)
    uniform, zero = (only(entry) for entry in ledger(tmp_path, *statements))
    assert (uniform.finding.value, zero.finding.value) == pytest.approx((-3, -5))
    assert zero.finding.readings[0].detail == "accuracy on val, 100 of 408 examples"


def test_before_fine_tuning_heads_are_disabled_on_masked_words(tmp_path: Path) -> None:
    """Neither the fine-tuned model nor an untrained classifier stands for the model before fine-tuning."""
    words = "disable/uniform/head/pseudo_log_likelihood"
    statements = [
        statement_of({"kind": "mean", "column": "disable/uniform/head/masked_accuracy", "below": -1}, "before"),
        statement_of(
            {"kind": "correlation", "column": "disable/uniform/head", "other": f"initial:{words}", "above": 0}, name="t"
        ),
    ]
    tuned_LH, before_LH = (np.random.default_rng(seed).normal(-3, 1, (4, 10)) for seed in (0, 1))
    disabled(tuned_LH, 0.1, model=BERT)(tmp_path / "runs" / "tuned")
    disabled(tuned_LH, 0.1, model=BERT, checkpoint="initial", trained=TRAINED)(tmp_path / "runs" / "classifier")
    command = (
        "python -m bertsecrets analyze checkpoint=initial model=bert_base task=mrpc task.kind=masked analysis=disable "
        "ablation.mode=uniform"
    )
    lacking = [only(entry) for entry in ledger(tmp_path / "runs", *statements)]
    assert [(cell.finding, cell.command) for cell in lacking] == [(None, command)] * 2
    disabled_words(before_LH)(tmp_path / "runs" / "words")
    before, both = (only(entry) for entry in ledger(tmp_path / "runs", *statements))
    assert before.finding.value == pytest.approx(before_LH.mean())
    assert before.finding.readings[0].detail.startswith("masked_accuracy on val")
    correlation = stats.spearmanr(tuned_LH.ravel(), -2 * before_LH.ravel()).statistic
    assert both.finding.value == pytest.approx(correlation)


@pytest.mark.slow
def test_the_commands_for_statements_on_masked_words_give_their_numbers(tiny_bert: Path, tmp_path: Path) -> None:
    model, runs = tmp_path / "model", tmp_path / "runs"
    transformers.BertForMaskedLM(transformers.AutoConfig.from_pretrained(tiny_bert)).save_pretrained(model)
    transformers.AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(model)
    made = [f"checkpoint=initial model=folder model.path={model} task=demo_sentiment data.limit_eval=37"]
    made[0] += " measure=[patterns,surface,clusters]"
    names = [name for name in files() if name.startswith(("clark", "kovaleva"))]
    statements = [one for one in read_statements(names) if one.about == "before" and "masked" in one.statement.lower()]
    for place in range(4):
        fast = f"hydra.run.dir={runs / str(place)} logger=none progress=false report.figures=0 ablation.resamples=100"
        result = door("analyze", *shlex.split(f"{made[place]} {fast}"))
        assert result.returncode == 0, result.stderr
        entries = ledger(runs, *statements)
        commands = [command for entry in entries for command in entry.commands]
        made += [command.removeprefix("python -m bertsecrets analyze ") for command in commands[:1]]
    assert len(statements) == 5
    assert commands == []
    assert all(only(entry).finding is not None for entry in entries)


def test_a_model_without_a_head_for_masked_words_is_sent_to_no_analysis(tmp_path: Path) -> None:
    surface_run(tmp_path / "run", model={"name": "minilm", "path": "model", "objective": "sentence_embeddings"})
    columns = ("disable/zero/head/masked_accuracy", "masked_lm_gradient/sep_total_minus_other")
    for column in columns:
        cell = only(ledger(tmp_path, statement_of({"kind": "mean", "column": column, "below": 0}, "before"))[0])
        assert cell.command == ""
        assert cell.reason.endswith(" before fine-tuning, which takes a model with a head for masked words.")


def test_seeds_without_the_analysis_and_unlearned_ones_are_named(tmp_path: Path) -> None:
    surface_run(tmp_path / "a")
    lacking = make_run(tmp_path / "b", cosine_LH=LAYERS, seed=2, p_constant=0.001)
    surface_run(tmp_path / "c", seed=3, p_constant=0.5)
    surface_run(tmp_path / "d", seed=4, p_constant=None)
    (entry,) = ledger(tmp_path, statement_of({**MEAN, "above": 0.3}))
    cell = only(entry)
    assert len(cell.finding.readings) == 1
    assert cell.left_out == "1 of 2 seeds lack the column surface/cls and are skipped: seed 2."
    assert cell.command == f"python -m bertsecrets analyze checkpoint={lacking} 'measure=[surface]'"
    page = find_page(LEDGER, ("kovaleva_cls_early",)).write(find_runs([str(tmp_path)])[0], tmp_path / "page")
    text = page.read_text("utf-8")
    assert "because they do not significantly beat the majority baseline: mrpc (seed 3, seed 4)." in text
    assert "1 of 2 seeds lack the column surface/cls and are skipped: seed 2." in text


def test_a_one_sided_statement_is_not_refuted(tmp_path: Path) -> None:
    surface_run(tmp_path / "run")
    cell = only(ledger(tmp_path, statement_of({**MEAN, "above": 0.5}, one_sided="Another text may show it."))[0])
    assert (cell.verdict, cell.reason) == (UNTOLD, "Another text may show it.")


def test_what_a_statement_depends_on(tmp_path: Path) -> None:
    surface_run(tmp_path / "a", LAYERS, task="mrpc")
    surface_run(tmp_path / "b", LAYERS / 2, task="rte")
    (entry,) = ledger(tmp_path, statement_of({**MEAN, "above": 0.3}))
    assert entry.verdict == DIFFERS
    assert depends_on(entry) == [
        "These models differ, but with single seeds the reason is unclear: it holds for mrpc (0.35) and does not "
        "hold for rte (0.175)."
    ]
    for place, (task, factor) in enumerate((("mrpc", 1.01), ("rte", 0.51))):
        surface_run(tmp_path / f"second{place}", LAYERS * factor, task=task, seed=2)
    (entry,) = ledger(tmp_path, statement_of({**MEAN, "above": 0.3}))
    assert entry.verdict == "depends"
    assert depends_on(entry) == [
        "It depends on the task (minilm): it holds for mrpc (0.352) and does not hold for rte (0.177)."
    ]


def test_every_shipped_statement_loads_and_names_columns_that_exist() -> None:
    statements = read_statements()
    assert len(statements) >= 40
    check_columns(statements, [])
    # read_statement refuses one without there, here, and either the source's words or ours.
    assert all(statement.there.endswith(".") and statement.here.endswith(".") for statement in statements)
    assert all(
        statement.statement.endswith(".") and statement.published.endswith((".", ").")) for statement in statements
    )
    assert {statement.test.kind for statement in statements} <= set(KINDS)


GOOD = yaml.safe_load((FOLDER / "clark_sep_half.yaml").read_text())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"about": "later"}, "about 'later'"),
        ({"test": {**GOOD["test"], "kind": "meen"}}, "test.kind is 'meen'; did you mean 'mean'"),
        ({"test": {**GOOD["test"], "above": "half"}}, "test.above is 'half'; expected a number, or null"),
        ({"test": {**GOOD["test"], "below": 1}}, "both above and below; give one"),
        ({"test": {key: value for key, value in GOOD["test"].items() if key != "above"}}, "neither above nor below"),
        ({"test": {**GOOD["test"], "layer": "last"}}, "Unknown key 'statement mine: test.layer'"),
        ({"test": {**GOOD["test"], "layers": "lst"}}, "did you mean 'last'"),
        ({"test": {**GOOD["test"], "column": "surface/seps"}}, "unknown column 'surface/seps'"),
        ({"test": {**GOOD["test"], "column": "surfaces/cls"}}, "unknown measure 'surfaces'; did you mean 'surface'"),
        ({"sauce": "x"}, "Unknown key"),
        ({"paraphrase": "It is said."}, "give either quote (the source's own words) or paraphrase"),
        ({"quote": ""}, "give either quote (the source's own words) or paraphrase"),
        ({"there": ""}, "expected a sentence: what the source measured"),
        ({"here": None}, "expected a sentence: what is measured here"),
    ],
)
def test_a_wrong_statement_is_one_sentence(tmp_path: Path, change: Mapping[str, Any], message: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({**GOOD, **change}))
    with pytest.raises(UserError) as error:
        check_columns([read_statement(path)], [])
    assert message in str(error.value)


def test_unknown_statements_are_named() -> None:
    with pytest.raises(UserError, match="Unknown statement 'clark_sep_haf'; did you mean 'clark_sep_half'"):
        read_statements(["clark_sep_haf"])
    with pytest.raises(UserError, match="cannot be read"):
        read_statements(["missing.yaml"])


def test_the_page_has_a_row_and_a_section_for_each_statement(tmp_path: Path) -> None:
    made = surface_run(tmp_path / "a" / "run")
    surface_run(tmp_path / "a" / "unlearned", task="rte", p_constant=0.4)
    (made / "finished.json").write_text(json.dumps({"code": "0.1.0+aaaa"}))
    (tmp_path / "a" / "unlearned" / "finished.json").write_text(json.dumps({"code": "0.1.0+bbbb"}))
    names = ("kovaleva_cls_early", "michel_prune_40")
    page = find_page(LEDGER, names).write(find_runs([str(tmp_path / "a")])[0], tmp_path / "page")
    text = page.read_text("utf-8")
    assert (
        "Of 2 published statements: 1 does not hold of this model; 1 cannot be told. Why some cannot be told: for 1 an "
        "analysis is missing." in text
    )
    assert "because they do not significantly beat the majority baseline: rte (seed 1)." in text
    assert "2 versions of the code (0.1.0+aaaa, 0.1.0+bbbb)" in text
    assert '<a href="#section-2">Attention to [CLS] is higher in the lower half of the layers.</a>' in text
    assert text.count("mrpc: −0.400 (−0.420 to −0.380)") == 1
    assert f"python -m bertsecrets analyze checkpoint={made} analysis=prune" in text
    assert "mrpc: −0.400 (−0.420 to −0.380); threshold: above 0" in text
    assert "No run has pruning in the order of gradient importance of heads" in text


def test_the_next_step_is_the_command_that_most_statements_lack(tmp_path: Path) -> None:
    made = surface_run(tmp_path / "run")
    names = ("bondarenko_no_op", "michel_prune_40", "kovaleva_cls_early", "michel_prune_20")
    page = find_page(LEDGER, names).write(find_runs([str(tmp_path / "run")])[0], tmp_path / "page").read_text("utf-8")
    steps = re.findall(r"<li>(.+?) <span.+?<code>(.+?)</code>", page)
    assert [(words, command.split("analysis=")[1].split()[0]) for words, command in steps] == [
        ("To test “40 % of the heads can be removed without a relevant loss.” and 1 more", "prune"),
        ("To test “Redirecting attention away from [SEP] hardly changes the prediction.”", "sinks"),
    ]
    assert all(str(made) in command for _, command in steps)


@pytest.mark.parametrize(
    ("command", "argument"),
    [("train", "experiment=statements"), ("train", "experiment=statements_quick"), ("analyze", "analysis=statements")],
)
def test_the_configurations_take_what_the_statements_read(command: str, argument: str) -> None:
    config = check(parsed([argument, *(["checkpoint=initial"] if command == "analyze" else [])], command))
    read = {
        column.removeprefix("initial:").removeprefix("seeds:").partition("/")[0]
        for statement in read_statements()
        for column in statement.test.columns
    }
    analyses = {"disable", "place", "causal_gates", "pruning", "sinks", "direct_effect", "dependency"}
    # Annotated texts, and a head for masked words, are not given to every model.
    not_everywhere = {"features", "token_to_token", "frame_relations", "masked_lm_gradient"}
    assert read - analyses - not_everywhere <= set(config.measure)
    # Orders that are computed anew after each step are an analysis of their own.
    once = (
        test for test in (statement.test for statement in read_statements()) if not getattr(test, "iterative", False)
    )
    scores = {getattr(test, "order", None) for test in once} - {None, "", "gates"}
    assert scores <= set(config.prune.scores)
