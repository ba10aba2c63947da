"""The code of the page on anybody's module runs as it stands."""

import re
from pathlib import Path
from typing import Any

import pytest
from callbacks.own_modules import Mine, Tuples, examples, loaders, tuples
from callbacks.test_own_modules import heads, spread, trainer
from torch.utils.data import DataLoader

PAGE = Path(__file__).resolve().parents[2] / "docs" / "task_lightning.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, scored, counted, read, of_huggingface = BLOCKS
    train_loader, val_loader = loaders()
    names: dict[str, Any] = {"module": spread(Mine()), "train_loader": train_loader, "val_loader": val_loader}
    exec(first, names)
    # Without TensorBoard, Lightning logs to CSV: the same folders.
    assert len(heads(tmp_path / "lightning_logs/version_0/heads", "drift", "cosine").step.unique()) == 1
    exec(read, names)
    exec(counted, names)
    exec(scored, names)
    rows = DataLoader(tuples(examples(30, 4)), 8)
    trainer(tmp_path, names["callback"], epochs=1).validate(spread(Tuples()), rows, verbose=False)
    assert (tmp_path / "heads/ablation.parquet").is_file()
    pytest.importorskip("accelerate", reason="the Trainer needs it")
    from callbacks.own_modules import Library
    from transformers import TrainingArguments

    data = examples(40, 5)
    names |= {"model": Library().model, "train": data, "held_out": data}
    quiet = {"use_cpu": True, "report_to": [], "save_strategy": "no"}
    names["args"] = TrainingArguments(str(tmp_path / "hf"), eval_strategy="epoch", max_steps=2, **quiet)
    exec(of_huggingface, names)
    names["trainer"].evaluate()
    assert (tmp_path / "hf/heads/ablation.parquet").is_file()
