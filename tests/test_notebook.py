"""The public API on a tiny model: its numbers are those of the measures and of a naive loop, and mistakes are one
sentence.
"""

import copy
import shutil
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from reporting.finished_runs import make_run
from torch import Tensor
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertTokenizer,
    FNetConfig,
    FNetModel,
    GPT2Config,
    GPT2Model,
)

import bertsecrets as bs
from bertsecrets.data.batch import Batch
from bertsecrets.errors import UserError

TEXTS = ["The cat sat.", "It rained all day.", "A dog.", "Nobody came to the party."]


@pytest.fixture(scope="module")
def pair(tiny_bert):  # type: ignore[no-untyped-def]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForSequenceClassification.from_pretrained(tiny_bert).eval()
    return model, AutoTokenizer.from_pretrained(tiny_bert)


def test_offsets_equal_a_loop_over_watched_maps(pair) -> None:  # type: ignore[no-untyped-def]
    model, tokenizer = pair
    sums: dict[int, Tensor] = {}
    for text in TEXTS:

        def observe(layer: int, attention_BHQK: Tensor) -> None:
            value = attention_BHQK[0].diagonal(1, -2, -1).mean(-1).double()
            sums[layer] = sums.get(layer, 0) + value / len(TEXTS)

        with bs.watch(model, observe):
            model(**tokenizer(text, return_tensors="pt"))
    expected_LH = torch.stack([sums[layer] for layer in sorted(sums)])
    grid = bs.measure(model, tokenizer, TEXTS, "offsets", batch_size=2)
    assert torch.allclose(grid.column("next"), expected_LH, atol=1e-6)
    frame = grid.to_pandas()
    assert len(frame) == expected_LH.numel() * 3
    assert "next token" in repr(grid)
    assert grid._repr_html_().startswith("<img")
    assert grid.plot("same").get_suptitle() == "offsets: same token"


def test_several_measures_come_by_name_and_drift_needs_a_reference(pair, tiny_bert) -> None:  # type: ignore[no-untyped-def]
    model, tokenizer = pair
    other = AutoModelForSequenceClassification.from_pretrained(tiny_bert)
    grids = bs.measure(model, tokenizer, [("a b", "c"), ("d", "e f")], ["entropy", "drift"], reference=other)
    assert list(grids) == ["entropy", "drift"]
    assert torch.allclose(grids["drift"].column("cosine"), torch.ones((), dtype=torch.float64), atol=1e-6)
    with pytest.raises(UserError, match="give reference="):
        bs.measure(model, tokenizer, TEXTS, "drift")


def test_disabling_equals_overriding_one_head_at_a_time(pair) -> None:  # type: ignore[no-untyped-def]
    model, tokenizer = pair
    labels = [0, 1, 0, 1]
    disabled = bs.disable(model, tokenizer, TEXTS, labels, mode="zero", resamples=100)
    heads = model.config.num_attention_heads
    for place in range(model.config.num_hidden_layers * heads):
        edit = bs.HeadEdit(*divmod(place, heads), mode="zero")
        with torch.no_grad(), bs.override(model, [edit]):
            logits = torch.cat([model(**tokenizer(text, return_tensors="pt")).logits for text in TEXTS])
        assert torch.allclose(disabled.outcomes.logits_NVC[:, place], logits, atol=2e-5)
    assert set(disabled.to_pandas()["variant"]) == {row["variant"] for row in disabled.rows}
    assert len(disabled.grids[0].described) == 1
    assert "disabled in turn (zero)" in repr(disabled)


def test_components_are_left_out_in_place_of_the_plans(pair) -> None:  # type: ignore[no-untyped-def]
    model, tokenizer = pair
    disabled = bs.disable(model, tokenizer, TEXTS, [0, 1, 0, 1], components=["ffn", "layers"], resamples=100)
    assert list(disabled.to_pandas()["kind"].unique()) == ["ffn", "block"]
    assert "feed-forward sublayers left out in turn" in repr(disabled)


