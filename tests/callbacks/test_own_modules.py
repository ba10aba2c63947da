"""Callbacks in trainers of anybody's modules, against hooks and plain loops of this file's own."""

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import pytorch_lightning as pl
import torch
import wandb
from callbacks.own_modules import (
    HEADS,
    LAYERS,
    Library,
    Mine,
    Template,
    Tuples,
    Twins,
    examples,
    loaders,
    pairs,
    tuples,
)
from pytorch_lightning.callbacks import EarlyStopping
from sklearn.metrics import f1_score
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset
from transformers import BertModel, GPT2Config, GPT2Model
from wandb_log import tracked

import bertsecrets as bs
from bertsecrets import CaptureMaps, DisableHeads, GradientFlow, MeasureHeads
from bertsecrets.errors import UserError
from bertsecrets.reporting.comparison import write_comparison
from bertsecrets.reporting.run_report import report_run
from bertsecrets.reporting.runs import find_runs
from bertsecrets.results.captures import read_maps, read_steps
from bertsecrets.results.run import Run
from bertsecrets.results.scores import RunScores

WIDTH = 8


def trainer(folder: Path, *callbacks: pl.Callback, epochs: int = 2, **options: Any) -> pl.Trainer:
    return pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        callbacks=list(callbacks),
        logger=options.pop("logger", False),
        enable_checkpointing=options.pop("enable_checkpointing", False),
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **options,
    )


def spread(module: nn.Module) -> Any:
    """Weights that are large enough for each head to matter."""
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return module


def encoder_of(module: nn.Module) -> BertModel:
    return next(part for part in module.modules() if isinstance(part, BertModel))


@contextmanager
def without(module: nn.Module, layer: int, head: int) -> Iterator[None]:
    """A hook that sets one head's output to zero."""

    def zero(_: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        output = inputs[0].clone()
        output[..., head * WIDTH : (head + 1) * WIDTH] = 0
        return (output,)

    projection = encoder_of(module).encoder.layer[layer].attention.output.dense
    handle = projection.register_forward_pre_hook(zero)
    try:
        yield
    finally:
        handle.remove()


@torch.no_grad()
def answers(module: Any, batches: Sequence[Any], call: Callable[[Any, Any], Tensor]) -> Tensor:
    module.eval()
    return torch.cat([call(module, batch) for batch in batches]).argmax(-1)


def changes(
    module: Any, batches: Sequence[Any], call: Callable[[Any, Any], Tensor], score: Callable[[Tensor], float]
) -> tuple[float, np.ndarray]:
    """A score of the answers, and how it changes when a hook sets each head to zero, ``[layers, heads]``."""
    before, change_LH = score(answers(module, batches, call)), np.empty((LAYERS, HEADS))
    for layer, head in np.ndindex(LAYERS, HEADS):
        with without(module, layer, head):
            change_LH[layer, head] = score(answers(module, batches, call)) - before
    return before, change_LH


def effects(folder: Path) -> pd.DataFrame:
    """The rows of disabled heads in a folder, in their order."""
    table = pd.read_parquet(folder / "ablation.parquet")
    return table[table.kind == "head"].sort_values("variant")


def mine(module: Any, batch: Any) -> Tensor:
    return module(batch["input_ids"], batch["attention_mask"])


def entropy_by_hand(module: nn.Module, rows: Sequence[dict[str, Tensor]]) -> np.ndarray:
    """The mean entropy of each head, text by text, of maps that the library gives."""
    encoder = encoder_of(module).eval()
    before = encoder.config._attn_implementation
    encoder.set_attn_implementation("eager")
    bits = []
    for row in rows:
        ids = row["input_ids"][row["attention_mask"].bool()][None]
        with torch.no_grad():
            maps = torch.stack(encoder(ids, output_attentions=True).attentions)[:, 0].double()
        bits.append(-(maps * maps.clamp(min=1e-300).log2()).sum(-1).mean(-1).numpy())
    encoder.set_attn_implementation(before)
    return np.mean(bits, axis=0)


def heads(folder: Path, measure: str, column: str, stage: str = "checkpoint") -> pd.DataFrame:
    table = pd.read_parquet(folder / "heads.parquet")
    chosen = table[(table.measure == measure) & (table.column == column) & (table.stage == stage)]
    return chosen.sort_values(["step", "layer", "head"])


def first_logit(module: Any, batch: Any) -> tuple[Tensor, Tensor]:
    ids, mask, labels = batch
    return module(ids, mask).argmax(-1), labels


CASES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Any, Callable[[Any, Any], Tensor]]] = {
    "dictionaries": (Mine, list, {}, mine),
    "tuples": (Tuples, tuples, {"outcome": first_logit}, lambda module, batch: module(*batch[:2])),
    "library": (Library, list, {}, lambda module, batch: module(**batch).logits),
    "template": (Template, pairs, {}, lambda module, batch: module(batch[0])),
}


