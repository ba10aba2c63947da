"""``analyze <model> <file>``: somebody else's classifier, whose classes have other names and another order."""

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pandas
import peft
import pytest
import torch
from cli.runs import ran
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer

import bertsecrets as bs
from bertsecrets.cli.arguments import parse
from bertsecrets.errors import UserError

NAMES = ("bad", "neutral", "good")
_WORDS = ("dull", "plain", "great")
QUICK = ("ablation.resamples=100", "ablation.permutations=100", "report.figures=0", "logger=none", "progress=false")


def _rows(count: int, seed: int) -> list[tuple[str, int]]:
    """Texts whose word tells their class, one in ten of them with a random class."""
    draw = random.Random(seed)
    rows = []
    for place in range(count):
        label = draw.randrange(3)
        text = f"{draw.choice(('the', 'this'))} {draw.choice(('film', 'song', 'book'))} was {_WORDS[label]} {place}"
        rows.append((text, label if draw.random() < 0.9 else draw.randrange(3)))
    return rows


@pytest.fixture(scope="module")
def folder(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier trained on these texts, ``right``; the same with other names and order; a file of other texts."""
    folder = tmp_path_factory.mktemp("own_model")
    tokenizer = AutoTokenizer.from_pretrained(tiny_bert)
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(tiny_bert, num_labels=3)
    texts, labels = zip(*_rows(240, 0), strict=True)
    bs.fine_tune(model, tokenizer, texts, labels, epochs=6, learning_rate=3e-3, batch_size=16)
    weight_CD, bias_C = model.classifier.weight.data.clone(), model.classifier.bias.data.clone()
    for name, order, outputs in (
        ("right", [0, 1, 2], NAMES),
        ("renamed", [2, 0, 1], ("GOOD", "Bad", "neu")),
        ("unnamed", [1, 2, 0], ("LABEL_0", "LABEL_1", "LABEL_2")),
    ):
        model.classifier.weight.data, model.classifier.bias.data = weight_CD[order], bias_C[order]
        model.config.id2label = dict(enumerate(outputs))
        model.config.label2id = {output: place for place, output in enumerate(outputs)}
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    rows = [(text, NAMES[label]) for text, label in _rows(150, 1)]
    pandas.DataFrame(rows, columns=["review", "stars"]).to_csv(folder / "held_out.csv", index=False)
    return folder


def analysed(
    folder: Path, model: str, *settings: str, before: str = ""
) -> tuple[dict[str, Any], pandas.DataFrame, str]:
    """The scores, the verdicts and the notes of an analysis of a folder in ``folder``, or of a hub name."""
    out = folder / f"out_{len(list(folder.glob('out_*')))}"
    name = str(folder / model) if (folder / model).exists() else model
    words = (name, str(folder / "held_out.csv"), *settings, *QUICK, f"hydra.run.dir={out}")
    result = ran("analyze", *words, before=before)
    scores = json.loads((out / "scores.json").read_text("utf-8"))
    table = out / "ablation.parquet"
    rows = pandas.read_parquet(table) if table.exists() else pandas.DataFrame()
    return scores, rows, " ".join([*scores["notes"], result.stdout])


def test_names_and_order_of_classes_change_no_verdict(folder: Path) -> None:
    scores, table, said = analysed(folder, "right")
    assert scores["sets"]["val"]["count"] == 150
    assert scores["sets"]["val"]["model"]["accuracy"] > 0.85
    assert {"head", "layer"} == set(table["kind"])
    assert "Outputs of the model" not in said
    for model, settings, note in (
        ("renamed", (), "Outputs of the model: Bad is 'bad', GOOD is 'good', neu is 'neutral'."),
        ("unnamed", ("model.labels={bad: 2, neutral: 0, good: 1}",), "LABEL_2 is 'bad', LABEL_1 is 'good', LABEL_0 is"),
    ):
        same_scores, same_table, said = analysed(folder, model, *settings)
        assert note in said
        for metric, value in scores["sets"]["val"]["model"].items():
            assert same_scores["sets"]["val"]["model"][metric] == pytest.approx(value, abs=1e-6)
        own = ["run", "model"]
        pandas.testing.assert_frame_equal(same_table.drop(columns=own), table.drop(columns=own), rtol=1e-4, atol=1e-6)


def test_the_words_of_a_plain_text_are_predicted_by_a_masked_language_model(tiny_bert: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    AutoModelForMaskedLM.from_pretrained(tiny_bert).save_pretrained(tmp_path / "lm")
    AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(tmp_path / "lm")
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text, _ in _rows(40, 3)), "utf-8")
    out = tmp_path / "run"
    layers = ("analysis=disable_layers", *QUICK, f"hydra.run.dir={out}")
    ran("analyze", str(tmp_path / "lm"), str(tmp_path / "texts.txt"), *layers)
    table = pandas.read_parquet(out / "ablation.parquet")
    assert {*table["metric"]} == {"masked_accuracy", "pseudo_log_likelihood"}
    assert {*table["count"]} == {40}
    (tmp_path / "table.txt").write_text("review\tstars\nfine\tgood\npoor\tbad\nfair\tgood\nlong\tbad\n", "utf-8")
    (tmp_path / "novel.txt").write_text("\n\nCall me Ishmael.\n", "utf-8")
    (tmp_path / "novels").mkdir()
    (tmp_path / "novels" / "one.txt").write_text("Call me Ishmael.\n", "utf-8")
    for name, source in (
        *(("texts.txt", "data=text"), ("table.txt", "data=csv")),
        *(("novel.txt", "data=text"), ("novels", "data=text")),
    ):
        assert source in parse([str(tmp_path / "lm"), str(tmp_path / name)], "analyze").overrides


def test_outputs_taken_in_the_wrong_order_are_told_with_the_setting(folder: Path) -> None:
    _, _, said = analysed(folder, "unnamed", "analysis=scores")
    # In the order of the data's names, bad, good, neutral; right are neutral, good, bad.
    assert "The model does not name its classes; by number, LABEL_0 is 'bad'" in said
    assert "if they are neutral, good, bad; if these are its classes, set model.labels='[neutral,good,bad]'" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nowhere", "held_out.csv"), "'nowhere' is not a setting (key=value), a folder or a file"),
        (("right", "gone.csv"), "'gone.csv' does not exist; give a file with texts and labels"),
        (("right", "held_out.csv", "more.csv"), "Unexpected argument 'more.csv'"),
        (("right", "held_out.csv", "data.path=x.csv"), "'held_out.csv' and data.path= both give a file"),
        (("right", "empty.csv"), "File 'empty.csv' has no header"),
        (("right", "others.csv"), "has the columns id, what, kind; choose the texts and the labels"),
        (
            ("right", "strange.csv"),
            "Class 'ham' does not match exactly one output: the data have ham, spam, the model has",
        ),
        (("redundancy",), "'redundancy' is a choice of analysis; write analysis=redundancy"),
    ],
)
def test_words_that_name_nothing_are_refused(
    words: tuple[str, ...], message: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "empty.csv").write_text("")
    (folder / "others.csv").write_text("id,what,kind\n1,a,b\n")
    (folder / "strange.csv").write_text("text,label\na,spam\nb,ham\nc,spam\n")
    monkeypatch.chdir(folder)
    with pytest.raises(UserError) as error:
        parse(words, "analyze")
    assert message in str(error.value)


def test_settings_take_precedence_over_what_the_words_stand_for(folder: Path) -> None:
    words = [str(folder / "right"), str(folder / "held_out.csv"), "analysis=scores", "data.label=stars"]
    invocation = parse(words, "analyze")
    assert "analysis=disable" not in invocation.overrides
    assert "data.text='review'" in invocation.overrides
    # A process of the run that gets the completed command line adds nothing.
    again = parse(invocation.words, "analyze")
    assert again.overrides == invocation.overrides


@pytest.mark.slow
def test_a_model_of_the_hub_and_a_trainers_folder_are_those_in_them(folder: Path, tmp_path: Path) -> None:
    cached = tmp_path / "cache" / "models--them--theirs"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("c" * 40)
    shutil.copytree(folder / "renamed", cached / "snapshots" / ("c" * 40))
    shutil.copytree(folder / "renamed", folder / "trainer" / "checkpoint-30")
    expected = analysed(folder, "renamed", "analysis=scores")[0]["sets"]
    before = f"import huggingface_hub.constants as constants; constants.HF_HUB_CACHE = {str(tmp_path / 'cache')!r}"
    assert analysed(folder, "them/theirs", "analysis=scores", before=before)[0]["sets"] == expected
    assert analysed(folder, "trainer", "analysis=scores")[0]["sets"] == expected


def test_an_adapter_is_analysed_as_the_merged_model_beside_its_base(folder: Path) -> None:
    torch.manual_seed(1)
    base = AutoModelForSequenceClassification.from_pretrained(folder / "right")
    config = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"], init_lora_weights=False)
    adapted = peft.get_peft_model(base, config)
    adapted.save_pretrained(folder / "adapter")
    adapted.merge_and_unload().save_pretrained(folder / "merged")
    AutoTokenizer.from_pretrained(folder / "right").save_pretrained(folder / "merged")
    labels = "model.labels=[bad,neutral,good]"
    expected = analysed(folder, "merged", "analysis=scores")[0]["sets"]["val"]["model"]
    scores, _, said = analysed(folder, "adapter", "analysis=drift", "measure=[drift]", labels)
    assert scores["sets"]["val"]["model"] == pytest.approx(expected, abs=1e-5)
    assert f"The adapter was merged into the weights of '{folder / 'right'}', which it was trained on." in said
    heads = pandas.read_parquet(max(folder.glob("out_*"), key=os.path.getmtime) / "heads.parquet")
    assert set(heads["measure"]) == {"drift"}
    assert heads["value"].min() < 0.999


def test_an_adapter_that_does_not_name_its_base_is_merged_into_the_given_one(folder: Path, tmp_path: Path) -> None:
    base = AutoModelForSequenceClassification.from_pretrained(folder / "right")
    config = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"], init_lora_weights=False)
    adapted, path = peft.get_peft_model(base, config), tmp_path / "adapter"
    adapted.save_pretrained(path)
    facts = json.loads((path / "adapter_config.json").read_text("utf-8"))
    (path / "adapter_config.json").write_text(json.dumps(facts | {"base_model_name_or_path": None}), "utf-8")
    with pytest.raises(
        UserError, match=r"does not name the model it was trained on.*bs\.load\(\.\.\., base=<folder>\)"
    ):
        bs.load(path)
    loaded, tokenizer = bs.load(path, base=str(folder / "right"))
    inputs = tokenizer("this film was great", return_tensors="pt")
    with torch.no_grad():
        assert torch.allclose(loaded(**inputs).logits, adapted.eval()(**inputs).logits, atol=1e-5)
    given = ("model=folder", f"model.path={folder / 'right'}")
    scores, _, said = analysed(folder, str(path), "analysis=scores", "model.labels=[bad,neutral,good]", *given)
    assert scores["sets"]["val"]["model"]
    assert "its configuration does not name the model that it was trained on." in said


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_files_of_other_formats_are_told_by_their_names(kind: str, folder: Path) -> None:
    rows = pandas.read_csv(folder / "held_out.csv")
    path = folder / f"rows.{kind}"
    rows.to_parquet(path) if kind == "parquet" else rows.to_json(path, orient="records", lines=True)
    invocation = parse([str(folder / "renamed"), str(path)], "analyze")
    assert {f"data={kind}", "data.text='review'", "data.label='stars'"} <= set(invocation.overrides)
    assert "task.labels=[bad,good,neutral]" in invocation.overrides


def test_a_model_of_one_output_takes_whole_numbers_for_scores(folder: Path, tiny_bert: Path, tmp_path: Path) -> None:
    AutoModelForSequenceClassification.from_pretrained(tiny_bert, num_labels=1).save_pretrained(tmp_path / "scorer")
    path = tmp_path / "rated.tsv"
    path.write_text("text\tscore\n" + "".join(f"text {place}\t{place % 5}\n" for place in range(20)))
    invocation = parse([str(tmp_path / "scorer"), str(path)], "analyze")
    assert "task.label_range=[0,4]" in invocation.overrides
    with pytest.raises(
        UserError, match=r"The data have 5 classes .*, but the model has 3 outputs .*; remove the rows of '3', '4'"
    ):
        parse([str(folder / "right"), str(path)], "analyze")


@pytest.mark.parametrize("name", ["renamed", pytest.param("base", marks=pytest.mark.slow)])
def test_a_model_is_viewed_with_classes_of_its_own(name: str, folder: Path, tiny_bert: Path, tmp_path: Path) -> None:
    model = tiny_bert if name == "base" else folder / name
    ran("view", f"checkpoint={model}", "text=the film was great", f"hydra.run.dir={tmp_path / 'out'}")
    # A model without a classifier has no answers.
    assert ("GOOD" in (tmp_path / "out" / "view.html").read_text("utf-8")) == (name == "renamed")
