"""The view of one text: its weights are those of ``watch``, its page is small and works offline, and mistakes are one
sentence.
"""

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from browser import Page, in_browser, seen
from data.toy import wordpiece
from families import HEADS, LAYERS
from reporting.finished_runs import make_run
from torch import Tensor
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2Model,
)

import bertsecrets as bs
from bertsecrets.errors import UserError

FIRST, SECOND = "The cat sat.", "The cat lay."


@pytest.fixture(scope="module")
def pair(tiny_bert):
    return AutoModel.from_pretrained(tiny_bert).eval(), AutoTokenizer.from_pretrained(tiny_bert)


def stored(page: Path) -> tuple[dict[str, Any], np.ndarray]:
    """The page's example, and its weights ``[stages, layers, heads, T, T]`` as a browser unpacks them."""
    (example,) = Page(page).examples()
    size = len(example["tokens"])
    stages = [
        [np.frombuffer(zlib.decompress(base64.b64decode(layer)), np.uint8) for layer in stage["layers"]]
        for stage in example["stages"]
    ]
    byte_GLHQK = np.array(stages, float).reshape(len(stages), len(stages[0]), example["heads"], size, size)
    return example, (byte_GLHQK / example["levels"]) ** 2


def watched(model: Any, tokenizer: Any, *texts: str, **options: Any) -> np.ndarray:
    maps: list[Tensor] = []
    with torch.no_grad(), bs.watch(model, lambda _, attention_BHQK: maps.append(attention_BHQK[0].clone())):
        model(**tokenizer(*texts, return_tensors="pt", **options))
    return torch.stack(maps).numpy()


def perturbed(tiny_bert: Path) -> Any:
    other = AutoModel.from_pretrained(tiny_bert).eval()
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return other


def test_the_page_holds_the_watched_weights_of_both_models(pair, tiny_bert: Path, tmp_path: Path) -> None:
    model, tokenizer = pair
    reference = perturbed(tiny_bert)
    view = bs.head_view(model, tokenizer, FIRST, SECOND, reference=reference)
    example, weight_GLHQK = stored(view.save(tmp_path / "view.html"))
    assert [stage["name"] for stage in example["stages"]] == ["reference", "this model"]
    expected_GLHQK = [watched(network, tokenizer, FIRST, SECOND) for network in (reference, model)]
    assert np.abs(expected_GLHQK[0] - expected_GLHQK[1]).max() > 0.02
    np.testing.assert_allclose(weight_GLHQK, expected_GLHQK, atol=1 / 255)
    encoding = tokenizer(FIRST, SECOND)
    assert example["tokens"] == tokenizer.convert_ids_to_tokens(encoding["input_ids"])
    assert example["special"] == [place is None for place in encoding.sequence_ids()]
    words = zip(example["sentences"], encoding.sequence_ids(), strict=True)
    assert all(own == place for own, place in words if place is not None)
    assert example["sentences"][0] == 0
    assert example["sentences"][-1] == 1


def test_the_view_opens_on_the_head_that_matters_most(pair, tiny_bert: Path, tmp_path: Path) -> None:
    _, tokenizer = pair
    model = AutoModelForSequenceClassification.from_pretrained(tiny_bert).eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
        inputs = tokenizer(FIRST, return_tensors="pt")
        share_C = model(**inputs).logits[0].softmax(-1)
        answer, changes = int(share_C.argmax()), {}
        for head in np.ndindex(LAYERS, HEADS):
            with bs.override(model, [bs.HeadEdit(*head, "uniform")]):
                changes[head] = abs(float(model(**inputs).logits[0].softmax(-1)[answer] - share_C[answer]))
    assert bs.head_view(model, tokenizer, FIRST).report.sections[0].viewer.start == max(
        changes, key=changes.__getitem__
    )
    # What a run has measured over many texts goes first; without an answer or a run it is the first head.
    delta_LH = -np.arange(LAYERS * HEADS, dtype=float).reshape(LAYERS, HEADS) / 100
    delta_LH[0, 1] = -0.5
    run = make_run(tmp_path / "run", delta_LH=delta_LH, significant_LH=delta_LH < -0.4)
    assert bs.head_view(model, tokenizer, FIRST, run=run).report.sections[0].viewer.start == (0, 1)
    assert bs.head_view(*pair, FIRST).report.sections[0].viewer.start == (0, 0)