@pytest.mark.parametrize("case", CASES)
def test_numbers_are_those_of_hooks_and_plain_loops(case: str, tmp_path: Path) -> None:
    make, batched, scored, call = CASES[case]
    module, rows, folder = spread(make()), examples(60, 2), tmp_path / "heads"
    train, val = DataLoader(batched(examples(64, 1)), 16), DataLoader(batched(rows), 16)
    callbacks = [MeasureHeads("entropy", folder=folder), DisableHeads(mode="zero", folder=folder, **scored)]
    trainer(tmp_path, *callbacks).fit(module, train, val)
    measured = heads(folder, "entropy", "bits")
    assert measured.value.to_numpy().reshape(LAYERS, HEADS) == pytest.approx(entropy_by_hand(module, rows), abs=1e-5)
    assert set(measured["count"]) == {60}
    labels, found = torch.stack([row["labels"] for row in rows]), effects(folder)
    before, change_LH = changes(module, list(val), call, lambda said: (said == labels).double().mean().item())
    assert pd.read_parquet(folder / "ablation.parquet").delta.any()
    assert found.delta.to_numpy().reshape(LAYERS, HEADS) == pytest.approx(change_LH)
    assert found.baseline.iloc[0] == pytest.approx(before)
    assert set(found["count"]) == {60}
    assert found.loss_change.notna().all() == (case != "tuples")


@pytest.mark.parametrize(("sample", "counted"), [(20, 20), (None, 60)])
def test_measures_before_the_end_are_of_a_sample(sample: int | None, counted: int, tmp_path: Path) -> None:
    folder = tmp_path / "heads"
    train, val = DataLoader(examples(64, 1), 16), DataLoader(examples(60, 2), 16)
    trainer(tmp_path, MeasureHeads("entropy", validation_examples=sample, folder=folder)).fit(Mine(), train, val)
    assert set(heads(folder, "entropy", "bits", "training")["count"]) == {counted}
    assert set(heads(folder, "entropy", "bits")["count"]) == {60}
    with pytest.raises(UserError, match="validation_examples is 0; expected at least 1"):
        MeasureHeads("entropy", validation_examples=0)


def test_labels_in_another_order_are_told(tmp_path: Path) -> None:
    module, val = Mine(), DataLoader(examples(60, 2), 16)

    def right(module: Any, batch: Any) -> tuple[Tensor, Tensor]:
        logits = mine(module, batch)
        return logits, logits.argmax(-1)

    def swapped(module: Any, batch: Any) -> tuple[Tensor, Tensor]:
        logits, labels = right(module, batch)
        return logits, 1 - labels

    def notes(outcome: Any) -> list[str]:
        folder = tmp_path / outcome.__name__
        callback = DisableHeads(plans=["layers"], outcome=outcome, folder=folder, classes=["bad", "good"])
        trainer(tmp_path, callback).validate(module, val, verbose=False)
        return json.loads((folder / "scores.json").read_text("utf-8"))["notes"]

    with pytest.warns(UserWarning, match="renumber the labels in the data set or in outcome"):
        told = notes(swapped)
    assert told[0].startswith("The model's accuracy is 0 % if its outputs are bad, good, in this order, and 100 % if")
    assert not notes(right)


def found_counts(module: Any, batch: Any) -> Tensor:
    """Right answers of class 1, answers of class 1, and labels of class 1."""
    answer, label = module(batch["input_ids"], batch["attention_mask"]).argmax(-1), batch["labels"]
    return torch.stack([(answer == 1) & (label == 1), answer == 1, label == 1], -1)


def own_f1(means: np.ndarray) -> np.ndarray:
    return 2 * means[..., 0] / (means[..., 1] + means[..., 2])


@pytest.mark.parametrize("mode", ["resample", "optimal"])
def test_modes_that_run_single_examples_are_refused_at_once_for_statistics(mode: str) -> None:
    with pytest.raises(UserError, match=f"Mode '{mode}' runs single examples.*mode zero, uniform or mean"):
        DisableHeads(outcome=found_counts, metric=own_f1, mode=mode)


