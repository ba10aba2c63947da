"""Tiny random models of every supported family."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from transformers import (
    AlbertConfig,
    AutoModelForSequenceClassification,
    BertConfig,
    CamembertConfig,
    DebertaConfig,
    DebertaV2Config,
    DistilBertConfig,
    ElectraConfig,
    ModernBertConfig,
    MPNetConfig,
    PreTrainedConfig,
    PreTrainedModel,
    RobertaConfig,
    XLMRobertaConfig,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from bertsecrets.data.batch import Batch
from bertsecrets.models.encoder import describe

LAYERS, HEADS, WIDTH, VOCABULARY = 3, 4, 32, 97

SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
}
_DISENTANGLED = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False}

CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    "bert": lambda: BertConfig(**SHAPE),
    "roberta": lambda: RobertaConfig(**SHAPE),
    "distilbert": lambda: DistilBertConfig(
        vocab_size=VOCABULARY,
        dim=WIDTH,
        n_layers=LAYERS,
        n_heads=HEADS,
        hidden_dim=48,
        max_position_embeddings=128,
    ),
    "electra": lambda: ElectraConfig(**SHAPE, embedding_size=16),
    "albert": lambda: AlbertConfig(**SHAPE, embedding_size=16),
    "albert-groups": lambda: AlbertConfig(**(SHAPE | {"num_hidden_layers": 4}), embedding_size=16, num_hidden_groups=2),
    "xlm-roberta": lambda: XLMRobertaConfig(**SHAPE),
    "camembert": lambda: CamembertConfig(**SHAPE),
    "mpnet": lambda: MPNetConfig(**SHAPE),
    "deberta": lambda: DebertaConfig(**SHAPE, **_DISENTANGLED, max_relative_positions=32),
    "deberta-v2": lambda: DebertaV2Config(**SHAPE, **_DISENTANGLED, max_relative_positions=32),
    "deberta-v3": lambda: DebertaV2Config(
        **SHAPE, **_DISENTANGLED, position_buckets=16, share_att_key=True, norm_rel_ebd="layer_norm"
    ),
    "modernbert": lambda: ModernBertConfig(
        **SHAPE,
        local_attention=8,
        pad_token_id=0,
        cls_token_id=1,
        sep_token_id=2,
        bos_token_id=1,
        eos_token_id=2,
    ),
}
FAMILIES = tuple(CONFIGS)
"""Those that every test runs on."""

_SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_MORE: dict[str, tuple[str, dict[str, Any]]] = {
    "rembert": ("rembert", {**_SPECIAL, "input_embedding_size": 16, "output_embedding_size": 16}),
    "roformer": ("roformer", {"embedding_size": 16}),
    "big_bird": ("big_bird", {**_SPECIAL, "attention_type": "original_full"}),
    "roberta-prelayernorm": ("roberta-prelayernorm", {}),
    "xlm-roberta-xl": ("xlm-roberta-xl", {}),
    "esm": ("esm", {"pad_token_id": 0, "mask_token_id": 4, "position_embedding_type": "rotary"}),
    "megatron-bert": ("megatron-bert", {}),
    "luke": ("luke", {**_SPECIAL, "entity_vocab_size": 9, "entity_emb_size": 16}),
    "mobilebert": (
        "mobilebert",
        {"embedding_size": 16, "intra_bottleneck_size": 16, "num_feedforward_networks": 2},
    ),
    "nomic_bert": ("nomic_bert", {"pad_token_id": 0}),
    "gte": ("gte", {"pad_token_id": 0}),
    "jina_embeddings_v3": ("jina_embeddings_v3", _SPECIAL),
    "eurobert": ("eurobert", {**_SPECIAL, "mask_token_id": 4, "classifier_pooling": "late"}),
    "eurobert-grouped": (
        "eurobert",
        {**_SPECIAL, "mask_token_id": 4, "num_key_value_heads": 2, "classifier_pooling": "bos"},
    ),
}
"""Model types and what their configurations need beside the shape."""

# The lowest version of transformers that is promised lacks some.
CONFIGS |= {
    name: partial(CONFIG_MAPPING[kind], **SHAPE, **own) for name, (kind, own) in _MORE.items() if kind in CONFIG_MAPPING
}
MORE_FAMILIES = tuple(name for name in CONFIGS if name not in FAMILIES)
"""Those that the tests of adapters and of sweeps run on."""


def tiny_model(
    family: str, seed: int = 0, attention: str | None = None, spread: float = 0.2, labels: int = 3
) -> PreTrainedModel:
    """A model in evaluation mode whose weights are spread enough for its maps to be far from uniform."""
    model: PreTrainedModel = random_model(
        AutoModelForSequenceClassification, family, spread, seed, attention, num_labels=labels
    )
    if family == "mobilebert":
        # It reads the neighbours of a token, among them padding, whose vector is 0 as made.
        with torch.no_grad():
            model.get_input_embeddings().weight[model.config.pad_token_id] = 0
    return model


def random_model(
    auto: Any, family: str, spread: float = 0.3, seed: int = 0, attention: str | None = None, **settings: Any
) -> Any:
    """A tiny model in evaluation mode, with settings of its configuration; its weights are spread so that heads
    matter.
    """
    torch.manual_seed(seed)
    config = CONFIGS[family]()
    for name, value in settings.items():
        setattr(config, name, value)
    model = auto.from_config(config, attn_implementation=attention).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * spread)
    return model


def tiny_batch(lengths: tuple[int, ...] = (11, 7, 4), pad: int = 0, pad_id: int = 0) -> dict[str, torch.Tensor]:
    """Random tokens; ``pad`` further positions of padding behind the longest row."""
    generator = torch.Generator().manual_seed(1)
    width = max(lengths) + pad
    ids_BS = torch.full((len(lengths), width), pad_id)
    mask_BS = torch.zeros(len(lengths), width, dtype=torch.long)
    for row, length in enumerate(lengths):
        ids_BS[row, :length] = torch.randint(5, VOCABULARY, (length,), generator=generator)
        mask_BS[row, :length] = 1
    return {"input_ids": ids_BS, "attention_mask": mask_BS}


def heads_outputs(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """Outputs of all heads ``[B, S, H, d]`` by layer: the inputs of the output projections, kept by hooks."""
    outputs: list[torch.Tensor] = []
    handles = [
        site.projection.register_forward_pre_hook(lambda module, args: outputs.append(args[0]))
        for site in describe(model).distinct_sites
    ]
    with torch.no_grad():
        model(**batch)
    for handle in handles:
        handle.remove()
    return [output.unflatten(-1, (HEADS, -1)) for output in outputs]


def batch_of(
    inputs: dict[str, torch.Tensor], labels: Sequence[int] | torch.Tensor | None = None, first: int = 0
) -> Batch:
    """A batch of these inputs, whose examples are numbered from ``first``, without words and special tokens."""
    ids_BS = inputs["input_ids"]
    nothing_BS = torch.zeros_like(ids_BS)
    return Batch(
        ids_BS,
        inputs["attention_mask"],
        None,
        nothing_BS.bool(),
        nothing_BS,
        torch.arange(first, first + len(ids_BS)),
        None if labels is None else torch.as_tensor(labels),
    )
