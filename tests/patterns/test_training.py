"""Training: folds that keep heads and tasks apart, the same weights under a seed, and the door from folder to classifier."""

import csv
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import DictConfig, OmegaConf

import bertsecrets.doors.train_patterns as door
from bertsecrets.errors import UserError
from bertsecrets.patterns import crossvalidation, fitting
from bertsecrets.patterns.classes import PATTERNS
from bertsecrets.patterns.crossvalidation import SCHEMES, AnnotatedMaps, Material, folds
from bertsecrets.patterns.fitting import (
    FitConfig,
    LabelledViews,
    finetune,
    generated_maps,
    noisy,
    one_hot,
    partly_hidden,
    pretrain,
    views_of,
)
from bertsecrets.patterns.generator import generate
from bertsecrets.patterns.labels import Label, write_labels
from bertsecrets.patterns.maps import MapRow, MapSet
from bertsecrets.patterns.network import PatternNetwork
from bertsecrets.patterns.rules import masses
from bertsecrets.patterns.segments import UNKNOWN
from bertsecrets.patterns.trained import load_classifier

FEW = {"generated": 100, "epochs": 1, "steps": 2, "variants": 2, "batch_size": 20}


def annotated(count: int = 90) -> tuple[list[MapRow], list[torch.Tensor], list[str]]:
    """Generated maps of nine heads and five tasks, as if a model had made them and someone had labelled them."""
    rows, maps, patterns = [], [], []
    for place, made in enumerate(islice(generate(np.random.default_rng(3)), count)):
        layer, head = divmod(place % 9, 3)
        length, separator = len(made.attention_QK), made.separator
        numbers = (layer, head, place, length, 1 if separator is None else 2, -1 if separator is None else separator)
        rows.append(MapRow(f"map-{place}", f"task-{place % 5}", "made", "pretrained", "checkpoint", *numbers))
        maps.append(torch.from_numpy(made.attention_QK).half())
        patterns.append(made.pattern)
    return rows, maps, patterns


@pytest.mark.parametrize("scheme", SCHEMES)
def test_folds_test_every_map_once_and_share_no_head_or_task(scheme: str) -> None:
    rows, maps, patterns = annotated()
    number_N = np.array([PATTERNS.index(pattern) for pattern in patterns])
    data = AnnotatedMaps(rows, maps, number_N, one_hot(number_N))
    tested = np.zeros(len(rows), int)
    for train, test in folds(data, scheme, seed=0):  # type: ignore[arg-type]
        tested += test
        assert train.any()
        assert test.any()
        assert not (train & test).any()
        if scheme != "task":
            assert not {data.heads[i] for i in train.nonzero()[0]} & {data.heads[i] for i in test.nonzero()[0]}
        if scheme != "head":
            assert not {data.tasks[i] for i in train.nonzero()[0]} & {data.tasks[i] for i in test.nonzero()[0]}
    assert (tested == 1).all()


def test_training_repeats_under_a_seed_and_leaves_the_callers_randomness_alone() -> None:
    maps, pattern_N, first_segment_N = generated_maps(100, 0)
    config = FitConfig(**FEW)  # type: ignore[arg-type]
    generated = LabelledViews.of(maps, one_hot(pattern_N), partly_hidden(first_segment_N, config))
    torch.manual_seed(0)
    first = finetune(pretrain(generated, config), generated, generated, config).state_dict()
    after = torch.rand(1)
    torch.manual_seed(1)
    second = finetune(pretrain(generated, config), generated, generated, config).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    torch.manual_seed(0)
    assert torch.equal(after, torch.rand(1))


def test_seven_of_eight_maps_learned_from_beside_generated_ones_are_annotated(monkeypatch: pytest.MonkeyPatch) -> None:
    maps, pattern_N, first_segment_N = generated_maps(100, 0)
    generated = LabelledViews.of(maps, one_hot(pattern_N), first_segment_N)
    annotated_ones = LabelledViews(generated.views, torch.full((100, 5), 0.2))
    seen = []

    def spy(network: PatternNetwork, batches: Iterator[LabelledViews], *_: object) -> PatternNetwork:
        seen.extend(islice(batches, 3))
        return network

    monkeypatch.setattr(fitting, "_fit", spy)
    finetune(PatternNetwork(), generated, annotated_ones, FitConfig(batch_size=96))
    assert [(batch.target_NP == 0.2).all(1).sum().item() for batch in seen] == [84, 84, 84]
    assert {len(batch.target_NP) for batch in seen} == {96}


def test_views_keep_the_order_of_maps_and_noise_keeps_distributions() -> None:
    rows, maps, _ = annotated(12)
    first_segment_N = np.array([row.first_segment for row in rows])
    together = views_of(maps, first_segment_N)
    for place, map_LL in enumerate(maps):
        for whole, single in zip(together, views_of([map_LL], first_segment_N[[place]]), strict=True):
            assert torch.allclose(whole[place], single[0], atol=1e-4)
    blurred = noisy(maps[0], torch.Generator().manual_seed(0))
    assert torch.allclose(blurred.sum(-1), torch.ones(len(blurred)), atol=1e-5)


