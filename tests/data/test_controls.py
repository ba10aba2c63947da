"""Controls on the data: shuffled training labels, and one sentence of each pair."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from data.tasks import task
from data.toy import annotate, pairs, wordpiece

from bertsecrets.data.example import Example
from bertsecrets.data.module import TaskData
from bertsecrets.data.sources import SourceConfig
from bertsecrets.errors import UserError


class InMemory:
    """Annotated pairs of words instead of a file."""

    notes: tuple[str, ...] = ()

    def examples(self, split: str) -> list[Example]:
        made = pairs(200 if split == "train" else 40, seed=len(split))
        return [replace(e, annotations=tuple(annotate(text, text.split()[0]) for text in e.texts)) for e in made]

    def has(self, split: str) -> bool:
        return True

    def prepare(self) -> None:
        pass


def demo(seed: int = 1, name: str = "demo_paraphrase", **settings: Any) -> TaskData:
    data = TaskData(task(name), SourceConfig(source="demo", **settings), wordpiece(), seed=seed)
    data.source = InMemory()
    return data


def labels(data: TaskData, split: str) -> list[Any]:
    return [example.label for example in data.examples(split)]


def test_permuted_labels_are_the_training_labels_in_another_order() -> None:
    plain, shuffled = demo(limit_train=150), demo(limit_train=150, permute_labels=True)
    assert [e.texts for e in shuffled.examples("train")] == [e.texts for e in plain.examples("train")]
    assert Counter(labels(shuffled, "train")) == Counter(labels(plain, "train"))
    agreeing = sum(a == b for a, b in zip(labels(shuffled, "train"), labels(plain, "train"), strict=True))
    # Of two about equally frequent labels, half agree by chance: 75 of 150, with a standard deviation of 6.
    assert 45 < agreeing < 105
    assert labels(shuffled, "validation") == labels(plain, "validation")


def test_the_seed_chooses_the_permutation() -> None:
    first, same, other = (demo(seed, permute_labels=True) for seed in (1, 1, 2))
    assert labels(first, "train") == labels(same, "train") != labels(other, "train")


@pytest.mark.parametrize(("only", "place"), [("first", 0), ("second", 1)])
def test_the_model_reads_one_sentence_of_each_pair(only: str, place: int) -> None:
    plain, alone = demo(limit_train=20, limit_eval=20), demo(limit_train=20, limit_eval=20, only=only)
    for split in ("train", "validation"):
        examples = alone.examples(split)
        assert [e.label for e in examples] == labels(plain, split)
        assert [e.annotations for e in examples] == [e.annotations[place : place + 1] for e in plain.examples(split)]
        batch = alone.encoded(split)[range(20)]
        for row, example in enumerate(plain.examples(split)):
            expected = wordpiece()(example.texts[place])["input_ids"]
            length = int(batch.attention_mask_BS[row].sum())
            assert batch.input_ids_BS[row, :length].tolist() == expected


def test_one_sentence_of_the_pairs_in_a_file_can_be_read(tmp_path: Path) -> None:
    rows = [f"{row % 2}\t1\t1\tA story.\tThe same story, told for time {row}." for row in range(30)]
    (tmp_path / "MRPC").mkdir()
    for split in ("train", "dev"):
        text = "\n".join(["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", *rows, ""])
        (tmp_path / "MRPC" / f"{split}.tsv").write_text(text, "utf-8")
    notes = {}
    for only in ("first", "second"):
        data = TaskData(task("mrpc"), SourceConfig(source="tsv", root=str(tmp_path), only=only), wordpiece())
        data.setup("validate")
        assert {len(example.texts) for example in data.examples("validation")} == {1}
        notes[only] = " ".join(data.notes)
    # All rows share their first sentence, none its second.
    assert "share their" in notes["first"]
    assert "share their" not in notes["second"]


def test_controls_are_named_among_the_notes() -> None:
    assert demo().notes == ()
    notes = demo(only="second", permute_labels=True).notes
    assert notes == (
        "Control: the model reads only the second sentence of each pair.",
        "Control: the training labels are shuffled.",
    )


def test_controls_that_do_not_fit_are_refused() -> None:
    with pytest.raises(
        UserError, match=r"^data.only=first keeps one sentence of a pair, but examples of task 'demo_sent"
    ):
        demo(name="demo_sentiment", only="first")
    with pytest.raises(
        UserError, match=r"^data.permute_labels=true shuffles training labels, but task 'treebank' has no"
    ):
        TaskData(task("treebank"), SourceConfig(source="conllu", root="x", permute_labels=True), wordpiece())
    with pytest.raises(UserError, match=r"data.only is 'both'; expected first, second, or null for both"):
        SourceConfig.read("data", {"only": "both"})