def test_a_score_of_ones_own_is_that_of_a_loop_of_hooks(tmp_path: Path) -> None:
    """Statistics and a function of their means: F1 of scikit-learn with each head set to zero by a hook."""
    module, rows, folder = spread(Mine()), examples(60, 2), tmp_path / "heads"
    val = DataLoader(rows, 16)
    callback = DisableHeads(mode="zero", folder=folder, outcome=found_counts, metric=own_f1)
    trainer(tmp_path, callback).fit(module, DataLoader(examples(64, 1), 16), val)
    labels, found = torch.stack([row["labels"] for row in rows]), effects(folder)
    before, change_LH = changes(module, list(val), mine, lambda said: f1_score(labels, said))
    assert set(found.metric) == {"own_f1"}
    assert found.baseline.iloc[0] == pytest.approx(before)
    assert found.delta.to_numpy().reshape(LAYERS, HEADS) == pytest.approx(change_LH)
    assert (found.low_simultaneous <= found.delta + 1e-12).all()
    report_run(Run.open(folder), 2).write(Run.open(folder))
    assert "own_f1" in (folder / "report.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("outcome", "metric", "message"),
    [
        (lambda module, batch: torch.zeros(16), own_f1, r"statistics of shape \[16\]"),
        (found_counts, lambda means: means[..., 5], "fails on means of 3 statistics"),
        (found_counts, lambda means: means, r"returns shape \[2, 3\]"),
    ],
)
def test_statistics_that_cannot_be_scored_are_said(outcome: Any, metric: Any, message: str, tmp_path: Path) -> None:
    callback = DisableHeads(folder=tmp_path / "heads", outcome=outcome, metric=metric)
    with pytest.raises(UserError, match=message):
        trainer(tmp_path, callback).fit(
            spread(Mine()), DataLoader(examples(64, 1), 16), DataLoader(examples(60, 2), 16)
        )


class Meddles(pl.Callback):
    """Runs passes of its own before and after every batch."""

    def on_validation_batch_start(self, _: pl.Trainer, pl_module: Any, batch: Any, *others: Any) -> None:
        mine(pl_module, batch)

    def on_validation_batch_end(self, _: pl.Trainer, pl_module: Any, outputs: Any, batch: Any, *others: Any) -> None:
        mine(pl_module, batch)


def test_training_is_not_affected_and_no_pass_of_a_callback_counts(tmp_path: Path) -> None:
    weights = []
    for folder in (tmp_path / "without", tmp_path / "with"):
        torch.manual_seed(3)
        module = Mine()
        own = [
            MeasureHeads("entropy", folder=folder),
            Meddles(),
            MeasureHeads("offsets", folder=folder, every_n_validations=0),
            CaptureMaps(2, folder=folder),
            GradientFlow(3, folder=folder),
            DisableHeads(folder=folder, max_examples=20),
        ]
        trainer(tmp_path, *(own if folder.name == "with" else ())).fit(module, *loaders())
        weights.append(torch.cat([value.flatten() for value in module.state_dict().values()]))
        assert "validation_step" not in vars(module)
    assert torch.equal(*weights)
    assert set(heads(folder, "entropy", "bits", "training")["count"]) == {60}
    assert list(heads(folder, "entropy", "bits", "training").step.unique()) == [5, 10]
    assert list(heads(folder, "offsets", "same").step.unique()) == [10]
    assert set(pd.read_parquet(folder / "ablation.parquet")["count"]) == {20}
    assert list(read_steps(folder / "captures")) == [0, 5, 10]
    flow = heads(folder, "gradient_flow", "gradient_norm", "training")
    assert len(flow.step.unique()) >= 3


class AlwaysDropout(Mine):
    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return nn.functional.dropout(super().forward(input_ids, attention_mask), 0.3)


def test_training_is_not_affected_by_draws_of_the_module_in_validation(tmp_path: Path) -> None:
    weights = []
    for own in ([], [DisableHeads(folder=tmp_path / "heads", every_n_validations=1)]):
        module = AlwaysDropout()
        trainer(tmp_path, *own, epochs=1).fit(module, *loaders())
        weights.append(torch.cat([value.flatten() for value in module.state_dict().values()]))
    assert torch.equal(*weights)


def test_half_precision_leaves_the_default_dtype(tmp_path: Path) -> None:
    own = MeasureHeads("drift", folder=tmp_path / "heads")
    trainer(tmp_path, own, epochs=1, precision="bf16-true").fit(Mine(), *loaders())
    found = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    assert found == torch.float32


