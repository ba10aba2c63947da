"""View the attention of a checkpoint's heads to a sentence of one's own."""

from omegaconf import DictConfig
from rich.console import Console

from bertsecrets.cli.analyze import load_models
from bertsecrets.cli.build import run_folder
from bertsecrets.cli.run_settings import run_of
from bertsecrets.cli.settings import read_view
from bertsecrets.data.sources.base import check_characters
from bertsecrets.errors import UserError
from bertsecrets.models.checkpoint import initial_checkpoint
from bertsecrets.models.loading import load_tokenizer
from bertsecrets.models.spec import INITIAL
from bertsecrets.reporting.head_view import HeadView, head_view
from bertsecrets.results.config_copy import plain
from bertsecrets.sweeps.output_folder import keep_results

PAGE = "view.html"


def view_text(config: DictConfig) -> HeadView:
    """Write the view of a sentence, or of two, to Hydra's output folder.

    A fine-tuned checkpoint is compared with the model before fine-tuning (or with ``reference``), and its heads can be
    coloured by the numbers of its run.

    Raises:
        UserError: If a sentence is empty, or the checkpoint cannot be loaded.
    """
    settings = read_view(plain(config))
    keys = settings.keys
    sentences = [keys.text] if isinstance(keys.text, str) else keys.text
    if not all(sentence.strip() for sentence in sentences):
        raise UserError("A sentence of text is empty; give one or two sentences, e.g. text='The cat sat.'.")
    for sentence in sentences:
        check_characters(sentence)
    tokenizer = load_tokenizer(settings.model)
    if keys.checkpoint in (None, INITIAL) and keys.reference is None:
        checkpoint = initial_checkpoint(settings.task, settings.model, keys.init, keys.seed)
        reference = None
    else:
        checkpoint, reference = load_models(settings, tokenizer)
    run = run_of(keys.checkpoint)
    view = head_view(
        checkpoint.model,
        tokenizer,
        *sentences,
        reference=reference,
        run=run if run is not None and run.heads_path.is_file() else None,
    )
    keep_results()
    folder = run_folder()
    folder.mkdir(parents=True, exist_ok=True)
    page = view.save(folder / PAGE)
    console = Console()
    for note in view.report.notes:
        console.print(note, soft_wrap=True, markup=False)
    console.print(f"View: {page}", soft_wrap=True, markup=False)
    return view
