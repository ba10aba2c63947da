"""Time and memory at base size: watching, every measure, sweeps and gates, on the real weights and lengths of a
finished training.

    python -m benchmarks.base_size <run folder> [--batches 2] [--sweep-batches 1] [--sweep-precisions 32-true
    bf16-mixed]
        [--treebank <folder with UD_English-EWT>] [--documents <folder with coreference>] [--frames <sentences as the
        authors print them>]

One process on one core. The batches are those of the run's development set, as long and as many as an evaluation forms
them, evenly spread over the lengths. The unit is a plain evaluation of the same batches. Measures that need annotation
are taken on annotated sentences or documents, and relative to an evaluation of these. Memory is what the work adds to
the resident set, which holds the model already. Other libraries take part if they are installed (pip install nnsight
pyvene captum); what they return has to agree with ours.
"""

import argparse
import importlib.util
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import asdict, replace
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from torch import Tensor, nn

from benchmarks.ablation_peers import LAYER, LIBRARIES, inner, path_of, pyvene_path
from benchmarks.screened import PRECISIONS, Cost, Subject, cell, measured, opened
from bertsecrets.attention.gates import gated
from bertsecrets.attention.override import HeadEdit, mean_head_outputs, override
from bertsecrets.attention.watch import watch
from bertsecrets.cli.command_line import limit_kept_products
from bertsecrets.cli.settings import read_settings
from bertsecrets.cli.targets import make
from bertsecrets.data.batch import Batch
from bertsecrets.data.module import TaskData
from bertsecrets.data.sources import SourceConfig
from bertsecrets.data.task import Task, task_from_config
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.errors import UserError
from bertsecrets.keys import WatchKeys
from bertsecrets.measures.base import BACKWARD, Measure
from bertsecrets.measures.one_pass import measure_pass
from bertsecrets.models.encoder import describe, unwrap
from bertsecrets.models.loading import load_model
from bertsecrets.pruning.gates import HIGH, LOW, TEMPERATURE, HardConcrete, fit_gates
from bertsecrets.pruning.latency import processor_name
from bertsecrets.results.run import INITIAL, plain, read_config
from bertsecrets.settings import CONF
from bertsecrets.sweeps.hydra_arguments import BASE
from bertsecrets.task_heads.base import output_of

RESULTS = Path(__file__).parent / "results" / "base_size.json"
NAIVE = "naive: output_attentions"
ON_WORDS = (
    "dependency",
    "features",
    "features_kovaleva",
    "token_to_token",
    "token_to_token_kovaleva",
    "roles",
    "voita_roles",
)
"""Measures of annotated words."""

Maps = Callable[[Batch, Callable[[int, Tensor], None]], object]
"""A pass over a batch that hands over the maps of each layer, ``(layer, attention_BHQK)``."""


