"""Recompute what a run stored, from its checkpoint and its data, with plain transformers, scikit-learn and scipy."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import yaml
from safetensors import safe_open
from scipy.special import log_softmax
from scipy.stats import pearsonr, spearmanr
from scipy.stats import t as student
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef
from transformers import (
    AttentionInterface,
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
)

SCORES = {
    "accuracy": accuracy_score,
    "matthews": matthews_corrcoef,
    "f1": lambda label, answer: f1_score(label, answer, zero_division=0),
}
CORRELATIONS = {"pearson": pearsonr, "spearman": spearmanr}
LOGITS, ENTROPY = 2e-5, 2e-5
"""How far a stored logit, and a stored entropy in bits, may be from the one computed here."""


def check_numbers(run: Path, folder: Path) -> list[str]:
    """Assert that a finished run stored the numbers that its checkpoint gives on its data.

    Logits and entropies come from plain transformers, scores and losses from scikit-learn and scipy, and the effect of
    each disabled head from the stored logits of the model without it. What depends on a random classifier, on a source
    of data other than a table of sentences, or on another model than the run's own is left out. Relative paths in the
    run's settings start at ``folder``.

    Returns:
        What was recomputed: some of "logits", "scores", "entropy", "effects", and the name of a disabled head.
    """
    done = []
    settings = yaml.safe_load((run / "config.yaml").read_text("utf-8"))
    if "model" not in settings:
        # A comparison; its own check reads the numbers of its table.
        return []
    tables = {path.stem: pd.read_parquet(path).sort_values("index") for path in run.glob("predictions/*.parquet")}
    model = _model(run, settings, folder)
    texts = evaluation_texts(settings, folder)
    if model is not None and texts is not None and set(tables) == {"val"}:
        inputs = encoded(
            folder / settings["model"]["path"], [texts[index] for index in tables["val"]["index"]], settings
        )
        logits_BC, entropy_LH = forward(model, inputs)
        stored_BC = tables["val"].filter(like="logit").to_numpy()
        np.testing.assert_allclose(stored_BC, logits_BC, atol=LOGITS)
        done.append("logits")
        done += _check_entropy(run, entropy_LH)
        for outcomes in run.glob("ablation/*-*.safetensors"):
            done += _check_first_variant(outcomes, model, dict(zip(tables["val"]["index"], inputs, strict=True)))
    if tables:
        done += _check_scores(run, tables)
    for outcomes in run.glob("ablation/*-*.safetensors"):
        done += _check_effects(run, outcomes, str(settings["task"]["metrics"][0]))
    return done


def check_comparison(page: Path, runs: list[Path]) -> None:
    """Assert that ``comparison.parquet`` holds the mean over runs of every head's numbers, with Student's 95 %
    interval.
    """
    key = ["measure", "column", "layer", "head"]
    tables = [pd.read_parquet(run / "heads.parquet") for run in runs]
    finished = pd.concat([table[table["stage"] == "checkpoint"] for table in tables])
    stored = pd.read_parquet(page / "comparison.parquet")
    compared = stored[["measure", "column"]].drop_duplicates()
    assert ("entropy", "bits") in compared.itertuples(index=False, name=None)
    values = finished.merge(compared).groupby(key)["value"].agg(list)
    errors = finished.merge(compared).groupby(key)["stderr"].agg(lambda stderr: np.sqrt(np.square(stderr).mean()))
    rows = stored.set_index(key).sort_index()
    assert list(rows.index) == list(values.index) == list(errors.index)
    expected = [[*mean_and_limits(np.array(value_R)), len(runs)] for value_R in values]
    np.testing.assert_allclose(
        rows[["mean", "low_pointwise", "high_pointwise", "seeds"]], expected, rtol=1e-6, atol=1e-9
    )
    np.testing.assert_allclose(rows["stderr_over_examples"], errors, rtol=1e-6, atol=1e-9)


def mean_and_limits(value_R: np.ndarray) -> tuple[float, float, float]:
    """Mean, and the limits of its 95 % interval by Student's t."""
    reach = student.ppf(0.975, len(value_R) - 1) * value_R.std(ddof=1) / np.sqrt(len(value_R))
    return value_R.mean(), value_R.mean() - reach, value_R.mean() + reach


def accuracies(runs: list[Path]) -> np.ndarray:
    """The accuracy of each run's predictions of its set ``val``."""
    tables = [pd.read_parquet(run / "predictions" / "val.parquet") for run in runs]
    return np.array(
        [accuracy_score(table["label"], table.filter(like="logit").to_numpy().argmax(1)) for table in tables]
    )


def _check_scores(run: Path, tables: dict[str, pd.DataFrame]) -> list[str]:
    stored = pd.read_json(run / "scores.json", typ="series")["sets"]
    assert set(stored) == set(tables)
    for name, table in tables.items():
        logits_BC, label_B = table.filter(like="logit").to_numpy(), table["label"].to_numpy()
        assert stored[name]["count"] == len(table)
        for metric, value in stored[name]["model"].items():
            if metric in CORRELATIONS:
                if len(set(label_B)) > 1:
                    np.testing.assert_allclose(
                        value, CORRELATIONS[metric](label_B, logits_BC[:, 0]).statistic, atol=1e-5
                    )
            elif metric == "loss" and logits_BC.shape[1] == 1:
                np.testing.assert_allclose(value, np.square(logits_BC[:, 0] - label_B).mean(), rtol=1e-5)
            elif metric == "loss":
                picked = log_softmax(logits_BC, axis=1)[np.arange(len(table)), label_B.astype(int)]
                np.testing.assert_allclose(value, -picked.mean(), rtol=1e-5)
            elif metric in SCORES:
                np.testing.assert_allclose(value, SCORES[metric](label_B, logits_BC.argmax(1)), atol=1e-6)
    return ["scores"]


