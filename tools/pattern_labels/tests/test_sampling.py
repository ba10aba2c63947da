"""Maps are sampled evenly over heads and lengths, or by pattern, and equal the model's maps."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data.toy import pairs, wordpiece
from families import CONFIGS
from hypothesis import given
from hypothesis import strategies as st
from transformers import BertForSequenceClassification

from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.errors import UserError
from bertsecrets.patterns.classifier import Judgement, PatternClassifier, load_classifier
from bertsecrets.results.run import Run
from tools.pattern_classifier.annotated_maps import PROJECT_MAPS
from tools.pattern_labels.labels import (
    read_labels,
)
from tools.pattern_labels.map_set import MapSet
from tools.pattern_labels.rules import Rules
from tools.pattern_labels.sampling import (
    Sampler,
    SampleSettings,
    choose_by_pattern,
    choose_examples,
    choose_heads,
    possible_patterns,
)
from tools.pattern_labels.tests.annotation_folders import map_set


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(0, 99))
def test_heads_differ_by_at_most_one_map_over_any_number_of_runs(counts: list[int], seed: int) -> None:
    taken: list[tuple[int, int]] = []
    for count in counts:
        taken += choose_heads(count, 3, 4, taken, seed)
    assert len(taken) == sum(counts)
    maps = Counter(taken)
    every = [maps[layer, head] for layer in range(3) for head in range(4)]
    assert sum(every) == len(taken)
    assert max(every) - min(every) <= 1


def test_lengths_spread_evenly_when_those_of_the_examples_do_not() -> None:
    lengths = [20] * 1000 + list(range(5, 80))
    chosen = choose_examples(56, lengths, 8, 63, seed=1)
    sampled = np.array([lengths[position] for position in chosen])
    assert len(set(chosen)) == 56
    assert sampled.min() >= 8
    assert sampled.max() <= 63
    by_quarter = np.histogram(sampled, [8, 22, 36, 50, 64])[0]
    assert by_quarter.min() >= 7
    with pytest.raises(UserError, match="No example has 100 to 110 tokens"):
        choose_examples(1, lengths, 100, 110, seed=1)


def test_rare_patterns_alternate_and_so_do_their_heads() -> None:
    # Head (0, 0) has nine diagonal maps and (1, 1) one; (2, 0) has the only two block maps, one of them doubtful.
    candidates = [((0, 0), {"diagonal"})] * 9 + [((1, 1), {"diagonal"}), ((2, 0), {"block"})]
    candidates += [((2, 0), {"block", "diagonal"}), ((3, 0), {"vertical"})]
    chosen = choose_by_pattern(5, candidates, ["diagonal", "block"], seed=3)
    assert [pattern for _, pattern in chosen][:3] == ["diagonal", "block", "diagonal"]
    assert len({n for n, _ in chosen}) == 5
    assert all(pattern in candidates[n][1] for n, pattern in chosen)
    heads = [candidates[n][0] for n, pattern in chosen if pattern == "diagonal"]
    assert set(heads[:2]) < {(0, 0), (1, 1), (2, 0)}
    assert len(set(heads[:2])) == 2
    # At most all candidates, and only with a wanted pattern.
    everything = choose_by_pattern(50, candidates, ["diagonal", "block"], seed=3)
    assert sorted(n for n, _ in everything) == list(range(12))


def test_maps_sampled_for_a_pattern_have_it_and_equal_the_model_s(tmp_path: Path) -> None:
    tokenizer = wordpiece()
    config = CONFIGS["bert"]()
    config.vocab_size = len(tokenizer)
    # Constant keys: every token attends evenly to all, so that every map is heterogeneous.
    model = BertForSequenceClassification(config)
    for layer in model.bert.encoder.layer:
        torch.nn.init.zeros_(layer.attention.self.key.weight)
    models = {"initial": model.eval(), "checkpoint": model}
    dataset = EncodedSplit(pairs(12), tokenizer, max_length=32)
    run = Run(tmp_path, "s1", "tiny", "mrpc", "pretrained")
    rare = SampleSettings(patterns=["diagonal", "block"], maps=4)
    none, _ = Sampler(run, models, dataset, rare).sample(MapSet())
    assert none == []
    sampler = Sampler(run, models, dataset, SampleSettings(patterns=["heterogeneous"], maps=6))
    rows, maps = sampler.sample(MapSet())
    assert [row.sought for row in rows] == ["heterogeneous"] * 6
    assert len({row.map for row in rows}) == 6
    for row in rows:
        assert torch.allclose(maps[row.map].float(), torch.full((row.length, row.length), 1 / row.length), atol=1e-3)
    earlier = MapSet().add(rows, maps)
    more, _ = sampler.sample(earlier)
    assert not {row.map for row in more} & set(earlier.names)


def test_network_and_rules_know_where_the_first_segment_ends() -> None:
    halves = torch.block_diag(torch.full((6, 6), 1 / 6), torch.full((14, 14), 1 / 14))
    passed: list[torch.Tensor] = []

    class Spy(PatternClassifier):
        def forward(
            self, attention_BHQK: torch.Tensor, real_BS: torch.Tensor, first_segment_B: torch.Tensor | None = None
        ) -> Judgement:
            assert first_segment_B is not None
            passed.append(first_segment_B)
            return super().forward(attention_BHQK, real_BS, first_segment_B)

    classifier = Spy(load_classifier().network)
    for first, shows in ((6, True), (0, False)):
        patterns = possible_patterns(classifier, Rules(), halves[None], first)
        assert passed[-1].tolist() == [first]
        assert ("block" in patterns[0]) == shows


def test_sampled_maps_are_those_of_the_model_without_padding(tmp_path: Path) -> None:
    tokenizer = wordpiece()
    config = CONFIGS["bert"]()
    config.vocab_size, config._attn_implementation = len(tokenizer), "eager"
    # Maps far from uniform, so that heads differ clearly.
    config.initializer_range = 0.5
    models = {"initial": BertForSequenceClassification(config), "checkpoint": BertForSequenceClassification(config)}
    models = {stage: model.eval() for stage, model in models.items()}
    examples = pairs(40)
    dataset = EncodedSplit(examples, tokenizer, max_length=32)
    run = Run(tmp_path, "s1", "tiny", "mrpc", "pretrained")
    rows, maps = Sampler(run, models, dataset, SampleSettings(maps=20)).sample(MapSet())
    assert Counter(row.stage for row in rows) == {"initial": 10, "checkpoint": 10}
    assert len(maps) == 20
    for row in rows:
        inputs = tokenizer(*examples[row.example].texts, truncation="longest_first", max_length=32, return_tensors="pt")
        with torch.no_grad():
            attention = models[row.stage](**inputs, output_attentions=True).attentions[row.layer]
        assert torch.allclose(maps[row.map].float(), attention[0, row.head], atol=1e-3)
        assert row.separator == inputs["input_ids"][0].tolist().index(tokenizer.sep_token_id)
        assert row.first_segment == int((inputs["token_type_ids"] == 0).sum())
        assert row.map == f"s1-{row.stage}-l{row.layer:02d}h{row.head:02d}-e{row.example}"
        assert (row.task, row.model, row.segments, row.length) == ("mrpc", "tiny", 2, inputs["input_ids"].shape[1])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"maps": 0}, "maps is 0; expected a whole number from 1"),
        ({"maps": "many"}, "maps is 'many'; expected a whole number from 1"),
        ({"mpas": 3}, "Unknown key 'mpas'; did you mean 'maps'"),
        ({"max_length": 7}, "max_length is 7; expected a whole number from 8"),
        ({"stages": ["inital"]}, "Unknown stage 'inital' in stages; did you mean 'initial'"),
        ({"stages": []}, "names no stage"),
        ({"patterns": ["diagnal"]}, "Unknown pattern 'diagnal' in patterns; did you mean 'diagonal'"),
        ({"patterns": []}, "patterns names no pattern; choose from vertical"),
        ({"examples": 0}, "examples is 0"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        SampleSettings.read("", settings)


def test_a_folder_of_maps_is_read_as_written(tmp_path: Path) -> None:
    maps = map_set()
    maps.write(tmp_path)
    read = MapSet.read(tmp_path)
    assert read.rows == maps.rows
    assert all(torch.equal(read[name], maps[name]) for name in maps.names)
    again = read.add(maps.rows, {name: maps[name].float() for name in maps.names})
    assert again.rows == maps.rows
    name = maps.names[0]
    with pytest.raises(UserError, match=f"Map '{name}' is already in the annotation folder"):
        read.add(maps.rows[:1], {name: 1 - maps[name]})
    table = (tmp_path / "maps.csv").read_text("utf-8")
    head, first, *others = table.splitlines()
    names = head.split(",")
    values = first.split(",")
    values[names.index("separator")] = "900"
    (tmp_path / "maps.csv").write_text("\n".join([head, ",".join(values), *others]) + "\n", "utf-8")
    with pytest.raises(UserError, match="separator 900; expected a square map"):
        MapSet.read(tmp_path)
    (tmp_path / "maps.csv").write_text(table, "utf-8")
    (tmp_path / "maps.safetensors").write_bytes(b"no such thing")
    with pytest.raises(UserError, match="cannot be read as annotated maps"):
        MapSet.read(tmp_path)


def test_the_project_s_maps_are_stratified() -> None:
    maps = MapSet.read(PROJECT_MAPS)
    assert len(maps.rows) >= 1_800
    assert sum(path.stat().st_size for path in PROJECT_MAPS.iterdir()) < 8_000_000
    stratified = [row for row in maps.rows if not row.sought]
    for model, count in (("minilm", 72), ("paraphrase-minilm-l3", 36), ("all-mpnet-base-v2", 144)):
        heads = Counter((row.layer, row.head) for row in stratified if row.model == model)
        assert len(heads) == count
        assert max(heads.values()) - min(heads.values()) <= 1
    tasks = Counter(row.task for row in stratified)
    assert len(tasks) == 8
    assert all(count >= 72 for count in tasks.values())
    for row in maps.rows:
        assert maps[row.map].dtype == torch.float16
        assert maps[row.map].shape == (row.length, row.length)
        assert torch.allclose(maps[row.map].float().sum(-1), torch.ones(row.length), atol=5e-3)
    assert {label.map for label in read_labels(PROJECT_MAPS)} <= set(maps.names)
