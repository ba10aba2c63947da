"""Training: folds that share no head or task, equal weights under a seed, and a classifier from a folder of maps."""

import csv
import json
from collections.abc import Iterator
from dataclasses import astuple, replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from bertsecrets.errors import UserError
from bertsecrets.patterns.classes import PATTERNS
from bertsecrets.patterns.classifier import CARD, SHIPPED, PatternNetwork, load_classifier
from bertsecrets.patterns.map_features import UNKNOWN
from tools.map_sheets import PALETTE, map_sheet
from tools.pattern_classifier import __main__ as command
from tools.pattern_classifier import crossvalidation, fitting
from tools.pattern_classifier.__main__ import TrainingSettings
from tools.pattern_classifier.annotated_maps import AnnotatedMaps, check_enough_to_train, read_annotated_maps
from tools.pattern_classifier.crossvalidation import SCHEMES, PreparedMaps, folds, schemes_of
from tools.pattern_classifier.fitting import (
    FitSettings,
    LabelledFeatures,
    features_of,
    finetune,
    generated_maps,
    mirrored,
    noisy,
    one_hot,
    partly_hidden,
    pretrain,
    variants_of,
)
from tools.pattern_classifier.generator import generate, measure_strengths
from tools.pattern_classifier.score import main as scoring_command
from tools.pattern_classifier.score import score_classifier
from tools.pattern_labels.labels import Label, write_labels
from tools.pattern_labels.map_set import MapRow, MapSet
from tools.pattern_labels.rules import masses

FEW = {"generated": 100, "epochs": 1, "steps": 2, "variants": 2, "batch_size": 20}


def annotated(count: int = 90) -> tuple[list[MapRow], list[torch.Tensor], list[str]]:
    """Generated maps of two models, nine heads each, and five tasks, with their patterns as labels."""
    rows, maps, patterns = [], [], []
    for place, generated in enumerate(islice(generate(np.random.default_rng(3)), count)):
        layer, head = divmod(place % 9, 3)
        length, separator = len(generated.attention_QK), generated.separator
        numbers = (layer, head, place, length, 1 if separator is None else 2, -1 if separator is None else separator)
        task, model = f"task-{place % 5}", "large" if place % 3 == 1 else "small"
        rows.append(MapRow(f"map-{place}", task, model, "pretrained", "checkpoint", *numbers))
        maps.append(torch.from_numpy(generated.attention_QK).half())
        patterns.append(generated.pattern)
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
        if scheme == "model":
            assert not {rows[i].model for i in train.nonzero()[0]} & {rows[i].model for i in test.nonzero()[0]}
        elif scheme != "head":
            assert not {data.tasks[i] for i in train.nonzero()[0]} & {data.tasks[i] for i in test.nonzero()[0]}
    assert (tested == 1).all()


def test_training_repeats_under_a_seed_and_leaves_the_callers_randomness_alone() -> None:
    maps, pattern_N, first_segment_N = generated_maps(100, 0)
    settings = FitSettings(**FEW)  # type: ignore[arg-type]
    generated = LabelledFeatures.of(maps, one_hot(pattern_N), partly_hidden(first_segment_N, settings))
    torch.manual_seed(0)
    first = finetune(pretrain(generated, settings), generated, generated, settings).state_dict()
    after = torch.rand(1)
    torch.manual_seed(1)
    second = finetune(pretrain(generated, settings), generated, generated, settings).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    torch.manual_seed(0)
    assert torch.equal(after, torch.rand(1))


def test_seven_of_eight_maps_in_a_batch_are_annotated(monkeypatch: pytest.MonkeyPatch) -> None:
    maps, pattern_N, first_segment_N = generated_maps(100, 0)
    generated = LabelledFeatures.of(maps, one_hot(pattern_N), first_segment_N)
    annotated_ones = LabelledFeatures(generated.features, torch.full((100, 5), 0.2))
    seen = []

    def spy(network: PatternNetwork, batches: Iterator[LabelledFeatures], *_: object) -> PatternNetwork:
        seen.extend(islice(batches, 3))
        return network

    monkeypatch.setattr(fitting, "_fit", spy)
    finetune(PatternNetwork(), generated, annotated_ones, FitSettings(batch_size=96))
    assert [(batch.target_NP == 0.2).all(1).sum().item() for batch in seen] == [84, 84, 84]
    assert {len(batch.target_NP) for batch in seen} == {96}


