"""The data module: splits, samples, loaders, and what Lightning does with them."""

from pathlib import Path
from typing import Any

import pytest
from data.tasks import task
from data.toy import wordpiece
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from torch import distributed

from bertsecrets.data.module import TaskData
from bertsecrets.data.sources import FILES, SourceConfig
from bertsecrets.data.task import TableLayout
from bertsecrets.errors import UserError
from bertsecrets.sweeps.hydra_arguments import BASE

CONFIG = Path(__file__).resolve().parents[2] / "conf" / "data"
MNLI = "index\tsentence1\tsentence2\tgold_label\n"
ROWS = [f"{i}\tthe cat sees {'a man ' * (i % 5)}\tthe dog\t{('neutral', 'entailment')[i % 3 > 0]}\n" for i in range(61)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A GLUE folder with MNLI alone, in the four columns of the sample, without mismatched sets."""
    folder = tmp_path / "MNLI"
    folder.mkdir()
    (folder / "train.tsv").write_text(MNLI + "".join(ROWS))
    (folder / "dev_matched.tsv").write_text(MNLI + "".join(ROWS[:41]))
    unlabelled = [row.rsplit("\t", 1)[0] + "\n" for row in ROWS[:7]]
    (folder / "test_matched.tsv").write_text(MNLI.replace("\tgold_label", "") + "".join(unlabelled))
    return tmp_path


def make(root: Path, seed: int = 0, **settings: Any) -> TaskData:
    source = SourceConfig(source="tsv", root=str(root), **settings)
    return TaskData(task("mnli"), source, wordpiece(), batch_size=8, max_length=32, seed=seed)


def indices(loader: Any) -> list[int]:
    return [index for batch in loader for index in batch.index_B.tolist()]


def test_rows_that_choose_are_not_trained_on_and_no_evaluation_rows() -> None:
    whole, apart = (
        TaskData(task("demo_sentiment"), SourceConfig(), wordpiece(), choosing=share) for share in (None, 0.1)
    )
    apart.setup("fit")
    assert (whole.evaluation_names, apart.evaluation_names) == (("val",), ("val", "choosing"))
    rows, trained, choosing = (
        {example.index for example in data.examples(split)}
        for data, split in ((whole, "train"), (apart, "train"), (apart, "choosing"))
    )
    assert trained | choosing == rows
    assert not trained & choosing
    assert {one.texts for one in apart.examples("train")}.isdisjoint(one.texts for one in apart.examples("choosing"))
    assert len(choosing) / len(rows) == pytest.approx(0.1, abs=0.01)
    shares = [data.labels(split).double().mean().item() for data, split in ((whole, "train"), (apart, "choosing"))]
    assert shares[0] == pytest.approx(shares[1], abs=0.02)
    assert sorted(indices(apart.train_dataloader())) == sorted(trained)
    assert [example.index for example in apart.examples("validation")] == [
        example.index for example in whole.examples("validation")
    ]
    [note] = [note for note in apart.notes if "choose the checkpoint" in note]
    assert note.startswith(
        f"{len(choosing):,} of the {len(rows):,} training rows, the same in every run, are held out to choose the "
        "checkpoint"
    )
    assert ("too few to choose reliably" in note) == (len(choosing) < 200)


@pytest.mark.filterwarnings("ignore:File .* is missing")
class TestTaskData:
    def test_loaders_deal_out_whole_splits(self, root: Path) -> None:
        data = make(root)
        data.setup("fit")
        assert sorted(indices(data.train_dataloader())) == list(range(61))
        assert [sorted(indices(loader)) for loader in data.val_dataloader()] == [list(range(41))]
        assert [sorted(indices(loader)) for loader in data.test_dataloader()] == [list(range(7))]
        assert all(batch.label_B is None for batch in data.test_dataloader()[0])

    def test_limits_take_a_sample_that_keeps_its_indices(self, root: Path) -> None:
        few, more = make(root, limit_train=10, limit_eval=5), make(root, limit_train=20)
        chosen = [example.index for example in few.examples("train")]
        assert len(chosen) == 10
        assert chosen == sorted(chosen) != list(range(10))
        assert set(chosen) < {example.index for example in more.examples("train")}
        assert chosen == [example.index for example in make(root, limit_train=10).examples("train")]
        assert chosen != [example.index for example in make(root, seed=1, limit_train=10).examples("train")]
        assert few.examples("train")[0] == make(root).examples("train")[chosen[0]]
        assert sorted(indices(few.train_dataloader())) == chosen

    def test_the_evaluation_sample_is_the_same_for_every_seed(self, root: Path) -> None:
        first, second = (make(root, seed=seed, limit_eval=5).examples("validation_matched") for seed in (1, 2))
        assert len(first) == 5
        assert first == second

    def test_evaluation_loader_samples_truncates_and_pads(self, root: Path) -> None:
        data = make(root)
        chosen = indices(data.evaluation_loader("mnli_m", max_examples=9, seed=4))
        assert len(set(chosen)) == 9
        assert set(chosen) == set(indices(data.evaluation_loader("mnli_m", max_examples=9, seed=4)))
        assert set(chosen) != set(indices(data.evaluation_loader("mnli_m", max_examples=9, seed=5)))
        with pytest.warns(UserWarning, match=r"\d+ of 41 examples of split 'validation_matched' were truncated to 12"):
            loader = data.evaluation_loader("mnli_m", max_length=12, pad_to=20)
        assert {batch.input_ids_BS.shape[1] for batch in loader} == {20}
        assert max(int(batch.lengths_B.max()) for batch in loader) == 12
        assert sorted(indices(loader)) == list(range(41))

    def test_an_unknown_evaluation_set_is_reported(self, root: Path) -> None:
        with pytest.raises(UserError, match="set 'mnli' does not exist in task 'mnli'; did you mean 'mnli_m'"):
            make(root).evaluation_loader("mnli")

    def test_processes_share_the_evaluation(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        data = make(root)
        monkeypatch.setattr(distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(distributed, "get_world_size", lambda: 3)
        seen = []
        for rank in range(3):
            monkeypatch.setattr(distributed, "get_rank", lambda rank=rank: rank)
            part = indices(data.val_dataloader()[0])
            assert 0 < len(part) < 41
            seen += part
        assert sorted(seen) == list(range(41))

    def test_the_constant_prediction_is_that_of_the_evaluated_labels_whatever_the_training_rows(
        self, root: Path
    ) -> None:
        rows = [row.replace("entailment", "contradiction") for row in ROWS[:41]]
        (root / "MNLI" / "dev_matched.tsv").write_text(MNLI + "".join(rows))
        answers = {make(root, seed, limit_train=limit).constant_prediction() for seed in (1, 2, 3) for limit in (1, 5)}
        assert make(root).labels("train").bincount().tolist() == [40, 21]
        assert answers == {2.0}

    def test_a_split_without_labels_is_reported(self, root: Path) -> None:
        with pytest.raises(UserError, match="Split 'test_matched' of task 'mnli' has no labels"):
            make(root).labels("test_matched")


def test_a_missing_mismatched_file_drops_its_set_with_a_warning(root: Path) -> None:
    with pytest.warns(UserWarning, match=r"dev_mismatched\.tsv' is missing"):
        data = make(root)
    assert data.evaluation_names == ("mnli_m",)
    (root / "MNLI" / "dev_mismatched.tsv").write_text(MNLI + ROWS[0])
    both = make(root)
    assert both.evaluation_names == ("mnli_m", "mnli_mm")
    assert [len(indices(loader)) for loader in both.val_dataloader()] == [41, 1]


@pytest.mark.parametrize("path", sorted(CONFIG.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_file_of_conf_data_makes_a_module(path: Path, root: Path) -> None:
    name = {"demo": "demo_paraphrase", "conllu": "ud_ewt", "coreference": "coreference", "squad": "squad"}.get(
        path.stem, "mrpc"
    )
    with initialize_config_dir(str(CONFIG.parent), **BASE):
        content = OmegaConf.to_container(compose("train", [f"data={path.stem}", f"task={name}"]).data, resolve=True)
    if path.stem in ("tsv", "conllu", "coreference", "squad"):
        content["root"] = str(root)
    chosen = task(name)
    if path.stem in FILES:
        content["path"] = str(root / "reviews.csv")
        chosen = chosen.model_copy(update={"table": TableLayout(texts=("a", "b"), label="same")})
    data = TaskData(chosen, SourceConfig.read("data", content), wordpiece())
    assert data.config.source == path.stem


def test_demo_examples_keep_their_annotation() -> None:
    data = TaskData(task("demo_paraphrase"), SourceConfig(limit_eval=4), wordpiece(), max_length=400)
    batch = data.evaluation_dataset("val")[[0, 1, 2, 3]]
    for row, annotations in enumerate(batch.annotations):
        words = sum(len(annotation.words) for annotation in annotations)
        assert set(batch.word_BS[row].tolist()) == {-1, *range(words)}
