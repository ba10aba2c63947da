"""Single pairs against the whole sweep, which is tested against one forward pass for each variant."""

from collections.abc import Callable

import pytest
import torch
from families import FAMILIES, HEADS, tiny_batch, tiny_model

from bertsecrets.ablation.engine import Engine
from bertsecrets.ablation.pairs import Pairs, can_run_pairs
from bertsecrets.ablation.plan import Plan, every, every_head, every_layer, groups
from bertsecrets.results.components import ALL_BUT_ONE


def plan_of(mode: str, layers: int) -> Plan:
    variants = [*every_head(layers, HEADS), *every_layer(layers, HEADS), *every(ALL_BUT_ONE, layers, HEADS)]
    return Plan(mode, layers, HEADS, tuple(variants))


def engine_of(name: str, mode: str, max_tokens: int | None = None) -> Engine:
    model = tiny_model(name)
    layers = model.config.num_hidden_layers
    constants_LHd = torch.randn(layers, HEADS, model.config.hidden_size // HEADS)
    constants = constants_LHd if mode in ("mean", "optimal") else None
    return Engine(model, plan_of(mode, layers), constants_LHd=constants, max_tokens=max_tokens)


def logits_of(
    engine: Engine,
    inputs: dict[str, torch.Tensor],
    wanted_BV: torch.Tensor,
    progress: Callable[[int], object] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    pairs = Pairs(engine)
    clean_BC, layers = pairs.begin(inputs)
    return clean_BC, pairs.run_above(clean_BC, layers, inputs["attention_mask"].bool(), wanted_BV, progress)


@pytest.mark.parametrize("mode", ["uniform", "zero", "mean", "optimal"])
@pytest.mark.parametrize("name", FAMILIES)
def test_pairs_are_those_of_the_sweep(name: str, mode: str) -> None:
    engine = engine_of(name, mode, max_tokens=30)
    batch = tiny_batch((5, 9, 3))
    if not can_run_pairs(engine.encoder, engine.plan):
        assert not engine.shares
        return
    clean_BC, logits_BVC = engine.run(batch)
    wanted_BV = torch.rand(3, len(engine.plan.variants), generator=torch.Generator().manual_seed(0)) < 0.4
    wanted_BV[0] = True
    finished: list[int] = []
    training = engine.encoder.model.training
    found_BC, found_PC = logits_of(engine, batch, wanted_BV, finished.append)
    torch.testing.assert_close(found_BC, clean_BC)
    torch.testing.assert_close(found_PC, logits_BVC[wanted_BV], atol=2e-6, rtol=1e-5)
    assert sum(finished) == int(wanted_BV.sum())
    assert engine.encoder.model.training == training


def test_no_pair_is_no_work() -> None:
    engine = engine_of("bert", "zero")
    _, logits_PC = logits_of(engine, tiny_batch((5, 4)), torch.zeros(2, len(engine.plan.variants), dtype=torch.bool))
    assert logits_PC.shape == (0, engine.encoder.model.config.num_labels)


def test_groups_over_layers_and_donors_are_refused() -> None:
    model = tiny_model("bert")
    layers = model.config.num_hidden_layers
    both = groups([[[0, 1], [1, 0]]])
    for plan in (
        Plan("zero", layers, HEADS, tuple(both)),
        Plan("resample", layers, HEADS, tuple(every_head(layers, HEADS))),
    ):
        engine = Engine(model, plan)
        assert not can_run_pairs(engine.encoder, engine.plan)
        with pytest.raises(ValueError, match="variants of one layer"):
            Pairs(engine)


def test_memory_that_runs_out_halves_the_part(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of("bert", "uniform")
    batch, wanted_BV = tiny_batch((5, 9)), torch.ones(2, len(engine.plan.variants), dtype=torch.bool)
    _, expected_PC = logits_of(engine, batch, wanted_BV)
    through, sizes = Pairs._through, []

    def limited(self: Pairs, *args: object) -> torch.Tensor:
        rows = args[-1]
        sizes.append(len(rows))
        if len(rows) > 2:
            raise RuntimeError("can't allocate memory")
        return through(self, *args)

    monkeypatch.setattr(Pairs, "_through", limited)
    _, found_PC = logits_of(engine, batch, wanted_BV)
    torch.testing.assert_close(found_PC, expected_PC)
    assert max(sizes) > 2
