"""Recorded inputs of an encoder as a split, without a task or a tokenizer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from bertsecrets.data.batch import Batch
from bertsecrets.data.example import Example
from bertsecrets.data.sampler import BatchSpec
from bertsecrets.data.tokenization import EncodedSplit, Tokens, group_tensor
from bertsecrets.errors import UserError
from bertsecrets.task_heads.sequence import SEQUENCE

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
        self.inputs, self.pad_id = list(rows), pad_id
        self.tokenizer = tokenizer  # type: ignore[assignment]
        self.label_type = torch.int64 if label_N is None else label_N.dtype
        self.head = SEQUENCE
        labels = [None] * len(rows) if label_N is None else label_N.tolist()
        groups = [None] * len(rows) if group_N is None else group_N.tolist()
        special_ids = torch.tensor(sorted(_special_ids(self.inputs, tokenizer)), dtype=torch.int64)
        self.rows = [_tokens(inputs, special_ids) for inputs in self.inputs]
        self.lengths = [len(inputs["input_ids"]) for inputs in self.inputs]
        self.truncated = self.written = 0
        self.examples = [
            Example(number, () if tokenizer is None else (str(tokenizer.decode(list(row.ids))),), label, group=group)
            for number, row, label, group in zip(index, self.rows, labels, groups, strict=True)
        ]

    def part(self, positions: Sequence[int]) -> "RecordedSplit":
        part = super().part(positions)
        assert isinstance(part, RecordedSplit)
        part.inputs = [self.inputs[position] for position in positions]
        return part

    def __getitem__(self, selection: Sequence[int] | BatchSpec) -> Batch:
        spec = selection if isinstance(selection, BatchSpec) else BatchSpec(tuple(selection))
        chosen = [self.inputs[position] for position in spec.positions]
        length = max(len(inputs["input_ids"]) for inputs in chosen)

        def padded(name: str, filler: int) -> Tensor | None:
            if name not in chosen[0]:
                return None
            return self._pad([inputs[name].tolist() for inputs in chosen], length, filler)

        labels = [self.examples[position].label for position in spec.positions]
        ids_BS, mask_BS = padded("input_ids", self.pad_id), padded("attention_mask", 0)
        assert ids_BS is not None
        assert mask_BS is not None
        return Batch(
            input_ids_BS=ids_BS,
            attention_mask_BS=mask_BS,
            token_type_ids_BS=padded("token_type_ids", 0),
            special_BS=self._pad([self.rows[position].special for position in spec.positions], length, False).bool(),
            word_BS=torch.full_like(ids_BS, -1),
            index_B=torch.tensor([self.examples[position].index for position in spec.positions]),
            label_B=None if None in labels else torch.tensor(labels, dtype=self.label_type),
            weight=spec.weight,
            position_ids_BS=padded("position_ids", 0),
            group_B=group_tensor([self.examples[position] for position in spec.positions]),
        )


def _special_ids(rows: Sequence[dict[str, Tensor]], tokenizer: PreTrainedTokenizerBase | None) -> set[int]:
    if tokenizer is not None:
        # An unknown word is a word.
        return {*tokenizer.all_special_ids} - {tokenizer.unk_token_id}
    real = [inputs["input_ids"][inputs["attention_mask"] != 0] for inputs in rows]
    ends = [{int(ids_S[place]) for ids_S in real if len(ids_S)} for place in (0, -1)]
    return {id for ids in ends for id in ids if len(ids) == 1}


def _tokens(inputs: dict[str, Tensor], special_ids: Tensor) -> Tokens:
    ids_S, types_S = inputs["input_ids"], inputs.get("token_type_ids")
    special_S = torch.isin(ids_S, special_ids) & (inputs["attention_mask"] != 0)
    return Tokens(
        ids=tuple(ids_S.tolist()),
        types=None if types_S is None else tuple(types_S.tolist()),
        special=tuple(special_S.tolist()),
        words=(-1,) * len(ids_S),
        truncated=False,
        written=False,
    )
