"""Finished steps of an interrupted pruning or fit of gates, kept in the run's folder until the whole is written."""

import copy
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, load_model, save_file, save_model
from torch import Tensor, nn
from transformers import PreTrainedModel

from bertsecrets.ablation.outcomes import Parts, fingerprint
from bertsecrets.ablation.plan import Plan, Variant
from bertsecrets.analysis import Context
from bertsecrets.models.encoder import describe
from bertsecrets.pruning.sets import HeadSet
from bertsecrets.results.components import GROUP
from bertsecrets.results.files import atomic_write


class Finished:
    """What an interrupted run has finished: batches of sweeps, recovered models and fitted gates.

    Each is named by a hash of all that it depends on: weights, heads and settings. An unreadable file counts as
    missing.

    Args:
        folder: Folder of the files.
        settings: What the numbers depend on besides weights and heads, e.g. precision and task.
        writes: Whether this process writes models and gates; each writes its own batches.
    """

    def __init__(self, folder: Path, settings: Sequence[object] = (), writes: bool = True) -> None:
        self.folder = folder
        self.settings = tuple(settings)
        self.writes = writes
        self._loaded = 0
        self._parts: list[Parts] = []

    @classmethod
    def of(cls, context: Context, name: str) -> "Finished":
        """What an interrupted analysis of this model finished, in a folder of this name in the run's folder."""
        return cls(context.run.folder / name, [*context.key, context.task.name], writes=context.is_first)

    @property
    def loaded(self) -> int:
        """Number of files that were used instead of computing them again."""
        return self._loaded + sum(parts.loaded for parts in self._parts)

    def parts(self, model: nn.Module, plan: Plan) -> Parts:
        """The batches of a sweep."""
        self._parts.append(Parts(self.folder, fingerprint(model, plan, self.settings)))
        return self._parts[-1]

    def model_file(self, model: nn.Module, heads: HeadSet, settings: Sequence[object]) -> Path:
        """The file of a model that is recovered from this one without some heads."""
        return self.folder / f"model-{self._hash(model, heads, settings)}.safetensors"

    def recovered(self, model: nn.Module, path: Path, make: Callable[[], PreTrainedModel]) -> PreTrainedModel:
        """The recovered model of a file, or else a new one that is then written to it."""
        if path.is_file():
            network = self.load(model, path)
            if network is not None:
                self._loaded += 1
                return network
        network = make()
        if self.writes:
            with atomic_write(path) as temporary:
                save_model(network, str(temporary))
        return network

    def load(self, model: nn.Module, path: Path) -> PreTrainedModel | None:
        """A copy of a model with the weights of a recovered one, in evaluation mode; None if they cannot be read."""
        with torch.inference_mode(False):
            network: PreTrainedModel = copy.deepcopy(describe(model).model)
            try:
                load_model(network, path)
            except (OSError, RuntimeError, SafetensorError):
                return None
        network.eval()
        return network

    def fitted(self, model: nn.Module, settings: Sequence[object], make: Callable[[], Tensor]) -> Tensor:
        """A tensor that was fitted to a model with these settings, or else a new one that is then written."""
        path = self.folder / f"gates-{self._hash(model, frozenset(), settings)}.safetensors"
        try:
            tensor = load_file(path)["gates"]
            self._loaded += 1
        except (OSError, KeyError, SafetensorError):
            tensor = make().detach().cpu()
            if self.writes:
                with atomic_write(path) as temporary:
                    save_file({"gates": tensor.contiguous()}, temporary)
        return tensor

    def clear(self) -> None:
        """Remove all files, once the results are written."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _hash(self, model: nn.Module, heads: HeadSet, settings: Sequence[object]) -> str:
        encoder = describe(model)
        # A plan needs a variant; which heads are gone is hashed with the settings.
        variants = (Variant("set", GROUP.name, tuple(sorted(heads) or ((0, 0),))),)
        plan = Plan("zero", encoder.num_layers, encoder.num_heads, variants)
        return fingerprint(model, plan, [*self.settings, sorted(heads), *settings])[:24]
