"""Override modes: a ninth one from this file alone, found by override, engine, callback and notebook; and bad ones."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from callbacks.test_disable import swept
from families import HEADS, LAYERS, tiny_batch, tiny_model
from packages import installed, write_package
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel

import bertsecrets as bs
from bertsecrets.ablation.engine import Engine
from bertsecrets.ablation.plan import Plan, every_head, every_layer
from bertsecrets.ablation.rows import beside_table
from bertsecrets.ablation.settings import AblationSettings
from bertsecrets.attention.modes import find_mode, mode_names
from bertsecrets.attention.override import HeadEdit, override
from bertsecrets.cli.help import help_text
from bertsecrets.errors import UserError
from bertsecrets.present.disabling import ablation_sections

PEAK = """
import torch
from bertsecrets.attention.modes import ModeNeed, OverrideMode

class Pick(OverrideMode):
    name = "pick"
    words = "the value of the token that it attends to most"
    needs = frozenset({ModeNeed.ATTENTION, ModeNeed.VALUES})

    def replacement(self, heads):
        most_BHQ = heads.attention().argmax(-1)
        values_BHSd = heads.values_BSHd.transpose(1, 2)
        index_BHQd = most_BHQ[..., None].expand(-1, -1, -1, values_BHSd.shape[-1])
        return values_BHSd.gather(2, index_BHQd).transpose(1, 2)

class Half(OverrideMode):
    name = "half"
    words = "half of its output"

    def replacement(self, heads):
        return heads.output_BSHd / 2

class Other(OverrideMode):
    name = "another"
    words = "nothing"
"""


@pytest.fixture(scope="module", autouse=True)
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    modes = {"pick": "odd_modes:Pick", "half": "odd_modes:Half", "misnamed": "odd_modes:Other"}
    bad = {"number": "odd_modes:HEADS", "gone": "odd_modes_gone:X", "zero": "odd_modes:Half"}
    files = {"odd_modes.py": f"{PEAK}\nHEADS = 3\n"}
    folder = write_package(tmp_path_factory.mktemp("packages") / "odd_modes", files, {"override_modes": modes | bad})
    with installed(folder):
        yield


@torch.no_grad()
def peaked(model: PreTrainedModel, inputs: dict[str, Tensor], heads: set[tuple[int, int]]) -> Tensor:
    """Logits with attention of some heads replaced, in a loop over them, by one at the largest weight of each row."""
    layers = count()

    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **_: Any) -> Any:
        layer = next(layers)
        score_BHQK = query @ key.transpose(2, 3) / query.shape[-1] ** 0.5
        map_BHQK = (score_BHQK if mask is None else score_BHQK + mask).softmax(-1)
        for at, head in heads:
            if at == layer:
                most_BQ = map_BHQK[:, head].argmax(-1)
                map_BHQK[:, head] = functional.one_hot(most_BQ, map_BHQK.shape[-1]).to(map_BHQK.dtype)
        return (map_BHQK @ value).transpose(1, 2).contiguous(), map_BHQK

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transformers.models.bert.modeling_bert.eager_attention_forward", attend)
        logits_BC: Tensor = model(**inputs).logits
    return logits_BC


def models() -> tuple[PreTrainedModel, PreTrainedModel]:
    """The same model with the library's fast attention and with the function that :func:`peaked` replaces."""
    return tiny_model("bert").double(), tiny_model("bert", attention="eager").double()


def test_override_finds_a_mode_of_a_package_by_its_name() -> None:
    model, eager = models()
    batch = tiny_batch()
    with torch.no_grad(), override(model, [HeadEdit(0, 1, "pick"), HeadEdit(2, 3, "pick")]):
        logits_BC = model(**batch).logits
    torch.testing.assert_close(logits_BC, peaked(eager, batch, {(0, 1), (2, 3)}), atol=1e-10, rtol=0)
    assert not torch.allclose(logits_BC, model(**batch).logits, atol=1e-3)


