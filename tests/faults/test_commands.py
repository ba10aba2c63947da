"""Own tables, views, exports, screened sweeps and joblib's: what is refused, and the numbers of what runs."""

import base64
import csv
import json
import re
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import yaml
from faults.cases import LATE, Case, Outcome, analyze, parametrized, train, view
from faults.places import Arrange, both, warm_process, write
from faults.recomputed import LOGITS, encoded, evaluation_texts, forward, read_outcomes
from faults.runner import Warm, write_sentences
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

Check = Callable[[Path, Outcome], None]

OWN = train(
    task=None,
    data="csv",
    data__root=None,
    data__path="{folder}/rows.csv",
    data__eval_path="{folder}/new.csv",
    hydra__run__dir="{folder}/out",
)
ROWS = [
    (f"film number {number}, a {('bad', 'good')[number % 2]} one", ("dull", "fine")[number % 2]) for number in range(24)
]
NEW = [
    (f"play number {number}; a {('bad', 'good')[number % 2]} one", ("dull", "fine")[number % 2]) for number in range(12)
]


def table(name: str, rows: Sequence[Sequence[str]], header: Sequence[str] = ("text", "label"), **style: Any) -> Arrange:
    """Write a table by the standard library's writer."""

    def arrange(folder: Path) -> None:
        with (folder / name).open("w", newline="", encoding=style.pop("encoding", "utf-8")) as file:
            csv.writer(file, **style).writerows([header, *rows])

    return arrange


def own(name: str, sentence: str, rows: Arrange, *more: str, new: Arrange | None = None) -> Case:
    """A table of one's own that is refused."""
    arrange = both(rows, table("new.csv", NEW) if new is None else new)
    return Case(f"own-{name}", (*OWN, *more), sentence, arrange=arrange, leaves=LATE)


OWN_TABLES = [
    own("missing", r"rows\.csv' is missing; give data.path=", lambda folder: None),
]  # fmt: skip


def maps_of(sentence: str) -> Check:
    """The maps on a view's page are those of plain transformers, as exactly as 256 levels of their root allow."""

    def check(folder: Path, outcome: Outcome) -> None:
        page = (folder / "out" / "view.html").read_text("utf-8")
        found = re.search(r'class="viewer-example"[^>]*>(.*?)</script>', page, re.DOTALL)
        assert found is not None
        shown = json.loads(found[1])
        tokenizer = AutoTokenizer.from_pretrained(warm_process[-1].model)
        model = AutoModel.from_pretrained(warm_process[-1].model, attn_implementation="eager").eval()
        inputs = tokenizer(sentence, return_tensors="pt")
        assert shown["tokens"] == tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])
        with torch.no_grad():
            maps_LHQK = torch.stack(model(**inputs, output_attentions=True).attentions)[:, 0].numpy()
        stage = shown["stages"][0]
        stored = [np.frombuffer(zlib.decompress(base64.b64decode(layer)), np.uint8) for layer in stage["layers"]]
        weights = (np.stack(stored).reshape(maps_LHQK.shape) / shown["levels"]) ** 2
        np.testing.assert_allclose(weights**0.5, maps_LHQK**0.5, atol=0.51 / shown["levels"])

    return check


def refused_view(name: str, text: str, sentence: str, **settings: object) -> Case:
    return Case(f"view-{name}", view(text, **settings), sentence, leaves=LATE)


VIEWS = [
    *(
        Case(
            f"view-{name}",
            view(text),
            "View:",
            status=0,
            check=maps_of(text),
        )
        for name, text in {
            "sentence": "The cat sat on the mat.",
            "right-to-left": "\u05e9\u05dc\u05d5\u05dd world",
            "markup": "<script>alert(1)</script> &amp; more",
        }.items()
    ),
    refused_view("model-gone", "cat", r"Model folder '.*gone' does not exist", model__path="{folder}/gone"),
    refused_view("checkpoint-gone", "cat", r"gone' does not exist", checkpoint="{folder}/gone"),
]


def exported(folder: Path, outcome: Outcome) -> None:
    """Plain transformers answers with the exported folder as the run's stored predictions do."""
    run = warm_process[-1].finished("run")
    settings = yaml.safe_load((run / "config.yaml").read_text("utf-8"))
    table = pd.read_parquet(run / "predictions" / "val.parquet").sort_values("index")
    texts = evaluation_texts(settings, folder)
    assert texts is not None
    model = AutoModelForSequenceClassification.from_pretrained(folder / "model", attn_implementation="eager").eval()
    logits_BC, _ = forward(model, encoded(folder / "model", [texts[index] for index in table["index"]], settings))
    np.testing.assert_allclose(table.filter(like="logit").to_numpy(), logits_BC, atol=LOGITS)
    assert [path.name for path in folder.iterdir()] == ["model"]


def export(name: str, sentence: str, *words: str, arrange: Arrange | None = None) -> Case:
    return Case(f"export-{name}", ("export", *words), sentence, arrange=arrange)


