"""Hard-concrete gates against their closed form, captum's gates and a naive sampler."""

import math
import random

import numpy as np
import pytest
import torch
from families import HEADS, LAYERS, tiny_batch, tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from bertsecrets.attention.gates import gated
from bertsecrets.attention.override import HeadEdit, override
from bertsecrets.errors import UserError
from bertsecrets.pruning.gates import HIGH, LOW, TEMPERATURE, HardConcrete

DRAWS = 100_000


def gates(log_alpha: float, temperature: float = TEMPERATURE) -> HardConcrete:
    gate = HardConcrete(1, 1, temperature)
    torch.nn.init.constant_(gate.log_alpha_LH, log_alpha)
    return gate


def naive(log_alpha: float, count: int, temperature: float = TEMPERATURE) -> list[float]:
    chance = random.Random(3)
    values = []
    for _ in range(count):
        u = chance.random()
        s = 1 / (1 + math.exp(-(math.log(u / (1 - u)) + log_alpha) / temperature))
        values.append(min(1.0, max(0.0, s * 1.2 - 0.1)))
    return values


def test_published_constants() -> None:
    assert (TEMPERATURE, LOW, HIGH) == (0.33, -0.1, 1.1)
    gate = gates(0.0)
    assert 1 - gate.open_probability().item() == pytest.approx(0.312, abs=5e-4)
    assert gate.full_probability().item() == pytest.approx(0.312, abs=5e-4)


@pytest.mark.parametrize("log_alpha", [-1.5, 0.0, 0.7, 3.0])
def test_draws_have_the_closed_form(log_alpha: float) -> None:
    gate = gates(log_alpha)
    drawn_N = gate(DRAWS, torch.Generator().manual_seed(0)).detach().flatten().numpy()
    # Five standard errors of a share.
    near = 5 * math.sqrt(0.25 / DRAWS)
    assert (drawn_N > 0).mean() == pytest.approx(gate.open_probability().item(), abs=near)
    assert (drawn_N == 1).mean() == pytest.approx(gate.full_probability().item(), abs=near)
    assert stats.ks_2samp(drawn_N, naive(log_alpha, DRAWS)).pvalue > 1e-3


def test_draws_have_the_distribution_of_captum() -> None:
    stochastic = pytest.importorskip("captum.module")
    log_alpha = 0.4
    torch.manual_seed(1)
    theirs = stochastic.BinaryConcreteStochasticGates(
        n_gates=DRAWS, temperature=TEMPERATURE, lower_bound=LOW, upper_bound=HIGH, eps=1e-6
    )
    torch.nn.init.constant_(theirs.log_alpha_param, log_alpha)
    other_N = theirs._sample_gate_values(1).detach().flatten().clamp(0, 1).numpy()
    gate = gates(log_alpha)
    drawn_N = gate(DRAWS, torch.Generator().manual_seed(0)).detach().flatten().numpy()
    assert stats.ks_2samp(drawn_N, other_N).pvalue > 1e-3
    assert gate.open_probability().item() == pytest.approx(theirs._get_gate_active_probs()[0].item(), abs=1e-6)


def test_a_wrong_temperature_would_be_noticed() -> None:
    drawn_N = gates(0.4)(DRAWS, torch.Generator().manual_seed(0)).detach().flatten().numpy()
    assert stats.ks_2samp(drawn_N, naive(0.4, DRAWS, temperature=0.36)).pvalue < 1e-3


@settings(max_examples=30, deadline=None)
@given(st.floats(-4, 4), st.floats(0.1, 2))
def test_expected_number_of_open_gates(log_alpha: float, temperature: float) -> None:
    gate = HardConcrete(3, 4, temperature)
    torch.nn.init.constant_(gate.log_alpha_LH, log_alpha)
    # P(g > 0) = P(s > -low / (high - low)), and s > t where the logistic noise exceeds temperature logit(t) - log
    # alpha.
    threshold = temperature * math.log((0.1 / 1.2) / (1 - 0.1 / 1.2)) - log_alpha
    assert gate.expected_open().item() == pytest.approx(12 * stats.logistic.sf(threshold), rel=1e-4)
    is_kept = stats.logistic.sf(-threshold - 2 * log_alpha) > stats.logistic.cdf(threshold)
    if abs(log_alpha) > 1e-3:
        assert bool(gate.kept().all()) == bool(is_kept)


