"""The tables of ``docs/dark_secrets.md``, from the runs of ``dark_secrets.py`` that are finished.

    python benchmarks/dark_secrets_tables.py <folder>     # read the runs, add their numbers to the stored ones, print the tables
    python benchmarks/dark_secrets_tables.py              # print the tables of the stored numbers
    python benchmarks/dark_secrets_tables.py --page docs/dark_secrets.md    # put them into the page, each under its comment

The numbers of a run replace those of the same model, task, seed and initial weights, so that runs can be made, read and thrown away a
few at a time.

In the tables, what one seed shows has its 95 % interval over examples; over several seeds there is the mean with the lowest and the
highest seed. An average over heads has the interval that it would have if the errors of all heads went one way; a difference between
two models has the one of independent errors.
"""

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bertsecrets.ablation.scoring import Array, weighted_scores
from bertsecrets.ablation.seeds import Sweep, read_sweep
from bertsecrets.ablation.verdicts import VERDICTS
from bertsecrets.measures.frame_relations.record import RELATION, RelationRecord, relation_grids
from bertsecrets.measures.linguistic.columns import above_zero, pair_label
from bertsecrets.measures.linguistic.features import UNIFORM
from bertsecrets.measures.linguistic.token_to_token import BEYOND, BEYOND_WORD, CLS_TO, MEAN, RANDOM
from bertsecrets.models.spec import RANDOM_INIT
from bertsecrets.papers.names import page_files
from bertsecrets.papers.page import read_page
from bertsecrets.papers.shows import by_layer, published
from bertsecrets.patterns.measure import Patterns
from bertsecrets.reporting.runs import FinishedRun, read_run
from bertsecrets.results.formatting import MISSING, head_label, heads_label, number
from bertsecrets.results.run import INITIAL, difference_stage
from bertsecrets.results.scores import RunScores
from bertsecrets.results.sections import highest
from bertsecrets.results.verdicts import NEEDED, WORDS
from bertsecrets.results.views import MeasureView

RESULTS = Path(__file__).parent / "results" / "dark_secrets.json"
TASKS = {
    "mrpc": "MRPC",
    "rte": "RTE",
    "stsb": "STS-B",
    "cola": "CoLA",
    "sst2": "SST-2",
    "qqp": "QQP",
    "mnli": "MNLI",
}
MODELS = {"minilm": "MiniLM", "mpnet": "MPNet"}
SPECIAL = ("cls", "sep")
KINDS_OF_WORDS = ("nouns", "verbs", "pronouns", "subjects", "objects", "negation")
PATTERNS = tuple(column.name for column in Patterns.columns)
PAIRS = (
    "verb_to_subject",
    "subject_to_verb",
    "noun_to_pronoun",
    "pronoun_to_noun",
    "verb_to_object",
    "object_to_verb",
)
RESAMPLES = 2000

Record = dict[str, Any]
Numbers = list[float]
"""A value with the limits of its 95 % interval."""
Key = tuple[str, str, int, str]
"""Model, task, seed and initial weights of a run."""
THEIRS = published("kovaleva2019")


def of_heads(grid: tuple[Array, Array, Any], layer: int | None = None) -> Numbers:
    """The mean over the heads of a measure, or of one of its layers, with its widest interval over examples."""
    value_LH, stderr_LH = (part if layer is None else part[layer] for part in grid[:2])
    mean, reach = float(np.nanmean(value_LH)), 1.96 * float(np.nanmean(stderr_LH))
    return [mean, mean - reach, mean + reach]


def of_layers(grid: tuple[Array, Array, Any]) -> list[Numbers]:
    return [of_heads(grid, layer) for layer in range(len(grid[0]))]


def percentiles(value: float, resampled_R: Array) -> Numbers:
    return [value, *np.nanpercentile(resampled_R, [2.5, 97.5]).tolist()]


def score(metric: str, label_N: Array, prediction_N: Array) -> Numbers:
    """The score of predictions, with a bootstrap interval over examples."""
    count = len(label_N)
    draw_RN = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=RESAMPLES).astype(float)
    score_R = weighted_scores(metric, label_N, prediction_N[None], np.concatenate([np.ones((1, count)), draw_RN]))[:, 0]
    return percentiles(score_R[0], score_R[1:])


