"""Watching and overriding on every family, against the library's own eager attention and a by-hand forward pass."""

import gc
import weakref

import pytest
import torch
from families import FAMILIES, HEADS, MORE_FAMILIES, heads_outputs, tiny_batch, tiny_model
from torch import Tensor

from bertsecrets.attention.override import HeadEdit, mean_head_outputs, override
from bertsecrets.attention.self_check import check_attention
from bertsecrets.attention.watch import output_weights, watch
from bertsecrets.errors import UserError
from bertsecrets.models.encoder import describe


def watched(model: torch.nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, list[Tensor]]:
    maps: list[Tensor] = []
    with torch.no_grad(), watch(model, lambda layer, attention: maps.insert(layer, attention)):
        logits = model(**batch).logits
    return logits, maps


@pytest.mark.parametrize("family", [*FAMILIES, *MORE_FAMILIES])
def test_maps_equal_the_librarys_eager_maps(family: str) -> None:
    model, eager = tiny_model(family), tiny_model(family, attention="eager")
    batch = tiny_batch(pad_id=model.config.pad_token_id)
    logits, maps = watched(model, batch)
    with torch.no_grad():
        plain = model(**batch).logits
        expected = eager(**batch, output_attentions=True)
    assert torch.equal(logits, plain)
    assert len(maps) == len(expected.attentions) == describe(model).num_layers
    real = batch["attention_mask"].bool()
    for ours, theirs in zip(maps, expected.attentions, strict=True):
        difference = (ours - theirs).abs() * real[:, None, :, None]
        assert difference.max() < 1e-5
        rows = (ours * real[:, None, None, :]).sum(-1)
        assert (rows - 1).abs().masked_fill(~real[:, None, :], 0).max() < 1e-5
        assert (ours * (real[:, None, :, None] & ~real[:, None, None, :])).max() == 0


@pytest.mark.parametrize("family", [*FAMILIES, *MORE_FAMILIES])
@pytest.mark.parametrize("extra", [7, 64])
def test_padding_changes_neither_logits_nor_maps(family: str, extra: int) -> None:
    model = tiny_model(family)
    pad = model.config.pad_token_id
    bare, padded = tiny_batch(pad_id=pad), tiny_batch(pad=extra, pad_id=pad)
    logits, maps = watched(model, bare)
    padded_logits, padded_maps = watched(model, padded)
    assert (logits - padded_logits).abs().max() < 1e-4
    real = bare["attention_mask"].bool()
    length = real.shape[1]
    for short, long in zip(maps, padded_maps, strict=True):
        difference = (short - long[:, :, :length, :length]).abs() * real[:, None, :, None]
        assert difference.max() < 1e-5


def resampled(donor: Tensor, length: int, receiving: int) -> Tensor:
    """Token by token: first from first, last from last, those between from those between, again from the start at the
    end.
    """
    first, *between, last = donor[:length]
    rows = [first, *((between or [last])[i % max(len(between), 1)] for i in range(receiving - 2)), last]
    return torch.stack(rows[:receiving])


AWAY = [50, 51]
"""Tokens of which modes turn attention away."""


def sunk_batch(pad_id: int) -> dict[str, Tensor]:
    """Rows in which tokens of ``AWAY`` take part, and one row of nothing else."""
    batch = tiny_batch((9, 6, 3), pad_id=pad_id)
    batch["input_ids"][0, [0, 4]] = torch.tensor([50, 51])
    batch["input_ids"][1, 2] = 51
    batch["input_ids"][2, :3] = torch.tensor([50, 51, 50])
    return batch


