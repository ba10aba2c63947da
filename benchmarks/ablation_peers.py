"""Cost of one disabled head with general intervention libraries, compared with one of our variants.

    pip install nnsight pyvene captum transformer_lens && pip install -e '.[demo]'
    python -m benchmarks.ablation_peers --glue <folder that holds MRPC>

BERT-base size, random weights, the largest of the length-bucketed batches of 128 examples of the real MRPC development
set, mode ``zero``. The libraries run the whole model for each variant, so their time does not depend on the head; the
heads of one layer are timed. Ours is the mean over all 144 heads.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.watch import MINILM, evaluation, model
from bertsecrets.ablation.engine import Engine
from bertsecrets.ablation.plan import Plan, every_head
from bertsecrets.models.encoder import describe
from bertsecrets.models.loading import load_tokenizer

LAYER = 5
Inputs = Mapping[str, Tensor]
LayerSweep = Callable[[], list[Tensor]]
"""Logits ``[B, C]`` with each head of one layer disabled in turn, one forward pass of the whole model for each."""


def path_of(network: nn.Module, module: nn.Module) -> str:
    """The dotted name of a module of the network."""
    found: str = next(name for name, other in network.named_modules() if other is module)
    return found


def projection_of(network: nn.Module, layer: int) -> tuple[nn.Module, int, int]:
    """The output projection of a layer, whose input holds one slice for each head; the number of heads and their
    width.
    """
    encoder = describe(network)
    projection = encoder.sites[layer].projection
    assert projection is not None
    return projection, encoder.num_heads, projection.in_features // encoder.num_heads


def with_nnsight(network: nn.Module, inputs: Inputs, layer: int) -> LayerSweep:
    from nnsight import NNsight

    projection, heads, width = projection_of(network, layer)
    traced = NNsight(network)
    inside = inner(traced, path_of(network, projection))

    def run(head: int) -> Tensor:
        with traced.trace(**inputs):
            inside.input[:, :, head * width : (head + 1) * width] = 0
            logits: Tensor = traced.output.logits.save()
        return logits

    return lambda: [run(head) for head in range(heads)]


def inner(traced: Any, path: str) -> Any:
    """The part of a model traced by nnsight with a dotted name."""

    def step(part: Any, name: str) -> Any:
        if name.isdigit():
            return part[int(name)]
        # nnsight's own attribute of this name is the module's output.
        return getattr(part, "E_output" if name == "output" else name)

    return reduce(step, path.split("."), traced)


def pyvene_path(path: str) -> str:
    """A dotted name as pyvene writes it: ``layer.5`` is ``layer[5]``."""
    first, *others = path.split(".")
    return first + "".join(f"[{name}]" if name.isdigit() else f".{name}" for name in others)


def with_pyvene(network: nn.Module, inputs: Inputs, layer: int) -> LayerSweep:
    import pyvene

    projection, heads, width = projection_of(network, layer)

    def zero(base: Tensor, source: Any, subspaces: Any = None) -> Tensor:
        base[..., head_now[0] * width : (head_now[0] + 1) * width] = 0
        return base

    head_now = [0]
    component = f"{pyvene_path(path_of(network, projection))}.input"
    intervenable = pyvene.IntervenableModel([{"component": component, "intervention": zero}], network)

    def run(head: int) -> Tensor:
        head_now[0] = head
        logits: Tensor = intervenable(dict(inputs))[1].logits
        return logits

    return lambda: [run(head) for head in range(heads)]


def with_captum(network: nn.Module, inputs: Inputs, layer: int) -> LayerSweep:
    from captum.attr import LayerFeatureAblation

    projection, heads, width = projection_of(network, layer)
    names = list(inputs)
    found: list[Tensor] = []

    def forward(*tensors: Tensor) -> Tensor:
        found.append(network(**dict(zip(names, tensors, strict=True))).logits)
        return found[-1]

    head_D = torch.arange(heads * width)[None, None] // width
    ablation = LayerFeatureAblation(forward, projection)
    first, *others = inputs.values()

    def run() -> list[Tensor]:
        found.clear()
        ablation.attribute(
            first,
            layer_baselines=0,
            target=0,
            additional_forward_args=tuple(others),
            layer_mask=head_D,
            attribute_to_layer_input=True,
        )
        # Before the heads come passes of the whole model.
        return found[-heads:]

    return run


def with_transformer_lens(network: Any, inputs: Inputs, layer: int) -> LayerSweep:
    from transformer_lens.model_bridge import TransformerBridge

    with tempfile.TemporaryDirectory() as folder:
        network.save_pretrained(folder)
        load_tokenizer(MINILM).save_pretrained(folder)
        bridge = TransformerBridge.boot_transformers(folder, device="cpu")

    def run(head: int) -> Tensor:
        def zero(z: Tensor, hook: Any) -> Tensor:
            z[:, :, head] = 0
            return z

        logits: Tensor = bridge.run_with_hooks(
            inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            token_type_ids=inputs["token_type_ids"],
            fwd_hooks=[(f"blocks.{layer}.attn.hook_z", zero)],
        )
        return logits

    return lambda: [run(head) for head in range(describe(network).num_heads)]


LIBRARIES: dict[str, Callable[[Any, Inputs, int], LayerSweep]] = {
    "nnsight": with_nnsight,
    "pyvene": with_pyvene,
    "captum": with_captum,
    "transformer_lens": with_transformer_lens,
}


def ours(network: Any, inputs: dict[str, Tensor]) -> tuple[float, Tensor]:
    """Seconds for a variant, and the logits ``[B, V, C]`` of the heads of one layer."""
    encoder = describe(network)
    layers, heads = encoder.num_layers, encoder.num_heads
    engine = Engine(network, Plan("zero", layers, heads, tuple(every_head(layers, heads))))
    engine.run({name: tensor[:2] for name, tensor in inputs.items()})
    start = time.perf_counter()
    _, logits_BVC = engine.run(inputs)
    seconds = (time.perf_counter() - start) / (layers * heads)
    return seconds, logits_BVC[:, LAYER * heads : (LAYER + 1) * heads]


def timed(layer_sweep: LayerSweep) -> tuple[float, Tensor]:
    layer_sweep()
    start = time.perf_counter()
    logits = layer_sweep()
    return (time.perf_counter() - start) / len(logits), torch.stack(logits, 1)


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
        for name, library in LIBRARIES.items():
            try:
                taken, logits = timed(library(network, batch, LAYER))
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
