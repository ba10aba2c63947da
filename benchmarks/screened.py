"""Screened sweeps against exact ones at several sizes: pairs evaluated, every prediction, every verdict, and time.

    python -m benchmarks.screened <run folder>... --kept <folder> [--sizes 400 1000 2000 5000] [--seeds 20] [--real 400]

Each run folder is that of a finished training. Every pair of an example and a head or whole layer (mode ``uniform``)
is recorded once: by an exact sweep as it runs by default, by slopes, and in bf16 with the processor time of each; sizes
are nested random samples, and what is recorded is kept and not run again. The screened sweep itself
(:func:`bertsecrets.ablation.screening.screened_sweep`) then runs on these logits in place of passes, with its default
settings and several seeds of pilot and audit. Its time is that of slopes, and of the pairs in bf16 and in fp32 at the
recorded cost of one. With ``--real`` both kinds of sweep are also run back to back on a sample, and timed.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

import bertsecrets.ablation.screening as screening_module
from bertsecrets.ablation.arithmetic import by_onednn, in_bf16, prefers_bf16
from bertsecrets.ablation.engine import Engine
from bertsecrets.ablation.exact import exact_sweep
from bertsecrets.ablation.forecast import FEWEST_SCREENED
from bertsecrets.ablation.judging import judged_rows
from bertsecrets.ablation.outcomes import Outcomes
from bertsecrets.ablation.pairs import Pairs, first_order_changes
from bertsecrets.ablation.partial_passes import CleanLayer, return_freed_memory
from bertsecrets.ablation.plan import Plan, every_head, every_layer
from bertsecrets.ablation.replacements import Replacements, prepare
from bertsecrets.ablation.rows import Screened
from bertsecrets.ablation.screening import Screening, screened_sweep
from bertsecrets.ablation.settings import BF16, FP32, AblationSettings, Precision
from bertsecrets.analysis import Context
from bertsecrets.attention.override import HeadEdit, override
from bertsecrets.cli.build import make_data
from bertsecrets.cli.command_line import limit_kept_products
from bertsecrets.cli.settings import read_settings
from bertsecrets.data.batch import Batch
from bertsecrets.data.module import TaskData, sample_positions
from bertsecrets.data.task import Task
from bertsecrets.models.checkpoint import load_checkpoint
from bertsecrets.models.encoder import Autocast, describe
from bertsecrets.models.loading import load_tokenizer
from bertsecrets.models.spec import find_checkpoint
from bertsecrets.results.run import plain, read_config
from bertsecrets.results.verdicts import DISPENSABLE

RESULTS = Path(__file__).parent / "results" / "screened_sweeps.json"
PRECISIONS = (FP32, BF16)
_RECORDED = ("index", "label", "clean", "exact", "change", "bf16")

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Cost:
    """Seconds on the wall and of the processor, the largest resident set in megabytes, and what the work added to
    it.
    """

    wall: float
    processor: float
    megabytes: float
    added: float = math.nan

    def times(self, factor: float) -> "Cost":
        return Cost(self.wall * factor, self.processor * factor, self.megabytes, self.added)


def resident(field: str) -> float:
    """Megabytes that the process has in memory (``VmRSS``), or had at most (``VmHWM``)."""
    status = Path("/proc/self/status").read_text("utf-8").splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith(field)) / 1024


def measured(work: Callable[[], _Result]) -> tuple[_Result, Cost]:
    return_freed_memory(torch.device("cpu"))  # Of what was measured before.
    Path("/proc/self/clear_refs").write_text("5")  # Sets the largest resident set to the present one.
    before = resident("VmRSS")
    wall, processor = time.perf_counter(), time.process_time()
    result = work()
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    most = resident("VmHWM")
    return result, Cost(wall, processor, most, most - before)


def opened(folder: Path) -> tuple[TaskData, nn.Module]:
    """The data and the fine-tuned model, in evaluation mode, of the run folder of a finished training."""
    settings = read_settings(plain(read_config(folder)))
    data = make_data(settings, load_tokenizer(settings.model))
    return data, load_checkpoint(find_checkpoint(folder), settings.task, settings.model).model.eval()


@dataclass(frozen=True)
class Subject:
    """A model, its development set, and what is disabled."""

    name: str
    model: nn.Module
    task: Task
    plan: Plan
    batches: list[Batch]
    replacements: Replacements

    @classmethod
    def of(cls, name: str, mode: str, data: TaskData, model: nn.Module, batches: list[Batch]) -> "Subject":
        """Every head and every whole layer, disabled for these batches."""
        encoder = describe(model)
        layers, heads = encoder.num_layers, encoder.num_heads
        plan = Plan(mode, layers, heads, (*every_head(layers, heads), *every_layer(layers, heads)))
        judged = Context.of_data(model, data, progress=False)
        replacements = prepare(judged, plan, AblationSettings.read("ablation", {"mode": mode}))
        return cls(f"{name}-{mode}", model, data.task, plan, batches, replacements)


@torch.no_grad()
def naive(subject: Subject, variants: int) -> tuple[Cost, Cost]:
    """The cost of one pass, and that of one pass for each variant and one without edits, scaled from some variants."""
    model, plan = subject.model, subject.plan
    step = max(1, len(plan.variants) // variants)
    chosen = plan.variants[::step][:variants]

    def evaluate() -> None:
        for batch in subject.batches:
            model(**batch.inputs())

    model(**subject.batches[0].inputs())
    _, evaluation = measured(evaluate)
    edited = []
    for variant in chosen:
        edits = [HeadEdit(layer, head, plan.mode) for layer, head in variant.heads]
        with override(model, edits, subject.replacements.constants_LHd):
            edited.append(measured(evaluate)[1])
    scale = len(plan.variants) / len(chosen)
    whole = Cost(
        evaluation.wall + scale * sum(cost.wall for cost in edited),
        evaluation.processor + scale * sum(cost.processor for cost in edited),
        max(cost.megabytes for cost in edited),
        max(cost.added for cost in edited),
    )
    return evaluation, whole


def verdicts(outcomes: Outcomes, task: Task) -> list[tuple[str, ...]]:
    identity = dict.fromkeys(("run", "model", "task", "init", "stage", "evaluation"), "") | {"step": 0}
    rows = judged_rows(outcomes, task, identity, AblationSettings.read("ablation", {}).judging())
    return [(row["metric"], row["variant"], repr(row["delta"]), row["verdict"]) for row in rows]


def precision_of(subject: Subject) -> Precision:
    """The precision of a screened sweep of this model by default."""
    return BF16 if prefers_bf16(describe(subject.model)) else FP32


def fp32_of(subject: Subject) -> Autocast:
    """The context of a pass in fp32, as in sweeps of this model."""
    return by_onednn(describe(subject.model), nullcontext) or nullcontext


def cell(subject: Subject, variants: int, precisions: Sequence[Precision]) -> dict[str, Any]:
    """The loop, exact and screened sweeps of a run back to back, and where the screened ones differ from the exact
    one.
    """
    costs = dict(zip(("evaluation", "naive"), naive(subject, variants), strict=True)) if variants else {}
    options: dict[str, Any] = {"replacements": subject.replacements, "context": fp32_of(subject)}
    screened = {}
    for precision in precisions:
        screening = Screening(precision=precision)
        screened[precision], costs[precision] = measured(
            partial(screened_sweep, subject.model, subject.plan, subject.batches, screening, **options)
        )
    exact, costs["exact"] = measured(lambda: exact_sweep(subject.model, subject.plan, subject.batches, **options))
    judged = verdicts(exact, subject.task)
    return {
        "examples": len(exact.label_N),
        "variants": len(subject.plan.variants),
        "costs": {name: asdict(cost) for name, cost in costs.items()},
        "judged": len(judged),
        "screened": {
            precision: {**asdict(record), **differences(exact, judged, own, subject.task)}
            for precision, (own, record) in screened.items()
        },
    }


def differences(exact: Outcomes, judged: list[tuple[str, ...]], own: Outcomes, task: Task) -> dict[str, int]:
    """Where a screened sweep differs from the exact one."""
    pairs = list(zip(judged, verdicts(own, task), strict=True))
    spared = [(one[3] == DISPENSABLE, two[3] == DISPENSABLE) for one, two in pairs]
    return {
        "different_predictions": int((exact.logits_NVC.argmax(-1) != own.logits_NVC.argmax(-1)).sum()),
        "different_changes": sum(one[2] != two[2] for one, two in pairs),
        "different_verdicts": sum(one[3] != two[3] for one, two in pairs),
        "falsely_spared": spared.count((False, True)),
        "not_spared": spared.count((True, False)),
    }


class Recorded:
    """The logits of every pair, and what they cost.

    Args:
        path: File of each part; together they are the sample.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        parts = [torch.load(path) for path in paths]
        self.seconds = {name: sum(part["seconds"][name] for part in parts) for name in ("exact", "slopes", "bf16")}
        tensors = {name: torch.cat([part[name] for part in parts]) for name in _RECORDED}
        order = tensors["index"].argsort()
        self.index_N, self.label_N, self.clean_NC, self.exact_NVC, self.change_NVC, self.bf16_NVC = (
            tensors[name][order] for name in _RECORDED
        )
        self.layer_V: list[int] = parts[0]["layer"]

    def batches(self, size: int = 64) -> list[Batch]:
        """Batches whose only token is the row of the example in these tensors."""
        batches = []
        for row_B in torch.arange(len(self.index_N)).split(size):
            row_B1, nothing_B1 = row_B[:, None], torch.zeros(len(row_B), 1, dtype=torch.int64)
            labels = (self.index_N[row_B], self.label_N[row_B].long())
            batches.append(Batch(row_B1, nothing_B1 + 1, None, nothing_B1.bool(), nothing_B1, *labels))
        return batches

    def outcomes(self, plan: Plan) -> Outcomes:
        """Those of the exact sweep."""
        return Outcomes(plan, self.index_N, self.label_N.float(), self.clean_NC, self.exact_NVC)

    def changes(self, engine: Engine, inputs: Mapping[str, Tensor], *_: object) -> Tensor:
        """In place of the slopes."""
        return self.change_NVC[inputs["input_ids"][:, 0]]

    def screened(self, subject: Subject, seed: int) -> tuple[Outcomes, Screened]:
        """The screened sweep of these logits."""
        screening = Screening(seed=seed, precision=precision_of(subject))
        with (
            patch.object(screening_module, "Pairs", lambda _: RecordedPairs(self)),
            patch.object(screening_module, "first_order_changes", self.changes),
        ):
            return screened_sweep(
                subject.model, subject.plan, self.batches(), screening, replacements=subject.replacements
            )


