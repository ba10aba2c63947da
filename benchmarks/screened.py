"""Screened sweeps against exact ones: time, memory, share of the pairs, and every prediction, change of score and verdict.

    python -m benchmarks.screened <run folder>... --exact <folder> --only-exact     # the exact sweeps, beforehand
    python -m benchmarks.screened <run folder>... --exact <folder> [--modes uniform zero mean] [--naive 6] [--out <file>]
        [--precisions bf16-mixed]

Each run folder is that of a finished training. Its whole development set is swept on the same length-bucketed batches in one
process: by the naive loop, one forward pass for each variant, which runs on ``--naive`` variants of the plan (evenly spread; a
pass takes as long for any) and is scaled to all; screened, in fp32 and with bf16; and exactly. The exact sweep's logits and the time
of each batch are kept in the folder of ``--exact``, and an interrupted one is resumed; the comparison then times the exact engine on
one batch in ``--every`` and scales that by the kept times. Without ``--exact`` the exact sweep runs whole in the comparison. As in
a run, a screened sweep computes linear layers in fp32 by oneDNN where that is faster; the loop and the exact engine are PyTorch's own.
Times are wall-clock and processor times; memory is the largest resident set of the process during each. The plan is every head and
every whole layer. Cells that are there already are not run again.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from bertsecrets.ablation.arithmetic import can_use_onednn, preferred
from bertsecrets.ablation.exact import exact_sweep
from bertsecrets.ablation.judging import judged_rows
from bertsecrets.ablation.outcomes import Outcomes, Parts, fingerprint
from bertsecrets.ablation.partial_passes import return_freed_memory
from bertsecrets.ablation.plan import Plan, every_head, every_layer
from bertsecrets.ablation.replacements import Replacements, prepare
from bertsecrets.ablation.screening import Screening, screened_sweep
from bertsecrets.ablation.settings import BF16, FP32, AblationSettings, Precision
from bertsecrets.ablation.subject import Subject as SweepSubject
from bertsecrets.attention.override import HeadEdit, override
from bertsecrets.cli.build import make_data
from bertsecrets.cli.command_line import limit_kept_products
from bertsecrets.cli.settings import read_settings
from bertsecrets.data.batch import Batch
from bertsecrets.data.module import TaskData
from bertsecrets.data.task import Task
from bertsecrets.models.checkpoint import load_checkpoint
from bertsecrets.models.encoder import describe
from bertsecrets.models.loading import load_tokenizer
from bertsecrets.models.spec import find_checkpoint
from bertsecrets.results.config_copy import plain, read_config

RESULTS = Path(__file__).parent / "results" / "screened_sweeps.json"
PRECISIONS = (FP32, BF16)

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Cost:
    """Seconds on the wall and of the processor, the largest resident set in megabytes, and what the work added to it."""

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
    def read(cls, folder: Path, mode: str, examples: int | None) -> "Subject":
        data, model = opened(folder)
        batches = list(data.evaluation_loader(data.evaluation_names[0], max_examples=examples))
        return cls.of(folder.name, mode, data, model, batches)

    @classmethod
    def of(cls, name: str, mode: str, data: TaskData, model: nn.Module, batches: list[Batch]) -> "Subject":
        """Every head and every whole layer, disabled for these batches."""
        encoder = describe(model)
        layers, heads = encoder.num_layers, encoder.num_heads
        plan = Plan(mode, layers, heads, (*every_head(layers, heads), *every_layer(layers, heads)))
        judged = SweepSubject.of_data(model, data, progress=False)
        replacements = prepare(judged, plan, AblationSettings.read("ablation", {"mode": mode}))
        return cls(f"{name}-{mode}", model, data.task, plan, batches, replacements)


class Exact:
    """The exact sweep of a subject, kept batch by batch with the time of each."""

    def __init__(self, subject: Subject, folder: Path) -> None:
        self.subject, self.path = subject, folder / f"{subject.name}.json"
        self.parts = Parts(folder / subject.name, fingerprint(subject.model, subject.plan))
        self.costs = [Cost(**row) for row in json.loads(self.path.read_text("utf-8"))] if self.path.is_file() else []

    def run(self) -> Outcomes:
        """Sweep the batches that are not kept yet, and return the outcomes."""
        for batch in self.subject.batches[len(self.costs) :]:
            _, cost = measured(partial(self._sweep, [batch], self.parts))
            self.costs.append(cost)
            self.path.write_text(json.dumps([asdict(cost) for cost in self.costs], indent=1) + "\n", "utf-8")
        return self._sweep(self.subject.batches, self.parts)

    def timed_again(self, every: int) -> Cost:
        """The cost of the whole sweep by the time that some of the batches take now and the kept times of all."""
        _, cost = measured(lambda: self._sweep(self.subject.batches[::every], None))
        return cost.times(sum(kept.wall for kept in self.costs) / sum(kept.wall for kept in self.costs[::every]))

    def _sweep(self, batches: list[Batch], parts: Parts | None) -> Outcomes:
        subject = self.subject
        return exact_sweep(subject.model, subject.plan, batches, replacements=subject.replacements, parts=parts)


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
    rows = judged_rows(outcomes, task, identity, AblationSettings.read("ablation", {}).judging(), {})
    return [(row["metric"], row["variant"], repr(row["delta"]), row["verdict"]) for row in rows]


def cell(
    subject: Subject, variants: int, kept: Path | None, precisions: Sequence[Precision], every: int
) -> dict[str, Any]:
    """One run and mode: times, and where the screened sweeps differ from the exact one."""
    encoder = describe(subject.model)
    faster = preferred(encoder)[1] and can_use_onednn(encoder, nullcontext)
    evaluation, loop = naive(subject, variants)
    costs = {"evaluation": evaluation, "naive": loop}
    screened = {}
    for precision in precisions:
        screened[precision], costs[precision] = measured(
            partial(
                screened_sweep,
                subject.model,
                subject.plan,
                subject.batches,
                Screening(precision=precision, onednn=faster),
                replacements=subject.replacements,
            )
        )
        print(f"{subject.name}, {precision}: {costs[precision]}, {screened[precision][1]}", flush=True)
    if kept is None:
        exact, costs["exact"] = measured(
            lambda: exact_sweep(subject.model, subject.plan, subject.batches, replacements=subject.replacements)
        )
    else:
        kept_sweep = Exact(subject, kept)
        exact, costs["exact"] = kept_sweep.run(), kept_sweep.timed_again(every)
    judged = verdicts(exact, subject.task)
    return {
        "examples": len(exact.label_N),
        "variants": len(subject.plan.variants),
        "costs": {name: asdict(cost) for name, cost in costs.items()},
        "changed_predictions": int((exact.logits_NVC.argmax(-1) != exact.clean_NC.argmax(-1)[:, None]).sum()),
        "judged": len(judged),
        "screened": {
            precision: {
                **asdict(record),
                "onednn": faster,
                "different_predictions": int((exact.logits_NVC.argmax(-1) != own.logits_NVC.argmax(-1)).sum()),
                "different_changes": sum(one[2] != two[2] for one, two in zip(judged, found, strict=True)),
                "different_verdicts": sum(one[3] != two[3] for one, two in zip(judged, found, strict=True)),
            }
            for precision, (own, record) in screened.items()
            for found in [verdicts(own, subject.task)]
        },
    }


def table(results: dict[str, dict[str, Any]]) -> str:
    lines = [
        "| run, mode, precision | pairs in fp32, in bf16 alone | naive : exact : screened, s (processor) | naive : screened, wall "
        "(naive : exact) | memory against a plain evaluation's | predictions that change | different predictions / changes of score "
        "/ verdicts |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in results.items():
        costs = row["costs"]
        for precision, own in row["screened"].items():
            ways = [costs[way] for way in ("naive", "exact", precision)]
            times = " : ".join(f"{cost['wall']:.0f} ({cost['processor']:.0f})" for cost in ways)
            naive_s, exact_s, screened_s = (cost["wall"] for cost in ways)
            lines.append(
                f"| {name}, {precision} | {own['evaluated'] / own['pairs']:.1%}, {own['bf16'] / own['pairs']:.1%} | {times} | "
                f"**{naive_s / screened_s:.1f}×** ({naive_s / exact_s:.1f}×) | "
                f"{costs[precision]['megabytes'] / costs['evaluation']['megabytes']:.2f}× | "
                f"{row['changed_predictions']:,} of {own['pairs']:,} | "
                f"{own['different_predictions']} / {own['different_changes']} / {own['different_verdicts']} of {row['judged']} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--modes", nargs="+", default=["uniform", "zero"])
    parser.add_argument("--naive", type=int, default=6)
    parser.add_argument("--examples", type=int, help="a random sample of the development set; all by default")
    parser.add_argument("--exact", type=Path, help="folder that keeps the exact sweeps")
    parser.add_argument("--every", type=int, default=8, help="of kept exact sweeps, time every such batch again")
    parser.add_argument("--precisions", nargs="+", default=PRECISIONS, choices=PRECISIONS)
    parser.add_argument("--only-exact", action="store_true", help="run the exact sweeps alone; needs --exact")
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    limit_kept_products()
    if chosen.only_exact and chosen.exact is None:
        parser.error("--only-exact needs --exact <folder>")
    results = json.loads(chosen.out.read_text("utf-8")) if chosen.out.is_file() else {}
    for folder in chosen.runs:
        for mode in chosen.modes:
            name = f"{folder.name}, {mode}"
            if chosen.only_exact:
                exact = Exact(Subject.read(folder, mode, chosen.examples), chosen.exact)
                exact.run()
                print(f"{name}: {sum(cost.wall for cost in exact.costs):.0f} s exactly", flush=True)
            elif not set(chosen.precisions) <= results.get(name, {"costs": {}})["costs"].keys():
                results[name] = cell(
                    Subject.read(folder, mode, chosen.examples),
                    chosen.naive,
                    chosen.exact,
                    chosen.precisions,
                    chosen.every,
                )
                chosen.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    if not chosen.only_exact:
        print(table(results))


if __name__ == "__main__":
    main()