@pytest.mark.parametrize("sanity", [0, 2])
def test_without_a_further_validation_nothing_is_said_of_the_end(sanity: int, tmp_path: Path) -> None:
    own, first = MeasureHeads("entropy", "drift", folder=tmp_path / "first"), Mine()
    trainer(tmp_path, own, epochs=1, num_sanity_val_steps=sanity).fit(first, *loaders())
    own.own.folder, second = tmp_path / "second", spread(Mine(1))
    before = {name: value.clone() for name, value in encoder_of(second).state_dict().items()}
    with pytest.warns(UserWarning, match="ended without a validation"):
        trainer(tmp_path, own, epochs=1, num_sanity_val_steps=sanity, check_val_every_n_epoch=2).fit(second, *loaders())
    assert not (tmp_path / "second/heads.parquet").exists()
    copied = own.reference.state_dict()
    assert all(torch.equal(copied[name], value) for name, value in before.items())


class Both(Twins):
    def validation_step(self, batch: Any, _: int) -> None:
        self(batch["input_ids"], batch["attention_mask"])
        self.teacher(batch["input_ids"], batch["attention_mask"])


def test_callbacks_of_two_encoders_leave_the_module_as_it_was(tmp_path: Path) -> None:
    module = Both()
    names = ("encoder", "teacher")
    own = [MeasureHeads("entropy", encoder=name, folder=tmp_path / name) for name in names]
    trainer(tmp_path, *own).fit(module, *loaders())
    assert "validation_step" not in vars(module)
    for name in names:
        assert set(heads(tmp_path / name, "entropy", "bits")["count"]) == {60}


class Again(Mine):
    shift = 0

    def validation_step(self, batch: Any, _: int) -> None:
        self(batch["input_ids"], batch["attention_mask"])
        self((batch["input_ids"] + self.shift).clamp(max=49), batch["attention_mask"])


@pytest.mark.parametrize(("shift", "texts"), [(0, 60), (1, 120)])
def test_an_encoder_that_is_called_twice_in_a_step(shift: int, texts: int, tmp_path: Path) -> None:
    module = Again()
    module.shift = shift
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*count twice")
        trainer(tmp_path, MeasureHeads("entropy", folder=tmp_path / "heads")).validate(
            module, loaders()[1], verbose=False
        )
    assert set(heads(tmp_path / "heads", "entropy", "bits")["count"]) == {texts}


def test_scores_are_those_of_the_last_step(tmp_path: Path) -> None:
    module, saved = spread(Mine()), pl.callbacks.ModelCheckpoint(tmp_path, "{step}", save_top_k=-1)
    runner = trainer(tmp_path, DisableHeads(folder=tmp_path / "heads"), saved, enable_checkpointing=True)
    runner.fit(module, *loaders())
    before = json.loads((tmp_path / "heads/scores.json").read_text())
    runner.validate(module, loaders()[1], ckpt_path=str(tmp_path / "step=5.ckpt"), verbose=False)
    after = json.loads((tmp_path / "heads/scores.json").read_text())
    assert before["step"] == after["step"] == 10
    assert after["sets"] == before["sets"]


def grows(module: Any, batch: Any) -> tuple[Tensor, Tensor]:
    """Two classes before training, three after it."""
    return mine(module, batch).argmax(-1), batch["labels"] * (2 if module.global_step else 1)


def test_a_score_that_fails_at_the_end_does_not_lose_the_training(tmp_path: Path) -> None:
    own = DisableHeads(metric="f1", outcome=grows, folder=tmp_path / "heads")
    with pytest.warns(UserWarning, match="no numbers of the end of this training. metric is f1"):
        trainer(tmp_path, own, epochs=1).fit(Mine(), *loaders())


def sorted_scores(module: Any, batch: Any) -> tuple[Tensor, Tensor]:
    answers_BC, label_B = mine(module, batch), batch["labels"].bfloat16()
    return answers_BC[:, 0].bfloat16(), label_B if module.global_step else label_B * 0


def test_scores_in_half_precision_that_are_all_one_before_training(tmp_path: Path, caplog: Any) -> None:
    own = DisableHeads(outcome=sorted_scores, folder=tmp_path / "heads")
    with caplog.at_level("INFO", "pytorch_lightning"):
        trainer(tmp_path, own, epochs=1).fit(Mine(), *loaders())
    said = [line for line in caplog.messages if line.startswith("Disabling")]
    expected = f"Disabling {LAYERS * HEADS + LAYERS} variants, each with a pass of the module over 60 examples: about "
    assert len(said) == 1
    assert said[0].startswith(expected)
    assert set(pd.read_parquet(tmp_path / "heads/ablation.parquet")["count"]) == {60}


