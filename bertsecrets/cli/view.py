"""View the attention of a checkpoint's heads on your own sentence, or the dossier of one head of a run."""

from dataclasses import replace

from omegaconf import DictConfig

from bertsecrets.cli.analyze import load_models
from bertsecrets.cli.build import run_folder
from bertsecrets.cli.run_settings import run_of
from bertsecrets.cli.settings import ModelSettings, read_model
from bertsecrets.data.sources.base import check_characters
from bertsecrets.errors import UserError
from bertsecrets.keys import ViewKeys
from bertsecrets.models.checkpoint import initial_checkpoint
from bertsecrets.models.files import output_names
from bertsecrets.models.loading import load_tokenizer
from bertsecrets.models.spec import INITIAL, model_folder
from bertsecrets.pages.head_dossier import head_dossier
from bertsecrets.pages.head_view import HeadView, head_view
from bertsecrets.pages.page_view import PageView
from bertsecrets.present.console import print_lines
from bertsecrets.results.config_copy import plain
from bertsecrets.sweeps.output_folder import keep_results

PAGE = "view.html"


def view(config: DictConfig) -> PageView:
    """Write the view of one or two sentences, or else the dossier of a head, to Hydra's output folder.

    Raises:
        UserError: If neither a sentence nor a head is given, a sentence is empty, the head does not exist, or the
            checkpoint cannot be loaded.
    """
    settings = read_model(ViewKeys, plain(config))
    keys = settings.keys
    head = None if keys.head is None else tuple(map(int, keys.head.split(".")))
    if keys.text is not None:
        page: PageView = _view_text(settings, head)
    elif head is None:
        raise UserError(
            "view needs a sentence or a head of a run; give text='The cat sat.', or checkpoint=<run> head=5.1."
        )
    else:
        run = run_of(keys.checkpoint)
        if run is None:
            raise UserError(
                f"head={keys.head} needs a run, but checkpoint is '{keys.checkpoint}'; give checkpoint=<run folder>."
            )
        page = head_dossier(run, *head, progress=True)
    keep_results()
    folder = run_folder()
    folder.mkdir(parents=True, exist_ok=True)
    path = page.save(folder / PAGE)
    print_lines(*page.report.lead, f"View: {path}")
    return page


def _view_text(settings: ModelSettings[ViewKeys], start: tuple[int, ...] | None) -> HeadView:
    """The view of one or two sentences, with the head to show first; None for the one that matters most.

    A fine-tuned checkpoint is compared with the model before fine-tuning (or with ``reference``), and its heads can be
    coloured by the numbers of its run.
    """
    keys, run = settings.keys, run_of(settings.keys.checkpoint)
    assert keys.text is not None
    sentences = [keys.text] if isinstance(keys.text, str) else keys.text
    if not all(sentence.strip() for sentence in sentences):
        raise UserError("A sentence of text is empty; give one or two sentences, e.g. text='The cat sat.'.")
    for sentence in sentences:
        check_characters(sentence)
    if run is not None and not (run.folder / "checkpoints").is_dir():
        # The run of an analysis has numbers of heads, but not the model.
        analysed = (run.config().get("trained") or {}).get("folder") or run.foreign or keys.checkpoint
        keys = keys.model_copy(update={"checkpoint": str(analysed)})
        settings = replace(settings, keys=keys)
    tokenizer = load_tokenizer(settings.model)
    name = keys.checkpoint or INITIAL
    untrained = name == INITIAL
    if untrained and keys.reference is None:
        checkpoint = initial_checkpoint(settings.task, settings.model, keys.init, keys.seed)
        reference = None
    else:
        folder = None if run_of(name) is not None else model_folder(name, settings.model.revision)
        if folder is not None and keys.reference is None:
            # A third-party model shows its own classes, whatever the task.
            settings = replace(settings, task=settings.task.without_labels)
            untrained = output_names(folder) is None
        checkpoint, reference = load_models(settings, tokenizer)
    return head_view(
        # An untrained task head has no predictions worth showing.
        checkpoint.model.base_model if untrained else checkpoint.model,
        tokenizer,
        *sentences,
        reference=reference,
        run=run if run is not None and run.heads_path.is_file() else None,
        start=None if start is None else (start[0], start[1]),
    )
