"""What docs/models.md says that each family can do, against tiny models of it."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from families import CONFIGS, HEADS, LAYERS, SHAPE, tiny_batch, tiny_model
from packages import installed, write_package
from transformers import AutoModelForSequenceClassification, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from bertsecrets.ablation.engine import Engine
from bertsecrets.ablation.plan import Plan, every, every_head
from bertsecrets.attention.override import HeadEdit, override
from bertsecrets.attention.watch import watch
from bertsecrets.errors import UserError
from bertsecrets.models.encoder import describe
from bertsecrets.models.families import FAMILIES, find_family
from bertsecrets.pruning.removal import Kept, keep_only, kept_heads
from bertsecrets.results.components import NEURONS

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


def works(act: Callable[[], object]) -> str:
    try:
        act()
    except UserError:
        return "–"
    return "yes"


def abilities(name: str) -> str:
    """The cells of a family's row."""
    model, batch = tiny_model(name), tiny_batch()
    encoder = describe(model)
    layers, heads = encoder.num_layers, (tuple(range(HEADS)),) * encoder.num_layers

    def watched_and_disabled() -> None:
        with torch.no_grad(), watch(model, lambda layer, attention: None), override(model, [HeadEdit(0, 0, "zero")]):
            model(**batch)

    sweep = Engine(model, Plan("zero", layers, HEADS, tuple(every_head(layers, HEADS))))
    cells = [
        works(watched_and_disabled),
        "yes" if sweep.shares else "–",
        works(lambda: Engine(model, Plan("zero", layers, HEADS, tuple(every(NEURONS, layers, HEADS))))),
        works(lambda: keep_only(model, kept_heads(layers, HEADS, [(0, 0)]))),
        works(lambda: keep_only(model, Kept(HEADS, heads, ((0, 1),) * layers))),
    ]
    return " | ".join(cells)


def test_the_table_of_families_is_what_they_can_do() -> None:
    text = PAGE.read_text("utf-8")
    families: dict[str, list[str]] = {}
    for name in sorted(CONFIGS):
        families.setdefault(abilities(name), []).append(name)
    rows = [f"| {', '.join(names)} | {cells} |" for cells, names in families.items()]
    assert all(f"\n{line}\n" in text for line in rows), "the table of docs/models.md should be\n" + "\n".join(rows)
    # Each adapter has a tiny model, where transformers has its family; two refuse all of their models.
    types = {CONFIGS[name]().model_type for name in CONFIGS} | (set(FAMILIES) - set(CONFIG_MAPPING))
    adapters = {id(FAMILIES[model_type]) for model_type in types}
    assert {kind for kind, family in FAMILIES.items() if id(family) not in adapters} == {"longformer", "convbert"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("longformer", "Longformer attends within windows"),
        ("big_bird", r"This BigBird attends in blocks \(attention_type is 'block_sparse'\)"),
        ("convbert", "ConvBERT convolves each token with its neighbours, including padding"),
    ],
)
def test_a_model_whose_heads_cannot_be_watched_is_refused_with_the_reason(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        describe(untried(name))


def test_padding_changes_the_answers_of_convbert_as_its_refusal_says() -> None:
    model, lone = untried("convbert").eval(), tiny_batch((7,))
    padded = tiny_batch((7,), pad=4)
    with torch.no_grad():
        assert (model(**lone).logits - model(**padded).logits).abs().max() > 1e-4


def test_luke_is_refused_with_entities() -> None:
    model, batch = tiny_model("luke"), tiny_batch()
    entities = {"entity_ids": torch.ones(3, 2, dtype=torch.long), "entity_position_ids": torch.zeros(3, 2, 1).long()}
    with (
        torch.no_grad(),
        watch(model, lambda layer, attention: None),
        pytest.raises(UserError, match="The model received entity_ids, whose positions are not tokens of the text"),
    ):
        model(**batch, **entities)
    # The context leaves nothing behind.
    assert model(**batch, **entities).logits.shape == (3, 3)


def untried(name: str) -> PreTrainedModel:
    """A small model of a family without a tiny one that all tests run on."""
    own = {"longformer": {"attention_window": [8] * LAYERS}}.get(name, {})
    config = CONFIG_MAPPING[name](**SHAPE, pad_token_id=0, **own)
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForSequenceClassification.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def test_an_offer_that_is_no_family_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    points = {"families": {"wrong": "no_family:x", "gone": "not_there:x", "bert": "no_family:x"}}
    with installed(write_package(tmp_path / "kin", {"no_family.py": "x = 1\n"}, points)):
        with pytest.raises(UserError, match="names no_family:x, which is not a subclass of"):
            find_family("wrong")
        assert find_family("gone") is None
        assert find_family("unknown") is None
        # The project's own family is not replaced, which is said once.
        assert find_family("bert") is find_family("bert") is FAMILIES["bert"]
    assert caplog.text.count("'bert' of kin is skipped: bertsecrets itself has this name.") == 1
    assert "'gone' of kin is skipped: ModuleNotFoundError" in caplog.text
