"""LightningModules and batches as users write them: no class of this package is in them."""

from collections.abc import Iterator
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchmetrics.classification import MulticlassAccuracy
from transformers import BertConfig, BertForSequenceClassification, BertModel

LAYERS, HEADS, WORDS = 2, 4, 50
CLS, SEP, PAD = 1, 2, 0


def config(**options: Any) -> BertConfig:
    return BertConfig(
        vocab_size=WORDS,
        hidden_size=32,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=64,
        max_position_embeddings=32,
        pad_token_id=PAD,
        **options,
    )


def examples(count: int, seed: int, *, index: bool = False) -> list[dict[str, Tensor]]:
    """Sequences of 6 to 12 tokens, padded to 12; the label says whether the first word is of the upper half."""

    def made() -> Iterator[dict[str, Tensor]]:
        generator = torch.Generator().manual_seed(seed)
        for number in range(count):
            length = int(torch.randint(6, 13, (), generator=generator))
            ids = torch.randint(5, WORDS, (12,), generator=generator)
            ids[0], ids[length - 1], ids[length:] = CLS, SEP, PAD
            example = {
                "input_ids": ids,
                "attention_mask": (torch.arange(12) < length).long(),
                "labels": (ids[1] > 26).long(),
            }
            yield example | ({"index": torch.tensor(number)} if index else {})

    return list(made())


class Mine(pl.LightningModule):
    """An encoder with a head of its own."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.encoder = BertModel(config(), add_pooling_layer=False)
        self.head = nn.Sequential(nn.Dropout(0.1), nn.Linear(32, 2))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.head(self.encoder(input_ids, attention_mask=attention_mask).last_hidden_state[:, 0])

    def training_step(self, batch: Any, _: int) -> Tensor:
        return nn.functional.cross_entropy(self(batch["input_ids"], batch["attention_mask"]), batch["labels"])

    def validation_step(self, batch: Any, _: int, dataloader_idx: int = 0) -> None:
        self(batch["input_ids"], batch["attention_mask"])

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), 3e-3)


class Tuples(Mine):
    """The same with tuples as batches, and an encoder inside a module that wraps it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.ModuleDict({"text": nn.Sequential(self.encoder)})
        del self.encoder

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.head(self.net["text"][0](ids, mask)[0][:, 0])

    def training_step(self, batch: Any, _: int) -> Tensor:
        ids, mask, labels = batch
        return nn.functional.cross_entropy(self(ids, mask), labels)

    def validation_step(self, batch: Any) -> None:
        self(*batch[:2])


class Library(Mine):
    """A library model with a classification head, called with labels, as in Lightning's tutorial on GLUE."""

    def __init__(self) -> None:
        pl.LightningModule.__init__(self)
        torch.manual_seed(0)
        self.model = BertForSequenceClassification(config(num_labels=2))

    def forward(self, **inputs: Tensor) -> Any:
        return self.model(**inputs)

    def training_step(self, batch: Any, _: int) -> Tensor:
        return self(**batch)[0]

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> dict[str, Tensor]:
        loss, logits = self(**batch)[:2]
        return {"loss": loss, "preds": logits.argmax(-1)}


class Net(nn.Module):
    """A network that takes a dictionary of inputs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.bert = BertModel(config())
        self.out = nn.Linear(32, 2)

    def forward(self, x: dict[str, Tensor]) -> Tensor:
        return self.out(self.bert(**x).pooler_output)


class Template(pl.LightningModule):
    """The module of the Lightning-Hydra template: the network is an argument, and one step serves all stages."""

    def __init__(self, net: nn.Module | None = None, compile: bool = False) -> None:
        super().__init__()
        self.save_hyperparameters(logger=False, ignore=["net"])
        self.net = net or Net()
        self.criterion = nn.CrossEntropyLoss()
        self.val_acc = MulticlassAccuracy(2)

    def forward(self, x: dict[str, Tensor]) -> Tensor:
        return self.net(x)

    def model_step(self, batch: Any) -> tuple[Tensor, Tensor, Tensor]:
        x, y = batch
        logits = self.forward(x)
        return self.criterion(logits, y), logits.argmax(1), y

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.model_step(batch)[0]

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        _, preds, targets = self.model_step(batch)
        self.val_acc(preds, targets)
        self.log("val/acc", self.val_acc, on_step=False, on_epoch=True)

    def setup(self, stage: str) -> None:
        if self.hparams["compile"] and stage == "fit":
            self.net = torch.compile(self.net)

    def configure_optimizers(self) -> dict[str, Any]:
        return {"optimizer": torch.optim.AdamW(self.trainer.model.parameters(), 3e-3)}


def pairs(rows: list[dict[str, Tensor]]) -> list[tuple[dict[str, Tensor], Tensor]]:
    return [({name: row[name] for name in ("input_ids", "attention_mask")}, row["labels"]) for row in rows]


class Twins(Mine):
    """Two encoders, of which the second is a teacher that validation does not call."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = BertModel(config(), add_pooling_layer=False)


def tuples(rows: list[dict[str, Tensor]]) -> list[tuple[Tensor, ...]]:
    return [(row["input_ids"], row["attention_mask"], row["labels"]) for row in rows]


def loaders(batch_size: int = 16) -> tuple[DataLoader[Any], DataLoader[Any]]:
    """Batches to train and to validate on."""
    return DataLoader(examples(160, 1), 32, shuffle=True), DataLoader(examples(60, 2), batch_size)