def test_a_notebook_shows_the_page_in_a_frame(pair) -> None:
    view = bs.head_view(*pair, (FIRST, SECOND), start=(1, 0))
    shown = view._repr_html_()
    assert shown.startswith("<iframe")
    assert 'srcdoc="&lt;!doctype html&gt;' in shown
    assert f"{LAYERS} layers x {HEADS} heads" in repr(view)


def test_heads_are_coloured_by_grids(pair, tmp_path: Path) -> None:
    model, tokenizer = pair
    grid = bs.measure(model, tokenizer, [FIRST, SECOND], "entropy")
    page = bs.head_view(model, tokenizer, FIRST, grids=[grid]).save(tmp_path / "view.html")
    (columns,) = re.findall(r'id="viewer-heads">(.*?)</script>', page.read_text("utf-8"))
    first = json.loads(columns)[0]
    assert not first["effects"]
    assert first["label"] == f"entropy: {grid.described[0].label}"
    assert first["cells"]["1.1"] == pytest.approx(grid.value_LHC[1, 1, 0].item(), abs=5e-4)


@pytest.mark.slow
def test_144_heads_at_128_tokens_of_two_models_fit_into_three_megabytes(pair, tmp_path: Path) -> None:
    _, tokenizer = pair
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=96, intermediate_size=8, num_hidden_layers=12, num_attention_heads=12
    )
    networks = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        network = BertModel(config).eval()
        with torch.no_grad():
            for layer in network.encoder.layer:
                # Uneven attention, which compresses badly.
                layer.attention.self.query.weight.mul_(40)
        networks.append(network)
    text = " ".join(["the cat sat ."] * 200)
    options = {"truncation": True, "max_length": 128}
    view = bs.head_view(networks[0], tokenizer, text, reference=networks[1], max_length=128)
    page = view.save(tmp_path / "view.html")
    assert page.stat().st_size <= 3_000_000
    example, weight_GLHQK = stored(page)
    assert len(example["tokens"]) == 128
    expected_LHQK = watched(networks[0], tokenizer, text, **options)
    np.testing.assert_allclose(weight_GLHQK[1], expected_LHQK, atol=1.01 / example["levels"])
    assert "max_length is 128" in page.read_text("utf-8")


