"""Recorded inputs of an encoder as a split, without a task or a tokenizer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from bertsecrets.data.example import Example
from bertsecrets.data.tokenization import EncodedSplit, Tokens
from bertsecrets.errors import UserError
from bertsecrets.task_heads.sequence import SequenceHead

_PER_TOKEN = ("input_ids", "attention_mask", "token_type_ids", "position_ids")


@dataclass(frozen=True)
class EncoderInputs:
    """The inputs of one call of an encoder, one number for each token, int64 on the CPU.

    Args:
        tensors: ``input_ids``, ``attention_mask`` and, where they were given, ``token_type_ids`` and ``position_ids``.
    """

    tensors: dict[str, Tensor]

    @classmethod
    def of_call(cls, arguments: dict[str, Any]) -> "EncoderInputs":
        """The inputs among the arguments of an encoder's forward pass, by name.

        Raises:
            UserError: If the encoder receives no token ids, or depends on inputs that are not one number per token.
        """
        given = {name: value for name, value in arguments.items() if isinstance(value, Tensor)}
        if "input_ids" not in given:
            raise UserError(
                "The encoder is called without input_ids, so its texts are unknown; pass input_ids instead of "
                f"{' and '.join(given) or 'nothing'}."
            )
        ids_BS = given["input_ids"]
        given.setdefault("attention_mask", torch.ones_like(ids_BS))
        for name, value in given.items():
            if name not in _PER_TOKEN or value.shape not in (ids_BS.shape, (1, *ids_BS.shape[1:])):
                raise UserError(
                    f"The encoder is called with {name} of shape {list(value.shape)}; expected one number per token "
                    f"({', '.join(_PER_TOKEN)}, {list(ids_BS.shape)})."
                )
        # Copied, because Lightning validates in inference mode, whose tensors cannot take part in a backward pass.
        with torch.inference_mode(False):
            return cls({name: value.expand_as(ids_BS).long().cpu().clone() for name, value in given.items()})

    @property
    def nbytes(self) -> int:
        """Size in memory."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def rows(self) -> list[dict[str, Tensor]]:
        """The inputs of each text, without the padding after its last token."""
        mask_BS = self.tensors["attention_mask"]
        # Left padding is kept: it shifts the positions of an encoder that counts them itself.
        position_S = torch.arange(1, mask_BS.shape[1] + 1)
        lengths = ((mask_BS != 0) * position_S).amax(1).tolist()
        return [
            {name: tensor[row, :length].clone() for name, tensor in self.tensors.items()}
            for row, length in enumerate(lengths)
        ]


class RecordedSplit(EncodedSplit):
    """Recorded inputs as a split whose batches are padded on the right.

    Args:
        rows: The inputs of each text, from :meth:`EncoderInputs.rows`.
        index: The number of each example.
        tokenizer: The tokenizer of the texts, which identifies special tokens and decodes the others. If None, a token
            that starts or ends every text is treated as special.
        pad_id: The id of padding.
        label_N: Classes (int64) or scores (float32); None without labels.
        group_N: The group of each example; None where examples are independent.
    """

    def __init__(
        self,
        rows: Sequence[dict[str, Tensor]],
        index: Sequence[int],
        tokenizer: PreTrainedTokenizerBase | None,
        pad_id: int,
        label_N: Tensor | None = None,
        group_N: Tensor | None = None,
    ) -> None:
        self.tokenizer = tokenizer  # type: ignore[assignment]
        self.pad_id, self.pad_type, self.pad_to, self.pad_to_multiple_of = pad_id, 0, None, 1
        self.head = SequenceHead()
        labels = [None] * len(rows) if label_N is None else label_N.tolist()
        groups = [None] * len(rows) if group_N is None else group_N.tolist()
        if label_N is not None:
            self.head.label_type = label_N.dtype  # type: ignore[misc]
        if tokenizer is not None:
            # An unknown word is a word.
            special = {*tokenizer.all_special_ids} - {tokenizer.unk_token_id}
        else:
            real = [inputs["input_ids"][inputs["attention_mask"] != 0] for inputs in rows]
            ends = [{int(ids_S[place]) for ids_S in real if len(ids_S)} for place in (0, -1)]
            special = {id for ids in ends for id in ids if len(ids) == 1}
        special_I = torch.tensor(sorted(special), dtype=torch.int64)
        tokens = []
        for inputs in rows:
            special_S = torch.isin(inputs["input_ids"], special_I) & (inputs["attention_mask"] != 0)
            ids, mask, types, positions = (
                tuple(inputs[name].tolist()) if name in inputs else None for name in _PER_TOKEN
            )
            assert ids is not None
            words = (-1,) * len(ids)
            flags = tuple(special_S.tolist())
            tokens.append(Tokens(ids, types, flags, words, False, False, mask=mask, positions=positions))
        self.examples = [
            Example(number, () if tokenizer is None else (str(tokenizer.decode(list(row.ids))),), label, group=group)
            for number, row, label, group in zip(index, tokens, labels, groups, strict=True)
        ]
        self._take(tokens)