def _check_entropy(run: Path, entropy_LH: np.ndarray) -> list[str]:
    heads = pd.read_parquet(run / "heads.parquet")
    bits = heads[(heads["measure"] == "entropy") & (heads["column"] == "bits") & heads["head"].notna()]
    if bits.empty:
        return []
    last = bits[bits["step"] == bits["step"].max()]
    np.testing.assert_allclose(
        last.pivot_table(index="layer", columns="head", values="value").to_numpy(), entropy_LH, atol=ENTROPY
    )
    return ["entropy"]


def _check_effects(run: Path, path: Path, metric: str) -> list[str]:
    """The table's scores are those of the stored logits; of a screened sweep, whose scores also hold estimates, none is
    checked.
    """
    table = pd.read_parquet(run / "ablation.parquet")
    plan, outcomes = read_outcomes(path)
    variants = [variant[0] for variant in plan["variants"]]
    if metric not in SCORES or "weight" in outcomes:
        return []
    before = SCORES[metric](outcomes["label"], outcomes["clean"].argmax(1))
    rows = table[(table["metric"] == metric) & table["variant"].isin(variants) & table["p_interaction"].isna()]
    assert not rows.empty
    for row in rows.itertuples():
        after = SCORES[metric](outcomes["label"], outcomes["logits"][:, variants.index(row.variant)].argmax(1))
        np.testing.assert_allclose([row.baseline, row.score, row.delta], [before, after, after - before], atol=1e-6)
    return ["effects"]


def _check_first_variant(path: Path, model: PreTrainedModel, inputs: dict[int, Any]) -> list[str]:
    """The logits without the first head of the plan are those of the model with that head's attention made uniform."""
    plan, outcomes = read_outcomes(path)
    name, kind, heads, *_ = plan["variants"][0]
    if plan["mode"] != "uniform" or kind != "head":
        return []
    ((layer, head),) = heads

    def attention(module: Any, query: Any, key: Any, value: Any, mask: Any, **_: Any) -> tuple[torch.Tensor, None]:
        scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
        maps = scores.softmax(-1)
        if module is model.base_model.encoder.layer[layer].attention.self:
            maps[:, head] = 1 / maps.shape[-1]
        return (maps @ value).transpose(1, 2), None

    AttentionInterface.register("one_uniform_head", attention)
    model.set_attn_implementation("one_uniform_head")
    with torch.no_grad():
        logits = [model(**inputs[number]).logits[0].numpy() for number in outcomes["index"]]
    model.set_attn_implementation("eager")
    # A screened sweep stores estimates of what it did not evaluate.
    evaluated_B = outcomes["weight"][:, 0] > 0 if "weight" in outcomes else np.ones(len(logits), bool)
    np.testing.assert_allclose(outcomes["logits"][evaluated_B, 0], np.stack(logits)[evaluated_B], atol=LOGITS)
    return [name]


def read_outcomes(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The plan of a sweep, and its stored tensors by name."""
    with safe_open(path, "np") as file:
        return json.loads(file.metadata()["plan"]), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def _model(run: Path, settings: dict[str, Any], folder: Path) -> PreTrainedModel | None:
    """The model that the run's predictions are of; None if plain transformers cannot make it again."""
    path, source = settings["model"].get("path"), run
    if settings.get("job_type") == "analysis":
        if settings["checkpoint"] in (None, "initial") or settings["reference"]:
            return None
        source = folder / settings["checkpoint"]
    if path is None or not (source / "checkpoints" / "final.ckpt").is_file():
        return None
    content = torch.load(source / "checkpoints" / "final.ckpt", weights_only=True)
    weights = {
        key.removeprefix("model."): value for key, value in content["state_dict"].items() if key.startswith("model.")
    }
    config = AutoConfig.from_pretrained(
        folder / path, num_labels=len(weights["classifier.bias"]), attn_implementation="eager"
    )
    model = AutoModelForSequenceClassification.from_config(config)
    model.load_state_dict(weights)
    return model.eval()


def evaluation_texts(settings: dict[str, Any], folder: Path) -> list[str] | None:
    """The evaluation sentences by row, of SST-2's table or of a CSV file with evaluation rows; None for other data."""
    data = settings["data"]
    if data["source"] == "tsv" and settings["task"]["name"] == "sst2":
        content = (folder / data["root"] / "SST-2" / "dev.tsv").read_bytes().decode("utf-8")
        return [line.split("\t")[0] for line in content.removesuffix("\n").split("\n")[1:]]
    if data["source"] == "csv" and data["eval_path"] is not None:
        # pandas guesses the separator; the texts of the cases hold none of the others outside of quotes.
        table = pd.read_csv(folder / data["eval_path"], sep=None, engine="python", dtype=str, keep_default_na=False)
        return list(table[data["text"]])
    return None


def encoded(path: Path, texts: list[str], settings: dict[str, Any]) -> list[Any]:
    """Each text alone, truncated as in the run, by the tokenizer in a folder."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    length = settings["task"]["training"]["max_length"]
    return [tokenizer(text, truncation=True, max_length=length, return_tensors="pt") for text in texts]


def forward(model: PreTrainedModel, inputs: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Logits, and the mean entropy of each head's maps in bits, one sentence at a time."""
    logits, entropies = [], []
    for encoded in inputs:
        with torch.no_grad():
            output = model(**encoded, output_attentions=True, return_dict=True)
        logits.append(output.logits[0].numpy())
        maps_LHQK = torch.stack(output.attentions)[:, 0].double()
        entropies.append(torch.special.entr(maps_LHQK).sum(-1).mean(-1).numpy() / np.log(2))
    return np.stack(logits), np.mean(entropies, axis=0)
