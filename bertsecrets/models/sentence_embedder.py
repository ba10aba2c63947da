"""Sentence-embedding models: a Sentence Transformers folder, read without that package."""

from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from transformers import AutoModel, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from bertsecrets.errors import UserError, choices
from bertsecrets.models.files import CONFIG, MODULES, is_file, read_json, read_object
from bertsecrets.models.loading import load_config, load_weights, max_positions
from bertsecrets.models.spec import ModelSpec
from bertsecrets.settings import shown

Pooling = Literal["cls", "mean", "max", "mean_sqrt_len_tokens"]
"""How token vectors are pooled: the first token, the mean, the maximum, or the sum divided by the square root of their
number.
"""

_LEGACY = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Keys of older folders, each true or false -> the name of the mode in newer ones."""

_LONGEST = 512


class SentenceEmbedder(PreTrainedModel):
    """An encoder whose token vectors are pooled into one sentence embedding.

    Called like its encoder; ``logits`` of its output are the embeddings ``[B, D]``, not normalised. The similarity of
    two sentences is the cosine of their embeddings, which normalising would not change.

    Args:
        encoder: The encoder, without a task head.
        pooling: How token vectors are pooled.
        max_length: Longest sentence in tokens, special tokens included; longer ones are cut.
    """

    base_model_prefix = "encoder"
    _supports_sdpa = True

    def __init__(self, encoder: PreTrainedModel, pooling: Pooling = "mean", max_length: int = _LONGEST) -> None:
        super().__init__(encoder.config)
        self.encoder = encoder
        self.pooling = pooling
        self.max_length = max_length
        self.train(encoder.training)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **inputs: Any) -> SequenceClassifierOutput:
        """The embeddings of a batch of sentences, as ``logits``."""
        hidden_BSD = self.encoder(input_ids=input_ids, attention_mask=attention_mask, **inputs).last_hidden_state
        return SequenceClassifierOutput(logits=self._pool(hidden_BSD, attention_mask.bool()))

    def embed(self, hidden_BSD: Tensor, real_BS: Tensor) -> Tensor:
        """Embeddings ``[B, D]`` from the last layer's output.

        Args:
            hidden_BSD: The output, before a norm that the encoder applies to it.
            real_BS: Which tokens are real, bool.
        """
        norm = getattr(self.encoder, "final_norm", None)
        return self._pool(hidden_BSD if norm is None else norm(hidden_BSD), real_BS)

    def _pool(self, hidden_BSD: Tensor, real_BS: Tensor) -> Tensor:
        if self.pooling == "cls":
            return hidden_BSD[:, 0]
        if self.pooling == "max":
            # Not 0, which would be the maximum of negative numbers.
            return hidden_BSD.masked_fill(~real_BS[..., None], -torch.inf).amax(1)
        real_BS1 = real_BS[..., None].to(hidden_BSD.dtype)
        count_B1 = real_BS1.sum(1)
        return (hidden_BSD * real_BS1).sum(1) / (count_B1 if self.pooling == "mean" else count_B1.sqrt())


def is_embedder_folder(folder: Path) -> bool:
    """Whether a folder is a Sentence Transformers embedding model.

    Its CrossEncoder models are classifiers, and so is a model that was fine-tuned and saved beside the old files.
    """
    if not is_file(folder / MODULES):
        return False
    architectures = _optional(folder / CONFIG).get("architectures")
    if isinstance(architectures, list) and any(str(name).endswith("SequenceClassification") for name in architectures):
        return False
    return any(_kind(module) == "Pooling" for module in _modules(folder))


def load_embedder(root: Path) -> SentenceEmbedder:
    """A sentence-embedding model of Sentence Transformers, or the body of a SetFit model.

    Args:
        root: Its folder.

    Raises:
        UserError: If the folder is not such a model, cannot be read, or has an unsupported module or setting: only a
            Transformer, a Pooling with one mode and a Normalize are supported.
    """
    if not is_file(root / MODULES):
        raise UserError(
            f"'{root}' is not the folder of a sentence-embedding model (it has no {MODULES}); give a folder saved by "
            "Sentence Transformers."
        )
    modules = _modules(root)
    kinds = [_kind(module) for module in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise UserError(
            f"The model in '{root}' consists of {', '.join(kinds) or 'nothing'}; only Transformer, Pooling and "
            "Normalize, in this order, are supported."
        )
    spec = embedder_spec(root)
    inner = Path(spec.path)
    pooling = _pooling(read_object(_inside(root, modules[1]) / "config.json"), root)
    settings = _optional(inner / "sentence_bert_config.json")
    if settings.get("do_lower_case"):
        raise UserError(f"The model in '{root}' lower-cases its texts (do_lower_case), which is not supported.")
    prompt = _optional(root / "config_sentence_transformers.json").get("default_prompt_name")
    if prompt is not None:
        raise UserError(
            f"The model in '{root}' puts the prompt {shown(prompt)} before its texts, which is not supported."
        )
    encoder, _ = load_weights(AutoModel, spec, load_config(spec))
    longest = settings.get("max_seq_length")
    limits = [length for length in (longest, max_positions(encoder)) if isinstance(length, int) and length > 0]
    encoder.float().eval()
    return SentenceEmbedder(encoder, pooling, min(limits, default=_LONGEST))


def is_setfit_folder(folder: Path) -> bool:
    """Whether a folder is a SetFit model: a sentence-embedding model with a classifier of its embeddings."""
    return any(is_file(folder / name) for name in ("config_setfit.json", "model_head.pkl"))


def embedder_spec(root: Path) -> ModelSpec:
    """The encoder in the folder of a sentence-embedding model."""
    inner = _inside(root, _modules(root)[0])
    return ModelSpec(name=root.resolve().name or "folder", path=str(inner.resolve()), objective="sentence_embeddings")


def _modules(folder: Path) -> list[dict[str, Any]]:
    content = read_json(folder / MODULES)
    if not isinstance(content, list) or not all(
        isinstance(module, dict) and isinstance(module.get("type"), str) and isinstance(module.get("path"), str)
        for module in content
    ):
        raise UserError(f"'{folder / MODULES}' is not a list of modules with type and path; copy the folder again.")
    # The file may list the modules in any order.
    return sorted(content, key=lambda module: int(module.get("idx", 0)))


def _kind(module: dict[str, Any]) -> str:
    return str(module["type"].rpartition(".")[2])


def _inside(root: Path, module: dict[str, Any]) -> Path:
    """The folder of a module."""
    path = Path(module["path"])
    if path.is_absolute() or ".." in path.parts:
        raise UserError(f"'{root / MODULES}' refers to the folder '{path}'; expected a folder inside '{root}'.")
    return root / path


def _pooling(config: dict[str, Any], root: Path) -> Pooling:
    mode = config.get("pooling_mode")
    if mode is None:
        active = [name for key, name in _LEGACY.items() if config.get(key) is True] or ["mean"]
        mode = active[0] if len(active) == 1 else active
    if isinstance(mode, list) and len(mode) == 1:
        mode = mode[0]
    if not isinstance(mode, str) or mode not in get_args(Pooling):
        names = shown(mode)
        raise UserError(
            f"The model in '{root}' pools by {names}, which is not supported; {choices('', get_args(Pooling))}."
        )
    if config.get("include_prompt", True) is not True:
        raise UserError(f"The model in '{root}' excludes prompts from its pooling, which is not supported.")
    checked: Any = mode
    return checked  # type: ignore[no-any-return]


def _optional(path: Path) -> dict[str, Any]:
    return read_object(path) if is_file(path) else {}
