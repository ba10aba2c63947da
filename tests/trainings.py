"""Trainings of seconds: a tiny classifier of the demo task, and a trainer without logs and files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from data.toy import wordpiece
from families import random_model, tiny_model
from transformers import AutoModelForSequenceClassification, PreTrainedModel


def tiny_classifier(seed: int = 0) -> PreTrainedModel:
    """A tiny BERT with two classes and the toy tokenizer's words, whose weights are large enough to matter."""
    settings = {"vocab_size": len(wordpiece()), "num_labels": 2}
    model: PreTrainedModel = random_model(AutoModelForSequenceClassification, "bert", 0.1, seed, **settings)
    return model.train()


def model_of_tokens(attention: str | None = None) -> PreTrainedModel:
    """A tiny BERT that knows the toy tokenizer's ids."""
    model = tiny_model("bert", attention=attention)
    torch.manual_seed(1)
    model.resize_token_embeddings(len(wordpiece()))
    return model


def quiet_trainer(
    folder: Path, callbacks: Sequence[pl.Callback], epochs: int, precision: Any = "32-true"
) -> pl.Trainer:
    """A trainer on the CPU that writes nothing but what its callbacks write."""
    return pl.Trainer(
        accelerator="cpu",
        precision=precision,
        max_epochs=epochs,
        callbacks=list(callbacks),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        default_root_dir=folder,
    )
