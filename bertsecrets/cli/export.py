"""Write a fine-tuned model as a Hugging Face folder with a model card and a table of its heads."""

from pathlib import Path

from omegaconf import DictConfig

from bertsecrets.cli.build import run_folder
from bertsecrets.cli.run_settings import run_of
from bertsecrets.cli.settings import ModelSettings, RunSettings, read_model
from bertsecrets.errors import UserError
from bertsecrets.keys import ExportKeys
from bertsecrets.models.checkpoint import load_checkpoint
from bertsecrets.models.loading import load_tokenizer, quiet
from bertsecrets.models.spec import INITIAL, find_checkpoint
from bertsecrets.pages.model_card import CARD, ExportedModel, analyses_of, model_card
from bertsecrets.present.console import print_lines
from bertsecrets.results.files import check_new_folder, new_folder, resolved_folder
from bertsecrets.results.run import Run, plain


def export_model(config: DictConfig) -> Path:
    """Write the model of ``checkpoint`` to ``folder``.

    Returns:
        The folder.

    Raises:
        UserError: If the folder is in use, or the checkpoint was not written by a run.
    """
    settings = read_model(ExportKeys, plain(config))
    keys = settings.keys
    target = resolved_folder(keys.folder)
    check_new_folder("folder", target)
    if keys.checkpoint in (None, INITIAL):
        raise UserError("export writes a fine-tuned model; give checkpoint=<run folder> or a .ckpt file.")
    path = find_checkpoint(str(keys.checkpoint), settings.model.revision)
    if path.is_dir():
        raise UserError(f"checkpoint '{path}' is already a Hugging Face folder; export a run or a .ckpt file.")
    run = run_of(str(path))
    keys.load_classes()
    _export(settings, path, target, run)
    return target


def check_save(save: str) -> None:
    """Raise UserError before training if the folder ``save`` cannot be written."""
    target, run_target = resolved_folder(save), resolved_folder(str(run_folder()))
    if target == run_target or target in run_target.parents:
        raise UserError(
            f"save is '{save}', which is or contains the run's own folder; give another folder, e.g. "
            f"save={Path(save) / 'model'}."
        )
    check_new_folder("save", target)


def save_model(settings: RunSettings, save: str, run: Run) -> None:
    """Write the model of a run to the folder ``save``; raises UserError if it cannot be written."""
    _export(settings, find_checkpoint(run.folder), resolved_folder(save), run)


def _export(settings: RunSettings | ModelSettings[ExportKeys], path: Path, target: Path, run: Run | None) -> None:
    checkpoint = load_checkpoint(path, settings.task, settings.model)
    tokenizer = load_tokenizer(settings.model)
    record = checkpoint.record
    step = int(record.get("step", 0))
    model = ExportedModel(
        str(record.get("name", path.stem)),
        settings.task,
        settings.model,
        record,
        run,
        [] if run is None else analyses_of(run, path, step),
    )
    heads = model.heads()
    with new_folder(target) as temporary, quiet():
        checkpoint.model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        if heads is not None:
            heads.write(temporary)
        card = model_card(model, target.name, heads is not None)
        (temporary / CARD).write_text(card, encoding="utf-8")
    print_lines(f"Model: {target}")
