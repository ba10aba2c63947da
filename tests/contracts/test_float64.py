"""Work on a device without float64, such as an Apple GPU, gives the numbers of the CPU."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest
import torch
from apple import APPLE, AppleGpu
from families import HEADS, LAYERS, batch_of, tiny_batch, tiny_model
from torch import Tensor, nn

from bertsecrets.ablation.direct import DirectEffects, take_effects
from bertsecrets.ablation.exact import exact_sweep
from bertsecrets.ablation.plan import Plan, every_head
from bertsecrets.ablation.replacements import optimal_head_outputs
from bertsecrets.ablation.screening import Screening, screened_sweep
from bertsecrets.ablation.similar_heads import head_distances
from bertsecrets.attention.override import mean_and_spread, peak_head_outputs
from bertsecrets.callbacks.gradient_flow import norms
from bertsecrets.data.batch import Batch
from bertsecrets.data.task import Task
from bertsecrets.float64 import float64_device, to_float64
from bertsecrets.importance.relevance import take_relevance
from bertsecrets.measures.base import INITIAL
from bertsecrets.measures.clusters.measure import Clusters
from bertsecrets.measures.drift import Drift
from bertsecrets.measures.entropy import Entropy
from bertsecrets.measures.one_pass import measure_pass
from bertsecrets.models.encoder import describe
from bertsecrets.models.metrics import answers
from bertsecrets.pruning.removal import Kept
from bertsecrets.shrinking.plan import fisher_information
from bertsecrets.shrinking.refit import refitted

TASK = Task(name="toy", metrics=("accuracy",), texts=1, labels=("a", "b", "c"))
PLAN = Plan("zero", LAYERS, HEADS, tuple(every_head(LAYERS, HEADS)))


def batches() -> list[Batch]:
    return [batch_of(tiny_batch((11, 7, 4, 9)), [0, 1, 2, 1])]


def inputs(device: torch.device) -> Iterator[dict[str, Tensor]]:
    return (batch.to(device).inputs() for batch in batches())


def outcomes(screened: bool, model: nn.Module) -> list[Tensor]:
    if screened:
        found, _ = screened_sweep(model, PLAN, batches(), Screening(audit=0.5, pilot=2))
    else:
        found = exact_sweep(model, PLAN, batches())
    return [found.clean_NC, found.logits_NVC]


def direct_effects(model: nn.Module) -> list[Tensor]:
    measure = DirectEffects(LAYERS, HEADS, "zero").to(float64_device(next(model.parameters()).device))
    take_effects(model, batches(), measure, context=nullcontext)
    return [measure.compute().value_LHC]


def measures(model: nn.Module) -> list[Tensor]:
    taken = [Entropy(LAYERS, HEADS), Drift(LAYERS, HEADS), Clusters(LAYERS, HEADS, groups=2, replicates=2)]
    # A model before fine-tuning runs in a thread of its own, which enters the context.
    context = AppleGpu if model.device == APPLE else nullcontext
    reference = tiny_model("bert", seed=1).to(next(model.parameters()).device)
    return [grid.value_LHC for grid in measure_pass(model, taken, batches(), {INITIAL: reference}, context=context)]


def smaller(model: nn.Module) -> list[Tensor]:
    scores = fisher_information(model, batches(), context=nullcontext)
    kept = Kept(HEADS, tuple((0, 1) for _ in range(LAYERS)), tuple(tuple(range(9)) for _ in range(LAYERS)))
    fitted = refitted(model, kept, batches(), context=nullcontext)
    answered = answers(fitted, batches(), TASK, nullcontext, next(model.parameters()).device)
    return [
        scores.head_LH,
        scores.neuron_LF,
        *(weight.detach() for weight in fitted.parameters()),
        *(torch.as_tensor(part) for part in (answered.label_N, answered.prediction_N)),
    ]


WORK: dict[str, Callable[[nn.Module], list[Tensor]]] = {
    "mean and spread": lambda model: [*mean_and_spread(model, [*inputs(model.device)])],
    "peak": lambda model: [peak_head_outputs(model, [*inputs(model.device)])],
    "optimal": lambda model: [optimal_head_outputs(model, batches(), [(0, 1)], steps=2, seed=0, context=nullcontext)],
    "exact sweep": lambda model: outcomes(False, model),
    "screened sweep": lambda model: outcomes(True, model),
    "direct effects": direct_effects,
    "distances of heads": lambda model: [head_distances(model, batches())],
    "measures": measures,
    "relevance": lambda model: [take_relevance(model, batches()).value_LHC],
    "norms": lambda model: [*norms(describe(model), lambda parameter: parameter)],
    "smaller model": smaller,
}


@pytest.fixture(autouse=True)
def moved_parameters() -> Iterator[None]:
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    yield
    torch.__future__.set_overwrite_module_params_on_conversion(False)


@pytest.mark.parametrize("name", WORK)
def test_a_device_without_float64_gives_the_numbers_of_the_cpu(name: str) -> None:
    expected = WORK[name](tiny_model("bert"))
    with AppleGpu():
        found = [tensor.cpu() for tensor in WORK[name](tiny_model("bert").to(APPLE))]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)


def test_the_stand_in_refuses_float64() -> None:
    with AppleGpu():
        half = torch.tensor([0.5]).to(APPLE)
        for refused in (half.double, lambda: torch.zeros(1, dtype=torch.float64, device=APPLE)):
            with pytest.raises(TypeError, match="float64"):
                refused()
        assert to_float64(half).dtype == torch.float64