@pytest.mark.parametrize(
    ("make", "kinds"),
    [(Mine, ("key", "function", "values", "default")), (Library, ("default",))],
    ids=["mine", "library"],
)
def test_examples_of_a_group_are_judged_together(make: Callable[[], Any], kinds: Sequence[str], tmp_path: Path) -> None:
    """Three copies of every example, as a group, tell as much as one."""
    rows, columns = examples(20, 2), ["delta", "p_needed"]
    copies = [row | {"index": torch.tensor(3 * number + copy)} for number, row in enumerate(rows) for copy in range(3)]

    def swept(name: str, used: list[Any], group: Any = None) -> pd.DataFrame:
        own = DisableHeads(folder=tmp_path / name, mode="zero", group=group)
        trainer(tmp_path, own).validate(spread(make()), DataLoader(used, 12), verbose=False)
        return pd.read_parquet(tmp_path / name / "ablation.parquet")

    once, ungrouped = swept("once", rows), swept("alone", copies)
    assert not np.allclose(ungrouped[columns].to_numpy(float), once[columns].to_numpy(float), equal_nan=True)
    for by in kinds:
        # Library hands every other key to its model.
        name = "group" if by == "default" else "review"
        places = [place // 3 for place in range(60)]
        group = {"key": name, "function": lambda batch, name=name: batch[name].tolist(), "values": places}
        grouped = swept(by, [row | {name: torch.tensor(place // 3)} for place, row in enumerate(copies)], group.get(by))
        assert set(grouped["count"]) == {60}
        assert grouped[columns].to_numpy(float) == pytest.approx(once[columns].to_numpy(float), abs=1e-6, nan_ok=True)
        below, above = ((one.high_simultaneous - one.low_simultaneous).mean() for one in (ungrouped, grouped))
        assert below < 0.8 * above


def test_groups_that_cannot_be_used_are_said(tmp_path: Path) -> None:
    rows = DataLoader([row | {"review": torch.tensor(0)} for row in examples(20, 2)], 8)
    for group, words in (
        (
            "reviews",
            r"group is 'reviews', but a validation batch has 'input_ids', 'attention_mask', 'labels', 'review'",
        ),
        ("review", "All 20 examples are of one group"),
        ([1, 2], "the order of the examples is not known"),
        (lambda batch: [1], "group gives 1 values for a batch of 8 examples"),
    ):
        own = DisableHeads(group=group, folder=tmp_path / "heads")
        with pytest.raises(UserError, match=words):
            trainer(tmp_path, own).validate(spread(Mine()), rows, verbose=False)


@pytest.mark.parametrize(("given", "names"), [(None, ["low", "high"]), (["bad", "good"], ["bad", "good"])])
def test_classes_have_the_names_of_the_library_model(given: Any, names: list[str], tmp_path: Path) -> None:
    module: Any = Library()
    module.model.config.id2label = {"1": "high", "0": "low"}
    own = DisableHeads(folder=tmp_path / "heads", classes=given)
    trainer(tmp_path, own).validate(module, loaders()[1], verbose=False)
    assert bs.Run(tmp_path / "heads").record.config()["task"]["labels"] == names
    with pytest.raises(UserError, match=r"classes has 3 names \(a, b, c\), but there are 2 classes"):
        trainer(tmp_path, DisableHeads(classes=["a", "b", "c"])).validate(module, loaders()[1], verbose=False)


@pytest.mark.parametrize("learned", [True, False])
def test_the_end_of_training_says_once_what_was_found_and_where(
    learned: bool, tmp_path: Path, caplog: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(RunScores, "learned", learned)
    own = [MeasureHeads("entropy"), DisableHeads(max_examples=20), GradientFlow(2)]
    with caplog.at_level("INFO", "pytorch_lightning"):
        trainer(tmp_path, *own, epochs=1).fit(Mine(), *loaders())
    said = [line for line in caplog.messages if "bertsecrets report" in line]
    folder = tmp_path / "heads"
    answer = f"{report_run(Run.open(folder), 2).report.title} " if learned else ""
    places = f"Findings on heads: {folder}. Make their page: python -m bertsecrets report run={folder}"
    assert said == [f"{answer}{places}"]


def endless(rows: list[Any]) -> DataLoader[Any]:
    class Rows(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(rows)

    return DataLoader(Rows(), 16)


@pytest.mark.parametrize("epochs", [-1, 2])
def test_gradients_of_a_training_whose_length_is_not_known(epochs: int, tmp_path: Path) -> None:
    class Stops(pl.Callback):
        def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            trainer.should_stop = trainer.current_epoch == 1

    own = GradientFlow(folder=tmp_path / "heads")
    trainer(tmp_path, own, Stops(), epochs=epochs).fit(Mine(), endless(examples(64, 1)))
    assert set(heads(tmp_path / "heads", "gradient_flow", "gradient_norm", "training").step) == {0}


def test_the_folder_is_that_of_a_finished_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in (0, 1):
        pl.seed_everything(seed, verbose=False)
        own = [
            MeasureHeads("entropy", "drift", folder=tmp_path / f"run{seed}"),
            DisableHeads(folder=tmp_path / f"run{seed}"),
        ]
        trainer(tmp_path, *own, epochs=1).fit(spread(Mine(seed)), *loaders())
    run = bs.Run(tmp_path / "run0")
    assert len(run.to_pandas()) == LAYERS * HEADS
    assert len(run.disabled()) == LAYERS * HEADS + LAYERS
    report = report_run(Run.open(tmp_path / "run0"), 2).report
    assert {"Entropy of attention", "Drift of attention"} <= {section.title for section in report.sections}
    assert not any("analyze" in step.command for step in report.steps)
    runs, unfinished = find_runs([str(tmp_path)])
    assert (len(runs), unfinished) == (2, [])
    assert write_comparison(runs, [], tmp_path / "comparison", heads=True).is_file()


def test_validation_alone_and_the_second_of_two_loaders(tmp_path: Path) -> None:
    module, rows = spread(Mine()), examples(30, 4)
    val = [loaders()[1], DataLoader(rows, 8)]
    own = [
        MeasureHeads("entropy", dataloader=1, folder=tmp_path / "heads"),
        DisableHeads(folder=tmp_path / "heads", dataloader=1),
    ]
    trainer(tmp_path, *own).validate(module, val, verbose=False)
    measured = heads(tmp_path / "heads", "entropy", "bits")
    assert measured.value.to_numpy().reshape(LAYERS, HEADS) == pytest.approx(entropy_by_hand(module, rows), abs=1e-5)
    effects = pd.read_parquet(tmp_path / "heads/ablation.parquet")
    assert set(effects["count"]) == {30}
    assert set(effects.evaluation) == {"val_1"}


class Falls(Mine):
    def validation_step(self, batch: Any, _: int) -> None:
        super().validation_step(batch, _)
        self.log("worse", float(self.global_step))


def test_a_training_that_is_stopped_early_has_its_last_numbers(tmp_path: Path) -> None:
    stop = EarlyStopping("worse", patience=1)
    trainer(tmp_path, stop, DisableHeads(folder=tmp_path / "heads"), epochs=50).fit(Falls(), *loaders())
    assert set(pd.read_parquet(tmp_path / "heads/ablation.parquet").step) == {10}


def test_runs_of_one_logger_or_none_get_folders_of_their_own(tmp_path: Path) -> None:
    for _ in range(2):
        trainer(tmp_path, MeasureHeads("entropy"), epochs=1).fit(Mine(), *loaders())
    logger = pl.loggers.CSVLogger(tmp_path)
    trainer(tmp_path, MeasureHeads("entropy"), epochs=1, logger=logger).fit(Mine(), *loaders())
    folders = sorted(path.parent.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("heads.parquet"))
    assert folders == ["heads", "heads_1", "lightning_logs/version_0/heads"]
    metrics = pd.read_csv(tmp_path / "lightning_logs/version_0/metrics.csv")
    assert metrics["entropy/bits/mean"].notna().any()
    with pytest.raises(
        UserError, match="contains findings of an earlier training run; delete it or give another folder"
    ):
        trainer(tmp_path, MeasureHeads("entropy", folder=tmp_path / "heads")).fit(Mine(), *loaders())


def test_wandb_gets_heatmaps_tables_and_a_few_numbers(tmp_path: Path) -> None:
    logger = pl.loggers.WandbLogger("run", save_dir=str(tmp_path), offline=True)
    own = [MeasureHeads("entropy"), DisableHeads(mode="zero"), GradientFlow(2)]
    trainer(tmp_path, *own, epochs=1, logger=logger).fit(spread(Mine()), *loaders())
    logger.experiment.finish()
    # The service writes the last records when it ends.
    wandb.teardown()
    logged = tracked(tmp_path).logged
    assert {"entropy/bits/mean", "ablation/accuracy/lowest", "gradient_flow/gradient_norm/l01"} <= {*logged}
    assert {
        "entropy/bits/heatmap/path",
        "ablation/accuracy/heatmap/path",
        "entropy/table/path",
        "ablation/table/path",
    } <= {*logged}
    assert (tmp_path / "lightning_logs" / str(logger.version) / "heads/ablation.parquet").is_file()


def test_a_checkpoint_that_is_validated_has_its_own_step(tmp_path: Path) -> None:
    module, own = spread(Mine()), MeasureHeads("entropy", folder=tmp_path / "heads", every_n_validations=0)
    first = pl.callbacks.ModelCheckpoint(tmp_path, "first", monitor="epochs", mode="min")
    module.on_validation_epoch_end = lambda: module.log("epochs", float(module.current_epoch))
    runner = trainer(tmp_path, own, first, enable_checkpointing=True)
    runner.fit(module, *loaders())
    runner.validate(module, loaders()[1], ckpt_path="best", verbose=False)
    assert list(heads(tmp_path / "heads", "entropy", "bits").step.unique()) == [5, 10]


def test_a_compiled_module_is_the_same(tmp_path: Path) -> None:
    for name in ("plain", "inner", "outer"):
        module: Any = spread(Mine())
        if name == "inner":
            module.encoder = torch.compile(module.encoder, backend="eager")
        whole = torch.compile(module, backend="eager") if name == "outer" else module
        trainer(
            tmp_path, MeasureHeads("entropy", folder=tmp_path / name), DisableHeads(folder=tmp_path / name)
        ).validate(whole, loaders()[1], verbose=False)
    for table in ("heads", "ablation"):
        plain, *others = (pd.read_parquet(tmp_path / name / f"{table}.parquet") for name in ("plain", "inner", "outer"))
        for other in others:
            columns = ["value", "count"] if table == "heads" else ["delta", "loss_change", "count"]
            assert other[columns].to_numpy() == pytest.approx(plain[columns].to_numpy(), abs=1e-6)


class Silent(Mine):
    def validation_step(self, batch: Any, _: int) -> None:
        pass


class Decoder(Mine):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = GPT2Model(GPT2Config(n_layer=1, n_head=2, n_embd=32, vocab_size=50))


class NoValidation(Mine):
    validation_step = pl.LightningModule.validation_step


def halved(module: Any, batch: Any) -> tuple[Tensor, Tensor]:
    return mine(module, batch)[::2], batch["labels"]


def many(module: Any, batch: Any) -> tuple[Tensor, Tensor]:
    return mine(module, batch), batch["labels"].float()


def thirds(module: Any, batch: Any) -> tuple[Tensor, Tensor]:
    return mine(module, batch)[:, [0, 1, 1]], batch["labels"]


@pytest.mark.parametrize(
    ("make", "callback", "words"),
    [
        (Twins, lambda: MeasureHeads("entropy"), r"Twins holds several encoders \(encoder, teacher\); name one"),
        (Twins, lambda: MeasureHeads("entropy", encoder="teacher"), r"not called in validation.*choose the encoder"),
        (Twins, lambda: GradientFlow(encoder="techer"), r"encoder is 'techer'.*did you mean 'teacher'"),
        (Silent, lambda: MeasureHeads("entropy"), r"The encoder was not called in validation"),
        (Silent, lambda: DisableHeads(), r"The encoder was not called in validation"),
        (Decoder, lambda: MeasureHeads("entropy"), r"GPT2Model is a decoder \('gpt2'\)"),
        (NoValidation, lambda: DisableHeads(), r"but there is no validation"),
        (Mine, lambda: DisableHeads(outcome=halved), r"outcome halved returns predictions of shape \[8, 2\]"),
        (Mine, lambda: DisableHeads(metric="pearson"), r"metric is pearson, but the labels are classes"),
        (Mine, lambda: DisableHeads(outcome=many), r"returns 2 numbers for each example and labels that are scores"),
        (Mine, lambda: DisableHeads(metric="f1", outcome=thirds), r"metric is f1, which is for 2 classes"),
        (Mine, lambda: DisableHeads(mode="resample"), r"Mode 'resample' runs single examples"),
        (Mine, lambda: DisableHeads(plans=["similar_groups"]), r"Plan 'similar_groups' runs single examples"),
        (Mine, lambda: MeasureHeads("features"), r"Measure 'features' needs annotated words"),
        (Mine, lambda: MeasureHeads("entropi"), r"Unknown measure 'entropi'; did you mean 'entropy'"),
        (Mine, lambda: MeasureHeads("head_gradient"), r"Measures of gradients take the loss of a library"),
    ],
)  # fmt: skip
def test_what_cannot_be_analysed_is_said_before_training(
    make: Callable[[], Any], callback: Callable[[], pl.Callback], words: str, tmp_path: Path
) -> None:
    def analyse() -> None:
        module = make()
        module.on_train_start = lambda: pytest.fail("training has begun")
        trainer(tmp_path, callback()).fit(module, *loaders())

    with pytest.raises(UserError, match=words):
        analyse()


@pytest.mark.parametrize("name", ["FSDPStrategy", "ModelParallelStrategy", "DeepSpeedStrategy"])
def test_sharded_weights_are_refused(name: str) -> None:
    sharded: Any = SimpleNamespace(strategy=type(name, (), {})())
    with pytest.raises(UserError, match=r"are sharded.*; use strategy='ddp', or analyse a checkpoint in one process"):
        MeasureHeads("entropy").setup(sharded, Mine(), "fit")


def test_a_measure_of_change_needs_the_model_before(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"drift.*initial"):
        trainer(tmp_path, MeasureHeads("drift")).validate(Mine(), loaders()[1], verbose=False)
    before, after = spread(Mine(0)), spread(Mine(1))
    own = MeasureHeads("drift", reference=before.encoder, folder=tmp_path / "heads")
    trainer(tmp_path, own).validate(after, loaders()[1], verbose=False)
    assert (heads(tmp_path / "heads", "drift", "cosine").value < 1).all()


SCRIPT = """
import os
import sys
from pathlib import Path
import pytorch_lightning as pl
from callbacks.own_modules import Mine
from callbacks.test_own_modules import spread, validated

def two_processes(own, folder):
    return pl.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", callbacks=own, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
    )

for name in ("two", "repeated"):
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print("begins", name, file=sys.stderr, flush=True)
    validated(Path(sys.argv[1]) / name, two_processes, index=name == "two")
"""


def validated(folder: Path, made: Callable[[list[pl.Callback], Path], pl.Trainer], *, index: bool) -> None:
    """Validate on 61 examples, which tell their place or do not, with maps and disabled heads."""
    own = [MeasureHeads("entropy", folder=folder), DisableHeads(folder=folder), CaptureMaps(folder=folder)]
    made(own, folder).validate(spread(Mine()), DataLoader(examples(61, 2, index=index), 16), verbose=False)


def test_two_processes_give_the_numbers_of_one(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*count twice")
        validated(tmp_path / "one", lambda own, folder: trainer(folder, *own), index=True)
    (tmp_path / "script.py").write_text(SCRIPT, "utf-8")
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    of_two, repeated = done.stderr.split("begins repeated")
    assert "1 of 61 validation examples count twice" in repeated
    assert "count twice" not in of_two
    for table in ("heads", "ablation"):
        one, two = (pd.read_parquet(tmp_path / name / f"{table}.parquet") for name in ("one", "two"))
        assert set(one["count"]) == set(two["count"]) == {61}
        columns = ["value", "stderr"] if table == "heads" else ["delta", "loss_change", "low_simultaneous", "p_needed"]
        assert two[columns].to_numpy() == pytest.approx(one[columns].to_numpy(), abs=1e-6, nan_ok=True)
    maps = [read_maps(next(iter(read_steps(tmp_path / name / "captures").values()))) for name in ("one", "two")]
    assert sorted(maps[0]) == sorted(maps[1])
    assert set(pd.read_parquet(tmp_path / "repeated/heads.parquet")["count"]) == {62}


def test_the_trainer_of_the_package_lightning(tmp_path: Path) -> None:
    """Its trainer takes callbacks of its own class alone, and so do its modules."""
    lightning = pytest.importorskip("lightning.pytorch")

    class Other(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.mine = spread(Mine())

        def forward(self, **inputs: Tensor) -> Tensor:
            return self.mine(inputs["input_ids"], inputs["attention_mask"])

        def training_step(self, batch: Any, _: int) -> Tensor:
            return self.mine.training_step(batch, _)

        def validation_step(self, batch: Any, _: int) -> None:
            self(**batch)

        def configure_optimizers(self) -> Any:
            return self.mine.configure_optimizers()

    own = [MeasureHeads("entropy", "drift"), DisableHeads(), CaptureMaps(2), GradientFlow(2)]
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "default_root_dir": tmp_path, "logger": False}
    lightning.Trainer(max_epochs=1, accelerator="cpu", callbacks=own, **quiet).fit(Other(), *loaders())
    assert set(heads(tmp_path / "heads", "entropy", "bits")["count"]) == {60}
    assert (tmp_path / "heads/ablation.parquet").is_file()