def test_rare_patterns_are_drawn_by_the_root_of_their_number() -> None:
    target_NP = torch.from_numpy(one_hot(np.array([0] * 90 + [3] * 10)))
    batches = islice(fitting._balanced(target_NP, 100, torch.Generator().manual_seed(0)), 100)
    rare = torch.cat(list(batches)) >= 90
    # 10 / sqrt(10) against 90 / sqrt(90): a quarter instead of a tenth.
    assert rare.double().mean().item() == pytest.approx(0.25, abs=0.02)


def test_features_keep_the_order_of_maps_and_noise_keeps_rows_normalised() -> None:
    rows, maps, _ = annotated(12)
    first_segment_N = np.array([row.first_segment for row in rows])
    together = features_of(maps, first_segment_N)
    for place, map_LL in enumerate(maps):
        for whole, single in zip(together, features_of([map_LL], first_segment_N[[place]]), strict=True):
            assert torch.allclose(whole[place], single[0], atol=1e-4)
    blurred = noisy(maps[0], torch.Generator().manual_seed(0))
    assert torch.allclose(blurred.sum(-1), torch.ones(len(blurred)), atol=1e-5)


def test_maps_of_one_model_are_not_held_out_by_model() -> None:
    rows, maps, patterns = annotated(30)
    number_N = np.array([PATTERNS.index(pattern) for pattern in patterns])
    assert schemes_of(AnnotatedMaps(rows, maps, number_N, one_hot(number_N))) == SCHEMES
    same = [replace(row, model="small") for row in rows]
    assert schemes_of(AnnotatedMaps(same, maps, number_N, one_hot(number_N))) == ("head", "task", "head_and_task")


def test_a_mirrored_map_is_that_of_the_tokens_in_reverse_order() -> None:
    for row, map_LL in zip(*annotated(20)[:2], strict=True):
        length, separator = row.length, row.separator if row.segments == 2 else None
        mirrored_LL, first_segment = mirrored(map_LL, row.first_segment)
        for query, key in [(0, 0), (2, length - 1), (length - 1, 3)]:
            assert mirrored_LL[query, key] == map_LL[length - 1 - query, length - 1 - key]
        assert first_segment == (0 if separator is None else length - 1 - separator)
        last_of_first = None if separator is None else first_segment - 1
        before, after = (
            measure_strengths(one_LL.double().numpy(), at)
            for one_LL, at in ((map_LL, separator), (mirrored_LL, last_of_first))
        )
        # Of two equal weights in a row, the left one is taken as the largest.
        assert astuple(replace(after, hugging=before.hugging)) == pytest.approx(astuple(before))


def test_variants_of_a_map_are_noisy_and_half_of_them_mirrored() -> None:
    length = 20
    # Each token attends to the next, so that the diagonal shows the direction.
    next_LL = torch.roll(torch.eye(length), 1, dims=1) * 0.8 + 0.2 / length
    copies, first_N = variants_of([next_LL] * 40, np.full(40, 6), FitSettings(variants=6))
    assert len(copies) == len(first_N) == 240
    assert all(torch.equal(copy_LL, next_LL) for copy_LL in copies[:40])
    assert not any(torch.equal(copy_LL, next_LL) for copy_LL in copies[40:])
    turned_N = np.array([bool(copy_LL.diagonal(-1).sum() > copy_LL.diagonal(1).sum()) for copy_LL in copies])
    assert not turned_N[:40].any()
    assert turned_N[40:].mean() == pytest.approx(0.5, abs=0.12)
    assert np.array_equal(first_N, np.where(turned_N, 14, 6))
    assert all(torch.allclose(copy_LL.sum(-1), torch.ones(length), atol=1e-5) for copy_LL in copies)