def test_no_fold_learns_from_its_own_test_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, maps, patterns = annotated(45)
    number_N = np.array([PATTERNS.index(pattern) for pattern in patterns])
    # Each map's votes are its own, so that they say which maps were learned from.
    vote_NP = np.array([[1 - place / 45, place / 45, 0, 0, 0] for place in range(45)])
    data = AnnotatedMaps(rows, maps, number_N, vote_NP)
    fit = FitConfig(**FEW, hidden=0.0)  # type: ignore[arg-type]
    made, made_N, first_N = generated_maps(100, 0)
    generated, start = LabelledViews.of(made, one_hot(made_N), first_N), PatternNetwork().eval()
    learned = []

    def spy(network: PatternNetwork, _: LabelledViews, given: LabelledViews, __: FitConfig) -> PatternNetwork:
        learned.append(given.target_NP.numpy())
        return network

    monkeypatch.setattr(crossvalidation, "finetune", spy)
    material, mass_N3 = Material.of(data, fit), masses(made, first_N.tolist())
    answer = crossvalidation.held_out(data, material, generated, mass_N3, start, "task", fit)
    for (train_N, _), target_NP in zip(folds(data, "task", fit.seed), learned, strict=True):
        assert np.allclose(target_NP, np.tile(vote_NP[train_N], (fit.variants, 1)), atol=1e-6)
    for found_NP, first_segment_N in (
        (answer.logit_NP, data.first_segment_N),
        (answer.unsegmented_NP, np.full(45, UNKNOWN)),
    ):
        expected_NP = start(views_of(maps, first_segment_N)).detach().double().numpy()
        assert np.allclose(found_NP, expected_NP, atol=1e-4)
    one_N = data.first_segment_N == 0
    assert (answer.probability_NP[one_N][:, PATTERNS.index("block")] == 0).all()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"hidden": 25}, "hidden is 25; expected a share"),
        ({"steps": 0}, "steps is 0"),
        ({"generated": 10}, "less than a batch"),
    ],
)
def test_settings_that_train_nothing_are_told(wrong: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        FitConfig(**wrong)  # type: ignore[arg-type]


def test_a_quarter_of_the_segments_is_hidden() -> None:
    first_segment_N = np.arange(4000) % 30
    hidden_N = partly_hidden(first_segment_N, FitConfig(hidden=0.25))
    assert (hidden_N == -1).mean() == pytest.approx(0.25, abs=0.03)
    assert np.array_equal(hidden_N[hidden_N >= 0], first_segment_N[hidden_N >= 0])


def config_for(folder: Path | bool, **fit: object) -> DictConfig:
    patterns = OmegaConf.load(Path(__file__).parents[2] / "conf/patterns/default.yaml")
    patterns = OmegaConf.merge(patterns, {"fit": {**FEW, **fit, "seed": 0}, "resamples": 20, "mistakes": 3})
    source = folder if folder is True else str(folder)
    return OmegaConf.create({"train_patterns": source, "patterns": patterns, "seed": 0, "progress": False})


def test_from_annotated_maps_to_a_classifier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, maps, patterns = annotated()
    source, out = tmp_path / "maps", tmp_path / "out"
    MapSet().add(rows, {row.map: map_LL for row, map_LL in zip(rows, maps, strict=True)}).write(source)
    at = "2026-01-31T12:00:00+00:00"
    labels = [Label(row.map, each, "a", 1, at) for row, each in zip(rows, patterns, strict=True)]
    # On the last map the passes differ, and nobody has decided.
    second = [Label(each.map, each.pattern, "b", 2, at) for each in labels[:-1]]
    write_labels(
        source, [*labels, *second, Label(rows[-1].map, "block" if patterns[-1] != "block" else "diagonal", "b", 2, at)]
    )
    monkeypatch.setattr(door, "run_folder", lambda: out)
    monkeypatch.setattr(door, "_SYNTHETIC", 50)
    evaluation = door.train_patterns(config_for(source))
    assert evaluation["maps"] == 89
    assert evaluation["patterns"] == {name: patterns[:-1].count(name) for name in PATTERNS}
    with (out / "predictions.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 3 * 89
    for scheme in SCHEMES:
        mine = [line for line in lines if line["held_out"] == scheme]
        right = sum(line["found"] == line["pattern"] for line in mine) / len(mine)
        assert evaluation["held_out"][scheme]["accuracy"] == pytest.approx(right)
        assert sum(map(sum, evaluation["held_out"][scheme]["confusion"])) == 89
    assert json.loads((out / "weights.json").read_text())["evaluation"]["maps"] == 89
    # The first pass knows the truth, and so does the second but for the last map: each is right by the other.
    for number in ("1", "2"):
        beside = evaluation["passes"][number]
        assert (beside["maps"], beside["annotators"]) == (89, 1)
        assert beside["network"]["head"] == pytest.approx(evaluation["held_out"]["head"]["macro_f1"]["value"])
    assert (out / "classifier.html").is_file()
    assert {path.name for path in (out / "figures").iterdir()} >= {"confusion.png", "reliability.png", "mistakes.png"}
    load_classifier(out)


def test_a_folder_that_cannot_be_learned_from_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no maps\.csv with labels\.csv"):
        door.read_annotated(tmp_path)
    rows, maps, _ = annotated(4)
    MapSet().add(rows, {row.map: map_LL for row, map_LL in zip(rows, maps, strict=True)}).write(tmp_path)
    write_labels(tmp_path, [Label(rows[0].map, "block", "a", number, "2026-01-31T12:00:00+00:00") for number in (1, 2)])
    with pytest.raises(UserError, match="has 1 maps with an agreed label, of 1 heads and 1 tasks"):
        door.read_annotated(tmp_path)
