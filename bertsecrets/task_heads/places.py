"""Heads that predict a class at some places of a text, such as its words or its masked tokens."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from bertsecrets.task_heads.base import TaskHead, giving, output_of, wide
from bertsecrets.task_heads.labels import IGNORED


def labelled_places(label_BS: Tensor) -> tuple[Tensor, Tensor]:
    """The places of the scored tokens, in order, and their labels, ``[B, W]`` each; filled up with unscored ones."""
    scored_BS = label_BS != IGNORED
    width = max(1, int(scored_BS.sum(-1).max()))
    place_BW = (~scored_BS).to(torch.int8).argsort(dim=-1, stable=True)[:, :width]
    return place_BW, label_BS.gather(1, place_BW)


def first_places(rows: int, device: torch.device) -> Tensor:
    """The place of the first token in each of so many rows, ``[B, 1]``."""
    return torch.zeros(rows, 1, dtype=torch.int64, device=device)


def taken(value_BSC: Tensor, place_BW: Tensor) -> Tensor:
    """The vectors at some places of each example, ``[B, W, C]``."""
    return value_BSC.gather(1, place_BW[..., None].expand(-1, -1, value_BSC.shape[-1]))


class PlaceHead(TaskHead):
    """A class at each labelled token; labels are ``[B, S]``, -100 at other tokens."""

    def select(self, output: Tensor, label_B: Any) -> Tensor:
        place_BW, _ = labelled_places(label_B)
        return taken(output, place_BW)

    def output(self, model: PreTrainedModel, inputs: Mapping[str, Any], label_B: Any) -> Tensor:
        # A compiled model would be compiled again with each hook.
        if getattr(model, "_compiled_call_impl", None) is not None:
            return super().output(model, inputs, label_B)
        # As below: a vocabulary of logits at every token would not fit into memory.
        place_BW, _ = labelled_places(label_B)
        hook = model.base_model.register_forward_hook(
            lambda module, args, output: BaseModelOutput(last_hidden_state=taken(output[0], place_BW))
        )
        try:
            return output_of(model, inputs)
        finally:
            hook.remove()

    def reads(self, encoder: Any, real_BS: Tensor, label_B: Any) -> Tensor | None:
        # Such a head treats each token alone: only those that are scored.
        return labelled_places(label_B)[0]

    def finish(self, encoder: Any, hidden_BSD: Tensor, real_BS: Tensor, label_B: Any) -> Tensor:
        _, label_BW = labelled_places(label_B)
        last_BWD = encoder.family.last_hidden(encoder.base, hidden_BSD)
        with giving(encoder.base, last_BWD):
            return output_of(encoder.model, {"inputs_embeds": last_BWD, "attention_mask": label_BW != IGNORED})

    def losses(self, output: Tensor, label_B: Any) -> Tensor:
        _, label_BW = labelled_places(label_B)
        loss_BW = functional.cross_entropy(
            wide(output).transpose(1, 2), label_BW, reduction="none", ignore_index=IGNORED
        )
        return loss_BW.sum(-1) / (label_BW != IGNORED).sum(-1).clamp(min=1)

    def loss(self, output: Tensor, label_B: Any) -> Tensor:
        # A mean over places, as in the library, not over examples.
        _, label_BW = labelled_places(label_B)
        total = functional.cross_entropy(
            output.float().flatten(0, 1), label_BW.flatten(), ignore_index=IGNORED, reduction="sum"
        )
        return total / (label_BW != IGNORED).sum().clamp(min=1)

    def rows(self, output: Tensor, label_B: Any) -> Tensor:
        _, label_BW = labelled_places(label_B)
        return output[label_BW != IGNORED]