def difference(one: Sequence[float | None], other: Sequence[float | None]) -> Numbers:
    """The first less the second, with the interval that it has if their errors are independent."""
    (value, low, high), (other_value, other_low, other_high) = (map(undefined, numbers) for numbers in (one, other))
    delta = value - other_value
    return [
        delta,
        delta - math.hypot(value - low, other_high - other_value),
        delta + math.hypot(high - value, other_value - other_low),
    ]


def patterns(view: MeasureView) -> Record:
    change = view.at(difference_stage(view.stage, INITIAL))
    assert change is not None
    return {name: {"after": of_heads(view.grid(name)), "change": of_heads(change.grid(name))} for name in PATTERNS}


def relations(view: MeasureView) -> Record:
    """FrameNet links in the model before fine-tuning, which is the same for every task."""
    initial = view.at(INITIAL)
    assert initial is not None
    grids, record = relation_grids(initial), RelationRecord.read(initial.extras)
    assert record is not None
    return {
        "source": record.source,
        "sentences": int(grids.count.max()),
        "mean": float(np.nanmean(grids.value["weight"])),
        "highest": [[head, float(grids.value["weight"][head]), grids.verdict(head)] for head in grids.heads[:3]],
        "relation": [head for head in grids.heads if grids.verdict(head) == RELATION],
        "heads": len(grids.heads),
    }


def drift(view: MeasureView) -> Record:
    grid = view.grid("cosine")
    layer, head = (int(place) for place in np.unravel_index(np.nanargmin(grid[0]), grid[0].shape))
    return {"layers": of_layers(grid), "most": [[layer, head], float(grid[0][layer, head])]}


def features(view: MeasureView) -> Record:
    result: Record = {}
    for name, change in view.compared[INITIAL].items():
        if name not in (*KINDS_OF_WORDS, *SPECIAL):
            continue
        rise_LH = np.where(change.differs_LH, change.delta_LH, -1.0)
        place = highest(rise_LH)
        result[name] = {
            "before": float(np.nanmean(change.other_LH)),
            "after": float(np.nanmean(change.model_LH)),
            "uniform": float(np.nanmean(view.value(name + UNIFORM))),
            "up": int((change.differs_LH & (change.delta_LH > 0)).sum()),
            "down": int((change.differs_LH & (change.delta_LH < 0)).sum()),
            "rise": [place, float(change.other_LH[place]), float(change.model_LH[place])]
            if rise_LH[place] > 0
            else None,
        }
        if name in SPECIAL:
            result[name]["layers"] = of_layers(view.grid(name))
    return result


def token_to_token(view: MeasureView) -> Record:
    names = [column.name for column in view.columns]
    pairs = [name for name in PAIRS if view.has(name) and view.count(name)]
    by_position, by_word = (above_zero(view, [pair + end for pair in pairs]) for end in (BEYOND, BEYOND_WORD))
    result: Record = {"first": {}, "pairs": {}}
    for name in names:
        if name.startswith(CLS_TO) and not name.endswith((RANDOM, "_cls", "_sep_total")) and view.count(name):
            result["first"][name.removeprefix(CLS_TO)] = of_heads(view.grid(name), -1)
    for pair, position_LH, word_LH in zip(pairs, by_position, by_word, strict=True):
        place = highest(view.value(pair))
        beyond, reach = view.value(pair + BEYOND)[place], 1.96 * view.stderr(pair + BEYOND)[place]
        result["pairs"][pair] = {
            "head": place,
            "weight": float(view.value(pair)[place]),
            "mean": float(view.value(pair + MEAN)[place]),
            "beyond": [float(beyond), float(beyond - reach), float(beyond + reach)],
            "heads": int((position_LH & word_LH).sum()),
            "of": int(position_LH.size),
        }
    return result


_COUNTED = " / ".join(WORDS[code] for code in VERDICTS)
"""Heading of columns of :func:`counts`."""


def counts(verdicts: Sequence[str]) -> str:
    return " / ".join(str(verdicts.count(name)) for name in VERDICTS)


