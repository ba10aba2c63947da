"""Watching and overriding on every family, against the library's own eager attention and a by-hand forward pass."""

import gc
import weakref

import pytest
import torch
from families import FAMILIES, HEADS, MORE_FAMILIES, tiny_batch, tiny_model
from torch import Tensor

from bertsecrets.attention.override import HeadEdit, mean_head_outputs, override
from bertsecrets.attention.self_check import check_attention
from bertsecrets.attention.watch import watch
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


def heads_outputs(model: torch.nn.Module, batch: dict[str, Tensor]) -> list[Tensor]:
    """The inputs of the output projections, in the order of the layers, by hooks of this test."""
    outputs: list[Tensor] = []
    handles = [
        site.projection.register_forward_pre_hook(lambda module, args: outputs.append(args[0]))
        for site in describe(model).distinct_sites
    ]
    with torch.no_grad():
        model(**batch)
    for handle in handles:
        handle.remove()
    return [output.unflatten(-1, (HEADS, -1)) for output in outputs]


def resampled(donor: Tensor, length: int, receiving: int) -> Tensor:
    """Token by token: first from first, last from last, those between from those between, again from the start at the
    end.
    """
    first, *between, last = donor[:length]
    rows = [first, *((between or [last])[i % max(len(between), 1)] for i in range(receiving - 2)), last]
    return torch.stack(rows[:receiving])


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
    site = encoder.sites[edit.layer]
    calls = {"value": 0, "projection": 0}
    shared = [i for i, other in enumerate(encoder.sites) if other.module is site.module]
    wanted = shared.index(edit.layer)
    seen: dict[str, Tensor] = {}
    real = batch["attention_mask"].bool()

    def keep(module: torch.nn.Module, args: object, output: Tensor) -> None:
        seen["values"] = encoder.family.values(site, output, encoder.num_heads)

    def replace(module: torch.nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        calls["projection"] += 1
        if calls["projection"] - 1 != wanted:
            return None
        heads = args[0].clone().view(*args[0].shape[:2], HEADS, -1)
        values = seen["values"]
        for row in range(len(heads)):
            count = int(real[row].sum())
            if edit.mode == "zero":
                new = torch.zeros_like(heads[row, :, edit.head])
            elif edit.mode in ("mean", "optimal"):
                new = means[edit.layer, edit.head].to(heads).expand_as(heads[row, :, edit.head])
            elif edit.mode == "resample":
                new = resampled(donated[edit.layer][row], donor_lengths[row], count)[:, edit.head]
                new = torch.cat((new, torch.zeros(heads.shape[1] - count, new.shape[-1])))
            else:
                size = heads.shape[1]
                weights = torch.zeros(size, size)
                if edit.mode == "uniform":
                    weights[:, :count] = 1 / count
                else:
                    weights = torch.eye(size)
                new = weights @ values[row, :, edit.head]
            heads[row, :, edit.head] = new
        return (heads.view_as(args[0]),)

    with (
        torch.no_grad(),
        site.value.register_forward_hook(keep),
        site.projection.register_forward_pre_hook(replace),
    ):
        return model(**batch).logits


MODES = ("uniform", "zero", "mean", "optimal", "resample", "identity")


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
    batch = tiny_batch(pad_id=model.config.pad_token_id)
    means = mean_head_outputs(model, [batch])
    donors = tiny_batch((5, 9, 2), pad_id=model.config.pad_token_id)
    with torch.no_grad():
        clean = model(**batch).logits
    for layer in range(describe(model).num_layers):
        edit = HeadEdit(layer, 1, mode)
        with torch.no_grad(), override(model, [edit], means, donors=donors):
            logits = model(**batch).logits
        assert (logits - expected_output(family, model, batch, edit, means, donors)).abs().max() < 1e-5
        assert (logits - clean).abs().max() > 1e-6
    with torch.no_grad():
        assert torch.equal(model(**batch).logits, clean)


@pytest.mark.parametrize("family", [*FAMILIES, *MORE_FAMILIES])
def test_the_values_times_the_maps_are_the_heads_outputs(family: str) -> None:
    """The adapter's values times the maps of `watch` must give the projection's input."""
    model = tiny_model(family)
    batch = tiny_batch(pad_id=model.config.pad_token_id)
    encoder = describe(model)
    site = encoder.sites[0]
    seen: dict[str, Tensor] = {}

    def keep_values(module: torch.nn.Module, args: object, output: Tensor) -> None:
        seen.setdefault("v", encoder.family.values(site, output, encoder.num_heads))

    def keep_output(module: torch.nn.Module, args: tuple[Tensor, ...]) -> None:
        seen.setdefault("o", args[0])

    with (
        site.value.register_forward_hook(keep_values),
        site.projection.register_forward_pre_hook(keep_output),
    ):
        _, maps = watched(model, batch)
    expected = torch.einsum("bhqk,bkhd->bqhd", maps[0], seen["v"]).flatten(2)
    real = batch["attention_mask"].bool()
    assert (expected - seen["o"])[real].abs().max() < 1e-5


def test_zeroing_a_head_equals_removing_it() -> None:
    """The library's own pruning of linear layers is the independent reference."""
    from transformers.pytorch_utils import prune_linear_layer

    model, pruned = tiny_model("bert"), tiny_model("bert")
    batch = tiny_batch()
    width = describe(model).head_dim
    keep = torch.tensor([i for i in range(HEADS * width) if not 2 * width <= i < 3 * width])
    attention = pruned.bert.encoder.layer[1].attention
    for name in ("query", "key", "value"):
        setattr(attention.self, name, prune_linear_layer(getattr(attention.self, name), keep))
    attention.output.dense = prune_linear_layer(attention.output.dense, keep, dim=1)
    with torch.no_grad():
        expected = pruned(**batch).logits
        with override(model, [HeadEdit(1, 2, "zero")]):
            assert (model(**batch).logits - expected).abs().max() < 1e-6


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

    model = tiny_model("bert")
    monkeypatch.delitem(adapters.FAMILIES, "bert")
    encoder = describe(model)
    assert encoder.family is None
    assert encoder.num_layers == 3
    batch = tiny_batch()
    _, maps = watched(model, batch)
    with torch.no_grad(), override(model, [HeadEdit(1, 0, "uniform")]):
        generic = model(**batch).logits
    monkeypatch.undo()
    _, expected_maps = watched(model, batch)
    with torch.no_grad(), override(model, [HeadEdit(1, 0, "uniform")]):
        expected = model(**batch).logits
    assert (generic - expected).abs().max() < 1e-6
    assert all(torch.equal(a, b) for a, b in zip(maps, expected_maps, strict=True))


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