EXPORTS = [
    Case("export-runs", ("export", "folder={folder}/model", "checkpoint={run}"), "Model:", status=0, check=exported),
    Case(
        "export-of-a-file",
        ("export", "folder={folder}/model", "checkpoint={run}/checkpoints/final.ckpt"),
        "Model:",
        status=0,
        check=exported,
    ),
    export("no-checkpoint", r"export writes a fine-tuned model; give checkpoint=", "folder={folder}/model"),
    export("checkpoint-gone", r"gone' does not exist", "folder={folder}/model", "checkpoint={folder}/gone"),
    export(
        "not-empty", r"which is not empty", "folder={folder}/m", "checkpoint={run}", arrange=write("m/notes", "mine")
    ),
    export(
        "onto-a-file",
        r"m' is a file; choose another folder",
        "folder={folder}/m",
        "checkpoint={run}",
        arrange=write("m", "mine"),
    ),
    export("number", r"folder is 5; expected", "folder=5", "checkpoint={run}"),
    export(
        "initial",
        r"export writes a fine-tuned model; give checkpoint=",
        "folder={folder}/model",
        "checkpoint=initial",
        "model=folder",
        "model.path={model}",
    ),
    export("of-an-analysis", r"has neither a model .* nor a run", "folder={folder}/model", "checkpoint={analysis}"),
]


def estimates(folder: Path, outcome: Outcome) -> None:
    """Scores are the sums of e + w (l - e), by hand from the stored tensors, and evaluated losses those of their
    logits.
    """
    run = folder / "out"
    [path] = run.glob("ablation/*-*.safetensors")
    plan, arrays = read_outcomes(path)
    variants = [variant[0] for variant in plan["variants"]]
    stored = {name: torch.from_numpy(array).double() for name, array in arrays.items()}
    label_B = stored["label"].long()
    right_BV = (stored["logits"].argmax(-1) == label_B[:, None]).double()
    guess_BV = (stored["estimate"].argmax(-1) == label_B[:, None]).double()
    score_V = (guess_BV + stored["weight"] * (right_BV - guess_BV)).mean(0)
    rows = pd.read_parquet(run / "ablation.parquet")
    rows = rows[(rows["metric"] == "accuracy") & (rows["kind"] == "head")]
    assert len(rows) == len(variants) == 12
    assert (stored["weight"] == 0).any()
    for row in rows.itertuples():
        np.testing.assert_allclose(row.score, score_V[variants.index(row.variant)], atol=1e-6)
        assert row.sweep == "screened"
    evaluated_BV = stored["weight"] > 0
    loss_BV = torch.nn.functional.cross_entropy(
        stored["logits"].movedim(-1, 1), label_B[:, None].expand(-1, len(variants)), reduction="none"
    )
    torch.testing.assert_close(stored["loss"][evaluated_BV], loss_BV[evaluated_BV], atol=1e-5, rtol=0)


def screened(name: str, sentence: str, *, runs: bool = False, **settings: object) -> Case:
    """A screened sweep; one that runs has 600 examples, so that most losses are estimates."""
    own = {"analysis": "disable_heads", "ablation.sweep": "screened", "hydra.run.dir": "{folder}/out"}
    if not runs:
        return Case(f"screened-{name}", analyze(**{**own, **settings}), sentence, leaves=LATE)
    return Case(
        f"screened-{name}",
        analyze(**{**own, "data.root": "{folder}", "data.eval_batch_size": 64, **settings}),
        sentence,
        status=0,
        arrange=lambda folder: write_sentences(folder / "SST-2", 600),
        check=estimates,
    )


SCREENED = [
    *(
        screened(name, "Report:", runs=True, **settings)
        for name, settings in {
            "runs": {},
            "of-examples": {"ablation__max_examples": 200},
        }.items()
    ),
]


def two_jobs(folder: Path, outcome: Outcome) -> None:
    """The numbers of both jobs were recomputed, each from its own checkpoint."""
    assert warm_process[-1].numbers["joblib-runs"] == 2 * ["logits", "entropy", "scores"]


TWO_JOBS = (*train(launcher="joblib", hydra__sweep__dir="{folder}/jobs", seed="1,2"), "-m")


def jobs(name: str, sentence: str, *more: str) -> Case:
    return Case(f"joblib-{name}", (*TWO_JOBS, *more), sentence)


JOBLIB = [
    Case(
        "joblib-runs",
        TWO_JOBS,
        "2 finished, 0 skipped, 0 failed",
        status=0,
        check=two_jobs,
        seconds=120.0,
    ),
    jobs("jobs-of-text", r"hydra.launcher.n_jobs is 'two'; expected a whole number", "hydra.launcher.n_jobs=two"),
    jobs("same-job-twice", r"'seed=1,1' lists 'seed=1' twice; list each value once", "seed=1,1"),
]


@parametrized([*OWN_TABLES, *VIEWS, *EXPORTS, *SCREENED, *JOBLIB])
def test_commands(case: Case, warm: Warm, tmp_path: Path) -> None:
    warm_process.append(warm)
    warm.check(case, tmp_path)