def test_evaluation_is_deterministic_and_starts_open() -> None:
    gate = HardConcrete(LAYERS, HEADS, initial=0.95).eval()
    assert torch.equal(gate(), gate())
    assert gate.open_probability().detach().numpy() == pytest.approx(0.95, abs=1e-5)
    values = np.array([gates(x).eval()().item() for x in (-8.0, 0.0, 8.0)])
    assert values == pytest.approx([0, 0.5, 1])


@pytest.mark.parametrize("family", ["bert", "distilbert", "albert", "albert-groups", "mpnet", "deberta", "modernbert"])
def test_gates_of_zero_and_one_are_override_zero(family: str) -> None:
    model, batch = tiny_model(family), tiny_batch()
    layers = model.config.num_hidden_layers
    gate_LH = (torch.rand(layers, HEADS, generator=torch.Generator().manual_seed(2)) > 0.5).float()
    edits = [HeadEdit(layer, head, "zero") for layer, head in (gate_LH == 0).nonzero().tolist()]
    with torch.no_grad():
        with override(model, edits):
            expected_BC = model(**batch).logits
        with gated(model, lambda: gate_LH):
            torch.testing.assert_close(model(**batch).logits, expected_BC, atol=1e-6, rtol=0)
        plain_BC = model(**batch).logits
        with gated(model, lambda: torch.ones_like(gate_LH)):
            torch.testing.assert_close(model(**batch).logits, plain_BC, atol=0, rtol=0)


def test_gradients_of_gates_are_finite_differences() -> None:
    model, batch = tiny_model("bert").double(), tiny_batch()
    gate_LH = torch.full((LAYERS, HEADS), 0.7, dtype=torch.float64, requires_grad=True)

    def loss(gate: torch.Tensor) -> torch.Tensor:
        with gated(model, lambda: gate):
            return model(**batch).logits.square().sum()

    loss(gate_LH).backward()
    for layer, head in ((0, 1), (1, 3), (2, 0)):
        step_LH = torch.zeros(LAYERS, HEADS, dtype=torch.float64)
        step_LH[layer, head] = 1e-5
        with torch.no_grad():
            slope = (loss(gate_LH + step_LH) - loss(gate_LH - step_LH)) / 2e-5
        assert gate_LH.grad[layer, head].item() == pytest.approx(slope.item(), rel=1e-5)


def test_each_example_can_have_gates_of_its_own() -> None:
    model, batch = tiny_model("bert"), tiny_batch()
    gate_LHB = torch.rand(LAYERS, HEADS, 3, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        with gated(model, lambda: gate_LHB):
            together_BC = model(**batch).logits
        for row in range(3):
            with gated(model, lambda row=row: gate_LHB[:, :, row]):
                torch.testing.assert_close(model(**batch).logits[row], together_BC[row], atol=1e-5, rtol=0)


def test_mistakes_are_errors() -> None:
    model = tiny_model("bert")
    with (
        gated(model, lambda: torch.ones(2, 4)),
        pytest.raises(UserError, match=r"shape \[2, 4\]; this model needs \[3, 4\]"),
    ):
        model(**tiny_batch())
    gate = HardConcrete(3, 4)
    with pytest.raises(UserError, match=r"'old.safetensors' have 2 layers of 6 heads, but the model has 3 layers of 4"):
        gate.load(torch.zeros(2, 6), "old.safetensors")
    with pytest.raises(UserError, match=r"temperature 0, stretch -0.1 to 1.1"):
        HardConcrete(3, 4, temperature=0)
