"""Captured attention maps on disk: one safetensors file per captured step, and the tokens."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from bertsecrets.errors import UserError
from bertsecrets.results.files import atomic_write, write_text

EXAMPLES = "examples.json"
TELLING = "telling"
"""File name of the examples that heads affect most."""


@dataclass(frozen=True)
class CapturedExample:
    """A captured example.

    Args:
        index: Its number in the evaluation set.
        tokens: The tokens of its maps, in order.
        texts: Its texts.
        label: Its label as text.
        relations: For each annotated word, its first token, the first token of its syntactic head, and the relation.
        special: Whether the tokenizer added each token; empty if unknown.
    """

    index: int
    tokens: list[str]
    texts: list[str]
    label: str
    relations: list[tuple[int, int, str]] = field(default_factory=list)
    special: list[bool] = field(default_factory=list)

    @property
    def sentences(self) -> list[int]:
        """The sentence of each token, 0 or 1, inferred from the special tokens; empty if unknown.

        >>> CapturedExample(0, list("[a|b]"), ["a", "b"], "?", special=[True, False, True, False, True]).sentences
        [0, 0, 0, 1, 1]
        """
        sentences, sentence = [], 0
        for index, added in enumerate(self.special):
            parted = index > 0 and self.special[index - 1] and not all(self.special[:index])
            sentence = 1 if parted and not added else sentence
            sentences.append(sentence)
        return sentences


@dataclass(frozen=True)
class TellingExample:
    """An example whose prediction changes when a head is disabled, with that head's map.

    Args:
        tokens: The T tokens.
        label: The correct answer.
        answers: For each possible answer, its name and its value with and without the head: probabilities, or one
            score.
        attention_QK: The head's weights ``[T, T]`` in 0..1.
    """

    tokens: Sequence[str]
    label: str
    answers: Sequence[tuple[str, float, float]]
    attention_QK: ArrayLike


def write_examples(folder: Path, examples: list[CapturedExample]) -> None:
    """Write the examples' tokens and texts."""
    content = [asdict(example) for example in examples]
    write_text(folder / EXAMPLES, json.dumps(content, ensure_ascii=False, indent=1))


def read_examples(folder: Path) -> list[CapturedExample]:
    """The examples of a capture folder; empty if it has no captures."""
    path = folder / EXAMPLES
    if not path.is_file():
        return []
    return [CapturedExample(**fields) for fields in json.loads(path.read_text("utf-8"))]


def write_maps(folder: Path, name: str, maps: Mapping[int, ArrayLike]) -> Path:
    """Write the maps ``[L, H, Q, K]`` of examples, by example index, as ``<name>.safetensors``."""
    path = folder / f"{name}.safetensors"
    tensors = {f"attention/{index}": np.ascontiguousarray(map_LHQK, np.float32) for index, map_LHQK in maps.items()}
    with atomic_write(path) as temporary:
        save_file(tensors, temporary)
    return path


def read_maps(path: Path) -> dict[int, NDArray[np.float32]]:
    """The maps of one file, float32, by example index.

    Raises:
        UserError: If the file is not a capture.
    """
    try:
        tensors = load_file(path)
    except Exception as error:
        raise UserError(f"File '{path}' cannot be read as captured maps; delete it and repeat the run.") from error
    return {int(name.removeprefix("attention/")): map_LHQK for name, map_LHQK in tensors.items()}


def write_telling(folder: Path, examples: Mapping[tuple[int, int], TellingExample]) -> None:
    """Write the example that each head affects most: its map as safetensors, the rest as JSON."""
    # Half precision is finer than the 256 shades on a page.
    maps = {
        f"{layer}.{head}": np.ascontiguousarray(example.attention_QK, np.float16)
        for (layer, head), example in examples.items()
    }
    texts = {
        f"{layer}.{head}": {
            "tokens": list(example.tokens),
            "label": example.label,
            "answers": [list(answer) for answer in example.answers],
        }
        for (layer, head), example in examples.items()
    }
    with atomic_write(folder / f"{TELLING}.safetensors") as temporary:
        save_file(maps, temporary)
    write_text(folder / f"{TELLING}.json", json.dumps(texts, ensure_ascii=False))


def read_telling(folder: Path) -> dict[tuple[int, int], TellingExample]:
    """The examples written by :func:`write_telling`; empty without any.

    Raises:
        UserError: If a file is damaged.
    """
    path = folder / f"{TELLING}.json"
    if not path.is_file():
        return {}
    try:
        texts = json.loads(path.read_text("utf-8"))
        maps = load_file(folder / f"{TELLING}.safetensors")
        examples = {}
        for name, entry in texts.items():
            layer, head = map(int, name.split("."))
            answers = [(str(answer), float(before), float(after)) for answer, before, after in entry["answers"]]
            examples[layer, head] = TellingExample(
                entry["tokens"], entry["label"], answers, maps[name].astype(np.float32)
            )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise UserError(f"'{path}' cannot be read ({error}); delete it, or repeat the run.") from error
    return examples


def step_name(step: int) -> str:
    """File name of the maps captured at a training step."""
    return f"step-{step:08d}"


def read_steps(folder: Path) -> dict[int, Path]:
    """Training step -> its file of maps, in ascending order."""
    return {int(path.stem.removeprefix("step-")): path for path in sorted(folder.glob("step-*.safetensors"))}


def moment_name(step: int) -> str:
    """Label of a training step; step 0 is the model before fine-tuning."""
    return "before fine-tuning" if step == 0 else f"step {step}"