def disabled(sweep: Sweep) -> Record:
    """What disabling each head, or each layer, does to the score."""
    rows = sweep.rows
    ends = {"worst": min(rows, key=lambda row: row["delta"]), "best": max(rows, key=lambda row: row["delta"])}
    return {
        "metric": rows[0]["metric"],
        "score": rows[0]["baseline"],
        "delta": [row["delta"] for row in rows],
        "mean": percentiles(float(np.mean([row["delta"] for row in rows])), sweep.resampled_RV.mean(1)),
        "verdicts": counts([row["verdict"] for row in rows]),
        "needed": [[row["layer"], row["head"]] for row in rows if row["verdict"] == NEEDED],
        "gains": sum(row["significant"] and row["delta"] > 0 for row in rows),
        **{
            end: [[row["layer"], row["head"]], [row[name] for name in ("delta", "low", "high")], row["significant"]]
            for end, row in ends.items()
        },
    }


def sweep_of(run: FinishedRun, kind: str) -> Sweep:
    sweep = read_sweep(run.experiments["ablation"][1], kind)
    assert sweep is not None
    return sweep


def scores(run: FinishedRun, sweep: Sweep) -> Record:
    """The scores of a run, from the predictions of a sweep on all examples of the development set that the run read."""
    recorded = RunScores.read(run.folder / "scores.json")
    first = next(iter(recorded.sets.values()))
    metrics = {
        metric: {"constant": constant, "score": score(metric, sweep.label_N, sweep.clean_N)}
        for metric, constant in first.constant.items()
    }
    return {"count": first.count, "learned": recorded.learned, "p_constant": first.p_constant, "metrics": metrics}


def read(folder: Path) -> Record:
    """The numbers of the finished runs in a folder.

    Raises:
        ValueError: If two runs have the same model, task, seed and initial weights.
    """
    runs: dict[Key, FinishedRun] = {}
    for path in sorted(folder.glob("*/finished.json")):
        run = read_run(path.parent)
        # The further seeds of seed_study.py have no features; runs from random weights have their scores alone.
        if "features" in run.experiments or run.init == RANDOM_INIT:
            key = run.config["model"]["name"], run.config["task"]["name"], run.seed, run.init
            if key in runs:
                raise ValueError(f"'{runs[key].folder}' and '{run.folder}' are both of {key}; move one away")
            runs[key] = run
    records = []
    for (model, task, seed, init), run in sorted(runs.items()):
        layers = sweep_of(run, "layer")
        record = {"model": model, "task": task, "seed": seed, "init": init, "scores": scores(run, layers)}
        if init != RANDOM_INIT:
            view = {measure: view for measure, (_, view) in run.experiments.items()}
            record |= {
                "patterns": patterns(view["patterns"]),
                "relations": relations(view["frame_relations"]),
                "drift": drift(view["drift"]),
                "features": features(view["features"]),
                "tokens": token_to_token(view["token_to_token"]),
                "head": disabled(sweep_of(run, "head")),
                "layer": disabled(layers),
            }
        records.append(record)
    return {"runs": records}


def merged(stored: Record, found: Record) -> Record:
    """The stored numbers, with those that were found now in place of older ones of the same run."""

    def by_key(results: Record) -> dict[Key, Record]:
        return {tuple(run[name] for name in ("model", "task", "seed", "init")): run for run in results["runs"]}

    runs = by_key(stored) | by_key(found)
    return {"runs": [runs[key] for key in sorted(runs)]}


def plain(value: Any) -> Any:
    """The same for JSON: numbers rounded, undefined ones null."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return round(value, 5) if math.isfinite(value) else None
    return value


def undefined(value: float | None) -> float:
    return math.nan if value is None else value


def mean(values: Sequence[float | None]) -> float:
    return sum(map(undefined, values)) / len(values)


def numbers(seeds: Sequence[Sequence[float | None]], digits: int = 3, scale: float = 1, *, signed: bool = False) -> str:
    """One seed's number with its interval; the mean of several with the lowest and the highest."""
    values = [undefined(one[0]) for one in seeds]
    limits = [mean(values), min(values), max(values)] if len(seeds) > 1 else [undefined(one) for one in seeds[0]]
    value, low, high = (number(scale * limit, digits, signed=signed) for limit in limits)
    return f"{value} ({low} to {high})"


def by_seed(cells: Sequence[Any]) -> str:
    """What each seed has; once if all have the same."""
    return ", ".join(map(str, cells if len(set(map(str, cells))) > 1 else cells[:1]))


def points(values: Sequence[float], digits: int = 1) -> list[str]:
    return [number(100 * value, digits, signed=True) for value in values]


