"""Labelling from the command line: two runs, two passes and a third."""

import json
from collections import Counter
from pathlib import Path

import pytest
from cli.runs import door, small
from omegaconf import OmegaConf
from patterns.annotation_folders import fill, map_set
from transformers import AutoModelForSequenceClassification

from bertsecrets.cli.pattern_tools import take_labels
from bertsecrets.errors import UserError
from bertsecrets.patterns.labelling.import_labels import LabelImport
from bertsecrets.patterns.labelling.labels import (
    consensus,
    read_labels,
)
from bertsecrets.patterns.labelling.map_set import MapSet
from bertsecrets.patterns.labelling.page_and_sheets import write_sheets


def import_files(folder: Path, *files: Path, annotator: str | None = "ann", votes: int = 3) -> LabelImport:
    settings = {"folder": str(folder), "labels": [str(path) for path in files], "annotator": annotator, "votes": votes}
    return take_labels(OmegaConf.create({"labelling": settings}))


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
    with pytest.raises(UserError, match=r"labelling.votes is 1; expected a whole number from 2"):
        import_files(tmp_path, third, votes=1)
    # With five votes, all maps can still be outvoted after two or three passes; those with two come first.
    import_files(tmp_path, third, annotator="eve", votes=5)
    assert "15 disputed maps go to pass 3" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(UserError, match=r"holds no maps.csv"):
        import_files(tmp_path / "elsewhere", *sheets)


@pytest.mark.slow
def test_two_analyses_fill_one_folder(tiny_bert: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    AutoModelForSequenceClassification.from_pretrained(tiny_bert, num_labels=2).save_pretrained(model)
    folder = tmp_path / "maps"
    for number, maps in enumerate((7, 9)):
        arguments = small(tiny_bert, tmp_path / f"run{number}", logger="none", name=f"run{number}")
        kept = [
            argument for argument in arguments if not argument.startswith(("trainer.max_epochs", "task.training.b"))
        ]
        annotation = [f"labelling.folder={folder}", f"labelling.maps={maps}"]
        result = door("analyze", *kept, "analysis=annotate_patterns", f"checkpoint={model}", *annotation)
        assert result.returncode == 0, result.stderr
    sampled = MapSet.read(folder)
    assert len(sampled.rows) == 16
    counts = Counter((row.layer, row.head) for row in sampled.rows)
    assert max(counts.values()) - min(counts.values()) <= 1
    sheets = [
        fill(folder / "sheets" / f"pass{number}" / "labels.csv", dict.fromkeys(sampled.names, "block"))
        for number in (1, 2)
    ]
    listed = ",".join(map(str, sheets))
    arguments = [f"labelling.folder={folder}", f"labelling.labels=[{listed}]", "labelling.annotator=ann"]
    result = door("analyze", *arguments, f"hydra.run.dir={tmp_path / 'taken'}")
    assert result.returncode == 0, result.stderr
    assert "agree on 100.0% of 16 maps" in result.stdout
    refused = door("analyze", *arguments[:1], "labelling.labels=none.csv", f"hydra.run.dir={tmp_path / 'refused'}")
    assert refused.returncode == 1
    assert "error: File 'none.csv' cannot be read" in refused.stderr