def expected_output(
    family: str,
    model: torch.nn.Module,
    batch: dict[str, Tensor],
    edit: HeadEdit,
    means: Tensor,
    donors: dict[str, Tensor],
) -> Tensor:
    """The logits when one head's slice of the projection's input is replaced by hand, with hooks of this test."""
    encoder = describe(model)
    donated, donor_lengths = heads_outputs(model, donors), donors["attention_mask"].sum(1).tolist()
    with torch.no_grad():
        eager = tiny_model(family, attention="eager")(**batch, output_attentions=True)
    site = encoder.sites[edit.layer]
    calls = 0
    wanted = [i for i, other in enumerate(encoder.sites) if other.module is site.module].index(edit.layer)
    seen: dict[str, Tensor] = {}

    def keep(module: torch.nn.Module, args: object, output: Tensor) -> None:
        seen["values"] = encoder.family.values(site, output, encoder.num_heads)

    def replace(module: torch.nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        nonlocal calls
        calls += 1
        if calls - 1 != wanted:
            return None
        heads = args[0].clone().unflatten(-1, (HEADS, -1))
        for row, count in enumerate(batch["attention_mask"].sum(1).tolist()):
            # Real tokens alone; those of padding stay.
            old, values = heads[row, :count, edit.head], seen["values"][row, :count, edit.head]
            kept = ~torch.isin(batch["input_ids"][row, :count], torch.tensor(AWAY))
            cut = eager.attentions[edit.layer][row, edit.head, :count, :count] * kept
            match edit.mode:
                case "zero":
                    new = torch.zeros_like(old)
                case "mean" | "optimal":
                    new = means[edit.layer, edit.head].to(old).expand_as(old)
                case "resample":
                    new = resampled(donated[edit.layer][row], donor_lengths[row], count)[:, edit.head]
                case "uniform":
                    new = values.mean(0).expand_as(old)
                case "identity":
                    new = values
                case "cut":
                    new = cut @ values
                case "redirect":
                    # Without another token there is nothing to turn to.
                    new = cut / cut.sum(-1, keepdim=True).clamp(min=1e-9) @ values
                case "isolate":
                    new = torch.where(kept[:, None], old, values)
            heads[row, :count, edit.head] = new
        return (heads.flatten(2),)

    with (
        torch.no_grad(),
        site.value.register_forward_hook(keep),
        site.projection.register_forward_pre_hook(replace),
    ):
        return model(**batch).logits


MODES = ("uniform", "zero", "mean", "optimal", "resample", "identity", "redirect", "cut", "isolate")


@pytest.mark.parametrize(
    ("family", "mode"),
    [
        *((family, mode) for family in FAMILIES for mode in MODES),
        *(
            pytest.param(family, mode, marks=[] if mode in ("uniform", "resample") else pytest.mark.slow)
            for family in MORE_FAMILIES
            for mode in MODES
        ),
    ],
)
def test_override_replaces_exactly_the_heads_output(family: str, mode: str) -> None:
    model = tiny_model(family)
    batch = sunk_batch(model.config.pad_token_id)
    means = mean_head_outputs(model, [batch])
    donors = tiny_batch((5, 9, 2), pad_id=model.config.pad_token_id)
    with torch.no_grad():
        clean = model(**batch).logits
    for layer in range(describe(model).num_layers):
        edit = HeadEdit(layer, 1, mode)
        with torch.no_grad(), override(model, [edit], means, donors=donors, away_from=AWAY):
            logits = model(**batch).logits
        assert (logits - expected_output(family, model, batch, edit, means, donors)).abs().max() < 2e-5
        assert (logits - clean).abs().max() > 1e-6
    with torch.no_grad():
        assert torch.equal(model(**batch).logits, clean)


@pytest.mark.parametrize("family", [*FAMILIES, *MORE_FAMILIES])
def test_the_check_passes_on_every_family(family: str) -> None:
    model = tiny_model(family)
    model.train()
    state = torch.random.get_rng_state()
    check = check_attention(model)
    assert check.watched_difference == 0.0
    assert min(check.override_differences) > 0
    assert model.training
    assert torch.equal(torch.random.get_rng_state(), state)


def test_the_check_fails_for_a_model_that_ignores_its_heads() -> None:
    model = tiny_model("bert")
    with torch.no_grad():
        model.bert.encoder.layer[1].attention.output.dense.weight.zero_()
    with pytest.raises(UserError, match="layer 1"):
        check_attention(model)


def test_the_check_names_the_first_weights_that_are_not_numbers() -> None:
    model = tiny_model("bert")
    with torch.no_grad():
        model.bert.encoder.layer[1].attention.self.query.weight[0, :2] = torch.tensor([torch.nan, -torch.inf])
        model.classifier.bias[0] = torch.nan
    with pytest.raises(UserError, match=r"first in bert\.encoder\.layer\.1\.attention\.self\.query\.weight \(2 of "):
        check_attention(model)


def test_the_check_fails_for_a_model_that_attends_to_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("bert")
    forward = model.bert.forward
    monkeypatch.setattr(
        model.bert, "forward", lambda *args, **kwargs: forward(*args, **(kwargs | {"attention_mask": None}))
    )
    with pytest.raises(UserError, match="sum to one only within"):
        check_attention(model)


def test_a_family_without_adapter_takes_the_generic_path(monkeypatch: pytest.MonkeyPatch) -> None:
    from bertsecrets.models import families as adapters

    model, batch = tiny_model("bert"), sunk_batch(0)

    def results() -> tuple[list[Tensor], list[Tensor]]:
        _, maps = watched(model, batch)
        logits = []
        for mode in ("uniform", "redirect", "cut", "isolate"):
            with torch.no_grad(), override(model, [HeadEdit(1, 0, mode)], away_from=AWAY):
                logits.append(model(**batch).logits)
        return maps, logits

    expected_maps, expected = results()
    monkeypatch.delitem(adapters.FAMILIES, "bert")
    encoder = describe(model)
    assert encoder.family is None
    assert encoder.num_layers == 3
    maps, generic = results()
    assert all(torch.equal(a, b) for a, b in zip(maps, expected_maps, strict=True))
    assert all((a - b).abs().max() < 1e-5 for a, b in zip(generic, expected, strict=True))
    with pytest.raises(UserError, match="Norms of values need an adapter, and model type 'bert' has none"):
        output_weights(model, 0)


def test_the_layers_of_a_family_without_adapter_are_probed_once_per_model(monkeypatch: pytest.MonkeyPatch) -> None:
    from bertsecrets.models import families as adapters

    monkeypatch.delitem(adapters.FAMILIES, "bert")
    model, other = tiny_model("bert"), tiny_model("bert", seed=1)
    passes: list[int] = []
    for number, base in enumerate((model.bert, other.bert)):
        base.register_forward_hook(lambda *_, number=number: passes.append(number))
    first = describe(model)
    assert describe(model) == first
    assert describe(torch.nn.Sequential(model)) == first
    assert passes == [0]
    assert describe(other).layers[0] is other.bert.encoder.layer[0]
    assert passes == [0, 1]
    # The cache keeps no model alive.
    reference = weakref.ref(model.bert)
    del model, first, base
    gc.collect()
    assert reference() is None