def published_layers(column: str) -> Mapping[str, Sequence[float]]:
    """Task -> the paper's means by layer of a column, as its page has them."""
    shows = [show for section in read_page(page_files()["kovaleva2019"]).settings.sections for show in section.show]
    return next(show["columns"][column]["published"] for show in shows if column in show.get("columns", {}))


def by_layers(seeds: Sequence[Sequence[Numbers]]) -> list[str]:
    """The mean over seeds of each layer, and half the widest interval of a layer: over examples, or the range over seeds."""
    value_SLN = np.array(seeds, float)
    ends_LN = value_SLN[0, :, 1:]
    if len(seeds) > 1:
        ends_LN = np.stack([value_SLN[..., 0].min(0), value_SLN[..., 0].max(0)], -1)
    return [by_layer(value_SLN[..., 0].mean(0)), number(float(np.ptp(ends_LN, axis=1).max() / 2), 3)]


@dataclass(frozen=True)
class Group:
    """The seeds of a model and task.

    Args:
        model, task: Their names.
        runs: Their records, at least one, from pre-trained weights.
        random: Scores of those from random weights, by seed.
    """

    model: str
    task: str
    runs: list[Record]
    random: Mapping[int, Record]

    @property
    def label(self) -> str:
        return f"{TASKS[self.task]}, {MODELS[self.model]}{dagger(run['scores']['learned'] for run in self.runs)}"

    def __getitem__(self, name: str) -> list[Record]:
        return [run[name] for run in self.runs]


def dagger(learned: Iterable[bool | None]) -> str:
    """A mark unless every seed is shown to beat the constant answer."""
    return "" if all(learned) else " †"


def groups(results: Record) -> list[Group]:
    records, random = defaultdict(list), defaultdict(dict)
    for run in sorted(results["runs"], key=lambda run: run["seed"]):
        key = list(TASKS).index(run["task"]), run["model"]
        if run["init"] == RANDOM_INIT:
            random[key][run["seed"]] = run["scores"]
        else:
            records[key].append(run)
    return [Group(runs[0]["model"], runs[0]["task"], runs, random[key]) for key, runs in sorted(records.items())]


Rows = list[list[str]]


def score_table(tasks: Sequence[Group]) -> Rows:
    rows = [["task", "metric", "examples", "pre-trained", "random weights", "difference", "constant answer"]]
    rows[0].append("paper: pre-trained, random weights")
    for group in tasks:
        learned = [one["learned"] for one in group.random.values()]
        own = list(group["scores"][0]["metrics"])
        theirs = THEIRS["scores"].get(group.task, {})
        for metric in [metric for metric in own if metric in theirs] or own[:1]:
            seeds = {run["seed"]: run["scores"]["metrics"][metric] for run in group.runs}
            both = {seed: one["metrics"][metric]["score"] for seed, one in group.random.items() if seed in seeds}
            deltas = [difference(seeds[seed]["score"], one) for seed, one in both.items()]
            some = f" [{len(both)} of {len(seeds)} seeds]" if len(both) < len(seeds) else ""
            known = theirs.get(metric)
            rows.append(
                [
                    group.label,
                    metric,
                    f"{group['scores'][0]['count']:,}",
                    numbers([one["score"] for one in seeds.values()], 1, 100),
                    numbers(list(both.values()), 1, 100) + some + dagger(learned) if both else MISSING,
                    numbers(deltas, 1, 100, signed=True) + some if both else MISSING,
                    number(100 * undefined(next(iter(seeds.values()))["constant"]), 1),
                    MISSING if known is None else f"{known[2]}, {known[1]}",
                ]
            )
    return rows


def with_paper(task: Group, tasks: Sequence[Group], cells: Sequence[str]) -> Rows:
    """A row of the paper's numbers after the last model of a task; none where it has no number."""
    last = task is [one for one in tasks if one.task == task.task][-1]
    return [[f"{TASKS[task.task]}, paper", *cells]] if last and set(cells) != {MISSING} else []


def pattern_table(tasks: Sequence[Group]) -> Rows:
    rows = [["task", *(name.replace("_", " + ") for name in PATTERNS)]]
    for group in tasks:
        cells = []
        for name in PATTERNS:
            after, change = ([run[name][which][0] for run in group["patterns"]] for which in ("after", "change"))
            cells.append(f"{number(100 * mean(after), 0)} ({number(100 * mean(change), 0, signed=True)})")
        rows.append([group.label, *cells])
        paper = THEIRS["shares"].get(group.task, {})
        rows += with_paper(group, tasks, [str(paper.get(name, MISSING)) for name in PATTERNS])
    return rows


