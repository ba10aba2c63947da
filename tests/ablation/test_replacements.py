"""Donors of mode resample and outputs of mode optimal: what they are, what they do not depend on, and mistakes."""

import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from data.toy import wordpiece
from families import HEADS, LAYERS
from scipy.optimize import minimize
from torch.nn import functional
from trainings import model_of_tokens
from transformers import PreTrainedModel

from bertsecrets.ablation.exact import exact_sweep
from bertsecrets.ablation.plan import Plan, every_head
from bertsecrets.ablation.replacements import NEAREST, Donors, Replacements, optimal_head_outputs, prepare
from bertsecrets.ablation.settings import AblationSettings
from bertsecrets.analysis import Context, Reference, SplitBatches
from bertsecrets.attention.override import HeadEdit, donor_positions, mean_head_outputs, override, peak_head_outputs
from bertsecrets.data.batch import Batch
from bertsecrets.data.example import Example
from bertsecrets.data.task import Task
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.errors import UserError
from bertsecrets.results.store import Store

TASK = Task(name="toy", metrics=("accuracy",), texts=1, labels=("a", "b", "c"))
WORDS = ("cat", "dog", "man", "fish", "the", "a")


def split_of(lengths: list[int], start: int = 0) -> EncodedSplit:
    """Texts of these numbers of words, all different."""
    texts = [
        " ".join(WORDS[(start + row + index * (row + 2)) % 6] for index in range(n)) for row, n in enumerate(lengths)
    ]
    return EncodedSplit([Example(10 * row, (text,), row % 3) for row, text in enumerate(texts)], wordpiece(), 64)


def whole(split: EncodedSplit) -> Reference:
    return Reference(split, tuple(range(len(split))))


def heads_plan(mode: str) -> Plan:
    return Plan(mode, LAYERS, HEADS, tuple(every_head(LAYERS, HEADS)))


def test_places_by_hand() -> None:
    real = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]]).bool()
    donor = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 1], [0, 1, 1, 1], [1, 1, 0, 0]]).bool()
    places = donor_positions(real, donor)
    assert places[0].tolist() == [0, 1, 2, 1, 2, 3]
    assert places[1, :3].tolist() == [0, 1, 3]
    assert places[2, 2:].tolist() == [1, 2, 2, 3]
    assert places[3, :4].tolist() == [0, 1, 1, 1]


def test_donors_are_other_examples_of_similar_length_and_depend_on_the_example_alone() -> None:
    split = split_of([3, 9, 4, 4, 12, 7, 3, 5])
    donors = Donors(whole(split), split, 3, seed=7)
    for row in range(len(split)):
        chosen = donors.positions(10 * row)
        assert len(set(chosen)) == 3
        assert all(split.rows[position].ids != split.rows[row].ids for position in chosen)
        apart, reversed_ = donors.of(split[[row]]), donors.of(split[[7 - row, row]])
        for draw in range(3):
            assert apart[draw].index_B.tolist() == [reversed_[draw].index_B[1].item()] == [10 * chosen[draw]]
    assert Donors(whole(split), split, 3, seed=8).positions(0) != donors.positions(0) or (
        Donors(whole(split), split, 3, seed=9).positions(0) != donors.positions(0)
    )
    many = split_of([*range(2, 50), *range(2, 50)], start=1)
    nearest = Donors(whole(many), many, NEAREST, seed=0).positions(200)
    distance = [abs(many.lengths[position] - many.lengths[20]) for position in nearest]
    others = [p for p in range(len(many)) if p not in nearest and many.rows[p].ids != many.rows[20].ids]
    assert max(distance) <= min(abs(many.lengths[position] - many.lengths[20]) for position in others)


def test_a_sweep_with_donors_does_not_depend_on_its_batches() -> None:
    model, split = model_of_tokens().double(), split_of([3, 9, 4, 4, 12, 7])
    replacements = Replacements(donors=Donors(whole(split), split, 2, seed=0))
    sweeps = [
        exact_sweep(model, heads_plan("resample"), [split[rows] for rows in batches], replacements=replacements)
        for batches in ([[0, 1, 2], [3, 4, 5]], [[5], [4, 2], [0, 1, 3]])
    ]
    torch.testing.assert_close(sweeps[0].logits_NVC, sweeps[1].logits_NVC, atol=1e-6, rtol=0)
    assert (sweeps[0].logits_NVC - sweeps[0].clean_NC[:, None]).abs().max() > 0.01


@pytest.mark.parametrize(("mode", "outputs"), [("mean", mean_head_outputs), ("peak", peak_head_outputs)])
def test_constants_are_those_of_the_reference_examples(mode: str, outputs: Callable[..., torch.Tensor]) -> None:
    model, judged, others = model_of_tokens(), split_of([3, 9, 4]), split_of([4, 12, 7], start=2)
    subject = Context.of_split(model, TASK, judged, 2, progress=False, reference=others)
    constants_LHd = prepare(subject, heads_plan(mode), AblationSettings.read("ablation", {"mode": mode})).constants_LHd
    with torch.no_grad():
        expected_LHd = outputs(model.eval(), [others[[row]].inputs() for row in range(3)])
    torch.testing.assert_close(constants_LHd, expected_LHd, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("mode", "passes"), [("mean", 1), ("peak", 2)])
