"""A command that a pipeline can fail by: its exit status, also of a run that is already finished."""

from pathlib import Path

from cli.runs import door, small_analysis


def test_the_exit_status_refuses_a_model(trained: Path, tiny_bert: Path, tmp_path: Path) -> None:
    settings = {"checkpoint": trained, "analysis": "disable", "ablation__head": "1.1"}
    words = small_analysis(tiny_bert, tmp_path / "out", **settings)
    refused = door("analyze", *words, "fail_if='accuracy_loss > 0'")
    assert refused.returncode == 3
    assert refused.stderr.startswith("refused: accuracy_loss > 0: for the model without layer 1 · head 1 a loss of ")
    assert (tmp_path / "out" / "findings.json").is_file()
    # The finished run is judged again, by another condition, and runs no further time.
    passed = door("analyze", *words, "fail_if='accuracy_loss > 100'")
    assert (passed.returncode, passed.stderr) == (0, "")
    assert "already finished" in passed.stdout

    compared = [f"runs=[{trained},{tmp_path / 'out'}]", f"hydra.run.dir={tmp_path / 'pages'}"]
    assert door("train", "--config-name=compare", *compared, "fail_if='accuracy_loss > 100'").returncode == 0
    assert door("train", "--config-name=compare", *compared, "fail_if='accuracy_loss > 0'").returncode == 3


def test_a_condition_that_cannot_be_judged_is_refused_first(trained: Path, tmp_path: Path) -> None:
    given = [f"checkpoint={trained}", "analysis=full", f"hydra.run.dir={tmp_path / 'out'}"]
    result = door("analyze", *given, "fail_if='accuracy_loss > 1'")
    assert result.returncode == 1
    assert "but no chosen analysis tests a loss of score" in result.stderr
    assert not (tmp_path / "out").exists()