def relation_table(tasks: Sequence[Group]) -> Rows:
    rows = [["model", "source", "sentences", "highest heads", "mean of all", "heads that follow the relation"]]
    rows[0].append("of these needed, by task")
    for model in dict.fromkeys(group.model for group in tasks):
        own = [group for group in tasks if group.model == model]
        found = own[0]["relations"][0]
        needed = [
            f"{TASKS[group.task]} "
            + by_seed([sum(head in run["needed"] for head in found["relation"]) for run in group["head"]])
            for group in own
        ]
        highest_heads = "; ".join(
            f"{head_label(*head)}: {number(weight)} ({verdict})" for head, weight, verdict in found["highest"]
        )
        following = f"{len(found['relation'])} of {found['heads']}: {heads_label(map(tuple, found['relation']))}"
        cells = [
            MODELS[model],
            found["source"],
            f"{found['sentences']:,}",
            highest_heads,
            number(found["mean"]),
            following,
        ]
        rows.append([*cells, ", ".join(needed)])
    return rows


def drift_table(tasks: Sequence[Group]) -> Rows:
    rows = [["task", "mean by layer", "±, at most"]]
    for group in tasks:
        rows.append([group.label, *by_layers([run["layers"] for run in group["drift"]])])
        rows += with_paper(
            group, tasks, [by_layer(published_layers("drift/cosine").get(group.task, ())) or MISSING, MISSING]
        )
    return rows


def special_table(tasks: Sequence[Group], *, token: str) -> Rows:
    rows = [["task", "mean by layer", "±, at most", "all layers, before → after", "uniform"]]
    theirs = published_layers(f"features/{token}")
    for group in tasks:
        seeds = [run[token] for run in group["features"]]
        before, after, uniform = (number(mean([one[name] for one in seeds])) for name in ("before", "after", "uniform"))
        layers = by_layers([one["layers"] for one in seeds])
        rows.append([group.label, *layers, f"{before} → {after}", uniform])
        rows += with_paper(group, tasks, [by_layer(theirs.get(group.task, ())) or MISSING, *[MISSING] * 3])
    return rows


def word_table(tasks: Sequence[Group]) -> Rows:
    rows = [["task", *KINDS_OF_WORDS]]
    for group in tasks:
        cells = []
        for word in KINDS_OF_WORDS:
            seeds = [run[word] for run in group["features"] if word in run]
            values = [number(mean([one[name] for one in seeds])) for name in ("before", "after")] if seeds else []
            moved = [number(mean([one[name] for one in seeds]), 0) for name in ("up", "down")] if seeds else []
            cells.append(f"{' → '.join(values)}; {', '.join(moved)}" if seeds else MISSING)
        rows.append([group.label, *cells])
    return rows


def first_table(tasks: Sequence[Group]) -> Rows:
    rows = [["task", "[CLS] in the last layer attends most to", "[SEP]", "place of [SEP]"]]
    for group in tasks:
        means = {kind: mean([run["first"][kind][0] for run in group["tokens"]]) for kind in group["tokens"][0]["first"]}
        order = sorted(means, key=lambda kind: -means[kind])
        words = [kind for kind in order if kind != "sep"][:3]
        cells = "; ".join(f"{kind} {number(means[kind])}" for kind in words)
        rows.append([group.label, cells, number(means["sep"]), f"{order.index('sep') + 1}"])
    return rows


def pair_table(tasks: Sequence[Group]) -> Rows:
    rows = [["task", *(pair_label(pair) for pair in PAIRS)]]
    for group in tasks:
        cells = []
        for pair in PAIRS:
            seeds = [run["pairs"][pair] for run in group["tokens"] if pair in run["pairs"]]
            if seeds:
                weight = number(mean([one["mean"] for one in seeds]), 2)
                beyond = number(mean([one["beyond"][0] for one in seeds]), 2, signed=True)
                cells.append(f"{weight}, {beyond}; {number(mean([one['heads'] for one in seeds]), 0)}")
            else:
                cells.append(MISSING)
        rows.append([group.label, *cells])
    return rows