@pytest.mark.parametrize("mode", ["mean", "resample", "optimal"])
def test_modes_take_their_replacements_from_other_texts(pair, mode: str) -> None:  # type: ignore[no-untyped-def]
    model, tokenizer = pair
    settings = {"mode": mode, "resamples": 100, "draws": 1, "optimal_steps": 2, "permutations": 100}
    others = ["Birds sing.", "A stone fell on the road.", "Nobody came."]
    first, second = (
        bs.disable(
            model, tokenizer, TEXTS, [0, 1, 0, 1], reference_texts=chosen, reference_labels=[0, 1, 1], **settings
        )
        for chosen in (others, [text.upper() + " Rain." for text in others])
    )
    assert f"disabled in turn ({mode})" in repr(first)
    assert (first.outcomes.logits_NVC - second.outcomes.logits_NVC).abs().max() > 1e-5


class WrongShape(bs.Measure):
    name, title = "wrong_shape", "Wrong shape"
    columns = (bs.Column("number", "a number"),)

    def per_example(self, attention_BHQK: Tensor, batch: Batch, reference_BHQK: Tensor | None) -> Tensor:
        return attention_BHQK.mean((0, 2, 3))[:, None]


def broken(model: torch.nn.Module) -> torch.nn.Module:
    """A copy with one weight that is not a number."""
    other = copy.deepcopy(model)
    next(other.parameters()).data[0, 0] = torch.nan
    return other


