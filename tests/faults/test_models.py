"""Models, tokenizers and checkpoints that are damaged, foreign or do not belong together."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from faults.cases import CLAIMED, LATE, Case, analyze, parametrized, train
from faults.places import (
    Arrange,
    as_bin,
    both,
    checkpoint,
    cut,
    directory,
    flipped,
    forbid,
    json_keys,
    model,
    pickle_bytes,
    remove,
    run,
    sharded,
    tensors,
    unfinished,
    warm_process,
    write,
)
from faults.runner import Warm

_LOADED = train(model__path="m")
_CONFIG, _WEIGHTS, _BIN, _INDEX = (
    "config.json",
    "model.safetensors",
    "pytorch_model.bin",
    "model.safetensors.index.json",
)
_UNREAD = r"Model .folder. could not be loaded from"


def loads(name: str, sentence: str, *edits: Arrange, **settings: object) -> Case:
    """A training of a changed copy of the tiny model."""
    return Case(f"model-{name}", train(model__path="m", **settings), sentence, arrange=model(*edits))


def configured(name: str, sentence: str, **keys: object) -> Case:
    return loads(f"config-{name}", sentence, json_keys(_CONFIG, **keys))


def resumes(name: str, sentence: str, *edits: Arrange) -> Case:
    """A run that is resumed from its changed folder."""
    return Case(f"resume-{name}", ("train.py", "resume=r"), sentence, arrange=unfinished(*edits))


def _rename(weights: dict[str, torch.Tensor]) -> None:
    renamed = {f"other.{name}": tensor for name, tensor in weights.items()}
    weights.clear()
    weights.update(renamed)


def _drop(weights: dict[str, torch.Tensor], part: str) -> None:
    for name in [name for name in weights if part in name]:
        del weights[name]


def _add(*names: str) -> Arrange:
    """Weights of these names, beside those that the model has."""
    return tensors(lambda weights: weights.update({name: torch.ones(2, 2) for name in names}))


def other_weights(folder: Path) -> None:
    """Beside the copy of the run, copy its model to ``m`` with other weights of the same shapes."""
    generator = torch.Generator().manual_seed(7)

    def draw(weights: dict[str, torch.Tensor]) -> None:
        for name, tensor in weights.items():
            if tensor.dim() > 1:
                weights[name] = torch.empty_like(tensor).normal_(0, 0.02, generator=generator)

    model(tensors(draw))(folder.parent)


def fine_tuned_folder(folder: Path) -> None:
    """Beside the copy of the run, save its model as a plain Hugging Face folder ``hf``."""
    from data.tasks import task

    from bertsecrets.models.checkpoint import load_checkpoint
    from bertsecrets.models.spec import ModelSpec

    spec = ModelSpec(name="folder", path=str(warm_process[-1].model))
    load_checkpoint(folder / "checkpoints" / "last.ckpt", task("sst2"), spec).model.save_pretrained(
        folder.parent / "hf"
    )


def set_record(**values: object) -> Callable[[dict[str, Any]], None]:
    return lambda content: content["bertsecrets"].update(values)


_GONE = r"Model folder '{}' does not exist; give a folder made by save_pretrained"
_EXPECTED = r"has {}={}; expected a whole number from 1"

FOLDERS = [
    Case("path-home", train(model__path="'~/gone'"), _GONE.format(".*/gone")),
    Case("path-of-a-file", train(model__path="m.bin"), "'m.bin' is not a directory", arrange=write("m.bin", "x")),
    Case("path-empty-folder", train(model__path="m"), r"has no config\.json", arrange=directory("m")),
    Case("hub-offline", train(model__path="owner/name"), "the hub cannot be reached.*give a local folder", seconds=10),
    Case("package-missing", train(model="minilm", **{"model.package": "gone_xyz", "model.path": "m"}), "not installed"),
    Case("package-dotted", train(**{"model.package": "os.path"}), r"model\.package is 'os\.path'"),
    Case("folder-closed", train(model__path="m"), r"cannot be read", arrange=model(forbid("."))),
]

CONFIGS = [
    loads("config-missing", r"has no config\.json", remove(_CONFIG)),
    loads("config-deep", r"config\.json' cannot be read \(not JSON", write(_CONFIG, "[" * 200_000)),
    loads("config-nothing", r"has no model_type", write(_CONFIG, "{}")),
    loads("config-closed", r"config\.json' cannot be read \(Permission denied\)", forbid(_CONFIG)),
    configured("no-heads", _EXPECTED.format("num_attention_heads", 0), num_attention_heads=0),
    configured("text-heads", "num_attention_heads", num_attention_heads="4"),
    configured("five-heads", "hidden_size=32, which does not divide by num_attention_heads=5", num_attention_heads=5),
    configured("many-layers", _EXPECTED.format("num_hidden_layers", 10**9), num_hidden_layers=10**9),
    configured("more-layers", "lack .* tensors of its encoder", num_hidden_layers=4),
    configured("other-width", "do not have the shapes", hidden_size=64),
    configured("negative-width", "could not be loaded", intermediate_size=-3),
    configured("activation", "could not be loaded.*unknown 'nope'", hidden_act="nope"),
    configured("dropout", "dropout probability has to be between 0 and 1", hidden_dropout_prob=7),
    configured("type-unknown", "model type `nope`", model_type="nope"),
    configured("type-number", "has no model_type", model_type=3),
    configured("quantized", "are quantized", quantization_config={"quant_method": "bitsandbytes"}),
]

TOKENIZERS = [
    loads(
        "tokenizer-missing",
        "has no tokenizer vocabulary",
        remove("tokenizer.json", "tokenizer_config.json"),
    ),
    loads("tokenizer-junk", "could not be loaded", write("tokenizer.json", b"\x00\xff\x80")),
    configured("small-vocabulary", r"The tokenizer has 30522 tokens, .* embeddings for 100", vocab_size=100),
    loads(
        "tokenizer-larger-than-embeddings",
        "The tokenizer has 30522 tokens, but model 'folder' has embeddings for 30000",
        json_keys(_CONFIG, vocab_size=30_000),
        tensors(
            lambda weights: weights.update(
                {key: value[:30_000].clone() for key, value in weights.items() if "word_embeddings" in key}
            )
        ),
    ),
]

WEIGHTS = [
    Case("model-other-digest", train(model__sha256="0" * 64), "have sha256"),
    loads("weights-missing", _UNREAD, remove(_WEIGHTS)),
    loads("weights-empty", _UNREAD, write(_WEIGHTS, "")),
    loads("weights-cut", _UNREAD, cut(_WEIGHTS)),
    loads("weights-pickled", _UNREAD, write(_WEIGHTS, pickle_bytes())),
    loads("weights-closed", _UNREAD, forbid(_WEIGHTS)),
    loads("weights-foreign", "lack .* tensors of its encoder", tensors(_rename)),
    loads("weights-none", "lack .* tensors of its encoder", tensors(lambda weights: weights.clear())),
    loads(
        "weights-lack-a-layer", "lack .* tensors of its encoder", tensors(lambda weights: _drop(weights, "layer.1."))
    ),
    loads(
        "weights-relative-positions",
        r"have 1 encoder tensors that do not fit \w+, e\.g\. "
        r"encoder\.layer\.0\.attention\.self\.distance_embedding\.weight; merge",
        _add("encoder.layer.0.attention.self.distance_embedding.weight"),
    ),
    configured("fewer-layers", r"have 16 encoder tensors .*e\.g\. encoder\.layer\.2\.", num_hidden_layers=2),
    Case(
        "model-weights-other-heads-fine",
        _LOADED,
        "Report:",
        status=0,
        arrange=model(_add("cls.predictions.bias", "lm_head.weight", "pooler.more.weight", "embeddings.position_ids")),
    ),
    loads("bin-cut-legacy", _UNREAD, as_bin(legacy=True), cut(_BIN)),
    loads("shard-missing", _UNREAD, sharded(remove("b.safetensors"))),
    loads("index-list", _UNREAD, sharded(write(_INDEX, '{"weight_map": [1]}'))),
    Case("model-bin-fine", _LOADED, "Report:", status=0, arrange=model(as_bin())),
    Case("model-sharded-fine", _LOADED, "Report:", status=0, arrange=model(sharded())),
]


_LAST = "checkpoints/last.ckpt"
_UNREADABLE = r"last\.ckpt' cannot be read as a checkpoint"
_PLAIN = {"model": "folder", "task": "sst2", "data": "tsv", "data.root": "{data}"}

RESUMED = [
    resumes("cut", _UNREADABLE, cut(_LAST)),
    resumes("flipped-byte", r"last\.ckpt' is damaged \(.*data/", flipped(_LAST)),
    resumes("other-seed", "its seed is 7 there and 42 here", checkpoint(set_record(seed=7))),
    resumes("other-name", "its name is 'else' there and '.*' here", checkpoint(set_record(name="else"))),
    resumes(
        "another-project", "is not a checkpoint of bertsecrets", checkpoint(lambda content: content.pop("bertsecrets"))
    ),
    resumes("record-of-text", "lacks the model or its record", checkpoint(lambda c: c.update(bertsecrets="x"))),
    resumes("no-weights", "lacks the model or its record", checkpoint(lambda content: content.pop("state_dict"))),
    resumes("other-initial-weights", "its initial_weights is", checkpoint(set_record(initial_weights="0" * 64))),
    resumes(
        "deletes-elsewhere",
        "lists a file outside its folder",
        checkpoint(lambda content: content["callbacks"].update(x={"best_model_path": "/run/checkpoints/../../home"})),
    ),
    Case("resume-fine", ("train.py", "resume=r"), "Report:", status=0, arrange=unfinished()),
]

ANALYSED = [
    Case(
        "analyze-no-checkpoint",
        analyze(checkpoint="r"),
        "has neither a model",
        arrange=run(remove("checkpoints/final.ckpt", _LAST)),
    ),
    Case(
        "analyze-hub-offline", analyze(checkpoint="owner/name"), "not a folder, the hub cannot be reached", seconds=10
    ),
    Case("analyze-missing", analyze(checkpoint="gone"), "Checkpoint 'gone' does not exist"),
    Case(
        "analyze-other-weights-on-purpose",
        analyze(checkpoint="r", reference="m", measure="[drift]"),
        "Report:",
        status=0,
        arrange=run(other_weights),
    ),
    Case("analyze-reference-missing", analyze(reference="./gone"), _GONE.format("gone")),
    Case(
        "analyze-folder",
        analyze(checkpoint="hf", **_PLAIN, **{"model.path": "{model}"}),
        "Report:",
        status=0,
        arrange=run(fine_tuned_folder),
    ),
    Case(
        "analyze-labels-in-another-order",
        analyze(**{"task.labels": "[positive,negative]"}),
        "The rows of .* differ from those of the run in .*split 'validation': other texts or labels",
    ),
    Case(
        "labels-numbered-in-another-order",
        train(task="demo_sentiment", data="demo", data__root=None, **{"task.labels": "[positive,negative]"}),
        r"task\.labels is positive, negative, but the rows of task 'demo_sentiment' number .* negative, positive; "
        r"remove",
    ),
]


def _one_segment(weights: dict[str, torch.Tensor]) -> None:
    name = next(name for name in weights if name.endswith("token_type_embeddings.weight"))
    weights[name] = weights[name][:1].clone()


def _pairs(folder: Path) -> None:
    (folder / "pairs" / "MRPC").mkdir(parents=True)
    rows = [f"{row % 2}\t{row}\t{row}\tfilm {row} is good\tfilm {row} is bad" for row in range(12)]
    for name in ("train", "dev"):
        text = "\n".join(["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", *rows, ""])
        (folder / "pairs" / "MRPC" / f"{name}.tsv").write_text(text, "utf-8")


OUTPUTS = [
    Case(
        "pairs-without-segments",
        train(model__path="m", task="mrpc", data__root="{folder}/pairs"),
        r"marks the second sentence of a pair with segment 1, but model 'folder' has 1 \(type_vocab_size\)",
        arrange=both(model(json_keys(_CONFIG, type_vocab_size=1), tensors(_one_segment)), _pairs),
        leaves=LATE,
    ),
    Case(
        "outputs-in-tuples",
        train(model__path="m"),
        "Report: ",
        status=0,
        arrange=model(json_keys(_CONFIG, return_dict=False)),
    ),
]

CASES = [*OUTPUTS, *FOLDERS, *CONFIGS, *TOKENIZERS, *WEIGHTS, *RESUMED, *ANALYSED]


@parametrized(CASES)
def test_models(case: Case, warm: Warm, tmp_path: Path) -> None:
    warm.check(replace(case, leaves=case.leaves or CLAIMED), tmp_path)
    assert not (tmp_path / "pwned").exists()