def test_a_long_text_says_what_it_leaves_out_and_keeps_both_sentences(pair, tmp_path: Path) -> None:
    _, tokenizer = pair
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=12, intermediate_size=8, num_hidden_layers=12, num_attention_heads=12
    )
    model = BertModel(config).eval()
    long, short = " ".join(["the cat"] * 400), "a dog lay ."
    view = bs.head_view(model, tokenizer, long, short)
    count = len(tokenizer(long, short)["input_ids"])
    model_left, page_left = view.report.notes
    assert model_left == f"The text has {count} tokens and the model takes 512: the last {count - 512} are omitted."
    example, weight_GLHQK = stored(view.save(tmp_path / "view.html"))
    kept = len(example["tokens"])
    assert f"{512 - kept} of 512 tokens at the end of sentences are omitted" in page_left
    assert sum(example["special"]) == 3
    assert example["tokens"][-len(tokenizer.tokenize(short)) - 1 : -1] == tokenizer.tokenize(short)
    whole_LHQK = watched(model, tokenizer, long, short, truncation=True, max_length=512)
    last_LHQ = whole_LHQK[:, :, -1, -1]
    np.testing.assert_allclose(weight_GLHQK[0, :, :, -1, -1], last_LHQ, atol=1.01 / example["levels"])


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        (("",), {}, "The first sentence is '', which contains no word"),
        ((FIRST, " \n"), {}, "The second sentence is ' .n', which contains no word"),
        ((FIRST, "a \ud800"), {}, r"Text 'a \\ud800' has a lone surrogate, '\\ud800', at character 2; remove it"),
        (((FIRST, SECOND), "third"), {}, "text is a pair"),
        ((3,), {}, "neither a sentence nor a pair"),
        ((FIRST,), {"start": (9, 0)}, rf"start is \(9, 0\); expected a layer from 0 to {LAYERS - 1}"),
        ((FIRST,), {"max_length": 2}, "leaves no room for a word"),
        ((FIRST,), {"run": "nowhere"}, "nowhere"),
    ],
)
def test_mistakes_are_one_sentence(pair, texts: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        bs.head_view(*pair, *texts, **options)
    assert str(error.value).count("\n") == 0


def test_other_models_are_refused(pair, tmp_path: Path) -> None:
    model, tokenizer = pair
    decoder = GPT2Model(GPT2Config(n_layer=1, n_head=1, n_embd=8, vocab_size=len(tokenizer)))
    with pytest.raises(UserError, match="is a decoder"):
        bs.head_view(decoder, tokenizer, FIRST)
    small = BertConfig(
        vocab_size=len(tokenizer), hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
    )
    with pytest.raises(UserError, match="The reference has 1 layers of 1 heads"):
        bs.head_view(model, tokenizer, FIRST, reference=BertModel(small))
    with pytest.raises(UserError, match="reference is the model itself"):
        bs.head_view(model, tokenizer, FIRST, reference=model)
    with pytest.raises(UserError, match="does not exist"):
        bs.head_view(model, tokenizer, FIRST).save(tmp_path / "no" / "view.html")


PROBE = """
const viewer = document.querySelector(".viewer");
const seen = {};
const pick = (name) => viewer.querySelector(`select[data-pick=${name}]`);
const place = () => `${pick("layer").value}.${pick("head").value}`;
const choose = (name, value) => { pick(name).value = value; pick(name).dispatchEvent(new Event("change")); };
const key = (key) => document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
const until = async (test) => { while (!test()) await new Promise((done) => setTimeout(done, 20)); };
const lines = viewer.querySelector("[data-lines]");
const tokens = () => Math.round(parseFloat(lines.style.height) / 20);
const said = () => viewer.querySelector("[data-token]").textContent;
const down = () => lines.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowDown", bubbles: true }));
(async () => {
  await until(() => viewer.dataset.gridState !== undefined && viewer.dataset.linesState !== undefined);
  seen.link = place();
  seen.maps = viewer.querySelectorAll("[data-grid] canvas").length;
  key("n"); seen.next = place();
  key("n"); seen.wrapped = place();
  key("p"); key("p"); seen.previous = place();
  seen.address = location.hash;
  viewer.querySelector('[data-grid] button[data-layer="1"][data-head="1"]').click();
  seen.click = place();
  await until(() => viewer.querySelector("figcaption[data-name=after]").textContent.startsWith("layer 1 \\u00b7 head 1"));
  viewer.querySelector('[data-chips] input[value="0"]').click();
  await until(() => viewer.dataset.linesState === "0 1");
  seen.heads = viewer.dataset.linesState;
  seen.all = tokens();
  viewer.querySelector("[data-special]").click(); seen.words = tokens();
  choose("from", "1"); choose("to", "1");
  await until(() => tokens() < seen.words); seen.second = tokens();
  down(); seen.focus = said();
  choose("colour", "0");
  await until(() => viewer.querySelectorAll("[data-grid] canvas").length === 0);
  seen.coloured = viewer.querySelector('[data-grid] button[data-layer="1"][data-head="1"]').title;
  history.replaceState(null, "", "#l00h01");
  window.dispatchEvent(new HashChangeEvent("hashchange"));
  await until(() => place() === "0.1");
  seen.followed = place();
  seen.overflow = document.documentElement.scrollWidth > window.innerWidth;
  document.body.dataset.seen = JSON.stringify(seen);
})();
"""


@in_browser
@pytest.mark.parametrize("width", [390, 1300])
def test_a_reader_clicks_types_filters_and_follows_a_link(pair, tmp_path: Path, width: int) -> None:
    model, tokenizer = pair
    grid = bs.measure(model, tokenizer, [FIRST, SECOND], "entropy")
    page = bs.head_view(model, tokenizer, FIRST, SECOND, grids=[grid]).save(tmp_path / "view.html")
    found = seen(page, PROBE, window=f"{width},1200", fragment=f"#l{LAYERS - 1:02}h{HEADS - 2:02}")
    encoding = tokenizer(FIRST, SECOND)
    places = encoding.sequence_ids()
    second = [place for place, sentence in enumerate(places) if sentence == 1]
    weight_KK = watched(model, tokenizer, FIRST, SECOND)[1, 1][np.ix_(second, second)]
    tokens = tokenizer.convert_ids_to_tokens(encoding["input_ids"])
    focus = re.match(r"Head 1: “([^”]+)” \((\d+)\) attends most to “([^”]+)” \((\d+)\) ", found.pop("focus"))
    query, key = int(focus[2]), int(focus[4])
    assert (focus[1], query, focus[3]) == (tokens[second[0]], second[0], tokens[key])
    # Weights within a step of each other are equal on the page.
    assert weight_KK[0, second.index(key)] == pytest.approx(weight_KK[0].max(), abs=0.005)
    assert found.pop("coloured").startswith(f"layer 1 · head 1: {grid.value_LHC[1, 1, 0]:.3f}".rstrip("0"))
    assert found == {
        "link": f"{LAYERS - 1}.{HEADS - 2}",
        "next": f"{LAYERS - 1}.{HEADS - 1}",
        "wrapped": "0.0",
        "previous": f"{LAYERS - 1}.{HEADS - 2}",
        "address": f"#l{LAYERS - 1:02}h{HEADS - 2:02}",
        "click": "1.1",
        "maps": LAYERS * HEADS,
        "heads": "0 1",
        "all": len(places),
        "words": len(places) - 3,
        "second": len(second),
        "followed": "0.1",
        "overflow": False,
    }


BY_WORD = """
const viewer = document.querySelector(".viewer");
const map = viewer.querySelector("canvas[data-map=after]");
const readout = viewer.querySelector(".readout");
const key = (key) => map.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
let drawn = 0;
viewer.addEventListener("viewer:drawn", () => { drawn += 1; });
const until = async (test) => { while (!test()) await new Promise((done) => setTimeout(done, 20)); };
const seen = {};
(async () => {
  await until(() => viewer.dataset.state === "drawn");
  const before = drawn;
  viewer.querySelector("[data-by-word]").click();
  await until(() => drawn > before);
  key("ArrowDown"); key("ArrowRight");
  seen.one = readout.textContent;
  viewer.querySelector("[data-several]").click();
  key(" "); key("ArrowRight"); key(" "); key("ArrowRight"); key(" "); key(" ");
  seen.several = readout.textContent;
  document.body.dataset.seen = JSON.stringify(seen);
})();
"""


@in_browser
def test_maps_by_word_and_sums_over_tokens(tmp_path: Path) -> None:
    tokenizer = wordpiece()
    model = BertModel(
        BertConfig(
            vocab_size=len(tokenizer), hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
        )
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.5)
    text = "Unhappy cats eats."
    # [CLS] un ##hap ##py cat ##s eats . [SEP]
    groups = [[0], [1, 2, 3], [4, 5], [6], [7], [8]]
    weight_QK = watched(model, tokenizer, text)[0, 0]
    word_QK = np.array([[weight_QK[np.ix_(query, key)].sum(1).mean() for key in groups] for query in groups])
    page = bs.head_view(model, tokenizer, text).save(tmp_path / "view.html")
    found = seen(page, BY_WORD)
    for text, name, keys in (
        (found["one"], "“unhappy” (1) attends to “unhappy” (1): ", [1]),
        (found["several"], "“unhappy” (1) attends to “unhappy” (1), “cats” (2) together: ", [1, 2]),
    ):
        assert text.startswith(name)
        assert float(text.removeprefix(name)) == pytest.approx(word_QK[1, keys].sum(), abs=0.02)
