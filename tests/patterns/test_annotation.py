"""Maps are sampled evenly over heads, shown without saying whose they are, and their labels come back whole."""

import csv
import json
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data.tasks import task
from data.toy import pairs, wordpiece
from doors.runs import door, small
from families import CONFIGS, tiny_model
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from PIL import Image
from sklearn.metrics import cohen_kappa_score
from statsmodels.stats.inter_rater import cohens_kappa
from statsmodels.stats.proportion import proportion_confint
from transformers import AutoModelForSequenceClassification, BertForSequenceClassification

from bertsecrets.callbacks.annotate import SampleMaps
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.doors.annotate import take_labels
from bertsecrets.errors import UserError
from bertsecrets.models.classifier import SequenceClassifier
from bertsecrets.models.optimisation import OptimizerConfig
from bertsecrets.patterns.agreement import Agreement
from bertsecrets.patterns.classes import PATTERNS
from bertsecrets.patterns.labels import (
    Label,
    consensus,
    disagreements,
    merge_labels,
    of_pass,
    parse_labels,
    read_labels,
    write_labels,
)
from bertsecrets.patterns.maps import ANNOTATED, MapRow, MapSet
from bertsecrets.patterns.page import write_page
from bertsecrets.patterns.sampling import choose_examples, choose_heads
from bertsecrets.patterns.sheets import check_free, pass_order, write_sheets
from bertsecrets.results.figures.contact_sheet import SheetMap, contact_sheet
from bertsecrets.results.run import Run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def map_set(count: int = 23) -> MapSet:
    generator = torch.Generator().manual_seed(0)
    rows, maps = [], {}
    for i in range(count):
        length, pair = 8 + i, i % 2
        row = MapRow(
            f"toy-s1-initial-l{i % 3:02d}h00-e{i}",
            "toy",
            "tiny",
            "pretrained",
            "initial",
            i % 3,
            0,
            i,
            length,
            1 + pair,
            4,
        )
        rows.append(row)
        maps[row.map] = torch.rand(length, length, generator=generator).softmax(-1)
    return MapSet().add(rows, maps)