class RecordedPairs:
    """In place of :class:`bertsecrets.ablation.pairs.Pairs`, whose passes are recorded."""

    def __init__(self, recorded: Recorded) -> None:
        self.recorded, self.layer_V = recorded, recorded.layer_V

    def begin(self, inputs: Mapping[str, Tensor]) -> tuple[Tensor, list[CleanLayer]]:
        row_B11 = inputs["input_ids"][..., None]
        return self.recorded.clean_NC[row_B11[:, 0, 0]], [CleanLayer(row_B11, row_B11, row_B11, row_B11, {})]

    def run_above(
        self,
        clean_BC: Tensor,
        layers: list[CleanLayer],
        real_BS: Tensor,
        wanted_BV: Tensor,
        progress: Callable[[int], object] | None = None,
    ) -> Tensor:
        in_bf16 = torch.is_autocast_enabled("cpu")
        logits_NVC = self.recorded.bf16_NVC if in_bf16 else self.recorded.exact_NVC
        return logits_NVC[layers[0].hidden_BSD[:, 0, 0]][wanted_BV]


def record(subject: Subject, path: Path) -> None:
    """Run every pair of the subject's batches exactly, to first order and in bf16; keep logits and processor times."""
    exactly = fp32_of(subject)
    rough = in_bf16(nullcontext, "cpu")
    exact, cost = measured(
        lambda: exact_sweep(
            subject.model, subject.plan, subject.batches, replacements=subject.replacements, context=exactly
        )
    )
    engine = Engine(subject.model, subject.plan, constants_LHd=subject.replacements.constants_LHd)
    pairs = Pairs(engine)
    seconds, rows = {"exact": cost.processor, "slopes": 0.0, "bf16": 0.0}, []
    for batch in subject.batches:
        started = time.process_time()
        change_BVC = first_order_changes(engine, batch.inputs(), rough)
        with exactly():
            clean_BC, layers = pairs.begin(batch.inputs())
        between = time.process_time()
        every_BV = torch.ones(change_BVC.shape[:2], dtype=torch.bool)
        with rough():
            logits_PC = pairs.run_above(clean_BC, layers, batch.attention_mask_BS.bool(), every_BV)
        seconds["slopes"] += between - started
        seconds["bf16"] += time.process_time() - between
        rows.append((batch.index_B, clean_BC, change_BVC, logits_PC.unflatten(0, every_BV.shape)))
    index_N, clean_NC, change_NVC, bf16_NVC = (torch.cat(tensors) for tensors in zip(*rows, strict=True))
    order = index_N.argsort()
    values = (index_N, exact.label_N, clean_NC, exact.logits_NVC, change_NVC, bf16_NVC)
    # An exact sweep's outcomes are in order already.
    kept = {
        name: value if value is exact.label_N or value is exact.logits_NVC else value[order]
        for name, value in zip(_RECORDED, values, strict=True)
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({**kept, "layer": pairs.layer_V, "seconds": seconds}, path)


def sample(folder: Path, size: int, without: int = 0) -> Subject:
    """So many random examples of a run's first evaluation set, without the first so many of them."""
    data, model = opened(folder)
    name = data.evaluation_names[0]
    split = data.encoded(data.evaluation[name])
    smaller = set(sample_positions(len(split), without, 0)) if without else set()
    positions = [position for position in sample_positions(len(split), size, 0) if position not in smaller]
    return Subject.of(folder.name, "uniform", data, model, list(data.loader_of(split, positions)))


def compared(subject: Subject, recorded: Recorded, seeds: int) -> dict[str, Any]:
    """Screened sweeps with several pilots and audits against the exact one."""
    exact = recorded.outcomes(subject.plan)
    judged = verdicts(exact, subject.task)
    rows = []
    for seed in range(seeds):
        own, found = recorded.screened(subject, seed)
        rows.append({**asdict(found), **differences(exact, judged, own, subject.task)})
    names = [name for name, value in rows[0].items() if type(value) is int]
    return {
        "examples": len(exact.label_N),
        "changed_predictions": int((exact.logits_NVC.argmax(-1) != exact.clean_NC.argmax(-1)[:, None]).sum()),
        "judged": len(judged),
        "spared": sum(row[3] == DISPENSABLE for row in judged),
        "seconds": {name: round(value, 1) for name, value in recorded.seconds.items()},
        "sweeps": {name: [row[name] for row in rows] for name in names},
    }


def table(results: Mapping[str, Any]) -> str:
    """Each run and size: means over the sweeps, and in how many of them something differs."""
    lines = [
        "| run | examples | default | pairs in fp32, in bf16 only | processor time / exact sweep | "
        "changed predictions | missed predictions, mean (most) | variants evaluated in full | "
        "falsely spared | variants spared: screened, exact |",
        "|---|---:|---|---|---:|---:|---|---:|---:|---|",
    ]
    for name, sizes in results["replayed"].items():
        for row in sizes.values():
            sweeps = {key: np.array(values) for key, values in row["sweeps"].items()}
            fp32, rough = (float(np.mean(sweeps[key] / sweeps["pairs"])) for key in ("evaluated", "bf16"))
            again = float(np.mean(sweeps["again"] / sweeps["pairs"]))
            seconds = row["seconds"]
            time_ = seconds["slopes"] / seconds["exact"] + fp32 + (rough + again) * seconds["bf16"] / seconds["exact"]
            missed = sweeps["different_predictions"]
            spared = row["spared"] + np.mean(sweeps["falsely_spared"] - sweeps["not_spared"])
            lines.append(
                f"| {name} | {row['examples']:,} | {'screened' if row['examples'] >= FEWEST_SCREENED else 'exact'} | "
                f"{fp32:.0%}, {rough:.0%} | {time_:.2f} | {row['changed_predictions']:,} of {sweeps['pairs'][0]:,} | "
                f"{missed.mean():.1f} ({missed.max()}) | {sweeps['whole'].mean():.1f} | "
                f"{sweeps['falsely_spared'].sum()} of {len(missed) * row['judged']:,} | {spared:.0f}, {row['spared']} |"
            )
    for name, row in results["real"].items():
        exact = row["costs"]["exact"]
        for precision, own in row["screened"].items():
            cost = row["costs"][precision]
            lines += [
                "",
                f"{name}, {row['examples']} examples, back to back: screened in {precision} {cost['processor']:.0f} s "
                f"of processor time, exact {exact['processor']:.0f} s ({cost['processor'] / exact['processor']:.2f}); "
                f"{own['different_predictions']} predictions differ.",
            ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--kept", type=Path, help="folder that keeps what is recorded")
    parser.add_argument("--sizes", type=int, nargs="+", default=[400, 1000, 2000, 5000])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--real", type=int, help="examples of a sweep of either kind that is run and timed")
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    limit_kept_products()
    results = json.loads(chosen.out.read_text("utf-8")) if chosen.out.is_file() else {"replayed": {}, "real": {}}
    for folder in chosen.runs:
        paths: list[Path] = []
        for before, size in pairwise([0, *chosen.sizes]):
            paths.append(chosen.kept / f"{folder.name}-{before}-{size}.pt")
            subject = sample(folder, size, before)
            if not paths[-1].is_file():
                record(subject, paths[-1])
            found = compared(subject, Recorded(paths), chosen.seeds)
            results["replayed"].setdefault(folder.name, {})[str(size)] = found
            chosen.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
        if chosen.real:
            subject = sample(folder, chosen.real)
            results["real"][folder.name] = cell(subject, 0, [precision_of(subject)])
            chosen.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    print(table(results))


if __name__ == "__main__":
    main()