def test_mistakes_are_one_sentence(pair, tiny_bert) -> None:  # type: ignore[no-untyped-def]
    model, tokenizer = pair
    slow = BertTokenizer(vocab={token: place for place, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])})
    decoder = GPT2Model(GPT2Config(n_layer=1, n_head=1, n_embd=8, vocab_size=50))
    without_heads = FNetModel(FNetConfig(vocab_size=30522, hidden_size=8, num_hidden_layers=1, intermediate_size=8))
    several = copy.deepcopy(model)
    several.config.problem_type = "multi_label_classification"
    wrong = [
        (lambda: bs.measure(model, tokenizer, [], "entropy"), "texts is empty"),
        (lambda: bs.measure(model, tokenizer, "The cat.", "entropy"), "give a list of sentences"),
        (lambda: bs.measure(model, tokenizer, ["a", ("b", "c")], "entropy"), "only sentences or only pairs"),
        (lambda: bs.measure(model, tokenizer, ["a", None], "entropy"), "neither a sentence nor a pair"),
        (lambda: bs.measure(model, tokenizer, ["a", "b \udfff"], "entropy"), r"'b \\udfff' has a lone surrogate"),
        (lambda: bs.disable(model, tokenizer, [("a", "\ud800"), ("b", "c")], [0, 1]), r"has a lone surrogate"),
        (lambda: bs.measure(model, tokenizer, TEXTS, "entrpy"), "did you mean 'entropy'"),
        (lambda: bs.measure(model, tokenizer, TEXTS, []), "measures is empty"),
        (lambda: bs.measure(model, tokenizer, TEXTS, WrongShape), r"expected \[1, 4, 1\]: one for each example"),
        (lambda: bs.measure(model, tokenizer, TEXTS, ["entropy", "entropy"]), "Two measures are called"),
        (lambda: bs.measure(model, tokenizer, TEXTS, "drift", reference=model), "reference is the model itself"),
        (lambda: bs.measure(model, None, TEXTS, "entropy"), "tokenizer is NoneType"),
        (lambda: bs.measure(decoder, tokenizer, TEXTS, "entropy"), "is a decoder"),
        (lambda: bs.disable(model, tokenizer, TEXTS, [0, 1]), "4 texts and 2 labels"),
        (
            lambda: bs.disable(model, tokenizer, TEXTS, [0, 1, 0, 1], mode="optimal"),
            "give reference_texts and reference_labels",
        ),
        (
            lambda: bs.disable(
                model, tokenizer, TEXTS, [0, 1, 0, 1], mode="mean", reference_texts=["a"], reference_labels=[]
            ),
            "1 reference_texts and 0 labels",
        ),
        (
            lambda: bs.disable(model, tokenizer, TEXTS[:1], [0], mode="resample"),
            "only 0 of the 1 reference examples differ",
        ),
        (lambda: bs.disable(model, tokenizer, TEXTS, [0, 1, 2, 7]), "is not a class of the model"),
        (lambda: bs.disable(model, tokenizer, TEXTS, [0, 1, 0, 1], ["hats"]), "Unknown plan 'hats'"),
        (lambda: bs.disable(model, tokenizer, TEXTS, [0, 1, 0, 1], level=2), "settings.level is 2"),
        (lambda: bs.disable(model, tokenizer, TEXTS, [0, 1, 0, 1], precision="bf16-mixed"), "no setting 'precision'"),
        (lambda: bs.disable(model, tokenizer, TEXTS, [0, 1, 0, 1], group_size=2), "no setting 'group_size'"),
        (
            lambda: bs.disable(model, tokenizer, TEXTS, [0, 1, 0, 1], mode="mean", reference_labels=[0]),
            "reference_labels is given without reference_texts",
        ),
        (lambda: bs.measure(model, tokenizer, {"text": TEXTS}, "entropy"), "texts is a dict; give one of its columns"),
        (lambda: bs.measure(model, tokenizer, pandas.DataFrame({"text": TEXTS}), "entropy"), "texts is a DataFrame"),
        (lambda: bs.measure(model, tokenizer, TEXTS, "entropy", max_length=0), "max_length is 0"),
        (lambda: bs.measure(model, tokenizer, TEXTS, "entropy", max_length=3.5), "max_length is 3.5"),
        (lambda: bs.disable(model, tokenizer, TEXTS, [0, 1, 0, 1], max_length=5000), "but the model accepts at most"),
        (lambda: bs.fine_tune(copy.deepcopy(model).half(), tokenizer, TEXTS, [0, 1, 0, 1]), r"give model.float\(\)"),
        (lambda: bs.measure(broken(model), tokenizer, TEXTS, "entropy"), "contains non-finite numbers"),
        (lambda: bs.Run("nowhere"), "'nowhere' is not a folder"),
        (lambda: bs.measure(without_heads, tokenizer, TEXTS, "entropy"), "'fnet' has no attention heads to watch"),
        (lambda: bs.disable(several, tokenizer, TEXTS, [0, 1, 0, 1]), "assigns several labels to a text"),
    ]
    for call, message in wrong:
        with pytest.raises(UserError, match=message):
            call()
    if not slow.is_fast:
        with pytest.raises(UserError, match="fast"):
            bs.measure(model, slow, TEXTS, "entropy")