def head_table(tasks: Sequence[Group]) -> Rows:
    rows = [["task", "metric", "score", "lowest and highest, one head disabled", "mean change, points"]]
    rows[0] += [_COUNTED, "significant gains", "largest loss (* significant)", "paper"]
    for group in tasks:
        runs = group["head"]
        delta_V = np.mean([run["delta"] for run in runs], 0)
        whole = mean([run["score"] for run in runs])
        theirs = THEIRS["heads"].get(group.task)
        worst = [
            f"{head_label(*head)}: {number(100 * undefined(change[0]), 1, signed=True)}{'*' * significant}"
            for head, change, significant in (run["worst"] for run in runs)
        ]
        rows.append(
            [
                group.label,
                runs[0]["metric"],
                number(whole),
                " to ".join(number(whole + end) for end in (delta_V.min(), delta_V.max())),
                numbers([run["mean"] for run in runs], 2, 100, signed=True),
                by_seed([run["verdicts"] for run in runs]),
                by_seed([run["gains"] for run in runs]),
                by_seed(worst),
                MISSING if theirs is None else f"{number(theirs[0])}: {number(theirs[1])} to {number(theirs[2])}",
            ]
        )
    return rows


def layer_table(tasks: Sequence[Group]) -> Rows:
    rows = [["task", "change by layer, points (* needed with every seed)", _COUNTED]]
    for group in tasks:
        runs = group["layer"]
        change_L = np.mean([run["delta"] for run in runs], 0)
        needed = set.intersection(*({layer for layer, _ in run["needed"]} for run in runs))
        ours = [change + "*" * (layer in needed) for layer, change in enumerate(points(change_L))]
        rows.append([group.label, " ".join(ours), by_seed([run["verdicts"] for run in runs])])
        theirs, whole = THEIRS["layers"].get(group.task, ()), THEIRS["heads"].get(group.task, (0,))[0]
        paper = " ".join(points([score - whole for score in theirs])) or MISSING
        rows += with_paper(group, tasks, [paper, MISSING])
    return rows


TABLES: dict[str, Callable[[Sequence[Group]], Rows]] = {
    "Table 1: scores in percent": score_table,
    "Figure 2: share of maps with each pattern after fine-tuning, percent (change, points)": pattern_table,
    "Figures 3 and 4: FrameNet relations before fine-tuning": relation_table,
    "Figure 5: cosine similarity of the maps before and after": drift_table,
    "Figure 6: attention to [CLS]": partial(special_table, token="cls"),
    "Figure 6: attention to [SEP]": partial(special_table, token="sep"),
    "Figure 6: attention to words, before → after; heads up, down": word_table,
    "Figure 7: what [CLS] attends to": first_table,
    "Figure 7: linked words: mean weight, of it beyond position; heads beyond position and word": pair_table,
    "Figure 8: one head disabled": head_table,
    "Figure 9: one layer disabled": layer_table,
}


def markdown(rows: Rows) -> str:
    """A table, without the columns that no row fills."""
    kept = [column for column, cells in enumerate(zip(*rows[1:], strict=True)) if set(cells) != {MISSING}]
    header, *others = [[row[column] for column in kept] for row in rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *others))


def update(page: Path, tables: Mapping[str, str]) -> None:
    """Put each table under the comment with its title, in place of the one that is there.

    Raises:
        ValueError: If the page does not have a table under exactly one such comment.
    """
    text = page.read_text("utf-8")
    for title, table in tables.items():
        before, found, after = text.partition(f"<!-- {title} -->\n")
        if text.count(f"<!-- {title} -->") != 1 or not after.startswith("|"):
            raise ValueError(f"'{page}' has no table under '<!-- {title} -->'")
        _, end, rest = after.partition("\n\n")
        text = before + found + table + end + rest
    page.write_text(text, "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="without it, the tables of the stored numbers")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, help="the page whose tables are renewed")
    options = parser.parse_args()
    if options.folder is not None:
        stored = json.loads(options.results.read_text("utf-8")) if options.results.is_file() else {"runs": []}
        options.results.write_text(json.dumps(merged(stored, plain(read(options.folder)))) + "\n", "utf-8")
    tasks = groups(json.loads(options.results.read_text("utf-8")))
    tables = {title: markdown(table(tasks)) for title, table in TABLES.items()}
    if options.page is not None:
        update(options.page, tables)
    for title, table in tables.items():
        print(f"\n## {title}\n\n{table}")


if __name__ == "__main__":
    main()