@pytest.mark.parametrize("mode", ["pick", "half", "identity"])
def test_the_engine_gives_the_logits_of_one_overridden_pass_for_each_variant(mode: str) -> None:
    model, batch = tiny_model("bert").double(), tiny_batch()
    plan = Plan(mode, LAYERS, HEADS, (*every_head(LAYERS, HEADS), *every_layer(LAYERS, HEADS)))
    engine = Engine(model, plan)
    assert engine.shares == (mode == "half")
    _, logits_BVC = engine.run(batch)
    for index, variant in enumerate(plan.variants):
        edits = [HeadEdit(layer, head, mode) for layer, head in variant.heads]
        with torch.no_grad(), override(model, edits):
            torch.testing.assert_close(logits_BVC[:, index], model(**batch).logits, atol=1e-10, rtol=0)


def test_a_notebook_disables_with_it(tiny_bert: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(tiny_bert, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny_bert)
    texts, labels = ["The cat sat.", "It rained all day.", "A dog.", "Nobody came."], [0, 1, 0, 1]
    disabled = bs.disable(model, tokenizer, texts, labels, mode="pick", resamples=100, permutations=100, batch_size=1)
    layers = model.config.num_hidden_layers
    assert set(disabled.to_pandas()["mode"]) == {"pick"}
    for row, text in enumerate(texts):
        inputs = dict(tokenizer(text, return_tensors="pt"))
        for index, head in ((1, (0, 1)), (4 * layers - 1, (layers - 1, 3))):
            expected_C = peaked(model, inputs, {head})[0]
            torch.testing.assert_close(disabled.outcomes.logits_NVC[row, index], expected_C, atol=2e-5, rtol=0)


def test_a_callback_screens_and_its_page_says_what_the_mode_does(tmp_path: Path) -> None:
    run, _ = swept(tmp_path / "half", mode="half", sweep="screened", audit=0.2)
    exact, _ = swept(tmp_path / "exact", mode="half", sweep="exact")
    scores = [[row["score"] for row in of.ablation_table().rows()] for of in (run, exact)]
    assert scores[0] == scores[1]
    section = ablation_sections(run.ablation_table(), beside_table(run))[0]
    assert section.paragraphs[0] == "The output of a disabled head is half of its output."
    run, lines = swept(tmp_path / "pick", mode="pick", sweep="screened")
    assert lines[0].endswith("Exact sweep, as mode 'pick' takes several passes per pair.")


def test_settings_and_help_name_it() -> None:
    assert AblationSettings.read("ablation", {"mode": "pick"}).mode == "pick"
    assert "pick (odd_modes)" in help_text("analyze")
    with pytest.raises(UserError, match=r"Unknown ablation\.mode 'pikc'; did you mean 'pick'"):
        AblationSettings.read("ablation", {"mode": "pikc"})
    with pytest.raises(UserError, match=r"Unknown override mode 'pikc'; did you mean 'pick'"):
        find_mode("pikc")


def test_what_is_no_mode_is_one_sentence() -> None:
    with pytest.raises(UserError, match=r"'number' of an installed package is 3; expected a subclass of"):
        find_mode("number")
    with pytest.raises(UserError, match=r"'misnamed' of an installed package is named 'another'"):
        find_mode("misnamed")
    with pytest.raises(UserError, match=r"'gone' of an installed package cannot be imported"):
        find_mode("gone")
    # Our own names are ours.
    assert find_mode("zero").words.startswith("zero")


def test_modes_of_special_tokens_are_not_for_sweeps() -> None:
    assert not {"redirect", "cut", "isolate"} & set(mode_names(sweeps=True))
    for name in ("cut", "zeros"):
        plan = Plan(name, LAYERS, HEADS, tuple(every_head(LAYERS, HEADS)))
        with pytest.raises(UserError, match=rf"Unknown disabling mode '{name}'.*zero"):
            Engine(tiny_model("bert"), plan)