def test_every_public_name_has_a_docstring_and_no_other_name_exists() -> None:
    for name in bs.__all__:
        assert getattr(bs, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = bs.nothing


def test_fine_tuning_equals_a_plain_loop(pair) -> None:  # type: ignore[no-untyped-call,no-untyped-def]
    model, tokenizer = pair
    one, other = copy.deepcopy(model), copy.deepcopy(model)
    for network in (one, other):
        for module in network.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
    labels = [0, 1, 0, 1]
    bs.fine_tune(one, tokenizer, TEXTS, labels, epochs=4, learning_rate=1e-3, weight_decay=0.0, warmup_fraction=0.25)
    assert not one.training
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
    stepper = torch.optim.AdamW(other.parameters(), lr=1e-3, weight_decay=0.0)
    # One step an epoch: the rate rises over one of four steps and falls to 0 over the others.
    for rate in (0.0, 1.0, 2 / 3, 1 / 3):
        stepper.param_groups[0]["lr"] = 1e-3 * rate
        stepper.zero_grad()
        other(**inputs, labels=torch.tensor(labels)).loss.backward()
        torch.nn.utils.clip_grad_norm_(other.parameters(), 1.0)
        stepper.step()
    with torch.no_grad():
        assert torch.allclose(one(**inputs).logits, other.eval()(**inputs).logits, atol=1e-5)
        assert not torch.allclose(one(**inputs).logits, model(**inputs).logits, atol=1e-3)


def test_a_training_that_cannot_be_leaves_the_weights_as_they_were(pair) -> None:  # type: ignore[no-untyped-def]
    model, tokenizer = pair
    broken = copy.deepcopy(model)
    # Logits of infinity less infinity.
    torch.nn.init.constant_(broken.classifier.weight, 1e38)
    torch.nn.init.constant_(broken.classifier.bias, 3e38)
    torch.nn.init.constant_(broken.bert.pooler.dense.weight, 1e38)
    before = copy.deepcopy(broken.state_dict())
    with pytest.raises(UserError, match=r"(gradient norm|training loss) is (nan|inf|not finite)"):
        bs.fine_tune(broken, tokenizer, TEXTS, [0, 1, 0, 1], freeze=["embeddings"])
    assert all(torch.equal(value, before[name]) for name, value in broken.state_dict().items())
    assert all(parameter.requires_grad for parameter in broken.parameters())
    assert not broken.training


def test_demo_texts_bring_gold_annotation(pair) -> None:  # type: ignore[no-untyped-def]
    model, tokenizer = pair
    demo = bs.demo("demo_nli", "validation", 5)
    assert (len(demo), demo.classes) == (5, ("entailment", "neutral", "contradiction"))
    assert all(0 <= label < 3 for label in demo.labels)
    for text, sentences in zip(demo.texts, demo.annotations, strict=True):
        for sentence, annotation in zip(text, sentences, strict=True):
            assert all(sentence[word.start : word.end] == word.form for word in annotation.words)
    grid = bs.measure(model, tokenizer, demo.texts, "features", annotations=demo.annotations)
    assert grid.value_LHC.isfinite().any()
    with pytest.raises(UserError, match="annotations does not match the 4 texts"):
        bs.measure(model, tokenizer, TEXTS, "features", annotations=demo.annotations)
    with pytest.raises(UserError, match="pipeline and annotations are both given"):
        bs.measure(model, tokenizer, demo.texts, "features", annotations=demo.annotations, pipeline="x")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("demo_nil",), "Unknown demo task 'demo_nil'; did you mean 'demo_nli'?"),
        (("demo_nli", "test"), "Unknown split 'test'; valid names: train, validation."),
    ],
)
def test_unknown_demo_texts_are_refused(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError) as error:
        bs.demo(*arguments)  # type: ignore[arg-type]
    assert message in str(error.value)


def test_columns_of_pandas_and_arrays_are_lists_of_texts(pair) -> None:  # type: ignore[no-untyped-def]
    model, tokenizer = pair
    labels = [0, 1, 0, 1]
    expected = bs.disable(model, tokenizer, TEXTS, labels, ["layers"], resamples=100).to_pandas()
    frame = pandas.DataFrame({"text": TEXTS, "label": labels}, index=[7, 8, 9, 10])
    for texts, known in (
        (frame["text"], frame["label"]),
        (np.array(TEXTS), torch.tensor(labels)),
        (tuple(TEXTS), labels),
    ):
        found = bs.disable(model, tokenizer, texts, known, ["layers"], resamples=100).to_pandas()
        pandas.testing.assert_frame_equal(found, expected)


def test_a_score_must_be_a_finite_number(tiny_bert) -> None:  # type: ignore[no-untyped-def]
    model = AutoModelForSequenceClassification.from_pretrained(tiny_bert, num_labels=1)
    tokenizer = AutoTokenizer.from_pretrained(tiny_bert)
    with pytest.raises(UserError, match="Label nan is not a score"):
        bs.fine_tune(model, tokenizer, TEXTS, [0.1, 0.2, float("nan"), 0.4])