def test_no_fold_learns_from_its_own_test_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, maps, patterns = annotated(45)
    number_N = np.array([PATTERNS.index(pattern) for pattern in patterns])
    # Each map has different votes, which identify the maps in a training set.
    vote_NP = np.array([[1 - place / 45, place / 45, 0, 0, 0] for place in range(45)])
    data = AnnotatedMaps(rows, maps, number_N, vote_NP)
    fit = FitSettings(**FEW, hidden=0.0)  # type: ignore[arg-type]
    generated_ones, pattern_N, first_N = generated_maps(100, 0)
    generated, start = LabelledFeatures.of(generated_ones, one_hot(pattern_N), first_N), PatternNetwork().eval()
    targets = []

    def spy(
        network: PatternNetwork, _: LabelledFeatures, training: LabelledFeatures, __: FitSettings
    ) -> PatternNetwork:
        targets.append(training.target_NP.numpy())
        return network

    monkeypatch.setattr(crossvalidation, "finetune", spy)
    prepared, mass_N3 = PreparedMaps.of(data, fit), masses(generated_ones, first_N.tolist())
    answers = crossvalidation.cross_validate(data, prepared, generated, mass_N3, start, "task", fit)
    for (train_N, _), target_NP in zip(folds(data, "task", fit.seed), targets, strict=True):
        assert np.allclose(target_NP, np.tile(vote_NP[train_N], (fit.variants, 1)), atol=1e-6)
    for logit_NP, first_segment_N in (
        (answers.logit_NP, data.first_segment_N),
        (answers.without_segments_NP, np.full(45, UNKNOWN)),
    ):
        expected_NP = start(features_of(maps, first_segment_N)).detach().double().numpy()
        assert np.allclose(logit_NP, expected_NP, atol=1e-4)
    one_N = data.first_segment_N == 0
    assert (answers.probability_NP[one_N][:, PATTERNS.index("block")] == 0).all()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"fit": {"hidden": 25}}, r"fit\.hidden is 25; expected a share"),
        ({"fit": {"steps": 0}}, r"fit\.steps is 0"),
        ({"fit": {"generated": 10}}, "less than a batch"),
        ({"fit": {"learning_rate": -1}}, "learning_rate is -1; expected a number above 0"),
        ({"fit": {"epoch": 3}}, r"Unknown key 'fit\.epoch'; did you mean 'epochs'"),
        ({"margin": 2}, r"margin is 2; expected a number from 0 to 1"),
        ({"resamples": 0.5}, r"resamples is 0\.5; expected a whole number from 100"),
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        TrainingSettings.read("", wrong)


def test_the_shipped_classifier_was_trained_with_the_default_settings() -> None:
    card = json.loads((SHIPPED / CARD).read_text("utf-8"))
    assert FitSettings.read("", card["training"]) == FitSettings()


def test_a_quarter_of_the_segments_is_hidden() -> None:
    first_segment_N = np.arange(4000) % 30
    hidden_N = partly_hidden(first_segment_N, FitSettings(hidden=0.25))
    assert (hidden_N == -1).mean() == pytest.approx(0.25, abs=0.03)
    assert np.array_equal(hidden_N[hidden_N >= 0], first_segment_N[hidden_N >= 0])