def fill(path: Path, patterns: dict[str, str]) -> Path:
    """A sheet's table, filled in as in a spreadsheet."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        delimiter = ";" if ";" in file.readline() else ","
        file.seek(0)
        rows = [{**row, "pattern": patterns.get(row["map"], "")} for row in csv.DictReader(file, delimiter=delimiter)]
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=";")
        writer.writeheader()
        writer.writerows(rows)
    return path


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(0, 99))
def test_heads_differ_by_one_map_at_most_however_many_runs_fill_the_folder(counts: list[int], seed: int) -> None:
    taken: list[tuple[int, int]] = []
    for count in counts:
        taken += choose_heads(count, 3, 4, taken, seed)
    assert len(taken) == sum(counts)
    maps = Counter(taken)
    every = [maps[layer, head] for layer in range(3) for head in range(4)]
    assert sum(every) == len(taken)
    assert max(every) - min(every) <= 1


def test_lengths_spread_evenly_though_the_examples_do_not() -> None:
    lengths = [20] * 1000 + list(range(5, 80))
    chosen = choose_examples(56, lengths, 8, 63, seed=1)
    found = np.array([lengths[position] for position in chosen])
    assert len(set(chosen)) == 56
    assert found.min() >= 8
    assert found.max() <= 63
    by_quarter = np.histogram(found, [8, 22, 36, 50, 64])[0]
    assert by_quarter.min() >= 7
    with pytest.raises(UserError, match="No example has 100 to 110 tokens"):
        choose_examples(1, lengths, 100, 110, seed=1)


def test_a_folder_of_maps_comes_back(tmp_path: Path) -> None:
    maps = map_set()
    maps.write(tmp_path)
    read = MapSet.read(tmp_path)
    assert read.rows == maps.rows
    assert all(torch.equal(read[name], maps[name]) for name in maps.names)
    again = read.add(maps.rows, {name: maps[name].float() for name in maps.names})
    assert again.rows == maps.rows
    name = maps.names[0]
    with pytest.raises(UserError, match=f"Map '{name}' is in the annotation folder already"):
        read.add(maps.rows[:1], {name: 1 - maps[name]})
    (tmp_path / "maps.safetensors").write_bytes(b"no such thing")
    with pytest.raises(UserError, match="cannot be read as annotated maps"):
        MapSet.read(tmp_path)


def test_a_sheet_shows_every_weight_where_it_stands() -> None:
    weight_QK = np.zeros((8, 8))
    weight_QK[2, 5], weight_QK[7, 0] = 1.0, 0.25
    whole = np.asarray(contact_sheet([SheetMap(1, weight_QK)], ""))
    assert whole.shape == (1340, 1600)
    # The map's own square: 8 x 35 pixels in the middle of the first place.
    ((top, left),) = {(int(y.min()), int(x.min())) for y, x in [np.nonzero(whole[100:, 100:] == 0)]}
    top, left = top + 100 - 2 * 35, left + 100 - 5 * 35
    cells = whole[top + 17 : top + 280 : 35, left + 17 : left + 280 : 35]
    assert cells.shape == (8, 8)
    expected = np.full((8, 8), 255)
    expected[2, 5], expected[7, 0] = 0, 127
    assert np.array_equal(cells, expected)


def test_the_passes_show_the_same_maps_in_other_orders(tmp_path: Path) -> None:
    maps = map_set()
    for number in (1, 2):
        write_sheets(tmp_path / f"pass{number}", maps, maps.names, number)
    tables = []
    for number in (1, 2):
        folder = tmp_path / f"pass{number}"
        assert sorted(path.name for path in folder.glob("*.png")) == ["sheet-01.png", "sheet-02.png"]
        with Image.open(folder / "sheet-01.png") as picture:
            assert picture.size == (1600, 1340)
        with (folder / "labels.csv").open(encoding="utf-8", newline="") as file:
            tables.append(list(csv.DictReader(file)))
    first, second = ([row["map"] for row in table] for table in tables)
    assert sorted(first) == sorted(second) == sorted(maps.names)
    assert np.mean([one == other for one, other in zip(first, second, strict=True)]) < 0.3
    assert [(row["sheet"], row["position"], row["pass"]) for row in tables[1]][19:21] == [
        ("1", "20", "2"),
        ("2", "1", "2"),
    ]


def test_sheets_never_replace_labels_that_were_not_taken_in(tmp_path: Path) -> None:
    maps = map_set()
    write_sheets(tmp_path / "pass2", maps, maps.names, 2)
    check_free(tmp_path, [])
    fill(tmp_path / "pass2" / "labels.csv", {maps.names[3]: "block"})
    with pytest.raises(UserError, match="labels that are not taken in"):
        check_free(tmp_path, [Label(maps.names[3], "block", "ann", 1, "2026-01-01T00:00:00Z")])
    check_free(tmp_path, [Label(maps.names[3], "block", "ann", 2, "2026-01-01T00:00:00Z")])


def test_labels_taken_in_twice_are_there_once_and_changed_ones_twice(tmp_path: Path) -> None:
    maps = map_set()
    write_sheets(tmp_path / "pass1", maps, maps.names, 1)
    one, other = maps.names[:2]
    path = fill(tmp_path / "pass1" / "labels.csv", {one: "vertical", other: "diagonal"})
    labels = merge_labels([], parse_labels(path, maps.names, "ann"), "2026-01-01T00:00:00+00:00")
    assert merge_labels(labels, parse_labels(path, maps.names, "ann"), "2026-01-02T00:00:00+00:00") == labels
    fill(path, {one: "vertical", other: "block"})
    changed = merge_labels(labels, parse_labels(path, maps.names, "ann"), "2026-01-03T00:00:00+00:00")
    assert changed == [*labels, Label(other, "block", "ann", 1, "2026-01-03T00:00:00+00:00")]
    # An older file that turns up late is kept, and does not undo what was said after it.
    late = [Label(other, "heterogeneous", "ann", 1, "2026-01-02T00:00:00Z")]
    everything = merge_labels(changed, late, "2026-01-09T00:00:00+00:00")
    assert everything == [*changed, *late]
    assert of_pass(everything, 1) == {one: "vertical", other: "block"}
    write_labels(tmp_path, everything)
    assert list(read_labels(tmp_path)) == everything


def test_the_third_pass_decides() -> None:
    answers = {1: "vbd", 2: "vdd"}
    names = {"v": "vertical", "b": "block", "d": "diagonal"}
    labels = [
        Label(f"m{i}", names[letter], "ann", number, "2026-01-01T00:00:00Z")
        for number, letters in answers.items()
        for i, letter in enumerate(letters)
    ]
    labels.append(Label("m7", "block", "ann", 1, "2026-01-01T00:00:00Z"))
    assert consensus(labels) == {"m0": "vertical", "m2": "diagonal"}
    assert disagreements(labels) == ["m1"]
    labels.append(Label("m1", "heterogeneous", "eve", 3, "2026-01-02T00:00:00Z"))
    assert consensus(labels) == {"m0": "vertical", "m1": "heterogeneous", "m2": "diagonal"}
    assert disagreements(labels) == []


@given(st.lists(st.tuples(st.sampled_from(PATTERNS), st.sampled_from(PATTERNS)), min_size=2, max_size=60))
def test_agreement_is_that_of_the_libraries(pairs: list[tuple[str, str]]) -> None:
    first, second = ({f"m{i}": pair[side] for i, pair in enumerate(pairs)} for side in (0, 1))
    agreement = Agreement.between(first, {**second, "unseen": "block"})
    same = sum(one == two for one, two in pairs)
    assert agreement.count == len(pairs)
    assert agreement.raw == pytest.approx(same / len(pairs))
    assert agreement.raw_interval == pytest.approx(proportion_confint(same, len(pairs), method="wilson"), abs=1e-9)
    if len({pattern for pair in pairs for pattern in pair}) == 1:
        assert np.isnan(agreement.kappa)
        return
    assert agreement.kappa == pytest.approx(cohen_kappa_score(*zip(*pairs, strict=True)), abs=1e-12)
    reference = cohens_kappa(agreement.confusion_PP)
    if reference.var_kappa > 1e-12:
        assert agreement.kappa_interval == pytest.approx((reference.kappa_low, reference.kappa_upp), abs=1e-9)


def test_specific_agreement_by_hand() -> None:
    agreement = Agreement.between(
        {"a": "block", "b": "block", "c": "vertical"}, {"a": "block", "b": "vertical", "c": "vertical"}
    )
    assert agreement.of_pattern("block") == pytest.approx(2 / 3)
    assert np.isnan(agreement.of_pattern("diagonal"))
    assert json.loads(json.dumps(agreement.as_dict(), allow_nan=False))["confusion"]["block"]["vertical"] == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "map,pattern,annotator,pass\nm1,verticle,ann,1\n",
            "Unknown pattern 'verticle' .*line 2; did you mean 'vertical'",
        ),
        ("map,pattern,annotator,pass\nm1,block,ann,1\nm9,block,ann,1\n", "Unknown map 'm9' .*line 3"),
        ("map,pattern,annotator,pass\nm1,block,,1\n", "No annotator is named .*line 2"),
        ("map,pattern,annotator,pass\nm1,block,ann,one\n", "pass is 'one'"),
        ("map,pattern,annotator,pass,at\nm1,block,ann,1,yesterday\n", "at is 'yesterday'"),
        ("map,label\nm1,block\n", "has no column 'pattern'"),
    ],
)
def test_bad_labels_are_told_in_one_sentence(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "labels.csv"
    path.write_text(content, "utf-8")
    with pytest.raises(UserError, match=message):
        parse_labels(path, {"m1"})


def test_files_that_are_no_tables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        parse_labels(tmp_path / "none.csv", {"m1"})
    (tmp_path / "sheet.xlsx").write_bytes(b"PK\x03\x04\xff\xfe")
    with pytest.raises(UserError, match="in UTF-8"):
        parse_labels(tmp_path / "sheet.xlsx", {"m1"})


def test_the_page_shows_no_map_s_origin(tmp_path: Path) -> None:
    maps = map_set()
    write_page(tmp_path / "annotate.html", maps, maps.names, (1, 2))
    page = (tmp_path / "annotate.html").read_text("utf-8")
    assert not re.search(r"(src|href)=\"(?!data:)", page)
    embedded = json.loads(re.search(r'id="content">(.*?)</script>', page, re.DOTALL)[1])  # type: ignore[index]
    assert [embedded["maps"][place]["id"] for place in embedded["orders"]["2"]] == pass_order(maps.names, 2)
    visible = re.sub(r"<(script|style).*?</\1>", "", page, flags=re.DOTALL)
    assert "toy" not in visible
    assert "l00h00" not in visible


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium, Chrome or chromium-browser on the path")
def test_the_page_is_worked_with_the_keyboard(tmp_path: Path) -> None:
    maps = map_set()
    path = tmp_path / "annotate.html"
    write_page(path, maps, maps.names, (1, 2))
    # Labels the first map, the second wrongly, goes back and mends it, leaves the third, and opens the page once more.
    probe = """<script>
    const press = (key) => document.dispatchEvent(new KeyboardEvent("keydown", { key }));
    press("1");
    find("annotator").value = 'Ann "A", B';
    find("pass").value = "2";
    find("start").requestSubmit();
    ["2", "5", "Backspace", "4", "u", "ArrowLeft", "ArrowRight", "x", "6"].forEach(press);
    document.body.dataset.at = at;
    document.body.dataset.table = table();
    find("start").requestSubmit();
    document.body.dataset.progress = find("progress").textContent;
    </script>"""
    path.write_text(path.read_text("utf-8").replace("</body>", probe + "</body>"), "utf-8")
    assert CHROMIUM is not None
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    profile = [f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", "--virtual-time-budget=3000"]
    done = subprocess.run(
        [CHROMIUM, *options, *profile, "--dump-dom", path.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "CONSOLE" not in done.stderr, done.stderr
    read = dict(re.findall(r'data-(at|table|progress)="([^"]*)"', done.stdout))
    assert read["at"] == "3"
    (tmp_path / "labels.csv").write_text(read["table"].replace("&quot;", '"'), "utf-8")
    labels = parse_labels(tmp_path / "labels.csv", maps.names)
    order = pass_order(maps.names, 2)
    said = [(label.map, label.pattern, label.annotator, label.number) for label in labels]
    assert said == [(order[0], "diagonal", 'Ann "A", B', 2), (order[1], "block", 'Ann "A", B', 2)]
    assert all(label.at for label in labels)
    assert read["progress"] == "Map 4 of 23 · 2 labelled."


def test_sampled_maps_are_those_of_the_model_without_padding(tmp_path: Path) -> None:
    tokenizer = wordpiece()
    config = CONFIGS["bert"]()
    config.vocab_size, config._attn_implementation = len(tokenizer), "eager"
    # Maps far from uniform, so that no head passes for another.
    config.initializer_range = 0.5
    models = {"initial": BertForSequenceClassification(config), "checkpoint": BertForSequenceClassification(config)}
    module = SequenceClassifier(
        models["checkpoint"], task("mrpc"), OptimizerConfig(learning_rate=0.1), ("val",), {}, seed=0
    )
    examples = pairs(40)
    dataset = EncodedSplit(examples, tokenizer, max_length=32)
    callback = SampleMaps(Run(tmp_path, "s1", "tiny", "mrpc", "pretrained"), models["initial"], maps=20)
    rows, maps = callback.sample(module, dataset, MapSet())
    assert Counter(row.stage for row in rows) == {"initial": 10, "checkpoint": 10}
    assert len(maps) == 20
    for row in rows:
        inputs = tokenizer(*examples[row.example].texts, truncation="longest_first", max_length=32, return_tensors="pt")
        with torch.no_grad():
            attention = models[row.stage].eval()(**inputs, output_attentions=True).attentions[row.layer]
        assert torch.allclose(maps[row.map].float(), attention[0, row.head], atol=1e-3)
        assert row.separator == inputs["input_ids"][0].tolist().index(tokenizer.sep_token_id)
        assert row.map == f"s1-{row.stage}-l{row.layer:02d}h{row.head:02d}-e{row.example}"
        assert (row.task, row.model, row.segments, row.length) == ("mrpc", "tiny", 2, inputs["input_ids"].shape[1])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"maps": 0}, "annotation.maps is 0"),
        ({"max_length": 7}, "annotation.max_length is 7; expected a whole number from 8"),
        ({"stages": ["inital"]}, "Unknown stage 'inital' in annotation.stages; did you mean 'initial'"),
        ({"stages": []}, "names no stage"),
    ],
)
def test_wrong_settings_are_told_before_anything_runs(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        SampleMaps(Run(tmp_path, "s1", "tiny", "mrpc", "pretrained"), tiny_model("bert"), **settings)


def take_back(folder: Path, *files: Path, annotator: str | None = "ann") -> Agreement:
    settings = {"folder": str(folder), "labels": [str(path) for path in files], "annotator": annotator}
    return take_labels(OmegaConf.create({"annotation": settings}))


def test_two_passes_are_taken_back_and_a_third_decides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
        take_back(tmp_path, *sheets, wrong)
    assert not (tmp_path / "labels.csv").exists()
    for _ in range(2):
        take_back(tmp_path, *sheets)
    assert "agree on 93.8% of 16 maps" in capsys.readouterr().out
    assert len(read_labels(tmp_path)) == 32
    assert json.loads((tmp_path / "agreement.json").read_text("utf-8"))["differing"] == [maps.names[0]]
    third = tmp_path / "sheets" / "pass3" / "labels.csv"
    fill(third, {maps.names[0]: "block"})
    with pytest.raises(UserError, match="not taken in"):
        take_back(tmp_path, sheets[0])
    take_back(tmp_path, third, annotator="eve")
    assert consensus(read_labels(tmp_path)) == answers[1]
    assert not (tmp_path / "adjudicate.html").exists()
    with pytest.raises(UserError, match=r"holds no maps.csv"):
        take_back(tmp_path / "elsewhere", *sheets)


def test_the_packaged_maps_are_stratified_and_hold_no_text() -> None:
    maps = MapSet.read(ANNOTATED)
    assert len(maps.rows) >= 440
    assert sum(path.stat().st_size for path in ANNOTATED.iterdir()) < 3_000_000
    heads = Counter((row.layer, row.head) for row in maps.rows)
    assert len(heads) == 72
    assert max(heads.values()) - min(heads.values()) <= 1
    assert len(set(Counter(row.task for row in maps.rows).values())) == 1
    for row in maps.rows:
        assert maps[row.map].dtype == torch.float16
        assert maps[row.map].shape == (row.length, row.length)
        assert torch.allclose(maps[row.map].float().sum(-1), torch.ones(row.length), atol=5e-3)
    assert {label.map for label in read_labels(ANNOTATED)} <= set(maps.names)


@pytest.mark.slow
def test_two_analyses_fill_one_folder(tiny_bert: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    AutoModelForSequenceClassification.from_pretrained(tiny_bert, num_labels=2).save_pretrained(model)
    folder = tmp_path / "maps"
    for number, maps in enumerate((7, 9)):
        arguments = small(tiny_bert, tmp_path / f"run{number}", logger="none", name=f"run{number}")
        kept = [each for each in arguments if not each.startswith(("trainer.max_epochs", "task.training.b"))]
        annotation = [f"annotation.folder={folder}", f"annotation.maps={maps}"]
        result = door("analyze", *kept, "analysis=annotate_patterns", f"checkpoint={model}", *annotation)
        assert result.returncode == 0, result.stderr
    found = MapSet.read(folder)
    assert len(found.rows) == 16
    counts = Counter((row.layer, row.head) for row in found.rows)
    assert max(counts.values()) - min(counts.values()) <= 1
    sheets = [
        fill(folder / "sheets" / f"pass{number}" / "labels.csv", dict.fromkeys(found.names, "block"))
        for number in (1, 2)
    ]
    listed = ",".join(map(str, sheets))
    arguments = [f"annotation.folder={folder}", f"annotation.labels=[{listed}]", "annotation.annotator=ann"]
    result = door("analyze", *arguments, f"hydra.run.dir={tmp_path / 'taken'}")
    assert result.returncode == 0, result.stderr
    assert "agree on 100.0% of 16 maps" in result.stdout
    refused = door("analyze", *arguments[:1], "annotation.labels=none.csv", f"hydra.run.dir={tmp_path / 'refused'}")
    assert refused.returncode == 1
    assert "error: File 'none.csv' cannot be read" in refused.stderr
