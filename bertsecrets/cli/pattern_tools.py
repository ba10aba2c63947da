"""Import labels of attention maps, and train the pattern classifier, from a configuration."""

from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from bertsecrets.cli.build import run_folder
from bertsecrets.errors import UserError
from bertsecrets.patterns.labelling.import_labels import LabelImport, import_labels
from bertsecrets.patterns.labelling.settings import LabellingSettings
from bertsecrets.patterns.training.annotated_maps import project_maps
from bertsecrets.patterns.training.evaluation import Evaluation
from bertsecrets.patterns.training.train_classifier import TrainingSettings, train_classifier
from bertsecrets.results.config_copy import CONFIG_COPY, plain


def take_labels(config: DictConfig) -> LabelImport:
    """Import ``labelling.labels`` into ``labelling.folder``."""
    return import_labels(LabellingSettings.read("labelling", plain(config.labelling)))


def train_patterns(config: DictConfig) -> Evaluation:
    """Train the pattern classifier on ``train_patterns`` in Hydra's output folder.

    Raises:
        UserError: If a setting is wrong or the folder's maps cannot be trained on.
    """
    settings = TrainingSettings.read("patterns", plain(config.patterns))
    if config.train_patterns is False:
        raise UserError("train_patterns is False; expected a folder of annotated maps, or true for the project's maps.")
    source = project_maps() if config.train_patterns is True else Path(str(config.train_patterns))
    folder = run_folder()
    folder.mkdir(parents=True, exist_ok=True)
    OmegaConf.save(config, folder / CONFIG_COPY, resolve=True)
    return train_classifier(source, folder, settings, config.progress)