@pytest.mark.slow
def test_from_annotated_maps_to_a_classifier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, maps, patterns = annotated()
    source, out = tmp_path / "maps", tmp_path / "out"
    MapSet().add(rows, {row.map: map_LL for row, map_LL in zip(rows, maps, strict=True)}).write(source)
    at = "2026-01-31T12:00:00+00:00"
    labels = [Label(row.map, pattern, "a", 1, at) for row, pattern in zip(rows, patterns, strict=True)]
    # The passes differ on the last map.
    second = [Label(label.map, label.pattern, "b", 2, at) for label in labels[:-1]]
    write_labels(
        source, [*labels, *second, Label(rows[-1].map, "block" if patterns[-1] != "block" else "diagonal", "b", 2, at)]
    )
    monkeypatch.setattr(command, "_UNSEEN", 50)
    settings = TrainingSettings.read("", {"fit": {**FEW, "seed": 0}, "resamples": 100, "mistakes": 3})
    evaluation = command.train_classifier([source], out, settings, progress=False)
    content = json.loads((out / "evaluation.json").read_text())
    assert content == json.loads(json.dumps(evaluation.as_dict()))
    assert evaluation.maps == 89
    assert evaluation.patterns == {name: patterns[:-1].count(name) for name in PATTERNS}
    with (out / "predictions.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 4 * 89
    for scheme in SCHEMES:
        mine = [line for line in lines if line["held_out"] == scheme]
        right = sum(line["found"] == line["pattern"] for line in mine) / len(mine)
        assert content["held_out"][scheme]["accuracy"] == pytest.approx(right)
        assert sum(map(sum, content["held_out"][scheme]["confusion"])) == 89
    unmet = [line for line in lines if line["held_out"] == "model"]
    for model, scores in content["held_out"]["model"]["models"].items():
        right = [line["found"] == line["pattern"] for line, row in zip(unmet, rows, strict=False) if row.model == model]
        assert scores["maps"] == len(right)
        assert scores["accuracy"] == pytest.approx(np.mean(right))
    assert sum(scores["maps"] for scores in content["held_out"]["model"]["models"].values()) == 89
    assert json.loads((out / "weights.json").read_text())["evaluation"]["maps"] == 89
    # Both passes give the true patterns but for the last map, which is left out: they agree with each other.
    for number in ("1", "2"):
        scores = evaluation.passes[number]
        assert (scores.maps, scores.annotators) == (89, 1)
        assert scores.network["head"] == pytest.approx(content["held_out"]["head"]["macro_f1"]["value"])
    assert (out / "classifier.html").is_file()
    assert {path.name for path in (out / "figures").iterdir()} >= {"confusion.png", "reliability.png", "mistakes.png"}
    load_classifier(out)


def test_maps_of_several_folders_are_read_together(tmp_path: Path) -> None:
    rows, maps, patterns = annotated(40)
    at = "2026-01-31T12:00:00+00:00"
    for folder, members in (("first", slice(0, 25)), ("second", slice(25, 40))):
        named = {row.map: map_LL for row, map_LL in zip(rows[members], maps[members], strict=True)}
        MapSet().add(rows[members], named).write(tmp_path / folder)
        pairs = list(zip(named, patterns[members], strict=True))
        write_labels(
            tmp_path / folder, [Label(name, pattern, "a", number, at) for name, pattern in pairs for number in (1, 2)]
        )
    together = read_annotated_maps(tmp_path / "first", tmp_path / "second")
    assert list(together.rows) == rows
    assert [PATTERNS[number] for number in together.pattern_N] == patterns
    assert all(torch.equal(one_LL, other_LL) for one_LL, other_LL in zip(together.maps, maps, strict=True))


def test_folders_that_cannot_be_trained_on_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no maps\.csv with labels\.csv"):
        read_annotated_maps(tmp_path)
    rows, maps, _ = annotated(4)
    MapSet().add(rows, {row.map: map_LL for row, map_LL in zip(rows, maps, strict=True)}).write(tmp_path)
    write_labels(tmp_path, [Label(rows[0].map, "block", "a", number, "2026-01-31T12:00:00+00:00") for number in (1, 2)])
    with pytest.raises(UserError, match="1 maps have a consensus, of 1 heads and 1 tasks"):
        check_enough_to_train(read_annotated_maps(tmp_path))
    write_labels(tmp_path, [Label(rows[0].map, "block", "a", 1, "2026-01-31T12:00:00+00:00")])
    with pytest.raises(UserError, match=r"No map in .* has a consensus"):
        read_annotated_maps(tmp_path)


def test_a_classifier_is_scored_on_clear_maps_by_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, maps, patterns = annotated(60)
    MapSet().add(rows, {row.map: map_LL for row, map_LL in zip(rows, maps, strict=True)}).write(tmp_path)
    at = "2026-01-31T12:00:00+00:00"
    labels = [Label(row.map, pattern, "a", n, at) for row, pattern in zip(rows, patterns, strict=True) for n in (1, 2)]
    # Two of three passes decide, but the map is not clear.
    other = "block" if patterns[0] != "block" else "diagonal"
    write_labels(tmp_path, [*labels, Label(rows[0].map, other, "a", 3, at)])
    scores = score_classifier(read_annotated_maps(tmp_path), load_classifier())
    assert {name: score.maps for name, score in scores.items()} == {"large": 20, "small": 39, "all models": 59}
    classifier, right = load_classifier(), []
    for row, map_LL, pattern in list(zip(rows, maps, patterns, strict=True))[1:]:
        real = torch.ones(1, row.length, dtype=torch.bool)
        answer = classifier(map_LL.float()[None, None], real, torch.tensor([row.first_segment])).pattern
        right.append(PATTERNS[int(answer)] == pattern)
    assert scores["all models"].accuracy == pytest.approx(np.mean(right))
    scoring_command([str(tmp_path)])
    assert "small: 39 clear maps, accuracy" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="error: Folder"):
        scoring_command([str(tmp_path / "gone")])


def test_a_saved_classifier_loads_unchanged(tmp_path: Path) -> None:
    classifier = load_classifier()
    command.save_classifier(classifier, tmp_path, {"training": {"seed": 1}})
    again = load_classifier(tmp_path)
    state = classifier.network.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in again.network.state_dict().items())
    assert (again.temperature, again.margin) == (classifier.temperature, classifier.margin)
    assert json.loads((tmp_path / CARD).read_text())["training"] == {"seed": 1}


def test_a_sheet_draws_every_map_with_its_title() -> None:
    figure = map_sheet([(f"map {place}", np.eye(9) * place) for place in range(6)], title="t", note="n")
    drawn = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title() for axes in drawn] == [f"map {place}" for place in range(6)]
    # The largest weight is yellow, and a map of zeros dark.
    assert drawn[1].images[0].get_array()[0, 0].tolist() == PALETTE[255].tolist()
    assert drawn[0].images[0].get_array()[0, 0].tolist() == PALETTE[0].tolist()