def spread(items: Sequence[Any], count: int) -> list[Any]:
    """``count`` items, evenly spread."""
    return [items[(2 * place + 1) * len(items) // (2 * count)] for place in range(min(count, len(items)))]


def batches_of(data: TaskData, split: EncodedSplit, count: int | None) -> list[Batch]:
    """The batches of an evaluation, or some of them."""
    batches = list(data.loader_of(split))
    return batches if count is None else spread(batches, count)


def evaluate(model: nn.Module, batches: Sequence[Batch]) -> None:
    with torch.no_grad():
        for batch in batches:
            model(**batch.inputs())


def evaluation_cost(model: nn.Module, batches: Sequence[Batch]) -> Cost:
    """The median of three plain evaluations, after a batch that warms up; the first of them counts for the memory."""
    evaluate(model, batches[:1])
    costs = [measured(partial(evaluate, model, batches))[1] for _ in range(3)]
    wall, processor = (median(getattr(cost, clock) for cost in costs) for clock in ("wall", "processor"))
    return replace(costs[0], wall=wall, processor=processor)


# Watching: the mean entropy of every head's maps. Only how the maps are had differs.


def entropy_sums(attention_BHQK: Tensor, batch: Batch) -> Tensor:
    """The sum over examples of each head's mean entropy over real tokens, in bits, ``[H]``."""
    entropy_BHQ = torch.special.entr(attention_BHQK.float()).sum(-1) / torch.tensor(2.0).log()
    real_B1Q = batch.attention_mask_BS[:, None].float()
    total_H: Tensor = ((entropy_BHQ * real_B1Q).sum(-1) / real_B1Q.sum(-1)).sum(0)
    return total_H


def watched_by_us(model: nn.Module) -> Maps:
    def maps(batch: Batch, observer: Callable[[int, Tensor], None]) -> None:
        with watch(model, observer):
            model(**batch.inputs())

    return maps


def all_layers(passes: Callable[[Batch], Sequence[Tensor]]) -> Maps:
    """For libraries that return the maps of all layers at once."""

    def maps(batch: Batch, observer: Callable[[int, Tensor], None]) -> None:
        for layer, attention_BHQK in enumerate(passes(batch)):
            observer(layer, attention_BHQK)

    return maps


def probabilities_of(model: nn.Module) -> list[nn.Module]:
    """The modules that receive the maps, in a family that bypasses the library's attention interface."""
    modules = [site.probabilities for site in describe(model).sites]
    if any(module is None for module in modules):
        raise UserError(
            "The maps of this model's family are the input of no module, so that other libraries cannot record them by "
            "one recipe; give a run of MPNet."
        )
    return [module for module in modules if module is not None]


def watched_by_nnsight(model: nn.Module) -> Maps:
    from nnsight import NNsight

    traced = NNsight(model)
    inside = [inner(traced, path_of(model, module)) for module in probabilities_of(model)]

    def passes(batch: Batch) -> list[Tensor]:
        kept: list[Tensor] = []
        with traced.trace(**batch.inputs()):
            for module in inside:
                kept.append(module.input.save())
        return kept

    return all_layers(passes)


def watched_by_pyvene(model: nn.Module) -> Maps:
    import pyvene

    kept: list[Tensor] = []

    def keep(base: Tensor, source: Any, subspaces: Any = None) -> Tensor:
        kept.append(base)
        return base

    components = [f"{pyvene_path(path_of(model, module))}.input" for module in probabilities_of(model)]
    recorded = pyvene.IntervenableModel([{"component": name, "intervention": keep} for name in components], model)

    def passes(batch: Batch) -> list[Tensor]:
        kept.clear()
        recorded(dict(batch.inputs()))
        return kept

    return all_layers(passes)


def watched_by_captum(model: nn.Module) -> Maps:
    from captum.attr import LayerActivation

    def passes(batch: Batch) -> list[Tensor]:
        names = list(batch.inputs())
        first, *others = batch.inputs().values()
        activation = LayerActivation(
            lambda *tensors: model(**dict(zip(names, tensors, strict=True))).logits, probabilities_of(model)
        )
        found = activation.attribute(first, additional_forward_args=tuple(others), attribute_to_layer_input=True)
        return [maps[0] if isinstance(maps, tuple) else maps for maps in found]

    return all_layers(passes)


WATCHING: dict[str, Callable[[nn.Module], Maps]] = {
    "nnsight": watched_by_nnsight,
    "pyvene": watched_by_pyvene,
    "captum": watched_by_captum,
}


def watching(model: nn.Module, batches: Sequence[Batch]) -> dict[str, dict[str, Any]]:
    """The cost of each way to the entropy of every head, and the largest difference from ours, in bits."""
    encoder = describe(model)
    shape, examples = (encoder.num_layers, encoder.num_heads), sum(batch.size for batch in batches)

    @torch.no_grad()
    def streamed(maps: Maps) -> Tensor:
        total_LH = torch.zeros(shape)
        for batch in batches:

            def add(layer: int, attention_BHQK: Tensor, batch: Batch = batch) -> None:
                total_LH[layer] += entropy_sums(attention_BHQK, batch)

            maps(batch, add)
        return total_LH / examples

    @torch.no_grad()
    def kept_to_the_end() -> Tensor:
        kept = [model(**batch.inputs(), output_attentions=True).attentions for batch in batches]
        sums = [
            torch.stack([entropy_sums(maps, batch) for maps in layers])
            for layers, batch in zip(kept, batches, strict=True)
        ]
        return torch.stack(sums).sum(0) / examples

    ways: dict[str, Callable[[], Tensor]] = {
        "bertsecrets": partial(streamed, watched_by_us(model)),
        NAIVE: partial(streamed, all_layers(lambda batch: model(**batch.inputs(), output_attentions=True).attentions)),
        f"{NAIVE}, all maps kept to the end": kept_to_the_end,
    }
    rows: dict[str, dict[str, Any]] = {"plain evaluation": asdict(evaluation_cost(model, batches))}
    ours_LH = ways["bertsecrets"]()

    def record(name: str, way: Callable[[], Tensor]) -> None:
        value_LH, cost = measured(way)
        rows[name] = {**asdict(cost), "difference": (value_LH - ours_LH).abs().max().item()}
        print(name, rows[name], flush=True)

    for name, way in ways.items():
        record(name, way)
    for name, maps in WATCHING.items():
        if importlib.util.find_spec(name):
            # A copy: what a library leaves behind in a model slows nothing else.
            record(name, partial(streamed, maps(deepcopy(model))))
        else:
            rows[name] = {"missing": "not installed"}
    return rows


# Measures.


def composed(*overrides: str) -> Any:
    with initialize_config_dir(str(CONF), **BASE):
        return compose("analyze", list(overrides))


def measures_of(names: Sequence[str], model: nn.Module, frames: Path | None) -> list[Measure]:
    """The measures as ``conf/measure`` configures them."""
    given = [] if frames is None else [f"framenet.published={frames}"]
    sections = plain(composed(f"measure=[{','.join(names)}]", *given))["measure"]
    encoder = describe(model)
    measures = []
    for name in names:
        target = {key: value for key, value in sections[name].items() if key not in WatchKeys.model_fields}
        measures.append(make(target, num_layers=encoder.num_layers, num_heads=encoder.num_heads))
    return measures


def other_data(own: TaskData, *overrides: str) -> TaskData:
    """Another task's data with the tokenizer of the run."""
    config = composed(*overrides)
    task = task_from_config(plain(config.task))
    sizes = config.task.training
    source = SourceConfig.read("data", plain(config.data))
    data = TaskData(task, source, own.tokenizer, sizes.batch_size, sizes.max_length)
    data.prepare_data()
    data.setup("validate")
    return data


def measuring(
    model: nn.Module, data: TaskData, reference: nn.Module, count: int, folders: dict[str, Path | None]
) -> dict[str, dict[str, Any]]:
    """The cost of each measure alone and of some together, and of a plain evaluation of the same batches."""
    rows: dict[str, dict[str, Any]] = {}

    def evaluated(on: str, batches: Sequence[Batch]) -> None:
        examples, tokens = sum(batch.size for batch in batches), sum(int(batch.lengths_B.sum()) for batch in batches)
        cost = evaluation_cost(model, batches)
        rows[f"plain evaluation, {on}"] = {**asdict(cost), "on": on, "examples": examples, "tokens": tokens}

    def take(title: str, measures: Sequence[Measure], on: str, split: EncodedSplit, batches: Sequence[Batch]) -> None:
        for measure in measures:
            measure.prepare(split)

        def work() -> None:
            averages = any(measure.reference_examples for measure in measures)
            means_LHd = mean_head_outputs(model, (batch.inputs() for batch in batches)) if averages else None
            grids = measure_pass(model, measures, batches, {INITIAL: reference}, means_LHd=means_LHd)
            for measure, grid in zip(measures, grids, strict=True):
                measure.found(grid, model)

        rows[title] = {**asdict(measured(work)[1]), "on": on}
        print(title, rows[title], flush=True)

    def make(*names: str) -> list[Measure]:
        return measures_of(names, model, folders["frames"])

    aside = {*ON_WORDS, "coreference", "frame_relations"}
    plain_names = [path.stem for path in sorted((CONF / "measure").glob("*.yaml")) if path.stem not in aside]
    sets = [(data, plain_names)]
    size = data.config.eval_batch_size
    if folders["treebank"]:
        treebank = (f"data.root={folders['treebank']}", f"data.eval_batch_size={size}")
        sets.append((other_data(data, "task=ud_ewt", *treebank), list(ON_WORDS)))
    if folders["documents"]:
        # As analysis=coreference: windows are long.
        documents = (f"data.root={folders['documents']}", f"data.eval_batch_size={min(8, size)}")
        sets.append((other_data(data, "task=coreference", *documents), ["coreference"]))
    for own, names in sets:
        split = own.evaluation_dataset(own.evaluation_names[0])
        batches = batches_of(own, split, count)
        evaluated(own.task.name, batches)
        for name in names:
            take(name, make(name), own.task.name, split, batches)
        # Measures of gradients share no pass with the others.
        together = [measure for measure in make(*names) if not measure.needs & BACKWARD]
        if len(together) > 1:
            take(
                f"{len(together)} without gradients in one pass, {own.task.name}",
                together,
                own.task.name,
                split,
                batches,
            )
    if folders["frames"]:
        (measure,) = make("frame_relations")
        sentences = measure.dataset(data)
        assert sentences is not None
        batches = batches_of(data, sentences, None)
        evaluated("framenet", batches)
        take("frame_relations", [measure], "framenet", sentences, batches)
    return rows


# Sweeps.


@torch.no_grad()
def disabling(model: nn.Module, batch: Batch) -> dict[str, dict[str, Any]]:
    """The cost of a variant with other libraries, in plain evaluations, and the largest difference of their logits from
    ours.
    """
    evaluation = evaluation_cost(model, [batch])
    expected = []
    for head in range(describe(model).num_heads):
        with override(model, [HeadEdit(LAYER, head, "zero")]):
            expected.append(model(**batch.inputs()).logits)
    rows: dict[str, dict[str, Any]] = {}
    for name in WATCHING:
        if not importlib.util.find_spec(name):
            rows[name] = {"missing": "not installed"}
            continue
        logits, cost = measured(LIBRARIES[name](deepcopy(model), batch.inputs(), LAYER))
        difference = (torch.stack(logits) - torch.stack(expected)).abs().max().item()
        rows[name] = {
            **asdict(cost.times(1 / len(logits))),
            "times": cost.wall / len(logits) / evaluation.wall,
            "difference": difference,
        }
        print(name, rows[name], flush=True)
    return rows


# Gates.


def with_captum_gates(model: nn.Module) -> tuple[list[nn.Module], Callable[[], Any], Callable[[], Tensor]]:
    """Gates of captum, hooked by hand to the input of the output projections: modules, context of a pass, and
    penalty.
    """
    from captum.module import BinaryConcreteStochasticGates

    encoder = describe(model)
    gates: list[Any] = []
    penalties: list[Tensor] = []

    def gate(_: nn.Module, args: tuple[Tensor, ...], layer: int) -> tuple[Tensor, ...]:
        output_BSD, penalty = gates[layer](args[0])
        penalties.append(penalty)
        return (output_BSD, *args[1:])

    for site in encoder.sites:
        assert site.projection is not None
        head_D = torch.arange(site.projection.in_features) // (site.projection.in_features // encoder.num_heads)
        gates.append(
            BinaryConcreteStochasticGates(
                encoder.num_heads, mask=head_D, temperature=TEMPERATURE, lower_bound=LOW, upper_bound=HIGH
            )
        )

    @contextmanager
    def hooked() -> Iterator[None]:
        penalties.clear()
        with ExitStack() as stack:
            for layer, site in enumerate(encoder.sites):
                hook = site.projection.register_forward_pre_hook(partial(gate, layer=layer))  # type: ignore[union-attr]
                stack.callback(hook.remove)
            yield

    return gates, hooked, lambda: torch.stack(penalties).sum()


def train(
    model: nn.Module,
    batches: Sequence[Batch],
    task: Task,
    parameters: Sequence[nn.Parameter],
    context: Callable[[], Any] = nullcontext,
    penalty: Callable[[], Any] = lambda: 0.0,
) -> None:
    """Training steps by AdamW."""
    optimizer = torch.optim.AdamW(parameters, lr=1e-5, fused=True)
    for batch in batches:
        assert batch.label_B is not None
        with context():
            loss = batch.loss(output_of(unwrap(model), batch.inputs())) + 0.01 * penalty()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()


def gating(model: nn.Module, data: TaskData, steps: int) -> dict[str, dict[str, Any]]:
    """The cost of a step of each way to fit gates, on training batches, and of plain training. Changes the model."""
    encoder = describe(model)
    batches = list(islice(data.train_dataloader(), steps))
    rows: dict[str, dict[str, Any]] = {"plain evaluation": asdict(evaluation_cost(model, batches).times(1 / steps))}

    def record(title: str, work: Callable[[], object]) -> None:
        rows[title] = asdict(measured(work)[1].times(1 / steps))
        model.zero_grad()
        print(title, rows[title], flush=True)

    def fit() -> None:
        fit_gates(
            model,
            lambda: batches,
            data.task,
            penalty=0.01,
            steps=steps,
            learning_rate=0.1,
            seed=0,
            context=nullcontext,
        )

    record("frozen model, bertsecrets", fit)
    weights = list(model.parameters())
    if importlib.util.find_spec("captum"):
        modules, hooked, penalty = with_captum_gates(model)
        parameters = [parameter for module in modules for parameter in module.parameters()]
        for weight in weights:
            weight.requires_grad_(False)
        record(
            "frozen model, captum's gates hooked by hand",
            lambda: train(model, batches, data.task, parameters, hooked, penalty),
        )
        for weight in weights:
            weight.requires_grad_(True)
    model.train()
    record("plain training", lambda: train(model, batches, data.task, weights))
    gates = HardConcrete(encoder.num_layers, encoder.num_heads)
    record(
        "training with gates, bertsecrets",
        lambda: train(
            model,
            batches,
            data.task,
            [*weights, *gates.parameters()],
            lambda: gated(model, gates),
            gates.expected_open,
        ),
    )
    return rows


# Tables.


def cells(row: dict[str, Any], unit: dict[str, Any]) -> str:
    if "missing" in row:
        return f"{row['missing']} | | |"
    return f"{row['wall']:.2f} ({row['processor']:.2f}) | {row['wall'] / unit['wall']:.2f} | {row['added']:,.0f} |"


HEADING = "s, wall (processor) | plain evaluations | additional memory, MB |"


def tables(results: dict[str, Any]) -> str:
    lines: list[str] = [json.dumps(results["machine"])]
    if "watching" in results:
        rows = results["watching"]
        lines += ["", f"| entropy of every head | {HEADING} largest difference, bits |", "|---|---:|---:|---:|---:|"]
        for name, row in rows.items():
            difference = f"{row['difference']:.0e}" if "difference" in row else ""
            lines.append(f"| {name} | {cells(row, rows['plain evaluation'])} {difference} |")
    if "measures" in results:
        rows = results["measures"]
        lines += ["", f"| measure | examples | {HEADING}", "|---|---|---:|---:|---:|"]
        for name, row in rows.items():
            counted = f" ({row['examples']}, {row['tokens']:,} tokens)" if "examples" in row else ""
            title = name if " " in name else f"`{name}`"
            lines.append(f"| {title} | {row['on']}{counted} | {cells(row, rows['plain evaluation, ' + row['on']])}")
    if "sweeps" in results:
        lines += [
            "",
            "| sweep | examples | s, wall (processor) | plain evaluations per variant | additional memory, MB |",
        ]
        lines.append("|---|---:|---:|---:|---:|")
        own = results["sweeps"]
        unit = own["costs"]["evaluation"]
        for name, row in own["costs"].items():
            share = row["wall"] / unit["wall"] / (1 if name == "evaluation" else own["variants"])
            memory = "" if math.isnan(row.get("added", math.nan)) else f"{row['added']:,.0f}"
            title = f"{name}, screened" if name in PRECISIONS else name
            lines.append(
                f"| {title} | {own['examples']} | {row['wall']:.1f} ({row['processor']:.1f}) | {share:.3f} | {memory} |"
            )
    if "disabling" in results:
        lines += [
            "",
            "| library | s, wall (processor) | plain evaluations | additional memory, MB | largest "
            "difference of logits |",
        ]
        lines.append("|---|---:|---:|---:|---:|")
        for name, row in results["disabling"].items():
            if "missing" in row:
                lines.append(f"| {name} | {row['missing']} | | | |")
                continue
            lines.append(
                f"| {name} | {row['wall']:.2f} ({row['processor']:.2f}) | {row['times']:.2f} | {row['added']:,.0f} | "
                f"{row['difference']:.0e} |"
            )
    if "gates" in results:
        rows = results["gates"]
        lines += ["", f"| training step | {HEADING}", "|---|---:|---:|---:|"]
        lines += [f"| {name} | {cells(row, rows['plain evaluation'])}" for name, row in rows.items()]
    return "\n".join(lines)


PARTS = ("watching", "measures", "sweeps", "gates")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--batches", type=int, default=2, help="batches of each evaluation set")
    parser.add_argument("--sweep-batches", type=int, default=1)
    parser.add_argument("--sweep-precisions", nargs="*", default=(), choices=PRECISIONS, help="of screened sweeps")
    parser.add_argument("--mode", default="zero", help="how the sweeps disable; other libraries set to zero")
    parser.add_argument("--variants", type=int, default=4, help="variants that the naive loop is scaled from")
    parser.add_argument("--steps", type=int, default=3, help="training steps for gates")
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--treebank", type=Path, help="folder that holds UD_English-EWT")
    parser.add_argument("--documents", type=Path, help="folder of documents with coreference")
    parser.add_argument("--frames", type=Path, help="file of FrameNet's sentences as the authors print them")
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    limit_kept_products()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data, model = opened(chosen.run)
    batches = batches_of(data, data.evaluation_dataset(data.evaluation_names[0]), chosen.batches)
    results: dict[str, Any] = {
        "machine": {
            "torch": torch.__version__,
            "processor": processor_name(torch.device("cpu")),
            "threads": torch.get_num_threads(),
            "run": chosen.run.name,
            "model_megabytes": sum(weight.nbytes for weight in model.parameters()) / 2**20,
            "examples": sum(batch.size for batch in batches),
            "tokens": sum(int(batch.lengths_B.sum()) for batch in batches),
        }
    }

    def keep(**found: Any) -> None:
        results.update(found)
        chosen.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")

    if "watching" in chosen.parts:
        keep(watching=watching(model, batches))
    if "measures" in chosen.parts:
        spec = read_settings(plain(read_config(chosen.run))).model
        folders = {name: getattr(chosen, name) for name in ("treebank", "documents", "frames")}
        reference = load_model(spec, data.task, "pretrained", 0).eval()
        keep(measures=measuring(model, data, reference, chosen.batches, folders))
        del reference
    if "sweeps" in chosen.parts:
        swept = spread(list(data.val_dataloader()[0]), chosen.sweep_batches)
        keep(disabling=disabling(model, swept[len(swept) // 2]))
        subject = Subject.of(chosen.run.name, chosen.mode, data, model, swept)
        found = cell(subject, chosen.variants, chosen.sweep_precisions)
        keep(sweeps={"name": f"{chosen.run.name}, {chosen.mode}", **found})
    if "gates" in chosen.parts:
        keep(gates=gating(model, data, chosen.steps))
    print(tables(results))


if __name__ == "__main__":
    main()