def test_logits_that_are_no_numbers_are_refused(pair) -> None:  # type: ignore[no-untyped-def]
    model, tokenizer = pair
    overflowing = copy.deepcopy(model)
    torch.nn.init.constant_(overflowing.classifier.weight, 1e38)
    torch.nn.init.constant_(overflowing.classifier.bias, 3e38)
    torch.nn.init.constant_(overflowing.bert.pooler.dense.weight, 1e38)
    with pytest.raises(UserError, match="The logits of the model are not all finite"):
        bs.disable(overflowing, tokenizer, TEXTS, [0, 1, 0, 1])


def test_texts_that_are_cut_are_counted(pair) -> None:  # type: ignore[no-untyped-def]
    model, tokenizer = pair
    with pytest.warns(UserWarning, match="1 of 4 texts were truncated to 6 tokens"):
        bs.measure(model, tokenizer, ["a b", "a", "b c", "a b c d e f g"], "entropy", max_length=6)


def test_frozen_layers_are_frozen_for_one_training(pair) -> None:  # type: ignore[no-untyped-def]
    model, tokenizer = pair
    tuned = copy.deepcopy(model)
    before = copy.deepcopy(tuned.state_dict())
    bs.fine_tune(tuned, tokenizer, TEXTS, [0, 1, 0, 1], epochs=1, freeze=["embeddings", 0])
    first = [name for name in before if ".layer.0." in name and name.endswith("weight")]
    assert all(torch.equal(tuned.state_dict()[name], before[name]) for name in first)
    assert all(parameter.requires_grad for parameter in tuned.parameters())
    bs.fine_tune(tuned, tokenizer, TEXTS, [0, 1, 0, 1])
    assert not any(torch.equal(tuned.state_dict()[name], before[name]) for name in first)


def test_the_mode_of_every_part_comes_back(pair) -> None:  # type: ignore[no-untyped-def]
    model, tokenizer = pair
    mixed = copy.deepcopy(model).train()
    mixed.bert.encoder.eval()
    modes = [part.training for part in mixed.modules()]
    bs.measure(mixed, tokenizer, TEXTS, "entropy")
    bs.disable(mixed, tokenizer, TEXTS, [0, 1, 0, 1], resamples=100)
    assert [part.training for part in mixed.modules()] == modes


def test_padding_on_the_left_gives_the_numbers_of_the_right(pair, tiny_bert) -> None:  # type: ignore[no-untyped-def]
    model, tokenizer = pair
    left = AutoTokenizer.from_pretrained(tiny_bert, padding_side="left")
    one_by_one = bs.measure(model, tokenizer, TEXTS, "offsets", batch_size=1)
    together = bs.measure(model, left, TEXTS, "offsets")
    assert torch.allclose(together.value_LHC, one_by_one.value_LHC, atol=1e-6)


def test_a_finished_run_prints_plots_and_turns_into_pandas(tmp_path: Path) -> None:
    change_LH = np.linspace(-0.1, 0.02, 6).reshape(2, 3)
    make_run(tmp_path / "run", cosine_LH=1 - np.abs(change_LH), delta_LH=change_LH)
    run = bs.Run(str(tmp_path / "run"))
    frame = run.to_pandas()
    assert list(frame.columns[:2]) == ["layer", "head"]
    assert frame[["layer", "head"]].to_numpy().tolist() == [[layer, head] for layer in range(2) for head in range(3)]
    disabled = run.disabled().sort_values(["layer", "head"])
    assert disabled["delta"].to_numpy() == pytest.approx(change_LH.ravel())
    assert repr(run).startswith("Run '")
    assert run.plots()
    assert "<img" in run._repr_html_()
    assert "<script" not in run._repr_html_()
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(UserError, match="is not a folder"):
        bs.Run(tmp_path / "run")
