"""What docs/models.md says that each family can do, against tiny models of it."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from families import CONFIGS, HEADS, LAYERS, tiny_batch, tiny_model
from transformers import AutoModelForSequenceClassification
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from bertsecrets.ablation.engine import Engine
from bertsecrets.ablation.plan import Plan, every_group_of_neurons, every_head
from bertsecrets.attention.override import HeadEdit, override
from bertsecrets.attention.watch import watch
from bertsecrets.errors import UserError
from bertsecrets.models.encoder import describe
from bertsecrets.models.families import FAMILIES
from bertsecrets.pruning.removal import Kept, keep_only, kept_heads

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


def works(act: Callable[[], object]) -> str:
    try:
        act()
    except UserError:
        return "–"
    return "yes"


def row(name: str) -> str:
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
        works(lambda: Engine(model, Plan("zero", layers, HEADS, tuple(every_group_of_neurons(layers, HEADS))))),
        works(lambda: keep_only(model, kept_heads(layers, HEADS, [(0, 0)]))),
        works(lambda: keep_only(model, Kept(HEADS, heads, ((0, 1),) * layers))),
    ]
    return f"| {name} | {' | '.join(cells)} |"


def test_the_table_of_families_is_what_they_can_do() -> None:
    text = PAGE.read_text("utf-8")
    rows = [row(name) for name in sorted(CONFIGS)]
    assert all(f"\n{line}\n" in text for line in rows), "the table of docs/models.md should be\n" + "\n".join(rows)
    # Each adapter has a tiny model, where transformers has its family; one refuses all of its models.
    types = {CONFIGS[name]().model_type for name in CONFIGS} | (set(FAMILIES) - set(CONFIG_MAPPING))
    adapters = {id(FAMILIES[model_type]) for model_type in types}
    assert {kind for kind, family in FAMILIES.items() if id(family) not in adapters} == {"longformer"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("longformer", "Longformer attends within windows"),
        ("big_bird", r"This BigBird attends in blocks \(attention_type is 'block_sparse'\)"),
        ("convbert", "'convbert' has no adapter and does not use the library's attention interface"),
        ("luke", "'luke' has no adapter and does not use the library's attention interface"),
    ],
)
def test_a_model_whose_heads_cannot_be_watched_is_refused_with_the_reason(name: str, message: str) -> None:
    shape = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    own = {"longformer": {"attention_window": [8] * LAYERS}, "luke": {"entity_vocab_size": 9}}.get(name, {})
    config = CONFIG_MAPPING[name](**shape, intermediate_size=48, max_position_embeddings=128, pad_token_id=0, **own)
    with pytest.raises(UserError, match=message):
        describe(AutoModelForSequenceClassification.from_config(config))
