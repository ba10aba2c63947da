"""Sweeps over batches: gathered in order, taken up where they stopped, merged from parts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from families import HEADS, batch_of, tiny_batch, tiny_model

import bertsecrets.ablation.engine as engine_module
from bertsecrets.ablation.exact import exact_sweep
from bertsecrets.ablation.outcomes import Outcomes, Parts, fingerprint, merge
from bertsecrets.ablation.plan import Plan, every_head, every_layer
from bertsecrets.data.batch import Batch
from bertsecrets.data.task import Task
from bertsecrets.errors import UserError

CLASSES = Task(name="toy", metrics=("accuracy",), texts=1, labels=("a", "b", "c"))


def batches(labelled: bool = True) -> Iterator[Batch]:
    """Nine examples in three batches, not in order of their index."""
    for start, lengths in ((6, (5, 4, 9)), (0, (3, 8, 6)), (3, (7, 7, 4))):
        inputs = tiny_batch(lengths)
        inputs["input_ids"] = (inputs["input_ids"] + start) % 90
        yield batch_of(inputs, [0, 1, 2] if labelled else None, start)


def plan(mode: str = "uniform") -> Plan:
    return Plan(mode, 3, HEADS, (*every_head(3, HEADS), *every_layer(3, HEADS)))


def test_examples_come_in_order_and_losses_are_those_of_torch() -> None:
    model = tiny_model("bert")
    seen: list[int] = []
    outcomes = exact_sweep(model, plan(), batches(), progress=seen.append)
    assert outcomes.index_N.tolist() == list(range(9))
    assert sum(seen) == 9 * 15
    for batch in batches():
        with torch.no_grad():
            logits_BC = model(**batch.inputs()).logits
        torch.testing.assert_close(outcomes.clean_NC[batch.index_B], logits_BC, atol=1e-6, rtol=0)
    clean_N, loss_NV = outcomes.losses()
    assert loss_NV.shape == (9, 15)
    one = torch.nn.functional.cross_entropy(outcomes.logits_NVC[4, 7], outcomes.label_N[4].long())
    assert loss_NV[4, 7].item() == pytest.approx(one.item())
    assert clean_N.shape == (9,)


def test_a_sweep_of_one_example() -> None:
    model = tiny_model("bert")
    whole = exact_sweep(model, plan(), batches())
    _, batch, _ = batches()
    one = exact_sweep(model, plan(), [batch.rows(torch.tensor([1]))])
    assert (one.index_N.tolist(), one.label_N.tolist()) == ([1], [1])
    torch.testing.assert_close(one.logits_NVC, whole.logits_NVC[1:2], atol=1e-6, rtol=0)


def test_an_interrupted_sweep_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("bert")
    expected = exact_sweep(model, plan(), batches())
    parts = Parts(tmp_path / "parts", fingerprint(model, plan()))

    def stop_in_the_third() -> Iterator[Batch]:
        *first, _ = batches()
        yield from first
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        exact_sweep(model, plan(), stop_in_the_third(), parts=parts)
    files = sorted((tmp_path / "parts").iterdir())
    assert len(files) == 2
    files[0].write_bytes(files[0].read_bytes()[:100])  # a torn file counts as missing
    runs: list[int] = []
    engine = engine_module.Engine

    class Counting(engine):  # type: ignore[misc, valid-type]
        def run(self, *args: Any) -> Any:
            runs.append(1)
            return super().run(*args)

    monkeypatch.setattr(engine_module, "Engine", Counting)
    again = Parts(tmp_path / "parts", fingerprint(model, plan()))
    result = exact_sweep(model, plan(), batches(), parts=again)
    assert len(runs) == 2
    assert again.loaded == 1
    assert torch.equal(result.logits_NVC, expected.logits_NVC)
    again.clear()
    assert not (tmp_path / "parts").exists()


def test_finished_parts_are_removed_and_files_of_others_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "parts"
    parts = Parts(folder, "any")
    for batch in batches():
        parts.save(batch, {"logits": torch.zeros(1)})
    (torn,) = list(folder.iterdir())[:1]
    torn.rename(folder / f".{torn.stem}.0123abcd.safetensors")
    for name in ("mine.safetensors", "notes.txt"):
        (folder / name).write_text("kept")
    parts.clear()
    assert sorted(path.name for path in folder.iterdir()) == ["mine.safetensors", "notes.txt"]
    assert "keeps files that are not of this sweep: mine.safetensors, notes.txt." in caplog.text


def test_parts_of_another_sweep_are_not_taken(tmp_path: Path) -> None:
    model = tiny_model("bert")
    names = {fingerprint(model, plan()), fingerprint(model, plan("zero")), fingerprint(model, plan(), ["bf16"])}
    with torch.no_grad():
        model.classifier.bias[0] += 1e-3
    assert len({*names, fingerprint(model, plan())}) == 4


def test_parts_merge_to_the_whole(tmp_path: Path) -> None:
    model = tiny_model("bert")
    whole = exact_sweep(model, plan(), batches())
    halves = {}
    for layers in ([2, 0], [1]):
        some = Plan("uniform", 3, HEADS, (*every_head(3, HEADS, layers), *every_layer(3, HEADS, layers)))
        exact_sweep(model, some, batches()).write(tmp_path / f"{layers[0]}.safetensors", CLASSES)
        halves[str(layers[0])] = Outcomes.read(tmp_path / f"{layers[0]}.safetensors")
    merged = merge(halves)
    assert merged.plan == whole.plan
    torch.testing.assert_close(merged.logits_NVC, whole.logits_NVC, atol=1e-6, rtol=0)


def test_what_does_not_belong_together_is_not_merged() -> None:
    model = tiny_model("bert")
    one = exact_sweep(model, plan(), batches())
    with pytest.raises(UserError, match="nothing to merge"):
        merge({})
    with pytest.raises(UserError, match="differ in their disabling mode"):
        merge({"one": one, "two": exact_sweep(model, plan("zero"), batches())})
    with pytest.raises(UserError, match="differ in their examples"):
        merge({"one": one, "two": exact_sweep(model, plan(), list(batches())[:2])})
    with pytest.raises(UserError, match="'one' and 'two' come from different models"):
        merge({"one": one, "two": exact_sweep(tiny_model("bert", seed=5), plan(), batches())})
    with pytest.raises(UserError, match="'one' and 'two' both disable l00h00"):
        merge({"one": one, "two": one})


def test_a_file_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"nothing")
    for name in ("x.safetensors", "none.safetensors"):
        with pytest.raises(UserError, match="cannot be read as the outcomes of a sweep"):
            Outcomes.read(tmp_path / name)


def test_examples_need_labels() -> None:
    with pytest.raises(UserError, match="needs labelled examples"):
        exact_sweep(tiny_model("bert"), plan(), batches(labelled=False))
