"""Labelling from the command line: two runs, two passes and a third."""

import json
from collections import Counter
from pathlib import Path

import pytest
from cli.runs import door, small

from bertsecrets.errors import UserError
from tools.pattern_labels.__main__ import main
from tools.pattern_labels.compare import compare_labels
from tools.pattern_labels.import_labels import LabelImport, import_labels
from tools.pattern_labels.labels import Label, consensus, read_labels, write_labels
from tools.pattern_labels.map_set import MapSet
from tools.pattern_labels.page_and_sheets import write_sheets
from tools.pattern_labels.tests.annotation_folders import fill, map_set


def import_files(folder: Path, *files: Path, annotator: str | None = "ann", votes: int = 3) -> LabelImport:
    return import_labels(folder, files, annotator, votes)


def test_two_passes_are_imported_and_a_third_decides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    maps = map_set(16)
    maps.write(tmp_path)
    answers = [dict.fromkeys(maps.names, "vertical"), {**dict.fromkeys(maps.names, "vertical"), maps.names[0]: "block"}]
    sheets = []
    for number, answer in enumerate(answers, start=1):
        write_sheets(tmp_path / "sheets" / f"pass{number}", maps, maps.names, number)
        sheets.append(fill(tmp_path / "sheets" / f"pass{number}" / "labels.csv", answer))
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("map,pattern,annotator,pass\nnone,block,ann,1\n", "utf-8")
    with pytest.raises(UserError, match="Unknown map 'none'"):
        import_files(tmp_path, *sheets, wrong)
    assert not (tmp_path / "labels.csv").exists()
    for _ in range(2):
        import_files(tmp_path, *sheets)
    assert "agree on 93.8% of 16 maps" in capsys.readouterr().out
    assert len(read_labels(tmp_path)) == 32
    assert json.loads((tmp_path / "agreement.json").read_text("utf-8"))["differing"] == [maps.names[0]]
    third = tmp_path / "sheets" / "pass3" / "labels.csv"
    fill(third, {maps.names[0]: "block"})
    with pytest.raises(UserError, match="not imported"):
        import_files(tmp_path, sheets[0])
    import_files(tmp_path, third, annotator="eve")
    assert consensus(read_labels(tmp_path)) == answers[1]
    assert not (tmp_path / "adjudicate.html").exists()
    with pytest.raises(UserError, match=r"--votes is 1; expected a whole number from 2"):
        import_files(tmp_path, third, votes=1)
    # With five votes, all maps can still be outvoted after two or three passes; those with two come first.
    import_files(tmp_path, third, annotator="eve", votes=5)
    assert "15 disputed maps go to pass 3" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(UserError, match=r"holds no maps.csv"):
        import_files(tmp_path / "elsewhere", *sheets)


def test_a_further_annotator_is_compared_with_the_consensus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    maps = map_set(4)
    maps.write(tmp_path)
    first, second, third, fourth = maps.names
    at = "2026-01-31T12:00:00+00:00"
    passes = {
        first: ["vertical"] * 5,
        second: ["block"] * 4 + ["diagonal"],
        third: ["diagonal"] * 3 + ["vertical"] * 2,
        fourth: ["block"],
    }
    write_labels(
        tmp_path,
        [
            Label(name, pattern, "a", n, at)
            for name, names in passes.items()
            for n, pattern in enumerate(names, start=1)
        ],
    )
    path = tmp_path / "further.csv"
    answers = {first: "vertical", second: "vertical", third: "vertical", fourth: "block"}
    lines = [f"{name},{pattern},eve,6," for name, pattern in answers.items()]
    path.write_text("\n".join(["map,pattern,annotator,pass,at", *lines]), "utf-8")
    everything, clear = compare_labels(tmp_path, path)["all models"]
    # The fourth map has no consensus; on the third, three of five passes agree.
    assert (everything.count, everything.raw) == (3, pytest.approx(1 / 3))
    assert (clear.count, clear.raw) == (2, 0.5)
    command("compare", tmp_path, path)
    assert "0.500" in capsys.readouterr().out
    path.write_text(f"map,pattern,annotator,pass,at\n{fourth},block,eve,6,\n", "utf-8")
    with pytest.raises(SystemExit, match="labels no map on which the passes"):
        command("compare", tmp_path, path)
    assert len(read_labels(tmp_path)) == 16


def command(*arguments: object) -> None:
    main([str(argument) for argument in arguments])


@pytest.mark.slow
def test_two_samples_of_a_run_fill_one_folder(
    tiny_bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, folder = tmp_path / "run", tmp_path / "maps"
    trained = door("train", *small(tiny_bert, run, logger="none", callbacks="none"))
    assert trained.returncode == 0, trained.stderr
    command("sample", run, "maps=7", "--folder", folder)
    with pytest.raises(SystemExit, match="error: Unknown key 'mpas'; did you mean 'maps'"):
        command("sample", run, "mpas=9", "--folder", folder)
    with pytest.raises(SystemExit, match="error: Unknown evaluation set 'dev'"):
        command("sample", run, "evaluation=dev", "--folder", folder)
    # Other examples, so that no map repeats.
    command("sample", run, "maps=9", "seed=1", "--folder", folder, "--with", "data.limit_eval=11")
    sampled = MapSet.read(folder)
    assert len(sampled.rows) == 16
    assert Counter(row.stage for row in sampled.rows) == {"initial": 9, "checkpoint": 7}
    counts = Counter((row.layer, row.head) for row in sampled.rows)
    assert max(counts.values()) - min(counts.values()) <= 1
    sheets = [
        fill(folder / "sheets" / f"pass{number}" / "labels.csv", dict.fromkeys(sampled.names, "block"))
        for number in (1, 2)
    ]
    with pytest.raises(SystemExit, match="holds labels that are not imported"):
        command("sample", run, "--folder", folder)
    capsys.readouterr()
    command("import", folder, *sheets, "--annotator", "ann")
    assert "agree on 100.0% of 16 maps" in capsys.readouterr().out


def test_wrong_folders_and_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"error: Folder '.*' holds no maps.csv"):
        command("import", tmp_path, tmp_path / "labels.csv")
    with pytest.raises(SystemExit, match=f"error: .*{tmp_path}"):
        command("sample", tmp_path)
    map_set(4).write(tmp_path)
    with pytest.raises(SystemExit, match=r"error: File 'none.csv' cannot be read"):
        command("import", tmp_path, "none.csv")
    (tmp_path / "junk.csv").write_bytes(b"\xff\x00\xfe")
    with pytest.raises(SystemExit, match=r"cannot be read .it is not UTF-8"):
        command("import", tmp_path, tmp_path / "junk.csv")