def test_one_batch_of_reference_examples_is_in_memory_at_a_time(
    mode: str, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []

    def batches(loader: SplitBatches) -> Iterator[Batch]:
        for spec in loader.sampler:
            alive.append(sum(tensor() is not None for tensor in read))
            batch = loader.split[spec]
            read.append(weakref.ref(batch.input_ids_BS))
            yield batch
            del batch

    monkeypatch.setattr(SplitBatches, "__iter__", batches)
    model, judged, others = model_of_tokens(), split_of([3, 9]), split_of([4, 12, 7, 5, 6, 8], start=2)
    subject = Context.of_split(model, TASK, judged, 1, progress=False, reference=others)
    prepare(subject, heads_plan(mode), AblationSettings.read("ablation", {"mode": mode}))
    assert len(read) == passes * 6
    # That of the step before, while the next is read.
    assert max(alive) <= 1


def loss_of(model: PreTrainedModel, batch: Batch, layer: int, head: int, constants_LHd: torch.Tensor) -> torch.Tensor:
    with override(model, [HeadEdit(layer, head, "optimal")], constants_LHd):
        return functional.cross_entropy(model(**batch.inputs()).logits, batch.label_B)


def test_optimal_outputs_have_the_loss_that_scipy_finds() -> None:
    """L-BFGS from the same start, with gradients through `override`, for two heads; every head beats its mean
    output.
    """
    model, split = model_of_tokens().double(), split_of([3, 9, 4, 4, 12, 7])
    batch = split[[0, 1, 2, 3, 4, 5]]
    weights = [parameter.clone() for parameter in model.parameters()]
    mean_LHd = mean_head_outputs(model, [batch.inputs()])
    chosen = [(1, 2), (2, 0), (0, 1)]
    fitted_LHd = optimal_head_outputs(model, [batch], chosen, steps=60, rate=1.0)
    assert all(torch.equal(before, after) for before, after in zip(weights, model.parameters(), strict=True))
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    for layer, head in chosen:
        with torch.no_grad():
            fitted, mean = (loss_of(model, batch, layer, head, c).item() for c in (fitted_LHd, mean_LHd))
        assert fitted < mean
        if layer == 0:
            continue

        def objective(vector: Any, layer: int = layer, head: int = head) -> tuple[float, Any]:
            constants_LHd = mean_LHd.clone()
            leaf_d = torch.from_numpy(vector).requires_grad_()
            constants_LHd[layer, head] = leaf_d
            loss = loss_of(model, batch, layer, head, constants_LHd)
            (gradient_d,) = torch.autograd.grad(loss, leaf_d)
            return loss.item(), gradient_d.numpy()

        best = minimize(objective, mean_LHd[layer, head].numpy(), jac=True, method="L-BFGS-B").fun
        assert fitted - best < 0.25 * (mean - best)
    left = [(layer, head) for layer in range(LAYERS) for head in range(HEADS) if (layer, head) not in chosen]
    for layer, head in left:
        torch.testing.assert_close(fitted_LHd[layer, head], mean_LHd[layer, head], atol=1e-6, rtol=0)


def test_optimal_outputs_work_in_inference_mode_and_are_kept_on_disk(tmp_path: Path) -> None:
    model, judged, others = model_of_tokens().train(), split_of([3, 9, 4]), split_of([5, 5, 8], start=2)
    mixed = EncodedSplit([*judged.examples, *others.examples], wordpiece(), 64)
    settings = AblationSettings.read("ablation", {"mode": "optimal", "optimal_steps": 2})

    def prepared(key: str = "a", reference: EncodedSplit = others) -> torch.Tensor:
        with torch.inference_mode():
            replacements = prepare(
                Context.of_split(model, TASK, judged, 32, progress=False, reference=reference),
                heads_plan("optimal"),
                settings,
                Store(tmp_path, key),
            )
            outcomes = exact_sweep(model, heads_plan("optimal"), [judged[[0, 1, 2]]], replacements=replacements)
        assert model.training
        assert torch.isfinite(outcomes.logits_NVC).all()
        return replacements.constants_LHd

    first_LHd = prepared()
    # Judged examples do not take part in the fit, and a fit of the same settings is not repeated.
    assert torch.equal(prepared("b", mixed), first_LHd)
    assert torch.equal(prepared("b", judged), first_LHd)
    with pytest.raises(UserError, match="All 3 reference examples are also in the evaluation set"):
        prepared("c", judged)


def test_mistakes_are_one_sentence() -> None:
    split = split_of([3, 9, 4])
    with pytest.raises(
        UserError, match=r"ablation.draws is 3, but only 2 of the 3 reference examples differ from example 0"
    ):
        Donors(whole(split), split, 3, seed=0).of(split[[0]])
    alone = split_of([3])
    with pytest.raises(UserError, match=r"ablation.draws is 1, but only 0 of the 1 reference examples differ"):
        Donors(whole(alone), alone, 1, seed=0).of(alone[[0]])
    for key in ("draws", "optimal_steps"):
        with pytest.raises(UserError, match=f"ablation.{key} is 0; expected a whole number from 1"):
            AblationSettings.read("ablation", {key: 0})
    unlabelled = EncodedSplit([Example(0, ("the cat",), None)], wordpiece(), 64)
    with pytest.raises(UserError, match="Mode 'optimal' fits outputs to labels; give labelled reference examples"):
        optimal_head_outputs(model_of_tokens(), [unlabelled[[0]]], [(0, 0)], steps=1)
    with pytest.raises(UserError, match="The reference set is empty"):
        optimal_head_outputs(model_of_tokens(), [], [(0, 0)], steps=1)
